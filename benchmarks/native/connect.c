/* connect, one message out and back, close; `connections` of these at a time. The client closes
 * first, as most clients do, so TIME_WAIT stays on its side.
 */
#define _GNU_SOURCE
#include "loadgen.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 64 };

struct slot {
    int fd;
    bool sent;
    size_t received;
    uint64_t began;
};

struct connect_run {
    const struct options *options;
    struct meter meter;
    int epoll;
    unsigned open;
    struct slot *slots;
    unsigned char *message, *incoming;
};

/* On loopback the handshake is over when connect() returns, so that the message can go at once. */
static bool slot_send(struct connect_run *run, const struct slot *slot)
{
    ssize_t n = send(slot->fd, run->message, run->options->size, MSG_NOSIGNAL);
    if (n < 0 && errno == EAGAIN)
        return false;
    /* A fresh socket's send buffer takes any message this mode is used with whole. */
    if (n != (ssize_t)run->options->size)
        die_errno("send on a new connection");
    return true;
}

static void slot_open(struct connect_run *run, unsigned i)
{
    struct slot *slot = &run->slots[i];
    slot->began = now_ns();
    slot->fd = connect_start(run->options);
    slot->received = 0;
    slot->sent = slot_send(run, slot);
    run->open++;
    epoll_set(run->epoll, EPOLL_CTL_ADD, slot->fd, slot->sent ? EPOLLIN : EPOLLOUT, i);
}

static void slot_established(struct connect_run *run, unsigned i)
{
    struct slot *slot = &run->slots[i];
    slot->sent = slot_send(run, slot);
    if (slot->sent)
        epoll_set(run->epoll, EPOLL_CTL_MOD, slot->fd, EPOLLIN, i);
}

/* True when the answer is complete and the connection is closed. */
static bool slot_receive(struct connect_run *run, unsigned i)
{
    struct slot *slot = &run->slots[i];
    ssize_t n = recv(slot->fd, run->incoming, RECEIVE_BYTES, 0);
    if (n < 0 && errno == EAGAIN)
        return false;
    if (n < 0)
        die_errno("recv");
    if (n == 0 || slot->received + (size_t)n > run->options->size
        || memcmp(run->incoming, run->message + slot->received, (size_t)n) != 0)
        die("a new connection's message came back wrong");
    slot->received += (size_t)n;
    if (slot->received < run->options->size)
        return false;
    close(slot->fd);
    run->open--;
    run->meter.units++;
    run->meter.bytes += run->options->size;
    meter_latency(&run->meter, now_ns() - slot->began);
    return true;
}

void run_connect(const struct options *options)
{
    static struct connect_run run;
    struct epoll_event events[EVENTS];
    run.options = options;
    run.epoll = epoll_new();
    run.slots = allocate(options->connections, sizeof *run.slots);
    run.message = allocate(1, options->size);
    run.incoming = allocate(1, RECEIVE_BYTES);
    pattern_fill(run.message, options->size, options->size);
    close(connect_ready(options));
    meter_begin(&run.meter, options);
    for (unsigned i = 0; i < options->connections; i++)
        slot_open(&run, i);
    while (run.open > 0) {
        int ready = epoll_next(run.epoll, events, EVENTS);
        for (int k = 0; k < ready; k++) {
            unsigned i = (unsigned)events[k].data.u64;
            if (!run.slots[i].sent)
                slot_established(&run, i);
            else if (slot_receive(&run, i) && !meter_tick(&run.meter, now_ns()))
                slot_open(&run, i);
        }
    }
    meter_report(&run.meter, run.meter.units);
}
