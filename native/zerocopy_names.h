/* The kernel's names for the two zero-copy mechanisms, of which older C libraries know fewer. */
#ifndef ZC_ZEROCOPY_NAMES_H
#define ZC_ZEROCOPY_NAMES_H

#include <assert.h>
#include <stdint.h>

#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif
#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif
#ifndef SO_EE_ORIGIN_ZEROCOPY
#define SO_EE_ORIGIN_ZEROCOPY 5
#endif
#ifndef SO_EE_CODE_ZEROCOPY_COPIED
#define SO_EE_CODE_ZEROCOPY_COPIED 1
#endif
#ifndef TCP_ZEROCOPY_RECEIVE
#define TCP_ZEROCOPY_RECEIVE 35
#endif

/* linux/tcp.h's struct tcp_zerocopy_receive; that header and netinet/tcp.h exclude
 * each other.  Older kernels know a prefix of it. */
struct zerocopy_receive {
    uint64_t address;
    uint32_t length;
    uint32_t recv_skip_hint;
    uint32_t inq;
    int32_t err;
    uint64_t copybuf_address;
    int32_t copybuf_len;
    uint32_t flags;
    uint64_t msg_control;
    uint64_t msg_controllen;
    uint32_t msg_flags;
    uint32_t reserved;
};
_Static_assert(sizeof(struct zerocopy_receive) == 64, "struct tcp_zerocopy_receive of linux/tcp.h");

#endif
