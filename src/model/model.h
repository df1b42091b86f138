/* model/model.h: builds the parameter table and the programs of a network from the configuration section [model].
 *
 * Invariants
 *   - A model is resolved once: no value is `auto` afterwards. All programs of a run share its parameter table.
 *   - cr_model_program returns a complete program (forward; for training also gradients and update) that is not
 *     compiled. Compiler passes fuse ops, choose kernels, schedule the ops and plan the memory. */
#ifndef CR_MODEL_H
#define CR_MODEL_H

#include "config/config.h"
#include "graph/graph.h"
#include "layers/layer.h"

enum { CR_STAGES_MAX = 8, CR_STEM_CONVS = 3 };

struct cr_model {
    enum cr_block    block; /* resolved, never AUTO */
    enum cr_stem     stem;
    enum cr_shortcut shortcut;
    int              stages;
    int              depth[CR_STAGES_MAX];
    int64_t          width[CR_STAGES_MAX];
    int64_t          inner[CR_STAGES_MAX]; /* channels of a bottleneck's 3x3 convolution */
    int64_t          groups;               /* of a bottleneck's 3x3 convolution */
    /* With model.channels: channels of the convolutions of a deep stem (others: the last one only), and of the stages.
     * block_widths, for all residual blocks, is owned; NULL without model.channels, and the others are unused. */
    int64_t                 stem_width[CR_STEM_CONVS];
    struct cr_stage_widths  widths[CR_STAGES_MAX];
    struct cr_block_widths *block_widths;
    int                     classes;
    int64_t                 image_size; /* side of training images, in pixels */
    int64_t                 eval_size;  /* side of evaluation images, in pixels */
    unsigned                frozen;     /* bit 0: stem, bit s: stage s, bit CR_STAGES_MAX+1: classifier */
    enum cr_dtype           real;       /* type of activations; f32 unless cr_model_set_real changes it */
    bool                    f32_input;  /* evaluation programs read normalised images, f32 N,H,W,3, instead of bytes */
    bool                    keep_features; /* the host reads the pooled features of evaluation programs */
    bool                    keep_maps;     /* the host reads the output of the last stage of evaluation programs */
    bool                    calibrate;     /* the host reads the tensors that a quantised network quantises */
    float                  *class_weights; /* of the loss in training programs, [classes], owned; NULL: none */
    struct cr_teacher      *teacher;       /* training programs learn from it (model/teacher.h); NULL: none. Borrowed */
    int                   ranks; /* number of ranks; programs sum metrics, and with model.sync_bn BN sums, over them */
    struct cr_param_store store;
};

/* Resolves [model] for a dataset with `classes` classes and these image sizes (side in pixels); the caller frees *out
 * with cr_model_close. CR_ERR_CONFIG names the key. */
CR_MUST cr_status cr_model_open(const struct cr_config *config, int classes, int64_t image_size, int64_t eval_size,
                                struct cr_model *out);
/* The same after `epoch` epochs of training, which decide by model.unfreeze what is frozen. */
CR_MUST cr_status cr_model_open_at(const struct cr_config *config, int64_t epoch, int classes, int64_t image_size,
                                   int64_t eval_size, struct cr_model *out);
/* Sets the type of activations (f32, f16, bf16) of programs that are built later. A 16-bit type adds the half buffer to
 * the parameter store. */
void cr_model_set_real(struct cr_model *model, enum cr_dtype real);
void cr_model_close(struct cr_model *model);

enum cr_program_kind {
    CR_PROGRAM_STEP,        /* forward, backward and update of one batch */
    CR_PROGRAM_MICRO_FIRST, /* micro-batches: assigns the gradients ... */
    CR_PROGRAM_MICRO,       /* ... adds to the gradients ... */
    CR_PROGRAM_MICRO_LAST,  /* ... adds and updates */
    CR_PROGRAM_EVAL         /* forward with cross entropy */
};
/* Builds a program; the caller frees it with cr_program_free. The weight of each gradient is 1 / (accumulate * ranks),
 * so that sums over micro-batches and ranks are averages. */
CR_MUST cr_status cr_model_program(struct cr_model *model, const struct cr_config *config, enum cr_program_kind kind,
                                   int64_t batch, struct cr_program *out);

/* Fails with CR_ERR_CONFIG when the network has grouped convolutions: `what` ("pruned", "quantised") has kernels for
 * plain ones only. */
CR_MUST cr_status cr_model_needs_plain(const struct cr_model *model, const struct cr_config *config, const char *what);

/* Appends the layer table that a run logs at its start: layer, output shape, parameters, MFLOP for one image (a
 * multiply-add counts as 2). */
void cr_model_table(const struct cr_model *model, const struct cr_program *eval, struct cr_text *out);
/* Floating-point operations of all convolutions and the classifier for one image. */
double cr_model_flops(const struct cr_program *eval);

#endif
