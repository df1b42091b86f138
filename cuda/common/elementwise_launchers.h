/* cuda/common/elementwise_launchers.h: launchers of cuda/elementwise: element by element, pooling, images,
 * squeeze-and-excitation. Conventions: cuda/common/launchers.h. */
#ifndef CK_ELEMENTWISE_LAUNCHERS_H
#define CK_ELEMENTWISE_LAUNCHERS_H

#include "cuda/common/launch_types.h"

CK_C_BEGIN

/* ---- cuda/elementwise/pointwise.cu: relu, add, cast; normalisation of images ---- */

/* y = max(x, 0), NaN stays NaN; y may be x. */
cudaError_t ck_relu(enum ck_type type, const void *x, void *y, int64_t elems, cudaStream_t stream);
/* y = a + b; y may be a or b. */
cudaError_t ck_add(enum ck_type type, const void *a, const void *b, void *y, int64_t elems, cudaStream_t stream);
/* Rounds f32 to `type`, which has 16 bits. */
cudaError_t ck_cast(const float *x, enum ck_type type, void *y, int64_t elems, cudaStream_t stream);
/* cuda/collectives/reduce.cu: converts `type`, which has 16 bits, to f32. */
cudaError_t ck_widen(enum ck_type type, const void *x, float *y, int64_t elems, cudaStream_t stream);

/* Converts images u8 [N,H,W,3] to y = (image - mean) / std in `type`, [N,H,W,3]. boxes: int32 [N][4] =
 * (dy, dx, flip, 0), or NULL. Pixel (h, w) of the result is pixel (h + dy, w + dx) of the image, with flip pixel
 * (h + dy, W-1 - w + dx); pixels outside the image are black. With boxes, H*W*3 < 2^31. */
cudaError_t ck_normalize(const uint8_t *images, const int32_t *boxes, enum ck_type type, void *y, int64_t N, int64_t H,
                         int64_t W, const float mean[3], const float std[3], cudaStream_t stream);

/* The same for any `channels` up to 4 (mean and std have as many) and, with `wide`, for samples of 16 bits. An element
 * at a time: cuda/elementwise/normalize_any.cu. */
struct ck_images {
    const void    *images; /* [N,H,W,channels], u8 or u16; H*W*channels < 2^31 */
    const int32_t *boxes;  /* as in ck_normalize; may be NULL */
    int64_t        N, H, W;
    int            channels;
    bool           wide;
    float          mean[4], std[4];
};
cudaError_t ck_normalize_any(const struct ck_images *args, enum ck_type type, void *y, cudaStream_t stream);

/* ---- cuda/elementwise/mix.cu: mixup, cutmix and random erasing ---- */

struct ck_mix {
    const void    *images; /* [N,H,W,channels], u8 or, with `wide`, u16; H*W*channels < 2^31 */
    const int32_t *boxes;  /* [N][4], as in ck_normalize */
    const int32_t *mixes;  /* [N][CK_MIX_NUMBERS] */
    void          *y;      /* the same shape */
    int64_t        N, H, W;
    int            fill[4]; /* colour of erased regions */
    int            channels;
    bool           wide;
};
cudaError_t ck_mix(const struct ck_mix *args, cudaStream_t stream);

/* ---- cuda/elementwise/space_to_depth.cu: images and filters of the stem in space-to-depth layout ---- */

/* As ck_normalize, in space-to-depth layout: y [N, H/2+3, W/2+3, 16]. Channel (dh*2+dw)*3+c of pixel (i, j) is channel
 * c of image pixel (2(i-2)+dh, 2(j-2)+dw). It is 0 outside the image and in the last four channels. H and W are even;
 * H*W*3 < 2^31. */
cudaError_t ck_normalize_s2d(const uint8_t *images, const int32_t *boxes, enum ck_type type, void *y, int64_t N,
                             int64_t H, int64_t W, const float mean[3], const float std[3], cudaStream_t stream);
/* Converts the filter of a 7x7 convolution of stride 2 and pad 3 for such images: w [K,7,7,3] -> y [K,4,4,16]. */
cudaError_t ck_s2d_filter(enum ck_type type, const void *w, void *y, int64_t K, cudaStream_t stream);
/* Gradient of ck_s2d_filter: dy float [K,4,4,16] -> dw float [K,7,7,3]; adds to dw with `accumulate`. */
cudaError_t ck_s2d_filter_grad(const float *dy, float *dw, int64_t K, bool accumulate, cudaStream_t stream);

/* ---- cuda/elementwise/pool.cu, cuda/elementwise/pool_grad.cu: pooling and the padded shortcut ---- */

/* The large image is [N,H,W,C]. The small image is [N,P,Q,C], for the shortcut [N,P,Q,K]. An image has fewer than 2^31
 * elements; N has no limit. */
struct ck_window {
    int64_t N, H, W, C, P, Q, K;
    int     window, stride, pad; /* pad: of the pooling window; for the shortcut: zero channels in front */
};
/* Max pooling: x [N,H,W,C] -> y [N,P,Q,C]. index [N,P,Q,C] gets the position of the maximum in the window; it may be
 * NULL. With scale_bias, float[2][C] (or NULL), pools act(x) = max(x*scale_bias[0] + scale_bias[1], 0), rounded to
 * `type`. */
cudaError_t ck_maxpool(enum ck_type type, const void *x, const float *scale_bias, void *y, uint8_t *index,
                       const struct ck_window *w, cudaStream_t stream);
/* dy [N,P,Q,C], index from ck_maxpool -> dx [N,H,W,C]. */
cudaError_t ck_maxpool_grad(enum ck_type type, const void *dy, const uint8_t *index, void *dx,
                            const struct ck_window *w, cudaStream_t stream);
/* Global average pooling: x [N][pixels][C] -> y [N][C]. */
cudaError_t ck_avgpool(enum ck_type type, const void *x, void *y, int64_t N, int64_t pixels, int64_t C,
                       cudaStream_t stream);
/* dy [N][C] -> dx [N][pixels][C]. */
cudaError_t ck_avgpool_grad(enum ck_type type, const void *dy, void *dx, int64_t N, int64_t pixels, int64_t C,
                            cudaStream_t stream);
/* Shortcut without parameters: subsamples x [N,H,W,C] by the stride and pads channels with zeros -> y [N,P,Q,K]. */
cudaError_t ck_pad_shortcut(enum ck_type type, const void *x, void *y, const struct ck_window *w, cudaStream_t stream);
/* dy [N,P,Q,K] -> dx [N,H,W,C]. */
cudaError_t ck_pad_shortcut_grad(enum ck_type type, const void *dy, void *dx, const struct ck_window *w,
                                 cudaStream_t stream);

/* ---- cuda/elementwise/drop.cu: dropout, stochastic depth ---- */

struct ck_drop {
    enum ck_type          type;
    const void           *x; /* [N][elems] */
    void                 *y; /* may be x */
    const struct ck_step *step;
    int64_t               N, elems;
    bool                  images; /* see drop in graph/ops.def */
    uint32_t              index, purpose, threshold;
    float                 scale;
};
cudaError_t ck_drop(const struct ck_drop *args, cudaStream_t stream);

/* ---- cuda/elementwise/channel_conv.cu: efficient channel attention ---- */

/* y[n][c] = sum over j of w[j] * x[n][c + direction * (j - taps/2)], direction 1 or -1; x, y [N][C] of `type`. */
cudaError_t ck_channel_conv(enum ck_type type, const void *x, const float *w, void *y, int64_t N, int64_t C, int taps,
                            int direction, cudaStream_t stream);
/* dw[j] (+)= sum over n, c of dy[n][c] * x[n][c + j - taps/2]. */
cudaError_t ck_channel_conv_wgrad(enum ck_type type, const void *x, const void *dy, float *dw, int64_t N, int64_t C,
                                  int taps, bool accumulate, cudaStream_t stream);

/* ---- cuda/elementwise/squeeze_excite.cu: squeeze-and-excitation ---- */

struct ck_se_scale {
    enum ck_type type;            /* of all tensors */
    const void  *x, *logit, *dy;  /* [N][pixels][C], [N][C], [N][pixels][C] */
    void        *y, *dx, *dlogit; /* ck_se_scale writes y; ck_se_scale_grad writes dx (may be dy) and dlogit [N][C] */
    int64_t      N, pixels, C;
};
/* y = x * sigmoid(logit). */
cudaError_t ck_se_scale(const struct ck_se_scale *args, cudaStream_t stream);
cudaError_t ck_se_scale_grad(const struct ck_se_scale *args, cudaStream_t stream);

/* ---- cuda/elementwise/subsample.cu ---- */

/* Halves the sides of an image [N,H,W,C] to [N,P,Q,C], P = ceil(H/2), Q = ceil(W/2): averages over 2x2 windows, of the
 * pixels inside the image, or blurs (taps 1/4, 1/2, 1/4, reflected borders). With `grad`, `from` is dy [N,P,Q,C] and
 * `to` is dx [N,H,W,C]. Of `image`, only the sizes are read; an image has less than 2^31 elements. */
cudaError_t ck_halve(enum ck_type type, bool blur, bool grad, const void *from, void *to, const struct ck_window *image,
                     cudaStream_t stream);

/* ---- cuda/elementwise/fake_quant.cu: quantised values in floating point (graph/ops.def) ---- */

/* y = q(x) * scale; scale: one f32 in device memory. is_signed: integers -127 ... 127, else 0 ... 255. y may be x. */
cudaError_t ck_fake_quant(enum ck_type type, const void *x, const float *scale, void *y, int64_t elems, bool is_signed,
                          cudaStream_t stream);
/* The same for filters [filters][row] with one scale for each filter, integers -127 ... 127. */
cudaError_t ck_fake_quant_filter(enum ck_type type, const void *w, const float *scale, void *y, int64_t filters,
                                 int64_t row, cudaStream_t stream);

/* ---- cuda/elementwise/quantize.cu: 8-bit tensors (graph/ops.def) ---- */

/* y = q(x), u8 or i8; scale: one f32 in device memory. */
cudaError_t ck_quantize(enum ck_type type, const void *x, const float *scale, void *y, int64_t elems, bool is_signed,
                        cudaStream_t stream);
/* y = x * scale in `type`; x: i8 or u8. */
cudaError_t ck_dequantize(enum ck_type type, const void *x, bool is_signed, const float *scale, void *y, int64_t elems,
                          cudaStream_t stream);
/* y = q(w) for w [filters][row]; scale [filters]. */
cudaError_t ck_quantize_filter(enum ck_type type, const void *w, const float *scale, int8_t *y, int64_t filters,
                               int64_t row, cudaStream_t stream);
/* The op qconv_coeffs of graph/ops.def; all arrays in device memory. */
struct ck_qconv_coeffs {
    const float *x_scale, *w_scale;   /* [1], [K] */
    const float *scale_bias, *bias;   /* [2][K] or NULL; [K], read when scale_bias is NULL */
    const float *y_scale, *add_scale; /* [1] or NULL */
    float       *coeffs;              /* [3][K] */
    int64_t      K;
};
cudaError_t ck_qconv_coeffs(const struct ck_qconv_coeffs *args, cudaStream_t stream);
/* As ck_maxpool and ck_pad_shortcut, on i8 or u8. */
cudaError_t ck_maxpool_int8(const void *x, void *y, bool is_signed, const struct ck_window *w, cudaStream_t stream);
cudaError_t ck_pad_shortcut_int8(const void *x, void *y, const struct ck_window *w, cudaStream_t stream);

CK_C_END

#endif
