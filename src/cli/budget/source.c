/* cli/budget/source.c: the network to be pruned. See cli/budget/budget.h. */
#include "cli/budget/budget.h"
#include "session/saved_model.h"

#define TAYLOR_BATCH "train.batch=32" /* with train.batch = auto */

static cr_status open_session(struct cr_budget_source *s, int classes) {
    const struct cr_session_options options = {.train      = s->train != NULL,
                                               .train_data = s->train,
                                               .eval       = true,
                                               .execute    = true,
                                               .masks      = true,
                                               .eval_batch = 1,
                                               .classes    = classes};
    CR_TRY(cr_session_open(s->config, &options, &s->session));
    CR_TRY(cr_session_init(&s->session));
    return cr_session_load_weights(&s->session, s->config->model.weights, true);
}

/* Opens the training set for importance = taylor. */
static cr_status open_data(struct cr_budget_source *s, int classes) {
    const bool taylor = s->config->prune.importance == CR_PRUNE_IMPORTANCE_TAYLOR;
    if (!taylor || s->config->train.batch == 0)
        CR_TRY(cr_config_change(&s->config, 0, CR_CHANGES(taylor ? TAYLOR_BATCH : "train.batch=1")));
    if (!taylor) return CR_OK;
    CR_TRY(cr_dataset_open(s->config, CR_SPLIT_TRAIN, &s->train));
    if (cr_dataset_classes(s->train) == classes)
        return cr_saved_model_number_classes(s->config, s->train, true, CR_CMD_GRADIENTS_BY_NUMBER);
    return cr_config_fail(s->config, "data.kind",
                          "the dataset has %d classes, the network %d: --importance taylor needs the data that the "
                          "network was trained with",
                          cr_dataset_classes(s->train), classes);
}

static cr_status add_taylor(void *self, const float *grad) {
    struct cr_budget_source *s = self;
    return cr_shrink_add_taylor(&s->groups, s->buffers.value, grad, s->taylor);
}

cr_status cr_budget_source_open(const struct cr_config *config, bool channels, struct cr_budget_source *s) {
    int classes;
    CR_TRY(cr_config_derive(&s->config, config, CR_DECIDES_UPDATE,
                            CR_CHANGES(CR_CMD_ON_CPU, "train.accumulate=1", "quant.type=none", "distill.teacher=")));
    CR_TRY(cr_saved_model_classes(config, &classes));
    CR_TRY(open_data(s, classes));
    CR_TRY(open_session(s, classes));
    CR_TRY(cr_model_program(&s->session.model, s->config, CR_PROGRAM_EVAL, 1, &s->program));
    CR_TRY(cr_channel_groups_trace(&s->program, &s->groups));
    CR_TRY(cr_state_buffers_get(&s->session, &s->buffers));
    CR_TRY(cr_state_buffer_copy(&s->session, CR_BUFFER_RUNNING, &s->running));
    CR_ALLOC(s->taylor, (size_t)s->groups.units + 1);
    if (s->train) CR_TRY(cr_session_gradients(&s->session, s->train, s->config->prune.batches, add_taylor, s));
    CR_TRY(cr_shrink_open(&s->groups, &s->session.model.store, s->config->prune.importance, s->buffers.value, s->taylor,
                          &s->shrink));
    CR_TRY(cr_shrink_keep_exempt(&s->shrink, &s->session.model.store, s->config));
    for (int k = 0; k < s->groups.groups && !channels; k++) s->shrink.keeps[k] = true;
    return CR_OK;
}

cr_status cr_budget_source_levels(struct cr_budget_source *s, const struct cr_multiples *multiples, int most) {
    cr_widths_free(&s->widths);
    s->multiples = *multiples;
    return cr_widths_open(&s->shrink, multiples, !s->config->prune.multiple, most, &s->widths);
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
