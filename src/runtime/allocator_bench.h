/* runtime/allocator_bench.h: what handing out memory while a program runs would cost, beside a plan: a step as a
 * sequence of requests, and what pools make of it. */
#ifndef CR_POOLS_H
#define CR_POOLS_H

#include "compiler/compiler.h"
#include "device/device.h"

/* The requests of one run of a planned program: at each op its new tensors and its workspace are taken, then what dies
 * there is given back; tensors that hand their storage on are one block, and all lives are the planner's. *events is 2
 * * *blocks; cr_free it. */
CR_MUST cr_status cr_pool_events(const struct cr_program *program, size_t alignment, struct cr_pool_event **event,
                                 int *events);
/* Largest sum of what is taken at one time, each block rounded up to whole pieces: what no pool of such pieces can be
 * below. */
size_t cr_pool_load(const struct cr_pool_event *event, int events, size_t piece);
/* The online best-fit pool (compiler/memory/best_fit.h), played on the host as a cr_pool would be. Grown as one piece:
 * a pool that grows by pieces of its own cannot join them and needs more. */
CR_MUST cr_status cr_pool_best_fit(const struct cr_pool_event *event, int events, int steps, struct cr_pool_times *out);

#endif
