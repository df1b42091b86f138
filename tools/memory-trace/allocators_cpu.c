/* tools/memory-trace/allocators_cpu.c: replays the requests of a step with the allocator of the C library. */
#include "tools/memory-trace/allocators.h"

#include <stdlib.h>

static cr_status replay_step(const struct cr_pool_event *event, int events, void **block) {
    for (int i = 0; i < events; i++) {
        void **b = &block[event[i].block];
        if (event[i].alloc) {
            *b = cr_alloc(event[i].bytes, 1);
            if (!*b) return CR_NO_MEMORY(event[i].bytes);
        } else {
            cr_free(*b);
            *b = NULL;
        }
    }
    return CR_OK;
}

static cr_status replay_calloc(struct cr_device *device, const struct cr_pool_event *event, int events, int steps,
                               struct cr_pool_times *out) {
    cr_status status = CR_OK;
    void    **block  = cr_alloc((size_t)events + 1, sizeof *block);
    int64_t  *ns     = cr_alloc((size_t)steps + 1, sizeof *ns);
    (void)device;
    if (!block || !ns) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for %d requests", events);
    for (int s = 0; s <= steps; s++) { /* the first is a warm-up */
        const int64_t start = cr_time_ns();
        CR_TRY_OUT(replay_step(event, events, block));
        ns[s] = cr_time_ns() - start;
    }
    qsort(ns + 1, (size_t)steps, sizeof *ns, cr_compare_i64);
    *out = (struct cr_pool_times){.ms = (double)ns[1 + steps / 2] * 1e-6};
out:
    for (int i = 0; block && i < events; i++) cr_free(block[i]);
    cr_free(block);
    cr_free(ns);
    return status;
}

const struct cr_pool cr_cpu_pools[] = {
    {"calloc", "C library: calloc and free for each tensor; calloc clears the memory", replay_calloc},
    {NULL, NULL, NULL}};

const struct cr_pool *cr_pools_of(const struct cr_device *device) {
#ifdef CR_TOOL_WITH_CUDA
    if (!device->caps.host_memory) return cr_cuda_pools;
#endif
    (void)device;
    return cr_cpu_pools;
}
