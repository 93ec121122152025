/* For tests of mapping: a connection on loopback whose bytes come in whole pages.
 *
 * Kernel facts: only single pages that hold nothing else can be mapped.  On loopback a
 * MSG_ZEROCOPY sender yields them (the copy that the kernel makes at delivery lands in
 * single pages), and with a segment size of one page each segment fills one exactly.
 */
#ifndef ZC_TEST_MAPPED_H
#define ZC_TEST_MAPPED_H

#include "support.h"

/* A TCP connection for map_bytes: `peer` sends.  Ends the program with the exit code for
 * "this kernel can't" where that is so. */
pair mappable_pair(void);

/* Sends `bytes` (whole pages; at most a quarter of a MiB) so that they arrive in whole pages, and
 * waits until they have.  The source may be written to afterwards. */
void send_pages(pair connection, const char *source, size_t bytes);

/* Maps that many, which have arrived, at an address in a TCP mapping. */
void map_arrived(int fd, char *at, size_t bytes);

/* Both, for any number of whole pages. */
void map_bytes(pair connection, const char *source, char *at, size_t bytes);

/* How many mappings this process has. */
size_t count_mappings(void);

#endif
