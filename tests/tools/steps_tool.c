/* tests/tools/steps_tool.c: trains on given batches with given weights, for comparisons with other trainers, and
 * writes gradients to files. Images are used unchanged (no crop, no flip); the learning rate is the constant
 * optim.lr.
 *
 *   steps_tool CONFIG|- [section.key=value ...] [options]         (-: no file, the built-in defaults)
 *     --batches FILE   safetensors: images U8 [K,N,H,W,3], labels I32 [K,N]; step i trains on batch i % K; N is the
 *     batch size; default: random batches
 *     --steps N        (1)
 *     --weights FILE   initial weights; default: random weights from train.seed
 *     --save FILE      writes the weights before the first step (model.safetensors of a checkpoint)
 *     --save-end FILE  writes the weights after the last step
 *     --grads PREFIX   no training: one step per batch with learning rate 0, K in all; the gradients of batch k,
 *     divided by the loss scale, are written to PREFIX-k.safetensors, with the names and the order of parameters in
 *     files
 *     --logits FILE    no training: writes the logits of the batches, from the evaluation program, as one tensor
 *     `logits`, F32 [K*N,classes]
 *
 * Prints one JSON line: the loss of each step and the settings of the run. */
#include "checkpoint/internal.h"
#include "core/rng.h"
#include "session/checkpoint_tensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OVERRIDES_MAX = 64, GRAD_TRIES = 40 };

struct tool {
    const char             *config_path, *batches_path, *weights, *save, *save_end, *grads, *logits;
    const char             *overrides[OVERRIDES_MAX];
    int                     override_count;
    int64_t                 steps;
    const struct cr_config *config;
    struct cr_session       session;
    uint8_t                *images; /* [count][batch] images */
    int32_t                *labels;
    int64_t                 count, batch, size;
};

/* ---- the command line ---- */

static cr_status parse(int argc, char **argv, struct tool *t) {
    const struct {
        const char  *name;
        const char **value;
    } texts[] = {{"--batches", &t->batches_path}, {"--weights", &t->weights}, {"--save", &t->save},
                 {"--save-end", &t->save_end},    {"--grads", &t->grads},     {"--logits", &t->logits}};
    t->steps  = 1;
    for (int i = 1; i < argc; i++) {
        bool taken = false;
        for (size_t k = 0; k < CR_COUNT(texts) && !taken; k++)
            if (strcmp(argv[i], texts[k].name) == 0 && i + 1 < argc) {
                *texts[k].value = argv[++i];
                taken           = true;
            }
        if (taken) continue;
        if (strcmp(argv[i], "--steps") == 0 && i + 1 < argc)
            t->steps = strtoll(argv[++i], NULL, 10);
        else if (argv[i][0] == '-' && argv[i][1])
            return CR_FAIL(CR_ERR_USAGE, "unknown option %s, or no value to it", argv[i]);
        else if (!t->config_path)
            t->config_path = argv[i];
        else if (t->override_count == OVERRIDES_MAX)
            return CR_FAIL(CR_ERR_USAGE, "more than %d values", OVERRIDES_MAX);
        else
            t->overrides[t->override_count++] = argv[i];
    }
    if (!t->config_path)
        return CR_FAIL(CR_ERR_USAGE, "steps_tool CONFIG|- [section.key=value ...] [options]: no configuration given");
    if (strcmp(t->config_path, "-") == 0) t->config_path = NULL;
    return t->steps < 0 ? CR_FAIL(CR_ERR_USAGE, "--steps must not be negative") : CR_OK;
}

/* ---- batches ---- */

static cr_status read_batches(struct tool *t) {
    struct cr_st_file *file = NULL;
    cr_status          status;
    CR_TRY_OUT(cr_st_open(t->batches_path, &file));
    const struct cr_st_entry *images = cr_st_find(file, "images"), *labels = cr_st_find(file, "labels");
    if (!images || images->dims != 5 || !labels || labels->bytes != (uint64_t)(images->dim[0] * images->dim[1] * 4))
        CR_FAIL_OUT(CR_ERR_FORMAT, "%s: not the tensors images and labels", t->batches_path);
    t->count  = images->dim[0];
    t->batch  = images->dim[1];
    t->size   = images->dim[2];
    t->images = cr_alloc((size_t)images->bytes, 1);
    t->labels = cr_alloc((size_t)labels->bytes, 1);
    if (!t->images || !t->labels) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for the batches");
    CR_TRY_OUT(cr_st_read(file, images, 0, t->images, (size_t)images->bytes));
    CR_TRY_OUT(cr_st_read(file, labels, 0, t->labels, (size_t)labels->bytes));
out:
    cr_st_close(file);
    return status;
}

static cr_status draw_batch(struct tool *t) {
    const size_t  bytes = (size_t)(t->batch * t->size * t->size) * 3;
    struct cr_rng rng   = cr_rng_make((uint64_t)t->config->train.seed, CR_RNG_TEST, 0, 0);
    CR_ALLOC(t->images, bytes);
    CR_ALLOC(t->labels, (size_t)t->batch);
    for (size_t i = 0; i < bytes; i++) t->images[i] = (uint8_t)cr_rng_u32(&rng);
    for (int64_t i = 0; i < t->batch; i++)
        t->labels[i] = (int32_t)cr_rng_below(&rng, (uint64_t)t->session.model.classes);
    return CR_OK;
}

static cr_status open_all(struct tool *t) {
    struct cr_session_options options = {.train = !t->logits, .eval = t->logits, .execute = true};
    CR_TRY(cr_config_open(&t->config, t->config_path, t->overrides, t->override_count));
    if (t->config->train.accumulate != 1) return CR_FAIL(CR_ERR_CONFIG, "train.accumulate must be 1 here");
    if (t->batches_path) CR_TRY(read_batches(t));
    options.batch = options.eval_batch = t->batch;
    CR_TRY(cr_session_open(t->config, &options, &t->session));
    if (t->batches_path && t->size != t->session.prepare_train.size)
        return CR_FAIL(CR_ERR_FORMAT, "%s: images of %" PRId64 " pixels a side, data.image_size is %d", t->batches_path,
                       t->size, t->session.prepare_train.size);
    if (!t->batches_path) {
        t->count = 1;
        t->batch = t->session.state.batch;
        t->size  = t->session.prepare_train.size;
        CR_TRY(draw_batch(t));
    }
    if (!t->logits || !t->weights) CR_TRY(cr_session_init(&t->session)); /* a file of weights has all values */
    return t->weights ? cr_session_load_weights(&t->session, t->weights, true) : CR_OK;
}

/* ---- files ---- */

/* Reads f32 tensors of the parameter store, divided by `divisor`. */
struct divided {
    struct cr_ckpt_io io;
    double            divisor;
};

static cr_status divided_get(void *self, struct cr_ckpt_address address, uint64_t offset, void *host, size_t bytes) {
    const struct divided *d = self;
    float                *v = host;
    CR_TRY(d->io.get(d->io.self, address, offset, host, bytes));
    for (size_t i = 0; i < bytes / sizeof *v; i++) v[i] = (float)((double)v[i] / d->divisor);
    return CR_OK;
}

static cr_status write_list(const char *path, const struct cr_state_list *list, const struct cr_ckpt_io *io) {
    const struct cr_st_meta meta[]  = {{"format", "pt"}};
    struct cr_st_writer    *writer  = NULL;
    struct cr_ckpt_stage    stage   = {0};
    struct cr_st_entry     *entries = cr_alloc((size_t)list->count, sizeof *entries);
    cr_status               status;
    if (!entries) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while writing %s", path);
    for (int i = 0; i < list->count; i++) {
        const struct cr_ckpt_tensor *from = &list->tensor[i];
        entries[i] = (struct cr_st_entry){.name = from->name, .dtype = from->dtype, .dims = from->dims};
        memcpy(entries[i].dim, from->dim, sizeof from->dim);
    }
    (void)unlink(path); /* the writer refuses to overwrite files */
    CR_TRY_OUT(cr_ckpt_stage_open(list->tensor, list->count, CR_CKPT_CHUNK_BYTES, &stage));
    CR_TRY_OUT(cr_st_create(path, entries, list->count, meta, CR_COUNT(meta), &writer));
    for (int i = 0; i < list->count && status == CR_OK; i++)
        status = cr_ckpt_tensor_out(writer, &list->tensor[cr_st_writer_index(writer, i)], &stage, io);
    if (status == CR_OK)
        status = cr_st_finish(&writer);
    else
        cr_st_abandon(writer);
out:
    cr_ckpt_stage_close(&stage);
    cr_free(entries);
    return status;
}

static cr_status save_weights(struct tool *t, const char *path) {
    struct cr_arena         arena = {0};
    struct cr_state_list    list;
    const struct cr_ckpt_io io     = cr_state_io(&t->session);
    cr_status               status = cr_state_model_list(&t->session.model.store, &arena, &list);
    if (status == CR_OK) status = write_list(path, &list, &io);
    cr_arena_free(&arena);
    return status;
}

/* The list of weights, moved from the value buffer to the gradient buffer. */
static cr_status save_grads(struct tool *t, const char *path, double scale) {
    const struct cr_param_store *store = &t->session.model.store;
    const uint64_t               value = cr_param_store_buffer_offset(store, CR_BUFFER_VALUE),
                   grad                = cr_param_store_buffer_offset(store, CR_BUFFER_GRAD);
    const uint64_t       end           = value + cr_param_store_buffer_bytes(store, CR_BUFFER_VALUE);
    struct cr_arena      arena         = {0};
    struct cr_state_list list;
    struct divided       divided = {.io = cr_state_io(&t->session), .divisor = scale};
    struct cr_ckpt_io    io      = {.self = &divided, .get = divided_get};
    cr_status            status;
    int                  count = 0;
    CR_ASSERT(cr_param_store_buffer_dtype(store, CR_BUFFER_GRAD) == CR_F32);
    CR_TRY_OUT(cr_state_model_list(store, &arena, &list));
    for (int i = 0; i < list.count; i++) {
        struct cr_ckpt_tensor tensor = list.tensor[i];
        if (tensor.address.kind != CR_STATE_IN_STORE || tensor.address.value < value || tensor.address.value >= end)
            continue; /* running statistics and counters have no gradient */
        tensor.address.value += grad - value;
        list.tensor[count++] = tensor;
    }
    list.count = count;
    CR_TRY_OUT(write_list(path, &list, &io));
out:
    cr_arena_free(&arena);
    return status;
}

/* ---- steps ---- */

static cr_status one_step(struct tool *t, int64_t step, float lr, struct cr_exec_result *out) {
    struct cr_exec            *exec  = t->session.train_exec[0];
    const int64_t              k     = step % t->count;
    const struct cr_step_block block = {.lr           = lr,
                                        .momentum     = (float)t->config->optim.momentum,
                                        .weight_decay = (float)t->config->optim.weight_decay,
                                        .clip_norm    = (float)t->config->train.clip_norm,
                                        .step         = step,
                                        .seed         = (uint64_t)t->config->train.seed};
    CR_TRY(cr_exec_feed(exec, t->images + k * t->batch * t->size * t->size * 3, t->labels + k * t->batch, NULL));
    CR_TRY(cr_exec_run(exec, &block));
    return cr_exec_result(exec, cr_exec_runs(exec), out);
}

static cr_status loss_scale(struct tool *t, double *out) {
    double state[CR_STATE_COUNT];
    char  *at = (char *)t->session.memory.region[CR_REGION_STORE] +
               cr_param_store_buffer_offset(&t->session.model.store, CR_BUFFER_STATE);
    CR_TRY(t->session.device->backend->get(t->session.device, state, at, sizeof state));
    *out = state[CR_STATE_LOSS_SCALE];
    return CR_OK;
}

/* A dynamic loss scale may be too large at first: repeats the batch with the new scale. */
static cr_status grads_of(struct tool *t, int64_t k, struct cr_exec_result *r, struct cr_text *scales) {
    double scale = 1;
    char   path[4096];
    for (int i = 0; i < GRAD_TRIES; i++) {
        CR_TRY(loss_scale(t, &scale));
        CR_TRY(one_step(t, k, 0, r));
        if (!r->nonfinite) break;
    }
    if (r->nonfinite)
        return CR_FAIL(CR_ERR_NUMERIC, "batch %" PRId64 ": the gradient is not finite, last with loss scale %g", k,
                       scale);
    cr_text_add(scales, "%s%.9g", k ? ", " : "", scale);
    if ((size_t)snprintf(path, sizeof path, "%s-%" PRId64 ".safetensors", t->grads, k) >= sizeof path)
        return CR_FAIL(CR_ERR_USAGE, "--grads %s: too long", t->grads);
    return save_grads(t, path, scale);
}

static cr_status logits_of(struct tool *t, float *out) {
    const struct cr_step_block block  = {0};
    const int64_t              pixels = t->batch * t->size * t->size * 3;
    for (int64_t k = 0; k < t->count; k++) {
        CR_TRY(cr_exec_feed(t->session.eval_exec, t->images + k * pixels, NULL, NULL));
        CR_TRY(cr_exec_run(t->session.eval_exec, &block));
        CR_TRY(
            cr_exec_get(t->session.eval_exec, t->session.eval.logits, out + k * t->batch * t->session.model.classes));
    }
    return CR_OK;
}

static cr_status save_logits(struct tool *t) {
    const int64_t            count = t->count * t->batch * t->session.model.classes;
    const struct cr_st_entry entry = {
        .name = "logits", .dtype = CR_F32, .dims = 2, .dim = {t->count * t->batch, t->session.model.classes}};
    struct cr_st_writer *writer = NULL;
    float               *logits = cr_alloc((size_t)count, sizeof *logits);
    cr_status            status;
    if (!logits) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for the logits");
    CR_TRY_OUT(logits_of(t, logits));
    (void)unlink(t->logits); /* the writer refuses to overwrite files */
    CR_TRY_OUT(cr_st_create(t->logits, &entry, 1, NULL, 0, &writer));
    status = cr_st_write(writer, logits, (size_t)count * sizeof *logits);
    if (status == CR_OK)
        status = cr_st_finish(&writer);
    else
        cr_st_abandon(writer);
out:
    cr_free(logits);
    return status;
}

static cr_status run(struct tool *t, struct cr_text *losses, struct cr_text *scales, int64_t *skipped) {
    if (t->save) CR_TRY(save_weights(t, t->save));
    if (t->logits) return save_logits(t);
    const int64_t steps = t->grads ? t->count : t->steps;
    for (int64_t i = 0; i < steps; i++) {
        struct cr_exec_result r;
        if (t->grads)
            CR_TRY(grads_of(t, i, &r, scales));
        else {
            CR_TRY(one_step(t, i, (float)t->config->optim.lr, &r));
            cr_text_add(scales, "%s%.9g", i ? ", " : "", r.loss_scale);
        }
        const double loss = r.loss_sum / r.valid;
        if (loss - loss == 0)
            cr_text_add(losses, "%s%.9g", i ? ", " : "", loss);
        else
            cr_text_add(losses, "%snull", i ? ", " : ""); /* JSON has no literal for non-finite numbers */
        *skipped = r.skipped;
    }
    return t->save_end ? save_weights(t, t->save_end) : CR_OK;
}

static void add_triple(struct cr_text *out, const char *name, const struct cr_reals *v) {
    cr_text_add(out, "\"%s\": [%.17g, %.17g, %.17g], ", name, v->at[0], v->at[1], v->at[2]);
}

static cr_status report(const struct tool *t, const struct cr_text *losses, const struct cr_text *scales,
                        int64_t skipped, double seconds) {
    const struct cr_config *c   = t->config;
    struct cr_text          out = {0};
    cr_text_add(&out, "{\"losses\": [%s], \"loss_scales\": [%s], \"skipped\": %" PRId64 ", \"seconds\": %.3f, ",
                losses->data ? losses->data : "", scales->data ? scales->data : "", skipped, seconds);
    cr_text_add(
        &out, "\"arch\": \"%s\", \"type\": \"%s\", \"batch\": %" PRId64 ", \"size\": %" PRId64 ", \"classes\": %d, ",
        cr_word_arch(c->model.arch), cr_dtype_name(t->session.model.real), t->batch, t->size, t->session.model.classes);
    cr_text_add(
        &out,
        "\"lr\": %.17g, \"momentum\": %.17g, \"nesterov\": %s, \"weight_decay\": %.17g, \"decay_norm_bias\": %s, ",
        c->optim.lr, c->optim.momentum, c->optim.nesterov ? "true" : "false", c->optim.weight_decay,
        c->optim.decay_norm_bias ? "true" : "false");
    cr_text_add(&out, "\"label_smoothing\": %.17g, \"bn_eps\": %.17g, \"bn_momentum\": %.17g, ",
                c->train.label_smoothing, c->model.bn_eps, c->model.bn_momentum);
    add_triple(&out, "mean", &c->data.mean);
    add_triple(&out, "std", &c->data.std);
    cr_text_add(&out, "\"device\": ");
    cr_text_add_json(&out, t->session.device->caps.text);
    cr_text_add(&out, "}\n");
    const bool good = !out.failed && !losses->failed && fputs(out.data, stdout) >= 0 && fflush(stdout) == 0;
    cr_text_free(&out);
    return good ? CR_OK : CR_FAIL(CR_ERR_IO, "the result cannot be written");
}

int main(int argc, char **argv) {
    struct tool    t      = {0};
    struct cr_text losses = {0}, scales = {0};
    int64_t        skipped = 0;
    cr_status      status  = parse(argc, argv, &t);
    cr_log_quiet(true);
    if (status == CR_OK) status = open_all(&t);
    const int64_t start = cr_time_ns();
    if (status == CR_OK) status = run(&t, &losses, &scales, &skipped);
    if (status == CR_OK) status = report(&t, &losses, &scales, skipped, (double)(cr_time_ns() - start) * 1e-9);
    if (status != CR_OK) fprintf(stderr, "steps_tool: %s\n", cr_error_message());
    cr_text_free(&losses);
    cr_text_free(&scales);
    cr_free(t.images);
    cr_free(t.labels);
    cr_session_close(&t.session);
    cr_config_close(t.config);
    return cr_status_exit(status);
}
