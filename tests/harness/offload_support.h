/* tests/harness/offload_support.h: swaps put into a program by hand, for tests of what runs them. Which tensors, and where the copies begin and are
 * waited for, is of no importance here but for being within the law: a third of the gap for each copy. */
#ifndef CR_SWAP_SUPPORT_H
#define CR_SWAP_SUPPORT_H

#include "runtime/executor.h"
#include "model/model.h"
#include "compiler/compiler.h"
#include "tests/harness/test.h"

#include <stdio.h>
#include <string.h>

enum { HAND_SWAPS_MAX = 128, HAND_GAP_LEAST = 7 };

struct hand_swap { /* ops by their index in the plain program */
    int tensor, writer, early, late;
    int sync, go;          /* in front of these ops: the copy out is waited for, the copy back begins */
    int host, token, back; /* tensors */
    int sync_op, in_op;    /* in the new program */
};

struct hand_swaps {
    struct hand_swap swap[HAND_SWAPS_MAX];
    int              count;
};

/* The largest gap between two accesses of a transient that one op writes; false: there is none worth while. */
static inline bool hand_find(const struct cr_program *p, int tensor, struct hand_swap *out) {
    const struct cr_tensor *t      = &p->tensor[tensor];
    int                     writes = 0, before = CR_NONE, widest = 0;
    if (t->region != CR_REGION_POOL || t->keep || tensor == p->logits || tensor == p->metrics) return false;
    *out = (struct hand_swap){.tensor = tensor};
    for (int i = 0; i < p->ops; i++) {
        int  ids[CR_OP_IDS_MAX], n = cr_op_writes(&p->op[i], ids);
        bool here = false;
        for (int k = 0; k < n; k++) here |= ids[k] == tensor;
        if (here) writes++, out->writer = i;
        n = cr_op_reads(&p->op[i], ids);
        for (int k = 0; k < n; k++) here |= ids[k] == tensor;
        if (here && before != CR_NONE && i - before > widest) {
            widest     = i - before;
            out->early = before;
            out->late  = i;
        }
        if (here) before = i;
    }
    out->sync = out->early + 1 + widest / 3;
    out->go   = out->late - widest / 3;
    return writes == 1 && widest >= HAND_GAP_LEAST && out->writer >= p->once;
}

static inline void hand_emit(struct cr_program *p, const struct cr_target *target, struct cr_op op, enum cr_lane lane) {
    size_t workspace = 0;
    op.lane          = lane;
    op.row           = 0;
    if (target->select) CHECK_STATUS(target->select(target->self, p, &op, &workspace), CR_OK);
    CHECK(workspace == 0);
    cr_emit(p, &op, "");
}

static inline int hand_tensor(struct cr_program *p, const struct cr_tensor *like, const char *tail, enum cr_region region) {
    char name[300];
    snprintf(name, sizeof name, "%s%s", like->name, tail);
    const struct cr_tensor t = *like; /* adding may move the array */
    return cr_tensor_add(p, name, t.dtype, region, t.dim[0], t.dim[1], t.dim[2], t.dim[3]);
}

static inline void hand_tensors(struct cr_program *p, struct hand_swap *s) {
    char name[300];
    snprintf(name, sizeof name, "%s.go", p->tensor[s->tensor].name);
    s->host  = hand_tensor(p, &p->tensor[s->tensor], ".host", CR_REGION_HOST);
    s->back  = hand_tensor(p, &p->tensor[s->tensor], "'", CR_REGION_POOL);
    s->token = cr_tensor_add(p, name, CR_U8, CR_REGION_POOL, 1, 1, 1, 1);
}

/* What stands in front of op i of the plain program. */
static inline void hand_in_front(struct cr_program *p, const struct cr_target *target, struct hand_swaps *all, int i) {
    for (int k = 0; k < all->count; k++) {
        struct hand_swap *s = &all->swap[k];
        if (s->sync != i) continue;
        struct cr_op op      = cr_op_make(CR_OP_sync, CR_NONE);
        op.in[CR_IN_sync_x] = s->host;
        s->sync_op          = p->ops;
        hand_emit(p, target, op, CR_LANE_COMPUTE);
    }
    for (int k = 0; k < all->count; k++) {
        struct hand_swap *s = &all->swap[k];
        if (s->go != i) continue;
        struct cr_op go             = cr_op_make(CR_OP_sync, CR_NONE), in = cr_op_make(CR_OP_swap_in, CR_NONE);
        go.out[CR_OUT_sync_token]   = s->token;
        in.in[CR_IN_swap_in_x]      = s->host;
        in.in[CR_IN_swap_in_token]  = s->token;
        in.out[CR_OUT_swap_in_y]    = s->back;
        hand_emit(p, target, go, CR_LANE_COMPUTE);
        s->in_op = p->ops;
        hand_emit(p, target, in, CR_LANE_TO_DEVICE);
    }
}

static inline void hand_behind(struct cr_program *p, const struct cr_target *target, struct hand_swaps *all, int i) {
    for (int k = 0; k < all->count; k++) {
        struct hand_swap *s = &all->swap[k];
        if (s->writer != i) continue;
        struct cr_op op             = cr_op_make(CR_OP_swap_out, CR_NONE);
        op.in[CR_IN_swap_out_x]     = s->tensor;
        op.out[CR_OUT_swap_out_y]   = s->host;
        hand_emit(p, target, op, CR_LANE_TO_HOST);
    }
}

/* Swaps every `one_in`-th tensor that could be. The program must be selected and is not ordered yet. */
static inline void hand_swap(struct cr_program *p, const struct cr_target *target, int one_in, struct hand_swaps *all) {
    struct hand_swap s;
    int              seen = 0;
    all->count            = 0;
    for (int t = 0; t < p->tensors && all->count < HAND_SWAPS_MAX; t++)
        if (hand_find(p, t, &s) && seen++ % one_in == 0) all->swap[all->count++] = s;
    for (int k = 0; k < all->count; k++) hand_tensors(p, &all->swap[k]);
    const int     ops = p->ops;
    struct cr_op *old = cr_alloc((size_t)ops + 1, sizeof *old);
    REQUIRE(old != NULL);
    memcpy(old, p->op, (size_t)ops * sizeof *old);
    p->ops = 0;
    for (int i = 0; i < ops; i++) {
        hand_in_front(p, target, all, i);
        for (int k = 0; k < all->count; k++)
            for (int n = 0; n < CR_OP_IN_MAX && i >= all->swap[k].late; n++)
                if (old[i].in[n] == all->swap[k].tensor) old[i].in[n] = all->swap[k].back;
        cr_emit(p, &old[i], "");
        hand_behind(p, target, all, i);
    }
    cr_free(old);
    CHECK(!p->failed);
}

/* The rest of compiling, with its proofs; once more, where it was done before. */
static inline cr_status hand_finish(struct cr_program *p, const struct cr_target *target) {
    p->region_bytes[CR_REGION_POOL] = p->bound_bytes = 0;
    CR_TRY(cr_program_check(p));
    CR_TRY(cr_pass_order(p));
    CR_TRY(cr_order_check(p));
    CR_TRY(cr_pass_plan(p, target->alignment, true));
    CR_TRY(cr_plan_check(p, target->alignment));
    return cr_order_check(p);
}

/* Memory of a finished program, initial values, and what runs it. */
static inline cr_status exec_begin(struct cr_device *device, struct cr_model *model, const struct cr_config *config, const struct cr_program *program,
                                   struct cr_memory *memory, struct cr_exec **exec) {
    CR_TRY(cr_memory_open(memory, device, &model->store, &program, 1));
    CR_TRY(device->backend->init_store(device, &model->store, config, memory->region[CR_REGION_STORE]));
    return cr_exec_open(program, memory, exec);
}

#endif
