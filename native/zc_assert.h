/* ZC_ASSERT: an assertion that survives release builds.
 *
 * The core decides when the kernel may still read or write user memory; going on
 * after a broken invariant would mean corrupt data or a write into freed memory.
 * <assert.h> goes away under NDEBUG; this one prints where and what, and aborts.
 */
#ifndef ZC_ASSERT_H
#define ZC_ASSERT_H

#include <stdio.h>
#include <stdlib.h>

__attribute__((noreturn, cold, noinline, unused)) static void
zc_assert_failed(const char *file, int line, const char *function, const char *expression)
{
    fprintf(stderr, "%s:%d: %s: ZC_ASSERT(%s) failed\n", file, line, function, expression);
    abort();
}

#define ZC_ASSERT(expression)                                                              \
    (__builtin_expect(!!(expression), 1)                                                   \
         ? (void)0                                                                         \
         : zc_assert_failed(__FILE__, __LINE__, __func__, #expression))

#endif
