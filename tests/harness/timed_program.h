/* tests/harness/timed_program.h: programs by hand: ops that read and write tensors of any size and take given seconds.
 * */
#ifndef CR_TEST_TIMED_PROGRAM_H
#define CR_TEST_TIMED_PROGRAM_H

#include "compiler/cost_model.h"

#include <stdio.h>

enum { UNIT = 1 << 20 }; /* bytes that a copy moves in one second */

struct hand {
    struct cr_program p;
    double            seconds[64];
};

/* A copy of b bytes takes b / UNIT seconds; the time of an op is given by hand: its `layer` is its number. */
static inline cr_status hand_cost(void *self, const struct cr_program *p, const struct cr_op *op, double *seconds) {
    const struct hand *h = self;
    *seconds             = h->seconds[op->layer];
    return CR_OK;
}

static inline struct cr_cost_model hand_cost_model(struct hand *h) {
    return (struct cr_cost_model){
        .self = h, .alignment = 256, .cost = hand_cost, .to_host_bytes_per_s = UNIT, .to_device_bytes_per_s = UNIT};
}

static inline int hand_tensor(struct hand *h, const char *name, int units) {
    return cr_tensor_add(&h->p, name, CR_U8, CR_REGION_POOL, 1, 1, units, UNIT);
}

static inline int hand_op(struct hand *h, double seconds, int read0, int read1, int write) {
    struct cr_op op = cr_op_make(
        CR_OP_dense_dgrad, cr_program_layer(&h->p, formatted("op%d", h->p.ops))); /* two inputs, nothing in place */
    op.in[0]             = read0;
    op.in[1]             = read1 >= 0 ? read1 : read0;
    op.out[0]            = write;
    h->seconds[h->p.ops] = seconds;
    return cr_emit(&h->p, &op, "");
}

#endif
