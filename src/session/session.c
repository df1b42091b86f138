/* session/session.c: opens and closes a session: device, model, compiled programs, memory. See session/session.h. */
#include "session/session.h"

#include "session/checkpoint_tensors.h"
#include "session/labels/label_scores.h"

#include <stdio.h>

/* ---- classes ---- */

cr_status cr_session_classes(const struct cr_config *c, int *classes) {
    *classes = (int)c->model.classes;
    if (*classes) return CR_OK;
    switch (c->data.kind) {
    case CR_DATA_SHAPES:
    case CR_DATA_CIFAR10: *classes = 10; return CR_OK;
    case CR_DATA_CIFAR100: *classes = 100; return CR_OK;
    case CR_DATA_SYNTHETIC: *classes = cr_config_is_small(c) ? 10 : 1000; return CR_OK;
    case CR_DATA_FOLDER:
    case CR_DATA_CSV:
    case CR_DATA_TAR:
    case CR_DATA_PACKED: break;
    }
    struct cr_dataset *dataset;
    CR_TRY(cr_dataset_open(c, CR_SPLIT_TRAIN, &dataset));
    *classes = dataset->classes;
    cr_dataset_close(dataset);
    return CR_OK;
}

/* ---- programs ---- */

/* Reserves memory for the input of a program that is compiled later. */
static cr_status count_input(struct cr_session *s, enum cr_program_kind kind, int64_t batch) {
    struct cr_program p;
    CR_TRY(cr_model_program(&s->model, s->config, kind, batch, &p));
    cr_session_count_input(s, &p);
    cr_program_free(&p);
    return CR_OK;
}

static cr_status compile_train(struct cr_session *s) {
    static const enum cr_program_kind one_batch[]     = {CR_PROGRAM_STEP};
    static const enum cr_program_kind micro_batches[] = {CR_PROGRAM_MICRO_FIRST, CR_PROGRAM_MICRO,
                                                         CR_PROGRAM_MICRO_LAST};
    const bool                        accumulates     = s->config->train.accumulate > 1;
    const int64_t                     largest         = s->model.image_size;
    s->parts                                          = accumulates ? 3 : 1;
    if (s->limit && s->state.sizes.count > 1) CR_TRY(count_input(s, CR_PROGRAM_STEP, s->state.batch));
    for (int k = 0; k < s->state.sizes.count; k++) {
        s->model.image_size = s->state.sizes.size[k];
        for (int i = 0; i < s->parts; i++, s->trains++) {
            struct cr_program *p = &s->train[s->trains];
            CR_TRY(cr_session_compile(s, (accumulates ? micro_batches : one_batch)[i], s->state.batch, NULL, p));
            cr_session_count_input(s, p);
        }
    }
    s->model.image_size = largest;
    return CR_OK;
}

int cr_session_program_at(const struct cr_session *s, int64_t epoch, int64_t i) {
    const int part = i == 0 ? 0 : i == s->config->train.accumulate - 1 ? 2 : 1;
    return cr_size_index(&s->state.sizes, epoch) * s->parts + part;
}

static int all_programs(const struct cr_session *s, const struct cr_program *all[CR_SESSION_TRAIN_MAX + 1]) {
    int count = 0;
    for (int i = 0; i < s->trains; i++) all[count++] = &s->train[i];
    if (s->has_eval) all[count++] = &s->eval;
    return count;
}

/* Bytes of the programs `first` to `count` of all_programs. */
static size_t need_of(const struct cr_session *s, int first, int count) {
    const struct cr_program *all[CR_SESSION_TRAIN_MAX + 1];
    (void)all_programs(s, all);
    return cr_memory_need(s->device, &s->model.store, all + first, count - first);
}

static size_t need_of_all(const struct cr_session *s) {
    return need_of(s, 0, s->trains + s->has_eval);
}

static void free_eval(struct cr_session *s) {
    if (s->has_eval) cr_program_free(&s->eval);
    s->has_eval = false;
}

static void free_programs(struct cr_session *s) {
    for (int i = 0; i < s->trains; i++) cr_program_free(&s->train[i]);
    free_eval(s);
    s->trains      = 0;
    s->input_bytes = s->small_bytes = 0;
    s->fit                          = (struct cr_fit_report){0};
}

/* Results do not depend on the batch size of an evaluation. Unless the user sets it, it is halved until evaluation fits
 * the limit, or the memory that training needs anyway. */
static bool halve_eval_batch(struct cr_session *s) {
    if (!s->has_eval || !s->limit || s->state.eval_batch < 2) return false;
    if (need_of_all(s) <= CR_MAX(s->limit, need_of(s, 0, s->trains))) return false;
    s->state.eval_batch /= 2;
    free_eval(s);
    return true;
}

/* Of a batch size that was found with estimates: lowers it while the programs with the chosen kernels do not fit. */
static bool lower_batch(struct cr_session *s) {
    if (s->has_eval && s->limit && need_of(s, s->trains, s->trains + 1) > s->limit)
        return false; /* a smaller training batch does not help */
    if (!s->trains || !cr_session_smaller_batch(s, need_of_all(s))) return false;
    cr_log(CR_LOG_INFO, "batch   size lowered to %lld: the chosen kernels need more memory than estimated",
           (long long)s->state.batch);
    free_programs(s);
    return true;
}

/* Compiles with [memory] limit = auto without a limit first: a run that fits has the same programs on every device. A
 * plan for host memory (o->execute is false) does not depend on this machine. All ranks decide alike, because they
 * share limit_if_needed and their programs are the same. */
static bool set_needed_limit(struct cr_session *s, const struct cr_session_options *o) {
    if ((!o->execute && s->device->caps.host_memory) || !cr_session_needs_limit(s, need_of_all(s))) return false;
    free_programs(s);
    return true;
}

/* Compiles the programs that are missing. *fit_of_training: how the training programs were fitted below the limit. */
static cr_status compile_missing(struct cr_session *s, const struct cr_session_options *o,
                                 struct cr_fit_report *fit_of_training) {
    if (!s->trains && o->train) {
        if (s->limit && o->eval && (o->eval_batch || s->config->train.eval_batch))
            CR_TRY(count_input(s, CR_PROGRAM_EVAL, s->state.eval_batch));
        CR_TRY(compile_train(s));
        *fit_of_training = s->fit;
    }
    s->fit = *fit_of_training;
    if (!o->eval) return CR_OK;
    CR_TRY(cr_session_compile(s, CR_PROGRAM_EVAL, s->state.eval_batch, NULL, &s->eval));
    s->has_eval = true;
    return CR_OK;
}

/* Compiles until the programs fit the memory. Ranks above 0 take batch size, limit and kernel times of rank 0. */
static cr_status compile_until_fits(struct cr_session *s, const struct cr_session_options *o) {
    const int64_t        given      = o->eval_batch ? o->eval_batch : s->config->train.eval_batch;
    const bool           first_rank = cr_comm_rank(s->comm) == 0;
    struct cr_fit_report fit        = {0}; /* of the training programs */
    if (!first_rank) CR_TRY(cr_session_share_choices(s));
    const bool found = !s->state.batch && (o->train || !given);
    if (found) CR_TRY(cr_session_find_batch(s, o->batch_max));
    for (s->state.eval_batch = given ? given : s->state.batch;;) {
        CR_TRY(compile_missing(s, o, &fit));
        if (!given && halve_eval_batch(s)) continue;
        if (!found || !lower_batch(s)) {
            if (first_rank) CR_TRY(cr_session_share_choices(s));
            if (!set_needed_limit(s, o)) break;
            if (!first_rank) CR_TRY(cr_session_share_choices(s));
        }
        fit                 = (struct cr_fit_report){0};
        s->state.eval_batch = given ? given : s->state.batch;
    }
    if (o->eval && s->state.eval_batch < (given ? given : s->state.batch))
        cr_log(CR_LOG_INFO, "memory  evaluation with batch size %lld: a larger one does not fit",
               (long long)s->state.eval_batch);
    return CR_OK;
}

static void log_fit(const struct cr_session *s) {
    struct cr_text text = {0};
    cr_session_fit_text(s, &text);
    if (text.data && !text.failed) cr_log(CR_LOG_INFO, "memory  %s", text.data);
    cr_text_free(&text);
}

static cr_status bind_programs(struct cr_session *s) {
    const struct cr_program *all[CR_SESSION_TRAIN_MAX + 1];
    const int                count = all_programs(s, all);
    /* Compare with the free memory first: a host that overcommits memory would kill the process later, and a GPU would
     * fail halfway. */
    const size_t need = cr_memory_need(s->device, &s->model.store, all, count),
                 left = s->device->caps.host_memory && !s->limit_if_needed
                            ? cr_session_free_memory(s) /* nothing has left room for the rest of the program */
                            : s->device->backend->memory_free(s->device);
    if (s->limit && need > s->limit)
        return s->state.memory_limit ? cr_session_limit_missed(s, need)
                                     : cr_session_lacks_memory(s, all, count, need - s->limit);
    log_fit(s);
    if (left && need > left) return cr_session_lacks_memory(s, all, count, need - left);
    cr_status status = cr_memory_open(&s->memory, s->device, &s->model.store, all, count);
    if (status == CR_ERR_MEMORY && !s->fit.offloaded)
        return cr_session_lacks_memory(
            s, all, count, 0); /* with offloading, host memory may be exhausted; cr_memory_open has set that error */
    CR_TRY(status);
    for (int i = 0; i < s->trains; i++) CR_TRY(cr_exec_open(&s->train[i], &s->memory, &s->train_exec[i]));
    if (s->has_eval) CR_TRY(cr_exec_open(&s->eval, &s->memory, &s->eval_exec));
    return CR_OK;
}

/* ---- open ---- */

static enum cr_precision resolve_precision(const struct cr_config *c, const struct cr_device *device) {
    if (c->train.precision != CR_PRECISION_AUTO) return c->train.precision;
    return device->caps.half ? CR_PRECISION_FP16 : CR_PRECISION_FP32;
}

cr_status cr_session_device(const struct cr_config *c, const struct cr_session_options *o, struct cr_device **device,
                            enum cr_dtype *real) {
    struct cr_comm         *comm   = o ? o->comm : NULL;
    const int               local  = comm ? cr_comm_rank_info(comm, cr_comm_rank(comm))->local_rank : 0;
    const bool              narrow = c->ranks.reduce != CR_REDUCE_FP32; /* only NCCL reduces 16-bit values */
    const enum cr_transport transport =
        narrow && c->ranks.transport == CR_TRANSPORT_AUTO ? CR_TRANSPORT_NCCL : c->ranks.transport;
    const struct cr_device_options options = {.threads       = (int)c->train.threads,
                                              .deterministic = c->train.deterministic,
                                              .ref_only      = o && o->ref_only,
                                              .tf32          = c->train.precision == CR_PRECISION_TF32,
                                              .bf16          = c->train.precision == CR_PRECISION_BF16,
                                              .index         = (int)c->train.gpu + local,
                                              .comm          = comm,
                                              .comm_blocks   = (int)c->ranks.blocks,
                                              .card_bytes    = cr_config_card_bytes(c),
                                              .transport     = transport,
                                              .option        = c->device_option};
    CR_TRY(cr_device_open(c->train.device, &options, device));
    enum cr_precision precision = resolve_precision(c, *device);
    const bool        half = (*device)->caps.half, products = (*device)->caps.bf16_products;
    *real = !half                            ? CR_F32
            : precision == CR_PRECISION_FP16 ? CR_F16
            : precision == CR_PRECISION_BF16 ? CR_BF16
                                             : CR_F32;
    if (half || precision == CR_PRECISION_FP32 || (products && precision == CR_PRECISION_BF16)) return CR_OK;
    cr_device_close(*device);
    *device = NULL;
    return cr_config_fail(c, "train.precision", "%s needs a GPU%s; this CPU computes in fp32 (auto, fp32)%s",
                          cr_word_precision(c->train.precision),
                          precision == CR_PRECISION_BF16 ? " or a CPU with AMX" : "", products ? " or bf16" : "");
}

/* Logs the keys that are set but have no effect on this device. */
static void log_unused_keys(const struct cr_session *s, bool trains) {
    const struct cr_config *c    = s->config;
    const bool              gpu  = c->train.gpu && !s->device->backend->async;
    const bool              loss = trains && c->train.loss_scale > 0 && s->model.real != CR_F16;
    if (gpu || loss)
        cr_log(CR_LOG_INFO, "without effect here: %s%s%s", gpu ? "train.gpu (no GPU is used)" : "",
               gpu && loss ? ", " : "", loss ? "train.loss_scale (for fp16 only)" : "");
}

/* Timing sparse tensor cores raises the power draw of dense kernels until the process ends. */
static void log_lasting_effect(const struct cr_session *s) {
    const struct cr_program *all[CR_SESSION_TRAIN_MAX + 1];
    const int                count = all_programs(s, all);
    if (s->cost_table && cr_cost_table_has_lasting_effect(s->cost_table, all, count))
        cr_log(CR_LOG_INFO, "sparse tensor cores were timed but are not used: dense kernels draw more power until this "
                            "process ends and may be 6 %% slower on a power-limited GPU; a start with cached kernel "
                            "times is not affected");
}

/* With data.image_sizes memory and batch sizes are planned for the largest size. */
static cr_status prepare_sizes(struct cr_session *s, bool all_sizes) {
    const struct cr_config *c = s->config;
    CR_TRY(cr_prepare_from_config(c, CR_SPLIT_TRAIN, &s->prepare_train));
    if (!all_sizes || !cr_config_sizes(c, &s->state.sizes) || !s->state.sizes.count) {
        s->state.sizes      = (struct cr_size_schedule){.count = 1, .size = {s->prepare_train.size}};
        s->prepare_sizes[0] = s->prepare_train;
        return CR_OK;
    }
    for (int k = 0; k < s->state.sizes.count; k++)
        CR_TRY(cr_prepare_of_size(c, s->state.sizes.size[k], &s->prepare_sizes[k]));
    s->prepare_train = s->prepare_sizes[cr_size_largest(&s->state.sizes)];
    return CR_OK;
}

static cr_status open_all(struct cr_session *s, const struct cr_session_options *o) {
    const struct cr_config *c       = s->config;
    int                     classes = o->classes;
    bool                    masks   = o->masks;
    if (!masks && o->masks_from && *o->masks_from) CR_TRY(cr_state_is_pruned(o->masks_from, &masks));
    if (!classes) CR_TRY(cr_session_classes(c, &classes));
    if (c->model.classes && c->model.classes != classes)
        return cr_config_fail(c, "model.classes",
                              "%lld, but the dataset has %d: remove the key, or set data.root to the intended dataset",
                              (long long)c->model.classes, classes);
    CR_TRY(prepare_sizes(s, o->all_sizes));
    CR_TRY(cr_prepare_from_config(c, CR_SPLIT_VAL, &s->prepare_eval));
    enum cr_dtype real;
    int64_t       start = cr_time_ns();
    CR_TRY(cr_session_device(c, o, &s->device, &real));
    s->times.device_ns = cr_time_ns() - start;
    start              = cr_time_ns();
    s->state.epoch     = o->epoch;
    CR_TRY(cr_model_open_at(c, o->epoch, classes, s->prepare_train.size, s->prepare_eval.size, &s->model));
    cr_model_set_real(&s->model, real);
    if (o->train) CR_TRY(cr_session_attach_teacher(s, o->teacher, classes, real));
    s->model.ranks         = cr_comm_size(s->comm);
    s->model.f32_input     = o->f32_input;
    s->model.keep_features = o->keep_features;
    s->model.keep_maps     = o->keep_maps;
    s->model.calibrate     = o->calibrate;
    s->without_scales      = o->without_scales;
    if (masks) s->model.store.has_mask = true;
    if (o->train) CR_TRY(cr_dataset_class_weights(c, o->train_data, classes, &s->model.class_weights));
    log_unused_keys(s, o->train);
    s->state.batch = o->batch ? o->batch : c->train.batch;
    if (o->train) /* programs must not rely on masks that training changes */
        CR_TRY(cr_session_sparsity_pattern(s, cr_config_prunes(c) ? NULL : o->masks_from, o->draw_masks));
    else if (o->pattern)
        CR_TRY(cr_session_copy_pattern(s, o->pattern));
    else if (!masks)
        CR_TRY(cr_session_sparsity_pattern(s, c->model.weights, o->draw_masks));
    CR_TRY(cr_session_open_cost_table(s, o));
    cr_session_limit(s, o->memory_limit);
    CR_TRY(cr_session_share_limit(s));
    CR_TRY(compile_until_fits(s, o));
    CR_TRY(cr_session_same_programs(s));
    if (s->cost_table) cr_cost_table_flush(s->cost_table);
    log_lasting_effect(s);
    s->times.compile_ns = cr_time_ns() - start;
    start               = cr_time_ns();
    /* asked before the regions are reserved, which would count as libraries */
    const size_t overhead = s->need_without_limit ? cr_session_overhead_bytes(s) : 0;
    if (o->execute) {
        CR_TRY(bind_programs(s));
        CR_TRY(cr_session_put_teacher(s));
    }
    if (s->need_without_limit) s->state.memory_limit = s->limit + overhead;
    s->times.memory_ns = cr_time_ns() - start;
    return CR_OK;
}

cr_status cr_session_open(const struct cr_config *config, const struct cr_session_options *options,
                          struct cr_session *out) {
    *out             = (struct cr_session){.config = config, .comm = options->comm};
    cr_status status = open_all(out, options);
    if (status == CR_OK) return CR_OK;
    cr_comm_abort(options->comm, cr_error_message()); /* before this rank closes anything that other ranks wait for */
    cr_session_close(out);
    return status;
}

void cr_session_close(struct cr_session *s) {
    cr_session_jpeg_close(s);
    for (int i = 0; i < CR_SESSION_TRAIN_MAX; i++) cr_exec_close(s->train_exec[i]);
    cr_exec_close(s->eval_exec);
    if (s->memory.device) cr_memory_close(&s->memory);
    free_programs(s);
    cr_model_close(&s->model);
    cr_teacher_close(s->own_teacher);
    cr_cost_table_close(s->cost_table);
    cr_free(s->pattern);
    if (s->label_scores) cr_label_scores_free(s->label_scores);
    cr_free(s->label_scores);
    cr_state_running_free(s);
    cr_device_close(s->device);
    *s = (struct cr_session){0};
}

/* ---- initial values ---- */

/* Initial value of the dynamic loss scale, which adjusts within the first updates (Micikevicius et al. 2018). */
static const double initial_loss_scale = 65536;

cr_status cr_session_fit_loss_scale(struct cr_session *s) {
    const struct cr_backend *backend = s->device->backend;
    char                    *at      = cr_state_buffer_at(s, CR_BUFFER_STATE) + CR_STATE_LOSS_SCALE * sizeof(double);
    double                   scale, new_scale = s->config->train.loss_scale;
    CR_TRY(backend->get(s->device, &scale, at, sizeof scale));
    if (s->model.real != CR_F16)
        new_scale = 1;
    else if (new_scale == 0)
        new_scale = scale > 1 ? scale : initial_loss_scale;
    return backend->put(s->device, at, &new_scale, sizeof new_scale);
}

cr_status cr_session_init(struct cr_session *s) {
    const int64_t start = cr_time_ns();
    CR_TRY(s->device->backend->init_store(s->device, &s->model.store, s->config, s->memory.region[CR_REGION_STORE]));
    CR_TRY(cr_state_mask_full(s));
    CR_TRY(cr_state_ema_start(s));
    CR_TRY(cr_session_fit_loss_scale(s));
    s->times.init_ns = cr_time_ns() - start;
    return CR_OK;
}

void cr_session_times_text(const struct cr_session *s, char *text, size_t size) {
    const struct cr_session_times *t = &s->times;
    snprintf(text, size, "device %.2f s, kernel selection %.2f s, memory %.2f s, weight initialisation %.2f s",
             (double)t->device_ns * 1e-9, (double)t->compile_ns * 1e-9, (double)t->memory_ns * 1e-9,
             (double)t->init_ns * 1e-9);
}
