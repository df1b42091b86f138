/* quantization/quantization.h: scales of quantised tensors, found from the values that they shall represent.
 *
 * An 8-bit integer q stands for the number q * scale (graph/ops.def). A larger scale rounds more coarsely, a smaller
 * one clips more values. A scale is found from a threshold: |values| above the threshold are clipped. */
#ifndef CR_QUANTIZATION_H
#define CR_QUANTIZATION_H

#include "config/config.h"

enum {
    CR_HISTOGRAM_BINS  = 2048,
    CR_QUANT_LEVELS_U8 = 255,
    CR_QUANT_LEVELS_I8 = 127,
    CR_QUANT_LEVELS_I7 = 63 /* of weights: the sum of two products with u8 then fits into 16 bits */
};

/* Magnitudes of the values of one tensor over many batches. All images are seen twice: first for the largest magnitude,
 * then for the counts. A zeroed struct has seen no value. */
struct cr_histogram {
    float largest; /* largest finite magnitude */
    /* of magnitudes in [b, b+1) * largest / CR_HISTOGRAM_BINS; zeros are not counted */
    double count[CR_HISTOGRAM_BINS];
};
void cr_histogram_range(struct cr_histogram *histogram, const float *values, int64_t count);
void cr_histogram_add(struct cr_histogram *histogram, const float *values, int64_t count);

/* Returns the scale by one method, for integers up to `levels`.
 *   MAX      the threshold is the largest magnitude
 *   ENTROPY  the threshold whose quantised distribution has the least Kullback-Leibler divergence from the original
 *            one (Migacz 2017)
 * Without any value above 0 the scale is 1. */
float cr_histogram_scale(const struct cr_histogram *histogram, enum cr_quant_method method, int levels);

/* Scale of one output channel of a filter, with `count` weights: the largest magnitude / levels; 1 if all weights are
 * 0. Weights / scale are then integers of at most `levels`: CR_QUANT_LEVELS_I8 or CR_QUANT_LEVELS_I7. */
float cr_quant_filter_scale(const float *weights, int64_t count, int levels);

/* x / scale, rounded to the nearest integer (ties to even) and saturated to -127 ... 127; NaN becomes 0. */
int8_t cr_quant_round_i8(float x, float scale);

#endif
