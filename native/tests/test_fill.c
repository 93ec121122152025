/* Filling a caller's memory in place, with SO_RCVLOWAT aimed at what is left. */
#define _GNU_SOURCE
#include "support.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SIZE = 512 * 1024 };
static char sent[SIZE], got[SIZE];

static int lowat_of(int fd) {
    int value = 0;
    socklen_t size = sizeof value;
    CHECK_EQ(getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &value, &size), 0);
    return value;
}

static void what_is_there_already_ends_the_fill_at_once(void) {
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_BUFFERED);
    send_all(connection.peer, "abcdef", 6);
    expect_record(engine, slot, ZC_READABLE);
    CHECK_EQ(zc_fill_begin(engine, slot, got, 4), 4);
    CHECK(memcmp(got, "abcd", 4) == 0);
    expect_record(engine, slot, ZC_READABLE);
    CHECK_EQ(zc_recv(engine, slot, got, SIZE), 2);
    CHECK(memcmp(got, "ef", 2) == 0);
    free_engine(engine);
    close_pair(connection);
}

/* The peer writes as the window lets it, and one record says that all has come. */
static void a_long_fill_takes_one_record(void) {
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_BUFFERED);
    fill_pattern(sent, SIZE, 2);
    memset(got, 0, SIZE);
    CHECK_EQ(zc_fill_begin(engine, slot, got, SIZE), 0);
    CHECK(lowat_of(connection.ours) > 1);
    size_t written = 0;
    int count = 0;
    while (count == 0) {
        ssize_t now =
            send(connection.peer, sent + written, SIZE - written, MSG_DONTWAIT | MSG_NOSIGNAL);
        CHECK(now >= 0 || errno == EAGAIN);
        written += now > 0 ? (size_t)now : 0;
        count = zc_engine_poll(engine);
    }
    CHECK_EQ(count, 1);
    CHECK_EQ(zc_engine_records(engine)[0].what, ZC_FILLED);
    CHECK_EQ(zc_engine_records(engine)[0].slot, slot);
    CHECK_EQ(zc_fill_end(engine, slot), SIZE);
    CHECK(memcmp(sent, got, SIZE) == 0);
    CHECK_EQ(lowat_of(connection.ours), 1);
    CHECK_EQ(zc_conn_counters(engine, slot)->bytes_filled, SIZE);
    /* A fill that got all it asked for can't know that no more has come. */
    if (zc_engine_pending(engine)) {
        expect_record(engine, slot, ZC_READABLE);
        CHECK_EQ(zc_recv(engine, slot, got, SIZE), -EAGAIN);
    }
    expect_quiet(engine);
    free_engine(engine);
    close_pair(connection);
}

/* A tail below the lowat causes no event, ever: the lowat must shrink with it. */
static void a_short_tail_still_ends_the_fill(void) {
    enum { TAIL = 10 };
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_BUFFERED);
    CHECK_EQ(zc_fill_begin(engine, slot, got, 100 * 1024), 0);
    send_all(connection.peer, sent, 100 * 1024 - TAIL);
    while (zc_conn_counters(engine, slot)->bytes_filled < 100 * 1024 - TAIL) {
        CHECK_EQ(zc_engine_poll(engine), 0);
        /* Below the lowat nothing wakes us; the tail does. */
        if (lowat_of(connection.ours) > TAIL) {
            break;
        }
    }
    send_all(connection.peer, sent, TAIL);
    expect_record(engine, slot, ZC_FILLED);
    CHECK_EQ(zc_fill_end(engine, slot), 100 * 1024);
    free_engine(engine);
    close_pair(connection);
}

static void an_unfinished_fill_can_be_taken_back(void) {
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_BUFFERED);
    send_all(connection.peer, "abc", 3);
    expect_record(engine, slot, ZC_READABLE);
    CHECK_EQ(zc_fill_begin(engine, slot, got, SIZE), 3);
    CHECK_EQ(zc_fill_end(engine, slot), 3);
    CHECK(memcmp(got, "abc", 3) == 0);
    CHECK_EQ(lowat_of(connection.ours), 1);
    /* One byte is news again. */
    send_all(connection.peer, "d", 1);
    expect_record(engine, slot, ZC_READABLE);
    CHECK_EQ(zc_recv(engine, slot, got, SIZE), 1);
    free_engine(engine);
    close_pair(connection);
}

/* Bytes that came below the lowat while the fill was on must not be forgotten. */
static void ending_a_fill_announces_what_it_left(void) {
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_BUFFERED);
    CHECK_EQ(zc_fill_begin(engine, slot, got, SIZE), 0);
    CHECK(lowat_of(connection.ours) > 5);
    send_all(connection.peer, "hello", 5);
    int64_t done = zc_fill_end(engine, slot);
    if (done == 0) {
        expect_record(engine, slot, ZC_READABLE);
        done = zc_recv(engine, slot, got, SIZE);
    }
    CHECK_EQ(done, 5);
    CHECK(memcmp(got, "hello", 5) == 0);
    free_engine(engine);
    close_pair(connection);
}

static void a_fin_ends_the_fill_and_is_reported_after_it(void) {
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    CHECK_EQ(zc_fill_begin(engine, slot, got, SIZE), 0);
    send_all(connection.peer, "partial", 7);
    CHECK_EQ(shutdown(connection.peer, SHUT_WR), 0);
    expect_record(engine, slot, ZC_FILLED);
    CHECK_EQ(zc_fill_end(engine, slot), 7);
    CHECK(memcmp(got, "partial", 7) == 0);
    expect_record(engine, slot, ZC_EOF);
    free_engine(engine);
    close_pair(connection);
}

/* The kernel reports a reset once; the fill that met it must not swallow it, or the
 * stream would seem to have ended well. */
static void a_reset_during_a_fill_is_reported_after_it(void) {
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    CHECK_EQ(zc_fill_begin(engine, slot, got, SIZE), 0);
    reset(connection.peer);
    expect_record(engine, slot, ZC_FILLED);
    CHECK_EQ(zc_fill_end(engine, slot), 0);
    CHECK_EQ(expect_record(engine, slot, ZC_ERROR).result, -ECONNRESET);
    free_engine(engine);
    close(connection.ours);
}

static void a_reset_before_a_fill_is_reported_after_it(void) {
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_BUFFERED);
    reset(connection.peer);
    expect_record(engine, slot, ZC_READABLE);
    CHECK_EQ(zc_fill_begin(engine, slot, got, SIZE), 0);
    expect_record(engine, slot, ZC_FILLED);
    CHECK_EQ(zc_fill_end(engine, slot), 0);
    expect_record(engine, slot, ZC_READABLE);
    CHECK_EQ(zc_recv(engine, slot, got, SIZE), -ECONNRESET);
    free_engine(engine);
    close(connection.ours);
}

static void a_lowat_set_by_hand_holds(void) {
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    CHECK_EQ(zc_set_lowat(engine, slot, 3), 0);
    CHECK_EQ(lowat_of(connection.ours), 3);
    send_all(connection.peer, "ab", 2);
    expect_quiet(engine);
    send_all(connection.peer, "c", 1);
    CHECK_EQ(expect_record(engine, slot, ZC_DATA).result, 3);
    CHECK_EQ(zc_set_lowat(engine, slot, 0), -EINVAL);
    free_engine(engine);
    close_pair(connection);
}

int main(void) {
    const test_case cases[] = {
        {"what is there already", what_is_there_already_ends_the_fill_at_once},
        {"a long fill takes one record", a_long_fill_takes_one_record},
        {"a short tail", a_short_tail_still_ends_the_fill},
        {"an unfinished fill can be taken back", an_unfinished_fill_can_be_taken_back},
        {"ending a fill announces what it left", ending_a_fill_announces_what_it_left},
        {"a FIN ends the fill", a_fin_ends_the_fill_and_is_reported_after_it},
        {"a reset during a fill", a_reset_during_a_fill_is_reported_after_it},
        {"a reset before a fill", a_reset_before_a_fill_is_reported_after_it},
        {"a lowat set by hand", a_lowat_set_by_hand_holds},
    };
    return RUN_TESTS(cases);
}
