/* Receiving by mapping: what is mapped, what is copied, and every way in which the call ends. */
#define _GNU_SOURCE
#include "support.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pages_internal.h"
#include "zerocopy_names.h"

enum { PAGE = 4096, PAGES = 16, SIZE = PAGES * PAGE, HEADER = 64 };

static _Alignas(4096) char sent[SIZE];

static void set_int(int fd, int level, int name, int value) {
    CHECK_EQ(setsockopt(fd, level, name, &value, sizeof value), 0);
}

/* Segments are whole pages, and the peer's zero-copy sends arrive as pages of their own. */
static pair page_pair(void) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof name;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int peer = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    set_int(listener, IPPROTO_TCP, TCP_MAXSEG, PAGE + 12);
    set_int(peer, IPPROTO_TCP, TCP_MAXSEG, PAGE + 12);
    CHECK_EQ(bind(listener, (struct sockaddr *)&name, size), 0);
    CHECK_EQ(listen(listener, 1), 0);
    CHECK_EQ(getsockname(listener, (struct sockaddr *)&name, &size), 0);
    CHECK_EQ(connect(peer, (struct sockaddr *)&name, size), 0);
    int ours = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    CHECK(ours >= 0);
    close(listener);
    set_int(peer, SOL_SOCKET, SO_ZEROCOPY, 1);
    set_int(peer, IPPROTO_TCP, TCP_NODELAY, 1);
    return (pair){.ours = ours, .peer = peer};
}

static void send_pages(int fd, const char *bytes, size_t size) {
    CHECK_EQ(send(fd, bytes, size, MSG_ZEROCOPY | MSG_NOSIGNAL), size);
}

static zc_engine *mapping_engine(int policy) {
    zc_engine *engine = new_engine();
    CHECK_EQ(zc_engine_set_map(engine, policy, PAGE), 0);
    return engine;
}

static uint32_t add_mapping(zc_engine *engine, int fd) {
    uint32_t slot = add(engine, fd, ZC_MODE_BUFFERED);
    CHECK_EQ(zc_conn_set_map(engine, slot, 0), 0);
    return slot;
}

static void wait_for(int fd, size_t size) {
    static char peeked[SIZE + PAGE];
    CHECK(size <= sizeof peeked);
    while (recv(fd, peeked, size, MSG_PEEK | MSG_DONTWAIT) < (ssize_t)size) {
    }
}

static const zc_conn_stats *counters(zc_engine *engine, uint32_t slot) {
    return zc_conn_counters(engine, slot);
}

static void whole_pages_are_mapped(void) {
    pair c = page_pair();
    zc_engine *engine = mapping_engine(ZC_MAP_ALWAYS);
    uint32_t slot = add_mapping(engine, c.ours);
    char copied[ZC_COPYBUF_MAX];
    zc_page_run run = {.copybuf = copied};
    send_pages(c.peer, sent, SIZE);
    wait_for(c.ours, SIZE);
    expect_record(engine, slot, ZC_READABLE);
    CHECK_EQ(zc_recv_pages(engine, slot, &run), 1);
    CHECK_EQ(run.mapped, SIZE);
    CHECK_EQ(run.copied, 0);
    CHECK(memcmp(run.start, sent, SIZE) == 0);
    CHECK_EQ(zc_slice_bytes(run.slice), SIZE);
    zc_slice_release(run.slice);
    zc_end_pages(&run);
    CHECK_EQ(counters(engine, slot)->bytes_mapped, SIZE);
    CHECK_EQ(counters(engine, slot)->bytes_received, SIZE);
    CHECK_EQ(counters(engine, slot)->recv_calls, 0);
    expect_quiet(engine);
    free_engine(engine);
    close_pair(c);
}

/* A header of its own segment, then pages, then a tail: two calls, in order. */
static void a_header_and_a_tail_are_copied_by_the_call(void) {
    pair c = page_pair();
    zc_engine *engine = mapping_engine(ZC_MAP_ALWAYS);
    uint32_t slot = add_mapping(engine, c.ours);
    char copied[ZC_COPYBUF_MAX];
    zc_page_run run = {.copybuf = copied};
    send_all(c.peer, sent, HEADER);
    send_pages(c.peer, sent, 8 * PAGE);
    send_all(c.peer, sent + 8 * PAGE, 100);
    wait_for(c.ours, HEADER + 8 * PAGE + 100);
    CHECK_EQ(poll_records(engine), 1);
    CHECK_EQ(zc_recv_pages(engine, slot, &run), 1);
    CHECK(run.slice == NULL);
    CHECK_EQ(run.copied, HEADER);
    CHECK(memcmp(run.copybuf, sent, HEADER) == 0);
    expect_record(engine, slot, ZC_READABLE);
    CHECK_EQ(zc_recv_pages(engine, slot, &run), 1);
    CHECK_EQ(run.mapped, 8 * PAGE);
    CHECK(memcmp(run.start, sent, 8 * PAGE) == 0);
    CHECK_EQ(run.copied, 100);
    CHECK(memcmp(run.copybuf, sent + 8 * PAGE, 100) == 0);
    zc_slice_release(run.slice);
    zc_end_pages(&run);
    CHECK_EQ(counters(engine, slot)->map_calls, 2);
    CHECK_EQ(counters(engine, slot)->bytes_copybuf, HEADER + 100);
    expect_quiet(engine);
    free_engine(engine);
    close_pair(c);
}

static void less_than_a_page_is_left_to_recv(void) {
    pair c = page_pair();
    zc_engine *engine = mapping_engine(ZC_MAP_ALWAYS);
    uint32_t slot = add_mapping(engine, c.ours);
    char copied[ZC_COPYBUF_MAX];
    zc_page_run run = {.copybuf = copied};
    char got[PAGE];
    send_all(c.peer, sent, 1000);
    expect_record(engine, slot, ZC_READABLE);
    CHECK_EQ(zc_recv_pages(engine, slot, &run), 0);
    CHECK_EQ(counters(engine, slot)->map_calls, 0);
    CHECK_EQ(zc_recv(engine, slot, got, sizeof got), 1000);
    expect_quiet(engine);
    free_engine(engine);
    close_pair(c);
}

/* What a plain send left in compound pages: nothing to map, and in "auto" a long rest. */
static void an_unmappable_stream_is_given_a_rest(void) {
    pair c = tcp_pair();
    zc_engine *engine = mapping_engine(ZC_MAP_AUTO);
    uint32_t slot = add_mapping(engine, c.ours);
    static char got[SIZE];
    char copied[ZC_COPYBUF_MAX];
    zc_page_run run = {.copybuf = copied};
    uint64_t calls = 0;
    for (int round = 0; round < 8; round++) {
        send_all(c.peer, sent, SIZE);
        wait_for(c.ours, SIZE);
        for (size_t done = 0; done < SIZE;) {
            expect_record(engine, slot, ZC_READABLE);
            if (zc_recv_pages(engine, slot, &run)) {
                CHECK(run.slice == NULL);
                zc_end_pages(&run);
                CHECK(memcmp(run.copybuf, sent + done, run.copied) == 0);
                done += run.copied;
            } else {
                int64_t n = zc_recv(engine, slot, got, SIZE);
                CHECK(n > 0);
                CHECK(memcmp(got, sent + done, (size_t)n) == 0);
                done += (size_t)n;
            }
        }
        if (round == 3) {
            calls = counters(engine, slot)->map_calls;
        }
    }
    CHECK_EQ(counters(engine, slot)->bytes_mapped, 0);
    CHECK(counters(engine, slot)->map_backed_off > 0);
    CHECK(zc_conn_map_level(engine, slot) > 0);
    /* 256 KiB and more were received after the attempts of the beginning, almost without any. */
    CHECK(calls <= 4 && counters(engine, slot)->map_calls <= calls + 3);
    free_engine(engine);
    close_pair(c);
}

static void a_known_route_begins_with_a_rest(void) {
    pair c = page_pair();
    zc_engine *engine = mapping_engine(ZC_MAP_AUTO);
    uint32_t slot = add(engine, c.ours, ZC_MODE_BUFFERED);
    char copied[ZC_COPYBUF_MAX];
    zc_page_run run = {.copybuf = copied};
    CHECK_EQ(zc_conn_ask_map(engine, slot), 1);
    CHECK_EQ(zc_conn_ask_map(engine, slot), 0);
    CHECK_EQ(zc_conn_set_map(engine, slot, 1), 0);
    CHECK_EQ(zc_conn_may_map(engine, slot), 0);
    static char got[SIZE];
    for (int round = 0; round < 4; round++) { /* 256 KiB */
        send_pages(c.peer, sent, SIZE);
        wait_for(c.ours, SIZE);
        expect_record(engine, slot, ZC_READABLE);
        CHECK_EQ(zc_recv_pages(engine, slot, &run), 0);
        CHECK_EQ(zc_recv(engine, slot, got, SIZE), SIZE);
        CHECK_EQ(zc_recv(engine, slot, got, SIZE), -EAGAIN);
    }
    CHECK_EQ(zc_conn_may_map(engine, slot), 1);
    send_pages(c.peer, sent, SIZE);
    wait_for(c.ours, SIZE);
    CHECK_EQ(poll_records(engine), 1);
    CHECK_EQ(zc_recv_pages(engine, slot, &run), 1);
    CHECK_EQ(run.mapped, SIZE);
    CHECK_EQ(zc_conn_map_level(engine, slot), 0);
    zc_slice_release(run.slice);
    zc_end_pages(&run);
    free_engine(engine);
    close_pair(c);
}

/* The pages that came before the reset are delivered, then the error, again and again. */
static void a_reset_comes_after_the_data_and_stays(void) {
    pair c = page_pair();
    zc_engine *engine = mapping_engine(ZC_MAP_ALWAYS);
    uint32_t slot = add_mapping(engine, c.ours);
    char got[PAGE];
    size_t mapped = 0;
    char copied[ZC_COPYBUF_MAX];
    zc_page_run run = {.copybuf = copied};
    send_pages(c.peer, sent, SIZE);
    wait_for(c.ours, SIZE);
    reset(c.peer);
    for (;;) {
        zc_event event = poll_one(engine);
        if (event.what == ZC_ERROR) {
            CHECK_EQ(event.result, -ECONNRESET);
            break;
        }
        CHECK_EQ(event.what, ZC_READABLE);
        if (zc_recv_pages(engine, slot, &run)) {
            CHECK(memcmp(run.start, sent + mapped, run.mapped) == 0);
            mapped += run.mapped;
            CHECK_EQ(run.copied, 0);
            zc_slice_release(run.slice);
            zc_end_pages(&run);
        } else {
            int64_t n = zc_recv(engine, slot, got, sizeof got);
            CHECK_EQ(n, -ECONNRESET);
            break;
        }
    }
    CHECK_EQ(mapped, SIZE);
    CHECK_EQ(zc_recv(engine, slot, got, sizeof got), -ECONNRESET);
    free_engine(engine);
    CHECK_EQ(close(c.ours), 0);
}

static void the_end_comes_after_a_tail_and_its_phantom_byte(void) {
    pair c = page_pair();
    zc_engine *engine = mapping_engine(ZC_MAP_ALWAYS);
    uint32_t slot = add_mapping(engine, c.ours);
    static char got[SIZE + PAGE];
    size_t done = 0;
    char copied[ZC_COPYBUF_MAX];
    zc_page_run run = {.copybuf = copied};
    send_pages(c.peer, sent, SIZE);
    send_all(c.peer, sent, 100);
    CHECK_EQ(shutdown(c.peer, SHUT_WR), 0);
    wait_for(c.ours, SIZE + 100);
    for (;;) {
        expect_record(engine, slot, ZC_READABLE);
        if (zc_recv_pages(engine, slot, &run)) {
            memcpy(got + done, run.start, run.mapped);
            memcpy(got + done + run.mapped, run.copybuf, run.copied);
            done += run.mapped + run.copied;
            if (run.slice != NULL) {
                zc_slice_release(run.slice);
            }
            zc_end_pages(&run);
        } else {
            int64_t n = zc_recv(engine, slot, got + done, sizeof got - done);
            CHECK(n >= 0);
            done += (size_t)n;
            if (n == 0) {
                break;
            }
        }
    }
    CHECK_EQ(done, SIZE + 100);
    CHECK(memcmp(got, sent, SIZE) == 0 && memcmp(got + SIZE, sent, 100) == 0);
    free_engine(engine);
    close_pair(c);
}

/* The mapping call stands still at an urgent mark; recv passes it. */
static void an_urgent_mark_is_passed(void) {
    pair c = page_pair();
    zc_engine *engine = mapping_engine(ZC_MAP_ALWAYS);
    uint32_t slot = add_mapping(engine, c.ours);
    static char got[2 * SIZE];
    size_t done = 0;
    char copied[ZC_COPYBUF_MAX];
    zc_page_run run = {.copybuf = copied};
    CHECK_EQ(send(c.peer, "!", 1, MSG_OOB), 1);
    send_pages(c.peer, sent, SIZE);
    for (int rounds = 0; done < SIZE; rounds++) {
        CHECK(rounds < 1000);
        CHECK_EQ(poll_records(engine), 1);
        if (zc_recv_pages(engine, slot, &run)) {
            memcpy(got + done, run.start, run.mapped);
            memcpy(got + done + run.mapped, run.copybuf, run.copied);
            done += run.mapped + run.copied;
            if (run.slice != NULL) {
                zc_slice_release(run.slice);
            }
            zc_end_pages(&run);
        } else {
            int64_t n = zc_recv(engine, slot, got + done, sizeof got - done);
            CHECK(n > 0 || n == -EAGAIN);
            done += n > 0 ? (size_t)n : 0;
        }
    }
    CHECK_EQ(done, SIZE);
    CHECK(memcmp(got, sent, SIZE) == 0);
    free_engine(engine);
    close_pair(c);
}

/* A result that begins behind a header begins so that its pages lie where pages must. */
static void a_fill_maps_behind_an_odd_beginning(void) {
    pair c = page_pair();
    zc_engine *engine = mapping_engine(ZC_MAP_ALWAYS);
    uint32_t slot = add_mapping(engine, c.ours);
    zc_memory *memory = zc_memory_new(SIZE + 2 * PAGE);
    const size_t total = 10 + HEADER + SIZE + 50;
    memcpy(zc_memory_base(memory), "0123456789", 10); /* what the reader had already */
    CHECK_EQ(zc_fill_begin_pages(engine, slot, memory, 10, total), 10);
    send_all(c.peer, sent, HEADER);
    send_pages(c.peer, sent, SIZE);
    send_all(c.peer, sent, 50);
    expect_record(engine, slot, ZC_FILLED);
    CHECK_EQ(zc_fill_end(engine, slot), total);
    const char *result = zc_memory_base(memory) + zc_memory_origin(memory);
    CHECK(memcmp(result, "0123456789", 10) == 0);
    CHECK(memcmp(result + 10, sent, HEADER) == 0);
    CHECK(memcmp(result + 10 + HEADER, sent, SIZE) == 0);
    CHECK(memcmp(result + 10 + HEADER + SIZE, sent, 50) == 0);
    CHECK_EQ(counters(engine, slot)->bytes_mapped, SIZE);
    zc_memory_release(memory);
    free_engine(engine);
    close_pair(c);
}

/* The same buffer again and again: pages, then copied bytes over them, then pages. */
static void page_memory_is_used_again(void) {
    pair c = page_pair();
    zc_engine *engine = mapping_engine(ZC_MAP_ALWAYS);
    uint32_t slot = add_mapping(engine, c.ours);
    zc_memory *memory = zc_memory_new(SIZE);
    char *base = zc_memory_base(memory);
    for (int round = 0; round < 3; round++) {
        send_pages(c.peer, sent, SIZE);
        wait_for(c.ours, SIZE);
        expect_record(engine, slot, ZC_READABLE);
        CHECK_EQ(zc_recv_memory(engine, slot, memory, 0, SIZE), SIZE);
        CHECK(memcmp(base, sent, SIZE) == 0);
        send_all(c.peer, "small", 5);
        expect_record(engine, slot, ZC_READABLE);
        CHECK_EQ(zc_recv_memory(engine, slot, memory, PAGE + 10, SIZE - PAGE - 10), 5);
        CHECK(memcmp(base, sent, PAGE + 10) == 0);
        CHECK(memcmp(base + PAGE + 10, "small", 5) == 0);
        CHECK(memcmp(base + PAGE + 15, sent + PAGE + 15, SIZE - PAGE - 15) == 0);
    }
    CHECK_EQ(counters(engine, slot)->bytes_mapped, 3 * SIZE);
    zc_memory_release(memory);
    free_engine(engine);
    close_pair(c);
}

static int lowat_of(int fd) {
    int value = 0;
    socklen_t size = sizeof value;
    CHECK_EQ(getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &value, &size), 0);
    return value;
}

static void an_exact_buffer_aims_the_lowat(void) {
    pair c = page_pair();
    zc_engine *engine = mapping_engine(ZC_MAP_ALWAYS);
    uint32_t slot = add_mapping(engine, c.ours);
    zc_memory *memory = zc_memory_new(4 * SIZE);
    zc_memory_set_exact(memory, true);
    size_t done = 0;
    while (done < 4 * SIZE) {
        send_pages(c.peer, sent, SIZE);
        if (done + SIZE < 4 * SIZE && lowat_of(c.ours) > 1) {
            done += SIZE; /* too little to be woken for */
            continue;
        }
        expect_record(engine, slot, ZC_READABLE);
        size_t at = counters(engine, slot)->bytes_received;
        CHECK(zc_recv_memory(engine, slot, memory, at, 4 * SIZE - at) > 0);
        done = done + SIZE;
    }
    while (counters(engine, slot)->bytes_received < 4 * SIZE) {
        expect_record(engine, slot, ZC_READABLE);
        size_t at = counters(engine, slot)->bytes_received;
        CHECK(zc_recv_memory(engine, slot, memory, at, 4 * SIZE - at) > 0);
    }
    CHECK_EQ(lowat_of(c.ours), 1);
    CHECK(counters(engine, slot)->lowat_set >= 2);
    for (int i = 0; i < 4; i++) {
        CHECK(memcmp(zc_memory_base(memory) + (size_t)i * SIZE, sent, SIZE) == 0);
    }
    zc_memory_release(memory);
    free_engine(engine);
    close_pair(c);
}

static void costs_are_measured(void) {
    zc_calibration costs;
    CHECK_EQ(zc_calibrate(&costs), 0);
    CHECK(costs.mapped_ns > 0 && costs.fresh_ns > 0 && costs.warm_ns > 0 && costs.shifted_ns > 0);
}

int main(void) {
    static const test_case cases[] = {
        {"whole pages are mapped", whole_pages_are_mapped},
        {"a header and a tail are copied by the call", a_header_and_a_tail_are_copied_by_the_call},
        {"less than a page is left to recv", less_than_a_page_is_left_to_recv},
        {"an unmappable stream is given a rest", an_unmappable_stream_is_given_a_rest},
        {"a known route begins with a rest", a_known_route_begins_with_a_rest},
        {"a reset comes after the data and stays", a_reset_comes_after_the_data_and_stays},
        {"the end comes after a tail", the_end_comes_after_a_tail_and_its_phantom_byte},
        {"an urgent mark is passed", an_urgent_mark_is_passed},
        {"a fill maps behind an odd beginning", a_fill_maps_behind_an_odd_beginning},
        {"page memory is used again", page_memory_is_used_again},
        {"an exact buffer aims the lowat", an_exact_buffer_aims_the_lowat},
        {"costs are measured", costs_are_measured},
    };
    fill_pattern(sent, SIZE, 7);
    int error = zc_arena_open(64 * 1024 * 1024);
    if (error < 0) {
        fprintf(stderr, "errno %d: ", -error);
        SKIP("this kernel doesn't let TCP memory be mapped");
    }
    return RUN_TESTS(cases);
}
