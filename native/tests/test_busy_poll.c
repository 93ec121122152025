/* Polling before sleeping: when it is advised, what it finds, when it is given up. */
#define _GNU_SOURCE
#include "support.h"

#include <time.h>
#include <unistd.h>

static pair connection;
static zc_engine *engine;
static uint32_t slot;

static void set_up(uint32_t max_ns, int adaptive) {
    connection = tcp_pair();
    engine = new_engine();
    slot = add(engine, connection.ours, ZC_MODE_DATA);
    CHECK_EQ(zc_engine_set_spin(engine, max_ns, adaptive), 0);
}

static void tear_down(void) {
    free_engine(engine);
    close_pair(connection);
}

static void busy_wait_ns(long nanoseconds) {
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - start.tv_sec) * 1000000000L + now.tv_nsec - start.tv_nsec < nanoseconds);
}

/* Ends the batch; the advice, once no more looks at once are wanted. */
static int settle(void) {
    for (;;) {
        int advice = zc_engine_settle(engine);
        if (advice != ZC_EAGER) {
            return advice;
        }
        CHECK_EQ(zc_engine_poll(engine), 0);
    }
}

/* One message arrives and is received after a wait of at least so long. */
static void receive_after(long nanoseconds) {
    busy_wait_ns(nanoseconds);
    send_all(connection.peer, "x", 1);
    expect_record(engine, slot, ZC_DATA);
}

static void answer_after(long nanoseconds) {
    receive_after(nanoseconds);
    CHECK_EQ(zc_send(engine, slot, "y", 1), 1);
}

static int spin_to_the_end(void) {
    int result;
    do {
        result = zc_engine_spin(engine);
    } while (result == ZC_SPIN_AGAIN);
    return result;
}

static void switched_off_it_is_never_advised(void) {
    set_up(0, 1);
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(settle(), 0);
        answer_after(5000);
    }
    CHECK_EQ(settle(), 0);
    CHECK_EQ(zc_engine_spin(engine), ZC_SPIN_MISS);
    CHECK_EQ(zc_engine_counters(engine)->spins, 0);
    tear_down();
}

static void a_fixed_budget_spins_after_every_batch(void) {
    set_up(20000, 0);
    settle();
    for (int i = 0; i < 3; i++) {
        answer_after(0);
        CHECK_EQ(settle(), ZC_SPIN);
        CHECK_EQ(spin_to_the_end(), ZC_SPIN_MISS);
    }
    CHECK_EQ(zc_engine_counters(engine)->spin_misses, 3);
    tear_down();
}

static void a_spin_finds_what_arrives(void) {
    set_up(UINT32_MAX, 0);
    settle();
    answer_after(0);
    CHECK_EQ(settle(), ZC_SPIN);
    send_all(connection.peer, "ping", 4);
    CHECK_EQ(spin_to_the_end(), ZC_SPIN_HIT);
    CHECK_EQ(zc_engine_counters(engine)->spin_hits, 1);
    CHECK_EQ(expect_record(engine, slot, ZC_DATA).result, 4);
    tear_down();
}

/* A long spin hands the thread back in between: the host loop's timers stay live. */
static void a_long_spin_comes_in_slices(void) {
    set_up(UINT32_MAX, 0);
    settle();
    answer_after(0);
    CHECK_EQ(settle(), ZC_SPIN);
    CHECK_EQ(zc_engine_spin(engine), ZC_SPIN_AGAIN);
    CHECK_EQ(zc_engine_spin(engine), ZC_SPIN_AGAIN);
    tear_down();
}

/* Waits longer than the budget say that spinning would only burn the processor. */
static void a_slow_server_never_spins(void) {
    set_up(1000, 1);
    for (int i = 0; i < 20; i++) {
        CHECK_EQ(settle(), 0);
        answer_after(20000);
    }
    CHECK_EQ(zc_engine_counters(engine)->spins, 0);
    tear_down();
}

/* Rounds of a short wait until a spin is advised again. */
static int short_waits_until_advised(void) {
    for (int rounds = 1;; rounds++) {
        answer_after(10000);
        if (settle() == ZC_SPIN) {
            return rounds;
        }
    }
}

static void each_miss_doubles_the_pause(void) {
    set_up(5 * 1000 * 1000, 1);
    CHECK_EQ(settle(), 0);
    int rounds = short_waits_until_advised();
    for (int miss = 0; miss < 4; miss++) {
        CHECK_EQ(spin_to_the_end(), ZC_SPIN_MISS);
        int next = short_waits_until_advised();
        CHECK(next > rounds);
        /* A preempted round may only make it later, never earlier. */
        rounds = 1 << (miss + 1);
        CHECK(next > rounds);
    }
    CHECK_EQ(zc_engine_counters(engine)->spin_misses, 4);
    tear_down();
}

/* Who is not asked answers nothing: being woken more often would only cost. */
static void a_stream_that_only_receives_never_spins(void) {
    set_up(20000, 0);
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(settle(), 0);
        receive_after(5000);
    }
    CHECK_EQ(zc_engine_counters(engine)->spins, 0);
    tear_down();
}

/* A batch without a wait before it is followed by one more look, and only one. */
static void an_eager_look_that_finds_nothing_is_the_last(void) {
    set_up(0, 0);
    settle();
    receive_after(0);
    if (zc_engine_settle(engine) == ZC_EAGER) {
        CHECK_EQ(zc_engine_poll(engine), 0);
        CHECK_EQ(zc_engine_settle(engine), 0);
    }
    tear_down();
}

static void a_hit_ends_the_pause(void) {
    set_up(5 * 1000 * 1000, 1);
    CHECK_EQ(settle(), 0);
    short_waits_until_advised();
    CHECK_EQ(spin_to_the_end(), ZC_SPIN_MISS);
    short_waits_until_advised();
    send_all(connection.peer, "x", 1);
    CHECK_EQ(spin_to_the_end(), ZC_SPIN_HIT);
    expect_record(engine, slot, ZC_DATA);
    CHECK_EQ(zc_send(engine, slot, "y", 1), 1);
    CHECK_EQ(settle(), ZC_SPIN);
    tear_down();
}

int main(void) {
    const test_case cases[] = {
        {"switched off it is never advised", switched_off_it_is_never_advised},
        {"a fixed budget spins after every batch", a_fixed_budget_spins_after_every_batch},
        {"a spin finds what arrives", a_spin_finds_what_arrives},
        {"a long spin comes in slices", a_long_spin_comes_in_slices},
        {"a slow server never spins", a_slow_server_never_spins},
        {"a stream that only receives", a_stream_that_only_receives_never_spins},
        {"an eager look that finds nothing", an_eager_look_that_finds_nothing_is_the_last},
        {"each miss doubles the pause", each_miss_doubles_the_pause},
        {"a hit ends the pause", a_hit_ends_the_pause},
    };
    return RUN_TESTS(cases);
}
