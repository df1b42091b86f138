/* compiler/compiler.h: the passes that turn an emitted program into a program that a device can run.
 *
 * cr_compile runs the passes in this order. A check runs between the passes and fails the compilation when a pass has
 * broken an invariant.
 *
 *   grad          appends the backward ops (autodiff/); the caller then emits the parameter update
 *   quantize      inference only: replaces ops on quantised values by 8-bit ops
 *   fold          inference only: folds batch normalisation (BN) into the convolution before it
 *   hoist         inference only: moves the ops that depend on parameters only to the front; they run once for many
 *                 batches
 *   gram          training only: BN statistics of 1x1 convolutions from Gram matrices, when it is switched on
 *   fuse          fuses BN, add and ReLU, their gradients, and the neighbours of convolutions (fusion/)
 *   sparsify      replaces convolutions with pruned filters by sparse convolutions where the sparse ones are faster,
 *                 and folds again
 *   conv_pool     inference only: the stem convolution and the max pooling behind it become one op
 *   conv_pairs    inference only: two to four convolutions in a row become one op
 *   head          training only: the ops around the loss become one op (head/)
 *   hoist         again: ops that fuse and sparsify have added
 *   select        chooses a kernel for each op and adds the kernel's workspace as a tensor
 *   fit           with a memory limit: recomputes tensors and offloads tensors to host memory (memory/)
 *   buckets       with several ranks: adds the all-reduce of the gradients, bucket by bucket (schedule/)
 *   bn_chains     training only: the end of a BN becomes part of the convolution behind it, where a kernel does both
 *   side_stream   training only: filter gradients run beside the chain of input gradients (schedule/)
 *   insert_waits  adds the waits between streams that the data hazards require (schedule/)
 *   plan          gives each tensor of the pool an offset (memory/)
 *
 * The passes and the checks are declared in compiler/passes.h. A pass sees a device as a struct cr_cost_model only
 * (compiler/cost_model.h). Predicted times: compiler/simulate.h. Offsets of intervals: compiler/intervals.h.
 *
 * Units: seconds, bytes, unless a comment names another unit. */
#ifndef CR_COMPILER_H
#define CR_COMPILER_H

#include "compiler/cost_model.h"
#include "config/config.h"

/* Result of fitting a program to a memory limit. */
struct cr_fit_report {
    size_t before, after;                              /* bytes of the planned pool; `after` may exceed the limit */
    int    recomputed;                                 /* ops that run twice */
    int    offloaded;                                  /* tensors that are offloaded to host memory */
    size_t offload_bytes;                              /* bytes of the offloaded tensors */
    double to_host_bytes_per_s, to_device_bytes_per_s; /* rates of copies that the prediction assumes */
    double seconds_before, seconds;                    /* predicted time of the program before and after */
    double stalled; /* part of `seconds` in which the compute stream waits for copies */
};

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
struct cr_compile_options {
    bool              fuse;                /* run quantize, fold, hoist, gram and fuse */
    enum cr_gram_mode gram;                /* with `fuse`: see cr_pass_gram in compiler/passes.h */
    bool              reuse;               /* tensors with disjoint lifetimes share memory */
    bool              sparse;              /* with `fuse`: run sparsify */
    bool              sparse_filter_grads; /* with `sparse`: filter gradients become sparse too */
    size_t            pool_limit; /* most bytes of the pool; 0: no limit. The caller checks whether the limit is kept */
    bool              recompute;  /* with `pool_limit`: tensors may be recomputed */
    bool              offload;    /* with `pool_limit`: tensors may be offloaded, where that is fastest */
    /* with `offload`: which tensors. BEST, which is 0; only comparisons (tools/memory-trace) use others */
    enum cr_offload_score offload_score;
    const char           *until;        /* last pass to run: "grad", "fuse", "select", "insert_waits" or "plan";
                                    NULL: "plan" */
    struct cr_fit_report *report;       /* result of `pool_limit`; may be NULL */
    size_t                bucket_bytes; /* several ranks: bytes of one gradient bucket; 0: one rank */
    enum cr_dtype         wire;         /* several ranks: type of the gradients during the all-reduce */
};

/* Runs the passes after grad, each with its checks. Returns CR_ERR_USAGE when `until` names no pass, and the error of
 * a check when a pass broke an invariant. */
CR_MUST cr_status cr_compile(struct cr_program *program, const struct cr_cost_model *cost_model,
                             const struct cr_compile_options *options);

#endif
