/*
 * What receiving a page costs here: mapped, copied into fresh memory, copied into
 * warm memory, and into warm memory that begins a few bytes into a page.
 *
 * Measured on a connection of our own over loopback whose segments are whole
 * pages, with a sender whose data lies in pages of their own (MSG_ZEROCOPY), since
 * that is how a card with header split delivers them.  Every page is read once, as a receiver
 * would, and given back, as a receiver that keeps it will do some time.  CPU
 * time of this thread, median of the rounds: one in which a virtual processor was taken away, or
 * its clock stood still, decides nothing.
 *
 * The fourth: some processors copy several times slower (measured: 620 against 105 microseconds
 * per MB) where source and destination differ by 1 to 31 bytes modulo the page.  Received
 * data often begins a page, and a large bytearray begins 16 bytes into one.
 */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "engine_internal.h"
#include "pages_internal.h"
#include "recv_zerocopy.h"
#include "zerocopy_names.h"

/* So few that an ordinary user may pin them (RLIMIT_MEMLOCK was 64 KiB for long). */
enum { PAGES = 8, BYTES = PAGES * ZC_PAGE, ROUNDS = 32, SEGMENT = ZC_PAGE + 12 };
enum { MEMORY = 2 * BYTES + ZC_PAGE, SHIFT = 16 }; /* where a large malloc's memory begins in its page */

typedef struct {
    int tx, rx;
    char *source; /* BYTES, and behind them the warm memory */
    zc_engine *engine; /* only to hold a connection's record */
    zc_conn *conn;
} bench;

static int64_t cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static volatile char seen;

static void read_pages(const char *at, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) {
        seen = at[i];
    }
}

static int set_int(int fd, int level, int name, int value) {
    return setsockopt(fd, level, name, &value, sizeof value) < 0 ? -errno : 0;
}

/* A connection whose segments are whole pages: both ends ask before they meet. */
static int connect_pair(bench *b) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof name;
    int rc = 0, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    b->tx = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0 || b->tx < 0 || set_int(listener, IPPROTO_TCP, TCP_MAXSEG, SEGMENT) < 0 ||
        set_int(b->tx, IPPROTO_TCP, TCP_MAXSEG, SEGMENT) < 0 ||
        bind(listener, (struct sockaddr *)&name, size) < 0 || listen(listener, 1) < 0 ||
        getsockname(listener, (struct sockaddr *)&name, &size) < 0 ||
        (connect(b->tx, (struct sockaddr *)&name, size) < 0 && errno != EINPROGRESS)) {
        rc = -errno;
    } else {
        b->rx = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        rc = b->rx < 0 ? -errno : set_int(b->tx, SOL_SOCKET, SO_ZEROCOPY, 1);
    }
    if (listener >= 0) {
        close(listener);
    }
    return rc;
}

/* Loopback delivers within the call; a window that is too small shows as a short queue. */
static int send_pages(const bench *b) {
    for (size_t sent = 0; sent < BYTES;) {
        ssize_t n = send(b->tx, b->source + sent, BYTES - sent, MSG_ZEROCOPY | MSG_NOSIGNAL);
        if (n < 0) {
            return -errno;
        }
        sent += (size_t)n;
    }
    return 0;
}

static int drain(const bench *b, char *into) {
    for (size_t got = 0; got < BYTES;) {
        ssize_t n = recv(b->rx, into + got, BYTES - got, 0);
        if (n <= 0) {
            return n < 0 ? -errno : -ECONNRESET;
        }
        got += (size_t)n;
    }
    return 0;
}

static void unmap(char *at, size_t bytes) {
    zc_pages_lock();
    zc_room_unmap(at, bytes);
    zc_pages_unlock();
}

/* One round of mapping; -EOPNOTSUPP where the pages couldn't be mapped. */
static int64_t map_round(bench *b, zc_slice *slice) {
    size_t done = 0;
    int64_t start = cpu_ns();
    while (done < BYTES) {
        zc_map_request ask = {.address = zc_slice_base(slice) + done,
                              .length = BYTES - done,
                              .clean = true};
        zc_map_result got;
        if (!zc_conn_map(b->engine, b->conn, &ask, &got) || got.mapped == 0) {
            return -EOPNOTSUPP;
        }
        done += got.mapped;
    }
    read_pages(zc_slice_base(slice), BYTES);
    if (madvise(zc_slice_base(slice), BYTES, MADV_DONTNEED) < 0) {
        return -errno;
    }
    return cpu_ns() - start;
}

static int64_t fresh_round(bench *b) {
    int64_t start = cpu_ns();
    char *fresh = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED) {
        return -errno;
    }
    int rc = drain(b, fresh);
    read_pages(fresh, BYTES);
    unmap(fresh, BYTES);
    return rc < 0 ? rc : cpu_ns() - start;
}

static int64_t warm_round(bench *b, size_t shift) {
    char *warm = b->source + BYTES + shift;
    int64_t start = cpu_ns();
    int rc = drain(b, warm);
    read_pages(warm, BYTES);
    return rc < 0 ? rc : cpu_ns() - start;
}

static int ascending(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

static uint32_t median_page(int64_t rounds[ROUNDS]) {
    qsort(rounds, ROUNDS, sizeof rounds[0], ascending);
    return (uint32_t)(rounds[ROUNDS / 2] / PAGES);
}

static int run(bench *b, zc_slice *slice, zc_calibration *out) {
    int64_t mapped[ROUNDS], fresh[ROUNDS], warm[ROUNDS], shifted[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        int rc;
        if ((rc = send_pages(b)) < 0 || (mapped[i] = map_round(b, slice)) < 0 ||
            (rc = send_pages(b)) < 0 || (fresh[i] = fresh_round(b)) < 0 ||
            (rc = send_pages(b)) < 0 || (warm[i] = warm_round(b, 0)) < 0 ||
            (rc = send_pages(b)) < 0 || (shifted[i] = warm_round(b, SHIFT)) < 0) {
            return rc < 0 ? rc : -EOPNOTSUPP;
        }
    }
    out->mapped_ns = median_page(mapped);
    out->fresh_ns = median_page(fresh);
    out->warm_ns = median_page(warm);
    out->shifted_ns = median_page(shifted);
    return 0;
}

int zc_calibrate(zc_calibration *out) {
    bench b = {.tx = -1, .rx = -1};
    *out = (zc_calibration){0};
    zc_slice *slice = zc_slice_lease(PAGES);
    if (slice == NULL) {
        return -errno;
    }
    b.source = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    b.engine = zc_engine_new(ZC_MIN_ROOM);
    int rc = b.source == MAP_FAILED || b.engine == NULL ? -ENOMEM : connect_pair(&b);
    if (rc == 0) {
        memset(b.source, 'c', MEMORY);
        int slot = zc_conn_add(b.engine, b.rx, ZC_MODE_BUFFERED, 0);
        rc = slot < 0 ? slot : 0;
        if (rc == 0) {
            b.conn = zc_conn_live(b.engine, (uint32_t)slot);
            rc = run(&b, slice, out);
            (void)zc_conn_remove(b.engine, (uint32_t)slot);
        }
    }
    zc_engine_free(b.engine);
    if (b.tx >= 0) {
        close(b.tx);
    }
    if (b.rx >= 0) {
        close(b.rx);
    }
    if (b.source != MAP_FAILED) {
        unmap(b.source, MEMORY);
    }
    zc_slice_release(slice);
    return rc;
}
