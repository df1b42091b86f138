/* compiler/compiler.h: a program becomes a better program. One prototype a pass; between passes a law is checked.
 *
 * Order:  model emits forward -> grad -> (optim emits update) -> fold -> fuse -> sparsify -> hoist -> select ->
 * recompute, swap -> buckets
 *         -> order -> plan
 *   fold    in programs without gradients: BN goes into the filters, and what follows it into the convolution
 *   hoist   in such programs: what depends on parameters only comes first, to be run once for many batches
 *   grad    appends the backward ops: each trainable parameter gets exactly one gradient writer
 *   fuse    joins BN-apply, add and ReLU, and their gradients, where the target accepts the joined op; op indices and
 *           tensor ids change (the program's own references, such as program.logits, are carried along)
 *   sparsify  convolutions with pruned filters skip what is pruned, where that is faster
 *   select  chooses a kernel row per op and makes its workspace a tensor
 *   recompute  where the pool has a limit: cheap tensors are dropped and made again
 *   swap    the same: tensors wait in the host's memory for their next use
 *   buckets of several ranks: the gradients are added up in pieces as backward finishes them, on the lane of their own
 *   order   adds the waits between lanes that every hazard needs
 *   plan    gives every POOL tensor an offset; sets region_bytes[POOL] (the peak) and bound_bytes
 * Proofs, which share no code with what they check: cr_program_check, cr_waits_check, cr_plan_check.
 * Passes see a device only as a cr_cost_model, so that tests can hand them an invented one. */
#ifndef CR_PASSES_H
#define CR_PASSES_H

#include "graph/graph.h"

struct cr_choices;

struct cr_selection {
    const char *kernel;
    int         algo;
    double      seconds;
    const char *source; /* of the time: measured, file, checkpoint ... or roofline */
};

struct cr_cost_model {
    void  *self;
    size_t alignment;
    double bytes_per_s, flops_per_s; /* roofline cost */
    /* Of offload and prefetch, both ways at once, and what one copy takes besides; 0: the device has no lanes for them.
     */
    double to_host_bytes_per_s, to_device_bytes_per_s, copy_latency_s;
    double duplex_speedup;       /* times as fast while none goes the other way, 1 to 2; 0: as 1 */
    double host_memory_overhead; /* bytes of the device's memory that a byte of the HOST region takes; they count
                                    against a limit */
    double loaded_copy_slowdown; /* times as long one to the host takes while kernels read; 0: as 1 */
    double mapped_read_slowdown; /* times as long a kernel takes to read the host's memory as a copy to the device; 0:
                                    as 1 */
    double contention_out,
        contention_in;         /* how much longer, as a share, such kernels take while a copy goes that way */
    double sparse_density_max; /* as in cr_device_caps */
    /* As cr_backend.packed_elems. NULL: there are no rows for patterns. */
    int64_t (*packed_elems)(void *self, const struct cr_program *program, const struct cr_op *op);
    /* Of a convolution with a pattern: seconds that its layout is foreseen to take, 0: who knows. What is foreseen to
     * take more than CR_ESTIMATE_MARGIN times the best that is known is not asked for. NULL: all are. */
    double (*estimate)(void *self, const struct cr_program *program, const struct cr_op *op);
    /* Its layout in a word or two, for people; nothing where it is known by its number alone. NULL: no layout has a
     * name. */
    void (*algo_name)(void *self, const struct cr_program *program, const struct cr_op *op, struct cr_text *out);
    /* Does a row exist for this op? NULL: everything is accepted. */
    bool (*accepts)(void *self, const struct cr_program *program, const struct cr_op *op);
    /* Best row for the op, and the workspace bytes it wants. NULL: row 0, no workspace. CR_ERR_DEVICE when there is
     * none; the message names op, layer, shapes and type. */
    cr_status (*select)(void *self, const struct cr_program *program, struct cr_op *op,
                        size_t *workspace); /* sets row, way */
    /* Seconds that the best row takes for an op that it accepts: measured, or known from before. The op need not be in
     * the program, but its tensors are. NULL: the roofline (cr_op_seconds). */
    cr_status (*cost)(void *self, const struct cr_program *program, const struct cr_op *op, double *seconds);
    /* The row that the op gets, and what is known of its time; row NULL: none takes it. May measure, as `cost`. For
     * people and programs that ask about choices (compiler/rewrite/explain.h). NULL: nothing is known. */
    cr_status (*explain)(void *self, const struct cr_program *program, const struct cr_op *op,
                         struct cr_selection *out);
    /* May this input of the op's row lie in the host's memory, so that it is read over the way of copies? NULL: none
     * may. */
    bool (*reads_host)(void *self, const struct cr_op *op, int slot);
};

/* What keeping the limit came to. Bytes are those of the planned pool. */
struct cr_fit_report {
    size_t before, after;
    int    recomputed, offloaded;   /* ops that run twice, tensors that wait in the host's memory */
    int    mapped;                  /* of those: read in place, without a copy back */
    size_t offload_bytes;           /* bytes of those: as many go out and come back */
    double seconds_before, seconds; /* of the program, predicted */
    double stalled;                 /* of `seconds`, what compute waits for copies */
};
/* Everything after emission, in order, with its checks. `fuse`, `reuse`: from the config. `until` names the last pass
 * to run ("grad" ... "plan"); NULL: all. The program's name decides what is kept: see cr_pass_grad's caller in
 * model/model.h. */
struct cr_compile_options {
    bool             fuse, reuse;
    bool             sparse;              /* with fuse: cr_pass_sparsify */
    bool             sparse_filter_grads; /* ... for those too */
    size_t           pool_limit; /* bytes that the pool shall not pass; 0: none. Who asks looks whether it does */
    bool             recompute;  /* ways to keep it: tensors are computed twice ... */
    enum cr_swap_use offload; /* ... or wait in the host's memory: with AUTO where that is faster, else in any case, by
                                 the named choice */
    bool                  zero_copy; /* ... and may be read there by the ops that want them */
    const char           *until;
    struct cr_fit_report *report;       /* of the limit; may be NULL */
    size_t                bucket_bytes; /* several ranks: gradients to add up in one go; 0: one rank */
    enum cr_dtype         wire;         /* ... and the type in which they travel */
};
CR_MUST cr_status cr_compile(struct cr_program *program, const struct cr_cost_model *target,
                             const struct cr_compile_options *options);
/* Roofline time of an op on the target: the longer of moving its bytes and doing its arithmetic. For printing. */
double cr_op_seconds(const struct cr_cost_model *target, const struct cr_program *program, const struct cr_op *op);

/* The program as its lanes would run it, by the waits that the ops carry (so: after order). */
struct cr_op_time {
    double start, end, stall; /* stall: from when its lane was free */
};
struct cr_simulation {
    double total, stalled; /* stalled: of the compute lane */
    double busy[CR_STREAMS];
};
/* What copies and compute do to each other. */
struct cr_contention {
    double duplex;  /* speed of a copy while one goes the other way, as a share: see cr_copy_end */
    double out, in; /* as contention_out, contention_in */
    double read_s;  /* that a byte of the host's memory takes which an op reads there, as copies to the device go */
    const double *
        memory_busy; /* [ops]: the share of an op's time for which it keeps the device's memory busy; NULL: none does */
};
struct cr_contention cr_contention_of(const struct cr_cost_model *target, const double *moving);
/* seconds[ops]: what each op takes by itself, by the target's costs, or the roofline; a copy, as cr_copy_seconds.
 * moving[ops]: as in cr_contention. */
CR_MUST cr_status cr_program_seconds(const struct cr_program *program, const struct cr_cost_model *target,
                                     double *seconds, double *moving);
void cr_program_simulate(const struct cr_program *program, const double *seconds, const struct cr_contention *beside,
                         struct cr_op_time *time, struct cr_simulation *out); /* time[ops] */
/* When op `op`, of the compute lane, ends that begins at `begin` while copies run until `out_end` and `in_end`. */
double cr_kernel_end(const struct cr_contention *beside, int op, double begin, double seconds, double out_end,
                     double in_end);
/* The same of an op that reads the host's memory for `reading` seconds: it shares the way with copies to the device,
 * which comes to all of them one after the other. *in_end: when that way is free, before and after. */
double cr_mapped_read_end(const struct cr_contention *beside, int op, double begin, double seconds, double reading,
                          double out_end, double *in_end);
/* Of a copy of `alone` seconds that begins at `begin`, when the other way is busy until `other`: its end. The copy that
 * begins later bears what both lose, so that what is known of the earlier one stays. */
double            cr_copy_end(double begin, double alone, double other, double beside);
double            cr_copy_contention(const struct cr_cost_model *target);
double            cr_copy_seconds(const struct cr_cost_model *target, enum cr_stream lane,
                                  size_t bytes); /* while none goes the other way and kernels run */
CR_MUST cr_status cr_program_predict(const struct cr_program *program, const struct cr_cost_model *target,
                                     struct cr_simulation *out);

/* Appends the gradient of everything in the program that leads from a trainable parameter to the op `loss` (index).
 * accumulate: gradient writers add instead of assigning. weight: 1/accumulate. */
CR_MUST cr_status cr_pass_grad(struct cr_program *program, int loss_op, bool accumulate, float weight, float smoothing);
CR_MUST cr_status cr_pass_fuse(struct cr_program *program, const struct cr_cost_model *target);
CR_MUST cr_status cr_pass_fold(struct cr_program *program, const struct cr_cost_model *target);
CR_MUST cr_status cr_pass_hoist(struct cr_program *program);
/* What it reckons with, of one convolution that has a pattern: seconds of the fastest dense row, and of the fastest for
 * patterns. */
struct cr_sparse_cost {
    double density; /* of weights that are kept */
    double dense_s, sparse_s;
    int    formats;   /* that were asked for; 0: none takes it */
    int    pruned;    /* that were not, by what is foreseen of them */
    bool unpromising; /* of all convolutions together too little is foreseen: no layout with a forecast was asked for */
    struct cr_op op;  /* the convolution with pattern and kept weights, in the fastest layout */
    int64_t      elems; /* of its kept weights */
};
/* The program keeps a tensor for kept weights beside those that it had. */
CR_MUST cr_status cr_sparsify_cost(struct cr_program *program, const struct cr_cost_model *target, int conv,
                                   struct cr_sparse_cost *out);
/* Is it a program that trains? */
bool cr_program_trains(const struct cr_program *program);
/* Where the store has a pattern. `report` (may be NULL) gets a line a convolution, or gradient of one, that has one:
 * compiler/rewrite/explain.h. filter_grads: filters' gradients too, which are then 0 where nothing is kept. A program
 * whose convolutions would gain less than CR_SPARSE_GAIN_MIN of their time together stays as it is. */
#define CR_SPARSE_GAIN_MIN 0.03
CR_MUST cr_status cr_pass_sparsify(struct cr_program *program, const struct cr_cost_model *target, bool filter_grads,
                                   struct cr_choices *report);
CR_MUST cr_status cr_pass_select(struct cr_program *program, const struct cr_cost_model *target);
/* The same for one op. */
CR_MUST cr_status cr_select_op(struct cr_program *program, const struct cr_cost_model *target, int index);
/* In a program that updates: cuts the grad plane into pieces of about `bucket_bytes` in the order in which backward
 * finishes them, and puts an all_reduce of each behind its last writer; the piece that is finished last is small, since
 * nothing hides it. All all_reduce ops of the program go to lane comm. The program must be selected; ops are not moved,
 * so collectives have one order on every rank that compiles the same program. */
CR_MUST cr_status cr_pass_buckets(struct cr_program *program, const struct cr_cost_model *target, size_t bucket_bytes,
                                  enum cr_dtype wire);
/* Computes tensors twice until no more than `limit` bytes are live at any op, or nothing is left to gain (after > limit
 * then). The program must be selected: repeated ops keep their row and way, so results are the same to the bit. */
struct cr_recompute_report {
    size_t before, after; /* largest sum of live bytes */
    int    recomputed;    /* ops that run twice */
    double seconds;       /* what they cost, by the target's costs */
};
CR_MUST cr_status cr_pass_recompute(struct cr_program *program, const struct cr_cost_model *target, size_t limit,
                                    struct cr_recompute_report *report);

/* How swap chooses what to move. The paper's scores (Zhang et al. 2019) take candidates by idle time, idle time by
 * size, or load above the limit while idle, static or anew after each choice; FIRST, ours, what is written first; BEST
 * takes the plan with the least predicted time of these and more. ROUGH, for a quick look: the best of these five. */
enum cr_offload_score {
    CR_OFFLOAD_BEST,
    CR_OFFLOAD_DOA,
    CR_OFFLOAD_AOA,
    CR_OFFLOAD_WDOA,
    CR_OFFLOAD_SWDOA,
    CR_OFFLOAD_FIRST,
    CR_OFFLOAD_SCORES,
    CR_OFFLOAD_ROUGH
};
const char *cr_offload_score_name(enum cr_offload_score score);
struct cr_offload_report {
    size_t                before, after; /* largest sum of live bytes */
    int                   tensors;
    int                   mapped;                  /* of those: see cr_fit_report */
    size_t                bytes;                   /* of theirs: as many go out and come back */
    double                seconds, seconds_before; /* predicted: the program with and without */
    double                stalled;                 /* of `seconds`, what compute waits for copies */
    enum cr_offload_score score;                   /* whose choice it is */
};
/* Moves tensors to the HOST region until no more than `limit` bytes are live at any op, by simulated times, or nothing
 * is left to gain (after > limit then). The program must be selected. Does nothing where the target has no lanes for
 * copies. With BEST, a tensor is read where it waits (zero-copy) by all that want it again, if target->reads_host
 * allows it and that is faster, or less is live. */
CR_MUST cr_status cr_pass_offload(struct cr_program *program, const struct cr_cost_model *target, size_t limit,
                                  enum cr_offload_score score, struct cr_offload_report *report);

/* Rewrites a selected program so that its planned pool does not pass options->pool_limit: by computing twice, by
 * swapping, by both in either order, whatever is predicted to take least. Where nothing keeps the limit: as little
 * memory as was reached. */
CR_MUST cr_status cr_pass_fit(struct cr_program *program, const struct cr_cost_model *target,
                              const struct cr_compile_options *options, struct cr_fit_report *report);
CR_MUST cr_status cr_pass_insert_waits(struct cr_program *program);
/* reuse = false: every tensor gets memory of its own and nothing is taken over in place (the oracle of the planner). */
CR_MUST cr_status cr_pass_plan(struct cr_program *program, size_t alignment, bool reuse);

/* Replays the list with a vector clock per lane: every two conflicting accesses (same region, overlapping bytes, at
 * least one a write) must be ordered. The message names both ops and the tensor. */
CR_MUST cr_status cr_waits_check(const struct cr_program *program);
/* No two live tensors overlap, all inside the region, aligned; an alias takes over a tensor that dies there. */
CR_MUST cr_status cr_plan_check(const struct cr_program *program, size_t alignment);

/* The bytes of the pool that hold nothing when op `op` starts (op = program.ops: when the program has ended), sorted
 * and disjoint: poison there must not change any result. Outputs of the op count as nothing unless they take over an
 * input. `range` needs room for program.tensors + 1; returns how many were put. The program must be planned. */
struct cr_range {
    size_t begin, end;
};
int cr_plan_dead_ranges(const struct cr_program *program, int op, struct cr_range *range);

/* The planner's core, free of programs: lives [lower, upper) half open, sizes in bytes, offsets out. Greedy by size
 * with best gap, several orders tried, the best kept and improved. *peak gets the bytes needed; *bound the largest sum
 * of live sizes (each rounded up to the alignment), below which no plan exists. Empty lives and sizes get offset 0. */
struct cr_interval {
    int64_t lower, upper;
    size_t  size;
    size_t  offset; /* out */
};
CR_MUST cr_status cr_plan_intervals(struct cr_interval *life, int count, size_t alignment, size_t *peak, size_t *bound);
CR_MUST cr_status cr_plan_bound(const struct cr_interval *life, int count, size_t alignment, size_t *bound);

/* As cr_plan_intervals, and where that stays above the bound (or the capacity) a search for a better plan; never a
 * worse one. With one budget of visits and no time limit equal inputs give equal plans. */
struct cr_plan_effort {
    size_t  alignment;
    size_t  capacity; /* bytes that are low enough; 0: as low as it goes */
    int64_t visits;   /* how much is looked at, about 2 ns each; <= 0: no search */
    int64_t limit_ns; /* INT64_MAX: none */
};
struct cr_plan_found {
    size_t peak, greedy;       /* of the plan; of greedy alone */
    size_t bound, lower_bound; /* the largest load; no plan is lower, as far as the search has proved */
};
CR_MUST cr_status cr_plan_search(struct cr_interval *life, int count, const struct cr_plan_effort *effort,
                                 struct cr_plan_found *found);

#endif
