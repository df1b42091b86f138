/* session/quantization/quantized.c: sessions and checkpoints of quantised (int8) networks: scales, 8-bit weights. See
 * session/quantization/quantized.h. */
#include "session/quantization/quantized.h"

#include <stdio.h>
#include <string.h>

/* ---- parameters ---- */

/* The scale of a filter's output channels; CR_NONE: the filter is not quantised. */
static int filter_scale_of(const struct cr_param_store *store, int param) {
    const struct cr_param *q = &store->param[param];
    char                   name[256];
    if (q->role != CR_ROLE_CONV && q->role != CR_ROLE_DENSE_WEIGHT) return CR_NONE;
    snprintf(name, sizeof name, "%s_scale", q->name);
    return cr_param_store_find(store, name);
}

static char *address_of(struct cr_session *s, enum cr_param_buffer buffer, int param) {
    return cr_state_buffer_at(s, buffer) + (size_t)s->model.store.param[param].offset * sizeof(float);
}

/* Copies the filter `param` and its scales to the host. The caller frees *weights; *scales follow them. */
static cr_status get_filter(struct cr_session *s, int param, int scale, float **weights, float **scales) {
    const struct cr_param_store *store = &s->model.store;
    const int64_t                elems = store->param[param].elems, filters = store->param[scale].elems;
    cr_status                    status;
    CR_ALLOC(*weights, (size_t)(elems + filters));
    *scales = *weights + elems;
    CR_TRY_OUT(s->device->backend->get(s->device, *weights, address_of(s, CR_BUFFER_VALUE, param),
                                       (size_t)elems * sizeof **weights));
    CR_TRY_OUT(s->device->backend->get(s->device, *scales, address_of(s, CR_BUFFER_RUNNING, scale),
                                       (size_t)filters * sizeof **scales));
    return CR_OK;
out:
    cr_free(*weights);
    return status;
}

/* weights [filters][elems] *= scales [filters] */
static void multiply(float *weights, const float *scales, int64_t filters, int64_t elems) {
#pragma omp parallel for schedule(static)
    for (int64_t k = 0; k < filters; k++)
        for (int64_t i = k * elems; i < (k + 1) * elems; i++) weights[i] *= scales[k];
}

static cr_status scale_filter(struct cr_session *s, int param, int scale) {
    const struct cr_param *q       = &s->model.store.param[param];
    const int64_t          filters = s->model.store.param[scale].elems;
    float                 *weights, *scales;
    if (s->device->caps.host_memory) {
        multiply((float *)(void *)address_of(s, CR_BUFFER_VALUE, param),
                 (const float *)(void *)address_of(s, CR_BUFFER_RUNNING, scale), filters, q->elems / filters);
        return CR_OK;
    }
    CR_TRY(get_filter(s, param, scale, &weights, &scales));
    multiply(weights, scales, filters, q->elems / filters);
    const cr_status status = s->device->backend->put(s->device, address_of(s, CR_BUFFER_VALUE, param), weights,
                                                     (size_t)q->elems * sizeof *weights);
    cr_free(weights);
    return status;
}

static bool is_integers(struct cr_st_file *file, const char *name) {
    const struct cr_st_entry *entry = cr_st_find(file, name);
    return entry && entry->dtype == CR_I8;
}

cr_status cr_quantized_check(const struct cr_session *s, struct cr_st_file *file, const char *path) {
    const struct cr_param_store *store = &s->model.store;
    for (int i = 0; i < store->params; i++) {
        const char *name = store->param[i].name;
        if (!is_integers(file, name) || filter_scale_of(store, i) != CR_NONE) continue;
        return CR_FAIL(CR_ERR_FORMAT, "%s: %s is stored as 8-bit integers, but this layer is not quantised here: %s",
                       path, name,
                       s->config->quant.type == CR_QUANT_NONE && s->trains
                           ? "the file is of a quantised network; a training starts from the run that was quantised"
                       : s->config->quant.type == CR_QUANT_NONE
                           ? "the file is of a quantised network; give the run folder that `cresnet quantize` wrote, "
                             "without quant.type=none"
                           : "set quant.keep as in the configuration of the checkpoint");
    }
    return CR_OK;
}

cr_status cr_quantized_scale_weights(struct cr_session *s, struct cr_st_file *file) {
    const struct cr_param_store *store = &s->model.store;
    for (int i = 0; i < store->params; i++)
        if (is_integers(file, store->param[i].name)) CR_TRY(scale_filter(s, i, filter_scale_of(store, i)));
    return CR_OK;
}

/* ---- opening ---- */

static cr_status put_scales(struct cr_session *s, const struct cr_calibration *c) {
    const struct cr_param_store *store = &s->model.store;
    for (int i = 0; i < c->count; i++) {
        const int param = cr_param_store_find(store, c->at[i].name);
        if (param == CR_NONE) continue; /* of a layer that stays in floating point */
        CR_ASSERT(store->param[param].elems == c->at[i].elems);
        CR_TRY(s->device->backend->put(s->device, address_of(s, CR_BUFFER_RUNNING, param), c->at[i].scale,
                                       (size_t)c->at[i].elems * sizeof *c->at[i].scale));
    }
    return CR_OK;
}

cr_status cr_quantized_open(const struct cr_config *config, const struct cr_calibration *calibration, int classes,
                            struct cr_session *out) {
    const struct cr_session_options options = {
        .eval = true, .execute = true, .classes = classes, .without_scales = true};
    CR_TRY(cr_session_open(config, &options, out));
    CR_TRY(cr_session_load_weights(out, config->model.weights, true));
    return put_scales(out, calibration);
}

/* ---- saving ---- */

/* The integers of all quantised filters, at the offsets of their parameters. */
struct integers {
    struct cr_ckpt_io below;
    int8_t           *value;
};

static cr_status integers_get(void *self, struct cr_ckpt_address from, uint64_t offset, void *host, size_t bytes) {
    const struct integers *v = self;
    if (from.kind != CR_STATE_IN_INTEGERS) return v->below.get(v->below.self, from, offset, host, bytes);
    memcpy(host, v->value + from.value + offset, bytes);
    return CR_OK;
}

static cr_status make_integers(struct cr_session *s, int param, int scale, int8_t *out) {
    const int64_t elems = s->model.store.param[param].elems, row = elems / s->model.store.param[scale].elems;
    float        *weights, *scales;
    CR_TRY(get_filter(s, param, scale, &weights, &scales));
    for (int64_t i = 0; i < elems; i++) out[i] = cr_quant_round_i8(weights[i], scales[i / row]);
    cr_free(weights);
    return CR_OK;
}

/* Replaces the quantised filters of the list by their integers. */
static cr_status use_integers(struct cr_session *s, struct cr_state_list *list, struct integers *v) {
    const struct cr_param_store *store = &s->model.store;
    for (int i = 0; i < list->count; i++) {
        struct cr_ckpt_tensor *t     = &list->tensor[i];
        const int              param = cr_param_store_find(store, t->name);
        const int              scale = param == CR_NONE ? CR_NONE : filter_scale_of(store, param);
        if (scale == CR_NONE) continue;
        t->dtype   = CR_I8;
        t->address = (struct cr_ckpt_address){CR_STATE_IN_INTEGERS, (uint64_t)store->param[param].offset};
        CR_TRY(make_integers(s, param, scale, v->value + store->param[param].offset));
    }
    return CR_OK;
}

cr_status cr_quantized_save(struct cr_session *s, const char *run_dir, const char *config_text,
                            const char *const *class_names, int classes) {
    const struct cr_position at    = {0};
    struct cr_arena          arena = {0};
    struct integers          v     = {.below = cr_state_io(s)};
    const struct cr_ckpt_io  io    = {.self = &v, .get = integers_get};
    struct cr_state_list     model;
    struct cr_state_meta     meta;
    cr_status                status;
    cr_state_meta_of(&at, s->config->train.seed, &meta);
    CR_ALLOC_OUT(v.value, (size_t)s->model.store.value_elems);
    CR_TRY_OUT(cr_state_model_list(&s->model.store, &arena, &model));
    CR_TRY_OUT(use_integers(s, &model, &v));
    const struct cr_ckpt_save save = {.run_dir          = run_dir,
                                      .model            = model.tensor,
                                      .model_count      = model.count,
                                      .state_meta       = meta.entry,
                                      .state_meta_count = meta.count,
                                      .config_text      = config_text,
                                      .class_names      = class_names,
                                      .classes          = classes,
                                      .keep             = 1};
    CR_TRY_OUT(cr_ckpt_write(&save, &io));
out:
    cr_free(v.value);
    cr_arena_free(&arena);
    return status;
}
