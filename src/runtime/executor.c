/* runtime/executor.c: binds a program to a device and runs it op by op or as a captured CUDA graph. See
 * runtime/executor.h. */
#include "runtime/executor_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- open, close ---- */

static void bind_operands(const struct cr_exec *exec, const struct cr_op *op, struct cr_call *call) {
    *call = (struct cr_call){.program = exec->program, .op = op};
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        if (op->in[s] >= 0) call->in[s] = cr_exec_address(exec, op->in[s]);
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (op->out[s] >= 0) call->out[s] = cr_exec_address(exec, op->out[s]);
}

static cr_status bind_parts(struct cr_exec *exec, const struct cr_op *op, struct cr_call *call) {
    int                 parts;
    const struct cr_op *part = cr_op_parts(op, &parts);
    if (part == op) return CR_OK;
    struct cr_call *calls;
    CR_ARENA_ALLOC(&exec->arena, calls, (size_t)parts);
    for (int k = 0; k < parts; k++) bind_operands(exec, &part[k], &calls[k]);
    call->part = calls;
    return CR_OK;
}

static cr_status bind(struct cr_exec *exec, int index) {
    const struct cr_program *p         = exec->program;
    const struct cr_op      *op        = &p->op[index];
    struct cr_device        *device    = cr_exec_device(exec);
    struct cr_bound_op      *bound     = &exec->op[index];
    size_t                   workspace = 0;
    bound->kernel                      = device->kernels[op->kernel];
    CR_ASSERT(bound->kernel->op == op->kind);
    bound->title =
        cr_arena_printf(&exec->arena, "%s %s", cr_op_info(op->kind)->name, op->layer >= 0 ? p->layer[op->layer] : "");
    if (!bound->title) return CR_NO_MEMORY(64);
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        CR_ASSERT(op->in[s] < 0 || p->tensor[op->in[s]].region != CR_REGION_HOST || op->kind == CR_OP_prefetch ||
                  op->kind == CR_OP_barrier);
    bind_operands(exec, op, &bound->call);
    CR_TRY(bind_parts(exec, op, &bound->call));
    if (op->workspace >= 0) bound->call.workspace = cr_exec_address(exec, op->workspace);
    CR_TRY(cr_kernel_prepare(device, bound->kernel, p, op, &bound->call.prepared, &workspace));
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

/* Creates an event after every op that an op of another stream waits for. */
static cr_status create_wait_events(struct cr_exec *exec) {
    const struct cr_program *p = exec->program;
    for (int i = 0; i < p->ops; i++)
        for (int w = 0; w < CR_OP_WAIT_MAX && p->op[i].wait[w] >= 0; w++) {
            struct cr_bound_op *awaited = &exec->op[p->op[i].wait[w]];
            if (!awaited->done) CR_TRY(cr_exec_async(exec)->event_create(cr_exec_device(exec), &awaited->done));
        }
    return CR_OK;
}

/* Creates the events that make all streams start and end with the compute stream, so that a run is one unit. */
static cr_status create_stream_events(struct cr_exec *exec) {
    const struct cr_async *async = cr_exec_async(exec);
    for (int s = CR_STREAM_COMPUTE + 1; s < CR_STREAMS; s++) {
        if (exec->last_of[s] == CR_NONE) continue;
        if (!exec->begun) CR_TRY(async->event_create(cr_exec_device(exec), &exec->begun));
        struct cr_bound_op *last = &exec->op[exec->last_of[s]];
        if (!last->done) CR_TRY(async->event_create(cr_exec_device(exec), &last->done));
    }
    return CR_OK;
}

static cr_status open_streams(struct cr_exec *exec) {
    const struct cr_program *p = exec->program;
    exec->last_image_reader    = last_reader(p, p->images);
    for (int s = 0; s < CR_STREAMS; s++) exec->last_of[s] = CR_NONE;
    for (int i = 0; i < p->ops; i++) exec->last_of[p->op[i].stream] = i;
    if (!cr_exec_async(exec)) return CR_OK;
    CR_TRY(create_wait_events(exec));
    return create_stream_events(exec);
}

cr_status cr_exec_open(const struct cr_program *program, struct cr_memory *memory, struct cr_exec **out) {
    cr_status       status;
    struct cr_exec *exec;
    CR_ALLOC(exec, 1);
    exec->program   = program;
    exec->memory    = memory;
    const char *env = getenv("CRESNET_SYNC");
    exec->sync_each = env && strcmp(env, "1") == 0;
    CR_ALLOC_OUT(exec->op, (size_t)program->ops);
    for (int i = 0; i < program->ops; i++) CR_TRY_OUT(bind(exec, i));
    cr_exec_find_separations(program, exec->op);
    CR_TRY_OUT(open_streams(exec));
    CR_TRY_OUT(cr_exec_open_results(exec));
    *out = exec;
    return CR_OK;
out:
    cr_exec_close(exec);
    return status;
}

static void close_async(struct cr_exec *exec) {
    const struct cr_async *async  = cr_exec_async(exec);
    struct cr_device      *device = cr_exec_device(exec);
    cr_error_hold(); /* keeps the message of an earlier error, which the caller has not printed yet */
    (void)device->backend->sync(device);
    cr_error_release();
    async->graph_destroy(device, exec->graph);
    async->event_destroy(device, exec->begun);
    for (int i = 0; i < CR_EXEC_RESULTS; i++) async->event_destroy(device, exec->ready[i]);
    for (int i = 0; exec->op && i < exec->program->ops; i++) async->event_destroy(device, exec->op[i].done);
    if (exec->result) async->host_release(device, exec->result);
}

void cr_exec_close(struct cr_exec *exec) {
    if (!exec) return;
    if (cr_exec_async(exec))
        close_async(exec);
    else
        cr_free(exec->result);
    for (int i = 0; exec->op && i < exec->program->ops; i++)
        if (exec->op[i].kernel) cr_kernel_release(exec->op[i].kernel, exec->op[i].call.prepared);
    cr_exec_close_hooks(exec);
    cr_free(exec->op);
    cr_arena_free(&exec->arena);
    cr_free(exec);
}

/* ---- running op by op ---- */

static cr_status wait_before(struct cr_exec *exec, int i, bool *stream_begun) {
    const struct cr_op *op     = &exec->program->op[i];
    struct cr_device   *device = cr_exec_device(exec);
    if (!exec->begun) return CR_OK;
    if (op->stream != CR_STREAM_COMPUTE && !stream_begun[op->stream]) {
        CR_TRY(cr_exec_async(exec)->stream_wait_event(device, op->stream, exec->begun));
        stream_begun[op->stream] = true;
    }
    for (int w = 0; w < CR_OP_WAIT_MAX && op->wait[w] >= 0; w++)
        CR_TRY(cr_exec_async(exec)->stream_wait_event(device, op->stream, exec->op[op->wait[w]].done));
    return CR_OK;
}

/* Launches from here on begin when all earlier ones of the stream are complete. */
static cr_status separate(struct cr_exec *exec, enum cr_stream stream) {
    const struct cr_async *async = cr_exec_async(exec);
    return async && async->separate ? async->separate(cr_exec_device(exec), stream) : CR_OK;
}

static cr_status launch_kernel(struct cr_exec *exec, const struct cr_step_block *step, int i) {
    struct cr_bound_op *bound = &exec->op[i];
    bound->call.step          = step;
    CR_TRY(bound->kernel->launch(cr_exec_device(exec), &bound->call));
    if (i == exec->last_image_reader && exec->memory->ring)
        return cr_feed_consumed(cr_exec_device(exec), exec->memory->ring);
    return CR_OK;
}

/* Enqueues op i, between the work of the hooks, and the event that other streams wait for. */
static cr_status enqueue_op(struct cr_exec *exec, const struct cr_step_block *step, int i) {
    struct cr_device *device = cr_exec_device(exec);
    if (exec->op[i].separated) CR_TRY(separate(exec, exec->program->op[i].stream));
    CR_TRY(cr_exec_before_launch(exec, i));
    CR_TRY(launch_kernel(exec, step, i));
    CR_TRY(cr_exec_after_launch(exec, i));
    if (exec->op[i].done)
        CR_TRY(cr_exec_async(exec)->event_record(device, exec->program->op[i].stream, exec->op[i].done));
    return exec->sync_each ? device->backend->sync(device) : CR_OK;
}

/* Adds the op to the error message. An error of another rank is not an error of this op. */
static cr_status op_error(const struct cr_exec *exec, int i, cr_status status) {
    const struct cr_op *op = &exec->program->op[i];
    if (status == CR_ERR_PEER) return cr_error_forward(status, __FILE__, __LINE__);
    return CR_FAIL(status, "op %d, %s by %s in layer %s: %s", i, cr_op_info(op->kind)->name, exec->op[i].kernel->name,
                   op->layer >= 0 ? exec->program->layer[op->layer] : "?", cr_error_message());
}

static cr_status launch_op(struct cr_exec *exec, const struct cr_step_block *step, int i) {
    const struct cr_async *async = cr_exec_async(exec);
    if (async) async->range_push(exec->op[i].title);
    const cr_status status = enqueue_op(exec, step, i);
    if (async) async->range_pop();
    return status == CR_OK ? CR_OK : op_error(exec, i, status);
}

/* Launches ops first to last (inclusive) and lets the compute stream wait for the other streams at the end. */
static cr_status launch_range(struct cr_exec *exec, const struct cr_step_block *step, int first, int last) {
    const struct cr_async *async                    = cr_exec_async(exec);
    bool                   stream_begun[CR_STREAMS] = {false};
    if (exec->begun) CR_TRY(async->event_record(cr_exec_device(exec), CR_STREAM_COMPUTE, exec->begun));
    for (int i = first; i <= last; i++) {
        CR_TRY(wait_before(exec, i, stream_begun));
        CR_TRY(launch_op(exec, step, i));
    }
    for (int s = CR_STREAM_COMPUTE + 1; s < CR_STREAMS; s++)
        if (stream_begun[s] && exec->last_of[s] <= last)
            CR_TRY(async->stream_wait_event(cr_exec_device(exec), CR_STREAM_COMPUTE, exec->op[exec->last_of[s]].done));
    return last == exec->program->ops - 1 ? cr_exec_at_end(exec) : CR_OK;
}

/* Launches ops first to last outside a capture. Here as in a graph, which the hoisted ops are never a part of, all
 * earlier work is complete when the first op begins. */
static cr_status run_ops(struct cr_exec *exec, const struct cr_step_block *step, int first, int last) {
    const int hoisted = exec->program->hoisted;
    if (first < hoisted && last >= hoisted) {
        CR_TRY(run_ops(exec, step, first, hoisted - 1));
        first = hoisted;
    }
    CR_TRY(separate(exec, CR_STREAM_COMPUTE));
    return launch_range(exec, step, first, last);
}

static cr_status set_step(struct cr_exec *exec, const struct cr_step_block *step) {
    const struct cr_backend *backend = cr_exec_device(exec)->backend;
    return backend->set_step ? backend->set_step(cr_exec_device(exec), step) : CR_OK;
}

cr_status cr_exec_run_range(struct cr_exec *exec, const struct cr_step_block *step, int first, int last) {
    CR_TRY(set_step(exec, step));
    CR_TRY(run_ops(exec, step, first, last));
    /* After a part of a program, streams may be busy that the compute stream does not wait for. */
    return exec->begun && last < exec->program->ops - 1 ? cr_exec_device(exec)->backend->sync(cr_exec_device(exec))
                                                        : CR_OK;
}

/* ---- running the whole program ---- */

cr_status cr_exec_drop_graph(struct cr_exec *exec) {
    if (!exec->graph) return CR_OK;
    CR_TRY(cr_exec_device(exec)->backend->sync(cr_exec_device(exec)));
    cr_exec_async(exec)->graph_destroy(cr_exec_device(exec), exec->graph);
    exec->graph = NULL;
    return CR_OK;
}

/* Captures the launches while the device works on the first run, so that no later step waits for the capture. */
static cr_status capture(struct cr_exec *exec, const struct cr_step_block *step) {
    const struct cr_async *async = cr_exec_async(exec);
    CR_TRY(async->capture_begin(cr_exec_device(exec)));
    cr_status status = launch_range(exec, step, exec->program->hoisted, exec->program->ops - 1);
    if (status == CR_OK) return async->capture_end(cr_exec_device(exec), &exec->graph);
    void *incomplete = NULL;
    cr_error_hold(); /* keeps the message of the failed launch, which is the cause */
    if (async->capture_end(cr_exec_device(exec), &incomplete) == CR_OK)
        async->graph_destroy(cr_exec_device(exec), incomplete);
    cr_error_release();
    return status;
}

void cr_exec_refresh(struct cr_exec *exec) {
    exec->hoisted_done = false;
}

static void complete_op(void *context, int i) {
    struct cr_exec           *exec  = context;
    const struct cr_bound_op *bound = &exec->op[exec->program->hoisted + i];
    if (bound->kernel->complete) bound->kernel->complete(cr_exec_device(exec), &bound->call);
}

/* Runs the hoisted ops and completes the preparation of the ops that read their results. */
static cr_status run_hoisted(struct cr_exec *exec, const struct cr_step_block *step) {
    const struct cr_backend *backend = cr_exec_device(exec)->backend;
    const int                hoisted = exec->program->hoisted;
    CR_TRY(run_ops(exec, step, 0, hoisted - 1));
    if (hoisted && backend->for_each)
        backend->for_each(cr_exec_device(exec), exec->program->ops - hoisted, complete_op, exec);
    return CR_OK;
}

cr_status cr_exec_run(struct cr_exec *exec, const struct cr_step_block *step) {
    const bool captures = cr_exec_async(exec) && !exec->sync_each;
    CR_TRY(cr_exec_recapture(exec));
    CR_TRY(set_step(exec, step));
    if (!exec->hoisted_done) CR_TRY(run_hoisted(exec, step));
    exec->hoisted_done = true;
    if (exec->graph)
        CR_TRY(cr_exec_async(exec)->graph_launch(cr_exec_device(exec), exec->graph));
    else
        CR_TRY(run_ops(exec, step, exec->program->hoisted, exec->program->ops - 1));
    exec->runs++;
    CR_TRY(cr_exec_fetch_results(exec));
    return captures && !exec->graph ? capture(exec, step) : CR_OK;
}
