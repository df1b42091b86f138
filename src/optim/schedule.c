/* schedule.c: the learning rate over time, per update rather than per epoch. */
#include "optim/optim.h"

#include <math.h>

static double after_falls(const struct cr_config *c, double epoch) {
    const double tiny = 1e-9; /* a milestone reached exactly counts, whatever the division rounded to */
    int          falls = 0;
    if (c->schedule.kind == CR_SCHEDULE_STEP) falls = (int)floor(epoch / c->schedule.step_epochs + tiny);
    else
        for (int i = 0; i < c->schedule.milestones.count; i++) falls += epoch + tiny >= c->schedule.milestones.at[i];
    return c->optim.lr * pow(c->schedule.gamma, falls);
}

static double on_cosine(const struct cr_config *c, double epoch) {
    double length = (double)c->train.epochs - c->schedule.warmup_epochs;
    double t      = length > 0 ? (epoch - c->schedule.warmup_epochs) / length : 1;
    t             = fmin(fmax(t, 0), 1);
    return c->schedule.min_lr + (c->optim.lr - c->schedule.min_lr) * 0.5 * (1 + cos(3.14159265358979323846 * t));
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
    case CR_SCHEDULE_COSINE: return on_cosine(c, epoch);
    }
    return c->optim.lr;
}
