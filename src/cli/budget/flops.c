/* cli/budget/flops.c: cresnet prune --pattern channels --flops: removes channels from a trained network and writes the
 * checkpoint of the smaller one. See cli/budget/budget.h. */
#include "cli/budget/budget.h"

struct job {
    struct cr_budget_source         source;
    const struct cr_config         *small_config;
    struct cr_session               small;
    struct cr_text                  channels;
    const struct cr_budget_request *request;
    bool    keep_shape;   /* removed channels become 0 in the session of the source, which is written */
    int64_t recalibrated; /* batches */
};

/* By the configuration alone: no GPU is needed here. */
static bool uses_tensor_cores(const struct cr_config *c) {
    const enum cr_precision p = c->train.precision;
    const bool gpu = c->train.device == CR_DEVICE_CUDA, half = p == CR_PRECISION_FP16 || p == CR_PRECISION_BF16;
    return (half && c->train.device != CR_DEVICE_CPU) || (gpu && p == CR_PRECISION_AUTO);
}

/* ---- the smaller network ---- */

static cr_status copy_weights(struct job *j) {
    struct cr_session             *s    = &j->small;
    const struct cr_shrink_buffers from = {j->source.buffers.value, j->source.running, j->source.buffers.mask};
    struct cr_state_buffers        buffers;
    float                         *running = NULL;
    cr_status                      status;
    CR_TRY(cr_state_buffers_get(s, &buffers));
    CR_TRY_OUT(cr_state_buffer_copy(s, CR_BUFFER_RUNNING, &running));
    const struct cr_shrink_buffers to = {buffers.value, running, buffers.mask};
    cr_shrink_copy(&j->source.shrink, &j->source.session.model.store, &from, &s->model.store, &to);
    CR_TRY_OUT(cr_state_buffers_put(s, &buffers));
    CR_TRY_OUT(cr_state_buffer_put(s, CR_BUFFER_RUNNING, running));
out:
    cr_free(running);
    cr_state_buffers_free(&buffers);
    return status;
}

/* The network of the given shape with channels that are 0. */
static cr_status zero_weights(struct cr_budget_source *source) {
    struct cr_session *s = &source->session;
    cr_shrink_zero(&source->shrink, &s->model.store, source->buffers.value, source->running);
    CR_TRY(cr_state_buffers_put(s, &source->buffers));
    return cr_state_buffer_put(s, CR_BUFFER_RUNNING, source->running);
}

static cr_status make_small(struct job *j) {
    struct cr_budget_source *s = &j->source;
    struct cr_program        eval;
    CR_TRY(cr_budget_channels(s, &j->channels));
    CR_TRY(cr_config_derive(&j->small_config, s->config, 0, NULL, 0));
    CR_TRY(cr_config_set(&j->small_config, "model.channels", j->channels.data));
    CR_TRY(cr_budget_session_open(j->small_config, s->session.model.classes, j->request->recalibrate ? s->train : NULL,
                                  &j->small));
    CR_TRY(cr_model_program(&j->small.model, j->small_config, CR_PROGRAM_EVAL, 1, &eval));
    const double macs = cr_model_flops(&eval) / 2;
    cr_program_free(&eval);
    CR_ASSERT(macs > s->shrink.macs - 1 && macs < s->shrink.macs + 1);
    return j->keep_shape ? zero_weights(s) : copy_weights(j);
}

/* ---- output ---- */

static void print_table(const struct job *j, struct cr_text *out) {
    const struct cr_channel_groups *groups = &j->source.groups;
    const struct cr_shrink         *s      = &j->source.shrink;
    cr_text_add(out, "%-28s %12s %12s\n", "layers of one width, first", "channels", "left");
    for (int k = 0; k < groups->groups; k++)
        cr_text_add(out, "%-28s %12d %12d\n", groups->group[k].name, groups->group[k].units, s->width[k]);
    cr_text_add(out, "%-28s %12lld %12lld\n", "parameters",
                (long long)cr_param_store_trainable(&j->source.session.model.store),
                (long long)cr_param_store_trainable(&j->small.model.store));
    cr_text_add(out, "%-28s %12.2f %12.2f  (%.3g times fewer)\n", "million multiply-adds", 1e-6 * s->macs_before,
                1e-6 * s->macs, s->macs_before / s->macs);
    if (j->keep_shape) cr_text_add(out, "the shape is kept: the removed channels are 0\n");
    if (j->request->recalibrate) cr_prune_recalibrated_text(j->recalibrated, j->source.config, out);
}

static void print_json(const struct job *j, const char *folder, struct cr_text *out) {
    const struct cr_channel_groups *groups = &j->source.groups;
    const struct cr_shrink         *s      = &j->source.shrink;
    struct cr_json_writer           w      = cr_json_open_line(out);
    cr_json_put_string(&w, "output", folder);
    cr_json_put_string(&w, "channels", j->channels.data);
    cr_json_put_int(&w, "parameters_before", cr_param_store_trainable(&j->source.session.model.store));
    cr_json_put_int(&w, "parameters", cr_param_store_trainable(&j->small.model.store));
    cr_json_put_int(&w, "multiply_adds_before", (int64_t)s->macs_before);
    cr_json_put_int(&w, "multiply_adds", (int64_t)s->macs);
    if (j->request->recalibrate) cr_json_put_int(&w, "recalibrated_batches", j->recalibrated);
    cr_json_open_array(&w, "groups");
    for (int k = 0; k < groups->groups; k++) {
        cr_json_open_object(&w, NULL);
        cr_json_put_string(&w, "layer", groups->group[k].name);
        cr_json_put_int(&w, "channels", groups->group[k].units);
        cr_json_put_int(&w, "left", s->width[k]);
        cr_json_close_object(&w);
    }
    cr_json_close_array(&w);
    cr_json_close_line(&w);
}

/* ---- the command ---- */

static cr_status save(struct job *j, const struct cr_config *config) {
    struct cr_session      *s     = j->keep_shape ? &j->source.session : &j->small;
    const struct cr_config *saved = NULL;
    cr_status               status;
    CR_TRY_OUT(cr_prune_recalibrate(s, j->source.train, j->request->recalibrate, &j->recalibrated));
    /* the weights that it names have other shapes */
    CR_TRY_OUT(cr_config_derive(&saved, config, 0, CR_CHANGES("model.weights=", "prune.pattern=unstructured")));
    if (!j->keep_shape) CR_TRY_OUT(cr_config_set(&saved, "model.channels", j->channels.data));
    CR_TRY_OUT(cr_prune_save(s, saved, config->model.weights));
out:
    cr_config_close(saved);
    return status;
}

cr_status cr_prune_channels(const struct cr_config *config, const struct cr_budget_request *request, bool keep_shape,
                            bool json, struct cr_text *out) {
    struct job                j         = {.request = request, .keep_shape = keep_shape};
    const struct cr_multiples multiples = cr_multiples_of(config, uses_tensor_cores(config));
    cr_status                 status;
    CR_TRY_OUT(cr_budget_source_open(config, request, &j.source));
    CR_TRY_OUT(cr_shrink_choose(&j.source.shrink, &multiples, request->flops));
    CR_TRY_OUT(make_small(&j));
    CR_TRY_OUT(save(&j, config));
    if (json)
        print_json(&j, config->train.output, out);
    else
        print_table(&j, out);
out:
    cr_text_free(&j.channels);
    cr_session_close(&j.small);
    cr_config_close(j.small_config);
    cr_budget_source_close(&j.source);
    return status;
}
