/* Probes of what is not TCP: limits, eventfd, memfd, epoll, unix sockets. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "probe_internal.h"

#ifndef EPOLLEXCLUSIVE
#define EPOLLEXCLUSIVE (1u << 28)
#endif

int zc_probe_page_size(const zc_probe_run *probe, int64_t *value) {
    *value = (int64_t)probe->page_size;
    return 0;
}

/* Bytes of control memory one socket may hold; it bounds what MSG_ZEROCOPY may
 * have in flight. */
int zc_probe_optmem_max(const zc_probe_run *probe, int64_t *value) {
    char text[32] = "";
    (void)probe;
    int fd = open("/proc/sys/net/core/optmem_max", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    ssize_t size = read(fd, text, sizeof text - 1);
    int rc = size < 0 ? -errno : 0;
    close(fd);
    if (rc == 0) {
        char *end = text;
        *value = strtoll(text, &end, 10);
        if (end == text) {
            rc = -EPROTO;
        }
    }
    return rc;
}

/* Bytes a process without CAP_IPC_LOCK may pin for MSG_ZEROCOPY; -1: no limit. */
int zc_probe_rlimit_memlock(const zc_probe_run *probe, int64_t *value) {
    struct rlimit limit;
    (void)probe;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
        return -errno;
    }
    *value = limit.rlim_cur == RLIM_INFINITY ? -1 : (int64_t)limit.rlim_cur;
    return 0;
}

int zc_probe_eventfd(const zc_probe_run *probe, int64_t *value) {
    (void)probe, (void)value;
    eventfd_t count = 0;
    int fd = eventfd(3, EFD_NONBLOCK | EFD_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    int rc = eventfd_write(fd, 4) != 0 || eventfd_read(fd, &count) != 0 ? -errno : 0;
    close(fd);
    return rc != 0 ? rc : count == 7 ? 0 : -EPROTO;
}

/* Seals that make a memfd safe to share: neither side can resize it under the
 * other (a truncated mapping is SIGBUS), nor take the seals off. */
int zc_probe_memfd_seals(const zc_probe_run *probe, int64_t *value) {
    int rc = 0;
    (void)value;
    int fd = memfd_create("zcloop-probe", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return -errno;
    }
    if (ftruncate(fd, (off_t)probe->page_size) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        rc = -errno;
    } else if (ftruncate(fd, 0) == 0 || errno != EPERM) {
        rc = -EOPNOTSUPP;
    }
    close(fd);
    return rc;
}

/* Adds fd to epoll and says whether it is then reported ready. */
static int epoll_reports(int epoll, int fd, uint32_t events) {
    struct epoll_event event = {.events = events, .data.fd = fd}, got = {0};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        return -errno;
    }
    int ready = epoll_wait(epoll, &got, 1, 0);
    if (ready < 0) {
        return -errno;
    }
    return ready == 1 && got.data.fd == fd && (got.events & EPOLLIN) ? 0 : -EOPNOTSUPP;
}

int zc_probe_nested_epoll(const zc_probe_run *probe, int64_t *value) {
    (void)probe, (void)value;
    int rc = 0;
    int inner = epoll_create1(EPOLL_CLOEXEC);
    int outer = epoll_create1(EPOLL_CLOEXEC);
    int event = eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC);
    if (inner < 0 || outer < 0 || event < 0) {
        rc = -errno;
    }
    if (rc == 0) {
        rc = epoll_reports(inner, event, EPOLLIN);
    }
    if (rc == 0) {
        rc = epoll_reports(outer, inner, EPOLLIN);
    }
    zc_probe_close(event);
    zc_probe_close(outer);
    zc_probe_close(inner);
    return rc;
}

int zc_probe_epoll_exclusive(const zc_probe_run *probe, int64_t *value) {
    (void)probe, (void)value;
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    int event = eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC);
    int rc =
        epoll < 0 || event < 0 ? -errno : epoll_reports(epoll, event, EPOLLIN | EPOLLEXCLUSIVE);
    zc_probe_close(event);
    zc_probe_close(epoll);
    return rc;
}

static int peercred_of_self(int listener, int client) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred credentials = {0};
    socklen_t size = sizeof credentials, address_size = sizeof address;

    /* An address of the family alone makes the kernel pick a free abstract name. */
    if (bind(listener, (struct sockaddr *)&address, sizeof(sa_family_t)) != 0 ||
        listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &address_size) != 0 ||
        connect(client, (struct sockaddr *)&address, address_size) != 0) {
        return -errno;
    }
    if (address_size <= sizeof(sa_family_t) || address.sun_path[0] != '\0') {
        return -EPROTO;
    }
    int server = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (server < 0) {
        return -errno;
    }
    int rc = getsockopt(server, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0 ? -errno : 0;
    close(server);
    if (rc == 0 && (credentials.pid != getpid() || credentials.uid != geteuid())) {
        rc = -EPROTO;
    }
    return rc;
}

int zc_probe_unix_peercred(const zc_probe_run *probe, int64_t *value) {
    (void)probe, (void)value;
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int client = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int rc = listener < 0 || client < 0 ? -errno : peercred_of_self(listener, client);
    zc_probe_close(client);
    zc_probe_close(listener);
    return rc;
}
