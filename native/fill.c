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
#include "pages_internal.h"
#include "recv_zerocopy.h"

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

int zc_set_idle_lowat(zc_engine *engine, uint32_t slot, int bytes) {
    zc_conn *conn = zc_conn_live(engine, slot);
    if (conn->fill_buf == NULL) {
        int error = zc_set_lowat(engine, slot, bytes);
        if (error < 0) {
            return error;
        }
    }
    conn->idle_lowat = bytes;
    return 0;
}

/* Advances the fill by what waits, STEP_MAX bytes at most.  True when it has
 * ended: complete, or at an end of stream or error that the next recv will
 * report.  When it hasn't and `ready` is still set, the caller sees to it that
 * there is a next step. */
bool zc_fill_step(zc_engine *engine, zc_conn *conn) {
    size_t taken = 0;
    while (conn->fill_done < conn->fill_len && taken < STEP_MAX) {
        size_t want = conn->fill_len - conn->fill_done;
        if (want > STEP_MAX - taken) {
            want = STEP_MAX - taken;
        }
        int64_t n = 0;
        if (conn->fill_memory != NULL) {
            n = (int64_t)zc_fill_map_step(engine, conn, &want);
        }
        if (n == 0) {
            n = zc_conn_recv(conn, conn->fill_buf + conn->fill_done, want);
        }
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

/* The mark for so many bytes that will come for sure. */
int zc_lowat_for(size_t left) {
    return left < LOWAT_MIN ? 1 : left < LOWAT_MAX ? (int)left : LOWAT_MAX;
}

/* Aims the lowat at what is left; a fill that goes on must never wait for more. */
void zc_fill_aim(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    int lowat = zc_lowat_for(conn->fill_len - conn->fill_done);
    (void)zc_set_lowat(engine, slot, lowat); /* a refusal only costs wake-ups */
}

/* Somebody else receives now than the buffer that the mark was aimed for. */
void zc_unaim(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    if (conn->aimed) {
        conn->aimed = false;
        (void)zc_set_lowat(engine, slot, conn->idle_lowat);
    }
}

/* The first steps; returns how far the fill has come. */
static int64_t begin(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    conn->stats.fills++;
    zc_unaim(engine, slot);
    if (zc_fill_step(engine, conn)) {
        if (conn->fill_done == conn->fill_len) {
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

int64_t zc_fill_begin(zc_engine *engine, uint32_t slot, char *buf, size_t len) {
    zc_conn *conn = zc_conn_live(engine, slot);
    ZC_ASSERT(conn->fill_buf == NULL);
    conn->fill_buf = buf;
    conn->fill_len = len;
    conn->fill_done = 0;
    conn->fill_memory = NULL;
    return begin(engine, slot);
}

int64_t zc_fill_begin_pages(zc_engine *engine, uint32_t slot, zc_memory *memory, size_t have,
                            size_t len) {
    zc_conn *conn = zc_conn_live(engine, slot);
    ZC_ASSERT(conn->fill_buf == NULL && have <= len && len + ZC_PAGE <= zc_memory_bytes(memory));
    conn->fill_buf = zc_memory_base(memory);
    conn->fill_len = len;
    conn->fill_done = have;
    conn->fill_memory = memory;
    conn->fill_floats = true;
    zc_map_forget_misses(conn);
    if (len >= ZC_LARGE) {
        (void)zc_conn_open_window(engine, slot);
    }
    return begin(engine, slot);
}

/* What waits below the mark came before the pause, and would have been received without the mark. */
void zc_fill_before_pause(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    if (conn->fill_buf != NULL && conn->lowat > 1 && zc_conn_inq(conn) < conn->lowat) {
        (void)zc_fill_step(engine, conn); /* can't complete it; an end is found again on resumption */
        zc_fill_aim(engine, slot);
    }
}

int64_t zc_fill_end(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    ZC_ASSERT(conn->fill_buf != NULL);
    if (conn->lowat > 1 && !conn->paused) {
        /* Less than the mark may have waited all the time: it came before whatever ends us.
         * Paused, it stays in the kernel, and the lower mark makes it known again. */
        (void)zc_fill_step(engine, conn);
    }
    int64_t done = (int64_t)conn->fill_done;
    if (conn->fill_memory != NULL) {
        zc_memory_set_origin(conn->fill_memory,
                             (size_t)(conn->fill_buf - zc_memory_base(conn->fill_memory)));
    }
    conn->fill_buf = NULL;
    conn->fill_memory = NULL;
    conn->fill_len = conn->fill_done = 0;
    (void)zc_set_lowat(engine, slot, conn->idle_lowat); /* lowering it raises the edge again */
    if (conn->ready && !conn->paused) {
        zc_again_push(engine, slot);
    }
    return done;
}
