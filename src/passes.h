/* passes.h: a program becomes a better program. One prototype a pass; between passes a law is checked.
 *
 * Order:  model emits forward -> grad -> (optim emits update) -> fold -> fuse -> hoist -> select -> order -> plan
 *   fold    in programs without gradients: BN goes into the filters, and what follows it into the convolution
 *   hoist   in such programs: what depends on parameters only comes first, to be run once for many batches
 *   grad    appends the backward ops: each trainable parameter gets exactly one gradient writer
 *   fuse    joins BN-apply, add and ReLU, and their gradients, where the target accepts the joined op; op indices and
 *           tensor ids change (the program's own references, such as program.logits, are carried along)
 *   select  chooses a kernel row per op and makes its workspace a tensor
 *   order   adds the waits between lanes that every hazard needs
 *   plan    gives every POOL tensor an offset; sets region_bytes[POOL] (the peak) and bound_bytes
 * Proofs, which share no code with what they check: cr_program_check, cr_order_check, cr_plan_check.
 * Passes see a device only as a cr_target, so that tests can hand them an invented one. */
#ifndef CR_PASSES_H
#define CR_PASSES_H

#include "graph.h"

struct cr_target {
    void  *self;
    size_t alignment;
    double bytes_per_s, flops_per_s; /* roofline cost */
    /* Does a row exist for this op? NULL: everything is accepted. */
    bool (*accepts)(void *self, const struct cr_program *program, const struct cr_op *op);
    /* Best row for the op, and the workspace bytes it wants. NULL: row 0, no workspace. CR_ERR_DEVICE when there is none;
     * the message names op, layer, shapes and type. */
    cr_status (*select)(void *self, const struct cr_program *program, struct cr_op *op, size_t *workspace); /* sets row, way */
    /* Seconds that the best row takes for an op that it accepts: measured, or known from before. The op need not be in the
     * program, but its tensors are. NULL: the roofline (cr_op_seconds). */
    cr_status (*cost)(void *self, const struct cr_program *program, const struct cr_op *op, double *seconds);
};

/* Everything after emission, in order, with its checks. `fuse`, `reuse`: from the config. `until` names the last pass to
 * run ("grad" ... "plan"); NULL: all. The program's name decides what is kept: see cr_pass_grad's caller in model.h. */
struct cr_compile_options {
    bool        fuse, reuse;
    const char *until;
};
CR_MUST cr_status cr_compile(struct cr_program *program, const struct cr_target *target, const struct cr_compile_options *options);
/* Roofline time of an op on the target: the longer of moving its bytes and doing its arithmetic. For printing. */
double cr_op_seconds(const struct cr_target *target, const struct cr_program *program, const struct cr_op *op);

/* Appends the gradient of everything in the program that leads from a trainable parameter to the op `loss` (index).
 * accumulate: gradient writers add instead of assigning. weight: 1/accumulate. */
CR_MUST cr_status cr_pass_grad(struct cr_program *program, int loss_op, bool accumulate, float weight, float smoothing);
CR_MUST cr_status cr_pass_fuse(struct cr_program *program, const struct cr_target *target);
CR_MUST cr_status cr_pass_fold(struct cr_program *program, const struct cr_target *target);
CR_MUST cr_status cr_pass_hoist(struct cr_program *program);
CR_MUST cr_status cr_pass_select(struct cr_program *program, const struct cr_target *target);
CR_MUST cr_status cr_pass_order(struct cr_program *program);
/* reuse = false: every tensor gets memory of its own and nothing is taken over in place (the oracle of the planner). */
CR_MUST cr_status cr_pass_plan(struct cr_program *program, size_t alignment, bool reuse);

/* Replays the list with a vector clock per lane: every two conflicting accesses (same region, overlapping bytes, at least
 * one a write) must be ordered. The message names both ops and the tensor. */
CR_MUST cr_status cr_order_check(const struct cr_program *program);
/* No two live tensors overlap, all inside the region, aligned; an alias takes over a tensor that dies there. */
CR_MUST cr_status cr_plan_check(const struct cr_program *program, size_t alignment);

/* The bytes of the pool that hold nothing when op `op` starts (op = program.ops: when the program has ended), sorted and
 * disjoint: poison there must not change any result. Outputs of the op count as nothing unless they take over an input.
 * `range` needs room for program.tensors + 1; returns how many were put. The program must be planned. */
struct cr_range {
    size_t begin, end;
};
int cr_plan_dead_ranges(const struct cr_program *program, int op, struct cr_range *range);

/* The planner's core, free of programs: lives [lower, upper) half open, sizes in bytes, offsets out. Greedy by size with
 * best gap, several orders tried, the best kept and improved. *peak gets the bytes needed; *bound the largest sum of live
 * sizes (each rounded up to the alignment), below which no plan exists. Empty lives and sizes get offset 0. */
struct cr_life {
    int64_t lower, upper;
    size_t  size;
    size_t  offset; /* out */
};
CR_MUST cr_status cr_plan_lives(struct cr_life *life, int count, size_t alignment, size_t *peak, size_t *bound);
CR_MUST cr_status cr_plan_bound(const struct cr_life *life, int count, size_t alignment, size_t *bound);

#endif
