/*
 * One wake-up: ask epoll, read what is ready, fill the batch of records.
 *
 * Order: connections that the last batch left unfinished come first, then the
 * edges in the order the kernel gave them.  A batch ends when its records,
 * or the scratch memory they point into, run out; edges not yet looked at
 * stay in engine->events for the next poll.
 */
#define _GNU_SOURCE
#include "engine_internal.h"
#include "zerocopy_internal.h"

/* An edge can yield a reading, a writing and a completion record, a listener many. */
static bool has_room(const zc_engine *engine) {
    return engine->record_count + ZC_MAX_ACCEPTS + 3 <= ZC_MAX_RECORDS &&
           engine->scratch_len - engine->scratch_used >= ZC_MIN_ROOM;
}

void zc_emit(zc_engine *engine, uint32_t slot, uint32_t what, int32_t result, uint32_t offset) {
    ZC_ASSERT(engine->record_count < ZC_MAX_RECORDS);
    engine->records[engine->record_count++] =
        (zc_event){.slot = slot, .what = what, .result = result, .offset = offset};
}

static void read_into_scratch(zc_engine *engine, uint32_t slot, zc_conn *conn) {
    size_t offset = engine->scratch_used;
    int64_t n = zc_conn_recv(conn, engine->scratch + offset, engine->scratch_len - offset);
    if (n > 0) {
        /* Cache-line steps keep two messages from sharing a line. */
        engine->scratch_used += ((size_t)n + 63) & ~(size_t)63;
        if (engine->scratch_used > engine->scratch_len) {
            engine->scratch_used = engine->scratch_len;
        }
        zc_emit(engine, slot, ZC_DATA, (int32_t)n, (uint32_t)offset);
        if (conn->ready) {
            zc_again_push(engine, slot);
        }
    } else if (n == 0) {
        zc_emit(engine, slot, ZC_EOF, 0, 0);
    } else if (n != -EAGAIN) {
        zc_emit(engine, slot, ZC_ERROR, (int32_t)n, 0);
    }
}

/* False when too little waits for it to be worth while. */
static bool announce_size(zc_engine *engine, uint32_t slot, zc_conn *conn) {
    int size = zc_conn_inq(conn);
    if (size < ZC_SIZED_MIN) {
        return false;
    }
    conn->sized_all = size <= ZC_SIZED_MAX;
    zc_emit(engine, slot, ZC_SIZED, conn->sized_all ? size : ZC_SIZED_MAX, 0);
    return true;
}

static void service_read(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    if (conn->batch == engine->stats.polls) {
        zc_again_push(engine, slot); /* one reading record a batch */
        return;
    }
    conn->batch = engine->stats.polls;
    conn->stats.wakeups++;
    if (conn->fill_buf != NULL) {
        if (zc_fill_step(engine, conn)) {
            zc_emit(engine, slot, ZC_FILLED, 0, 0);
        } else {
            zc_fill_aim(engine, slot);
            if (conn->ready) {
                zc_again_push(engine, slot);
            }
        }
    } else if (conn->mode == ZC_MODE_BUFFERED) {
        zc_emit(engine, slot, ZC_READABLE, 0, 0);
    } else if (!conn->sized || !announce_size(engine, slot, conn)) {
        read_into_scratch(engine, slot, conn);
    }
}

static void serve_again_list(zc_engine *engine) {
    uint32_t count = engine->again_count; /* not those that this batch adds */
    while (count-- > 0 && has_room(engine)) {
        zc_ref ref = engine->again[engine->again_head];
        engine->again_head = (engine->again_head + 1) % engine->again_capacity;
        engine->again_count--;
        zc_conn *conn = zc_conn_at(engine, ref.slot);
        if (conn->fd < 0 || conn->generation != ref.generation) {
            continue;
        }
        conn->queued = false;
        if (conn->ready && !conn->paused) {
            service_read(engine, ref.slot);
        }
    }
}

/*
 * Kernel fact: EPOLLERR is up while the error queue isn't empty, also for a
 * connection that is well; a TCP connection that failed shows EPOLLHUP too.
 * Rule: where sends went without a copy, EPOLLERR without EPOLLHUP is about them
 * (they may have been read since the edge), and says nothing about reading.  It
 * is told once; the queue may then wait, and the kernel merges what comes.
 */
static uint32_t without_completions(zc_engine *engine, uint32_t slot, uint32_t events) {
    zc_conn *conn = zc_conn_live(engine, slot);
    if (conn->inflight == NULL || !(events & EPOLLERR)) {
        return events;
    }
    if (!conn->completions_told && zc_inflight_outstanding(conn->inflight) > 0) {
        conn->completions_told = true;
        zc_emit(engine, slot, ZC_COMPLETED, 0, 0);
    }
    return events & EPOLLHUP ? events : events & ~(uint32_t)EPOLLERR;
}

static void serve_event(zc_engine *engine, const struct epoll_event *event) {
    uint32_t slot = (uint32_t)event->data.u64;
    zc_conn *conn = zc_conn_at(engine, slot);
    if (conn->fd < 0 || conn->generation != (uint32_t)(event->data.u64 >> 32)) {
        return;
    }
    if (conn->mode == ZC_MODE_LISTEN) {
        zc_accept_some(engine, slot);
        return;
    }
    uint32_t events = without_completions(engine, slot, event->events);
    if (events & (EPOLLOUT | EPOLLERR | EPOLLHUP) && conn->want_write) {
        conn->want_write = false;
        zc_emit(engine, slot, ZC_WRITABLE, 0, 0);
    }
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR | EPOLLPRI)) {
        conn->hup = true;
    }
    /* EPOLLIN stays set from the FIN on, and comes with every EPOLLOUT. */
    uint32_t news = conn->eof ? (uint32_t)(EPOLLERR | EPOLLHUP) : ~(uint32_t)EPOLLOUT;
    if (events & news) {
        conn->ready = true;
        if (!conn->paused && !conn->queued) {
            service_read(engine, slot);
        }
    }
}

static void free_quarantine(zc_engine *engine) {
    while (engine->quarantine_head != ZC_NO_SLOT) {
        uint32_t slot = engine->quarantine_head;
        zc_conn *conn = zc_conn_at(engine, slot);
        engine->quarantine_head = conn->next_free;
        conn->next_free = engine->free_head;
        engine->free_head = slot;
    }
}

int zc_engine_poll(zc_engine *engine) {
    free_quarantine(engine);
    engine->record_count = 0;
    engine->scratch_used = 0;
    engine->stats.polls++;
    serve_again_list(engine);
    if (engine->event_next == engine->event_count) {
        engine->event_next = 0;
        int count = epoll_wait(engine->epfd, engine->events, ZC_MAX_EVENTS, 0);
        if (count < 0) {
            engine->event_count = 0;
            /* EINTR can't happen with a zero time-out, but costs nothing to survive. */
            return errno == EINTR ? engine->record_count : -errno;
        }
        engine->event_count = count;
    }
    while (engine->event_next < engine->event_count && has_room(engine)) {
        serve_event(engine, &engine->events[engine->event_next++]);
    }
    engine->batching = engine->record_count > 0;
    if (engine->batching) {
        engine->stats.events += (uint64_t)engine->record_count;
        zc_spin_woke(engine);
    } else {
        engine->stats.empty_polls++;
    }
    return engine->record_count;
}

int zc_engine_pending(const zc_engine *engine) {
    return engine->again_count > 0 || engine->event_next < engine->event_count;
}
