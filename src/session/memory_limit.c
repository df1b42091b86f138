/* session/memory_limit.c: compiles the programs of a session below the memory limit (memory.limit), and reports lack of
 * memory (OOM). See session/session.h. */
#include "core/cpu.h"
#include "device/offline.h"
#include "session/session.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { RESERVED_FRACTION = 64 }; /* 1/64 of the free memory stays free */
/* Where device memory is host memory: 1/16 and 64 MiB stay free for code, stacks, decoded images and checkpoints. */
enum { HOST_RESERVED_FRACTION = 16, HOST_RESERVED_BYTES = 64 << 20 };

/* ---- the limit ---- */

/* The loaders of training and of evaluation hold batches in the same memory. With batch size auto (0) they count as a
 * part of the reserved fraction: an image has about a hundredth of the bytes of its activations. memory.card is what a
 * plan may use of the memory, so nothing is reserved in it. */
static size_t free_host_memory(const struct cr_session *s) {
    const size_t seen = s->device->backend->memory_free(s->device), left = cr_cpu_memory_free();
    const size_t batches = 2 * ((size_t)s->config->data.prefetch + 1) * (size_t)s->state.batch;
    const size_t used =
        left / HOST_RESERVED_FRACTION + HOST_RESERVED_BYTES + batches * cr_prepare_bytes(&s->prepare_train);
    return !left ? seen : CR_MIN(seen, left > used ? left - used : 1);
}

/* On a GPU, libraries, kernels and CUDA graphs that are loaded later use a part of the memory that is free now. */
size_t cr_session_free_memory(const struct cr_session *s) {
    if (s->device->caps.host_memory) return free_host_memory(s);
    const size_t left     = s->device->backend->memory_free(s->device),
                 reserved = CR_MAX(left / RESERVED_FRACTION, s->device->caps.overhead_bytes) +
                            s->device->caps.context_bytes + cr_session_jpeg_bytes(s);
    return !s->device->backend->async ? left : left > reserved ? left - reserved : 1;
}

/* Bytes that count against the limit in addition to the regions. The buffers of NCCL are measured when ranks are
 * connected, and estimated when a run with several ranks is only planned. */
size_t cr_session_overhead_bytes(const struct cr_session *s) {
    const struct cr_device *d       = s->device;
    const bool              planned = s->model.ranks > 1 && !s->comm && d->caps.overhead_bytes;
    return (d->backend->memory_overhead ? d->backend->memory_overhead(s->device) : d->caps.overhead_bytes) +
           (planned ? CR_GPU_NCCL_BYTES : 0) + cr_session_jpeg_bytes(s);
}

void cr_session_limit(struct cr_session *s, size_t found) {
    const char *limit = s->config->memory.limit;
    s->limit = s->limit_if_needed = s->overhead_bytes = s->need_without_limit = 0;

    s->state.memory_limit = found;
    if (!found && strcmp(limit, "auto") == 0) {
        s->limit_if_needed = cr_session_free_memory(s);
        /* ranks of the same host, which all read it before one of them reserves memory, divide it */
        if (s->comm && s->device->caps.host_memory)
            s->limit_if_needed =
                (s->limit_if_needed - 1) / (size_t)cr_comm_rank_info(s->comm, cr_comm_rank(s->comm))->local_size + 1;
    } else if (found || cr_bytes_parse(limit, &s->state.memory_limit)) {
        s->overhead_bytes = cr_session_overhead_bytes(s);
        s->limit          = s->state.memory_limit > s->overhead_bytes ? s->state.memory_limit - s->overhead_bytes : 1;
    }
}

bool cr_session_needs_limit(struct cr_session *s, size_t need) {
    if (s->limit || !s->limit_if_needed || need <= s->limit_if_needed) return false;
    s->need_without_limit = need;
    s->limit              = s->limit_if_needed;
    s->fit                = (struct cr_fit_report){0};
    return true;
}

void cr_session_check_limit(const struct cr_session *s) {
    const struct cr_device *d           = s->device;
    const size_t            limit_bytes = s->state.memory_limit;
    if (!s->overhead_bytes || !d->free_at_start || !limit_bytes) return;
    const size_t left = d->backend->memory_free(s->device),
                 used = left && left < d->free_at_start ? d->free_at_start - left : 0;
    if (used > limit_bytes)
        cr_log(CR_LOG_WARN,
               "memory  %.0f MiB of device memory were allocated since this run began, memory.limit is %.0f: libraries "
               "use more than estimated (%.0f MiB in addition to the network), or another program uses the device",
               cr_mib(used), cr_mib(limit_bytes), cr_mib(s->overhead_bytes));
}

void cr_session_count_input(struct cr_session *s, const struct cr_program *p) {
    s->input_bytes = CR_MAX(s->input_bytes, p->region_bytes[CR_REGION_INPUT]);
    s->small_bytes = CR_MAX(s->small_bytes, cr_feed_small_bytes(p));
}

/* The part of the limit that is left for the pool of a program before memory planning. The INPUT region has the size of
 * the largest one of all programs. */
static size_t pool_limit(const struct cr_session *s, const struct cr_program *p) {
    struct cr_tensor        images = {.bytes = s->input_bytes - s->small_bytes};
    const struct cr_program inputs = {
        .region_bytes[CR_REGION_INPUT] = s->input_bytes, .tensor = &images, .tensors = 1, .images = 0};
    const struct cr_program *all[]       = {p, &inputs};
    const size_t             fixed_bytes = cr_memory_need(s->device, &s->model.store, all, 2);
    return s->limit > fixed_bytes ? s->limit - fixed_bytes : 1;
}

/* Where device memory is host memory, offloading gains nothing. */
static bool may_offload(const struct cr_session *s) {
    return s->config->memory.swap == CR_OFFLOAD_MODE_AUTO && !s->device->caps.host_memory;
}

/* ---- compiling ---- */

static cr_status compile(struct cr_session *s, struct cr_cost_model *model, enum cr_program_kind kind, int64_t batch,
                         const char *until, enum cr_gram_mode gram, struct cr_fit_report *fit, struct cr_program *out) {
    const struct cr_config   *c       = s->config;
    struct cr_compile_options options = {.fuse                = c->train.fuse,
                                         .gram                = gram,
                                         .sparse              = c->train.sparse,
                                         .reuse               = c->memory.reuse,
                                         .recompute           = c->memory.recompute,
                                         .offload             = may_offload(s),
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
    if (s->limit) options.pool_limit = pool_limit(s, out);
    cr_status status = cr_compile(out, model, &options);
    if (status != CR_OK) cr_program_free(out);
    return status;
}

cr_status cr_session_compile_with(struct cr_session *s, struct cr_cost_model *model, enum cr_program_kind kind,
                                  int64_t batch, const char *until, struct cr_fit_report *fit, struct cr_program *out) {
    return compile(s, model, kind, batch, until, s->config->train.gram_bn, fit, out);
}

/* A program with all Gram matrices keeps fewer activations, but is a little slower without a limit, so the compiler
 * leaves some of them out. Below a limit that program may be faster, because less is recomputed and offloaded:
 * compiles it too, and keeps the better one. */
static cr_status try_all_gram(struct cr_session *s, struct cr_cost_model *model, enum cr_program_kind kind,
                              int64_t batch, const char *until, struct cr_fit_report *fit, struct cr_program *out) {
    struct cr_program    all;
    struct cr_fit_report all_fit;
    CR_TRY(compile(s, model, kind, batch, until, CR_GRAM_ALL, &all_fit, &all));
    const bool fits = fit->after <= pool_limit(s, out), all_fits = all_fit.after <= pool_limit(s, &all);
    if (fits != all_fits ? !all_fits : all_fit.seconds >= fit->seconds) {
        cr_program_free(&all);
        return CR_OK;
    }
    cr_program_free(out);
    *out                   = all;
    all_fit.before         = fit->before;
    all_fit.seconds_before = fit->seconds_before;
    *fit                   = all_fit;
    return CR_OK;
}

/* train.gram_bn = all changes nothing on a device without kernels for the new ops. */
static void warn_unused_gram(const struct cr_session *s, enum cr_program_kind kind, const struct cr_program *p) {
    const bool first = kind == CR_PROGRAM_STEP || kind == CR_PROGRAM_MICRO_FIRST;
    if (s->config->train.gram_bn != CR_GRAM_ALL || !s->config->train.fuse || !first) return;
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == CR_OP_gram) return;
    cr_log(CR_LOG_WARN, "train.gram_bn = all has no effect: the network has no 1x1 convolution that allows it, or the "
                        "device lacks the kernels");
}

cr_status cr_session_compile(struct cr_session *s, enum cr_program_kind kind, int64_t batch, const char *until,
                             struct cr_program *out) {
    struct cr_cost_model model = cr_session_cost_model(s);
    struct cr_fit_report fit;
    if (s->limit && s->cost_table && may_offload(s)) CR_TRY(cr_cost_table_copy_rates(s->cost_table, &model));
    CR_TRY(cr_session_compile_with(s, &model, kind, batch, until, &fit, out));
    if (s->config->train.gram_bn == CR_GRAM_AUTO && model.cost && kind != CR_PROGRAM_EVAL && s->limit &&
        (fit.recomputed || fit.offloaded || fit.after > pool_limit(s, out))) {
        const cr_status status = try_all_gram(s, &model, kind, batch, until, &fit, out);
        if (status != CR_OK) cr_program_free(out);
        CR_TRY(status);
    }
    if (!until) warn_unused_gram(s, kind, out);
    if (fit.before > s->fit.before) s->fit = fit;
    return CR_OK;
}

/* ---- messages ---- */

void cr_session_fit_text(const struct cr_session *s, struct cr_text *out) {
    const struct cr_fit_report *f = &s->fit;
    if (!f->recomputed && !f->offloaded) return;
    if (s->need_without_limit)
        cr_text_add(out, "the run needs %.0f MiB and %.0f are free (a smaller train.batch may fit): ",
                    cr_mib(s->need_without_limit), cr_mib(s->limit));
    cr_text_add(out, "pool %.0f MiB instead of %.0f:", cr_mib(f->after), cr_mib(f->before));
    if (f->recomputed) cr_text_add(out, " %d ops recomputed", f->recomputed);
    if (f->offloaded)
        cr_text_add(out, "%s %d tensors offloaded to host memory (%.0f MiB, at %.1f GB/s out and %.1f GB/s back)",
                    f->recomputed ? "," : "", f->offloaded, cr_mib(f->offload_bytes), f->to_host_bytes_per_s / 1e9,
                    f->to_device_bytes_per_s / 1e9);
    cr_text_add(out, "; predicted %.2f %% slower: %.2f ms more per step, %.2f ms of it waiting for copies",
                f->seconds_before > 0 ? 100 * (f->seconds / f->seconds_before - 1) : 0,
                (f->seconds - f->seconds_before) * 1e3, f->stalled * 1e3);
}

/* Appends what the user can change to reduce memory. */
static void add_suggestions(const struct cr_session *s, struct cr_text *out) {
    const struct cr_config *c    = s->config;
    const bool              host = !s->device->caps.host_memory && s->device->caps.to_host_bytes_per_s > 0;
    cr_text_add(out, "lower train.batch (and train.eval_batch), or data.image_size (and data.eval_crop)");
    if (s->device->caps.half && s->model.real == CR_F32) cr_text_add(out, ", or set train.precision = fp16");
    if (!s->limit && !s->limit_if_needed)
        cr_text_add(out, ", or memory.limit = auto");
    else if (!c->memory.reuse)
        cr_text_add(out, ", or memory.reuse = yes");
    else if (host && c->memory.swap == CR_OFFLOAD_MODE_NO)
        cr_text_add(out, ", or memory.swap = auto");
    else if (!c->memory.recompute)
        cr_text_add(out, ", or memory.recompute = yes");
    else if (!s->limit_if_needed) /* a number that a larger GPU has recorded in a checkpoint */
        cr_text_add(out, ", or memory.limit = auto");
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
    if (lacks) snprintf(missing, sizeof missing, ", %.0f MiB more than available", cr_mib(lacks));
    add_suggestions(s, &text);
    const cr_status status = CR_FAIL(
        CR_ERR_MEMORY,
        "out of memory on %s: the network needs %.0f MiB%s (parameters and state %.0f, "
        "activations %.0f, images %.0f) "
        "with train.batch = %lld and image size %d: %s",
        s->device->backend->name, cr_mib(need), missing, cr_mib(store), cr_mib(pool), cr_mib(need - store - pool),
        (long long)(s->trains ? s->state.batch : s->state.eval_batch), size, text.data ? text.data : "");
    cr_text_free(&text);
    return status;
}

/* Rounded up: the number that is printed is enough as a limit. */
static double tenths_of_mib(size_t bytes) {
    return ceil(10 * cr_mib(bytes)) / 10;
}

cr_status cr_session_limit_missed(const struct cr_session *s, size_t need) {
    const struct cr_config *c          = s->config;
    const bool              recomputes = c->memory.recompute, offloads = s->fit.offloaded > 0;
    const char             *with         = recomputes && offloads ? ", with recomputation and offloading"
                                           : offloads             ? ", with offloading"
                                           : recomputes           ? ", with recomputation"
                                                                  : "";
    const size_t            needed_bytes = need + s->overhead_bytes;
    size_t                  limit        = s->limit + s->overhead_bytes;
    char                    details[64]  = "";
    const char             *instead = strcmp(c->memory.limit, "auto") == 0 ? "free device memory" : "raise the limit";
    struct cr_text          text    = {0};
    add_suggestions(s, &text);
    if (s->state.memory_limit)
        limit = CR_MIN(s->state.memory_limit, needed_bytes); /* may be less than the libraries need */
    if (s->overhead_bytes)
        snprintf(details, sizeof details, " (%.0f of them for libraries%s%s)", cr_mib(s->overhead_bytes),
                 s->model.ranks > 1 ? " and NCCL" : "", cr_session_jpeg_bytes(s) ? " and decoding" : "");
    const cr_status status =
        cr_config_fail(c, "memory.limit", "the run needs %.1f MiB%s, %.1f more than the limit%s: %s, or %s",
                       tenths_of_mib(needed_bytes), details, tenths_of_mib(needed_bytes - limit), with, instead,
                       text.data ? text.data : "");
    cr_text_free(&text);
    return status;
}
