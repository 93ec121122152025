/* One-way streams: sink and lines (the server receives), source (the server sends), discard (the
 * same, and the receiver takes the bytes without copying them), transfer (the server sends so many
 * bytes on request).
 *
 * Bulk streams repeat a pattern whose period, 65521 bytes, shares no factor with any buffer size, so
 * a lost, doubled or swapped piece is out of step from there on. Receivers check the edges of every
 * piece they get and the total, and not every byte: a full compare would cost as much as the copy
 * that is being measured.
 */
#define _GNU_SOURCE
#include "loadgen.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 64, EDGE_BYTES = 32, DISCARD_BYTES = 2 << 20, CHECK_EVERY = 64 };

struct stream {
    int fd;
    uint64_t through; /* bytes */
};

struct bulk {
    const struct options *options;
    struct meter meter;
    int epoll;
    uint64_t period;
    struct stream *streams;
    unsigned char *pattern; /* period + the largest piece, so that no piece wraps */
    unsigned char *incoming;
};

static void bulk_open(struct bulk *bulk, const struct options *options, uint32_t events)
{
    bulk->options = options;
    bulk->epoll = epoll_new();
    bulk->streams = allocate(options->connections, sizeof *bulk->streams);
    for (unsigned i = 0; i < options->connections; i++) {
        bulk->streams[i].fd = connect_ready(options);
        epoll_set(bulk->epoll, EPOLL_CTL_ADD, bulk->streams[i].fd, events, i);
    }
}

static void receive_all(int fd, void *out, size_t n)
{
    for (size_t done = 0; done < n;) {
        wait_ready(fd, POLLIN, "the server did not answer the end of a stream");
        ssize_t got = recv(fd, (char *)out + done, n - done, 0);
        if (got == 0)
            die("the server closed the connection before its answer");
        if (got < 0 && errno != EAGAIN && errno != EINTR)
            die_errno("recv");
        if (got > 0)
            done += (size_t)got;
    }
}

/* The server answers the end of a stream with two 64-bit words: bytes received, pieces wrong. */
static void sink_finish(const struct bulk *bulk)
{
    for (unsigned i = 0; i < bulk->options->connections; i++) {
        const struct stream *stream = &bulk->streams[i];
        uint64_t answer[2];
        if (shutdown(stream->fd, SHUT_WR) != 0)
            die_errno("shutdown");
        receive_all(stream->fd, answer, sizeof answer);
        if (answer[0] != stream->through || answer[1] != 0)
            die("sent %llu bytes; the server counts %llu, and %llu pieces out of step",
                (unsigned long long)stream->through, (unsigned long long)answer[0],
                (unsigned long long)answer[1]);
        close(stream->fd);
    }
}

/* A stream of lines ends with a whole line. */
static void finish_line(const struct bulk *bulk, struct stream *stream)
{
    while (stream->through % LINE_BYTES != 0) {
        wait_ready(stream->fd, POLLOUT, "the server did not take the end of a line");
        ssize_t n = send(stream->fd, bulk->pattern + stream->through % bulk->period,
                         LINE_BYTES - stream->through % LINE_BYTES, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN)
            die_errno("send");
        stream->through += n > 0 ? (uint64_t)n : 0;
    }
}

void run_sink(const struct options *options, bool lines)
{
    static struct bulk bulk;
    struct epoll_event events[EVENTS];
    bulk.period = lines ? LINE_BYTES * LINES_PER_BLOCK : PATTERN_PERIOD;
    bulk.pattern = allocate(1, bulk.period + options->size);
    if (lines)
        lines_fill(bulk.pattern, bulk.period + options->size);
    else
        pattern_fill(bulk.pattern, bulk.period + options->size, bulk.period);
    bulk_open(&bulk, options, EPOLLOUT);
    meter_begin(&bulk.meter, options);
    bool done = false;
    while (!done) {
        int ready = epoll_next(bulk.epoll, events, EVENTS);
        for (int k = 0; k < ready; k++) {
            struct stream *stream = &bulk.streams[events[k].data.u64];
            const unsigned char *from = bulk.pattern + stream->through % bulk.period;
            ssize_t n = send(stream->fd, from, options->size, MSG_NOSIGNAL);
            if (n < 0 && errno != EAGAIN)
                die_errno("send");
            if (n > 0) {
                stream->through += (uint64_t)n;
                bulk.meter.bytes += (uint64_t)n;
            }
        }
        bulk.meter.units = lines ? bulk.meter.bytes / LINE_BYTES : bulk.meter.bytes;
        done = meter_tick(&bulk.meter, now_ns());
    }
    for (unsigned i = 0; lines && i < options->connections; i++)
        finish_line(&bulk, &bulk.streams[i]);
    sink_finish(&bulk);
    meter_report(&bulk.meter, bulk.meter.units);
}

static void receive_checked(struct bulk *bulk, struct stream *stream)
{
    ssize_t got = recv(stream->fd, bulk->incoming, RECEIVE_BYTES, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got < 0)
        die_errno("recv");
    if (got == 0)
        die("the server closed the connection after %llu bytes",
            (unsigned long long)stream->through);
    size_t n = (size_t)got, edge = n < EDGE_BYTES ? n : EDGE_BYTES;
    const unsigned char *want = bulk->pattern + stream->through % bulk->period;
    if (memcmp(bulk->incoming, want, edge) != 0
        || memcmp(bulk->incoming + n - edge, want + n - edge, edge) != 0)
        die("wrong bytes at offset %llu of the stream", (unsigned long long)stream->through);
    stream->through += n;
    bulk->meter.bytes += n;
    bulk->meter.units = bulk->meter.bytes;
}

static void bulk_receive_setup(struct bulk *bulk, const struct options *options)
{
    bulk->period = options->period;
    bulk->pattern = allocate(1, bulk->period + RECEIVE_BYTES);
    bulk->incoming = allocate(1, RECEIVE_BYTES);
    pattern_fill(bulk->pattern, bulk->period + RECEIVE_BYTES, bulk->period);
    bulk_open(bulk, options, EPOLLIN);
}

/* As the kernel's own test of zero copy receives (tools/testing/selftests/net/msg_zerocopy.c): the
 * bytes leave the queue and are copied nowhere, so that the sender is what limits the rate. */
static void discard(struct bulk *bulk, struct stream *stream)
{
    ssize_t got = recv(stream->fd, NULL, DISCARD_BYTES, MSG_TRUNC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got < 0)
        die_errno("recv");
    if (got == 0)
        die("the server closed the connection after %llu bytes",
            (unsigned long long)stream->through);
    stream->through += (uint64_t)got;
    bulk->meter.bytes += (uint64_t)got;
    bulk->meter.units = bulk->meter.bytes;
}

/* What is discarded can't be checked, so one piece in CHECK_EVERY is received and looked at. */
void run_source(const struct options *options, bool discarding)
{
    static struct bulk bulk;
    struct epoll_event events[EVENTS];
    uint64_t pieces = 0, checked = 0;
    bulk_receive_setup(&bulk, options);
    meter_begin(&bulk.meter, options);
    do {
        int ready = epoll_next(bulk.epoll, events, EVENTS);
        for (int k = 0; k < ready; k++) {
            struct stream *stream = &bulk.streams[events[k].data.u64];
            uint64_t before = stream->through;
            if (discarding && pieces++ % CHECK_EVERY != 0) {
                discard(&bulk, stream);
                continue;
            }
            receive_checked(&bulk, stream);
            checked += stream->through - before;
        }
    } while (!meter_tick(&bulk.meter, now_ns()));
    meter_report(&bulk.meter, checked);
}

/* Asks for `bytes` (one 64-bit word) and takes them. */
static void transfer_once(struct bulk *bulk, uint64_t bytes)
{
    struct epoll_event events[EVENTS];
    struct stream *stream = &bulk->streams[0];
    stream->through = 0; /* every transfer begins at the start of the file */
    if (send(stream->fd, &bytes, sizeof bytes, MSG_NOSIGNAL) != sizeof bytes)
        die_errno("send");
    while (stream->through < bytes) {
        epoll_next(bulk->epoll, events, EVENTS);
        receive_checked(bulk, stream);
    }
    if (stream->through != bytes)
        die("asked for %llu bytes, got %llu", (unsigned long long)bytes,
            (unsigned long long)stream->through);
}

/* Bounded by --count transfers; one eighth of a transfer, not counted, warms up the page cache. */
void run_transfer(const struct options *options)
{
    static struct bulk bulk;
    struct options shape = *options;
    shape.warmup = 0;
    shape.seconds = 0;
    shape.count = options->count * options->transfer;
    if (options->connections != 1 || options->count == 0)
        die("transfer: one connection, --count transfers");
    bulk_receive_setup(&bulk, &shape);
    transfer_once(&bulk, options->transfer / 8);
    meter_begin(&bulk.meter, &shape);
    for (uint64_t i = 0; i < options->count; i++)
        transfer_once(&bulk, options->transfer);
    if (!meter_tick(&bulk.meter, now_ns()))
        die("the transfers do not add up");
    close(bulk.streams[0].fd);
    meter_report(&bulk.meter, bulk.meter.units);
}
