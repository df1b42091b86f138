/* session/scores/temperature.h: temperature scaling (Guo et al. 2017): one number T > 0 that divides all logits, so
 * that the probabilities fit the labels better. The predicted classes stay the same. */
#ifndef CR_TEMPERATURE_H
#define CR_TEMPERATURE_H

#include "core/base.h"

/* Logits and labels of an evaluation. */
struct cr_logit_table {
    int      classes;
    int64_t  images, capacity;
    int64_t  expected; /* images of the evaluation, for which memory is taken with the first one */
    float   *logits;   /* [images][classes] */
    int32_t *labels;   /* [images] */
};

/* Adds one image; copies the logits. Labels that are no class, and logits that are not finite, are ignored.
 * CR_ERR_MEMORY. */
CR_MUST cr_status cr_logit_table_add(struct cr_logit_table *table, int32_t label, const float *logits);
void              cr_logit_table_free(struct cr_logit_table *table);

struct cr_temperature {
    double temperature;
    double loss;              /* mean cross-entropy of the scaled logits */
    double calibration_error; /* of their probabilities; session/scores/confusion.h */
};

/* The scores for a given temperature. NAN without images. */
struct cr_temperature cr_temperature_scores(const struct cr_logit_table *table, double temperature);
/* The temperature from 0.01 to 100 with the least loss. 1 without images. */
struct cr_temperature cr_temperature_fit(const struct cr_logit_table *table);

#endif
