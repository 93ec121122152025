/*
 * Where mapped pages go: to a protocol that keeps them, or into contiguous memory.
 *
 * A protocol of pages gets each mapped range as a slice of the arena, leased for
 * exactly that range, so that one small view that somebody keeps holds one small range.
 * Contiguous memory (a PageBuffer, the result of a readview) is ordinary memory
 * that pages are moved into: whatever isn't a whole page is received straight into
 * it, and there is no moment in which a part of it can't be read.
 */
#include <string.h>

#include "engine_internal.h"
#include "pages_internal.h"
#include "recv_zerocopy.h"

enum { LEASE_MIN = 16 * ZC_PAGE };

/* For *length bytes, or for fewer where the arena is in pieces. */
static zc_slice *lease(zc_conn *conn, size_t *length) {
    zc_slice *slice = zc_slice_lease((uint32_t)(*length / ZC_PAGE));
    while (slice == NULL && *length > LEASE_MIN) {
        *length = *length / 2 / ZC_PAGE * ZC_PAGE;
        slice = zc_slice_lease((uint32_t)(*length / ZC_PAGE));
    }
    zc_rare_stats(conn)->map_arena_full += slice == NULL;
    return slice;
}

static void take_off(zc_page_run *run, size_t came) {
    run->waiting -= came < run->waiting ? came : run->waiting;
}

/* The rest of a straggler: collected with what the mapping call brought of it. */
static int take_rest(zc_engine *engine, uint32_t slot, zc_page_run *run) {
    zc_conn *conn = zc_conn_live(engine, slot);
    bool large = conn->large; /* of the mapping calls */
    int64_t count = zc_conn_recv(conn, run->copybuf, conn->map.skip);
    run->mapped = 0;
    run->copied = count > 0 ? (size_t)count : 0;
    take_off(run, run->copied);
    if (count > 0) {
        conn->large = large;
        conn->map.left -= count < conn->map.left ? (int)count : conn->map.left;
        if (conn->ready && !conn->paused) {
            zc_again_push(engine, slot);
        }
    }
    return count > 0;
}

/* What the last run left over, or a new slice.  Where runs alternate with stragglers the next one
 * is a segment at most, so what is left serves until it is shorter than that. */
static zc_slice *lease_run(zc_conn *conn, zc_page_run *run, size_t *length, size_t *asked) {
    zc_slice *spare = run->spare;
    run->spare = NULL;
    if (spare != NULL) {
        size_t room = zc_slice_bytes(spare);
        if (room < *length && room >= ZC_KNOWN_MIN && conn->map.alternates) {
            *length = *asked = room;
        }
        if (room >= *length) {
            return spare;
        }
        zc_slice_return(spare);
    }
    return lease(conn, length);
}

void zc_end_pages(zc_page_run *run) {
    if (run->spare != NULL) {
        zc_slice_return(run->spare);
        run->spare = NULL;
    }
}

int zc_recv_pages(zc_engine *engine, uint32_t slot, zc_page_run *run) {
    zc_conn *conn = zc_conn_live(engine, slot);
    run->slice = NULL;
    if (!run->more) {
        run->waiting = 0;
    } else if (conn->map.left == 0) {
        return 0;
    }
    if (conn->map.skip > 0 && conn->map.skip <= ZC_COPYBUF_MAX && conn->map.backoff == 0) {
        return take_rest(engine, slot, run);
    }
    size_t behind, length = zc_map_wanted(engine, conn, ZC_MAP_STEP, &run->waiting, &behind);
    if (conn->map.alternates && length > 2 * ZC_PAGE) {
        /* It will end at a straggler again, long before the queue does: room for a whole one,
         * and so much less to map that nothing beyond what waits is ever copied. */
        length -= ZC_PAGE;
        behind = ZC_COPYBUF_MAX;
    }
    size_t asked = length;
    if (length == 0 || (run->slice = lease_run(conn, run, &length, &asked)) == NULL) {
        return 0;
    }
    zc_map_request ask = {
        .address = zc_slice_base(run->slice),
        .length = length,
        .copybuf = run->copybuf,
        .copybuf_len = length == asked ? behind : 0, /* behind what waits, not in the midst of it */
        .clean = true, /* a leased slice is */
    };
    zc_map_result got;
    bool some = zc_conn_map(engine, conn, &ask, &got);
    conn->map.alternates = got.mapped > 0 ? got.mapped < length : conn->map.alternates;
    zc_map_judge(conn, &got);
    run->start = ask.address;
    run->mapped = got.mapped;
    run->copied = got.copied;
    take_off(run, got.mapped + got.copied);
    if (got.mapped == 0) {
        run->spare = run->slice;
        run->slice = NULL;
    } else {
        run->spare = zc_slice_split(run->slice, (uint32_t)(got.mapped / ZC_PAGE));
    }
    if (some && conn->ready && !conn->paused) {
        zc_again_push(engine, slot);
    }
    return some;
}

/* One mapping call into a slice that the caller places and releases. */
typedef struct {
    zc_slice *slice;
    zc_map_result got;
    char straggler[ZC_COPYBUF_MAX];
} attempt;

static bool attempt_map(zc_engine *engine, zc_conn *conn, size_t len, attempt *try) {
    size_t waiting = 0, behind, length = zc_map_wanted(engine, conn, len, &waiting, &behind);
    size_t asked = length;
    try->slice = length > 0 ? lease(conn, &length) : NULL;
    if (try->slice == NULL) {
        return false;
    }
    zc_map_request ask = {
        .address = zc_slice_base(try->slice),
        .length = length,
        .copybuf = try->straggler,
        .copybuf_len = length == asked ? behind : 0,
        .clean = true,
    };
    (void)zc_conn_map(engine, conn, &ask, &try->got);
    if (try->got.mapped > 0 || !conn->map.proved) {
        zc_map_judge(conn, &try->got);
    } else {
        conn->map.skip = (uint32_t)try->got.skip; /* out of step is not unmappable: see note_hole */
    }
    return true;
}

/* Where the pages can't be moved they are copied: they are ours in any case.  That takes
 * memory that can be written to, which the system may refuse (vm.max_map_count). */
static int put_copies(zc_conn *conn, zc_memory *memory, size_t at, const attempt *try, bool pages) {
    char *base = zc_memory_base(memory);
    size_t mapped = try->got.mapped, copied = try->got.copied;
    int error = zc_memory_writable(memory, pages ? at : at + mapped, (pages ? mapped : 0) + copied);
    if (error < 0) {
        return error;
    }
    if (pages) {
        zc_rare_stats(conn)->map_not_moved++;
        memcpy(base + at, zc_slice_base(try->slice), mapped);
    }
    memcpy(base + at + mapped, try->straggler, copied);
    return 0;
}

/* Moves what was mapped to its place, copies what came behind it; returns the bytes.
 * 0 with conn->error: they are lost, and so is the connection. */
static size_t place(zc_conn *conn, zc_memory *memory, size_t at, attempt *try) {
    const zc_map_result *got = &try->got;
    bool left = got->mapped > 0 &&
                zc_memory_adopt(memory, at, zc_slice_base(try->slice), got->mapped) < 0;
    if (left || got->copied > 0) {
        conn->error = put_copies(conn, memory, at, try, left);
    }
    zc_slice_release(try->slice);
    return conn->error < 0 ? 0 : got->mapped + got->copied;
}

/* Other memory is laid in another way: what was found out of the last one's says nothing of it. */
void zc_map_forget_misses(zc_conn *conn) {
    conn->map.hole = false;
    conn->map.unaligned = 0;
    conn->map.misses = 0;
}

/*
 * What an attempt at a page's place says about the rest.
 *
 * Fact: where the window was full the kernel splits a page in two parts, which together
 * are one page long: a hole, behind which the pages go on.
 * Rule: where no page could be mapped, receive up to where the next one would begin and
 * try once more; if that fails too, the stream's pages don't begin where the memory's do,
 * for now: copy two pages, then try again at a page's place, then twice as much, and so on.
 */
static void note_hole(zc_conn *conn, const zc_map_result *got) {
    zc_map_state *map = &conn->map;
    if (got->mapped > 0) {
        map->misses = 0;
    }
    if (got->mapped > 0 || !map->hole) {
        map->hole = got->copied + got->skip > 0;
        return;
    }
    map->hole = false;
    map->skip = 0;
    map->unaligned = (uint32_t)ZC_UNALIGNED << map->misses;
    if (map->misses < ZC_UNALIGNED_DOUBLINGS) {
        map->misses++;
    }
}

/* 0: to be received by copying, *len bytes at most, behind which a page may begin. */
static size_t map_into(zc_engine *engine, zc_conn *conn, zc_memory *memory, size_t at, size_t *len) {
    attempt try;
    zc_map_state *map = &conn->map;
    size_t to_next_page = (ZC_PAGE - at % ZC_PAGE) % ZC_PAGE;
    if (to_next_page > 0) {
        bool would = map->policy != ZC_MAP_NEVER && map->backoff == 0 && map->unaligned == 0;
        if (would && *len >= to_next_page + ZC_PAGE) {
            *len = to_next_page;
        }
        return 0;
    }
    if (!attempt_map(engine, conn, *len, &try)) {
        return 0;
    }
    note_hole(conn, &try.got);
    return place(conn, memory, at, &try);
}

/* A buffer that will be filled for sure: sleep until it can be, or until much waits. */
static void aim(zc_engine *engine, uint32_t slot, zc_memory *memory, size_t left) {
    zc_conn *conn = zc_conn_live(engine, slot);
    if (zc_memory_exact(memory) || conn->aimed) {
        conn->aimed = zc_memory_exact(memory) && left > 0;
        (void)zc_set_lowat(engine, slot, conn->aimed ? zc_lowat_for(left) : conn->idle_lowat);
    }
}

/* Where pages were moved in before, they make way only for bytes that come: the rest of what was
 * lent keeps what it holds. */
static int64_t copy_over_pages(zc_conn *conn, zc_memory *memory, size_t at, size_t len) {
    char straggler[ZC_COPYBUF_MAX];
    size_t waiting = (size_t)zc_conn_inq(conn);
    size_t count = waiting < len ? waiting : len;
    if (conn->map.skip > 0 && count > conn->map.skip) {
        count = conn->map.skip; /* no more is received at once */
    }
    if (count > 0) {
        int error = zc_memory_writable(memory, at, count);
        if (error < 0) {
            return error;
        }
        int64_t got = zc_conn_recv(conn, zc_memory_base(memory) + at, count);
        if (got == (int64_t)waiting) {
            conn->ready = conn->hup; /* what came since raises an edge of its own */
        }
        return got;
    }
    /* Most likely the end of the stream, or nothing. */
    int64_t got = zc_conn_recv(conn, straggler, len < sizeof straggler ? len : sizeof straggler);
    if (got > 0) {
        int error = zc_memory_writable(memory, at, (size_t)got);
        if (error < 0) {
            conn->error = error; /* these bytes are lost, and so is the connection */
            return error;
        }
        memcpy(zc_memory_base(memory) + at, straggler, (size_t)got);
    }
    return got;
}

/* For a PageBuffer: [at, at + len) of it.  Like zc_recv.  "auto" maps only into what was never
 * received into: a buffer that is used again is warm. */
int64_t zc_recv_memory(zc_engine *engine, uint32_t slot, zc_memory *memory, size_t at, size_t len) {
    zc_conn *conn = zc_conn_live(engine, slot);
    int64_t count = 0;
    size_t lent = len;
    if (conn->map.policy == ZC_MAP_ALWAYS || at >= zc_memory_used(memory)) {
        if (len >= ZC_LARGE) {
            (void)zc_conn_open_window(engine, slot);
            if (zc_memory_used(memory) == 0) {
                zc_map_forget_misses(conn);
            }
        }
        count = (int64_t)map_into(engine, conn, memory, at, &len);
    }
    if (count == 0) {
        count = zc_memory_has_pages(memory)
                    ? copy_over_pages(conn, memory, at, len)
                    : zc_conn_recv(conn, zc_memory_base(memory) + at, len);
    }
    if (count > 0) {
        zc_memory_note_used(memory, at + (size_t)count);
        aim(engine, slot, memory, lent - (size_t)count);
        if (conn->ready && !conn->paused) {
            zc_again_push(engine, slot);
        }
    }
    return count;
}

/*
 * One step of a fill of contiguous memory; 0: receive by copying.
 *
 * Where the result begins isn't fixed before its first page is seen (`fill_floats`):
 * it begins so that what comes before that page, queued, copied or skipped, ends
 * where a page begins.
 */
static void settle(zc_conn *conn, size_t before_first_page) {
    size_t origin = (ZC_PAGE - (conn->fill_done + before_first_page) % ZC_PAGE) % ZC_PAGE;
    char *base = zc_memory_base(conn->fill_memory);
    memmove(base + origin, base, conn->fill_done);
    conn->fill_buf = base + origin;
    conn->fill_floats = false;
}

/* Bytes up to the next page, where what waits confirms what is known of the stream: all of it
 * fills pages to their ends.  0: unknown.  (The kernel only says how long a packet is that
 * doesn't begin with a page, and that may be sixteen pages.) */
static size_t known_before_page(const zc_conn *conn) {
    size_t offset = conn->map.backoff > 0 ? 0 : zc_page_offset(conn);
    size_t waiting = offset > 0 ? (size_t)zc_conn_inq(conn) : 0;
    return waiting > ZC_PAGE && (waiting + offset) % ZC_PAGE == 0 ? ZC_PAGE - offset : 0;
}

size_t zc_fill_map_step(zc_engine *engine, zc_conn *conn, size_t *want) {
    size_t before_page = conn->fill_floats ? known_before_page(conn) : 0;
    if (before_page > 0) {
        settle(conn, before_page);
    }
    if (!conn->fill_floats) {
        size_t at = (size_t)(conn->fill_buf - zc_memory_base(conn->fill_memory)) + conn->fill_done;
        return map_into(engine, conn, conn->fill_memory, at, want);
    }
    if (conn->fill_done > ZC_FLOAT_MAX) {
        conn->fill_floats = false; /* too much to move: it begins where the memory does */
        return 0;
    }
    attempt try;
    if (!attempt_map(engine, conn, *want, &try)) {
        return 0;
    }
    size_t unmapped = try.got.mapped > 0 ? 0 : try.got.copied + try.got.skip;
    if (try.got.mapped > 0 || unmapped > 0) {
        settle(conn, unmapped);
    }
    size_t at = (size_t)(conn->fill_buf - zc_memory_base(conn->fill_memory)) + conn->fill_done;
    return place(conn, conn->fill_memory, at, &try);
}
