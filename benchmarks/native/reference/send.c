/* The sender: four ways into a socket. Which one it is decides whether the receiver can map: the
 * kernel maps whole pages of order 0 that belong to nobody else.
 *
 *   plain     send(2): the kernel copies into compound pages                        none
 *   zerocopy  MSG_ZEROCOPY: where the receiver is on this host, into single pages   those it can
 *   sendfile  sendfile(2): page cache                                               none
 *   splice    write(2) into a pipe copies into single pages, splice(2) passes them  those it can
 *
 * The memory sent from is never written to again, so completions of MSG_ZEROCOPY are reaped only
 * because the kernel bounds how many may be outstanding.
 */
#define _GNU_SOURCE
#include "zcref.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

struct sender {
    const struct options *options;
    int fd;
    unsigned char *pattern;
    int file, pipe[2];
    uint64_t zerocopy_sends, zerocopy_done, zerocopy_copied;
};

typedef void send_body(struct sender *sender, size_t at, size_t n);

static void send_all(int fd, const void *from, size_t n, int flags)
{
    for (size_t done = 0; done < n;) {
        ssize_t sent = send(fd, (const char *)from + done, n - done, flags | MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR)
            die_errno("send");
        done += sent > 0 ? (size_t)sent : 0;
    }
}

static void send_plain(struct sender *sender, size_t at, size_t n)
{
    send_all(sender->fd, sender->pattern + at, n, 0);
}

/* Reads what notifications there are; the ids of one may wrap, so their number is a difference. */
static void reap(struct sender *sender)
{
    for (;;) {
        char control[128];
        struct msghdr message = { .msg_control = control, .msg_controllen = sizeof control };
        if (recvmsg(sender->fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
            if (errno == EAGAIN)
                return;
            if (errno != EINTR)
                die_errno("recvmsg(MSG_ERRQUEUE)");
            continue;
        }
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        struct sock_extended_err error;
        if (header == NULL)
            die("a message without control data on the error queue");
        memcpy(&error, CMSG_DATA(header), sizeof error);
        if (error.ee_origin != SO_EE_ORIGIN_ZEROCOPY || error.ee_errno != 0)
            die("unexpected on the error queue: origin %u, error %u", error.ee_origin,
                error.ee_errno);
        uint32_t count = error.ee_data - error.ee_info + 1;
        sender->zerocopy_done += count;
        if (error.ee_code & SO_EE_CODE_ZEROCOPY_COPIED)
            sender->zerocopy_copied += count;
    }
}

static void send_zerocopy(struct sender *sender, size_t at, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t sent = send(sender->fd, sender->pattern + at + done, n - done,
                            MSG_ZEROCOPY | MSG_NOSIGNAL);
        if (sent < 0 && errno == ENOBUFS && sender->zerocopy_sends > sender->zerocopy_done)
            wait_for(sender->fd, 0); /* POLLERR: a completion */
        else if (sent < 0 && errno != EINTR)
            die_errno("send(MSG_ZEROCOPY)");
        if (sent > 0) {
            done += (size_t)sent;
            sender->zerocopy_sends++;
        }
        reap(sender);
    }
}

static void send_file(struct sender *sender, size_t at, size_t n)
{
    off_t offset = (off_t)at;
    while (offset < (off_t)(at + n)) {
        ssize_t sent = sendfile(sender->fd, sender->file, &offset, at + n - (size_t)offset);
        if (sent < 0 && errno != EINTR)
            die_errno("sendfile");
        if (sent == 0)
            die("sendfile: the file is too short");
    }
}

static void send_splice(struct sender *sender, size_t at, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t wrote = write(sender->pipe[1], sender->pattern + at + done, n - done);
        if (wrote < 0)
            die_errno("write to a pipe");
        done += (size_t)wrote;
        while (wrote > 0) {
            ssize_t sent = splice(sender->pipe[0], NULL, sender->fd, NULL, (size_t)wrote,
                                  SPLICE_F_MOVE);
            if (sent < 0 && errno != EINTR)
                die_errno("splice");
            wrote -= sent > 0 ? sent : 0;
        }
    }
}

static void open_file(struct sender *sender)
{
    size_t bytes = PATTERN_BYTES + sender->options->size;
    sender->file = memfd_create("zcref", MFD_CLOEXEC);
    if (sender->file < 0)
        die_errno("memfd_create");
    for (size_t done = 0; done < bytes;) {
        ssize_t wrote = write(sender->file, sender->pattern + done, bytes - done);
        if (wrote <= 0)
            die_errno("write to a memfd");
        done += (size_t)wrote;
    }
}

/* A pipe that holds a whole message, where the system allows one so large. */
static void open_pipe(struct sender *sender)
{
    if (pipe2(sender->pipe, O_CLOEXEC | O_NONBLOCK) != 0)
        die_errno("pipe");
    for (size_t room = 1 << 20; room > 65536; room /= 2)
        if (fcntl(sender->pipe[1], F_SETPIPE_SZ, (int)room) >= 0)
            break;
}

static send_body *prepare(struct sender *sender)
{
    const char *kind = sender->options->kind;
    int one = 1;
    sender->pattern = allocate(PATTERN_BYTES + sender->options->size);
    zcref_pattern(sender->pattern, PATTERN_BYTES + sender->options->size);
    if (strcmp(kind, "plain") == 0)
        return send_plain;
    if (strcmp(kind, "zerocopy") == 0) {
        if (setsockopt(sender->fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) != 0)
            die_errno("SO_ZEROCOPY");
        return send_zerocopy;
    }
    if (strcmp(kind, "sendfile") == 0) {
        open_file(sender);
        return send_file;
    }
    if (strcmp(kind, "splice") == 0) {
        open_pipe(sender);
        return send_splice;
    }
    die("no such kind of sender: %s", kind);
}

static void receive_all(int fd, void *to, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = recv(fd, (char *)to + done, n - done, 0);
        if (got == 0)
            die("the receiver closed the connection before its answer");
        if (got < 0 && errno != EINTR)
            die_errno("recv");
        done += got > 0 ? (size_t)got : 0;
    }
}

/* Waits until `done` bytes are due. Busily: a sleep of so few microseconds would come back late. */
static void keep_pace(const struct options *options, const struct moment *start, uint64_t done)
{
    struct moment now;
    uint64_t due = start->wall_ns + (uint64_t)((double)done * 1e9 / (double)options->pace);
    do
        moment_now(&now);
    while (now.wall_ns < due);
}

static uint64_t send_stream(struct sender *sender, send_body *body)
{
    const struct options *options = sender->options;
    uint64_t messages = 0, at = 0;
    char answer[256];
    struct moment start;
    moment_now(&start);
    for (uint64_t done = 0; done < options->bytes; messages++, at += options->size) {
        if (options->header > 0)
            send_all(sender->fd, sender->pattern, options->header, MSG_MORE);
        body(sender, at % PATTERN_BYTES, options->size);
        done += options->header + options->size;
        if (options->pace > 0)
            keep_pace(options, &start, done);
        if (options->answer > 0)
            receive_all(sender->fd, answer, options->answer);
    }
    return messages;
}

void run_sender(const struct options *options, int out_fd)
{
    struct sender sender = { .options = options, .file = -1, .fd = connect_to(options) };
    struct timeval patience = { .tv_sec = STALL_MS / 1000 };
    uint64_t answer[2];
    struct moment start, end;
    send_body *body = prepare(&sender);
    if (setsockopt(sender.fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0)
        die_errno("SO_RCVTIMEO");
    moment_now(&start);
    uint64_t messages = send_stream(&sender, body);
    if (shutdown(sender.fd, SHUT_WR) != 0)
        die_errno("shutdown");
    receive_all(sender.fd, answer, sizeof answer);
    moment_now(&end);
    if (sender.zerocopy_sends > 0)
        reap(&sender);
    close(sender.fd);
    if (answer[0] != options->bytes)
        die("sent %llu bytes; the receiver counts %llu", (unsigned long long)options->bytes,
            (unsigned long long)answer[0]);
    dprintf(out_fd,
            "{\"role\": \"sender\", \"kind\": \"%s\", \"bytes\": %llu, \"messages\": %llu, "
            "\"seconds\": %.6f, \"cpu_us\": %.1f, \"voluntary\": %llu, \"involuntary\": %llu, "
            "\"zerocopy_sends\": %llu, \"zerocopy_copied\": %llu, \"hash\": \"%016llx\"}\n",
            options->kind, (unsigned long long)options->bytes, (unsigned long long)messages,
            (double)(end.wall_ns - start.wall_ns) / 1e9, (double)(end.cpu_ns - start.cpu_ns) / 1e3,
            (unsigned long long)(end.voluntary - start.voluntary),
            (unsigned long long)(end.involuntary - start.involuntary),
            (unsigned long long)sender.zerocopy_sends, (unsigned long long)sender.zerocopy_copied,
            (unsigned long long)answer[1]);
}
