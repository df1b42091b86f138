/* training/lr_find.h: the learning-rate finder: a short training whose learning rate grows exponentially.
 *
 * As in fastai and PyTorch Lightning, the loss is smoothed by an exponential moving average without bias, the run
 * ends when the smoothed loss exceeds a multiple of its lowest value, and the suggestion is the rate of the steepest
 * descent. The descent is measured differently: these programs take the difference of two neighbours of the smoothed
 * loss, which is mostly noise for small batches. Here it is the slope of the losses in a window around the step,
 * divided by its standard error, so that the noise of the loss is the unit. */
#ifndef CR_LR_FIND_H
#define CR_LR_FIND_H

#include "config/config.h"

enum { CR_LR_STEPS_MIN = 20, CR_LR_WINDOW_PERCENT = 15 }; /* steps on each side of a step, in percent of all steps */
#define CR_LR_BETA 0.98                                   /* decay of the moving average of the loss */
#define CR_LR_STOP_FACTOR 4.0                             /* divergence: smoothed loss over its lowest value */
#define CR_LR_SIGNIFICANT (-3.0)                          /* slopes in standard errors above this value are noise */

struct cr_lr_options {
    double  min_lr, max_lr; /* of the first and of the last step, as values of optim.lr; 0 < min_lr < max_lr */
    int64_t steps;          /* at least CR_LR_STEPS_MIN */
};

struct cr_lr_curve {
    int64_t count;                /* steps that gave a finite loss */
    double *lr, *loss, *smoothed; /* [count]; lr as a value of optim.lr */
    bool    diverged;             /* ended before the last step */
    int64_t lowest;               /* step with the lowest smoothed loss; -1 without steps */
    int64_t window;               /* steps on each side of a step, for its slope */
    int64_t steepest;             /* step of the steepest descent; -1 when no descent is significant */
};

/* Trains a new network, or one with the weights of model.weights, in memory only: no run folder is read or written. The
 * caller frees *out with cr_lr_curve_free, also after a failure. */
CR_MUST cr_status cr_lr_find(const struct cr_config *config, const struct cr_lr_options *options,
                             struct cr_lr_curve *out);
void              cr_lr_curve_free(struct cr_lr_curve *curve);

/* The parts of cr_lr_find that compute the curve. */
/* Allocates a curve of at most `steps` steps. */
CR_MUST cr_status cr_lr_curve_open(int64_t steps, struct cr_lr_curve *out);
/* Adds the loss of a step and returns true when the loss has diverged, which ends the run. */
bool cr_lr_curve_add(struct cr_lr_curve *curve, double lr, double loss);
/* Sets `steepest`. */
void cr_lr_curve_finish(struct cr_lr_curve *curve);

#endif
