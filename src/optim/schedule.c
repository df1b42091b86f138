/* schedule.c: the learning rate over time, per update rather than per epoch. */
#include "optim/optim.h"

#include <math.h>

static double after_falls(const struct cr_config *c, double epoch) {
    const double tiny  = 1e-9; /* a milestone reached exactly counts, whatever the division rounded to */
    int          falls = 0;
    if (c->schedule.kind == CR_SCHEDULE_STEP)
        falls = (int)floor(epoch / c->schedule.step_epochs + tiny);
    else
        for (int i = 0; i < c->schedule.milestones.count; i++) falls += epoch + tiny >= c->schedule.milestones.at[i];
    return c->optim.lr * pow(c->schedule.gamma, falls);
}

static const double pi = 3.14159265358979323846;

/* How much of what follows the warm-up is done: 0 to 1. */
static double done(const struct cr_config *c, double epoch) {
    double length = (double)c->train.epochs - c->schedule.warmup_epochs;
    double t      = length > 0 ? (epoch - c->schedule.warmup_epochs) / length : 1;
    return fmin(fmax(t, 0), 1);
}

/* From `first` (t = 0) to `last` (t = 1) along half a cosine. */
static double on_cosine(double first, double last, double t) {
    return last + (first - last) * 0.5 * (1 + cos(pi * t));
}

/* Two halves of a cosine, as PyTorch's OneCycleLR: `low` to `high` at `peak` of the run, then to `end` at the last
 * update. */
static double on_cycle(const struct cr_config *c, int64_t step, int64_t steps_per_epoch, double low, double high,
                       double end) {
    const double last = (double)(c->train.epochs * steps_per_epoch - 1), turn = c->schedule.peak * (last + 1) - 1;
    const double at = fmin((double)step, last);
    if (at <= turn) return on_cosine(low, high, turn > 0 ? at / turn : 1);
    return on_cosine(high, end, last > turn ? (at - fmax(turn, 0)) / (last - fmax(turn, 0)) : 1);
}

double cr_schedule_lr(const struct cr_config *c, int64_t step, int64_t steps_per_epoch) {
    double epoch = (double)step / (double)steps_per_epoch;
    if (epoch < c->schedule.warmup_epochs) {
        double share = epoch / c->schedule.warmup_epochs;
        return c->optim.lr * (c->schedule.warmup_start + (1 - c->schedule.warmup_start) * share);
    }
    switch (c->schedule.kind) {
    case CR_SCHEDULE_CONSTANT: return c->optim.lr;
    case CR_SCHEDULE_STEP:
    case CR_SCHEDULE_MULTISTEP: return after_falls(c, epoch);
    case CR_SCHEDULE_COSINE: return on_cosine(c->optim.lr, c->schedule.min_lr, done(c, epoch));
    case CR_SCHEDULE_POLYNOMIAL:
        return c->schedule.min_lr + (c->optim.lr - c->schedule.min_lr) * pow(1 - done(c, epoch), c->schedule.power);
    case CR_SCHEDULE_ONE_CYCLE: {
        const double low = c->optim.lr / c->schedule.div_factor;
        return on_cycle(c, step, steps_per_epoch, low, c->optim.lr, low / c->schedule.final_div_factor);
    }
    }
    return c->optim.lr;
}

double cr_schedule_momentum(const struct cr_config *c, int64_t step, int64_t steps_per_epoch) {
    if (c->schedule.kind != CR_SCHEDULE_ONE_CYCLE || c->schedule.low_momentum == 0) return c->optim.momentum;
    return on_cycle(c, step, steps_per_epoch, c->optim.momentum, c->schedule.low_momentum, c->optim.momentum);
}
