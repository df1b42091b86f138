/* device/cpu/reference/ref_pool.c: max and average pooling, the parameter-free shortcut, and their gradients. */
#include "device/cpu/reference/ref.h"

REF_INLINE int64_t at4(const struct ref *t, int64_t n, int64_t h, int64_t w, int64_t c) {
    return ((n * t->H + h) * t->W + w) * t->C + c;
}

/* ---- max-pool: padding is ignored; the first of equal maxima wins; the first NaN wins over all numbers ---- */

struct maxpool {
    struct ref x, y, index, scale_bias; /* scale_bias present: x is read as act(x), rounded to the type of x */
    int64_t    stride, pad, window;
};

static struct maxpool maxpool_of(const struct cr_call *call, struct ref x, struct ref y, struct ref index) {
    const struct cr_conv_attr *a = &call->op->attr.conv;
    return (struct maxpool){.x = x, .y = y, .index = index, .stride = a->stride, .pad = a->pad, .window = a->window};
}

REF_INLINE double pool_value(const struct maxpool *v, int64_t i, int64_t c) {
    if (!v->scale_bias.data) return ref_get(&v->x, i);
    uint64_t         stored = 0; /* holds one number of x's type */
    const struct ref one    = ref_scratch_like(&v->x, &stored);
    ref_put(&one, 0, ref_rectified(ref_affine(&v->x, &v->scale_bias, i, c)));
    return ref_get(&one, 0);
}

static void maxpool_element(const struct maxpool *v, int64_t n, int64_t p, int64_t q, int64_t c) {
    const struct ref *x    = &v->x;
    double            best = 0;
    int64_t           at   = -1;
    for (int64_t r = 0; r < v->window; r++) {
        int64_t h = p * v->stride - v->pad + r;
        if (h < 0 || h >= x->H) continue;
        for (int64_t s = 0; s < v->window; s++) {
            int64_t w = q * v->stride - v->pad + s;
            if (w < 0 || w >= x->W) continue;
            double value = pool_value(v, at4(x, n, h, w, c), c);
            if (at >= 0 && !(value > best) && !(isnan(value) && !isnan(best))) continue;
            best = value;
            at   = r * v->window + s;
        }
    }
    ref_put(&v->y, at4(&v->y, n, p, q, c), at < 0 ? -(double)INFINITY : best);
    if (v->index.data) ref_put(&v->index, at4(&v->y, n, p, q, c), (double)CR_MAX(at, 0));
}

REF_KERNEL(maxpool) {
    struct maxpool v = maxpool_of(call, REF_IN(maxpool, x), REF_OUT(maxpool, y), REF_OUT(maxpool, index));
    v.scale_bias     = REF_IN(maxpool, scale_bias);
    CR_PARALLEL(i, v.y.N * v.y.H)
        for (int64_t q = 0; q < v.y.W; q++)
            for (int64_t c = 0; c < v.y.C; c++) maxpool_element(&v, i / v.y.H, i % v.y.H, q, c);
}

/* Sum of the gradients of all windows in which the pixel was the maximum. The members x and y of struct maxpool are dx
 * (or a tensor of its shape) and dy. */
static double maxpool_grad_element(const struct maxpool *v, int64_t n, int64_t h, int64_t w, int64_t c) {
    const struct ref *dy  = &v->y;
    double            sum = 0;
    for (int64_t r = 0; r < v->window; r++) {
        int64_t top = h + v->pad - r;
        if (top < 0 || top % v->stride != 0 || top / v->stride >= dy->H) continue;
        for (int64_t s = 0; s < v->window; s++) {
            int64_t left = w + v->pad - s;
            if (left < 0 || left % v->stride != 0 || left / v->stride >= dy->W) continue;
            int64_t i = at4(dy, n, top / v->stride, left / v->stride, c);
            if ((int64_t)ref_get(&v->index, i) == r * v->window + s) sum += ref_get(dy, i);
        }
    }
    return sum;
}

REF_KERNEL(maxpool_grad) {
    const struct maxpool v =
        maxpool_of(call, REF_OUT(maxpool_grad, dx), REF_IN(maxpool_grad, dy), REF_IN(maxpool_grad, index));
    CR_PARALLEL(i, v.x.N * v.x.H)
        for (int64_t w = 0; w < v.x.W; w++)
            for (int64_t c = 0; c < v.x.C; c++)
                ref_put(&v.x, at4(&v.x, i / v.x.H, i % v.x.H, w, c),
                        maxpool_grad_element(&v, i / v.x.H, i % v.x.H, w, c));
}

/* ---- gradient of max-pool, ReLU and BN fused: the gradient between them is not stored ---- */

struct pool_bn {
    struct maxpool       pool; /* y is dy */
    struct ref_relu_mask mask;
    struct ref           mean_rstd, grad_coeffs, out; /* mean_rstd and grad_sums, or grad_coeffs and dx */
};

static struct pool_bn pool_bn_of(const struct cr_call *call, struct ref dy, struct ref index, struct ref x,
                                 struct ref scale_bias) {
    return (struct pool_bn){.pool = maxpool_of(call, x, dy, index), .mask = {.x = x, .scale_bias = scale_bias}};
}

/* The gradient of element i of x behind the ReLU mask. */
static double pool_bn_grad(const struct pool_bn *v, int64_t i) {
    const struct ref *x = &v->pool.x;
    const int64_t     c = i % x->C, w = i / x->C % x->W, h = i / x->C / x->W % x->H, n = i / x->C / x->W / x->H;
    return ref_mask_passes(&v->mask, i, c) ? maxpool_grad_element(&v->pool, n, h, w, c) : 0;
}

REF_KERNEL(pool_bn_grad_sums) {
    struct pool_bn v = pool_bn_of(call, REF_IN(pool_bn_grad_sums, dy), REF_IN(pool_bn_grad_sums, index),
                                  REF_IN(pool_bn_grad_sums, x), REF_IN(pool_bn_grad_sums, scale_bias));
    v.mean_rstd      = REF_IN(pool_bn_grad_sums, mean_rstd);
    v.out            = REF_OUT(pool_bn_grad_sums, grad_sums);
    const int64_t C  = v.pool.x.C;
    CR_PARALLEL(c, C) {
        double sum = 0, product = 0;
        for (int64_t i = c; i < v.pool.x.elems; i += C) {
            const double g = pool_bn_grad(&v, i);
            sum += g;
            product += g * ((ref_get(&v.pool.x, i) - ref_get(&v.mean_rstd, c)) * ref_get(&v.mean_rstd, C + c));
        }
        ref_put(&v.out, c, sum);
        ref_put(&v.out, C + c, product);
    }
}

REF_KERNEL(pool_bn_grad_apply) {
    struct pool_bn v = pool_bn_of(call, REF_IN(pool_bn_grad_apply, dy), REF_IN(pool_bn_grad_apply, index),
                                  REF_IN(pool_bn_grad_apply, x), REF_IN(pool_bn_grad_apply, scale_bias));
    v.grad_coeffs    = REF_IN(pool_bn_grad_apply, coeffs);
    v.out            = REF_OUT(pool_bn_grad_apply, dx);
    CR_PARALLEL(i, v.out.elems)
        ref_put(&v.out, i, ref_bn_gradient(&v.grad_coeffs, pool_bn_grad(&v, i), &v.pool.x, i, i % v.pool.x.C));
}

/* ---- global average pooling ---- */

REF_KERNEL(avgpool) {
    struct ref    x = REF_IN(avgpool, x), y = REF_OUT(avgpool, y);
    const int64_t C = x.C, pixels = x.H * x.W;
    CR_PARALLEL(i, y.elems) {
        double sum = 0;
        for (int64_t m = 0; m < pixels; m++) sum += ref_get(&x, (i / C * pixels + m) * C + i % C);
        ref_put(&y, i, sum / (double)pixels);
    }
}

REF_KERNEL(avgpool_grad) {
    struct ref    dy = REF_IN(avgpool_grad, dy), dx = REF_OUT(avgpool_grad, dx);
    const int64_t C = dx.C, pixels = dx.H * dx.W;
    CR_PARALLEL(i, dx.elems) ref_put(&dx, i, ref_get(&dy, i / (pixels * C) * C + i % C) / (double)pixels);
}

/* ---- option A shortcut (He et al. 2015, section 3.3) ---- */

static void pad_shortcut_pixel(const struct ref *x, const struct ref *y, int64_t stride, int64_t pad_c, int64_t n,
                               int64_t p, int64_t q) {
    for (int64_t k = 0; k < y->C; k++) {
        int64_t c = k - pad_c;
        ref_put(y, at4(y, n, p, q, k), c >= 0 && c < x->C ? ref_get(x, at4(x, n, p * stride, q * stride, c)) : 0);
    }
}

REF_KERNEL(pad_shortcut) {
    const struct cr_conv_attr *a = &call->op->attr.conv;
    struct ref                 x = REF_IN(pad_shortcut, x), y = REF_OUT(pad_shortcut, y);
    CR_PARALLEL(i, y.N * y.H)
        for (int64_t q = 0; q < y.W; q++) pad_shortcut_pixel(&x, &y, a->stride, a->pad_c, i / y.H, i % y.H, q);
}

static void pad_shortcut_grad_pixel(const struct ref *dy, const struct ref *dx, int64_t stride, int64_t pad_c,
                                    int64_t n, int64_t h, int64_t w) {
    bool sampled = h % stride == 0 && w % stride == 0;
    for (int64_t c = 0; c < dx->C; c++)
        ref_put(dx, at4(dx, n, h, w, c), sampled ? ref_get(dy, at4(dy, n, h / stride, w / stride, c + pad_c)) : 0);
}

void cr_ref_shortcut_grad(struct cr_device *device, const struct cr_conv_attr *a, const struct ref *dy,
                          const struct ref *dx) {
    CR_PARALLEL(i, dx->N * dx->H)
        for (int64_t w = 0; w < dx->W; w++)
            pad_shortcut_grad_pixel(dy, dx, a->stride, a->pad_c, i / dx->H, i % dx->H, w);
}
REF_KERNEL(pad_shortcut_grad) {
    const struct ref dy = REF_IN(pad_shortcut_grad, dy), dx = REF_OUT(pad_shortcut_grad, dx);
    cr_ref_shortcut_grad(device, &call->op->attr.conv, &dy, &dx);
}
