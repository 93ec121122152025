/* Log-linear histogram of nanoseconds: exact below 64, within 1/64 above. */
#include "loadgen.h"

static unsigned bucket_of(uint64_t value)
{
    if (value < HIST_SUB)
        return (unsigned)value;
    unsigned shift = 63u - (unsigned)__builtin_clzll(value) - HIST_SUB_BITS;
    return (shift + 1u) * HIST_SUB + (unsigned)((value >> shift) - HIST_SUB);
}

/* The middle of the bucket's range. */
static uint64_t value_of(unsigned bucket)
{
    if (bucket < HIST_SUB)
        return bucket;
    unsigned shift = bucket / HIST_SUB - 1u;
    uint64_t low = (uint64_t)(HIST_SUB + bucket % HIST_SUB) << shift;
    return low + ((1ull << shift) >> 1);
}

void histogram_record(struct histogram *hist, uint64_t value)
{
    hist->counts[bucket_of(value)]++;
    hist->total++;
    if (value > hist->max)
        hist->max = value;
}

uint64_t histogram_quantile(const struct histogram *hist, double quantile)
{
    if (hist->total == 0)
        return 0;
    uint64_t rank = (uint64_t)(quantile * (double)hist->total);
    if (rank >= hist->total)
        rank = hist->total - 1;
    uint64_t seen = 0;
    for (unsigned i = 0; i < HIST_BUCKETS; i++) {
        seen += hist->counts[i];
        if (seen > rank)
            return value_of(i) < hist->max ? value_of(i) : hist->max;
    }
    return hist->max;
}
