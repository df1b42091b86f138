/* cuda/common/launch_types.h: types (shapes, step, state, mixup) that the kernel launchers of all families share. */
#ifndef CK_LAUNCH_TYPES_H
#define CK_LAUNCH_TYPES_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Around the declarations of functions that .cu files define. */
#ifdef __cplusplus
#define CK_C_BEGIN extern "C" {
#define CK_C_END }
#else
#define CK_C_BEGIN
#define CK_C_END
#endif

enum ck_type { CK_F32, CK_F16, CK_BF16 };

/* The device's copy of cr_step_block (graph/graph.h). */
struct ck_step {
    float    lr, momentum, weight_decay, clip_norm;
    int64_t  step;
    uint64_t seed;
    int64_t  first_image;
};

/* Indices of the state that the device owns (double[8]). They equal enum cr_state. */
enum { CK_STATE_LOSS_SCALE, CK_STATE_GROWTH, CK_STATE_UPDATES, CK_STATE_BATCHES, CK_STATE_NONFINITE, CK_STATE_SKIPPED };

/* Fields of a record that describes how an image is mixed with another. They equal enum cr_mix. */
enum {
    CK_MIX_PARTNER,  /* index of the other image in the batch */
    CK_MIX_FRACTION, /* weight of the image's own label in the target, in units of 1 / CK_MIX_ONE */
    CK_MIX_WEIGHT,   /* weight of the image's own pixels outside the cut, in units of 1 / CK_MIX_ONE */
    CK_MIX_CUT,      /* y0, x0, y1, x1: rows y0 to y1 - 1 and columns x0 to x1 - 1 come from the other image */
    CK_MIX_ERASE   = CK_MIX_CUT + 4, /* y0, x0, y1, x1 of the region that is erased */
    CK_MIX_NUMBERS = 12,             /* int32 numbers in a record */
    CK_MIX_ONE     = 65536
};

/* A convolution. x [N,H,W,C], w [K,R,S,C], y [N,P,Q,K]; the gradients have the shapes of their tensors. All tensors
 * have type `type` except dw, which is f32. Limits: R*S*C and R*S*K below 2^31, sides of images below 2^20. */
struct ck_conv {
    enum ck_type type;
    int          R, S, stride, pad;
    int64_t      N, H, W, C, K, P, Q;
};

#endif
