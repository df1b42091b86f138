/* tests/harness/conv_problem.h: helpers of the tests of convolution kernels on the GPU: random operands in the type of
 * the kernel, an FP64 reference result from a loop over all weights, and an output between guard zones that the kernel
 * must not write. */
#ifndef CR_TEST_CONV_PROBLEM_H
#define CR_TEST_CONV_PROBLEM_H

#include "core/dtype.h"
#include "cuda/common/launchers.h"
#include "tests/harness/test.h"

enum { GUARD = 512, GUARD_BYTE = 0x3c }; /* elements of each guard zone, and its fill byte */

#define OK(call) REQUIRE((call) == cudaSuccess)

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

/* Operands on the host. x, add and y have the type of the convolution; the filter has its own type. */
struct problem {
    struct ck_conv conv;
    enum cr_dtype  dtype, w_dtype;
    bool           fused; /* with bias, add and ReLU */
    int64_t        inputs, outputs, weights;
    void          *x, *w, *add;
    float         *bias;
    double        *want, *size; /* the expected outputs, and the sum of the absolute terms of each */
};

static inline void problem_close(struct problem *p) {
    void *const memory[] = {p->x, p->w, p->add, p->bias, p->want, p->size};
    for (size_t i = 0; i < CR_COUNT(memory); i++) cr_free(memory[i]);
}

/* Draws all operands except the filter, which is filled with zeros; false when memory runs out. Call problem_close() in
 * both cases. */
static inline bool problem_open(struct problem *p, const struct ck_conv *c, enum cr_dtype w_dtype, bool fused) {
    *p      = (struct problem){.conv    = *c,
                               .dtype   = dtypes[c->type],
                               .w_dtype = w_dtype,
                               .fused   = fused,
                               .inputs  = c->N * c->H * c->W * c->C,
                               .outputs = c->N * c->P * c->Q * c->K,
                               .weights = c->K * c->R * c->S * c->C};
    p->x    = cr_alloc((size_t)p->inputs, cr_dtype_bytes(p->dtype));
    p->w    = cr_alloc((size_t)p->weights, cr_dtype_bytes(w_dtype));
    p->add  = cr_alloc((size_t)p->outputs, cr_dtype_bytes(p->dtype));
    p->bias = cr_alloc((size_t)c->K, sizeof *p->bias);
    p->want = cr_alloc((size_t)p->outputs, sizeof *p->want);
    p->size = cr_alloc((size_t)p->outputs, sizeof *p->size);
    if (!p->x || !p->w || !p->add || !p->bias || !p->want || !p->size) return false;
    for (int64_t i = 0; i < p->inputs; i++) cr_number_store(p->dtype, p->x, i, draw());
    for (int64_t i = 0; i < p->outputs; i++) cr_number_store(p->dtype, p->add, i, draw());
    for (int64_t i = 0; i < c->K; i++) p->bias[i] = (float)draw();
    return true;
}

/* Computes `want` and `size`; the filter must be complete. */
static inline void problem_expect(struct problem *p) {
    const struct ck_conv *c = &p->conv;
    for (int64_t o = 0; o < p->outputs; o++) {
        const int64_t k = o % c->K, q = o / c->K % c->Q, row = o / c->K / c->Q % c->P, n = o / c->K / c->Q / c->P;
        double sum = p->fused ? (double)p->bias[k] + cr_number_load(p->dtype, p->add, o) : 0, size = p->fused ? 2 : 0;
        for (int64_t tap = 0; tap < c->R * c->S; tap++) {
            const int64_t h = row * c->stride - c->pad + tap / c->S, v = q * c->stride - c->pad + tap % c->S;
            for (int64_t i = 0; h >= 0 && h < c->H && v >= 0 && v < c->W && i < c->C; i++) {
                const double term = cr_number_load(p->dtype, p->x, ((n * c->H + h) * c->W + v) * c->C + i) *
                                    cr_number_load(p->w_dtype, p->w, (k * c->R * c->S + tap) * c->C + i);
                sum += term;
                size += fabs(term);
            }
        }
        p->want[o] = p->fused && sum < 0 ? 0 : sum;
        p->size[o] = size;
    }
}

/* ---- on the device ---- */

/* Copies to the device; NULL when memory runs out. The caller frees it with cudaFree. */
static inline void *up(const void *host, int64_t bytes) {
    void *device = NULL;
    if (cudaMalloc(&device, (size_t)CR_MAX(bytes, 1)) == cudaSuccess)
        (void)cudaMemcpy(device, host, (size_t)bytes, cudaMemcpyHostToDevice);
    return device;
}

/* Allocates y and its guard zones, all filled with GUARD_BYTE; y begins GUARD elements in. */
static inline int64_t guarded_bytes(int64_t outputs, enum cr_dtype dtype) {
    return (outputs + 2 * GUARD) * (int64_t)cr_dtype_bytes(dtype);
}
static inline void *up_guarded(int64_t outputs, enum cr_dtype dtype) {
    void *device = NULL;
    if (cudaMalloc(&device, (size_t)guarded_bytes(outputs, dtype)) == cudaSuccess)
        (void)cudaMemset(device, GUARD_BYTE, (size_t)guarded_bytes(outputs, dtype));
    return device;
}
static inline void *behind_guard(void *y, enum cr_dtype dtype) {
    return (char *)y + GUARD * cr_dtype_bytes(dtype);
}

/* Number of changed bytes in the guard zones; y is the whole allocation, copied to the host. */
static inline int64_t guards_broken(const void *y, int64_t outputs, enum cr_dtype dtype) {
    const unsigned char *byte = y;
    const int64_t        zone = GUARD * (int64_t)cr_dtype_bytes(dtype), second = guarded_bytes(outputs, dtype) - zone;
    int64_t              broken = 0;
    for (int64_t i = 0; i < zone; i++) broken += (byte[i] != GUARD_BYTE) + (byte[second + i] != GUARD_BYTE);
    return broken;
}

/* Copies the allocation to the host. Each output must equal `want` within one rounding to its type plus `slack` of its
 * terms, and the guard zones must be unchanged. */
static inline void problem_check(const struct problem *p, const void *y, double slack, int variant) {
    const double step  = p->dtype == CR_F32 ? 0 : p->dtype == CR_F16 ? 0x1p-11 : 0x1p-8;
    int64_t      wrong = 0;
    void        *got   = cr_alloc((size_t)guarded_bytes(p->outputs, p->dtype), 1);
    REQUIRE(got);
    OK(cudaMemcpy(got, y, (size_t)guarded_bytes(p->outputs, p->dtype), cudaMemcpyDeviceToHost));
    for (int64_t o = 0; o < p->outputs; o++)
        wrong += !(fabs(cr_number_load(p->dtype, got, GUARD + o) - p->want[o]) <=
                   step * fabs(p->want[o]) + slack * (p->size[o] + 1e-2));
    const int64_t guards = guards_broken(got, p->outputs, p->dtype);
    if (wrong || guards)
        TEST_FAIL_("variant %d, %s, C %lld K %lld: %lld wrong, %lld guard bytes of y changed", variant,
                   cr_dtype_name(p->dtype), (long long)p->conv.C, (long long)p->conv.K, (long long)wrong,
                   (long long)guards);
    cr_free(got);
}

#endif
