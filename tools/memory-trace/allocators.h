/* tools/memory-trace/allocators.h: compares planned memory with dynamic allocation: turns a program into a sequence of
 * requests, and replays the requests with an allocator. */
#ifndef CR_ALLOCATORS_H
#define CR_ALLOCATORS_H

#include "device/device.h"

/* One request to a dynamic allocator. */
struct cr_pool_event {
    int    block; /* number of the block; each block is allocated once and then freed once */
    bool   alloc; /* true: allocate; false: free */
    size_t bytes; /* size of the block, at least 1 */
};
struct cr_pool_times {
    double ms;         /* milliseconds for all requests of one step: the median over the steps */
    size_t peak_bytes; /* most device memory that the allocator held; 0 when the device does not report it */
};
/* A dynamic allocator of a device. */
struct cr_pool {
    const char *name, *what; /* a word, and a sentence for people; a list ends with name NULL */
    /* Replays the requests of one step `steps` times after one warm-up step. It only allocates and frees; it launches
     * nothing. CR_ERR_MEMORY when a request fails. */
    cr_status (*measure)(struct cr_device *device, const struct cr_pool_event *event, int events, int steps,
                         struct cr_pool_times *out);
};
extern const struct cr_pool cr_cpu_pools[];  /* tools/memory-trace/allocators_cpu.c */
extern const struct cr_pool cr_cuda_pools[]; /* tools/memory-trace/allocators_cuda.c, in builds with CUDA */
/* The allocators of a device. */
const struct cr_pool *cr_pools_of(const struct cr_device *device);

/* Returns the requests of one run of a planned program. At each op the tensors whose lifetime begins there are
 * allocated (including the workspace), then the tensors whose lifetime ends there are freed. Tensors that share their
 * storage are one block. Lifetimes are those of the planner. *events is twice the number of blocks. The caller frees
 * *event with cr_free. */
CR_MUST cr_status cr_pool_events(const struct cr_program *program, size_t alignment, struct cr_pool_event **event,
                                 int *events);
/* Returns the largest sum of the sizes of allocated blocks, each rounded up to a multiple of `piece` bytes. This is a
 * lower bound of the memory of every allocator with that granularity. */
size_t cr_pool_load(const struct cr_pool_event *event, int events, size_t piece);
/* Replays the requests with the online best-fit allocator (tools/memory-trace/trace/best_fit.h) on the host. Its memory
 * is one growing piece; an allocator that grows by separate pieces cannot merge them and needs more. */
CR_MUST cr_status cr_pool_best_fit(const struct cr_pool_event *event, int events, int steps, struct cr_pool_times *out);

#endif
