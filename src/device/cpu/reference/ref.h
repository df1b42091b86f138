/* device/cpu/reference/ref.h: access to tensors for the ref kernels; private to device/cpu/reference/.
 *
 * All other kernels are tested against the ref kernels. A ref kernel consists of plain loops; every sum is in FP64, and
 * each output is rounded once. ref_get and ref_put read and write elements of any type. Where speed matters the loop is
 * an inline function whose type argument REF_BY_TYPE makes constant for f32 and f64.
 * Work is divided over independent outputs only, so results do not depend on the number of threads. */
#ifndef CR_REF_H
#define CR_REF_H

#include "device/cpu/cpu.h"

#include <math.h>
#include <string.h>

#define REF_INLINE static inline __attribute__((always_inline))

/* The kernel of an op, which cannot fail. */
#define REF_KERNEL(op) CR_CPU_LAUNCH_(, cr_ref_##op)

/* A bound tensor: its elements, type and shape. */
struct ref {
    void         *data; /* NULL: the slot is absent */
    enum cr_dtype dtype;
    int64_t       N, H, W, C; /* dim[0..3]: N,H,W,C of images, K,R,S,C of filters */
    int64_t       elems;
};

REF_INLINE double ref_get(const struct ref *t, int64_t i) {
    return cr_number_load(t->dtype, t->data, i);
}
REF_INLINE void ref_put(const struct ref *t, int64_t i, double x) {
    cr_number_store(t->dtype, t->data, i, x);
}

/* Calls body(dtype, ...) with a constant dtype for f32 and f64, so that the compiler removes the switches. */
#define REF_BY_TYPE(type, body, ...)                                                                                   \
    do {                                                                                                               \
        switch (type) {                                                                                                \
        case CR_F32: body(CR_F32, __VA_ARGS__); break;                                                                 \
        case CR_F64: body(CR_F64, __VA_ARGS__); break;                                                                 \
        default: body(type, __VA_ARGS__); break;                                                                       \
        }                                                                                                              \
    } while (0)

static inline struct ref ref_view(const struct cr_call *call, int id, void *data) {
    if (id < 0) return (struct ref){.data = NULL, .dtype = CR_F32};
    const struct cr_tensor *t = &call->program->tensor[id];
    return (struct ref){.data  = data,
                        .dtype = t->dtype,
                        .N     = t->dim[0],
                        .H     = t->dim[1],
                        .W     = t->dim[2],
                        .C     = t->dim[3],
                        .elems = cr_tensor_elems(t)};
}

/* Kernels only read their inputs; the cast allows one struct for inputs and outputs. */
static inline struct ref ref_in(const struct cr_call *call, int slot) {
    return ref_view(call, call->op->in[slot], (void *)(uintptr_t)call->in[slot]);
}
static inline struct ref ref_out(const struct cr_call *call, int slot) {
    return ref_view(call, call->op->out[slot], call->out[slot]);
}
#define REF_IN(op, slot) ref_in(call, CR_IN_##op##_##slot)
#define REF_OUT(op, slot) ref_out(call, CR_OUT_##op##_##slot)

/* Element i of sums [2,C] that may be stored as rows [R,2,C]. */
static inline double ref_sum_of_rows(const struct ref *sums, int64_t i) {
    double sum = 0;
    for (int64_t at = i; at < sums->elems; at += 2 * sums->C) sum += ref_get(sums, at);
    return sum;
}
/* Sets all rows but the first one, which has the sums, to 0. */
static inline void ref_clear_rows(const struct ref *sums) {
    for (int64_t i = 2 * sums->C; i < sums->elems; i++) ref_put(sums, i, 0);
}

/* For a tensor that an op updates: copies the old values if the output is not the input. */
static inline void ref_copy_old(const struct ref *from, const struct ref *to) {
    if (from->data != to->data) memcpy(to->data, from->data, (size_t)to->elems * cr_dtype_bytes(to->dtype));
}

/* Writes x, or adds it, to an output that may be absent. */
static inline void ref_put_or_add(const struct ref *t, int64_t i, double x, bool accumulate) {
    if (t->data) ref_put(t, i, accumulate ? ref_get(t, i) + x : x);
}

/* ---- elementwise parts of fused ops: element i of channel c ---- */

/* x*scale + bias of a BN, before its ReLU. */
REF_INLINE double ref_affine(const struct ref *x, const struct ref *scale_bias, int64_t i, int64_t c) {
    return ref_get(x, i) * ref_get(scale_bias, c) + ref_get(scale_bias, scale_bias->C + c);
}
/* The gradient of a BN's input from g, that of its output: a*g + b*x + c with coeffs [3,C]. */
REF_INLINE double ref_bn_gradient(const struct ref *coeffs, double g, const struct ref *x, int64_t i, int64_t c) {
    const int64_t C = coeffs->C;
    return ref_get(coeffs, c) * g + ref_get(coeffs, C + c) * ref_get(x, i) + ref_get(coeffs, 2 * C + c);
}
REF_INLINE double ref_rectified(double x) {
    return x < 0 ? 0 : x; /* NaN stays NaN */
}

/* ReLU mask: where a gradient passes. The first operand that is present decides; without any the gradient passes
 * everywhere.
 *   - y: the activation is above 0, or its bit is set
 *   - scale_bias: x*scale + bias is above 0
 *   - gamma: (x - mean)*rstd*gamma + beta is above 0 */
struct ref_relu_mask {
    struct ref y, scale_bias, x, mean_rstd, gamma, beta;
};

REF_INLINE bool ref_mask_passes(const struct ref_relu_mask *g, int64_t i, int64_t c) {
    const int64_t C = g->mean_rstd.C;
    if (g->y.data && g->y.dtype == CR_U8) return ((const uint8_t *)g->y.data)[i / 8] >> (i % 8) & 1; /* C % 8 == 0 */
    if (g->y.data) return ref_get(&g->y, i) > 0;
    if (g->scale_bias.data) return ref_affine(&g->x, &g->scale_bias, i, c) > 0;
    if (!g->gamma.data) return true;
    return (ref_get(&g->x, i) - ref_get(&g->mean_rstd, c)) * ref_get(&g->mean_rstd, C + c) * ref_get(&g->gamma, c) +
               ref_get(&g->beta, c) >
           0;
}

/* Operations on a sum before it is stored: BN or bias, add, ReLU, ReLU mask. */
struct ref_epilogue {
    struct ref           scale_bias, bias, add;
    bool                 relu;
    struct ref_relu_mask mask;
};
REF_INLINE double ref_epilogue_apply(const struct ref_epilogue *e, int64_t i, int64_t c, double sum) {
    if (e->scale_bias.data) sum = sum * ref_get(&e->scale_bias, c) + ref_get(&e->scale_bias, e->scale_bias.C + c);
    if (e->bias.data) sum += ref_get(&e->bias, c);
    if (e->add.data) sum += ref_get(&e->add, i);
    if (e->relu) sum = ref_rectified(sum);
    return ref_mask_passes(&e->mask, i, c) ? sum : 0;
}

/* A tensor with the type and shape of x in scratch memory. */
static inline struct ref ref_scratch_like(const struct ref *x, void *scratch) {
    struct ref t = *x;
    t.data       = scratch;
    return t;
}
/* to = max(x*scale + bias, 0), in x's type. */
void cr_ref_activate(struct cr_device *device, const struct ref *x, const struct ref *scale_bias, const struct ref *to);
/* dx = gradient of the input of pad_shortcut, from that of its output. */
void cr_ref_shortcut_grad(struct cr_device *device, const struct cr_conv_attr *attr, const struct ref *dy,
                          const struct ref *dx);
/* sums = sums of x and x^2 over each channel. */
void cr_ref_sum_squares(struct cr_device *device, const struct ref *x, const struct ref *sums);
/* grad_sums, which may be absent, = sums of g and g*xhat over each channel, with g = dy where the mask (NULL: none)
 * passes it. */
void cr_ref_sum_grads(struct cr_device *device, const struct ref *dy, const struct ref_relu_mask *mask,
                      const struct ref *x, const struct ref *mean_rstd, const struct ref *grad_sums);

/* Operands of bn_finalize and bn_grad_finalize, and of ops that finalize their own sums. Outputs of the first:
 * scale_bias, scale_bias_half, mean_rstd, mean, var (the running statistics, updated from old_mean and old_var).
 * Outputs of the second: dgamma, dbeta, coeffs. center, scale_bias_half, dgamma and dbeta may be absent. */
struct ref_finalize {
    struct cr_bn_attr attr;
    struct ref        sums, center, gamma, beta, old_mean, old_var, scale_bias, scale_bias_half, mean_rstd, mean, var;
};
struct ref_grad_finalize {
    struct cr_bn_attr attr;
    struct ref        grad_sums, gamma, mean_rstd, dgamma, dbeta, coeffs;
};
void cr_ref_finalize(const struct ref_finalize *f);
/* The results of one channel from its mean and biased variance. */
void cr_ref_finalize_channel(const struct ref_finalize *f, int64_t c, double mean, double var);
void cr_ref_grad_finalize(const struct ref_grad_finalize *f);

/* mask = the ReLU mask of the stored y as bits; C % 8 == 0. */
void cr_ref_mask_bits(struct cr_device *device, const struct ref *y, const struct ref *mask);

/* ref_head.c: scratch memory of the op head in bytes. */
size_t cr_ref_head_workspace(const struct cr_program *p, const struct cr_op *op);

/* ref_optim.c: scratch memory of the op muon_direction in bytes. */
size_t cr_ref_muon_workspace(const struct cr_program *p);

#endif
