/* A bare sender with MSG_ZEROCOPY: what the event loops' zero-copy sends are compared with.
 *
 * It does what the kernel's own test does (tools/testing/selftests/net/msg_zerocopy.c): the same
 * bytes again and again, on a non-blocking socket; completions are reaped after every 32 sends, and
 * when the socket is full, while poll(2) says that there are some. One connection at a time. It
 * prints its port as {"port": N}, ends when its standard input does, and then prints what it counted.
 *
 * czerocopy SIZE [copy]: bytes a send; with "copy" the same without MSG_ZEROCOPY. BENCH_HOST is the
 * IPv4 address to listen on.
 */
#define _GNU_SOURCE
#include "loadgen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <time.h> /* linux/errqueue.h needs struct timespec */

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif
#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif

enum { REAP_EVERY = 32 };

static unsigned long long sends, notifications, completed, copied, without_memory;

static _Noreturn void fail(const char *what)
{
    perror(what);
    exit(1);
}

static int listen_any(void)
{
    const char *host = getenv("BENCH_HOST");
    struct sockaddr_in address = { .sin_family = AF_INET };
    socklen_t length = sizeof address;
    if (inet_pton(AF_INET, host != NULL ? host : "127.0.0.1", &address.sin_addr) != 1)
        fail("BENCH_HOST");
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 1) != 0
        || getsockname(fd, (struct sockaddr *)&address, &length) != 0)
        fail("listen");
    printf("{\"port\": %d}\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

/* Reads all notifications that are there. */
static void reap(int fd)
{
    char control[128];
    for (;;) {
        struct msghdr message = { .msg_control = control, .msg_controllen = sizeof control };
        if (recvmsg(fd, &message, MSG_ERRQUEUE) < 0) {
            if (errno == EAGAIN)
                return;
            fail("recvmsg(MSG_ERRQUEUE)");
        }
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        if (header == NULL || header->cmsg_level != SOL_IP || header->cmsg_type != IP_RECVERR)
            continue;
        struct sock_extended_err error;
        memcpy(&error, CMSG_DATA(header), sizeof error);
        if (error.ee_origin != SO_EE_ORIGIN_ZEROCOPY)
            continue;
        unsigned count = error.ee_data - error.ee_info + 1; /* a range may wrap */
        notifications++;
        completed += count;
        if (error.ee_code & SO_EE_CODE_ZEROCOPY_COPIED)
            copied += count;
    }
}

/* Until the socket takes bytes again; completions that come meanwhile are reaped. */
static void wait_writable(int fd)
{
    for (;;) {
        struct pollfd wait = { .fd = fd, .events = POLLOUT };
        if (poll(&wait, 1, -1) < 0 && errno != EINTR)
            fail("poll");
        if (wait.revents & POLLERR)
            reap(fd);
        if (wait.revents & (POLLOUT | POLLHUP))
            return;
    }
}

static void serve(int fd, const unsigned char *piece, size_t size, int flags)
{
    int one = 1;
    unsigned since = 0;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (flags && setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) != 0)
        fail("SO_ZEROCOPY");
    for (size_t at = 0;;) {
        ssize_t n = send(fd, piece + at, size - at, flags | MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != ENOBUFS)
            return; /* the receiver has left */
        if (n < 0) {
            without_memory += errno == ENOBUFS;
            wait_writable(fd);
            continue;
        }
        at = (at + (size_t)n) % size;
        if (flags == 0)
            continue;
        sends++;
        if (++since == REAP_EVERY) {
            since = 0;
            reap(fd);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc < 2)
        fail("usage: czerocopy SIZE [copy]");
    size_t size = strtoul(argv[1], NULL, 10);
    int flags = argc > 2 && strcmp(argv[2], "copy") == 0 ? 0 : MSG_ZEROCOPY;
    unsigned char *piece = calloc(1, size);
    if (size == 0 || piece == NULL)
        fail("SIZE");
    pattern_fill(piece, size, size);
    int listener = listen_any();
    for (;;) {
        struct pollfd wait[2] = { { .fd = STDIN_FILENO, .events = POLLIN },
                                  { .fd = listener, .events = POLLIN } };
        if (poll(wait, 2, -1) < 0 && errno != EINTR)
            fail("poll");
        if (wait[0].revents)
            break;
        int fd = wait[1].revents ? accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC) : -1;
        if (fd < 0)
            continue;
        serve(fd, piece, size, flags);
        close(fd); /* the process keeps `piece` until it ends, and never changes it */
    }
    printf("{\"zerocopy\": {\"sends\": %llu, \"notifications\": %llu, \"completed\": %llu, "
           "\"copied\": %llu, \"enobufs\": %llu}}\n",
           sends, notifications, completed, copied, without_memory);
}
