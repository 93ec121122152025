/* A minimal HTTP/1.1 client: one request in flight on each connection, the same every time.
 *
 * A request is a GET of --path, or with --upload a POST of so many bytes of the pattern. The response
 * must be 200 with a Content-Length; its body must be --expect where that is given, and with
 * --download so many bytes of the pattern (of which the edges of each piece are compared, as in
 * bulk.c). Requests are counted when their response is complete, and the phases change there, so that
 * the server's CPU time is that of whole requests where there is one connection.
 *
 * With --priming so many requests are made first, on a connection of their own, and not counted:
 * benchmarks/README.md says why.
 */
#define _GNU_SOURCE
#include "loadgen.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEAD_BYTES = 4096, PIECE = 1 << 20, EDGE_BYTES = 32, EVENTS = 64 };

struct conn {
    int fd;
    bool waits_for_room, busy;
    uint64_t id, sent_at;
    uint64_t sent;              /* of the request, head and body */
    size_t head_len;            /* of the response's head that is here; */
    bool in_body;               /* once all of it is, what follows are body_len bytes */
    uint64_t body_len, body_got;
    char head[HEAD_BYTES + 1];
};

struct http {
    const struct options *options;
    struct meter meter;
    int epoll;
    bool priming, done;
    char request[HEAD_BYTES];
    size_t request_len;
    unsigned char *outgoing, *expected, *incoming;
    struct conn *conns;
};

static void wait_for_room(struct http *http, struct conn *conn, bool wanted)
{
    if (conn->waits_for_room == wanted)
        return;
    conn->waits_for_room = wanted;
    epoll_set(http->epoll, EPOLL_CTL_MOD, conn->fd, EPOLLIN | (wanted ? (uint32_t)EPOLLOUT : 0u),
              conn->id);
}

/* Sends as much of the request as the socket takes. */
static void push(struct http *http, struct conn *conn)
{
    uint64_t upload = http->options->upload, total = http->request_len + upload;
    while (conn->sent < total) {
        const void *from;
        size_t n;
        int flags = MSG_NOSIGNAL;
        if (conn->sent < http->request_len) {
            from = http->request + conn->sent;
            n = http->request_len - (size_t)conn->sent;
            flags |= upload > 0 ? MSG_MORE : 0;
        } else {
            uint64_t at = conn->sent - http->request_len;
            from = http->outgoing + at % PATTERN_PERIOD;
            n = upload - at < PIECE ? (size_t)(upload - at) : PIECE;
        }
        ssize_t took = send(conn->fd, from, n, flags);
        if (took < 0 && errno != EAGAIN)
            die_errno("send");
        if (took < 0)
            break;
        conn->sent += (uint64_t)took;
    }
    wait_for_room(http, conn, conn->sent < total);
}

static void begin(struct http *http, struct conn *conn)
{
    conn->sent = conn->body_len = conn->body_got = 0;
    conn->head_len = 0;
    conn->in_body = false;
    conn->busy = true;
    conn->sent_at = now_ns();
    push(http, conn);
}

static void response_done(struct http *http, struct conn *conn)
{
    uint64_t now = now_ns();
    conn->busy = false;
    if (conn->sent < http->request_len + http->options->upload)
        die("the response came before the request was sent");
    if (http->priming)
        return;
    meter_latency(&http->meter, now - conn->sent_at);
    http->meter.units++;
    http->done = http->done || meter_tick(&http->meter, now);
    if (!http->done)
        begin(http, conn);
}

static void check_head(struct http *http, struct conn *conn)
{
    const char *length = strcasestr(conn->head, "\r\nContent-Length:");
    if (strncmp(conn->head, "HTTP/1.1 200 ", 13) != 0)
        die("%.*s", (int)strcspn(conn->head, "\r"), conn->head);
    if (length == NULL)
        die("a response without a Content-Length");
    conn->body_len = strtoull(length + 17, NULL, 10);
    uint64_t want = http->options->download;
    if (want > 0 && conn->body_len != want)
        die("a body of %llu bytes", (unsigned long long)conn->body_len);
    if (http->options->expect != NULL && conn->body_len != strlen(http->options->expect))
        die("a body of %llu bytes: %.200s", (unsigned long long)conn->body_len, conn->head);
    conn->in_body = true;
}

/* Takes what belongs to the head out of the data; returns how much that was. */
static size_t take_head(struct http *http, struct conn *conn, const unsigned char *data, size_t n)
{
    size_t room = HEAD_BYTES - conn->head_len, take = n < room ? n : room;
    memcpy(conn->head + conn->head_len, data, take);
    conn->head[conn->head_len + take] = '\0';
    const char *end = memmem(conn->head, conn->head_len + take, "\r\n\r\n", 4);
    if (end == NULL) {
        if (take == room)
            die("a head of more than %d bytes", HEAD_BYTES);
        conn->head_len += take;
        return take;
    }
    size_t used = (size_t)(end + 4 - conn->head) - conn->head_len;
    check_head(http, conn);
    return used;
}

static size_t take_body(struct http *http, struct conn *conn, const unsigned char *data, size_t n)
{
    uint64_t left = conn->body_len - conn->body_got, at = conn->body_got;
    size_t take = n < left ? n : (size_t)left, edge = take < EDGE_BYTES ? take : EDGE_BYTES;
    const unsigned char *want = NULL;
    if (http->options->expect != NULL) {
        want = (const unsigned char *)http->options->expect + at;
        edge = take;
    } else if (http->options->download > 0)
        want = http->expected + at % http->options->period;
    if (want != NULL
        && (memcmp(data, want, edge) != 0
            || memcmp(data + take - edge, want + take - edge, edge) != 0))
        die("wrong bytes at offset %llu of a body", (unsigned long long)at);
    conn->body_got += take;
    return take;
}

static void receive(struct http *http, struct conn *conn)
{
    ssize_t got = recv(conn->fd, http->incoming, RECEIVE_BYTES, 0);
    if (got < 0 && errno == EAGAIN)
        return;
    if (got < 0)
        die_errno("recv");
    if (got == 0)
        die("the server closed a connection");
    http->meter.bytes += (uint64_t)got;
    const unsigned char *data = http->incoming;
    for (size_t left = (size_t)got; left > 0;) {
        if (!conn->busy)
            die("more came than was asked for");
        size_t n = conn->in_body ? take_body(http, conn, data, left)
                                 : take_head(http, conn, data, left);
        data += n;
        left -= n;
        if (conn->in_body && conn->body_got == conn->body_len)
            response_done(http, conn);
    }
}

static void prepare(struct http *http, const struct options *options)
{
    char length[64] = "";
    if (options->upload > 0)
        snprintf(length, sizeof length, "Content-Length: %llu\r\n",
                 (unsigned long long)options->upload);
    int n = snprintf(http->request, sizeof http->request,
                     "%s %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n",
                     options->upload > 0 ? "POST" : "GET", options->path, length);
    if (n < 0 || (size_t)n >= sizeof http->request)
        die("--path is too long");
    http->options = options;
    http->request_len = (size_t)n;
    http->incoming = allocate(1, RECEIVE_BYTES);
    if (options->upload > 0) {
        http->outgoing = allocate(1, PATTERN_PERIOD + PIECE);
        pattern_fill(http->outgoing, PATTERN_PERIOD + PIECE, PATTERN_PERIOD);
    }
    if (options->download > 0) {
        http->expected = allocate(1, options->period + RECEIVE_BYTES);
        pattern_fill(http->expected, options->period + RECEIVE_BYTES, options->period);
    }
}

static bool any_busy(const struct http *http)
{
    for (unsigned i = 0; i < http->options->connections; i++)
        if (http->conns[i].busy)
            return true;
    return false;
}

static void serve_events(struct http *http)
{
    struct epoll_event events[EVENTS];
    int ready = epoll_next(http->epoll, events, EVENTS);
    for (int i = 0; i < ready; i++) {
        struct conn *conn = &http->conns[events[i].data.u64];
        if (events[i].events & EPOLLOUT)
            push(http, conn);
        if (events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP))
            receive(http, conn);
    }
}

static void open_conn(struct http *http, unsigned i)
{
    http->conns[i].fd = connect_ready(http->options);
    http->conns[i].id = i;
    epoll_set(http->epoll, EPOLL_CTL_ADD, http->conns[i].fd, EPOLLIN, i);
}

static void prime(struct http *http)
{
    http->priming = true;
    open_conn(http, 0);
    for (unsigned i = 0; i < http->options->priming; i++) {
        begin(http, &http->conns[0]);
        while (http->conns[0].busy)
            serve_events(http);
    }
    close(http->conns[0].fd);
    http->conns[0] = (struct conn){ 0 };
    http->priming = false;
}

void run_http(const struct options *options)
{
    static struct http http;
    prepare(&http, options);
    http.epoll = epoll_new();
    http.conns = allocate(options->connections, sizeof *http.conns);
    if (options->priming > 0)
        prime(&http);
    for (unsigned i = 0; i < options->connections; i++)
        open_conn(&http, i);
    meter_begin(&http.meter, options);
    for (unsigned i = 0; i < options->connections; i++)
        begin(&http, &http.conns[i]);
    while (!http.done || any_busy(&http))
        serve_events(&http);
    for (unsigned i = 0; i < options->connections; i++)
        close(http.conns[i].fd);
    meter_report(&http.meter, http.meter.units);
}
