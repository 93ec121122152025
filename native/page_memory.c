/* Page memory: contiguous memory of the receiver's own, into which mapped pages are moved.
 *
 * Kernel facts.  TCP_ZEROCOPY_RECEIVE maps only into a TCP mapping, where an address that
 * nothing was mapped to is SIGBUS and nothing can be written.  mremap moves a range of
 * pages over another one in one step under the lock of the address space: a thread that
 * reads there meanwhile waits.  With MREMAP_DONTUNMAP (any mapping: Linux 5.13) the range that
 * they came from stays mapped, and empty.
 *
 * Rule: pages are mapped into a slice of the arena first, and then moved.  So the memory can
 * be read at any time, and what isn't a whole page is copied into the anonymous memory between.
 *
 * Measured (Linux 6.18, loopback, all pages mappable), CPU microseconds of the calling thread:
 *
 *                                              16 KiB   64 KiB   256 KiB   1 MiB
 *     the mapping call itself                     3.4      8.2        17      47
 *     moving, onto memory never touched           7.0      8.2        12      15
 *     moving, onto pages moved there before       6.5       11        20      49
 *     in place: TCP mapping put there first       6.4      7.1        11      13
 *     moving without DONTUNMAP, mapping anew       12       13        18      23
 *     copying into memory never touched            10       40       155     579
 *     copying into warm memory                    1.3      3.0        17      91
 *
 * (The third row is mostly the unmapping of the old pages, which somebody pays for in any case.)
 * So mapping in place would spare next to nothing, and is rejected: a thread that reads there
 * before the pages come, or where none came, would die of SIGBUS.  Rejected, too, for kernels
 * without MREMAP_DONTUNMAP: moving and mapping the arena's range anew.  If that fails there is
 * a hole, and another thread's mapping may land in it; they copy instead (-EOPNOTSUPP).
 *
 * Adopting splits the mapping, by at most two for each call, and TCP mappings never merge
 * (VM_MIXEDMAP); vm.max_map_count bounds the process.  So the borders of mappings are kept
 * count of, and half of what the system allows is left to others.  Where others have used that
 * up, pages are copied, not moved; and where adopted ones are to be written to, a copy takes the
 * place of the whole mapping that they are in, which leaves as many mappings as
 * there were, and needs more only for the moment: the reserve (map_room.c).
 * Rejected: a copy of the whole memory.  Another thread's loop may be receiving into a part of it.
 *
 * When mremap fails the pages are where they were.  The kernel looks for room for more mappings
 * before it touches anything, but one error comes after it has removed what lay at the
 * destination: no memory for its own records.  Then fresh memory is put there at once, unless
 * the place is still taken (MAP_FIXED_NOREPLACE), so that no other thread's mapping lands in it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "pages_internal.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

enum {
    ADOPTED = 1, /* this page is the kernel's: read-only */
    BORDER = 2   /* a mapping ends before this page */
};

struct zc_memory {
    char *base;
    size_t bytes, page_count;
    _Atomic uint32_t references;
    _Atomic bool exact;
    _Atomic size_t adopted; /* pages */
    size_t borders;
    size_t origin, used;
    uint8_t *flags; /* of each page; NULL until pages are adopted */
};

static struct {
    uint64_t memories, bytes, adoptions, adopted_bytes, refused, splits, copied_out;
} counters;

static uint64_t max_splits(void) {
    static uint64_t limit;
    if (limit == 0) {
        unsigned long system = 65530; /* the kernel's default */
        FILE *file = fopen("/proc/sys/vm/max_map_count", "re");
        if (file != NULL) {
            if (fscanf(file, "%lu", &system) != 1) {
                system = 65530;
            }
            fclose(file);
        }
        limit = system / 2;
    }
    return limit;
}

static char *map_anonymous(char *at, size_t bytes, int flags) {
    return mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

/* -- life -------------------------------------------------------------------------- */

zc_memory *zc_memory_new(size_t bytes) {
    size_t page = zc_page_size();
    if (bytes == 0 || bytes > SIZE_MAX - page) {
        errno = bytes == 0 ? EINVAL : ENOMEM;
        return NULL;
    }
    zc_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL) {
        return NULL;
    }
    memory->bytes = bytes;
    memory->page_count = (bytes + page - 1) / page;
    memory->base = map_anonymous(NULL, memory->page_count * page, 0);
    if (memory->base == MAP_FAILED) {
        int error = errno;
        free(memory);
        errno = error;
        return NULL;
    }
    atomic_store(&memory->references, 1);
    zc_pages_lock();
    zc_room_retry();
    counters.memories++;
    counters.bytes += bytes;
    zc_pages_unlock();
    return memory;
}

char *zc_memory_base(const zc_memory *memory) { return memory->base; }

size_t zc_memory_bytes(const zc_memory *memory) { return memory->bytes; }

void zc_memory_set_exact(zc_memory *memory, bool exact) { memory->exact = exact; }

bool zc_memory_exact(const zc_memory *memory) { return memory->exact; }

bool zc_memory_has_pages(const zc_memory *memory) { return atomic_load(&memory->adopted) > 0; }

size_t zc_memory_used(const zc_memory *memory) { return memory->used; }

void zc_memory_note_used(zc_memory *memory, size_t end) {
    if (end > memory->used) {
        memory->used = end;
    }
}

void zc_memory_set_origin(zc_memory *memory, size_t origin) { memory->origin = origin; }

size_t zc_memory_origin(const zc_memory *memory) { return memory->origin; }

void zc_memory_hold(zc_memory *memory) {
    uint32_t before = atomic_fetch_add_explicit(&memory->references, 1, memory_order_relaxed);
    ZC_ASSERT(before > 0 && before < UINT32_MAX);
}

void zc_memory_release(zc_memory *memory) {
    uint32_t before = atomic_fetch_sub_explicit(&memory->references, 1, memory_order_acq_rel);
    ZC_ASSERT(before > 0);
    if (before > 1) {
        return;
    }
    zc_pages_lock();
    zc_room_unmap(memory->base, memory->page_count * zc_page_size());
    zc_room_retry();
    counters.memories--;
    counters.bytes -= memory->bytes;
    counters.splits -= memory->borders;
    zc_pages_unlock();
    free(memory->flags);
    free(memory);
}

void zc_memory_count(zc_pages_stats *out) {
    out->memories = counters.memories;
    out->memory_bytes = counters.bytes;
    out->adoptions = counters.adoptions;
    out->adopted_bytes = counters.adopted_bytes;
    out->adoptions_refused = counters.refused;
    out->splits = counters.splits;
    out->copied_out = counters.copied_out;
    out->unmap_waiting_bytes = zc_room_waiting();
}

/* -- what lies where; under the lock -------------------------------------------------- */

/* One mapping now covers [page, end), with a border on either side of it. */
static void note_mapping(zc_memory *memory, size_t page, size_t end, uint8_t adopted) {
    size_t borders = memory->borders, pages = memory->adopted;
    for (size_t i = page; i < end; i++) {
        borders -= (memory->flags[i] & BORDER) != 0;
        pages -= (memory->flags[i] & ADOPTED) != 0;
    }
    memset(memory->flags + page, adopted, end - page);
    if (page > 0) {
        memory->flags[page] |= BORDER;
        borders++;
    }
    if (end < memory->page_count && !(memory->flags[end] & BORDER)) {
        memory->flags[end] |= BORDER;
        borders++;
    }
    counters.splits += borders - memory->borders; /* modulo 2^64 where they get fewer */
    memory->borders = borders;
    memory->adopted = pages + (adopted ? end - page : 0);
}

/* After a failure the range is mapped for certain; true: with fresh memory. */
static bool put_memory_back(char *at, size_t bytes) {
    char *filled = map_anonymous(at, bytes, MAP_FIXED_NOREPLACE);
    if (filled == MAP_FAILED && errno == ENOMEM && msync(at, bytes, MS_ASYNC) != 0) {
        zc_room_open();
        filled = map_anonymous(at, bytes, MAP_FIXED_NOREPLACE);
        ZC_ASSERT(filled == at);
        zc_room_take();
    }
    ZC_ASSERT(filled == at || (filled == MAP_FAILED && (errno == EEXIST || errno == ENOMEM)));
    return filled == at;
}

/* -- adopting -------------------------------------------------------------------------- */

static int adopt(zc_memory *memory, size_t at, char *from, size_t bytes) {
    static bool unsupported;
    size_t page = zc_page_size();
    if (unsupported) {
        return -EOPNOTSUPP;
    }
    if (memory->flags == NULL) {
        memory->flags = calloc(memory->page_count, 1);
        if (memory->flags == NULL) {
            return -ENOMEM;
        }
    }
    zc_room_take(); /* before it is needed; next to nothing where it is taken already */
    if (counters.splits + 2 > max_splits()) {
        return -ENOSPC;
    }
    if (mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP,
               memory->base + at) == MAP_FAILED) {
        int error = errno;
        unsupported = error == EINVAL; /* all else that it could mean was ruled out */
        (void)put_memory_back(memory->base + at, bytes);
        return unsupported ? -EOPNOTSUPP : -error;
    }
    note_mapping(memory, at / page, (at + bytes) / page, ADOPTED);
    counters.adoptions++;
    counters.adopted_bytes += bytes;
    return 0;
}

int zc_memory_adopt(zc_memory *memory, size_t at, char *from, size_t bytes) {
    size_t offset = zc_page_size() - 1;
    if (bytes == 0 || ((at | bytes | (uintptr_t)from) & offset) != 0 || at > memory->bytes ||
        bytes > memory->bytes - at) {
        return -EINVAL;
    }
    zc_pages_lock();
    int rc = -EINVAL;
    if (zc_arena_has(from, bytes)) {
        rc = adopt(memory, at, from, bytes);
        counters.refused += rc != 0;
    }
    zc_pages_unlock();
    return rc;
}

const char *zc_no_room_text(void) {
    return "no room for received bytes: the process has as many memory mappings as "
           "vm.max_map_count allows (raise it with sysctl), or has reached a limit on its address "
           "space or memory";
}

/* -- writable again -------------------------------------------------------------------- */

/* Pages of which something is to be kept: a copy of them takes their place in one step. */
static int copy_pages(zc_memory *memory, size_t page, size_t end) {
    size_t size = zc_page_size(), bytes = (end - page) * size;
    char *target = memory->base + page * size;
    char *copy = map_anonymous(NULL, bytes, 0);
    if (copy == MAP_FAILED) {
        return -errno;
    }
    memcpy(copy, target, bytes);
    if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, target) == MAP_FAILED) {
        int error = -errno;
        if (put_memory_back(target, bytes)) {
            memcpy(target, copy, bytes);
        }
        zc_room_unmap(copy, bytes);
        return error;
    }
    note_mapping(memory, page, end, 0);
    return 0;
}

static int replace(zc_memory *memory, size_t page, size_t end) {
    size_t size = zc_page_size();
    char *at = memory->base + page * size;
    if (map_anonymous(at, (end - page) * size, MAP_FIXED) == MAP_FAILED) {
        int error = -errno;
        (void)put_memory_back(at, (end - page) * size);
        return error;
    }
    note_mapping(memory, page, end, 0);
    return 0;
}

/* Whole pages: each run of adopted ones, in as few mappings as that takes. */
static int replace_adopted(zc_memory *memory, size_t page, size_t end) {
    int rc = 0;
    while (rc == 0 && page < end) {
        if (!(memory->flags[page] & ADOPTED)) {
            page++;
            continue;
        }
        size_t first = page;
        while (page < end && memory->flags[page] & ADOPTED) {
            page++;
        }
        rc = replace(memory, first, page);
    }
    return rc;
}

static int writable(zc_memory *memory, size_t at, size_t bytes) {
    size_t size = zc_page_size();
    size_t page = at / size, end = (at + bytes + size - 1) / size;
    int rc = 0;
    if (at % size != 0) {
        if (memory->flags[page] & ADOPTED) {
            rc = copy_pages(memory, page, page + 1);
        }
        page++;
    }
    if (rc == 0 && page < end && (at + bytes) % size != 0 && at + bytes < memory->bytes) {
        end--;
        if (memory->flags[end] & ADOPTED) {
            rc = copy_pages(memory, end, end + 1);
        }
    }
    return rc == 0 ? replace_adopted(memory, page, end) : rc;
}

/* Without room for more mappings: each that holds adopted pages of the range, as a whole. */
static int copy_mappings(zc_memory *memory, size_t at, size_t bytes) {
    size_t size = zc_page_size();
    size_t page = at / size, end = (at + bytes + size - 1) / size;
    const uint8_t *flags = memory->flags;
    int rc = 0;
    while (rc == 0 && page < end) {
        if (!(flags[page] & ADOPTED)) {
            page++;
            continue;
        }
        size_t first = page;
        while (first > 0 && !(flags[first] & BORDER)) {
            first--;
        }
        do {
            page++;
        } while (page < memory->page_count && flags[page] == ADOPTED);
        rc = copy_pages(memory, first, page);
        counters.copied_out += rc == 0;
    }
    return rc;
}

int zc_memory_writable(zc_memory *memory, size_t at, size_t bytes) {
    if (at > memory->bytes || bytes > memory->bytes - at) {
        return -EINVAL;
    }
    if (bytes == 0 || atomic_load(&memory->adopted) == 0) {
        return 0;
    }
    zc_pages_lock();
    int rc = writable(memory, at, bytes);
    if (rc < 0) {
        zc_room_open();
        rc = copy_mappings(memory, at, bytes);
        zc_room_take();
    }
    zc_pages_unlock();
    return rc < 0 ? -ZC_NO_ROOM : 0;
}
