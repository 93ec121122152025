/*
 * Corking: what one callback writes leaves in one segment.
 *
 * Rule: at most one connection is corked at a time, and only between the
 * poll that made a batch and the settle that ends it.  The bytes are copied
 * here, 16 KiB at most: copying that costs less than keeping track of it.
 * Rejected: TCP_CORK and MSG_MORE, which cost a system call to let go; a queue
 * in Python, which cost a quarter of the time of a whole small echo; flushing
 * at the end of the batch, where each answer waits for all other protocols.
 */
#define _GNU_SOURCE
#include <string.h>

#include "engine_internal.h"

/* True when nothing is corked any more. */
static bool flush(zc_engine *engine) {
    zc_corked *cork = &engine->cork;
    if (cork->slot == ZC_NO_SLOT) {
        return true;
    }
    if (cork->error != 0 || cork->sent > 0) {
        return false; /* tried before; the caller hasn't taken the rest yet */
    }
    int64_t sent = zc_send(engine, cork->slot, cork->data, cork->len);
    if (sent == (int64_t)cork->len) {
        cork->slot = ZC_NO_SLOT;
        return true;
    }
    if (sent < 0) {
        cork->error = (int)sent;
    } else {
        cork->sent = (size_t)sent;
    }
    return false;
}

int64_t zc_write(zc_engine *engine, uint32_t slot, const char *buf, size_t len) {
    zc_corked *cork = &engine->cork;
    if (len == 0) {
        return 0;
    }
    if (cork->slot == slot && cork->len + len <= ZC_CORK_MAX) {
        memcpy(cork->data + cork->len, buf, len);
        cork->len += len;
        return (int64_t)len;
    }
    if (!flush(engine)) {
        return -EBUSY;
    }
    if (!engine->batching || len > ZC_CORK_MAX) {
        return zc_send(engine, slot, buf, len);
    }
    (void)zc_conn_live(engine, slot);
    memcpy(cork->data, buf, len);
    cork->slot = slot;
    cork->len = len;
    cork->sent = 0;
    cork->error = 0;
    return (int64_t)len;
}

int zc_uncork(zc_engine *engine) { return flush(engine) ? 0 : -1; }

int64_t zc_cork_slot(const zc_engine *engine) {
    return engine->cork.slot == ZC_NO_SLOT ? -1 : (int64_t)engine->cork.slot;
}

int zc_cork_error(const zc_engine *engine) { return engine->cork.error; }

size_t zc_cork_take(zc_engine *engine, char *rest) {
    zc_corked *cork = &engine->cork;
    ZC_ASSERT(cork->slot != ZC_NO_SLOT);
    size_t left = cork->len - cork->sent;
    memcpy(rest, cork->data + cork->sent, left);
    cork->slot = ZC_NO_SLOT;
    return left;
}
