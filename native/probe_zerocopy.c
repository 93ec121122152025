/* Probes of the two zero-copy mechanisms: MSG_ZEROCOPY and TCP_ZEROCOPY_RECEIVE. */
#define _GNU_SOURCE
#include <errno.h>
#include <time.h> /* linux/errqueue.h needs struct timespec */

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "probe_internal.h"
#include "zerocopy_names.h"

/* Pages sent to find one that can be mapped: few enough for the 64 KiB that old
 * systems let an ordinary user pin. */
#define MAP_PAGES 8

/* Reads one completion: its error record into *error. */
static int read_completion(int fd, struct sock_extended_err *error) {
    char control[128];
    struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(fd, &message, MSG_ERRQUEUE) < 0) {
        return -errno;
    }
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header == NULL || header->cmsg_level != SOL_IP || header->cmsg_type != IP_RECVERR) {
        return -EPROTO;
    }
    memcpy(error, CMSG_DATA(header), sizeof *error);
    return 0;
}

/* The figure is 1 when the kernel copied after all, as it does on loopback. */
static int zerocopy_completes(const zc_probe_run *probe, const zc_probe_pair *pair,
                              int64_t *value) {
    static const char byte[1] = "z"; /* must outlive a completion that never comes */
    struct sock_extended_err error = {0};
    int rc = zc_probe_set_int(pair->tx, SOL_SOCKET, SO_ZEROCOPY, 1);
    if (rc != 0) {
        return rc;
    }
    if (send(pair->tx, byte, 1, MSG_ZEROCOPY | MSG_NOSIGNAL) != 1) {
        return -errno;
    }
    if ((rc = zc_probe_expect(probe, pair->rx, byte, 1)) != 0) {
        return rc;
    }
    /* The completion waits for the ACK, which may be delayed by 40 ms; an answer
     * takes the ACK along. */
    if (send(pair->rx, "a", 1, MSG_NOSIGNAL) != 1) {
        return -errno;
    }
    if ((rc = zc_probe_wait(probe, pair->tx, 0)) != 0 ||
        (rc = read_completion(pair->tx, &error)) != 0) {
        return rc;
    }
    if (error.ee_origin != SO_EE_ORIGIN_ZEROCOPY || error.ee_errno != 0 || error.ee_info != 0) {
        return -EPROTO;
    }
    *value = error.ee_code == SO_EE_CODE_ZEROCOPY_COPIED;
    return 0;
}

int zc_probe_msg_zerocopy(const zc_probe_run *probe, int64_t *value) {
    return zc_probe_with_pair(probe, value, zerocopy_completes);
}

/* The figure is the size of the struct this kernel takes: asked with more (zeroed)
 * than any knows, newer kernels answer with their own size; the first ones insist
 * on 16 bytes. */
static int zerocopy_receive_size(int fd, int64_t *value) {
    char room[128] = {0};
    socklen_t size = sizeof room;
    if (getsockopt(fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, room, &size) != 0) {
        if (errno != EINVAL) {
            return -errno;
        }
        size = 16;
        if (getsockopt(fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, room, &size) != 0) {
            return -errno;
        }
    }
    *value = size;
    return 0;
}

int zc_probe_tcp_zerocopy_receive(const zc_probe_run *probe, int64_t *value) {
    int rc = 0, fd = zc_probe_tcp_socket();
    if (fd < 0) {
        return fd;
    }
    void *mapping = mmap(NULL, probe->page_size, PROT_READ, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED) {
        rc = -errno;
    } else {
        if (madvise(mapping, probe->page_size, MADV_DONTFORK) != 0 ||
            madvise(mapping, probe->page_size, MADV_DONTNEED) != 0) {
            rc = -errno;
        }
        munmap(mapping, probe->page_size);
    }
    if (rc == 0) {
        rc = zerocopy_receive_size(fd, value);
    }
    close(fd);
    return rc;
}

static int copybuf_is_filled(const zc_probe_run *probe, const zc_probe_pair *pair, int64_t *value) {
    char copied[16] = "";
    struct zerocopy_receive request = {.copybuf_address = (uint64_t)(uintptr_t)copied,
                                       .copybuf_len = sizeof copied};
    socklen_t size = sizeof request;
    (void)value;
    if (send(pair->tx, "copybuf", 7, MSG_NOSIGNAL) != 7) {
        return -errno;
    }
    int rc = zc_probe_wait(probe, pair->rx, POLLIN);
    if (rc != 0) {
        return rc;
    }
    if (getsockopt(pair->rx, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &request, &size) != 0) {
        return -errno;
    }
    if (size < offsetof(struct zerocopy_receive, flags)) {
        return -EOPNOTSUPP;
    }
    return request.copybuf_len == 7 && memcmp(copied, "copybuf", 7) == 0 ? 0 : -EOPNOTSUPP;
}

int zc_probe_tcp_zerocopy_copybuf(const zc_probe_run *probe, int64_t *value) {
    return zc_probe_with_pair(probe, value, copybuf_is_filled);
}

/* Asks for pages at `address` until one came or all `sent` bytes went by.  Bytes
 * that cannot be mapped are read away: they stand in front of those that can. */
static int map_one_page(const zc_probe_run *probe, int fd, char *address, size_t sent,
                        int64_t *value) {
    char skipped[4096];
    while (sent > 0) {
        struct zerocopy_receive request = {.address = (uint64_t)(uintptr_t)address,
                                           .length = (uint32_t)(MAP_PAGES * probe->page_size)};
        socklen_t size = sizeof request;
        int rc = zc_probe_wait(probe, fd, POLLIN);
        if (rc != 0) {
            return rc;
        }
        if (getsockopt(fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &request, &size) != 0) {
            return -errno;
        }
        if (request.length > 0) {
            *value = request.length;
            return address[0] == 'm' ? 0 : -EPROTO;
        }
        ssize_t received = recv(fd, skipped, sizeof skipped, 0);
        if (received <= 0) {
            return received < 0 ? -errno : -EPROTO;
        }
        sent -= (size_t)received;
    }
    return -EOPNOTSUPP;
}

/* Loopback yields whole pages only from a zero-copy sender: the copy that the
 * kernel makes at delivery lands in single pages. */
static int page_is_mapped(const zc_probe_run *probe, const zc_probe_pair *pair, int64_t *value) {
    size_t size = MAP_PAGES * probe->page_size;
    int rc = zc_probe_set_int(pair->tx, SOL_SOCKET, SO_ZEROCOPY, 1);
    int mapper = rc == 0 ? zc_probe_tcp_socket() : rc; /* never connected: serves all connections */
    if (mapper < 0) {
        return mapper;
    }
    char *mapping = mmap(NULL, size, PROT_READ, MAP_SHARED, mapper, 0);
    char *source = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED || source == MAP_FAILED) {
        rc = -errno;
    } else {
        memset(source, 'm', size);
        ssize_t sent = send(pair->tx, source, size, MSG_ZEROCOPY | MSG_NOSIGNAL);
        if (sent < 0) {
            rc = -errno;
        } else {
            rc = map_one_page(probe, pair->rx, mapping, (size_t)sent, value);
        }
    }
    if (source != MAP_FAILED) {
        munmap(source, size);
    }
    if (mapping != MAP_FAILED) {
        munmap(mapping, size);
    }
    close(mapper);
    return rc;
}

int zc_probe_tcp_zerocopy_map(const zc_probe_run *probe, int64_t *value) {
    return zc_probe_with_pair(probe, value, page_is_mapped);
}
