/* training/lr_find.c: trains with a growing learning rate. See training/lr_find.h. */
#include "training/lr_find.h"

#include "session/saved_model.h"
#include "training/run.h"

#include <inttypes.h>
#include <math.h>

enum { LOG_EVERY = 10 };

/* ---- the curve ---- */

cr_status cr_lr_curve_open(int64_t steps, struct cr_lr_curve *out) {
    *out = (struct cr_lr_curve){.lowest = -1, .steepest = -1, .window = steps * CR_LR_WINDOW_PERCENT / 100};
    CR_ALLOC(out->lr, (size_t)steps);
    CR_ALLOC(out->loss, (size_t)steps);
    CR_ALLOC(out->smoothed, (size_t)steps);
    return CR_OK;
}

void cr_lr_curve_free(struct cr_lr_curve *curve) {
    cr_free(curve->lr);
    cr_free(curve->loss);
    cr_free(curve->smoothed);
    *curve = (struct cr_lr_curve){.lowest = -1, .steepest = -1};
}

bool cr_lr_curve_add(struct cr_lr_curve *c, double lr, double loss) {
    const int64_t i = c->count;
    if (!isfinite(loss)) return c->diverged = true;
    /* The average of i losses times its correction 1 - beta^i gives back the sum that the average is made of. */
    const double before = i ? c->smoothed[i - 1] * (1 - pow(CR_LR_BETA, (double)i)) : 0;
    c->lr[i]            = lr;
    c->loss[i]          = loss;
    c->smoothed[i]      = (CR_LR_BETA * before + (1 - CR_LR_BETA) * loss) / (1 - pow(CR_LR_BETA, (double)(i + 1)));
    c->count++;
    if (c->lowest < 0 || c->smoothed[i] < c->smoothed[c->lowest]) c->lowest = i;
    c->diverged = c->smoothed[i] > CR_LR_STOP_FACTOR * c->smoothed[c->lowest];
    return c->diverged;
}

/* Slope of the losses [count] over their index by least squares, divided by its standard error. */
static double slope_in_errors(const double *loss, int64_t count) {
    const double middle = (double)(count - 1) / 2;
    double       mean = 0, xx = 0, xy = 0, residual = 0;
    for (int64_t k = 0; k < count; k++) mean += loss[k] / (double)count;
    for (int64_t k = 0; k < count; k++) {
        const double x = (double)k - middle;
        xx += x * x;
        xy += x * (loss[k] - mean);
    }
    const double slope = xy / xx;
    for (int64_t k = 0; k < count; k++) {
        const double off = loss[k] - mean - slope * ((double)k - middle);
        residual += off * off;
    }
    return slope / (sqrt(residual / (double)(count - 2) / xx) + 1e-30);
}

void cr_lr_curve_finish(struct cr_lr_curve *c) {
    const int64_t w     = c->window;
    double        least = CR_LR_SIGNIFICANT;
    c->steepest         = -1;
    for (int64_t i = w; i < c->count - w; i++) {
        const double slope = slope_in_errors(c->loss + i - w, 2 * w + 1);
        if (slope >= least) continue;
        least       = slope;
        c->steepest = i;
    }
}

/* ---- the training ---- */

struct finder {
    const struct cr_config     *config;
    const struct cr_lr_options *options;
    struct cr_dataset          *dataset;
    struct cr_session           session;
    struct cr_loader           *loader;
    double                      lr_factor; /* of optim.lr, by optim.lr_scaling */
};

static cr_status open_session(struct finder *f) {
    const struct cr_config *c = f->config;
    CR_TRY(cr_state_weights_there(c));
    const struct cr_session_options options = {.train      = true,
                                               .execute    = true,
                                               .masks_from = c->model.weights,
                                               .batch_max  = cr_dataset_count(f->dataset) / c->train.accumulate,
                                               .classes    = cr_dataset_classes(f->dataset)};
    CR_TRY(cr_session_open(c, &options, &f->session));
    cr_log(CR_LOG_INFO, "device: %s", f->session.device->caps.text);
    CR_TRY(cr_session_init(&f->session));
    return *c->model.weights ? cr_session_load_weights(&f->session, c->model.weights, false) : CR_OK;
}

static cr_status open_loader(struct finder *f) {
    const struct cr_config  *c       = f->config;
    const struct cr_session *s       = &f->session;
    struct cr_loader_options options = cr_loader_options_from(c, CR_SPLIT_TRAIN, &s->prepare_train, s->state.batch);
    options.drop_last                = c->data.drop_last;
    options.corrupt_fatal            = c->data.corrupt == CR_CORRUPT_FATAL;
    if (cr_dataset_count(f->dataset) < f->session.state.batch)
        return cr_config_fail(c, "train.batch", "%" PRId64 " images, but the training set has %" PRId64 ": lower it",
                              f->session.state.batch, cr_dataset_count(f->dataset));
    f->lr_factor = cr_training_lr_factor(c, f->session.state.batch * c->train.accumulate);
    return cr_loader_open(f->dataset, &options, &f->loader);
}

/* One update. *loss is the mean over its images, or NAN when a gradient is not finite, so that the update was not
 * applied. A dynamic loss scale that is still being adjusted does not count. */
static cr_status train_step(struct finder *f, int64_t step, double lr, double *loss) {
    const struct cr_config    *c     = f->config;
    const int                  parts = (int)c->train.accumulate;
    const struct cr_step_block block = {.lr           = (float)(f->lr_factor * lr),
                                        .momentum     = (float)c->optim.momentum,
                                        .weight_decay = (float)c->optim.weight_decay,
                                        .clip_norm    = (float)c->train.clip_norm,
                                        .step         = step,
                                        .seed         = (uint64_t)c->train.seed};
    struct cr_exec_result      r     = {0};
    double                     sum = 0, images = 0;
    for (int i = 0; i < parts; i++) {
        struct cr_exec *exec = f->session.train_exec[cr_session_program_at(&f->session, 0, i)];
        CR_TRY(cr_session_run_next(f->loader, exec, &block, NULL));
        CR_TRY(cr_exec_result(exec, cr_exec_runs(exec), &r));
        sum += r.loss_sum;
        images += r.valid;
    }
    const bool adjusting = f->session.model.real == CR_F16 && c->train.loss_scale == 0 && r.loss_scale > 2;
    *loss                = r.nonfinite && !adjusting ? (double)NAN : sum / CR_MAX(images, 1);
    return CR_OK;
}

static cr_status run_steps(struct finder *f, struct cr_lr_curve *curve) {
    const struct cr_lr_options *o = f->options;
    for (int64_t i = 0; i < o->steps && !curve->diverged; i++) {
        const double lr = o->min_lr * pow(o->max_lr / o->min_lr, (double)i / (double)(o->steps - 1));
        double       loss;
        CR_TRY(train_step(f, i, lr, &loss));
        cr_lr_curve_add(curve, lr, loss);
        if ((i + 1) % LOG_EVERY == 0 && !curve->diverged)
            cr_log(CR_LOG_INFO, "step %" PRId64 " of %" PRId64 ": learning rate %.3g, loss %.4f", i + 1, o->steps, lr,
                   curve->smoothed[i]);
    }
    cr_lr_curve_finish(curve);
    return CR_OK;
}

cr_status cr_lr_find(const struct cr_config *config, const struct cr_lr_options *options, struct cr_lr_curve *out) {
    struct finder f = {.config = config, .options = options};
    cr_status     status;
    *out = (struct cr_lr_curve){.lowest = -1, .steepest = -1};
    CR_TRY(cr_training_check(config));
    CR_TRY_OUT(cr_lr_curve_open(options->steps, out));
    CR_TRY_OUT(cr_dataset_open(config, CR_SPLIT_TRAIN, &f.dataset));
    if (*config->model.weights && config->model.head != CR_HEAD_NEW)
        CR_TRY_OUT(cr_saved_model_number_classes(config, f.dataset, false, CR_RUN_SAME_HEAD));
    CR_TRY_OUT(open_session(&f));
    CR_TRY_OUT(open_loader(&f));
    CR_TRY_OUT(run_steps(&f, out));
out:
    cr_loader_close(f.loader);
    cr_session_close(&f.session);
    cr_dataset_close(f.dataset);
    return status;
}
