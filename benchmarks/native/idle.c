/* Memory and CPU of idle connections: each one is opened, sends one message and gets it back, and
 * then stays silent. The message makes sure that the server has accepted it and set up all that a
 * connection has.
 */
#define _GNU_SOURCE
#include "loadgen.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static void echo_once(int fd, const unsigned char *message, unsigned char *incoming, size_t size)
{
    if (send(fd, message, size, MSG_NOSIGNAL) != (ssize_t)size)
        die_errno("send on a new connection");
    for (size_t done = 0; done < size;) {
        wait_ready(fd, POLLIN, "no answer on a new connection");
        ssize_t got = recv(fd, incoming + done, size - done, 0);
        if (got == 0)
            die("the server closed an idle connection");
        if (got < 0 && errno != EAGAIN && errno != EINTR)
            die_errno("recv");
        done += got > 0 ? (size_t)got : 0;
    }
    if (memcmp(message, incoming, size) != 0)
        die("a message came back wrong");
}

/* Units are connections; rss_start is read with one connection open, rss_end with all of them, and
 * CPU is that of --seconds of silence. */
void run_idle(const struct options *options)
{
    static struct meter meter;
    struct options shape = *options;
    struct usage before;
    struct rlimit limit;
    unsigned char *message = allocate(1, options->size), *incoming = allocate(1, options->size);
    int *fds = allocate(options->connections + 1, sizeof *fds);
    pattern_fill(message, options->size, options->size);
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    if (limit.rlim_max < options->connections + 16 || setrlimit(RLIMIT_NOFILE, &limit) != 0)
        die("%u connections need a higher limit of open files than %llu", options->connections,
            (unsigned long long)limit.rlim_max);
    fds[0] = connect_ready(options);
    for (int i = 0; i < 100; i++)
        echo_once(fds[0], message, incoming, options->size);
    observe(options->server_pid, &before);
    for (unsigned i = 1; i <= options->connections; i++) {
        fds[i] = connect_ready(options);
        echo_once(fds[i], message, incoming, options->size);
    }
    shape.warmup = 0;
    meter_begin(&meter, &shape);
    meter.units += options->connections;
    meter.server_start.rss_bytes = before.rss_bytes;
    sleep_until(now_ns() + (uint64_t)(options->seconds * 1e9));
    meter_tick(&meter, UINT64_MAX);
    for (unsigned i = 0; i <= options->connections; i++)
        close(fds[i]);
    meter_report(&meter, options->connections);
}
