/* cli/budget/command.c: cresnet prune --target-ms, --speedup: prunes to a budget of time. See cli/budget/budget.h. */
#include "cli/budget/budget.h"

#include <string.h>

static const double search_max = 1 << 17; /* combinations of an elimination step */

/* ---- the choice ---- */

/* Where times are measured, they show which widths are fast. Not so in 8 bits: the kernel for channels that are no
 * multiple of 64 is so slow that measuring it takes long. */
static struct cr_multiples multiples_of(const struct cr_budget *b) {
    const struct cr_budget_clock *k    = &b->clock;
    const enum cr_dtype           real = k->session.model.real;
    const bool gpu = k->session.device->backend->async != NULL, half = real == CR_F16 || real == CR_BF16;
    const bool int8 = k->config->quant.type != CR_QUANT_NONE;
    return cr_multiples_of(b->config, gpu && (int8 || (half && !k->measured)));
}

/* Finds layers and axes for at most `most` widths of each group. */
static cr_status open_widths(struct cr_budget *b, int most) {
    const char              **names;
    const struct cr_multiples multiples = multiples_of(b);
    CR_TRY(cr_budget_source_levels(&b->source, &multiples, most));
    cr_budget_layers_close(&b->layers);
    CR_TRY(cr_budget_layers_open(&b->source, &b->layers));
    cr_budget_axes_close(&b->axes);
    CR_ALLOC(names, (size_t)b->layers.count + 1);
    for (int l = 0; l < b->layers.count; l++) names[l] = b->layers.at[l].weight;
    const cr_status status = cr_budget_axes_open(&b->source, &b->clock.program, names, b->layers.count, &b->axes);
    cr_free(names);
    return status;
}

/* Networks whose groups depend on many others get fewer widths. So do networks in 8 bits on a GPU: an op has up to 20
 * tile configs at each pair of widths, and every one is timed. */
static cr_status choose_widths(struct cr_budget *b) {
    static const int most[] = {8, 6, 5, 4, 3, 2, 1};
    const bool       int8   = b->clock.config->quant.type != CR_QUANT_NONE;
    const bool       many   = int8 && b->clock.measured && b->clock.session.device->backend->async;
    for (size_t i = many ? 2 : 0; i < CR_COUNT(most); i++) {
        CR_TRY(open_widths(b, most[i]));
        double size;
        CR_TRY(cr_budget_problem_size(b, &size));
        if (size <= search_max) return CR_OK;
    }
    return CR_OK;
}

static cr_status choose(struct cr_budget *b) {
    CR_TRY(cr_budget_source_open(b->config, &b->request, &b->source));
    CR_TRY(cr_budget_clock_open(b->config, b->source.session.model.classes, &b->clock));
    CR_TRY(choose_widths(b));
    CR_TRY(cr_budget_patterns(b));
    CR_TRY(cr_budget_problem_open(b));
    return cr_budget_choose(b);
}

/* ---- the checkpoint ---- */

static cr_status put_weights(struct cr_session *s, const struct cr_budget_candidate *from) {
    const struct cr_param_store *store = &s->model.store;
    struct cr_state_buffers      buffers;
    cr_status                    status;
    CR_TRY(cr_state_buffers_get(s, &buffers));
    CR_ASSERT(store->value_elems == from->model.store.value_elems);
    memcpy(buffers.value, from->value, (size_t)store->value_elems * sizeof *from->value);
    memcpy(buffers.mask, from->mask, (size_t)store->value_elems / 8);
    CR_TRY_OUT(cr_state_buffers_put(s, &buffers));
    CR_TRY_OUT(cr_state_buffer_put(s, CR_BUFFER_RUNNING, from->running));
out:
    cr_state_buffers_free(&buffers);
    return status;
}

static cr_status save(struct cr_budget *b) {
    const struct cr_dataset    *train   = b->request.recalibrate ? b->source.train : NULL;
    const int                   classes = b->source.session.model.classes;
    struct cr_budget_candidate *best    = &b->outcome.best;
    const struct cr_config     *saved   = NULL;
    cr_status                   status;
    CR_TRY_OUT(cr_config_change(&best->config, CR_CHANGES("model.weights=")));
    CR_TRY_OUT(cr_budget_session_open(best->config, classes, train, &b->small));
    CR_TRY_OUT(put_weights(&b->small, best));
    CR_TRY_OUT(cr_prune_recalibrate(&b->small, train, b->request.recalibrate, &b->recalibrated));
    CR_TRY_OUT(cr_config_derive(&saved, b->config, 0, CR_CHANGES("quant.type=none", "prune.pattern=unstructured")));
    CR_TRY_OUT(cr_config_set(&saved, "model.channels", best->config->model.channels));
    if (*best->config->model.channels) /* the weights have another shape */
        CR_TRY_OUT(cr_config_set(&saved, "model.weights", ""));
    CR_TRY_OUT(cr_prune_save(&b->small, saved, b->config->model.weights));
out:
    cr_config_close(saved);
    return status;
}

/* ---- the command ---- */

static void close_budget(struct cr_budget *b) {
    cr_budget_candidate_free(&b->outcome.best);
    cr_budget_candidate_free(&b->outcome.present);
    cr_budget_problem_close(&b->problem);
    cr_budget_axes_close(&b->axes);
    cr_budget_layers_close(&b->layers);
    cr_session_close(&b->small);
    cr_budget_clock_close(&b->clock);
    cr_budget_source_close(&b->source);
}

/* Says which keys keep a pattern from saving time. */
static cr_status check(const struct cr_budget *b) {
    const struct cr_config         *c = b->config;
    const struct cr_budget_request *r = &b->request;
    if (r->automatic || !(r->two_four || r->block || r->unstructured)) return CR_OK;
    if (c->quant.type != CR_QUANT_NONE)
        return cr_config_fail(c, "quant.type",
                              "no kernel for 8-bit values skips pruned weights: give --pattern channels");
    if (!c->train.sparse || !c->train.fuse)
        return cr_config_fail(c, c->train.sparse ? "train.fuse" : "train.sparse",
                              "pruned weights save time only with yes");
    return CR_OK;
}

cr_status cr_prune_to_budget(const struct cr_config *config, const struct cr_budget_request *request, bool json,
                             struct cr_text *out) {
    struct cr_budget b = {.config = config, .request = *request};
    cr_status        status;
    CR_TRY(check(&b));
    CR_TRY_OUT(choose(&b));
    CR_TRY_OUT(save(&b));
    (json ? cr_budget_json : cr_budget_print)(&b, out);
out:
    close_budget(&b);
    return status;
}
