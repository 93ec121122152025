/* Receiving by copy: the one place that calls recv. */
#define _GNU_SOURCE
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "engine_internal.h"
#include "recv_zerocopy.h"

/*
 * One recv, and what it says about the edge.
 *
 * Kernel fact: on TCP a recv that returns less than asked has emptied the
 * receive queue, unless it stopped at a FIN, an error or an urgent mark, of
 * which the event told us (`hup`).  On AF_UNIX it also stops at a message
 * that carries descriptors or other credentials, without a further edge, so
 * there a peek decides (probe_after_short).
 */
int64_t zc_conn_recv(zc_conn *conn, char *buf, size_t len) {
    if (conn->error < 0) {
        return conn->error;
    }
    /* Behind so many bytes pages may follow: they must not be copied along. */
    size_t before_pages = conn->map.skip > 0 ? conn->map.skip : conn->map.unaligned;
    if (before_pages > 0 && len > before_pages) {
        len = before_pages;
    }
    ssize_t n;
    do {
        n = recv(conn->fd, buf, len, MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    conn->stats.recv_calls++;
    if (conn->deferred_error < 0 && (n == 0 || (n < 0 && errno == EAGAIN))) {
        conn->error = conn->deferred_error;
        return conn->error;
    }
    if (n < 0) {
        int error = errno;
        if (error == EAGAIN) {
            conn->ready = false;
            return -EAGAIN;
        }
        conn->error = -error;
        return -error;
    }
    conn->stats.bytes_received += (uint64_t)n;
    if (conn->map.policy != ZC_MAP_NEVER) {
        zc_map_copied(conn, (size_t)n);
    }
    conn->eof = n == 0 && len > 0;
    conn->large = n >= ZC_LARGE;
    conn->sized = n >= ZC_SIZED_MIN;
    if ((size_t)n == len || conn->hup || n == 0) {
        conn->ready = true;
    } else if (conn->probe_after_short) {
        char byte;
        ssize_t peeked = recv(conn->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
        conn->ready = !(peeked < 0 && errno == EAGAIN);
        if (peeked < 0 && errno != EAGAIN) {
            conn->error = -errno; /* the kernel won't say it again */
        }
    } else {
        conn->ready = false;
        conn->map.phase = (uint16_t)(conn->stats.bytes_received % ZC_PAGE); /* see note_phase */
    }
    return n;
}

int64_t zc_recv(zc_engine *engine, uint32_t slot, char *buf, size_t len) {
    zc_conn *conn = zc_conn_live(engine, slot);
    zc_unaim(engine, slot);
    int64_t n = zc_conn_recv(conn, buf, len);
    /* The caller saw the edge; if bytes may be left, the engine owns it again. */
    if (n > 0 && conn->ready && !conn->paused) {
        zc_again_push(engine, slot);
    }
    return n;
}

/*
 * Large messages of a plain protocol.
 *
 * Fact: a message goes to the protocol as a `bytes` of its exact size.  Small
 * ones are cheapest by way of the warm scratch; from about 8 KiB on, asking
 * for the size (FIONREAD) costs less than the second copy.
 * Rule: bytes that come after the size was asked raise an edge of their own,
 * so taking exactly that many leaves the connection drained, as far as the
 * edges seen so far go.
 */
int zc_conn_inq(const zc_conn *conn) {
    int size = 0;
    return ioctl(conn->fd, FIONREAD, &size) < 0 ? 0 : size;
}

int64_t zc_recv_sized(zc_engine *engine, uint32_t slot, char *buf, size_t len) {
    zc_conn *conn = zc_conn_at(engine, slot);
    if (conn->fd < 0) {
        return -EBADF;
    }
    bool all = conn->sized_all;
    int64_t n = zc_conn_recv(conn, buf, len);
    if (n > 0) {
        conn->ready = !(all && (size_t)n == len) || conn->hup;
        if (conn->ready && !conn->paused) {
            zc_again_push(engine, slot);
        }
    }
    return n;
}

int zc_recv_is_large(const zc_engine *engine, uint32_t slot) {
    return zc_conn_live(engine, slot)->large;
}
