/* What the native files share among themselves; not part of the interface. */
#ifndef ZC_ENGINE_INTERNAL_H
#define ZC_ENGINE_INTERNAL_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/uio.h>

#include "zc_assert.h"
#include "zcloop.h"

enum {
    ZC_MAX_RECORDS = 256,
    ZC_MAX_EVENTS = 128,
    ZC_MAX_IOV = 512,
    ZC_MIN_ROOM = 16 * 1024,     /* least scratch worth starting a recv with */
    ZC_SIZED_MIN = 8 * 1024,
    ZC_SIZED_MAX = 256 * 1024,
    ZC_LARGE = 64 * 1024,        /* a recv of so much lets other threads run meanwhile */
    ZC_MAX_ACCEPTS = 64,         /* a batch, so that a flood can't starve the rest */
    ZC_NO_SLOT = 0xffffffff
};

/* See map_policy.c. */
typedef struct {
    uint8_t policy;   /* enum zc_map_policy */
    bool asked : 1;       /* there was a destination for pages */
    bool proved : 1;      /* the last judgement was that the stream yields pages */
    uint8_t level;    /* failures in a row: 0 = the stream yields pages, or wasn't tried */
    uint8_t drops;    /* times in a row that the receiver was found to keep nothing */
    bool shifted : 1;     /* the buffer that was lent last begins 1 to 31 bytes into its page */
    bool hole : 1;        /* of contiguous memory: bytes without a page came where one could begin */
    uint8_t misses;   /* the same: how often in a row that was so */
    bool alternates : 1;  /* the last pages ended at bytes that couldn't be mapped, before the queue did */
    int left;         /* in the queue after the last mapping call; a FIN counts as one */
    uint32_t skip;    /* bytes that no mapping can bring, before it can go on */
    uint32_t unaligned; /* of contiguous memory: bytes to copy before the next attempt */
    bool window_open; /* the same: see window.c */
    uint16_t phase; /* where in 4 KiB of the stream its pages begin, as far as is known */
    uint64_t backoff; /* bytes to receive by copying before the next attempt */
    uint64_t judged, mapped;
    uint64_t dropped; /* bytes of views that were let go of at once, in a row */
} zc_map_state;

/* The counters that every connection has: those with which zc_conn_stats begins. */
typedef struct {
    uint64_t bytes_received, recv_calls, bytes_filled, fills, wakeups;
    uint64_t bytes_sent, send_calls, send_short, sendfile_bytes, lowat_set;
} zc_common_stats;

_Static_assert(sizeof(zc_common_stats) == offsetof(zc_conn_stats, bytes_mapped) &&
                   offsetof(zc_common_stats, lowat_set) == offsetof(zc_conn_stats, lowat_set),
               "copied as one piece");

/*
 * One connection.  Its size is what an idle one costs, so what most never need is
 * allocated when it is first needed.
 *
 * Kernel fact: the poller is edge-triggered, so an edge says once that bytes
 * came.  Rule: `ready` remembers an edge until a recv shows that the socket
 * is drained, and a connection with `ready` set that nobody is about to read
 * is on the engine's again-list, unless it is paused.  Rejected: level
 * triggering, which costs an epoll_ctl for every pause, resume and blocked
 * write, and re-polls every socket after every read.
 */
typedef struct {
    int fd; /* -1: slot is free */
    uint32_t generation;
    uint32_t next_free;
    uint8_t mode;
    bool ready;
    bool hup; /* FIN, error or urgent data seen: a short read isn't the end */
    bool eof; /* the end of the stream was read; only an error can come */
    bool paused;
    bool queued; /* is on the again-list */
    bool probe_after_short;
    bool large;     /* the last recv moved much: others may run meanwhile */
    bool sized;     /* the last recv moved enough for a size to be asked first */
    bool sized_all; /* the size last asked was reported whole */
    bool want_write;
    bool out_armed;
    bool fill_floats; /* where the result begins in fill_memory isn't fixed yet */
    bool aimed;       /* lowat is at what an exact PageBuffer lacks */
    char *fill_buf; /* not NULL: a fill is under way */
    size_t fill_len, fill_done;
    zc_memory *fill_memory; /* not NULL: pages may be moved into it */
    int lowat;      /* what SO_RCVLOWAT was last set to; 1 = the default */
    int idle_lowat; /* what it is when no fill is under way */
    zc_map_state map;
    uint64_t batch; /* the poll that read from it last */
    int error;          /* -errno that recv reported, which the kernel does once; 0: none */
    int deferred_error; /* the same of the mapping call; comes after what is queued */
    /* See send_zerocopy.c. */
    struct zc_inflight *inflight; /* NULL: no attempt yet */
    int zerocopy_error;           /* -errno: this socket can't; 0: it can, or wasn't tried */
    int zerocopy_pid;             /* the process whose memory is in flight */
    int zerocopy_fd;              /* the table's own descriptor of the socket */
    uint32_t enobufs_pause;       /* sends to copy before the next attempt */
    uint8_t enobufs_row;          /* refusals in a row */
    bool fallback_counted;        /* of the write that is being sent, a part was copied */
    bool whole_pages;             /* send so that a receiver on this host can map it */
    bool completions_told;        /* ZC_COMPLETED was reported, the queue not read since */
    zc_common_stats stats;
    zc_conn_stats *rare; /* the other counters, see zc_rare_stats; NULL: all are 0 */
} zc_conn;

_Static_assert(sizeof(zc_conn) <= 264, "what most connections never need belongs elsewhere");

typedef struct {
    uint32_t slot, generation;
} zc_ref;

/* See cork.c. */
typedef struct {
    uint32_t slot; /* ZC_NO_SLOT: nothing is corked */
    size_t len, sent;
    int error;
    char data[ZC_CORK_MAX];
} zc_corked;

/* See busy_poll.c. */
typedef struct {
    uint64_t max_ns; /* 0: off */
    bool adaptive;
    bool wanted;     /* the last waits say that polling pays */
    bool eager;      /* the last wait was none: more may be there again */
    bool answer_due; /* something was sent before this wait */
    enum { ZC_SPIN_TRY_SLEEP, ZC_SPIN_TRY_SPIN, ZC_SPIN_KEEP } phase;
    uint32_t waits;       /* in this phase */
    uint64_t total_ns[2]; /* of the trial's waits: slept through, spun through */
    uint64_t sends_seen;  /* engine's count of sends at the last settle */
    bool spinning;   /* a spin is under way since idle_since_ns */
    uint64_t idle_since_ns; /* when the last batch was settled; 0: not idle */
    uint32_t misses;        /* in a row */
    uint32_t sit_out;       /* short waits to let pass before trying again */
} zc_spin;

struct zc_engine {
    int epfd;
    zc_conn *conns;
    uint32_t capacity, free_head;
    uint32_t used;  /* slots from here on were never given out, nor touched */
    uint32_t live;  /* connections in the table */
    bool orphaned;  /* its owner is gone */
    uint32_t quarantine_head; /* removed since the last poll */
    /* Edges that epoll_wait handed over and no poll has looked at yet. */
    struct epoll_event events[ZC_MAX_EVENTS];
    int event_count, event_next;
    /* Ring of connections to read again; each is in it at most once, and the
     * ring grows with the table. */
    zc_ref *again;
    uint32_t again_capacity, again_head, again_count;
    zc_event records[ZC_MAX_RECORDS];
    int record_count;
    char *scratch;
    size_t scratch_len, scratch_used;
    struct iovec iov[ZC_MAX_IOV];
    uint64_t sends; /* that the kernel took something of */
    bool batching; /* records were handed out and not settled */
    zc_corked cork;
    zc_spin spin;
    struct {
        int policy;         /* of new connections */
        uint32_t min_bytes; /* waiting, below which "auto" doesn't map */
        bool shifted_dear;  /* see zc_engine_set_shifted */
        int unsupported;    /* errno that says why this kernel doesn't; 0: it does, or wasn't asked */
    } map;
    zc_engine_stats stats;
    zc_conn_stats gone;     /* of the connections that were removed */
    zc_conn_stats counters; /* what zc_conn_counters returned */
};

static inline zc_conn *zc_conn_at(const zc_engine *engine, uint32_t slot) {
    ZC_ASSERT(slot < engine->used);
    return &engine->conns[slot];
}

static inline zc_conn *zc_conn_live(const zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_at(engine, slot);
    ZC_ASSERT(conn->fd >= 0);
    return conn;
}

zc_conn_stats *zc_rare_stats(zc_conn *conn);
void zc_again_push(zc_engine *engine, uint32_t slot);
int zc_conn_inq(const zc_conn *conn);
int64_t zc_conn_recv(zc_conn *conn, char *buf, size_t len);
void zc_map_copied(zc_conn *conn, size_t count);
void zc_map_forget_misses(zc_conn *conn);
bool zc_fill_step(zc_engine *engine, zc_conn *conn);
size_t zc_fill_map_step(zc_engine *engine, zc_conn *conn, size_t *want);
void zc_fill_before_pause(zc_engine *engine, uint32_t slot);
int zc_lowat_for(size_t left);
void zc_unaim(zc_engine *engine, uint32_t slot);
void zc_fill_aim(zc_engine *engine, uint32_t slot);
int64_t zc_send_account(zc_engine *engine, uint32_t slot, ssize_t sent, int error, size_t asked);
struct zc_inflight *zc_zerocopy_detach(zc_engine *engine, uint32_t slot, int *fd);
int zc_arm_out(zc_engine *engine, uint32_t slot);
void zc_accept_some(zc_engine *engine, uint32_t slot);
void zc_spin_woke(zc_engine *engine);
void zc_emit(zc_engine *engine, uint32_t slot, uint32_t what, int32_t result, uint32_t offset);

#endif
