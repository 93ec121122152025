/* Accepting: as many as wait, up to a bound, each a record. */
#define _GNU_SOURCE
#include <sys/socket.h>

#include "engine_internal.h"

/* Errors of one connection that died before it was accepted, not of the
 * listener (accept(2), "Error handling"). */
static bool is_transient(int error) {
    switch (error) {
    case EINTR:
    case ECONNABORTED:
    case EPROTO:
    case ENETDOWN:
    case ENOPROTOOPT:
    case EHOSTDOWN:
    case ENONET:
    case EHOSTUNREACH:
    case ENETUNREACH:
        return true;
    default:
        return false;
    }
}

void zc_accept_some(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    for (int i = 0; i < ZC_MAX_ACCEPTS; i++) {
        int fd = accept4(conn->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            engine->stats.accepts++;
            zc_emit(engine, slot, ZC_ACCEPTED, fd, 0);
            continue;
        }
        if (errno == EAGAIN) {
            return;
        }
        if (is_transient(errno)) {
            continue;
        }
        engine->stats.accept_errors++;
        zc_emit(engine, slot, ZC_ERROR, -errno, 0);
        return;
    }
}
