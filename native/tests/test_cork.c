/* Corking: what one callback writes leaves together, in order, and at once elsewhere. */
#define _GNU_SOURCE
#include "support.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SIZE = 1024 * 1024 };
static char bytes[SIZE], got[SIZE];

/* A connection in the middle of a batch: one message was reported, none settled. */
typedef struct {
    pair connection;
    zc_engine *engine;
    uint32_t slot;
} batch;

static batch start_batch(void) {
    batch b = {.connection = tcp_pair(), .engine = new_engine()};
    b.slot = add(b.engine, b.connection.ours, ZC_MODE_DATA);
    CHECK_EQ(setsockopt(b.connection.ours, SOL_SOCKET, SO_SNDBUF, &(int){8192}, sizeof(int)), 0);
    send_all(b.connection.peer, "request", 7);
    expect_record(b.engine, b.slot, ZC_DATA);
    return b;
}

static void end(batch b) {
    free_engine(b.engine);
    close_pair(b.connection);
}

static void expect_nothing_at(int fd) {
    CHECK_EQ(recv(fd, got, 1, MSG_DONTWAIT | MSG_PEEK), -1);
    CHECK_EQ(errno, EAGAIN);
}

static void outside_a_batch_a_write_leaves_at_once(void) {
    batch b = start_batch();
    zc_engine_settle(b.engine);
    CHECK_EQ(zc_write(b.engine, b.slot, "now", 3), 3);
    CHECK_EQ(zc_cork_slot(b.engine), -1);
    receive_all(b.connection.peer, got, 3);
    end(b);
}

static void writes_of_one_callback_leave_in_one_send(void) {
    batch b = start_batch();
    CHECK_EQ(zc_write(b.engine, b.slot, "header ", 7), 7);
    CHECK_EQ(zc_write(b.engine, b.slot, "", 0), 0);
    CHECK_EQ(zc_write(b.engine, b.slot, "body", 4), 4);
    CHECK_EQ(zc_cork_slot(b.engine), b.slot);
    expect_nothing_at(b.connection.peer);
    CHECK_EQ(zc_uncork(b.engine), 0);
    CHECK_EQ(zc_cork_slot(b.engine), -1);
    receive_all(b.connection.peer, got, 11);
    CHECK(memcmp(got, "header body", 11) == 0);
    CHECK_EQ(zc_conn_counters(b.engine, b.slot)->send_calls, 1);
    end(b);
}

static void the_caller_may_reuse_its_memory(void) {
    char message[] = "mine";
    batch b = start_batch();
    CHECK_EQ(zc_write(b.engine, b.slot, message, 4), 4);
    memset(message, 'x', 4);
    CHECK_EQ(zc_uncork(b.engine), 0);
    receive_all(b.connection.peer, got, 4);
    CHECK(memcmp(got, "mine", 4) == 0);
    end(b);
}

static void a_write_that_does_not_fit_sends_what_is_held_first(void) {
    batch b = start_batch();
    CHECK_EQ(
        setsockopt(b.connection.ours, SOL_SOCKET, SO_SNDBUF, &(int){4 * ZC_CORK_MAX}, sizeof(int)),
        0);
    fill_pattern(bytes, ZC_CORK_MAX + 10, 7);
    CHECK_EQ(zc_write(b.engine, b.slot, bytes, 10), 10);
    CHECK_EQ(zc_write(b.engine, b.slot, bytes + 10, ZC_CORK_MAX), ZC_CORK_MAX);
    CHECK_EQ(zc_uncork(b.engine), 0);
    receive_all(b.connection.peer, got, ZC_CORK_MAX + 10);
    CHECK(memcmp(bytes, got, ZC_CORK_MAX + 10) == 0);
    CHECK_EQ(zc_conn_counters(b.engine, b.slot)->send_calls, 2);
    end(b);
}

static void a_write_too_large_to_hold_goes_after_what_is_held(void) {
    batch b = start_batch();
    CHECK_EQ(zc_write(b.engine, b.slot, "first ", 6), 6);
    int64_t taken = zc_write(b.engine, b.slot, bytes, ZC_CORK_MAX + 1);
    CHECK(taken > 0);
    CHECK_EQ(zc_cork_slot(b.engine), -1);
    receive_all(b.connection.peer, got, 6);
    CHECK(memcmp(got, "first ", 6) == 0);
    end(b);
}

static void writing_to_another_connection_sends_the_first_one_s(void) {
    batch b = start_batch();
    pair other = tcp_pair();
    uint32_t other_slot = add(b.engine, other.ours, ZC_MODE_DATA);
    CHECK_EQ(zc_write(b.engine, b.slot, "one", 3), 3);
    CHECK_EQ(zc_write(b.engine, other_slot, "two", 3), 3);
    receive_all(b.connection.peer, got, 3);
    CHECK(memcmp(got, "one", 3) == 0);
    CHECK_EQ(zc_cork_slot(b.engine), other_slot);
    CHECK_EQ(zc_uncork(b.engine), 0);
    receive_all(other.peer, got, 3);
    CHECK(memcmp(got, "two", 3) == 0);
    close_pair(other);
    end(b);
}

/* What the kernel doesn't take is handed back, to the byte. */
static void a_full_socket_hands_back_the_rest(void) {
    char rest[ZC_CORK_MAX];
    batch b = start_batch();
    while (zc_send(b.engine, b.slot, bytes, SIZE) > 0) {
    }
    fill_pattern(bytes, ZC_CORK_MAX, 8);
    CHECK_EQ(zc_write(b.engine, b.slot, bytes, ZC_CORK_MAX), ZC_CORK_MAX);
    CHECK_EQ(zc_uncork(b.engine), -1);
    CHECK_EQ(zc_cork_slot(b.engine), b.slot);
    CHECK_EQ(zc_cork_error(b.engine), 0);
    size_t left = zc_cork_take(b.engine, rest);
    CHECK_EQ(left, ZC_CORK_MAX);
    CHECK(memcmp(rest, bytes, ZC_CORK_MAX) == 0);
    CHECK_EQ(zc_cork_slot(b.engine), -1);
    CHECK_EQ(zc_uncork(b.engine), 0);
    end(b);
}

/* A partial send: what left and what is handed back are the whole, in order. */
static void a_partial_send_hands_back_what_follows(void) {
    static char rest[ZC_CORK_MAX];
    batch b = start_batch();
    while (zc_send(b.engine, b.slot, "", 1) > 0) {
    }
    /* Room for less than the cork holds: the peer takes a little. */
    size_t before = 0;
    int uncorked = 0;
    fill_pattern(bytes, ZC_CORK_MAX, 9);
    for (ssize_t n; (n = recv(b.connection.peer, got, 2048, MSG_DONTWAIT)) > 0 && before < 4096;) {
        before += (size_t)n;
    }
    CHECK_EQ(zc_write(b.engine, b.slot, bytes, ZC_CORK_MAX), ZC_CORK_MAX);
    uncorked = zc_uncork(b.engine);
    size_t left = uncorked == 0 ? 0 : zc_cork_take(b.engine, rest);
    size_t sent = ZC_CORK_MAX - left;
    CHECK(memcmp(rest, bytes + sent, left) == 0);
    CHECK_EQ(shutdown(b.connection.ours, SHUT_WR), 0);
    size_t total = 0;
    for (ssize_t n; (n = recv(b.connection.peer, got + total, SIZE - total, 0)) > 0;) {
        total += (size_t)n;
    }
    CHECK(total >= sent);
    CHECK(memcmp(got + total - sent, bytes, sent) == 0);
    end(b);
}

static void a_peer_that_reset_is_an_error_of_the_cork(void) {
    char rest[ZC_CORK_MAX];
    batch b = start_batch();
    reset(b.connection.peer);
    CHECK_EQ(zc_write(b.engine, b.slot, "x", 1), 1);
    CHECK_EQ(zc_uncork(b.engine), -1);
    CHECK_EQ(zc_cork_slot(b.engine), b.slot);
    CHECK_EQ(zc_cork_error(b.engine), -ECONNRESET);
    CHECK_EQ(zc_cork_take(b.engine, rest), 1);
    free_engine(b.engine);
    close(b.connection.ours);
}

/* Nobody else's write may overtake what waits to be taken back. */
static void nothing_is_written_before_the_rest_is_taken(void) {
    char rest[ZC_CORK_MAX];
    batch b = start_batch();
    pair other = tcp_pair();
    uint32_t other_slot = add(b.engine, other.ours, ZC_MODE_DATA);
    while (zc_send(b.engine, b.slot, bytes, SIZE) > 0) {
    }
    CHECK_EQ(zc_write(b.engine, b.slot, bytes, 100), 100);
    CHECK_EQ(zc_write(b.engine, other_slot, "two", 3), -EBUSY);
    CHECK_EQ(zc_cork_slot(b.engine), b.slot);
    CHECK_EQ(zc_cork_take(b.engine, rest), 100);
    CHECK_EQ(zc_write(b.engine, other_slot, "two", 3), 3);
    CHECK_EQ(zc_uncork(b.engine), 0);
    receive_all(other.peer, got, 3);
    close_pair(other);
    end(b);
}

static void a_removed_connection_takes_its_corked_bytes_along(void) {
    batch b = start_batch();
    CHECK_EQ(zc_write(b.engine, b.slot, "gone", 4), 4);
    CHECK_EQ(forget(b.engine, b.slot), 0);
    CHECK_EQ(zc_cork_slot(b.engine), -1);
    CHECK_EQ(zc_uncork(b.engine), 0);
    expect_nothing_at(b.connection.peer);
    end(b);
}

int main(void) {
    const test_case cases[] = {
        {"outside a batch", outside_a_batch_a_write_leaves_at_once},
        {"writes of one callback", writes_of_one_callback_leave_in_one_send},
        {"the caller may reuse its memory", the_caller_may_reuse_its_memory},
        {"a write that doesn't fit", a_write_that_does_not_fit_sends_what_is_held_first},
        {"a write too large to hold", a_write_too_large_to_hold_goes_after_what_is_held},
        {"another connection", writing_to_another_connection_sends_the_first_one_s},
        {"a full socket hands back the rest", a_full_socket_hands_back_the_rest},
        {"a partial send", a_partial_send_hands_back_what_follows},
        {"a peer that reset", a_peer_that_reset_is_an_error_of_the_cork},
        {"a removed connection", a_removed_connection_takes_its_corked_bytes_along},
        {"nothing before the rest is taken", nothing_is_written_before_the_rest_is_taken},
    };
    return RUN_TESTS(cases);
}
