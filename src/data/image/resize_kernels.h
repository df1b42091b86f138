/* data/image/resize_kernels.h: the filter taps of a resize, and its passes for CPUs with AVX2 and with AVX-512. */
#ifndef CR_RESIZE_KERNELS_H
#define CR_RESIZE_KERNELS_H

#include "core/base.h"

/* The filter taps of a range of output pixels along one axis. A kernel that multiplies 16-bit numbers splits a weight
 * into halves: high * 2^CR_RESIZE_HALF_BITS + low. */
enum { CR_RESIZE_WEIGHT_BITS = 22, CR_RESIZE_HALF_BITS = 11 };
struct cr_axis {
    int      count, stride; /* number of output pixels; weights reserved per pixel */
    int      taps_max;      /* of all pixels; at most `stride` */
    int      channels;      /* of a pixel */
    int     *first, *taps;  /* [count]: first source pixel, number of taps */
    int32_t *weight;        /* [count][stride], of samples of 8 bits, or */
    double  *real;          /* the same of samples of 16 bits; else NULL */
};

/* The passes for a kind of CPU, for samples of 8 bits. make_across fills `tables`, which has across_bytes bytes and is
 * aligned to 64; false: the reduction is too strong, or the image too small. source_bytes: bytes of a source row. down:
 * one row of the result from `taps` rows at src; false: nothing is written, because there are too many taps or too few
 * bytes. */
struct cr_resize_kernel {
    size_t (*across_bytes)(const struct cr_axis *axis);
    bool (*make_across)(const struct cr_axis *axis, int source_bytes, bool flip, uint8_t *tables);
    void (*across)(const struct cr_axis *axis, const uint8_t *tables, const uint8_t *src, size_t src_stride, int rows,
                   uint8_t *dst, size_t dst_stride);
    bool (*down)(const int32_t *weight, int taps, const uint8_t *src, size_t stride, uint8_t *dst, size_t count);
};
/* x86-64 only. The second needs byte permutation and 16-bit dot products (Ice Lake, Zen 4 and later). */
extern const struct cr_resize_kernel cr_resize_avx2, cr_resize_avx512;

/* data/image/resize_wide.c: the passes for samples of 16 bits. Source rows [row, row + rows) to dst, rows of dst_stride
 * bytes; rows at src, from source row `row` on, to job->dst. */
struct cr_resize;
void cr_resize_across_wide(const struct cr_resize *job, const struct cr_axis *axis, int row, int rows, uint8_t *dst,
                           size_t dst_stride);
void cr_resize_down_wide(const struct cr_resize *job, const struct cr_axis *axis, const uint8_t *src, size_t stride,
                         int row);

#endif
