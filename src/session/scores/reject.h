/* session/scores/reject.h: a score of how well an image fits the classes of a network, and the score below which an
 * image is rejected as one of none of them.
 *
 * The file reject.safetensors in a checkpoint folder holds what was chosen for its weights, and reject-ema.safetensors
 * what was chosen for its moving averages, whose scores differ: the tensor class_means, f32 [classes][features],
 * vectors of length 1, and the metadata
 *   score      "logit", "energy" or "distance"
 *   threshold  an image is rejected if its score is less */
#ifndef CR_REJECT_H
#define CR_REJECT_H

#include "core/base.h"

enum cr_reject_score {
    CR_REJECT_LOGIT,    /* the largest logit */
    CR_REJECT_ENERGY,   /* log of the sum of exp(logit) (Liu et al. 2020: the energy, with the other sign) */
    CR_REJECT_DISTANCE, /* the cosine of the features and the nearest mean of a class, minus 1: the cosine distance,
                         * with the other sign */
    CR_REJECT_SCORES
};
/* "logit", "energy", "distance" */
const char *cr_reject_score_name(enum cr_reject_score score);

struct cr_reject {
    enum cr_reject_score score;
    double               threshold;
    int                  classes, features;
    float               *means; /* [classes][features] of length 1, owned; NULL: nothing was chosen */
};

/* The score of one image: logits [classes], features [features] (NULL but for CR_REJECT_DISTANCE). Larger values fit
 * the classes better. */
double cr_reject_score(const struct cr_reject *reject, enum cr_reject_score score, const float *logits,
                       const float *features);

/* Reads the file next to the weights, if there is one. The caller frees *out with cr_reject_free, and compares
 * out->features with the network. CR_ERR_FORMAT: damaged, or of a network with another number of classes. */
CR_MUST cr_status cr_reject_load(const char *weights, int classes, struct cr_reject *out);
/* Writes the file into the checkpoint folder of the weights; *path [CR_PATH_MAX] becomes its name. CR_ERR_CONFIG: the
 * weights are in no checkpoint. CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_reject_save(const char *weights, const struct cr_reject *reject, char *path);
void              cr_reject_free(struct cr_reject *reject);

#endif
