/* cuda/core/allocators.c: CUDA's own allocators, measured with the allocations of one step.
 * They are cudaMalloc and cudaFree for each tensor, and the device's default memory pool (cudaMallocAsync). */
#include "cuda/core/cuda_device.h"

#include <stdlib.h>

static int compare_ms(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct play {
    struct cr_device *device;
    void            **block;
    size_t            free_before, free_least; /* measured in the warm-up step, which is not timed */
    bool              look;
    cudaStream_t      stream;
    cr_status (*take)(struct play *play, void **out, size_t bytes);
    cr_status (*give)(struct play *play, void *block);
};

static cr_status take_malloc(struct play *play, void **out, size_t bytes) {
    (void)play;
    CUDA_TRY(cudaMalloc(out, bytes));
    return CR_OK;
}
static cr_status give_malloc(struct play *play, void *block) {
    (void)play;
    CUDA_TRY(cudaFree(block));
    return CR_OK;
}
static cr_status take_async(struct play *play, void **out, size_t bytes) {
    CUDA_TRY(cudaMallocAsync(out, bytes, play->stream));
    return CR_OK;
}
static cr_status give_async(struct play *play, void *block) {
    CUDA_TRY(cudaFreeAsync(block, play->stream));
    return CR_OK;
}

static cr_status look(struct play *play) {
    size_t left, total;
    CUDA_TRY(cudaMemGetInfo(&left, &total));
    play->free_least = CR_MIN(play->free_least, left);
    return CR_OK;
}

static cr_status play_step(struct play *play, const struct cr_pool_event *event, int events) {
    for (int i = 0; i < events; i++) {
        void **block = &play->block[event[i].block];
        if (event[i].alloc) {
            CR_TRY(play->take(play, block, event[i].bytes));
            if (play->look) CR_TRY(look(play));
        } else {
            void *gone = *block;
            *block     = NULL;
            CR_TRY(play->give(play, gone));
        }
    }
    return CR_OK;
}

static cr_status time_steps(struct play *play, const struct cr_pool_event *event, int events, int steps,
                            struct cr_pool_times *out) {
    cr_status status = CR_OK;
    double   *ms     = cr_alloc((size_t)steps, sizeof *ms);
    size_t    total;
    play->block = cr_alloc((size_t)events + 1, sizeof *play->block);
    if (!ms || !play->block) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for %d requests", events);
    if (cudaMemGetInfo(&play->free_before, &total) != cudaSuccess)
        CR_FAIL_OUT(CR_ERR_DEVICE, "the GPU does not tell its free memory");
    play->free_least = play->free_before;
    play->look       = true;
    CR_TRY_OUT(play_step(play, event, events));
    play->look = false;
    for (int s = 0; s < steps; s++) {
        const int64_t start = cr_time_ns();
        CR_TRY_OUT(play_step(play, event, events));
        ms[s] = (double)(cr_time_ns() - start) * 1e-6;
    }
    qsort(ms, (size_t)steps, sizeof *ms, compare_ms);
    *out = (struct cr_pool_times){.ms = ms[steps / 2], .peak_bytes = play->free_before - play->free_least};
out:
    for (int i = 0; play->block && i < events; i++)
        if (play->block[i]) (void)play->give(play, play->block[i]);
    cr_free(play->block);
    cr_free(ms);
    return status;
}

static cr_status play_malloc(struct cr_device *device, const struct cr_pool_event *event, int events, int steps,
                             struct cr_pool_times *out) {
    struct play play = {.device = device, .take = take_malloc, .give = give_malloc};
    return time_steps(&play, event, events, steps, out);
}

/* The pool keeps all memory during the measurement (no release threshold), which is its fastest setting. Afterwards the
 * pool returns all memory. */
static cr_status play_async(struct cr_device *base, const struct cr_pool_event *event, int events, int steps,
                            struct cr_pool_times *out) {
    struct cuda_device *d = cuda_of(base);
    struct play play = {.device = base, .take = take_async, .give = give_async, .stream = d->stream[CR_STREAM_COMPUTE]};
    uint64_t    before = 0, all = UINT64_MAX, zero = 0, high = 0;
    cudaMemPool_t pool;
    CUDA_TRY(cudaDeviceGetDefaultMemPool(&pool, d->index));
    CUDA_TRY(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &before));
    CUDA_TRY(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
    CUDA_TRY(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &zero));
    const cr_status status = time_steps(&play, event, events, steps, out);
    (void)cudaStreamSynchronize(play.stream);
    const cudaError_t error = cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &high);
    (void)cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &before);
    (void)cudaMemPoolTrimTo(pool, 0);
    if (status != CR_OK) return status;
    CUDA_TRY(error);
    out->peak_bytes = high;
    return CR_OK;
}

const struct cr_pool cr_cuda_pools[] = {
    {"cudaMalloc", "cudaMalloc and cudaFree for each tensor", play_malloc},
    {"cudaMallocAsync", "cudaMallocAsync, the device's default pool, which keeps its memory", play_async},
    {NULL, NULL, NULL},
};
