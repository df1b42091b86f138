/* session/quantization/sensitivity.c: sensitivity analysis: how much the quantisation of each layer changes the logits.
 * See session/quantization/quantized.h. */
#include "session/quantization/quantized.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { SENSITIVITY_IMAGES = 128 };

struct comparison {
    const struct cr_config      *config; /* quant.type = int8 */
    const struct cr_calibration *calibration;
    const struct cr_dataset     *train;
    int                          classes;
    int64_t                      images;
};

/* Reads the logits of the first images of the training order into out [images][classes]. */
static cr_status read_logits(const struct comparison *c, struct cr_session *s, float *out) {
    const struct cr_step_block     step = {0};
    const struct cr_loader_options options =
        cr_loader_options_from(c->config, CR_SPLIT_TRAIN, &s->prepare_eval, s->state.eval_batch);
    const struct cr_tensor *t            = &s->eval.tensor[s->eval.logits];
    const size_t            elems        = (size_t)cr_tensor_elems(t);
    struct cr_loader       *loader       = NULL;
    float                  *batch_logits = cr_alloc(elems, sizeof *batch_logits);
    void                   *raw          = cr_alloc(t->bytes, 1);
    cr_status               status       = CR_OK;
    if (!batch_logits || !raw) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory: logits");
    CR_TRY_OUT(cr_loader_open(c->train, &options, &loader));
    for (int64_t done = 0; done < c->images; done += s->state.eval_batch) {
        const int64_t count = CR_MIN(s->state.eval_batch, c->images - done);
        CR_TRY_OUT(cr_session_run_next(s, loader, s->eval_exec, &step, NULL));
        CR_TRY_OUT(cr_session_read(s, s->eval.logits, raw, batch_logits));
        memcpy(out + done * c->classes, batch_logits, (size_t)(count * c->classes) * sizeof *out);
    }
out:
    cr_loader_close(loader);
    cr_free(batch_logits);
    cr_free(raw);
    return status;
}

/* The logits of the network in which all layers but those named in `keep` are quantised. */
static cr_status logits_of(const struct comparison *c, enum cr_quant_type type, const char *keep, float *out) {
    const struct cr_config *config;
    struct cr_session       session = {0};
    char                    type_key[40], batch_key[40];
    cr_status               status;
    snprintf(type_key, sizeof type_key, "quant.type=%s", cr_word_quant_type(type));
    snprintf(batch_key, sizeof batch_key, "train.eval_batch=%" PRId64, CR_MIN(c->images, 16));
    CR_TRY(cr_config_derive(&config, c->config, 0, CR_CHANGES(type_key, batch_key)));
    CR_TRY_OUT(cr_config_set(&config, "quant.keep", keep));
    CR_TRY_OUT(cr_quantized_open(config, c->calibration, c->classes, &session));
    CR_TRY_OUT(read_logits(c, &session, out));
out:
    cr_session_close(&session);
    cr_config_close(config);
    return status;
}

static double mean_square(const float *a, const float *b, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sum / (double)count;
}

/* Names of all quantised layers but one, separated by commas. */
static cr_status all_but(const struct cr_layer_cost *costs, int count, int one, struct cr_text *out) {
    cr_text_free(out);
    cr_text_add(out, "%s", "");
    for (int i = 0; i < count; i++)
        if (i != one) cr_text_add(out, "%s%s", out->length ? "," : "", costs[i].layer);
    return out->failed ? CR_NO_MEMORY(out->length) : CR_OK;
}

static int find_layers(struct cr_calibration *calibration, struct cr_layer_cost *costs) {
    int count = 0;
    for (int i = 0; i < calibration->count; i++) {
        const char *name = calibration->at[i].name;
        if (!cr_ends_with(name, ".weight_scale")) continue;
        costs[count].layer =
            cr_arena_printf(&calibration->arena, "%.*s", (int)(strlen(name) - strlen(".weight_scale")), name);
        if (!costs[count++].layer) return -1;
    }
    return count;
}

cr_status cr_quantized_measure(const struct cr_config *config, struct cr_calibration *calibration,
                               const struct cr_dataset *train, struct cr_layer_cost **costs, int *count) {
    struct comparison c      = {config, calibration, train, train->classes, 0};
    struct cr_text    keep   = {0};
    float            *want   = NULL, *got;
    cr_status         status = CR_OK;
    c.images                 = CR_MIN(SENSITIVITY_IMAGES, train->count);
    const int64_t elems      = c.images * c.classes;
    CR_ARENA_ALLOC(&calibration->arena, *costs, (size_t)CR_MAX(calibration->count, 1));
    CR_ALLOC_OUT(want, (size_t)elems * 2);
    got    = want + elems;
    *count = find_layers(calibration, *costs);
    if (*count < 0) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory: names of layers");
    CR_TRY_OUT(logits_of(&c, CR_QUANT_NONE, "", want));
    for (int i = 0; i < *count; i++) {
        CR_TRY_OUT(all_but(*costs, *count, i, &keep));
        CR_TRY_OUT(logits_of(&c, CR_QUANT_INT8, keep.data, got));
        (*costs)[i].error = mean_square(want, got, elems);
    }
out:
    cr_text_free(&keep);
    cr_free(want);
    return status;
}
