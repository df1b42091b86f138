/* autotune/host_times.c: measures ops on a synchronous device. See autotune/host_times.h. */
#include "autotune/host_times.h"

#include "autotune/cost_table_internal.h"

#include <string.h>

enum { PIECE = 1 << 16, ROUNDS_MIN = 4, ROUNDS_MAX = 100, BUCKETS = 1024 };
static const double round_s = 10e-3; /* rounds end after this time */

struct entry {
    char  *signature;
    double seconds;
    int    next; /* in the same bucket; CR_NONE: none */
};
struct cr_host_times {
    struct cr_device *device;
    struct entry     *entry;
    int               entries, capacity;
    int               bucket[BUCKETS];
    float            *piece;  /* [PIECE] random values */
    void             *memory; /* of the device: inputs, then outputs and workspace */
    size_t            bytes;
};

cr_status cr_host_times_open(struct cr_device *device, struct cr_host_times **out) {
    struct cr_host_times *t;
    *out = NULL;
    CR_ALLOC(t, 1);
    t->device = device;
    t->piece  = cr_alloc(PIECE, sizeof *t->piece);
    for (int i = 0; i < BUCKETS; i++) t->bucket[i] = CR_NONE;
    uint32_t bits = 1;
    for (int i = 0; t->piece && i < PIECE; i++) {
        bits        = bits * 1664525u + 1013904223u;
        t->piece[i] = (float)(int32_t)bits * 0x1p-31f;
    }
    *out = t;
    return t->piece ? CR_OK : CR_NO_MEMORY(PIECE * sizeof *t->piece);
}

void cr_host_times_close(struct cr_host_times *t) {
    if (!t) return;
    for (int i = 0; i < t->entries; i++) cr_free(t->entry[i].signature);
    if (t->memory) t->device->backend->release(t->device, t->memory);
    cr_free(t->entry);
    cr_free(t->piece);
    cr_free(t);
}

/* ---- one op ---- */

static size_t aligned(const struct cr_host_times *t, size_t bytes) {
    const size_t a = t->device->caps.alignment;
    return (bytes + a - 1) / a * a;
}

/* Integers may be indices, so they are 0. Only 32-bit floating-point values are random. */
static void fill(const struct cr_host_times *t, const struct cr_tensor *tensor, char *to) {
    if (tensor->dtype != CR_F32) {
        memset(to, 0, tensor->bytes);
        return;
    }
    for (size_t at = 0; at < tensor->bytes; at += PIECE * sizeof *t->piece)
        memcpy(to + at, t->piece, CR_MIN(PIECE * sizeof *t->piece, tensor->bytes - at));
}

static cr_status place(struct cr_host_times *t, const struct cr_program *p, const struct cr_op *op, size_t workspace,
                       struct cr_call *call) {
    size_t bytes = aligned(t, workspace), at = 0;
    for (int s = 0; s < CR_OP_IN_MAX; s++) bytes += op->in[s] < 0 ? 0 : aligned(t, p->tensor[op->in[s]].bytes);
    for (int s = 0; s < CR_OP_OUT_MAX; s++) bytes += op->out[s] < 0 ? 0 : aligned(t, p->tensor[op->out[s]].bytes);
    if (bytes > t->bytes) {
        if (t->memory) t->device->backend->release(t->device, t->memory);
        t->memory = NULL;
        t->bytes  = 0;
        CR_TRY(t->device->backend->reserve(t->device, bytes, &t->memory));
        t->bytes = bytes;
    }
    char *memory = t->memory;
    for (int s = 0; s < CR_OP_IN_MAX; s++) {
        if (op->in[s] < 0) continue;
        fill(t, &p->tensor[op->in[s]], memory + at);
        call->in[s] = memory + at;
        at += aligned(t, p->tensor[op->in[s]].bytes);
    }
    for (int s = 0; s < CR_OP_OUT_MAX; s++) {
        if (op->out[s] < 0) continue;
        call->out[s] = memory + at;
        at += aligned(t, p->tensor[op->out[s]].bytes);
    }
    call->workspace = workspace ? memory + at : NULL;
    return CR_OK;
}

static cr_status time_launches(struct cr_host_times *t, const struct cr_kernel *kernel, const struct cr_call *call,
                               double *seconds) {
    double sum = 0;
    CR_TRY(kernel->launch(t->device, call)); /* warm-up: loads code, packs filters */
    *seconds = 0;
    for (int i = 0; i < ROUNDS_MAX && (i < ROUNDS_MIN || sum < round_s); i++) {
        const int64_t start = cr_time_ns();
        CR_TRY(kernel->launch(t->device, call));
        const double one = (double)CR_MAX(cr_time_ns() - start, 1) * 1e-9;
        *seconds         = i ? CR_MIN(*seconds, one) : one;
        sum += one;
    }
    return CR_OK;
}

static cr_status measure(struct cr_host_times *t, const struct cr_program *p, const struct cr_op *given,
                         double *seconds) {
    struct cr_op            op        = *given;
    void                   *prepared  = NULL;
    size_t                  workspace = 0;
    struct cr_call          call      = {.program = p, .op = &op};
    const struct cr_kernel *kernel;
    cr_status               status = CR_OK;
    *seconds                       = 0;
    /* packed weights would have to be made first */
    if (op.kind == CR_OP_conv) op.in[CR_IN_conv_packed] = CR_NONE;
    kernel = cr_kernel_find(t->device, p, &op, 0, &op.kernel);
    if (!kernel) return CR_OK;
    op.algo = 0;
    CR_TRY(cr_kernel_prepare(t->device, kernel, p, &op, &prepared, &workspace));
    CR_TRY_OUT(place(t, p, &op, workspace, &call));
    call.prepared = prepared;
    CR_TRY_OUT(time_launches(t, kernel, &call, seconds));
out:
    cr_kernel_release(kernel, prepared);
    return status;
}

/* ---- the table ---- */

static cr_status store(struct cr_host_times *t, const char *signature, int bucket, double seconds) {
    if (t->entries == t->capacity) {
        const int     capacity = CR_MAX(2 * t->capacity, 256);
        struct entry *more;
        CR_ALLOC(more, (size_t)capacity);
        if (t->entries) memcpy(more, t->entry, (size_t)t->entries * sizeof *more);
        cr_free(t->entry);
        t->entry    = more;
        t->capacity = capacity;
    }
    struct entry *e = &t->entry[t->entries];
    e->signature    = cr_alloc(strlen(signature) + 1, 1);
    if (!e->signature) return CR_NO_MEMORY(strlen(signature) + 1);
    memcpy(e->signature, signature, strlen(signature) + 1);
    e->seconds        = seconds;
    e->next           = t->bucket[bucket];
    t->bucket[bucket] = t->entries++;
    return CR_OK;
}

cr_status cr_host_times_of(struct cr_host_times *t, const struct cr_program *p, const struct cr_op *op,
                           double *seconds) {
    struct cr_text text   = {0};
    cr_status      status = cr_cost_signature(t->device, p, op, &text);
    if (status != CR_OK) goto out;
    const int bucket = (int)(cr_cost_hash(text.data) % BUCKETS);
    for (int i = t->bucket[bucket]; i != CR_NONE; i = t->entry[i].next) {
        if (strcmp(t->entry[i].signature, text.data) != 0) continue;
        *seconds = t->entry[i].seconds;
        goto out;
    }
    CR_TRY_OUT(measure(t, p, op, seconds));
    CR_TRY_OUT(store(t, text.data, bucket, *seconds));
out:
    cr_text_free(&text);
    return status;
}
