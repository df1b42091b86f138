/* device/cpu/simd.h: helpers of the tuned CPU kernels: iteration over an image tensor as M rows and C channels.
 *
 * The kernels process strips of CR_STRIP floats, so that inner loops have a fixed length and compilers use whole
 * vectors.
 *   - C divides CR_STRIP (16, 32, 64): a strip holds several pixels, and per-channel values are repeated across it.
 *   - CR_STRIP divides C (128, 256, ...): a pixel is several strips.
 *   - Other C: a plain loop over the channels of one pixel.
 * Each thread processes one contiguous part of the matrix. Results therefore depend on the number of threads but not on
 * timing. */
#ifndef CR_CPU_SIMD_H
#define CR_CPU_SIMD_H

#include "device/cpu/cpu.h"

#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { CR_STRIP = 64 };

/* ---- memory ---- */

/* The hardware prefetches within a page only, so the kernels prefetch data CR_AHEAD floats ahead. Outputs that are too
 * large to stay in a cache are written with non-temporal stores, which avoids reading their old contents. */
enum {
    CR_AHEAD             = 1024,
    CR_NONTEMPORAL_BYTES = 1 << 20 /* larger outputs of one thread use non-temporal stores */
};

static inline __attribute__((always_inline)) void cr_strip_prefetch(const float *x) {
    for (int i = 0; i < CR_STRIP; i += 16) __builtin_prefetch(x + CR_AHEAD + i);
}

/* Writes a strip; with non-temporal stores if `stream` (`to` is then aligned to 16 bytes). */
static inline __attribute__((always_inline)) void cr_strip_store(float *to, const float *strip, bool stream) {
#ifdef __SSE2__
    if (stream) {
        for (int i = 0; i < CR_STRIP; i += 4) _mm_stream_ps(to + i, _mm_loadu_ps(strip + i));
        return;
    }
#endif
    (void)stream;
    memcpy(to, strip, CR_STRIP * sizeof *to);
}

/* Call after non-temporal stores: they become visible before all later stores. */
static inline void cr_strip_fence(bool stream) {
#ifdef __SSE2__
    if (stream) _mm_sfence();
#endif
    (void)stream;
}

static inline bool cr_is_nontemporal(const struct cr_tensor *result, int threads) {
    return result->bytes / (size_t)threads > CR_NONTEMPORAL_BYTES;
}

/* ---- contiguous channels ---- */

/* An [M, C] tensor as `rows` rows of `width` floats: width is C, or CR_STRIP if a row holds several pixels. */
struct cr_simd_shape {
    int64_t channels, rows, width, tail; /* tail: floats after the last whole row if a row holds several pixels */
};

static inline struct cr_simd_shape cr_simd_shape_of(const struct cr_tensor *t) {
    int64_t              C = t->dim[3], elems = cr_tensor_elems(t);
    struct cr_simd_shape l = {.channels = C, .width = C, .rows = elems / C};
    if (C < CR_STRIP && CR_STRIP % C == 0) {
        l.width = CR_STRIP;
        l.rows  = elems / CR_STRIP;
        l.tail  = elems % CR_STRIP;
    }
    return l;
}

/* The rows from *begin to *end - 1 of part number `part` of `parts`. */
static inline void cr_run_of(int64_t rows, int part, int parts, int64_t *begin, int64_t *end) {
    *begin = rows * part / parts;
    *end   = rows * (part + 1) / parts;
}

/* Runs `body`, in each thread of `device`, for its part of `elems` elements: `count` from `begin` on. */
#define CR_EACH_RUN(elems, begin, count, body)                                                                         \
    do {                                                                                                               \
        const int64_t elems_ = elems;                                                                                  \
        const int     parts_ = cr_cpu_threads(device);                                                                 \
        CR_THREADS(part_, parts_) {                                                                                    \
            int64_t begin, end_;                                                                                       \
            cr_run_of(elems_, part_, parts_, &begin, &end_);                                                           \
            const int64_t count = end_ - begin;                                                                        \
            body;                                                                                                      \
        }                                                                                                              \
    } while (0)

/* Repeats C per-channel floats across one row. */
static inline void cr_simd_broadcast(const struct cr_simd_shape *l, const float *per_channel, float *row) {
    for (int64_t i = 0; i < l->width; i++) row[i] = per_channel[i % l->channels];
}

/* cr_kernel.accepts of BN gradients that read an activation as the ReLU mask, not its bits. */
CR_CPU_ACCEPTS(cr_has_plain_mask) {
    const int y = op->in[op->kind == CR_OP_relu_grad      ? CR_IN_relu_grad_y
                         : op->kind == CR_OP_bn_grad_sums ? CR_IN_bn_grad_sums_y
                                                          : CR_IN_bn_grad_apply_y];
    return y < 0 || p->tensor[y].dtype == CR_F32;
}

/* A tuned kernel: `kind` in f32, launched by kind_launch. */
#define CR_CPU_KERNEL(kind, how, ...)                                                                                  \
    { CR_KERNEL("cpu." #kind, kind, how), .dtypes = CR_TYPES_F32, .launch = kind##_launch, __VA_ARGS__ }

#endif
