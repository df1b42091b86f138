/* passes_help.h: what the tests of the passes share: models from config lines, invented targets, failing allocations. */
#ifndef CR_TEST_PASSES_HELP_H
#define CR_TEST_PASSES_HELP_H

#include "model.h"
#include "passes.h"
#include "rng.h"
#include "test.h"

struct bench_model { /* a model and what it is made of */
    struct cr_config config;
    struct cr_model  model;
};

static inline cr_status bench_open(struct bench_model *b, const char *const *overrides, int n, int64_t size) {
    CR_TRY(cr_config_open(&b->config, NULL, overrides, n));
    cr_status status = cr_model_open(&b->config, 10, size, size, &b->model);
    if (status != CR_OK) cr_config_close(&b->config);
    return status;
}

static inline void bench_close(struct bench_model *b) {
    cr_model_close(&b->model);
    cr_config_close(&b->config);
}

static inline struct cr_rng test_rng(uint64_t number) { return cr_rng_make(number, CR_RNG_TEST, 0, 0); }

/* In [low, high]. */
static inline int64_t draw(struct cr_rng *rng, int64_t low, int64_t high) {
    return low + (int64_t)cr_rng_below(rng, (uint64_t)(high - low + 1));
}

/* Accepts everything; asks for scratch memory for convolutions, more for their gradients. */
static inline cr_status greedy_select(void *self, const struct cr_program *p, const struct cr_op *op, int *row, size_t *workspace) {
    (void)self;
    *row       = (int)op->kind;
    *workspace = 0;
    if (op->kind == CR_OP_conv) *workspace = p->tensor[op->in[CR_IN_conv_x]].bytes / 2 + 1000;
    if (op->kind == CR_OP_conv_wgrad) *workspace = p->tensor[op->in[CR_IN_conv_wgrad_x]].bytes + 1000;
    return CR_OK;
}
static inline struct cr_target greedy_target(size_t alignment) {
    return (struct cr_target){.alignment = alignment, .bytes_per_s = 1e10, .flops_per_s = 1e11, .select = greedy_select};
}

#endif
