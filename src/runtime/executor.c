/* runtime/executor.c: binding and running. See runtime/executor.h. */
#include "runtime/executor.h"
#include "core/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DELAY_MOST_NS = 50 * 1000, DELAY_ONE_IN = 4, DELAYED_REPLAYS = 8, RESULT_PIECES = 3 };

struct bound_op {
    const struct cr_kernel *kernel;
    struct cr_call          call;
    char                   *title; /* "conv layer1.0.conv1", for the profiler's picture */
    void                   *done;  /* mark after the op, when one on another lane waits for it; else NULL */
};

/* Host copies of what a run leaves, in the tensors' types; page-locked on a device with async. */
struct raw_result {
    double metrics[4], norm[2], state[CR_STATE_COUNT];
};

struct cr_exec {
    const struct cr_program *program;
    struct cr_memory        *memory;
    struct bound_op         *op;
    struct cr_arena          arena;
    bool                     sync_each; /* CRESNET_SYNC=1: a late device fault is charged to its op */
    struct cr_fill          *fill;      /* ranges that are filled with NaN bytes, in the order of ops; NULL: off */
    int                      fills;
    unsigned char           *poison;    /* on a device without async: NaN bytes, as many as the largest tensor has */
    bool                     disturbed; /* ops begin late, by chance */
    struct cr_rng            chance;
    int64_t                  runs;
    bool                     fresh;       /* the first `once` ops are done */
    void                    *recording;   /* NULL: not yet, or never */
    int                      taken;       /* last op that reads the pictures; CR_NONE: none does */
    int                      norm, state; /* tensor ids, CR_NONE when the program has none */
    struct raw_result       *result;      /* CR_EXEC_RESULTS of them */
    void                    *ready[CR_EXEC_RESULTS];
    void                    *begun;               /* mark on the compute lane: other lanes start after it */
    int                      last_of[CR_STREAMS]; /* last op of each lane; CR_NONE: the lane is not used */
    void *const *before, *const *after;           /* marks around every op, while cr_exec_run_timed runs; else NULL */
};

static struct cr_device *device_of(const struct cr_exec *exec) {
    return exec->memory->device;
}
static const struct cr_async *async_of(const struct cr_exec *exec) {
    return device_of(exec)->backend->async;
}

static unsigned char *address(const struct cr_exec *exec, int tensor) {
    const struct cr_tensor *t = &exec->program->tensor[tensor];
    CR_ASSERT(t->offset + t->bytes <= exec->memory->bytes[t->region] || t->region == CR_REGION_STORE);
    return (unsigned char *)exec->memory->region[t->region] + t->offset;
}

/* ---- open, close ---- */

static cr_status bind(struct cr_exec *exec, int index) {
    const struct cr_program *p         = exec->program;
    const struct cr_op      *op        = &p->op[index];
    struct cr_device        *device    = device_of(exec);
    struct bound_op         *bound     = &exec->op[index];
    size_t                   workspace = 0;
    bound->kernel                      = device->kernels[op->kernel];
    CR_ASSERT(bound->kernel->op == op->kind);
    bound->title =
        cr_arena_printf(&exec->arena, "%s %s", cr_op_info(op->kind)->name, op->layer >= 0 ? p->layer[op->layer] : "");
    if (!bound->title) return CR_NO_MEMORY(64);
    bound->call = (struct cr_call){.program = p, .op = op};
    for (int s = 0; s < CR_OP_IN_MAX; s++) {
        if (op->in[s] < 0) continue;
        CR_ASSERT(p->tensor[op->in[s]].region != CR_REGION_HOST || cr_kernel_reads_host(device, bound->kernel, s));
        bound->call.in[s] = address(exec, op->in[s]);
    }
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (op->out[s] >= 0) bound->call.out[s] = address(exec, op->out[s]);
    if (op->workspace >= 0) bound->call.workspace = address(exec, op->workspace);
    if (!bound->kernel->prepare) return CR_OK;
    CR_TRY(bound->kernel->prepare(device, p, op, &bound->call.prepared, &workspace));
    CR_ASSERT(workspace <= (op->workspace >= 0 ? p->tensor[op->workspace].bytes : 0));
    return CR_OK;
}

static int last_reader(const struct cr_program *p, int tensor) {
    int ids[CR_OP_IDS_MAX];
    for (int i = p->ops - 1; tensor != CR_NONE && i >= 0; i--)
        for (int k = cr_op_reads(&p->op[i], ids); k > 0; k--)
            if (ids[k - 1] == tensor) return i;
    return CR_NONE;
}

/* Lanes other than compute: marks where another lane waits, and where they begin and end, so that a run is one piece.
 */
static cr_status open_lanes(struct cr_exec *exec) {
    const struct cr_program *p     = exec->program;
    const struct cr_async   *async = async_of(exec);
    exec->taken                    = last_reader(p, p->images);
    for (int l = 0; l < CR_STREAMS; l++) exec->last_of[l] = CR_NONE;
    for (int i = 0; i < p->ops; i++) exec->last_of[p->op[i].stream] = i;
    if (!async) return CR_OK;
    for (int i = 0; i < p->ops; i++)
        for (int w = 0; w < CR_OP_WAIT_MAX && p->op[i].wait[w] >= 0; w++) {
            struct bound_op *awaited = &exec->op[p->op[i].wait[w]];
            if (!awaited->done) CR_TRY(async->event_create(device_of(exec), &awaited->done));
        }
    for (int l = CR_STREAM_COMPUTE + 1; l < CR_STREAMS; l++) {
        if (exec->last_of[l] == CR_NONE) continue;
        if (!exec->begun) CR_TRY(async->event_create(device_of(exec), &exec->begun));
        struct bound_op *last = &exec->op[exec->last_of[l]];
        if (!last->done) CR_TRY(async->event_create(device_of(exec), &last->done));
    }
    return CR_OK;
}

static cr_status open_results(struct cr_exec *exec) {
    const struct cr_async *async = async_of(exec);
    const size_t           bytes = CR_EXEC_RESULTS * sizeof *exec->result;
    exec->norm                   = cr_tensor_find(exec->program, "grad_norm");
    exec->state                  = cr_tensor_find(exec->program, "plane.state");
    if (!async) {
        CR_ALLOC(exec->result, CR_EXEC_RESULTS);
        return CR_OK;
    }
    void *host;
    CR_TRY(async->host_reserve(device_of(exec), bytes, &host));
    exec->result = host;
    for (int i = 0; i < CR_EXEC_RESULTS; i++) CR_TRY(async->event_create(device_of(exec), &exec->ready[i]));
    return CR_OK;
}

cr_status cr_exec_open(const struct cr_program *program, struct cr_memory *memory, struct cr_exec **out) {
    cr_status       status = CR_OK;
    struct cr_exec *exec;
    CR_ALLOC(exec, 1);
    exec->program   = program;
    exec->memory    = memory;
    const char *env = getenv("CRESNET_SYNC");
    exec->sync_each = env && strcmp(env, "1") == 0;
    exec->op        = cr_alloc((size_t)CR_MAX(program->ops, 1), sizeof *exec->op);
    if (!exec->op) {
        status = CR_NO_MEMORY((size_t)program->ops * sizeof *exec->op);
        goto out;
    }
    for (int i = 0; i < program->ops; i++) CR_TRY_OUT(bind(exec, i));
    CR_TRY_OUT(open_lanes(exec));
    CR_TRY_OUT(open_results(exec));
    *out = exec;
    return CR_OK;
out:
    cr_exec_close(exec);
    return status;
}

static void close_async(struct cr_exec *exec) {
    const struct cr_async *async  = async_of(exec);
    struct cr_device      *device = device_of(exec);
    cr_error_hold(); /* a fault was told by the call that met it first, and its message is not printed yet */
    (void)device->backend->sync(device);
    cr_error_release();
    async->graph_destroy(device, exec->recording);
    async->event_destroy(device, exec->begun);
    for (int i = 0; i < CR_EXEC_RESULTS; i++) async->event_destroy(device, exec->ready[i]);
    for (int i = 0; exec->op && i < exec->program->ops; i++) async->event_destroy(device, exec->op[i].done);
    if (exec->result) async->host_release(device, exec->result);
}

void cr_exec_close(struct cr_exec *exec) {
    if (!exec) return;
    if (async_of(exec))
        close_async(exec);
    else
        cr_free(exec->result);
    for (int i = 0; exec->op && i < exec->program->ops; i++)
        if (exec->op[i].kernel && exec->op[i].kernel->release && exec->op[i].call.prepared)
            exec->op[i].kernel->release(exec->op[i].call.prepared);
    cr_free(exec->op);
    cr_free(exec->fill);
    cr_free(exec->poison);
    cr_arena_free(&exec->arena);
    cr_free(exec);
}

const char *cr_exec_kernel_name(const struct cr_exec *exec, int op) {
    return exec->op[op].kernel->name;
}

/* ---- feeding ---- */

static void lay_out_mixes(const struct cr_tensor *t, void *to, const int32_t *mixes) {
    if (mixes) {
        memcpy(to, mixes, t->bytes);
        return;
    }
    int32_t *record = to;
    memset(to, 0, t->bytes);
    for (int32_t n = 0; n < t->dim[0]; n++, record += CR_MIX_NUMBERS) {
        record[CR_MIX_PARTNER]      = n;
        record[CR_MIX_LABEL_WEIGHT] = record[CR_MIX_WEIGHT] = CR_MIX_ONE;
    }
}

static void lay_out(const struct cr_exec *exec, unsigned char *input, const uint8_t *images, const int32_t *labels,
                    const int32_t *boxes, const int32_t *mixes) {
    const struct cr_program *p = exec->program;
    const struct cr_tensor  *l = &p->tensor[p->labels];
    cr_feed_copy(input + p->tensor[p->images].offset, images, p->tensor[p->images].bytes);
    if (labels)
        memcpy(input + l->offset, labels, l->bytes);
    else
        memset(input + l->offset, 0xff, l->bytes); /* -1 */
    if (p->mixes != CR_NONE) lay_out_mixes(&p->tensor[p->mixes], input + p->tensor[p->mixes].offset, mixes);
    if (p->boxes == CR_NONE) return;
    const struct cr_tensor *b = &p->tensor[p->boxes];
    if (boxes)
        memcpy(input + b->offset, boxes, b->bytes);
    else
        memset(input + b->offset, 0, b->bytes);
}

cr_status cr_exec_feed(struct cr_exec *exec, const uint8_t *images, const int32_t *labels, const int32_t *boxes) {
    return cr_exec_feed_mixed(exec, images, labels, boxes, NULL);
}

cr_status cr_exec_feed_mixed(struct cr_exec *exec, const uint8_t *images, const int32_t *labels, const int32_t *boxes,
                             const int32_t *mixes) {
    struct cr_memory *m = exec->memory;
    void             *host;
    if (!m->ring) { /* the INPUT region is host memory */
        lay_out(exec, m->region[CR_REGION_INPUT], images, labels, boxes, mixes);
        return CR_OK;
    }
    CR_TRY(cr_feed_slot(m->device, m->ring, &host));
    lay_out(exec, host, images, labels, boxes, mixes);
    return cr_feed_send(m->device, m->ring, exec->program, m->region[CR_REGION_INPUT]);
}

/* ---- poison and delays ---- */

/* What was recorded is no longer what runs shall do. */
static cr_status drop_recording(struct cr_exec *exec) {
    if (!exec->recording) return CR_OK;
    CR_TRY(device_of(exec)->backend->sync(device_of(exec)));
    async_of(exec)->graph_destroy(device_of(exec), exec->recording);
    exec->recording = NULL;
    return CR_OK;
}

cr_status cr_exec_poison(struct cr_exec *exec) {
    size_t largest = 1;
    cr_free(exec->fill);
    exec->fill = NULL;
    CR_TRY(drop_recording(exec));
    CR_TRY(cr_fills_make(exec->program, &exec->fill, &exec->fills));
    if (async_of(exec)) return CR_OK;
    for (int i = 0; i < exec->fills; i++) largest = CR_MAX(largest, exec->fill[i].end - exec->fill[i].begin);
    cr_free(exec->poison);
    CR_ALLOC(exec->poison, largest);
    memset(exec->poison, CR_POISON_BYTE, largest);
    return CR_OK;
}

static cr_status poison_at(struct cr_exec *exec, int op, bool behind) {
    struct cr_device *device = device_of(exec);
    for (int i = 0; exec->fill && i < exec->fills && exec->fill[i].op <= op; i++) {
        const struct cr_fill *f = &exec->fill[i];
        if (f->op != op || f->after_launch != behind) continue;
        unsigned char *to    = (unsigned char *)exec->memory->region[CR_REGION_POOL] + f->begin;
        const size_t   bytes = f->end - f->begin;
        CR_TRY(async_of(exec) ? async_of(exec)->fill(device, CR_STREAM_COMPUTE, to, CR_POISON_BYTE, bytes)
                              : device->backend->put(device, to, exec->poison, bytes));
    }
    return CR_OK;
}

cr_status cr_exec_jitter(struct cr_exec *exec, uint64_t seed) {
    if (!async_of(exec)) return CR_OK;
    exec->disturbed = true;
    exec->chance    = cr_rng_make(seed, CR_RNG_TEST, 0, 0);
    return drop_recording(exec);
}

static cr_status delay_by_chance(struct cr_exec *exec, enum cr_stream lane) {
    if (!exec->disturbed || cr_rng_below(&exec->chance, DELAY_ONE_IN)) return CR_OK;
    return async_of(exec)->delay(device_of(exec), lane, (int64_t)cr_rng_below(&exec->chance, DELAY_MOST_NS + 1));
}

/* ---- running op by op ---- */

/* Waits that the order pass asked for; the first op of another lane also waits for the run to begin. */
static cr_status wait_before(struct cr_exec *exec, int i, bool *lane_begun) {
    const struct cr_op *op     = &exec->program->op[i];
    struct cr_device   *device = device_of(exec);
    if (!exec->begun) return CR_OK;
    if (op->stream != CR_STREAM_COMPUTE && !lane_begun[op->stream]) {
        CR_TRY(async_of(exec)->stream_wait_event(device, op->stream, exec->begun));
        lane_begun[op->stream] = true;
    }
    for (int w = 0; w < CR_OP_WAIT_MAX && op->wait[w] >= 0; w++)
        CR_TRY(async_of(exec)->stream_wait_event(device, op->stream, exec->op[op->wait[w]].done));
    return CR_OK;
}

static cr_status launch_op(struct cr_exec *exec, const struct cr_step_block *step, int i) {
    struct cr_device      *device = device_of(exec);
    const struct cr_async *async  = async_of(exec);
    struct bound_op       *bound  = &exec->op[i];
    bound->call.step              = step;
    if (async) async->range_push(bound->title);
    cr_status status = exec->before ? async->event_record(device, exec->program->op[i].stream, exec->before[i]) : CR_OK;
    if (status == CR_OK) status = poison_at(exec, i, false);
    if (status == CR_OK) status = delay_by_chance(exec, exec->program->op[i].stream);
    if (status == CR_OK) status = bound->kernel->launch(device, &bound->call);
    if (status == CR_OK && i == exec->taken && exec->memory->ring)
        status = cr_feed_consumed(device, exec->memory->ring);
    if (status == CR_OK) status = poison_at(exec, i, true);
    if (status == CR_OK && exec->after)
        status = async->event_record(device, exec->program->op[i].stream, exec->after[i]);
    if (status == CR_OK && bound->done) status = async->event_record(device, exec->program->op[i].stream, bound->done);
    if (status == CR_OK && exec->sync_each) status = device->backend->sync(device);
    if (async) async->range_pop();
    if (status == CR_OK) return CR_OK;
    if (status == CR_ERR_PEER) return cr_error_forward(status, __FILE__, __LINE__); /* it is no fault of this op */
    return CR_FAIL(status, "op %d, %s by %s in layer %s: %s", i, cr_op_info(bound->call.op->kind)->name,
                   bound->kernel->name, bound->call.op->layer >= 0 ? exec->program->layer[bound->call.op->layer] : "?",
                   cr_error_message());
}

static cr_status launch_range(struct cr_exec *exec, const struct cr_step_block *step, int first, int last) {
    bool lane_begun[CR_STREAMS] = {false};
    if (exec->begun) CR_TRY(async_of(exec)->event_record(device_of(exec), CR_STREAM_COMPUTE, exec->begun));
    for (int i = first; i <= last; i++) {
        CR_TRY(wait_before(exec, i, lane_begun));
        CR_TRY(launch_op(exec, step, i));
    }
    for (int l = CR_STREAM_COMPUTE + 1; l < CR_STREAMS; l++)
        if (lane_begun[l] && exec->last_of[l] <= last)
            CR_TRY(
                async_of(exec)->stream_wait_event(device_of(exec), CR_STREAM_COMPUTE, exec->op[exec->last_of[l]].done));
    return last == exec->program->ops - 1 ? poison_at(exec, last + 1, false) : CR_OK;
}

static cr_status set_step(struct cr_exec *exec, const struct cr_step_block *step) {
    const struct cr_backend *backend = device_of(exec)->backend;
    return backend->set_step ? backend->set_step(device_of(exec), step) : CR_OK;
}

cr_status cr_exec_run_range(struct cr_exec *exec, const struct cr_step_block *step, int first, int last) {
    CR_TRY(set_step(exec, step));
    CR_TRY(launch_range(exec, step, first, last));
    /* A part of a program leaves lanes that compute does not wait for. */
    return exec->begun && last < exec->program->ops - 1 ? device_of(exec)->backend->sync(device_of(exec)) : CR_OK;
}

cr_status cr_exec_run_timed(struct cr_exec *exec, const struct cr_step_block *step, void *const *before,
                            void *const *after) {
    CR_ASSERT(async_of(exec));
    exec->before     = before;
    exec->after      = after;
    cr_status status = cr_exec_run_range(exec, step, 0, exec->program->ops - 1);
    exec->before = exec->after = NULL;
    return status;
}

/* ---- running whole ---- */

/* The launches are recorded while the device works on the first run, so no later step pays for it. */
static cr_status record(struct cr_exec *exec, const struct cr_step_block *step) {
    const struct cr_async *async = async_of(exec);
    CR_TRY(async->capture_begin(device_of(exec)));
    cr_status status = launch_range(exec, step, exec->program->hoisted, exec->program->ops - 1);
    if (status == CR_OK) return async->capture_end(device_of(exec), &exec->recording);
    void *half = NULL;
    cr_error_hold(); /* what a spoilt recording says is not why it is spoilt */
    if (async->capture_end(device_of(exec), &half) == CR_OK) async->graph_destroy(device_of(exec), half);
    cr_error_release();
    return status;
}

static cr_status fetch_results(struct cr_exec *exec) {
    const int          slot                  = (int)(exec->runs % CR_EXEC_RESULTS);
    struct raw_result *r                     = &exec->result[slot];
    struct cr_device  *device                = device_of(exec);
    const int          tensor[RESULT_PIECES] = {exec->program->metrics, exec->norm, exec->state};
    void *const        to[RESULT_PIECES]     = {r->metrics, r->norm, r->state};
    void              *host[RESULT_PIECES];
    const void        *src[RESULT_PIECES];
    size_t             bytes[RESULT_PIECES];
    int                pieces = 0;
    for (int i = 0; i < RESULT_PIECES; i++) {
        if (tensor[i] == CR_NONE) continue;
        host[pieces]    = to[i];
        src[pieces]     = address(exec, tensor[i]);
        bytes[pieces++] = exec->program->tensor[tensor[i]].bytes;
    }
    if (async_of(exec)) {
        CR_TRY(async_of(exec)->get_small(device, CR_STREAM_COMPUTE, host, src, bytes, pieces));
        return async_of(exec)->event_record(device, CR_STREAM_COMPUTE, exec->ready[slot]);
    }
    for (int i = 0; i < pieces; i++) CR_TRY(device->backend->get(device, host[i], src[i], bytes[i]));
    return CR_OK;
}

void cr_exec_refresh(struct cr_exec *exec) {
    exec->fresh = false;
}

cr_status cr_exec_run(struct cr_exec *exec, const struct cr_step_block *step) {
    const bool records = async_of(exec) && !exec->sync_each;
    if (exec->disturbed && exec->runs % DELAYED_REPLAYS == 0) CR_TRY(drop_recording(exec)); /* other delays */
    CR_TRY(set_step(exec, step));
    if (!exec->fresh) CR_TRY(launch_range(exec, step, 0, exec->program->hoisted - 1));
    exec->fresh = true;
    if (exec->recording)
        CR_TRY(async_of(exec)->graph_launch(device_of(exec), exec->recording));
    else
        CR_TRY(launch_range(exec, step, exec->program->hoisted, exec->program->ops - 1));
    exec->runs++;
    CR_TRY(fetch_results(exec));
    return records && !exec->recording ? record(exec, step) : CR_OK;
}

/* ---- results ---- */

int64_t cr_exec_runs(const struct cr_exec *exec) {
    return exec->runs;
}

cr_status cr_exec_result(struct cr_exec *exec, int64_t run, struct cr_exec_result *out) {
    const struct cr_program *p    = exec->program;
    const int                slot = (int)(run % CR_EXEC_RESULTS);
    CR_ASSERT(run >= 1 && run <= exec->runs && run > exec->runs - CR_EXEC_RESULTS && p->metrics != CR_NONE);
    if (async_of(exec)) CR_TRY(async_of(exec)->host_wait(device_of(exec), exec->ready[slot]));
    const struct raw_result *r = &exec->result[slot];
    double                   m[4];
    for (int i = 0; i < 4; i++) m[i] = cr_number_load(p->tensor[p->metrics].dtype, r->metrics, i);
    *out =
        (struct cr_exec_result){.loss_sum = m[0], .valid = m[1], .correct1 = m[2], .correct5 = m[3], .loss_scale = 1};
    if (exec->state != CR_NONE) {
        out->loss_scale = r->state[CR_STATE_LOSS_SCALE];
        out->skipped    = (int64_t)r->state[CR_STATE_SKIPPED];
    }
    if (exec->norm == CR_NONE) return CR_OK;
    out->norm_squared = cr_number_load(p->tensor[exec->norm].dtype, r->norm, 0);
    out->nonfinite    = cr_number_load(p->tensor[exec->norm].dtype, r->norm, 1) != 0;
    return CR_OK;
}

/* The HOST region is not the device's to copy. */
static bool is_hosts(const struct cr_exec *exec, int tensor) {
    return exec->program->tensor[tensor].region == CR_REGION_HOST && async_of(exec);
}

cr_status cr_exec_get(struct cr_exec *exec, int tensor, void *host) {
    const size_t bytes = exec->program->tensor[tensor].bytes;
    if (!is_hosts(exec, tensor))
        return device_of(exec)->backend->get(device_of(exec), host, address(exec, tensor), bytes);
    CR_TRY(device_of(exec)->backend->sync(device_of(exec)));
    memcpy(host, address(exec, tensor), bytes);
    return CR_OK;
}

cr_status cr_exec_put(struct cr_exec *exec, int tensor, const void *host) {
    const size_t bytes = exec->program->tensor[tensor].bytes;
    if (!is_hosts(exec, tensor))
        return device_of(exec)->backend->put(device_of(exec), address(exec, tensor), host, bytes);
    CR_TRY(device_of(exec)->backend->sync(device_of(exec)));
    memcpy(address(exec, tensor), host, bytes);
    return CR_OK;
}
