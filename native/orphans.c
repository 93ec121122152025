/*
 * Sends in flight that have outlived their connection's owner and its loop.
 *
 * Rule: the descriptor stays open and the memory held until the kernel has let
 * go, whoever is gone.  A connection that ends while its loop lives waits in
 * the engine's table for the completions (zcloop/linger.py); one that is left when the
 * loop is closed, or that the collector finds, comes here: a list of the whole
 * process, looked at whenever an engine is made or closed and whenever
 * another one comes.  The kernel itself bounds how long a silent peer can hold
 * on (TCP_USER_TIMEOUT, set before).
 * When the process ends nothing of this is given back, which is right: the
 * kernel keeps the pages, and nobody is left to write to them.
 *
 * Rejected: a thread that waits for them (it would have to take the interpreter's
 * lock while that is being finalised); disconnecting at once, which loses what
 * a plain socket would still deliver after its program has ended.
 *
 * Called with the interpreter's lock held, which is what guards the list.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#include "engine_internal.h"
#include "zerocopy_internal.h"

typedef struct orphan {
    struct orphan *next;
    zc_inflight *table;
    int fd;
    pid_t pid;
} orphan;

static orphan *orphans;

int zc_orphan_adopt(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    ZC_ASSERT(conn->inflight != NULL);
    orphan *one = malloc(sizeof *one);
    if (one == NULL) {
        return -ENOMEM;
    }
    *one = (orphan){.next = orphans, .pid = conn->zerocopy_pid};
    one->table = zc_zerocopy_detach(engine, slot, &one->fd);
    (void)zc_inflight_seal(one->table);
    orphans = one;
    (void)zc_conn_remove(engine, slot);
    return 0;
}

int zc_orphans_reap(void) {
    int left = 0;
    orphan **link = &orphans;
    while (*link != NULL) {
        orphan *one = *link;
        if (one->pid != getpid()) {
            zc_inflight_forget(one->table); /* see reap in send_zerocopy.c */
        } else if (zc_inflight_outstanding(one->table) > 0) {
            (void)zc_errqueue_reap(one->fd, one->table);
        }
        if (zc_inflight_idle(one->table)) {
            *link = one->next;
            zc_inflight_free(one->table);
            close(one->fd);
            free(one);
        } else {
            left++;
            link = &one->next;
        }
    }
    return left;
}

int zc_orphans_take(uint64_t *token) {
    for (orphan *one = orphans; one != NULL; one = one->next) {
        if (zc_inflight_take(one->table, token)) {
            return 1;
        }
    }
    return 0;
}
