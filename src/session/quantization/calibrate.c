/* session/quantization/calibrate.c: finds the scales of a quantised network. See session/quantization/quantized.h. The
 * network runs in fp32 on the device, without fusion, so that every tensor that is to be quantised exists; the host
 * reads these tensors after each batch. All images are seen twice: for the largest magnitudes, then for the histograms.
 */
#include "session/quantization/quantized.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { CALIBRATION_BATCH = 16 };

/* A tensor of the program that is to be quantised. */
struct observed {
    int                 param; /* its scale */
    int                 tensor;
    bool                is_signed;
    struct cr_histogram histogram;
};

struct calibrator {
    const struct cr_config  *config; /* of the calibration session */
    const struct cr_dataset *train;
    struct cr_session        session;
    struct observed         *at;
    int                      count;
    float                   *values; /* of the largest tensor */
    int64_t                  images;
};

/* ---- what to observe ---- */

/* The tensor whose scale this is: "PATH.scale" belongs to "PATH.y", "input.scale" also to images in f32. */
static int tensor_of(const struct cr_program *p, const char *scale) {
    char      name[256];
    const int length = (int)(strlen(scale) - strlen(".scale"));
    snprintf(name, sizeof name, "%.*s.y", length, scale);
    const int found = cr_tensor_find(p, name);
    return found == CR_NONE && strcmp(scale, "input.scale") == 0 ? p->images : found;
}

/* Behind a ReLU, and behind the mean of one, no value is negative (layers/quantize.c decides in the same way). */
static bool may_be_negative(const struct cr_program *p, int tensor) {
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].out[0] == tensor) return p->op[i].kind != CR_OP_relu && p->op[i].kind != CR_OP_avgpool;
    return true;
}

static cr_status find_tensors(struct calibrator *c) {
    const struct cr_program     *p     = &c->session.eval;
    const struct cr_param_store *store = &c->session.model.store;
    int64_t                      most  = 0;
    CR_ALLOC(c->at, (size_t)store->params);
    for (int i = 0; i < store->params; i++) {
        const char *name = store->param[i].name;
        if (store->param[i].role != CR_ROLE_SCALE || !cr_ends_with(name, ".scale")) continue;
        struct observed *o = &c->at[c->count++];
        o->param           = i;
        o->tensor          = tensor_of(p, name);
        if (o->tensor == CR_NONE) return CR_FAIL(CR_ERR_DEVICE, "no tensor for the scale %s (a bug)", name);
        o->is_signed = may_be_negative(p, o->tensor);
        most         = CR_MAX(most, cr_tensor_elems(&p->tensor[o->tensor]));
    }
    CR_ALLOC(c->values, (size_t)most);
    return CR_OK;
}

/* ---- running ---- */

/* Padding behind the last image repeats pixels of other images, or is black: only the first `images` are counted. */
static cr_status observe(struct calibrator *c, int64_t images, bool count) {
    const struct cr_program *p = &c->session.eval;
    for (int i = 0; i < c->count; i++) {
        struct observed        *o     = &c->at[i];
        const struct cr_tensor *t     = &p->tensor[o->tensor];
        const int64_t           elems = cr_tensor_elems(t) / t->dim[0] * images;
        CR_ASSERT(t->dtype == CR_F32);
        CR_TRY(cr_exec_get(c->session.eval_exec, o->tensor, c->values));
        (count ? cr_histogram_add : cr_histogram_range)(&o->histogram, c->values, elems);
    }
    return CR_OK;
}

static cr_status run_pass(struct calibrator *c, bool count) {
    const struct cr_config        *config = c->config;
    const struct cr_step_block     step   = {0};
    const struct cr_loader_options options =
        cr_loader_options_from(/* in random order */
                               config, CR_SPLIT_TRAIN, &c->session.prepare_eval, c->session.state.eval_batch);
    const int64_t     limit = CR_MIN((int64_t)config->quant.images, c->train->count);
    struct cr_loader *loader;
    cr_status         status = CR_OK;
    CR_TRY(cr_loader_open(c->train, &options, &loader));
    for (c->images = 0; c->images < limit;) {
        int64_t samples;
        CR_TRY_OUT(cr_session_run_next(&c->session, loader, c->session.eval_exec, &step, &samples));
        const int64_t images = CR_MIN(limit - c->images, CR_MIN(samples, options.batch));
        CR_TRY_OUT(observe(c, images, count));
        c->images += images;
    }
out:
    cr_loader_close(loader);
    return status;
}

/* ---- the scales ---- */

static float *add_scale(struct cr_calibration *out, const struct cr_param *q) {
    struct cr_calibrated *to = &out->at[out->count++];
    to->name                 = cr_arena_printf(&out->arena, "%s", q->name);
    to->elems                = q->elems;
    to->scale                = cr_arena_alloc(&out->arena, (size_t)q->elems * sizeof *to->scale);
    return to->name ? to->scale : NULL;
}

static cr_status activation_scales(const struct calibrator *c, struct cr_calibration *out) {
    for (int i = 0; i < c->count; i++) {
        const struct observed *o     = &c->at[i];
        float                 *scale = add_scale(out, &c->session.model.store.param[o->param]);
        if (!scale) return CR_NO_MEMORY(sizeof *scale);
        *scale = cr_histogram_scale(&o->histogram, c->config->quant.method,
                                    o->is_signed ? CR_QUANT_LEVELS_I8 : CR_QUANT_LEVELS_U8);
    }
    return CR_OK;
}

static cr_status filter_scales(struct calibrator *c, struct cr_calibration *out) {
    const struct cr_param_store *store  = &c->session.model.store;
    const int                    levels = c->config->quant.reduce_range ? CR_QUANT_LEVELS_I7 : CR_QUANT_LEVELS_I8;
    float                       *values;
    cr_status                    status = CR_OK;
    CR_TRY(cr_state_buffer_copy(&c->session, CR_BUFFER_VALUE, &values));
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q = &store->param[i];
        char                   name[256];
        if (q->role != CR_ROLE_SCALE || !cr_ends_with(q->name, ".weight_scale")) continue;
        snprintf(name, sizeof name, "%.*s", (int)(strlen(q->name) - strlen("_scale")), q->name);
        const struct cr_param *w     = &store->param[cr_param_store_find(store, name)];
        float                 *scale = add_scale(out, q);
        const int64_t          row   = w->elems / q->elems;
        if (!scale) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory: scales of %s", q->name);
#pragma omp parallel for schedule(static)
        for (int64_t k = 0; k < q->elems; k++)
            scale[k] = cr_quant_filter_scale(values + w->offset + k * row, row, levels);
    }
out:
    cr_free(values);
    return status;
}

static cr_status calibrate(struct calibrator *c, struct cr_calibration *out) {
    const struct cr_session_options options = {
        .eval = true, .execute = true, .calibrate = true, .without_scales = true, .classes = c->train->classes};
    CR_TRY(cr_session_open(c->config, &options, &c->session));
    CR_TRY(cr_model_needs_plain(&c->session.model, c->config, "quantised"));
    CR_TRY(cr_session_load_weights(&c->session, c->config->model.weights, true));
    CR_TRY(find_tensors(c));
    CR_TRY(run_pass(c, false));
    CR_TRY(run_pass(c, true));
    out->images = c->images;
    CR_ARENA_ALLOC(&out->arena, out->at, (size_t)c->session.model.store.params);
    CR_TRY(activation_scales(c, out));
    return filter_scales(c, out);
}

/* In fp32, because these are the values that the integers shall represent. Kernels are not chosen by measured times, so
 * that the same command gives the same scales. The batch size is halved until the network fits the memory limit, which
 * is one of the GPU. */
static cr_status derive(const struct cr_config *from, int64_t images, const struct cr_config **out) {
    char batch[40];
    snprintf(batch, sizeof batch, "train.batch=%" PRId64, CR_MIN(CALIBRATION_BATCH, images));
    return cr_config_derive(out, from, 0,
                            CR_CHANGES("quant.type=int8", "train.fuse=no", "train.sparse=no", "train.precision=fp32",
                                       "train.deterministic=yes", "train.measure=no", batch, "train.eval_batch=0"));
}

cr_status cr_calibrate(const struct cr_config *config, const struct cr_dataset *train, struct cr_calibration *out) {
    struct calibrator c = {.train = train};
    *out                = (struct cr_calibration){0};
    CR_TRY(derive(config, train->count, &c.config));
    const cr_status status = calibrate(&c, out);
    cr_session_close(&c.session);
    cr_config_close(c.config);
    cr_free(c.at);
    cr_free(c.values);
    if (status != CR_OK) cr_calibration_free(out);
    return status;
}

void cr_calibration_free(struct cr_calibration *c) {
    cr_arena_free(&c->arena);
    *c = (struct cr_calibration){0};
}
