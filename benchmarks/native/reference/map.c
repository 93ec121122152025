/* Receiving by mapping: getsockopt(TCP_ZEROCOPY_RECEIVE).
 *
 * The range is mapped from a socket that is never connected, and serves any connection; mapped from
 * the connection itself it would pin it, and close() would send no FIN. One call does up to three
 * things, in stream order: maps whole pages at `address`, copies what follows them (or everything,
 * when little is there) into the copybuf, and says in recv_skip_hint how many bytes must be read by
 * recv() before mapping can go on.
 *
 * What has to be known about its answers:
 *  - `err` reports a reset once and consumes it: kept in receiver->error, and data that came with
 *    it counts. After that the call would say 0 and recv() 0, like a clean end.
 *  - EIO is the end of the stream, or an urgent mark with FIN somewhere behind it (`inq` counts up to
 *    the mark): recv() knows; with FIN behind data `inq` counts one byte too many.
 *  - nothing mapped, copied or to be skipped while inq > 0 (an urgent mark, or that phantom byte):
 *    only recv() gets past it.
 *  - every field is read again by the kernel: the struct is cleared before each call.
 *
 * The range is used from its start to its end and then given back with one madvise(), which is
 * cheaper than to let the kernel find mapped pages in the way; so TLB_CLEAN_HINT always holds.
 * Reading past what has been mapped is SIGBUS.
 */
#define _GNU_SOURCE
#include "zcref.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { OPTION_ZEROCOPY_RECEIVE = 35, TLB_CLEAN_HINT = 1 };

/* struct tcp_zerocopy_receive as of Linux 5.12; older headers have a shorter one. */
struct zerocopy_receive {
    uint64_t address;
    uint32_t length, recv_skip_hint, inq;
    int32_t err;
    uint64_t copybuf_address;
    int32_t copybuf_len;
    uint32_t flags;
    uint64_t msg_control, msg_controllen;
    uint32_t msg_flags, reserved;
};
_Static_assert(sizeof(struct zerocopy_receive) == 64, "the kernel's layout");

struct mapper {
    struct receiver *receiver;
    char *base;
    size_t bytes, used;  /* of the range; [0, used) is mapped, or was */
    size_t length;       /* most that one call maps */
    bool keep;
    char *scratch;       /* not keep: what is copied */
    size_t scratch_bytes;
    struct kept kept;    /* keep: what is copied */
};

static char *map_range(size_t bytes)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0)
        die_errno("socket");
    char *base = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        die_errno("mmap of a TCP socket");
    close(fd); /* the mapping holds it */
    if (madvise(base, bytes, MADV_DONTFORK) != 0)
        die_errno("MADV_DONTFORK");
    return base;
}

static void zap(struct mapper *mapper)
{
    if (mapper->used == 0)
        return;
    mapper->receiver->zap_calls++;
    if (madvise(mapper->base, mapper->used, MADV_DONTNEED) != 0)
        die_errno("MADV_DONTNEED");
    mapper->used = 0;
}

/* Where copied bytes go, with at least a byte of room. */
static char *copy_room(struct mapper *mapper, size_t *room)
{
    if (mapper->keep)
        return kept_room(&mapper->kept, room);
    *room = mapper->scratch_bytes;
    return mapper->scratch;
}

static void copied(struct mapper *mapper, const char *at, size_t n)
{
    if (mapper->keep)
        mapper->kept.used += n;
    receiver_take(mapper->receiver, at, n);
}

/* Reads n bytes that can't be mapped, or what of them is there. False: the stream has ended. */
static bool skip(struct mapper *mapper, size_t n)
{
    while (n > 0) {
        size_t room;
        char *to = copy_room(mapper, &room);
        long got = receiver_recv(mapper->receiver, to, room < n ? room : n);
        if (got < 0)
            return false;
        if (got == 0)
            return true;
        copied(mapper, to, (size_t)got);
        n -= (size_t)got;
    }
    return true;
}

/* 0, or the errno of the call itself. */
static int call(struct mapper *mapper, struct zerocopy_receive *zc, char *copybuf, size_t room)
{
    size_t left = mapper->bytes - mapper->used;
    memset(zc, 0, sizeof *zc);
    zc->address = (uint64_t)(uintptr_t)(mapper->base + mapper->used);
    zc->length = (uint32_t)(left < mapper->length ? left : mapper->length);
    zc->copybuf_address = (uint64_t)(uintptr_t)copybuf;
    zc->copybuf_len = (int32_t)room;
    zc->flags = TLB_CLEAN_HINT;
    socklen_t size = sizeof *zc;
    mapper->receiver->map_calls++;
    if (getsockopt(mapper->receiver->fd, IPPROTO_TCP, OPTION_ZEROCOPY_RECEIVE, zc, &size) != 0)
        return errno;
    if (size < sizeof *zc)
        die("this kernel's TCP_ZEROCOPY_RECEIVE is too old: %u bytes", (unsigned)size);
    return 0;
}

/* One call and what it asks for. True: there may be more without waiting; *ended says the rest. */
static bool step(struct mapper *mapper, bool *ended)
{
    struct receiver *receiver = mapper->receiver;
    struct zerocopy_receive zc;
    size_t room;
    char *copybuf = copy_room(mapper, &room);
    if (room > receiver->options->copybuf)
        room = receiver->options->copybuf;
    int failed = call(mapper, &zc, copybuf, room);
    if (failed == EIO) {
        *ended = !skip(mapper, PAGE);
        return !*ended;
    }
    if (failed || zc.copybuf_len < 0) {
        errno = failed ? failed : -zc.copybuf_len;
        die_errno("TCP_ZEROCOPY_RECEIVE");
    }
    if (zc.length > 0) {
        receiver->mapped += zc.length;
        receiver_take(receiver, mapper->base + mapper->used, zc.length);
        mapper->used += zc.length;
        if (mapper->used == mapper->bytes && !mapper->keep)
            zap(mapper);
    }
    if (zc.copybuf_len > 0) {
        receiver->copied_by_call += (uint64_t)zc.copybuf_len;
        copied(mapper, copybuf, (size_t)zc.copybuf_len);
    }
    if (zc.err != 0) {
        receiver->error = -zc.err;
        *ended = true;
        return false;
    }
    bool nothing = zc.length == 0 && zc.copybuf_len == 0;
    size_t due = zc.recv_skip_hint;
    if (nothing && due == 0 && zc.inq > 0)
        due = PAGE;
    if (due > 0)
        *ended = !skip(mapper, due);
    return !*ended && zc.inq > 0;
}

void receive_mapped(struct receiver *receiver, bool keep)
{
    const struct options *options = receiver->options;
    struct mapper mapper = {
        .receiver = receiver, .keep = keep, .length = options->size / PAGE * PAGE,
        .scratch_bytes = options->size,
    };
    mapper.bytes = keep ? options->bytes + PAGE : options->arena;
    mapper.bytes = (mapper.bytes + PAGE - 1) / PAGE * PAGE;
    if (mapper.length == 0 || mapper.bytes < mapper.length)
        die("map: --size is at least a page, --arena at least --size");
    mapper.base = map_range(mapper.bytes);
    mapper.scratch = allocate(mapper.scratch_bytes);
    mapper.kept.block_bytes = 1 << 20;
    for (bool ended = false; !ended;)
        if (!step(&mapper, &ended) && !ended)
            receiver_wait(receiver);
    moment_now(&receiver->end);
    zap(&mapper);
    if (keep)
        kept_release(&mapper.kept);
    munmap(mapper.base, mapper.bytes);
}
