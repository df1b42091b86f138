/* compiler/memory/uses.c: finds the ops that use each tensor, and the live bytes at each op. See compiler/uses.h. */
#include "compiler/uses.h"

cr_status cr_uses_find(const struct cr_program *p, struct cr_arena *arena, struct cr_uses *u) {
    int ids[2 * CR_OP_IDS_MAX], place = 0;
    CR_ARENA_ALLOC(arena, u->begin, (size_t)p->tensors + 1);
    CR_ARENA_ALLOC(arena, u->end, (size_t)p->tensors + 1);
    for (int i = 0; i < p->ops; i++)
        for (int k = cr_op_operands(&p->op[i], ids); k > 0; k--) u->end[ids[k - 1]]++;
    for (int t = 0; t <= p->tensors; t++) {
        const int most = u->end[t]; /* an op may name a tensor twice */
        u->begin[t] = u->end[t] = place;
        place += most;
    }
    CR_ARENA_ALLOC(arena, u->at, (size_t)place + 1);
    for (int i = 0; i < p->ops; i++)
        for (int k = cr_op_operands(&p->op[i], ids); k > 0; k--) {
            const int t = ids[k - 1];
            if (u->end[t] == u->begin[t] || u->at[u->end[t] - 1] != i) u->at[u->end[t]++] = i;
        }
    return CR_OK;
}

void cr_add_live_bytes(const struct cr_program *p, size_t alignment, size_t *load) {
    for (int t = 0; t < p->tensors; t++) {
        const struct cr_tensor *x     = &p->tensor[t];
        const size_t            bytes = cr_aligned(x->bytes, alignment);
        if (x->region != CR_REGION_POOL || x->first < 0) continue;
        for (int i = x->first; i <= x->last; i++) load[i] += bytes;
    }
}
