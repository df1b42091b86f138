/* runtime/executor_poison.c: the work that tests add to a run: fills of dead tensors and delays of ops. Tests enable it
 * with tests/harness/executor_poison.h. */
#include "runtime/executor_internal.h"

enum { DELAY_MAX_NS = 50 * 1000, DELAY_ONE_IN = 4 };

cr_status cr_exec_fill_at(struct cr_exec *exec, int op, bool after_launch) {
    struct cr_device *device = cr_exec_device(exec);
    for (int i = 0; exec->fill && i < exec->fills && exec->fill[i].op <= op; i++) {
        const struct cr_fill *f = &exec->fill[i];
        if (f->op != op || f->after_launch != after_launch) continue;
        unsigned char *to    = (unsigned char *)exec->memory->region[CR_REGION_POOL] + f->begin;
        const size_t   bytes = f->end - f->begin;
        CR_TRY(cr_exec_async(exec) ? cr_exec_async(exec)->fill(device, CR_STREAM_COMPUTE, to, CR_POISON_BYTE, bytes)
                                   : device->backend->put(device, to, exec->poison, bytes));
    }
    return CR_OK;
}

cr_status cr_exec_delay(struct cr_exec *exec, enum cr_stream stream) {
    if (!exec->jitter || cr_rng_below(&exec->jitter_rng, DELAY_ONE_IN)) return CR_OK;
    return cr_exec_async(exec)->delay(cr_exec_device(exec), stream,
                                      (int64_t)cr_rng_below(&exec->jitter_rng, DELAY_MAX_NS + 1));
}
