/* Sends without a copy through the engine: completions, what they must not disturb, endings. */
#define _GNU_SOURCE
#include "support.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "zerocopy_internal.h"

enum { SIZE = 64 * 1024, LARGE = 8 * 1024 * 1024 };
static char bytes[LARGE], got[LARGE];

typedef struct {
    pair connection;
    zc_engine *engine;
    uint32_t slot;
} setup;

static setup begin(void) {
    setup s = {.connection = tcp_pair(), .engine = new_engine()};
    s.slot = add(s.engine, s.connection.ours, ZC_MODE_DATA);
    int error = zc_zerocopy_prepare(s.engine, s.slot);
    if (error == -ENOPROTOOPT) {
        SKIP("no MSG_ZEROCOPY in this kernel");
    }
    CHECK_EQ(error, 0);
    return s;
}

static void end(setup s) {
    free_engine(s.engine);
    close_pair(s.connection);
}

static const zc_conn_stats *counters(setup s) { return zc_conn_counters(s.engine, s.slot); }

/* Reads the error queue until nothing is outstanding, sleeping on the engine meanwhile. */
static void complete(setup s) {
    while (zc_zerocopy_reap(s.engine, s.slot) > 0) {
        expect_record(s.engine, s.slot, ZC_COMPLETED);
        zc_engine_settle(s.engine);
    }
}

static uint64_t take(setup s) {
    uint64_t token = 0;
    return zc_zerocopy_take(s.engine, s.slot, &token) ? token : 0;
}

static void the_memory_is_given_back_once_the_peer_has_it(void) {
    setup s = begin();
    fill_pattern(bytes, SIZE, 1);
    CHECK_EQ(zc_send_zerocopy(s.engine, s.slot, bytes, SIZE, 77), SIZE);
    CHECK_EQ(zc_zerocopy_open(s.engine, s.slot), 77);
    CHECK_EQ(zc_engine_counters(s.engine)->zerocopy_outstanding, 1);
    CHECK_EQ(zc_engine_counters(s.engine)->zerocopy_pinned, SIZE);
    CHECK_EQ(zc_zerocopy_seal(s.engine, s.slot), 1);
    CHECK_EQ(zc_zerocopy_open(s.engine, s.slot), 0);
    receive_all(s.connection.peer, got, SIZE);
    complete(s);
    CHECK_EQ(take(s), 77);
    CHECK_EQ(take(s), 0);
    CHECK(memcmp(bytes, got, SIZE) == 0);
    CHECK_EQ(counters(s)->zerocopy_sends, 1);
    CHECK_EQ(counters(s)->zerocopy_bytes, SIZE);
    CHECK_EQ(counters(s)->zerocopy_completed, 1);
    CHECK_EQ(counters(s)->zerocopy_copied, 1); /* as always on loopback */
    CHECK_EQ(counters(s)->bytes_sent, SIZE);
    CHECK_EQ(zc_engine_counters(s.engine)->zerocopy_outstanding, 0);
    CHECK_EQ(zc_engine_counters(s.engine)->zerocopy_pinned, 0);
    end(s);
}

/* Many completions, one record, until the queue is read: then the next is told again. */
static void completions_are_told_once(void) {
    setup s = begin();
    for (int round = 0; round < 2; round++) {
        for (uint64_t i = 1; i <= 5; i++) {
            CHECK_EQ(zc_send_zerocopy(s.engine, s.slot, bytes, 100, i), 100);
            CHECK_EQ(zc_zerocopy_seal(s.engine, s.slot), 1);
            receive_all(s.connection.peer, got, 100);
            send_all(s.connection.peer, "a", 1); /* takes the acknowledgement along */
        }
        zc_event event;
        int told = 0, received = 0;
        while (received < 5 || told == 0) {
            int count = poll_records(s.engine);
            for (int i = 0; i < count; i++) {
                event = zc_engine_records(s.engine)[i];
                CHECK(event.what == ZC_COMPLETED || event.what == ZC_DATA);
                told += event.what == ZC_COMPLETED;
                received += event.what == ZC_DATA ? event.result : 0;
            }
        }
        CHECK_EQ(told, 1);
        CHECK_EQ(zc_send_zerocopy(s.engine, s.slot, bytes, 100, 6), 100); /* one more edge */
        CHECK_EQ(zc_zerocopy_seal(s.engine, s.slot), 1);
        receive_all(s.connection.peer, got, 100);
        send_all(s.connection.peer, "a", 1);
        CHECK_EQ(take_data(s.engine, s.slot, got), 1);
        zc_engine_settle(s.engine);
        expect_quiet(s.engine); /* EPOLLERR is up all the time, and nobody spins */
        CHECK_EQ(zc_zerocopy_reap(s.engine, s.slot), 0);
        for (uint64_t i = 1; i <= 6; i++) {
            CHECK_EQ(take(s), i);
        }
    }
    end(s);
}

/* A completion isn't a hang-up: no read is tried for it, then or later. */
static void completions_do_not_disturb_reading(void) {
    setup s = begin();
    CHECK_EQ(zc_send_zerocopy(s.engine, s.slot, bytes, SIZE, 1), SIZE);
    CHECK_EQ(zc_zerocopy_seal(s.engine, s.slot), 1);
    receive_all(s.connection.peer, got, SIZE);
    expect_record(s.engine, s.slot, ZC_COMPLETED);
    CHECK_EQ(counters(s)->recv_calls, 0);
    complete(s);
    CHECK_EQ(take(s), 1);
    send_all(s.connection.peer, "hello", 5);
    CHECK_EQ(take_data(s.engine, s.slot, got), 5);
    zc_engine_settle(s.engine);
    expect_quiet(s.engine);
    CHECK_EQ(counters(s)->recv_calls, 1); /* a hung-up one would have been read until EAGAIN */
    end(s);
}

static void the_end_of_the_stream_is_still_seen(void) {
    setup s = begin();
    CHECK_EQ(zc_send_zerocopy(s.engine, s.slot, bytes, 10, 1), 10);
    CHECK_EQ(zc_zerocopy_seal(s.engine, s.slot), 1);
    CHECK_EQ(shutdown(s.connection.peer, SHUT_WR), 0);
    bool ended = false, told = false;
    while (!ended || !told) {
        int count = poll_records(s.engine);
        for (int i = 0; i < count; i++) {
            ended |= zc_engine_records(s.engine)[i].what == ZC_EOF;
            told |= zc_engine_records(s.engine)[i].what == ZC_COMPLETED;
        }
        zc_engine_settle(s.engine);
    }
    complete(s);
    CHECK_EQ(take(s), 1);
    end(s);
}

static void a_reset_is_an_error_and_lets_go(void) {
    setup s = begin();
    CHECK_EQ(zc_send_zerocopy(s.engine, s.slot, bytes, LARGE, 1) > 0, 1);
    reset(s.connection.peer);
    bool failed = false;
    while (!failed) {
        int count = poll_records(s.engine);
        for (int i = 0; i < count; i++) {
            zc_event event = zc_engine_records(s.engine)[i];
            failed |= event.what == ZC_ERROR && event.result == -ECONNRESET;
        }
        zc_engine_settle(s.engine);
    }
    CHECK_EQ(zc_zerocopy_seal(s.engine, s.slot), 1);
    CHECK_EQ(zc_zerocopy_reap(s.engine, s.slot), 0);
    CHECK_EQ(take(s), 1);
    free_engine(s.engine);
    close(s.connection.ours);
}

/* Writes more than fits: one write, several sends, several ids. */
static void a_partial_send_goes_on_and_completes_as_one(void) {
    setup s = begin();
    fill_pattern(bytes, LARGE, 2);
    size_t sent = 0, received = 0;
    while (sent < LARGE) {
        int64_t n = zc_send_zerocopy(s.engine, s.slot, bytes + sent, LARGE - sent, 9);
        CHECK(n >= 0);
        sent += (size_t)n;
        for (ssize_t r; (r = recv(s.connection.peer, got + received, LARGE - received,
                                  MSG_DONTWAIT)) > 0;) {
            received += (size_t)r;
        }
        CHECK_EQ(take(s), 0);
        (void)zc_zerocopy_reap(s.engine, s.slot);
    }
    CHECK(counters(s)->zerocopy_sends > 1);
    CHECK_EQ(take(s), 0); /* some of it was reported, but it isn't sealed */
    int state = zc_zerocopy_seal(s.engine, s.slot);
    CHECK(state == 0 || state == 1);
    if (received < LARGE) {
        receive_all(s.connection.peer, got + received, LARGE - received);
    }
    while (zc_zerocopy_reap(s.engine, s.slot) > 0) {
        struct pollfd entry = {.fd = s.connection.ours};
        CHECK_EQ(poll(&entry, 1, -1), 1);
    }
    CHECK_EQ(take(s), 9);
    CHECK_EQ(take(s), 0);
    CHECK(memcmp(bytes, got, LARGE) == 0);
    end(s);
}

static void a_full_socket_consumes_no_id(void) {
    setup s = begin();
    while (zc_send_zerocopy(s.engine, s.slot, bytes, LARGE, 1) > 0) {
    }
    uint64_t sends = counters(s)->zerocopy_sends;
    CHECK_EQ(zc_send_zerocopy(s.engine, s.slot, bytes, LARGE, 1), 0);
    CHECK_EQ(counters(s)->zerocopy_sends, sends);
    CHECK_EQ(zc_zerocopy_disconnect(s.engine, s.slot), 0);
    CHECK_EQ(zc_zerocopy_seal(s.engine, s.slot), 1);
    CHECK_EQ(zc_zerocopy_reap(s.engine, s.slot), 0); /* a disconnect lets go at once */
    CHECK_EQ(take(s), 1);
    end(s);
}

static void a_socket_that_cannot_copies_and_says_why(void) {
    pair connection = unix_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add_with(engine, connection.ours, ZC_MODE_DATA, ZC_CONN_PROBE_AFTER_SHORT);
    CHECK(zc_zerocopy_prepare(engine, slot) < 0);
    CHECK_EQ(zc_send_zerocopy(engine, slot, "hello", 5, 1), 5);
    CHECK_EQ(zc_zerocopy_open(engine, slot), 0);
    CHECK_EQ(zc_zerocopy_seal(engine, slot), -ENOENT);
    CHECK_EQ(zc_conn_counters(engine, slot)->zerocopy_fallback_unsupported, 1);
    receive_all(connection.peer, got, 5);
    CHECK(memcmp(got, "hello", 5) == 0);
    free_engine(engine);
    close_pair(connection);
}

/* Its next id isn't ours to know, and a wrong one would let go of memory too early. */
static void a_socket_that_somebody_else_prepared_is_left_alone(void) {
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    if (setsockopt(connection.ours, SOL_SOCKET, SO_ZEROCOPY, &(int){1}, sizeof(int)) < 0) {
        SKIP("no MSG_ZEROCOPY in this kernel");
    }
    CHECK_EQ(zc_zerocopy_prepare(engine, slot), -EBUSY);
    CHECK_EQ(zc_send_zerocopy(engine, slot, "hello", 5, 1), 5);
    CHECK_EQ(zc_conn_counters(engine, slot)->zerocopy_sends, 0);
    free_engine(engine);
    close_pair(connection);
}

/* The kernel then copies, consumes no id and tells nothing; switched on, it goes on counting. */
static void a_socket_that_is_switched_off_and_on_again(void) {
    setup s = begin();
    enum { STEPS = 6, PART = 10000 };
    for (uint64_t i = 1; i <= STEPS; i++) {
        int on = i % 3 != 2;
        CHECK_EQ(setsockopt(s.connection.ours, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on), 0);
        CHECK_EQ(zc_send_zerocopy(s.engine, s.slot, bytes, PART, i), PART);
        CHECK_EQ(zc_zerocopy_seal(s.engine, s.slot) >= 0, on);
    }
    CHECK_EQ(counters(s)->zerocopy_sends, 4);
    CHECK_EQ(counters(s)->zerocopy_fallback_unsupported, 2);
    receive_all(s.connection.peer, got, STEPS * PART);
    send_all(s.connection.peer, "a", 1);
    while (zc_zerocopy_reap(s.engine, s.slot) > 0) {
        struct pollfd entry = {.fd = s.connection.ours};
        CHECK_EQ(poll(&entry, 1, -1), 1);
    }
    CHECK_EQ(counters(s)->zerocopy_completed, 4);
    int taken = 0;
    while (take(s) != 0) {
        taken++;
    }
    CHECK_EQ(taken, 4);
    end(s);
}

/* However many sends it takes. */
static void a_write_that_is_copied_counts_once(void) {
    setup s = begin();
    CHECK_EQ(zc_zerocopy_prepare(s.engine, s.slot), 0);
    CHECK_EQ(setsockopt(s.connection.ours, SOL_SOCKET, SO_ZEROCOPY, &(int){0}, sizeof(int)), 0);
    for (uint64_t write = 1; write <= 2; write++) {
        for (int part = 0; part < 5; part++) {
            CHECK_EQ(zc_send_zerocopy(s.engine, s.slot, bytes, 100, write), 100);
        }
        CHECK_EQ(zc_zerocopy_seal(s.engine, s.slot), -ENOENT);
        CHECK_EQ(counters(s)->zerocopy_fallback_unsupported, write);
    }
    end(s);
}

static void too_much_in_flight_copies(void) {
    setup s = begin();
    for (uint64_t i = 1; i <= ZC_INFLIGHT_MAX; i++) {
        CHECK_EQ(zc_send_zerocopy(s.engine, s.slot, bytes, 1, i), 1);
        CHECK_EQ(zc_zerocopy_seal(s.engine, s.slot) >= 0, 1);
        if (counters(s)->zerocopy_sends < i) {
            break; /* the kernel's own limit came first */
        }
    }
    uint64_t refused = counters(s)->zerocopy_fallback_limit +
                       counters(s)->zerocopy_fallback_enobufs, sends = counters(s)->zerocopy_sends;
    while (refused == 0) { /* completions came meanwhile, so there was room again */
        CHECK_EQ(zc_send_zerocopy(s.engine, s.slot, bytes, 1, ++sends), 1);
        (void)zc_zerocopy_seal(s.engine, s.slot);
        refused = counters(s)->zerocopy_fallback_limit + counters(s)->zerocopy_fallback_enobufs;
    }
    receive_all(s.connection.peer, got, (size_t)counters(s)->bytes_sent);
    send_all(s.connection.peer, "a", 1);
    while (zc_zerocopy_reap(s.engine, s.slot) > 0) {
        struct pollfd entry = {.fd = s.connection.ours};
        CHECK_EQ(poll(&entry, 1, -1), 1);
    }
    while (take(s) != 0) {
    }
    end(s);
}

/* The connection's owner and its engine are gone; the kernel isn't. */
static void an_orphan_is_kept_until_the_kernel_lets_go(void) {
    setup s = begin();
    while (zc_send_zerocopy(s.engine, s.slot, bytes, LARGE, 5) > 0) {
    }
    CHECK_EQ(zc_zerocopy_seal(s.engine, s.slot), 1);
    int64_t outstanding = zc_zerocopy_reap(s.engine, s.slot);
    CHECK(outstanding > 0);
    CHECK_EQ(zc_zerocopy_take_over(s.engine, s.slot), 0);
    CHECK_EQ(close(s.connection.ours), 0);
    CHECK_EQ(zc_orphan_adopt(s.engine, s.slot), 0);
    disown(s.slot);
    free_engine(s.engine);
    uint64_t token;
    CHECK_EQ(zc_orphans_reap(), 1);
    CHECK_EQ(zc_orphans_take(&token), 0);
    int before = count_descriptors();
    reset(s.connection.peer);
    while (!zc_orphans_take(&token)) {
        CHECK_EQ(zc_orphans_reap(), 1);
    }
    CHECK_EQ(token, 5);
    CHECK_EQ(zc_orphans_reap(), 0);
    CHECK_EQ(count_descriptors(), before - 2); /* closed with the last of its sends */
}

/* A child has memory of its own, and must neither read its parent's notices nor end its
 * connection. */
static void a_child_lets_go_and_leaves_the_parent_s_alone(void) {
    setup s = begin();
    CHECK_EQ(zc_send_zerocopy(s.engine, s.slot, bytes, SIZE, 3), SIZE);
    CHECK_EQ(zc_zerocopy_seal(s.engine, s.slot), 1);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK_EQ(zc_zerocopy_disconnect(s.engine, s.slot), 0);
        CHECK_EQ(zc_zerocopy_reap(s.engine, s.slot), 0);
        CHECK_EQ(take(s), 3);
        CHECK_EQ(zc_send_zerocopy(s.engine, s.slot, bytes, 0, 3), 0);
        _exit(0);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    receive_all(s.connection.peer, got, SIZE);
    complete(s);
    CHECK_EQ(take(s), 3);
    end(s);
}

/* The table has its own: whoever closes or replaces the other changes nothing. */
static void a_stolen_descriptor_changes_nothing(void) {
    setup s = begin();
    while (zc_send_zerocopy(s.engine, s.slot, bytes, LARGE, 1) > 0) {
    }
    (void)zc_zerocopy_seal(s.engine, s.slot);
    pair other = unix_pair();
    CHECK_EQ(dup2(other.ours, s.connection.ours), s.connection.ours);
    CHECK(zc_zerocopy_reap(s.engine, s.slot) > 0);
    CHECK_EQ(zc_zerocopy_disconnect(s.engine, s.slot), 0);
    CHECK_EQ(zc_zerocopy_reap(s.engine, s.slot), 0);
    CHECK_EQ(take(s), 1);
    close_pair(other);
    end(s);
}

static void after_taking_over_the_number_may_be_reused(void) {
    setup s = begin();
    while (zc_send_zerocopy(s.engine, s.slot, bytes, LARGE, 1) > 0) {
    }
    (void)zc_zerocopy_seal(s.engine, s.slot);
    CHECK(zc_zerocopy_reap(s.engine, s.slot) > 0);
    CHECK_EQ(zc_zerocopy_take_over(s.engine, s.slot), 0);
    int number = s.connection.ours;
    CHECK_EQ(close(number), 0);
    pair other = tcp_pair();
    CHECK_EQ(dup2(other.ours, number), number);
    uint32_t second = add(s.engine, number, ZC_MODE_DATA);
    reset(s.connection.peer);
    bool told = false;
    while (!told) {
        int count = poll_records(s.engine);
        for (int i = 0; i < count; i++) {
            CHECK_EQ(zc_engine_records(s.engine)[i].slot, s.slot);
            told |= zc_engine_records(s.engine)[i].what == ZC_COMPLETED;
        }
        zc_engine_settle(s.engine);
    }
    CHECK_EQ(zc_zerocopy_reap(s.engine, s.slot), 0);
    CHECK_EQ(take(s), 1);
    CHECK_EQ(forget(s.engine, s.slot), 0);
    send_all(other.peer, "hello", 5); /* the other connection is still watched */
    CHECK_EQ(take_data(s.engine, second, got), 5);
    free_engine(s.engine);
    CHECK_EQ(close(number), 0);
    close_pair(other);
}

static void lingering_keeps_a_stricter_bound(void) {
    setup s = begin();
    CHECK_EQ(zc_linger(s.engine, s.slot, 5000), 0);
    CHECK_EQ(zc_linger(s.engine, s.slot, 9000), 0);
    unsigned now = 0;
    socklen_t size = sizeof now;
    CHECK_EQ(getsockopt(s.connection.ours, 6, 18, &now, &size), 0); /* TCP_USER_TIMEOUT */
    CHECK_EQ(now, 5000);
    CHECK_EQ(zc_linger(s.engine, s.slot, 1000), 0);
    CHECK_EQ(getsockopt(s.connection.ours, 6, 18, &now, &size), 0);
    CHECK_EQ(now, 1000);
    end(s);
}

static void finishing_shuts_down_what_is_read_to_the_end(void) {
    setup s = begin();
    CHECK_EQ(zc_zerocopy_prepare(s.engine, s.slot), 0);
    CHECK_EQ(zc_zerocopy_finish(s.engine, s.slot), 0);
    CHECK_EQ(recv(s.connection.peer, got, sizeof got, 0), 0);
    send_all(s.connection.peer, "late", 4);
    CHECK_EQ(recv(s.connection.peer, got, sizeof got, 0), 0);
    CHECK(send(s.connection.peer, "x", 1, MSG_NOSIGNAL) < 0); /* it was reset */
    end(s);
}

static void finishing_tells_of_something_unread(void) {
    setup s = begin();
    CHECK_EQ(zc_zerocopy_prepare(s.engine, s.slot), 0);
    send_all(s.connection.peer, "unread", 6);
    CHECK_EQ(zc_zerocopy_finish(s.engine, s.slot), 1);
    end(s);
}

int main(void) {
    const test_case cases[] = {
        {"the memory is given back", the_memory_is_given_back_once_the_peer_has_it},
        {"completions are told once", completions_are_told_once},
        {"completions do not disturb reading", completions_do_not_disturb_reading},
        {"the end of the stream is still seen", the_end_of_the_stream_is_still_seen},
        {"a reset", a_reset_is_an_error_and_lets_go},
        {"a partial send", a_partial_send_goes_on_and_completes_as_one},
        {"a full socket", a_full_socket_consumes_no_id},
        {"a socket that can't", a_socket_that_cannot_copies_and_says_why},
        {"a socket of somebody else's", a_socket_that_somebody_else_prepared_is_left_alone},
        {"switched off and on again", a_socket_that_is_switched_off_and_on_again},
        {"copied writes are counted", a_write_that_is_copied_counts_once},
        {"too much in flight", too_much_in_flight_copies},
        {"an orphan", an_orphan_is_kept_until_the_kernel_lets_go},
        {"a child", a_child_lets_go_and_leaves_the_parent_s_alone},
        {"a stolen descriptor", a_stolen_descriptor_changes_nothing},
        {"a number used again", after_taking_over_the_number_may_be_reused},
        {"a stricter bound", lingering_keeps_a_stricter_bound},
        {"finishing", finishing_shuts_down_what_is_read_to_the_end},
        {"something unread", finishing_tells_of_something_unread},
    };
    return RUN_TESTS(cases);
}
