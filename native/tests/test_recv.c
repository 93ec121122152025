/* Receiving by copy: ends of stream, resets, urgent data, unix sockets. */
#define _GNU_SOURCE
#include "support.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void data_before_a_fin_comes_first_then_eof_once(void) {
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    send_all(connection.peer, "last words", 10);
    CHECK_EQ(shutdown(connection.peer, SHUT_WR), 0);
    CHECK_EQ(expect_record(engine, slot, ZC_DATA).result, 10);
    expect_record(engine, slot, ZC_EOF);
    expect_quiet(engine);
    free_engine(engine);
    close_pair(connection);
}

static void a_fin_in_buffered_mode_is_a_receive_of_zero(void) {
    char got[8];
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_BUFFERED);
    send_all(connection.peer, "end", 3);
    CHECK_EQ(shutdown(connection.peer, SHUT_WR), 0);
    expect_record(engine, slot, ZC_READABLE);
    CHECK_EQ(zc_recv(engine, slot, got, sizeof got), 3);
    expect_record(engine, slot, ZC_READABLE);
    CHECK_EQ(zc_recv(engine, slot, got, sizeof got), 0);
    expect_quiet(engine);
    free_engine(engine);
    close_pair(connection);
}

static void a_fin_while_paused_is_reported_after_resume(void) {
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    zc_conn_pause(engine, slot);
    CHECK_EQ(shutdown(connection.peer, SHUT_WR), 0);
    struct pollfd entry = {.fd = zc_engine_fd(engine), .events = POLLIN};
    CHECK_EQ(poll(&entry, 1, -1), 1);
    expect_quiet(engine);
    CHECK_EQ(zc_conn_resume(engine, slot), 1);
    expect_record(engine, slot, ZC_EOF);
    free_engine(engine);
    close_pair(connection);
}

static void a_reset_is_an_error_not_an_end(void) {
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    reset(connection.peer);
    CHECK_EQ(expect_record(engine, slot, ZC_ERROR).result, -ECONNRESET);
    free_engine(engine);
    close(connection.ours);
}

/* recv stops at an urgent mark; what follows it must not wait for another edge. */
static void urgent_data_does_not_stop_the_stream(void) {
    char got[16];
    size_t done = 0;
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    send_all(connection.peer, "abc", 3);
    CHECK_EQ(send(connection.peer, "!", 1, MSG_OOB), 1);
    send_all(connection.peer, "def", 3);
    while (done < 6) {
        zc_event event = expect_record(engine, slot, ZC_DATA);
        CHECK(done + (size_t)event.result <= sizeof got);
        memcpy(got + done, zc_engine_scratch(engine) + event.offset, (size_t)event.result);
        done += (size_t)event.result;
    }
    CHECK(memcmp(got, "abcdef", 6) == 0);
    expect_quiet(engine);
    free_engine(engine);
    close_pair(connection);
}

/* On AF_UNIX a recv stops where the sender's descriptors begin, without a new edge. */
static void a_unix_receive_that_stops_short_goes_on(void) {
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {.iov_base = "def", .iov_len = 3};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    pair connection = unix_pair();
    memcpy(CMSG_DATA(header), &connection.peer, sizeof(int));

    zc_engine *engine = new_engine();
    uint32_t slot = add_with(engine, connection.ours, ZC_MODE_DATA, ZC_CONN_PROBE_AFTER_SHORT);
    send_all(connection.peer, "abc", 3);
    CHECK_EQ(sendmsg(connection.peer, &message, 0), 3);
    send_all(connection.peer, "ghi", 3);
    char got[9];
    for (size_t done = 0; done < sizeof got;) {
        zc_event event = expect_record(engine, slot, ZC_DATA);
        CHECK(done + (size_t)event.result <= sizeof got);
        memcpy(got + done, zc_engine_scratch(engine) + event.offset, (size_t)event.result);
        done += (size_t)event.result;
    }
    CHECK(memcmp(got, "abcdefghi", 9) == 0);
    free_engine(engine);
    close_pair(connection);
}

int main(void) {
    const test_case cases[] = {
        {"data before a FIN, then EOF once", data_before_a_fin_comes_first_then_eof_once},
        {"a FIN in buffered mode", a_fin_in_buffered_mode_is_a_receive_of_zero},
        {"a FIN while paused", a_fin_while_paused_is_reported_after_resume},
        {"a reset is an error", a_reset_is_an_error_not_an_end},
        {"urgent data doesn't stop the stream", urgent_data_does_not_stop_the_stream},
        {"a unix receive that stops short", a_unix_receive_that_stops_short_goes_on},
    };
    return RUN_TESTS(cases);
}
