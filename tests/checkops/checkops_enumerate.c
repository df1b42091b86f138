/* tests/checkops/checkops_enumerate.c: all cases over all rows of a device. */
#include "tests/checkops/checkops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool wanted(const struct checkops_runner *w, int i, const struct checkops_unit *unit) {
    const struct cr_kernel *row = w->kernel[i];
    if (row->op != unit->op->kind || w->skip[i] || (w->filter && !strstr(row->name, w->filter))) return false;
    return cr_kernel_accepts(w->device, row, &unit->program, unit->op);
}

static bool has_tf32(const struct checkops_runner *w, enum cr_op_kind kind) {
    for (int i = 0; i < w->kernels; i++)
        if (w->kernel[i]->op == kind && w->kernel[i]->math == CR_MATH_TF32) return true;
    return false;
}

static int count_wanted(const struct checkops_runner *w, const struct checkops_unit *unit, bool *fast) {
    int n = 0;
    *fast = false;
    for (int i = 0; i < w->kernels; i++) {
        if (!wanted(w, i, unit)) continue;
        n++;
        *fast = *fast || strncmp(w->kernel[i]->name, "ref.", 4) != 0;
    }
    return n;
}

static void tally_add(struct checkops_runner *w, int row, const struct checkops_unit *unit,
                      const struct checkops_draw *draw, const struct checkops_verdict *v) {
    struct checkops_tally *t = &w->tally[row];
    t->runs++;
    t->worst = CR_MAX(t->worst, v->worst);
    if (v->ok) return;
    w->failures++;
    char shape[200], family[60];
    checkops_unit_text(unit, shape, sizeof shape);
    checkops_draw_text(unit, draw, family, sizeof family);
    if (getenv("CHECKOPS_ALL")) printf("     %s: %s in %s, %s\n", w->kernel[row]->name, v->why, shape, family);
    if (t->failures++) return;
    snprintf(t->why, sizeof t->why, "%.399s\n       in %.150s, %.40s", v->why, shape, family);
}

static void bench_line(const struct checkops_runner *w, const struct cr_kernel *row, const struct checkops_unit *unit,
                       double seconds) {
    double bytes, flops;
    char   shape[200];
    cr_op_cost(&unit->program, unit->op, &bytes, &flops);
    checkops_unit_text(unit, shape, sizeof shape);
    const double roof = CR_MAX(bytes / w->device->caps.bytes_per_s, flops / cr_device_flops(w->device, row->math));
    printf("     %-22s %9.1f us %7.2f GB/s %8.2f GFLOP/s %5.1f %% of the roof  %s\n", row->name, seconds * 1e6,
           bytes / seconds * 1e-9, flops / seconds * 1e-9, 100 * roof / seconds, shape);
}

struct sight { /* a draw and what the reference says about it */
    const struct checkops_unit *unit;
    const struct checkops_draw *draw;
    struct checkops_inputs      inputs;
    struct cr_verify_expected   truth;
};

/* The relaxations that change the bounds of this op. */
static unsigned relevant_relaxations(const struct cr_op *op, unsigned relaxations) {
    const bool forward = op->kind == CR_OP_conv, backward = op->kind == CR_OP_conv_dgrad;
    unsigned   kinds = 0;
    if (forward && op->in[CR_IN_conv_bias] >= 0) kinds |= CR_RELAXED_HALF_BIAS;
    if ((forward && op->in[CR_IN_conv_add] >= 0) || (backward && op->in[CR_IN_conv_dgrad_add] >= 0))
        kinds |= CR_RELAXED_ROUNDED_SUM;
    if (backward && op->in[CR_IN_conv_dgrad_bn_x] >= 0) kinds |= CR_RELAXED_ZERO_GRADIENT;
    return relaxations & kinds;
}

/* Adapts a reference result to another kernel with this math and these relaxations. Returns false when it must be
 * computed again. */
static bool reuse_expected(struct cr_verify_expected *expected, enum cr_math math, unsigned relaxations) {
    if (!expected->op ||
        relevant_relaxations(expected->op, expected->relaxations) != relevant_relaxations(expected->op, relaxations))
        return false;
    const struct cr_verify_unit *a = cr_verify_unit(math), *b = cr_verify_unit(expected->math);
    const bool by_unit = cr_verify_rule(expected->op->kind)->by_unit || cr_verify_fuses_finalize(expected->op);
    if (by_unit && (a->sum != b->sum || a->operand != b->operand || a->drift != b->drift)) return false;
    expected->math        = math;
    expected->relaxations = relaxations;
    return true;
}

static cr_status sight_truth(struct checkops_runner *w, struct sight *s, const struct cr_kernel *row) {
    struct cr_verify_io io    = {.relaxations = row->relaxations};
    const int64_t       start = cr_time_ns();
    if (reuse_expected(&s->truth, row->math, row->relaxations)) return CR_OK;
    for (int i = 0; i < CR_OP_IN_MAX; i++) io.in[i] = s->inputs.in[i];
    for (int i = 0; i < CR_OP_OUT_MAX; i++) io.before[i] = s->inputs.before[i];
    cr_verify_expected_free(&s->truth);
    CR_TRY(cr_verify_expected_make(s->unit->c.big ? w->wide_cpu : w->cpu, &s->unit->program, s->unit->op, row->math,
                                   &s->unit->step, &io, &s->truth));
    w->reference_ns += cr_time_ns() - start;
    return CR_OK;
}

static cr_status walk_way(struct checkops_runner *w, struct sight *s, int i) {
    const struct cr_kernel *row = w->kernel[i];
    struct checkops_verdict verdict;
    double                  seconds;
    if (w->bench) {
        CR_TRY(checkops_time(&w->arena, row, s->unit, &s->inputs, &seconds));
        bench_line(w, row, s->unit, seconds);
        w->tally[i].runs++;
        return CR_OK;
    }
    CR_TRY(sight_truth(w, s, row));
    const int64_t start = cr_time_ns();
    CR_TRY(checkops_kernel(&w->arena, row, s->unit, &s->inputs, &s->truth, &verdict));
    w->device_ns += cr_time_ns() - start;
    tally_add(w, i, s->unit, s->draw, &verdict);
    return CR_OK;
}

/* The row's own favourite way of doing it; when asked, on ordinary numbers, all of its ways. */
static cr_status walk_row(struct checkops_runner *w, struct checkops_unit *unit, struct sight *s, int i) {
    const bool all    = w->algos && w->kernel[i]->algo_count && s->draw->family == FAMILY_NORMAL;
    const int  ways   = all ? w->kernel[i]->algo_count(w->device, &unit->program, unit->op) : 1;
    cr_status  status = CR_OK;
    for (int way = 0; way < CR_MAX(ways, 1) && status == CR_OK; way++) {
        unit->program.op[0].algo = way;
        status                   = walk_way(w, s, i);
    }
    unit->program.op[0].algo = 0;
    return status;
}

/* All rows on one draw; they share a truth. */
static cr_status walk_draw(struct checkops_runner *w, struct checkops_unit *unit, const struct checkops_draw *draw) {
    struct sight s = {.unit = unit, .draw = draw};
    cr_status    status;
    CR_TRY_OUT(checkops_inputs_make(unit, draw, &s.inputs));
    for (int i = 0; i < w->kernels; i++)
        if (wanted(w, i, unit)) CR_TRY_OUT(walk_row(w, unit, &s, i));
out:
    cr_verify_expected_free(&s.truth);
    checkops_inputs_free(&s.inputs);
    return status;
}

static cr_status walk_case(struct checkops_runner *w, const struct checkops_case *c, int index) {
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

cr_status checkops_runner(struct checkops_runner *w, const struct checkops_list *list) {
    w->arena.device = w->device;
    for (w->kernels = 0; w->device->kernels[w->kernels]; w->kernels++) {
        CR_ASSERT(w->kernels < CHECKOPS_KERNELS_MAX);
        w->kernel[w->kernels] = w->device->kernels[w->kernels];
    }
    for (int i = 0; i < list->count; i++) {
        const struct checkops_case *c = &list->item[i];
        if (w->bench ? !c->big : c->timed) continue;
        if (w->shards && i % w->shards != w->shard) continue;
        if (w->until_ns && cr_time_ns() > w->until_ns) {
            w->cut = true;
            break;
        }
        if (w->only_tf32 && (c->real != CR_F32 || !has_tf32(w, c->kind))) continue;
        CR_TRY(walk_case(w, c, i));
        if (w->until_failure && w->failures) break;
    }
    return CR_OK;
}
