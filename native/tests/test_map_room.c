/* Page memory in a process that has as many mappings as the system allows it, or nearly:
 * what can't be moved or mapped is copied, nothing is lost, nothing stays mapped for ever. */
#define _GNU_SOURCE
#include "mapped.h"
#include "pages_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGES = 32, RUN = 8, ARENA_PAGES = 64, LARGEST_PAGE = 16384, MOST_FREE = 12, ROUNDS = 200 };

static size_t page; /* bytes */
static char expected[PAGES * LARGEST_PAGE], original[PAGES * LARGEST_PAGE];
static char *plugs[MOST_FREE], *last;
static struct { char *at; size_t bytes; } used_up;
static zc_slice *slice;
static pair connection;

static zc_pages_stats stats(void) {
    zc_pages_stats now;
    zc_pages_counters(&now);
    return now;
}

static size_t max_map_count(void) {
    unsigned long value = 0;
    FILE *file = fopen("/proc/sys/vm/max_map_count", "re");
    CHECK(file != NULL);
    CHECK_EQ(fscanf(file, "%lu", &value), 1);
    fclose(file);
    return value;
}

/* From here on the process may have `left` mappings more. */
static void use_up(int left) {
    for (int i = 0; i < left; i++) { /* of files of their own, which nothing can join */
        plugs[i] = mmap(NULL, page, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        CHECK(plugs[i] != MAP_FAILED);
    }
    used_up.bytes = (max_map_count() + 16) * page;
    used_up.at = mmap(NULL, used_up.bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                      -1, 0);
    CHECK(used_up.at != MAP_FAILED);
    size_t i = page;
    while (mprotect(used_up.at + i, page, PROT_READ | PROT_WRITE) == 0) {
        i += 2 * page;
        CHECK(i < used_up.bytes);
    }
    CHECK_EQ(errno, ENOMEM);
    /* One more than that is allowed to whoever maps anew. */
    last = mmap(NULL, page, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(last != MAP_FAILED);
    CHECK(mmap(NULL, page, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
    CHECK_EQ(errno, ENOMEM);
    for (int plug = 0; plug < left; plug++) {
        CHECK_EQ(munmap(plugs[plug], page), 0);
    }
}

static void give_back(void) {
    CHECK_EQ(munmap(used_up.at, used_up.bytes), 0);
    CHECK_EQ(munmap(last, page), 0);
}

static zc_memory *new_memory(void) {
    zc_memory *memory = zc_memory_new(PAGES * page);
    CHECK(memory != NULL);
    return memory;
}

/* Receives into [at, at+size) as recv_pages.c does: moved, or else copied.  1: moved. */
static bool receive(zc_memory *memory, size_t at, size_t size, unsigned seed) {
    fill_pattern(expected + at, size, seed);
    map_bytes(connection, expected + at, zc_slice_base(slice), size);
    if (zc_memory_adopt(memory, at, zc_slice_base(slice), size) == 0) {
        return true;
    }
    CHECK_EQ(zc_memory_writable(memory, at, size), 0);
    memcpy(zc_memory_base(memory) + at, zc_slice_base(slice), size);
    return false;
}

static void copy_into(zc_memory *memory, size_t at, size_t size, unsigned seed) {
    CHECK_EQ(zc_memory_writable(memory, at, size), 0);
    fill_pattern(expected + at, size, seed);
    memcpy(zc_memory_base(memory) + at, expected + at, size);
}

static void expect_content(const zc_memory *memory) {
    CHECK(memcmp(zc_memory_base(memory), expected, PAGES * page) == 0);
}

static zc_memory *with_pages(void) {
    zc_memory *memory = new_memory();
    memset(expected, 0, sizeof expected);
    CHECK(receive(memory, 4 * page, RUN * page, 1));
    fill_pattern(expected, 100, 2);
    memcpy(zc_memory_base(memory), expected, 100);
    return memory;
}

/* Whatever part is written to, and however much room there is. */
static void writable_without_room(void) {
    const struct { size_t at, pages, bytes; } parts[] = {
        {4, RUN, 0}, {6, 1, 0}, {6, 2, 10}, {0, 5, 7}, {7, 0, 10}, {3, RUN + 2, 0}, {10, 4, 1},
        {0, PAGES, 0},
    };
    enum { PARTS = sizeof parts / sizeof parts[0] };
    for (int left = 0; left <= MOST_FREE; left++) {
        zc_memory *memories[PARTS];
        for (size_t i = 0; i < PARTS; i++) {
            memories[i] = with_pages();
        }
        memcpy(original, expected, sizeof original);
        uint64_t copied_out = stats().copied_out;
        use_up(left);
        for (size_t i = 0; i < PARTS; i++) {
            memcpy(expected, original, sizeof expected);
            copy_into(memories[i], parts[i].at * page + parts[i].bytes,
                      parts[i].pages * page + parts[i].bytes, 3);
            expect_content(memories[i]);
        }
        give_back();
        CHECK(left > 0 || stats().copied_out > copied_out);
        for (size_t i = 0; i < PARTS; i++) {
            zc_memory_release(memories[i]);
        }
        CHECK_EQ(stats().splits, 0);
    }
}

/* A buffer that is used again and again by a connection whose pages come and go. */
static void received_into_again_without_room(void) {
    for (int left = 0; left <= MOST_FREE; left += 3) {
        zc_memory *memory = with_pages();
        unsigned seed = 7, moved = 0;
        use_up(left);
        for (int round = 0; round < ROUNDS; round++) {
            seed = seed * 1103515245u + 12345u;
            size_t at = (seed >> 16) % (PAGES - RUN) * page;
            if (seed >> 31) {
                moved += receive(memory, at, (1 + (seed >> 8) % RUN) * page, seed);
            } else {
                copy_into(memory, at + seed % page, (seed >> 4) % (RUN * page - page), seed);
            }
            expect_content(memory);
        }
        give_back();
        CHECK(receive(memory, 4 * page, RUN * page, 9)); /* room again: moved again */
        expect_content(memory);
        zc_memory_release(memory);
        CHECK(left > 0 || moved == 0);
        CHECK_EQ(stats().splits, 0);
    }
}

static bool is_mapped(const char *at) { return msync((void *)at, page, MS_ASYNC) == 0; }

/* In the middle of a larger mapping, which unmapping it would have to split. */
static void released_without_room(void) {
    zc_memory *all[16];
    size_t middle = 0;
    for (size_t i = 0; i < 16; i++) {
        all[i] = new_memory();
        memset(zc_memory_base(all[i]), 'r', PAGES * page);
    }
    for (size_t i = 1; i < 15; i++) {
        intptr_t before = zc_memory_base(all[i - 1]) - zc_memory_base(all[i]);
        intptr_t behind = zc_memory_base(all[i]) - zc_memory_base(all[i + 1]);
        if (before == behind && (size_t)labs(before) == PAGES * page) {
            middle = i;
        }
    }
    CHECK(middle > 0);
    char *base = zc_memory_base(all[middle]);
    use_up(0);
    zc_memory_release(all[middle]);
    CHECK_EQ(stats().memories, 15);
    CHECK_EQ(stats().unmap_waiting_bytes, PAGES * page);
    CHECK(is_mapped(base));
    CHECK_EQ(*base, 0); /* nothing of what it held is kept */
    give_back();
    zc_memory *next = new_memory();
    CHECK_EQ(stats().unmap_waiting_bytes, 0);
    zc_memory_release(next);
    CHECK(!is_mapped(base));
    for (size_t i = 0; i < 16; i++) {
        if (i != middle) {
            zc_memory_release(all[i]);
        }
    }
    CHECK_EQ(stats().memories, 0);
}

/* New memory can't be had, and that is all: no error is taken for another. */
static void no_new_memory_without_room(void) {
    use_up(0);
    errno = 0;
    CHECK(zc_memory_new(page) == NULL);
    CHECK_EQ(errno, ENOMEM);
    give_back();
    zc_memory_release(new_memory());
}

int main(void) {
    page = zc_page_size();
    if (page > LARGEST_PAGE) {
        SKIP("this machine's pages are larger than the test's memory");
    }
    if (max_map_count() > 400 * 1000) {
        SKIP("vm.max_map_count is so large that using it up takes too much memory");
    }
    connection = mappable_pair();
    CHECK_EQ(zc_arena_open(ARENA_PAGES * page), 0);
    slice = zc_slice_lease(RUN);
    CHECK(slice != NULL);
    const test_case cases[] = {
        {"writable without room", writable_without_room},
        {"received into again without room", received_into_again_without_room},
        {"released without room", released_without_room},
        {"no new memory without room", no_new_memory_without_room},
    };
    int result = RUN_TESTS(cases);
    zc_slice_release(slice);
    close_pair(connection);
    return result;
}
