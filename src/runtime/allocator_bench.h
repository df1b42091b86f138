/* runtime/allocator_bench.h: compares planned memory with dynamic allocation: turns a program into a sequence of
 * requests and replays the requests with an allocator. */
#ifndef CR_ALLOCATOR_BENCH_H
#define CR_ALLOCATOR_BENCH_H

#include "device/benchmarks.h"

/* Returns the requests of one run of a planned program. At each op the tensors whose lifetime begins there are
 * allocated (including the workspace), then the tensors whose lifetime ends there are freed. Tensors that share their
 * storage are one block. Lifetimes are those of the planner. *events is twice the number of blocks. The caller frees
 * *event with cr_free. */
CR_MUST cr_status cr_pool_events(const struct cr_program *program, size_t alignment, struct cr_pool_event **event,
                                 int *events);
/* Returns the largest sum of the sizes of allocated blocks, each rounded up to a multiple of `piece` bytes. This is a
 * lower bound of the memory of every allocator with that granularity. */
size_t cr_pool_load(const struct cr_pool_event *event, int events, size_t piece);
/* Replays the requests with the online best-fit allocator (compiler/memory/best_fit.h) on the host. Its memory is one
 * growing piece; an allocator that grows by separate pieces cannot merge them and needs more. */
CR_MUST cr_status cr_pool_best_fit(const struct cr_pool_event *event, int events, int steps, struct cr_pool_times *out);

#endif
