/* The stream's bytes and their hash.
 *
 * The hash has to look at every byte and to notice one that is missing or in another's place, and
 * it has to cost little: with zlib's crc32 or adler32 (0.3 to 1 ms per MB) or SHA-1 one would measure
 * the hash and little else. This is Fletcher's checksum on eight 64-bit lanes: a sum, and a sum of
 * the sums, which is what depends on the order. It runs at the speed of the cache or of memory, as
 * the first pass of a program over its data does. C and Python receivers call this same code.
 */
#include "zcref.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 64, LANES = 8 };

/* Two lanes: what every x86-64 and arm64 has registers for. A vector of all eight would be taken
 * apart by way of the stack there, at four times the time. */
typedef uint64_t pair __attribute__((vector_size(16)));

struct zcref_hash {
    pair sum[4], sums[4];
    uint64_t bytes;
    unsigned char held[BLOCK]; /* bytes % BLOCK of them wait for a whole block */
};

struct zcref_hash *zcref_hash_new(void)
{
    struct zcref_hash *hash = aligned_alloc(BLOCK, (sizeof *hash + BLOCK - 1) / BLOCK * BLOCK);
    if (hash == NULL)
        abort();
    memset(hash, 0, sizeof *hash);
    return hash;
}

static void blocks(struct zcref_hash *hash, const unsigned char *from, size_t count)
{
    pair a = hash->sum[0], b = hash->sum[1], c = hash->sum[2], d = hash->sum[3];
    pair aa = hash->sums[0], bb = hash->sums[1], cc = hash->sums[2], dd = hash->sums[3];
    for (size_t i = 0; i < count; i++) {
        pair word[4];
        memcpy(word, from + i * BLOCK, BLOCK);
        aa += a += word[0];
        bb += b += word[1];
        cc += c += word[2];
        dd += d += word[3];
    }
    hash->sum[0] = a, hash->sum[1] = b, hash->sum[2] = c, hash->sum[3] = d;
    hash->sums[0] = aa, hash->sums[1] = bb, hash->sums[2] = cc, hash->sums[3] = dd;
}

void zcref_hash_update(struct zcref_hash *hash, const void *data, size_t n)
{
    const unsigned char *from = data;
    size_t held = hash->bytes % BLOCK;
    hash->bytes += n;
    if (held > 0) {
        size_t take = BLOCK - held < n ? BLOCK - held : n;
        memcpy(hash->held + held, from, take);
        from += take;
        n -= take;
        if (held + take < BLOCK)
            return;
        blocks(hash, hash->held, 1);
    }
    blocks(hash, from, n / BLOCK);
    memcpy(hash->held, from + n / BLOCK * BLOCK, n % BLOCK);
}

static uint64_t mix(uint64_t value, uint64_t word)
{
    value = (value ^ word) * 0x9e3779b97f4a7c15ull;
    return value ^ value >> 29;
}

uint64_t zcref_hash_value(const struct zcref_hash *hash)
{
    struct zcref_hash whole = *hash;
    size_t held = hash->bytes % BLOCK;
    uint64_t value = mix(0, hash->bytes);
    memset(whole.held + held, 0, BLOCK - held);
    blocks(&whole, whole.held, 1);
    for (int i = 0; i < LANES; i++)
        value = mix(mix(value, whole.sum[i / 2][i % 2]), whole.sums[i / 2][i % 2]);
    return value;
}

void zcref_pattern(unsigned char *out, size_t n)
{
    uint64_t x = 0x2545f4914f6cdd1dull, word = 0;
    for (size_t i = 0; i < n && i < PATTERN_BYTES; i++) {
        if (i % sizeof word == 0) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            word = x;
        }
        out[i] = (unsigned char)(word >> 8 * (i % sizeof word));
    }
    for (size_t i = PATTERN_BYTES; i < n; i++)
        out[i] = out[i - PATTERN_BYTES];
}

uint64_t zcref_expected(uint64_t bytes, size_t header, size_t size)
{
    unsigned char *pattern = malloc(PATTERN_BYTES + size);
    struct zcref_hash *hash = zcref_hash_new();
    if (pattern == NULL)
        abort();
    zcref_pattern(pattern, PATTERN_BYTES + size);
    for (uint64_t done = 0, body = 0; done < bytes; done += header + size, body += size) {
        zcref_hash_update(hash, pattern, header);
        zcref_hash_update(hash, pattern + body % PATTERN_BYTES, size);
    }
    uint64_t value = zcref_hash_value(hash);
    free(hash);
    free(pattern);
    return value;
}
