/* Sending a buffer, a vector, a file: short counts, order, errors. */
#define _GNU_SOURCE
#include "support.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SIZE = 1024 * 1024 };
static char bytes[SIZE], got[SIZE];

static pair small_pair(void) {
    pair connection = tcp_pair();
    CHECK_EQ(setsockopt(connection.ours, SOL_SOCKET, SO_SNDBUF, &(int){8192}, sizeof(int)), 0);
    return connection;
}

static size_t drain(int fd, char *into) {
    size_t done = 0;
    for (ssize_t n; (n = recv(fd, into + done, SIZE - done, MSG_DONTWAIT)) > 0;) {
        done += (size_t)n;
    }
    return done;
}

static void a_small_send_is_taken_whole_and_arms_nothing(void) {
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    CHECK_EQ(zc_send(engine, slot, "hello", 5), 5);
    receive_all(connection.peer, got, 5);
    CHECK(memcmp(got, "hello", 5) == 0);
    expect_quiet(engine);
    CHECK_EQ(zc_conn_counters(engine, slot)->bytes_sent, 5);
    CHECK_EQ(zc_conn_counters(engine, slot)->send_short, 0);
    free_engine(engine);
    close_pair(connection);
}

/* Writes until all is sent, reading at the peer; every ZC_WRITABLE is awaited. */
static void a_short_send_goes_on_when_writable(void) {
    pair connection = small_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    fill_pattern(bytes, SIZE, 3);
    size_t sent = 0, received = 0, shorts = 0;
    while (sent < SIZE) {
        int64_t taken = zc_send(engine, slot, bytes + sent, SIZE - sent);
        CHECK(taken >= 0);
        sent += (size_t)taken;
        if (sent < SIZE) {
            shorts++;
            int count = 0;
            while (count == 0) {
                received += drain(connection.peer, got + received);
                count = zc_engine_poll(engine);
            }
            CHECK_EQ(count, 1);
            CHECK_EQ(zc_engine_records(engine)[0].what, ZC_WRITABLE);
        }
    }
    CHECK(shorts > 0);
    CHECK_EQ(zc_conn_counters(engine, slot)->send_short, shorts);
    receive_all(connection.peer, got + received, SIZE - received);
    CHECK(memcmp(bytes, got, SIZE) == 0);
    free_engine(engine);
    close_pair(connection);
}

static void a_full_socket_takes_nothing_and_says_so(void) {
    pair connection = small_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    while (zc_send(engine, slot, bytes, SIZE) > 0) {
    }
    CHECK_EQ(zc_send(engine, slot, bytes, SIZE), 0);
    expect_quiet(engine);
    free_engine(engine);
    close_pair(connection);
}

static void a_vector_leaves_in_order_without_joining(void) {
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    CHECK_EQ(zc_iov_put(engine, 0, "header ", 7), 0);
    CHECK_EQ(zc_iov_put(engine, 1, "", 0), 0);
    CHECK_EQ(zc_iov_put(engine, 2, "body", 4), 0);
    CHECK_EQ(zc_sendv(engine, slot, 3), 11);
    receive_all(connection.peer, got, 11);
    CHECK(memcmp(got, "header body", 11) == 0);
    CHECK_EQ(zc_conn_counters(engine, slot)->send_calls, 1);
    free_engine(engine);
    close_pair(connection);
}

static void the_longest_vector_is_accepted(void) {
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    int longest = zc_iov_max();
    CHECK(longest >= 64);
    fill_pattern(bytes, (size_t)longest, 4);
    for (int i = 0; i < longest; i++) {
        CHECK_EQ(zc_iov_put(engine, i, bytes + i, 1), 0);
    }
    CHECK_EQ(zc_sendv(engine, slot, longest), longest);
    receive_all(connection.peer, got, (size_t)longest);
    CHECK(memcmp(bytes, got, (size_t)longest) == 0);
    free_engine(engine);
    close_pair(connection);
}

/* A peer that is gone: an errno, no SIGPIPE. */
static void sending_to_a_peer_that_reset_is_an_error(void) {
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    reset(connection.peer);
    CHECK_EQ(expect_record(engine, slot, ZC_ERROR).result, -ECONNRESET);
    CHECK_EQ(zc_send(engine, slot, "x", 1), -EPIPE);
    free_engine(engine);
    close(connection.ours);
}

/* Whoever waits to write must learn of a reset, too. */
static void a_reset_wakes_a_blocked_writer(void) {
    pair connection = small_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    while (zc_send(engine, slot, bytes, SIZE) > 0) {
    }
    expect_quiet(engine);
    reset(connection.peer);
    int count = poll_records(engine), writable = 0;
    for (int i = 0; i < count; i++) {
        writable += zc_engine_records(engine)[i].what == ZC_WRITABLE;
    }
    CHECK_EQ(writable, 1);
    CHECK(zc_send(engine, slot, "x", 1) < 0);
    free_engine(engine);
    close(connection.ours);
}

static void shutting_down_ends_the_peer_s_stream_and_keeps_ours(void) {
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    CHECK_EQ(zc_send(engine, slot, "end", 3), 3);
    CHECK_EQ(zc_shutdown_write(engine, slot), 0);
    receive_all(connection.peer, got, 3);
    CHECK_EQ(recv(connection.peer, got, 1, 0), 0);
    send_all(connection.peer, "answer", 6);
    CHECK_EQ(expect_record(engine, slot, ZC_DATA).result, 6);
    CHECK_EQ(zc_send(engine, slot, "x", 1), -EPIPE);
    free_engine(engine);
    close_pair(connection);
}

static int memory_file(size_t size) {
    int file = memfd_create("test", MFD_CLOEXEC);
    CHECK(file >= 0);
    CHECK_EQ(write(file, bytes, size), size);
    return file;
}

static void a_part_of_a_file_is_sent(void) {
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    fill_pattern(bytes, 1000, 5);
    int file = memory_file(1000);
    CHECK_EQ(zc_sendfile(engine, slot, file, 100, 300), 300);
    receive_all(connection.peer, got, 300);
    CHECK(memcmp(bytes + 100, got, 300) == 0);
    CHECK_EQ(zc_sendfile(engine, slot, file, 900, 300), 100);
    receive_all(connection.peer, got, 100);
    CHECK(memcmp(bytes + 900, got, 100) == 0);
    CHECK_EQ(zc_sendfile(engine, slot, file, 1000, 300), 0);
    CHECK_EQ(zc_conn_counters(engine, slot)->sendfile_bytes, 400);
    close(file);
    free_engine(engine);
    close_pair(connection);
}

static void a_file_larger_than_the_socket_s_room_arrives_whole(void) {
    pair connection = small_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    fill_pattern(bytes, SIZE, 6);
    int file = memory_file(SIZE);
    size_t sent = 0, received = 0, blocked = 0;
    while (sent < SIZE) {
        int64_t taken = zc_sendfile(engine, slot, file, (int64_t)sent, SIZE - sent);
        if (taken != -EAGAIN) {
            CHECK(taken > 0);
            sent += (size_t)taken;
            continue;
        }
        blocked++;
        int count = 0;
        while (count == 0) {
            received += drain(connection.peer, got + received);
            count = zc_engine_poll(engine);
        }
        CHECK_EQ(count, 1);
        CHECK_EQ(zc_engine_records(engine)[0].what, ZC_WRITABLE);
    }
    CHECK(blocked > 0);
    receive_all(connection.peer, got + received, SIZE - received);
    CHECK(memcmp(bytes, got, SIZE) == 0);
    close(file);
    free_engine(engine);
    close_pair(connection);
}

static void a_file_that_cannot_be_sent_is_an_error(void) {
    int ends[2];
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    CHECK_EQ(zc_sendfile(engine, slot, -1, 0, 10), -EBADF);
    CHECK_EQ(pipe(ends), 0);
    CHECK_EQ(zc_sendfile(engine, slot, ends[0], 0, 10), -ESPIPE);
    close(ends[0]);
    close(ends[1]);
    free_engine(engine);
    close_pair(connection);
}

int main(void) {
    const test_case cases[] = {
        {"a small send", a_small_send_is_taken_whole_and_arms_nothing},
        {"a short send goes on when writable", a_short_send_goes_on_when_writable},
        {"a full socket takes nothing", a_full_socket_takes_nothing_and_says_so},
        {"a vector leaves in order", a_vector_leaves_in_order_without_joining},
        {"the longest vector", the_longest_vector_is_accepted},
        {"sending to a peer that reset", sending_to_a_peer_that_reset_is_an_error},
        {"a reset wakes a blocked writer", a_reset_wakes_a_blocked_writer},
        {"shutting down", shutting_down_ends_the_peer_s_stream_and_keeps_ours},
        {"a part of a file", a_part_of_a_file_is_sent},
        {"a file larger than the room", a_file_larger_than_the_socket_s_room_arrives_whole},
        {"a file that cannot be sent", a_file_that_cannot_be_sent_is_an_error},
    };
    return RUN_TESTS(cases);
}
