/*
 * Sending from the caller's memory with MSG_ZEROCOPY.
 *
 * Kernel fact: the pages are pinned and read again and again until the peer has
 * acknowledged them.  What completes is told by the error queue (errqueue.c),
 * counted in ids that only successful calls consume (inflight.c).
 * Rule: the memory behind `token` belongs to the kernel from the first
 * successful send of a write until the write was sealed and given back by
 * zc_zerocopy_take.  A connection can't be removed before; what is still
 * outstanding when nobody cares for it any more goes to orphans.c.
 * Rule: a send that can't go without a copy goes with one, now, and a counter
 * says why.  Nothing ever waits for a completion in order to send: with
 * ENOBUFS and nothing outstanding there is none to wait for.
 *
 * Kernel fact: with SO_ZEROCOPY off the flag is ignored.  The send copies, without an id and
 * without a word; on again, ids go on where they were.  A program can switch it on the socket that
 * it has from us, and one send counted as an id would make every later notice tell of
 * the wrong one.  So the option is looked at before each call: half a microsecond, where a send of
 * 128 KiB took 58.  (Another thread that switches it between the two calls, or a
 * program that makes zero-copy sends of its own there, can't be seen.)
 * Rejected: switching it on each time, which takes the socket's lock and the program's choice.
 *
 * ENOBUFS is the kernel's limit (optmem_max, or the user's locked memory).  It
 * is likely to be met again at once, so after the n-th in a row 2^n sends copy
 * before the next attempt.
 *
 * Whole pages.  On loopback and veth the kernel copies such a send into single pages as it
 * hands a packet over, from the packet's first byte on, and a receiver with
 * TCP_ZEROCOPY_RECEIVE can map those that are full.  So what is to be mapped is sent in pieces of 15
 * pages, and MSG_EOR keeps the next bytes out of a piece's packet: all of its pages are full then,
 * whatever the MTU, since neither device cuts packets to it.  (On veth the edge of a full window
 * does, which costs a page or two; on loopback a segment is larger than a piece, and waits.)
 * Measured: 99.9 % mapped, on loopback and on veth at MTU 1500 and 9000, 92 to 98 % on veth while
 * the receiver is starved; 94 % without the pieces; nothing of a plain send.
 * Rejected: TCP_MAXSEG of a page on both sides, which an MTU of 1500 doesn't allow, and which must
 * be set before connect and listen.
 *
 * Rejected: reading the queue at every EPOLLERR.  Notices that wait are merged,
 * so the poller only tells Python once that there are some, and it is read
 * when somebody waits for the memory, after some sends, or soon by a timer.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine_internal.h"
#include "zerocopy_internal.h"

enum {
    BACKOFF_MAX = 10,
    MAPPABLE_PIECE = 15 * 4096 /* the whole pages that fit into the largest packet, with its headers */
};

/*
 * The table of a connection, made at its first attempt.  A socket on which
 * SO_ZEROCOPY is set already may have been sent on by somebody else, and then
 * its next id isn't ours to know: it is left alone.
 *
 * The table has a descriptor of its own for the socket.  The transport's may be
 * closed by others: by a program, or by the collector, which finalises a socket
 * object before the transport that owns it; and with the last one the notices are lost.
 */
int zc_zerocopy_prepare(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    if (conn->inflight != NULL || conn->zerocopy_error < 0) {
        return conn->zerocopy_error;
    }
    zc_inflight *table = zc_inflight_new(0);
    if (table == NULL) {
        return -ENOMEM;
    }
    int on = 1, was = 0;
    socklen_t size = sizeof was;
    int own = fcntl(conn->fd, F_DUPFD_CLOEXEC, 3);
    if (own < 0) {
        zc_inflight_free(table);
        return -errno;
    }
    if (getsockopt(conn->fd, SOL_SOCKET, SO_ZEROCOPY, &was, &size) < 0 ||
        (!was && setsockopt(conn->fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) < 0)) {
        conn->zerocopy_error = -errno;
    } else if (was) {
        conn->zerocopy_error = -EBUSY;
    } else {
        conn->inflight = table;
        conn->zerocopy_pid = getpid();
        conn->zerocopy_fd = own;
        return 0;
    }
    close(own);
    zc_inflight_free(table);
    return conn->zerocopy_error;
}

static bool is_full(const zc_engine *engine, const zc_conn *conn) {
    return zc_inflight_pinned(conn->inflight) >= ZC_INFLIGHT_PINNED_MAX ||
           zc_inflight_outstanding(conn->inflight) >= ZC_INFLIGHT_MAX ||
           engine->stats.zerocopy_pinned >= ZC_ENGINE_PINNED_MAX ||
           engine->stats.zerocopy_outstanding >= ZC_ENGINE_INFLIGHT_MAX;
}

/* Reads the error queue, and keeps the engine's sums. */
static void reap(zc_engine *engine, zc_conn *conn) {
    zc_inflight *table = conn->inflight;
    zc_conn_stats *stats = zc_rare_stats(conn);
    uint32_t sends = zc_inflight_outstanding(table);
    size_t pinned = zc_inflight_pinned(table);
    if (conn->zerocopy_pid != getpid()) {
        /* A child after fork: the memory is a copy of its own, which no kernel
         * reads, and the notices are the parent's. */
        zc_inflight_forget(table);
    } else if (sends > 0) {
        stats->zerocopy_notices += (uint64_t)zc_errqueue_reap(conn->zerocopy_fd, table);
    }
    uint64_t completed = sends - zc_inflight_outstanding(table);
    stats->zerocopy_completed += completed;
    stats->zerocopy_copied = zc_inflight_copied(table);
    engine->stats.zerocopy_outstanding -= completed;
    engine->stats.zerocopy_pinned -= pinned - zc_inflight_pinned(table);
}

int zc_zerocopy_fallback(zc_engine *engine, uint32_t slot, int reason) {
    zc_conn_stats *stats = zc_rare_stats(zc_conn_live(engine, slot));
    switch (reason) {
    case ZC_FALLBACK_ROUTE:
        stats->zerocopy_fallback_route++;
        break;
    case ZC_FALLBACK_TRIAL:
        stats->zerocopy_fallback_trial++;
        break;
    case ZC_FALLBACK_LIMIT:
        stats->zerocopy_fallback_limit++;
        break;
    case ZC_FALLBACK_ENOBUFS:
        stats->zerocopy_fallback_enobufs++;
        break;
    default:
        ZC_ASSERT(reason == ZC_FALLBACK_UNSUPPORTED);
        stats->zerocopy_fallback_unsupported++;
    }
    return 0;
}

/* Whether sends on it still get ids. */
static bool is_switched_on(const zc_conn *conn) {
    int on = 0;
    socklen_t size = sizeof on;
    return getsockopt(conn->zerocopy_fd, SOL_SOCKET, SO_ZEROCOPY, &on, &size) == 0 && on;
}

/* 0, or the enum zc_fallback for which a whole call has to copy. */
static int never_here(zc_engine *engine, uint32_t slot) {
    const zc_conn *conn = zc_conn_live(engine, slot);
    bool can = zc_zerocopy_prepare(engine, slot) == 0 && conn->zerocopy_pid == getpid() &&
               is_switched_on(conn);
    return can ? 0 : ZC_FALLBACK_UNSUPPORTED;
}

/* 0, or the enum zc_fallback for which this send has to copy. */
static int hindrance(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    if (conn->enobufs_pause > 0) {
        conn->enobufs_pause--;
        return ZC_FALLBACK_ENOBUFS;
    }
    if (is_full(engine, conn) || zc_inflight_reserve(conn->inflight) < 0) {
        reap(engine, conn);
        if (is_full(engine, conn) || zc_inflight_reserve(conn->inflight) < 0) {
            return ZC_FALLBACK_LIMIT;
        }
    }
    return 0;
}

/* Why a refused send is worth another try with a copy; 0: it isn't. */
static int refusal(zc_engine *engine, zc_conn *conn, int error) {
    switch (error) {
    case ENOBUFS:
    case ENOMEM:
        reap(engine, conn);
        conn->enobufs_pause = 1u << conn->enobufs_row;
        if (conn->enobufs_row < BACKOFF_MAX) {
            conn->enobufs_row++;
        }
        return ZC_FALLBACK_ENOBUFS;
    case EFAULT: /* memory that can't be pinned: of a device, say */
    case EINVAL:
    case EOPNOTSUPP:
        return ZC_FALLBACK_UNSUPPORTED;
    default:
        return 0;
    }
}

static int64_t send_copied(zc_engine *engine, uint32_t slot, const char *buf, size_t len,
                           int reason) {
    zc_conn *conn = zc_conn_live(engine, slot);
    if (!conn->fallback_counted) { /* once a write, however many sends it takes */
        conn->fallback_counted = true;
        zc_zerocopy_fallback(engine, slot, reason);
    }
    return zc_send(engine, slot, buf, len);
}

/* One send: bytes taken, 0 or -errno. */
static int64_t send_once(zc_engine *engine, uint32_t slot, const char *buf, size_t len,
                         uint64_t token, int flags) {
    zc_conn *conn = zc_conn_live(engine, slot);
    int reason = hindrance(engine, slot);
    if (reason == 0) {
        ssize_t n;
        do {
            n = send(conn->zerocopy_fd, buf, len,
                     MSG_DONTWAIT | MSG_NOSIGNAL | MSG_ZEROCOPY | flags);
        } while (n < 0 && errno == EINTR);
        int error = errno;
        if (n > 0) {
            zc_inflight_sent(conn->inflight, (size_t)n, token);
            conn->enobufs_row = 0;
            zc_rare_stats(conn)->zerocopy_sends++;
            zc_rare_stats(conn)->zerocopy_bytes += (uint64_t)n;
            engine->stats.zerocopy_outstanding++;
            engine->stats.zerocopy_pinned += (uint64_t)n;
        }
        if (n >= 0 || (reason = refusal(engine, conn, error)) == 0) {
            return zc_send_account(engine, slot, n, error, len);
        }
    }
    return send_copied(engine, slot, buf, len, reason);
}

int zc_zerocopy_whole_pages(zc_engine *engine, uint32_t slot) {
    zc_conn_live(engine, slot)->whole_pages = true;
    return 0;
}

int64_t zc_send_zerocopy(zc_engine *engine, uint32_t slot, const char *buf, size_t len,
                         uint64_t token) {
    int reason = never_here(engine, slot);
    if (reason != 0) {
        return send_copied(engine, slot, buf, len, reason);
    }
    if (!zc_conn_live(engine, slot)->whole_pages) {
        return send_once(engine, slot, buf, len, token, 0);
    }
    size_t sent = 0;
    while (sent < len) {
        size_t piece = len - sent < MAPPABLE_PIECE ? len - sent : MAPPABLE_PIECE;
        int64_t n = send_once(engine, slot, buf + sent, piece, token, MSG_EOR);
        if (n < 0) {
            return n; /* the connection is over, whatever went before */
        }
        sent += (size_t)n;
        if ((size_t)n < piece) {
            break;
        }
    }
    return (int64_t)sent;
}

uint64_t zc_zerocopy_open(const zc_engine *engine, uint32_t slot) {
    const zc_conn *conn = zc_conn_live(engine, slot);
    return conn->inflight == NULL ? 0 : zc_inflight_open(conn->inflight);
}

int zc_zerocopy_seal(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    conn->fallback_counted = false;
    return conn->inflight == NULL ? -ENOENT : zc_inflight_seal(conn->inflight);
}

int zc_zerocopy_reap(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    if (conn->inflight == NULL) {
        return 0;
    }
    /* Before reading: a notice that comes from here on raises an edge of its own. */
    conn->completions_told = false;
    reap(engine, conn);
    return (int)zc_inflight_outstanding(conn->inflight);
}

int zc_zerocopy_take(zc_engine *engine, uint32_t slot, uint64_t *token) {
    zc_conn *conn = zc_conn_live(engine, slot);
    return conn->inflight == NULL ? 0 : zc_inflight_take(conn->inflight, token);
}

int zc_conn_is_up(const zc_engine *engine, uint32_t slot) {
    struct pollfd entry = {.fd = zc_conn_live(engine, slot)->fd};
    return poll(&entry, 1, 0) >= 0 && !(entry.revents & (POLLHUP | POLLNVAL));
}

int zc_zerocopy_disconnect(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    if (conn->inflight == NULL || conn->zerocopy_pid != getpid()) {
        return 0; /* a child must not end its parent's connection */
    }
    const struct sockaddr nobody = {.sa_family = AF_UNSPEC};
    return connect(conn->zerocopy_fd, &nobody, sizeof nobody) < 0 ? -errno : 0;
}

static bool has_unread(int fd) {
    int bytes = 0;
    return ioctl(fd, FIONREAD, &bytes) == 0 && bytes > 0;
}

/* SO_LINGER of no seconds: closing is to reset the connection. */
static bool wants_reset(int fd) {
    struct linger linger = {0};
    socklen_t size = sizeof linger;
    return getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &size) == 0 && linger.l_onoff != 0 &&
           linger.l_linger == 0;
}

int zc_zerocopy_finish(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    if (conn->inflight == NULL || conn->zerocopy_pid != getpid()) {
        return 0; /* as above */
    }
    if (has_unread(conn->zerocopy_fd) || wants_reset(conn->zerocopy_fd)) {
        return 1;
    }
    if (shutdown(conn->zerocopy_fd, SHUT_RDWR) < 0) {
        return -errno;
    }
    return has_unread(conn->zerocopy_fd); /* it may have come in between */
}

int zc_linger(zc_engine *engine, uint32_t slot, uint32_t milliseconds) {
    int fd = zc_conn_live(engine, slot)->fd;
    uint32_t now = 0;
    socklen_t size = sizeof now;
    if (getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &now, &size) < 0) {
        return -errno;
    }
    if (now != 0 && now <= milliseconds) {
        return 0; /* the program's own, and stricter */
    }
    return setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds) < 0
               ? -errno
               : 0;
}

/* From here on the connection is watched by the table's descriptor, and the caller may close
 * its own.  (epoll knows a connection by descriptor and number, and the number will be
 * somebody else's.) */
int zc_zerocopy_take_over(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    ZC_ASSERT(conn->inflight != NULL && conn->fd != conn->zerocopy_fd);
    struct epoll_event event = {
        .events = (uint32_t)(EPOLLIN | EPOLLRDHUP | EPOLLPRI | EPOLLET),
        .data.u64 = ((uint64_t)conn->generation << 32) | slot,
    };
    (void)epoll_ctl(engine->epfd, EPOLL_CTL_DEL, conn->fd, NULL); /* fails if it is gone already */
    conn->fd = conn->zerocopy_fd;
    return epoll_ctl(engine->epfd, EPOLL_CTL_ADD, conn->fd, &event) < 0 ? -errno : 0;
}

/* Takes a connection's table away, with what is in it, and the table's descriptor. */
zc_inflight *zc_zerocopy_detach(zc_engine *engine, uint32_t slot, int *fd) {
    zc_conn *conn = zc_conn_live(engine, slot);
    zc_inflight *table = conn->inflight;
    conn->inflight = NULL;
    *fd = conn->zerocopy_fd;
    if (table != NULL) {
        engine->stats.zerocopy_outstanding -= zc_inflight_outstanding(table);
        engine->stats.zerocopy_pinned -= zc_inflight_pinned(table);
    }
    return table;
}
