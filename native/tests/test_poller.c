/* Batches: what a wake-up reports, for whom, in which order, and how often. */
#define _GNU_SOURCE
#include "support.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void received_bytes_lie_in_the_scratch_area(void) {
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    expect_quiet(engine);
    send_all(connection.peer, "hello", 5);
    zc_event event = expect_record(engine, slot, ZC_DATA);
    CHECK_EQ(event.result, 5);
    CHECK(memcmp(zc_engine_scratch(engine) + event.offset, "hello", 5) == 0);
    expect_quiet(engine);
    free_engine(engine);
    close_pair(connection);
}

static void several_connections_share_a_batch_without_overlap(void) {
    enum { CONNECTIONS = 20 };
    pair connections[CONNECTIONS];
    uint32_t slots[CONNECTIONS];
    char seen[CONNECTIONS] = {0};
    zc_engine *engine = new_engine();
    for (int i = 0; i < CONNECTIONS; i++) {
        connections[i] = tcp_pair();
        slots[i] = add(engine, connections[i].ours, ZC_MODE_DATA);
        char message[100];
        memset(message, 'a' + i, sizeof message);
        send_all(connections[i].peer, message, sizeof message);
    }
    for (int received = 0; received < CONNECTIONS;) {
        int count = poll_records(engine);
        for (int r = 0; r < count; r++) {
            zc_event event = zc_engine_records(engine)[r];
            CHECK_EQ(event.what, ZC_DATA);
            CHECK_EQ(event.result, 100);
            for (int i = 0; i < CONNECTIONS; i++) {
                if (slots[i] == event.slot) {
                    CHECK_EQ(seen[i]++, 0);
                    const char *bytes = zc_engine_scratch(engine) + event.offset;
                    CHECK_EQ(bytes[0], 'a' + i);
                    CHECK(memcmp(bytes, bytes + 1, 99) == 0);
                }
            }
        }
        received += count;
    }
    expect_quiet(engine);
    free_engine(engine);
    for (int i = 0; i < CONNECTIONS; i++) {
        CHECK_EQ(seen[i], 1);
        close_pair(connections[i]);
    }
}

/* More than the scratch area holds comes in several batches, each byte once. */
static void a_stream_longer_than_the_scratch_area_arrives_whole(void) {
    enum { SIZE = 300 * 1000 };
    static char sent[SIZE], got[SIZE];
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    fill_pattern(sent, SIZE, 1);
    CHECK_EQ(setsockopt(connection.peer, SOL_SOCKET, SO_SNDBUF, &(int){4 * SIZE}, sizeof(int)), 0);
    size_t written = 0, done = 0;
    while (done < SIZE) {
        ssize_t sent_now =
            send(connection.peer, sent + written, SIZE - written, MSG_DONTWAIT | MSG_NOSIGNAL);
        CHECK(sent_now >= 0 || errno == EAGAIN);
        written += sent_now > 0 ? (size_t)sent_now : 0;
        done += take_data(engine, slot, got + done);
    }
    CHECK(memcmp(sent, got, SIZE) == 0);
    CHECK_EQ(zc_conn_counters(engine, slot)->bytes_received, SIZE);
    free_engine(engine);
    close_pair(connection);
}

/* After one large message, the size of the next is told before it is received. */
static void a_large_message_can_be_received_into_its_own_memory(void) {
    enum { LARGE = 20 * 1000 };
    static char sent[LARGE], got[LARGE];
    pair connection = unix_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    fill_pattern(sent, LARGE, 10);
    send_all(connection.peer, sent, LARGE);
    CHECK_EQ(expect_record(engine, slot, ZC_DATA).result, LARGE);
    send_all(connection.peer, sent, LARGE);
    CHECK_EQ(expect_record(engine, slot, ZC_SIZED).result, LARGE);
    CHECK_EQ(zc_recv_sized(engine, slot, got, LARGE), LARGE);
    CHECK(memcmp(sent, got, LARGE) == 0);
    expect_quiet(engine);
    send_all(connection.peer, "small", 5);
    CHECK_EQ(expect_record(engine, slot, ZC_DATA).result, 5);
    free_engine(engine);
    close_pair(connection);
}

/* What came after the size was told is announced by its own edge. */
static void bytes_after_a_told_size_are_announced(void) {
    enum { LARGE = 20 * 1000 };
    static char sent[LARGE], got[LARGE];
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    size_t pending = 0, told = 0;
    while (told == 0) {
        send_all(connection.peer, sent, LARGE);
        pending += LARGE;
        zc_event event = poll_one(engine);
        CHECK(event.what == ZC_DATA || event.what == ZC_SIZED);
        told = event.what == ZC_SIZED ? (size_t)event.result : 0;
        pending -= (size_t)event.result;
    }
    send_all(connection.peer, "more", 4);
    CHECK_EQ(zc_recv_sized(engine, slot, got, told), told);
    size_t last = 0;
    for (pending += 4; pending > 0; pending -= last) {
        last = take_data(engine, slot, got);
    }
    CHECK(last >= 4 && memcmp(got + last - 4, "more", 4) == 0);
    free_engine(engine);
    close_pair(connection);
}

static void a_told_size_of_a_removed_connection_is_refused(void) {
    enum { LARGE = 20 * 1000 };
    static char bytes[LARGE];
    pair connection = unix_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    send_all(connection.peer, bytes, LARGE);
    expect_record(engine, slot, ZC_DATA);
    send_all(connection.peer, bytes, LARGE);
    expect_record(engine, slot, ZC_SIZED);
    CHECK_EQ(forget(engine, slot), 0);
    CHECK_EQ(zc_recv_sized(engine, slot, bytes, LARGE), -EBADF);
    free_engine(engine);
    close_pair(connection);
}

static void buffered_mode_asks_the_caller_to_receive(void) {
    char got[16];
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_BUFFERED);
    send_all(connection.peer, "buffered", 8);
    expect_record(engine, slot, ZC_READABLE);
    CHECK_EQ(zc_recv(engine, slot, got, sizeof got), 8);
    CHECK(memcmp(got, "buffered", 8) == 0);
    CHECK_EQ(zc_recv(engine, slot, got, sizeof got), -EAGAIN);
    expect_quiet(engine);
    free_engine(engine);
    close_pair(connection);
}

/* A caller that takes only part is told again, though the kernel has no new edge. */
static void bytes_left_behind_are_announced_again(void) {
    char got[4];
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_BUFFERED);
    send_all(connection.peer, "12345678", 8);
    expect_record(engine, slot, ZC_READABLE);
    CHECK_EQ(zc_recv(engine, slot, got, sizeof got), 4);
    CHECK_EQ(zc_engine_settle(engine), ZC_MORE);
    expect_record(engine, slot, ZC_READABLE);
    CHECK_EQ(zc_recv(engine, slot, got, sizeof got), 4);
    CHECK(memcmp(got, "5678", 4) == 0);
    free_engine(engine);
    close_pair(connection);
}

static void the_mode_can_change_between_batches(void) {
    char got[8];
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    send_all(connection.peer, "one", 3);
    expect_record(engine, slot, ZC_DATA);
    CHECK_EQ(zc_conn_set_mode(engine, slot, ZC_MODE_BUFFERED), 0);
    send_all(connection.peer, "two", 3);
    expect_record(engine, slot, ZC_READABLE);
    CHECK_EQ(zc_recv(engine, slot, got, sizeof got), 3);
    CHECK_EQ(zc_conn_set_mode(engine, slot, ZC_MODE_DATA), 0);
    send_all(connection.peer, "three", 5);
    CHECK_EQ(expect_record(engine, slot, ZC_DATA).result, 5);
    free_engine(engine);
    close_pair(connection);
}

/* What came while paused is neither lost nor reported before resume. */
static void a_paused_connection_is_silent_until_resumed(void) {
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    CHECK_EQ(zc_conn_pause(engine, slot), 0);
    send_all(connection.peer, "later", 5);
    struct pollfd entry = {.fd = zc_engine_fd(engine), .events = POLLIN};
    CHECK_EQ(poll(&entry, 1, -1), 1);
    expect_quiet(engine);
    CHECK_EQ(zc_conn_resume(engine, slot), 1);
    CHECK_EQ(expect_record(engine, slot, ZC_DATA).result, 5);
    CHECK_EQ(zc_conn_pause(engine, slot), 0);
    CHECK_EQ(zc_conn_resume(engine, slot), 0);
    expect_quiet(engine);
    free_engine(engine);
    close_pair(connection);
}

/* Nested epoll: the engine's descriptor is readable exactly when there is work. */
static void the_engine_s_descriptor_can_be_watched(void) {
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    struct pollfd entry = {.fd = zc_engine_fd(engine), .events = POLLIN};
    expect_quiet(engine);
    CHECK_EQ(poll(&entry, 1, 0), 0);
    send_all(connection.peer, "x", 1);
    CHECK_EQ(poll(&entry, 1, -1), 1);
    expect_record(engine, slot, ZC_DATA);
    CHECK_EQ(poll(&entry, 1, 0), 0);
    free_engine(engine);
    close_pair(connection);
}

static void a_removed_connection_reports_nothing_more(void) {
    pair kept = tcp_pair(), dropped = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t kept_slot = add(engine, kept.ours, ZC_MODE_DATA);
    uint32_t dropped_slot = add(engine, dropped.ours, ZC_MODE_DATA);
    send_all(dropped.peer, "gone", 4);
    CHECK_EQ(forget(engine, dropped_slot), 0);
    expect_quiet(engine);
    send_all(kept.peer, "kept", 4);
    CHECK_EQ(expect_record(engine, kept_slot, ZC_DATA).result, 4);
    free_engine(engine);
    close_pair(kept);
    close_pair(dropped);
}

/* A batch's records must not be taken for those of a connection that came later. */
static void a_slot_is_not_reused_before_the_next_poll(void) {
    pair first = tcp_pair(), second = tcp_pair(), third = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, first.ours, ZC_MODE_DATA);
    CHECK_EQ(forget(engine, slot), 0);
    CHECK(add(engine, second.ours, ZC_MODE_DATA) != slot);
    expect_quiet(engine);
    CHECK_EQ(add(engine, third.ours, ZC_MODE_DATA), slot);
    free_engine(engine);
    close_pair(first);
    close_pair(second);
    close_pair(third);
}

static void bad_descriptors_and_sizes_are_refused(void) {
    zc_engine *engine = new_engine();
    CHECK_EQ(zc_conn_add(engine, -1, ZC_MODE_DATA, 0), -EBADF);
    CHECK_EQ(zc_conn_add(engine, 1000000, ZC_MODE_DATA, 0), -EBADF);
    FILE *file = tmpfile();
    CHECK(file != NULL);
    CHECK_EQ(zc_conn_add(engine, fileno(file), ZC_MODE_DATA, 0), -EPERM);
    fclose(file);
    free_engine(engine);
    CHECK(zc_engine_new(1) == NULL);
    CHECK_EQ(errno, EINVAL);
    zc_engine_free(NULL);
}

/* The table grows; nobody's events get lost on the way. */
static void the_table_grows_with_its_connections(void) {
    enum { CONNECTIONS = 200 };
    static pair connections[CONNECTIONS];
    static char seen[1024];
    zc_engine *engine = new_engine();
    for (int i = 0; i < CONNECTIONS; i++) {
        connections[i] = unix_pair();
        uint32_t slot = add(engine, connections[i].ours, ZC_MODE_DATA);
        CHECK(slot < sizeof seen);
        send_all(connections[i].peer, "x", 1);
    }
    for (int received = 0; received < CONNECTIONS;) {
        int count = poll_records(engine);
        for (int r = 0; r < count; r++) {
            CHECK_EQ(seen[zc_engine_records(engine)[r].slot]++, 0);
        }
        received += count;
    }
    expect_quiet(engine);
    for (int i = 0; i < CONNECTIONS; i++) {
        close_pair(connections[i]);
    }
    free_engine(engine);
}

/* A transport may outlive its loop: it can still send, and be removed. */
static void a_closed_engine_still_serves_what_is_left(void) {
    char got[3];
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    zc_engine_close(engine);
    CHECK_EQ(zc_engine_fd(engine), -1);
    CHECK_EQ(zc_engine_poll(engine), -EBADF);
    CHECK_EQ(zc_send(engine, slot, "bye", 3), 3);
    receive_all(connection.peer, got, 3);
    forget(engine, slot);
    zc_engine_close(engine);
    free_engine(engine);
    close_pair(connection);
}

/* Whoever holds the last connection holds the engine's memory, too. */
static void a_freed_engine_lives_as_long_as_its_connections(void) {
    char got[3];
    pair first = tcp_pair(), second = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t first_slot = add(engine, first.ours, ZC_MODE_DATA);
    uint32_t second_slot = add(engine, second.ours, ZC_MODE_DATA);
    zc_engine_free(engine);
    forget(engine, first_slot);
    CHECK_EQ(zc_send(engine, second_slot, "bye", 3), 3);
    receive_all(second.peer, got, 3);
    forget(engine, second_slot);
    close_pair(first);
    close_pair(second);
}

static void a_descriptor_closed_behind_our_back_is_no_busy_loop(void) {
    pair connection = tcp_pair();
    zc_engine *engine = new_engine();
    uint32_t slot = add(engine, connection.ours, ZC_MODE_DATA);
    close(connection.ours);
    send_all(connection.peer, "x", 1);
    expect_quiet(engine);
    CHECK_EQ(forget(engine, slot), -EBADF);
    free_engine(engine);
    close(connection.peer);
}

int main(void) {
    const test_case cases[] = {
        {"received bytes lie in the scratch area", received_bytes_lie_in_the_scratch_area},
        {"several connections share a batch", several_connections_share_a_batch_without_overlap},
        {"a long stream arrives whole", a_stream_longer_than_the_scratch_area_arrives_whole},
        {"a large message", a_large_message_can_be_received_into_its_own_memory},
        {"bytes after a told size", bytes_after_a_told_size_are_announced},
        {"a told size of a removed one", a_told_size_of_a_removed_connection_is_refused},
        {"buffered mode asks the caller", buffered_mode_asks_the_caller_to_receive},
        {"bytes left behind are announced again", bytes_left_behind_are_announced_again},
        {"the mode can change", the_mode_can_change_between_batches},
        {"a paused connection is silent", a_paused_connection_is_silent_until_resumed},
        {"the engine's descriptor can be watched", the_engine_s_descriptor_can_be_watched},
        {"a removed connection reports nothing", a_removed_connection_reports_nothing_more},
        {"a slot isn't reused before a poll", a_slot_is_not_reused_before_the_next_poll},
        {"bad descriptors and sizes are refused", bad_descriptors_and_sizes_are_refused},
        {"the table grows", the_table_grows_with_its_connections},
        {"a closed engine still serves", a_closed_engine_still_serves_what_is_left},
        {"a freed engine lives on", a_freed_engine_lives_as_long_as_its_connections},
        {"closed behind our back", a_descriptor_closed_behind_our_back_is_no_busy_loop},
    };
    return RUN_TESTS(cases);
}
