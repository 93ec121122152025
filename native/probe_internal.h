/* What the files of the probe share among themselves. */
#ifndef ZC_PROBE_INTERNAL_H
#define ZC_PROBE_INTERNAL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "zcloop.h"

typedef struct {
    int64_t deadline_ns; /* CLOCK_MONOTONIC; all probes of a run share it */
    size_t page_size;
} zc_probe_run;

/* Two ends of one loopback TCP connection, non-blocking. */
typedef struct {
    int tx, rx;
} zc_probe_pair;

/* Helpers, in probe.c.  They return -errno on failure. */
void zc_probe_close(int fd);
int zc_probe_set_int(int fd, int level, int option, int value);
int zc_probe_get_int(int fd, int level, int option, int *value);
int zc_probe_tcp_socket(void);
int zc_probe_wait(const zc_probe_run *probe, int fd, short events);
ssize_t zc_probe_receive(const zc_probe_run *probe, int fd, void *buffer, size_t size);
int zc_probe_expect(const zc_probe_run *probe, int fd, const char *bytes, size_t size);
int zc_probe_with_pair(const zc_probe_run *probe, int64_t *value,
                       int (*test)(const zc_probe_run *, const zc_probe_pair *, int64_t *));

/* One a feature: 0 when it works, else -errno; a figure into *value. */
int zc_probe_page_size(const zc_probe_run *probe, int64_t *value);
int zc_probe_optmem_max(const zc_probe_run *probe, int64_t *value);
int zc_probe_rlimit_memlock(const zc_probe_run *probe, int64_t *value);
int zc_probe_eventfd(const zc_probe_run *probe, int64_t *value);
int zc_probe_memfd_seals(const zc_probe_run *probe, int64_t *value);
int zc_probe_nested_epoll(const zc_probe_run *probe, int64_t *value);
int zc_probe_epoll_exclusive(const zc_probe_run *probe, int64_t *value);
int zc_probe_unix_peercred(const zc_probe_run *probe, int64_t *value);
int zc_probe_tcp_user_timeout(const zc_probe_run *probe, int64_t *value);
int zc_probe_tcp_disconnect(const zc_probe_run *probe, int64_t *value);
int zc_probe_tcp_inq(const zc_probe_run *probe, int64_t *value);
int zc_probe_so_rcvlowat(const zc_probe_run *probe, int64_t *value);
int zc_probe_sendfile(const zc_probe_run *probe, int64_t *value);
int zc_probe_splice(const zc_probe_run *probe, int64_t *value);
int zc_probe_so_zerocopy(const zc_probe_run *probe, int64_t *value);
int zc_probe_msg_zerocopy(const zc_probe_run *probe, int64_t *value);
int zc_probe_tcp_zerocopy_receive(const zc_probe_run *probe, int64_t *value);
int zc_probe_tcp_zerocopy_copybuf(const zc_probe_run *probe, int64_t *value);
int zc_probe_tcp_zerocopy_map(const zc_probe_run *probe, int64_t *value);

#endif
