/* What streams consist of. */
#define _GNU_SOURCE
#include "loadgen.h"

#include <stdio.h>
#include <string.h>

/* The same linear congruential generator as benchmarks/servers/pattern.py. */
void pattern_fill(unsigned char *out, size_t n, uint64_t period)
{
    static unsigned char base[PATTERN_PERIOD];
    uint32_t x = 1;
    for (size_t i = 0; i < PATTERN_PERIOD; i++) {
        x = x * 1664525u + 1013904223u;
        base[i] = (unsigned char)(x >> 24);
    }
    for (size_t i = 0; i < n; i++)
        out[i] = base[(i % period) % PATTERN_PERIOD];
}

/* Line k of the block: k as 16 hex digits, filler, newline; LINE_BYTES in all. */
void lines_fill(unsigned char *out, size_t n)
{
    char line[LINE_BYTES + 1];
    for (size_t i = 0; i < n; i++) {
        if (i % LINE_BYTES == 0) {
            snprintf(line, sizeof line, "%016zx", i / LINE_BYTES % LINES_PER_BLOCK);
            memset(line + 16, '.', LINE_BYTES - 17);
            line[LINE_BYTES - 1] = '\n';
        }
        out[i] = (unsigned char)line[i % LINE_BYTES];
    }
}
