/* session.c: opening and closing what commands run on. See session.h. */
#include "session.h"

#include <stdio.h>
#include <string.h>

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
    case CR_DATA_PACKED: break;
    }
    struct cr_dataset *dataset;
    CR_TRY(cr_dataset_open(c, CR_SPLIT_TRAIN, &dataset));
    *classes = cr_dataset_classes(dataset);
    cr_dataset_close(dataset);
    return CR_OK;
}

/* ---- programs ---- */

/* What [memory] limit leaves for the pool of a program that is not planned yet. */
static size_t limit_of_pool(const struct cr_session *s, const struct cr_program *p) {
    const struct cr_program *all[] = {p};
    const size_t             rest  = cr_memory_need(s->device, &s->model.store, all, 1);
    return s->limit > rest ? s->limit - rest : 1;
}

static void find_limit(struct cr_session *s) {
    const char *limit = s->config->memory.limit;
    s->limit          = 0;
    if (strcmp(limit, "auto") == 0) s->limit = s->device->backend->memory_free(s->device);
    else if (*limit) CR_ASSERT(cr_bytes_parse(limit, &s->limit)); /* config_check.c has looked at it */
}

static cr_status compile(struct cr_session *s, enum cr_program_kind kind, int64_t batch, struct cr_program *out) {
    const struct cr_config *c      = s->config;
    struct cr_target        target = cr_session_target(s);
    struct cr_fit_report    fit = {0};
    struct cr_compile_options options = {.fuse = c->train.fuse, .reuse = c->memory.reuse, .report = &fit};
    CR_TRY(cr_model_program(&s->model, c, kind, batch, out));
    if (s->limit) options.pool_limit = limit_of_pool(s, out);
    cr_status status = cr_compile(out, &target, &options);
    if (status != CR_OK) cr_program_free(out);
    if (fit.repeated > s->fit.repeated) s->fit = fit;
    return status;
}

static cr_status compile_train(struct cr_session *s) {
    const enum cr_program_kind whole[] = {CR_PROGRAM_STEP};
    const enum cr_program_kind parts[] = {CR_PROGRAM_MICRO_FIRST, CR_PROGRAM_MICRO, CR_PROGRAM_MICRO_LAST};
    bool                       split   = s->config->train.accumulate > 1;
    const enum cr_program_kind *kinds  = split ? parts : whole;
    int                        count   = split ? 3 : 1;
    for (; s->trains < count; s->trains++) CR_TRY(compile(s, kinds[s->trains], s->batch, &s->train[s->trains]));
    return CR_OK;
}

static double mib(size_t bytes) { return (double)bytes / (1 << 20); }

/* `lacks`: bytes short of what is needed; 0: unknown. */
static cr_status say_what_is_needed(const struct cr_session *s, const struct cr_program *const *all, int count, size_t lacks) {
    size_t pool = 0, store = cr_store_bytes(&s->model.store), need = cr_memory_need(s->device, &s->model.store, all, count);
    char   missing[64] = "";
    for (int i = 0; i < count; i++) pool = CR_MAX(pool, all[i]->region_bytes[CR_REGION_POOL]);
    if (lacks) snprintf(missing, sizeof missing, ", %.0f MiB more than there are", mib(lacks));
    return CR_FAIL(CR_ERR_MEMORY,
                   "out of memory on %s: the network needs %.0f MiB%s (parameters and state %.0f, activations %.0f, pictures %.0f) "
                   "with train.batch = %lld and %d pixels a side: lower train.batch (and train.eval_batch), or "
                   "data.image_size (and data.eval_crop)%s",
                   s->device->backend->name, mib(need), missing, mib(store), mib(pool), mib(need - store - pool),
                   (long long)(s->trains ? s->batch : s->eval_batch), s->trains ? s->prepare_train.size : s->prepare_eval.size,
                   s->device->caps.half && s->model.real == CR_F32 ? ", or set train.precision = fp16" : "");
}

static cr_status bind_programs(struct cr_session *s) {
    const struct cr_program *all[CR_SESSION_TRAIN_MAX + 1];
    int                      count = 0;
    for (int i = 0; i < s->trains; i++) all[count++] = &s->train[i];
    if (s->has_eval) all[count++] = &s->eval;
    /* A host that promises more memory than it has would kill us later, a GPU would refuse in the middle: ask first. */
    const size_t need = cr_memory_need(s->device, &s->model.store, all, count), left = s->device->backend->memory_free(s->device);
    if (s->limit && need > s->limit)
        return cr_config_fail(s->config, "memory.limit", "the run needs %.0f MiB, %.0f more than that, with all recomputing that helps: "
                              "raise it, or lower train.batch (and train.eval_batch) or data.image_size", mib(need), mib(need - s->limit));
    if (s->fit.repeated)
        cr_log(CR_LOG_INFO, "memory  %d ops run twice: activations %.0f MiB instead of %.0f, about %.2f ms a step more", s->fit.repeated,
               mib(s->fit.after), mib(s->fit.before), s->fit.seconds * 1e3);
    if (left && need > left) return say_what_is_needed(s, all, count, need - left);
    cr_status status = cr_memory_open(&s->memory, s->device, &s->model.store, all, count);
    if (status == CR_ERR_MEMORY) return say_what_is_needed(s, all, count, 0);
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

cr_status cr_session_device(const struct cr_config *c, bool ref_only, struct cr_device **device, enum cr_dtype *real) {
    const struct cr_device_options options = {.threads = (int)c->train.threads, .deterministic = c->train.deterministic,
                                              .ref_only = ref_only, .tf32 = c->train.precision == CR_PRECISION_TF32,
                                              .index = (int)c->train.gpu};
    CR_TRY(cr_device_open(c->train.device, &options, device));
    enum cr_precision precision = resolve_precision(c, *device);
    *real = precision == CR_PRECISION_FP16 ? CR_F16 : precision == CR_PRECISION_BF16 ? CR_BF16 : CR_F32;
    if ((*device)->caps.half || precision == CR_PRECISION_FP32) return CR_OK;
    cr_device_close(*device);
    *device = NULL;
    return cr_config_fail(c, "train.precision", "%s needs a GPU; the CPU device computes in fp32 (auto, fp32)",
                          cr_word_precision(c->train.precision));
}

/* Values that were set and change nothing here: a run whose config means another device should hear of it. */
static void say_what_is_idle(const struct cr_session *s, bool trains) {
    const struct cr_config *c    = s->config;
    const bool              gpu  = c->train.gpu && !s->device->backend->async;
    const bool              loss = trains && c->train.loss_scale > 0 && s->model.real != CR_F16;
    if (gpu || loss)
        cr_log(CR_LOG_INFO, "without effect here: %s%s%s", gpu ? "train.gpu (no GPU is used)" : "", gpu && loss ? ", " : "",
               loss ? "train.loss_scale (for fp16 only)" : "");
}

static cr_status open_all(struct cr_session *s, const struct cr_session_options *o) {
    const struct cr_config *c       = s->config;
    int                     classes = o->classes;
    if (!classes) CR_TRY(cr_session_classes(c, &classes));
    if (c->model.classes && c->model.classes != classes)
        return cr_config_fail(c, "model.classes", "%lld, but the data set has %d: leave the key out, or set data.root to the right set",
                              (long long)c->model.classes, classes);
    CR_TRY(cr_prepare_from_config(c, CR_SPLIT_TRAIN, &s->prepare_train));
    CR_TRY(cr_prepare_from_config(c, CR_SPLIT_VAL, &s->prepare_eval));
    enum cr_dtype real;
    int64_t       start = cr_time_ns();
    CR_TRY(cr_session_device(c, o->ref_only, &s->device, &real));
    s->times.device_ns = cr_time_ns() - start;
    start              = cr_time_ns();
    CR_TRY(cr_model_open(c, classes, s->prepare_train.size, s->prepare_eval.size, &s->model));
    cr_model_set_real(&s->model, real);
    say_what_is_idle(s, o->train);
    s->batch      = o->batch ? o->batch : c->train.batch;
    s->eval_batch = o->eval_batch ? o->eval_batch : c->train.eval_batch ? c->train.eval_batch : s->batch;
    CR_TRY(cr_session_costs(s, o));
    find_limit(s);
    if (o->train) CR_TRY(compile_train(s));
    if (o->eval) {
        CR_TRY(compile(s, CR_PROGRAM_EVAL, s->eval_batch, &s->eval));
        s->has_eval = true;
    }
    if (s->costs) cr_costs_rest(s->costs);
    s->times.compile_ns = cr_time_ns() - start;
    start               = cr_time_ns();
    if (o->execute) CR_TRY(bind_programs(s));
    s->times.memory_ns = cr_time_ns() - start;
    return CR_OK;
}

cr_status cr_session_open(const struct cr_config *config, const struct cr_session_options *options, struct cr_session *out) {
    *out             = (struct cr_session){.config = config};
    cr_status status = open_all(out, options);
    if (status != CR_OK) cr_session_close(out);
    return status;
}

void cr_session_close(struct cr_session *s) {
    for (int i = 0; i < CR_SESSION_TRAIN_MAX; i++) cr_exec_close(s->train_exec[i]);
    cr_exec_close(s->eval_exec);
    if (s->memory.device) cr_memory_close(&s->memory);
    for (int i = 0; i < s->trains; i++) cr_program_free(&s->train[i]);
    if (s->has_eval) cr_program_free(&s->eval);
    cr_model_close(&s->model);
    cr_costs_close(s->costs);
    cr_device_close(s->device);
    *s = (struct cr_session){0};
}

/* ---- values ---- */

static char *state_address(struct cr_session *s, int which) {
    return (char *)s->memory.region[CR_REGION_STORE] + cr_store_plane_offset(&s->model.store, CR_PLANE_STATE) +
           (size_t)which * sizeof(double);
}

/* Where a moving scale starts; it finds its place within the first updates (Micikevicius et al. 2018). */
static const double scale_start = 65536;

cr_status cr_session_fit_loss_scale(struct cr_session *s) {
    const struct cr_backend *backend = s->device->backend;
    double                   scale, wanted = s->config->train.loss_scale;
    CR_TRY(backend->get(s->device, &scale, state_address(s, CR_STATE_LOSS_SCALE), sizeof scale));
    if (s->model.real != CR_F16) wanted = 1;
    else if (wanted == 0) wanted = scale > 1 ? scale : scale_start;
    return backend->put(s->device, state_address(s, CR_STATE_LOSS_SCALE), &wanted, sizeof wanted);
}

cr_status cr_session_init(struct cr_session *s) {
    const int64_t start = cr_time_ns();
    CR_TRY(s->device->backend->init_store(s->device, &s->model.store, s->config, s->memory.region[CR_REGION_STORE]));
    CR_TRY(cr_session_fit_loss_scale(s));
    s->times.values_ns = cr_time_ns() - start;
    return CR_OK;
}

void cr_session_times_text(const struct cr_session *s, char *text, size_t size) {
    const struct cr_session_times *t = &s->times;
    snprintf(text, size, "device %.2f s, kernels %.2f s, memory %.2f s, values %.2f s", (double)t->device_ns * 1e-9,
             (double)t->compile_ns * 1e-9, (double)t->memory_ns * 1e-9, (double)t->values_ns * 1e-9);
}
