/* What this kernel can do, found out by doing it.
 *
 * Version numbers lie: distributions backport, sandboxes filter, containers
 * replace the network stack.  So each feature the loop may use is tried once, for
 * real, on sockets made for the purpose, and its answer is yes or an errno.
 *
 * A probe returns 0 or -errno and may store a figure in *value.  Three errnos are
 * ours: EOPNOTSUPP means that the kernel accepted the request and did not act on
 * it, EPROTO that it answered something else than documented, ETIMEDOUT that the
 * answer did not come within the time all probes share.
 *
 * Everything is non-blocking and both ends of every connection are held here, so
 * no probe depends on another process; the time limit is for kernels that never
 * answer.  Connections are reset at the end: no TIME_WAIT is left.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "probe_internal.h"
#include "zc_assert.h"

#define PROBE_BUDGET_NS 20000000 /* for all probes together */

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void zc_probe_close(int fd) {
    if (fd >= 0) {
        close(fd);
    }
}

/* Waits for any of `events` on fd until the deadline, and looks at least once.
 * An error or hang-up that was not asked for is left to the call that follows. */
int zc_probe_wait(const zc_probe_run *probe, int fd, short events) {
    struct pollfd entry = {.fd = fd, .events = events};
    for (;;) {
        int64_t left = probe->deadline_ns - now_ns();
        struct timespec timeout = {.tv_nsec = left > 0 ? left : 0};
        int ready = ppoll(&entry, 1, &timeout, NULL);
        if (ready > 0) {
            return 0;
        }
        if (ready == 0) {
            return -ETIMEDOUT;
        }
        if (errno != EINTR) {
            return -errno;
        }
    }
}

int zc_probe_set_int(int fd, int level, int option, int value) {
    return setsockopt(fd, level, option, &value, sizeof value) == 0 ? 0 : -errno;
}

int zc_probe_get_int(int fd, int level, int option, int *value) {
    socklen_t size = sizeof *value;
    return getsockopt(fd, level, option, value, &size) == 0 ? 0 : -errno;
}

int zc_probe_tcp_socket(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    return fd >= 0 ? fd : -errno;
}

static void pair_close(zc_probe_pair *pair) {
    zc_probe_close(pair->tx);
    zc_probe_close(pair->rx);
    pair->tx = pair->rx = -1;
}

static int pair_connect(const zc_probe_run *probe, int listener, zc_probe_pair *pair) {
    const struct linger reset = {.l_onoff = 1, .l_linger = 0};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int rc;

    if (bind(listener, (struct sockaddr *)&address, size) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &size) != 0) {
        return -errno;
    }
    if ((pair->tx = zc_probe_tcp_socket()) < 0) {
        return pair->tx;
    }
    if (connect(pair->tx, (struct sockaddr *)&address, size) != 0 && errno != EINPROGRESS) {
        return -errno;
    }
    if ((rc = zc_probe_wait(probe, listener, POLLIN)) != 0 ||
        (rc = zc_probe_wait(probe, pair->tx, POLLOUT)) != 0) {
        return rc;
    }
    if ((pair->rx = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) < 0) {
        return -errno;
    }
    if (setsockopt(pair->tx, SOL_SOCKET, SO_LINGER, &reset, sizeof reset) != 0 ||
        setsockopt(pair->rx, SOL_SOCKET, SO_LINGER, &reset, sizeof reset) != 0) {
        return -errno;
    }
    return zc_probe_set_int(pair->tx, IPPROTO_TCP, TCP_NODELAY, 1);
}

static int pair_open(const zc_probe_run *probe, zc_probe_pair *pair) {
    int listener = zc_probe_tcp_socket();
    int rc;

    pair->tx = pair->rx = -1;
    if (listener < 0) {
        return listener;
    }
    rc = pair_connect(probe, listener, pair);
    close(listener);
    if (rc != 0) {
        pair_close(pair);
    }
    return rc;
}

/* Runs `test` on a fresh connection. */
int zc_probe_with_pair(const zc_probe_run *probe, int64_t *value,
                       int (*test)(const zc_probe_run *, const zc_probe_pair *, int64_t *)) {
    zc_probe_pair pair;
    int rc = pair_open(probe, &pair);
    if (rc == 0) {
        rc = test(probe, &pair, value);
        pair_close(&pair);
    }
    return rc;
}

/* Waits for data at rx and returns how much one recv takes out. */
ssize_t zc_probe_receive(const zc_probe_run *probe, int fd, void *buffer, size_t size) {
    int rc = zc_probe_wait(probe, fd, POLLIN);
    if (rc != 0) {
        return rc;
    }
    ssize_t received = recv(fd, buffer, size, 0);
    return received >= 0 ? received : -errno;
}

int zc_probe_expect(const zc_probe_run *probe, int fd, const char *bytes, size_t size) {
    char got[64];
    ZC_ASSERT(size <= sizeof got);
    ssize_t received = zc_probe_receive(probe, fd, got, sizeof got);
    if (received < 0) {
        return (int)received;
    }
    return (size_t)received == size && memcmp(got, bytes, size) == 0 ? 0 : -EPROTO;
}

typedef struct {
    const char *name;
    int (*run)(const zc_probe_run *probe, int64_t *value);
} feature;

static const feature features[] = {
    {"page_size", zc_probe_page_size},
    {"optmem_max", zc_probe_optmem_max},
    {"rlimit_memlock", zc_probe_rlimit_memlock},
    {"eventfd", zc_probe_eventfd},
    {"memfd_seals", zc_probe_memfd_seals},
    {"nested_epoll", zc_probe_nested_epoll},
    {"epoll_exclusive", zc_probe_epoll_exclusive},
    {"unix_peercred", zc_probe_unix_peercred},
    {"tcp_user_timeout", zc_probe_tcp_user_timeout},
    {"tcp_disconnect", zc_probe_tcp_disconnect},
    {"tcp_inq", zc_probe_tcp_inq},
    {"so_rcvlowat", zc_probe_so_rcvlowat},
    {"sendfile", zc_probe_sendfile},
    {"splice", zc_probe_splice},
    {"so_zerocopy", zc_probe_so_zerocopy},
    {"msg_zerocopy", zc_probe_msg_zerocopy},
    {"tcp_zerocopy_receive", zc_probe_tcp_zerocopy_receive},
    {"tcp_zerocopy_copybuf", zc_probe_tcp_zerocopy_copybuf},
    {"tcp_zerocopy_map", zc_probe_tcp_zerocopy_map},
};
_Static_assert(sizeof features / sizeof features[0] == ZC_CAPABILITY_COUNT, "the header's count");

int zc_probe(zc_capability *out, int capacity) {
    if (capacity < ZC_CAPABILITY_COUNT) {
        return -EINVAL;
    }
    const zc_probe_run probe = {.deadline_ns = now_ns() + PROBE_BUDGET_NS,
                                .page_size = (size_t)sysconf(_SC_PAGESIZE)};
    for (int i = 0; i < ZC_CAPABILITY_COUNT; i++) {
        zc_capability *record = &out[i];
        memset(record, 0, sizeof *record);
        ZC_ASSERT(strlen(features[i].name) < sizeof record->name);
        strcpy(record->name, features[i].name);
        int64_t value = 0;
        int rc = features[i].run(&probe, &value);
        ZC_ASSERT(rc <= 0);
        record->ok = rc == 0;
        record->err = -rc;
        record->value = rc == 0 ? value : 0;
    }
    return ZC_CAPABILITY_COUNT;
}
