/* passes.h: a program becomes a better program. One prototype a pass; between passes a law is checked.
 *
 * Order:  model emits forward -> grad -> (optim emits update) -> fold -> fuse -> hoist -> select -> recompute -> order -> plan
 *   fold    in programs without gradients: BN goes into the filters, and what follows it into the convolution
 *   hoist   in such programs: what depends on parameters only comes first, to be run once for many batches
 *   grad    appends the backward ops: each trainable parameter gets exactly one gradient writer
 *   fuse    joins BN-apply, add and ReLU, and their gradients, where the target accepts the joined op; op indices and
 *           tensor ids change (the program's own references, such as program.logits, are carried along)
 *   select  chooses a kernel row per op and makes its workspace a tensor
 *   recompute  where the pool has a limit: cheap tensors are dropped and made again
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

/* What computing tensors twice came to. */
struct cr_fit_report {
    size_t before, after; /* largest sum of live bytes */
    int    repeated;      /* ops that run twice */
    double seconds;       /* what they cost, by the target's costs */
};
/* Everything after emission, in order, with its checks. `fuse`, `reuse`: from the config. `until` names the last pass to
 * run ("grad" ... "plan"); NULL: all. The program's name decides what is kept: see cr_pass_grad's caller in model.h. */
struct cr_compile_options {
    bool        fuse, reuse;
    size_t      pool_limit; /* bytes that the pool shall not pass, by computing tensors twice; 0: none. Who asks looks whether it did */
    const char *until;
    struct cr_fit_report *report; /* of the limit; may be NULL */
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
/* Computes tensors twice until no more than `limit` bytes are live at any op, or nothing is left to gain (after > limit then).
 * The program must be selected: repeated ops keep their row and way, so results are the same to the bit. */
CR_MUST cr_status cr_pass_recompute(struct cr_program *program, const struct cr_target *target, size_t limit,
                                    struct cr_fit_report *report);
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

/* As cr_plan_lives, and where that stays above the bound (or the capacity) a search for a better plan; never a worse one. With
 * one budget of visits and no time limit equal inputs give equal plans. */
struct cr_plan_effort {
    size_t  alignment;
    size_t  capacity; /* bytes that are low enough; 0: as low as it goes */
    int64_t visits;   /* how much is looked at, about 2 ns each; <= 0: no search */
    int64_t limit_ns; /* INT64_MAX: none */
};
struct cr_plan_found {
    size_t peak, greedy; /* of the plan; of greedy alone */
    size_t bound, least; /* the largest load; no plan is lower, as far as the search has proved */
};
CR_MUST cr_status cr_plan_search(struct cr_life *life, int count, const struct cr_plan_effort *effort,
                                 struct cr_plan_found *found);

#endif
