/* cuda/common/train_launchers.h: launchers of cuda/train: weight initialisation, loss, gradient norm, optimizers.
 * Conventions: cuda/common/launchers.h. */
#ifndef CK_TRAIN_LAUNCHERS_H
#define CK_TRAIN_LAUNCHERS_H

#include "cuda/common/launch_types.h"

CK_C_BEGIN

/* ---- cuda/train/init.cu: initial values ---- */

/* Distribution of the elements of a parameter: the constant `scale`; scale * normal(0, 1); scale * uniform(-1, 1). */
enum ck_distribution { CK_DISTRIBUTION_CONSTANT, CK_DISTRIBUTION_NORMAL, CK_DISTRIBUTION_UNIFORM };
enum { CK_INIT_TILE = 4096 }; /* elements that a thread block generates */
struct ck_init_param {
    int64_t              at;         /* index of the first element in the value buffer; order in memory: K,RS,C */
    int64_t              elems;      /* K*RS*C, at least 1 */
    int64_t              first_tile; /* number of tiles of all parameters before this one in the table */
    uint32_t             RS, C;
    uint32_t             number; /* index of the parameter; part of Philox's counter */
    enum ck_distribution draw;
    float                scale;
};
/* Number of tiles of a parameter with `elems` elements. */
static inline int64_t ck_init_tiles(int64_t elems) {
    return (elems + CK_INIT_TILE - 1) / CK_INIT_TILE;
}
/* Initialises all parameters in the value buffer `values`, and sets state[CK_STATE_LOSS_SCALE] to 1. Element e (in OIHW
 * order) of a parameter comes from Philox with counter (e/4, number, purpose) and key `seed`, as in core/rng.c.
 * table[params] is in device memory; `tiles` is the number of tiles of all parameters. */
cudaError_t ck_init(const struct ck_init_param *table, int params, int64_t tiles, float *values, uint64_t seed,
                    uint32_t purpose, double *state, cudaStream_t stream);

/* ---- cuda/train/loss.cu: cross entropy of softmax, also with options (graph/ops.def) ---- */

/* Samples whose label is outside [0, classes) do not count in the loss, the metrics and the gradient. */
struct ck_loss {
    enum ck_type   type;   /* of logits and dx */
    const void    *logits; /* [samples][classes] */
    const int32_t *labels; /* [samples] */
    const int32_t *mixes;  /* [samples][CK_MIX_NUMBERS]: the target has two labels; NULL: the target has one label */
    int64_t        samples, classes;
    float          smoothing; /* label smoothing, 0 to 1 */
};
struct ck_loss_options {
    const float *class_weights; /* [classes]; NULL: 1 */
    float        gamma;         /* exponent of the focal loss; 0: cross-entropy */
    float        threshold;     /* sigmoid: targets above it become 1, all other targets 0; 0: no threshold */
    bool         sigmoid;       /* binary cross-entropy */
    bool several; /* any number of labels per sample: labels is [samples][cr_label_words(classes)], see graph.h */
};
/* Workspace of ck_loss in bytes. */
size_t ck_loss_workspace(int64_t samples);
/* metrics = before + (the mean loss times the number of valid samples, their number, correct samples, samples correct
 * in the top 5), float[4]; with `several` the last two are the number of samples whose labels are all correct and the
 * number of correct labels. metrics may be before. */
cudaError_t ck_loss(const struct ck_loss *args, const struct ck_loss_options *options, const float *before,
                    float *metrics, void *workspace, cudaStream_t stream);
/* dx = loss scale * weight * the gradient of the mean loss, [samples][classes]; of a plain loss (softmax - target) /
 * number of valid labels. The loss scale is state[CK_STATE_LOSS_SCALE]. dx may be the logits. */
cudaError_t ck_loss_grad(const struct ck_loss *args, const struct ck_loss_options *options, float weight,
                         const double *state, void *dx, cudaStream_t stream);

/* ---- cuda/train/distill.cu: knowledge distillation (graph/ops.def) ---- */

struct ck_distill {
    enum ck_type   type;           /* of x, teacher, dy, dx */
    const void    *x, *teacher;    /* [samples][elems]: logits, or features of an image */
    const int32_t *labels;         /* [samples] */
    int64_t        samples, elems; /* elems: number of classes, or H*W*C */
    float          weight, temperature;
};
/* Workspace of ck_distill in bytes. */
size_t ck_distill_workspace(int64_t samples);
/* metrics[0] = (1-weight) * before[0] + weight * temperature^2 * sum of divergences; metrics[1..3] are before[1..3].
 * metrics may be before. Samples whose label is outside [0, elems) do not count. */
cudaError_t ck_distill(const struct ck_distill *args, const float *before, float *metrics, void *workspace,
                       cudaStream_t stream);
/* dx = dy + loss scale * weight * temperature * (p - q) / number of valid labels; dx may be dy. The loss scale is
 * state[CK_STATE_LOSS_SCALE]. */
cudaError_t ck_distill_grad(const struct ck_distill *args, const double *state, const void *dy, void *dx,
                            cudaStream_t stream);
/* ---- cuda/train/sgd.cu: gradient norm, SGD ---- */

/* Workspace of ck_grad_norm in bytes. */
size_t ck_grad_norm_workspace(int64_t elems);
/* norm[0] = sum of (grad / loss scale)^2 over grad[elems]; norm[1] = 1 when a gradient or metrics[0] is not finite,
 * else 0. */
cudaError_t ck_grad_norm(const float *grad, int64_t elems, const float *metrics, const double *state, float *norm,
                         void *workspace, cudaStream_t stream);

/* The map of the parameter buffers has one byte for each block of CK_SGD_BLOCK elements. The byte is 0 when the block
 * is not updated. Otherwise it holds the flags CK_SGD_UPDATED and CK_SGD_DECAY and, from bit CK_SGD_COUNT_SHIFT on, the
 * number of parameter elements in the block minus 1. The remaining elements of the block are padding. */
enum { CK_SGD_BLOCK = 64, CK_SGD_UPDATED = 1, CK_SGD_DECAY = 2, CK_SGD_COUNT_SHIFT = 2 };
struct ck_sgd {
    float                *value, *momentum; /* [elems], updated in place */
    const float          *grad, *norm;      /* [elems]; norm: result of ck_grad_norm */
    double               *state;            /* double[8], updated in place */
    const uint8_t        *map;              /* [elems / CK_SGD_BLOCK] */
    const uint8_t        *mask;  /* [elems / 8]: value and momentum become 0 where bit i%8 of byte i/8 is 0; or NULL */
    const float          *scale; /* [elems / CK_SGD_BLOCK], factors of the learning rate; NULL: all are 1 */
    const struct ck_step *step;  /* device memory */
    int64_t               elems; /* a multiple of CK_SGD_BLOCK */
    int                   micro_batches; /* training forward passes for each update; added to CK_STATE_BATCHES */
    bool                  nesterov, moving_scale; /* moving_scale: the loss scale is dynamic */
};
/* Updates the parameters in place, then the counters in `state`. Skips the update when norm[1] is not 0. */
cudaError_t ck_sgd(const struct ck_sgd *args, cudaStream_t stream);

/* ---- cuda/train/update_rules.cu: AdamW, LARS, LAMB, norms of parameters, moving averages ---- */

struct ck_rule {
    struct ck_sgd  sgd;    /* sgd.nesterov: LARS only */
    float         *second; /* AdamW, LAMB: second moment, [elems], updated in place */
    const float   *norms;  /* LARS: result of ck_param_norms, LAMB: of ck_lamb_norms, [params][2] */
    const int32_t *owner;  /* LARS, LAMB: [elems / CK_SGD_BLOCK], the parameter whose norms scale the block; -1: none */
    double         beta2, eps, trust;
};
/* Same effect on parameters and state as ck_sgd, with the rule of the optimizer. */
cudaError_t ck_adamw(const struct ck_rule *args, cudaStream_t stream);
cudaError_t ck_lars(const struct ck_rule *args, cudaStream_t stream);
cudaError_t ck_lamb(const struct ck_rule *args, cudaStream_t stream);

enum { CK_NORM_TILE = 8192 };
struct ck_norm_tile {
    int64_t first; /* index of the first element in the parameter buffers, a multiple of CK_SGD_BLOCK */
    int32_t elems; /* 1 to CK_NORM_TILE */
};
struct ck_param_norms {
    const float               *value, *grad;
    const double              *state;
    const struct ck_norm_tile *tile;       /* [tiles], device memory */
    const int32_t             *first_tile; /* [params + 1], device memory */
    float                     *norms;      /* [params][2] */
    int                        tiles, params;
};
/* Workspace of ck_param_norms in bytes. */
size_t ck_param_norms_workspace(int tiles);
/* norms[param] = (sum of value^2, sum of (grad / loss scale)^2). The elements of a parameter are split into tiles;
 * parameter p has tile[first_tile[p]] to tile[first_tile[p + 1] - 1]. */
cudaError_t ck_param_norms(const struct ck_param_norms *args, void *workspace, cudaStream_t stream);

/* norms[param] = (sum of value^2, sum of squares of LAMB's direction: see lamb in graph/ops.def), 0 when norm[1] is not
 * 0. Tiles and workspace as in ck_param_norms; owner is not read. */
struct ck_lamb_norms {
    struct ck_rule             rule; /* the values before the update; nothing is written */
    const struct ck_norm_tile *tile;
    const int32_t             *first_tile;
    float                     *norms;
    int                        tiles, params;
};
cudaError_t ck_lamb_norms(const struct ck_lamb_norms *args, void *workspace, cudaStream_t stream);

struct ck_ema {
    const float   *value, *running, *norm; /* value[elems], running[running_elems]; norm: result of ck_grad_norm */
    const double  *state;
    float         *averages, *running_averages; /* [elems], [running_elems], updated in place */
    const uint8_t *mask;                        /* of value, as in ck_sgd; or NULL */
    int64_t        elems, running_elems;        /* multiples of CK_SGD_BLOCK */
    double         decay;                       /* weight of the old average, 0 to 1 */
    bool           warmup;                      /* the decay is smaller during the first updates */
};
/* Exponential moving averages of the parameters and of the running statistics. */
cudaError_t ck_ema(const struct ck_ema *args, cudaStream_t stream);

CK_C_END

#endif
