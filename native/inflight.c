/*
 * The table of a connection's zero-copy sends that the kernel hasn't let go of.
 *
 * Kernel fact: each successful send with MSG_ZEROCOPY gets the socket's next
 * 32-bit id, which wraps; a failed one gets none.  Notices are ranges of ids
 * [lo, hi] that may wrap too (lo > hi), come in any order and cover parts of
 * what one write needed several sends for.
 * Rule: a write is done when it was sealed (no send of it will follow) and each
 * of its sends was reported.  Not a byte earlier: memory that is freed or
 * overwritten before goes out wrong.
 *
 * Two rings.  `sends` has one entry an id, found by the id's low bits, so that a
 * range costs a step for each id in it and each id is reported once: constant
 * time a send.  `writes` has one entry a write, and the done ones are chained in
 * it until they are taken.  Differences of ids and serials are taken modulo 2^32,
 * never their order.  Both rings double up to ZC_INFLIGHT_MAX entries.
 *
 * Rejected: a list of ranges, merged as they come (what a peer that acknowledges
 * out of order makes of it is a linear search); `for (id = lo; id <= hi; id++)`,
 * which never ends at hi = 2^32 - 1; one counter of completed sends, which
 * takes the end of the second send for the end of the first.
 *
 * Knows no socket and no Python: a token is whatever the caller wants back.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "zc_assert.h"
#include "zerocopy_internal.h"

enum { FIRST_CAPACITY = 16 };
_Static_assert((ZC_INFLIGHT_MAX & (ZC_INFLIGHT_MAX - 1)) == 0, "rings are indexed by low bits");

typedef struct {
    uint32_t write; /* serial of the write that it is a part of */
    uint32_t bytes;
    bool reported;
} send_entry;

typedef struct {
    uint64_t token;
    uint32_t pending;   /* sends not reported */
    uint32_t next_done; /* serial, while on the chain */
    bool sealed;
    bool taken;
} write_entry;

struct zc_inflight {
    send_entry *sends; /* ids [first_id, next_id) */
    uint32_t send_capacity, first_id, next_id;
    write_entry *writes; /* serials [first_write, next_write) */
    uint32_t write_capacity, first_write, next_write;
    uint32_t done_head, done_tail, done_count;
    bool open; /* the newest write may get more sends */
    uint32_t outstanding;
    size_t pinned;
    uint64_t reported, copied;
};

static send_entry *send_at(const zc_inflight *table, uint32_t id) {
    return &table->sends[id & (table->send_capacity - 1)];
}

static write_entry *write_at(const zc_inflight *table, uint32_t serial) {
    return &table->writes[serial & (table->write_capacity - 1)];
}

zc_inflight *zc_inflight_new(uint32_t first_id) {
    zc_inflight *table = calloc(1, sizeof *table);
    if (table == NULL) {
        return NULL;
    }
    table->sends = calloc(FIRST_CAPACITY, sizeof *table->sends);
    table->writes = calloc(FIRST_CAPACITY, sizeof *table->writes);
    table->send_capacity = table->write_capacity = FIRST_CAPACITY;
    table->first_id = table->next_id = first_id;
    if (table->sends == NULL || table->writes == NULL) {
        free(table->sends);
        free(table->writes);
        free(table);
        return NULL;
    }
    return table;
}

void zc_inflight_free(zc_inflight *table) {
    ZC_ASSERT(zc_inflight_idle(table));
    free(table->sends);
    free(table->writes);
    free(table);
}

static int grow_sends(zc_inflight *table) {
    uint32_t capacity = table->send_capacity * 2;
    if (capacity > ZC_INFLIGHT_MAX) {
        return -ENOBUFS;
    }
    send_entry *sends = calloc(capacity, sizeof *sends);
    if (sends == NULL) {
        return -ENOMEM;
    }
    for (uint32_t id = table->first_id; id != table->next_id; id++) {
        sends[id & (capacity - 1)] = *send_at(table, id);
    }
    free(table->sends);
    table->sends = sends;
    table->send_capacity = capacity;
    return 0;
}

static int grow_writes(zc_inflight *table) {
    uint32_t capacity = table->write_capacity * 2;
    if (capacity > ZC_INFLIGHT_MAX) {
        return -ENOBUFS;
    }
    write_entry *writes = calloc(capacity, sizeof *writes);
    if (writes == NULL) {
        return -ENOMEM;
    }
    for (uint32_t serial = table->first_write; serial != table->next_write; serial++) {
        writes[serial & (capacity - 1)] = *write_at(table, serial);
    }
    free(table->writes);
    table->writes = writes;
    table->write_capacity = capacity;
    return 0;
}

int zc_inflight_reserve(zc_inflight *table) {
    if (table->next_id - table->first_id == table->send_capacity) {
        int error = grow_sends(table);
        if (error < 0) {
            return error;
        }
    }
    if (!table->open && table->next_write - table->first_write == table->write_capacity) {
        return grow_writes(table);
    }
    return 0;
}

void zc_inflight_sent(zc_inflight *table, size_t bytes, uint64_t token) {
    ZC_ASSERT(table->next_id - table->first_id < table->send_capacity);
    ZC_ASSERT(bytes <= UINT32_MAX); /* a send takes INT_MAX at most */
    if (!table->open) {
        ZC_ASSERT(table->next_write - table->first_write < table->write_capacity);
        *write_at(table, table->next_write++) = (write_entry){.token = token};
        table->open = true;
    }
    uint32_t serial = table->next_write - 1;
    write_entry *write = write_at(table, serial);
    ZC_ASSERT(write->token == token); /* writes are sent one after the other */
    write->pending++;
    *send_at(table, table->next_id++) = (send_entry){.write = serial, .bytes = (uint32_t)bytes};
    table->outstanding++;
    table->pinned += bytes;
}

static void chain_done(zc_inflight *table, uint32_t serial) {
    if (table->done_count++ == 0) {
        table->done_head = serial;
    } else {
        write_at(table, table->done_tail)->next_done = serial;
    }
    table->done_tail = serial;
}

int zc_inflight_seal(zc_inflight *table) {
    if (!table->open) {
        return -ENOENT;
    }
    uint32_t serial = table->next_write - 1;
    write_entry *write = write_at(table, serial);
    write->sealed = true;
    table->open = false;
    if (write->pending > 0) {
        return 1;
    }
    chain_done(table, serial);
    return 0;
}

static void report_one(zc_inflight *table, uint32_t id) {
    send_entry *send = send_at(table, id);
    if (send->reported) {
        return;
    }
    send->reported = true;
    table->outstanding--;
    table->pinned -= send->bytes;
    write_entry *write = write_at(table, send->write);
    ZC_ASSERT(write->pending > 0);
    if (--write->pending == 0 && write->sealed) {
        chain_done(table, send->write);
    }
}

int zc_inflight_report(zc_inflight *table, uint32_t lo, uint32_t hi, bool copied) {
    uint32_t count = hi - lo + 1;
    uint32_t offset = lo - table->first_id, window = table->next_id - table->first_id;
    if (count == 0 || offset >= window || count > window - offset) {
        return -EPROTO;
    }
    uint32_t before = table->outstanding;
    for (uint32_t i = 0; i < count; i++) {
        report_one(table, lo + i);
    }
    uint32_t news = before - table->outstanding;
    table->reported += news;
    table->copied += copied ? news : 0;
    while (table->first_id != table->next_id && send_at(table, table->first_id)->reported) {
        table->first_id++;
    }
    return 0;
}

void zc_inflight_forget(zc_inflight *table) {
    (void)zc_inflight_seal(table);
    for (uint32_t id = table->first_id; id != table->next_id; id++) {
        report_one(table, id);
    }
    table->first_id = table->next_id;
}

int zc_inflight_take(zc_inflight *table, uint64_t *token) {
    if (table->done_count == 0) {
        return 0;
    }
    write_entry *write = write_at(table, table->done_head);
    *token = write->token;
    write->taken = true;
    table->done_head = write->next_done;
    table->done_count--;
    while (table->first_write != table->next_write && write_at(table, table->first_write)->taken) {
        table->first_write++;
    }
    return 1;
}

uint64_t zc_inflight_open(const zc_inflight *table) {
    return table->open ? write_at(table, table->next_write - 1)->token : 0;
}

uint32_t zc_inflight_outstanding(const zc_inflight *table) { return table->outstanding; }

size_t zc_inflight_pinned(const zc_inflight *table) { return table->pinned; }

bool zc_inflight_idle(const zc_inflight *table) {
    return table->first_write == table->next_write;
}

uint64_t zc_inflight_reported(const zc_inflight *table) { return table->reported; }

uint64_t zc_inflight_copied(const zc_inflight *table) { return table->copied; }
