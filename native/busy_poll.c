/*
 * Polling before sleeping.
 *
 * Fact: waking an idle (virtual) processor costs more than answering a small
 * request, so a server whose next message comes within tens of microseconds
 * gains by asking again before it sleeps, and one whose next message is far
 * away only burns its processor.
 *
 * Rule: whether it pays is tried, not believed.  A few short waits are slept
 * through and measured, a few are spun through and measured, and the better way
 * is kept for a while.  (Spinning loses where sleeping is cheap, as when the
 * scheduler has put both peers on one processor.)  Each spin is bounded by max_ns
 * counted from the end of the batch.  A long wait, or a spin that found nothing,
 * begins the trial anew, and after such a miss twice as many short waits are sat
 * out as after the one before, up to SIT_OUT_MAX, so that the share of time
 * lost to misses goes to nothing.  A measured wait contains the wake-up
 * itself, which spinning removes, so waits up to SLEEP_FACTOR * max_ns count
 * as short.  Only waits for an answer count: something was sent since the batch
 * before.  (A one-way stream gains nothing: being woken more often for
 * less each time costs CPU.)
 *
 * Waits below ALREADY_THERE_NS were no waits: the next message had come before we
 * looked.  There one more look (eager) saves the way through the host loop,
 * until a look finds nothing.
 * Rejected: spinning inside the wait (timers and other descriptors of the host
 * loop would starve); a fixed spin (an idle server would cost CPU).
 */
#define _GNU_SOURCE
#include <time.h>

#include "engine_internal.h"

enum {
    SLICE_NS = 8 * 1000, /* at most this long away from the host loop */
    ALREADY_THERE_NS = 3 * 1000,
    SLEEP_FACTOR = 2,
    RESTS = 16, /* a few hundred nanoseconds */
    SIT_OUT_MAX = 1024,
    TRIAL = 8,            /* waits measured each way */
    KEEP_SPINNING = 512,  /* waits until the next trial */
    KEEP_SLEEPING = 8192, /* the same where spinning has lost */
    BETTER_PERCENT = 75   /* spinning has won when its waits were at most so long */
};

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int zc_engine_set_spin(zc_engine *engine, uint32_t max_nanoseconds, int adaptive) {
    engine->spin = (zc_spin){.max_ns = max_nanoseconds, .adaptive = adaptive != 0};
    return 0;
}

static void begin_trial(zc_spin *spin) {
    spin->phase = ZC_SPIN_TRY_SLEEP;
    spin->waits = 0;
    spin->total_ns[0] = spin->total_ns[1] = 0;
    spin->wanted = false;
}

/* A short wait for an answer is over. */
static void judge(zc_spin *spin, uint64_t waited) {
    if (spin->spinning) {
        spin->misses = 0;
    }
    spin->waits++;
    switch (spin->phase) {
    case ZC_SPIN_TRY_SLEEP:
        spin->total_ns[0] += waited;
        if (spin->waits == TRIAL) {
            spin->phase = ZC_SPIN_TRY_SPIN;
            spin->waits = 0;
            spin->wanted = true;
        }
        break;
    case ZC_SPIN_TRY_SPIN:
        spin->total_ns[1] += waited;
        if (spin->waits == TRIAL) {
            spin->phase = ZC_SPIN_KEEP;
            spin->waits = 0;
            spin->wanted = spin->total_ns[1] * 100 <= spin->total_ns[0] * BETTER_PERCENT;
        }
        break;
    case ZC_SPIN_KEEP:
        if (spin->waits == (spin->wanted ? KEEP_SPINNING : KEEP_SLEEPING)) {
            begin_trial(spin);
        }
        break;
    }
}

/* Called by the poll that found records: judges the wait that has just ended. */
void zc_spin_woke(zc_engine *engine) {
    zc_spin *spin = &engine->spin;
    if (spin->idle_since_ns == 0) {
        return;
    }
    uint64_t waited = now_ns() - spin->idle_since_ns;
    spin->idle_since_ns = 0;
    spin->eager = waited < ALREADY_THERE_NS;
    if (spin->max_ns == 0) {
        return;
    }
    if (!spin->adaptive) {
        spin->wanted = true;
    } else if (waited > SLEEP_FACTOR * spin->max_ns) {
        begin_trial(spin);
    } else if (spin->sit_out > 0 && !spin->spinning) {
        spin->sit_out--;
    } else if (spin->answer_due) {
        judge(spin, waited);
    }
    spin->spinning = false;
}

int zc_engine_settle(zc_engine *engine) {
    zc_spin *spin = &engine->spin;
    engine->batching = false;
    if (zc_engine_pending(engine)) {
        return ZC_MORE;
    }
    if (engine->record_count == 0) {
        spin->eager = false;
    } else if (spin->eager) {
        return ZC_EAGER;
    }
    spin->idle_since_ns = now_ns();
    spin->answer_due = engine->sends != spin->sends_seen;
    spin->sends_seen = engine->sends;
    spin->spinning = spin->wanted && spin->answer_due;
    return spin->spinning ? ZC_SPIN : 0;
}

static int missed(zc_engine *engine) {
    zc_spin *spin = &engine->spin;
    engine->stats.spin_misses++;
    spin->spinning = false;
    begin_trial(spin);
    if (spin->misses < 31) {
        spin->misses++;
    }
    uint32_t sit_out = 1u << spin->misses;
    spin->sit_out = sit_out < SIT_OUT_MAX ? sit_out : SIT_OUT_MAX;
    return ZC_SPIN_MISS;
}

/* Leaves the core to its other hardware thread, which may run the very peer
 * that we wait for. */
static void rest(void) {
    for (int i = 0; i < RESTS; i++) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("isb" ::: "memory");
#endif
    }
}

int zc_engine_spin(zc_engine *engine) {
    zc_spin *spin = &engine->spin;
    if (!spin->spinning) {
        return ZC_SPIN_MISS; /* a poll in between has ended this wait */
    }
    engine->stats.spins++;
    uint64_t start = now_ns(), now = start;
    uint64_t deadline = spin->idle_since_ns + spin->max_ns;
    do {
        if (engine->event_next == engine->event_count) {
            int count = epoll_wait(engine->epfd, engine->events, ZC_MAX_EVENTS, 0);
            engine->event_next = 0;
            engine->event_count = count > 0 ? count : 0;
        }
        if (engine->event_count > 0) {
            engine->stats.spin_hits++;
            return ZC_SPIN_HIT;
        }
        now = now_ns();
        if (now >= deadline) {
            return missed(engine);
        }
        rest();
    } while (now - start < SLICE_NS);
    return ZC_SPIN_AGAIN;
}
