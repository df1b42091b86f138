/* training/lr_find.h: the learning-rate finder: short trainings of the same network on the same images, one for each
 * rate.
 *
 * The range test of fastai and PyTorch Lightning lets the rate grow within one training and takes the steepest point of
 * its loss. The loss of one batch differs from that of the next by more than a rate changes it in the few steps that it
 * lasts, and a network with batch normalisation does not diverge at large rates: the steepest point is mostly noise.
 * Here each rate trains on its own, from the same weights, and falls to 0 along a cosine, as in a whole training. All
 * see the same batches, so that the loss of a batch is compared with the loss of the untrained network on this batch:
 * the noise of the batches cancels. */
#ifndef CR_LR_FIND_H
#define CR_LR_FIND_H

#include "config/config.h"

enum {
    CR_LR_STEPS_MIN     = 20,
    CR_LR_MEASURED      = 3,  /* the last 1/3 of the steps are compared */
    CR_LR_INTERVALS_MAX = 12, /* between the rates of the first pass */
    CR_LR_TRAININGS_MAX = CR_LR_INTERVALS_MAX + 3
};
#define CR_LR_SIGNIFICANT 3.0 /* a descent of fewer standard errors is noise */
#define CR_LR_AS_GOOD 0.8     /* rates with this fraction of the largest descent are about as good as the best */
#define CR_LR_TRAINS 0.5      /* rates with this fraction of the largest descent train well */

struct cr_lr_options {
    double  min_lr, max_lr; /* smallest and largest rate, as values of optim.lr; 0 < min_lr < max_lr */
    int64_t steps;          /* of the training at each rate; at least CR_LR_STEPS_MIN */
};

/* One training. The descent of a batch is the loss of the untrained network minus the loss of the training. */
struct cr_lr_training {
    double lr;
    double loss;           /* mean over the measured steps */
    double descent, error; /* mean over the measured steps, and its standard error */
    bool   diverged;       /* a loss or gradient was not finite: loss, descent and error are NAN */
};

struct cr_lr_found {
    double                start_loss;                    /* of the untrained network on the measured batches */
    struct cr_lr_training training[CR_LR_TRAININGS_MAX]; /* by increasing rate */
    int                   count;
    int                   best;      /* the suggestion; -1: no descent is significant */
    int                   low, high; /* the rates around it that train well */
};

/* Trains a new network, or one with the weights of model.weights, in memory only: no run folder is read or written.
 * The first pass has at most a factor of 10 between two rates and ends after a rate that clearly trains worse than a
 * smaller one; the second pass tries the rates between the best and its neighbours. CR_ERR_NUMERIC: the loss of the
 * untrained network is not finite. */
CR_MUST cr_status cr_lr_find(const struct cr_config *config, const struct cr_lr_options *options,
                             struct cr_lr_found *out);

#endif
