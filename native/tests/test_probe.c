/* The probe answers for every feature, leaves nothing open, and tells a failure's
 * reason instead of hanging on it. */
#define _GNU_SOURCE
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static zc_capability found[ZC_CAPABILITY_COUNT];

static const zc_capability *feature(const char *name) {
    for (int i = 0; i < ZC_CAPABILITY_COUNT; i++) {
        if (strcmp(found[i].name, name) == 0) {
            return &found[i];
        }
    }
    fprintf(stderr, "the probe reports no %s\n", name);
    exit(EXIT_FAILURE);
}

static void every_record_is_consistent(void) {
    memset(found, 0xff, sizeof found);
    CHECK_EQ(zc_probe(found, ZC_CAPABILITY_COUNT), ZC_CAPABILITY_COUNT);
    for (int i = 0; i < ZC_CAPABILITY_COUNT; i++) {
        CHECK(found[i].ok == 0 || found[i].ok == 1);
        CHECK_EQ(found[i].err == 0, found[i].ok);
        CHECK(memchr(found[i].name, '\0', sizeof found[i].name) != NULL);
        for (int j = 0; j < i; j++) {
            CHECK(strcmp(found[i].name, found[j].name) != 0);
        }
    }
    CHECK_EQ(feature("page_size")->value, sysconf(_SC_PAGESIZE));
    CHECK_EQ(feature("nested_epoll")->ok, 1);
    CHECK_EQ(feature("eventfd")->ok, 1);
}

static void too_small_an_array_is_refused(void) {
    CHECK_EQ(zc_probe(found, ZC_CAPABILITY_COUNT - 1), -EINVAL);
    CHECK_EQ(zc_probe(found, -1), -EINVAL);
}

/* What needs another feature cannot work where that one doesn't. */
static void features_agree_with_each_other(void) {
    CHECK_EQ(zc_probe(found, ZC_CAPABILITY_COUNT), ZC_CAPABILITY_COUNT);
    if (feature("msg_zerocopy")->ok) {
        CHECK(feature("so_zerocopy")->ok);
    }
    if (feature("tcp_zerocopy_map")->ok) {
        CHECK(feature("tcp_zerocopy_receive")->ok);
        CHECK_EQ(feature("tcp_zerocopy_map")->value % sysconf(_SC_PAGESIZE), 0);
    }
    if (feature("tcp_zerocopy_copybuf")->ok) {
        CHECK(feature("tcp_zerocopy_receive")->value >= 36);
    }
}

static void no_descriptor_left_is_an_answer(void) {
    struct rlimit before, none;
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    int count = zc_probe(found, ZC_CAPABILITY_COUNT);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    CHECK_EQ(count, ZC_CAPABILITY_COUNT);
    CHECK(feature("page_size")->ok);
    CHECK(feature("rlimit_memlock")->ok);
    const char *const need_one[] = {"eventfd",       "memfd_seals", "nested_epoll",
                                    "unix_peercred", "tcp_inq",     "so_zerocopy",
                                    "msg_zerocopy",  "sendfile",    "tcp_zerocopy_receive"};
    for (size_t i = 0; i < sizeof need_one / sizeof need_one[0]; i++) {
        CHECK_EQ(feature(need_one[i])->ok, 0);
        CHECK_EQ(feature(need_one[i])->err, EMFILE);
    }
}

/* With one descriptor after the other, every place where one is opened fails once. */
static void running_out_midway_leaks_nothing(void) {
    struct rlimit before, few;
    int highest = dup(STDERR_FILENO);
    CHECK(highest >= 0);
    close(highest);
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (int spare = 0; spare < 6; spare++) {
        int descriptors = count_descriptors();
        few = before;
        few.rlim_cur = (rlim_t)(highest + spare);
        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
        int count = zc_probe(found, ZC_CAPABILITY_COUNT);
        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
        CHECK_EQ(count, ZC_CAPABILITY_COUNT);
        CHECK_EQ(count_descriptors(), descriptors);
    }
}

int main(void) {
    const test_case cases[] = {
        {"every record is consistent", every_record_is_consistent},
        {"too small an array is refused", too_small_an_array_is_refused},
        {"features agree with each other", features_agree_with_each_other},
        {"no descriptor left is an answer", no_descriptor_left_is_an_answer},
        {"running out midway leaks nothing", running_out_midway_leaks_nothing},
    };
    return RUN_TESTS(cases);
}
