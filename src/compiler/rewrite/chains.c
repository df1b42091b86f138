/* compiler/rewrite/chains.c: joins ops that one launch can run. The program stays a list of ops: each op keeps its kernel,
 * and a run of a part of the program, or without the chain, gives the same bits. */
#include "compiler/cost_model.h"
#include "compiler/passes.h"

/* Whether no op of the chain but the first waits for another stream. */
static bool is_free(const struct cr_program *p, int first, int ops) {
    for (int i = first; i < first + ops; i++)
        if (p->op[i].stream != CR_STREAM_COMPUTE || (i > first && p->op[i].wait[0] != CR_NONE)) return false;
    return true;
}

cr_status cr_pass_chains(struct cr_program *p, const struct cr_cost_model *cost_model) {
    if (!cost_model->chain) return CR_OK;
    for (int i = p->hoisted, ops; i < p->ops; i += CR_MAX(ops, 1)) {
        double together = 0, apart = 0;
        CR_TRY(cost_model->chain(cost_model->self, p, i, &ops, &together, &apart));
        if (!ops) continue;
        const bool chosen = is_free(p, i, ops) && together < apart;
        if (chosen) p->op[i].chain = ops;
        cr_log(CR_LOG_INFO, "program %s: ops %d to %d take %.1f us in one launch and %.1f us in %d or more%s", p->name,
               i, i + ops - 1, together * 1e6, apart * 1e6, ops, chosen ? "" : "; they stay apart");
    }
    return CR_OK;
}
