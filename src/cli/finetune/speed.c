/* cli/finetune/speed.c: measures the speed of training, and predicts how long a schedule takes. */
#include "cli/finetune/finetune.h"
#include "session/session.h"

#include <stdio.h>

/* ---- measured speed ---- */

enum { MEASURE_STEPS = 100 };
static const double measure_s = 1; /* enough for a few percent */

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
    *images_per_s = (double)(steps * s->state.batch) / ((double)(cr_time_ns() - start) * 1e-9);
    return CR_OK;
}

/* Uniform initial weights are faster to draw than normal ones. */
cr_status cr_finetune_measure(struct cr_finetune *f) {
    char              parts[CR_FINETUNE_FROZEN] = "", freeze[sizeof parts + 16];
    const char *const plain[] = {freeze,          "model.unfreeze=", "model.init_shape=uniform", "data.mixup=0",
                                 "data.cutmix=0", "data.erase=0",    "train.accumulate=1",       NULL};
    const struct cr_session_options options = {.train = true, .execute = true, .classes = f->classes};
    const struct cr_config         *config;
    struct cr_session               session = {0};
    struct cr_cmd_batch             batch   = {0};
    cr_status                       status;
    const int                       fixed = f->stages - f->trained_stages;
    if (fixed) cr_finetune_frozen(fixed, parts);
    snprintf(freeze, sizeof freeze, "model.freeze=%s", parts);
    CR_TRY(cr_finetune_config(f, plain, &config));
    CR_TRY_OUT(cr_session_open(config, &options, &session));
    CR_TRY_OUT(cr_session_init(&session));
    CR_TRY_OUT(cr_cmd_random_batch(&session.train[0], f->classes, 1, &batch));
    const struct cr_step_block block = cr_cmd_step_block(config);
    CR_TRY_OUT(time_steps(&session, &block, &batch, &f->images_per_s));
    f->measured_size   = f->size;
    f->measured_stages = f->trained_stages;
out:
    cr_cmd_batch_free(&batch);
    cr_session_close(&session);
    cr_config_close(config);
    return status;
}

/* ---- a model of the time ---- */

/* What the loader, logs and the step's host work add; seconds to open the run, and to save it. */
static const double overhead = 1.1, open_s = 1, save_s = 0.5;

/* Pixels of an image, and as many as take the time of reading and updating the weights once per batch: measured on a
 * CPU with ResNet-18, whose ratio of weights to work is that of the larger networks. */
static double pixels_of(const struct cr_finetune *f, int size) {
    const double weights = cr_finetune_is_tiny(f) ? 0 : 8000.0 * 16 / (double)f->batch;
    return (double)size * size + weights;
}

/* Time of an image of `size` pixels, in units of a forward pass of the measured size: the stages cost about the same,
 * and the backward pass of a stage twice its forward pass. */
static double image_cost(const struct cr_finetune *f, int size, int trained_stages) {
    return pixels_of(f, size) / pixels_of(f, f->measured_size) * (1 + 2.0 * trained_stages / f->stages);
}

double cr_finetune_seconds(const struct cr_finetune *f) {
    const double unit        = 1 / (f->images_per_s * image_cost(f, f->measured_size, f->measured_stages));
    const double evaluations = (double)((f->epochs + f->eval_every - 1) / f->eval_every);
    const double steps =
        (double)f->train * ((double)f->frozen_epochs * image_cost(f, f->size, 0) +
                            (double)(f->epochs - f->frozen_epochs) * image_cost(f, f->size, f->trained_stages));
    const double evaluated = (double)f->val * evaluations * (f->averages ? 2 : 1) * image_cost(f, f->eval_size, 0);
    return open_s + evaluations * save_s + overhead * (steps + evaluated) * unit;
}
