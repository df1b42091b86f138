/* session/ranks.c: makes all ranks (distributed training) agree on limit, batch size, kernels, programs and weights.
 * See session/session.h. */
#include "core/checksum/crc32c.h"
#include "session/checkpoint_tensors.h"

#include <string.h>

enum { CHUNK_BYTES = 1 << 20 };

/* ---- memory ---- */

struct limits {
    uint64_t limit, if_needed;
};

cr_status cr_session_share_limit(struct cr_session *s) {
    const int size = cr_comm_size(s->comm);
    if (size == 1) return CR_OK;
    struct limits *all, of_this_rank = {.limit = s->limit, .if_needed = s->limit_if_needed};
    CR_ALLOC(all, (size_t)size);
    cr_status status = cr_comm_all_gather(s->comm, &of_this_rank, sizeof of_this_rank, all);
    for (int r = 0; r < size && status == CR_OK; r++) {
        s->limit           = (size_t)CR_MIN((uint64_t)s->limit, all[r].limit);
        s->limit_if_needed = (size_t)CR_MIN((uint64_t)s->limit_if_needed, all[r].if_needed);
    }
    cr_free(all);
    return status;
}

/* ---- batch size and kernel times ---- */

struct choices {
    int64_t  batch;
    uint64_t limit;       /* the limit for which rank 0 chose the batch size */
    uint64_t table_bytes; /* bytes of the table of kernel times that follows, 0 without one */
};

static cr_status send_choices(struct cr_session *s) {
    char          *text = NULL;
    struct choices c    = {.batch = s->state.batch, .limit = s->limit};
    if (s->cost_table) CR_TRY(cr_cost_table_text(s->cost_table, &text));
    c.table_bytes    = text ? strlen(text) : 0;
    cr_status status = cr_comm_broadcast(s->comm, &c, sizeof c, 0);
    if (status == CR_OK && text) status = cr_comm_broadcast(s->comm, text, c.table_bytes, 0);
    cr_free(text);
    return status;
}

static cr_status receive_kernel_times(struct cr_session *s, size_t length) {
    char *text;
    CR_ALLOC(text, length + 1);
    cr_status status = cr_comm_broadcast(s->comm, text, length, 0);
    if (status == CR_OK) {
        status = s->cost_table ? cr_cost_table_load_fixed(s->cost_table, text, length, "kernel times of rank 0")
                               : CR_FAIL(CR_ERR_DEVICE,
                                         "rank 0 chose its kernels by measured times, this rank does not measure them");
        if (status != CR_OK && status != CR_ERR_MEMORY)
            status = CR_FAIL(status, "the ranks of a run need the same device, driver and libraries: %s",
                             cr_error_message());
    }
    cr_free(text);
    return status;
}

static cr_status receive_choices(struct cr_session *s) {
    struct choices c;
    CR_TRY(cr_comm_broadcast(s->comm, &c, sizeof c, 0));
    s->state.batch = c.batch;
    s->limit       = (size_t)c.limit;
    return c.table_bytes ? receive_kernel_times(s, (size_t)c.table_bytes) : CR_OK;
}

cr_status cr_session_share_choices(struct cr_session *s) {
    if (cr_comm_size(s->comm) == 1) return CR_OK;
    return cr_comm_rank(s->comm) == 0 ? send_choices(s) : receive_choices(s);
}

/* ---- checks ---- */

cr_status cr_session_same_programs(struct cr_session *s) {
    uint32_t crc = 0;
    if (cr_comm_size(s->comm) == 1 || !s->trains) return CR_OK;
    for (int i = 0; i < s->trains; i++) {
        struct cr_text text = {0};
        cr_program_print(&s->train[i], &text);
        if (text.failed) {
            cr_text_free(&text);
            return CR_NO_MEMORY(4096);
        }
        crc = cr_crc32c(crc, text.data, text.length);
        cr_text_free(&text);
    }
    return cr_comm_same(s->comm, &crc, sizeof crc, "the training program");
}

static cr_status hash_buffer(struct cr_session *s, enum cr_param_buffer buffer, void *chunk, uint32_t *crc) {
    const char  *from  = cr_state_buffer_at(s, buffer);
    const size_t bytes = cr_param_store_buffer_bytes(&s->model.store, buffer);
    for (size_t at = 0; at < bytes; at += CHUNK_BYTES) {
        const size_t n = CR_MIN((size_t)CHUNK_BYTES, bytes - at);
        CR_TRY(s->device->backend->get(s->device, chunk, from + at, n));
        *crc = cr_crc32c(*crc, chunk, n);
    }
    return CR_OK;
}

cr_status cr_session_same_values(struct cr_session *s) {
    static const enum cr_param_buffer buffers[] = {CR_BUFFER_VALUE,       CR_BUFFER_RUNNING, CR_BUFFER_MOMENTUM,
                                                   CR_BUFFER_STATE,       CR_BUFFER_SECOND,  CR_BUFFER_EMA,
                                                   CR_BUFFER_EMA_RUNNING, CR_BUFFER_MASK};
    uint32_t                          crc       = 0;
    void                             *chunk;
    if (cr_comm_size(s->comm) == 1) return CR_OK;
    chunk = cr_alloc(CHUNK_BYTES, 1);
    if (!chunk) return CR_NO_MEMORY(CHUNK_BYTES);
    cr_status status = CR_OK;
    for (size_t i = 0; i < CR_COUNT(buffers) && status == CR_OK; i++)
        if (cr_param_store_buffer_bytes(&s->model.store, buffers[i])) status = hash_buffer(s, buffers[i], chunk, &crc);
    cr_free(chunk);
    CR_TRY(status);
    return cr_comm_same(s->comm, &crc, sizeof crc, "the hash of weights and state");
}
