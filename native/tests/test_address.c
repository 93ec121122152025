/* Names of IPv4 sockets as one number, so that nobody has to parse them. */
#define _GNU_SOURCE
#include "support.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

static int64_t expected_name(int fd, int (*name_of)(int, struct sockaddr *, socklen_t *)) {
    struct sockaddr_in address;
    socklen_t size = sizeof address;
    CHECK_EQ(name_of(fd, (struct sockaddr *)&address, &size), 0);
    return (int64_t)ntohl(address.sin_addr.s_addr) << 16 | ntohs(address.sin_port);
}

static void both_names_of_a_connection(void) {
    pair connection = tcp_pair();
    int64_t own = zc_inet_sockname(connection.ours), peer = zc_inet_peername(connection.ours);
    CHECK_EQ(own, expected_name(connection.ours, getsockname));
    CHECK_EQ(peer, expected_name(connection.ours, getpeername));
    CHECK_EQ(own >> 16, INADDR_LOOPBACK);
    CHECK_EQ(peer, zc_inet_sockname(connection.peer));
    close_pair(connection);
}

static void what_has_no_such_name_is_refused(void) {
    pair connection = unix_pair();
    CHECK_EQ(zc_inet_sockname(connection.ours), -EAFNOSUPPORT);
    CHECK_EQ(zc_inet_peername(connection.ours), -EAFNOSUPPORT);
    close_pair(connection);
    int listener = listen_on_loopback();
    CHECK_EQ(zc_inet_peername(listener), -ENOTCONN);
    close(listener);
    CHECK_EQ(zc_inet_sockname(-1), -EBADF);
    int six = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (six < 0) {
        CHECK_EQ(errno, EAFNOSUPPORT); /* a kernel without IPv6 has none to refuse */
        return;
    }
    CHECK_EQ(zc_inet_sockname(six), -EAFNOSUPPORT);
    close(six);
}

static void nodelay_is_set_where_it_exists(void) {
    int value = 0;
    socklen_t size = sizeof value;
    pair tcp = tcp_pair(), local = unix_pair();
    zc_engine *engine = new_engine();
    add_with(engine, tcp.ours, ZC_MODE_DATA, ZC_CONN_NODELAY);
    add_with(engine, local.ours, ZC_MODE_DATA, ZC_CONN_NODELAY);
    CHECK_EQ(getsockopt(tcp.ours, IPPROTO_TCP, TCP_NODELAY, &value, &size), 0);
    CHECK_EQ(value, 1);
    free_engine(engine);
    close_pair(tcp);
    close_pair(local);
}

int main(void) {
    const test_case cases[] = {
        {"both names of a connection", both_names_of_a_connection},
        {"what has no such name is refused", what_has_no_such_name_is_refused},
        {"TCP_NODELAY", nodelay_is_set_where_it_exists},
    };
    return RUN_TESTS(cases);
}
