/* compiler/schedule/grad_buckets.c: inserts the all-reduce of the gradients of several ranks, in buckets.
 *
 * The gradient buffer holds the parameters in the order of the forward pass. Backward runs in the opposite order, so
 * the buffer is cut from its end. A bucket is finished with the last of its writers. Only the start of the update can
 * hide the all-reduce of the bucket that is finished last, so that bucket is smaller (LAST_FRACTION). */
#include "compiler/cost_model.h"
#include "compiler/passes.h"

#include <stdio.h>

enum { LAST_FRACTION = 8 }; /* the last bucket has at most 1/8 of bucket_bytes */

struct bucket {
    size_t begin, end; /* byte range of the STORE region */
    int    writer;     /* last op that writes into it */
};

struct cut {
    struct cr_program *p;
    struct bucket     *bucket;
    int                buckets;
};

static bool shares_bytes(const struct cr_program *p, int tensor, size_t begin, size_t end) {
    if (tensor < 0) return false;
    const struct cr_tensor *t = &p->tensor[tensor];
    return t->region == CR_REGION_STORE && t->offset < end && begin < t->offset + t->bytes;
}

/* Returns whether the program reads gradients. Micro-batches before the last only accumulate them. */
static bool uses_gradients(const struct cr_program *p) {
    for (int i = 0; i < p->ops; i++)
        for (int s = 0; s < cr_op_info(p->op[i].kind)->ins; s++)
            if (p->op[i].in[s] >= 0 && p->tensor[p->op[i].in[s]].buffer == CR_BUFFER_GRAD) return true;
    return false;
}

static int last_writer(const struct cr_program *p, size_t begin, size_t end) {
    for (int i = p->ops - 1; i >= 0; i--)
        for (int s = 0; s < cr_op_info(p->op[i].kind)->outs; s++)
            if (shares_bytes(p, p->op[i].out[s], begin, end)) return i;
    return CR_NONE;
}

/* ---- cutting ---- */

/* Cuts the buffer from its end, at parameters. A bucket is closed when it has at least `bucket_bytes`. */
static void cut_buffer(struct cut *c, size_t bucket_bytes) {
    const struct cr_param_store *store = c->p->store;
    const size_t   buffer = cr_param_store_buffer_offset(store, CR_BUFFER_GRAD), size = cr_dtype_bytes(store->real);
    struct bucket *current = NULL;
    for (int k = store->params - 1; k >= 0; k--) {
        const struct cr_param *param = &store->param[k];
        if (cr_param_is_running(param->role) || param->frozen) continue;
        const size_t begin = buffer + (size_t)param->offset * size, end = begin + (size_t)param->elems * size;
        const int    writer = last_writer(c->p, begin, end);
        if (!current || current->end - current->begin >= bucket_bytes) {
            current  = &c->bucket[c->buckets++];
            *current = (struct bucket){.begin = begin, .end = end, .writer = writer};
        }
        CR_ASSERT(begin <= current->begin && writer != CR_NONE);
        current->begin  = begin;
        current->writer = CR_MAX(current->writer, writer);
    }
}

/* Splits the bucket at the front of the buffer so that its later part has at most `late_bytes`, at least one parameter.
 */
static void split_last(struct cut *c, size_t late_bytes) {
    const struct cr_param_store *store = c->p->store;
    struct bucket                all = c->bucket[c->buckets - 1], late = {0}, early = {0};
    const size_t buffer = cr_param_store_buffer_offset(store, CR_BUFFER_GRAD), size = cr_dtype_bytes(store->real);
    for (int k = 0; k < store->params; k++) {
        const struct cr_param *param = &store->param[k];
        const size_t           begin = buffer + (size_t)param->offset * size, end = begin + (size_t)param->elems * size;
        if (cr_param_is_running(param->role) || param->frozen || end > all.end) continue;
        struct bucket *b = !late.end || (!early.end && end - all.begin <= late_bytes) ? &late : &early;
        const int      w = last_writer(c->p, begin, end);
        if (!b->end) *b = (struct bucket){.begin = begin, .writer = w};
        b->end    = end;
        b->writer = CR_MAX(b->writer, w);
    }
    if (!early.end) return;
    c->bucket[c->buckets - 1] = early;
    c->bucket[c->buckets++]   = late;
}

/* ---- insertion ---- */

static cr_status insert_all_reduce(struct cut *c, const struct cr_cost_model *cost_model, const struct bucket *b,
                                   int number, enum cr_dtype wire) {
    struct cr_program *p = c->p;
    char               name[64];
    const size_t       size = cr_dtype_bytes(p->store->real);
    snprintf(name, sizeof name, "grad.bucket%d", number);
    const int tensor =
        cr_tensor_add(p, name, p->store->real, CR_REGION_STORE, 1, 1, 1, (int64_t)((b->end - b->begin) / size));
    if (p->failed) return CR_NO_MEMORY(sizeof *p->tensor);
    p->tensor[tensor].offset    = b->begin;
    p->tensor[tensor].buffer    = CR_BUFFER_GRAD;
    p->tensor[tensor].param     = CR_SEVERAL;
    struct cr_op op             = cr_op_make(CR_OP_all_reduce, p->op[b->writer].layer);
    op.in[CR_IN_all_reduce_x]   = tensor;
    op.out[CR_OUT_all_reduce_y] = tensor;
    op.attr.reduce.wire         = wire;
    return cr_insert_op(p, cost_model, b->writer + 1, &op, name);
}

static void sort_by_writer(struct bucket *bucket, int count) { /* nearly sorted, and few */
    for (int i = 1; i < count; i++)
        for (int k = i; k > 0 && bucket[k].writer < bucket[k - 1].writer; k--) {
            const struct bucket b = bucket[k];
            bucket[k]             = bucket[k - 1];
            bucket[k - 1]         = b;
        }
}

static cr_status insert_buckets(struct cut *c, const struct cr_cost_model *cost_model, size_t bucket_bytes,
                                enum cr_dtype wire) {
    cut_buffer(c, bucket_bytes);
    if (!c->buckets) return CR_OK;
    split_last(c, bucket_bytes / LAST_FRACTION);
    sort_by_writer(c->bucket, c->buckets);
    /* from the last bucket on, so that the writers of earlier buckets keep their index */
    for (int i = c->buckets - 1; i >= 0; i--) CR_TRY(insert_all_reduce(c, cost_model, &c->bucket[i], i, wire));
    return CR_OK;
}

static bool runs_on_any_stream(const struct cr_cost_model *m, const struct cr_op *op) {
    return m->device.traits && m->device.traits(m->device.self, op).any_stream;
}

cr_status cr_pass_buckets(struct cr_program *p, const struct cr_cost_model *cost_model, size_t bucket_bytes,
                          enum cr_dtype wire) {
    struct cut c      = {.p = p};
    cr_status  status = CR_OK;
    if (uses_gradients(p)) {
        CR_ALLOC(c.bucket, (size_t)p->store->params + 1);
        status = insert_buckets(&c, cost_model, bucket_bytes, wire);
        cr_free(c.bucket);
    }
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == CR_OP_all_reduce && !runs_on_any_stream(cost_model, &p->op[i]))
            p->op[i].stream = CR_STREAM_COMM;
    return status;
}
