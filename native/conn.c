/* The table of connections: slots, modes, pausing, the again-list. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine_internal.h"
#include "zerocopy_internal.h"

enum { FIRST_CAPACITY = 64 };

/* Doubles the table and the again-ring together: the ring can then hold every
 * connection once, so a push never fails.  The new half isn't touched, so that it takes
 * no memory before it is used. */
static int grow(zc_engine *engine) {
    uint32_t old = engine->capacity;
    if (old >= (1u << 24)) {
        return -ENFILE;
    }
    uint32_t capacity = old == 0 ? FIRST_CAPACITY : old * 2;
    zc_ref *again = malloc(capacity * sizeof *again);
    if (again == NULL) {
        return -ENOMEM;
    }
    zc_conn *conns = realloc(engine->conns, capacity * sizeof *conns);
    if (conns == NULL) {
        free(again);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < engine->again_count; i++) {
        again[i] = engine->again[(engine->again_head + i) % engine->again_capacity];
    }
    free(engine->again);
    engine->again = again;
    engine->again_capacity = capacity;
    engine->again_head = 0;
    engine->conns = conns;
    engine->capacity = capacity;
    return 0;
}

int zc_conn_add(zc_engine *engine, int fd, int mode, int flags) {
    if (fd < 0) {
        return -EBADF;
    }
    bool fresh = engine->free_head == ZC_NO_SLOT;
    if (fresh && engine->used == engine->capacity) {
        int error = grow(engine);
        if (error < 0) {
            return error;
        }
    }
    uint32_t slot = fresh ? engine->used : engine->free_head;
    zc_conn *conn = &engine->conns[slot];
    uint32_t generation = fresh ? 0 : conn->generation;
    int lowat = 1; /* or the program's own: a socket may have been given to us with it */
    socklen_t size = sizeof lowat;
    if (mode != ZC_MODE_LISTEN) {
        (void)getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &lowat, &size);
    }
    struct epoll_event event = {
        /* A listener stays level-triggered: what one batch doesn't accept, the next must see. */
        .events = mode == ZC_MODE_LISTEN ? (uint32_t)EPOLLIN
                                         : (uint32_t)(EPOLLIN | EPOLLRDHUP | EPOLLPRI | EPOLLET),
        .data.u64 = ((uint64_t)generation << 32) | slot,
    };
    if (epoll_ctl(engine->epfd, EPOLL_CTL_ADD, fd, &event) < 0) {
        return -errno;
    }
    if (flags & ZC_CONN_NODELAY) {
        int on = 1;
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    if (fresh) {
        engine->used++;
    } else {
        engine->free_head = conn->next_free;
    }
    memset(conn, 0, sizeof *conn);
    conn->generation = generation;
    conn->fd = fd;
    conn->mode = (uint8_t)mode;
    conn->probe_after_short = (flags & ZC_CONN_PROBE_AFTER_SHORT) != 0;
    conn->lowat = conn->idle_lowat = lowat;
    engine->live++;
    return (int)slot;
}

/* The counters of mapping and of zero-copy sends.  Without memory for them, they count nothing:
 * that is no reason for a receive or a send to fail. */
zc_conn_stats *zc_rare_stats(zc_conn *conn) {
    static _Thread_local zc_conn_stats lost;
    if (conn->rare == NULL) {
        conn->rare = calloc(1, sizeof *conn->rare);
    }
    return conn->rare != NULL ? conn->rare : &lost;
}

static zc_conn_stats stats_of(const zc_conn *conn) {
    zc_conn_stats stats = {0};
    if (conn->rare != NULL) {
        stats = *conn->rare;
    }
    memcpy(&stats, &conn->stats, sizeof conn->stats);
    return stats;
}

/* Adds to an array of 64-bit counters, as both are. */
static void sum(zc_conn_stats *into, const zc_conn *conn) {
    zc_conn_stats stats = stats_of(conn);
    uint64_t *total = (uint64_t *)into;
    const uint64_t *more = (const uint64_t *)&stats;
    for (size_t i = 0; i < sizeof stats / sizeof *more; i++) {
        total[i] += more[i];
    }
}

void zc_engine_totals(const zc_engine *engine, zc_conn_stats *out) {
    *out = engine->gone;
    for (uint32_t slot = 0; slot < engine->used; slot++) {
        if (engine->conns[slot].fd >= 0) {
            sum(out, &engine->conns[slot]);
        }
    }
}

int zc_conn_remove(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    ZC_ASSERT(conn->fill_buf == NULL); /* its memory may go away with the caller */
    int own_fd = -1;
    if (conn->inflight != NULL) {
        /* Asserts that nothing is in flight. */
        zc_inflight_free(zc_zerocopy_detach(engine, slot, &own_fd));
    }
    /* Fails when the descriptor was closed behind our back; the kernel has
     * then forgotten it already. */
    int error = epoll_ctl(engine->epfd, EPOLL_CTL_DEL, conn->fd, NULL) < 0 ? -errno : 0;
    if (own_fd >= 0) {
        close(own_fd);
    }
    if (engine->cork.slot == slot) {
        engine->cork.slot = ZC_NO_SLOT; /* the connection is gone, so are its bytes */
    }
    sum(&engine->gone, conn);
    free(conn->rare);
    conn->fd = -1;
    conn->generation++;
    conn->next_free = engine->quarantine_head;
    engine->quarantine_head = slot;
    if (--engine->live == 0 && engine->orphaned) {
        zc_engine_free(engine);
    }
    return error;
}

void zc_again_push(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    if (conn->queued) {
        return;
    }
    /* Removed connections leave stale references behind until the next poll
     * drops them, so the ring can be full of those for a moment. */
    if (engine->again_count == engine->again_capacity) {
        uint32_t kept = 0;
        for (uint32_t i = 0; i < engine->again_count; i++) {
            zc_ref ref = engine->again[(engine->again_head + i) % engine->again_capacity];
            if (engine->conns[ref.slot].generation == ref.generation) {
                engine->again[(engine->again_head + kept++) % engine->again_capacity] = ref;
            }
        }
        engine->again_count = kept;
    }
    ZC_ASSERT(engine->again_count < engine->again_capacity);
    uint32_t tail = (engine->again_head + engine->again_count++) % engine->again_capacity;
    engine->again[tail] = (zc_ref){.slot = slot, .generation = conn->generation};
    conn->queued = true;
}

int zc_conn_set_mode(zc_engine *engine, uint32_t slot, int mode) {
    zc_conn *conn = zc_conn_live(engine, slot);
    ZC_ASSERT((mode == ZC_MODE_LISTEN) == (conn->mode == ZC_MODE_LISTEN));
    conn->mode = (uint8_t)mode;
    zc_unaim(engine, slot); /* the protocol may be another one */
    return 0;
}

int zc_conn_pause(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    if (!conn->paused) {
        zc_fill_before_pause(engine, slot);
        conn->paused = true;
    }
    return 0;
}

int zc_conn_resume(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    conn->paused = false;
    if (!conn->ready) {
        return 0;
    }
    zc_again_push(engine, slot);
    return 1;
}

const zc_conn_stats *zc_conn_counters(zc_engine *engine, uint32_t slot) {
    engine->counters = stats_of(zc_conn_live(engine, slot));
    return &engine->counters;
}
