/* A connection's addresses, as numbers: most are never asked for as text. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <sys/socket.h>

#include "engine_internal.h"

typedef int (*name_call)(int, struct sockaddr *restrict, socklen_t *restrict);

static int64_t inet_name(int fd, name_call call) {
    struct sockaddr_in name;
    socklen_t len = sizeof name;
    if (call(fd, (struct sockaddr *)&name, &len) < 0) {
        return -errno;
    }
    if (name.sin_family != AF_INET) {
        return -EAFNOSUPPORT;
    }
    return (int64_t)ntohl(name.sin_addr.s_addr) << 16 | ntohs(name.sin_port);
}

int64_t zc_inet_sockname(int fd) { return inet_name(fd, getsockname); }

int64_t zc_inet_peername(int fd) { return inet_name(fd, getpeername); }
