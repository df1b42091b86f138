/* tools/memory-trace/allocators_cuda.c: CUDA's own allocators, measured with the allocations of one step.
 * They are cudaMalloc and cudaFree for each tensor, and the device's default memory pool (cudaMallocAsync). */
#include "cuda/core/cuda_device.h"
#include "tools/memory-trace/allocators.h"

#include <stdlib.h>

struct pool_run {
    struct cr_device *device;
    void            **block;
    size_t            free_before, free_min; /* measured in the warm-up step, which is not timed */
    bool              measures_free;
    cudaStream_t      stream;
    cr_status (*allocate)(struct pool_run *run, void **out, size_t bytes);
    cr_status (*release)(struct pool_run *run, void *block);
};

static cr_status allocate_malloc(struct pool_run *run, void **out, size_t bytes) {
    (void)run;
    CUDA_TRY(cudaMalloc(out, bytes));
    return CR_OK;
}
static cr_status release_malloc(struct pool_run *run, void *block) {
    (void)run;
    CUDA_TRY(cudaFree(block));
    return CR_OK;
}
static cr_status allocate_async(struct pool_run *run, void **out, size_t bytes) {
    CUDA_TRY(cudaMallocAsync(out, bytes, run->stream));
    return CR_OK;
}
static cr_status release_async(struct pool_run *run, void *block) {
    CUDA_TRY(cudaFreeAsync(block, run->stream));
    return CR_OK;
}

static cr_status measure_free(struct pool_run *run) {
    size_t left, total;
    CUDA_TRY(cudaMemGetInfo(&left, &total));
    run->free_min = CR_MIN(run->free_min, left);
    return CR_OK;
}

static cr_status run_step(struct pool_run *run, const struct cr_pool_event *event, int events) {
    for (int i = 0; i < events; i++) {
        void **block = &run->block[event[i].block];
        if (event[i].alloc) {
            CR_TRY(run->allocate(run, block, event[i].bytes));
            if (run->measures_free) CR_TRY(measure_free(run));
        } else {
            void *freed = *block;
            *block      = NULL;
            CR_TRY(run->release(run, freed));
        }
    }
    return CR_OK;
}

static cr_status time_steps(struct pool_run *run, const struct cr_pool_event *event, int events, int steps,
                            struct cr_pool_times *out) {
    cr_status status = CR_OK;
    double   *ms     = cr_alloc((size_t)steps, sizeof *ms);
    size_t    total;
    run->block = cr_alloc((size_t)events + 1, sizeof *run->block);
    if (!ms || !run->block) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for %d requests", events);
    if (cudaMemGetInfo(&run->free_before, &total) != cudaSuccess)
        CR_FAIL_OUT(CR_ERR_DEVICE, "the GPU does not report its free memory");
    run->free_min      = run->free_before;
    run->measures_free = true;
    CR_TRY_OUT(run_step(run, event, events));
    run->measures_free = false;
    for (int s = 0; s < steps; s++) {
        const int64_t start = cr_time_ns();
        CR_TRY_OUT(run_step(run, event, events));
        ms[s] = (double)(cr_time_ns() - start) * 1e-6;
    }
    qsort(ms, (size_t)steps, sizeof *ms, cr_compare_doubles);
    *out = (struct cr_pool_times){.ms = ms[steps / 2], .peak_bytes = run->free_before - run->free_min};
out:
    for (int i = 0; run->block && i < events; i++)
        if (run->block[i]) (void)run->release(run, run->block[i]);
    cr_free(run->block);
    cr_free(ms);
    return status;
}

static cr_status measure_malloc(struct cr_device *device, const struct cr_pool_event *event, int events, int steps,
                                struct cr_pool_times *out) {
    struct pool_run run = {.device = device, .allocate = allocate_malloc, .release = release_malloc};
    return time_steps(&run, event, events, steps, out);
}

/* The pool keeps all memory during the measurement (no release threshold), which is its fastest setting. Afterwards the
 * pool returns all memory. */
static cr_status measure_async(struct cr_device *base, const struct cr_pool_event *event, int events, int steps,
                               struct cr_pool_times *out) {
    struct cuda_device *d      = cuda_of(base);
    const cudaStream_t  stream = d->stream[CR_STREAM_COMPUTE];
    struct pool_run     run = {.device = base, .allocate = allocate_async, .release = release_async, .stream = stream};
    uint64_t            before = 0, all = UINT64_MAX, zero = 0, high = 0;
    cudaMemPool_t       pool;
    CUDA_TRY(cudaDeviceGetDefaultMemPool(&pool, d->index));
    CUDA_TRY(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &before));
    CUDA_TRY(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
    CUDA_TRY(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &zero));
    const cr_status status = time_steps(&run, event, events, steps, out);
    (void)cudaStreamSynchronize(run.stream);
    const cudaError_t error = cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &high);
    (void)cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &before);
    (void)cudaMemPoolTrimTo(pool, 0);
    if (status != CR_OK) return status;
    CUDA_TRY(error);
    out->peak_bytes = high;
    return CR_OK;
}

const struct cr_pool cr_cuda_pools[] = {
    {"cudaMalloc", "cudaMalloc and cudaFree for each tensor", measure_malloc},
    {"cudaMallocAsync", "cudaMallocAsync, the device's default pool, which keeps its memory", measure_async},
    {NULL, NULL, NULL},
};
