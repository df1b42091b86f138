/* model/model.h: [model] -> parameters and programs.
 *
 * Laws
 *   - A model is resolved once (no `auto` left) and its parameter table made once; every program of a run refers to it.
 *   - A program from cr_model_program is complete and canonical (forward, and for training gradients and update) but
 * not compiled: passes fuse, select, order and plan it. */
#ifndef CR_MODEL_H
#define CR_MODEL_H

#include "graph/graph.h"

enum { CR_STAGES_MAX = 8 };

struct cr_model {
    enum cr_block    block; /* never AUTO */
    enum cr_stem     stem;
    enum cr_shortcut shortcut;
    int              stages;
    int              depth[CR_STAGES_MAX];
    int64_t          width[CR_STAGES_MAX];
    int64_t          inner[CR_STAGES_MAX]; /* channels of a bottleneck's 3x3 */
    int              classes;
    int64_t          image_size; /* training */
    int64_t          eval_size;  /* evaluation crop */
    unsigned         frozen;     /* bit 0: stem, bit s: stage s, bit CR_STAGES_MAX+1: classifier */
    enum cr_dtype    real;       /* of activations: f32 unless cr_model_set_real says otherwise */
    int ranks; /* that train it together: programs add up metrics and, with model.sync_bn, BN's sums over them. 0: as 1
                */
    struct cr_param_store store;
};

/* Resolves [model] for a data set of `classes` classes and the picture sizes at hand. CR_ERR_CONFIG names the key. */
CR_MUST cr_status cr_model_open(const struct cr_config *config, int classes, int64_t image_size, int64_t eval_size,
                                struct cr_model *out);
/* Programs made from now on have activations of this type (f32, f16, bf16); 16-bit ones give the store a half plane. */
void cr_model_set_real(struct cr_model *model, enum cr_dtype real);
void cr_model_close(struct cr_model *model);

enum cr_program_kind {
    CR_PROGRAM_STEP,
    CR_PROGRAM_MICRO_FIRST,
    CR_PROGRAM_MICRO,
    CR_PROGRAM_MICRO_LAST,
    CR_PROGRAM_EVAL
};
/* Emits a program: eval is the forward pass with plain cross entropy; step and micro_last end with the update.
 * accumulate and ranks divide each gradient's weight: sums over both are the average. The caller frees it. */
CR_MUST cr_status cr_model_program(struct cr_model *model, const struct cr_config *config, enum cr_program_kind kind,
                                   int64_t batch, struct cr_program *out);

/* The table at the start of a run: layer, output shape, parameters, GFLOPs (multiply-add = 2) of one picture, from the
 * eval program. */
void cr_model_table(const struct cr_model *model, const struct cr_program *eval, struct cr_text *out);
/* Multiply-adds x 2 of all convolutions and the classifier for one picture. */
double cr_model_flops(const struct cr_program *eval);

#endif
