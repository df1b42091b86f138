/* compiler/uses.h: the ops that use each tensor of a program, and the bytes that are live at each op.
 *
 * Units: bytes. */
#ifndef CR_USES_H
#define CR_USES_H

#include "graph/graph.h"

/* The ops that read or write tensor t, each once: at[begin[t]] ... at[end[t] - 1], ascending. */
struct cr_uses {
    int *begin, *end; /* [tensors + 1]; the last begin: number of reads and writes of all ops */
    int *at;
};
/* The arrays are in the arena. CR_ERR_MEMORY. */
CR_MUST cr_status cr_uses_find(const struct cr_program *program, struct cr_arena *arena, struct cr_uses *out);
/* Adds the bytes of the POOL tensors that are live at each op, by their lifetimes, to load[ops]. The bytes of a tensor
 * are rounded up to the alignment. */
void cr_add_live_bytes(const struct cr_program *program, size_t alignment, size_t *load);
/* compiler/memory/plan_memory.c: the input whose storage output `slot` of op `index` reuses, by the lifetimes of the
 * tensors; CR_NONE: none. taken[tensors]: the storage of these inputs is not available. */
int cr_reused_input(const struct cr_program *program, int index, int slot, const bool *taken);

static inline size_t cr_aligned(size_t bytes, size_t alignment) {
    return (bytes + alignment - 1) / alignment * alignment;
}

#endif
