/*
 * Filling a caller's memory in place.
 *
 * Kernel fact: SO_RCVLOWAT keeps epoll quiet until that many bytes wait, but a
 * tail below it causes no event, ever, except FIN, reset or memory pressure.
 * Rule: it is set only while the remaining count is known, never above it,
 * and goes back to 1 before anything else may read from the connection.
 * Rejected: guessing message sizes, which hangs a peer that sent a short
 * message and waits for the answer.
 */
#define _GNU_SOURCE
#include <sys/socket.h>

#include "engine_internal.h"

enum {
    LOWAT_MIN = 32 * 1024, /* below this a wake-up costs less than two setsockopts */
    LOWAT_MAX = 1024 * 1024,
    STEP_MAX = 1024 * 1024 /* bytes a step: a fast peer must not keep the loop to itself */
};

int zc_set_lowat(zc_engine *engine, uint32_t slot, int bytes) {
    zc_conn *conn = zc_conn_live(engine, slot);
    if (bytes < 1) {
        return -EINVAL;
    }
    if (conn->lowat == bytes) {
        return 0;
    }
    if (setsockopt(conn->fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes) < 0) {
        return -errno;
    }
    conn->lowat = bytes;
    conn->stats.lowat_set++;
    return 0;
}

/* Advances the fill by what waits, STEP_MAX bytes at most.  True when it has
 * ended: complete, or at an end of stream or error that the next recv will
 * report.  When it hasn't and `ready` is still set, the caller sees to it that
 * there is a next step. */
bool zc_fill_step(zc_conn *conn) {
    size_t taken = 0;
    while (conn->fill_done < conn->fill_len && taken < STEP_MAX) {
        size_t want = conn->fill_len - conn->fill_done;
        if (want > STEP_MAX - taken) {
            want = STEP_MAX - taken;
        }
        int64_t n = zc_conn_recv(conn, conn->fill_buf + conn->fill_done, want);
        if (n == -EAGAIN) {
            return false;
        }
        if (n <= 0) {
            conn->ready = true;
            return true;
        }
        conn->fill_done += (size_t)n;
        taken += (size_t)n;
        conn->stats.bytes_filled += (uint64_t)n;
        if (!conn->ready) {
            break;
        }
    }
    return conn->fill_done == conn->fill_len;
}

/* Aims the lowat at what is left; a fill that goes on must never wait for more. */
void zc_fill_aim(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    size_t left = conn->fill_len - conn->fill_done;
    int lowat = left < LOWAT_MIN ? 1 : left < LOWAT_MAX ? (int)left : LOWAT_MAX;
    (void)zc_set_lowat(engine, slot, lowat); /* a refusal only costs wake-ups */
}

int64_t zc_fill_begin(zc_engine *engine, uint32_t slot, char *buf, size_t len) {
    zc_conn *conn = zc_conn_live(engine, slot);
    ZC_ASSERT(conn->fill_buf == NULL);
    conn->fill_buf = buf;
    conn->fill_len = len;
    conn->fill_done = 0;
    conn->stats.fills++;
    if (zc_fill_step(conn)) {
        if (conn->fill_done == len) {
            return zc_fill_end(engine, slot);
        }
        /* An end of stream or an error: let a poll report it. */
        zc_again_push(engine, slot);
        return (int64_t)conn->fill_done;
    }
    zc_fill_aim(engine, slot);
    if (conn->ready && !conn->paused) {
        zc_again_push(engine, slot);
    }
    return (int64_t)conn->fill_done;
}

int64_t zc_fill_end(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    ZC_ASSERT(conn->fill_buf != NULL);
    if (conn->lowat > 1) {
        /* Less than the mark may have waited all the time: it came before whatever ends us. */
        (void)zc_fill_step(conn);
    }
    int64_t done = (int64_t)conn->fill_done;
    conn->fill_buf = NULL;
    conn->fill_len = conn->fill_done = 0;
    (void)zc_set_lowat(engine, slot, 1); /* lowering it raises the edge again */
    if (conn->ready && !conn->paused) {
        zc_again_push(engine, slot);
    }
    return done;
}
