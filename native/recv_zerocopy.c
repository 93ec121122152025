/*
 * Receiving by mapping: the one place that calls TCP_ZEROCOPY_RECEIVE.
 *
 * Kernel facts: the call moves whole pages out of the receive queue to an
 * address inside any TCP mapping, then copies what follows and can't be mapped
 * into a small buffer (copybuf), and says how much more must be received the
 * ordinary way first (skip).  A page can be mapped only where a fragment is one
 * whole page of its own; a stream of anything else is walked through for nothing.
 *
 * Rules:
 *  - The size that waits is asked first (FIONREAD, a sixth of a microsecond).  Below a page
 *    there is nothing to map, and recv costs a microsecond less than this call.
 *    Above, it bounds the length and the copybuf: where a length ends before a mappable
 *    page, which may have come meanwhile, the call would copy that page's beginning, and
 *    nothing behind it could be mapped.
 *  - An error comes once and is gone from the socket, so it is kept (`deferred_error`) and
 *    reported when the queue, which may still hold bytes, has been emptied.
 *  - Nothing mapped, nothing copied: an end of stream, an urgent mark, an error.
 *    recv knows which, so the caller is told to use that.  (At an urgent mark
 *    this call would give nothing for ever.)
 *  - `inq` counts a FIN as one byte.  It only ever decides whether to look again.
 *
 * Rejected: TCP_CMSG_INQ instead of FIONREAD, which needs a recvmsg first; the
 * copybuf for messages below a page, measured 1 microsecond dearer than recv.
 */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

#include "engine_internal.h"
#include "recv_zerocopy.h"
#include "zerocopy_names.h"

enum { TLB_CLEAN_HINT = 1 };

/* The sizes that kernels have known, newest first. */
static const socklen_t SIZES[] = {64, 56, 40, 24, 16};
static _Atomic unsigned size_index; /* of the one that this kernel takes */

/* An unknown size is EINVAL, and so is an address that isn't ours, which can't be. */
static int call_kernel(int fd, struct zerocopy_receive *request, socklen_t *known) {
    const struct zerocopy_receive asked = *request;
    for (unsigned index = size_index;; index++) {
        *request = asked;
        *known = SIZES[index];
        if (getsockopt(fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, request, known) == 0) {
            size_index = index;
            return 0;
        }
        if (errno != EINVAL || index + 1 == sizeof SIZES / sizeof SIZES[0]) {
            return -errno;
        }
    }
}

static bool has(socklen_t known, size_t end_of_field) { return known >= end_of_field; }
#define HAS(known, field)                                                                          \
    has(known, offsetof(struct zerocopy_receive, field) +                                          \
                   sizeof(((struct zerocopy_receive *)0)->field))

static int refuse(zc_engine *engine, zc_conn *conn, int error) {
    switch (-error) {
    case ENOPROTOOPT: /* the option is missing, or forbidden: no connection will do better */
    case ENOSYS:
    case EPERM:
    case EACCES:
        engine->map.unsupported = -error;
        /* fall through */
    case EOPNOTSUPP: /* this kind of socket can't: MPTCP */
    case EINVAL:
        conn->map.policy = ZC_MAP_NEVER;
        zc_rare_stats(conn)->map_unsupported++;
        break;
    default: /* recv will say it, too */
        break;
    }
    return 0;
}

/*
 * Where the stream's pages begin.  They follow each other; a segment that was cut short moves
 * those behind it.  Facts: a segment begins with a page, and is queued whole.  So where
 * nothing is left, the next page begins at the next byte; where the call had to stop
 * at a page that it would have mapped, what it copied behind the last one is that page's beginning;
 * else the next page, if there is one, begins behind what no mapping can bring.
 */
static void note_phase(zc_conn *conn, const zc_map_request *ask, const zc_map_result *got) {
    uint64_t page = conn->stats.bytes_received;
    if (got->mapped < ask->length || conn->map.left == 0) {
        page += got->mapped + got->copied + got->skip;
    }
    conn->map.phase = (uint16_t)(page % ZC_PAGE);
}

size_t zc_page_offset(const zc_conn *conn) {
    if (conn->map.policy == ZC_MAP_NEVER) {
        return 0;
    }
    size_t offset = (size_t)((conn->stats.bytes_received - conn->map.phase) % ZC_PAGE);
    /* The segment that ended the last message may have been a short one, and a page begin here. */
    return offset > 0 && zc_conn_inq(conn) % ZC_PAGE == 0 ? 0 : offset;
}

size_t zc_conn_page_offset(const zc_engine *engine, uint32_t slot) {
    return zc_page_offset(zc_conn_live(engine, slot));
}

int zc_conn_map(zc_engine *engine, zc_conn *conn, const zc_map_request *ask, zc_map_result *got) {
    struct zerocopy_receive request = {
        .address = (uint64_t)(uintptr_t)ask->address,
        .length = (uint32_t)ask->length,
        .copybuf_address = (uint64_t)(uintptr_t)ask->copybuf,
        .copybuf_len = (int32_t)ask->copybuf_len,
        .flags = ask->clean ? TLB_CLEAN_HINT : 0,
    };
    socklen_t known;
    *got = (zc_map_result){0};
    zc_conn_stats *rare = zc_rare_stats(conn);
    rare->map_calls++;
    int error = call_kernel(conn->fd, &request, &known);
    if (error < 0) {
        return error == -EIO ? 0 : refuse(engine, conn, error); /* EIO: the end, recv says it too */
    }
    got->mapped = request.length;
    got->skip = request.recv_skip_hint;
    if (HAS(known, copybuf_len) && request.copybuf_len > 0) {
        got->copied = (size_t)request.copybuf_len;
    }
    if (HAS(known, err) && request.err != 0) {
        conn->deferred_error = request.err;
    }
    size_t count = got->mapped + got->copied;
    conn->map.left = HAS(known, inq) ? (int)request.inq : zc_conn_inq(conn);
    conn->ready = conn->map.left > 0 || conn->hup || conn->deferred_error != 0;
    note_phase(conn, ask, got);
    conn->stats.bytes_received += count;
    rare->bytes_mapped += got->mapped;
    rare->bytes_copybuf += got->copied;
    rare->map_unmappable += got->mapped == 0;
    conn->large = count >= ZC_LARGE;
    return count > 0;
}
