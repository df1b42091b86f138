/* optim/schedule.c: the learning rate (warm-up, step, cosine, polynomial, one-cycle) and momentum of every update. */
#include "config/config.h"
#include "optim/optim.h"

#include <math.h>

static double after_decays(const struct cr_config *c, double epoch) {
    const double tiny   = 1e-9; /* a milestone that is reached exactly counts in spite of rounding */
    int          decays = 0;
    if (c->schedule.kind == CR_SCHEDULE_STEP)
        decays = (int)floor(epoch / c->schedule.step_epochs + tiny);
    else
        for (int i = 0; i < c->schedule.milestones.count; i++) decays += epoch + tiny >= c->schedule.milestones.at[i];
    return c->optim.lr * pow(c->schedule.gamma, decays);
}

static const double pi = 3.14159265358979323846;

/* Progress of the epochs after warm-up: 0 to 1. */
static double progress(const struct cr_config *c, double epoch) {
    double length = (double)c->train.epochs - c->schedule.warmup_epochs;
    double t      = length > 0 ? (epoch - c->schedule.warmup_epochs) / length : 1;
    return fmin(fmax(t, 0), 1);
}

/* Half a cosine from `first` (t = 0) to `last` (t = 1). */
static double anneal(double first, double last, double t) {
    return last + (first - last) * 0.5 * (1 + cos(pi * t));
}

/* Two half cosines, as PyTorch's OneCycleLR: from `low` to `high` at the fraction schedule.peak of the run, then to
 * `end` at the last update. */
static double one_cycle(const struct cr_config *c, int64_t step, int64_t steps_per_epoch, double low, double high,
                        double end) {
    const double last = (double)(c->train.epochs * steps_per_epoch - 1), peak_step = c->schedule.peak * (last + 1) - 1;
    const double at = fmin((double)step, last);
    if (at <= peak_step) return anneal(low, high, peak_step > 0 ? at / peak_step : 1);
    return anneal(high, end, last > peak_step ? (at - fmax(peak_step, 0)) / (last - fmax(peak_step, 0)) : 1);
}

double cr_schedule_lr(const struct cr_config *c, int64_t step, int64_t steps_per_epoch) {
    double epoch = (double)step / (double)steps_per_epoch;
    if (epoch < c->schedule.warmup_epochs) {
        double fraction = epoch / c->schedule.warmup_epochs;
        return c->optim.lr * (c->schedule.warmup_start + (1 - c->schedule.warmup_start) * fraction);
    }
    switch (c->schedule.kind) {
    case CR_SCHEDULE_CONSTANT: return c->optim.lr;
    case CR_SCHEDULE_STEP:
    case CR_SCHEDULE_MULTISTEP: return after_decays(c, epoch);
    case CR_SCHEDULE_COSINE: return anneal(c->optim.lr, c->schedule.min_lr, progress(c, epoch));
    case CR_SCHEDULE_POLYNOMIAL:
        return c->schedule.min_lr + (c->optim.lr - c->schedule.min_lr) * pow(1 - progress(c, epoch), c->schedule.power);
    case CR_SCHEDULE_ONE_CYCLE: {
        const double low = c->optim.lr / c->schedule.div_factor;
        return one_cycle(c, step, steps_per_epoch, low, c->optim.lr, low / c->schedule.final_div_factor);
    }
    }
    return c->optim.lr;
}

double cr_schedule_momentum(const struct cr_config *c, int64_t step, int64_t steps_per_epoch) {
    if (c->schedule.kind != CR_SCHEDULE_ONE_CYCLE || c->schedule.low_momentum == 0) return c->optim.momentum;
    return one_cycle(c, step, steps_per_epoch, c->optim.momentum, c->schedule.low_momentum, c->optim.momentum);
}
