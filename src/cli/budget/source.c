/* cli/budget/source.c: opens the trained network to be pruned: groups, importance. See cli/budget/budget.h. */
#include "cli/budget/budget.h"
#include "config/ini.h"
#include "model/channels.h"
#include "session/saved_model.h"

cr_status cr_budget_session_open(const struct cr_config *config, int classes, const struct cr_dataset *train,
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

static cr_status add_taylor(void *self, const float *grad) {
    struct cr_budget_source *s = self;
    return cr_shrink_add_taylor(&s->groups, s->buffers.value, grad, s->taylor);
}

cr_status cr_budget_source_open(const struct cr_config *config, const struct cr_budget_request *request,
                                struct cr_budget_source *s) {
    const bool taylor = config->prune.importance == CR_PRUNE_IMPORTANCE_TAYLOR;
    int        classes;
    CR_TRY(cr_config_derive(&s->config, config, CR_DECIDES_UPDATE, CR_CHANGES("quant.type=none")));
    CR_TRY(cr_saved_model_classes(config, &classes));
    CR_TRY(cr_prune_open_data(&s->config, request->recalibrate, classes, &s->train));
    CR_TRY(cr_budget_session_open(s->config, classes, taylor || request->flops > 0 ? s->train : NULL, &s->session));
    CR_TRY(cr_session_load_weights(&s->session, config->model.weights, true));
    CR_TRY(cr_model_program(&s->session.model, s->config, CR_PROGRAM_EVAL, 1, &s->program));
    CR_TRY(cr_channel_groups_trace(&s->program, &s->groups));
    CR_TRY(cr_state_buffers_get(&s->session, &s->buffers));
    CR_TRY(cr_state_buffer_copy(&s->session, CR_BUFFER_RUNNING, &s->running));
    CR_ALLOC(s->taylor, (size_t)s->groups.units + 1);
    if (taylor) CR_TRY(cr_session_gradients(&s->session, s->train, config->prune.batches, add_taylor, s));
    CR_TRY(cr_shrink_open(&s->groups, &s->session.model.store, config->prune.importance, s->buffers.value, s->taylor,
                          &s->shrink));
    CR_TRY(cr_shrink_keep_exempt(&s->shrink, &s->session.model.store, config));
    for (int k = 0; k < s->groups.groups && !request->channels; k++) s->shrink.keeps[k] = true;
    return CR_OK;
}

cr_status cr_budget_source_levels(struct cr_budget_source *s, const struct cr_multiples *multiples, int most) {
    cr_widths_free(&s->widths);
    s->multiples = *multiples;
    return cr_widths_open(&s->shrink, multiples, !s->config->prune.multiple, most, &s->widths);
}

static int64_t width_of(void *self, const char *layer) {
    const struct cr_budget_source *s = self;
    return cr_shrink_width(&s->shrink, &s->session.model.store, layer);
}

cr_status cr_budget_channels(struct cr_budget_source *s, struct cr_text *out) {
    const char *why;
    cr_channels_text(&s->session.model, s->config, width_of, s, out);
    if (out->failed) return CR_NO_MEMORY(out->length);
    if (!cr_ini_can_hold(out->data, &why))
        return CR_FAIL(CR_ERR_CONFIG, "the network has too many layers: the list of their channels %s", why);
    return CR_OK;
}

void cr_budget_source_close(struct cr_budget_source *s) {
    cr_widths_free(&s->widths);
    cr_shrink_free(&s->shrink);
    cr_channel_groups_free(&s->groups);
    cr_program_free(&s->program);
    cr_state_buffers_free(&s->buffers);
    cr_free(s->running);
    cr_free(s->taylor);
    cr_session_close(&s->session);
    cr_dataset_close(s->train);
    cr_config_close(s->config);
}
