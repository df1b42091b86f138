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
    int      channels;      /* bytes of a pixel */
    int     *first, *taps;  /* [count]: first source pixel, number of taps */
    int32_t *weight;        /* [count][stride] */
};
/* data/image/resize_avx512.c. Only cr_resize_has_avx512 may be called on CPUs without these instructions.
 * cr_resize_across512_make fills `tables`, which has cr_resize_across512_bytes bytes and is aligned to 64; it
 * returns false if the reduction is too strong for the permutation. source_bytes: bytes of a source row. */
bool   cr_resize_has_avx512(void);
size_t cr_resize_across512_bytes(const struct cr_axis *axis);
bool   cr_resize_across512_make(const struct cr_axis *axis, int source_bytes, bool flip, uint8_t *tables);
void   cr_resize_across512(const struct cr_axis *axis, const uint8_t *tables, const uint8_t *src, size_t src_stride,
                           int rows, uint8_t *dst, size_t dst_stride);
void cr_resize_down512(const int32_t *weight, int taps, const uint8_t *src, size_t stride, uint8_t *dst, size_t count);

/* data/image/resize_avx2.c: the same for the level avx2. cr_resize_across256_make also returns false for rows of less
 * than 16 bytes. cr_resize_down256 returns false, and writes nothing, for less than 32 bytes or too many taps. */
size_t cr_resize_across256_bytes(const struct cr_axis *axis);
bool   cr_resize_across256_make(const struct cr_axis *axis, int source_bytes, bool flip, uint8_t *tables);
void   cr_resize_across256(const struct cr_axis *axis, const uint8_t *tables, const uint8_t *src, size_t src_stride,
                           int rows, uint8_t *dst, size_t dst_stride);
bool cr_resize_down256(const int32_t *weight, int taps, const uint8_t *src, size_t stride, uint8_t *dst, size_t count);

#endif
