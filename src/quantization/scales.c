/* quantization/scales.c: calibration of 8-bit scales: histograms of magnitudes, and the methods that choose a scale
 * (entropy, maximum). See quantization/quantization.h. */
#include "quantization/quantization.h"

#include <math.h>

/* ---- histograms ---- */

/* The largest magnitude and the counts do not depend on the number of threads: counts are whole numbers. */
enum { PARALLEL_MIN = 1 << 16 };

void cr_histogram_range(struct cr_histogram *h, const float *values, int64_t count) {
    float largest = h->largest;
#pragma omp parallel for schedule(static) reduction(max : largest) if (count >= PARALLEL_MIN)
    for (int64_t i = 0; i < count; i++) {
        const float m = fabsf(values[i]);
        largest       = m > largest && m < INFINITY ? m : largest;
    }
    h->largest = largest;
}

void cr_histogram_add(struct cr_histogram *h, const float *values, int64_t count) {
    /* in double: in float the factor of denormal numbers would be infinite */
    const double factor = h->largest > 0 ? CR_HISTOGRAM_BINS / (double)h->largest : 0;
    double      *counts = h->count;
#pragma omp parallel for schedule(static) reduction(+ : counts[:CR_HISTOGRAM_BINS]) if (count >= PARALLEL_MIN)
    for (int64_t i = 0; i < count; i++) {
        const float m = fabsf(values[i]);
        if (!(m > 0 && m <= h->largest)) continue;
        counts[CR_MIN((int)((double)m * factor), CR_HISTOGRAM_BINS - 1)] += 1;
    }
}

/* ---- methods ---- */

/* Divergence of the histogram, clipped at `bins`, from its quantised form: the counts of the bins that become one
 * integer are spread evenly over those of them that are not empty. */
static double divergence(const struct cr_histogram *h, int bins, int levels) {
    double clipped = 0, total = 0, sum = 0;
    for (int b = bins; b < CR_HISTOGRAM_BINS; b++) clipped += h->count[b];
    for (int b = 0; b < CR_HISTOGRAM_BINS; b++) total += h->count[b];
    const double inside = total - clipped;
    if (inside <= 0) return INFINITY;
    for (int level = 0; level < levels; level++) {
        const int from = (int)((int64_t)level * bins / levels), to = (int)((int64_t)(level + 1) * bins / levels);
        double    counts = 0;
        int       used   = 0;
        for (int b = from; b < to; b++) {
            counts += h->count[b];
            used += h->count[b] > 0;
        }
        for (int b = from; b < to; b++) {
            const double p = h->count[b] + (b == bins - 1 ? clipped : 0);
            if (h->count[b] > 0)
                sum += p / total * log(p / total / (counts / used / inside));
            else if (p > 0)
                return INFINITY; /* the clipped values have no counterpart */
        }
    }
    return sum;
}

static double by_entropy(const struct cr_histogram *h, int levels) {
    enum { STEP = 16 };
    double best = h->largest, least = INFINITY;
    for (int bins = levels; bins <= CR_HISTOGRAM_BINS; bins += STEP) {
        const double d = divergence(h, bins, levels);
        if (d >= least) continue;
        least = d;
        best  = (double)bins * (double)h->largest / CR_HISTOGRAM_BINS;
    }
    return best;
}

float cr_histogram_scale(const struct cr_histogram *h, enum cr_quant_method method, int levels) {
    double threshold = h->largest;
    if (!(h->largest > 0)) return 1;
    if (method == CR_QUANT_ENTROPY) threshold = by_entropy(h, levels);
    return fmaxf((float)(threshold / levels), 0x1p-126f);
}

/* ---- filters ---- */

int8_t cr_quant_round_i8(float x, float scale) {
    const float q = rintf(x / scale);
    if (q != q) return 0;
    return (int8_t)fmaxf(fminf(q, CR_QUANT_LEVELS_I8), -CR_QUANT_LEVELS_I8);
}

float cr_quant_filter_scale(const float *weights, int64_t count, int levels) {
    float largest = 0;
    for (int64_t i = 0; i < count; i++) largest = fmaxf(largest, fabsf(weights[i]));
    return largest > 0 ? fmaxf(largest / (float)levels, 0x1p-126f) : 1;
}
