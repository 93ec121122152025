/* Telling glibc to keep freed memory (mallopt(3)). */
#define _GNU_SOURCE
#include <errno.h>

#include "zcloop.h"

#if defined(__GLIBC__)
#include <malloc.h>

int zc_tune_malloc(int mmap_threshold, int trim_threshold) {
    /* Setting either also stops glibc from adjusting them by itself. */
    return mallopt(M_MMAP_THRESHOLD, mmap_threshold) && mallopt(M_TRIM_THRESHOLD, trim_threshold)
               ? 0
               : -EINVAL;
}
#else
int zc_tune_malloc(int mmap_threshold, int trim_threshold) {
    (void)mmap_threshold;
    (void)trim_threshold;
    return -ENOSYS;
}
#endif
