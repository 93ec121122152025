/* A bare echo server on epoll: the upper bound that the event loops are shown against.
 *
 * One thread, level-triggered, one recv and one send per event, nothing else. It prints its port as
 * {"port": N} and ends when its standard input does, like the Python servers.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 256, BUFFER_BYTES = 256 * 1024, BACKLOG = 1024 };

static unsigned char buffer[BUFFER_BYTES];

static _Noreturn void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void watch(int epoll, int fd)
{
    struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        fail("epoll_ctl");
}

static int listen_any(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0
        || listen(fd, BACKLOG) != 0 || getsockname(fd, (struct sockaddr *)&address, &length) != 0)
        fail("listen");
    printf("{\"port\": %d}\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

static void accept_all(int epoll, int listener)
{
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        watch(epoll, fd);
    }
    if (errno != EAGAIN && errno != ECONNABORTED)
        fail("accept4");
}

/* Blocks on a full socket: the load generator reads while it writes, so this ends. */
static int send_all(int fd, const unsigned char *data, size_t left)
{
    while (left > 0) {
        ssize_t n = send(fd, data, left, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN)
            return -1;
        if (n < 0) {
            struct pollfd wait = { .fd = fd, .events = POLLOUT };
            poll(&wait, 1, -1);
            continue;
        }
        data += n;
        left -= (size_t)n;
    }
    return 0;
}

static void echo(int fd)
{
    ssize_t n = recv(fd, buffer, sizeof buffer, 0);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0 || send_all(fd, buffer, (size_t)n) != 0)
        close(fd);
}

static void raise_file_limit(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

int main(void)
{
    struct epoll_event events[EVENTS];
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0)
        fail("epoll_create1");
    raise_file_limit();
    int listener = listen_any();
    watch(epoll, listener);
    watch(epoll, STDIN_FILENO);
    for (;;) {
        int ready = epoll_wait(epoll, events, EVENTS, -1);
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd;
            if (fd == STDIN_FILENO)
                return 0;
            if (fd == listener)
                accept_all(epoll, listener);
            else
                echo(fd);
        }
    }
}
