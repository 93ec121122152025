/* What the C tests share: checks, connections on loopback, waiting for records.
 *
 * Nothing here knows the time: waiting is for a state, without a limit (CTest
 * ends a program that hangs).
 */
#ifndef ZC_TEST_SUPPORT_H
#define ZC_TEST_SUPPORT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "zcloop.h"

enum { EXIT_SKIPPED = 77 };

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: not true: %s\n", __FILE__, __LINE__, __func__,             \
                    #condition);                                                                   \
            exit(EXIT_FAILURE);                                                                    \
        }                                                                                          \
    } while (0)

#define CHECK_EQ(got, expected)                                                                    \
    do {                                                                                           \
        long long got_ = (long long)(got), expected_ = (long long)(expected);                      \
        if (got_ != expected_) {                                                                   \
            fprintf(stderr, "%s:%d: %s: %s is %lld, expected %lld (%s)\n", __FILE__, __LINE__,     \
                    __func__, #got, got_, expected_, #expected);                                   \
            exit(EXIT_FAILURE);                                                                    \
        }                                                                                          \
    } while (0)

#define SKIP(reason)                                                                               \
    do {                                                                                           \
        printf("skipped: %s\n", reason);                                                           \
        exit(EXIT_SKIPPED);                                                                        \
    } while (0)

/* A connection: `ours` is non-blocking, as the engine wants it; `peer` blocks. */
typedef struct {
    int ours, peer;
} pair;

typedef struct {
    const char *name;
    void (*run)(void);
} test_case;

/* Runs every case, prints its name, and checks that it left no descriptor open. */
int run_tests(const test_case *cases, size_t count);
#define RUN_TESTS(cases) run_tests(cases, sizeof(cases) / sizeof((cases)[0]))

int count_descriptors(void);
int listen_on_loopback(void); /* a non-blocking TCP listener on 127.0.0.1, port 0 */
int connect_to(int listener); /* a blocking client of it */
pair tcp_pair(void);
pair unix_pair(void);
void close_pair(pair connection);
void reset(int fd); /* close it with an RST */
void send_all(int fd, const void *bytes, size_t size);
void receive_all(int fd, void *bytes, size_t size);
void fill_pattern(char *bytes, size_t size, unsigned seed);

/* Polls until there are records, sleeping on the engine's descriptor in between as
 * the host loop does; returns their number. */
int poll_records(zc_engine *engine);
/* The one record that the next batch must consist of. */
zc_event poll_one(zc_engine *engine);
/* Checks that nothing is ready now. */
void expect_quiet(zc_engine *engine);
/* Polls until `what` comes on `slot`; other records meanwhile are an error. */
zc_event expect_record(zc_engine *engine, uint32_t slot, uint32_t what);
/* Receives what the next record, the one of its batch, announces: DATA or SIZED. */
size_t take_data(zc_engine *engine, uint32_t slot, char *into);
zc_engine *new_engine(void);
/* Connections are kept count of, so that free_engine removes those that are left: an
 * engine goes only with its last connection. */
uint32_t add(zc_engine *engine, int fd, int mode);
uint32_t add_with(zc_engine *engine, int fd, int mode, int flags);
int forget(zc_engine *engine, uint32_t slot);
void disown(uint32_t slot); /* it was removed in another way */
void free_engine(zc_engine *engine);

#endif
