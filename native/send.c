/*
 * Sending: one buffer, a vector of buffers, or a file.
 *
 * Rule: a send that takes less than it was given arms EPOLLOUT and sets
 * `want_write`; only then does the poller report ZC_WRITABLE.  EPOLLOUT stays
 * armed from the first short send on: edge-triggered, it costs nothing while
 * the kernel's buffer has room, since the kernel signals it only after it
 * was full.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

#include "engine_internal.h"

int zc_arm_out(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    conn->want_write = true;
    conn->stats.send_short++;
    if (conn->out_armed) {
        return 0;
    }
    struct epoll_event event = {
        .events = (uint32_t)(EPOLLIN | EPOLLRDHUP | EPOLLPRI | EPOLLOUT | EPOLLET),
        .data.u64 = ((uint64_t)conn->generation << 32) | slot,
    };
    if (epoll_ctl(engine->epfd, EPOLL_CTL_MOD, conn->fd, &event) < 0) {
        return -errno;
    }
    conn->out_armed = true;
    return 0;
}

/* What every kind of send does with its result. */
int64_t zc_send_account(zc_engine *engine, uint32_t slot, ssize_t sent, int error, size_t asked) {
    zc_conn *conn = zc_conn_live(engine, slot);
    conn->stats.send_calls++;
    if (sent < 0 && error != EAGAIN) {
        return -error;
    }
    size_t taken = sent < 0 ? 0 : (size_t)sent;
    engine->sends += taken > 0;
    conn->stats.bytes_sent += taken;
    if (taken < asked) {
        int armed = zc_arm_out(engine, slot);
        if (armed < 0) {
            return armed;
        }
    }
    return (int64_t)taken;
}

int64_t zc_send(zc_engine *engine, uint32_t slot, const char *buf, size_t len) {
    int fd = zc_conn_live(engine, slot)->fd;
    ssize_t n;
    do {
        n = send(fd, buf, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return zc_send_account(engine, slot, n, errno, len);
}

int zc_iov_max(void) { return ZC_MAX_IOV; }

int zc_iov_put(zc_engine *engine, int index, const char *buf, size_t len) {
    ZC_ASSERT(index >= 0 && index < ZC_MAX_IOV);
    engine->iov[index] = (struct iovec){.iov_base = (void *)(uintptr_t)buf, .iov_len = len};
    return 0;
}

int64_t zc_sendv(zc_engine *engine, uint32_t slot, int count) {
    ZC_ASSERT(count >= 0 && count <= ZC_MAX_IOV);
    int fd = zc_conn_live(engine, slot)->fd;
    struct msghdr message = {.msg_iov = engine->iov, .msg_iovlen = (size_t)count};
    size_t asked = 0;
    for (int i = 0; i < count; i++) {
        asked += engine->iov[i].iov_len;
    }
    ssize_t n;
    do {
        n = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return zc_send_account(engine, slot, n, errno, asked);
}

/* 0 with want_write unset means the file has ended. */
int64_t zc_sendfile(zc_engine *engine, uint32_t slot, int in_fd, int64_t offset, size_t len) {
    zc_conn *conn = zc_conn_live(engine, slot);
    off_t at = offset;
    ssize_t n;
    do {
        n = sendfile(conn->fd, in_fd, &at, len);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) {
        int armed = zc_arm_out(engine, slot);
        return armed < 0 ? armed : -EAGAIN;
    }
    if (n < 0) {
        return -errno;
    }
    conn->stats.send_calls++;
    conn->stats.bytes_sent += (uint64_t)n;
    conn->stats.sendfile_bytes += (uint64_t)n;
    return n;
}

int zc_shutdown_write(zc_engine *engine, uint32_t slot) {
    return shutdown(zc_conn_live(engine, slot)->fd, SHUT_WR) < 0 ? -errno : 0;
}
