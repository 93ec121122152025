/*
 * Room for mappings, where a process has as many as the system allows it (vm.max_map_count).
 *
 * Kernel facts.  At the limit mmap and mremap fail, also where they would leave fewer mappings
 * than there were; mremap already five before it.  munmap fails where it would split a
 * mapping in two, and neighbouring anonymous mappings are one.  What always works:
 * unmapping whole mappings, and joining neighbours.
 * Rule: a reserve of mappings is kept, pages of address space with alternating
 * protection, so that none joins its neighbour.  Given one protection they are one
 * mapping, which leaves room for what must be done now (page_memory.c: a copy in place of
 * a mapping); then the reserve is taken again, as far as it can be had.  Its address range is
 * ours all the time, and takes no memory.
 * Rule: what can't be unmapped stays ours, emptied, and is unmapped when that is possible.
 *
 * Rejected: munmap for giving the reserve up and mmap for taking it, as another thread's mapping
 * may land there in between; counting the process's mappings, which changes under us.
 *
 * All under the lock of pages.c.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>

#include "pages_internal.h"

enum { RESERVE = 32 }; /* mappings: for ours, and some of other threads in that moment */

typedef struct stuck {
    struct stuck *next;
    char *at;
    size_t bytes;
} stuck;

static char *reserve; /* RESERVE pages */
static uint32_t taken; /* of them, from the first on, are mappings of their own */
static stuck *stuck_ranges;
static size_t stuck_bytes;

/* -- the reserve ------------------------------------------------------------------------ */

void zc_room_take(void) {
    size_t page = zc_page_size();
    if (reserve == NULL) {
        char *at = mmap(NULL, RESERVE * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) {
            return;
        }
        reserve = at;
    }
    while (taken < RESERVE) {
        uint32_t next = taken | 1;
        if (mprotect(reserve + next * page, page, PROT_READ) < 0) {
            return;
        }
        taken = next + 1;
    }
}

void zc_room_open(void) {
    if (taken > 0 && mprotect(reserve, RESERVE * zc_page_size(), PROT_NONE) == 0) {
        taken = 0;
    }
}

/* -- what couldn't be unmapped ------------------------------------------------------------ */

void zc_room_unmap(char *at, size_t bytes) {
    if (munmap(at, bytes) == 0) {
        return;
    }
    (void)madvise(at, bytes, MADV_DONTNEED);
    stuck *range = malloc(sizeof *range);
    if (range == NULL) {
        return; /* address space that nobody will use any more, and nothing else */
    }
    *range = (stuck){.next = stuck_ranges, .at = at, .bytes = bytes};
    stuck_ranges = range;
    stuck_bytes += bytes;
}

void zc_room_retry(void) {
    stuck **link = &stuck_ranges;
    while (*link != NULL) {
        stuck *range = *link;
        if (munmap(range->at, range->bytes) < 0) {
            link = &range->next;
            continue;
        }
        *link = range->next;
        stuck_bytes -= range->bytes;
        free(range);
    }
}

size_t zc_room_waiting(void) { return stuck_bytes; }
