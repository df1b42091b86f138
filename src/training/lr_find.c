/* training/lr_find.c: the learning-rate finder: short trainings with several learning rates. See training/lr_find.h. */
#include "training/lr_find.h"

#include "session/saved_model.h"
#include "training/run.h"

#include <inttypes.h>
#include <math.h>

/* ---- the network and its images ---- */

struct finder {
    const struct cr_config     *config;
    const struct cr_lr_options *options;
    struct cr_dataset          *dataset;
    struct cr_session           session;
    char                       *start; /* the parameter store before the first step, [store_bytes] */
    size_t                      store_bytes;
    double                      lr_factor; /* of optim.lr, by optim.lr_scaling */
    int64_t                     measured;  /* number of steps at the end that are compared */
    double                     *untrained; /* [measured] losses of the untrained network */
    double                     *losses;    /* [measured] of the training at hand */
};

static cr_status open_session(struct finder *f) {
    const struct cr_config *c = f->config;
    CR_TRY(cr_state_weights_there(c));
    const struct cr_session_options options = {.train      = true,
                                               .execute    = true,
                                               .masks_from = c->model.weights,
                                               .batch_max  = f->dataset->count / c->train.accumulate,
                                               .classes    = f->dataset->classes};
    CR_TRY(cr_session_open(c, &options, &f->session));
    cr_log(CR_LOG_INFO, "device: %s", f->session.device->caps.text);
    CR_TRY(cr_session_init(&f->session));
    if (*c->model.weights) CR_TRY(cr_session_load_weights(&f->session, c->model.weights, false));
    const struct cr_memory *memory = &f->session.memory;
    f->store_bytes                 = memory->bytes[CR_REGION_STORE];
    CR_ALLOC(f->start, f->store_bytes);
    struct cr_device *device = f->session.device;
    return device->backend->get(device, f->start, memory->region[CR_REGION_STORE], f->store_bytes);
}

/* The loader of a training, from its step `first` on. */
static cr_status open_loader(struct finder *f, int64_t first, struct cr_loader **loader) {
    const struct cr_config  *c       = f->config;
    const struct cr_session *s       = &f->session;
    struct cr_loader_options options = cr_loader_options_from(c, CR_SPLIT_TRAIN, &s->prepare_train, s->state.batch);
    options.drop_last                = c->data.drop_last;
    options.corrupt_fatal            = c->data.corrupt == CR_CORRUPT_FATAL;
    if (f->dataset->count < f->session.state.batch)
        return cr_config_fail(c, "train.batch", "%" PRId64 " images, but the training set has %" PRId64 ": lower it",
                              f->session.state.batch, f->dataset->count);
    const int64_t per_epoch = cr_loader_batches(f->dataset, &options), skipped = first * c->train.accumulate;
    options.epoch       = skipped / per_epoch;
    options.first_batch = skipped % per_epoch;
    f->lr_factor        = cr_training_lr_factor(c, f->session.state.batch * c->train.accumulate);
    return cr_loader_open(f->dataset, &options, loader);
}

/* One update. *loss is the mean over its images, or NAN when a gradient is not finite, so that the update was not
 * applied. A dynamic loss scale that is still being adjusted does not count. */
static cr_status train_step(struct finder *f, struct cr_loader *loader, int64_t step, double lr, double *loss) {
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
        CR_TRY(cr_session_run_next(&f->session, loader, exec, &block, NULL));
        CR_TRY(cr_exec_result(exec, cr_exec_runs(exec), &r));
        sum += r.loss_sum;
        images += r.valid;
    }
    const bool adjusting = f->session.model.real == CR_F16 && c->train.loss_scale == 0 && r.loss_scale > 2;
    *loss                = r.nonfinite && !adjusting ? (double)NAN : sum / CR_MAX(images, 1);
    return CR_OK;
}

/* ---- one training ---- */

static const double pi = 3.14159265358979323846;

/* Trains from the same weights on the same batches as every other rate; the rate falls to 0 along a cosine. Sets the
 * losses of the measured steps. With a rate of 0 only these steps are run. */
static cr_status train(struct finder *f, double lr, double *losses, bool *finite) {
    const int64_t     steps = f->options->steps, from = steps - f->measured;
    struct cr_device *device = f->session.device;
    struct cr_loader *loader = NULL;
    cr_status         status;
    *finite = true;
    CR_TRY(device->backend->put(device, f->session.memory.region[CR_REGION_STORE], f->start, f->store_bytes));
    const int64_t first = lr > 0 ? 0 : from;
    CR_TRY_OUT(open_loader(f, first, &loader));
    for (int64_t i = first; i < steps && *finite; i++) {
        const double rate = lr / 2 * (1 + cos(pi * (double)i / (double)steps));
        double       loss;
        CR_TRY_OUT(train_step(f, loader, i, rate, &loss));
        *finite = isfinite(loss);
        if (i >= from) losses[i - from] = loss;
    }
out:
    cr_loader_close(loader);
    return status;
}

static double mean_of(const double *value, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += value[i];
    return sum / (double)count;
}

static cr_status try_rate(struct finder *f, double lr, struct cr_lr_training *out) {
    const int64_t n = f->measured;
    bool          finite;
    double        squares = 0;
    *out                  = (struct cr_lr_training){.lr = lr, .loss = NAN, .descent = NAN, .error = NAN};
    CR_TRY(train(f, lr, f->losses, &finite));
    if (!finite) {
        out->diverged = true;
        cr_log(CR_LOG_INFO, "rate %.2g: the loss is not finite", lr);
        return CR_OK;
    }
    out->loss    = mean_of(f->losses, n);
    out->descent = mean_of(f->untrained, n) - out->loss;
    for (int64_t i = 0; i < n; i++) {
        const double off = f->untrained[i] - f->losses[i] - out->descent;
        squares += off * off;
    }
    out->error = sqrt(squares / (double)(n - 1) / (double)n);
    cr_log(CR_LOG_INFO, "rate %.2g: loss %.4f, %+.4f in %" PRId64 " steps (standard error %.4f)", lr, out->loss,
           -out->descent, f->options->steps, out->error);
    return CR_OK;
}

/* ---- the choice ---- */

static bool is_significant(const struct cr_lr_training *t) {
    return !t->diverged && t->descent > 0 && t->descent >= CR_LR_SIGNIFICANT * t->error;
}

/* The range of rates around `best` whose descent is at least a fraction of the best one. */
static void range_around(const struct cr_lr_found *found, int best, double fraction, int *low, int *high) {
    const struct cr_lr_training *t      = found->training;
    const double                 enough = fraction * t[best].descent;
    *low = *high = best;
    while (*low > 0 && t[*low - 1].descent >= enough) --*low;
    while (*high + 1 < found->count && t[*high + 1].descent >= enough) ++*high;
}

static int largest_descent(const struct cr_lr_found *found) {
    const struct cr_lr_training *t    = found->training;
    int                          best = -1;
    for (int i = 0; i < found->count; i++)
        if (is_significant(&t[i]) && (best < 0 || t[i].descent > t[best].descent)) best = i;
    return best;
}

/* Of rates that are about equally good, as many are when weights are fine-tuned, the middle one. */
static void choose(struct cr_lr_found *found) {
    const struct cr_lr_training *t    = found->training;
    const int                    best = largest_descent(found);
    int                          low, high;
    found->best = found->low = found->high = best;
    if (best < 0) return;
    range_around(found, best, CR_LR_AS_GOOD, &low, &high);
    const double middle = sqrt(t[low].lr * t[high].lr);
    for (found->best = low; found->best < high && t[found->best + 1].lr <= middle * (1 + 1e-9);) found->best++;
    range_around(found, best, CR_LR_TRAINS, &found->low, &found->high);
}

/* The first pass ends after a rate that clearly trains worse than a smaller one. */
static bool is_too_large(const struct cr_lr_found *found) {
    const int                    best = largest_descent(found);
    const struct cr_lr_training *last = &found->training[found->count - 1], *good = &found->training[CR_MAX(best, 0)];
    if (last->diverged || last->descent < -CR_LR_SIGNIFICANT * last->error) return true;
    return best >= 0 && last->descent < CR_LR_TRAINS * good->descent &&
           good->descent - last->descent >
               CR_LR_SIGNIFICANT * sqrt(good->error * good->error + last->error * last->error);
}

/* Trains with a rate and inserts the result at index `at`. */
static cr_status insert(struct finder *f, double lr, int at, struct cr_lr_found *out) {
    struct cr_lr_training result;
    CR_TRY(try_rate(f, lr, &result));
    for (int i = out->count++; i > at; i--) out->training[i] = out->training[i - 1];
    out->training[at] = result;
    return CR_OK;
}

static cr_status try_rates(struct finder *f, struct cr_lr_found *out) {
    const struct cr_lr_options *o         = f->options;
    const double                decades   = log10(o->max_lr / o->min_lr);
    const int                   intervals = (int)CR_MAX(1, CR_MIN(ceil(decades - 1e-9), CR_LR_INTERVALS_MAX));
    const double                factor    = pow(10, decades / intervals);
    for (int i = 0; i <= intervals; i++) {
        CR_TRY(insert(f, i == intervals ? o->max_lr : o->min_lr * pow(factor, i), i, out));
        if (is_too_large(out)) break;
    }
    const int best = largest_descent(out);
    choose(out);
    if (best < 0) return CR_OK;
    const double lr = out->training[best].lr;
    if (best + 1 < out->count) CR_TRY(insert(f, lr * sqrt(factor), best + 1, out));
    if (best > 0) CR_TRY(insert(f, lr / sqrt(factor), best, out));
    choose(out);
    return CR_OK;
}

static cr_status find(struct finder *f, struct cr_lr_found *out) {
    bool finite;
    f->measured = f->options->steps / CR_LR_MEASURED;
    CR_ALLOC(f->untrained, (size_t)f->measured);
    CR_ALLOC(f->losses, (size_t)f->measured);
    CR_TRY(train(f, 0, f->untrained, &finite));
    if (!finite)
        return CR_FAIL(CR_ERR_NUMERIC, "the loss of the first step is not finite: the network or its weights overflow");
    out->start_loss = mean_of(f->untrained, f->measured);
    return try_rates(f, out);
}

cr_status cr_lr_find(const struct cr_config *config, const struct cr_lr_options *options, struct cr_lr_found *out) {
    struct finder f = {.config = config, .options = options};
    cr_status     status;
    *out = (struct cr_lr_found){.best = -1};
    CR_TRY(cr_training_check(config));
    CR_TRY_OUT(cr_dataset_open(config, CR_SPLIT_TRAIN, &f.dataset));
    if (*config->model.weights && config->model.head != CR_HEAD_NEW && config->model.head != CR_HEAD_MATCH)
        CR_TRY_OUT(cr_saved_model_number_classes(config, f.dataset, false, CR_RUN_SAME_HEAD));
    CR_TRY_OUT(open_session(&f));
    CR_TRY_OUT(find(&f, out));
out:
    cr_free(f.start);
    cr_free(f.untrained);
    cr_free(f.losses);
    cr_session_close(&f.session);
    cr_dataset_close(f.dataset);
    return status;
}
