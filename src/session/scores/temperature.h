/* session/scores/temperature.h: temperature scaling (Guo et al. 2017): one number T > 0 that divides all logits, so
 * that the probabilities fit the labels better. The predicted classes stay the same. */
#ifndef CR_TEMPERATURE_H
#define CR_TEMPERATURE_H

#include "session/labels/label_scores.h"

/* Adds one image to a table with one word of labels per image. Labels that are no class, and logits that are not
 * finite, are ignored. CR_ERR_MEMORY. */
CR_MUST cr_status cr_temperature_add(struct cr_label_scores *table, int32_t label, const float *logits);

struct cr_temperature {
    double temperature;
    double loss;              /* mean cross-entropy of the scaled logits */
    double calibration_error; /* of their probabilities; session/scores/confusion.h */
};

/* The scores for a given temperature. NAN without images. */
struct cr_temperature cr_temperature_scores(const struct cr_label_scores *table, double temperature);
/* The temperature from 0.01 to 100 with the least loss. 1 without images. */
struct cr_temperature cr_temperature_fit(const struct cr_label_scores *table);

#endif
