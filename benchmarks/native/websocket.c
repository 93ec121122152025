/* A WebSocket client (RFC 6455): one binary message of --size bytes, masked, out, the same back.
 *
 * The message is masked once, before the run: masking is the client's work, unmasking the server's.
 * A message may come back in one frame only. The edges of each piece are compared, and every 16th
 * message whole.
 */
#define _GNU_SOURCE
#include "loadgen.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EDGE_BYTES = 32, WHOLE_EVERY = 16, FRAME_HEAD = 10, MASK_BYTES = 4 };

struct websocket {
    const struct options *options;
    struct meter meter;
    int fd;
    unsigned char *frame;    /* what is sent: head, mask, masked message */
    size_t frame_len;
    unsigned char *want;     /* what comes back: head, message */
    size_t want_len;
    unsigned char *incoming;
};

static void upgrade(struct websocket *socket)
{
    char request[512], head[2048];
    size_t len = 0;
    int n = snprintf(request, sizeof request,
                     "GET %s HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
                     "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                     "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
                     socket->options->path);
    if (send(socket->fd, request, (size_t)n, MSG_NOSIGNAL) != n)
        die_errno("send");
    while (len < 4 || memcmp(head + len - 4, "\r\n\r\n", 4) != 0) {
        wait_ready(socket->fd, POLLIN, "no answer to the upgrade");
        if (len == sizeof head || recv(socket->fd, head + len, 1, 0) != 1)
            die("the upgrade was not answered");
        len++;
    }
    /* The accept value that RFC 6455, 1.3 gives for this key. */
    if (strncmp(head, "HTTP/1.1 101", 12) != 0
        || memmem(head, len, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", 28) == NULL)
        die("the upgrade was refused: %.*s", (int)(strcspn(head, "\r") % sizeof head), head);
}

/* Writes the head of a frame with a 64-bit length; returns its size. */
static size_t frame_head(unsigned char *out, uint64_t size, bool masked)
{
    size_t n = 2;
    int bits = size < 126 ? 0 : size < 65536 ? 16 : 64;
    out[0] = 0x82; /* the last frame of a binary message */
    out[1] = (unsigned char)((masked ? 0x80 : 0) | (bits == 0 ? (int)size : bits == 16 ? 126 : 127));
    for (int shift = bits - 8; shift >= 0; shift -= 8)
        out[n++] = (unsigned char)(size >> shift);
    return n;
}

static void prepare(struct websocket *socket)
{
    static const unsigned char mask[MASK_BYTES] = { 0x12, 0x9a, 0xf3, 0x57 };
    size_t size = socket->options->size;
    socket->frame = allocate(1, FRAME_HEAD + MASK_BYTES + size);
    socket->want = allocate(1, FRAME_HEAD + size);
    socket->incoming = allocate(1, RECEIVE_BYTES);
    size_t n = frame_head(socket->frame, size, true);
    memcpy(socket->frame + n, mask, MASK_BYTES);
    n += MASK_BYTES;
    pattern_fill(socket->frame + n, size, PATTERN_PERIOD);
    for (size_t i = 0; i < size; i++)
        socket->frame[n + i] ^= mask[i % MASK_BYTES];
    socket->frame_len = n + size;
    n = frame_head(socket->want, size, false);
    pattern_fill(socket->want + n, size, PATTERN_PERIOD);
    socket->want_len = n + size;
}

static void receive(struct websocket *socket, size_t *got, bool whole)
{
    ssize_t n = recv(socket->fd, socket->incoming, RECEIVE_BYTES, 0);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0)
        die("the server closed the connection");
    size_t take = (size_t)n, edge = whole || take < EDGE_BYTES ? take : EDGE_BYTES;
    if (take > socket->want_len - *got)
        die("more came back than was sent");
    const unsigned char *want = socket->want + *got;
    if (memcmp(socket->incoming, want, edge) != 0
        || memcmp(socket->incoming + take - edge, want + take - edge, edge) != 0)
        die("a message came back wrong at byte %zu", *got);
    *got += take;
    socket->meter.bytes += take;
}

static void round_trip(struct websocket *socket)
{
    size_t sent = 0, got = 0;
    uint64_t began = now_ns();
    while (got < socket->want_len) {
        short events = (short)(POLLIN | (sent < socket->frame_len ? POLLOUT : 0));
        wait_ready(socket->fd, events, "a message did not come back");
        if (sent < socket->frame_len) {
            ssize_t n = send(socket->fd, socket->frame + sent, socket->frame_len - sent,
                             MSG_NOSIGNAL);
            if (n < 0 && errno != EAGAIN)
                die_errno("send");
            sent += n > 0 ? (size_t)n : 0;
        }
        receive(socket, &got, socket->meter.units % WHOLE_EVERY == 0);
    }
    meter_latency(&socket->meter, now_ns() - began);
    socket->meter.units++;
}

void run_websocket(const struct options *options)
{
    static struct websocket socket;
    static const unsigned char closing[] = { 0x88, 0x80, 0, 0, 0, 0 };
    if (options->connections != 1)
        die("websocket: one connection");
    socket.options = options;
    prepare(&socket);
    socket.fd = connect_ready(options);
    upgrade(&socket);
    meter_begin(&socket.meter, options);
    do
        round_trip(&socket);
    while (!meter_tick(&socket.meter, now_ns()));
    if (send(socket.fd, closing, sizeof closing, MSG_NOSIGNAL) != sizeof closing)
        die_errno("send");
    close(socket.fd);
    meter_report(&socket.meter, socket.meter.units);
}
