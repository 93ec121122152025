/* mixed: small requests in a closed loop on a connection that the server also sends large pieces on.
 *
 * The server answers each message of --size bytes with the same bytes, and after every --every
 * answers it sends --transfer bytes of the pattern. The next request goes out as soon as an answer
 * has come, so one request in --every is answered behind a large piece, and those that follow while
 * the sender still waits for the acknowledgement of that piece. All their latencies count.
 */
#define _GNU_SOURCE
#include "loadgen.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EDGE = 32 };

struct mixed {
    const struct options *options;
    struct meter meter;
    int fd;
    unsigned char *message, *answer, *pattern, *incoming;
    size_t answered;       /* bytes of the current answer that have come */
    uint64_t bulk_left;    /* bytes of the current bulk piece still to come */
    uint64_t answers, sent_at;
};

static void request(struct mixed *mixed)
{
    memcpy(mixed->message, &mixed->answers, sizeof mixed->answers);
    mixed->sent_at = now_ns();
    if (send(mixed->fd, mixed->message, mixed->options->size, MSG_NOSIGNAL)
        != (ssize_t)mixed->options->size)
        die_errno("send");
}

static size_t take_bulk(struct mixed *mixed, const unsigned char *data, size_t n)
{
    uint64_t through = mixed->options->transfer - mixed->bulk_left;
    const unsigned char *want = mixed->pattern + through % mixed->options->period;
    if (n > mixed->bulk_left)
        n = (size_t)mixed->bulk_left;
    size_t edge = n < EDGE ? n : EDGE;
    if (memcmp(data, want, edge) != 0 || memcmp(data + n - edge, want + n - edge, edge) != 0)
        die("wrong bytes behind answer %llu", (unsigned long long)mixed->answers);
    mixed->bulk_left -= n;
    return n;
}

static size_t take_answer(struct mixed *mixed, const unsigned char *data, size_t n)
{
    const struct options *options = mixed->options;
    if (n > options->size - mixed->answered)
        n = options->size - mixed->answered;
    memcpy(mixed->answer + mixed->answered, data, n);
    mixed->answered += n;
    if (mixed->answered < options->size)
        return n;
    if (memcmp(mixed->answer, mixed->message, options->size) != 0)
        die("answer %llu came back wrong", (unsigned long long)mixed->answers);
    meter_latency(&mixed->meter, now_ns() - mixed->sent_at);
    mixed->answered = 0;
    mixed->answers++;
    mixed->meter.units++;
    if (mixed->answers % options->every == 0)
        mixed->bulk_left = options->transfer;
    request(mixed);
    return n;
}

static void receive(struct mixed *mixed)
{
    ssize_t got = recv(mixed->fd, mixed->incoming, RECEIVE_BYTES, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got < 0)
        die_errno("recv");
    if (got == 0)
        die("the server closed the connection after %llu answers",
            (unsigned long long)mixed->answers);
    mixed->meter.bytes += (uint64_t)got;
    for (size_t at = 0; at < (size_t)got;) {
        const unsigned char *data = mixed->incoming + at;
        size_t left = (size_t)got - at;
        at += mixed->bulk_left > 0 ? take_bulk(mixed, data, left) : take_answer(mixed, data, left);
    }
}

void run_mixed(const struct options *options)
{
    static struct mixed mixed;
    if (options->connections != 1 || options->depth != 1)
        die("mixed: one connection, one message in flight");
    mixed.options = options;
    mixed.message = allocate(1, options->size);
    mixed.answer = allocate(1, options->size);
    mixed.incoming = allocate(1, RECEIVE_BYTES);
    mixed.pattern = allocate(1, options->period + RECEIVE_BYTES);
    pattern_fill(mixed.pattern, options->period + RECEIVE_BYTES, options->period);
    memset(mixed.message, '.', options->size);
    mixed.fd = connect_ready(options);
    meter_begin(&mixed.meter, options);
    request(&mixed);
    do {
        wait_ready(mixed.fd, POLLIN, "no answer");
        receive(&mixed);
    } while (!meter_tick(&mixed.meter, now_ns()));
    close(mixed.fd);
    meter_report(&mixed.meter, mixed.answers);
}
