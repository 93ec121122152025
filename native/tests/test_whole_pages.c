/* Zero-copy sends in whole pages: how they are cut, and that it is one write still. */
#define _GNU_SOURCE
#include "support.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PAGE = 4096, PIECE = 15 * PAGE, SIZE = 5 * PIECE + 100, TOKEN = 77 };
static char bytes[SIZE], got[SIZE];

static uint64_t sends(zc_engine *engine, uint32_t slot) {
    return zc_conn_counters(engine, slot)->zerocopy_sends;
}

/* A connection whose socket buffer takes all of `bytes`. */
static pair roomy_pair(void) {
    pair connection = tcp_pair();
    CHECK_EQ(setsockopt(connection.ours, SOL_SOCKET, SO_SNDBUF, &(int){4 * SIZE}, sizeof(int)), 0);
    return connection;
}

static void settle(zc_engine *engine, uint32_t slot, int fd, uint64_t token) {
    uint64_t taken = 0;
    while (zc_zerocopy_reap(engine, slot) > 0) {
        struct pollfd wait = {.fd = fd, .events = 0};
        CHECK(poll(&wait, 1, -1) >= 0);
    }
    CHECK_EQ(zc_zerocopy_take(engine, slot, &taken), 1);
    CHECK_EQ(taken, token);
    CHECK_EQ(zc_zerocopy_take(engine, slot, &taken), 0);
}

static void a_write_is_cut_into_pieces_and_stays_one(void) {
    pair connection = roomy_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    fill_pattern(bytes, SIZE, 5);
    if (zc_zerocopy_prepare(engine, slot) < 0) {
        SKIP("this kernel has no MSG_ZEROCOPY");
    }
    CHECK_EQ(zc_zerocopy_whole_pages(engine, slot), 0);
    CHECK_EQ(zc_send_zerocopy(engine, slot, bytes, SIZE, TOKEN), SIZE);
    CHECK_EQ(sends(engine, slot), 6);
    CHECK_EQ(zc_zerocopy_seal(engine, slot) >= 0, 1);
    receive_all(connection.peer, got, SIZE);
    CHECK(memcmp(got, bytes, SIZE) == 0);
    settle(engine, slot, connection.ours, TOKEN);
    free_engine(engine);
    close_pair(connection);
}

static void without_it_a_write_is_one_send(void) {
    pair connection = roomy_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    CHECK_EQ(zc_zerocopy_prepare(engine, slot), 0);
    CHECK_EQ(zc_send_zerocopy(engine, slot, bytes, SIZE, TOKEN), SIZE);
    CHECK_EQ(sends(engine, slot), 1);
    CHECK_EQ(zc_zerocopy_seal(engine, slot) >= 0, 1);
    receive_all(connection.peer, got, SIZE);
    settle(engine, slot, connection.ours, TOKEN);
    free_engine(engine);
    close_pair(connection);
}

/* A full socket ends it between two pieces; what was taken is told, and the rest goes on later. */
static void a_full_socket_ends_it_early(void) {
    pair connection = tcp_pair();
    CHECK_EQ(setsockopt(connection.ours, SOL_SOCKET, SO_SNDBUF, &(int){2 * PIECE}, sizeof(int)), 0);
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    CHECK_EQ(zc_zerocopy_prepare(engine, slot), 0);
    CHECK_EQ(zc_zerocopy_whole_pages(engine, slot), 0);
    fill_pattern(bytes, SIZE, 6);
    size_t sent = 0, received = 0;
    while (sent < SIZE) {
        int64_t taken = zc_send_zerocopy(engine, slot, bytes + sent, SIZE - sent, TOKEN);
        CHECK(taken >= 0);
        sent += (size_t)taken;
        while (received < sent) {
            ssize_t n = recv(connection.peer, got + received, SIZE - received, 0);
            CHECK(n > 0);
            received += (size_t)n;
        }
    }
    CHECK_EQ(zc_zerocopy_seal(engine, slot) >= 0, 1);
    CHECK(zc_conn_counters(engine, slot)->send_short > 0);
    CHECK(memcmp(got, bytes, SIZE) == 0);
    settle(engine, slot, connection.ours, TOKEN);
    free_engine(engine);
    close_pair(connection);
}

static void an_ended_connection_is_an_error(void) {
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    CHECK_EQ(zc_zerocopy_prepare(engine, slot), 0);
    CHECK_EQ(zc_zerocopy_whole_pages(engine, slot), 0);
    CHECK_EQ(shutdown(connection.ours, SHUT_WR), 0);
    CHECK_EQ(zc_send_zerocopy(engine, slot, bytes, SIZE, TOKEN), -EPIPE);
    CHECK_EQ(zc_zerocopy_seal(engine, slot), -ENOENT);
    free_engine(engine);
    close_pair(connection);
}

static const test_case cases[] = {
    {"a write is cut into pieces and stays one", a_write_is_cut_into_pieces_and_stays_one},
    {"without it a write is one send", without_it_a_write_is_one_send},
    {"a full socket ends it early", a_full_socket_ends_it_early},
    {"an ended connection is an error", an_ended_connection_is_an_error},
};

int main(void) {
    return RUN_TESTS(cases);
}
