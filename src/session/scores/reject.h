/* session/scores/reject.h: a score of how well an image fits the classes of a network, and the score below which an
 * image is rejected as one of none of them.
 *
 * The file reject.safetensors in a checkpoint folder holds what was chosen for its weights. Its metadata:
 *   score      "logit", "energy" or "distance"
 *   threshold  an image is rejected if its score is less
 *   rate       fraction of the validation images that are rejected
 *   images     their number
 *   classes    of the network
 *   weights    name of their file: model.safetensors, or ema.safetensors for the moving averages
 * and with the score "distance" the tensor class_means, f32 [classes][features], vectors of length 1. */
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
    double               threshold, rate;
    int64_t              images;
    int                  classes, features; /* features: 0 but for CR_REJECT_DISTANCE */
    float               *means;             /* [classes][features] of length 1, owned; else NULL */
};

/* The score of one image: logits [classes], features [features] (NULL but for CR_REJECT_DISTANCE). Larger values fit
 * the classes better. */
double cr_reject_score(const struct cr_reject *reject, enum cr_reject_score score, const float *logits,
                       const float *features);

/* Reads the file next to the weights. *found is false without one, or if it was chosen for other weights of the
 * checkpoint (moving averages or not); the caller frees *out with cr_reject_free, and
 * compares out->features with the network. CR_ERR_FORMAT: damaged, or of a network with another number of classes. */
CR_MUST cr_status cr_reject_load(const char *weights, int classes, struct cr_reject *out, bool *found);
/* Writes the file into the checkpoint folder of the weights; *path [CR_PATH_MAX] becomes its name. CR_ERR_CONFIG: the
 * weights are in no checkpoint. CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_reject_save(const char *weights, const struct cr_reject *reject, char *path);
void              cr_reject_free(struct cr_reject *reject);

/* ---- choosing ---- */

/* The score that divides score[count], which is sorted in ascending order, so that the fraction `rate` of them is
 * less. */
double cr_reject_quantile(const double *score, int64_t count, double rate);
/* The score that divides two sorted lists best: the mean of the fractions on the right side, of images at or above it
 * and of outliers below, is largest. */
double cr_reject_divide(const double *image, int64_t images, const double *outlier, int64_t outliers);
/* The fraction of sorted scores that are less than the threshold. */
double cr_reject_fraction(const double *score, int64_t count, double threshold);
/* Area under the ROC curve: the probability that an image has a larger score than an outlier; equal ones count half. */
double cr_reject_auroc(const double *image, int64_t images, const double *outlier, int64_t outliers);

/* The means of the features of each class, of which only the directions count. */
struct cr_reject_means {
    int     classes, features;
    double *sum; /* [classes][features] of features of length 1 */
};
CR_MUST cr_status cr_reject_means_open(int classes, int features, struct cr_reject_means *out);
void              cr_reject_means_add(struct cr_reject_means *means, int label, const float *features);
/* Sets the means of *reject. A class without images gets zeros: nothing is near it. CR_ERR_MEMORY. */
CR_MUST cr_status cr_reject_means_finish(const struct cr_reject_means *means, struct cr_reject *reject);
void              cr_reject_means_close(struct cr_reject_means *means);

#endif
