/* api/open.c: C API: opens, describes and closes models (inference). See include/cresnet.h. */
#include "api/model.h"
#include "core/cpu.h"
#include "data/scratch.h"
#include "session/saved_model.h"

#include <string.h>
#include <unistd.h>

#ifdef _OPENMP
#include <omp.h>
#endif

enum { BATCH_MAX = 65536, SETTINGS_MAX = 4096, SET_HERE = 4 };

const char *cresnet_version(void) {
    return CR_VERSION;
}

const char *cresnet_status_name(cresnet_status status) {
    static const char *const names[] = {"ok",     "argument", "configuration", "input/output", "format",
                                        "memory", "device",   "not finite",    "broken"};
    return (size_t)status < CR_COUNT(names) ? names[status] : "unknown";
}

void cresnet_options_init(cresnet_options *options) {
    if (options)
        *options = (cresnet_options){.size = sizeof *options, .device = "auto", .precision = "auto", .max_batch = 1};
}

/* ---- options ---- */

/* Copies the options of a caller that was built for this version or an older one. */
static cresnet_status read_options(const cresnet_options *given, cresnet_options *out, cresnet_error *error) {
    cresnet_options_init(out);
    if (!given) return CRESNET_OK;
    if (given->size < sizeof given->size + sizeof given->device || given->size > sizeof *out)
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT,
                           "options.size = %zu is not the size of a cresnet_options: call cresnet_options_init first",
                           given->size);
    memcpy(out, given, given->size);
    if (!out->device) out->device = "auto";
    if (!out->precision) out->precision = "auto";
    if (out->config && !*out->config)
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "options.config is empty: give a path or NULL");
    if (out->max_batch < 1 || out->max_batch > BATCH_MAX)
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "options.max_batch = %d: give a number from 1 to %d",
                           out->max_batch, BATCH_MAX);
    if (out->threads < 0)
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "options.threads = %d: give a number from 0", out->threads);
    if (out->setting_count < 0 || out->setting_count > SETTINGS_MAX || (out->setting_count && !out->settings))
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "options.setting_count = %d does not fit options.settings",
                           out->setting_count);
    for (int i = 0; i < out->setting_count; i++)
        if (!out->settings[i]) return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "options.settings[%d] is NULL", i);
    return CRESNET_OK;
}

/* "cuda:1" is the device cuda with train.gpu = 1. */
static cr_status device_settings(struct cr_arena *arena, const char *device, const char **kind, const char **gpu) {
    const char  *colon  = strchr(device, ':');
    const size_t length = colon ? (size_t)(colon - device) : strlen(device);
    if (colon && strncmp(device, "cuda:", 5) != 0)
        return CR_FAIL(CR_ERR_CONFIG, "options.device = %s: only cuda has a number, such as cuda:1", device);
    *kind = cr_arena_printf(arena, "train.device=%.*s", (int)CR_MIN(length, (size_t)64), device);
    *gpu  = cr_arena_printf(arena, "train.gpu=%s", colon ? colon + 1 : "0");
    return *kind && *gpu ? CR_OK : CR_NO_MEMORY(length);
}

/* ---- the session ---- */

struct open_job {
    const char             *path;
    const cresnet_options  *options;
    const struct cr_config *config; /* given by cr_api_open_config, else NULL */
    bool                    execute;
    cresnet_memory         *memory; /* of cresnet_memory_needed, else NULL */
};

static cr_status read_config(struct cresnet_model *m, const struct open_job *job) {
    const cresnet_options *o = job->options;
    struct cr_saved_model  files;
    const char           **list;
    int                    count = 0;
    CR_TRY(cr_saved_model_find(job->path, o->config, &files));
    list = cr_arena_alloc(&m->arena, ((size_t)o->setting_count + SET_HERE + 1) * sizeof *list);
    if (!list) return CR_NO_MEMORY(sizeof *list);
    list[count++] = cr_arena_printf(&m->arena, "model.weights=%s", files.weights);
    list[count++] = cr_arena_printf(&m->arena, "train.precision=%s", o->precision);
    CR_TRY(device_settings(&m->arena, o->device, &list[count], &list[count + 1]));
    count += 2;
    if (!list[0] || !list[1]) return CR_NO_MEMORY(CR_PATH_MAX);
    if (o->threads) list[count++] = cr_arena_printf(&m->arena, "train.threads=%d", o->threads);
    for (int i = 0; i < o->setting_count; i++) list[count++] = o->settings[i];
    return cr_config_open_options(&m->config, files.config, !o->config, list, count);
}

static cr_status count_classes(struct cresnet_model *m, int *classes) {
    CR_TRY(cr_saved_model_names(m->config->model.weights, &m->arena, &m->class_name, &m->class_names));
    CR_TRY(cr_saved_model_classes(m->config, classes));
    if (m->class_names == *classes || !m->class_names) return CR_OK;
    cr_log(CR_LOG_WARN, "%s: classes.txt has %d names, but the network has %d classes: the names are not used",
           m->config->model.weights, m->class_names, *classes);
    m->class_names = 0;
    return CR_OK;
}

static int count_decoders(const struct cresnet_model *m) {
#ifdef _OPENMP
    return CR_MIN(omp_get_max_threads(),
                  (int)m->session.state.eval_batch); /* cr_device_host_threads has set the number */
#else
    (void)m;
    return 1;
#endif
}

/* Host memory of one batch. */
static cr_status reserve_batch(struct cresnet_model *m) {
    const struct cr_program *p      = &m->session.eval;
    const struct cr_tensor  *logits = &p->tensor[p->logits];
    const size_t             pixels = cr_prepare_bytes(&m->session.prepare_eval);
    const size_t             batch  = (size_t)m->session.state.eval_batch;
    size_t                   raw    = logits->bytes;
    CR_ARENA_ALLOC(&m->arena, m->images, batch * pixels);
    if (m->session.device->backend->async) CR_ARENA_ALLOC(&m->arena, m->addresses, batch);
    CR_ARENA_ALLOC(&m->arena, m->logits, (size_t)cr_tensor_elems(logits));
    CR_ARENA_ALLOC(&m->arena, m->ranked, (size_t)m->session.model.classes);
    if (m->f32_input) CR_ARENA_ALLOC(&m->arena, m->values, batch * cr_api_image_samples(m));
    if (m->has_features) {
        CR_ARENA_ALLOC(&m->arena, m->features, (size_t)cr_tensor_elems(&p->tensor[p->features]));
        raw = CR_MAX(raw, p->tensor[p->features].bytes);
    }
    const int64_t of_features = m->has_features ? cr_tensor_elems(&p->tensor[p->features]) : 0;
    if (cr_api_views(m) > 1) CR_ARENA_ALLOC(&m->arena, m->view, (size_t)CR_MAX(of_features, cr_tensor_elems(logits)));
    m->raw = cr_arena_alloc(&m->arena, raw);
    if (!m->raw) return CR_NO_MEMORY(raw);
    CR_TRY(cr_api_overlap_open(m));
    const int decoders = count_decoders(m);
    CR_ARENA_ALLOC(&m->arena, m->scratch, (size_t)decoders);
    m->decoders = decoders;
    return CR_OK;
}

static cresnet_memory memory_of(const struct cresnet_model *m) {
    const struct cr_session *s      = &m->session;
    const struct cr_program *eval[] = {&s->eval};
    const size_t             pixels = cr_prepare_bytes(&s->prepare_eval);
    const size_t             image  = pixels + (m->f32_input ? cr_api_image_samples(m) * sizeof(float) : 0);
    return (cresnet_memory){.device_bytes = cr_memory_need(s->device, &s->model.store, eval, 1),
                            .host_bytes   = (size_t)s->state.eval_batch * image + s->eval.tensor[s->eval.logits].bytes};
}

static cr_status read_thresholds(struct cresnet_model *m) {
    const int classes = m->session.model.classes;
    if (!m->config->data.multi_label) return CR_OK;
    CR_ARENA_ALLOC(&m->arena, m->threshold, (size_t)classes);
    return cr_saved_model_thresholds(m->config->model.weights, classes, m->threshold);
}

static cr_status check_reject(const struct cresnet_model *m) {
    if (m->reject.score != CR_REJECT_DISTANCE || m->reject.features == m->feature_count) return CR_OK;
    return CR_FAIL(
        CR_ERR_FORMAT,
        "%s: the class means of --reject have %d features, but the network has %d: choose the threshold again "
        "with cresnet eval RUN --reject",
        m->config->model.weights, m->reject.features, m->feature_count);
}

static const char *precision_of(const struct cresnet_model *m) {
    if (m->session.model.real == CR_F16) return "fp16";
    if (m->session.model.real == CR_BF16 || m->session.device->options.bf16) return "bf16";
    return m->config->train.precision == CR_PRECISION_TF32 ? "tf32" : "fp32";
}

static void describe(struct cresnet_model *m) {
    const struct cr_session *s = &m->session;
    m->info                    = (cresnet_info){.classes     = s->model.classes,
                                                .features    = m->feature_count,
                                                .image_size  = s->prepare_eval.size,
                                                .resize      = s->prepare_eval.eval_resize,
                                                .max_batch   = (int)s->state.eval_batch,
                                                .network     = cr_word_arch(m->config->model.arch),
                                                .weights     = m->config->model.weights,
                                                .device      = s->device->caps.text,
                                                .precision   = precision_of(m),
                                                .memory      = memory_of(m),
                                                .image_width = cr_prepare_width(&s->prepare_eval),
                                                .multi_label = m->config->data.multi_label,
                                                .channels    = (int)m->config->data.channels,
                                                .bits        = (int)m->config->data.bits,
                                                .fit         = cr_word_fit(s->prepare_eval.fit)};
    if (m->reject.means) {
        m->info.reject_score     = cr_reject_score_name(m->reject.score);
        m->info.reject_threshold = m->reject.threshold;
    }
    for (int c = 0; c < CR_MIN(m->info.channels, 3); c++) {
        m->info.mean[c] = (float)cr_config_mean(m->config, c);
        m->info.std[c]  = (float)cr_config_std(m->config, c);
    }
    if (m->info.channels == 4) {
        m->info.mean4 = (float)cr_config_mean(m->config, 3);
        m->info.std4  = (float)cr_config_std(m->config, 3);
    }
}

static cr_status open_job(struct cresnet_model *m, void *argument) {
    const struct open_job    *job     = argument;
    struct cr_session_options options = {
        .eval = true, .execute = job->execute, .f32_input = m->f32_input, .eval_batch = job->options->max_batch};
    CR_TRY(cr_cpu_check());
    if (!job->config) CR_TRY(read_config(m, job));
    if (!*m->config->model.weights) return cr_config_fail(m->config, "model.weights", "is empty: name the weights");
    CR_TRY(count_classes(m, &options.classes));
    /* The score that cresnet eval --reject has chosen may need the features. */
    CR_TRY(cr_reject_load(m->config->model.weights, options.classes, &m->reject));
    m->has_features |= m->reject.score == CR_REJECT_DISTANCE;
    options.keep_features = m->has_features;
    CR_TRY(cr_session_open(m->config, &options, &m->session));
    const struct cr_model *model = &m->session.model;
    m->feature_count             = (int)model->width[model->stages - 1] * (model->block == CR_BLOCK_BOTTLENECK ? 4 : 1);
    CR_TRY(check_reject(m));
    describe(m);
    if (job->memory) *job->memory = m->info.memory;
    if (!job->execute) return CR_OK;
    CR_TRY(cr_session_load_weights(&m->session, m->config->model.weights, true));
    CR_TRY(read_thresholds(m));
    return reserve_batch(m);
}

static cr_status close_job(struct cresnet_model *m, void *unused) {
    (void)unused;
    for (int i = 0; i < m->decoders; i++) cr_scratch_free(&m->scratch[i]);
    cr_reject_free(&m->reject);
    cr_api_free_logits(m);
    cr_api_overlap_close(m);
    cr_session_close(&m->session);
    cr_arena_free(&m->arena);
    cr_config_close(m->config);
    return CR_OK;
}

static cresnet_status open_model(struct open_job *job, cresnet_model **out, cresnet_error *error) {
    cresnet_model *m = cr_api_start(error);
    if (!m) {
        cr_config_close(job->config);
        return CRESNET_ERROR_MEMORY;
    }
    m->f32_input         = job->options->f32_tensors != 0;
    m->has_features      = job->options->features != 0;
    m->log               = job->options->log;
    m->log_context       = job->options->log_context;
    m->interrupt         = job->options->interrupt;
    m->interrupt_context = job->options->interrupt_context;
    if (job->config) m->config = job->config;
    const cresnet_status status = cr_api_call(m, open_job, job, error);
    if (status == CRESNET_OK && out) {
        *out = m;
        return CRESNET_OK;
    }
    m->broken[0] = 0; /* closing is possible after every error */
    cresnet_close(m);
    return status;
}

/* ---- public functions ---- */

cresnet_status cr_api_open_config(const struct cr_config *config, const cresnet_options *options, cresnet_model **model,
                                  cresnet_error *error) {
    struct open_job job = {.options = options, .config = config, .execute = true};
    *model              = NULL;
    return open_model(&job, model, error);
}

cresnet_status cresnet_open(const char *path, const cresnet_options *options, cresnet_model **model,
                            cresnet_error *error) {
    cresnet_options o;
    struct open_job job = {.path = path, .options = &o, .execute = true};
    if (error) *error = (cresnet_error){0};
    if (model) *model = NULL;
    if (!path || !*path || !model)
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "cresnet_open: %s", model ? "no path" : "model is NULL");
    const cresnet_status status = read_options(options, &o, error);
    return status == CRESNET_OK ? open_model(&job, model, error) : status;
}

cresnet_status cresnet_memory_needed(const char *path, const cresnet_options *options, cresnet_memory *memory,
                                     cresnet_error *error) {
    cresnet_options o;
    struct open_job job = {.path = path, .options = &o, .memory = memory};
    if (error) *error = (cresnet_error){0};
    if (!path || !*path || !memory)
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "cresnet_memory_needed: %s",
                           memory ? "no path" : "memory is NULL");
    const cresnet_status status = read_options(options, &o, error);
    return status == CRESNET_OK ? open_model(&job, NULL, error) : status;
}

void cresnet_close(cresnet_model *m) {
    if (m) cr_api_leave(m);
}

void cr_api_leave(cresnet_model *m) {
    if (getpid() != m->process) return; /* a child process has neither the thread nor the device of the model */
    if (atomic_fetch_sub(&m->owners, 1) != 1 || m->worker.abandoned)
        return;       /* abandoned: its threads wait until the process ends, and may still need its memory */
    m->broken[0] = 0; /* the thread is there: it can close also what has failed */
    (void)cr_api_call(m, close_job, NULL, NULL);
    cr_api_stop(m);
}

cresnet_status cresnet_get_info(const cresnet_model *m, cresnet_info *info) {
    if (!m || !info || info->size < sizeof info->size + sizeof info->classes || info->size > sizeof *info)
        return CRESNET_ERROR_ARGUMENT;
    const size_t size = info->size;
    memcpy(info, &m->info, size);
    info->size = size;
    return CRESNET_OK;
}

const char *cresnet_class_name(const cresnet_model *m, int label) {
    return m && label >= 0 && label < m->class_names ? m->class_name[label] : NULL;
}

double cresnet_threshold(const cresnet_model *m, int label) {
    return m && m->threshold && label >= 0 && label < m->session.model.classes ? m->threshold[label] : -1;
}
