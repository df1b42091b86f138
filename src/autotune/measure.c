/* autotune/measure.c: runs one op on scratch memory and takes the time. See autotune/cost_table.h.
 *
 * Marks around a launch take in what the host needs to enqueue it, which is not what an op costs in a recorded program:
 * with a library's convolution 10 to 30 us, by host and moment. So launches are recorded, and the recording is
 * replayed: the fewer the longer one takes. Only what takes a hundred times as long as enqueueing is timed between
 * marks as it is. */
#include "autotune/cost_table.h"
#include "core/rng.h"

#include <string.h>

enum { PIECE_BYTES = 1 << 20, RUNS_MOST = CR_COUNT(((struct cr_scratch *)0)->gap_s), ROUNDS = 2, GAP_ROUNDS = 10 };
static const double recorded_s = 200e-6; /* that a recording should last, in as few launches as that takes */
static const double long_s = 2e-3, pruned = 1.3 /* times the best: not looked at again */, least_s = 0.5e-6;
static const double marks_s = 10e-6; /* that marks and an idle device's start may add to a launch between them */

static size_t aligned(const struct cr_device *device, size_t bytes) {
    const size_t a = device->caps.alignment;
    return (bytes + a - 1) / a * a;
}

/* ---- scratch memory ---- */

/* Of both signs and like activations in every type that data can have: 1 to 2 as f16, 2^-7 to 2 as bf16 and f32. A
 * kernel that looks for the numbers' scale takes its usual way. */
static cr_status make_piece(struct cr_device *device, struct cr_scratch *s) {
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

/* The first bytes of the scratch memory are noise again: what another op left there may have any range, and kernels
 * that look at it other ways. */
static cr_status make_clean(struct cr_device *device, struct cr_scratch *s, size_t bytes) {
    unsigned char *noise = s->noise;
    const size_t   begin = s->clean_bytes;
    for (size_t at = begin; at < bytes;) { /* each time what is there once more */
        const size_t more = CR_MIN(at > begin ? at - begin : (size_t)PIECE_BYTES, bytes - at);
        CR_TRY(device->backend->async->move(device, CR_STREAM_COMPUTE, noise + at,
                                            at > begin ? noise + begin : s->piece, more));
        at += more;
    }
    s->clean_bytes = CR_MAX(begin, bytes);
    return CR_OK;
}

static cr_status grow(struct cr_device *device, void **memory, size_t *have, size_t bytes) {
    if (bytes <= *have) return CR_OK;
    if (*memory) device->backend->release(device, *memory);
    *memory = NULL;
    *have   = 0;
    CR_TRY(device->backend->reserve(device, bytes, memory));
    *have = bytes;
    return CR_OK;
}

/* `clean`: of the noise, what must be. */
static cr_status scratch_reserve(struct cr_device *device, struct cr_scratch *s, size_t noise_bytes, size_t zero_bytes,
                                 size_t clean) {
    CR_TRY(make_piece(device, s));
    CR_TRY(grow(device, &s->zeros, &s->zero_bytes, zero_bytes));
    if (noise_bytes > s->noise_bytes) s->clean_bytes = 0;
    CR_TRY(grow(device, &s->noise, &s->noise_bytes, noise_bytes));
    return make_clean(device, s, clean);
}

void cr_scratch_release(struct cr_device *device, struct cr_scratch *s) {
    if (s->piece) device->backend->release(device, s->piece);
    if (s->noise) device->backend->release(device, s->noise);
    if (s->zeros) device->backend->release(device, s->zeros);
    *s = (struct cr_scratch){0};
}

/* ---- one op ---- */

/* Whole numbers may be indices that a kernel follows: inputs of such types are zeros. */
static bool wants_zeros(const struct cr_tensor *t) {
    return t->dtype == CR_U8 || t->dtype == CR_I32 || t->dtype == CR_F64;
}

/* Places of the op's operands in the scratch memory; the sums are what is needed. Inputs come first. */
static void place(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                  const struct cr_scratch *s, struct cr_call *call, size_t workspace, size_t *noise_bytes,
                  size_t *zero_bytes, size_t *input_bytes) {
    const struct cr_op_info *info  = cr_op_info(op->kind);
    size_t                   noise = 0, zeros = 0;
    *call = (struct cr_call){.program = p, .op = op};
    for (int k = 0; k < info->ins; k++) {
        if (op->in[k] < 0) continue;
        const struct cr_tensor *t = &p->tensor[op->in[k]];
        const bool              z = wants_zeros(t);
        if (z ? s->zeros != NULL : s->noise != NULL)
            call->in[k] = (char *)(z ? s->zeros : s->noise) + (z ? zeros : noise);
        *(z ? &zeros : &noise) += aligned(device, t->bytes);
    }
    *input_bytes = noise;
    for (int k = 0; k < info->outs; k++) {
        if (op->out[k] < 0) continue;
        if (s->noise) call->out[k] = (char *)s->noise + noise;
        noise += aligned(device, p->tensor[op->out[k]].bytes);
    }
    if (workspace && s->noise) call->workspace = (char *)s->noise + noise;
    *noise_bytes = noise + aligned(device, workspace);
    *zero_bytes  = zeros;
}

struct stopwatch {
    struct cr_device       *device;
    const struct cr_kernel *kernel;
    const struct cr_call   *call;
    void                   *from, *to;
    void                   *gap; /* a byte that is set between launches: of inputs that are noise, or zeros */
};

static cr_status launch_times(const struct stopwatch *w, int times) {
    for (int i = 0; i < times; i++) CR_TRY(w->kernel->launch(w->device, w->call));
    return CR_OK;
}

/* Some launches may begin while the one before ends. In a row of an op's own kind that would hide what each costs among
 * others: a byte is set between them, which ends all before it begins. `with` false: only that, to be taken off. */
static cr_status launch_apart(const struct stopwatch *w, int times, bool with) {
    for (int i = 0; i < times; i++) {
        if (with) CR_TRY(w->kernel->launch(w->device, w->call));
        CR_TRY(w->device->backend->async->fill(w->device, CR_STREAM_COMPUTE, w->gap, 0, 1));
    }
    return CR_OK;
}

/* Between the marks: `times` launches, or one replay of a recording. */
static cr_status time_between(const struct stopwatch *w, int times, void *recording, double *seconds) {
    const struct cr_async *async = w->device->backend->async;
    CR_TRY(async->event_record(w->device, CR_STREAM_COMPUTE, w->from));
    if (recording)
        CR_TRY(async->graph_launch(w->device, recording));
    else
        CR_TRY(launch_times(w, times));
    CR_TRY(async->event_record(w->device, CR_STREAM_COMPUTE, w->to));
    CR_TRY(async->host_wait(w->device, w->to));
    CR_TRY(async->elapsed(w->device, w->from, w->to, seconds));
    *seconds /= times;
    return CR_OK;
}

/* `seconds` holds a first reading. */
static cr_status time_long(const struct stopwatch *w, double *seconds) {
    double one;
    for (int i = 0; i < ROUNDS; i++) {
        CR_TRY(time_between(w, 1, NULL, &one));
        *seconds = CR_MIN(*seconds, one);
    }
    return CR_OK;
}

static cr_status time_apart(const struct stopwatch *w, int runs, bool with, int rounds, double *seconds) {
    const struct cr_async *async     = w->device->backend->async;
    cr_status              status    = CR_OK;
    void                  *recording = NULL;
    double                 one;
    CR_TRY(async->capture_begin(w->device));
    status = launch_apart(w, runs, with);
    if (status == CR_OK)
        CR_TRY(async->capture_end(w->device, &recording));
    else {
        cr_error_hold(); /* what a spoilt recording says is not why it is spoilt */
        if (async->capture_end(w->device, &recording) != CR_OK) recording = NULL;
        cr_error_release();
    }
    *seconds = 1e30;
    for (int i = 0; i <= rounds && status == CR_OK; i++) {
        status = time_between(w, runs, recording, &one);
        if (status == CR_OK && i) *seconds = CR_MIN(*seconds, one); /* the first replay sends the recording over */
    }
    async->graph_destroy(w->device, recording);
    return status;
}

/* `least`: what a launch takes at least, of which so many are recorded. */
static cr_status time_recorded(const struct stopwatch *w, struct cr_scratch *scratch, double least, double *seconds) {
    const int runs = (int)CR_MIN(CR_MAX(recorded_s / CR_MAX(least, least_s), 1.0), (double)RUNS_MOST);
    double   *gap  = &scratch->gap_s[runs - 1];
    double    only_gap;
    if (*gap == 0) {
        CR_TRY(time_apart(w, runs, false, GAP_ROUNDS, &only_gap)); /* the same for all ops */
        *gap = only_gap;
    }
    CR_TRY(time_apart(w, runs, true, ROUNDS, seconds));
    *seconds = CR_MAX(*seconds - *gap, least_s);
    return CR_OK;
}

/* A launch between marks, and of that what the device has worked for certain: the rest may be enqueueing. */
static cr_status time_once(const struct stopwatch *w, double *seconds, double *least) {
    const int64_t start = cr_time_ns();
    CR_TRY(launch_times(w, 1));
    const double enqueue_s = (double)(cr_time_ns() - start) * 1e-9;
    CR_TRY(time_between(w, 1, NULL, seconds));
    *least = CR_MAX(*seconds - enqueue_s, 0.0);
    return CR_OK;
}

cr_status cr_cost_measure(struct cr_device *device, struct cr_scratch *scratch, const struct cr_program *p,
                          const struct cr_op *op, double best, double *seconds) {
    const struct cr_async  *async  = device->backend->async;
    const struct cr_kernel *kernel = device->kernels[op->kernel];
    struct stopwatch        w      = {.device = device, .kernel = kernel};
    struct cr_call          call;
    double                  least;
    size_t                  workspace = 0, noise, zeros, inputs;
    void                   *prepared  = NULL;
    cr_status               status    = CR_OK;
    if (kernel->prepare) CR_TRY(kernel->prepare(device, p, op, &prepared, &workspace));
    place(device, p, op, scratch, &call, workspace, &noise, &zeros, &inputs);
    CR_TRY_OUT(scratch_reserve(device, scratch, noise, zeros, inputs));
    place(device, p, op, scratch, &call, workspace, &noise, &zeros, &inputs);
    scratch->clean_bytes = CR_MIN(scratch->clean_bytes, inputs); /* the rest is written to */
    call.prepared        = prepared;
    w.call               = &call;
    w.gap                = scratch->zeros ? scratch->zeros : scratch->noise;
    CR_TRY_OUT(async->event_create(device, &w.from));
    CR_TRY_OUT(async->event_create(device, &w.to));
    CR_TRY_OUT(time_between(&w, 1, NULL, seconds)); /* loads the kernel */
    CR_TRY_OUT(time_once(&w, seconds, &least));
    if (best > 0 && least >= pruned * best + marks_s) goto out;
    CR_TRY_OUT(*seconds < long_s ? time_recorded(&w, scratch, least, seconds) : time_long(&w, seconds));
out:
    async->event_destroy(device, w.from);
    async->event_destroy(device, w.to);
    if (kernel->release) kernel->release(prepared);
    return status;
}
