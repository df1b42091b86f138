/* autotune/measure.c: benchmarks one op: measures its time on scratch memory. See autotune/cost_table.h.
 *
 * The time between two events around a launch includes the time that the host needs to enqueue the launch: 10 to 30 us
 * for a convolution of a library. This time does not occur when a captured program runs. So launches are captured into
 * a graph, and the graph is timed; the graph holds fewer launches the longer one takes. Only ops that take about a
 * hundred times as long as enqueueing are timed without a graph. */
#include "autotune/cost_table.h"
#include "core/rng.h"

#include <string.h>

enum {
    PIECE_BYTES = 1 << 20,
    RUNS_MAX    = CR_COUNT(((struct cr_measure_memory *)0)->gap_s),
    ROUNDS      = 2,
    MORE_ROUNDS = 8, /* while other processes use the device: the minimum of more rounds is closer to the time alone */
    GAP_ROUNDS  = 10
};
static const double graph_s      = 200e-6;  /* a graph holds as many launches as last about this long, up to RUNS_MAX */
static const double long_s       = 2e-3;    /* ops that take longer are timed without a graph */
static const double prune_factor = 1.15;    /* a candidate that takes longer than this times the best is pruned */
static const double shared_prune = 4;       /* the same while other processes use the device */
static const double shortest_s   = 0.5e-6;  /* lower limit of a measured time */
static const double event_margin_s = 10e-6; /* events and the start of an idle device may add this to one launch */

static size_t aligned(const struct cr_device *device, size_t bytes) {
    const size_t a = device->caps.alignment;
    return (bytes + a - 1) / a * a;
}

/* ---- scratch memory ---- */

/* Random values of both signs whose magnitude resembles activations in every type: 1 to 2 as f16, 2^-7 to 2 as bf16 and
 * f32. A kernel whose control flow depends on the magnitude takes its usual path. */
static cr_status make_noise_piece(struct cr_device *device, struct cr_measure_memory *s) {
    struct cr_rng rng    = cr_rng_make(1, CR_RNG_TEST, 0, 0);
    cr_status     status = CR_OK;
    uint16_t     *piece;
    if (s->piece) return CR_OK;
    CR_ALLOC(piece, PIECE_BYTES / sizeof *piece);
    for (size_t i = 0; i < PIECE_BYTES / sizeof *piece; i++) {
        const uint32_t bits = cr_rng_u32(&rng);
        piece[i]            = (uint16_t)((bits >> 31 << 15) | (0x3c00 + (bits & 0x3ff)));
    }
    CR_TRY_OUT(device->backend->reserve(device, PIECE_BYTES, &s->piece));
    CR_TRY_OUT(device->backend->put(device, s->piece, piece, PIECE_BYTES));
out:
    cr_free(piece);
    return status;
}

/* Restores the first `bytes` of the noise. An earlier op may have left values of any magnitude there. Each copy doubles
 * the part that has been restored. */
static cr_status restore_noise(struct cr_device *device, struct cr_measure_memory *s, size_t bytes) {
    unsigned char *noise = s->noise;
    const size_t   begin = s->clean_bytes;
    for (size_t at = begin; at < bytes;) {
        const size_t more = CR_MIN(at > begin ? at - begin : (size_t)PIECE_BYTES, bytes - at);
        const void  *from = at > begin ? noise + begin : s->piece;
        if (device->backend->async)
            CR_TRY(device->backend->async->move(device, CR_STREAM_COMPUTE, noise + at, from, more));
        else
            memcpy(noise + at, from, more); /* device memory is host memory */
        at += more;
    }
    s->clean_bytes = CR_MAX(begin, bytes);
    return CR_OK;
}

static cr_status grow(struct cr_device *device, void **memory, size_t *size, size_t bytes) {
    if (bytes <= *size) return CR_OK;
    if (*memory) device->backend->release(device, *memory);
    *memory = NULL;
    *size   = 0;
    CR_TRY(device->backend->reserve(device, bytes, memory));
    *size = bytes;
    return CR_OK;
}

/* clean: bytes of the noise, from its beginning, that must hold random values. */
static cr_status scratch_reserve(struct cr_device *device, struct cr_measure_memory *s, size_t noise_bytes,
                                 size_t zero_bytes, size_t clean) {
    CR_TRY(make_noise_piece(device, s));
    CR_TRY(grow(device, &s->zeros, &s->zero_bytes, zero_bytes));
    if (noise_bytes > s->noise_bytes) s->clean_bytes = 0;
    CR_TRY(grow(device, &s->noise, &s->noise_bytes, noise_bytes));
    return restore_noise(device, s, clean);
}

void cr_measure_memory_release(struct cr_device *device, struct cr_measure_memory *s) {
    if (s->piece) device->backend->release(device, s->piece);
    if (s->noise) device->backend->release(device, s->noise);
    if (s->zeros) device->backend->release(device, s->zeros);
    *s = (struct cr_measure_memory){0};
}

/* ---- one op ---- */

/* Integers may be indices that a kernel dereferences, so inputs of these types are zeros. */
static bool needs_zeros(const struct cr_tensor *t) {
    return t->dtype == CR_U8 || t->dtype == CR_I32 || t->dtype == CR_F64;
}

/* The input that an output updates in place, of which a kernel writes only a part; CR_NONE: none. In a program the
 * memory planner gives both the same memory; otherwise the kernel would copy the rest first. */
static int updated_input(const struct cr_op *op, int out) {
    const bool is = op->kind == CR_OP_gram_dgrad && out == CR_OUT_gram_dgrad_dx && op->attr.conv.stride > 1 &&
                    op->in[CR_IN_gram_dgrad_add] >= 0;
    return is ? CR_IN_gram_dgrad_add : CR_NONE;
}

/* Bytes of scratch memory that an op needs. inputs: the first bytes of the noise, which the op reads; unwritten: the
 * first ones that it does not write. */
struct scratch_bytes {
    size_t noise, zeros, inputs, unwritten;
};

/* Assigns scratch memory to the operands of the op: inputs first, then outputs, then workspace. Sets pointers only as
 * far as memory is reserved, and returns the sizes that the op needs. */
static struct scratch_bytes place(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                                  const struct cr_measure_memory *s, struct cr_call *call, size_t workspace) {
    const struct cr_op_info *info = cr_op_info(op->kind);
    struct scratch_bytes     size = {0};
    size_t                   at[CR_OP_IN_MAX];
    *call = (struct cr_call){.program = p, .op = op};
    for (int k = 0; k < info->ins; k++) {
        if (op->in[k] < 0) continue;
        const struct cr_tensor *t = &p->tensor[op->in[k]];
        const bool              z = needs_zeros(t);
        at[k]                     = z ? size.zeros : size.noise;
        if (z ? s->zeros != NULL : s->noise != NULL) call->in[k] = (char *)(z ? s->zeros : s->noise) + at[k];
        *(z ? &size.zeros : &size.noise) += aligned(device, t->bytes);
    }
    size.inputs = size.unwritten = size.noise;
    for (int k = 0; k < info->outs; k++) {
        if (op->out[k] < 0) continue;
        const int    updated = updated_input(op, k);
        const size_t to      = updated == CR_NONE ? size.noise : at[updated];
        if (s->noise) call->out[k] = (char *)s->noise + to;
        size.unwritten = CR_MIN(size.unwritten, to);
        if (updated == CR_NONE) size.noise += aligned(device, p->tensor[op->out[k]].bytes);
    }
    if (workspace && s->noise) call->workspace = (char *)s->noise + size.noise;
    size.noise += aligned(device, workspace);
    return size;
}

cr_status cr_measure_place(struct cr_device *device, struct cr_measure_memory *scratch, const struct cr_program *p,
                           const struct cr_op *op, size_t workspace, struct cr_call *call) {
    struct scratch_bytes size = place(device, p, op, scratch, call, workspace);
    CR_TRY(scratch_reserve(device, scratch, size.noise, size.zeros, size.inputs));
    size                 = place(device, p, op, scratch, call, workspace);
    scratch->clean_bytes = CR_MIN(scratch->clean_bytes, size.unwritten);
    return CR_OK;
}

struct stopwatch {
    struct cr_device       *device;
    const struct cr_kernel *kernel;
    const struct cr_call   *call;
    void                   *from, *to; /* events */
    void                   *separator; /* a byte of the scratch memory that is set between launches */
    int                     rounds;    /* the minimum of so many measurements counts */
};

/* Some kernels start while the kernel before them ends. Among launches of the same op this would hide part of the time,
 * so a fill of one byte separates the launches; it waits for all work before it. with_op false: only the fills, whose
 * time is subtracted. */
static cr_status launch_separated(const struct stopwatch *w, int times, bool with_op) {
    for (int i = 0; i < times; i++) {
        if (with_op) CR_TRY(w->kernel->launch(w->device, w->call));
        CR_TRY(w->device->backend->async->fill(w->device, CR_STREAM_COMPUTE, w->separator, 0, 1));
    }
    return CR_OK;
}

/* Enqueues one launch of the graph, or of the kernel when graph is NULL, between the two events. */
static cr_status enqueue(const struct stopwatch *w, void *graph) {
    const struct cr_async *async = w->device->backend->async;
    CR_TRY(async->event_record(w->device, CR_STREAM_COMPUTE, w->from));
    CR_TRY(graph ? async->graph_launch(w->device, graph) : w->kernel->launch(w->device, w->call));
    return async->event_record(w->device, CR_STREAM_COMPUTE, w->to);
}

/* Seconds between the two events. */
static cr_status wait_for(const struct stopwatch *w, double *seconds) {
    const struct cr_async *async = w->device->backend->async;
    CR_TRY(async->host_wait(w->device, w->to));
    return async->elapsed(w->device, w->from, w->to, seconds);
}

static cr_status time_launch(const struct stopwatch *w, void *graph, double *seconds) {
    CR_TRY(enqueue(w, graph));
    return wait_for(w, seconds);
}

/* *seconds holds the first measurement; the minimum of all is returned. */
static cr_status time_without_graph(const struct stopwatch *w, double *seconds) {
    double one;
    for (int i = 0; i < w->rounds; i++) {
        CR_TRY(time_launch(w, NULL, &one));
        *seconds = CR_MIN(*seconds, one);
    }
    return CR_OK;
}

/* Captures `runs` separated launches and times the graph: the minimum of `rounds` graph launches. */
static cr_status time_separated(const struct stopwatch *w, int runs, bool with_op, int rounds, double *seconds) {
    const struct cr_async *async  = w->device->backend->async;
    cr_status              status = CR_OK;
    void                  *graph  = NULL;
    double                 one;
    CR_TRY(async->capture_begin(w->device));
    status = launch_separated(w, runs, with_op);
    if (status == CR_OK)
        CR_TRY(async->capture_end(w->device, &graph));
    else {
        cr_error_hold(); /* keeps the message of the failed launch, which is the cause */
        if (async->capture_end(w->device, &graph) != CR_OK) graph = NULL;
        cr_error_release();
    }
    *seconds = 1e30;
    for (int i = 0; i <= rounds && status == CR_OK; i++) {
        status = time_launch(w, graph, &one);
        if (status == CR_OK && i) *seconds = CR_MIN(*seconds, one / runs); /* the first launch also uploads the graph */
    }
    async->graph_destroy(w->device, graph);
    return status;
}

/* lower_s: a lower bound of the time of a launch, which decides the number of launches in the graph. */
static cr_status time_with_graph(const struct stopwatch *w, struct cr_measure_memory *scratch, double lower_s,
                                 double *seconds) {
    const int runs = (int)CR_MIN(CR_MAX(graph_s / CR_MAX(lower_s, shortest_s), 1.0), (double)RUNS_MAX);
    double   *gap  = &scratch->gap_s[runs - 1]; /* independent of the op */
    if (*gap == 0) CR_TRY(time_separated(w, runs, false, GAP_ROUNDS, gap));
    CR_TRY(time_separated(w, runs, true, w->rounds, seconds));
    *seconds = CR_MAX(*seconds - *gap, shortest_s);
    return CR_OK;
}

cr_status cr_cost_measure(struct cr_device *device, struct cr_measure_memory *scratch, const struct cr_kernel *kernel,
                          const struct cr_program *p, const struct cr_op *op, double best, double *seconds) {
    const struct cr_async *async = device->backend->async;
    struct stopwatch w = {.device = device, .kernel = kernel, .rounds = scratch->shared_device ? MORE_ROUNDS : ROUNDS};
    const double     factor = scratch->shared_device ? shared_prune : prune_factor;
    struct cr_call   call;
    size_t           workspace = 0;
    void            *prepared  = NULL;
    cr_status        status    = CR_OK;
    CR_TRY(cr_kernel_prepare(device, kernel, p, op, &prepared, &workspace));
    CR_TRY_OUT(cr_measure_place(device, scratch, p, op, workspace, &call));
    call.prepared = prepared;
    w.call        = &call;
    w.separator   = scratch->zeros ? scratch->zeros : scratch->noise;
    CR_TRY_OUT(async->event_create(device, &w.from));
    CR_TRY_OUT(async->event_create(device, &w.to));
    CR_TRY_OUT(time_launch(&w, NULL, seconds)); /* warm-up: loads the kernel */
    const int64_t start = cr_time_ns();
    CR_TRY_OUT(enqueue(&w, NULL));
    const double enqueue_s = (double)(cr_time_ns() - start) * 1e-9;
    CR_TRY_OUT(wait_for(&w, seconds));
    const double lower_s = CR_MAX(*seconds - enqueue_s, 0.0); /* certainly work of the device */
    if (best > 0 && lower_s >= factor * best + event_margin_s) goto out;
    CR_TRY_OUT(*seconds < long_s ? time_with_graph(&w, scratch, lower_s, seconds) : time_without_graph(&w, seconds));
out:
    async->event_destroy(device, w.from);
    async->event_destroy(device, w.to);
    cr_kernel_release(kernel, prepared);
    return status;
}
