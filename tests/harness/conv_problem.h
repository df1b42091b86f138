/* tests/harness/conv_problem.h: operands of convolutions in the type of the kernel, for tests of packed filters. */
#ifndef CR_TEST_CONV_PROBLEM_H
#define CR_TEST_CONV_PROBLEM_H

#include "core/dtype.h"
#include "cuda/common/launchers.h"
#include "tests/harness/test.h"

static const enum cr_dtype dtypes[] = {[CK_F32] = CR_F32, [CK_F16] = CR_F16, [CK_BF16] = CR_BF16};

/* Draws 24 random bits; draw() gives a number from -1 to 1. */
static inline uint32_t draw_bits(void) {
    static uint32_t seed = 1;
    seed                 = seed * 1664525u + 1013904223u;
    return seed >> 8;
}
static inline double draw(void) {
    return (double)draw_bits() / (1 << 23) - 1;
}

/* N, H, W, C, K, R, S, stride and pad are given. */
static inline struct ck_conv conv_sized(struct ck_conv c) {
    c.P = (c.H + 2 * c.pad - c.R) / c.stride + 1;
    c.Q = (c.W + 2 * c.pad - c.S) / c.stride + 1;
    return c;
}

/* Operands on the host: x has the type of the convolution, the filter its own. */
struct problem {
    struct ck_conv conv;
    enum cr_dtype  dtype, w_dtype;
    int64_t        inputs, outputs, weights;
    void          *x, *w;
};

static inline void problem_close(struct problem *p) {
    cr_free(p->x);
    cr_free(p->w);
}

/* Draws x and fills the filter with zeros; false when memory runs out. Call problem_close() in both cases. */
static inline bool problem_open(struct problem *p, const struct ck_conv *c, enum cr_dtype w_dtype) {
    *p   = (struct problem){.conv    = *c,
                            .dtype   = dtypes[c->type],
                            .w_dtype = w_dtype,
                            .inputs  = c->N * c->H * c->W * c->C,
                            .outputs = c->N * c->P * c->Q * c->K,
                            .weights = c->K * c->R * c->S * c->C};
    p->x = cr_alloc((size_t)p->inputs, cr_dtype_bytes(p->dtype));
    p->w = cr_alloc((size_t)p->weights, cr_dtype_bytes(w_dtype));
    if (!p->x || !p->w) return false;
    for (int64_t i = 0; i < p->inputs; i++) cr_number_store(p->dtype, p->x, i, draw());
    return true;
}

#endif
