/* Sockets, epoll, patterns, and the one way to fail. */
#define _GNU_SOURCE
#include "loadgen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

void die(const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    for (char *c = text; *c != '\0'; c++)
        if (*c == '"' || *c == '\\' || (unsigned char)*c < 0x20)
            *c = '\'';
    printf("{\"error\": \"%s\"}\n", text);
    exit(1);
}

void die_errno(const char *what)
{
    die("%s: %s", what, strerror(errno));
}

void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL)
        die("out of memory");
    return memory;
}

static struct sockaddr_in address_of(const struct options *options)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)options->port) };
    if (inet_pton(AF_INET, options->host, &address.sin_addr) != 1)
        die("not an IPv4 address: %s", options->host);
    return address;
}

static int socket_new(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (fd < 0)
        die_errno("socket");
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0)
        die_errno("TCP_NODELAY");
    return fd;
}

/* Fills the range of ports below those that the kernel hands out by itself. */
static void own_ports(unsigned *first, unsigned *count)
{
    const char *path = "/proc/sys/net/ipv4/ip_local_port_range";
    unsigned low = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL || fscanf(file, "%u", &low) != 1)
        die("cannot read %s", path);
    fclose(file);
    *first = 1024;
    if (low < 2 * *first)
        die("no ports are left below %s, which begins at %u", path, low);
    *count = low - *first;
}

/* Client ports are chosen here, one after the other, and outside the kernel's range. Thousands of
 * connections a second leave their ports in TIME_WAIT for a minute: in the kernel's own range that
 * makes every connect() search for milliseconds, and bind() to port 0 fail in any program. A port in
 * TIME_WAIT can be used again after a second (tcp_tw_reuse, which covers loopback by default). */
int connect_start(const struct options *options)
{
    static unsigned first, count, next;
    struct sockaddr_in server = address_of(options);
    if (count == 0) {
        own_ports(&first, &count);
        next = (unsigned)(now_ns() % count);
    }
    for (unsigned tried = 0; tried < count; tried++) {
        struct sockaddr_in own = { .sin_family = AF_INET };
        own.sin_port = htons((uint16_t)(first + next++ % count));
        own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1;
        if (fd < 0)
            die_errno("socket");
        if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0)
            die_errno("SO_REUSEADDR");
        if (bind(fd, (struct sockaddr *)&own, sizeof own) == 0) {
            if (connect(fd, (struct sockaddr *)&server, sizeof server) == 0 || errno == EINPROGRESS)
                return fd;
            if (errno != EADDRNOTAVAIL)
                die_errno("connect");
        } else if (errno != EADDRINUSE)
            die_errno("bind");
        close(fd);
    }
    die("no client port is free: all are in use or have been in the last second");
}

int connect_ready(const struct options *options)
{
    struct sockaddr_in address = address_of(options);
    uint64_t deadline = now_ns() + STALL_NS;
    struct timeval patience = { .tv_sec = STALL_NS / 1000000000ull };
    for (;;) {
        int fd = socket_new();
        /* Bounds connect() too (socket(7)), which would go on for minutes where SYNs are lost. */
        if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) != 0)
            die_errno("SO_SNDTIMEO");
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) {
            int nonblocking = fcntl(fd, F_GETFL) | O_NONBLOCK;
            if (fcntl(fd, F_SETFL, nonblocking) != 0)
                die_errno("O_NONBLOCK");
            return fd;
        }
        if (errno != ECONNREFUSED || now_ns() > deadline)
            die_errno("connect");
        close(fd);
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
}

void wait_ready(int fd, short events, const char *what)
{
    struct pollfd wait = { .fd = fd, .events = events };
    if (poll(&wait, 1, (int)(STALL_NS / 1000000ull)) == 0)
        die("stalled: %s", what);
}

int epoll_new(void)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0)
        die_errno("epoll_create1");
    return epoll;
}

void epoll_set(int epoll, int operation, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = { .events = events, .data.u64 = data };
    if (epoll_ctl(epoll, operation, fd, &event) != 0)
        die_errno("epoll_ctl");
}

int epoll_next(int epoll, struct epoll_event *events, int room)
{
    for (;;) {
        int ready = epoll_wait(epoll, events, room, (int)(STALL_NS / 1000000ull));
        if (ready > 0)
            return ready;
        if (ready == 0)
            die("stalled: no event for %llu s", STALL_NS / 1000000000ull);
        if (errno != EINTR)
            die_errno("epoll_wait");
    }
}
