/* cli/finetune/schedule.c: image size, batch size, epochs and learning rates of cresnet finetune, by the size of the
 * set and, on the CPU or with --minutes, by the measured speed of training. See cli/finetune/finetune.h. */
#include "cli/finetune/finetune.h"
#include "core/cpu.h"
#include "model/model.h"

#include <stdio.h>

/* ---- epochs ---- */

static bool is_given(const struct cr_finetune *f, const char *dotted) {
    return cr_config_given(f->given, dotted);
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
bool cr_finetune_is_tiny(const struct cr_finetune *f) {
    return f->trained_size <= 64;
}

static int64_t frozen_of(const struct cr_finetune *f, int64_t epochs) {
    return *f->weights && f->head != CR_HEAD_KEEP && !cr_finetune_is_tiny(f) && epochs > 1
               ? CR_MIN((epochs + 5) / 10, (int64_t)2)
               : 0;
}

enum { EVALUATIONS = 8, FEW_EVALUATIONS = 3, FEW_UPDATES = 200, FEW_UPDATES_IN_HURRY = 500 };

/* Sets the number of epochs and what depends on it. On a CPU with little time, evaluations and moving averages, which
 * double them, take too much of it. After few updates the averages are worse than the weights: 20 instead of 60 % of
 * 15 photos were right after 4 updates. */
static void set_epochs(struct cr_finetune *f, int64_t epochs) {
    const bool    hurry       = !f->gpu && f->minutes > 0;
    const int64_t evaluations = hurry ? FEW_EVALUATIONS : EVALUATIONS;
    const int64_t trained     = is_given(f, "train.epochs") ? f->given->train.epochs : epochs;
    f->epochs                 = epochs;
    f->frozen_epochs          = f->trained_stages < f->stages ? 0 : frozen_of(f, epochs);
    f->eval_every             = CR_MAX((epochs + evaluations - 1) / evaluations, (int64_t)1);
    f->averages               = trained * f->train / f->batch > (hurry ? FEW_UPDATES_IN_HURRY : FEW_UPDATES);
}

/* Sets the most epochs, up to three times the number for this set, that fit into --minutes; at least one. */
static void fill_time(struct cr_finetune *f) {
    const int64_t most = 3 * epochs_of_set(f), age = cr_process_age_ns();
    const double  seconds = 60 * f->minutes - (double)CR_MAX(age, (int64_t)0) * 1e-9;
    int64_t       epochs  = 1;
    for (int64_t more = 2; more <= most; more++) {
        set_epochs(f, more);
        if (cr_finetune_seconds(f) <= seconds) epochs = more;
    }
    set_epochs(f, epochs);
}

/* ---- image size and trained stages ---- */

/* Networks with more than FIXED_MIN stages may be trained in their LAST_STAGES alone. Images below SMALL_SIZE lose more
 * than epochs gain: they are for trainings that are too short for FEW_EPOCHS. */
enum { FIXED_MIN = 3, LAST_STAGES = 2, SMALL_SIZE = 128, FEW_EPOCHS = 2 };

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
    const int        count = cr_finetune_is_tiny(f) ? (int)CR_COUNT(tiny) : (int)CR_COUNT(imagenet);
    int              used  = 0;
    for (int i = 0; i < count; i++) {
        const int size = cr_finetune_is_tiny(f) ? tiny[i] : imagenet[i];
        if (!cr_finetune_is_tiny(f) || size <= CR_MAX(t, f->source_size)) sizes[used++] = size;
    }
    sizes[used] = 0;
}

/* Without --minutes: the whole size on a GPU, 128 pixels on the CPU. */
static int default_size(const struct cr_finetune *f, const int sizes[8]) {
    int i = 0;
    while (!f->gpu && !cr_finetune_is_tiny(f) && sizes[i + 1] && sizes[i] > 128) i++;
    return sizes[i];
}

/* Of pretrained networks the first stages may keep their weights: they see edges and textures, which are the same in
 * other images. Without their backward pass a CPU has time for larger images. */
static bool may_fix_stages(const struct cr_finetune *f) {
    return !f->gpu && *f->weights && !cr_finetune_is_tiny(f) && f->stages > FIXED_MIN && !is_given(f, "model.freeze");
}

/* Chooses the trained stages for the current size: all, or the last ones if there is no time for all. Returns whether
 * there is time for enough epochs. */
static bool fits_time(struct cr_finetune *f) {
    const int64_t want = epochs_of_set(f) * 3 / 4;
    f->trained_stages  = f->stages;
    fill_time(f);
    if (f->epochs >= want) return true;
    if (!may_fix_stages(f)) return false;
    f->trained_stages = LAST_STAGES;
    fill_time(f);
    return f->epochs >= (f->eval_size > SMALL_SIZE ? want / 2 : FEW_EPOCHS);
}

/* With --minutes: the largest size with enough epochs. */
static void fit_to_time(struct cr_finetune *f, const int sizes[8]) {
    if (!sizes[0]) (void)fits_time(f); /* the user gives the size */
    for (int i = 0; sizes[i]; i++) {
        set_size(f, sizes[i]);
        if (fits_time(f)) return;
    }
}

static void set_sizes(struct cr_finetune *f) {
    cr_finetune_set(f, "data.image_size",
                    "training images are smaller than those of evaluations: faster, "
                    "and better",
                    "%d", f->size);
    cr_finetune_set(f, "data.eval_crop", NULL, "%d", f->eval_size);
    if (f->given->data.fit == CR_FIT_CROP) /* the others show the whole image */
        cr_finetune_set(f, "data.eval_resize", NULL, "%d", f->eval_size * 8 / 7);
    cr_finetune_set(f, "data.crop", NULL, "random_resized");
    cr_finetune_set(f, "data.scale", NULL, "0.2, 1.0");
}

/* Sizes that the user gives are kept. */
static void use_given_sizes(struct cr_finetune *f, int sizes[8]) {
    if (is_given(f, "data.image_size") && f->given->data.image_size) {
        f->size      = (int)f->given->data.image_size;
        f->eval_size = f->size * 4 / 3;
        sizes[0]     = 0;
    }
    if (is_given(f, "data.eval_crop") && f->given->data.eval_crop) f->eval_size = (int)f->given->data.eval_crop;
}

static cr_status choose_size(struct cr_finetune *f) {
    int sizes[8];
    if (f->given->data.image_width)
        return cr_config_fail(f->given, "data.image_width",
                              "finetune chooses square images: use cresnet train for rectangular ones");
    list_sizes(f, sizes);
    set_size(f, default_size(f, sizes));
    use_given_sizes(f, sizes);
    set_sizes(f);
    set_epochs(f, epochs_of_set(f));
    if (f->minutes <= 0 && f->gpu) return CR_OK;
    if (f->minutes > 0 && may_fix_stages(f)) f->trained_stages = LAST_STAGES; /* the likely choice */
    CR_TRY(cr_finetune_measure(f));
    if (f->minutes <= 0) return CR_OK;
    fit_to_time(f, sizes);
    set_sizes(f);
    if (f->size == f->measured_size && f->trained_stages == f->measured_stages) return CR_OK;
    /* small images take longer than their number of pixels says */
    CR_TRY(cr_finetune_measure(f));
    fill_time(f);
    return CR_OK;
}

/* ---- the schedule ---- */

static int64_t batch_of_set(const struct cr_finetune *f) {
    const int64_t wanted = f->train < 2000 ? 16 : f->train < 20000 ? 32 : 64;
    const int64_t least  = CR_MIN(f->train, (int64_t)2); /* BN of one image has no variance at 1 x 1 positions */
    return CR_MAX(least, CR_MIN(wanted, f->train / 4));
}

static void set_rates(struct cr_finetune *f) {
    /* weights of small images are farther from photos than those of ImageNet */
    const double base = cr_finetune_is_tiny(f) ? 0.04 : f->trained_stages < f->stages ? 0.02 : 0.005;
    const double lr = base * (double)f->batch / 16, scratch = 0.05 * (double)f->batch / 16;
    cr_finetune_set(f, "optim.kind", NULL, "sgd");
    cr_finetune_set(f, "optim.lr", NULL, "%g", *f->weights ? lr : scratch);
    if (*f->weights && f->head != CR_HEAD_KEEP && !cr_finetune_is_tiny(f))
        cr_finetune_set(f, "optim.head_lr", "the classifier is new and learns faster", "%g", 5 * lr);
    cr_finetune_set(f, "optim.momentum", NULL, "0.9");
    cr_finetune_set(f, "optim.nesterov", NULL, "yes");
    cr_finetune_set(f, "optim.weight_decay", NULL, "0.0005");
    cr_finetune_set(f, "schedule.kind", NULL, "cosine");
    cr_finetune_set(f, "schedule.warmup_epochs", NULL, "0.5");
    if (!f->averages) return;
    const double updates = (double)(f->epochs * f->train) / (double)f->batch;
    cr_finetune_set(f, "ema.decay", "moving averages of the weights, which `cresnet predict` uses", "%g",
                    updates < 1500    ? 0.98
                    : updates < 10000 ? 0.99
                                      : 0.999);
}

void cr_finetune_frozen(int stages, char out[CR_FINETUNE_FROZEN]) {
    int used = snprintf(out, CR_FINETUNE_FROZEN, "stem");
    for (int s = 1; s <= stages; s++) used += snprintf(out + used, (size_t)(CR_FINETUNE_FROZEN - used), ",layer%d", s);
}

static void set_frozen(struct cr_finetune *f) {
    char       parts[CR_FINETUNE_FROZEN];
    const bool keeps = f->trained_stages < f->stages;
    if (!f->frozen_epochs && !keeps) return;
    cr_finetune_frozen(keeps ? f->stages - f->trained_stages : f->stages, parts);
    cr_finetune_set(f, "model.freeze",
                    keeps ? "the first stages keep their weights: there is no time to train all"
                          : "at first only the new classifier is trained",
                    "%s", parts);
    if (!keeps) cr_finetune_set(f, "model.unfreeze", NULL, "%lld", (long long)f->frozen_epochs);
}

static void set_train(struct cr_finetune *f) {
    const int64_t steps = CR_MAX(f->train / f->batch, (int64_t)1);
    cr_finetune_set(f, "train.epochs", NULL, "%lld", (long long)f->epochs);
    cr_finetune_set(f, "train.label_smoothing", NULL, "0.1");
    cr_finetune_set(f, "train.eval_every", NULL, "%lld", (long long)f->eval_every);
    cr_finetune_set(f, "train.save_every", "steps: a checkpoint for each evaluation", "%lld",
                    (long long)(steps * f->eval_every));
    cr_finetune_set(f, "train.patience", "stop after this number of evaluations without a better one", "4");
    cr_finetune_set(f, "train.output", NULL, "%s", f->run);
}

static cr_status count_stages(struct cr_finetune *f) {
    const struct cr_config *config;
    struct cr_model         model;
    CR_TRY(cr_finetune_config(f, NULL, &config));
    cr_status status = cr_model_open(config, f->classes, 64, 64, &model);
    if (status == CR_OK) {
        f->stages = f->trained_stages = model.stages;
        cr_model_close(&model);
    }
    cr_config_close(config);
    return status;
}

cr_status cr_finetune_schedule(struct cr_finetune *f) {
    const int cores   = cr_cpu_cores();
    const int workers = f->gpu ? CR_MAX(2, CR_MIN(16, cores)) : CR_MAX(1, CR_MIN(4, cores / 2));
    f->batch          = is_given(f, "train.batch") && f->given->train.batch ? f->given->train.batch : batch_of_set(f);
    cr_finetune_set(f, "train.batch", NULL, "%lld", (long long)f->batch);
    cr_finetune_set(f, "data.workers", NULL, "%d", workers);
    cr_finetune_set(f, "data.decode", NULL, "auto");
    CR_TRY(count_stages(f));
    CR_TRY(choose_size(f));
    if (is_given(f, "train.epochs")) set_epochs(f, f->given->train.epochs);
    f->seconds = f->images_per_s > 0 ? cr_finetune_seconds(f) : 0;
    set_frozen(f);
    set_train(f);
    set_rates(f);
    return CR_OK;
}
