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

/* How the elements of a parameter are drawn: all `scale`; scale * normal (0, 1); scale * uniform in (-1, 1). */
enum ck_draw { CK_DRAW_CONSTANT, CK_DRAW_NORMAL, CK_DRAW_UNIFORM };
enum { CK_INIT_TILE = 4096 }; /* elements that a block draws */
struct ck_init_param {
    int64_t      at;         /* where it begins, elements from the start of `planes`: K,RS,C */
    int64_t      elems;      /* K*RS*C, at least 1 */
    int64_t      first_tile; /* tiles of the parameters before it in the table */
    uint32_t     RS, C;
    uint32_t     number;     /* of the parameter, in the counter */
    enum ck_draw draw;
    float        scale;
};
static inline int64_t ck_init_tiles(int64_t elems) { return (elems + CK_INIT_TILE - 1) / CK_INIT_TILE; }
/* Element e (in OIHW order) of a parameter comes of Philox's counter (e/4, number, purpose) with the seed as key, as in
 * rng.c. table[params] is device memory; tiles: those of all. Sets state[CK_STATE_LOSS_SCALE] to 1. */
cudaError_t ck_init(const struct ck_init_param *table, int params, int64_t tiles, float *planes, uint64_t seed, uint32_t purpose,
                    double *state, cudaStream_t stream);

/* ---- bn.cu, bn_apply.cu, bn_grad.cu: batch normalisation ------------------------------------------------------------ */

/* x[pixels][channels] -> stats[2][channels]: sums of x and x^2. */
size_t      ck_bn_stats_workspace(enum ck_type type, int64_t pixels, int64_t channels, int multiprocessors);
cudaError_t ck_bn_stats(enum ck_type type, const void *x, float *stats, void *workspace, int64_t pixels, int64_t channels,
                        int multiprocessors, cudaStream_t stream);

struct ck_bn_finalize {
    const float *stats, *gamma, *beta, *old_mean, *old_var; /* stats[2][C], the rest [C] */
    float       *coef, *saved, *new_mean, *new_var;         /* coef and saved [2][C]; new_* may be old_* */
    int64_t      channels, count;                           /* count: elements that a channel's sums run over */
    float        eps, momentum;
};
cudaError_t ck_bn_finalize(const struct ck_bn_finalize *args, cudaStream_t stream);
/* coef[2][C] from running statistics. */
cudaError_t ck_bn_coef(const float *gamma, const float *beta, const float *mean, const float *var, float *coef, int64_t channels,
                       float eps, cudaStream_t stream);

struct ck_bn_apply {
    enum ck_type type; /* of x, add, y: [pixels][channels] */
    const void  *x, *add;          /* add: NULL, none */
    const float *coef, *add_coef;  /* [2][C]; add_coef NULL: add as it is */
    void        *y;                /* may be x or add */
    int64_t      pixels, channels;
    bool         relu;
};
cudaError_t ck_bn_apply(const struct ck_bn_apply *args, int multiprocessors, cudaStream_t stream);
/* dx = dy * coef[0]; dx may be dy. */
cudaError_t ck_channel_scale(enum ck_type type, const void *dy, const float *coef, void *dx, int64_t pixels, int64_t channels,
                             int multiprocessors, cudaStream_t stream);

/* dstats[2][C]: sums of g and g*(x-mean)*rstd; g is dy, or dy where y > 0 when y is given. saved[2][C] = (mean, rstd). */
size_t      ck_bn_grad_stats_workspace(enum ck_type type, int64_t pixels, int64_t channels, int multiprocessors);
cudaError_t ck_bn_grad_stats(enum ck_type type, const void *dy, const void *x, const float *saved, const void *y, float *dstats,
                             void *workspace, int64_t pixels, int64_t channels, int multiprocessors, cudaStream_t stream);

struct ck_bn_grad_finalize {
    const float *dstats, *gamma, *saved;
    float       *dgamma, *dbeta, *coef; /* coef[3][C]; dgamma and dbeta may be NULL */
    int64_t      channels, count;
    bool         accumulate;            /* adds to dgamma and dbeta */
};
cudaError_t ck_bn_grad_finalize(const struct ck_bn_grad_finalize *args, cudaStream_t stream);
/* dx = coef[0]*g + coef[1]*x + coef[2], g as above; dx may be dy or x. */
cudaError_t ck_bn_grad_apply(enum ck_type type, const void *dy, const void *x, const float *coef, const void *y, void *dx,
                             int64_t pixels, int64_t channels, int multiprocessors, cudaStream_t stream);

/* ---- data.cu, pool.cu: normalize, relu, add, pooling, shortcut, cast, zero ----------------------------------------- */

cudaError_t ck_relu(enum ck_type type, const void *x, void *y, int64_t elems, cudaStream_t stream); /* y may be x */
cudaError_t ck_relu_grad(enum ck_type type, const void *dy, const void *y, void *dx, int64_t elems, cudaStream_t stream);
cudaError_t ck_add(enum ck_type type, const void *a, const void *b, void *y, int64_t elems, cudaStream_t stream);
/* f32 to `type`, which has 16 bits. */
cudaError_t ck_cast(const float *x, enum ck_type type, void *y, int64_t elems, cudaStream_t stream);
/* images u8 [N,H,W,3]; boxes int32 [N][4] = (dy, dx, flip, 0) or NULL: pixel (h, w) of the result is pixel
 * (h + dy, dx + w), with flip (h + dy, dx + W-1 - w), of the picture, and black outside it. H*W*3 < 2^31 with boxes. */
cudaError_t ck_normalize(const uint8_t *images, const int32_t *boxes, enum ck_type type, void *y, int64_t N, int64_t H, int64_t W,
                         const float mean[3], const float std[3], cudaStream_t stream);

/* Pooling and shortcut: the large image is N,H,W,C, the small one N,P,Q,C (shortcut: N,P,Q,K). An image has fewer than 2^31
 * elements; N is as large as it likes. */
struct ck_window {
    int64_t N, H, W, C, P, Q, K;
    int     window, stride, pad; /* pad: of the pooling window, zero channels in front of the shortcut */
};
/* index [N,P,Q,C] may be NULL. */
cudaError_t ck_maxpool(enum ck_type type, const void *x, void *y, uint8_t *index, const struct ck_window *w, cudaStream_t stream);
cudaError_t ck_maxpool_grad(enum ck_type type, const void *dy, const uint8_t *index, void *dx, const struct ck_window *w,
                            cudaStream_t stream);
cudaError_t ck_avgpool(enum ck_type type, const void *x, void *y, int64_t N, int64_t pixels, int64_t C, cudaStream_t stream);
cudaError_t ck_avgpool_grad(enum ck_type type, const void *dy, void *dx, int64_t N, int64_t pixels, int64_t C, cudaStream_t stream);
cudaError_t ck_pad_shortcut(enum ck_type type, const void *x, void *y, const struct ck_window *w, cudaStream_t stream);
cudaError_t ck_pad_shortcut_grad(enum ck_type type, const void *dy, void *dx, const struct ck_window *w, cudaStream_t stream);

/* ---- loss.cu, optim.cu: loss, gradient check, sgd ------------------------------------------------------------------ */

/* logits[samples][classes]; a label outside [0, classes) counts nowhere. */
struct ck_loss {
    enum ck_type   type; /* of logits and dx */
    const void    *logits;
    const int32_t *labels;
    int64_t        samples, classes;
    float          smoothing;
};
/* metrics = before + (sum of losses, valid labels, right, right in top 5), float[4]; metrics may be before. */
size_t      ck_loss_workspace(int64_t samples);
cudaError_t ck_loss(const struct ck_loss *args, const float *before, float *metrics, void *workspace, cudaStream_t stream);
/* dx = loss scale * weight * (softmax - target) / valid labels; dx may be the logits. */
cudaError_t ck_loss_grad(const struct ck_loss *args, float weight, const double *state, void *dx, cudaStream_t stream);

/* norm = (sum of (grad / loss scale)^2, 1 when a gradient or metrics[0] is not finite, else 0), float[2]. */
size_t      ck_grad_check_workspace(int64_t elems);
cudaError_t ck_grad_check(const float *grad, int64_t elems, const float *metrics, const double *state, float *norm, void *workspace,
                          cudaStream_t stream);

/* How parameters lie in the planes: a byte every CK_SGD_BLOCK elements, 0 where nothing moves, else the flags and, from bit
 * CK_SGD_LIVE_SHIFT on, the elements of a parameter that stand in the block, less 1; the rest of the block is padding. */
enum { CK_SGD_BLOCK = 64, CK_SGD_MOVES = 1, CK_SGD_DECAY = 2, CK_SGD_LIVE_SHIFT = 2 };
struct ck_sgd {
    float                *value, *momentum;
    const float          *grad, *norm;
    double               *state;
    const uint8_t        *map;   /* [elems / CK_SGD_BLOCK] */
    const struct ck_step *step;
    int64_t               elems; /* a multiple of CK_SGD_BLOCK */
    int                   micro_batches;
    bool                  nesterov, moving_scale;
};
/* The update in place, then the counters of the state. */
cudaError_t ck_sgd(const struct ck_sgd *args, cudaStream_t stream);

/* ---- conv.cu, dense.cu: own convolutions; what cuBLAS leaves to do; sums of gradients -------------------------------- */

/* y[i] = x[i], or y[i] + x[i] with `add`. */
cudaError_t ck_convert_add(enum ck_type type, const void *x, float *y, int64_t n, bool add, cudaStream_t stream);

/* x N,H,W,C; w K,R,S,C; y N,P,Q,K; and their gradients: of `type`, but dw f32. R*S*C and R*S*K below 2^31, sides of images
 * below 2^20. */
struct ck_conv {
    enum ck_type type;
    int          R, S, stride, pad;
    int64_t      N, H, W, C, K, P, Q;
};
cudaError_t ck_conv_forward(const struct ck_conv *conv, const void *x, const void *w, void *y, cudaStream_t stream);
cudaError_t ck_conv_dgrad(const struct ck_conv *conv, const void *dy, const void *w, void *dx, cudaStream_t stream);
size_t      ck_conv_wgrad_workspace(const struct ck_conv *conv, int multiprocessors);
/* dw (+)= ... */
cudaError_t ck_conv_wgrad(const struct ck_conv *conv, const void *x, const void *dy, float *dw, bool accumulate, void *workspace,
                          int multiprocessors, cudaStream_t stream);

/* y[rows][columns] = product + bias[column], rounded once; y may be the product when type is f32. */
cudaError_t ck_dense_bias(enum ck_type type, const float *product, const float *bias, void *y, int64_t rows, int64_t columns,
                          cudaStream_t stream);
/* db[column] (+)= sum of dy[rows][column] over the rows. */
cudaError_t ck_dense_bgrad(enum ck_type type, const void *dy, float *db, int64_t rows, int64_t columns, bool accumulate,
                           cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
