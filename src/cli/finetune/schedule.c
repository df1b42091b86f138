/* cli/finetune/schedule.c: image size, batch size, epochs and learning rates of cresnet finetune, by the size of the
 * set and, on the CPU or with --minutes, by the measured speed of training. See cli/finetune/finetune.h. */
#include "cli/finetune/finetune.h"
#include "session/session.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

/* ---- measured speed ---- */

enum { MEASURE_STEPS = 6 };
static const double measure_s = 1.5; /* enough for a few percent */

static cr_status time_steps(struct cr_session *s, const struct cr_step_block *block, const struct cr_cmd_batch *batch,
                            double *images_per_s) {
    int64_t start = 0;
    int     steps = -1; /* the first step is not timed */
    while (steps < MEASURE_STEPS && (steps < 1 || (double)(cr_time_ns() - start) < measure_s * 1e9)) {
        CR_TRY(cr_exec_feed(s->train_exec[0], batch->images, batch->labels, batch->boxes));
        CR_TRY(cr_exec_run(s->train_exec[0], block));
        CR_TRY(s->device->backend->sync(s->device));
        if (++steps == 0) start = cr_time_ns();
    }
    *images_per_s = (double)(steps * s->batch) / ((double)(cr_time_ns() - start) * 1e-9);
    return CR_OK;
}

/* Images per second of training all parts of the network with the choices so far, without the loader. */
static cr_status measure(const struct cr_finetune *f, double *images_per_s) {
    static const char *const        plain[] = {"model.freeze=",
                                               "model.unfreeze=",
                                               "data.mixup=0",
                                               "data.cutmix=0",
                                               "data.erase=0",
                                               "train.accumulate=1",
                                               NULL};
    const struct cr_session_options options = {.train = true, .execute = true, .classes = f->classes};
    struct cr_config                config;
    struct cr_session               session = {0};
    struct cr_cmd_batch             batch   = {0};
    cr_status                       status;
    CR_TRY(cr_finetune_config(f, plain, &config));
    CR_TRY_OUT(cr_session_open(&config, &options, &session));
    CR_TRY_OUT(cr_session_init(&session));
    CR_TRY_OUT(cr_cmd_random_batch(&session.train[0], f->classes, 1, &batch));
    const struct cr_step_block block = cr_cmd_step_block(&config);
    CR_TRY_OUT(time_steps(&session, &block, &batch, images_per_s));
out:
    cr_cmd_batch_free(&batch);
    cr_session_close(&session);
    cr_config_close(&config);
    return status;
}

/* ---- a model of the time ---- */

enum { EVALUATIONS = 8 };
/* Relative to a training step: an image of an evaluation (twice, for the moving averages too), of a step that trains
 * the classifier only, and what loading, saving and starting cost. */
static const double eval_cost = 0.4, frozen_cost = 0.4, overhead = 1.1, start_s = 3;

static double seconds_of(const struct cr_finetune *f, double images_per_s, int64_t epochs, int64_t frozen) {
    const double pixels = (double)f->eval_size * f->eval_size / ((double)f->size * f->size);
    const double passes = (double)(epochs - frozen) + frozen_cost * (double)frozen;
    const double images = passes * (double)f->train +
                          (double)CR_MIN(epochs, (int64_t)EVALUATIONS) * 2 * eval_cost * pixels * (double)f->val;
    return start_s + overhead * images / images_per_s;
}

/* ---- epochs ---- */

static bool is_given(const struct cr_finetune *f, const char *dotted) {
    return cr_config_given(&f->given, dotted);
}

/* Small sets need more epochs for the same number of updates. */
static int64_t epochs_of_set(const struct cr_finetune *f) {
    static const struct {
        int64_t images, epochs;
    } table[] = {{200, 30}, {500, 24}, {2000, 14}, {10000, 10}, {50000, 6}, {INT64_MAX, 4}};
    size_t i  = 0;
    while (f->train > table[i].images) i++;
    return *f->weights ? table[i].epochs : 6 * table[i].epochs;
}

/* The layers of networks for tiny images have to change much to fit photos: freezing them first does not help. */
static bool is_tiny(const struct cr_finetune *f) {
    return f->trained_size <= 64;
}

static int64_t frozen_of(const struct cr_finetune *f, int64_t epochs) {
    return *f->weights && !is_tiny(f) && epochs > 1 ? CR_MIN((epochs + 5) / 10, (int64_t)2) : 0;
}

/* The most epochs, up to three times the number for this set, that fit into --minutes; 0 when none fits. */
static int64_t epochs_in_time(const struct cr_finetune *f, double images_per_s) {
    const int64_t most   = 3 * epochs_of_set(f);
    int64_t       epochs = 0;
    while (epochs < most && seconds_of(f, images_per_s, epochs + 1, frozen_of(f, epochs + 1)) <= 60 * f->minutes)
        epochs++;
    return epochs;
}

/* ---- image size ---- */

/* Networks classify images a third larger than those they were trained with better (Touvron et al. 2019). */
static void set_size(struct cr_finetune *f, int eval_size) {
    f->eval_size = eval_size;
    f->size      = eval_size * 3 / 4 / 8 * 8;
}

/* The sizes to evaluate with, the largest first; 0 ends the list. Networks for tiny images learn from twice the size if
 * the images of the set are that large. */
static void list_sizes(const struct cr_finetune *f, int sizes[8]) {
    static const int imagenet[] = {224, 192, 160, 128, 96, 64};
    const int        t = f->trained_size, tiny[] = {2 * t, 2 * t * 3 / 4 / 8 * 8, t};
    const int        count = is_tiny(f) ? (int)CR_COUNT(tiny) : (int)CR_COUNT(imagenet);
    int              used  = 0;
    for (int i = 0; i < count; i++) {
        const int size = is_tiny(f) ? tiny[i] : imagenet[i];
        if (!is_tiny(f) || size <= CR_MAX(t, f->source_size)) sizes[used++] = size;
    }
    sizes[used] = 0;
}

/* Without --minutes: the whole size on a GPU, 128 pixels on the CPU. */
static int default_size(const struct cr_finetune *f, const int sizes[8]) {
    int i = 0;
    while (!f->gpu && !is_tiny(f) && sizes[i + 1] && sizes[i] > 128) i++;
    return sizes[i];
}

/* With --minutes: the largest size with enough epochs. Time is proportional to the number of pixels. */
static void fit_to_time(struct cr_finetune *f, const int sizes[8]) {
    const double  speed = f->images_per_s * f->size * f->size;
    const int64_t want  = epochs_of_set(f) * 3 / 4;
    f->epochs           = epochs_in_time(f, f->images_per_s); /* if the user gives the size */
    for (int i = 0; sizes[i]; i++) {
        set_size(f, sizes[i]);
        f->images_per_s = speed / ((double)f->size * f->size);
        f->epochs       = epochs_in_time(f, f->images_per_s);
        if (f->epochs >= want) break;
    }
    f->epochs = CR_MAX(f->epochs, (int64_t)1);
}

static cr_status set_sizes(struct cr_finetune *f) {
    CR_TRY(cr_finetune_set(f, "data", "image_size",
                           "training images are smaller than those of evaluations: faster, "
                           "and better",
                           "%d", f->size));
    CR_TRY(cr_finetune_set(f, "data", "eval_crop", NULL, "%d", f->eval_size));
    CR_TRY(cr_finetune_set(f, "data", "eval_resize", NULL, "%d", f->eval_size * 8 / 7));
    CR_TRY(cr_finetune_set(f, "data", "crop", NULL, "random_resized"));
    return cr_finetune_set(f, "data", "scale", NULL, "0.2, 1.0");
}

/* Sizes that the user gives are kept. */
static void use_given_sizes(struct cr_finetune *f, int sizes[8]) {
    if (is_given(f, "data.image_size") && f->given.data.image_size) {
        f->size      = (int)f->given.data.image_size;
        f->eval_size = f->size * 4 / 3;
        sizes[0]     = 0;
    }
    if (is_given(f, "data.eval_crop") && f->given.data.eval_crop) f->eval_size = (int)f->given.data.eval_crop;
}

static cr_status choose_size(struct cr_finetune *f) {
    int sizes[8];
    if (f->given.data.image_width)
        return cr_config_fail(&f->given, "data.image_width",
                              "finetune chooses square images: use cresnet train for rectangular ones");
    list_sizes(f, sizes);
    set_size(f, default_size(f, sizes));
    use_given_sizes(f, sizes);
    CR_TRY(set_sizes(f));
    f->epochs = epochs_of_set(f);
    if (f->minutes <= 0 && f->gpu) return CR_OK;
    CR_TRY(measure(f, &f->images_per_s));
    const int first = f->size;
    if (f->minutes > 0) fit_to_time(f, sizes);
    CR_TRY(set_sizes(f));
    if (f->size == first) return CR_OK;
    /* small images take longer than their number of pixels says */
    CR_TRY(measure(f, &f->images_per_s));
    f->epochs = CR_MAX(epochs_in_time(f, f->images_per_s), (int64_t)1);
    return CR_OK;
}

/* ---- the schedule ---- */

static int64_t batch_of_set(const struct cr_finetune *f) {
    const int64_t wanted = f->train < 2000 ? 16 : f->train < 20000 ? 32 : 64;
    return CR_MAX((int64_t)1, CR_MIN(wanted, f->train / 4));
}

static cr_status set_rates(struct cr_finetune *f) {
    /* weights of small images are farther from photos than those of ImageNet */
    const double lr = (is_tiny(f) ? 0.04 : 0.005) * (double)f->batch / 16, scratch = 0.05 * (double)f->batch / 16;
    CR_TRY(cr_finetune_set(f, "optim", "kind", NULL, "sgd"));
    CR_TRY(cr_finetune_set(f, "optim", "lr", NULL, "%g", *f->weights ? lr : scratch));
    if (*f->weights && !is_tiny(f))
        CR_TRY(cr_finetune_set(f, "optim", "head_lr", "the classifier is new and learns faster", "%g", 5 * lr));
    CR_TRY(cr_finetune_set(f, "optim", "momentum", NULL, "0.9"));
    CR_TRY(cr_finetune_set(f, "optim", "nesterov", NULL, "yes"));
    CR_TRY(cr_finetune_set(f, "optim", "weight_decay", NULL, "0.0005"));
    CR_TRY(cr_finetune_set(f, "schedule", "kind", NULL, "cosine"));
    CR_TRY(cr_finetune_set(f, "schedule", "warmup_epochs", NULL, "0.5"));
    const double updates = (double)(f->epochs * f->train) / (double)f->batch;
    return cr_finetune_set(f, "ema", "decay", "moving averages of the weights, which `cresnet predict` uses", "%g",
                           updates < 1500    ? 0.98
                           : updates < 10000 ? 0.99
                                             : 0.999);
}

static cr_status set_frozen(struct cr_finetune *f) {
    if (!f->frozen_epochs) return CR_OK;
    /* the number of stages is the model's */
    struct cr_config config;
    struct cr_model  model;
    struct cr_text   parts = {0};
    cr_status        status;
    CR_TRY(cr_finetune_config(f, NULL, &config));
    CR_TRY_OUT(cr_model_open(&config, f->classes, f->size, f->eval_size, &model));
    cr_text_add(&parts, "stem");
    for (int s = 1; s <= model.stages; s++) cr_text_add(&parts, ",layer%d", s);
    cr_model_close(&model);
    if (parts.failed) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory");
    CR_TRY_OUT(cr_finetune_set(f, "model", "freeze", "at first only the new classifier is trained", "%s", parts.data));
    CR_TRY_OUT(cr_finetune_set(f, "model", "unfreeze", NULL, "%lld", (long long)f->frozen_epochs));
out:
    cr_text_free(&parts);
    cr_config_close(&config);
    return status;
}

static cr_status set_train(struct cr_finetune *f) {
    f->eval_every = (f->epochs + EVALUATIONS - 1) / EVALUATIONS;
    CR_TRY(cr_finetune_set(f, "train", "epochs", NULL, "%lld", (long long)f->epochs));
    CR_TRY(cr_finetune_set(f, "train", "label_smoothing", NULL, "0.1"));
    CR_TRY(cr_finetune_set(f, "train", "eval_every", NULL, "%lld", (long long)f->eval_every));
    CR_TRY(cr_finetune_set(f, "train", "patience", "stop after this number of evaluations without a better one", "4"));
    return cr_finetune_set(f, "train", "output", NULL, "%s", f->run);
}

cr_status cr_finetune_schedule(struct cr_finetune *f) {
    const long cores   = sysconf(_SC_NPROCESSORS_ONLN);
    const int  workers = (int)(f->gpu ? CR_MAX(2L, CR_MIN(16L, cores)) : CR_MAX(1L, CR_MIN(4L, cores / 2)));
    f->batch           = is_given(f, "train.batch") && f->given.train.batch ? f->given.train.batch : batch_of_set(f);
    CR_TRY(cr_finetune_set(f, "train", "batch", NULL, "%lld", (long long)f->batch));
    CR_TRY(cr_finetune_set(f, "data", "workers", NULL, "%d", workers));
    CR_TRY(choose_size(f));
    if (is_given(f, "train.epochs")) f->epochs = f->given.train.epochs;
    f->seconds       = f->images_per_s > 0 ? seconds_of(f, f->images_per_s, f->epochs, frozen_of(f, f->epochs)) : 0;
    f->frozen_epochs = frozen_of(f, f->epochs);
    CR_TRY(set_frozen(f));
    CR_TRY(set_train(f));
    return set_rates(f);
}
