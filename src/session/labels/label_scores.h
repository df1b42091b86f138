/* session/labels/label_scores.h: evaluation of networks with several labels per image (data.multi_label): average
 * precision of each class, and the thresholds above which a label is predicted. */
#ifndef CR_LABEL_SCORES_H
#define CR_LABEL_SCORES_H

#include "comm/comm.h"
#include "core/base.h"

/* Logits and labels of an evaluation. */
struct cr_label_scores {
    int         classes, words; /* words of labels per image: graph/loss.h */
    int64_t     images, capacity;
    int64_t     expected; /* images of the evaluation, for which memory is taken with the first one */
    int         copies;   /* of this memory on this host, with those of other ranks (cr_label_scores_gather) */
    const char *advice;   /* what to do when they need more memory than is free */
    float      *logits;   /* [images][classes] */
    int32_t    *labels;   /* [images][words] */
};

/* CR_ERR_MEMORY when the memory that is free cannot hold `images` images. */
CR_MUST cr_status cr_label_scores_check(const struct cr_label_scores *scores, int64_t images);
/* Adds one image; copies the logits and labels. CR_ERR_MEMORY. */
CR_MUST cr_status cr_label_scores_add(struct cr_label_scores *scores, const int32_t *labels, const float *logits);
/* Collects the images of all ranks on every rank. */
CR_MUST cr_status cr_label_scores_gather(struct cr_comm *comm, struct cr_label_scores *scores);
void              cr_label_scores_free(struct cr_label_scores *scores);

struct cr_label_score {
    int64_t images;    /* with this label */
    double  ap;        /* average precision; NAN without images */
    double  threshold; /* probability above which the label is predicted so that F1 is largest; 0.5 without images */
    double  f1;        /* with this threshold */
};
/* The average precision is that of scikit-learn's average_precision_score: the sum over the distinct logits, in
 * descending order, of (recall - recall before) * precision. out: [classes]. CR_ERR_MEMORY. */
CR_MUST cr_status cr_label_scores_classes(const struct cr_label_scores *scores, struct cr_label_score *out);
/* The mean over the classes that have images (macro mean); NAN when none has. */
double cr_label_scores_map(const struct cr_label_score *score, int classes);

/* Predictions of one class with a given threshold. */
struct cr_label_counts {
    int64_t images, predicted, correct; /* correct: predicted images that have the label */
};
struct cr_label_counts cr_label_scores_count(const struct cr_label_scores *scores, int class_index, double threshold);
/* The harmonic mean of precision and recall; 0 where there is no correct prediction. */
double cr_label_f1(const struct cr_label_counts *counts);
/* 1 / (1 + exp(-logit)) */
double cr_label_probability(double logit);

#endif
