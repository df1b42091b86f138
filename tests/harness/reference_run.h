/* tests/harness/reference_run.h: runs a program op by op on the reference kernels, with separate memory for each
 * tensor. Independent of the executor and the memory planner. */
#ifndef CR_TEST_REF_RUN_H
#define CR_TEST_REF_RUN_H

#include "core/rng.h"
#include "tests/harness/test.h"

struct ref_run {
    struct cr_param_store store;
    struct cr_program     p;
    struct cr_device     *device;
    struct cr_step_block  step;
    char                 *region; /* the parameter store */
    void                **own;    /* by tensor: its memory when it is not in the parameter store */
};

/* `real` is the type of activations and parameters. After ref_open, build run->p (and run->store), then call
 * ref_bind. */
static inline cr_status ref_open(struct ref_run *run, enum cr_dtype real, int threads) {
    const struct cr_device_options options = {.threads = threads, .ref_only = true};
    *run                                   = (struct ref_run){.store = {.real = real, .has_momentum = true}};
    cr_program_init(&run->p, "test", &run->store);
    run->p.real = real;
    return cr_device_open(CR_DEVICE_CPU, &options, &run->device);
}

static inline cr_status ref_bind(struct ref_run *run) {
    if (run->p.failed || run->store.failed) return CR_NO_MEMORY(0);
    void *region;
    CR_TRY(run->device->backend->reserve(run->device, cr_param_store_bytes(&run->store), &region));
    run->region = region;
    CR_ALLOC(run->own, (size_t)run->p.tensors);
    for (int t = 0; t < run->p.tensors; t++) {
        if (run->p.tensor[t].region == CR_REGION_STORE) continue;
        run->own[t] = cr_alloc(run->p.tensor[t].bytes, 1);
        if (!run->own[t]) return CR_NO_MEMORY(run->p.tensor[t].bytes);
    }
    double *state = (double *)(void *)(run->region + cr_param_store_buffer_offset(&run->store, CR_BUFFER_STATE));
    state[CR_STATE_LOSS_SCALE] = 1;
    return CR_OK;
}

static inline void ref_close(struct ref_run *run) {
    for (int t = 0; run->own && t < run->p.tensors; t++) cr_free(run->own[t]);
    cr_free(run->own);
    if (run->region) run->device->backend->release(run->device, run->region);
    cr_program_free(&run->p);
    cr_param_store_free(&run->store);
    cr_device_close(run->device);
}
OWNABLE(ref_run, struct ref_run, ref_close(x))

static inline void *ref_data(const struct ref_run *run, int tensor) {
    return run->own[tensor] ? run->own[tensor] : run->region + run->p.tensor[tensor].offset;
}

static inline cr_status ref_launch(struct ref_run *run, const struct cr_kernel *kernel, struct cr_call *call) {
    size_t    bytes  = 0;
    cr_status status = CR_OK;
    CR_TRY(cr_kernel_prepare(run->device, kernel, &run->p, call->op, &call->prepared, &bytes));
    if (bytes) call->workspace = cr_alloc(bytes, 1);
    if (bytes && !call->workspace) status = CR_NO_MEMORY(bytes);
    if (status == CR_OK) status = kernel->launch(run->device, call);
    cr_free(call->workspace);
    cr_kernel_release(kernel, call->prepared);
    return status;
}

/* Runs ops [first, last). */
static inline cr_status ref_exec(struct ref_run *run, int first, int last) {
    for (int i = first; i < last; i++) {
        const struct cr_op     *op   = &run->p.op[i];
        struct cr_call          call = {.program = &run->p, .op = op, .step = &run->step};
        int                     index;
        const struct cr_kernel *kernel = cr_kernel_find(run->device, &run->p, op, 0, &index);
        if (!kernel) return CR_FAIL(CR_ERR_DEVICE, "no row for %s", cr_op_info(op->kind)->name);
        for (int s = 0; s < CR_OP_IN_MAX; s++) call.in[s] = op->in[s] >= 0 ? ref_data(run, op->in[s]) : NULL;
        for (int s = 0; s < CR_OP_OUT_MAX; s++) call.out[s] = op->out[s] >= 0 ? ref_data(run, op->out[s]) : NULL;
        CR_TRY(ref_launch(run, kernel, &call));
    }
    return CR_OK;
}

static inline double ref_at(const struct ref_run *run, int tensor, int64_t i) {
    const void *data = ref_data(run, tensor);
    switch (run->p.tensor[tensor].dtype) {
    case CR_F32: return (double)((const float *)data)[i];
    case CR_F64: return ((const double *)data)[i];
    case CR_I32: return ((const int32_t *)data)[i];
    case CR_U8: return ((const uint8_t *)data)[i];
    default: return NAN;
    }
}

static inline void ref_set(struct ref_run *run, int tensor, int64_t i, double x) {
    void *data = ref_data(run, tensor);
    switch (run->p.tensor[tensor].dtype) {
    case CR_F32: ((float *)data)[i] = (float)x; break;
    case CR_F64: ((double *)data)[i] = x; break;
    case CR_I32: ((int32_t *)data)[i] = (int32_t)x; break;
    case CR_U8: ((uint8_t *)data)[i] = (uint8_t)x; break;
    default: break;
    }
}

/* Fills a tensor with centre + spread * normal. */
static inline void ref_fill(struct ref_run *run, int tensor, double centre, double spread) {
    struct cr_rng rng = cr_rng_make(7, CR_RNG_TEST, (uint64_t)tensor, 0);
    for (int64_t i = 0; i < cr_tensor_elems(&run->p.tensor[tensor]); i++)
        ref_set(run, tensor, i, centre + spread * (double)cr_rng_normal(&rng));
}

/* A tensor that the test fills. */
static inline int ref_leaf(struct ref_run *run, const char *name, int64_t a, int64_t b, int64_t c, int64_t d) {
    return cr_tensor_add(&run->p, name, run->p.real, CR_REGION_POOL, a, b, c, d);
}

/* A leaf of one value per channel, named part.name. */
static inline int ref_named_leaf(struct ref_run *run, const char *part, const char *name, int64_t C) {
    return ref_leaf(run, formatted("%s.%s", part, name), 1, 1, 1, C);
}

/* Appends the op and returns its output of the given slot. */
static inline int ref_emit_slot(struct ref_run *run, const struct cr_op *op, const char *name, int slot) {
    int index = cr_emit(&run->p, op, name); /* a separate statement: it may reallocate run->p.op */
    return run->p.failed ? 0 : run->p.op[index].out[slot];
}
static inline int ref_emit(struct ref_run *run, const struct cr_op *op, const char *name) {
    return ref_emit_slot(run, op, name, 0);
}

#endif
