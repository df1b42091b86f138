/* autotune/chain_times.c: measures a chain of ops as one launch and as the launches of its ops, both as captured graphs
 * on scratch memory. See struct cr_chain_kernel in device/kernel.h. */
#include "autotune/cost_table_internal.h"

enum { REPEATS = 4, ROUNDS = 6 };

struct chain_bench {
    struct cr_device             *device;
    const struct cr_program      *program;
    const struct cr_chain_kernel *chain;
    struct cr_call               *call; /* [ops] */
    const struct cr_call        **list; /* [ops] */
    size_t                       *at;   /* [tensors]: place in the memory */
    int                           first, ops;
    size_t                        workspace;
    void                         *memory, *prepared, *from, *to;
};

/* Bytes of a tensor's place. The chain may need a larger workspace than its first op. */
static size_t bytes_of(const struct chain_bench *b, int tensor) {
    const size_t a = b->device->caps.alignment, bytes = b->program->tensor[tensor].bytes;
    const bool   first = tensor == b->program->op[b->first].workspace;
    return ((first ? CR_MAX(bytes, b->workspace) : bytes) + a - 1) / a * a;
}

/* Gives each tensor of the chain a place; returns the bytes of all. */
static size_t place_tensors(struct chain_bench *b) {
    const struct cr_program *p     = b->program;
    size_t                   bytes = 0;
    for (int t = 0; t < p->tensors; t++) b->at[t] = SIZE_MAX;
    for (int i = b->first; i < b->first + b->ops; i++) {
        int ids[2 * CR_OP_IDS_MAX], n = cr_op_reads(&p->op[i], ids);
        n += cr_op_writes(&p->op[i], ids + n);
        for (int k = 0; k < n; k++) {
            if (b->at[ids[k]] != SIZE_MAX) continue;
            b->at[ids[k]] = bytes;
            bytes += bytes_of(b, ids[k]);
        }
    }
    return bytes;
}

static void *address(const struct chain_bench *b, int tensor) {
    return tensor < 0 ? NULL : (char *)b->memory + b->at[tensor];
}

static cr_status prepare_calls(struct chain_bench *b) {
    const struct cr_program *p = b->program;
    for (int i = 0; i < b->ops; i++) {
        const struct cr_op     *op     = &p->op[b->first + i];
        const struct cr_kernel *kernel = b->device->kernels[op->kernel];
        struct cr_call         *call   = &b->call[i];
        size_t                  workspace;
        *call = (struct cr_call){.program = p, .op = op, .workspace = address(b, op->workspace)};
        for (int s = 0; s < CR_OP_IN_MAX; s++) call->in[s] = address(b, op->in[s]);
        for (int s = 0; s < CR_OP_OUT_MAX; s++) call->out[s] = address(b, op->out[s]);
        b->list[i] = call;
        if (kernel->prepare) CR_TRY(kernel->prepare(b->device, p, op, &call->prepared, &workspace));
    }
    return b->chain->prepare(b->device, b->list, b->ops, &b->prepared);
}

static cr_status launch(const struct chain_bench *b, bool together) {
    if (together) return b->chain->launch(b->device, b->prepared);
    for (int i = 0; i < b->ops; i++) CR_TRY(b->device->kernels[b->call[i].op->kernel]->launch(b->device, &b->call[i]));
    return CR_OK;
}

static cr_status time_graph(const struct chain_bench *b, void *graph, double *seconds) {
    const struct cr_async *async = b->device->backend->async;
    *seconds                     = 1e30;
    for (int i = 0; i < ROUNDS; i++) {
        double one;
        CR_TRY(async->event_record(b->device, CR_STREAM_COMPUTE, b->from));
        CR_TRY(async->graph_launch(b->device, graph));
        CR_TRY(async->event_record(b->device, CR_STREAM_COMPUTE, b->to));
        CR_TRY(async->host_wait(b->device, b->to));
        CR_TRY(async->elapsed(b->device, b->from, b->to, &one));
        if (i) *seconds = CR_MIN(*seconds, one / REPEATS); /* the first launch also uploads the graph */
    }
    return CR_OK;
}

static cr_status measure(const struct chain_bench *b, bool together, double *seconds) {
    const struct cr_async *async  = b->device->backend->async;
    void                  *graph  = NULL;
    cr_status              status = launch(b, together); /* loads the kernels */
    if (status == CR_OK) status = async->capture_begin(b->device);
    if (status != CR_OK) return status;
    for (int i = 0; i < REPEATS && status == CR_OK; i++) status = launch(b, together);
    if (status == CR_OK)
        status = async->capture_end(b->device, &graph);
    else {
        cr_error_hold(); /* keeps the message of the failed launch, which is the cause */
        if (async->capture_end(b->device, &graph) != CR_OK) graph = NULL;
        cr_error_release();
    }
    if (status == CR_OK) status = time_graph(b, graph, seconds);
    async->graph_destroy(b->device, graph);
    return status;
}

static cr_status allocate(struct chain_bench *b) {
    CR_ALLOC(b->call, (size_t)b->ops);
    CR_ALLOC(b->list, (size_t)b->ops);
    CR_ALLOC(b->at, (size_t)b->program->tensors);
    CR_TRY(b->device->backend->reserve(b->device, place_tensors(b), &b->memory));
    CR_TRY(b->device->backend->async->event_create(b->device, &b->from));
    return b->device->backend->async->event_create(b->device, &b->to);
}

static void release(struct chain_bench *b) {
    for (int i = 0; b->call && i < b->ops; i++) {
        const struct cr_op *op = b->call[i].op;
        if (op && b->device->kernels[op->kernel]->release && b->call[i].prepared)
            b->device->kernels[op->kernel]->release(b->call[i].prepared);
    }
    b->chain->release(b->device, b->prepared);
    b->device->backend->async->event_destroy(b->device, b->from);
    b->device->backend->async->event_destroy(b->device, b->to);
    if (b->memory) b->device->backend->release(b->device, b->memory);
    cr_free(b->call);
    cr_free(b->list);
    cr_free(b->at);
}

cr_status cr_cost_chain(struct cr_cost_table *c, const struct cr_program *p, int first, struct cr_chain_cost *out) {
    struct chain_bench b = {.device = c->device, .program = p, .first = first};
    *out                 = (struct cr_chain_cost){0};
    if (c->offline || !c->device->backend->async) return CR_OK;
    b.chain = cr_chain_find(c->device, p, first, 0, &b.ops);
    if (!b.chain) return CR_OK;
    if (b.chain->workspace) b.workspace = b.chain->workspace(c->device, p, first, b.ops);
    cr_status status = allocate(&b);
    if (status == CR_OK) status = prepare_calls(&b);
    if (status == CR_OK) status = measure(&b, false, &out->apart);
    if (status == CR_OK) status = measure(&b, true, &out->together);
    if (status == CR_OK) out->ops = b.ops, out->kernel = b.chain->name, out->workspace = b.workspace;
    release(&b);
    if (status == CR_OK) return CR_OK;
    /* not enough memory, or the device refuses the launch: no chain. A fault of the device shows at its next use. */
    cr_log(CR_LOG_INFO, "program %s: no launch of ops %d to %d together: %s", p->name, first, first + b.ops - 1,
           cr_error_message());
    cr_error_clear();
    return CR_OK;
}
