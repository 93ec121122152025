/*
 * A receive window that doesn't cut segments short.
 *
 * Kernel facts: a sender that meets the edge of the receiver's window in the middle of a
 * segment sends the part before it.  Since Linux 6.10 it fills the rest up from what follows
 * (tcp_grow_skb), so all later segments begin elsewhere in the stream, and so do the pages
 * that a card puts them in: memory whose place is fixed can't take them any more.
 * A connection begins with a window of 64 KiB, which follows what the receiver reads.  Measured,
 * one that grows in time is seldom the limit; one that doesn't nearly always cuts.
 * SO_RCVLOWAT (tcp_set_rcvlowat, Linux 4.18) makes receive buffer and window large enough for
 * the mark at once, half of tcp_rmem's maximum at most, and never smaller again.  Unlike
 * SO_RCVBUF it doesn't lock the buffer, so that the kernel still adapts it, and it leaves one
 * that the program has locked alone.  Accepted sockets inherit the buffer.
 *
 * Rule: where contiguous memory is about to be mapped into, the mark is set to WINDOW and back.
 * Setting it back raises the edge of what came in between.  A connection that a listener makes in between
 * inherits the mark, with which it would hardly ever be readable: what is
 * accepted with another mark than 1 is given the listener's, whoever opened it: workers of several
 * processes may share a listener.  It is a bound only: memory is used where
 * the peer sends faster than the program reads.
 *
 * Rejected: TCP_WINDOW_CLAMP at a whole number of segments, since the edge moves with the
 * memory that waiting packets use, not with their payload; and doing this for every connection, or for
 * views of pages, which may begin anywhere in the stream.
 */
#define _GNU_SOURCE
#include <sys/socket.h>

#include "engine_internal.h"

enum { WINDOW = 4 * 1024 * 1024 }; /* four times the largest mark of a fill */

int zc_open_window(int fd) {
    int mark = WINDOW, before;
    socklen_t size = sizeof before;
    if (getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &before, &size) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &before, sizeof before) < 0) {
        return -errno;
    }
    return 0;
}

int zc_inherit_lowat(int fd, int listener) {
    int mark = 1;
    socklen_t size = sizeof mark;
    if (getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, &size) == 0 && mark == 1) {
        return 0;
    }
    if (getsockopt(listener, SOL_SOCKET, SO_RCVLOWAT, &mark, &size) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark) < 0) {
        return -errno;
    }
    return 0;
}

/* Once; a refusal costs pages, nothing else. */
int zc_conn_open_window(zc_engine *engine, uint32_t slot) {
    zc_conn *conn = zc_conn_live(engine, slot);
    if (conn->map.window_open || !zc_conn_may_map(engine, slot)) {
        return 0;
    }
    conn->map.window_open = true;
    (void)zc_open_window(conn->fd);
    return 1;
}
