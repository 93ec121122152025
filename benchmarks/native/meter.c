/* Phases of a run, and its report as one line of JSON. */
#define _GNU_SOURCE
#include "loadgen.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static uint64_t read_clock(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000ull + (uint64_t)time.tv_nsec;
}

uint64_t now_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

static void start_measuring(struct meter *meter)
{
    meter->phase = MEASURED;
    meter->units_at_start = meter->units;
    meter->bytes_at_start = meter->bytes;
    observe(meter->options->server_pid, &meter->server_start);
    meter->client_cpu_start = read_clock(CLOCK_PROCESS_CPUTIME_ID);
    meter->started = now_ns(); /* after observe(): reading /proc is not part of the interval */
    double seconds = meter->options->seconds;
    meter->phase_until = seconds > 0 ? meter->started + (uint64_t)(seconds * 1e9) : UINT64_MAX;
}

void sleep_until(uint64_t due)
{
    struct timespec at = { .tv_sec = (time_t)(due / 1000000000ull),
                           .tv_nsec = (long)(due % 1000000000ull) };
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

void meter_begin(struct meter *meter, const struct options *options)
{
    memset(meter, 0, sizeof *meter);
    meter->options = options;
    meter->phase = WARMUP;
    meter->phase_until = now_ns() + (uint64_t)(options->warmup * 1e9);
    if (options->warmup <= 0)
        start_measuring(meter);
}

static void stop_measuring(struct meter *meter)
{
    meter->phase = DONE;
    meter->ended = now_ns();
    meter->client_cpu_end = read_clock(CLOCK_PROCESS_CPUTIME_ID);
    observe(meter->options->server_pid, &meter->server_end);
    meter->units_measured = meter->units - meter->units_at_start;
    meter->bytes_measured = meter->bytes - meter->bytes_at_start;
}

bool meter_tick(struct meter *meter, uint64_t now)
{
    if (meter->phase == WARMUP && now >= meter->phase_until) {
        start_measuring(meter);
        return false;
    }
    if (meter->phase == MEASURED) {
        uint64_t count = meter->options->count;
        if (now >= meter->phase_until
            || (count > 0 && meter->units - meter->units_at_start >= count))
            stop_measuring(meter);
    }
    return meter->phase == DONE;
}

static double microseconds(const struct meter *meter, double quantile)
{
    return (double)histogram_quantile(&meter->latency, quantile) / 1e3;
}

void meter_report(const struct meter *meter, uint64_t verified_units)
{
    const struct usage *a = &meter->server_start, *b = &meter->server_end;
    double seconds = (double)(meter->ended - meter->started) / 1e9;
    printf("{\"mode\": \"%s\", \"connections\": %u, \"seconds\": %.6f, ", meter->options->mode,
           meter->options->connections, seconds);
    printf("\"units\": %llu, \"bytes\": %llu, \"verified\": %llu, ",
           (unsigned long long)meter->units_measured, (unsigned long long)meter->bytes_measured,
           (unsigned long long)verified_units);
    if (meter->latency.total > 0)
        printf("\"latency_us\": {\"p50\": %.2f, \"p90\": %.2f, \"p99\": %.2f, \"p999\": %.2f, \"max\": %.2f}, ",
               microseconds(meter, 0.50), microseconds(meter, 0.90), microseconds(meter, 0.99),
               microseconds(meter, 0.999), (double)meter->latency.max / 1e3);
    if (meter->options->server_pid != 0)
        printf("\"server\": {\"cpu_us\": %.1f, \"user_us\": %llu, \"system_us\": %llu, "
               "\"voluntary\": %llu, \"involuntary\": %llu, \"rss_start\": %llu, \"rss_end\": %llu}, "
               "\"machine_us\": %llu, ",
               (double)(b->cpu_ns - a->cpu_ns) / 1e3,
               (unsigned long long)(b->user_us - a->user_us),
               (unsigned long long)(b->system_us - a->system_us),
               (unsigned long long)(b->voluntary - a->voluntary),
               (unsigned long long)(b->involuntary - a->involuntary),
               (unsigned long long)a->rss_bytes, (unsigned long long)b->rss_bytes,
               (unsigned long long)(b->machine_us - a->machine_us));
    printf("\"client_cpu_us\": %.1f}\n",
           (double)(meter->client_cpu_end - meter->client_cpu_start) / 1e3);
}
