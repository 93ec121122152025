/* Shared declarations of the load generator: one thread, one epoll instance, closed loops.
 *
 * Why C: the generator shares two CPUs with the server it measures. A Python client costs more per
 * message than the server does, and would set the figures itself.
 *
 * Every mode runs in three phases: warm-up (not counted), measured, drain (what is outstanding must
 * still arrive, and is checked). The server's CPU time is read from outside, at the edges of the
 * measured phase, so the server runs nothing but the user code under test.
 */
#ifndef LOADGEN_H
#define LOADGEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { PATTERN_PERIOD = 65521, LINE_BYTES = 100, LINES_PER_BLOCK = 655 };

/* No event for this long while data is outstanding means a lost message or a hung server. */
#define STALL_NS (20ull * 1000000000ull)
#define RECEIVE_BYTES (1u << 20)

struct options {
    const char *mode;
    const char *host;
    int port;
    pid_t server_pid;      /* 0: server usage is not read */
    unsigned connections;
    size_t size;           /* message size, bytes */
    unsigned depth;        /* messages in flight per connection */
    double warmup;         /* seconds */
    double seconds;        /* of the measured phase; 0: bounded by count only */
    uint64_t count;        /* units in the measured phase; 0: bounded by seconds only */
    uint64_t interval_us;  /* echo: wait between an answer and the next request */
    uint64_t period;       /* source, discard, transfer, mixed: the sender's pattern repeats after
                              this many bytes */
    uint64_t transfer;     /* transfer: bytes per request; mixed: bytes of each bulk piece */
    unsigned every;        /* mixed: answers between two bulk pieces */
    unsigned priming;      /* http: requests on a connection of their own, before all others */
    const char *path;      /* http, websocket: what is asked for */
    uint64_t upload;       /* http: bytes of a request's body; 0: a GET */
    uint64_t download;     /* http: bytes of a response's body, which are the pattern's; 0: any */
    const char *expect;    /* http: the response's body; NULL: any */
};

/* histogram.c: log-linear, 64 buckets per power of two, so a value is known within 1.6 %. */
enum { HIST_SUB_BITS = 6, HIST_SUB = 1 << HIST_SUB_BITS, HIST_BUCKETS = (64 - HIST_SUB_BITS) * HIST_SUB + HIST_SUB };
struct histogram {
    uint64_t counts[HIST_BUCKETS];
    uint64_t total;
    uint64_t max;
};
void histogram_record(struct histogram *hist, uint64_t value);
uint64_t histogram_quantile(const struct histogram *hist, double quantile);

/* observe.c: what the kernel says about the server process, and the machine around it. */
struct usage {
    uint64_t cpu_ns; /* user + system of all threads, living and gone */
    uint64_t user_us, system_us; /* from clock ticks: 10 ms steps */
    uint64_t voluntary, involuntary; /* context switches */
    uint64_t rss_bytes;
    uint64_t machine_us; /* busy time of all CPUs, whoever used it; 10 ms steps */
};
void observe(pid_t pid, struct usage *out);

/* meter.c: phases and the report. */
enum phase { WARMUP, MEASURED, DONE };
struct meter {
    const struct options *options;
    enum phase phase;
    uint64_t started, ended, phase_until;
    uint64_t units, bytes;             /* running totals, all phases */
    uint64_t units_at_start, bytes_at_start;
    uint64_t units_measured, bytes_measured;
    struct usage server_start, server_end;
    uint64_t client_cpu_start, client_cpu_end;
    struct histogram latency;
};
uint64_t now_ns(void);
void sleep_until(uint64_t due);
/* Without a warm-up the measured phase begins here. */
void meter_begin(struct meter *meter, const struct options *options);
/* Advances the phase; true once the measured phase is over. */
bool meter_tick(struct meter *meter, uint64_t now);
static inline void meter_latency(struct meter *meter, uint64_t nanoseconds)
{
    if (meter->phase == MEASURED)
        histogram_record(&meter->latency, nanoseconds);
}
void meter_report(const struct meter *meter, uint64_t verified_units);

/* net.c */
/* Prints {"error": …} and exits with status 1. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void die_errno(const char *what);
/* Blocking connect, tried again while the port refuses; non-blocking and TCP_NODELAY on return. */
int connect_ready(const struct options *options);
int connect_start(const struct options *options);
/* Waits for poll(2) events; dies when there are none for STALL_NS. */
void wait_ready(int fd, short events, const char *what);
int epoll_new(void);
void epoll_set(int epoll, int operation, int fd, uint32_t events, uint64_t data);
struct epoll_event;
/* Dies when nothing happens for STALL_NS. */
int epoll_next(int epoll, struct epoll_event *events, int room);
void *allocate(size_t count, size_t size);

/* pattern.c */
/* out[i] = pattern[(i % period) % PATTERN_PERIOD] */
void pattern_fill(unsigned char *out, size_t n, uint64_t period);
void lines_fill(unsigned char *out, size_t n);

/* one file per mode */
void run_echo(const struct options *options);
void run_connect(const struct options *options);
void run_sink(const struct options *options, bool lines);
void run_source(const struct options *options, bool discard);
void run_transfer(const struct options *options);
void run_mixed(const struct options *options);
void run_idle(const struct options *options);
void run_http(const struct options *options);
void run_websocket(const struct options *options);

#endif
