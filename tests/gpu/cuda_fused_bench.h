/* tests/gpu/cuda_fused_bench.h: an op of cuDNN with its tensors in device memory, for test_cuda_fused.c. */
#ifndef CR_TEST_CUDA_FUSED_BENCH_H
#define CR_TEST_CUDA_FUSED_BENCH_H

#include "core/rng.h"
#include "device/kernel.h"
#include "tests/harness/conv_cases.h"
#include "tests/harness/test_gpu.h"

enum { GUARD = 512, GUARD_BYTE = 0xA5 };

struct bench {
    struct alone            a;
    struct cr_device       *device;
    char                   *region, *workspace;
    size_t                  at[32], bytes, workspace_bytes;
    double                 *host[32]; /* host copy: inputs before the run, results after it */
    struct cr_call          call;
    const struct cr_kernel *kernel;
};

static inline size_t aligned_up(size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

static inline const struct cr_kernel *find_row(struct cr_device *device, const struct alone *a) {
    for (const struct cr_kernel *const *kernel = device->kernels; *kernel; kernel++)
        if ((*kernel)->op == a->op.kind && strncmp((*kernel)->name, "cudnn.", 6) == 0 &&
            (*kernel)->accepts(device, &a->p, &a->op))
            return *kernel;
    return NULL;
}

/* A guard follows every tensor; `in_place`: the output uses the storage of `add`, which comes later in the program
 * and is written later. */
static inline void place_tensors(struct bench *b, bool in_place) {
    b->bytes = 0;
    for (int t = 0; t < b->a.p.tensors; t++) {
        b->at[t] = b->bytes;
        b->bytes += aligned_up(b->a.p.tensor[t].bytes) + GUARD;
    }
    const int out = b->a.op.out[0];
    const int add = b->a.op.in[b->a.op.kind == CR_OP_conv ? (int)CR_IN_conv_add : (int)CR_IN_conv_dgrad_add];
    if (in_place && b->a.op.kind != CR_OP_conv_wgrad && add >= 0) b->at[out] = b->at[add];
}

static inline void fill_host(struct bench *b, uint64_t seed) {
    for (int t = 0; t < b->a.p.tensors; t++) {
        const struct cr_tensor *v   = &b->a.p.tensor[t];
        struct cr_rng           rng = cr_rng_make(seed, CR_RNG_TEST, (uint64_t)t, 0);
        const bool              dw  = b->a.op.kind == CR_OP_conv_wgrad && t == b->a.op.out[CR_OUT_conv_wgrad_dw];
        b->host[t]                  = cr_alloc((size_t)cr_tensor_elems(v), sizeof(double));
        for (int64_t i = 0; b->host[t] && i < cr_tensor_elems(v); i++) {
            double x = cr_rng_real(&rng) * 2 - 1;
            if (strcmp(v->name, "w") == 0 && !dw) x *= 0.5;
            if (strcmp(v->name, "mean_rstd") == 0 && i >= v->dim[3]) x = 0.75 + 0.5 * x; /* rstd is positive */
            char cell[16];
            cr_number_store(v->dtype, cell, 0, x);
            b->host[t][i] = cr_number_load(v->dtype, cell, 0);
        }
    }
}

static inline cr_status move_tensors(struct bench *b, bool to_device) {
    for (int t = 0; t < b->a.p.tensors; t++) {
        const struct cr_tensor *v    = &b->a.p.tensor[t];
        char                   *copy = cr_alloc(v->bytes, 1);
        if (!copy) return CR_NO_MEMORY(v->bytes);
        cr_status status = CR_OK;
        if (to_device) {
            for (int64_t i = 0; i < cr_tensor_elems(v); i++) cr_number_store(v->dtype, copy, i, b->host[t][i]);
            status = b->device->backend->put(b->device, b->region + b->at[t], copy, v->bytes);
        } else {
            status = b->device->backend->get(b->device, copy, b->region + b->at[t], v->bytes);
            for (int64_t i = 0; i < cr_tensor_elems(v); i++) b->host[t][i] = cr_number_load(v->dtype, copy, i);
        }
        cr_free(copy);
        if (status != CR_OK) return status;
    }
    return CR_OK;
}

static inline cr_status put_guards(struct bench *b) {
    char bytes[GUARD];
    memset(bytes, GUARD_BYTE, sizeof bytes);
    for (int t = 0; t < b->a.p.tensors; t++)
        CR_TRY(b->device->backend->put(b->device, b->region + b->at[t] + aligned_up(b->a.p.tensor[t].bytes), bytes,
                                       GUARD));
    return CR_OK;
}

static inline bool guards_stand(struct bench *b) {
    for (int t = 0; t < b->a.p.tensors; t++) {
        unsigned char bytes[GUARD];
        if (b->device->backend->get(b->device, bytes, b->region + b->at[t] + aligned_up(b->a.p.tensor[t].bytes),
                                    GUARD) != CR_OK)
            return false;
        for (int i = 0; i < GUARD; i++)
            if (bytes[i] != GUARD_BYTE) return false;
    }
    return true;
}

static inline void bind_call(struct bench *b) {
    b->call = (struct cr_call){.program = &b->a.p, .op = &b->a.op};
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        if (b->a.op.in[s] >= 0) b->call.in[s] = b->region + b->at[b->a.op.in[s]];
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (b->a.op.out[s] >= 0) b->call.out[s] = b->region + b->at[b->a.op.out[s]];
}

/* Prepares algorithm `algo` and runs it once; the workspace begins as NaN bytes. */
static inline cr_status run_algo(struct bench *b, int algo) {
    const struct cr_backend *backend = b->device->backend;
    char                     poison[1024];
    b->a.op.algo = algo;
    bind_call(b);
    CR_TRY(cr_kernel_prepare(b->device, b->kernel, &b->a.p, &b->a.op, &b->call.prepared, &b->workspace_bytes));
    void     *workspace = NULL;
    cr_status status    = backend->reserve(b->device, b->workspace_bytes + sizeof poison, &workspace);
    memset(poison, 0xFF, sizeof poison);
    for (size_t at = 0; status == CR_OK && at < CR_MIN(b->workspace_bytes, (size_t)1 << 16); at += sizeof poison)
        status = backend->put(b->device, (char *)workspace + at, poison, sizeof poison);
    b->call.workspace = workspace;
    if (status == CR_OK) status = b->kernel->launch(b->device, &b->call);
    if (status == CR_OK) status = backend->sync(b->device);
    if (workspace) backend->release(b->device, workspace);
    cr_kernel_release(b->kernel, b->call.prepared);
    b->call.prepared = NULL;
    return status;
}

static inline void bench_close(struct bench *b) {
    for (size_t t = 0; t < CR_COUNT(b->host); t++) cr_free(b->host[t]);
    if (b->region) b->device->backend->release(b->device, b->region);
    alone_close(&b->a);
}

#endif
