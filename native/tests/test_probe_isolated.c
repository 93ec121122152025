/* In a network namespace whose loopback device is down, the probe says so. */
#define _GNU_SOURCE
#include "support.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

int main(void) {
    static zc_capability found[ZC_CAPABILITY_COUNT];
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
        SKIP("this user may not make a network namespace");
    }
    int before = count_descriptors();
    CHECK_EQ(zc_probe(found, ZC_CAPABILITY_COUNT), ZC_CAPABILITY_COUNT);
    CHECK_EQ(count_descriptors(), before);
    int unreachable = 0;
    for (int i = 0; i < ZC_CAPABILITY_COUNT; i++) {
        if (strcmp(found[i].name, "msg_zerocopy") == 0 || strcmp(found[i].name, "tcp_inq") == 0) {
            CHECK_EQ(found[i].err, ENETUNREACH);
            unreachable++;
        }
        if (strcmp(found[i].name, "so_zerocopy") == 0) {
            CHECK(found[i].err != ENETUNREACH);
        }
    }
    CHECK_EQ(unreachable, 2);
    return EXIT_SUCCESS;
}
