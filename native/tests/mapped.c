#define _GNU_SOURCE
#include "mapped.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "zerocopy_names.h"

enum {
    TIMESTAMPS = 12, /* TCP option bytes in each segment */
    SENT_AT_ONCE = 8 /* pages: far below any receive window, whose edge would cut a page in two */
};

static size_t page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static void set_int(int fd, int level, int option, int value) {
    CHECK_EQ(setsockopt(fd, level, option, &value, sizeof value), 0);
}

static void skip_where_pages_cannot_be_mapped(int fd) {
    char *mapping = mmap(NULL, page_size(), PROT_READ, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED) {
        SKIP("this kernel maps no TCP socket");
    }
    munmap(mapping, page_size());
    if (page_size() + TIMESTAMPS > 32767) {
        SKIP("a TCP segment can't be as large as this machine's pages");
    }
    int on = 1;
    if (setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) != 0) {
        SKIP("this kernel has no MSG_ZEROCOPY");
    }
}

pair mappable_pair(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int segment = (int)page_size() + TIMESTAMPS;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int peer = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(listener >= 0 && peer >= 0);
    skip_where_pages_cannot_be_mapped(peer);
    set_int(listener, IPPROTO_TCP, TCP_MAXSEG, segment);
    set_int(peer, IPPROTO_TCP, TCP_MAXSEG, segment);
    set_int(peer, IPPROTO_TCP, TCP_NODELAY, 1);
    CHECK_EQ(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    CHECK_EQ(listen(listener, 1), 0);
    CHECK_EQ(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    CHECK_EQ(connect(peer, (struct sockaddr *)&address, size), 0);
    int ours = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    CHECK(ours >= 0);
    close(listener);
    return (pair){.ours = ours, .peer = peer};
}

/* Completions that nobody reads would use up the socket's memory for options. */
static void reap_completions(int fd) {
    char control[256];
    struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
    while (recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0) {
        message.msg_controllen = sizeof control;
    }
    CHECK_EQ(errno, EAGAIN);
}

void send_pages(pair connection, const char *source, size_t bytes) {
    int before = 0, now = 0;
    CHECK_EQ(ioctl(connection.ours, FIONREAD, &before), 0);
    for (size_t done = 0; done < bytes;) {
        ssize_t sent =
            send(connection.peer, source + done, bytes - done, MSG_ZEROCOPY | MSG_NOSIGNAL);
        CHECK(sent > 0 || errno == ENOBUFS);
        done += sent > 0 ? (size_t)sent : 0;
        reap_completions(connection.peer);
    }
    while ((size_t)(now - before) < bytes) {
        struct pollfd entry = {.fd = connection.ours, .events = POLLIN};
        CHECK_EQ(poll(&entry, 1, -1), 1);
        CHECK_EQ(ioctl(connection.ours, FIONREAD, &now), 0);
    }
}

void map_arrived(int fd, char *at, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        struct zerocopy_receive request = {.address = (uint64_t)(uintptr_t)(at + done),
                                           .length = (uint32_t)(bytes - done)};
        socklen_t size = sizeof request;
        CHECK_EQ(getsockopt(fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &request, &size), 0);
        CHECK_EQ(request.err, 0);
        CHECK(request.length > 0); /* else these bytes can't be mapped */
        done += request.length;
    }
}

void map_bytes(pair connection, const char *source, char *at, size_t bytes) {
    size_t most = SENT_AT_ONCE * page_size();
    for (size_t done = 0; done < bytes;) {
        size_t now = bytes - done < most ? bytes - done : most;
        send_pages(connection, source + done, now);
        map_arrived(connection.ours, at + done, now);
        done += now;
    }
}

size_t count_mappings(void) {
    FILE *maps = fopen("/proc/self/maps", "re");
    CHECK(maps != NULL);
    size_t lines = 0;
    for (int c; (c = getc(maps)) != EOF;) {
        lines += c == '\n';
    }
    fclose(maps);
    return lines;
}
