/* compiler/rewrite/chains.c: joins ops that fewer launches can run. The program stays a list of ops: each op keeps its
 * kernel, and a part of the program runs op by op. */
#include "compiler/cost_model.h"
#include "compiler/passes.h"

#include <stdlib.h>
#include <string.h>

/* Whether no op of the chain but the first waits for another stream. */
static bool is_free(const struct cr_program *p, int first, int ops) {
    for (int i = first; i < first + ops; i++)
        if (p->op[i].stream != CR_STREAM_COMPUTE || (i > first && p->op[i].wait[0] != CR_NONE)) return false;
    return true;
}

/* The workspace of the first op grows to what the launch of the chain needs. */
static void choose(struct cr_program *p, int first, const struct cr_chain_cost *c) {
    struct cr_op *op = &p->op[first];
    op->chain        = c->ops;
    if (!c->workspace) return;
    CR_ASSERT(op->workspace >= 0);
    struct cr_tensor *t = &p->tensor[op->workspace];
    t->bytes            = CR_MAX(t->bytes, c->workspace);
    t->dim[3]           = (int64_t)t->bytes;
}

cr_status cr_pass_chains(struct cr_program *p, const struct cr_cost_model *cost_model) {
    const char          *env    = getenv("CRESNET_CHAINS");
    const bool           always = env && strcmp(env, "always") == 0;
    struct cr_chain_cost c;
    if (!cost_model->chain || (env && strcmp(env, "no") == 0)) return CR_OK;
    for (int i = p->hoisted; i < p->ops; i += CR_MAX(c.ops, 1)) {
        c = (struct cr_chain_cost){0};
        CR_TRY(cost_model->chain(cost_model->self, p, i, &c));
        if (!c.ops) continue;
        const bool allowed = !env || always || strcmp(env, c.kernel) == 0;
        const bool faster  = allowed && is_free(p, i, c.ops) && (always || c.together < c.apart);
        if (faster) choose(p, i, &c);
        cr_log(CR_LOG_INFO, "program %s: ops %d to %d take %.1f us by %s and %.1f us one by one%s", p->name, i,
               i + c.ops - 1, c.together * 1e6, c.kernel, c.apart * 1e6, faster ? "" : ", which stays");
    }
    return CR_OK;
}
