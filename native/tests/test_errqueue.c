/* The error queue: the parser against well-formed, truncated and random control data, and the
 * real thing over IPv4 and IPv6. */
#define _GNU_SOURCE
#include "support.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <linux/errqueue.h>
#include <netinet/in.h>

#include "zerocopy_internal.h"

enum { ROOM = 256 };

/* Puts one control message at `at` and returns where the next goes. */
static size_t put(char *control, size_t at, int level, int type, const void *data, size_t len) {
    struct cmsghdr header = {.cmsg_len = CMSG_LEN(len), .cmsg_level = level, .cmsg_type = type};
    memcpy(control + at, &header, sizeof header);
    memcpy(control + at + CMSG_LEN(0), data, len);
    return at + CMSG_SPACE(len);
}

static struct sock_extended_err completion(uint32_t lo, uint32_t hi, uint8_t code) {
    return (struct sock_extended_err){
        .ee_origin = SO_EE_ORIGIN_ZEROCOPY, .ee_info = lo, .ee_data = hi, .ee_code = code};
}

static void both_families_are_understood(void) {
    const int families[][2] = {{SOL_IP, IP_RECVERR}, {SOL_IPV6, IPV6_RECVERR}};
    for (int i = 0; i < 2; i++) {
        char control[ROOM] = {0};
        struct sock_extended_err error = completion(UINT32_MAX, 3, SO_EE_CODE_ZEROCOPY_COPIED);
        size_t len = put(control, 0, families[i][0], families[i][1], &error, sizeof error);
        zc_notice notice;
        CHECK_EQ(zc_errqueue_parse(control, len, &notice, 1), 1);
        CHECK_EQ(notice.lo, UINT32_MAX);
        CHECK_EQ(notice.hi, 3);
        CHECK(notice.copied);
    }
}

static void what_is_not_a_completion_is_passed_over(void) {
    char control[ROOM] = {0};
    struct sock_extended_err icmp = {.ee_origin = SO_EE_ORIGIN_ICMP, .ee_errno = ECONNREFUSED};
    struct sock_extended_err failed = completion(1, 1, 0), ours = completion(4, 5, 0);
    failed.ee_errno = ENOMEM;
    size_t len = put(control, 0, SOL_SOCKET, 37, "0123456789abcdef", 16);
    len = put(control, len, SOL_IP, IP_RECVERR, &icmp, sizeof icmp);
    len = put(control, len, SOL_IP, IP_RECVERR, &failed, sizeof failed);
    len = put(control, len, SOL_IP, IP_RECVERR, &ours, sizeof ours - 1); /* too short */
    len = put(control, len, SOL_IP, IP_RECVERR, &ours, sizeof ours);
    CHECK(len <= ROOM);
    zc_notice notices[4];
    CHECK_EQ(zc_errqueue_parse(control, len, notices, 4), 1);
    CHECK_EQ(notices[0].lo, 4);
    CHECK_EQ(notices[0].hi, 5);
    CHECK(!notices[0].copied);
}

static void no_more_than_the_capacity(void) {
    char control[ROOM] = {0};
    struct sock_extended_err ours = completion(0, 0, 0);
    size_t len = 0;
    for (int i = 0; i < 4; i++) {
        len = put(control, len, SOL_IP, IP_RECVERR, &ours, sizeof ours);
    }
    zc_notice notices[4];
    CHECK_EQ(zc_errqueue_parse(control, len, notices, 2), 2);
    CHECK_EQ(zc_errqueue_parse(control, len, notices, 4), 4);
    CHECK_EQ(zc_errqueue_parse(control, len, notices, 0), 0);
}

/* Memory of exactly the length, so that a sanitizer or valgrind sees one byte too far. */
static int parse_exactly(const char *bytes, size_t len) {
    char *copy = malloc(len > 0 ? len : 1);
    memcpy(copy, bytes, len);
    zc_notice notices[4];
    int found = zc_errqueue_parse(copy, len, notices, 4);
    CHECK(found >= 0 && found <= 4);
    free(copy);
    return found;
}

static void every_truncation_is_survived(void) {
    char control[ROOM] = {0};
    struct sock_extended_err ours = completion(7, 9, 0);
    size_t len = put(control, 0, SOL_SOCKET, 37, "0123456789abcdef", 16);
    len = put(control, len, SOL_IPV6, IPV6_RECVERR, &ours, sizeof ours);
    for (size_t cut = 0; cut < len; cut++) {
        CHECK_EQ(parse_exactly(control, cut), 0);
    }
    CHECK_EQ(parse_exactly(control, len), 1);
}

static uint32_t seed = 1;

static uint32_t random_number(void) {
    seed ^= seed << 13;
    seed ^= seed >> 17;
    return seed ^= seed << 5;
}

/* Random bytes, and well-formed messages with random damage: headers mostly, which lead on. */
static void random_control_data_is_survived(void) {
    int found = 0;
    for (int round = 0; round < 300000; round++) {
        char control[ROOM] = {0};
        size_t len = random_number() % (ROOM + 1);
        if (round % 3 == 0) {
            for (size_t i = 0; i < len; i++) {
                control[i] = (char)random_number();
            }
        } else {
            struct sock_extended_err ours = completion(random_number(), random_number(), 1);
            for (size_t at = 0; at + CMSG_SPACE(sizeof ours) <= ROOM;) {
                at = put(control, at, SOL_IP, IP_RECVERR, &ours, sizeof ours);
            }
            for (uint32_t damage = random_number() % 4; damage > 0; damage--) {
                const uint64_t lengths[] = {0, 1, 15, 16, 17, 40, UINT64_MAX, UINT64_MAX - 7,
                                            1ull << 63, INT64_MAX};
                size_t at = random_number() % (ROOM / 8) * 8;
                uint64_t value = lengths[random_number() % 10];
                memcpy(control + at, &value, sizeof value);
            }
        }
        found += parse_exactly(control, len);
    }
    CHECK(found > 100000); /* or the damage leaves nothing to parse */
}

/* -- the real thing ------------------------------------------------------------------------ */

static pair connect_pair(int family) {
    struct sockaddr_storage address = {.ss_family = (sa_family_t)family};
    if (family == AF_INET6) {
        ((struct sockaddr_in6 *)&address)->sin6_addr = in6addr_loopback;
    } else {
        ((struct sockaddr_in *)&address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    }
    socklen_t size = sizeof address;
    int listener = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) < 0) {
        if (family == AF_INET6) {
            SKIP("no IPv6 here");
        }
        CHECK(!"a listener");
    }
    CHECK_EQ(listen(listener, 1), 0);
    CHECK_EQ(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    int ours = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(connect(ours, (struct sockaddr *)&address, size), 0);
    int peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    CHECK(peer >= 0);
    close(listener);
    return (pair){.ours = ours, .peer = peer};
}

static void real_completions_are_read(int family) {
    enum { COUNT = 40 };
    static char bytes[COUNT], got[COUNT];
    pair connection = connect_pair(family);
    if (setsockopt(connection.ours, SOL_SOCKET, SO_ZEROCOPY, &(int){1}, sizeof(int)) < 0) {
        SKIP("no MSG_ZEROCOPY in this kernel");
    }
    zc_inflight *table = zc_inflight_new(0);
    CHECK_EQ(zc_errqueue_reap(connection.ours, table), 0);
    fill_pattern(bytes, COUNT, 8);
    for (int i = 0; i < COUNT; i++) { /* apart from each other, so that each is a notice */
        CHECK_EQ(zc_inflight_reserve(table), 0);
        CHECK_EQ(send(connection.ours, bytes + i, 1, MSG_ZEROCOPY), 1);
        zc_inflight_sent(table, 1, (uint64_t)i + 1);
        CHECK_EQ(zc_inflight_seal(table), 1);
        receive_all(connection.peer, got + i, 1);
        CHECK_EQ(send(connection.peer, "a", 1, 0), 1); /* takes the acknowledgement along */
    }
    while (zc_inflight_outstanding(table) > 0) {
        struct pollfd entry = {.fd = connection.ours};
        CHECK_EQ(poll(&entry, 1, -1), 1);
        CHECK(entry.revents & POLLERR);
        CHECK(zc_errqueue_reap(connection.ours, table) > 0);
    }
    struct pollfd entry = {.fd = connection.ours};
    CHECK_EQ(poll(&entry, 1, 0), 0); /* the queue is empty: EPOLLERR is gone */
    CHECK_EQ(zc_inflight_reported(table), COUNT);
    uint64_t token;
    for (uint64_t i = 0; i < COUNT; i++) {
        CHECK_EQ(zc_inflight_take(table, &token), 1);
        CHECK_EQ(token, i + 1);
    }
    CHECK(memcmp(bytes, got, COUNT) == 0);
    zc_inflight_free(table);
    close_pair(connection);
}

static void completions_over_ipv4(void) { real_completions_are_read(AF_INET); }

static void completions_over_ipv6(void) { real_completions_are_read(AF_INET6); }

int main(void) {
    const test_case cases[] = {
        {"both families are understood", both_families_are_understood},
        {"what is not a completion is passed over", what_is_not_a_completion_is_passed_over},
        {"no more than the capacity", no_more_than_the_capacity},
        {"every truncation is survived", every_truncation_is_survived},
        {"random control data is survived", random_control_data_is_survived},
        {"completions over IPv4", completions_over_ipv4},
        {"completions over IPv6", completions_over_ipv6},
    };
    return RUN_TESTS(cases);
}
