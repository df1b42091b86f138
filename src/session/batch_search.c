/* session/batch_search.c: finds the largest batch size that fits the memory limit (train.batch = auto). See
 * session/session.h. */
#include "session/session.h"

enum { BATCH_STEP = 8, BATCH_LARGE = 64, BATCH_LARGE_STEP = 32, BATCH_MAX = 1000000 };

/* A batch size that was tried: bytes needed, predicted slowdown against a run without a limit. */
struct probe {
    size_t need;
    double slowdown; /* percent, per image */
};

/* Compiles the largest training program with roofline estimates, since measuring kernels for every tried batch size
 * would take too long. Evaluation adapts its own batch size. */
static cr_status probe_batch(struct cr_session *s, struct cr_cost_model *model, int64_t batch, struct probe *out) {
    /* of the micro-batch programs the last one needs the most memory */
    enum cr_program_kind     kind = s->config->train.accumulate > 1 ? CR_PROGRAM_MICRO_LAST : CR_PROGRAM_STEP;
    struct cr_program        train;
    struct cr_fit_report     fit;
    const struct cr_program *all[] = {&train};
    CR_TRY(cr_session_compile_with(s, model, kind, batch, NULL, &fit, &train));
    out->need     = cr_memory_need(s->device, &s->model.store, all, 1);
    out->slowdown = fit.seconds_before > 0 ? 100 * (fit.seconds / fit.seconds_before - 1) : 0;
    cr_program_free(&train);
    return CR_OK;
}

static bool fits(const struct cr_session *s, const struct probe *p) {
    return p->need <= s->limit && p->slowdown <= s->config->train.batch_slowdown;
}

/* Candidate batch sizes: 8, 16, ... 64, 96, 128, ... */
static int64_t batch_at(int64_t index) {
    const int64_t small = BATCH_LARGE / BATCH_STEP;
    return index < small ? (index + 1) * BATCH_STEP : BATCH_LARGE + (index - small + 1) * BATCH_LARGE_STEP;
}

static cr_status try_index(struct cr_session *s, struct cr_cost_model *model, int64_t index, bool *fit,
                           struct probe *p) {
    cr_status status = probe_batch(s, model, batch_at(index), p);
    *fit             = status == CR_OK && fits(s, p);
    if (status != CR_ERR_CONFIG && status != CR_ERR_DEVICE) return status;
    cr_error_clear(); /* a tensor that is too large, or that no kernel supports */
    return CR_OK;
}

/* Finds the largest index whose batch size fits, -1 when none does. */
static cr_status search_batch(struct cr_session *s, struct cr_cost_model *model, int64_t batch_max, int64_t *found,
                              struct probe *at) {
    int64_t      good = -1, bad = BATCH_LARGE / BATCH_STEP - 1;
    bool         fit;
    struct probe p;
    for (;; bad = 2 * bad + 1) { /* double the batch size until it does not fit */
        while (bad > good + 1 && batch_at(bad) > batch_max) bad--;
        if (batch_at(bad) > batch_max) break;
        CR_TRY(try_index(s, model, bad, &fit, &p));
        if (!fit) break;
        good = bad;
        *at  = p;
    }
    while (bad - good > 1) {
        const int64_t middle = good + (bad - good) / 2;
        CR_TRY(try_index(s, model, middle, &fit, &p));
        if (fit)
            good = middle, *at = p;
        else
            bad = middle;
    }
    *found = good;
    return CR_OK;
}

cr_status cr_session_find_batch(struct cr_session *s, int64_t batch_max) {
    struct cr_cost_model model = cr_device_cost_model(s->device);
    struct probe         at;
    int64_t              index;
    if (!s->limit) s->limit = s->limit_if_needed ? s->limit_if_needed : cr_session_free_memory(s);
    if (!s->limit)
        return cr_config_fail(s->config, "train.batch",
                              "the free memory of this device is unknown; set memory.limit, or a number");
    if (s->model.real == CR_F32) model.flops_per_s = cr_session_cost_model(s).flops_per_s;
    batch_max = batch_max > 0 ? CR_MIN(batch_max, (int64_t)BATCH_MAX) : BATCH_MAX;
    if (batch_max < BATCH_STEP) {
        s->state.batch = batch_max;
        return CR_OK;
    }
    CR_TRY(search_batch(s, &model, batch_max, &index, &at));
    if (index < 0) {
        CR_TRY(probe_batch(s, &model, batch_at(0), &at)); /* the error may have another cause than memory */
        return cr_config_fail(s->config, "train.batch",
                              "%d images do not fit into %.0f MiB with at most train.batch_slowdown = %g %%: raise "
                              "train.batch_slowdown or memory.limit, or lower data.image_size",
                              BATCH_STEP, cr_mib(s->limit + s->overhead_bytes), s->config->train.batch_slowdown);
    }
    s->state.batch = batch_at(index);
    cr_log(CR_LOG_INFO, "batch   size %lld: %.0f of %.0f MiB, predicted %.2f %% slower per image than without a limit",
           (long long)s->state.batch, cr_mib(at.need + s->overhead_bytes), cr_mib(s->limit + s->overhead_bytes),
           at.slowdown);
    return CR_OK;
}

/* The search uses roofline estimates and workspaces of kernels that may differ from the chosen ones. */
bool cr_session_smaller_batch(struct cr_session *s, size_t need) {
    const struct cr_fit_report *f        = &s->fit;
    const double                slowdown = f->seconds_before > 0 ? 100 * (f->seconds / f->seconds_before - 1) : 0;
    const struct probe          p        = {.need = need, .slowdown = slowdown};
    const int64_t               step     = s->state.batch > BATCH_LARGE ? BATCH_LARGE_STEP : BATCH_STEP;
    if (fits(s, &p) || s->state.batch <= step) return false;
    s->state.batch -= step;
    return true;
}
