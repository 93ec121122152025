/* Page memory: moving mapped pages into it, writing to it again, and what errors leave. */
#define _GNU_SOURCE
#include "mapped.h"
#include "pages_internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 64, RUN = 8, ROUNDS = 1500, STEPS = 1500, ARENA_PAGES = 256, LARGEST_PAGE = 16384 };

static size_t page; /* bytes */
static char source[PAGES * LARGEST_PAGE], expected[PAGES * LARGEST_PAGE];

static zc_pages_stats stats(void) {
    zc_pages_stats now;
    zc_pages_counters(&now);
    return now;
}

static zc_memory *new_memory(size_t bytes) {
    zc_memory *memory = zc_memory_new(bytes);
    CHECK(memory != NULL);
    CHECK_EQ(zc_memory_bytes(memory), bytes);
    CHECK_EQ((uintptr_t)zc_memory_base(memory) % page, 0);
    return memory;
}

static zc_slice *lease(uint32_t pages) {
    zc_slice *slice = zc_slice_lease(pages);
    CHECK(slice != NULL);
    return slice;
}

/* Whether the kernel can read the byte at an address, or write to it. */
static bool can(bool writing, char *at) {
    int fds[2];
    char byte = *at;
    CHECK_EQ(pipe(fds), 0);
    CHECK_EQ(write(fds[1], &byte, 1), 1);
    ssize_t count = writing ? read(fds[0], at, 1) : write(fds[1], at, 1);
    CHECK(count == 1 || errno == EFAULT);
    close(fds[0]);
    close(fds[1]);
    return count == 1;
}

static void adopt_from(pair connection, zc_memory *memory, zc_slice *slice, size_t at,
                       const char *bytes, size_t size) {
    map_bytes(connection, bytes, zc_slice_base(slice), size);
    CHECK_EQ(zc_memory_adopt(memory, at, zc_slice_base(slice), size), 0);
}

static void new_memory_is_zeroed_and_whole(void) {
    errno = 0;
    CHECK(zc_memory_new(0) == NULL);
    CHECK_EQ(errno, EINVAL);
    for (size_t huge = SIZE_MAX; huge > SIZE_MAX / 8; huge /= 2) {
        errno = 0;
        CHECK(zc_memory_new(huge) == NULL);
        CHECK_EQ(errno, ENOMEM);
    }
    zc_memory *memory = new_memory(3 * page + 5);
    CHECK_EQ(stats().memories, 1);
    CHECK_EQ(stats().memory_bytes, 3 * page + 5);
    for (size_t i = 0; i < 3 * page + 5; i++) {
        CHECK_EQ(zc_memory_base(memory)[i], 0);
    }
    zc_memory_base(memory)[3 * page + 4] = 'x';
    CHECK(!zc_memory_exact(memory));
    zc_memory_set_exact(memory, true);
    CHECK(zc_memory_exact(memory));
    zc_memory_hold(memory);
    zc_memory_release(memory);
    CHECK_EQ(zc_memory_base(memory)[3 * page + 4], 'x');
    zc_memory_release(memory);
    CHECK_EQ(stats().memories, 0);
    CHECK_EQ(stats().memory_bytes, 0);
}

static void adopted_pages_are_the_memory_s(void) {
    pair connection = mappable_pair();
    fill_pattern(source, sizeof source, 1);
    zc_memory *memory = new_memory(PAGES * page);
    char *base = zc_memory_base(memory);
    memset(base, 'a', PAGES * page);
    zc_slice *slice = lease(RUN);
    zc_pages_stats before = stats();
    adopt_from(connection, memory, slice, 4 * page, source, RUN * page);
    CHECK_EQ(stats().adoptions, before.adoptions + 1);
    CHECK_EQ(stats().adopted_bytes, before.adopted_bytes + RUN * page);
    CHECK(memcmp(base + 4 * page, source, RUN * page) == 0);
    CHECK_EQ(base[4 * page - 1], 'a');
    CHECK_EQ(base[(4 + RUN) * page], 'a');
    CHECK(!can(true, base + 4 * page));
    CHECK(can(true, base + 4 * page - 1));
    /* The slice is empty, and can be mapped into again; over adopted pages, too. */
    adopt_from(connection, memory, slice, 8 * page, source + RUN * page, RUN * page);
    CHECK(memcmp(base + 4 * page, source, 4 * page) == 0);
    CHECK(memcmp(base + 8 * page, source + RUN * page, RUN * page) == 0);
    zc_slice_release(slice);
    close_pair(connection);
    CHECK(memcmp(base + 4 * page, source, 4 * page) == 0);
    zc_memory_release(memory);
    CHECK_EQ(stats().splits, 0);
}

static void wrong_arguments_are_refused(void) {
    pair connection = mappable_pair();
    zc_memory *memory = new_memory(RUN * page + 1);
    zc_slice *slice = lease(ARENA_PAGES);
    char *from = zc_slice_base(slice);
    char elsewhere[1];
    map_bytes(connection, source, from, page);
    CHECK_EQ(zc_memory_adopt(memory, 0, from, 0), -EINVAL);
    CHECK_EQ(zc_memory_adopt(memory, 1, from, page), -EINVAL);
    CHECK_EQ(zc_memory_adopt(memory, 0, from, page + 1), -EINVAL);
    CHECK_EQ(zc_memory_adopt(memory, 0, from + 1, page), -EINVAL);
    CHECK_EQ(zc_memory_adopt(memory, RUN * page, from, page), -EINVAL);
    CHECK_EQ(zc_memory_adopt(memory, page, from, RUN * page), -EINVAL);
    CHECK_EQ(zc_memory_adopt(memory, SIZE_MAX - page + 1, from, page), -EINVAL);
    CHECK_EQ(zc_memory_adopt(memory, 0, from - page, page), -EINVAL);
    CHECK_EQ(zc_memory_adopt(memory, 0, from + (ARENA_PAGES - 1) * page, 2 * page), -EINVAL);
    CHECK_EQ(zc_memory_adopt(memory, 0, elsewhere - (uintptr_t)elsewhere % page, page), -EINVAL);
    CHECK_EQ(zc_memory_writable(memory, 0, RUN * page + 2), -EINVAL);
    CHECK_EQ(zc_memory_writable(memory, RUN * page + 2, 0), -EINVAL);
    CHECK_EQ(zc_memory_writable(memory, RUN * page + 1, 0), 0);
    CHECK(memcmp(from, source, page) == 0);
    CHECK_EQ(zc_memory_adopt(memory, (RUN - 1) * page, from, page), 0);
    CHECK(memcmp(zc_memory_base(memory) + (RUN - 1) * page, source, page) == 0);
    zc_slice_release(slice);
    zc_memory_release(memory);
    close_pair(connection);
}

static void writable_again_keeps_what_lies_around(void) {
    pair connection = mappable_pair();
    zc_memory *memory = new_memory(PAGES * page);
    char *base = zc_memory_base(memory);
    zc_slice *slice = lease(RUN);
    adopt_from(connection, memory, slice, 0, source, RUN * page);
    CHECK_EQ(zc_memory_writable(memory, RUN * page, page), 0); /* nothing adopted there */
    CHECK(!can(true, base));
    CHECK_EQ(zc_memory_writable(memory, page + 10, 3 * page), 0);
    CHECK(!can(true, base));
    CHECK(can(true, base + page) && can(true, base + 2 * page) && can(true, base + 4 * page));
    CHECK(!can(true, base + 5 * page));
    CHECK(memcmp(base, source, page + 10) == 0);
    CHECK(memcmp(base + 4 * page + 10, source + 4 * page + 10, (RUN - 4) * page - 10) == 0);
    /* A range within one page. */
    CHECK_EQ(zc_memory_writable(memory, 6 * page + 1, 1), 0);
    CHECK(can(true, base + 6 * page));
    CHECK(!can(true, base + 7 * page));
    CHECK(memcmp(base + 6 * page, source + 6 * page, page) == 0);
    CHECK_EQ(zc_memory_writable(memory, 0, PAGES * page), 0);
    memset(base, 'w', PAGES * page);
    zc_slice_release(slice);
    zc_memory_release(memory);
    close_pair(connection);
    CHECK_EQ(stats().splits, 0);
}

/* Against a copy in ordinary memory; and the count of mappings is never below the truth. */
static void any_order_of_adopting_and_writing(void) {
    pair connection = mappable_pair();
    size_t size = PAGES * page - 100; /* the last page is a part */
    zc_slice *slice = lease(RUN);
    size_t before = count_mappings();
    zc_memory *memory = new_memory(size);
    unsigned seed = 1;
    memset(expected, 0, size);
    for (int step = 0; step < STEPS; step++) {
        seed = seed * 1103515245u + 12345u;
        size_t count = 1 + (seed >> 8) % RUN, at = (seed >> 16) % (PAGES - RUN) * page;
        if (seed >> 31) {
            fill_pattern(expected + at, count * page, seed);
            adopt_from(connection, memory, slice, at, expected + at, count * page);
        } else {
            at += seed % page;
            size_t bytes = (seed >> 4) % (RUN * page);
            CHECK_EQ(zc_memory_writable(memory, at, bytes), 0);
            fill_pattern(expected + at, bytes, seed);
            memcpy(zc_memory_base(memory) + at, expected + at, bytes);
        }
        CHECK(memcmp(zc_memory_base(memory), expected, size) == 0);
        if (step % 16 == 0) {
            CHECK(count_mappings() <= before + 1 + stats().splits);
        }
    }
    CHECK(stats().splits > 0);
    zc_memory_release(memory);
    CHECK_EQ(stats().splits, 0);
    CHECK(count_mappings() <= before + 1); /* of a neighbour that may have been joined */
    zc_slice_release(slice);
    close_pair(connection);
}

/* -- readers meanwhile ----------------------------------------------------------------------- */

static _Atomic bool stop;

/* Every page holds one number all over, which only grows. */
static void *read_all_the_time(void *memory) {
    uint64_t last[PAGES] = {0};
    const size_t words = page / sizeof(uint64_t);
    while (!atomic_load(&stop)) {
        for (size_t i = 0; i < 2 * RUN; i++) {
            const volatile uint64_t *at =
                (const volatile uint64_t *)(zc_memory_base(memory) + i * page);
            uint64_t first = at[0];
            CHECK(first >= last[i]);
            for (size_t word = 1; word < words; word++) {
                uint64_t now = at[word];
                CHECK(now >= first); /* the page may have been replaced meanwhile */
                first = now;
            }
            last[i] = first;
        }
    }
    return NULL;
}

static void a_reader_sees_old_pages_or_new_ones(void) {
    pair connection = mappable_pair();
    zc_memory *memory = new_memory(2 * RUN * page);
    zc_slice *slice = lease(RUN);
    uint64_t *words = (uint64_t *)source;
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, read_all_the_time, memory), 0);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        for (size_t i = 0; i < RUN * page / sizeof *words; i++) {
            words[i] = round;
        }
        adopt_from(connection, memory, slice, round % 2 * RUN * page, source, RUN * page);
    }
    atomic_store(&stop, true);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    zc_slice_release(slice);
    zc_memory_release(memory);
    close_pair(connection);
}

/* The same for the bytes that writable keeps. */
static void *read_kept_bytes(void *memory) {
    const volatile char *base = zc_memory_base(memory);
    while (!atomic_load(&stop)) {
        for (size_t i = 0; i < 100; i++) {
            CHECK_EQ(base[i], 'k');
            CHECK_EQ(base[RUN * page - 1 - i], 'k');
        }
    }
    return NULL;
}

static void a_reader_sees_the_kept_bytes_all_the_time(void) {
    pair connection = mappable_pair();
    zc_memory *memory = new_memory(RUN * page);
    zc_slice *slice = lease(RUN);
    pthread_t thread;
    memset(source, 'k', RUN * page);
    adopt_from(connection, memory, slice, 0, source, RUN * page);
    atomic_store(&stop, false);
    CHECK_EQ(pthread_create(&thread, NULL, read_kept_bytes, memory), 0);
    for (int round = 0; round < ROUNDS; round++) {
        CHECK_EQ(zc_memory_writable(memory, 100, RUN * page - 200), 0);
        memset(zc_memory_base(memory) + 100, 'w', RUN * page - 200);
        adopt_from(connection, memory, slice, 0, source, RUN * page);
    }
    atomic_store(&stop, true);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    zc_slice_release(slice);
    zc_memory_release(memory);
    close_pair(connection);
}

/* -- bounds and errors -------------------------------------------------------------------------- */

static size_t max_map_count(void) {
    unsigned long value = 0;
    FILE *file = fopen("/proc/sys/vm/max_map_count", "re");
    CHECK(file != NULL);
    CHECK_EQ(fscanf(file, "%lu", &value), 1);
    fclose(file);
    return value;
}

/* Half of vm.max_map_count is left to others. */
static void too_many_splits_are_refused(void) {
    size_t most = max_map_count() / 2;
    if (most > 200 * 1000) {
        printf("  not tried: vm.max_map_count is %zu\n", 2 * most);
        return;
    }
    pair connection = mappable_pair();
    zc_slice *slice = lease(1);
    zc_memory *memory = new_memory((most + 8) * page), *other = new_memory(4 * page);
    zc_pages_stats before = stats();
    int rc = 0;
    /* Nothing is mapped there, and nobody reads it. */
    for (size_t i = 1; rc == 0 && i < most + 8; i += 2) {
        rc = zc_memory_adopt(memory, i * page, zc_slice_base(slice), page);
    }
    CHECK_EQ(rc, -ENOSPC);
    CHECK(stats().splits <= most && stats().splits + 2 > most);
    CHECK(count_mappings() >= most / 2);
    CHECK_EQ(stats().adoptions_refused, before.adoptions_refused + 1);
    map_bytes(connection, source, zc_slice_base(slice), page);
    CHECK_EQ(zc_memory_adopt(other, page, zc_slice_base(slice), page), -ENOSPC);
    CHECK(memcmp(zc_slice_base(slice), source, page) == 0);
    CHECK_EQ(zc_memory_base(other)[page], 0);
    zc_memory_release(memory);
    CHECK_EQ(stats().splits, 0);
    CHECK_EQ(zc_memory_adopt(other, page, zc_slice_base(slice), page), 0);
    CHECK(memcmp(zc_memory_base(other) + page, source, page) == 0);
    zc_memory_release(other);
    zc_slice_release(slice);
    close_pair(connection);
}

/* Takes what mappings the process may have left: every other page may be written. */
static char *use_up_mappings(size_t bytes) {
    char *all = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(all != MAP_FAILED);
    for (size_t i = page; i < bytes; i += 2 * page) {
        if (mprotect(all + i, page, PROT_READ | PROT_WRITE) != 0) {
            CHECK_EQ(errno, ENOMEM);
            return all;
        }
    }
    CHECK(!"more mappings than the system allows");
    return NULL;
}

static void an_error_of_the_kernel_s_leaves_both_as_they_were(void) {
    if (max_map_count() > 400 * 1000) {
        printf("  not tried: vm.max_map_count is %zu\n", max_map_count());
        return;
    }
    pair connection = mappable_pair();
    zc_memory *memory = new_memory(PAGES * page);
    zc_slice *slice = lease(RUN);
    char *base = zc_memory_base(memory);
    fill_pattern(source, 2 * RUN * page, 5);
    adopt_from(connection, memory, slice, 0, source, RUN * page);
    memset(base + RUN * page, 'm', (PAGES - RUN) * page);
    map_bytes(connection, source + RUN * page, zc_slice_base(slice), RUN * page);
    size_t splits = stats().splits, bytes = (max_map_count() + 16) * page;
    char *used_up = use_up_mappings(bytes);
    CHECK_EQ(zc_memory_adopt(memory, 16 * page, zc_slice_base(slice), RUN * page), -ENOMEM);
    CHECK_EQ(stats().splits, splits);
    CHECK(memcmp(zc_slice_base(slice), source + RUN * page, RUN * page) == 0);
    CHECK(memcmp(base, source, RUN * page) == 0);
    CHECK(base[16 * page] == 'm' && base[(16 + RUN) * page - 1] == 'm');
    CHECK_EQ(munmap(used_up, bytes), 0);
    CHECK_EQ(zc_memory_adopt(memory, 16 * page, zc_slice_base(slice), RUN * page), 0);
    CHECK(memcmp(base + 16 * page, source + RUN * page, RUN * page) == 0);
    CHECK_EQ(zc_memory_writable(memory, 2 * page + 1, 10), 0);
    CHECK(memcmp(base, source, 2 * page + 1) == 0);
    zc_slice_release(slice);
    zc_memory_release(memory);
    close_pair(connection);
}

static void expect_success(pid_t child) {
    int status = 0;
    CHECK(child > 0);
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), EXIT_SUCCESS);
}

static size_t address_space(void) {
    size_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    CHECK(file != NULL);
    CHECK_EQ(fscanf(file, "%zu", &pages), 1);
    fclose(file);
    return pages * page;
}

/* Moving needs no more address space than the memory has already. */
static void adopting_at_the_limit_of_address_space(void) {
    pid_t child = fork();
    if (child == 0) {
        pair connection = mappable_pair();
        zc_memory *memory = new_memory(PAGES * page);
        zc_slice *slice = lease(RUN);
        adopt_from(connection, memory, slice, 0, source, RUN * page);
        map_bytes(connection, source, zc_slice_base(slice), RUN * page);
        struct rlimit limit = {.rlim_cur = address_space(), .rlim_max = RLIM_INFINITY};
        CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
        CHECK(mmap(NULL, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
        CHECK_EQ(zc_memory_adopt(memory, 20 * page, zc_slice_base(slice), RUN * page), 0);
        CHECK(memcmp(zc_memory_base(memory) + 20 * page, source, RUN * page) == 0);
        CHECK(memcmp(zc_memory_base(memory), source, RUN * page) == 0);
        CHECK_EQ(zc_memory_writable(memory, page, page), 0);
        CHECK_EQ(zc_memory_writable(memory, 2 * page + 1, 10), -ZC_NO_ROOM); /* a page more */
        CHECK(memcmp(zc_memory_base(memory) + 2 * page, source + 2 * page, 6 * page) == 0);
        _exit(EXIT_SUCCESS);
    }
    expect_success(child);
}

/* -- forks ------------------------------------------------------------------------------------- */

static void a_child_has_a_memory_of_its_own(void) {
    pair connection = mappable_pair();
    fill_pattern(source, 2 * RUN * page, 9);
    zc_memory *memory = new_memory(2 * RUN * page);
    char *base = zc_memory_base(memory);
    zc_slice *slice = lease(RUN);
    adopt_from(connection, memory, slice, 0, source, RUN * page);
    memset(base + RUN * page, 'p', RUN * page);
    pid_t child = fork();
    if (child == 0) {
        CHECK(memcmp(base, source, RUN * page) == 0);
        CHECK_EQ(zc_memory_writable(memory, 0, page), 0);
        memset(base, 'c', page);
        /* The slice is of the parent's arena. */
        CHECK_EQ(zc_memory_adopt(memory, 0, zc_slice_base(slice), page), -EINVAL);
        zc_slice_release(slice);
        zc_slice *own = lease(RUN);
        pair another = mappable_pair();
        adopt_from(another, memory, own, RUN * page, source + RUN * page, RUN * page);
        CHECK(memcmp(base + page, source + page, (2 * RUN - 1) * page) == 0);
        zc_slice_release(own);
        zc_memory_release(memory);
        _exit(EXIT_SUCCESS);
    }
    expect_success(child);
    CHECK(memcmp(base, source, RUN * page) == 0);
    CHECK(base[RUN * page] == 'p' && base[2 * RUN * page - 1] == 'p');
    zc_slice_release(slice);
    zc_memory_release(memory);
    close_pair(connection);
}

int main(void) {
    page = zc_page_size();
    if (page > LARGEST_PAGE) {
        SKIP("this machine's pages are larger than the test's memory");
    }
    close_pair(mappable_pair()); /* skips where nothing can be mapped */
    CHECK_EQ(zc_arena_open(ARENA_PAGES * page), 0);
    const test_case cases[] = {
        {"new memory is zeroed and whole", new_memory_is_zeroed_and_whole},
        {"adopted pages are the memory's", adopted_pages_are_the_memory_s},
        {"wrong arguments are refused", wrong_arguments_are_refused},
        {"writable again keeps what lies around", writable_again_keeps_what_lies_around},
        {"any order of adopting and writing", any_order_of_adopting_and_writing},
        {"a reader sees old pages or new ones", a_reader_sees_old_pages_or_new_ones},
        {"a reader sees the kept bytes all the time", a_reader_sees_the_kept_bytes_all_the_time},
        {"too many splits are refused", too_many_splits_are_refused},
        {"an error of the kernel's leaves both as they were",
         an_error_of_the_kernel_s_leaves_both_as_they_were},
        {"adopting at the limit of address space", adopting_at_the_limit_of_address_space},
        {"a child has a memory of its own", a_child_has_a_memory_of_its_own},
    };
    return RUN_TESTS(cases);
}
