/* Probes of TCP's options, and of the ways to put a file or pipe on a socket. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include "probe_internal.h"

#ifndef TCP_INQ
#define TCP_INQ 36
#endif

/* Sets an integer option on a fresh socket; what the kernel made of it is *value. */
static int option_kept(int level, int option, int asked, int64_t *value) {
    int fd = zc_probe_tcp_socket(), kept = 0, rc;
    if (fd < 0) {
        return fd;
    }
    rc = zc_probe_set_int(fd, level, option, asked);
    if (rc == 0) {
        rc = zc_probe_get_int(fd, level, option, &kept);
    }
    close(fd);
    *value = kept;
    return rc;
}

int zc_probe_so_zerocopy(const zc_probe_run *probe, int64_t *value) {
    int64_t kept = 0;
    (void)probe, (void)value;
    int rc = option_kept(SOL_SOCKET, SO_ZEROCOPY, 1, &kept);
    return rc == 0 && kept != 1 ? -EOPNOTSUPP : rc;
}

int zc_probe_tcp_user_timeout(const zc_probe_run *probe, int64_t *value) {
    int64_t kept = 0;
    (void)probe, (void)value;
    int rc = option_kept(IPPROTO_TCP, TCP_USER_TIMEOUT, 1234, &kept);
    return rc == 0 && kept != 1234 ? -EOPNOTSUPP : rc;
}

/* The figure is the largest lowat the kernel grants: a larger one is capped
 * silently (tcp_rmem[2] / 2), and waiting for more than that would never end. */
static int lowat_holds_back(const zc_probe_run *probe, const zc_probe_pair *pair, int64_t *value) {
    int cap = 0;
    int rc = zc_probe_set_int(pair->rx, SOL_SOCKET, SO_RCVLOWAT, 1 << 30);
    if (rc == 0) {
        rc = zc_probe_get_int(pair->rx, SOL_SOCKET, SO_RCVLOWAT, &cap);
    }
    if (rc == 0) {
        rc = zc_probe_set_int(pair->rx, SOL_SOCKET, SO_RCVLOWAT, 2);
    }
    if (rc != 0) {
        return rc;
    }
    struct pollfd entry = {.fd = pair->rx, .events = POLLIN};
    if (send(pair->tx, "a", 1, MSG_NOSIGNAL) != 1) {
        return -errno;
    }
    if (poll(&entry, 1, 0) != 0) {
        return -EOPNOTSUPP;
    }
    if (send(pair->tx, "b", 1, MSG_NOSIGNAL) != 1) {
        return -errno;
    }
    *value = cap;
    return zc_probe_expect(probe, pair->rx, "ab", 2);
}

int zc_probe_so_rcvlowat(const zc_probe_run *probe, int64_t *value) {
    return zc_probe_with_pair(probe, value, lowat_holds_back);
}

static int inq_is_told(const zc_probe_run *probe, const zc_probe_pair *pair, int64_t *value) {
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof control};
    (void)value;
    int rc = zc_probe_set_int(pair->rx, IPPROTO_TCP, TCP_INQ, 1);
    if (rc != 0) {
        return rc;
    }
    if (send(pair->tx, "inq", 3, MSG_NOSIGNAL) != 3) {
        return -errno;
    }
    if ((rc = zc_probe_wait(probe, pair->rx, POLLIN)) != 0) {
        return rc;
    }
    if (recvmsg(pair->rx, &message, 0) != 1) {
        return -errno;
    }
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header == NULL || header->cmsg_level != IPPROTO_TCP || header->cmsg_type != TCP_INQ) {
        return -EOPNOTSUPP;
    }
    int left;
    memcpy(&left, CMSG_DATA(header), sizeof left);
    return left == 2 ? 0 : -EPROTO;
}

int zc_probe_tcp_inq(const zc_probe_run *probe, int64_t *value) {
    return zc_probe_with_pair(probe, value, inq_is_told);
}

/* connect(AF_UNSPEC) resets a connection and keeps the descriptor: the one way to
 * make the kernel let go of memory in flight at once. */
static int disconnect_resets(const zc_probe_run *probe, const zc_probe_pair *pair, int64_t *value) {
    const struct sockaddr none = {.sa_family = AF_UNSPEC};
    char byte;
    (void)value;
    if (connect(pair->tx, &none, sizeof none) != 0) {
        return -errno;
    }
    ssize_t received = zc_probe_receive(probe, pair->rx, &byte, 1);
    return received == -ECONNRESET ? 0 : received < 0 ? (int)received : -EOPNOTSUPP;
}

int zc_probe_tcp_disconnect(const zc_probe_run *probe, int64_t *value) {
    return zc_probe_with_pair(probe, value, disconnect_resets);
}

/* 0 if a call moved all it should, else why not. */
static int moved(ssize_t count, ssize_t wanted) {
    return count == wanted ? 0 : count < 0 ? -errno : -EPROTO;
}

static int sendfile_arrives(const zc_probe_run *probe, const zc_probe_pair *pair, int64_t *value) {
    off_t offset = 1;
    (void)value;
    int file = memfd_create("zcloop-probe", MFD_CLOEXEC);
    if (file < 0) {
        return -errno;
    }
    int rc = moved(write(file, "abcd", 4), 4);
    if (rc == 0) {
        rc = moved(sendfile(pair->tx, file, &offset, 2), 2);
    }
    close(file);
    return rc != 0 ? rc : offset != 3 ? -EPROTO : zc_probe_expect(probe, pair->rx, "bc", 2);
}

int zc_probe_sendfile(const zc_probe_run *probe, int64_t *value) {
    return zc_probe_with_pair(probe, value, sendfile_arrives);
}

static int splice_arrives(const zc_probe_run *probe, const zc_probe_pair *pair, int64_t *value) {
    int pipe_fds[2];
    (void)value;
    if (pipe2(pipe_fds, O_NONBLOCK | O_CLOEXEC) != 0) {
        return -errno;
    }
    int rc = moved(write(pipe_fds[1], "pipe", 4), 4);
    if (rc == 0) {
        rc = moved(splice(pipe_fds[0], NULL, pair->tx, NULL, 4, SPLICE_F_NONBLOCK), 4);
    }
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    return rc != 0 ? rc : zc_probe_expect(probe, pair->rx, "pipe", 4);
}

int zc_probe_splice(const zc_probe_run *probe, int64_t *value) {
    return zc_probe_with_pair(probe, value, splice_arrives);
}
