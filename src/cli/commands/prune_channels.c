/* cli/commands/prune_channels.c: cresnet prune --pattern channels: removes channels from a trained network and writes
 * the checkpoint of the smaller one. */
#include "cli/commands/prune.h"
#include "cli/common/command.h"
#include "config/ini.h"
#include "formats/json_write.h"
#include "model/channels.h"
#include "pruning/shrink.h"
#include "session/saved_model.h"

struct job {
    const struct cr_config  *config, *small_config;     /* copies of the caller's for this machine's CPU */
    struct cr_dataset       *train;                     /* NULL when not needed */
    int64_t                  recalibrate, recalibrated; /* batches: at most, and used */
    struct cr_session        session, small;
    struct cr_program        program; /* evaluation, before compiler passes */
    struct cr_channel_groups groups;
    struct cr_shrink         shrink;
    double                  *taylor; /* [units] */
    struct cr_state_buffers  buffers;
    float                   *running;
    struct cr_text           channels;
    bool                     tensor_cores; /* the network shall run on a GPU in 16 or 8 bits */
    bool                     keep_shape;   /* removed channels become 0 in `session`, which is written */
};

static cr_status open_session(const struct cr_config *config, int classes, const struct cr_dataset *train,
                              struct cr_session *session) {
    const struct cr_session_options options = {.train      = train,
                                               .train_data = train,
                                               .eval       = true,
                                               .execute    = true,
                                               .masks      = true,
                                               .eval_batch = 1,
                                               .classes    = classes};
    CR_TRY(cr_session_open(config, &options, session));
    return cr_session_init(session);
}

/* ---- the choice ---- */

static cr_status add_taylor(void *self, const float *grad) {
    struct job *j = self;
    return cr_shrink_add_taylor(&j->groups, j->buffers.value, grad, j->taylor);
}

static cr_status rank_by_gradients(struct job *j) {
    CR_ALLOC(j->taylor, (size_t)j->groups.units + 1);
    return j->config->prune.importance == CR_PRUNE_IMPORTANCE_TAYLOR
               ? cr_session_gradients(&j->session, j->train, j->config->prune.batches, add_taylor, j)
               : CR_OK;
}

static int64_t width_of(void *self, const char *layer) {
    const struct job *j = self;
    return cr_shrink_width(&j->shrink, &j->session.model.store, layer);
}

static cr_status choose(struct job *j, double factor) {
    const struct cr_param_store *store = &j->session.model.store;
    const char                  *why;
    CR_TRY(cr_model_program(&j->session.model, j->config, CR_PROGRAM_EVAL, 1, &j->program));
    CR_TRY(cr_channel_groups_trace(&j->program, &j->groups));
    CR_TRY(cr_state_buffers_get(&j->session, &j->buffers));
    CR_TRY(cr_state_buffer_copy(&j->session, CR_BUFFER_RUNNING, &j->running));
    CR_TRY(rank_by_gradients(j));
    CR_TRY(cr_shrink_open(&j->groups, store, j->config->prune.importance, j->buffers.value, j->taylor, &j->shrink));
    CR_TRY(cr_shrink_keep_exempt(&j->shrink, store, j->config));
    const struct cr_multiples multiples = cr_multiples_of(j->config, j->tensor_cores);
    CR_TRY(cr_shrink_choose(&j->shrink, &multiples, factor));
    cr_channels_text(&j->session.model, j->config, width_of, j, &j->channels);
    if (j->channels.failed) return CR_NO_MEMORY(j->channels.length);
    if (!cr_ini_can_hold(j->channels.data, &why))
        return CR_FAIL(CR_ERR_CONFIG, "the network has too many layers: the list of their channels %s", why);
    return CR_OK;
}

/* ---- the smaller network ---- */

static cr_status copy_weights(struct job *j) {
    struct cr_session             *s    = &j->small;
    const struct cr_shrink_buffers from = {j->buffers.value, j->running, j->buffers.mask};
    struct cr_state_buffers        buffers;
    float                         *running = NULL;
    cr_status                      status;
    CR_TRY(cr_state_buffers_get(s, &buffers));
    CR_TRY_OUT(cr_state_buffer_copy(s, CR_BUFFER_RUNNING, &running));
    const struct cr_shrink_buffers to = {buffers.value, running, buffers.mask};
    cr_shrink_copy(&j->shrink, &j->session.model.store, &from, &s->model.store, &to);
    CR_TRY_OUT(cr_state_buffers_put(s, &buffers));
    CR_TRY_OUT(cr_state_buffer_put(s, CR_BUFFER_RUNNING, running));
    CR_TRY_OUT(cr_prune_recalibrate(s, j->train, j->recalibrate, &j->recalibrated));
    CR_TRY_OUT(cr_state_ema_start(s));
out:
    cr_free(running);
    cr_state_buffers_free(&buffers);
    return status;
}

/* The network of the given shape with channels that are 0. */
static cr_status zero_weights(struct job *j) {
    struct cr_session *s = &j->session;
    cr_shrink_zero(&j->shrink, &s->model.store, j->buffers.value, j->running);
    CR_TRY(cr_state_buffers_put(s, &j->buffers));
    CR_TRY(cr_state_buffer_put(s, CR_BUFFER_RUNNING, j->running));
    CR_TRY(cr_prune_recalibrate(s, j->train, j->recalibrate, &j->recalibrated));
    return cr_state_ema_start(s);
}

/* A copy of `from` with the channels that are left. */
static cr_status derive_small(const struct job *j, const struct cr_config *from, const struct cr_config **out) {
    struct cr_text channels = {0};
    cr_text_add(&channels, "model.channels=%s", j->channels.data);
    const cr_status status =
        channels.failed ? CR_NO_MEMORY(channels.length) : cr_config_derive(out, from, 0, CR_CHANGES(channels.data));
    cr_text_free(&channels);
    return status;
}

static cr_status make_small(struct job *j) {
    struct cr_program eval;
    CR_TRY(derive_small(j, j->config, &j->small_config));
    CR_TRY(open_session(j->small_config, j->session.model.classes, j->recalibrate ? j->train : NULL, &j->small));
    CR_TRY(cr_model_program(&j->small.model, j->small_config, CR_PROGRAM_EVAL, 1, &eval));
    const double macs = cr_model_flops(&eval) / 2;
    cr_program_free(&eval);
    CR_ASSERT(macs > j->shrink.macs - 1 && macs < j->shrink.macs + 1);
    return j->keep_shape ? zero_weights(j) : copy_weights(j);
}

/* ---- output ---- */

static void print_table(const struct job *j, struct cr_text *out) {
    const struct cr_shrink *s = &j->shrink;
    cr_text_add(out, "%-28s %12s %12s\n", "layers of one width, first", "channels", "left");
    for (int k = 0; k < j->groups.groups; k++)
        cr_text_add(out, "%-28s %12d %12d\n", j->groups.group[k].name, j->groups.group[k].units, s->width[k]);
    cr_text_add(out, "%-28s %12lld %12lld\n", "parameters",
                (long long)cr_param_store_trainable(&j->session.model.store),
                (long long)cr_param_store_trainable(&j->small.model.store));
    cr_text_add(out, "%-28s %12.2f %12.2f  (%.3g times fewer)\n", "million multiply-adds", 1e-6 * s->macs_before,
                1e-6 * s->macs, s->macs_before / s->macs);
    if (j->keep_shape) cr_text_add(out, "the shape is kept: the removed channels are 0\n");
    if (j->recalibrate) cr_prune_recalibrated_text(j->recalibrated, j->config, out);
}

static void print_json(const struct job *j, const char *folder, struct cr_text *out) {
    const struct cr_shrink *s = &j->shrink;
    struct cr_json_writer   w = cr_json_open_line(out);
    cr_json_put_string(&w, "output", folder);
    cr_json_put_string(&w, "channels", j->channels.data);
    cr_json_put_int(&w, "parameters_before", cr_param_store_trainable(&j->session.model.store));
    cr_json_put_int(&w, "parameters", cr_param_store_trainable(&j->small.model.store));
    cr_json_put_int(&w, "multiply_adds_before", (int64_t)s->macs_before);
    cr_json_put_int(&w, "multiply_adds", (int64_t)s->macs);
    if (j->recalibrate) cr_json_put_int(&w, "recalibrated_batches", j->recalibrated);
    cr_json_open_array(&w, "groups");
    for (int k = 0; k < j->groups.groups; k++) {
        cr_json_open_object(&w, NULL);
        cr_json_put_string(&w, "layer", j->groups.group[k].name);
        cr_json_put_int(&w, "channels", j->groups.group[k].units);
        cr_json_put_int(&w, "left", s->width[k]);
        cr_json_close_object(&w);
    }
    cr_json_close_array(&w);
    cr_json_close_line(&w);
}

/* ---- the command ---- */

static void close_job(struct job *j) {
    cr_shrink_free(&j->shrink);
    cr_channel_groups_free(&j->groups);
    cr_program_free(&j->program);
    cr_state_buffers_free(&j->buffers);
    cr_free(j->running);
    cr_free(j->taylor);
    cr_session_close(&j->small);
    cr_session_close(&j->session);
    cr_dataset_close(j->train);
    cr_config_close(j->small_config);
    cr_config_close(j->config);
    cr_text_free(&j->channels);
}

/* By the configuration alone: no GPU is needed here. */
static bool uses_tensor_cores(const struct cr_config *c) {
    const enum cr_precision p = c->train.precision;
    const bool gpu = c->train.device == CR_DEVICE_CUDA, half = p == CR_PRECISION_FP16 || p == CR_PRECISION_BF16;
    return (half && c->train.device != CR_DEVICE_CPU) || (gpu && p == CR_PRECISION_AUTO);
}

cr_status cr_prune_channels(const struct cr_config *config, double factor, bool keep_shape, int64_t recalibrate,
                            bool json, struct cr_text *out) {
    struct job j = {.recalibrate = recalibrate, .tensor_cores = uses_tensor_cores(config), .keep_shape = keep_shape};
    const struct cr_config *saved = NULL;
    struct cr_cmd_names     names = {0};
    int                     classes;
    cr_status               status;
    CR_TRY(cr_config_derive(&j.config, config, CR_DECIDES_UPDATE, NULL, 0));
    CR_TRY_OUT(cr_saved_model_classes(config, &classes));
    CR_TRY_OUT(cr_prune_open_data(&j.config, recalibrate, classes, &j.train));
    CR_TRY_OUT(open_session(j.config, classes, j.train, &j.session));
    CR_TRY_OUT(cr_session_load_weights(&j.session, config->model.weights, true));
    CR_TRY_OUT(choose(&j, factor));
    CR_TRY_OUT(make_small(&j));
    CR_TRY_OUT(cr_prune_name_classes(config->model.weights, classes, &names));
    CR_TRY_OUT(keep_shape ? cr_config_derive(&saved, config, 0, NULL, 0) : derive_small(&j, config, &saved));
    /* the weights that it names have other shapes */
    CR_TRY_OUT(cr_config_change(&saved, 0, CR_CHANGES("model.weights=", "prune.pattern=unstructured")));
    CR_TRY_OUT(cr_prune_save(keep_shape ? &j.session : &j.small, saved, &names));
    if (json)
        print_json(&j, config->train.output, out);
    else
        print_table(&j, out);
out:
    cr_config_close(saved);
    close_job(&j);
    cr_arena_free(&names.arena);
    return status;
}
