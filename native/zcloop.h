/*
 * zcloop.h: the native core's whole interface.
 *
 * Everything between the two cdef marks is read twice, by the C compiler and
 * by cffi, so it holds declarations only: no preprocessor, no inline code.
 * Every function returns a count or zero on success and -errno on failure;
 * none of them blocks, and none of them knows about Python.
 *
 * Threads: an engine belongs to the thread of its loop.
 */
#ifndef ZCLOOP_H
#define ZCLOOP_H

#include <stddef.h>
#include <stdint.h>

/* cdef: begin */

typedef struct zc_engine zc_engine;
typedef struct zc_slice zc_slice;   /* pages.c */
typedef struct zc_memory zc_memory; /* page_memory.c */

/* What a record says.  One connection yields at most one reading record
 * (DATA, SIZED, READABLE, FILLED, EOF, ERROR) a batch, so that a protocol which pauses inside
 * a callback is never handed anything more from the same batch. */
enum zc_what {
    ZC_DATA = 1,     /* result bytes lie at scratch + offset */
    ZC_READABLE = 2, /* ask the protocol for a buffer, then zc_recv */
    ZC_FILLED = 3,   /* a fill ended; zc_fill_end tells how far it came */
    ZC_EOF = 4,      /* the peer sent FIN and everything before it was read */
    ZC_ERROR = 5,    /* result = -errno, from recv or accept */
    ZC_WRITABLE = 6, /* a send that came up short may go on */
    ZC_ACCEPTED = 7, /* result = a new, non-blocking descriptor, ours to close */
    ZC_SIZED = 8,    /* result bytes wait, a large message: zc_recv_sized them into their own memory */
    ZC_COMPLETED = 9 /* the kernel has let go of zero-copy sends; told once until zc_zerocopy_reap */
};

typedef struct {
    uint32_t slot; /* the connection, as zc_conn_add returned it */
    uint32_t what; /* enum zc_what */
    int32_t result;
    uint32_t offset;
} zc_event;

/* How an idle connection's bytes leave the socket. */
enum zc_mode {
    ZC_MODE_DATA = 0,     /* recv into the engine's scratch, report ZC_DATA */
    ZC_MODE_BUFFERED = 1, /* report ZC_READABLE, the caller recvs */
    ZC_MODE_LISTEN = 2    /* accept, report ZC_ACCEPTED */
};

enum zc_conn_flag {
    ZC_CONN_PROBE_AFTER_SHORT = 1, /* a short read doesn't mean drained: AF_UNIX */
    ZC_CONN_NODELAY = 2            /* set TCP_NODELAY; a refusal is ignored */
};

/* What zc_engine_settle advises once a batch was handled. */
enum zc_advice {
    ZC_MORE = 1, /* work is left that no further edge announces: poll again */
    ZC_SPIN = 2, /* an answer is likely within microseconds: zc_engine_spin before sleeping */
    ZC_EAGER = 4 /* the last batch had been waiting for us: poll again before the host loop does */
};

enum zc_spin_result {
    ZC_SPIN_MISS = 0, /* the budget is used up: sleep */
    ZC_SPIN_HIT = 1,  /* events wait: zc_engine_poll */
    ZC_SPIN_AGAIN = 2 /* this slice is over, the budget isn't: come back */
};

typedef struct {
    /* 64 bits each, in the order of zcloop.stats.ConnStats */
    uint64_t bytes_received, recv_calls, bytes_filled, fills, wakeups;
    uint64_t bytes_sent, send_calls, send_short, sendfile_bytes, lowat_set;
    uint64_t bytes_mapped, bytes_copybuf, map_calls, map_unmappable, map_backed_off;
    uint64_t map_not_kept, map_arena_full, map_not_moved, map_unsupported;
    uint64_t zerocopy_sends, zerocopy_bytes, zerocopy_completed, zerocopy_copied, zerocopy_notices;
    uint64_t zerocopy_fallback_route, zerocopy_fallback_trial, zerocopy_fallback_limit;
    uint64_t zerocopy_fallback_enobufs, zerocopy_fallback_unsupported;
} zc_conn_stats;

typedef struct {
    uint64_t polls, empty_polls, events, accepts, accept_errors;
    uint64_t spins, spin_hits, spin_misses;
    uint64_t zerocopy_outstanding, zerocopy_pinned; /* now: sends, and their bytes */
} zc_engine_stats;

/* engine.c: one engine a loop.  scratch_bytes is the receive area that the
 * DATA records of one batch share. */
zc_engine *zc_engine_new(size_t scratch_bytes);
/* Closes the epoll instance; what is left may still send and be removed, so
 * that a transport which outlives its loop touches no freed memory. */
void zc_engine_close(zc_engine *engine);
/* Frees it once its last connection was removed: Python's collector may
 * finalise an engine before the transports that use it. */
void zc_engine_free(zc_engine *engine);
int zc_engine_fd(const zc_engine *engine);
zc_event *zc_engine_records(zc_engine *engine);
char *zc_engine_scratch(zc_engine *engine);
const zc_engine_stats *zc_engine_counters(const zc_engine *engine);

/* conn.c: the table of connections.  A slot that was removed isn't given out
 * again before the next poll, so the records of a batch can't be mistaken. */
int zc_conn_add(zc_engine *engine, int fd, int mode, int flags);
int zc_conn_remove(zc_engine *engine, uint32_t slot);
int zc_conn_set_mode(zc_engine *engine, uint32_t slot, int mode);
int zc_conn_pause(zc_engine *engine, uint32_t slot);
int zc_conn_resume(zc_engine *engine, uint32_t slot); /* 1: call zc_engine_poll */
const zc_conn_stats *zc_conn_counters(zc_engine *engine, uint32_t slot); /* until the next call */
/* The sums over all connections that the engine has or had. */
void zc_engine_totals(const zc_engine *engine, zc_conn_stats *out);

/* address.c: an AF_INET name as (address << 16 | port), both in host order;
 * -EAFNOSUPPORT for other families. */
int64_t zc_inet_sockname(int fd);
int64_t zc_inet_peername(int fd);

/* poller.c: how many records the next batch has. */
int zc_engine_poll(zc_engine *engine);
int zc_engine_pending(const zc_engine *engine); /* 1: work that no edge announces */

/* busy_poll.c */
int zc_engine_settle(zc_engine *engine);
int zc_engine_spin(zc_engine *engine);
int zc_engine_set_spin(zc_engine *engine, uint32_t max_nanoseconds, int adaptive);

/* recv_copy.c: 0 = end of stream, -EAGAIN = drained. */
int64_t zc_recv(zc_engine *engine, uint32_t slot, char *buf, size_t len);
/* For a ZC_SIZED record, with its size.  -EBADF: the connection was removed since. */
int64_t zc_recv_sized(zc_engine *engine, uint32_t slot, char *buf, size_t len);
int zc_recv_is_large(const zc_engine *engine, uint32_t slot); /* the last one was */

/* fill.c: receive until [buf, buf+len) is full, over as many wake-ups as it
 * takes.  The memory belongs to the engine from begin to end. */
int64_t zc_fill_begin(zc_engine *engine, uint32_t slot, char *buf, size_t len);
int64_t zc_fill_end(zc_engine *engine, uint32_t slot); /* bytes filled */
int zc_set_lowat(zc_engine *engine, uint32_t slot, int bytes);

/* The same into contiguous memory that pages may be moved into.  Its first `have` bytes, at its
 * beginning, count as filled already; `len` is the sum; one page more must be there.
 * zc_memory_origin tells afterwards where in it the result begins. */
int64_t zc_fill_begin_pages(zc_engine *engine, uint32_t slot, zc_memory *memory, size_t have,
                            size_t len);
size_t zc_memory_origin(const zc_memory *memory);
/* What SO_RCVLOWAT is while no fill is under way. */
int zc_set_idle_lowat(zc_engine *engine, uint32_t slot, int bytes);

/* window.c: have the kernel open a large receive window, now and for good. Its mark
 * (SO_RCVLOWAT) is what it was, afterwards.  Of a listener: for what it accepts.  0 or -errno. */
int zc_open_window(int fd);
/* Gives an accepted connection its listener's mark, if it came with another one than 1. */
int zc_inherit_lowat(int fd, int listener);
/* The same of a connection that will lend contiguous memory for pages.  1: done now; 0: it had
 * been, or there is no mapping on this connection now. */
int zc_conn_open_window(zc_engine *engine, uint32_t slot);

/* map_policy.c: which connections map, and when. */
enum zc_map_policy {
    ZC_MAP_NEVER = 0,
    ZC_MAP_AUTO = 1,  /* where the stream has proved mappable */
    ZC_MAP_ALWAYS = 2 /* at every chance */
};
/* For connections that ask from now on; "auto" needs min_bytes waiting. */
int zc_engine_set_map(zc_engine *engine, int policy, uint32_t min_bytes);
/* 1: mapping is cheaper than a copy into warm memory that begins 1 to 31 bytes into its page. */
void zc_engine_set_shifted(zc_engine *engine, int dear);
int zc_engine_map_unsupported(const zc_engine *engine); /* errno, or 0 */
/* This one's destinations are worth mapping; level: failures in a row that its route had. */
int zc_conn_set_map(zc_engine *engine, uint32_t slot, int level);
int zc_conn_ask_map(zc_engine *engine, uint32_t slot); /* 1: nobody has asked for it yet */
int zc_conn_may_map(const zc_engine *engine, uint32_t slot); /* 1: it would be tried now */
int zc_conn_map_level(const zc_engine *engine, uint32_t slot);
/* recv_zerocopy.c: how far into a page the next byte lies, by what the last mapping call said. */
size_t zc_conn_page_offset(const zc_engine *engine, uint32_t slot);

/* recv_pages.c: 1 = a run of pages, of straggling bytes behind them, or of both;
 * 0 = zc_recv into the protocol's buffer.  The caller owns the run's slice. */
typedef struct {
    zc_slice *slice; /* out; NULL: nothing was mapped */
    char *start;
    size_t mapped, copied;
    char *copybuf; /* in: room for ZC_COPYBUF_MAX bytes */
    int more;      /* in: 1 = another run came just now, of the same wake-up */
    size_t waiting; /* in and out, for `more`: bytes that wait for sure */
    zc_slice *spare; /* in and out, NULL at first: leased and empty; zc_end_pages gives it back */
} zc_page_run;
/* After it was handed on: whether the receiver keeps the run's pages. */
void zc_map_note_kept(zc_engine *engine, uint32_t slot, size_t bytes, int kept);
void zc_map_note_buffer(zc_engine *engine, uint32_t slot, const char *buffer);
int zc_recv_pages(zc_engine *engine, uint32_t slot, zc_page_run *run);
void zc_end_pages(zc_page_run *run); /* after the last of a row of runs */
enum { ZC_COPYBUF_MAX = 4095, ZC_MAP_STEP = 1048576 };
int64_t zc_recv_memory(zc_engine *engine, uint32_t slot, zc_memory *memory, size_t at, size_t len);

/* calibrate.c: CPU nanoseconds a page, received and read once.  A few milliseconds; -errno where
 * nothing could be mapped over loopback. */
typedef struct {
    uint32_t mapped_ns; /* mapped, and unmapped later */
    uint32_t fresh_ns;  /* copied into memory that was never touched */
    uint32_t warm_ns;   /* copied into memory that is in the cache */
    uint32_t shifted_ns; /* the same, 16 bytes behind a page's beginning */
} zc_calibration;
int zc_calibrate(zc_calibration *out);

/* cork.c: a small write inside a batch is held until the callback that made it
 * has returned and zc_uncork is called, so that what one callback writes leaves together;
 * any other write goes out at once.  Returns like zc_send; -EBUSY: zc_uncork first. */
int64_t zc_write(zc_engine *engine, uint32_t slot, const char *buf, size_t len);
/* 0: all corked bytes were taken.  Else -1, and the three below tell what is left. */
int zc_uncork(zc_engine *engine);
int64_t zc_cork_slot(const zc_engine *engine);
int zc_cork_error(const zc_engine *engine);            /* 0 or -errno */
size_t zc_cork_take(zc_engine *engine, char *rest); /* moves it out; <= ZC_CORK_MAX bytes */

enum zc_cork { ZC_CORK_MAX = 16384 };

/* send.c: bytes taken by the kernel, 0 = none now; a short count arms
 * ZC_WRITABLE. */
int64_t zc_send(zc_engine *engine, uint32_t slot, const char *buf, size_t len);
int zc_iov_put(zc_engine *engine, int index, const char *buf, size_t len);
int64_t zc_sendv(zc_engine *engine, uint32_t slot, int count);
int64_t zc_sendfile(zc_engine *engine, uint32_t slot, int in_fd, int64_t offset, size_t len);
int zc_iov_max(void);
int zc_shutdown_write(zc_engine *engine, uint32_t slot);

/* pages.c: the process's page arena, the address range that kernel pages are mapped into.
 * Reserves it, once a process: a later call changes nothing and returns what the first one did.
 * -ENODEV, -EPERM, -ENOMEM ...: no pages can be mapped in this process. */
int zc_arena_open(size_t bytes);

typedef struct {
    /* 64 bits each, in the order of zcloop.pages.PageStats */
    uint64_t arena_bytes;   /* of address range; 0: not opened, or not to be had */
    uint64_t leased_bytes;  /* of it in use: leased, or held by views */
    uint64_t waiting_bytes; /* not in use, but pages are still mapped there */
    uint64_t slices;        /* in use */
    uint64_t leases, full;  /* leases granted, and refused for lack of room */
    uint64_t zaps, zapped_bytes;           /* MADV_DONTNEED calls and the ranges they emptied */
    uint64_t memories, memory_bytes;       /* PageBuffers that exist, and their size */
    uint64_t adoptions, adopted_bytes;     /* pages moved into them */
    uint64_t adoptions_refused;            /* not moved, for too many mappings or by an error */
    uint64_t splits; /* mappings that adoptions have added to the process, at most */
    uint64_t copied_out; /* of the ranges moved into them, copied later for lack of room for mappings */
    uint64_t unmap_waiting_bytes; /* not in use, but there was no room to unmap them */
} zc_pages_stats;

void zc_pages_counters(zc_pages_stats *out);

/* Beside the errnos: received bytes can't be put into page memory, for there is no room for the
 * mapping that it takes (vm.max_map_count, or the limits on address space or memory). */
enum zc_own_errors { ZC_NO_ROOM = 4096 };
const char *zc_no_room_text(void); /* for people */

/* send_zerocopy.c: like zc_send, from memory that the kernel may go on reading when this
 * returns, unless it had to copy.  Once a send of a write went without a copy, the write is
 * open: `token` (not 0) names it until zc_zerocopy_seal says that no more of it will follow,
 * and is given back by zc_zerocopy_take when the kernel has let go of all of it. */
int zc_zerocopy_prepare(zc_engine *engine, uint32_t slot); /* 0, or -errno: not this socket */
/* From here on in pieces that a receiver on this host can map. */
int zc_zerocopy_whole_pages(zc_engine *engine, uint32_t slot);
int64_t zc_send_zerocopy(zc_engine *engine, uint32_t slot, const char *buf, size_t len,
                         uint64_t token);
uint64_t zc_zerocopy_open(const zc_engine *engine, uint32_t slot); /* its token, 0: none is */
/* 1: in flight, 0: zc_zerocopy_take gives it, -ENOENT: no write is open. */
int zc_zerocopy_seal(zc_engine *engine, uint32_t slot);
int zc_zerocopy_reap(zc_engine *engine, uint32_t slot); /* sends still outstanding */
int zc_zerocopy_take(zc_engine *engine, uint32_t slot, uint64_t *token); /* 1, or 0: no more */
int zc_conn_is_up(const zc_engine *engine, uint32_t slot); /* 0: reset, or both ways shut */
/* Ends the connection with a reset, upon which the kernel lets go. */
int zc_zerocopy_disconnect(zc_engine *engine, uint32_t slot);
/* Shuts both directions down, as closing the last descriptor would; 1: something is unread, or
 * SO_LINGER set to nothing, for which that would reset the connection. */
int zc_zerocopy_finish(zc_engine *engine, uint32_t slot);
/* The caller may close its descriptor from here on; another one stays open for as long as sends
 * are in flight. */
int zc_zerocopy_take_over(zc_engine *engine, uint32_t slot);
/* Has the kernel give up on a peer that takes nothing for so long. */
int zc_linger(zc_engine *engine, uint32_t slot, uint32_t milliseconds);

/* Why a write that might have gone without a copy was copied, or a part of it. */
enum zc_fallback {
    ZC_FALLBACK_ROUTE = 1,      /* the kernel copies on this route anyway */
    ZC_FALLBACK_TRIAL = 2,      /* that isn't known yet, and one write is finding out */
    ZC_FALLBACK_LIMIT = 3,      /* too much is in flight */
    ZC_FALLBACK_ENOBUFS = 4,    /* the kernel's own limit */
    ZC_FALLBACK_UNSUPPORTED = 5 /* not with this kernel, socket or memory; or switched off */
};

int zc_zerocopy_fallback(zc_engine *engine, uint32_t slot, int reason); /* counts one */

/* orphans.c: a connection with sends in flight which nobody cares for any more.  Removes it
 * from the table; after zc_zerocopy_take_over.  For the process. */
int zc_orphan_adopt(zc_engine *engine, uint32_t slot);
int zc_orphans_reap(void); /* how many are left; those done go once all their tokens were taken */
int zc_orphans_take(uint64_t *token);

/* malloc_tune.c: for the whole process; -ENOSYS where malloc isn't glibc's. */
int zc_tune_malloc(int mmap_threshold, int trim_threshold);

/* probe.c: tries every feature once and fills ZC_CAPABILITY_COUNT records,
 * always in the same order.  Returns their number, or -EINVAL if capacity is
 * smaller.  Takes a few milliseconds at most and leaves nothing open. */
enum { ZC_CAPABILITY_COUNT = 19 };

typedef struct {
    char name[40]; /* NUL-terminated ASCII */
    int32_t ok;    /* 1: it works */
    int32_t err;   /* the errno that says why not; 0 when ok */
    int64_t value; /* a figure that goes with some names (bytes, sizes), else 0 */
} zc_capability;

int zc_probe(zc_capability *out, int capacity);

/* cdef: end */

_Static_assert(sizeof(zc_event) == 16, "Python decodes 16-byte records");

#endif
