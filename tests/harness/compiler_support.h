/* tests/harness/compiler_support.h: helpers of the compiler tests: models from config lines, artificial cost models,
 * failing allocations. */
#ifndef CR_TEST_PASSES_HELP_H
#define CR_TEST_PASSES_HELP_H

#include "compiler/intervals.h"
#include "compiler/passes.h"
#include "core/rng.h"
#include "tests/harness/test.h"

struct bench_model { /* a model and its configuration */
    const struct cr_config *config;
    struct cr_model         model;
};

static inline cr_status bench_open(struct bench_model *b, const char *const *overrides, int n, int64_t size) {
    CR_TRY(cr_config_open(&b->config, NULL, overrides, n));
    cr_status status = cr_model_open(b->config, 10, size, size, &b->model);
    if (status != CR_OK) cr_config_close(b->config);
    return status;
}

static inline void bench_close(struct bench_model *b) {
    cr_model_close(&b->model);
    cr_config_close(b->config);
}
OWNABLE(bench_model, struct bench_model, bench_close(x))

static inline struct cr_rng test_rng(uint64_t number) {
    return cr_rng_make(number, CR_RNG_TEST, 0, 0);
}

/* Returns a number in [low, high]. */
static inline int64_t draw(struct cr_rng *rng, int64_t low, int64_t high) {
    return low + (int64_t)cr_rng_below(rng, (uint64_t)(high - low + 1));
}

/* Accepts every op; requests scratch memory for convolutions, and more for their gradients. */
static inline cr_status greedy_select(void *self, const struct cr_program *p, struct cr_op *op, size_t *workspace) {
    op->kernel = (int)op->kind;
    *workspace = 0;
    if (op->kind == CR_OP_conv) *workspace = p->tensor[op->in[CR_IN_conv_x]].bytes / 2 + 1000;
    if (op->kind == CR_OP_conv_wgrad) *workspace = p->tensor[op->in[CR_IN_conv_wgrad_x]].bytes + 1000;
    return CR_OK;
}
static inline struct cr_cost_model greedy_cost_model(size_t alignment) {
    return (struct cr_cost_model){
        .alignment = alignment, .bytes_per_s = 1e10, .flops_per_s = 1e11, .select = greedy_select};
}

static inline size_t aligned(size_t bytes, size_t alignment) {
    return (bytes + alignment - 1) / alignment * alignment;
}

/* Checks all pairs of intervals: quadratic and independent of the planner. */
static inline bool intervals_valid(const struct cr_interval *interval, int n, size_t alignment, size_t peak) {
    for (int i = 0; i < n; i++) {
        if (interval[i].size == 0 || interval[i].lower >= interval[i].upper) continue;
        if (interval[i].offset % alignment || interval[i].offset + interval[i].size > peak) return false;
        for (int k = 0; k < i; k++) {
            bool there = interval[k].size && interval[k].lower < interval[k].upper;
            bool time  = interval[k].lower < interval[i].upper && interval[i].lower < interval[k].upper;
            bool space = interval[k].offset < interval[i].offset + interval[i].size &&
                         interval[i].offset < interval[k].offset + interval[k].size;
            if (there && time && space) return false;
        }
    }
    return true;
}

/* Compiles `step` or `eval` of an architecture; false after a failed check. */
static inline bool compiled(struct bench_model *b, const char *arch, int64_t size, int64_t batch,
                            enum cr_program_kind kind, bool fuse, bool reuse, struct cr_program *p) {
    const char               *overrides[] = {formatted("model.arch=%s", arch)};
    struct cr_cost_model      cost_model  = greedy_cost_model(256);
    struct cr_compile_options options     = {.fuse = fuse, .reuse = reuse};
    cr_status                 status      = bench_open(b, overrides, 1, size);
    if (status == CR_OK) status = cr_model_program(&b->model, b->config, kind, batch, p);
    if (status == CR_OK) status = cr_compile(p, &cost_model, &options);
    CHECK_STATUS(status, CR_OK);
    return status == CR_OK;
}

/* zero -> a; relu: b = a; add: c = b + b; relu: d = c; add: e = c + d (last use of c and d) */
static inline void chain_program(struct cr_program *p, int id[5]) {
    cr_program_init(p, "chain", NULL);
    id[0]          = cr_tensor_add(p, "a", CR_F32, CR_REGION_POOL, 1, 1, 1, 100);
    struct cr_op z = cr_op_make(CR_OP_zero, CR_NONE);
    z.out[0]       = id[0];
    cr_emit(p, &z, "a");
    id[1] = emitted(p, op_on(CR_OP_relu, id[0]), "b");
    id[2] = emitted(p, op_on(CR_OP_add, id[1], id[1]), "c");
    id[3] = emitted(p, op_on(CR_OP_relu, id[2]), "d");
    id[4] = emitted(p, op_on(CR_OP_add, id[2], id[3]), "e");
}

/* Inserts waits, plans memory, checks both; returns the bytes of the pool. */
static inline size_t plan_of(struct cr_program *p) {
    CHECK_STATUS(cr_program_check(p), CR_OK);
    CHECK_STATUS(cr_pass_insert_waits(p), CR_OK);
    CHECK_STATUS(cr_waits_check(p), CR_OK);
    CHECK_STATUS(cr_pass_plan(p, 256, true), CR_OK);
    CHECK_STATUS(cr_plan_check(p, 256), CR_OK);
    CHECK_STATUS(cr_waits_check(p), CR_OK);
    return p->region_bytes[CR_REGION_POOL];
}

#endif
