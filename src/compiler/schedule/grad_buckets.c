/* compiler/schedule/grad_buckets.c: where the gradients of several ranks are added up: see cr_pass_buckets in
 * compiler/compiler.h.
 *
 * Parameters lie in the grad plane in the order of the forward pass, and backward goes the other way: the plane is cut
 * from its end. A bucket is finished with the last of its writers. The bucket that is finished last has nothing left to
 * hide behind but the start of the update: it gets a small share of a bucket (`LAST_SHARE`). */
#include "compiler/compiler.h"

#include <stdio.h>
#include <string.h>

enum { LAST_SHARE = 8 };

struct bucket {
    size_t begin, end; /* bytes of the STORE region */
    int    writer;     /* the op that finishes it */
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

/* Does the program use what it has in the grad plane? Micro-batches before the last only add there. */
static bool uses_gradients(const struct cr_program *p) {
    const size_t begin = cr_param_store_buffer_offset(p->store, CR_BUFFER_GRAD),
                 end   = begin + cr_param_store_buffer_bytes(p->store, CR_BUFFER_GRAD);
    for (int i = 0; i < p->ops; i++)
        for (int s = 0; s < cr_op_info(p->op[i].kind)->ins; s++)
            if (shares_bytes(p, p->op[i].in[s], begin, end)) return true;
    return false;
}

static int last_writer(const struct cr_program *p, size_t begin, size_t end) {
    for (int i = p->ops - 1; i >= 0; i--)
        for (int s = 0; s < cr_op_info(p->op[i].kind)->outs; s++)
            if (shares_bytes(p, p->op[i].out[s], begin, end)) return i;
    return CR_NONE;
}

/* ---- cutting ---- */

/* Trainable parameters from the end of the plane on; a bucket is closed when it is as large as wanted. */
static void cut_plane(struct cut *c, size_t bucket_bytes) {
    const struct cr_param_store *store = c->p->store;
    const size_t   plane = cr_param_store_buffer_offset(store, CR_BUFFER_GRAD), size = cr_dtype_bytes(store->real);
    struct bucket *open = NULL;
    for (int k = store->params - 1; k >= 0; k--) {
        const struct cr_param *q = &store->param[k];
        if (cr_param_is_running(q->role) || q->frozen) continue;
        const size_t begin = plane + (size_t)q->offset * size, end = begin + (size_t)q->elems * size;
        const int    writer = last_writer(c->p, begin, end);
        if (!open || open->end - open->begin >= bucket_bytes) {
            open  = &c->bucket[c->buckets++];
            *open = (struct bucket){.begin = begin, .end = end, .writer = writer};
        }
        CR_ASSERT(begin <= open->begin && writer != CR_NONE);
        open->begin  = begin;
        open->writer = CR_MAX(open->writer, writer);
    }
}

/* Cuts the bucket at the front of the plane once more: what is left to the end is at most `most` bytes, if a parameter
 * is. */
static void cut_last(struct cut *c, size_t most) {
    const struct cr_param_store *store = c->p->store;
    struct bucket                all = c->bucket[c->buckets - 1], late = {0}, early = {0};
    const size_t plane = cr_param_store_buffer_offset(store, CR_BUFFER_GRAD), size = cr_dtype_bytes(store->real);
    for (int k = 0; k < store->params; k++) {
        const struct cr_param *q     = &store->param[k];
        const size_t           begin = plane + (size_t)q->offset * size, end = begin + (size_t)q->elems * size;
        if (cr_param_is_running(q->role) || q->frozen || end > all.end) continue;
        struct bucket *b = !late.end || (!early.end && end - all.begin <= most) ? &late : &early;
        const int      w = last_writer(c->p, begin, end);
        if (!b->end) *b = (struct bucket){.begin = begin, .writer = w};
        b->end    = end;
        b->writer = CR_MAX(b->writer, w);
    }
    if (!early.end) return;
    c->bucket[c->buckets - 1] = early;
    c->bucket[c->buckets++]   = late;
}

/* ---- putting them in ---- */

static cr_status put(struct cut *c, const struct cr_cost_model *target, const struct bucket *b, int number,
                     enum cr_dtype wire) {
    struct cr_program *p = c->p;
    char               name[64];
    const size_t       size = cr_dtype_bytes(p->store->real);
    snprintf(name, sizeof name, "grad.bucket%d", number);
    const int tensor =
        cr_tensor_add(p, name, p->store->real, CR_REGION_STORE, 1, 1, 1, (int64_t)((b->end - b->begin) / size));
    if (p->failed) return CR_NO_MEMORY(sizeof *p->tensor);
    p->tensor[tensor].offset    = b->begin;
    struct cr_op op             = cr_op_make(CR_OP_all_reduce, p->op[b->writer].layer);
    op.in[CR_IN_all_reduce_x]   = tensor;
    op.out[CR_OUT_all_reduce_y] = tensor;
    op.attr.reduce.wire         = wire;
    const int at                = cr_emit(p, &op, name);
    if (p->failed) return CR_NO_MEMORY(sizeof *p->op);
    CR_TRY(cr_select_op(p, target, at));
    op = p->op[at];
    memmove(&p->op[b->writer + 2], &p->op[b->writer + 1], (size_t)(at - b->writer - 1) * sizeof op);
    p->op[b->writer + 1] = op;
    return CR_OK;
}

static void sort_by_writer(struct bucket *bucket, int count) { /* nearly sorted, and few */
    for (int i = 1; i < count; i++)
        for (int k = i; k > 0 && bucket[k].writer < bucket[k - 1].writer; k--) {
            const struct bucket b = bucket[k];
            bucket[k]             = bucket[k - 1];
            bucket[k - 1]         = b;
        }
}

static cr_status cut_and_put(struct cut *c, const struct cr_cost_model *target, size_t bucket_bytes,
                             enum cr_dtype wire) {
    cut_plane(c, bucket_bytes);
    if (!c->buckets) return CR_OK;
    cut_last(c, bucket_bytes / LAST_SHARE);
    sort_by_writer(c->bucket, c->buckets);
    for (int i = c->buckets - 1; i >= 0; i--)
        CR_TRY(put(c, target, &c->bucket[i], i, wire)); /* from the back: writers stay where they are */
    return CR_OK;
}

cr_status cr_pass_buckets(struct cr_program *p, const struct cr_cost_model *target, size_t bucket_bytes,
                          enum cr_dtype wire) {
    struct cut c      = {.p = p};
    cr_status  status = CR_OK;
    if (uses_gradients(p)) {
        CR_ALLOC(c.bucket, (size_t)p->store->params + 1);
        status = cut_and_put(&c, target, bucket_bytes, wire);
        cr_free(c.bucket);
    }
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == CR_OP_all_reduce) p->op[i].stream = CR_STREAM_COMM;
    return status;
}
