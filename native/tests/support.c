#define _GNU_SOURCE
#include "support.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int count_descriptors(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder != NULL);
    while (readdir(folder) != NULL) {
        count++;
    }
    closedir(folder);
    return count;
}

int run_tests(const test_case *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        printf("%s\n", cases[i].name);
        fflush(stdout);
        int before = count_descriptors();
        cases[i].run();
        CHECK_EQ(count_descriptors(), before);
    }
    return EXIT_SUCCESS;
}

int listen_on_loopback(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK_EQ(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    CHECK_EQ(listen(fd, SOMAXCONN), 0);
    return fd;
}

int connect_to(int listener) {
    struct sockaddr_in address;
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK_EQ(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    CHECK_EQ(connect(fd, (struct sockaddr *)&address, size), 0);
    return fd;
}

pair tcp_pair(void) {
    int listener = listen_on_loopback();
    int peer = connect_to(listener);
    struct pollfd entry = {.fd = listener, .events = POLLIN};
    CHECK_EQ(poll(&entry, 1, -1), 1);
    int ours = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    CHECK(ours >= 0);
    close(listener);
    return (pair){.ours = ours, .peer = peer};
}

pair unix_pair(void) {
    int fds[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    CHECK_EQ(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
    return (pair){.ours = fds[0], .peer = fds[1]};
}

void close_pair(pair connection) {
    CHECK_EQ(close(connection.ours), 0);
    CHECK_EQ(close(connection.peer), 0);
}

void reset(int fd) {
    const struct linger abort_it = {.l_onoff = 1, .l_linger = 0};
    CHECK_EQ(setsockopt(fd, SOL_SOCKET, SO_LINGER, &abort_it, sizeof abort_it), 0);
    CHECK_EQ(close(fd), 0);
}

void send_all(int fd, const void *bytes, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t sent = send(fd, (const char *)bytes + done, size - done, MSG_NOSIGNAL);
        CHECK(sent > 0);
        done += (size_t)sent;
    }
}

void receive_all(int fd, void *bytes, size_t size) {
    CHECK_EQ(recv(fd, bytes, size, MSG_WAITALL), size);
}

void fill_pattern(char *bytes, size_t size, unsigned seed) {
    for (size_t i = 0; i < size; i++) {
        seed = seed * 1103515245u + 12345u;
        bytes[i] = (char)(seed >> 16);
    }
}

zc_engine *new_engine(void) {
    zc_engine *engine = zc_engine_new(64 * 1024);
    CHECK(engine != NULL);
    return engine;
}

/* The slots in use, of the one engine that a test has. */
static uint32_t slots[1024];
static size_t slot_count;

uint32_t add_with(zc_engine *engine, int fd, int mode, int flags) {
    int slot = zc_conn_add(engine, fd, mode, flags);
    CHECK(slot >= 0);
    CHECK(slot_count < sizeof slots / sizeof slots[0]);
    slots[slot_count++] = (uint32_t)slot;
    return (uint32_t)slot;
}

uint32_t add(zc_engine *engine, int fd, int mode) {
    return add_with(engine, fd, mode, 0);
}

void disown(uint32_t slot) {
    for (size_t i = 0; i < slot_count; i++) {
        if (slots[i] == slot) {
            slots[i] = slots[--slot_count];
            return;
        }
    }
    CHECK(!"a connection of this engine");
}

int forget(zc_engine *engine, uint32_t slot) {
    disown(slot);
    return zc_conn_remove(engine, slot);
}

void free_engine(zc_engine *engine) {
    while (slot_count > 0) {
        forget(engine, slots[0]); /* its descriptor may be closed already */
    }
    zc_engine_free(engine);
}

int poll_records(zc_engine *engine) {
    for (;;) {
        int count = zc_engine_poll(engine);
        CHECK(count >= 0);
        if (count > 0) {
            return count;
        }
        if (zc_engine_settle(engine) & (ZC_MORE | ZC_EAGER)) {
            continue;
        }
        struct pollfd entry = {.fd = zc_engine_fd(engine), .events = POLLIN};
        CHECK_EQ(poll(&entry, 1, -1), 1);
    }
}

zc_event poll_one(zc_engine *engine) {
    CHECK_EQ(poll_records(engine), 1);
    return zc_engine_records(engine)[0];
}

void expect_quiet(zc_engine *engine) {
    do {
        CHECK_EQ(zc_engine_poll(engine), 0);
    } while (zc_engine_settle(engine) & (ZC_MORE | ZC_EAGER));
}

zc_event expect_record(zc_engine *engine, uint32_t slot, uint32_t what) {
    zc_event event = poll_one(engine);
    CHECK_EQ(event.slot, slot);
    CHECK_EQ(event.what, what);
    return event;
}

size_t take_data(zc_engine *engine, uint32_t slot, char *into) {
    zc_event event = poll_one(engine);
    CHECK_EQ(event.slot, slot);
    CHECK(event.result > 0);
    if (event.what == ZC_SIZED) {
        CHECK_EQ(zc_recv_sized(engine, slot, into, (size_t)event.result), event.result);
    } else {
        CHECK_EQ(event.what, ZC_DATA);
        memcpy(into, zc_engine_scratch(engine) + event.offset, (size_t)event.result);
    }
    return (size_t)event.result;
}
