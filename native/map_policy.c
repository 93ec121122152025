/*
 * When to map.
 *
 * Facts: mapping a page costs less than a fault on fresh memory and more than
 * a copy into warm memory, so it is considered only for memory that the receiver keeps
 * (the caller has seen to that).  Whether a stream has mappable pages can't be
 * known before it was tried, and an attempt at one that has none costs several
 * times a recv of the same bytes.
 *
 * Rule ("auto"): try; where less than half of what was taken could be mapped,
 * receive by copying for a while, twice as long after each failure in a row, and
 * then try once more.  The share of time lost to attempts goes to nothing, and
 * a stream that becomes mappable is found.  The same where a receiver lets go of each view at
 * once: it keeps nothing, and a copy into a buffer of its own is cheaper; unless that buffer lies
 * where this processor copies slowly (calibrate.c).  "map" always tries.
 */
#include "engine_internal.h"
#include "recv_zerocopy.h"

enum {
    BACKOFF_FIRST = 256 * 1024, /* bytes received by copying after the first failure */
    BACKOFF_LEVELS = 9,         /* doublings: 64 MiB */
    JUDGED = 64 * 1024,         /* bytes by which a stream is judged */
    PROVED_JUDGED = 1024 * 1024, /* the same of one that has yielded pages: it may have a bad moment */
    DROPPED = 512 * 1024,       /* bytes by which a receiver is */
    SHIFTED_END = 32,           /* bytes into a page, modulo which a copy may be slow */
    DROPPED_REST = 4            /* doublings of the first back-off that a receiver begins with */
};

int zc_engine_set_map(zc_engine *engine, int policy, uint32_t min_bytes) {
    if (policy < ZC_MAP_NEVER || policy > ZC_MAP_ALWAYS) {
        return -EINVAL;
    }
    engine->map.policy = policy;
    engine->map.min_bytes = min_bytes < ZC_PAGE ? ZC_PAGE : min_bytes;
    return 0;
}

void zc_engine_set_shifted(zc_engine *engine, int dear) { engine->map.shifted_dear = dear != 0; }

int zc_engine_map_unsupported(const zc_engine *engine) { return engine->map.unsupported; }

int zc_conn_set_map(zc_engine *engine, uint32_t slot, int level) {
    zc_conn *conn = zc_conn_live(engine, slot);
    conn->map.asked = true;
    conn->map.policy = (uint8_t)engine->map.policy;
    if (level > 0 && conn->map.policy == ZC_MAP_AUTO && conn->map.level == 0) {
        /* Its route has yielded no pages lately. */
        conn->map.level = (uint8_t)(level < BACKOFF_LEVELS ? level : BACKOFF_LEVELS);
        conn->map.backoff = (uint64_t)BACKOFF_FIRST << (conn->map.level - 1);
    }
    return 0;
}

int zc_conn_ask_map(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    bool first = !conn->map.asked;
    conn->map.asked = true;
    return first;
}

int zc_conn_may_map(const zc_engine *engine, uint32_t slot) {
    const zc_conn *conn = zc_conn_live(engine, slot);
    return conn->map.policy != ZC_MAP_NEVER && conn->map.backoff == 0 && !engine->map.unsupported;
}

int zc_conn_map_level(const zc_engine *engine, uint32_t slot) {
    return zc_conn_live(engine, slot)->map.level;
}

/* How many bytes, in whole pages and at most `room`, to try to map now; 0: use recv.  *waiting: in,
 * so many are known to wait; out, what does.  *behind is how many of them lie behind those returned, for
 * which there is room: less than a page. */
size_t zc_map_wanted(zc_engine *engine, zc_conn *conn, size_t room, size_t *waiting,
                     size_t *behind) {
    if (conn->map.policy == ZC_MAP_NEVER || engine->map.unsupported || conn->map.skip > 0 ||
        conn->map.backoff > 0 || conn->map.unaligned > 0 || room < ZC_PAGE || conn->error < 0) {
        return 0;
    }
    size_t least = conn->map.policy == ZC_MAP_ALWAYS ? ZC_PAGE : engine->map.min_bytes;
    /* Not what the last call left: FIONREAD stops at an urgent mark, that figure doesn't, and the
     * kernel's copy to the copybuf would take the urgent byte for data.  What FIONREAD has seen and
     * wasn't taken yet lies before the mark whatever came since. */
    if (*waiting < ZC_KNOWN_MIN) {
        *waiting = (size_t)zc_conn_inq(conn);
    }
    if (*waiting < least) {
        return 0;
    }
    size_t bytes = *waiting < room ? *waiting : room;
    *behind = bytes % ZC_PAGE;
    return bytes - *behind;
}

void zc_map_judge(zc_conn *conn, const zc_map_result *got) {
    zc_map_state *map = &conn->map;
    map->skip = (uint32_t)got->skip;
    if (map->policy != ZC_MAP_AUTO) {
        return;
    }
    map->judged += got->mapped + got->copied + got->skip;
    map->mapped += got->mapped;
    if (map->judged < (map->proved ? PROVED_JUDGED : JUDGED)) {
        return;
    }
    map->proved = map->mapped * 2 >= map->judged;
    if (!map->proved) {
        if (map->level < BACKOFF_LEVELS) {
            map->level++;
        }
        map->backoff = (uint64_t)BACKOFF_FIRST << (map->level - 1);
        map->skip = 0;
        zc_rare_stats(conn)->map_backed_off++;
    } else {
        map->level = 0;
    }
    map->judged = map->mapped = 0;
}

/* A view of so many bytes was handed on: is there anybody who keeps it? */
void zc_map_note_kept(zc_engine *engine, uint32_t slot, size_t bytes, int kept) {
    zc_conn *conn = zc_conn_live(engine, slot);
    zc_map_state *map = &conn->map;
    if (map->policy != ZC_MAP_AUTO) {
        return;
    }
    if (kept || (map->shifted && engine->map.shifted_dear)) {
        map->dropped = map->drops = 0;
        return;
    }
    map->dropped += bytes;
    if (map->dropped < DROPPED) {
        return;
    }
    map->dropped = 0;
    map->backoff = (uint64_t)BACKOFF_FIRST << (DROPPED_REST + map->drops);
    if (map->drops < BACKOFF_LEVELS) {
        map->drops++;
    }
    zc_rare_stats(conn)->map_not_kept++;
}

/* Where the receiver's own buffer lies, to which bytes are copied otherwise. */
void zc_map_note_buffer(zc_engine *engine, uint32_t slot, const char *buffer) {
    zc_conn *conn = zc_conn_live(engine, slot);
    size_t offset = (uintptr_t)buffer % ZC_PAGE;
    conn->map.shifted = offset > 0 && offset < SHIFTED_END;
}

/* So much came by recv. */
void zc_map_copied(zc_conn *conn, size_t count) {
    zc_map_state *map = &conn->map;
    map->skip -= count < map->skip ? (uint32_t)count : map->skip;
    map->unaligned -= count < map->unaligned ? (uint32_t)count : map->unaligned;
    map->backoff -= count < map->backoff ? count : map->backoff;
}
