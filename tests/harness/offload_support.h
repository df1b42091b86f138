/* tests/harness/offload_support.h: inserts offload and prefetch ops into a program without the pass, for tests of the
 * executor. The tensors are chosen by index, and each copy gets a third of the gap between the accesses, so the program
 * is valid. */
#ifndef CR_OFFLOAD_SUPPORT_H
#define CR_OFFLOAD_SUPPORT_H

#include "compiler/passes.h"
#include "tests/harness/test.h"

enum { HAND_OFFLOADS_MAX = 128, HAND_GAP_MIN = 7 };

struct hand_offload { /* op indices of the plain program */
    int tensor, writer, early, late;
    int release_at, prefetch_at; /* the wait for the copy out and the start of the copy back come before these ops */
    int host, event, back;       /* tensors */
    int barrier_op, prefetch_op; /* in the new program */
};

struct hand_offloads {
    struct hand_offload offload[HAND_OFFLOADS_MAX];
    int                 count;
};

/* The largest gap between two accesses of a transient with one writer; false when there is no gap of useful length. */
static inline bool hand_find(const struct cr_program *p, int tensor, struct hand_offload *out) {
    const struct cr_tensor *t      = &p->tensor[tensor];
    int                     writes = 0, before = CR_NONE, widest = 0;
    if (t->region != CR_REGION_POOL || t->keep || tensor == p->logits || tensor == p->metrics) return false;
    *out = (struct hand_offload){.tensor = tensor};
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
    out->release_at  = out->early + 1 + widest / 3;
    out->prefetch_at = out->late - widest / 3;
    return writes == 1 && widest >= HAND_GAP_MIN && out->writer >= p->hoisted;
}

static inline void hand_emit(struct cr_program *p, const struct cr_cost_model *cost_model, struct cr_op op,
                             enum cr_stream stream) {
    size_t workspace = 0;
    op.stream        = stream;
    op.kernel        = 0;
    if (cost_model->select) CHECK_STATUS(cost_model->select(cost_model->self, p, &op, &workspace), CR_OK);
    CHECK(workspace == 0);
    cr_emit(p, &op, "");
}

static inline int copy_of_tensor(struct cr_program *p, const struct cr_tensor *like, const char *tail,
                                 enum cr_region region) {
    const char *const      name = formatted("%s%s", like->name, tail);
    const struct cr_tensor t    = *like; /* adding may reallocate the array */
    return cr_tensor_add(p, name, t.dtype, region, t.dim[0], t.dim[1], t.dim[2], t.dim[3]);
}

static inline void hand_tensors(struct cr_program *p, struct hand_offload *s) {
    const char *const name = formatted("%s.event", p->tensor[s->tensor].name);
    s->host                = copy_of_tensor(p, &p->tensor[s->tensor], ".host", CR_REGION_HOST);
    s->back                = copy_of_tensor(p, &p->tensor[s->tensor], "'", CR_REGION_POOL);
    s->event               = cr_tensor_add(p, name, CR_U8, CR_REGION_POOL, 1, 1, 1, 1);
}

/* Inserts the ops that come before op i of the plain program. */
static inline void hand_ops_before(struct cr_program *p, const struct cr_cost_model *cost_model,
                                   struct hand_offloads *all, int i) {
    for (int k = 0; k < all->count; k++) {
        struct hand_offload *s = &all->offload[k];
        if (s->release_at != i) continue;
        struct cr_op op = op_on(CR_OP_barrier, s->host);
        s->barrier_op   = p->ops;
        hand_emit(p, cost_model, op, CR_STREAM_COMPUTE);
    }
    for (int k = 0; k < all->count; k++) {
        struct hand_offload *s = &all->offload[k];
        if (s->prefetch_at != i) continue;
        struct cr_op begin = cr_op_make(CR_OP_barrier, CR_NONE), in = op_on(CR_OP_prefetch, s->host, s->event);
        begin.out[CR_OUT_barrier_event] = s->event;
        in.out[CR_OUT_prefetch_y]       = s->back;
        hand_emit(p, cost_model, begin, CR_STREAM_COMPUTE);
        s->prefetch_op = p->ops;
        hand_emit(p, cost_model, in, CR_STREAM_TO_DEVICE);
    }
}

static inline void hand_ops_after(struct cr_program *p, const struct cr_cost_model *cost_model,
                                  struct hand_offloads *all, int i) {
    for (int k = 0; k < all->count; k++) {
        struct hand_offload *s = &all->offload[k];
        if (s->writer != i) continue;
        struct cr_op op          = op_on(CR_OP_offload, s->tensor);
        op.out[CR_OUT_offload_y] = s->host;
        hand_emit(p, cost_model, op, CR_STREAM_TO_HOST);
    }
}

/* Offloads every `one_in`-th suitable tensor. The program has selected kernels and no waits yet. */
static inline void hand_offload(struct cr_program *p, const struct cr_cost_model *cost_model, int one_in,
                                struct hand_offloads *all) {
    struct hand_offload s;
    int                 seen = 0;
    all->count               = 0;
    for (int t = 0; t < p->tensors && all->count < HAND_OFFLOADS_MAX; t++)
        if (hand_find(p, t, &s) && seen++ % one_in == 0) all->offload[all->count++] = s;
    for (int k = 0; k < all->count; k++) hand_tensors(p, &all->offload[k]);
    const int     ops = p->ops;
    struct cr_op *old = cr_alloc((size_t)ops + 1, sizeof *old);
    REQUIRE(old != NULL);
    memcpy(old, p->op, (size_t)ops * sizeof *old);
    p->ops = 0;
    for (int i = 0; i < ops; i++) {
        hand_ops_before(p, cost_model, all, i);
        for (int k = 0; k < all->count; k++)
            for (int n = 0; n < CR_OP_IN_MAX && i >= all->offload[k].late; n++)
                if (old[i].in[n] == all->offload[k].tensor) old[i].in[n] = all->offload[k].back;
        cr_emit(p, &old[i], "");
        hand_ops_after(p, cost_model, all, i);
    }
    cr_free(old);
    CHECK(!p->failed);
}

/* The passes after offload, with their checks; repeats passes that already ran. */
static inline cr_status hand_finish(struct cr_program *p, const struct cr_cost_model *cost_model) {
    p->region_bytes[CR_REGION_POOL] = p->bound_bytes = 0;
    CR_TRY(cr_program_check(p));
    CR_TRY(cr_pass_insert_waits(p));
    CR_TRY(cr_waits_check(p));
    CR_TRY(cr_pass_plan(p, cost_model->alignment, true));
    CR_TRY(cr_plan_check(p, cost_model->alignment));
    return cr_waits_check(p);
}

/* Memory of a compiled program, initial values, and an executor. */
static inline cr_status exec_begin(struct cr_device *device, struct cr_model *model, const struct cr_config *config,
                                   const struct cr_program *program, struct cr_memory *memory, struct cr_exec **exec) {
    CR_TRY(cr_memory_open(memory, device, &model->store, &program, 1));
    CR_TRY(device->backend->init_store(device, &model->store, config, memory->region[CR_REGION_STORE]));
    return cr_exec_open(program, memory, exec);
}

#endif
