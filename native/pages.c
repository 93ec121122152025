/* The page arena: address space that kernel pages are mapped into.
 *
 * Kernel facts.  TCP_ZEROCOPY_RECEIVE maps pages only into a mapping of a TCP socket, but
 * into one of any TCP socket: a mapping made from a socket that was never connected serves
 * every connection, and keeps that socket alive by itself, without a descriptor.  One made from
 * a live connection would keep it from sending its FIN.  A page stays allocated as long as
 * an address maps it; an address where nothing is mapped is SIGBUS.
 *
 * Rule: one range a process, cut into slices of consecutive pages.
 *
 *     free -> in use (leased, then held by views) -> waiting -> free
 *
 * A slice is in use while somebody holds a reference: the connection that maps into it, and
 * every view that was handed out.  At the last one its pages wait to be unmapped
 * ("zapped", MADV_DONTNEED), so that neighbours go in one call; at the latest when ZAP_BYTES
 * wait, or when the range is needed.  So no more than ZAP_BYTES of physical memory are ever held
 * back, and what is leased is empty.  Measured: 2 MiB of mapped pages take 80 microseconds in
 * one call and 155 in 32 calls; and mapping over pages that are still there costs nearly twice
 * what mapping over nothing does (256 KiB: 30 against 17), so they are never left for that.
 *
 * The free ranges: a record for each page of the arena, of which those of a range's first
 * and last page are in use (boundary tags), and lists by size in steps of an eighth (two-level
 * segregated fit), so that leasing and releasing take the same time however many slices
 * there are: half a microsecond for both, zapping included, with none and with 100,000 in use.
 * The record of a slice's first page is the slice: nothing is allocated.  Rejected:
 * a mapping for each slice (vm.max_map_count bounds them, and mmap costs more than all of this);
 * fixed sizes (a view of one page would keep the largest); a bitmap (a scan).
 *
 * Fork.  The child has a copy of the address space, with the same pages mapped, so views
 * go on to be readable there.  What its parent's connections had leased is of no use to it, and
 * might never be released; so it gives up the arena, except for what is in use, and opens
 * one of its own at its next lease.  Releasing an inherited slice empties it in the child
 * alone, and the last one unmaps the range.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pages_internal.h"

enum {
    ZAP_BYTES = 2 * 1024 * 1024,
    STEP_BITS = 3, /* sizes from one power of two to the next are told apart in 8 steps */
    STEPS = 1 << STEP_BITS,
    BINS = (32 - STEP_BITS + 1) * STEPS,
    LOOKS = 16 /* at ranges that may or may not be large enough */
};
static const uint32_t NONE = UINT32_MAX;

enum state { INSIDE = 0, FREE, IN_USE, WAITING };

typedef struct arena arena;

struct zc_slice {
    arena *arena;
    _Atomic uint32_t references;
    uint32_t state; /* of the range that begins here */
    uint32_t pages; /* in it */
    uint32_t first; /* page of the range that ends here */
    uint32_t previous, next; /* in its list */
};

struct arena {
    char *base;
    size_t bytes;
    size_t mapped; /* bytes of the mapping that holds this struct and the pages' records */
    bool inherited; /* of the parent process */
    uint32_t page_count, used_pages, waiting_pages, slices;
    uint32_t waiting;             /* first of the list */
    uint32_t bins[BINS];          /* first of each list of free ranges */
    uint64_t full_bins[BINS / 64 + 1]; /* which of them aren't empty */
    zc_slice pages[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static arena *current;       /* this process's */
static size_t wanted_bytes;  /* 0: zc_arena_open wasn't called */
static int open_error;       /* -errno of the attempt to open, which isn't repeated */
static struct { uint64_t leases, full, zaps, zapped_bytes; } counters;

static void watch_forks(void);

void zc_pages_lock(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
}

void zc_pages_unlock(void) { pthread_mutex_unlock(&lock); }

size_t zc_page_size(void) {
    static _Atomic size_t size;
    size_t known = atomic_load_explicit(&size, memory_order_relaxed);
    if (known == 0) {
        known = (size_t)sysconf(_SC_PAGESIZE);
        atomic_store_explicit(&size, known, memory_order_relaxed);
    }
    return known;
}

/* -- free ranges ---------------------------------------------------------------- */

/* The list of ranges of this size: exact below STEPS pages, then by eighths. */
static uint32_t bin_of(uint32_t pages) {
    if (pages < STEPS) {
        return pages;
    }
    uint32_t log = 31 - (uint32_t)__builtin_clz(pages);
    return (log - STEP_BITS + 1) * STEPS + ((pages >> (log - STEP_BITS)) & (STEPS - 1));
}

/* The first list all of whose ranges have at least this size. */
static uint32_t bin_from(uint32_t pages) {
    if (pages < STEPS) {
        return pages;
    }
    uint32_t log = 31 - (uint32_t)__builtin_clz(pages);
    uint64_t up = (uint64_t)pages + (1u << (log - STEP_BITS)) - 1;
    return up > UINT32_MAX ? BINS : bin_of((uint32_t)up);
}

static void push(arena *a, uint32_t *head, uint32_t page) {
    a->pages[page].previous = NONE;
    a->pages[page].next = *head;
    if (*head != NONE) {
        a->pages[*head].previous = page;
    }
    *head = page;
}

static void unlink_from(arena *a, uint32_t *head, uint32_t page) {
    const zc_slice *range = &a->pages[page];
    if (range->previous == NONE) {
        ZC_ASSERT(*head == page);
        *head = range->next;
    } else {
        a->pages[range->previous].next = range->next;
    }
    if (range->next != NONE) {
        a->pages[range->next].previous = range->previous;
    }
}

static void set_range(arena *a, uint32_t page, uint32_t pages, enum state state) {
    a->pages[page].state = state;
    a->pages[page].pages = pages;
    a->pages[page + pages - 1].first = page;
}

static void take_from_list(arena *a, uint32_t page) {
    zc_slice *range = &a->pages[page];
    if (range->state == WAITING) {
        unlink_from(a, &a->waiting, page);
        a->waiting_pages -= range->pages;
    } else {
        uint32_t bin = bin_of(range->pages);
        unlink_from(a, &a->bins[bin], page);
        if (a->bins[bin] == NONE) {
            a->full_bins[bin / 64] &= ~(1ull << bin % 64);
        }
    }
    range->state = INSIDE;
}

/* Put a range into the list of its state, together with its neighbours of that state. */
static void put(arena *a, uint32_t page, uint32_t pages, enum state state) {
    if (page > 0) {
        uint32_t before = a->pages[page - 1].first;
        if (a->pages[before].state == state) {
            take_from_list(a, before);
            pages += page - before;
            page = before;
        }
    }
    uint32_t after = page + pages;
    if (after < a->page_count && a->pages[after].state == state) {
        take_from_list(a, after);
        pages += a->pages[after].pages;
    }
    set_range(a, page, pages, state);
    if (state == WAITING) {
        push(a, &a->waiting, page);
        a->waiting_pages += pages;
    } else {
        uint32_t bin = bin_of(pages);
        push(a, &a->bins[bin], page);
        a->full_bins[bin / 64] |= 1ull << bin % 64;
    }
}

/* A free range of at least this many pages. */
static uint32_t find(const arena *a, uint32_t pages) {
    uint32_t bin = bin_from(pages);
    for (uint32_t word = bin / 64; word < sizeof a->full_bins / sizeof a->full_bins[0]; word++) {
        uint64_t bits = a->full_bins[word];
        if (word == bin / 64) {
            bits &= ~0ull << bin % 64;
        }
        if (bits != 0) {
            return a->bins[word * 64 + (uint32_t)__builtin_ctzll(bits)];
        }
    }
    /* The list before that has larger and smaller ones. */
    uint32_t page = a->bins[bin_of(pages)];
    for (int i = 0; i < LOOKS && page != NONE; i++) {
        if (a->pages[page].pages >= pages) {
            return page;
        }
        page = a->pages[page].next;
    }
    return NONE;
}

/* -- zapping --------------------------------------------------------------------- */

static void zap(arena *a, uint32_t page, uint32_t pages) {
    size_t bytes = pages * zc_page_size();
    /* Were it refused, the pages would stay mapped until others are mapped over them:
     * memory held back, and nothing worse, for no view reaches them. */
    if (madvise(a->base + page * zc_page_size(), bytes, MADV_DONTNEED) == 0) {
        counters.zaps++;
        counters.zapped_bytes += bytes;
    }
}

static void zap_waiting(arena *a) {
    while (a->waiting != NONE) {
        uint32_t page = a->waiting, pages = a->pages[page].pages;
        take_from_list(a, page);
        zap(a, page, pages);
        put(a, page, pages, FREE);
    }
}

/* -- the arena's life ------------------------------------------------------------ */

static void unmap(arena *a) {
    zc_room_unmap(a->base, a->bytes);
    zc_room_unmap((char *)a, a->mapped);
}

static char *map_range(size_t bytes) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 && errno == EAFNOSUPPORT) {
        fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    }
    if (fd < 0) {
        return MAP_FAILED;
    }
    char *base = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    int error = errno;
    close(fd); /* the mapping keeps the socket */
    errno = error;
    return base;
}

static int open_arena(void) {
    size_t page_count = wanted_bytes / zc_page_size();
    if (page_count == 0 || page_count >= NONE) {
        return page_count == 0 ? -EINVAL : -ENOMEM;
    }
    size_t mapped = sizeof(arena) + page_count * sizeof(zc_slice);
    arena *a = mmap(NULL, mapped, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (a == MAP_FAILED) {
        return -errno;
    }
    a->bytes = page_count * zc_page_size();
    a->base = map_range(a->bytes);
    if (a->base == MAP_FAILED) {
        int error = -errno;
        zc_room_unmap((char *)a, mapped);
        return error;
    }
    a->mapped = mapped;
    a->page_count = (uint32_t)page_count;
    a->waiting = NONE;
    for (uint32_t bin = 0; bin < BINS; bin++) {
        a->bins[bin] = NONE;
    }
    put(a, 0, a->page_count, FREE);
    current = a;
    return 0;
}

/* In a child: what is in use stays, all else is given up. */
static void give_up_inherited_arena(void) {
    arena *a = current;
    if (a != NULL) {
        a->inherited = true;
        for (uint32_t page = 0; page < a->page_count; page += a->pages[page].pages) {
            zc_slice *range = &a->pages[page];
            /* One whose last reference went in another thread as the process forked. */
            bool lost = range->state == IN_USE && atomic_load(&range->references) == 0;
            if (range->state == WAITING || lost) {
                zap(a, page, range->pages);
            }
            if (lost) {
                range->state = FREE;
                a->slices--;
            }
        }
        if (a->slices == 0) {
            unmap(a);
        }
        current = NULL;
    }
    counters.leases = counters.full = counters.zaps = counters.zapped_bytes = 0;
    open_error = 0;
}

static void after_fork_in_child(void) {
    give_up_inherited_arena();
    zc_pages_unlock();
}

static void watch_forks(void) {
    open_error = -pthread_atfork(zc_pages_lock, zc_pages_unlock, after_fork_in_child);
}

int zc_arena_open(size_t bytes) {
    zc_pages_lock();
    if (wanted_bytes == 0) {
        wanted_bytes = bytes;
    }
    if (current == NULL && open_error == 0) {
        open_error = open_arena();
    }
    int result = open_error;
    zc_pages_unlock();
    return result;
}

bool zc_arena_has(const char *from, size_t bytes) {
    return current != NULL && from >= current->base && bytes <= current->bytes &&
           (size_t)(from - current->base) <= current->bytes - bytes;
}

/* -- slices ---------------------------------------------------------------------- */

static zc_slice *lease(arena *a, uint32_t pages) {
    uint32_t page = find(a, pages);
    if (page == NONE && a->waiting != NONE) {
        zap_waiting(a);
        page = find(a, pages);
    }
    if (page == NONE) {
        counters.full++;
        return NULL;
    }
    zc_slice *slice = &a->pages[page];
    uint32_t rest = slice->pages - pages;
    take_from_list(a, page);
    set_range(a, page, pages, IN_USE);
    if (rest > 0) {
        put(a, page + pages, rest, FREE);
    }
    slice->arena = a;
    atomic_store(&slice->references, 1);
    a->used_pages += pages;
    a->slices++;
    counters.leases++;
    return slice;
}

zc_slice *zc_slice_lease(uint32_t pages) {
    if (pages == 0) {
        errno = EINVAL;
        return NULL;
    }
    zc_pages_lock();
    int error = wanted_bytes == 0 ? -ENODEV : open_error;
    if (error == 0 && current == NULL) {
        error = open_error = open_arena(); /* the first lease after a fork */
    }
    zc_slice *slice = error == 0 ? lease(current, pages) : NULL;
    zc_pages_unlock();
    if (slice == NULL) {
        errno = error == 0 ? ENOBUFS : -error;
    }
    return slice;
}

static uint32_t page_of(const zc_slice *slice) {
    return (uint32_t)(slice - slice->arena->pages);
}

char *zc_slice_base(const zc_slice *slice) {
    return slice->arena->base + page_of(slice) * zc_page_size();
}

size_t zc_slice_bytes(const zc_slice *slice) { return slice->pages * zc_page_size(); }

bool zc_slice_is_shared(const zc_slice *slice) { return atomic_load(&slice->references) > 1; }

void zc_slice_trim(zc_slice *slice, uint32_t pages) {
    if (pages == slice->pages) {
        return;
    }
    ZC_ASSERT(pages > 0 && pages < slice->pages);
    zc_pages_lock();
    arena *a = slice->arena;
    uint32_t page = page_of(slice), rest = slice->pages - pages;
    set_range(a, page, pages, IN_USE);
    put(a, page + pages, rest, FREE);
    a->used_pages -= rest;
    zc_pages_unlock();
}

zc_slice *zc_slice_split(zc_slice *slice, uint32_t pages) {
    if (pages == slice->pages) {
        return NULL;
    }
    ZC_ASSERT(pages > 0 && pages < slice->pages);
    zc_pages_lock();
    arena *a = slice->arena;
    uint32_t page = page_of(slice), rest = slice->pages - pages;
    set_range(a, page, pages, IN_USE);
    set_range(a, page + pages, rest, IN_USE);
    zc_slice *second = &a->pages[page + pages];
    second->arena = a;
    atomic_store(&second->references, 1);
    a->slices++;
    zc_pages_unlock();
    return second;
}

void zc_slice_return(zc_slice *slice) {
    ZC_ASSERT(!zc_slice_is_shared(slice));
    zc_pages_lock();
    arena *a = slice->arena;
    bool own = !a->inherited;
    if (own) {
        ZC_ASSERT(slice->state == IN_USE);
        atomic_store(&slice->references, 0);
        a->used_pages -= slice->pages;
        a->slices--;
        put(a, page_of(slice), slice->pages, FREE);
    }
    zc_pages_unlock();
    if (!own) {
        zc_slice_release(slice); /* the process has forked meanwhile */
    }
}

void zc_slice_hold(zc_slice *slice) {
    uint32_t before = atomic_fetch_add_explicit(&slice->references, 1, memory_order_relaxed);
    ZC_ASSERT(before > 0 && before < UINT32_MAX);
}

void zc_slice_release(zc_slice *slice) {
    uint32_t before = atomic_fetch_sub_explicit(&slice->references, 1, memory_order_acq_rel);
    ZC_ASSERT(before > 0);
    if (before > 1) {
        return;
    }
    zc_pages_lock();
    arena *a = slice->arena;
    ZC_ASSERT(slice->state == IN_USE);
    uint32_t page = page_of(slice), pages = slice->pages;
    a->used_pages -= pages;
    a->slices--;
    if (!a->inherited) {
        put(a, page, pages, WAITING);
        if (a->waiting_pages * zc_page_size() >= ZAP_BYTES) {
            zap_waiting(a);
        }
    } else if (a->slices > 0) {
        slice->state = FREE;
        zap(a, page, pages);
    } else {
        unmap(a);
    }
    zc_pages_unlock();
}

void zc_pages_counters(zc_pages_stats *out) {
    *out = (zc_pages_stats){0};
    zc_pages_lock();
    if (current != NULL) {
        out->arena_bytes = current->bytes;
        out->leased_bytes = current->used_pages * zc_page_size();
        out->waiting_bytes = current->waiting_pages * zc_page_size();
        out->slices = current->slices;
    }
    out->leases = counters.leases;
    out->full = counters.full;
    out->zaps = counters.zaps;
    out->zapped_bytes = counters.zapped_bytes;
    zc_memory_count(out);
    zc_pages_unlock();
}
