/* costs_target.c: the questions that passes ask, answered from the table of costs. See costs.h. */
#include "costs_parts.h"

#include "exec.h"

#include <string.h>

/* ---- one signature ---- */

static const struct cr_cost *answered(const struct cr_costs *c, const char *signature, uint64_t hash) {
    for (int i = 0; i < c->bests; i++)
        if (c->best[i].hash == hash && strcmp(c->best[i].signature, signature) == 0) return &c->best[i].cost;
    return NULL;
}

static cr_status remember(struct cr_costs *c, const char *signature, uint64_t hash, const struct cr_cost *cost) {
    if (c->bests == c->best_capacity) {
        const int              more  = CR_MAX(256, c->best_capacity * 2);
        struct cr_cost_answer *fresh = cr_realloc(c->best, (size_t)more, sizeof *fresh);
        if (!fresh) return CR_NO_MEMORY((size_t)more * sizeof *fresh);
        c->best          = fresh;
        c->best_capacity = more;
    }
    struct cr_cost_answer a = {.hash = hash, .cost = *cost};
    a.signature             = cr_arena_printf(&c->arena, "%s", signature);
    if (!a.signature) return CR_NO_MEMORY(strlen(signature));
    c->best[c->bests++] = a;
    return CR_OK;
}

/* Times a candidate. Where its scratch memory is not to be had, the roofline stands in: the order of the rows decides. */
static cr_status measure(struct cr_costs *c, const struct cr_program *p, const struct cr_op *op, double best, int64_t *ns) {
    const struct cr_target roof = cr_device_target(c->device);
    const int64_t          start = cr_time_ns();
    double                 seconds;
    cr_status              status = cr_cost_measure(c->device, &c->scratch, p, op, best, &seconds);
    if (status == CR_ERR_MEMORY) {
        cr_error_clear();
        cr_scratch_release(c->device, &c->scratch);
        seconds = cr_op_seconds(&roof, p, op);
        status  = CR_OK;
    }
    c->measured++;
    c->measure_ns += cr_time_ns() - start;
    *ns = CR_MAX((int64_t)(seconds * 1e9 + 0.5), 1);
    return status;
}

static cr_status add_candidate(struct cr_costs *c, const struct cr_program *p, const struct cr_op *op, const char *signature,
                               double *best) {
    int64_t ns;
    CR_TRY(measure(c, p, op, *best, &ns));
    *best = *best == 0 ? (double)ns * 1e-9 : CR_MIN(*best, (double)ns * 1e-9);
    return cr_cost_add(c, signature, c->device->rows[op->row]->name, op->way, ns, NULL);
}

static cr_status measure_all(struct cr_costs *c, const struct cr_program *p, const struct cr_op *asked, const char *signature) {
    struct cr_op op   = *asked;
    double       best = 0;
    int          from = 0;
    for (const struct cr_kernel *row; (row = cr_row_find(c->device, p, &op, from, &op.row)); from = op.row + 1) {
        const int ways = row->ways ? row->ways(c->device, p, &op) : 1;
        for (op.way = 0; op.way < ways; op.way++) CR_TRY(add_candidate(c, p, &op, signature, &best));
    }
    return CR_OK;
}

static int row_named(const struct cr_costs *c, const char *name, enum cr_op_kind kind) {
    for (int i = 0; c->device->rows[i]; i++)
        if (c->device->rows[i]->op == kind && strcmp(c->device->rows[i]->name, name) == 0) return i;
    return CR_NONE;
}

/* The fastest of what the table knows of the signature; row CR_NONE: it knows that no row takes it. Once a signature has an
 * entry, it has all: rows are not asked again, which for libraries takes longer than to launch what they offer. */
static bool best_known(struct cr_costs *c, const char *signature, enum cr_op_kind kind, struct cr_cost *out) {
    const uint64_t hash  = cr_cost_hash(signature);
    bool           known = false;
    *out                 = (struct cr_cost){.row = CR_NONE};
    for (int i = 0; i < c->entries; i++) {
        struct cr_cost_entry *e = &c->entry[i];
        if (e->hash != hash || strcmp(e->signature, signature) != 0) continue;
        known   = true;
        e->used = true;
        const double seconds = (double)e->ns * 1e-9;
        const int    row     = row_named(c, e->row, kind);
        if (row == CR_NONE || (out->row >= 0 && seconds >= out->seconds)) continue;
        *out = (struct cr_cost){.row = row, .way = e->way, .seconds = seconds};
    }
    return known;
}

static cr_status ask(struct cr_costs *c, const struct cr_program *p, const struct cr_op *op, const char *signature, struct cr_cost *out) {
    c->asked = true;
    if (!best_known(c, signature, op->kind, out)) {
        CR_TRY(measure_all(c, p, op, signature));
        (void)best_known(c, signature, op->kind, out);
    }
    if (out->row < 0 && cr_cost_is_pinned(c, signature) && !cr_cost_find(c, signature, cr_cost_nobody, 0))
        return CR_FAIL(CR_ERR_DEVICE, "the checkpoint's kernel for \"%s\" does not exist any more: results cannot be equal to the bit; "
                       "resume with --force to choose anew", signature);
    return CR_OK;
}

cr_status cr_costs_best(struct cr_costs *c, const struct cr_program *p, const struct cr_op *op, struct cr_cost *out) {
    struct cr_text text   = {0};
    cr_status      status = cr_cost_signature(c->device, p, op, &text);
    if (status == CR_OK) {
        const uint64_t        hash  = cr_cost_hash(text.data);
        const struct cr_cost *known = answered(c, text.data, hash);
        if (known) *out = *known;
        else {
            status = ask(c, p, op, text.data, out);
            if (status == CR_OK) status = remember(c, text.data, hash, out);
        }
    }
    cr_text_free(&text);
    return status;
}

/* ---- what passes see ---- */

static bool is_convolution(enum cr_op_kind kind) {
    return kind == CR_OP_conv || kind == CR_OP_conv_dgrad || kind == CR_OP_conv_wgrad || kind == CR_OP_conv_grad;
}

/* Libraries take long to say no to a convolution: that is remembered like a cost. */
static bool target_accepts(void *self, const struct cr_program *p, const struct cr_op *op) {
    struct cr_costs *c = self;
    if (!is_convolution(op->kind)) return cr_device_accepts(c->device, p, op);
    struct cr_text text = {0};
    struct cr_cost best;
    bool           accepts;
    if (cr_cost_signature(c->device, p, op, &text) != CR_OK) accepts = cr_device_accepts(c->device, p, op);
    else if (best_known(c, text.data, op->kind, &best)) accepts = best.row >= 0;
    else {
        accepts = cr_device_accepts(c->device, p, op);
        if (!accepts && cr_cost_add(c, text.data, cr_cost_nobody, 0, 1, NULL) == CR_OK) {
            c->entry[c->entries - 1].used = true;
            c->news                       = true;
        }
    }
    cr_text_free(&text);
    return accepts;
}

static cr_status target_cost(void *self, const struct cr_program *p, const struct cr_op *op, double *seconds) {
    struct cr_cost best;
    CR_TRY(cr_costs_best(self, p, op, &best));
    CR_ASSERT(best.row >= 0); /* only accepted ops are asked about */
    *seconds = best.seconds;
    return CR_OK;
}

/* Is there anything to choose? What the table knows of was chosen before. */
static cr_status has_choice(struct cr_costs *c, const struct cr_program *p, const struct cr_op *op, bool *yes) {
    struct cr_text text = {0};
    struct cr_cost best;
    int            first, second;
    cr_status      status = cr_cost_signature(c->device, p, op, &text);
    *yes                  = status == CR_OK && best_known(c, text.data, op->kind, &best);
    cr_text_free(&text);
    if (status != CR_OK || *yes) return status;
    const struct cr_kernel *row = cr_row_find(c->device, p, op, 0, &first);
    *yes = row && ((row->ways && row->ways(c->device, p, op) > 1) || cr_row_find(c->device, p, op, first + 1, &second));
    return CR_OK;
}

static cr_status target_select(void *self, const struct cr_program *p, struct cr_op *op, size_t *workspace) {
    struct cr_costs *c = self;
    struct cr_cost   best;
    bool             choice;
    CR_TRY(has_choice(c, p, op, &choice));
    if (!choice) return cr_device_select(c->device, p, op, workspace);
    CR_TRY(cr_costs_best(c, p, op, &best));
    if (best.row < 0) return cr_device_select(c->device, p, op, workspace); /* for its message */
    op->row = best.row;
    op->way = best.way;
    return cr_device_workspace(c->device, p, op, workspace);
}

struct cr_target cr_costs_target(struct cr_costs *costs) {
    struct cr_target t = cr_device_target(costs->device);
    t.self             = costs;
    t.accepts          = target_accepts;
    t.select           = target_select;
    t.cost             = target_cost;
    return t;
}
