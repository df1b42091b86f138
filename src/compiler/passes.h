/* compiler/passes.h: the passes, one by one, and the checks between them. cr_compile (compiler/compiler.h) runs them in
 * order; commands and tests call single passes.
 *
 * Each function returns CR_ERR_MEMORY when an allocation fails; other errors are named where they occur. A program is
 * in an undefined but freeable state after a pass has failed.
 *
 * Units: seconds, bytes, unless a comment names another unit. */
#ifndef CR_PASSES_H
#define CR_PASSES_H

#include "compiler/compiler.h"

/* ---- passes ---- */

/* Appends the gradient ops of each tensor on a path from a trainable parameter to the op with index `loss_op`. Each
 * trainable parameter gets exactly one gradient writer. accumulate: gradient writers add to the gradient buffer instead
 * of overwriting it. weight: factor of the loss gradient, 1 / number of micro-batches. smoothing: label smoothing. */
CR_MUST cr_status cr_pass_grad(struct cr_program *program, int loss_op, bool accumulate, float weight, float smoothing);

/* Inference programs only: replaces convolutions of quantised values (fake_quant), with their BN, add and ReLU, by
 * 8-bit convolutions (qconv), and the pooling between them by 8-bit pooling. A convolution that the device does not
 * accept in 8 bits stays as it is. */
CR_MUST cr_status cr_pass_quantize(struct cr_program *program, const struct cr_cost_model *cost_model);

/* Inference programs only: folds BN into the filter and bias of the convolution before it, and a following add or ReLU
 * into the convolution. Of programs that train, only a teacher's convolutions change: they get the add or ReLU. */
CR_MUST cr_status cr_pass_fold(struct cr_program *program, const struct cr_cost_model *cost_model);

/* Inference programs only: moves the ops that depend on parameters only to the front, sets program->hoisted to their
 * number and keeps their results to the end of the program. */
CR_MUST cr_status cr_pass_hoist(struct cr_program *program);

/* Training programs only: replaces 1x1 convolutions and the BN behind them by ops that do not need the convolution's
 * output (docs/internals/gram-bn.md). NO: nothing. ALL: wherever the device accepts the new ops. AUTO: for each shape
 * of such convolutions, where the fused program then takes less time; only on devices whose kernel times are
 * measured (cost_model->cost). */
CR_MUST cr_status cr_pass_gram(struct cr_program *program, const struct cr_cost_model *cost_model,
                               enum cr_gram_mode mode);

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
 * pattern. */
CR_MUST cr_status cr_pass_sparsify(struct cr_program *program, const struct cr_cost_model *cost_model,
                                   bool filter_grads, struct cr_text *report);

/* Joins two 1x1 convolutions in a row where one kernel takes less time: compiler/fusion/conv_pairs.c. */
CR_MUST cr_status cr_pass_conv_pairs(struct cr_program *program, const struct cr_cost_model *cost_model);

/* Joins a convolution and the max pooling behind it where one kernel takes less time: compiler/fusion/conv_pool.c. */
CR_MUST cr_status cr_pass_conv_pool(struct cr_program *program, const struct cr_cost_model *cost_model);

/* Training programs: joins the ops from the last bn_apply to the last block's bn_grad_finalize where one kernel takes
 * less time: compiler/head/head.c. */
CR_MUST cr_status cr_pass_head(struct cr_program *program, const struct cr_cost_model *cost_model);

/* Chooses a kernel for each op. A kernel's workspace becomes a tensor whose lifetime is that op. Returns the errors of
 * cost_model->select. cr_select_op does the same for the op with index `index`. cr_insert_op inserts a copy of `op` at
 * index `at` and selects its kernel; output slots and names as for cr_emit. */
CR_MUST cr_status cr_pass_select(struct cr_program *program, const struct cr_cost_model *cost_model);
CR_MUST cr_status cr_select_op(struct cr_program *program, const struct cr_cost_model *cost_model, int index);
CR_MUST cr_status cr_insert_op(struct cr_program *program, const struct cr_cost_model *cost_model, int at,
                               const struct cr_op *op, const char *name);

/* Programs that update parameters: cuts the gradient buffer into buckets of about `bucket_bytes` in the order in which
 * backward finishes them, and inserts an all-reduce behind the last writer of each bucket. The last bucket is smaller,
 * because no compute hides its all-reduce. All-reduce ops move to the comm stream, unless their kernel runs on any
 * stream; the ops of a stream keep their order, so each rank that compiles the same program runs its collectives in the
 * same order. Runs after select. */
CR_MUST cr_status cr_pass_buckets(struct cr_program *program, const struct cr_cost_model *cost_model,
                                  size_t bucket_bytes, enum cr_dtype wire);

/* Recomputes tensors (activation checkpointing) until at most `limit` bytes are live at each op or no candidate is
 * left. Runs after select: a repeated op keeps its kernel and algorithm, so results stay bitwise identical. In *report,
 * sets before and after, here the largest sums of live bytes, and recomputed. Returns CR_ERR_USAGE when tensors have
 * been offloaded before. */
CR_MUST cr_status cr_pass_recompute(struct cr_program *program, const struct cr_cost_model *cost_model, size_t limit,
                                    struct cr_fit_report *report);

/* Offloads tensors to the HOST region until at most `limit` bytes are live at each op, by simulated times, or no
 * candidate is left. Runs after select. Leaves the program unchanged when a copy rate of the device is 0. In *report,
 * sets before and after, here the largest sums of live bytes, and what it says of offloading and of predicted times.
 * Returns CR_ERR_USAGE when the program uses several streams already. */
CR_MUST cr_status cr_pass_offload(struct cr_program *program, const struct cr_cost_model *cost_model, size_t limit,
                                  enum cr_offload_score score, struct cr_fit_report *report);

/* Rewrites a selected program so that its planned pool stays within options->pool_limit: by recomputing, by offloading
 * or by both, whichever is predicted to be fastest. When nothing keeps the limit, the program gets the smallest pool
 * that was found. */
CR_MUST cr_status cr_pass_fit(struct cr_program *program, const struct cr_cost_model *cost_model,
                              const struct cr_compile_options *options, struct cr_fit_report *report);

/* Training programs: fuses bn_finalize and bn_grad_finalize with the convolutions behind them, and many filter
 * gradients with each other, where a kernel does that (cr_device_view.sum_rows): compiler/schedule/bn_chains.c. Runs
 * when the order of the ops is final and each has its kernel. Filter gradients are fused only if at most pool_limit
 * bytes are live then; SIZE_MAX: no limit. */
CR_MUST cr_status cr_pass_bn_chains(struct cr_program *program, const struct cr_cost_model *cost_model,
                                    size_t pool_limit);

/* Training programs, on devices that run several kernels at once: moves filter gradients to the side stream, where they
 * run beside the input gradients, if the pool then needs at most options->pool_limit bytes (0: no limit):
 * compiler/schedule/side_stream.c. */
CR_MUST cr_status cr_pass_side_stream(struct cr_program *program, const struct cr_cost_model *cost_model,
                                      const struct cr_compile_options *options);

/* Sets the waits of each op: the op waits for each op of another stream that it depends on. */
CR_MUST cr_status cr_pass_insert_waits(struct cr_program *program);

/* Sets the offset of each POOL tensor, region_bytes[POOL] (the pool's size) and bound_bytes (a lower bound of the
 * size). reuse = false: no two tensors share memory and no op works in place; tests compare results with such a plan.
 */
CR_MUST cr_status cr_pass_plan(struct cr_program *program, size_t alignment, bool reuse);

/* Returns the tensor at the start of the chain of aliases of tensor t. */
static inline int cr_alias_root(const struct cr_program *p, int t) {
    while (p->tensor[t].alias != CR_NONE) t = p->tensor[t].alias;
    return t;
}

/* ---- checks: they share no code with the passes ---- */

/* Replays the program with one vector clock per stream. Two accesses conflict when they touch the same bytes and at
 * least one writes. Returns CR_ERR_DEVICE when two conflicting accesses are not ordered; the message names both ops and
 * the tensors. */
CR_MUST cr_status cr_waits_check(const struct cr_program *program);

/* Returns CR_ERR_DEVICE when two live tensors overlap, an offset is misaligned or outside the pool, or a tensor reuses
 * the storage of a tensor that is still live. The message names the tensors. */
CR_MUST cr_status cr_plan_check(const struct cr_program *program, size_t alignment);

#endif
