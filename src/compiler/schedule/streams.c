/* compiler/schedule/streams.c: computes vector clocks of ops on several streams, and live intervals of tensors.
 *
 * Proof that disjoint intervals are safe. Let A and B have disjoint intervals, A first. Let op i access A and op j be
 * the first writer of B. Then i < j in the list. If i were not complete when j starts, the pair (i, j) would have
 * extended A up to j or B down to i, and the intervals would overlap. So j starts after every access of A, and every
 * access of B follows j. */
#include "compiler/schedule/streams.h"

void cr_clock_start(struct cr_clock *clock) {
    for (int l = 0; l < CR_STREAMS; l++) clock->done[l] = -1;
}

void cr_clock_join(struct cr_clock *clock, const struct cr_clock *other, enum cr_stream stream, int index) {
    for (int l = 0; l < CR_STREAMS; l++) clock->done[l] = CR_MAX(clock->done[l], other->done[l]);
    clock->done[stream] = CR_MAX(clock->done[stream], index);
}

bool cr_uses_several_streams(const struct cr_program *p) {
    for (int i = 1; i < p->ops; i++)
        if (p->op[i].stream != p->op[0].stream) return true;
    return false;
}

void cr_stream_clocks(const struct cr_program *p, struct cr_clock *clock) {
    int last[CR_STREAMS];
    for (int l = 0; l < CR_STREAMS; l++) last[l] = -1;
    for (int i = 0; i < p->ops; i++) {
        const struct cr_op *op = &p->op[i];
        cr_clock_start(&clock[i]);
        if (last[op->stream] >= 0) cr_clock_join(&clock[i], &clock[last[op->stream]], op->stream, last[op->stream]);
        for (int k = 0; k < CR_OP_WAIT_MAX && op->wait[k] >= 0; k++)
            cr_clock_join(&clock[i], &clock[op->wait[k]], p->op[op->wait[k]].stream, op->wait[k]);
        last[op->stream] = i;
    }
}

/* ---- live intervals ---- */

/* Extends each tensor that op i uses up to op j, because j does not wait for i. */
static void extend_up(const struct cr_program *p, struct cr_stream_interval *interval, int i, int j) {
    int ids[2 * CR_OP_IDS_MAX], n = cr_op_operands(&p->op[i], ids);
    for (int k = 0; k < n; k++) {
        interval[ids[k]].upper    = CR_MAX(interval[ids[k]].upper, j + 1);
        interval[ids[k]].crossing = true;
    }
}

/* Extends each tensor that op j writes down to op i. */
static void extend_down(const struct cr_program *p, struct cr_stream_interval *interval, int j, int i) {
    int ids[CR_OP_IDS_MAX], n = cr_op_writes(&p->op[j], ids);
    for (int k = 0; k < n; k++) {
        interval[ids[k]].lower    = CR_MIN(interval[ids[k]].lower, i);
        interval[ids[k]].crossing = true;
    }
}

/* Extends the tensors of one op of each concurrent pair: of the op outside the compute stream, because it has few
 * tensors and they are live for long. */
static void extend_concurrent(const struct cr_program *p, const struct cr_clock *clock, int i,
                              struct cr_stream_interval *interval) {
    enum cr_stream stream = p->op[i].stream;
    bool           is_pending[CR_STREAMS];
    for (int l = 0; l < CR_STREAMS; l++) is_pending[l] = l != (int)stream;
    for (int j = p->ops - 1; j > i; j--) { /* the last op of each other stream that does not wait for i */
        enum cr_stream other = p->op[j].stream;
        if (!is_pending[other] || cr_clock_covers(&clock[j], stream, i)) continue;
        if (stream != CR_STREAM_COMPUTE) {
            extend_up(p, interval, i, j);
            is_pending[other] = false;
        } else {
            extend_down(p, interval, j, i);
        }
    }
}

cr_status cr_stream_intervals(const struct cr_program *p, struct cr_stream_interval *interval) {
    for (int t = 0; t < p->tensors; t++) {
        const struct cr_tensor *tensor = &p->tensor[t];
        interval[t]                    = (struct cr_stream_interval){0};
        if (tensor->first < 0) continue;
        interval[t].lower = tensor->first;
        interval[t].upper = tensor->last + 1;
    }
    if (!cr_uses_several_streams(p)) return CR_OK;
    struct cr_clock *clock;
    CR_ALLOC(clock, (size_t)p->ops);
    cr_stream_clocks(p, clock);
    for (int i = 0; i < p->ops; i++) extend_concurrent(p, clock, i, interval);
    cr_free(clock);
    return CR_OK;
}
