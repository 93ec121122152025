/* The page arena and page memory, for the receiving code and the binding; see pages.c
 * and page_memory.c for what they are.  All functions may be called from any thread.
 */
#ifndef ZC_PAGES_INTERNAL_H
#define ZC_PAGES_INTERNAL_H

#include <stdbool.h>

#include "zc_assert.h"
#include "zcloop.h"

size_t zc_page_size(void);

/* One lock guards the arena and all memories: what happens under it takes the kernel's
 * lock on the address space anyway.  Held over a fork, so that a child finds it free. */
void zc_pages_lock(void);
void zc_pages_unlock(void);

/* One reference, and nothing is mapped into it: the first mapping into each of its pages
 * may give the kernel TCP_RECEIVE_ZEROCOPY_FLAG_TLB_CLEAN_HINT.  NULL with errno: ENOBUFS =
 * the arena is full (counted), ENODEV = it was never opened, EINVAL = no pages, or what
 * zc_arena_open returned. */
zc_slice *zc_slice_lease(uint32_t pages);
char *zc_slice_base(const zc_slice *slice);
size_t zc_slice_bytes(const zc_slice *slice);
void zc_slice_hold(zc_slice *slice);
/* Whether somebody else has a reference, too. */
bool zc_slice_is_shared(const zc_slice *slice);
/* Give all but the first pages back, into which nothing may have been mapped.  The only reference's. */
void zc_slice_trim(zc_slice *slice, uint32_t pages);
/* The same, but the rest stays leased, as a slice of its own; NULL where there is none. */
zc_slice *zc_slice_split(zc_slice *slice, uint32_t pages);
/* Give a slice back into which nothing was mapped.  The only reference's. */
void zc_slice_return(zc_slice *slice);
/* The last one: what is mapped will be let go of, and the pages leased again. */
void zc_slice_release(zc_slice *slice);

/* Whether [from, from+bytes) lies in the arena of this process.  Under the lock. */
bool zc_arena_has(const char *from, size_t bytes);

/* Contiguous memory into which mapped pages can be moved, counted. */

/* Zeroed, page-aligned, readable and writable.  NULL with errno: EINVAL (no bytes), ENOMEM. */
zc_memory *zc_memory_new(size_t bytes);
char *zc_memory_base(const zc_memory *memory);
size_t zc_memory_bytes(const zc_memory *memory);
void zc_memory_hold(zc_memory *memory);
void zc_memory_release(zc_memory *memory); /* the last one unmaps it */

/* Its owner's promise that the peer sends as much as the memory asked for holds. */
void zc_memory_set_exact(zc_memory *memory, bool exact);
bool zc_memory_exact(const zc_memory *memory);

/* Whether pages were adopted and are still there. */
bool zc_memory_has_pages(const zc_memory *memory);

/* Everything before this offset has been received into once: it is warm, a copy costs less than pages. */
size_t zc_memory_used(const zc_memory *memory);
void zc_memory_note_used(zc_memory *memory, size_t end);

/* Where in the memory what was received begins: see zc_fill_begin_pages. */
void zc_memory_set_origin(zc_memory *memory, size_t origin);

/* Move the whole pages that lie mapped at `from`, in a slice, to offset `at` of the memory.
 * Another thread that reads the memory sees the old bytes or the new ones.  The slice's range is
 * empty afterwards and may be mapped into again.  0 or -errno, which leaves both as they were:
 * -EINVAL (not whole pages, out of range, not of the arena), -ENOSPC (too many mappings in this
 * process already), -ENOMEM, -EOPNOTSUPP (this kernel can't; remembered). */
int zc_memory_adopt(zc_memory *memory, size_t at, char *from, size_t bytes);

/* Make [at, at+bytes) writable again where adopted pages lie in it.  Bytes outside the range
 * keep their values, those inside are lost where pages had been adopted.  Costs nothing where
 * none had.  0 or -errno: -EINVAL (out of range), -ZC_NO_ROOM (the system allows no more mappings
 * or memory, and all ways out of that have failed). */
int zc_memory_writable(zc_memory *memory, size_t at, size_t bytes);

/* page_memory.c's part of zc_pages_counters. */
void zc_memory_count(zc_pages_stats *out);

/* map_room.c, all under the lock: a reserve of mappings.  Take it, as far as there is room. */
void zc_room_take(void);
/* Give it up, for something that must be done now; zc_room_take follows. */
void zc_room_open(void);
/* Unmap the range, or empty it and leave it to zc_room_retry. */
void zc_room_unmap(char *at, size_t bytes);
void zc_room_retry(void);
size_t zc_room_waiting(void); /* bytes that are left to it */

#endif
