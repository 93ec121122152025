/* Sockets, memory, clocks, and the one way to fail. */
#define _GNU_SOURCE
#include "zcref.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
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

void *allocate(size_t bytes)
{
    void *memory = aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE);
    if (memory == NULL)
        die("out of memory");
    return memory;
}

void moment_now(struct moment *out)
{
    struct timespec wall, cpu;
    struct rusage usage;
    clock_gettime(CLOCK_MONOTONIC, &wall);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    getrusage(RUSAGE_SELF, &usage);
    out->wall_ns = (uint64_t)wall.tv_sec * 1000000000ull + (uint64_t)wall.tv_nsec;
    out->cpu_ns = (uint64_t)cpu.tv_sec * 1000000000ull + (uint64_t)cpu.tv_nsec;
    out->voluntary = (uint64_t)usage.ru_nvcsw;
    out->involuntary = (uint64_t)usage.ru_nivcsw;
    out->faults = (uint64_t)usage.ru_minflt;
}

static void set(int fd, int level, int name, int value, const char *what)
{
    if (setsockopt(fd, level, name, &value, sizeof value) != 0)
        die_errno(what);
}

/* Sets what has to be set before connect or listen: segment and window are agreed on there. */
static int socket_new(const struct addrinfo *address, const struct options *options)
{
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0)
        die_errno("socket");
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
    if (options->mss > 0)
        set(fd, IPPROTO_TCP, TCP_MAXSEG, options->mss, "TCP_MAXSEG");
    if (options->rcvbuf > 0)
        set(fd, SOL_SOCKET, SO_RCVBUF, options->rcvbuf, "SO_RCVBUF");
    return fd;
}

static struct addrinfo *resolve(const struct options *options)
{
    struct addrinfo *found = NULL, wanted = {
        .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE, .ai_socktype = SOCK_STREAM,
    };
    int failed = getaddrinfo(options->host, options->port, &wanted, &found);
    if (failed)
        die("%s port %s: %s", options->host, options->port, gai_strerror(failed));
    return found;
}

int connect_to(const struct options *options)
{
    struct addrinfo *address = resolve(options);
    int fd = socket_new(address, options);
    struct timeval patience = { .tv_sec = STALL_MS / 1000 };
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) != 0)
        die_errno("SO_SNDTIMEO");
    if (connect(fd, address->ai_addr, address->ai_addrlen) != 0)
        die_errno("connect");
    freeaddrinfo(address);
    return fd;
}

int listen_on(const struct options *options, char text[64])
{
    struct addrinfo *address = resolve(options);
    int fd = socket_new(address, options);
    char host[48], port[8];
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR");
    if (bind(fd, address->ai_addr, address->ai_addrlen) != 0)
        die_errno("bind");
    if (listen(fd, 1) != 0)
        die_errno("listen");
    freeaddrinfo(address);
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound;
    if (getsockname(fd, (struct sockaddr *)&bound, &length) != 0)
        die_errno("getsockname");
    if (getnameinfo((struct sockaddr *)&bound, length, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        die("the listener has no address");
    snprintf(text, 64, "%s %s", host, port);
    return fd;
}

void wait_for(int fd, short events)
{
    struct pollfd wait = { .fd = fd, .events = events };
    int ready;
    do
        ready = poll(&wait, 1, STALL_MS);
    while (ready < 0 && errno == EINTR);
    if (ready < 0)
        die_errno("poll");
    if (ready == 0)
        die("stalled: nothing for %d s", STALL_MS / 1000);
}
