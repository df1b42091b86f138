/* compiler/schedule/streams.c: see compiler/schedule/streams.h.
 *
 * Why the stays are safe. Let A and B have disjoint stays, A first, and let i access A and j write B first. Then i < j
 * in the list. If j did not know i to be complete, the pair (i, j) would have stretched A up to j or B down to i, and
 * the stays would meet. So j starts after every access of A, and every access of B follows j. */
#include "compiler/schedule/streams.h"

void cr_clock_start(struct cr_clock *clock) {
    for (int l = 0; l < CR_STREAMS; l++) clock->done[l] = -1;
}

void cr_clock_join(struct cr_clock *clock, const struct cr_clock *other, enum cr_stream lane, int index) {
    for (int l = 0; l < CR_STREAMS; l++) clock->done[l] = CR_MAX(clock->done[l], other->done[l]);
    clock->done[lane] = CR_MAX(clock->done[lane], index);
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

/* ---- stays ---- */

static int touched(const struct cr_op *op, int ids[2 * CR_OP_IDS_MAX]) {
    int n = cr_op_reads(op, ids);
    return n + cr_op_writes(op, ids + n);
}

/* Everything op i touches stays until op j: j does not wait for i. */
static void stretch_up(const struct cr_program *p, struct cr_stream_interval *stay, int i, int j) {
    int ids[2 * CR_OP_IDS_MAX], n = touched(&p->op[i], ids);
    for (int k = 0; k < n; k++) {
        stay[ids[k]].upper    = CR_MAX(stay[ids[k]].upper, j + 1);
        stay[ids[k]].crossing = true;
    }
}

/* What op j writes is there from op i on. */
static void stretch_down(const struct cr_program *p, struct cr_stream_interval *stay, int j, int i) {
    int ids[CR_OP_IDS_MAX], n = cr_op_writes(&p->op[j], ids);
    for (int k = 0; k < n; k++) {
        stay[ids[k]].lower    = CR_MIN(stay[ids[k]].lower, i);
        stay[ids[k]].crossing = true;
    }
}

/* Of two ops that run beside each other the one off the compute lane pays: it has few tensors and they live long. */
static void stretch_pairs(const struct cr_program *p, const struct cr_clock *clock, int i,
                          struct cr_stream_interval *stay) {
    enum cr_stream lane = p->op[i].stream;
    bool           beside[CR_STREAMS];
    for (int l = 0; l < CR_STREAMS; l++) beside[l] = l != (int)lane;
    for (int j = p->ops - 1; j > i; j--) { /* the last op of each lane that does not wait for i */
        enum cr_stream other = p->op[j].stream;
        if (!beside[other] || cr_clock_covers(&clock[j], lane, i)) continue;
        if (lane != CR_STREAM_COMPUTE) {
            stretch_up(p, stay, i, j);
            beside[other] = false;
        } else {
            stretch_down(p, stay, j, i);
        }
    }
}

cr_status cr_stream_intervals(const struct cr_program *p, struct cr_stream_interval *stay) {
    for (int t = 0; t < p->tensors; t++) {
        const struct cr_tensor *tensor = &p->tensor[t];
        stay[t]                        = tensor->first < 0 ? (struct cr_stream_interval){0}
                                                           : (struct cr_stream_interval){.lower = tensor->first, .upper = tensor->last + 1};
    }
    if (!cr_uses_several_streams(p)) return CR_OK;
    struct cr_clock *clock;
    CR_ALLOC(clock, (size_t)p->ops);
    cr_stream_clocks(p, clock);
    for (int i = 0; i < p->ops; i++) stretch_pairs(p, clock, i, stay);
    cr_free(clock);
    return CR_OK;
}
