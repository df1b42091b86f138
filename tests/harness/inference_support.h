/* tests/harness/inference_support.h: evaluation programs of small networks with drawn parameters, and their logits. */
#ifndef CR_INFERENCE_SUPPORT_H
#define CR_INFERENCE_SUPPORT_H

#include "tests/harness/network_support.h"

enum { CLASSES = 5, BATCH = 2, LOGITS = BATCH * CLASSES };

/* On reference kernels or on the device's own. net_close() is valid after success and after failure. */
static inline cr_status open_eval(struct net *n, const char *const *overrides, int count, int size, bool fuse,
                                  bool reference) {
    const struct net_plan plan = {.overrides = overrides,
                                  .count     = count,
                                  .kind      = CR_PROGRAM_EVAL,
                                  .classes   = CLASSES,
                                  .size      = size,
                                  .batch     = BATCH,
                                  .device    = {.threads = 1, .ref_only = reference},
                                  .fuse      = fuse};
    return net_open(n, &plan);
}

static inline float *param_values(const struct net *n, int param) {
    const struct cr_param_store *store = &n->model.store;
    const enum cr_param_buffer   buffer =
        cr_param_is_running(store->param[param].role) ? CR_BUFFER_RUNNING : CR_BUFFER_VALUE;
    char *const base = n->memory.region[CR_REGION_STORE];
    return (float *)(void *)(base + cr_param_store_buffer_offset(store, buffer)) + store->param[param].offset;
}

/* Numbers from -1 to 1. Twenty million draws would be most of the time of a test: they come from a table. */
static inline float drawn_number(uint64_t seed, int param, int64_t e) {
    enum { NUMBERS = 8191 }; /* a prime: rows of filters begin at different places */
    static float table[NUMBERS];
    if (table[0] == 0) {
        struct cr_rng rng = cr_rng_make(1, CR_RNG_TEST, 0, 0);
        for (int i = 0; i < NUMBERS; i++) table[i] = (float)(2 * cr_rng_real(&rng) - 1);
    }
    return table[(e + 131 * (int64_t)param + 977 * (int64_t)seed) % NUMBERS];
}

/* Parameters and running statistics as after some training: nothing 0, variances positive. The scales of 8-bit values
 * let a few values saturate; powers of two make products exact, so that a program in floating point rounds as one in
 * 8 bits does. */
static inline void fill_store(const struct net *n, uint64_t seed) {
    const struct cr_param_store *store = &n->model.store;
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q    = &store->param[i];
        float                 *at   = param_values(n, i);
        const bool             conv = q->role == CR_ROLE_CONV;
        const float            mean = q->role == CR_ROLE_VAR || q->role == CR_ROLE_GAMMA ? 1.2f : 0.1f,
                    wide            = conv ? 2.0f / sqrtf((float)q->fan_in) : 0.3f;
        for (int64_t e = 0; e < q->elems; e++)
            at[e] = q->role == CR_ROLE_SCALE ? (q->elems > 1 ? 0x1p-8f : 0x1p-6f)
                                             : mean * !conv + wide * drawn_number(seed, i, e);
    }
}

/* The logits of batch number `batch` of drawn images. */
static inline void run_batch(struct net *n, uint64_t batch, float logits[LOGITS]) {
    const size_t               bytes  = n->program.tensor[n->program.images].bytes;
    OWNED(bytes)               images = cr_alloc(bytes, 1);
    struct cr_rng              rng    = cr_rng_make(batch, CR_RNG_TEST, 9, 9);
    const struct cr_step_block step   = {0};
    REQUIRE(images);
    for (size_t i = 0; i < bytes; i++) images[i] = (uint8_t)cr_rng_u32(&rng);
    CHECK_STATUS(cr_exec_feed(n->exec, images, NULL, NULL), CR_OK);
    CHECK_STATUS(cr_exec_run(n->exec, &step), CR_OK);
    CHECK_STATUS(cr_exec_get(n->exec, n->program.logits, logits), CR_OK);
}

/* Logits are equal within `tolerance` of the largest. */
static inline void compare_logits(const float *a, const float *b, double tolerance) {
    double largest = 0, apart = 0;
    for (int i = 0; i < LOGITS; i++) {
        largest = CR_MAX(fabs((double)a[i]), largest);
        apart   = CR_MAX(fabs((double)a[i] - (double)b[i]), apart);
    }
    CHECK(largest > 1e-3);
    if (!(apart <= tolerance * largest)) TEST_FAIL_("logits up to %g differ by %g", largest, apart);
}

#endif
