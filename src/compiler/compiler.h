/* compiler/compiler.h: the passes that turn an emitted program into a program that a device can run.
 *
 * cr_compile runs the passes in this order. A check runs between the passes and fails the compilation when a pass has
 * broken an invariant.
 *
 *   grad      appends the backward ops (autodiff/); the caller then emits the parameter update
 *   quantize  inference only: replaces ops on quantised values by 8-bit ops
 *   fold      inference only: folds batch normalisation (BN) into the convolution before it
 *   hoist     inference only: moves the ops that depend on parameters only to the front; they run once for many batches
 *   fuse      fuses BN, add and ReLU, their gradients, and the neighbours of convolutions (fusion/)
 *   sparsify  replaces convolutions with pruned filters by sparse convolutions where the sparse ones are faster
 *   select    chooses a kernel for each op and adds the kernel's workspace as a tensor
 *   fit       with a memory limit: recomputes tensors and offloads tensors to host memory (memory/)
 *   buckets   with several ranks: adds the all-reduce of the gradients, bucket by bucket (schedule/)
 *   order     adds the waits between streams that the data hazards require (schedule/)
 *   plan      gives each tensor of the pool an offset (memory/)
 *
 * The checks are cr_program_check (graph/graph.h), cr_waits_check and cr_plan_check. They share no code with the
 * passes.
 *
 * A pass sees a device as a struct cr_cost_model only; a test can pass a cost model without a device.
 * Each function returns CR_ERR_MEMORY when an allocation fails; other errors are named where they occur. A program is
 * in an undefined but freeable state after a pass has failed.
 *
 * Units: seconds, bytes, bytes per second, unless a comment names another unit. */
#ifndef CR_COMPILER_H
#define CR_COMPILER_H

#include "graph/graph.h"

struct cr_choices; /* compiler/rewrite/explain.h */

/* ---- the cost model: what the passes know about the device ---- */

/* The kernel that an op gets. The strings belong to the device and live as long as the device. */
struct cr_selection {
    const char *kernel;  /* name; NULL when no kernel accepts the op */
    int         algo;    /* algorithm or tile configuration of the kernel */
    double      seconds; /* time of one launch */
    const char *source;  /* where `seconds` comes from: "measured", "file", "checkpoint", "roofline" ... */
};

/* Rates, factors and callbacks of a device. The owner keeps `self` alive while a pass runs. Each callback gets `self`.
 * A callback may be NULL; the comment of the callback says what the passes assume then. */
struct cr_cost_model {
    void  *self;
    size_t alignment;                /* bytes; each planned offset is a multiple */
    double bytes_per_s, flops_per_s; /* roofline: device memory bandwidth, arithmetic; 0 when unknown */

    /* Copies between device and host memory. The rates hold while copies run in both directions at once and no kernel
     * runs. A rate of 0: the device cannot offload. */
    double to_host_bytes_per_s, to_device_bytes_per_s;
    double copy_latency_s;       /* fixed time of each copy */
    double duplex_speedup;       /* speedup of a copy while the other direction is idle; clamped to 1 ... 2 */
    double host_memory_overhead; /* bytes of device memory per byte of the HOST region; counted against a limit */
    double loaded_copy_slowdown; /* slowdown of a copy to the host while kernels run; values below 1 count as 1 */
    double mapped_read_slowdown; /* time of a mapped (zero-copy) read over the time of a copy to the device; values
                                    below 1 count as 1 */
    double contention_out, contention_in; /* slowdown of a memory-bound kernel while a copy to the host (out) or to the
                                             device (in) runs, as a fraction: 0.1 means 10 % longer */

    double sparse_density_max; /* see cr_device_caps in device/device.h */

    /* Length in f32 elements of the packed weights of a sparse convolution in the op's weight format; 0 when the format
     * does not suit the op. For qconv: length in bytes of the packed filter; 0 when the device's kernel reads the filter
     * itself. NULL: the device has no such kernels. */
    int64_t (*packed_elems)(void *self, const struct cr_program *program, const struct cr_op *op);
    /* Estimated seconds of a sparse convolution in the op's weight format; 0 when unknown. A format whose estimate
     * exceeds CR_ESTIMATE_MARGIN times the best known time is not measured. NULL: no format has an estimate. */
    double (*estimate)(void *self, const struct cr_program *program, const struct cr_op *op);
    /* Appends a readable name of the op's weight format to `out`; appends nothing to a format that has a number only.
     * NULL: no format has a name. */
    void (*algo_name)(void *self, const struct cr_program *program, const struct cr_op *op, struct cr_text *out);
    /* Returns true when a kernel exists for the op. NULL: every op is accepted. */
    bool (*accepts)(void *self, const struct cr_program *program, const struct cr_op *op);
    /* Sets op->kernel and op->algo to the fastest kernel and *workspace to the bytes that the kernel needs. Returns
     * CR_ERR_DEVICE when no kernel exists; the message names op, layer, shapes and type. NULL: kernel 0, no workspace.
     */
    cr_status (*select)(void *self, const struct cr_program *program, struct cr_op *op, size_t *workspace);
    /* Seconds of the fastest kernel for an accepted op; may measure. The op's tensors are in the program; the op itself
     * need not be. NULL: the passes use the roofline (cr_op_seconds). */
    cr_status (*cost)(void *self, const struct cr_program *program, const struct cr_op *op, double *seconds);
    /* The kernel that the op gets, for reports (compiler/rewrite/explain.h); may measure. NULL: reports name
     * no kernel. */
    cr_status (*explain)(void *self, const struct cr_program *program, const struct cr_op *op,
                         struct cr_selection *out);
    /* Returns true when the op's kernel can read input `slot` directly from host memory (zero-copy). NULL: never. */
    bool (*reads_host)(void *self, const struct cr_op *op, int slot);
};

/* Roofline time of one op: the longer of its memory traffic and its arithmetic. For offload and prefetch: the
 * time of the copy alone. */
double cr_op_seconds(const struct cr_cost_model *cost_model, const struct cr_program *program, const struct cr_op *op);

/* ---- the whole compilation ---- */

/* Result of fitting a program to a memory limit. */
struct cr_fit_report {
    size_t before, after;           /* bytes of the planned pool; `after` may exceed the limit */
    int    recomputed;              /* ops that run twice */
    int    offloaded;               /* tensors that are offloaded to host memory */
    int    mapped;                  /* offloaded tensors that kernels read in place, without a prefetch */
    size_t offload_bytes;           /* bytes of the offloaded tensors */
    double seconds_before, seconds; /* predicted time of the program before and after */
    double stalled;                 /* part of `seconds` in which the compute stream waits for copies */
};

struct cr_compile_options {
    bool   fuse;                /* run quantize, fold, hoist and fuse */
    bool   reuse;               /* tensors with disjoint lifetimes share memory */
    bool   sparse;              /* with `fuse`: run sparsify */
    bool   sparse_filter_grads; /* with `sparse`: filter gradients become sparse too */
    size_t pool_limit;          /* most bytes of the pool; 0: no limit. The caller checks whether the limit is kept */
    bool   recompute;           /* with `pool_limit`: tensors may be recomputed */
    enum cr_offload_mode  offload;   /* with `pool_limit`: tensors may be offloaded. AUTO: where it is fastest; another
                                    value forces offloading, with the score that the value names */
    bool                  zero_copy; /* with `offload`: kernels may read offloaded tensors from host memory */
    const char           *until;     /* last pass to run: "grad", "fuse", "select", "order" or "plan"; NULL: "plan" */
    struct cr_fit_report *report;    /* result of `pool_limit`; may be NULL */
    size_t                bucket_bytes; /* several ranks: bytes of one gradient bucket; 0: one rank */
    enum cr_dtype         wire;         /* several ranks: type of the gradients during the all-reduce */
};

/* Runs the passes after grad, each with its checks. Returns CR_ERR_USAGE when `until` names no pass, and the error of
 * a check when a pass broke an invariant. */
CR_MUST cr_status cr_compile(struct cr_program *program, const struct cr_cost_model *cost_model,
                             const struct cr_compile_options *options);

/* ---- passes ---- */

/* Appends the gradient ops of each tensor on a path from a trainable parameter to the op with index `loss_op`. Each
 * trainable parameter gets exactly one gradient writer. accumulate: gradient writers add to the gradient buffer instead
 * of overwriting it. weight: factor of the loss gradient, 1 / number of micro-batches. smoothing: label smoothing. */
CR_MUST cr_status cr_pass_grad(struct cr_program *program, int loss_op, bool accumulate, float weight, float smoothing);

/* Inference programs only: replaces convolutions of quantised values (fake_quant), with their BN, add and ReLU, by 8-bit
 * convolutions (qconv), and the pooling between them by 8-bit pooling. A convolution that the device does not accept in
 * 8 bits stays as it is. */
CR_MUST cr_status cr_pass_quantize(struct cr_program *program, const struct cr_cost_model *cost_model);

/* Inference programs only: folds BN into the filter and bias of the convolution before it, and a following add or ReLU
 * into the convolution. Programs that train stay unchanged. */
CR_MUST cr_status cr_pass_fold(struct cr_program *program, const struct cr_cost_model *cost_model);

/* Inference programs only: moves the ops that depend on parameters only to the front, sets program->hoisted to their
 * number and keeps their results to the end of the program. */
CR_MUST cr_status cr_pass_hoist(struct cr_program *program);

/* Fuses ops where the device accepts the fused op. Op indices and tensor ids change; the program's own references, such
 * as program->logits, are updated. */
CR_MUST cr_status cr_pass_fuse(struct cr_program *program, const struct cr_cost_model *cost_model);

/* Returns true when the program computes gradients or batch statistics. */
bool cr_program_trains(const struct cr_program *program);

/* Times of one convolution with a sparsity pattern: its fastest dense kernel and its fastest sparse kernel. */
struct cr_sparse_cost {
    double       density; /* nonzero weights / all weights */
    double       dense_s, sparse_s;
    int          formats;     /* weight formats that were tried; 0: no sparse kernel accepts the op */
    int          pruned;      /* weight formats that were skipped because of their estimates */
    bool         unpromising; /* the estimates of the whole program are too small a gain: formats that have an estimate
                           were not tried */
    struct cr_op op;          /* the sparse convolution in its fastest weight format */
    int64_t      elems;       /* f32 elements of its packed weights */
};
/* Computes the times of the convolution with op index `conv`. Adds a tensor for the packed weights to the program when
 * the filter is sparse. */
CR_MUST cr_status cr_sparsify_cost(struct cr_program *program, const struct cr_cost_model *cost_model, int conv,
                                   struct cr_sparse_cost *out);

/* Least gain of sparsify, as a fraction of the time of the convolutions that have a sparsity pattern. */
#define CR_SPARSE_GAIN_MIN 0.03
/* Makes convolutions sparse where the parameter store has a sparsity pattern and the sparse kernel is faster. The
 * program stays unchanged when the total gain is below CR_SPARSE_GAIN_MIN. filter_grads: filter gradients become sparse
 * too; a gradient is then 0 where the weight is pruned. report (may be NULL): gets one line for each op with a sparsity
 * pattern (compiler/rewrite/explain.h). */
CR_MUST cr_status cr_pass_sparsify(struct cr_program *program, const struct cr_cost_model *cost_model,
                                   bool filter_grads, struct cr_choices *report);

/* Chooses a kernel for each op. A kernel's workspace becomes a tensor whose lifetime is that op. Returns the errors of
 * cost_model->select. cr_select_op does the same for the op with index `index`. */
CR_MUST cr_status cr_pass_select(struct cr_program *program, const struct cr_cost_model *cost_model);
CR_MUST cr_status cr_select_op(struct cr_program *program, const struct cr_cost_model *cost_model, int index);

/* Programs that update parameters: cuts the gradient buffer into buckets of about `bucket_bytes` in the order in which
 * backward finishes them, and inserts an all-reduce behind the last writer of each bucket. The last bucket is smaller,
 * because no compute hides its all-reduce. All all-reduce ops move to the comm stream; other ops keep their order, so
 * each rank that compiles the same program runs its collectives in the same order. Runs after select. */
CR_MUST cr_status cr_pass_buckets(struct cr_program *program, const struct cr_cost_model *cost_model,
                                  size_t bucket_bytes, enum cr_dtype wire);

struct cr_recompute_report {
    size_t before, after; /* largest sum of live bytes; `after` may exceed the limit */
    int    recomputed;    /* ops that run twice */
    double seconds;       /* sum of their costs */
};
/* Recomputes tensors (activation checkpointing) until at most `limit` bytes are live at each op or no candidate is
 * left. Runs after select: a repeated op keeps its kernel and algorithm, so results stay bitwise identical. */
CR_MUST cr_status cr_pass_recompute(struct cr_program *program, const struct cr_cost_model *cost_model, size_t limit,
                                    struct cr_recompute_report *report);

/* How cr_pass_offload ranks tensors. DOA ... SWDOA: the scores of Zhang et al. 2019, by duration of absence, area of
 * absence, weighted duration and submodular weighted duration. FIRST: the tensor that is written first. BEST: the plan
 * with the least predicted time of all scores, improved by a local search. ROUGH: the best of the five scores, without
 * the search. */
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
/* Name in lower case, such as "swdoa"; a static string. */
const char *cr_offload_score_name(enum cr_offload_score score);

struct cr_offload_report {
    size_t                before, after; /* largest sum of live bytes; `after` may exceed the limit */
    int                   tensors;       /* offloaded tensors */
    int                   mapped;        /* offloaded tensors that kernels read in place, without a prefetch */
    size_t                bytes;         /* of the offloaded tensors */
    double                seconds, seconds_before; /* predicted time of the program with and without offloading */
    double                stalled;                 /* part of `seconds` in which the compute stream waits for copies */
    enum cr_offload_score score;                   /* the score whose plan was chosen */
};
/* Offloads tensors to the HOST region until at most `limit` bytes are live at each op, by simulated times, or no
 * candidate is left. With BEST, kernels read a tensor from host memory where cost_model->reads_host allows it and the
 * mapped read is faster or saves memory. Runs after select. Leaves the program unchanged when a copy rate of the device
 * is 0. Returns CR_ERR_USAGE when the program uses several streams already. */
CR_MUST cr_status cr_pass_offload(struct cr_program *program, const struct cr_cost_model *cost_model, size_t limit,
                                  enum cr_offload_score score, struct cr_offload_report *report);

/* Rewrites a selected program so that its planned pool stays within options->pool_limit: by recomputing, by offloading
 * or by both, whichever is predicted to be fastest. When nothing keeps the limit, the program gets the smallest pool
 * that was found. */
CR_MUST cr_status cr_pass_fit(struct cr_program *program, const struct cr_cost_model *cost_model,
                              const struct cr_compile_options *options, struct cr_fit_report *report);

/* Sets the waits of each op: the op waits for each op of another stream that it depends on. */
CR_MUST cr_status cr_pass_insert_waits(struct cr_program *program);

/* Sets the offset of each POOL tensor, region_bytes[POOL] (the pool's size) and bound_bytes (a lower bound of the
 * size). reuse = false: no two tensors share memory and no op works in place; tests compare results with such a plan.
 */
CR_MUST cr_status cr_pass_plan(struct cr_program *program, size_t alignment, bool reuse);

/* Sets attr.conv.early_filter of each conv and conv_grad whose filter is not written by the two ops before it. A kernel
 * may read such a filter while the launches of these two ops still run. The attribute is false until this pass, which
 * runs last because it compares offsets. */
void cr_pass_early_filters(struct cr_program *program);

/* Returns the tensor at the start of the chain of aliases of tensor t. */
static inline int cr_alias_root(const struct cr_program *p, int t) {
    while (p->tensor[t].alias != CR_NONE) t = p->tensor[t].alias;
    return t;
}

/* ---- checks ---- */

/* Replays the program with one vector clock per stream. Two accesses conflict when they touch the same bytes and at
 * least one writes. Returns CR_ERR_DEVICE when two conflicting accesses are not ordered; the message names both ops and
 * the tensors. */
CR_MUST cr_status cr_waits_check(const struct cr_program *program);

/* Returns CR_ERR_DEVICE when two live tensors overlap, an offset is misaligned or outside the pool, or a tensor reuses
 * the storage of a tensor that is still live. The message names the tensors. */
CR_MUST cr_status cr_plan_check(const struct cr_program *program, size_t alignment);

/* ---- simulation: predicted time of a program ---- */

struct cr_op_time {
    double start, end;
    double stall; /* time in which the op's stream is idle before the op starts */
};
struct cr_simulation {
    double total;            /* end of the last op */
    double stalled;          /* sum of the stalls of the compute stream */
    double busy[CR_STREAMS]; /* sum of the op times of each stream */
};
/* How concurrent copies and kernels slow each other down. */
struct cr_contention {
    double        duplex;      /* speed of a copy while the other direction is busy, as a fraction of its speed alone */
    double        out, in;     /* contention_out, contention_in of the cost model */
    double        read_s;      /* seconds of a mapped read of one byte of host memory */
    const double *memory_busy; /* [ops]: fraction of the op's time in which it saturates device memory; NULL: 0 */
};
/* `memory_busy` is borrowed and may be NULL. */
struct cr_contention cr_contention_of(const struct cr_cost_model *cost_model, const double *memory_busy);

/* Sets seconds[ops] to the time that each op takes alone: cost_model->cost, else the roofline; cr_copy_seconds for a
 * copy. Sets memory_busy[ops] as in struct cr_contention. Returns the errors of cost_model->cost. */
CR_MUST cr_status cr_program_seconds(const struct cr_program *program, const struct cr_cost_model *cost_model,
                                     double *seconds, double *memory_busy);
/* Simulates the streams of a program whose ops carry their waits (after order). Sets time[ops] and *out. */
void cr_program_simulate(const struct cr_program *program, const double *seconds,
                         const struct cr_contention *contention, struct cr_op_time *time, struct cr_simulation *out);
/* cr_program_seconds and cr_program_simulate in one call. */
CR_MUST cr_status cr_program_predict(const struct cr_program *program, const struct cr_cost_model *cost_model,
                                     struct cr_simulation *out);

/* End of kernel `op`, which starts at `begin` and takes `seconds` alone, while the copies to the host run until
 * `out_end` and the copies to the device until `in_end`. */
double cr_kernel_end(const struct cr_contention *contention, int op, double begin, double seconds, double out_end,
                     double in_end);
/* End of a kernel that also reads host memory for `reading` seconds. The mapped read and the copies to the device share
 * one link and are serialised. *in_end: time at which that link is free, updated by the call. */
double cr_mapped_read_end(const struct cr_contention *contention, int op, double begin, double seconds, double reading,
                          double out_end, double *in_end);
/* End of a copy that takes `alone` seconds alone and starts at `begin`, while the other direction is busy until
 * `other`. The later copy carries the loss of both, so the end of the earlier copy stays valid. */
double cr_copy_end(double begin, double alone, double other, double duplex);
/* The `duplex` member of struct cr_contention. */
double cr_copy_contention(const struct cr_cost_model *cost_model);
/* Seconds of a copy on stream TO_HOST or TO_DEVICE while the other direction is idle and kernels run. */
double cr_copy_seconds(const struct cr_cost_model *cost_model, enum cr_stream stream, size_t bytes);

/* ---- the memory planner: offsets of intervals, independent of programs ---- */

/* One allocation: live in [lower, upper), in any unit of time. */
struct cr_interval {
    int64_t lower, upper;
    size_t  size;   /* bytes */
    size_t  offset; /* output, bytes; 0 when the interval or the size is empty */
};
/* Sets the offsets so that intervals which overlap in time share no byte: greedy by size into the smallest gap, in
 * several orders, then improved. *peak: bytes that the plan needs. *bound: largest sum of live sizes, each rounded up
 * to `alignment`; no plan needs fewer bytes. Equal inputs give equal plans. Returns CR_ERR_MEMORY when the sizes
 * overflow. */
CR_MUST cr_status cr_plan_intervals(struct cr_interval *interval, int count, size_t alignment, size_t *peak,
                                    size_t *bound);
/* Computes *bound only. CR_ERR_MEMORY as cr_plan_intervals. */
CR_MUST cr_status cr_plan_bound(const struct cr_interval *interval, int count, size_t alignment, size_t *bound);

struct cr_plan_effort {
    size_t  alignment;
    size_t  capacity; /* the search stops at a plan of this many bytes; 0: it looks for the smallest plan */
    int64_t visits;   /* budget of search steps, about 2 ns each; 0 or less: no search */
    int64_t limit_ns; /* time limit; INT64_MAX: none. With a time limit the plan may differ from run to run */
};
struct cr_plan_found {
    size_t peak;        /* bytes of the plan */
    size_t greedy;      /* bytes of the plan of cr_plan_intervals */
    size_t bound;       /* largest sum of live sizes */
    size_t lower_bound; /* no plan needs fewer bytes, as far as the search has proved */
};
/* cr_plan_intervals, then a branch-and-bound search when the greedy plan exceeds the bound and the capacity. The plan
 * is never larger than the greedy plan. */
CR_MUST cr_status cr_plan_search(struct cr_interval *interval, int count, const struct cr_plan_effort *effort,
                                 struct cr_plan_found *found);

#endif
