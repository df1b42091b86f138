/* session/memory_limit.c: programs of a session compiled for the memory that they may have; the largest batch; what is
 * said when memory does not do. See session/session.h. */
#include "session/session.h"

#include <stdio.h>
#include <string.h>

enum { FREE_SHARE = 64, BATCH_STEP = 8, BATCH_LARGE = 64, BATCH_LARGE_STEP = 32, BATCH_MAX = 1000000 };

/* ---- the limit ---- */

/* Where the host works beside the device, libraries, kernels and the recording that come later take a little of what is
 * free now. */
static size_t free_memory(const struct cr_session *s) {
    const size_t left  = s->device->backend->memory_free(s->device),
                 later = CR_MAX(left / FREE_SHARE, s->device->caps.overhead_bytes);
    return !s->device->backend->async ? left : left > later ? left - later : 1;
}

/* What the limit counts besides regions. NCCL's buffers are measured where ranks have met, reckoned where they are only
 * planned for. */
static size_t beside(const struct cr_session *s) {
    const struct cr_device *d       = s->device;
    const bool              planned = s->model.ranks > 1 && !s->comm && d->caps.overhead_bytes;
    return (d->backend->memory_overhead ? d->backend->memory_overhead(s->device) : d->caps.overhead_bytes) +
           (planned ? CR_GPU_NCCL_BYTES : 0);
}

void cr_session_limit(struct cr_session *s) {
    const char *limit = s->config->memory.limit;
    size_t      bytes = 0;
    s->limit = s->overhead_bytes = 0;
    if (strcmp(limit, "auto") == 0)
        s->limit = free_memory(s);
    else if (*limit) {
        CR_ASSERT(cr_bytes_parse(limit, &bytes)); /* config/check.c has looked at it */
        s->overhead_bytes = beside(s);
        s->limit          = bytes > s->overhead_bytes ? bytes - s->overhead_bytes : 1;
    }
}

void cr_session_check_limit(const struct cr_session *s) {
    const struct cr_device *d = s->device;
    size_t                  given;
    if (!s->overhead_bytes || !d->free_at_start || !cr_bytes_parse(s->config->memory.limit, &given)) return;
    const size_t left  = d->backend->memory_free(s->device),
                 taken = left && left < d->free_at_start ? d->free_at_start - left : 0;
    if (taken > given)
        cr_log(CR_LOG_WARN,
               "memory  %.0f MiB of the device are taken since this run began, memory.limit is %.0f: its libraries "
               "take more than was reckoned "
               "(%.0f MiB beside the network), or another program has come",
               cr_mib(taken), cr_mib(given), cr_mib(s->overhead_bytes));
}

void cr_session_count_input(struct cr_session *s, const struct cr_program *p) {
    s->input_bytes = CR_MAX(s->input_bytes, p->region_bytes[CR_REGION_INPUT]);
    s->small_bytes = CR_MAX(s->small_bytes, cr_feed_small_bytes(p));
}

/* What the limit leaves for the pool of a program that is not planned yet. The INPUT region is as large as any program
 * wants it. */
static size_t limit_of_pool(const struct cr_session *s, const struct cr_program *p) {
    struct cr_tensor        images = {.bytes = s->input_bytes - s->small_bytes};
    const struct cr_program others = {
        .region_bytes[CR_REGION_INPUT] = s->input_bytes, .tensor = &images, .tensors = 1, .images = 0};
    const struct cr_program *all[] = {p, &others};
    const size_t             rest  = cr_memory_need(s->device, &s->model.store, all, 2);
    return s->limit > rest ? s->limit - rest : 1;
}

/* The CPU's memory is the host's: nothing is gained there but by who asks for it, as tests do. */
static enum cr_swap_use swap_of(const struct cr_session *s) {
    const enum cr_swap_use use = s->config->memory.swap;
    return use == CR_SWAP_USE_AUTO && s->device->backend == &cr_backend_cpu ? CR_SWAP_USE_NO : use;
}

/* ---- compiling ---- */

static cr_status compile(struct cr_session *s, struct cr_cost_model *target, enum cr_program_kind kind, int64_t batch,
                         const char *until, struct cr_fit_report *fit, struct cr_program *out) {
    const struct cr_config   *c       = s->config;
    struct cr_compile_options options = {.fuse                = c->train.fuse,
                                         .sparse              = c->train.sparse,
                                         .reuse               = c->memory.reuse,
                                         .recompute           = c->memory.recompute,
                                         .offload             = swap_of(s),
                                         .zero_copy           = c->memory.zero_copy,
                                         .until               = until,
                                         .report              = fit,
                                         .sparse_filter_grads = cr_session_may_mask_gradients(c)};
    if (s->model.ranks > 1) {
        options.bucket_bytes = (size_t)(c->ranks.bucket_mib * (1 << 20));
        options.wire         = c->ranks.reduce == CR_REDUCE_FP16   ? CR_F16
                               : c->ranks.reduce == CR_REDUCE_BF16 ? CR_BF16
                                                                   : CR_F32;
    }
    *fit = (struct cr_fit_report){0};
    CR_TRY(cr_model_program(&s->model, c, kind, batch, out));
    if (s->limit) options.pool_limit = limit_of_pool(s, out);
    cr_status status = cr_compile(out, target, &options);
    if (status != CR_OK) cr_program_free(out);
    return status;
}

cr_status cr_session_compile(struct cr_session *s, enum cr_program_kind kind, int64_t batch, const char *until,
                             struct cr_program *out) {
    struct cr_cost_model target = cr_session_cost_model(s);
    struct cr_fit_report fit;
    if (s->limit && s->cost_table && swap_of(s) != CR_SWAP_USE_NO)
        CR_TRY(cr_cost_table_copy_rates(s->cost_table, &target));
    CR_TRY(compile(s, &target, kind, batch, until, &fit, out));
    if (fit.before > s->fit.before) s->fit = fit;
    return CR_OK;
}

/* ---- what is said ---- */

void cr_session_fit_text(const struct cr_session *s, struct cr_text *out) {
    const struct cr_fit_report *f = &s->fit;
    if (!f->recomputed && !f->offloaded) return;
    cr_text_add(out, "pool %.0f MiB instead of %.0f:", cr_mib(f->after), cr_mib(f->before));
    if (f->recomputed) cr_text_add(out, " %d ops run twice", f->recomputed);
    if (f->offloaded)
        cr_text_add(out, "%s %d tensors wait in the host's memory (%.0f MiB out and back)", f->recomputed ? "," : "",
                    f->offloaded, cr_mib(f->offload_bytes));
    if (f->mapped) cr_text_add(out, ", %d of them read there (zero-copy)", f->mapped);
    cr_text_add(out, "; predicted %.2f %% slower: %.2f ms a step more, %.2f of it waiting for copies",
                f->seconds_before > 0 ? 100 * (f->seconds / f->seconds_before - 1) : 0,
                (f->seconds - f->seconds_before) * 1e3, f->stalled * 1e3);
}

/* What can be done about it, besides more memory. */
static void add_ways_out(const struct cr_session *s, struct cr_text *out) {
    const struct cr_config *c    = s->config;
    const bool              host = s->device->backend != &cr_backend_cpu && s->device->caps.to_host_bytes_per_s > 0;
    cr_text_add(out, "lower train.batch (and train.eval_batch), or data.image_size (and data.eval_crop)");
    if (s->device->caps.half && s->model.real == CR_F32) cr_text_add(out, ", or set train.precision = fp16");
    if (!*c->memory.limit)
        cr_text_add(out, ", or memory.limit = auto");
    else if (!c->memory.reuse)
        cr_text_add(out, ", or memory.reuse = yes");
    else if (host && c->memory.swap == CR_SWAP_USE_NO)
        cr_text_add(out, ", or memory.swap = auto");
    else if (!c->memory.recompute)
        cr_text_add(out, ", or memory.recompute = yes");
}

cr_status cr_session_lacks_memory(const struct cr_session *s, const struct cr_program *const *all, int count,
                                  size_t lacks) {
    const size_t need          = cr_memory_need(s->device, &s->model.store, all, count),
                 store         = cr_param_store_bytes(&s->model.store);
    const int      size        = s->trains ? s->prepare_train.size : s->prepare_eval.size;
    char           missing[64] = "";
    struct cr_text text        = {0};
    size_t         pool        = 0;
    for (int i = 0; i < count; i++) pool = CR_MAX(pool, all[i]->region_bytes[CR_REGION_POOL]);
    if (lacks) snprintf(missing, sizeof missing, ", %.0f MiB more than there are", cr_mib(lacks));
    add_ways_out(s, &text);
    const cr_status status = CR_FAIL(CR_ERR_MEMORY,
                                     "out of memory on %s: the network needs %.0f MiB%s (parameters and state %.0f, "
                                     "activations %.0f, pictures %.0f) "
                                     "with train.batch = %lld and %d pixels a side: %s",
                                     s->device->backend->name, cr_mib(need), missing, cr_mib(store), cr_mib(pool),
                                     cr_mib(need - store - pool), (long long)(s->trains ? s->batch : s->eval_batch),
                                     size, text.data ? text.data : "");
    cr_text_free(&text);
    return status;
}

cr_status cr_session_limit_missed(const struct cr_session *s, size_t need) {
    const struct cr_config *c     = s->config;
    const bool              twice = c->memory.recompute, swapped = s->fit.offloaded > 0;
    const char             *with    = twice && swapped ? ", with all recomputing and swapping that helps"
                                      : swapped        ? ", with all swapping that helps"
                                      : twice          ? ", with all recomputing that helps"
                                                       : "";
    char                    too[64] = "";
    const char    *instead = strcmp(c->memory.limit, "auto") == 0 ? "free some memory of the device" : "raise it";
    struct cr_text text    = {0};
    add_ways_out(s, &text);
    if (s->overhead_bytes)
        snprintf(too, sizeof too, " (%.0f of them libraries%s)", cr_mib(s->overhead_bytes),
                 s->model.ranks > 1 ? " and NCCL" : "");
    const cr_status status = cr_config_fail(
        c, "memory.limit", "the run needs %.1f MiB%s, %.1f more than that%s: %s, or %s",
        cr_mib(need + s->overhead_bytes), too, cr_mib(need - s->limit), with, instead, text.data ? text.data : "");
    cr_text_free(&text);
    return status;
}

/* ---- the largest batch ---- */

struct probe {
    size_t need;
    double slowdown; /* %, of a picture */
};

/* Costs of the roofline: a batch that is only looked at is not worth measuring kernels for. Evaluation takes what batch
 * it can. */
static cr_status look_at(struct cr_session *s, struct cr_cost_model *target, int64_t batch, struct probe *out) {
    enum cr_program_kind kind =
        s->config->train.accumulate > 1 ? CR_PROGRAM_MICRO_LAST : CR_PROGRAM_STEP; /* the fullest */
    struct cr_program        train;
    struct cr_fit_report     fit;
    const struct cr_program *all[] = {&train};
    CR_TRY(compile(s, target, kind, batch, NULL, &fit, &train));
    out->need     = cr_memory_need(s->device, &s->model.store, all, 1);
    out->slowdown = fit.seconds_before > 0 ? 100 * (fit.seconds / fit.seconds_before - 1) : 0;
    cr_program_free(&train);
    return CR_OK;
}

static bool is_good(const struct cr_session *s, const struct probe *p) {
    return p->need <= s->limit && p->slowdown <= s->config->train.batch_slowdown;
}

/* Batches to choose from: 8, 16, ... 64, 96, 128, ... */
static int64_t batch_at(int64_t index) {
    const int64_t small = BATCH_LARGE / BATCH_STEP;
    return index < small ? (index + 1) * BATCH_STEP : BATCH_LARGE + (index - small + 1) * BATCH_LARGE_STEP;
}

static cr_status try_index(struct cr_session *s, struct cr_cost_model *target, int64_t index, bool *good,
                           struct probe *p) {
    cr_status status = look_at(s, target, batch_at(index), p);
    *good            = status == CR_OK && is_good(s, p);
    if (status != CR_ERR_CONFIG && status != CR_ERR_DEVICE) return status;
    cr_error_clear(); /* a tensor beyond all reason, or one that no kernel takes: too large */
    return CR_OK;
}

/* The largest index that is good, -1: none. */
static cr_status search_batch(struct cr_session *s, struct cr_cost_model *target, int64_t most, int64_t *found,
                              struct probe *at) {
    int64_t      good = -1, bad = BATCH_LARGE / BATCH_STEP - 1;
    bool         yes;
    struct probe p;
    for (;; bad = 2 * bad + 1) { /* doubles the batch until it does not fit */
        while (bad > good + 1 && batch_at(bad) > most) bad--;
        if (batch_at(bad) > most) break;
        CR_TRY(try_index(s, target, bad, &yes, &p));
        if (!yes) break;
        good = bad;
        *at  = p;
    }
    while (bad - good > 1) {
        const int64_t middle = good + (bad - good) / 2;
        CR_TRY(try_index(s, target, middle, &yes, &p));
        if (yes)
            good = middle, *at = p;
        else
            bad = middle;
    }
    *found = good;
    return CR_OK;
}

cr_status cr_session_find_batch(struct cr_session *s, int64_t most) {
    struct cr_cost_model target = cr_device_cost_model(s->device);
    struct probe         at;
    int64_t              index;
    if (!s->limit) s->limit = free_memory(s);
    if (!s->limit)
        return cr_config_fail(s->config, "train.batch",
                              "how much memory is free is unknown here; set memory.limit, or a number");
    if (s->model.real == CR_F32) target.flops_per_s = cr_session_cost_model(s).flops_per_s;
    most = most > 0 ? CR_MIN(most, (int64_t)BATCH_MAX) : BATCH_MAX;
    if (most < BATCH_STEP) {
        s->batch = most;
        return CR_OK;
    }
    CR_TRY(search_batch(s, &target, most, &index, &at));
    if (index < 0) {
        CR_TRY(look_at(s, &target, batch_at(0), &at)); /* what is wrong may be no matter of memory */
        return cr_config_fail(
            s->config, "train.batch",
            "not even %d pictures fit into %.0f MiB with at most train.batch_slowdown = %g %%: raise one of "
            "them or memory.limit, or lower data.image_size",
            BATCH_STEP, cr_mib(s->limit + s->overhead_bytes), s->config->train.batch_slowdown);
    }
    s->batch = batch_at(index);
    cr_log(CR_LOG_INFO,
           "batch   %lld pictures: %.0f MiB of %.0f, predicted %.2f %% slower a picture than without a limit",
           (long long)s->batch, cr_mib(at.need + s->overhead_bytes), cr_mib(s->limit + s->overhead_bytes), at.slowdown);
    return CR_OK;
}

/* The search goes by the roofline and by workspaces of kernels that may not be the fastest. */
bool cr_session_smaller_batch(struct cr_session *s, size_t need) {
    const struct cr_fit_report *f        = &s->fit;
    const double                slowdown = f->seconds_before > 0 ? 100 * (f->seconds / f->seconds_before - 1) : 0;
    const struct probe          p        = {.need = need, .slowdown = slowdown};
    const int64_t               step     = s->batch > BATCH_LARGE ? BATCH_LARGE_STEP : BATCH_STEP;
    if (is_good(s, &p) || s->batch <= step) return false;
    s->batch -= step;
    return true;
}
