/* cuda/common/launchers.h: every launcher: raw device pointers, sizes, a stream; returns what the launch returned.
 * Included by C rows and by .cu files, which see nothing else of cresnet.
 *
 * Conventions
 *   - Images are N,H,W,C, fully packed; `pixels` = N*H*W. Filters K,R,S,C. Per-channel vectors are float[C];
 * `scale_bias` and `mean_rstd` are float[2][C] or float[3][C], one row after the other.
 *   - `type` is the type of the const void* / void* data; sums run in float or double inside.
 *   - Pointers are aligned to 256 bytes unless said otherwise (slices of planes: 256 bytes in f32, 128 in 16 bits).
 *   - Outputs may share memory with an input where graph/ops.def says INPLACE.
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

/* ---- cuda/train/init.cu: initial values ---- */

/* How the elements of a parameter are drawn: all `scale`; scale * normal (0, 1); scale * uniform in (-1, 1). */
enum ck_distribution { CK_DISTRIBUTION_CONSTANT, CK_DISTRIBUTION_NORMAL, CK_DISTRIBUTION_UNIFORM };
enum { CK_INIT_TILE = 4096 }; /* elements that a block draws */
struct ck_init_param {
    int64_t              at;         /* where it begins, elements from the start of `planes`: K,RS,C */
    int64_t              elems;      /* K*RS*C, at least 1 */
    int64_t              first_tile; /* tiles of the parameters before it in the table */
    uint32_t             RS, C;
    uint32_t             number; /* of the parameter, in the counter */
    enum ck_distribution draw;
    float                scale;
};
static inline int64_t ck_init_tiles(int64_t elems) {
    return (elems + CK_INIT_TILE - 1) / CK_INIT_TILE;
}
/* Element e (in OIHW order) of a parameter comes of Philox's counter (e/4, number, purpose) with the seed as key, as in
 * core/rng.c. table[params] is device memory; tiles: those of all. Sets state[CK_STATE_LOSS_SCALE] to 1. */
cudaError_t ck_init(const struct ck_init_param *table, int params, int64_t tiles, float *planes, uint64_t seed,
                    uint32_t purpose, double *state, cudaStream_t stream);

/* ---- cuda/norm/bn.cu, cuda/norm/bn_apply.cu, cuda/norm/bn_grad.cu: batch normalisation ---- */

/* x[pixels][channels] -> sums[2][channels]: sums of x and x^2. */
size_t      ck_bn_sums_workspace(enum ck_type type, int64_t pixels, int64_t channels, int multiprocessors);
cudaError_t ck_bn_sums(enum ck_type type, const void *x, float *sums, void *workspace, int64_t pixels, int64_t channels,
                       int multiprocessors, cudaStream_t stream);

struct ck_bn_finalize {
    const float *sums, *gamma, *beta, *old_mean, *old_var;    /* sums[2][C], the rest [C] */
    float       *scale_bias, *mean_rstd, *new_mean, *new_var; /* scale_bias and mean_rstd [2][C]; new_* may be old_* */
    void        *scale_bias_half;                             /* scale_bias in type `half`, or NULL */
    enum ck_type half;
    int64_t      channels, count; /* count: elements that a channel's sums run over */
    float        eps, momentum;
};
cudaError_t ck_bn_finalize(const struct ck_bn_finalize *args, cudaStream_t stream);

/* coef[2][C] from running statistics. */
struct ck_bn_scale_bias {
    const float *gamma, *beta, *mean, *var;
    float       *scale_bias;
    int64_t      channels;
    float        eps;
};
cudaError_t ck_bn_scale_bias(const struct ck_bn_scale_bias *args, cudaStream_t stream);

struct ck_bn_apply {
    enum ck_type type;                        /* of x, add, y: [pixels][channels] */
    const void  *x, *add;                     /* add: NULL, none */
    const float *scale_bias, *add_scale_bias; /* [2][C]; add_scale_bias NULL: add as it is */
    void        *y;                           /* may be x or add */
    uint8_t     *mask;                        /* bits of y > 0, or NULL; wants relu and C % 8 == 0 */
    int64_t      pixels, channels;
    bool         relu;
};
cudaError_t ck_bn_apply(const struct ck_bn_apply *args, int multiprocessors, cudaStream_t stream);
/* dx = dy * scale_bias[0]; dx may be dy. */
cudaError_t ck_channel_scale(enum ck_type type, const void *dy, const float *scale_bias, void *dx, int64_t pixels,
                             int64_t channels, int multiprocessors, cudaStream_t stream);

/* Where a gradient passes the ReLU: everywhere (there is none); where the activation y > 0; where its bit is set (u8,
 * C % 8 == 0); where x*act[0] + act[1] > 0, float[2][C]. */
enum ck_mask { CK_MASK_NONE, CK_MASK_Y, CK_MASK_BITS, CK_MASK_ACT };
struct ck_bn_grad {
    enum ck_type type; /* of dy, x, y, dx: [pixels][channels] */
    enum ck_mask by;
    const void  *dy, *x, *mask; /* mask: what `by` names */
    const float *mean_rstd;     /* sums: (mean, rstd), [2][C] */
    float       *grad_sums;     /* sums: [2][C], sums of g and g*(x-mean)*rstd; g = dy where the mask says so, else 0 */
    const float *coef;          /* apply: [3][C] */
    void        *dx;            /* apply: coef[0]*g + coef[1]*x + coef[2]; may be dy or x */
    int64_t      pixels, channels;
};
size_t ck_bn_grad_sums_workspace(const struct ck_bn_grad *args, int multiprocessors); /* of type, by and the sizes */
cudaError_t ck_bn_grad_sums(const struct ck_bn_grad *args, void *workspace, int multiprocessors, cudaStream_t stream);
cudaError_t ck_bn_grad_apply(const struct ck_bn_grad *args, int multiprocessors, cudaStream_t stream);

struct ck_bn_grad_finalize {
    const float *grad_sums, *gamma, *mean_rstd;
    float       *dgamma, *dbeta, *coef; /* coef[3][C]; dgamma and dbeta may be NULL */
    int64_t      channels, count;
    bool         accumulate; /* adds to dgamma and dbeta */
    int          ranks;      /* dgamma and dbeta get this share of grad_sums; 0: all */
};
cudaError_t ck_bn_grad_finalize(const struct ck_bn_grad_finalize *args, cudaStream_t stream);

/* ---- cuda/norm/relu_grad.cu: the end of a block, backward ---- */

/* dx = dy + add where y > 0, else 0; for `bns` (0, 1, 2) BNs the sums of dx and dx*(bn_x-mean)*rstd besides, of dx as
 * it is stored. */
struct ck_relu_grad {
    enum ck_type type;         /* of dy, y, add, bn_x, dx */
    enum ck_mask by;           /* CK_MASK_Y or CK_MASK_BITS; what `y` is */
    const void  *dy, *y, *add; /* add: NULL, none */
    int          bns;          /* more than 0: channels a multiple of 8 */
    const void  *bn_x[2];
    const float *mean_rstd[2];
    float       *grad_sums[2]; /* [2][C] */
    void        *dx;           /* may be dy or add */
    int64_t      pixels, channels;
};
size_t ck_relu_grad_workspace(const struct ck_relu_grad *args, int multiprocessors); /* of type, bns and the sizes */
cudaError_t ck_relu_grad(const struct ck_relu_grad *args, void *workspace, int multiprocessors, cudaStream_t stream);

/* ---- cuda/norm/bn_relu_grad.cu: the ReLU behind a BN, and that BN's sums, behind a convolution's data gradient ----
 */

/* g = g where (x-mean)*rstd*gamma + beta > 0, else 0; and the sums of g and g*(x-mean)*rstd. */
struct ck_bn_relu_grad {
    enum ck_type type; /* of g and x */
    void        *g;    /* in place */
    const void  *x;
    const float *mean_rstd; /* (mean, rstd), [2][C] */
    const float *gamma, *beta;
    float       *grad_sums;        /* [2][C] */
    int64_t      pixels, channels; /* channels: a multiple of 8 */
};
size_t      ck_bn_relu_grad_workspace(enum ck_type type, int64_t pixels, int64_t channels, int multiprocessors);
cudaError_t ck_bn_relu_grad(const struct ck_bn_relu_grad *args, void *workspace, int multiprocessors,
                            cudaStream_t stream);

/* ---- cuda/norm/fold_bn.cu: batch normalisation folded into filters ---- */

struct ck_fold_bn {
    const float *w;                         /* [filters][elems] */
    const float *gamma, *beta, *mean, *var; /* [filters] */
    float       *bias;                      /* [filters] */
    int64_t      filters, elems;            /* filters < 2^31 */
    float        eps;
};
/* y [filters][elems] = w * gamma/sqrt(var + eps), bias = beta - mean * that. */
cudaError_t ck_fold_bn(const struct ck_fold_bn *args, enum ck_type type, void *y, cudaStream_t stream);

/* ---- cuda/elementwise/pointwise.cu, cuda/elementwise/pool.cu: normalize, relu, add, pooling, shortcut, cast, zero
 * ---- */

cudaError_t ck_relu(enum ck_type type, const void *x, void *y, int64_t elems, cudaStream_t stream); /* y may be x */
cudaError_t ck_add(enum ck_type type, const void *a, const void *b, void *y, int64_t elems, cudaStream_t stream);
/* f32 to `type`, which has 16 bits. */
cudaError_t ck_cast(const float *x, enum ck_type type, void *y, int64_t elems, cudaStream_t stream);
/* cuda/collectives/reduce.cu: and back. */
cudaError_t ck_widen(enum ck_type type, const void *x, float *y, int64_t elems, cudaStream_t stream);
/* cuda/elementwise/mix.cu. Places of a record, as enum cr_mix. */
enum {
    CK_MIX_PARTNER,
    CK_MIX_FRACTION,
    CK_MIX_WEIGHT,
    CK_MIX_CUT,
    CK_MIX_ERASE   = CK_MIX_CUT + 4,
    CK_MIX_NUMBERS = 12,
    CK_MIX_ONE     = 65536
};
struct ck_mix {
    const uint8_t *images;        /* [N,H,W,3]; H*W*3 < 2^31 */
    const int32_t *boxes, *mixes; /* [N][4] as below, [N][CK_MIX_NUMBERS] */
    uint8_t       *y;             /* as images */
    int64_t        N, H, W;
    int            fill[3]; /* of what is erased */
};
cudaError_t ck_mix(const struct ck_mix *args, cudaStream_t stream);
/* images u8 [N,H,W,3]; boxes int32 [N][4] = (dy, dx, flip, 0) or NULL: pixel (h, w) of the result is pixel
 * (h + dy, dx + w), with flip (h + dy, dx + W-1 - w), of the picture, and black outside it. H*W*3 < 2^31 with boxes. */
cudaError_t ck_normalize(const uint8_t *images, const int32_t *boxes, enum ck_type type, void *y, int64_t N, int64_t H,
                         int64_t W, const float mean[3], const float std[3], cudaStream_t stream);
/* Space to depth (cuda/elementwise/space_to_depth.cu): y [N, H/2+3, W/2+3, 16], channel (dh*2+dw)*3+c of pixel (i, j)
 * is channel c of picture pixel (2(i-2)+dh, 2(j-2)+dw), 0 outside the picture and in the last four. H and W even, H*W*3
 * < 2^31. */
cudaError_t ck_normalize_s2d(const uint8_t *images, const int32_t *boxes, enum ck_type type, void *y, int64_t N,
                             int64_t H, int64_t W, const float mean[3], const float std[3], cudaStream_t stream);
/* The filter of a 7x7 convolution of stride 2 and pad 3 for such a picture, w [K,7,7,3] -> y [K,4,4,16], and its
 * gradient: dy float [K,4,4,16] -> dw float [K,7,7,3], added to dw with `accumulate`. */
cudaError_t ck_s2d_filter(enum ck_type type, const void *w, void *y, int64_t K, cudaStream_t stream);
cudaError_t ck_s2d_filter_grad(const float *dy, float *dw, int64_t K, bool accumulate, cudaStream_t stream);

/* Pooling and shortcut: the large image is N,H,W,C, the small one N,P,Q,C (shortcut: N,P,Q,K). An image has fewer than
 * 2^31 elements; N is as large as it likes. */
struct ck_window {
    int64_t N, H, W, C, P, Q, K;
    int     window, stride, pad; /* pad: of the pooling window, zero channels in front of the shortcut */
};
/* index [N,P,Q,C] may be NULL. scale_bias: NULL, or float[2][C]: of act(x) = max(x*scale_bias[0] + scale_bias[1], 0)
 * rounded to the type. */
cudaError_t ck_maxpool(enum ck_type type, const void *x, const float *scale_bias, void *y, uint8_t *index,
                       const struct ck_window *w, cudaStream_t stream);
cudaError_t ck_maxpool_grad(enum ck_type type, const void *dy, const uint8_t *index, void *dx,
                            const struct ck_window *w, cudaStream_t stream);
/* Backward of BN, ReLU and max-pool at once (cuda/norm/pool_bn.cu): g = maxpool_grad(dy, index) where x*act[0] + act[1]
 * > 0. Windows of 3, stride 2; C in whole vectors of 16 bytes. */
struct ck_pool_bn_grad {
    enum ck_type     type;
    const void      *dy; /* N,P,Q,C, as index */
    const uint8_t   *index;
    const void      *x;         /* N,H,W,C: the BN's input */
    const float     *act;       /* [2][C] */
    const float     *mean_rstd; /* sums: (mean, rstd) */
    float           *grad_sums; /* sums: sums of g and g*(x-mean)*rstd */
    const float     *coef;      /* apply: [3][C] */
    void            *dx;        /* apply: coef[0]*g + coef[1]*x + coef[2]; may be x */
    struct ck_window w;
};
size_t      ck_pool_bn_grad_sums_workspace(enum ck_type type, const struct ck_window *w, int multiprocessors);
cudaError_t ck_pool_bn_grad_sums(const struct ck_pool_bn_grad *args, void *workspace, int multiprocessors,
                                 cudaStream_t stream);
cudaError_t ck_pool_bn_grad_apply(const struct ck_pool_bn_grad *args, int multiprocessors, cudaStream_t stream);
cudaError_t ck_avgpool(enum ck_type type, const void *x, void *y, int64_t N, int64_t pixels, int64_t C,
                       cudaStream_t stream);
cudaError_t ck_avgpool_grad(enum ck_type type, const void *dy, void *dx, int64_t N, int64_t pixels, int64_t C,
                            cudaStream_t stream);
cudaError_t ck_pad_shortcut(enum ck_type type, const void *x, void *y, const struct ck_window *w, cudaStream_t stream);
cudaError_t ck_pad_shortcut_grad(enum ck_type type, const void *dy, void *dx, const struct ck_window *w,
                                 cudaStream_t stream);

/* ---- cuda/elementwise/squeeze_excite.cu: squeeze and excitation, 2x2 means ---- */

struct ck_se_scale {
    enum ck_type type;            /* of all */
    const void  *x, *logit, *dy;  /* [N][pixels][C], [N][C], as x */
    void        *y, *dx, *dlogit; /* se_scale writes y; se_scale_grad dx (may be dy) and dlogit [N][C] */
    int64_t      N, pixels, C;
};
cudaError_t ck_se_scale(const struct ck_se_scale *args, cudaStream_t stream); /* y = x * sigmoid(logit) */
cudaError_t ck_se_scale_grad(const struct ck_se_scale *args, cudaStream_t stream);
/* x N,H,W,C; y N,ceil(H/2),ceil(W/2),C: means of what lies inside of 2x2 windows. */
cudaError_t ck_avgpool2x2(enum ck_type type, const void *x, void *y, int64_t N, int64_t H, int64_t W, int64_t C,
                          cudaStream_t stream);
cudaError_t ck_avgpool2x2_grad(enum ck_type type, const void *dy, void *dx, int64_t N, int64_t H, int64_t W, int64_t C,
                               cudaStream_t stream);

/* ---- cuda/train/loss.cu, cuda/train/sgd.cu: loss, gradient check, sgd ---- */

/* logits[samples][classes]; a label outside [0, classes) counts nowhere. */
struct ck_loss {
    enum ck_type   type; /* of logits and dx */
    const void    *logits;
    const int32_t *labels;
    const int32_t *mixes; /* NULL, or [samples][CK_MIX_NUMBERS]: the target is spread over two labels */
    int64_t        samples, classes;
    float          smoothing;
};
/* metrics = before + (sum of losses, valid labels, right, right in top 5), float[4]; metrics may be before. */
size_t      ck_loss_workspace(int64_t samples);
cudaError_t ck_loss(const struct ck_loss *args, const float *before, float *metrics, void *workspace,
                    cudaStream_t stream);
/* dx = loss scale * weight * (softmax - target) / valid labels; dx may be the logits. */
cudaError_t ck_loss_grad(const struct ck_loss *args, float weight, const double *state, void *dx, cudaStream_t stream);

/* norm = (sum of (grad / loss scale)^2, 1 when a gradient or metrics[0] is not finite, else 0), float[2]. */
size_t      ck_grad_norm_workspace(int64_t elems);
cudaError_t ck_grad_norm(const float *grad, int64_t elems, const float *metrics, const double *state, float *norm,
                         void *workspace, cudaStream_t stream);

/* How parameters lie in the planes: a byte every CK_SGD_BLOCK elements, 0 where nothing moves, else the flags and, from
 * bit CK_SGD_COUNT_SHIFT on, the elements of a parameter that stand in the block, less 1; the rest of the block is
 * padding. */
enum { CK_SGD_BLOCK = 64, CK_SGD_UPDATED = 1, CK_SGD_DECAY = 2, CK_SGD_COUNT_SHIFT = 2 };
struct ck_sgd {
    float                *value, *momentum;
    const float          *grad, *norm;
    double               *state;
    const uint8_t        *map;  /* [elems / CK_SGD_BLOCK] */
    const uint8_t        *mask; /* NULL, or [elems / 8]: value and momentum become 0 where bit i%8 of byte i/8 is 0 */
    const struct ck_step *step;
    int64_t               elems; /* a multiple of CK_SGD_BLOCK */
    int                   micro_batches;
    bool                  nesterov, moving_scale;
};
/* The update in place, then the counters of the state. */
cudaError_t ck_sgd(const struct ck_sgd *args, cudaStream_t stream);

/* ---- cuda/train/update_rules.cu: adamw, lars, the norms it wants, moving averages ---- */

struct ck_rule {
    struct ck_sgd  sgd;    /* nesterov: lars */
    float         *second; /* adamw */
    const float   *norms;  /* lars: [params][2], squares */
    const int32_t *owner;  /* lars: [elems / CK_SGD_BLOCK], the parameter whose norms scale the block, -1: none */
    double         beta2, eps, trust;
};
/* As ck_sgd. */
cudaError_t ck_adamw(const struct ck_rule *args, cudaStream_t stream);
cudaError_t ck_lars(const struct ck_rule *args, cudaStream_t stream);

/* norms[param] = (sum of value^2, sum of (grad / loss scale)^2). A parameter's elements are cut into tiles; those of
 * parameter p are tile[first_tile[p]] to tile[first_tile[p + 1] - 1]. */
enum { CK_NORM_TILE = 8192 };
struct ck_norm_tile {
    int64_t first; /* element of the planes, a multiple of CK_SGD_BLOCK */
    int32_t elems; /* 1 to CK_NORM_TILE */
};
struct ck_param_norms {
    const float               *value, *grad;
    const double              *state;
    const struct ck_norm_tile *tile;       /* device memory, [tiles] */
    const int32_t             *first_tile; /* device memory, [params + 1] */
    float                     *norms;      /* [params][2] */
    int                        tiles, params;
};
size_t      ck_param_norms_workspace(int tiles);
cudaError_t ck_param_norms(const struct ck_param_norms *args, void *workspace, cudaStream_t stream);

struct ck_ema {
    const float   *value, *running, *norm;
    const double  *state;
    float         *averages, *running_averages;
    const uint8_t *mask;                 /* of value, as ck_sgd's; NULL: none */
    int64_t        elems, running_elems; /* multiples of CK_SGD_BLOCK */
    double         decay;
    bool           warmup;
};
cudaError_t ck_ema(const struct ck_ema *args, cudaStream_t stream);

/* ---- cuda/conv/generic/conv.cu, cuda/dense/dense.cu: own convolutions; what cuBLAS leaves to do; sums of gradients
 * ---- */

/* y[i] = x[i], or y[i] + x[i] with `add`. */
cudaError_t ck_convert_add(enum ck_type type, const void *x, float *y, int64_t n, bool add, cudaStream_t stream);
/* cuda/core/delay.cu: keeps the stream busy for about `ns`, 1 ms at most; for tests. */
cudaError_t ck_delay(int64_t ns, cudaStream_t stream);

/* ---- cuda/core/step_block.cu: between programs ---- */

cudaError_t ck_set_step(struct ck_step *to, const struct ck_step *step,
                        cudaStream_t stream); /* *step may change at once */
enum { CK_FETCH_PIECES = 4 };
/* Small pieces, in words of 4 bytes, from the device to page-locked memory of the host. */
struct ck_fetch {
    const uint32_t *from[CK_FETCH_PIECES];
    uint32_t       *to[CK_FETCH_PIECES];
    int             words[CK_FETCH_PIECES], pieces;
};
cudaError_t ck_fetch(const struct ck_fetch *fetch, cudaStream_t stream);

/* cuda/conv/cudnn/sum_slices.cu: sum[i] = part[i] + part[stride + i] + ... of `slices` parts, in this order; i < elems.
 */
cudaError_t ck_sum_slices(const float *part, float *sum, int64_t slices, int64_t stride, int64_t elems,
                          cudaStream_t stream);

/* cuda/collectives/reduce.cu: ranks whose GPUs reach each other's memory */
enum { CK_PEERS = 8 }; /* ranks, at most */
/* to[i] = (part[0][i] + part[1][i]) + ... of `ranks` parts (2 to CK_PEERS), in this order; `to` may be one of them.
 * Aligned to 16 bytes. */
struct ck_sum_ranks {
    const float *part[CK_PEERS];
    float       *to;
    int          ranks;
    int64_t      elems;
};
cudaError_t ck_sum_ranks(const struct ck_sum_ranks *sum, int multiprocessors, cudaStream_t stream);

/* x N,H,W,C; w K,R,S,C; y N,P,Q,K; and their gradients: of `type`, but dw f32. R*S*C and R*S*K below 2^31, sides of
 * images below 2^20. */
struct ck_conv {
    enum ck_type type;
    int          R, S, stride, pad;
    int64_t      N, H, W, C, K, P, Q;
};
cudaError_t ck_conv_forward(const struct ck_conv *conv, const void *x, const void *w, void *y, cudaStream_t stream);
cudaError_t ck_conv_dgrad(const struct ck_conv *conv, const void *dy, const void *w, void *dx, cudaStream_t stream);
size_t      ck_conv_wgrad_workspace(const struct ck_conv *conv, int multiprocessors);
/* dw (+)= ... */
cudaError_t ck_conv_wgrad(const struct ck_conv *conv, const void *x, const void *dy, float *dw, bool accumulate,
                          void *workspace, int multiprocessors, cudaStream_t stream);

/* y[rows][columns] = product + bias[column], rounded once; y may be the product when type is f32. */
cudaError_t ck_dense_bias(enum ck_type type, const float *product, const float *bias, void *y, int64_t rows,
                          int64_t columns, cudaStream_t stream);
/* db[column] (+)= sum of dy[rows][column] over the rows. */
cudaError_t ck_dense_bgrad(enum ck_type type, const void *dy, float *db, int64_t rows, int64_t columns, bool accumulate,
                           cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
