/* Opening the receive window: it grows at once and for good, nothing is locked, no byte is missed,
 * and only connections that map into contiguous memory have it. */
#define _GNU_SOURCE
#include "support.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pages_internal.h"

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72 /* Linux 5.14 */
#endif
enum { LOCKED_RECEIVE = 2, LARGE = 1024 * 1024, PAGE = 4096 };

static int option(int fd, int name) {
    int value = 0;
    socklen_t size = sizeof value;
    if (getsockopt(fd, SOL_SOCKET, name, &value, &size) < 0) {
        CHECK_EQ(errno, ENOPROTOOPT); /* an older kernel has no SO_BUF_LOCK to ask */
        return 0;
    }
    return value;
}

static void set_lowat(int fd, int mark) {
    CHECK_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark), 0);
}

static int accept_one(int listener) {
    int fd = -1;
    while (fd < 0) {
        fd = accept(listener, NULL, NULL);
        CHECK(fd >= 0 || errno == EAGAIN);
    }
    return fd;
}

/* The buffer that the mark of 4 MiB must have led to, as far as tcp_rmem lets it. */
static int grown(void) {
    int least, initial, most;
    FILE *file = fopen("/proc/sys/net/ipv4/tcp_rmem", "r");
    CHECK(file != NULL);
    CHECK_EQ(fscanf(file, "%d %d %d", &least, &initial, &most), 3);
    fclose(file);
    int mark = most / 2 < 4 * LARGE ? most / 2 : 4 * LARGE;
    CHECK(mark > initial);
    return mark;
}

static uint32_t add_mapping(zc_engine *engine, int fd, int policy) {
    CHECK_EQ(zc_engine_set_map(engine, policy, PAGE), 0);
    uint32_t slot = add(engine, fd, ZC_MODE_BUFFERED);
    CHECK_EQ(zc_conn_set_map(engine, slot, 0), 0);
    return slot;
}

static void it_grows_at_once_and_is_not_locked(void) {
    pair c = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add_mapping(engine, c.ours, ZC_MAP_AUTO);
    CHECK(option(c.ours, SO_RCVBUF) < grown());
    CHECK_EQ(zc_conn_open_window(engine, slot), 1);
    CHECK(option(c.ours, SO_RCVBUF) >= grown());
    CHECK_EQ(option(c.ours, SO_RCVLOWAT), 1);
    CHECK_EQ(option(c.ours, SO_BUF_LOCK) & LOCKED_RECEIVE, 0);
    CHECK_EQ(zc_conn_open_window(engine, slot), 0); /* once */
    free_engine(engine);
    close_pair(c);
}

static void a_mark_set_before_stays(void) {
    pair c = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add_mapping(engine, c.ours, ZC_MAP_AUTO);
    CHECK_EQ(zc_set_idle_lowat(engine, slot, 3), 0);
    CHECK_EQ(zc_conn_open_window(engine, slot), 1);
    CHECK_EQ(option(c.ours, SO_RCVLOWAT), 3);
    send_all(c.peer, "ab", 2);
    expect_quiet(engine);
    send_all(c.peer, "c", 1);
    expect_record(engine, slot, ZC_READABLE);
    free_engine(engine);
    close_pair(c);
}

static void what_waits_is_announced_again(void) {
    pair c = tcp_pair();
    char got[8];
    zc_engine *engine = new_engine();
    uint32_t slot = add_mapping(engine, c.ours, ZC_MAP_AUTO);
    /* A byte that comes while the mark is high makes no edge of its own: setting it back does. */
    set_lowat(c.ours, 4 * LARGE);
    send_all(c.peer, "a", 1);
    expect_quiet(engine);
    set_lowat(c.ours, 1);
    expect_record(engine, slot, ZC_READABLE);
    CHECK_EQ(zc_recv(engine, slot, got, sizeof got), 1);
    free_engine(engine);
    close_pair(c);
}

static void a_locked_buffer_is_left_alone(void) {
    pair c = tcp_pair();
    int size = 128 * 1024;
    CHECK_EQ(setsockopt(c.ours, SOL_SOCKET, SO_RCVBUF, &size, sizeof size), 0);
    size = option(c.ours, SO_RCVBUF);
    CHECK_EQ(zc_open_window(c.ours), 0);
    CHECK_EQ(option(c.ours, SO_RCVBUF), size);
    CHECK_EQ(option(c.ours, SO_RCVLOWAT), 1);
    close_pair(c);
}

/* As a connection that a listener made while its window was being opened. */
static void a_mark_that_the_opening_left_is_undone(void) {
    int listener = listen_on_loopback();
    set_lowat(listener, 4 * LARGE);
    int peer = connect_to(listener);
    int ours = accept_one(listener);
    CHECK(option(ours, SO_RCVLOWAT) > LARGE);
    set_lowat(listener, 1);
    CHECK_EQ(zc_inherit_lowat(ours, listener), 0);
    CHECK_EQ(option(ours, SO_RCVLOWAT), 1);
    close(listener);
    close_pair((pair){.ours = ours, .peer = peer});
}

static void a_program_s_own_mark_stays(void) {
    pair c = tcp_pair();
    zc_engine *engine = new_engine();
    set_lowat(c.ours, 3);
    uint32_t slot = add_mapping(engine, c.ours, ZC_MAP_AUTO);
    CHECK_EQ(zc_conn_open_window(engine, slot), 1);
    CHECK_EQ(option(c.ours, SO_RCVLOWAT), 3);
    send_all(c.peer, "ab", 2);
    expect_quiet(engine);
    CHECK_EQ(zc_set_idle_lowat(engine, slot, 1), 0);
    expect_record(engine, slot, ZC_READABLE);
    free_engine(engine);
    close_pair(c);
}

static void accepted_sockets_inherit_it(void) {
    int listener = listen_on_loopback();
    set_lowat(listener, 7); /* the program's */
    CHECK_EQ(zc_open_window(listener), 0);
    CHECK_EQ(option(listener, SO_RCVLOWAT), 7);
    set_lowat(listener, 1);
    int peer = connect_to(listener);
    int ours = accept_one(listener);
    CHECK(option(ours, SO_RCVBUF) >= grown());
    CHECK_EQ(option(ours, SO_RCVLOWAT), 1);
    close(listener);
    close_pair((pair){.ours = ours, .peer = peer});
}

static void only_where_pages_may_be_mapped(void) {
    static const struct {
        int policy, level;
    } cases[] = {{ZC_MAP_NEVER, 0}, {ZC_MAP_AUTO, 1 /* its route has yielded none */}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pair c = tcp_pair();
        zc_engine *engine = new_engine();
        CHECK_EQ(zc_engine_set_map(engine, cases[i].policy, PAGE), 0);
        uint32_t slot = add(engine, c.ours, ZC_MODE_BUFFERED);
        CHECK_EQ(zc_conn_set_map(engine, slot, cases[i].level), 0);
        CHECK_EQ(zc_conn_open_window(engine, slot), 0);
        CHECK(option(c.ours, SO_RCVBUF) < grown());
        free_engine(engine);
        close_pair(c);
    }
}

/* Receives or fills [0, bytes) of new memory; whether the window was opened for it. */
static bool opened_for(size_t bytes, bool fill) {
    static char zeros[256 * 1024];
    CHECK(bytes <= sizeof zeros);
    pair c = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add_mapping(engine, c.ours, ZC_MAP_AUTO);
    zc_memory *memory = zc_memory_new(bytes + PAGE);
    CHECK(memory != NULL);
    send_all(c.peer, zeros, bytes);
    expect_record(engine, slot, ZC_READABLE);
    if (fill) {
        size_t done = (size_t)zc_fill_begin_pages(engine, slot, memory, 0, bytes);
        if (done < bytes) {
            expect_record(engine, slot, ZC_FILLED);
            CHECK_EQ(zc_fill_end(engine, slot), bytes);
        }
    } else {
        CHECK(zc_recv_memory(engine, slot, memory, 0, bytes) > 0);
    }
    bool opened = option(c.ours, SO_RCVBUF) >= grown();
    zc_memory_release(memory);
    free_engine(engine);
    close_pair(c);
    return opened;
}

static void large_destinations_open_it(void) {
    CHECK(opened_for(128 * 1024, false));
    CHECK(opened_for(128 * 1024, true));
    CHECK(!opened_for(32 * 1024, false));
    CHECK(!opened_for(32 * 1024, true));
}

int main(void) {
    static const test_case cases[] = {
        {"it grows at once and isn't locked", it_grows_at_once_and_is_not_locked},
        {"a mark set before stays", a_mark_set_before_stays},
        {"what waits is announced again", what_waits_is_announced_again},
        {"a mark that the opening left is undone", a_mark_that_the_opening_left_is_undone},
        {"a program's own mark stays", a_program_s_own_mark_stays},
        {"a locked buffer is left alone", a_locked_buffer_is_left_alone},
        {"accepted sockets inherit it", accepted_sockets_inherit_it},
        {"only where pages may be mapped", only_where_pages_may_be_mapped},
        {"large destinations open it", large_destinations_open_it},
    };
    int error = zc_arena_open(64 * 1024 * 1024);
    if (error < 0) {
        fprintf(stderr, "errno %d: ", -error);
        SKIP("this kernel doesn't let TCP memory be mapped");
    }
    return RUN_TESTS(cases);
}
