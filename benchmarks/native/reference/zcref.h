/* zcref: receiving with and without a copy, as plain C does it; what zcloop is measured against.
 *
 * One sender, one receiver, one connection, after the idea of the kernel's tcp_mmap selftest. The
 * sender takes one of four paths into the socket, the receiver one of four out of it. Both ends are
 * processes of their own, so that each has a CPU; `zcref loopback` starts both.
 *
 * The stream is a row of messages: `header` bytes, then `size` bytes. Bodies walk through a pattern
 * of a prime number of pages, so that every body begins at a page of the sender's memory and a page
 * that is lost, doubled or swapped with one at a power-of-two distance changes the hash. The end of
 * the stream is the end of the data (FIN); the receiver then answers with two 64-bit words, bytes
 * and hash.
 */
#ifndef ZCREF_H
#define ZCREF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PAGE = 4096, PATTERN_PAGES = 257, PATTERN_BYTES = PATTERN_PAGES * PAGE };
/* Nothing for this long means a lost byte or a hung peer. */
enum { STALL_MS = 20000 };

struct options {
    const char *host, *port; /* numeric; receiver: empty port means any */
    const char *kind;
    const char *sender;      /* loopback: the kind of the other half */
    uint64_t bytes;          /* of the stream, a whole number of messages */
    uint64_t warmup;         /* bytes that come before the clock starts */
    size_t size;             /* body of a message; a write of the sender, a read of the receiver */
    size_t header;
    size_t answer;           /* bytes that the receiver returns for each message */
    size_t arena;            /* map: bytes of address space that are mapped in turn before a zap */
    size_t copybuf;          /* map: bytes that the mapping call may copy */
    uint64_t pace;           /* sender: bytes a second at most; 0: as fast as it goes */
    int mss, lowat, rcvbuf;  /* 0: left alone */
    bool hash;
};

/* hash.c, also a shared library for the receivers in Python */
struct zcref_hash;
struct zcref_hash *zcref_hash_new(void);
void zcref_hash_update(struct zcref_hash *hash, const void *data, size_t n);
uint64_t zcref_hash_value(const struct zcref_hash *hash);
/* out[i] = pattern[i % PATTERN_BYTES] */
void zcref_pattern(unsigned char *out, size_t n);
/* The hash of a whole stream. */
uint64_t zcref_expected(uint64_t bytes, size_t header, size_t size);

/* common.c */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void die_errno(const char *what);
void *allocate(size_t bytes); /* page-aligned */
struct moment {
    uint64_t wall_ns, cpu_ns;
    uint64_t voluntary, involuntary, faults;
};
void moment_now(struct moment *out);
int connect_to(const struct options *options);
int listen_on(const struct options *options, char address[64]); /* prints "host port" into address */
/* Waits for poll(2) events; dies when there are none for STALL_MS. */
void wait_for(int fd, short events);

/* send.c */
void run_sender(const struct options *options, int out_fd);

/* receive.c: the account that every receiver keeps, and the two that copy */
struct receiver {
    const struct options *options;
    int fd;
    struct zcref_hash *hash;
    uint64_t received, answered;           /* bytes; messages answered */
    uint64_t clock_at;                     /* bytes received when the clock started */
    struct moment start, end, released;
    uint64_t mapped, copied_by_call;       /* bytes, of the whole stream */
    uint64_t recv_calls, map_calls, poll_calls, zap_calls;
    int error;                             /* sticky errno of the connection */
};
/* Hashes n bytes, the next of the stream, and does what is due: clock, answers. */
void receiver_take(struct receiver *receiver, const void *data, size_t n);
/* recv() that doesn't block: > 0 bytes, 0 = nothing now, -1 = end of stream or receiver->error. */
long receiver_recv(struct receiver *receiver, void *to, size_t n);
void receiver_wait(struct receiver *receiver);
void run_receiver(const struct options *options, int listener, int out_fd);

/* map.c */
void receive_mapped(struct receiver *receiver, bool keep);

/* kept.c: a list of memory that stays until the end */
struct kept {
    void **blocks;
    size_t count, room, block_bytes;
    size_t used; /* of the last block */
};
void *kept_room(struct kept *kept, size_t *room); /* the rest of the last block, or a fresh one */
void kept_release(struct kept *kept);

#endif
