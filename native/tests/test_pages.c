/* The page arena: leasing, holding, letting go; bounds; threads; forks. */
#define _GNU_SOURCE
#include "mapped.h"
#include "pages_internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 1024, ZAP_PAGES = 512, CHUNK = 16, THREADS = 4, ROUNDS = 20000, FORKS = 200 };

static size_t page; /* bytes */

static zc_pages_stats stats(void) {
    zc_pages_stats now;
    zc_pages_counters(&now);
    return now;
}

static zc_slice *lease(uint32_t pages) {
    zc_slice *slice = zc_slice_lease(pages);
    CHECK(slice != NULL);
    CHECK_EQ(zc_slice_bytes(slice), pages * page);
    CHECK_EQ((uintptr_t)zc_slice_base(slice) % page, 0);
    return slice;
}

static void expect_no_lease(uint32_t pages, int error) {
    errno = 0;
    CHECK(zc_slice_lease(pages) == NULL);
    CHECK_EQ(errno, error);
}

/* Whether anything is mapped at an address of the arena, where reading might be SIGBUS. */
static bool is_mapped(const char *at) {
    int fds[2];
    CHECK_EQ(pipe(fds), 0);
    ssize_t count = write(fds[1], at, 1);
    CHECK(count == 1 || errno == EFAULT);
    close(fds[0]);
    close(fds[1]);
    return count == 1;
}

/* Everything is free, and in one piece again. */
static void expect_all_free(void) {
    CHECK_EQ(stats().slices, 0);
    CHECK_EQ(stats().leased_bytes, 0);
    zc_slice *all = lease(PAGES);
    CHECK_EQ(stats().waiting_bytes, 0);
    for (size_t i = 0; i < PAGES; i += 64) {
        CHECK(!is_mapped(zc_slice_base(all) + i * page));
    }
    zc_slice_release(all);
}

/* -- opening: the first test, as a process opens once ------------------------------------ */

static void the_first_opening_counts(void) {
    expect_no_lease(1, ENODEV);
    CHECK_EQ(stats().arena_bytes, 0);
    CHECK_EQ(zc_arena_open(PAGES * page + 1), 0);
    CHECK_EQ(zc_arena_open(7 * PAGES * page), 0);
    CHECK_EQ(stats().arena_bytes, PAGES * page);
    expect_no_lease(0, EINVAL);
    expect_all_free();
}

/* -- bounds ------------------------------------------------------------------------------ */

static void a_full_arena_refuses_and_counts(void) {
    uint64_t full = stats().full;
    expect_no_lease(PAGES + 1, ENOBUFS);
    expect_no_lease(UINT32_MAX, ENOBUFS);
    zc_slice *most = lease(PAGES - 1);
    expect_no_lease(2, ENOBUFS);
    zc_slice *last = lease(1);
    expect_no_lease(1, ENOBUFS);
    CHECK_EQ(stats().full, full + 4);
    CHECK_EQ(stats().leased_bytes, PAGES * page);
    zc_slice_release(most);
    zc_slice_release(last);
    expect_all_free();
}

/* Any size can be had back from a range that is just as large, whatever list it is in. */
static void a_range_of_the_very_size_is_found(void) {
    for (uint32_t pages = 1; pages < PAGES; pages++) {
        zc_slice *rest = lease(PAGES - pages);
        zc_slice *exact = lease(pages);
        zc_slice_release(exact);
        zc_slice_release(rest);
        expect_all_free();
    }
}

static void what_waits_is_zapped_when_it_is_needed(void) {
    zc_slice *first = lease(PAGES / 4), *second = lease(PAGES * 3 / 4);
    uint64_t zaps = stats().zaps;
    char *base = zc_slice_base(first);
    zc_slice_release(first);
    CHECK_EQ(stats().waiting_bytes, PAGES / 4 * page);
    CHECK_EQ(stats().zaps, zaps);
    first = lease(PAGES / 4);
    CHECK(zc_slice_base(first) == base);
    CHECK_EQ(stats().waiting_bytes, 0);
    CHECK_EQ(stats().zaps, zaps + 1);
    zc_slice_release(first);
    zc_slice_release(second);
    expect_all_free();
}

static void neighbours_are_zapped_in_one_call_and_before_too_much_waits(void) {
    zc_slice *slices[ZAP_PAGES / CHUNK];
    size_t count = sizeof slices / sizeof slices[0];
    for (size_t i = 0; i < count; i++) {
        slices[i] = lease(CHUNK);
    }
    zc_pages_stats before = stats();
    for (size_t i = 0; i < count - 1; i++) {
        zc_slice_release(slices[(i * 7 + 1) % count]); /* in no order */
        CHECK_EQ(stats().waiting_bytes, (i + 1) * CHUNK * page);
    }
    CHECK_EQ(stats().zaps, before.zaps);
    zc_slice_release(slices[((count - 1) * 7 + 1) % count]);
    CHECK_EQ(stats().waiting_bytes, 0);
    CHECK_EQ(stats().zaps, before.zaps + 1);
    CHECK_EQ(stats().zapped_bytes, before.zapped_bytes + ZAP_PAGES * page);
    expect_all_free();
}

/* -- mapped pages ------------------------------------------------------------------------- */

static char source[CHUNK * 4096 * 16];

static void pages_stay_until_the_last_reference(void) {
    pair connection = mappable_pair();
    fill_pattern(source, CHUNK * page, 1);
    zc_slice *slice = lease(CHUNK);
    char *base = zc_slice_base(slice);
    CHECK(!is_mapped(base));
    map_bytes(connection, source, base, CHUNK * page);
    close_pair(connection); /* what is mapped doesn't depend on the connection */
    zc_slice_hold(slice);
    zc_slice_release(slice);
    zc_slice *other = lease(PAGES - CHUNK);
    zc_slice_release(other);
    expect_no_lease(PAGES, ENOBUFS);
    CHECK(memcmp(base, source, CHUNK * page) == 0);
    zc_slice_release(slice);
    expect_all_free();
}

static void what_is_leased_never_shows_old_bytes(void) {
    pair connection = mappable_pair();
    for (unsigned seed = 0; seed < 32; seed++) {
        fill_pattern(source, CHUNK * page, seed);
        zc_slice *slice = lease(CHUNK);
        for (size_t i = 0; i < CHUNK; i++) {
            CHECK(!is_mapped(zc_slice_base(slice) + i * page));
        }
        map_bytes(connection, source, zc_slice_base(slice), CHUNK * page);
        CHECK(memcmp(zc_slice_base(slice), source, CHUNK * page) == 0);
        zc_slice_release(slice);
    }
    close_pair(connection);
    expect_all_free();
}

static void what_a_slice_did_not_use_is_free_at_once(void) {
    pair connection = mappable_pair();
    fill_pattern(source, CHUNK * page, 2);
    zc_slice *slice = lease(PAGES);
    char *base = zc_slice_base(slice);
    map_bytes(connection, source, base, CHUNK * page);
    zc_slice_trim(slice, PAGES);
    expect_no_lease(1, ENOBUFS);
    uint64_t zaps = stats().zaps;
    zc_slice_trim(slice, CHUNK);
    CHECK(zc_slice_base(slice) == base);
    CHECK_EQ(zc_slice_bytes(slice), CHUNK * page);
    CHECK_EQ(stats().leased_bytes, CHUNK * page);
    zc_slice *rest = lease(PAGES - CHUNK);
    CHECK(zc_slice_base(rest) == base + CHUNK * page);
    CHECK_EQ(stats().zaps, zaps);
    zc_slice_release(rest);
    CHECK(memcmp(base, source, CHUNK * page) == 0);
    zc_slice_release(slice);
    close_pair(connection);
    expect_all_free();
}

static void a_slice_is_split_and_its_empty_part_given_back(void) {
    pair connection = mappable_pair();
    fill_pattern(source, CHUNK * page, 5);
    zc_slice *slice = lease(PAGES);
    char *base = zc_slice_base(slice);
    map_bytes(connection, source, base, CHUNK * page);
    CHECK(zc_slice_split(slice, PAGES) == NULL);
    zc_slice *rest = zc_slice_split(slice, CHUNK);
    CHECK(zc_slice_base(rest) == base + CHUNK * page);
    CHECK_EQ(zc_slice_bytes(rest), (PAGES - CHUNK) * page);
    CHECK_EQ(zc_slice_bytes(slice), CHUNK * page);
    CHECK_EQ(stats().leased_bytes, PAGES * page);
    CHECK_EQ(stats().slices, 2);
    expect_no_lease(1, ENOBUFS);
    uint64_t zaps = stats().zaps;
    zc_slice_return(rest);
    CHECK_EQ(stats().waiting_bytes, 0);
    rest = lease(PAGES - CHUNK);
    CHECK_EQ(stats().zaps, zaps);
    zc_slice_release(slice);
    zc_slice_release(rest);
    close_pair(connection);
    expect_all_free();
}

/* -- any order, any sizes; threads --------------------------------------------------------- */

static _Atomic unsigned char owner[PAGES]; /* which thread holds a page: none, or one */
static char *arena_base;

static void own(const zc_slice *slice, unsigned char from, unsigned char to) {
    size_t first = (size_t)(zc_slice_base(slice) - arena_base) / page;
    for (size_t i = first; i < first + zc_slice_bytes(slice) / page; i++) {
        CHECK_EQ(atomic_exchange(&owner[i], to), from);
    }
}

static void *lease_and_release(void *argument) {
    unsigned char me = *(unsigned char *)argument;
    unsigned seed = me;
    zc_slice *held[12] = {NULL};
    for (int round = 0; round < ROUNDS; round++) {
        seed = seed * 1103515245u + 12345u;
        zc_slice **one = &held[(seed >> 16) % 12];
        if (*one != NULL) {
            own(*one, me, 0);
            zc_slice_hold(*one);
            zc_slice_release(*one);
            zc_slice_release(*one);
            *one = NULL;
        } else if ((*one = zc_slice_lease(1 + (seed >> 8) % 60)) != NULL) {
            own(*one, 0, me);
        } else {
            CHECK_EQ(errno, ENOBUFS);
        }
    }
    for (size_t i = 0; i < 12; i++) {
        if (held[i] != NULL) {
            own(held[i], me, 0);
            zc_slice_release(held[i]);
        }
    }
    return NULL;
}

static void threads_never_hold_the_same_page(void) {
    pthread_t threads[THREADS];
    unsigned char names[THREADS];
    zc_slice *all = lease(PAGES);
    arena_base = zc_slice_base(all);
    zc_slice_release(all);
    for (int i = 0; i < THREADS; i++) {
        names[i] = (unsigned char)(i + 1);
        CHECK_EQ(pthread_create(&threads[i], NULL, lease_and_release, &names[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    }
    expect_all_free();
}

/* -- forks ----------------------------------------------------------------------------------- */

static void expect_success(pid_t child) {
    int status = 0;
    CHECK(child > 0);
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), EXIT_SUCCESS);
}

static bool range_exists(char *base) {
    unsigned char resident;
    return mincore(base, page, &resident) == 0;
}

/* In the child: the parent's slices can be read and let go of; its own come from elsewhere. */
static void use_inherited(zc_slice *inherited, zc_slice *other, char *waiting) {
    char *base = zc_slice_base(inherited), *end = zc_slice_base(other) + zc_slice_bytes(other);
    CHECK(memcmp(base, source, CHUNK * page) == 0);
    CHECK(!is_mapped(waiting));
    CHECK_EQ(stats().arena_bytes, 0);
    zc_slice *own_slice = lease(PAGES);
    CHECK(zc_slice_base(own_slice) + PAGES * page <= base || zc_slice_base(own_slice) >= end);
    CHECK_EQ(stats().leased_bytes, PAGES * page);
    pair connection = mappable_pair();
    map_bytes(connection, source, zc_slice_base(own_slice), CHUNK * page);
    close_pair(connection);
    zc_slice_release(inherited);
    CHECK(!is_mapped(base));
    CHECK(range_exists(base));
    zc_slice_release(other);
    CHECK(!range_exists(base));
    CHECK(memcmp(zc_slice_base(own_slice), source, CHUNK * page) == 0);
    zc_slice_release(own_slice);
    expect_all_free();
}

static void a_child_keeps_what_is_held_and_leases_from_its_own_arena(void) {
    pair connection = mappable_pair();
    fill_pattern(source, CHUNK * page, 3);
    zc_slice *waits = lease(CHUNK), *slice = lease(CHUNK), *other = lease(CHUNK);
    char *base = zc_slice_base(slice), *waiting = zc_slice_base(waits);
    map_bytes(connection, source, base, CHUNK * page);
    map_bytes(connection, source, waiting, CHUNK * page);
    map_bytes(connection, source, zc_slice_base(other), CHUNK * page);
    zc_slice_release(waits);
    CHECK(is_mapped(waiting));
    pid_t child = fork();
    if (child == 0) {
        use_inherited(slice, other, waiting);
        /* A grandchild of it, with nothing held. */
        pid_t grandchild = fork();
        if (grandchild == 0) {
            expect_all_free();
            _exit(EXIT_SUCCESS);
        }
        expect_success(grandchild);
        _exit(EXIT_SUCCESS);
    }
    expect_success(child);
    CHECK(is_mapped(waiting)); /* the child has let go of it for itself only */
    CHECK(memcmp(base, source, CHUNK * page) == 0);
    CHECK(memcmp(zc_slice_base(other), source, CHUNK * page) == 0);
    zc_slice_release(slice);
    zc_slice_release(other);
    close_pair(connection);
    expect_all_free();
}

static void a_child_without_slices_has_no_range(void) {
    zc_slice *all = lease(PAGES);
    char *base = zc_slice_base(all);
    zc_slice_release(all);
    CHECK(range_exists(base));
    pid_t child = fork();
    if (child == 0) {
        CHECK(!range_exists(base));
        _exit(EXIT_SUCCESS);
    }
    expect_success(child);
    expect_all_free();
}

static _Atomic bool stop;

static void *keep_the_lock_busy(void *nothing) {
    while (!atomic_load(&stop)) {
        zc_slice *slice = zc_slice_lease(ZAP_PAGES); /* zapped at each release */
        CHECK(slice != NULL);
        zc_slice_release(slice);
    }
    return nothing;
}

static void a_fork_while_another_thread_holds_the_lock(void) {
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, keep_the_lock_busy, NULL), 0);
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        if (child == 0) {
            zc_slice_release(lease(PAGES));
            _exit(EXIT_SUCCESS);
        }
        expect_success(child);
    }
    atomic_store(&stop, true);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    expect_all_free();
}

int main(void) {
    page = zc_page_size();
    if (sizeof source < CHUNK * page) {
        SKIP("this machine's pages are larger than the test's memory");
    }
    close_pair(mappable_pair()); /* skips where nothing can be mapped */
    const test_case cases[] = {
        {"the first opening counts", the_first_opening_counts},
        {"a full arena refuses and counts", a_full_arena_refuses_and_counts},
        {"a range of the very size is found", a_range_of_the_very_size_is_found},
        {"what waits is zapped when it is needed", what_waits_is_zapped_when_it_is_needed},
        {"neighbours are zapped in one call, and before too much waits",
         neighbours_are_zapped_in_one_call_and_before_too_much_waits},
        {"pages stay until the last reference", pages_stay_until_the_last_reference},
        {"what is leased never shows old bytes", what_is_leased_never_shows_old_bytes},
        {"what a slice didn't use is free at once", what_a_slice_did_not_use_is_free_at_once},
        {"a slice is split, and its empty part given back",
         a_slice_is_split_and_its_empty_part_given_back},
        {"threads never hold the same page", threads_never_hold_the_same_page},
        {"a child keeps what is held, and leases from its own arena",
         a_child_keeps_what_is_held_and_leases_from_its_own_arena},
        {"a child without slices has no range", a_child_without_slices_has_no_range},
        {"a fork while another thread holds the lock", a_fork_while_another_thread_holds_the_lock},
    };
    return RUN_TESTS(cases);
}
