/* The receiver's account and report, and the two receivers that copy.
 *
 * CPU, faults and context switches are the process's own, read at three moments: when the warm-up
 * bytes have come, at the end of the stream, and when everything that was kept has been let go.
 */
#define _GNU_SOURCE
#include "zcref.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void answer_due(struct receiver *receiver)
{
    static const char answer[256];
    const struct options *options = receiver->options;
    uint64_t whole = receiver->received / (options->header + options->size);
    for (; receiver->answered < whole; receiver->answered++)
        if (send(receiver->fd, answer, options->answer, MSG_NOSIGNAL) != (ssize_t)options->answer)
            die_errno("send");
}

void receiver_take(struct receiver *receiver, const void *data, size_t n)
{
    if (receiver->hash != NULL)
        zcref_hash_update(receiver->hash, data, n);
    receiver->received += n;
    if (receiver->clock_at == 0 && receiver->received >= receiver->options->warmup) {
        receiver->clock_at = receiver->received;
        moment_now(&receiver->start);
    }
    if (receiver->options->answer > 0)
        answer_due(receiver);
}

long receiver_recv(struct receiver *receiver, void *to, size_t n)
{
    for (;;) {
        receiver->recv_calls++;
        ssize_t got = recv(receiver->fd, to, n, MSG_DONTWAIT);
        if (got > 0)
            return got;
        if (got == 0)
            return -1;
        if (errno == EAGAIN)
            return 0;
        if (errno != EINTR) {
            receiver->error = errno;
            return -1;
        }
    }
}

void receiver_wait(struct receiver *receiver)
{
    receiver->poll_calls++;
    wait_for(receiver->fd, POLLIN);
}

/* A read that came up short has emptied the queue: the next one would only say EAGAIN. */
static void receive_reused(struct receiver *receiver)
{
    size_t size = receiver->options->size;
    char *buffer = allocate(size);
    for (long got = 0; got >= 0;) {
        got = receiver_recv(receiver, buffer, size);
        if (got > 0)
            receiver_take(receiver, buffer, (size_t)got);
        if (got >= 0 && (size_t)got < size)
            receiver_wait(receiver);
    }
    moment_now(&receiver->end);
    free(buffer);
}

/* Each message into memory of its own, hashed when it is whole. */
static void receive_fresh(struct receiver *receiver)
{
    struct kept kept = { .block_bytes = receiver->options->size };
    for (long got = 0; got >= 0;) {
        size_t room;
        char *to = kept_room(&kept, &room);
        got = receiver_recv(receiver, to, room);
        kept.used += got > 0 ? (size_t)got : 0;
        if (kept.used == kept.block_bytes || got < 0)
            receiver_take(receiver, kept.blocks[kept.count - 1], kept.used);
        if (got >= 0 && (size_t)got < room)
            receiver_wait(receiver);
    }
    moment_now(&receiver->end);
    kept_release(&kept);
}

static double per(uint64_t amount, uint64_t units, double scale)
{
    return units ? (double)amount / (double)units * scale : 0;
}

static void report(const struct receiver *receiver, int out_fd, const char *verified)
{
    const struct options *options = receiver->options;
    const struct moment *from = &receiver->start, *to = &receiver->end;
    uint64_t bytes = receiver->received - receiver->clock_at;
    uint64_t cpu = to->cpu_ns - from->cpu_ns, all = receiver->released.cpu_ns - from->cpu_ns;
    uint64_t messages = receiver->received / (options->header + options->size);
    uint64_t calls = receiver->recv_calls + receiver->map_calls;
    double seconds = (double)(to->wall_ns - from->wall_ns) / 1e9;
    unsigned long long hash = receiver->hash ? zcref_hash_value(receiver->hash) : 0;
    dprintf(out_fd,
            "{\"role\": \"receiver\", \"kind\": \"%s\", \"size\": %zu, \"bytes\": %llu, "
            "\"measured_bytes\": %llu, \"seconds\": %.6f, \"gbit_s\": %.3f, \"cpu_us\": %.1f, "
            "\"cpu_us_per_mb\": %.2f, \"release_us\": %.1f, \"mapped_share\": %.6f, "
            "\"mapped\": %llu, \"copied_by_call\": %llu, \"voluntary\": %llu, "
            "\"involuntary\": %llu, \"faults\": %llu, \"recv_calls\": %llu, \"map_calls\": %llu, "
            "\"poll_calls\": %llu, \"zap_calls\": %llu, \"receive_calls_per_message\": %.3f, "
            "\"hash\": \"%016llx\", \"verified\": %s}\n",
            options->kind, options->size, (unsigned long long)receiver->received,
            (unsigned long long)bytes, seconds, seconds > 0 ? (double)bytes * 8e-9 / seconds : 0,
            (double)cpu / 1e3, per(cpu, bytes, 1e3), (double)(all - cpu) / 1e3,
            per(receiver->mapped, receiver->received, 1), (unsigned long long)receiver->mapped,
            (unsigned long long)receiver->copied_by_call,
            (unsigned long long)(to->voluntary - from->voluntary),
            (unsigned long long)(to->involuntary - from->involuntary),
            (unsigned long long)(to->faults - from->faults),
            (unsigned long long)receiver->recv_calls, (unsigned long long)receiver->map_calls,
            (unsigned long long)receiver->poll_calls, (unsigned long long)receiver->zap_calls,
            per(calls, messages, 1), hash, verified);
}

/* "null" without a hash. Dies when the bytes are not those that were sent. */
static const char *verify(const struct receiver *receiver)
{
    const struct options *options = receiver->options;
    if (receiver->error)
        die("the connection failed after %llu bytes: %s", (unsigned long long)receiver->received,
            strerror(receiver->error));
    if (receiver->received != options->bytes)
        die("%llu bytes came, and not %llu", (unsigned long long)receiver->received,
            (unsigned long long)options->bytes);
    if (receiver->hash == NULL)
        return "null";
    if (zcref_hash_value(receiver->hash)
        != zcref_expected(options->bytes, options->header, options->size))
        die("the bytes that came are not those that were sent");
    return "true";
}

void run_receiver(const struct options *options, int listener, int out_fd)
{
    struct receiver receiver = { .options = options };
    int lowat = options->lowat;
    wait_for(listener, POLLIN);
    receiver.fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (receiver.fd < 0)
        die_errno("accept");
    if (lowat > 0 && setsockopt(receiver.fd, SOL_SOCKET, SO_RCVLOWAT, &lowat, sizeof lowat) != 0)
        die_errno("SO_RCVLOWAT");
    receiver.hash = options->hash ? zcref_hash_new() : NULL;
    if (strcmp(options->kind, "reused") == 0)
        receive_reused(&receiver);
    else if (strcmp(options->kind, "fresh") == 0)
        receive_fresh(&receiver);
    else if (strcmp(options->kind, "map") == 0)
        receive_mapped(&receiver, false);
    else if (strcmp(options->kind, "map-keep") == 0)
        receive_mapped(&receiver, true);
    else
        die("no such kind of receiver: %s", options->kind);
    moment_now(&receiver.released);
    uint64_t answer[2] = { receiver.received,
                           receiver.hash ? zcref_hash_value(receiver.hash) : 0 };
    if (!receiver.error
        && send(receiver.fd, answer, sizeof answer, MSG_NOSIGNAL) != (ssize_t)sizeof answer)
        die_errno("send");
    report(&receiver, out_fd, verify(&receiver));
    close(receiver.fd);
}
