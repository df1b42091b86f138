/* runtime/executor_io.c: copies batches to a bound program, and its results (loss, logits, tensors) back to the host.
 * See runtime/executor.h. */
#include "runtime/executor_internal.h"

#include <string.h>

unsigned char *cr_exec_address(const struct cr_exec *exec, int tensor) {
    const struct cr_tensor *t = &exec->program->tensor[tensor];
    CR_ASSERT(t->offset + t->bytes <= exec->memory->bytes[t->region] || t->region == CR_REGION_STORE);
    return (unsigned char *)exec->memory->region[t->region] + t->offset;
}

enum { RESULT_PIECES = 3 }; /* metrics, gradient norm, state */

/* ---- batches ---- */

/* Without mixes each image is its own partner with full weight. */
static void write_mixes(const struct cr_tensor *t, void *to, const int32_t *mixes) {
    if (mixes) {
        memcpy(to, mixes, t->bytes);
        return;
    }
    int32_t record[CR_MIX_NUMBERS] = {[CR_MIX_LABEL_WEIGHT] = CR_MIX_ONE, [CR_MIX_WEIGHT] = CR_MIX_ONE};
    for (int32_t n = 0; n < t->dim[0]; n++) {
        record[CR_MIX_PARTNER] = n;
        memcpy((unsigned char *)to + (size_t)n * sizeof record, record, sizeof record); /* `to` need not be aligned */
    }
}

/* Writes all but the images to host memory with the layout of the INPUT region after its images. */
static void write_small(const struct cr_exec *exec, unsigned char *small, const struct cr_feed *feed) {
    const struct cr_program *p     = exec->program;
    const size_t             first = p->tensor[p->images].bytes; /* the images are at offset 0 */
    const struct cr_tensor  *l     = &p->tensor[p->labels];
    if (feed->labels)
        memcpy(small + (l->offset - first), feed->labels, l->bytes);
    else
        memset(small + (l->offset - first), 0xff, l->bytes); /* -1: no label */
    if (p->class_weights != CR_NONE)
        memcpy(small + (p->tensor[p->class_weights].offset - first), p->class_weight_values,
               p->tensor[p->class_weights].bytes);
    if (p->mixes != CR_NONE)
        write_mixes(&p->tensor[p->mixes], small + (p->tensor[p->mixes].offset - first), feed->mixes);
    if (p->boxes == CR_NONE) return;
    const struct cr_tensor *b = &p->tensor[p->boxes];
    if (feed->boxes)
        memcpy(small + (b->offset - first), feed->boxes, b->bytes);
    else
        memset(small + (b->offset - first), 0, b->bytes);
}

cr_status cr_exec_feed_batch(struct cr_exec *exec, const struct cr_feed *feed) {
    struct cr_memory *m      = exec->memory;
    const size_t      bytes  = exec->program->tensor[exec->program->images].bytes;
    const void       *images = feed->images;
    void             *small;
    CR_ASSERT(m->ring || !feed->decoder);
    if (!m->ring) { /* the INPUT region is host memory */
        unsigned char *input = m->region[CR_REGION_INPUT];
        cr_feed_copy(input, images, bytes);
        write_small(exec, input + bytes, feed);
        return CR_OK;
    }
    CR_TRY(cr_feed_slot(m->device, m->ring, feed->in_place ? NULL : &images, bytes, &small));
    write_small(exec, small, feed);
    return cr_feed_send(m->device, m->ring, exec->program, images, feed, m->region[CR_REGION_INPUT]);
}

cr_status cr_exec_feed(struct cr_exec *exec, const uint8_t *images, const int32_t *labels, const int32_t *boxes) {
    return cr_exec_feed_batch(exec, &(const struct cr_feed){.images = images, .labels = labels, .boxes = boxes});
}

cr_status cr_exec_wait_for_foreign(struct cr_exec *exec, void *stream) {
    return cr_exec_async(exec)->wait_for_foreign(cr_exec_device(exec), CR_STREAM_COMPUTE, stream);
}

cr_status cr_exec_foreign_waits(struct cr_exec *exec, void *stream) {
    return cr_exec_async(exec)->foreign_waits(cr_exec_device(exec), CR_STREAM_COMPUTE, stream);
}

static cr_status fill_labels(struct cr_exec *exec) {
    const struct cr_tensor *labels = &exec->program->tensor[exec->program->labels];
    return cr_exec_async(exec)->fill(cr_exec_device(exec), CR_STREAM_COMPUTE,
                                     cr_exec_address(exec, exec->program->labels), 0xff, labels->bytes);
}

cr_status cr_exec_feed_from_device(struct cr_exec *exec, const void *images, size_t bytes) {
    const struct cr_program *p = exec->program;
    CR_ASSERT(cr_exec_async(exec) && bytes <= p->tensor[p->images].bytes);
    CR_TRY(cr_exec_async(exec)->move(cr_exec_device(exec), CR_STREAM_COMPUTE, cr_exec_address(exec, p->images), images,
                                     bytes));
    return fill_labels(exec);
}

cr_status cr_exec_gather_from_device(struct cr_exec *exec, const void *const *images, int count, size_t bytes) {
    const struct cr_program *p = exec->program;
    CR_ASSERT(cr_exec_async(exec) && (size_t)count * bytes <= p->tensor[p->images].bytes);
    CR_TRY(cr_exec_async(exec)->gather(cr_exec_device(exec), CR_STREAM_COMPUTE, cr_exec_address(exec, p->images),
                                       images, count, bytes));
    return fill_labels(exec);
}

/* ---- results ---- */

cr_status cr_exec_open_results(struct cr_exec *exec) {
    const struct cr_async *async = cr_exec_async(exec);
    const size_t           bytes = CR_EXEC_RESULTS * sizeof *exec->result;
    exec->state                  = cr_tensor_store_find(exec->program, CR_BUFFER_STATE, CR_NONE);
    if (!async) {
        CR_ALLOC(exec->result, CR_EXEC_RESULTS);
        return CR_OK;
    }
    void *host;
    CR_TRY(async->host_reserve(cr_exec_device(exec), bytes, &host));
    exec->result = host;
    for (int i = 0; i < CR_EXEC_RESULTS; i++) CR_TRY(cr_feed_event(cr_exec_device(exec), &exec->ready[i]));
    return CR_OK;
}

cr_status cr_exec_fetch_results(struct cr_exec *exec) {
    const int             slot                  = (int)(exec->runs % CR_EXEC_RESULTS);
    struct cr_raw_result *r                     = &exec->result[slot];
    struct cr_device     *device                = cr_exec_device(exec);
    const int             tensor[RESULT_PIECES] = {exec->program->metrics, exec->program->grad_norm, exec->state};
    void *const           to[RESULT_PIECES]     = {r->metrics, r->norm, r->state};
    void                 *host[RESULT_PIECES];
    const void           *src[RESULT_PIECES];
    size_t                bytes[RESULT_PIECES];
    int                   pieces = 0;
    for (int i = 0; i < RESULT_PIECES; i++) {
        if (tensor[i] == CR_NONE) continue;
        host[pieces]    = to[i];
        src[pieces]     = cr_exec_address(exec, tensor[i]);
        bytes[pieces++] = exec->program->tensor[tensor[i]].bytes;
    }
    if (cr_exec_async(exec)) {
        CR_TRY(cr_exec_async(exec)->get_small(device, CR_STREAM_COMPUTE, host, src, bytes, pieces));
        return cr_exec_async(exec)->event_record(device, CR_STREAM_COMPUTE, exec->ready[slot]);
    }
    for (int i = 0; i < pieces; i++) CR_TRY(device->backend->get(device, host[i], src[i], bytes[i]));
    return CR_OK;
}

int64_t cr_exec_runs(const struct cr_exec *exec) {
    return exec->runs;
}

cr_status cr_exec_result(struct cr_exec *exec, int64_t run, struct cr_exec_result *out) {
    const struct cr_program *p    = exec->program;
    const int                slot = (int)(run % CR_EXEC_RESULTS);
    CR_ASSERT(run >= 1 && run <= exec->runs && run > exec->runs - CR_EXEC_RESULTS && p->metrics != CR_NONE);
    if (cr_exec_async(exec)) CR_TRY(cr_exec_async(exec)->host_wait(cr_exec_device(exec), exec->ready[slot]));
    const struct cr_raw_result *r = &exec->result[slot];
    double                      m[4];
    for (int i = 0; i < 4; i++) m[i] = cr_number_load(p->tensor[p->metrics].dtype, r->metrics, i);
    *out =
        (struct cr_exec_result){.loss_sum = m[0], .valid = m[1], .correct1 = m[2], .correct5 = m[3], .loss_scale = 1};
    if (exec->state != CR_NONE) {
        out->loss_scale = r->state[CR_STATE_LOSS_SCALE];
        out->skipped    = (int64_t)r->state[CR_STATE_SKIPPED];
    }
    if (exec->program->grad_norm == CR_NONE) return CR_OK;
    out->norm_squared = cr_number_load(p->tensor[exec->program->grad_norm].dtype, r->norm, 0);
    out->nonfinite    = cr_number_load(p->tensor[exec->program->grad_norm].dtype, r->norm, 1) != 0;
    return CR_OK;
}

/* ---- tensors ---- */

cr_status cr_exec_get(struct cr_exec *exec, int tensor, void *host) {
    return cr_exec_device(exec)->backend->get(cr_exec_device(exec), host, cr_exec_address(exec, tensor),
                                              exec->program->tensor[tensor].bytes);
}

cr_status cr_exec_get_later(struct cr_exec *exec, int tensor, void *host, void *event) {
    const struct cr_async *async = cr_exec_async(exec);
    CR_ASSERT(async);
    CR_TRY(async->get(cr_exec_device(exec), CR_STREAM_COMPUTE, host, cr_exec_address(exec, tensor),
                      exec->program->tensor[tensor].bytes));
    return async->event_record(cr_exec_device(exec), CR_STREAM_COMPUTE, event);
}

cr_status cr_exec_copy_on_device(struct cr_exec *exec, int tensor, void *to, size_t bytes) {
    const struct cr_async *async = cr_exec_async(exec);
    CR_ASSERT(async && bytes <= exec->program->tensor[tensor].bytes);
    return async->move(cr_exec_device(exec), CR_STREAM_COMPUTE, to, cr_exec_address(exec, tensor), bytes);
}

cr_status cr_exec_put(struct cr_exec *exec, int tensor, const void *host) {
    return cr_exec_device(exec)->backend->put(cr_exec_device(exec), cr_exec_address(exec, tensor), host,
                                              exec->program->tensor[tensor].bytes);
}
