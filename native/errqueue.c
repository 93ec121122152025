/*
 * The error queue: where the kernel says that it has let go of a zero-copy send.
 *
 * Kernel fact: recvmsg(MSG_ERRQUEUE) gives one notice a call, in a control
 * message SOL_IP/IP_RECVERR or SOL_IPV6/IPV6_RECVERR by the socket's family
 * (a lone check of the first never sees the second); ee_origin says that it is
 * one of ours.  Notices that nobody has read yet are merged by the kernel.  An
 * edge-triggered epoll signals EPOLLERR once for what comes, so a reader takes
 * all there is.  SO_ERROR has no part in this, and reading it would eat the
 * error that recv is to report.
 * Rule: read until EAGAIN, several a call (recvmmsg stops by itself where the
 * queue ends, so the usual single notice costs one system call and not two).
 * What isn't ours (somebody set IP_RECVERR, or asked for time stamps) is read
 * and dropped: nobody else would, and EPOLLERR stays up until it is.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <time.h> /* linux/errqueue.h needs struct timespec */

#include <linux/errqueue.h>
#include <netinet/in.h>

#include "zerocopy_internal.h"

enum {
    BATCH = 8,           /* messages a call */
    CONTROL_BYTES = 256, /* of each: the notice takes 64, time stamps and the like may stand before */
    NOTICES = 4          /* of one message; there is one */
};

static bool is_error_record(int level, int type) {
    return (level == SOL_IP && type == IP_RECVERR) || (level == SOL_IPV6 && type == IPV6_RECVERR);
}

/* By hand and not by CMSG_NXTHDR, which some C libraries let read past the end. */
int zc_errqueue_parse(const void *control, size_t len, zc_notice *notices, int capacity) {
    const char *bytes = control;
    int found = 0;
    size_t at = 0;
    while (found < capacity && len - at >= sizeof(struct cmsghdr)) {
        struct cmsghdr header;
        memcpy(&header, bytes + at, sizeof header);
        size_t room = len - at;
        if (header.cmsg_len < CMSG_LEN(0) || header.cmsg_len > room) {
            break;
        }
        struct sock_extended_err error;
        if (is_error_record(header.cmsg_level, header.cmsg_type) &&
            header.cmsg_len >= CMSG_LEN(sizeof error)) {
            memcpy(&error, bytes + at + CMSG_LEN(0), sizeof error);
            if (error.ee_origin == SO_EE_ORIGIN_ZEROCOPY && error.ee_errno == 0) {
                notices[found++] = (zc_notice){
                    .lo = error.ee_info,
                    .hi = error.ee_data,
                    .copied = (error.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0,
                };
            }
        }
        size_t step = CMSG_ALIGN(header.cmsg_len);
        if (step > room) {
            break;
        }
        at += step;
    }
    return found;
}

int zc_errqueue_reap(int fd, zc_inflight *table) {
    _Alignas(struct cmsghdr) char control[BATCH][CONTROL_BYTES];
    struct mmsghdr messages[BATCH];
    int total = 0, count;
    do {
        memset(messages, 0, sizeof messages);
        for (int i = 0; i < BATCH; i++) {
            messages[i].msg_hdr.msg_control = control[i];
            messages[i].msg_hdr.msg_controllen = sizeof control[i];
        }
        do {
            count = recvmmsg(fd, messages, BATCH, MSG_ERRQUEUE | MSG_DONTWAIT, NULL);
        } while (count < 0 && errno == EINTR);
        for (int i = 0; i < count; i++) {
            zc_notice notices[NOTICES];
            int found = zc_errqueue_parse(control[i], messages[i].msg_hdr.msg_controllen, notices,
                                          NOTICES);
            for (int j = 0; j < found; j++) {
                (void)zc_inflight_report(table, notices[j].lo, notices[j].hi, notices[j].copied);
            }
            total += found;
        }
    } while (count == BATCH);
    return total;
}
