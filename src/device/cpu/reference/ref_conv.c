/* device/cpu/reference/ref_conv.c: convolution (cross-correlation, as in every deep-learning library) and its two
 * gradients. y[n,p,q,k] = sum over r,s,c of x[n, p*stride - pad + r, q*stride - pad + s, c] * w[k,r,s,c] where x is 0
 * outside the image. In a grouped convolution w has the channels of one group, and k sums those of its own group. */
#include "device/cpu/reference/ref_conv.h"

enum {
    CHANNEL_BLOCK = 64, /* channels summed together, so that the inner loop reads contiguous memory */
    LANES         = 16  /* partial sums of a dot product */
};

REF_INLINE int64_t offset4(const struct ref *t, int64_t a, int64_t b, int64_t c) {
    return ((a * t->H + b) * t->W + c) * t->C;
}

/* The output position that reads input position h with filter element r, or -1. */
REF_INLINE int64_t output_of(int64_t h, int64_t r, int64_t stride, int64_t pad, int64_t outputs) {
    int64_t top = h + pad - r;
    if (top < 0 || top % stride != 0 || top / stride >= outputs) return -1;
    return top / stride;
}

/* The number of filters of a group, and the first channel of x that filter k reads. */
REF_INLINE int64_t group_filters(const struct ref_conv *v) {
    return v->w.N * v->w.C / v->x.C;
}
REF_INLINE int64_t first_channel(const struct ref_conv *v, int64_t k) {
    return k / group_filters(v) * v->w.C;
}

/* ---- forward ---- */

/* Uses LANES partial sums, so that the result does not depend on the vector width of the machine. */
REF_INLINE double dot(enum cr_dtype type, const struct ref *x, int64_t x0, const struct ref *w, int64_t w0, int64_t n) {
    double  lane[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        CR_SIMD
        for (int j = 0; j < LANES; j++)
            lane[j] += cr_number_load(type, x->data, x0 + i + j) * cr_number_load(type, w->data, w0 + i + j);
    }
    for (; i < n; i++) sum += cr_number_load(type, x->data, x0 + i) * cr_number_load(type, w->data, w0 + i);
    for (int j = 0; j < LANES; j++) sum += lane[j];
    return sum;
}

/* Sum of products of one output element. The elements s of a filter row that are inside the image are contiguous in x
 * and in w: one dot product, or one for each pixel when there are groups. */
REF_INLINE double sum_at(enum cr_dtype type, const struct ref_conv *v, int64_t n, int64_t p, int64_t q, int64_t k) {
    const struct ref *x = &v->x, *w = &v->w;
    const int64_t     left = q * v->stride - v->pad, s0 = CR_MAX(0, -left), s1 = CR_MIN(w->W, x->W - left);
    const int64_t     c0 = first_channel(v, k), pixels = w->C == x->C ? s1 - s0 : 1;
    double            sum = 0;
    for (int64_t r = 0; r < w->H; r++) {
        int64_t h = p * v->stride - v->pad + r;
        if (h < 0 || h >= x->H) continue;
        for (int64_t s = s0; s < s1; s += pixels)
            sum += dot(type, x, offset4(x, n, h, left + s) + c0, w, offset4(w, k, r, s), pixels * w->C);
    }
    return sum;
}

/* With max-pooling (3x3, stride 2, padding 1) of P x Q sums; a NaN wins over all numbers. */
REF_INLINE double largest_sum(enum cr_dtype type, const struct ref_conv *v, int64_t n, int64_t p, int64_t q,
                              int64_t k) {
    const int64_t P = (v->x.H + 2 * v->pad - v->w.H) / v->stride + 1,
                  Q = (v->x.W + 2 * v->pad - v->w.W) / v->stride + 1;
    double largest  = -(double)INFINITY;
    for (int64_t r = CR_MAX(2 * p - 1, 0); r <= CR_MIN(2 * p + 1, P - 1); r++)
        for (int64_t s = CR_MAX(2 * q - 1, 0); s <= CR_MIN(2 * q + 1, Q - 1); s++) {
            const double sum = sum_at(type, v, n, r, s, k);
            if (sum > largest || isnan(sum)) largest = sum;
        }
    return largest;
}

REF_INLINE void forward_row(enum cr_dtype type, const struct ref_conv *v, int64_t n, int64_t p) {
    const struct ref *y = &v->y;
    for (int64_t q = 0; q < y->W; q++)
        for (int64_t k = 0; k < y->C; k++) {
            const int64_t i   = offset4(y, n, p, q) + k;
            const double  sum = v->pooled ? largest_sum(type, v, n, p, q, k) : sum_at(type, v, n, p, q, k);
            cr_number_store(type, y->data, i, ref_epilogue_apply(&v->epilogue, i, k, sum));
        }
}

CR_BY_LEVEL(void, forward_row_typed, (const struct ref_conv *v, int64_t n, int64_t p), (v, n, p)) {
    REF_BY_TYPE(v->y.dtype, forward_row, v, n, p);
}

static void forward(struct cr_device *device, const struct ref_conv *v) {
    const int64_t rows = v->y.N * v->y.H;
    CR_PARALLEL(i, rows) forward_row_typed(v, i / v->y.H, i % v->y.H);
}

REF_KERNEL(group_conv) {
    const struct ref_conv v = ref_conv_of(call, REF_IN(group_conv, x), REF_IN(group_conv, w), REF_OUT(group_conv, y));
    forward(device, &v);
}

/* Finalizes the BN sums as bn_finalize does. */
static void finalize(const struct cr_call *call, const struct ref *sums) {
    cr_ref_finalize(&(struct ref_finalize){.attr       = call->op->attr.conv.bn,
                                           .sums       = *sums,
                                           .gamma      = REF_IN(conv, gamma),
                                           .beta       = REF_IN(conv, beta),
                                           .old_mean   = REF_IN(conv, running_mean),
                                           .old_var    = REF_IN(conv, running_var),
                                           .scale_bias = REF_OUT(conv, next_scale_bias),
                                           .mean_rstd  = REF_OUT(conv, mean_rstd),
                                           .mean       = REF_OUT(conv, running_mean),
                                           .var        = REF_OUT(conv, running_var)});
}

REF_KERNEL(conv) {
    struct ref_conv v          = ref_conv_of(call, REF_IN(conv, x), REF_IN(conv, w), REF_OUT(conv, y));
    struct ref      scale_bias = REF_IN(conv, scale_bias), sums = REF_OUT(conv, sums), mask = REF_OUT(conv, mask);
    v.epilogue = (struct ref_epilogue){.scale_bias = REF_IN(conv, out_scale_bias),
                                       .bias       = REF_IN(conv, bias),
                                       .add        = REF_IN(conv, add),
                                       .relu       = call->op->attr.conv.relu};
    ref_conv_activate(device, &v.x, &scale_bias, call->workspace);
    forward(device, &v);
    if (sums.data) cr_ref_sum_squares(device, &v.y, &sums);
    if (mask.data) cr_ref_mask_bits(device, &v.y, &mask);
    if (call->op->in[CR_IN_conv_gamma] >= 0) finalize(call, &sums);
}

/* The 3x3 convolution in front of a pair; its result is in the workspace. Without one, the pair reads x. */
static struct ref before_pair(struct cr_device *device, const struct cr_call *call) {
    const struct ref x = REF_IN(conv_pair, x), w = REF_IN(conv_pair, first_w);
    struct ref_conv  conv = {.x        = x,
                             .w        = w,
                             .y        = ref_scratch_like(&x, call->workspace),
                             .stride   = 1,
                             .pad      = 1,
                             .epilogue = {.bias = REF_IN(conv_pair, first_bias), .relu = true}};
    if (!w.data) return x;
    conv.y.C     = w.N;
    conv.y.elems = x.elems / x.C * w.N;
    forward(device, &conv);
    return conv.y;
}

/* add, or the convolution in its place. Its result is in the workspace, behind that of the 3x3 convolution. */
static struct ref summand_of_pair(struct cr_device *device, const struct cr_call *call, const struct ref *t) {
    const struct ref x = REF_IN(conv_pair, shortcut_x), y = REF_OUT(conv_pair, y), first = REF_IN(conv_pair, first_w);
    char *const      behind = (char *)call->workspace + (first.data ? t->elems * (int64_t)cr_dtype_bytes(t->dtype) : 0);
    const struct ref_conv conv = {.x        = x,
                                  .w        = REF_IN(conv_pair, shortcut_w),
                                  .y        = ref_scratch_like(&y, behind),
                                  .stride   = 1,
                                  .epilogue = {.bias = REF_IN(conv_pair, shortcut_bias)}};
    if (!x.data) return REF_IN(conv_pair, add);
    forward(device, &conv);
    return conv.y;
}

REF_KERNEL(conv_pair) {
    const struct ref      t     = before_pair(device, call);
    const struct ref_conv first = {.x        = t,
                                   .w        = REF_IN(conv_pair, w),
                                   .y        = REF_OUT(conv_pair, y),
                                   .stride   = 1,
                                   .epilogue = {.bias = REF_IN(conv_pair, bias),
                                                .add  = summand_of_pair(device, call, &t),
                                                .relu = true}},
                          next  = {.x        = first.y,
                                   .w        = REF_IN(conv_pair, next_w),
                                   .y        = REF_OUT(conv_pair, z),
                                   .stride   = 1,
                                   .epilogue = {.bias = REF_IN(conv_pair, next_bias), .relu = true}};
    forward(device, &first);
    forward(device, &next);
}

REF_KERNEL(conv_pool) {
    struct ref_conv v = ref_conv_of(call, REF_IN(conv_pool, x), REF_IN(conv_pool, w), REF_OUT(conv_pool, y));
    v.epilogue        = (struct ref_epilogue){.bias = REF_IN(conv_pool, bias), .relu = true};
    v.pooled          = true;
    forward(device, &v);
}

/* ---- input gradient: dx[n,h,w,c] = sum of dy[n,p,q,k] * w[k,r,s,c] over the outputs that read the pixel ---- */

/* The number of channels, beginning with c0, that are computed together: all belong to one group. */
REF_INLINE int64_t block_of(const struct ref_conv *v, int64_t c0) {
    return CR_MIN(v->w.C - c0 % v->w.C, (int64_t)CHANNEL_BLOCK);
}

REF_INLINE void dgrad_pixel(enum cr_dtype type, const struct ref_conv *v, int64_t n, int64_t h, int64_t at,
                            int64_t c0) {
    const struct ref *dx = &v->x, *w = &v->w, *dy = &v->y;
    const int64_t     width = block_of(v, c0), filters = group_filters(v), k0 = c0 / w->C * filters;
    double            sum[CHANNEL_BLOCK] = {0};
    for (int64_t r = 0; r < w->H; r++) {
        int64_t p = output_of(h, r, v->stride, v->pad, dy->H);
        if (p < 0) continue;
        for (int64_t s = 0; s < w->W; s++) {
            int64_t q = output_of(at, s, v->stride, v->pad, dy->W);
            if (q < 0) continue;
            for (int64_t k = k0; k < k0 + filters; k++) {
                double  g  = cr_number_load(type, dy->data, offset4(dy, n, p, q) + k);
                int64_t w0 = offset4(w, k, r, s) + c0 % w->C;
                CR_SIMD
                for (int64_t c = 0; c < width; c++) sum[c] += g * cr_number_load(type, w->data, w0 + c);
            }
        }
    }
    for (int64_t c = 0; c < width; c++) {
        const int64_t i = offset4(dx, n, h, at) + c0 + c;
        cr_number_store(type, dx->data, i, ref_epilogue_apply(&v->epilogue, i, c0 + c, sum[c]));
    }
}

CR_BY_LEVEL(void, dgrad_row_typed, (const struct ref_conv *v, int64_t n, int64_t h), (v, n, h)) {
    for (int64_t at = 0; at < v->x.W; at++)
        for (int64_t c0 = 0; c0 < v->x.C; c0 += block_of(v, c0)) REF_BY_TYPE(v->x.dtype, dgrad_pixel, v, n, h, at, c0);
}

void cr_ref_dgrad(struct cr_device *device, const struct ref_conv *v) {
    const int64_t rows = v->x.N * v->x.H;
    CR_PARALLEL(i, rows) dgrad_row_typed(v, i / v->x.H, i % v->x.H);
}

REF_KERNEL(group_conv_dgrad) {
    const struct ref_conv v =
        ref_conv_of(call, REF_OUT(group_conv_dgrad, dx), REF_IN(group_conv_dgrad, w), REF_IN(group_conv_dgrad, dy));
    cr_ref_dgrad(device, &v);
}

REF_KERNEL(conv_dgrad) {
    struct ref_conv v = ref_conv_of(call, REF_OUT(conv_dgrad, dx), REF_IN(conv_dgrad, w), REF_IN(conv_dgrad, dy));
    struct ref      x = REF_IN(conv_dgrad, bn_x), mean_rstd = REF_IN(conv_dgrad, mean_rstd),
               grad_sums = REF_OUT(conv_dgrad, grad_sums);
    v.epilogue.add       = REF_IN(conv_dgrad, add);
    v.epilogue.mask      = (struct ref_relu_mask){
             .x = x, .mean_rstd = mean_rstd, .gamma = REF_IN(conv_dgrad, gamma), .beta = REF_IN(conv_dgrad, beta)};
    cr_ref_dgrad(device, &v);
    cr_ref_sum_grads(device, &v.x, NULL, &x, &mean_rstd, &grad_sums);
}

/* ---- gradient of the filter: dw[k,r,s,c] (+)= sum over n,p,q of dy[n,p,q,k] * x[n,h,w,c] ---- */

REF_INLINE bool is_nonzero(const struct ref_conv *v, int64_t i) {
    return !v->pattern || (v->pattern[(v->first_bit + i) / 8] >> ((v->first_bit + i) % 8) & 1);
}

REF_INLINE void wgrad_tap(enum cr_dtype type, const struct ref_conv *v, int64_t k, int64_t r, int64_t s, int64_t c0) {
    const struct ref *x = &v->x, *dw = &v->w, *dy = &v->y;
    const int64_t     width = block_of(v, c0), from = first_channel(v, k) + c0;
    double            sum[CHANNEL_BLOCK] = {0};
    for (int64_t n = 0; n < dy->N; n++) {
        for (int64_t p = 0; p < dy->H; p++) {
            int64_t h = p * v->stride - v->pad + r;
            if (h < 0 || h >= x->H) continue;
            for (int64_t q = 0; q < dy->W; q++) {
                int64_t at = q * v->stride - v->pad + s;
                if (at < 0 || at >= x->W) continue;
                double  g  = cr_number_load(type, dy->data, offset4(dy, n, p, q) + k);
                int64_t x0 = offset4(x, n, h, at) + from;
                CR_SIMD
                for (int64_t c = 0; c < width; c++) sum[c] += g * cr_number_load(type, x->data, x0 + c);
            }
        }
    }
    for (int64_t c = 0; c < width; c++) {
        int64_t i   = offset4(dw, k, r, s) + c0 + c;
        double  old = v->accumulate ? ref_get(dw, i) : 0;
        ref_put(dw, i, is_nonzero(v, i) ? old + sum[c] : old);
    }
}

CR_BY_LEVEL(void, wgrad_tap_typed, (const struct ref_conv *v, int64_t tap), (v, tap)) {
    int64_t s = tap % v->w.W, r = tap / v->w.W % v->w.H, k = tap / v->w.W / v->w.H;
    for (int64_t c0 = 0; c0 < v->w.C; c0 += CHANNEL_BLOCK) REF_BY_TYPE(v->x.dtype, wgrad_tap, v, k, r, s, c0);
}

void cr_ref_wgrad(struct cr_device *device, const struct ref_conv *v) {
    const int64_t taps = v->w.N * v->w.H * v->w.W;
    CR_PARALLEL(tap, taps) wgrad_tap_typed(v, tap);
}

REF_KERNEL(group_conv_wgrad) {
    const struct ref_conv v =
        ref_conv_of(call, REF_IN(group_conv_wgrad, x), REF_OUT(group_conv_wgrad, dw), REF_IN(group_conv_wgrad, dy));
    cr_ref_wgrad(device, &v);
}

/* sums[k] = sum of x over the pixels; absent sums are not computed. */
static void sum_pixels(const struct ref *x, const struct ref *sums) {
    for (int64_t k = 0; sums->data && k < x->C; k++) {
        double sum = 0;
        for (int64_t i = k; i < x->elems; i += x->C) sum += ref_get(x, i);
        ref_put(sums, k, sum);
    }
}

REF_KERNEL(conv_wgrad) {
    struct ref_conv v = ref_conv_of(call, REF_IN(conv_wgrad, x), REF_OUT(conv_wgrad, dw), REF_IN(conv_wgrad, dy));
    struct ref      scale_bias = REF_IN(conv_wgrad, scale_bias), dy_sums = REF_OUT(conv_wgrad, dy_sums);
    const struct cr_sparsity_attr *a = &call->op->attr.conv.pattern;
    if (a->nnz) {
        v.pattern   = call->program->store->pattern;
        v.first_bit = call->program->store->param[a->param].offset;
    }
    ref_conv_activate(device, &v.x, &scale_bias, call->workspace);
    cr_ref_wgrad(device, &v);
    sum_pixels(&v.y, &dy_sums);
}
