/* The table of sends in flight: wrap, parts, order, bounds, and a model that it must agree with. */
#include "support.h"

#include <errno.h>
#include <string.h>

#include "zerocopy_internal.h"

static uint64_t take(zc_inflight *table) {
    uint64_t token = 0;
    return zc_inflight_take(table, &token) ? token : 0;
}

static void sent(zc_inflight *table, size_t bytes, uint64_t token) {
    CHECK_EQ(zc_inflight_reserve(table), 0);
    zc_inflight_sent(table, bytes, token);
}

static void a_write_is_done_when_sealed_and_reported(void) {
    zc_inflight *table = zc_inflight_new(0);
    sent(table, 100, 7);
    CHECK_EQ(zc_inflight_open(table), 7);
    CHECK_EQ(zc_inflight_outstanding(table), 1);
    CHECK_EQ(zc_inflight_pinned(table), 100);
    CHECK_EQ(zc_inflight_seal(table), 1);
    CHECK_EQ(zc_inflight_open(table), 0);
    CHECK_EQ(take(table), 0);
    CHECK_EQ(zc_inflight_report(table, 0, 0, false), 0);
    CHECK_EQ(zc_inflight_outstanding(table), 0);
    CHECK_EQ(zc_inflight_pinned(table), 0);
    CHECK(!zc_inflight_idle(table)); /* until it was taken */
    CHECK_EQ(take(table), 7);
    CHECK(zc_inflight_idle(table));
    CHECK_EQ(zc_inflight_reported(table), 1);
    CHECK_EQ(zc_inflight_copied(table), 0);
    zc_inflight_free(table);
}

static void a_write_that_may_get_more_sends_is_not_done(void) {
    zc_inflight *table = zc_inflight_new(0);
    sent(table, 1, 5);
    CHECK_EQ(zc_inflight_report(table, 0, 0, true), 0);
    CHECK_EQ(take(table), 0); /* its rest is still to be sent */
    CHECK(!zc_inflight_idle(table));
    sent(table, 1, 5);
    CHECK_EQ(zc_inflight_seal(table), 1);
    CHECK_EQ(take(table), 0);
    CHECK_EQ(zc_inflight_report(table, 1, 1, false), 0);
    CHECK_EQ(take(table), 5);
    CHECK_EQ(zc_inflight_copied(table), 1); /* remembered for the range, not the write */
    sent(table, 1, 6);
    CHECK_EQ(zc_inflight_report(table, 2, 2, false), 0);
    CHECK_EQ(zc_inflight_seal(table), 0); /* everything of it was reported before */
    CHECK_EQ(zc_inflight_seal(table), -ENOENT);
    CHECK_EQ(take(table), 6);
    zc_inflight_free(table);
}

static void ranges_cover_parts_of_a_write_in_any_order(void) {
    zc_inflight *table = zc_inflight_new(0);
    for (uint64_t token = 1; token <= 3; token++) {
        for (int i = 0; i < 4; i++) {
            sent(table, 10, token);
        }
        CHECK_EQ(zc_inflight_seal(table), 1);
    }
    CHECK_EQ(zc_inflight_report(table, 6, 9, false), 0); /* half of 2, half of 3 */
    CHECK_EQ(take(table), 0);
    CHECK_EQ(zc_inflight_report(table, 10, 11, false), 0);
    CHECK_EQ(take(table), 3);
    CHECK_EQ(take(table), 0);
    CHECK_EQ(zc_inflight_report(table, 1, 5, false), 0);
    CHECK_EQ(take(table), 2);
    CHECK_EQ(take(table), 0);
    CHECK_EQ(zc_inflight_outstanding(table), 1);
    CHECK_EQ(zc_inflight_pinned(table), 10);
    CHECK_EQ(zc_inflight_report(table, 0, 0, false), 0);
    CHECK_EQ(take(table), 1);
    zc_inflight_free(table);
}

static void ids_wrap(void) {
    zc_inflight *table = zc_inflight_new(UINT32_MAX - 2);
    for (uint64_t token = 1; token <= 6; token++) { /* ids -3 to 2 */
        sent(table, 1, token);
        CHECK_EQ(zc_inflight_seal(table), 1);
    }
    CHECK_EQ(zc_inflight_report(table, 2, 2, false), 0);
    CHECK_EQ(take(table), 6);
    CHECK_EQ(zc_inflight_report(table, UINT32_MAX, 0, true), 0); /* lo > hi */
    CHECK_EQ(take(table), 3);
    CHECK_EQ(take(table), 4);
    CHECK_EQ(take(table), 0);
    CHECK_EQ(zc_inflight_copied(table), 2);
    CHECK_EQ(zc_inflight_report(table, UINT32_MAX - 2, UINT32_MAX - 1, false), 0);
    CHECK_EQ(zc_inflight_report(table, 1, 1, false), 0);
    CHECK_EQ(take(table), 1);
    CHECK_EQ(take(table), 2);
    CHECK_EQ(take(table), 5);
    CHECK(zc_inflight_idle(table));
    zc_inflight_free(table);
}

/* A range that ends at the last id: the loop over it must end too. */
static void a_range_up_to_the_last_id(void) {
    zc_inflight *table = zc_inflight_new(UINT32_MAX);
    sent(table, 1, 1);
    CHECK_EQ(zc_inflight_seal(table), 1);
    CHECK_EQ(zc_inflight_report(table, UINT32_MAX, UINT32_MAX, false), 0);
    CHECK_EQ(take(table), 1);
    zc_inflight_free(table);
}

static void what_is_not_outstanding_changes_nothing(void) {
    zc_inflight *table = zc_inflight_new(10);
    CHECK_EQ(zc_inflight_report(table, 10, 10, false), -EPROTO);
    sent(table, 1, 1);
    sent(table, 1, 1);
    CHECK_EQ(zc_inflight_seal(table), 1);
    CHECK_EQ(zc_inflight_report(table, 9, 10, false), -EPROTO);
    CHECK_EQ(zc_inflight_report(table, 10, 12, false), -EPROTO);
    CHECK_EQ(zc_inflight_report(table, 11, 10, false), -EPROTO); /* 2^32 ids */
    CHECK_EQ(zc_inflight_report(table, 0, UINT32_MAX, false), -EPROTO);
    CHECK_EQ(zc_inflight_outstanding(table), 2);
    CHECK_EQ(zc_inflight_report(table, 11, 11, false), 0);
    CHECK_EQ(zc_inflight_report(table, 11, 11, false), 0); /* twice: counted once */
    CHECK_EQ(zc_inflight_outstanding(table), 1);
    CHECK_EQ(take(table), 0);
    CHECK_EQ(zc_inflight_report(table, 10, 11, false), 0);
    CHECK_EQ(take(table), 1);
    CHECK_EQ(zc_inflight_report(table, 10, 11, false), -EPROTO);
    zc_inflight_free(table);
}

static void the_table_is_bounded(void) {
    zc_inflight *table = zc_inflight_new(UINT32_MAX - 100);
    uint32_t first = UINT32_MAX - 100;
    for (uint64_t i = 0; i < ZC_INFLIGHT_MAX; i++) {
        sent(table, 1, i + 1);
        CHECK_EQ(zc_inflight_seal(table), 1);
    }
    CHECK_EQ(zc_inflight_reserve(table), -ENOBUFS);
    CHECK_EQ(zc_inflight_report(table, first + 1, first + ZC_INFLIGHT_MAX - 1, false), 0);
    CHECK_EQ(zc_inflight_reserve(table), -ENOBUFS); /* the oldest holds the window */
    for (uint64_t i = 1; i < ZC_INFLIGHT_MAX; i++) {
        CHECK_EQ(take(table), i + 1);
    }
    CHECK_EQ(zc_inflight_report(table, first, first, false), 0);
    CHECK_EQ(zc_inflight_reserve(table), -ENOBUFS); /* not taken yet */
    CHECK_EQ(take(table), 1);
    CHECK_EQ(zc_inflight_reserve(table), 0);
    zc_inflight_free(table);
}

static void forgetting_completes_everything(void) {
    zc_inflight *table = zc_inflight_new(0);
    sent(table, 5, 1);
    CHECK_EQ(zc_inflight_seal(table), 1);
    sent(table, 5, 2); /* stays open */
    zc_inflight_forget(table);
    CHECK_EQ(zc_inflight_outstanding(table), 0);
    CHECK_EQ(zc_inflight_pinned(table), 0);
    CHECK_EQ(take(table), 1);
    CHECK_EQ(take(table), 2);
    CHECK(zc_inflight_idle(table));
    zc_inflight_free(table);
}

/* -- against a model ---------------------------------------------------------------------- */

enum { WRITES = 4000, SENDS = 3 * WRITES };

static uint32_t seed = 1;

static uint32_t below(uint32_t bound) {
    seed = seed * 1103515245u + 12345u;
    return (seed >> 8) % bound;
}

/* What the simple way knows: for each send its write, for each write its sends left. */
static struct {
    uint32_t write_of[SENDS], left[WRITES], sends, writes;
    bool reported[SENDS], sealed[WRITES], given[WRITES];
} model;

static void report_somewhere(zc_inflight *table, uint32_t first_id, uint32_t oldest) {
    uint32_t lo = oldest + below(model.sends - oldest), hi = lo;
    if (model.reported[lo]) {
        return;
    }
    for (uint32_t more = below(5); more > 0 && hi + 1 < model.sends && !model.reported[hi + 1];
         more--) {
        hi++;
    }
    CHECK_EQ(zc_inflight_report(table, first_id + lo, first_id + hi, below(2)), 0);
    for (uint32_t i = lo; i <= hi; i++) {
        model.reported[i] = true;
        model.left[model.write_of[i]]--;
    }
}

static void take_all(zc_inflight *table) {
    for (uint64_t token; (token = take(table)) != 0;) {
        uint32_t write = (uint32_t)token - 1;
        CHECK(model.sealed[write]);
        CHECK_EQ(model.left[write], 0);
        CHECK(!model.given[write]);
        model.given[write] = true;
    }
    for (uint32_t i = 0; i < model.writes; i++) { /* nothing that is done stays behind */
        CHECK(model.given[i] || !model.sealed[i] || model.left[i] > 0);
    }
}

static void run_model(uint32_t first_id) {
    memset(&model, 0, sizeof model);
    zc_inflight *table = zc_inflight_new(first_id);
    uint32_t oldest = 0, refused = 0;
    for (uint32_t step = 0; model.sends < SENDS - 1 && model.writes < WRITES; step++) {
        bool open = model.writes > 0 && !model.sealed[model.writes - 1];
        uint32_t dice = below(100);
        if (dice < 45 && zc_inflight_reserve(table) < 0) {
            refused++;
            dice = 60;
        }
        if (dice < 45) {
            model.writes += !open;
            model.write_of[model.sends++] = model.writes - 1;
            model.left[model.writes - 1]++;
            zc_inflight_sent(table, below(1000), model.writes);
        } else if (dice < 60 && open) {
            model.sealed[model.writes - 1] = true;
            CHECK_EQ(zc_inflight_seal(table), model.left[model.writes - 1] > 0);
        } else if (oldest < model.sends) {
            report_somewhere(table, first_id, oldest);
            while (oldest < model.sends && model.reported[oldest]) {
                oldest++;
            }
        }
        if (step % 16 == 0) {
            take_all(table);
        }
    }
    (void)zc_inflight_seal(table);
    if (model.writes > 0) {
        model.sealed[model.writes - 1] = true;
    }
    while (oldest < model.sends) {
        report_somewhere(table, first_id, oldest);
        while (oldest < model.sends && model.reported[oldest]) {
            oldest++;
        }
    }
    take_all(table);
    CHECK(zc_inflight_idle(table));
    CHECK_EQ(zc_inflight_outstanding(table), 0);
    CHECK_EQ(zc_inflight_pinned(table), 0);
    CHECK_EQ(zc_inflight_reported(table), model.sends);
    zc_inflight_free(table);
}

static void it_agrees_with_a_simple_model(void) {
    for (uint32_t round = 0; round < 20; round++) {
        seed = round + 1;
        run_model(UINT32_MAX - round * 200);
    }
}

int main(void) {
    const test_case cases[] = {
        {"a write is done when sealed and reported", a_write_is_done_when_sealed_and_reported},
        {"a write that may get more sends is not done", a_write_that_may_get_more_sends_is_not_done},
        {"ranges cover parts, in any order", ranges_cover_parts_of_a_write_in_any_order},
        {"ids wrap", ids_wrap},
        {"a range up to the last id", a_range_up_to_the_last_id},
        {"what is not outstanding changes nothing", what_is_not_outstanding_changes_nothing},
        {"the table is bounded", the_table_is_bounded},
        {"forgetting completes everything", forgetting_completes_everything},
        {"it agrees with a simple model", it_agrees_with_a_simple_model},
    };
    return RUN_TESTS(cases);
}
