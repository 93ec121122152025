/* With its thresholds raised, glibc takes large blocks from the heap and keeps them. */
#define _GNU_SOURCE
#include "support.h"

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
#include <malloc.h>

enum { BLOCK = 8 * 1024 * 1024, THRESHOLD = 4 * BLOCK };

int main(void) {
    char *before = malloc(BLOCK);
    CHECK(before != NULL);
    CHECK_EQ(mallinfo2().hblks, 1); /* mapped on its own */
    CHECK_EQ(zc_tune_malloc(THRESHOLD, THRESHOLD), 0);
    char *after = malloc(BLOCK);
    CHECK(after != NULL);
    CHECK_EQ(mallinfo2().hblks, 1); /* this one isn't */
    size_t heap = mallinfo2().arena;
    free(after);
    CHECK_EQ(mallinfo2().arena, heap); /* and freeing gives nothing back */
    free(before);
    return EXIT_SUCCESS;
}
#else
int main(void) {
    CHECK(zc_tune_malloc(1 << 20, 1 << 20) <= 0);
    SKIP("malloc is not glibc's here: its thresholds can't be observed");
}
#endif
