/* Accepting in batches, and what happens when descriptors run out. */
#define _GNU_SOURCE
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static void accepted_descriptors_are_non_blocking_and_not_inherited(void) {
    int listener = listen_on_loopback();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, listener, ZC_MODE_LISTEN);
    expect_quiet(engine);
    int client = connect_to(listener);
    int fd = expect_record(engine, slot, ZC_ACCEPTED).result;
    CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    CHECK_EQ(zc_engine_counters(engine)->accepts, 1);
    expect_quiet(engine);
    free_engine(engine);
    close(fd);
    close(client);
    close(listener);
}

static void a_flood_is_accepted_in_order_over_several_batches(void) {
    enum { CLIENTS = 150 };
    int clients[CLIENTS], listener = listen_on_loopback(), accepted = 0, batches = 0;
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, listener, ZC_MODE_LISTEN);
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = connect_to(listener);
    }
    while (accepted < CLIENTS) {
        int count = poll_records(engine);
        batches++;
        for (int i = 0; i < count; i++) {
            struct sockaddr_storage peer, own;
            socklen_t size = sizeof peer;
            zc_event event = zc_engine_records(engine)[i];
            CHECK_EQ(event.slot, slot);
            CHECK_EQ(event.what, ZC_ACCEPTED);
            /* Accept order is TCP's: the n-th descriptor is the n-th client's. */
            CHECK_EQ(getpeername(event.result, (struct sockaddr *)&peer, &size), 0);
            size = sizeof own;
            CHECK_EQ(getsockname(clients[accepted], (struct sockaddr *)&own, &size), 0);
            CHECK(((struct sockaddr *)&peer)->sa_family == AF_INET);
            CHECK(((uint16_t *)&peer)[1] == ((uint16_t *)&own)[1]);
            close(event.result);
            close(clients[accepted++]);
        }
    }
    CHECK(batches > 1);
    free_engine(engine);
    close(listener);
}

/* EMFILE is reported once a batch and is over when descriptors are free again. */
static void running_out_of_descriptors_is_reported_and_survived(void) {
    struct rlimit before, none;
    int listener = listen_on_loopback();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, listener, ZC_MODE_LISTEN);
    int client = connect_to(listener);
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    zc_event event = expect_record(engine, slot, ZC_ERROR);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    CHECK_EQ(event.result, -EMFILE);
    CHECK_EQ(zc_engine_counters(engine)->accept_errors, 1);
    int fd = expect_record(engine, slot, ZC_ACCEPTED).result;
    free_engine(engine);
    close(fd);
    close(client);
    close(listener);
}

int main(void) {
    const test_case cases[] = {
        {"non-blocking and not inherited", accepted_descriptors_are_non_blocking_and_not_inherited},
        {"a flood", a_flood_is_accepted_in_order_over_several_batches},
        {"running out of descriptors", running_out_of_descriptors_is_reported_and_survived},
    };
    return RUN_TESTS(cases);
}
