/* checkops_walk.c: all cases over all rows of a device. */
#include "checkops.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool wanted(const struct checkops_walk *w, const struct cr_kernel *row, const struct checkops_unit *unit) {
    if (row->op != unit->op->kind || (w->filter && !strstr(row->name, w->filter))) return false;
    return !row->accepts || row->accepts(w->device, &unit->program, unit->op);
}

static int count_wanted(const struct checkops_walk *w, const struct checkops_unit *unit, bool *fast) {
    int n = 0;
    *fast = false;
    for (int i = 0; i < w->rows; i++) {
        const struct cr_kernel *row = w->device->rows[i];
        if (!wanted(w, row, unit)) continue;
        n++;
        *fast = *fast || strncmp(row->name, "ref.", 4) != 0;
    }
    return n;
}

static void tally_add(struct checkops_walk *w, int row, const struct checkops_unit *unit, const struct checkops_draw *draw,
                      const struct checkops_verdict *v) {
    struct checkops_tally *t = &w->tally[row];
    t->runs++;
    t->worst = CR_MAX(t->worst, v->worst);
    if (v->ok || t->failures++) return;
    char shape[200], family[60];
    checkops_unit_text(unit, shape, sizeof shape);
    checkops_draw_text(unit, draw, family, sizeof family);
    snprintf(t->why, sizeof t->why, "%.399s\n       in %.150s, %.40s", v->why, shape, family);
}

static void bench_line(const struct checkops_walk *w, const struct cr_kernel *row, const struct checkops_unit *unit, double seconds) {
    double bytes, flops;
    char   shape[200];
    cr_op_cost(&unit->program, unit->op, &bytes, &flops);
    checkops_unit_text(unit, shape, sizeof shape);
    const double roof = CR_MAX(bytes / w->device->caps.bytes_per_s, flops / w->device->caps.flops_per_s);
    printf("     %-22s %9.1f us %7.2f GB/s %8.2f GFLOP/s %5.1f %% of the roof  %s\n", row->name, seconds * 1e6,
           bytes / seconds * 1e-9, flops / seconds * 1e-9, 100 * roof / seconds, shape);
}

/* All rows on one draw; rows with the same math share a truth. */
static cr_status walk_draw(struct checkops_walk *w, const struct checkops_unit *unit, const struct checkops_draw *draw) {
    struct checkops_inputs inputs = {0};
    struct cr_verify_truth truth  = {0};
    struct cr_verify_io    io     = {0};
    cr_status              status;
    CR_TRY_OUT(checkops_inputs_make(unit, draw, &inputs));
    for (int s = 0; s < CR_OP_IN_MAX; s++) io.in[s] = inputs.in[s];
    for (int s = 0; s < CR_OP_OUT_MAX; s++) io.before[s] = inputs.before[s];
    for (int i = 0; i < w->rows; i++) {
        const struct cr_kernel *row = w->device->rows[i];
        struct checkops_verdict verdict;
        double                  seconds;
        if (!wanted(w, row, unit)) continue;
        if (w->bench) {
            CR_TRY_OUT(checkops_time(w->device, row, unit, &inputs, &seconds));
            bench_line(w, row, unit, seconds);
            w->tally[i].runs++;
            continue;
        }
        if (!truth.op || truth.math != row->math) {
            cr_verify_truth_free(&truth);
            CR_TRY_OUT(cr_verify_truth_make(w->cpu, &unit->program, unit->op, row->math, &unit->step, &io, &truth));
        }
        CR_TRY_OUT(checkops_row(w->device, row, unit, &inputs, &truth, &verdict));
        tally_add(w, i, unit, draw, &verdict);
    }
out:
    cr_verify_truth_free(&truth);
    checkops_inputs_free(&inputs);
    return status;
}

static cr_status walk_case(struct checkops_walk *w, const struct checkops_case *c, int index) {
    struct checkops_unit unit;
    struct checkops_draw draws[CHECKOPS_DRAWS_MAX];
    cr_status            status = CR_OK;
    bool                 fast;
    CR_TRY(checkops_unit_make(c, &unit));
    if (count_wanted(w, &unit, &fast)) {
        const int n = w->bench ? 1 : checkops_draws(&unit, index, draws);
        if (w->bench) draws[0] = (struct checkops_draw){FAMILY_NORMAL, CR_NONE};
        w->cases++;
        w->only_ref += !fast;
        for (int i = 0; i < n && status == CR_OK; i++) status = walk_draw(w, &unit, &draws[i]);
    }
    checkops_unit_free(&unit);
    return status;
}

cr_status checkops_walk(struct checkops_walk *w, const struct checkops_list *list) {
    for (w->rows = 0; w->device->rows[w->rows]; w->rows++) CR_ASSERT(w->rows < (int)CR_COUNT(w->tally));
    for (int i = 0; i < list->count; i++)
        if (!w->bench || list->item[i].big) CR_TRY(walk_case(w, &list->item[i], i));
    return CR_OK;
}
