/* runtime/early_inputs.c: finds the inputs that a kernel may read before the launches before it have ended.
 *
 * A kernel that starts early (programmatic dependent launch) waits for the launches before it, but it may read an input
 * before this wait if none of the launches that may still run writes it. Two ops are examined, because one of them may
 * launch nothing, or may let the next launch begin before it has waited itself. Ops that never launch a kernel on the
 * stream are not counted: those of other streams, and barriers. The op head has two launches. Its second launch begins
 * after all launches before the op have ended, so nothing before head is examined.
 *
 * In a captured graph, a launch that waits for another stream begins early too, while the kernel there still runs. So
 * no input is early after such a wait, until two ops have been launched.
 *
 * Bytes are compared, not tensors, because the memory planner lets tensors share memory. */
#include "runtime/executor_internal.h"

static bool overlap(const struct cr_tensor *a, const struct cr_tensor *b) {
    return a->region == b->region && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

/* Bits of the inputs of `op` that op `writer` writes; the workspace counts as written. */
static unsigned written_inputs(const struct cr_program *p, const struct cr_op *writer, const struct cr_op *op) {
    int      ids[CR_OP_IDS_MAX], n = cr_op_writes(writer, ids);
    unsigned written = 0;
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        for (int k = 0; op->in[s] >= 0 && k < n; k++)
            if (overlap(&p->tensor[ids[k]], &p->tensor[op->in[s]])) written |= 1u << s;
    return written;
}

/* Index of the last op before op `at` that may launch a kernel on the stream; negative: it belongs to the program that
 * ran before. */
static int launch_before(const struct cr_program *p, int at, enum cr_stream stream) {
    for (at--; at >= 0; at--)
        if (p->op[at].stream == stream && p->op[at].kind != CR_OP_barrier) break;
    return at;
}

/* An op from `first` to `last` waits for another stream. */
static bool any_waits(const struct cr_program *p, int first, int last, enum cr_stream stream) {
    for (int i = first; i <= last; i++)
        if (p->op[i].stream == stream && p->op[i].wait[0] >= 0) return true;
    return false;
}

void cr_exec_find_early_inputs(const struct cr_program *p, int index, struct cr_call *call) {
    const enum cr_stream stream = p->op[index].stream;
    const int            last = launch_before(p, index, stream), before = launch_before(p, last, stream);
    call->early_inputs = call->inputs_before_last = 0;
    if (last < 0 || any_waits(p, CR_MAX(before, 0), index, stream)) return;
    call->inputs_before_last = ~written_inputs(p, &p->op[last], call->op);
    if (p->op[last].kind == CR_OP_head)
        call->early_inputs = call->inputs_before_last;
    else if (before >= 0)
        call->early_inputs = call->inputs_before_last & ~written_inputs(p, &p->op[before], call->op);
}
