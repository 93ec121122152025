/* What the native files of sending without copying share; not part of the interface. */
#ifndef ZC_ZEROCOPY_INTERNAL_H
#define ZC_ZEROCOPY_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "zerocopy_names.h"

enum {
    ZC_INFLIGHT_MAX = 1024,              /* sends outstanding, a connection */
    ZC_INFLIGHT_PINNED_MAX = 32u << 20,  /* bytes pinned from which sends copy, a connection */
    ZC_ENGINE_INFLIGHT_MAX = 32 * 1024,  /* the same for all connections of an engine */
    ZC_ENGINE_PINNED_MAX = 512u << 20
};

/* inflight.c: see there. */
typedef struct zc_inflight zc_inflight;

zc_inflight *zc_inflight_new(uint32_t first_id); /* NULL: out of memory */
void zc_inflight_free(zc_inflight *table);       /* which must be idle */
/* Room for one more send: 0, -ENOBUFS at the bound, -ENOMEM. */
int zc_inflight_reserve(zc_inflight *table);
/* The kernel took `bytes` of the write `token` and gave the send the next id.  Reserved before. */
void zc_inflight_sent(zc_inflight *table, size_t bytes, uint64_t token);
/* The open write is whole: 1 it is still in flight, 0 it is done, -ENOENT none is open. */
int zc_inflight_seal(zc_inflight *table);
/* The kernel has let go of the sends lo to hi; -EPROTO: not ids that are outstanding. */
int zc_inflight_report(zc_inflight *table, uint32_t lo, uint32_t hi, bool copied);
/* Nobody reads the memory any more: every write is done. */
void zc_inflight_forget(zc_inflight *table);
/* Moves out one write that is done: 1, or 0 when there is none. */
int zc_inflight_take(zc_inflight *table, uint64_t *token);
uint64_t zc_inflight_open(const zc_inflight *table); /* the open write's token, 0: none */
uint32_t zc_inflight_outstanding(const zc_inflight *table); /* sends */
size_t zc_inflight_pinned(const zc_inflight *table);        /* bytes of these */
bool zc_inflight_idle(const zc_inflight *table); /* nothing outstanding, open or to be taken */
/* Sends reported so far, and those of them that were copied. */
uint64_t zc_inflight_reported(const zc_inflight *table);
uint64_t zc_inflight_copied(const zc_inflight *table);

/* errqueue.c: see there. */
typedef struct {
    uint32_t lo, hi;
    bool copied;
} zc_notice;

/* The zero-copy notices among a control buffer's messages; returns how many, at most capacity. */
int zc_errqueue_parse(const void *control, size_t len, zc_notice *notices, int capacity);
/* Empties a socket's error queue into the table; how many notices there were. */
int zc_errqueue_reap(int fd, zc_inflight *table);

#endif
