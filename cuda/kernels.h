/* kernels.h: every launcher: raw device pointers, sizes, a stream; returns what the launch returned. Included by C rows and
 * by .cu files, which see nothing else of cresnet.
 *
 * Conventions
 *   - Images are N,H,W,C, fully packed; `pixels` = N*H*W. Filters K,R,S,C. Per-channel vectors are float[C]; `coef` and
 *     `saved` are float[2][C] or float[3][C], one row after the other.
 *   - `type` is the type of the const void* / void* data; sums run in float or double inside.
 *   - Pointers are aligned to 256 bytes unless said otherwise (slices of planes: 256 bytes in f32, 128 in 16 bits).
 *   - Outputs may share memory with an input where ops.def says INPLACE.
 *   - Nothing here allocates or waits. Workspaces: the *_workspace function gives the bytes, contents are garbage. */
#ifndef CR_KERNELS_H
#define CR_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ck_type { CK_F32, CK_F16, CK_BF16 };

/* The device's copy of cr_step_block. */
struct ck_step {
    float    lr, momentum, weight_decay, clip_norm;
    int64_t  step;
    uint64_t seed;
};
/* Indices of the device-owned state (double[8]), as enum cr_state. */
enum { CK_STATE_LOSS_SCALE, CK_STATE_GROWTH, CK_STATE_UPDATES, CK_STATE_BATCHES, CK_STATE_NONFINITE, CK_STATE_SKIPPED };

/* ---- init.cu: initial values ------------------------------------------------------------------------------------- */

/* ---- bn.cu, bn_grad.cu: batch normalisation ---------------------------------------------------------------------- */

/* ---- data.cu, pool.cu: normalize, relu, add, pooling, shortcut, cast, zero ----------------------------------------- */

/* ---- train.cu: loss, gradient check, sgd --------------------------------------------------------------------------- */

/* ---- conv.cu, dense.cu: own convolutions; what cuBLAS leaves to do; sums of gradients -------------------------------- */

#ifdef __cplusplus
}
#endif

#endif
