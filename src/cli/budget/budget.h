/* cli/budget/budget.h: cresnet prune with a budget of time for all patterns together, or one of multiply-adds: the
 * parts.
 *
 *   source.c     the network to be pruned, on the host: groups of channels, importance, weights
 *   clock.c      the time of an op and a program on the device
 *   runs.c       the time of the network when it runs
 *   parts.c      the time of a fused op where its parts run instead
 *   axes.c       the op of the compiled evaluation program with other widths
 *   patterns.c   the choices of single layers: single weights, 2:4, blocks
 *   problem.c    the search problem (pruning/budget/search.h) of all of these
 *   candidate.c  the smaller network of a choice, its masks and its predicted time
 *   choose.c     the choice whose predicted time meets the target
 *   output.c     the table and the JSON line
 *   command.c    the command with a budget of time
 *   flops.c      the command with a budget of multiply-adds, by channels alone
 *
 * Invariants
 *   - The loss of a layer is the fraction of its squared L2 norm that is removed, whatever the pattern; with other
 *     kinds of importance, that of the squared importance of its channels. The losses of all layers are added.
 *   - The time of an op depends on its widths and its pattern. Times are measured on a GPU by the table of kernel
 *     times, and on the CPU by running the op, unless train.measure = no. A pattern changes the time of a
 *     convolution by the same factor at all widths; the whole network that was chosen is compiled, and its time
 *     corrects the sum. Then the network is run, and its time corrects the prediction.
 *   - Nothing is written before a choice meets the target: by its measured time, or with train.measure = no by its
 *     predicted time. */
#ifndef CR_BUDGET_H
#define CR_BUDGET_H

#include "autotune/host_times.h"
#include "cli/commands/prune.h"
#include "pruning/budget/search.h"
#include "pruning/widths.h"

enum { CR_BUDGET_OP_LAYERS = 4 };
struct cr_budget; /* below: all parts of a command with a budget of time */

/* ---- source.c ---- */

struct cr_budget_source {
    const struct cr_config  *config; /* for this machine's CPU */
    struct cr_dataset       *train;  /* with importance = taylor or --recalibrate, else NULL */
    struct cr_session        session;
    struct cr_program        program; /* evaluation of one image, before compiler passes */
    struct cr_channel_groups groups;
    struct cr_shrink         shrink;
    struct cr_multiples      multiples; /* of channels */
    struct cr_widths         widths;
    double                  *taylor; /* [units] */
    struct cr_state_buffers  buffers;
    float                   *running;
};
/* Loads the network and ranks its channels. With request->channels false every group keeps its width. The session can
 * train with importance = taylor, and for a budget of multiply-adds with --recalibrate. The caller closes the source,
 * also after a failure. */
CR_MUST cr_status cr_budget_source_open(const struct cr_config *config, const struct cr_budget_request *request,
                                        struct cr_budget_source *source);
/* Opens a session with masks and initial weights; with `train` (may be NULL) it can train. The caller closes it, also
 * after a failure. */
CR_MUST cr_status cr_budget_session_open(const struct cr_config *config, int classes, const struct cr_dataset *train,
                                         struct cr_session *session);
/* Adds the value of model.channels of the network with the present widths. CR_ERR_CONFIG: it is too long. */
CR_MUST cr_status cr_budget_channels(struct cr_budget_source *source, struct cr_text *out);
/* Allows each group at most `most` widths. */
CR_MUST cr_status cr_budget_source_levels(struct cr_budget_source *source, const struct cr_multiples *multiples,
                                          int most);
void              cr_budget_source_close(struct cr_budget_source *source);

/* ---- clock.c ---- */

struct cr_budget_clock {
    const struct cr_config *config;  /* the caller's without memory.limit */
    struct cr_session       session; /* device, model and kernel times only */
    struct cr_cost_model    model;
    struct cr_host_times   *host;     /* CPU with train.measure, else NULL */
    bool                    measured; /* times of ops are measured */
    int64_t                 batch;
    struct cr_program       program; /* the network with nothing pruned, compiled up to its fused ops */
};
/* Opens the device and compiles the network. The caller closes the clock, also after a failure. */
CR_MUST cr_status cr_budget_clock_open(const struct cr_config *config, int classes, struct cr_budget_clock *clock);
void              cr_budget_clock_close(struct cr_budget_clock *clock);
/* Seconds of an op: of the kernel that it gets. *known is false, and the value an estimate, when no kernel accepts the
 * op. */
CR_MUST cr_status cr_budget_op_cost(struct cr_budget_clock *clock, const struct cr_program *program,
                                    const struct cr_op *op, double *cost, bool *known);
/* Compiles the evaluation program of another network on the same device: config->model.channels, and `mask` as pattern
 * (NULL: none). Adds up the costs of the ops that run for each batch. `model` is opened by the caller. */
CR_MUST cr_status cr_budget_network_cost(struct cr_budget_clock *clock, const struct cr_config *config,
                                         struct cr_model *model, const uint8_t *mask, double *cost);

/* ---- runs.c ---- */

struct cr_budget_weights {
    const struct cr_param_store *store;
    const float                 *value, *running;
    const uint8_t               *mask; /* NULL: nothing is pruned */
};
/* Runs the network of a configuration with these weights on random images: the seconds of a batch when batches follow
 * each other (on the CPU the least time of a batch), without copying the images. Quantised networks get scales for
 * it. */
CR_MUST cr_status cr_budget_measure(const struct cr_config *config, int classes, int64_t batch,
                                    const struct cr_budget_weights *weights, double *seconds);

/* ---- parts.c ---- */

/* The sum of the costs of the convolutions, or of convolution and pooling, that a fused op consists of. *known is false
 * when the op has no such parts or no kernel accepts one of them. The program is as before. */
CR_MUST cr_status cr_budget_parts_cost(struct cr_budget_clock *clock, struct cr_program *program,
                                       const struct cr_op *op, double *cost, bool *known);
/* Gives the packed 8-bit filters of an op the length that the device wants for its widths. */
void cr_budget_resize_packed(struct cr_program *program, const struct cr_cost_model *model, const struct cr_op *op);

/* ---- axes.c ---- */

struct cr_budget_axes {
    const struct cr_budget_source *source;  /* borrowed */
    const struct cr_program       *program; /* of the clock */
    int                           *bins_of; /* [tensors][CR_CHANNEL_AXES] index in `bins`; CR_NONE: no channels */
    struct cr_width_bins          *bins;    /* [count] */
    int                            count;
    int                           *layer_of; /* [tensors] index of the layer whose filter the tensor has; CR_NONE */
};
/* Finds which widths the tensors of a compiled program have. layer_names: [layers], "layer1.0.conv1.weight". */
CR_MUST cr_status cr_budget_axes_open(const struct cr_budget_source *source, const struct cr_program *program,
                                      const char *const *layer_names, int layers, struct cr_budget_axes *axes);
void              cr_budget_axes_close(struct cr_budget_axes *axes);
/* The groups with several levels that an op depends on, in ascending order: returns their number. group[groups]. */
int cr_budget_op_groups(const struct cr_budget_axes *axes, const struct cr_op *op, int *group);
/* The layers whose filters an op reads; returns their number. */
int cr_budget_op_layers(const struct cr_budget_axes *axes, const struct cr_op *op, int layer[CR_BUDGET_OP_LAYERS]);
/* Gives the tensors of the op the shapes of these levels. Level 0 of all groups restores the first shapes. */
void cr_budget_resize(const struct cr_budget_axes *axes, struct cr_program *program, const struct cr_cost_model *model,
                      const struct cr_op *op, const int *level);

/* ---- patterns.c ---- */

struct cr_budget_choice {
    enum cr_prune_pattern pattern;
    double                sparsity, ratio; /* ratio: time compared with the dense kernel */
    double                left;            /* fraction of the squared L2 norm */
    int64_t               outputs, inputs; /* channels must be multiples of these */
};
struct cr_budget_use { /* of a layer in a network that was chosen */
    int    chosen;     /* index of a choice; CR_NONE: dense */
    double cost, lost; /* by the table */
};
struct cr_budget_layer {
    int                      param, tensor;
    const char              *name, *weight; /* "layer1.0.conv1", "layer1.0.conv1.weight" */
    const char              *dense;         /* why the layer has no pattern; NULL: it may have one */
    struct cr_width_bins     bins[CR_CHANNEL_AXES];
    double                  *energy;
    struct cr_budget_choice *choice; /* [choices] */
    int                      choices;
    double                   dense_cost; /* of its op at full width */
    struct cr_budget_use     use;
};
struct cr_budget_layers {
    struct cr_budget_layer *at;
    int                     count;
    struct cr_arena         arena;
};
CR_MUST cr_status cr_budget_layers_open(const struct cr_budget_source *source, struct cr_budget_layers *layers);
void              cr_budget_layers_close(struct cr_budget_layers *layers);
/* Finds the choices of each layer. */
CR_MUST cr_status cr_budget_patterns(struct cr_budget *budget);
/* Clears bits of `mask` as the chosen patterns demand, by the magnitudes of `value`, for a network with these layers in
 * another width. */
CR_MUST cr_status cr_budget_masks(const struct cr_config *config, const struct cr_budget_layers *layers,
                                  const struct cr_param_store *store, const float *value, uint8_t *mask);

/* ---- problem.c ---- */

struct cr_budget_problem {
    struct cr_search_problem search;
    int                     *variable_of; /* [groups] CR_NONE: one level */
    int                     *group_of;    /* [variables] */
    int                     *factor_op;   /* [factors] index of the op */
    double                   fixed;       /* cost of the ops that no choice changes */
    double                   dense;       /* cost with nothing pruned */
    int                     *level;       /* [groups] scratch: levels at which an op is measured */
    int                     *group;       /* [groups] scratch: of an op */
    struct cr_arena          arena;
};
/* The caller closes budget->problem, also after a failure. */
CR_MUST cr_status cr_budget_problem_open(struct cr_budget *budget);
/* The size of the search (pruning/budget/search.h) that such a problem has, without measuring anything. */
CR_MUST cr_status cr_budget_problem_size(struct cr_budget *budget, double *size);
void              cr_budget_problem_close(struct cr_budget_problem *problem);

/* ---- candidate.c ---- */

struct cr_budget_candidate {
    int                    *level; /* [groups] */
    struct cr_budget_use   *use;   /* [layers] */
    struct cr_text          channels;
    const struct cr_config *config; /* of the smaller network */
    struct cr_model         model;
    bool                    masked;
    float                  *value, *running; /* layouts of the smaller parameter store */
    uint8_t                *mask;
    struct cr_arena         arena;
    double                  table, cost, loss, gap; /* table: by the problem; cost: of the compiled network */
};
/* Makes the network of a search result and predicts its cost. The caller frees *out, also after a failure. */
CR_MUST cr_status cr_budget_candidate_make(struct cr_budget *budget, const struct cr_search_result *result,
                                           struct cr_budget_candidate *out);
/* Sets the widths of the source and the choices of the layers to those of a candidate. */
void cr_budget_candidate_show(struct cr_budget *budget, const struct cr_budget_candidate *candidate);
void cr_budget_candidate_free(struct cr_budget_candidate *candidate);

/* ---- choose.c ---- */

struct cr_budget_outcome {
    struct cr_budget_candidate best;
    double                     target;    /* seconds */
    double                     dense;     /* cost with nothing pruned */
    double                     scale;     /* measured time / cost of the network before; 1 when unknown */
    double                     predicted; /* of `best`, before it was measured */
    double                     measured_dense, measured; /* seconds; 0: not measured */
    double                     first;    /* predicted / measured time of the first network that was measured */
    int                        compiled; /* networks that were compiled */
    int                        measured_networks;
    /* while the choice is made */
    struct cr_budget_candidate present;     /* the network that was chosen last */
    double                     least_table; /* cost of the cheapest network of the table */
    double                     table_ratio; /* of the last network: cost by the table / when compiled */
    const uint8_t             *given_mask;  /* of the network before; NULL: nothing is pruned */
};
/* The caller frees best and present of budget->outcome, also after a failure. */
CR_MUST cr_status cr_budget_choose(struct cr_budget *budget);

/* ---- output.c ---- */

void cr_budget_print(const struct cr_budget *budget, struct cr_text *out);
void cr_budget_json(const struct cr_budget *budget, struct cr_text *out);

/* ---- command.c ---- */

struct cr_budget {
    const struct cr_config  *config; /* the caller's */
    struct cr_budget_request request;
    struct cr_budget_source  source;
    struct cr_budget_clock   clock;
    struct cr_budget_layers  layers;
    struct cr_budget_axes    axes;
    struct cr_budget_problem problem;
    struct cr_budget_outcome outcome;
    struct cr_session        small;
    int64_t                  recalibrated; /* training batches of the BN statistics; 0: they stayed */
};

#endif
