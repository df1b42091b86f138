/* inspect/print_lifetimes.c: prints where each large tensor is (kept, offloaded, recomputed) while no op uses it. */
#include "compiler/simulate.h"
#include "inspect/plan_print.h"

#include <stdio.h>

enum { POOL_FRACTION = 1000 }; /* tensors below 1/1000 of the pool are not printed */

enum location { DEVICE, RECOMPUTE, OFFLOAD, LOCATIONS };

struct place {                   /* of a tensor of the program before offloading and recomputation */
    int           tensor, again; /* again: the tensor that has the same values later, under another name; CR_NONE */
    enum location location;
    double        idle; /* longest time without a use, in seconds */
};

struct listing {
    const struct cr_program    *p;
    const struct cr_cost_model *model;
    struct cr_op_time          *time;
    double                     *seconds, *moving;
    struct place               *place;
    int                         places;
    int                        *last_use; /* by tensor: last op that used it; working memory of find_idle */
    int                        *writer;   /* by tensor */
    struct cr_arena             arena;    /* holds the arrays */
};

static void find_writers(struct listing *l) {
    for (int t = 0; t < l->p->tensors; t++) l->writer[t] = CR_NONE;
    for (int i = l->p->ops - 1; i >= 0; i--) {
        int                 parts;
        const struct cr_op *part = cr_op_parts(&l->p->op[i], &parts);
        for (int k = 0; k < parts * CR_OP_OUT_MAX; k++) {
            const int id = part[k / CR_OP_OUT_MAX].out[k % CR_OP_OUT_MAX];
            if (id >= 0) l->writer[id] = i;
        }
    }
}

static void note_idle(struct listing *l, int i, int t) {
    const int origin = cr_tensor_origin(l->p, t);
    if (l->last_use[origin] >= 0)
        for (int k = 0; k < l->places; k++)
            if (l->place[k].tensor == origin)
                l->place[k].idle = CR_MAX(l->place[k].idle, l->time[i].start - l->time[l->last_use[origin]].end);
    l->last_use[origin] = i;
}

/* Copies are no uses; the op that recomputes a tensor is one. */
static void find_idle(struct listing *l) {
    for (int t = 0; t < l->p->tensors; t++) l->last_use[t] = -1;
    for (int i = 0; i < l->p->ops; i++) {
        int ids[2 * CR_OP_IDS_MAX], n = cr_op_operands(&l->p->op[i], ids);
        if (l->p->op[i].stream != CR_STREAM_COMPUTE || l->p->op[i].kind == CR_OP_barrier) continue;
        for (int k = 0; k < n; k++) note_idle(l, i, ids[k]);
    }
}

static void find_places(struct listing *l) {
    const struct cr_program *p = l->p;
    for (int t = 0; t < p->tensors; t++) {
        const struct cr_tensor *x = &p->tensor[t];
        const bool              large =
            x->region == CR_REGION_POOL && x->first >= 0 && x->bytes >= p->region_bytes[CR_REGION_POOL] / POOL_FRACTION;
        if (large && x->copy_of == CR_NONE) l->place[l->places++] = (struct place){.tensor = t, .again = CR_NONE};
    }
    for (int t = 0; t < p->tensors; t++)
        for (int k = 0; k < l->places && p->tensor[t].first >= 0; k++)
            if (l->place[k].tensor == p->tensor[t].copy_of) {
                l->place[k].again    = t;
                l->place[k].location = l->writer[t] >= 0 && p->op[l->writer[t]].kind == CR_OP_prefetch
                                           ? OFFLOAD
                                           : CR_MAX(l->place[k].location, RECOMPUTE);
            }
}

static void print_place(const struct listing *l, const struct place *k, struct cr_text *out) {
    static const char *const names[] = {"device", "recompute", "offload"};
    const struct cr_tensor  *x       = &l->p->tensor[k->tensor];
    const bool               copies  = l->model->to_host_bytes_per_s > 0 && l->model->to_device_bytes_per_s > 0;
    char                     ops[64], again[32] = "", copy[32] = "";
    int                      used = snprintf(ops, sizeof ops, "%d-%d", x->first, x->last);
    if (k->again >= 0 && used < (int)sizeof ops)
        snprintf(ops + used, sizeof ops - (size_t)used, ", %d-%d", l->p->tensor[k->again].first,
                 l->p->tensor[k->again].last);
    if (l->writer[k->tensor] >= 0) snprintf(again, sizeof again, "%.3f", l->seconds[l->writer[k->tensor]] * 1e3);
    if (copies)
        snprintf(copy, sizeof copy, "%.3f",
                 1e3 * (cr_copy_seconds(l->model, CR_STREAM_TO_HOST, x->bytes) +
                        cr_copy_seconds(l->model, CR_STREAM_TO_DEVICE, x->bytes)));
    cr_text_add(out, "%-9s %10.2f  %-20s %10.3f %10s %10s  %s\n", names[k->location], (double)x->bytes / (1 << 20), ops,
                k->idle * 1e3, copy, again, x->name);
}

static cr_status print_all(struct listing *l, struct cr_text *out) {
    const size_t         tensors = (size_t)CR_MAX(l->p->tensors, 1), ops = (size_t)CR_MAX(l->p->ops, 1);
    struct cr_simulation ignored;
    double               bytes[LOCATIONS] = {0};
    CR_ARENA_ALLOC(&l->arena, l->time, ops);
    CR_ARENA_ALLOC(&l->arena, l->seconds, ops);
    CR_ARENA_ALLOC(&l->arena, l->moving, ops);
    CR_ARENA_ALLOC(&l->arena, l->place, tensors);
    CR_ARENA_ALLOC(&l->arena, l->last_use, tensors);
    CR_ARENA_ALLOC(&l->arena, l->writer, tensors);
    CR_TRY(cr_program_seconds(l->p, l->model, l->seconds, l->moving));
    const struct cr_contention contention = cr_contention_of(l->model, l->moving);
    cr_program_simulate(l->p, l->seconds, &contention, l->time, &ignored);
    find_writers(l);
    find_places(l);
    find_idle(l);
    cr_text_add(out, "%-9s %10s  %-20s %10s %10s %10s  tensor\n", "location", "MiB", "ops", "idle ms", "copies ms",
                "compute ms");
    for (int k = 0; k < l->places; k++) {
        print_place(l, &l->place[k], out);
        bytes[l->place[k].location] += (double)l->p->tensor[l->place[k].tensor].bytes / (1 << 20);
    }
    cr_text_add(out, "\non the device %.1f MiB, recomputed %.1f, offloaded %.1f\n", bytes[DEVICE], bytes[RECOMPUTE],
                bytes[OFFLOAD]);
    return CR_OK;
}

cr_status cr_plan_print_lifetimes(const struct cr_program *p, const struct cr_cost_model *model, struct cr_text *out) {
    struct listing  l      = {.p = p, .model = model};
    const cr_status status = print_all(&l, out);
    cr_arena_free(&l.arena);
    return status;
}
