/* harness/tiny_op.h: one op on tensors of a few elements, and what the verifier says about its results. */
#ifndef TINY_OP_H
#define TINY_OP_H

#include "tests/harness/test.h"
#include "verification/verify.h"

struct tiny { /* an op on tensors of at most 64 elements of 4 bytes */
    struct cr_device     *cpu;
    struct cr_param_store store;
    struct cr_program     p;
    struct cr_op          op;
    struct cr_verify_io   io;
    double                in[CR_OP_IN_MAX][32], out[CR_OP_OUT_MAX][32], before[32];
};

static inline void tiny_close(struct tiny *t) {
    cr_program_free(&t->p);
    cr_device_close(t->cpu);
}
OWNABLE(tiny, struct tiny, tiny_close(x))

static inline void tiny_open(struct tiny *t, enum cr_op_kind kind, enum cr_dtype real) {
    const struct cr_device_options options = {.threads = 1, .ref_only = true};
    tiny_close(t);
    *t = (struct tiny){.op = cr_op_make(kind, CR_NONE)};
    if (cr_device_open(CR_DEVICE_CPU, &options, &t->cpu) != CR_OK) TEST_FAIL_("%s", cr_error_message());
    cr_program_init(&t->p, "tiny", &t->store);
    t->p.real = real;
}

static inline void tiny_put(struct tiny *t, int slot, enum cr_dtype dtype, int64_t rows, int64_t C,
                            const double *values) {
    t->op.in[slot] = cr_tensor_add(&t->p, cr_op_info(t->op.kind)->in_name[slot], dtype, CR_REGION_POOL, rows, 1, 1, C);
    for (int64_t i = 0; i < rows * C; i++) cr_number_store(dtype, t->in[slot], i, values[i]);
    t->io.in[slot] = t->in[slot];
}
#define PUT(t, slot, dtype, rows, C, ...) tiny_put(t, slot, dtype, rows, C, (const double[]){__VA_ARGS__})
static inline void tiny_emit(struct tiny *t) {
    cr_emit(&t->p, &t->op, "y");
}

/* The verdict when element `i` of output `slot` is `got` and all others are as they are. */
static inline struct cr_verify_result tiny_try(struct tiny *t, enum cr_math math, int slot, int64_t i, double got) {
    const struct cr_op        *op   = &t->p.op[0];
    const struct cr_step_block step = {0};
    const void                *outs[CR_OP_OUT_MAX];
    struct cr_verify_result    r     = {0};
    const enum cr_dtype        dtype = t->p.tensor[op->out[slot]].dtype;
    for (int s = 0; s < CR_OP_OUT_MAX; s++) outs[s] = t->out[s];
    const double old = cr_number_load(dtype, t->out[slot], i);
    cr_number_store(dtype, t->out[slot], i, got);
    if (cr_verify_op(t->cpu, &t->p, op, math, &step, &t->io, outs, &r) != CR_OK) TEST_FAIL_("%s", cr_error_message());
    cr_number_store(dtype, t->out[slot], i, old);
    return r;
}

/* Fills the outputs with the results of the reference kernel. */
static inline void tiny_run(struct tiny *t) {
    const struct cr_op     *op     = &t->p.op[0];
    const struct cr_kernel *kernel = cr_verify_ref(t->cpu, op->kind);
    double                  scratch[64];
    struct cr_call          call = {.program = &t->p, .op = op, .workspace = scratch};
    for (int s = 0; s < CR_OP_IN_MAX; s++) call.in[s] = t->io.in[s];
    for (int s = 0; s < CR_OP_OUT_MAX; s++) call.out[s] = op->out[s] >= 0 ? t->out[s] : NULL;
    if (kernel->launch(t->cpu, &call) != CR_OK) TEST_FAIL_("%s", cr_error_message());
}

#endif
