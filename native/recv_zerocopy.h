/* Receiving by mapping, among the native files. */
#ifndef ZC_RECV_ZEROCOPY_H
#define ZC_RECV_ZEROCOPY_H

#include "engine_internal.h"

/* ZC_COPYBUF_MAX is less than a page, so that whole pages are never taken for a small message;
 * ZC_MAP_STEP is all that is taken at a time: a fast peer must not keep the loop to itself. */
enum {
    ZC_PAGE = 4096,
    ZC_UNALIGNED = 2 * ZC_PAGE, /* bytes to copy where pages and memory don't coincide; doubled ... */
    ZC_UNALIGNED_DOUBLINGS = 7, /* ... so often */
    ZC_KNOWN_MIN = 20 * ZC_PAGE, /* more than a segment: so much known to wait needn't be asked again */
    ZC_FLOAT_MAX = 512 * 1024 /* bytes that a fill moves to let its pages begin where they must */
};
_Static_assert((int)ZC_COPYBUF_MAX < (int)ZC_PAGE, "see above");

typedef struct {
    char *address; /* page-aligned, in a slice of the arena */
    size_t length; /* whole pages */
    char *copybuf;
    size_t copybuf_len; /* ZC_COPYBUF_MAX at most */
    bool clean;         /* nothing is mapped there */
} zc_map_request;

typedef struct {
    size_t mapped; /* bytes that lie at the address now */
    size_t copied; /* bytes in the copybuf, which follow in the stream */
    size_t skip;   /* bytes behind those that no mapping can bring */
} zc_map_result;

/* How far into a page the next byte lies, as far as is known. */
size_t zc_page_offset(const zc_conn *conn);

/* True when something came; false when only recv can tell why nothing did. */
int zc_conn_map(zc_engine *engine, zc_conn *conn, const zc_map_request *ask, zc_map_result *got);

/* map_policy.c */
size_t zc_map_wanted(zc_engine *engine, zc_conn *conn, size_t room, size_t *waiting,
                     size_t *behind);
void zc_map_judge(zc_conn *conn, const zc_map_result *got);

#endif
