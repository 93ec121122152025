/* Closed-loop echo: each connection keeps `depth` messages in flight and sends the next one when an
 * answer is complete.
 *
 * A message is a fixed pattern with a stamp of (connection, sequence number) at every 4096 bytes.
 * Messages up to 4 KiB are compared whole; of larger ones the ends of every piece received are, and
 * every 64th whole, so that checking does not become the client's main work.
 */
#define _GNU_SOURCE
#include "loadgen.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STAMP_EVERY = 4096, EDGE_BYTES = 64, WHOLE_EVERY = 64, EVENTS = 64 };

struct conn {
    int fd;
    bool waits_for_room;
    uint64_t id;
    uint64_t tx_seq, rx_seq; /* next message to finish sending, receiving */
    uint64_t limit;          /* messages may be sent up to here */
    size_t tx_done, rx_done; /* bytes of those messages already through */
    uint64_t *sent_at;       /* [depth] */
};

struct echo {
    const struct options *options;
    struct meter meter;
    int epoll;
    bool draining;
    unsigned busy; /* connections that still wait for an answer, while draining */
    struct conn *conns;
    unsigned char *outgoing; /* depth messages */
    unsigned char *expected; /* one message */
    unsigned char *incoming; /* RECEIVE_BYTES */
};

static void stamp(unsigned char *message, size_t size, const struct conn *conn, uint64_t seq)
{
    uint64_t value = (conn->id + 1) << 44 | seq;
    for (size_t at = 0; at + sizeof value <= size; at += STAMP_EVERY)
        memcpy(message + at, &value, sizeof value);
}

static void wait_for_room(struct echo *echo, struct conn *conn, bool wanted)
{
    if (conn->waits_for_room == wanted)
        return;
    conn->waits_for_room = wanted;
    epoll_set(echo->epoll, EPOLL_CTL_MOD, conn->fd, EPOLLIN | (wanted ? (uint32_t)EPOLLOUT : 0u),
              conn->id);
}

/* Sends all messages up to conn->limit in one call, or as much as the socket takes. */
static void flush(struct echo *echo, struct conn *conn)
{
    size_t size = echo->options->size;
    unsigned pending = (unsigned)(conn->limit - conn->tx_seq);
    if (pending == 0) {
        wait_for_room(echo, conn, false);
        return;
    }
    uint64_t now = now_ns();
    for (unsigned i = 0; i < pending; i++) {
        stamp(echo->outgoing + i * size, size, conn, conn->tx_seq + i);
        if (i > 0 || conn->tx_done == 0)
            conn->sent_at[(conn->tx_seq + i) % echo->options->depth] = now;
    }
    size_t total = pending * size - conn->tx_done;
    ssize_t n = send(conn->fd, echo->outgoing + conn->tx_done, total, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN)
        die_errno("send");
    if (n > 0) {
        size_t through = conn->tx_done + (size_t)n;
        conn->tx_seq += through / size;
        conn->tx_done = through % size;
    }
    wait_for_room(echo, conn, n < (ssize_t)total);
}

static void verify(struct echo *echo, const struct conn *conn, const unsigned char *data, size_t n)
{
    size_t size = echo->options->size;
    const unsigned char *want = echo->expected + conn->rx_done;
    stamp(echo->expected, size, conn, conn->rx_seq);
    bool good;
    if (size <= STAMP_EVERY || n <= 2 * EDGE_BYTES || conn->rx_seq % WHOLE_EVERY == 0)
        good = memcmp(data, want, n) == 0;
    else
        good = memcmp(data, want, EDGE_BYTES) == 0
            && memcmp(data + n - EDGE_BYTES, want + n - EDGE_BYTES, EDGE_BYTES) == 0;
    if (!good)
        die("connection %llu: message %llu came back wrong at byte %zu",
            (unsigned long long)conn->id, (unsigned long long)conn->rx_seq, conn->rx_done);
}

static void message_done(struct echo *echo, struct conn *conn, uint64_t now)
{
    uint64_t sent_at = conn->sent_at[conn->rx_seq % echo->options->depth];
    meter_latency(&echo->meter, now - sent_at);
    conn->rx_seq++;
    conn->rx_done = 0;
    echo->meter.units++;
    if (!echo->draining)
        conn->limit++;
    else if (conn->rx_seq == conn->limit)
        echo->busy--;
    if (echo->options->interval_us > 0 && !echo->draining)
        sleep_until(now + echo->options->interval_us * 1000ull);
}

static void receive(struct echo *echo, struct conn *conn)
{
    ssize_t got = recv(conn->fd, echo->incoming, RECEIVE_BYTES, 0);
    if (got == 0)
        die("connection %llu: the server closed it", (unsigned long long)conn->id);
    if (got < 0) {
        if (errno == EAGAIN)
            return;
        die_errno("recv");
    }
    uint64_t now = now_ns();
    const unsigned char *data = echo->incoming;
    echo->meter.bytes += (uint64_t)got;
    for (size_t left = (size_t)got; left > 0;) {
        if (conn->rx_seq == conn->limit)
            die("connection %llu: more came back than was sent", (unsigned long long)conn->id);
        size_t room = echo->options->size - conn->rx_done;
        size_t n = left < room ? left : room;
        verify(echo, conn, data, n);
        conn->rx_done += n;
        data += n;
        left -= n;
        if (conn->rx_done == echo->options->size)
            message_done(echo, conn, now);
    }
    flush(echo, conn);
}

/* No new messages; a message that is partly sent is still finished. */
static void drain(struct echo *echo)
{
    echo->draining = true;
    for (unsigned i = 0; i < echo->options->connections; i++) {
        struct conn *conn = &echo->conns[i];
        conn->limit = conn->tx_seq + (conn->tx_done > 0);
        if (conn->rx_seq < conn->limit)
            echo->busy++;
    }
}

static void open_all(struct echo *echo)
{
    const struct options *options = echo->options;
    echo->epoll = epoll_new();
    echo->conns = allocate(options->connections, sizeof *echo->conns);
    for (unsigned i = 0; i < options->connections; i++) {
        struct conn *conn = &echo->conns[i];
        conn->fd = connect_ready(options);
        conn->id = i;
        conn->limit = options->depth;
        conn->sent_at = allocate(options->depth, sizeof *conn->sent_at);
        epoll_set(echo->epoll, EPOLL_CTL_ADD, conn->fd, EPOLLIN, i);
    }
}

void run_echo(const struct options *options)
{
    static struct echo echo;
    struct epoll_event events[EVENTS];
    uint64_t verified = 0;
    echo.options = options;
    echo.outgoing = allocate(options->depth, options->size);
    echo.expected = allocate(1, options->size);
    echo.incoming = allocate(1, RECEIVE_BYTES);
    pattern_fill(echo.outgoing, options->depth * options->size, options->size);
    pattern_fill(echo.expected, options->size, options->size);
    open_all(&echo);
    meter_begin(&echo.meter, options);
    for (unsigned i = 0; i < options->connections; i++)
        flush(&echo, &echo.conns[i]);
    while (!echo.draining || echo.busy > 0) {
        int ready = epoll_next(echo.epoll, events, EVENTS);
        for (int i = 0; i < ready; i++) {
            struct conn *conn = &echo.conns[events[i].data.u64];
            if (events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP))
                receive(&echo, conn);
            else
                flush(&echo, conn);
        }
        if (!echo.draining && meter_tick(&echo.meter, now_ns()))
            drain(&echo);
    }
    for (unsigned i = 0; i < options->connections; i++) {
        verified += echo.conns[i].rx_seq;
        close(echo.conns[i].fd);
    }
    meter_report(&echo.meter, verified);
}
