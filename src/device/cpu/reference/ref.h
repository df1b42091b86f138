/* device/cpu/reference/ref.h: how ref rows read and write tensors; private to src/cpu/ref_*.c.
 *
 * A ref row is the truth that other rows are judged by: plain loops, every sum in double, each output rounded once.
 * Elements are read and written through ref_get and ref_put, which know the type; where speed matters the loop is an
 * inline function over a type that REF_BY_TYPE makes constant for f32 and f64.
 * Work is split over independent outputs only, so the bits do not depend on the number of threads. */
#ifndef CR_REF_H
#define CR_REF_H

#include "device/cpu/cpu.h"

#include <math.h>
#include <string.h>

#define REF_INLINE static inline __attribute__((always_inline))

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

/* Calls body(dtype, ...) with dtype a constant for the two types that matter, so that the switches vanish. */
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

/* Rows only read their inputs; the cast lets one struct serve both directions. */
static inline struct ref ref_in(const struct cr_call *call, int slot) {
    return ref_view(call, call->op->in[slot], (void *)(uintptr_t)call->in[slot]);
}
static inline struct ref ref_out(const struct cr_call *call, int slot) {
    return ref_view(call, call->op->out[slot], call->out[slot]);
}
#define REF_IN(op, slot) ref_in(call, CR_IN_##op##_##slot)
#define REF_OUT(op, slot) ref_out(call, CR_OUT_##op##_##slot)

/* For a tensor that an op updates: when the caller gave the new values a place of their own, they start as the old. */
static inline void ref_carry_over(const struct ref *from, const struct ref *to) {
    if (from->data != to->data) memcpy(to->data, from->data, (size_t)to->elems * cr_dtype_bytes(to->dtype));
}

/* ---- what fused ops do while they read or write: element i of channel c ---- */

/* x*scale + bias of a BN, before its ReLU. */
REF_INLINE double ref_affine(const struct ref *x, const struct ref *coef, int64_t i, int64_t c) {
    return ref_get(x, i) * ref_get(coef, c) + ref_get(coef, coef->C + c);
}
REF_INLINE double ref_rectified(double x) {
    return x < 0 ? 0 : x; /* NaN stays NaN */
}

/* Where a gradient passes a ReLU; the first that is there says it, and without any of them it passes everywhere.
 *   y      the activation is above 0, or its bit is set
 *   act    x*scale + bias is
 *   gamma  (x - mean)*rstd*gamma + beta is */
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

/* The value that an output gets for a sum: bias and summand, ReLU, gate. */
struct ref_epilogue {
    struct ref           bias, add;
    bool                 relu;
    struct ref_relu_mask mask;
};
REF_INLINE double ref_epilogue_apply(const struct ref_epilogue *e, int64_t i, int64_t c, double sum) {
    if (e->bias.data) sum += ref_get(&e->bias, c);
    if (e->add.data) sum += ref_get(&e->add, i);
    if (e->relu) sum = ref_rectified(sum);
    return ref_mask_passes(&e->mask, i, c) ? sum : 0;
}

/* A tensor like x in scratch memory. */
static inline struct ref ref_scratch_like(const struct ref *x, void *scratch) {
    struct ref t = *x;
    t.data       = scratch;
    return t;
}
/* to = max(x*scale + bias, 0), in x's type. */
void cr_ref_activate(struct cr_device *device, const struct ref *x, const struct ref *coef, const struct ref *to);
/* stats = sums of x and x^2; dstats = sums of g and g*xhat, g = dy where the gate is open. */
void cr_ref_sum_squares(struct cr_device *device, const struct ref *x, const struct ref *stats);
void cr_ref_sum_grads(struct cr_device *device, const struct ref *dy, const struct ref_relu_mask *gate,
                      const struct ref *x, const struct ref *saved, const struct ref *dstats);

/* What becomes of a BN's sums: bn_finalize and bn_grad_finalize, and convolutions that do the same with sums of their
 * own. In the first coef, scale_bias_half, saved, mean, var are written (mean and var begin as old_mean and old_var),
 * in the second dgamma, dbeta, coef; of these half, dgamma and dbeta may be absent. */
struct ref_finalize {
    struct cr_bn_attr attr;
    struct ref        sums, gamma, beta, old_mean, old_var, scale_bias, scale_bias_half, mean_rstd, mean, var;
};
struct ref_grad_finalize {
    struct cr_bn_attr attr;
    struct ref        grad_sums, gamma, mean_rstd, dgamma, dbeta, coef;
};
void cr_ref_finalize(const struct ref_finalize *f);
void cr_ref_grad_finalize(const struct ref_grad_finalize *f);

/* Runs of elements that one thread takes at a time in pointwise ops. */
enum { REF_RUN = 4096 };
static inline int64_t ref_runs(int64_t elems) {
    return (elems + REF_RUN - 1) / REF_RUN;
}
static inline int64_t ref_run_end(int64_t run, int64_t elems) {
    return CR_MIN((run + 1) * REF_RUN, elems);
}

#endif
