/* tests/checkops/checkops_enumerate.c: runs all cases on all kernels of a device. */
#include "tests/checkops/checkops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool wanted(const struct checkops_runner *w, int i, const struct checkops_unit *unit) {
    const struct cr_kernel *kernel = w->kernel[i];
    if (kernel->op != unit->op->kind || w->skip[i] || (w->filter && !strstr(kernel->name, w->filter))) return false;
    return cr_kernel_accepts(w->device, kernel, &unit->program, unit->op);
}

bool checkops_has_tf32(const struct checkops_runner *w, enum cr_op_kind kind) {
    for (int i = 0; i < w->kernels; i++)
        if (w->kernel[i]->op == kind && w->kernel[i]->math == CR_MATH_TF32) return true;
    return false;
}

static int count_wanted(const struct checkops_runner *w, const struct checkops_unit *unit, bool *has_fast) {
    int n     = 0;
    *has_fast = false;
    for (int i = 0; i < w->kernels; i++) {
        if (!wanted(w, i, unit)) continue;
        n++;
        *has_fast = *has_fast || !w->kernel[i]->reference;
    }
    return n;
}

static void tally_add(struct checkops_runner *w, int kernel, const struct checkops_unit *unit,
                      const struct checkops_draw *draw, const struct checkops_verdict *v) {
    struct checkops_tally *t = &w->tally[kernel];
    t->runs++;
    t->worst = CR_MAX(t->worst, v->worst);
    if (v->ok) return;
    w->failures++;
    char shape[200], family[60];
    checkops_unit_text(unit, shape, sizeof shape);
    checkops_draw_text(unit, draw, family, sizeof family);
    if (getenv("CHECKOPS_ALL")) printf("     %s: %s in %s, %s\n", w->kernel[kernel]->name, v->why, shape, family);
    if (t->failures++) return;
    snprintf(t->why, sizeof t->why, "%.399s\n       in %.150s, %.40s", v->why, shape, family);
}

struct sample { /* a draw and its expected result */
    const struct checkops_unit *unit;
    const struct checkops_draw *draw;
    struct checkops_inputs      inputs;
    struct cr_verify_expected   truth;
};

/* The relaxations that change the bounds of this op. */
static unsigned relevant_relaxations(const struct cr_op *op, unsigned relaxations) {
    const bool forward = op->kind == CR_OP_conv, backward = op->kind == CR_OP_conv_dgrad;
    unsigned   kinds = forward ? CR_RELAXED_TILE_ERROR | CR_RELAXED_SPLIT_INPUT : backward ? CR_RELAXED_TILE_ERROR : 0;
    if (forward && op->in[CR_IN_conv_bias] >= 0) kinds |= CR_RELAXED_HALF_BIAS;
    if ((forward && op->in[CR_IN_conv_add] >= 0) || (backward && op->in[CR_IN_conv_dgrad_add] >= 0))
        kinds |= CR_RELAXED_ROUNDED_SUM;
    return relaxations & kinds;
}

/* Adapts a reference result to another kernel with this math and these relaxations. Returns false when it must be
 * computed again. */
static bool reuse_expected(struct cr_verify_expected *expected, enum cr_math math, unsigned relaxations) {
    if (!expected->op ||
        relevant_relaxations(expected->op, expected->relaxations) != relevant_relaxations(expected->op, relaxations))
        return false;
    const struct cr_verify_unit *a = cr_verify_unit(math), *b = cr_verify_unit(expected->math);
    if (a->bf16_factors != b->bf16_factors) return false;
    const bool by_unit = cr_verify_rule(expected->op->kind)->by_unit || cr_verify_fuses_finalize(expected->op);
    if (by_unit && (a->sum != b->sum || a->operand != b->operand || a->drift != b->drift)) return false;
    expected->math        = math;
    expected->relaxations = relaxations;
    return true;
}

static cr_status sample_truth(struct checkops_runner *w, struct sample *s, const struct cr_kernel *kernel) {
    struct cr_verify_io io    = {.relaxations = kernel->relaxations};
    const int64_t       start = cr_time_ns();
    if (reuse_expected(&s->truth, kernel->math, kernel->relaxations)) return CR_OK;
    for (int i = 0; i < CR_OP_IN_MAX; i++) io.in[i] = s->inputs.in[i];
    for (int i = 0; i < CR_OP_OUT_MAX; i++) io.before[i] = s->inputs.before[i];
    cr_verify_expected_free(&s->truth);
    CR_TRY(cr_verify_expected_make(s->unit->c.big ? w->wide_cpu : w->cpu, &s->unit->program, s->unit->op, kernel->math,
                                   &s->unit->step, &io, &s->truth));
    w->reference_ns += cr_time_ns() - start;
    return CR_OK;
}

static cr_status run_algo(struct checkops_runner *w, struct sample *s, int i) {
    const struct cr_kernel *kernel = w->kernel[i];
    struct checkops_verdict verdict;
    CR_TRY(sample_truth(w, s, kernel));
    const int64_t start = cr_time_ns();
    CR_TRY(checkops_kernel(&w->arena, kernel, s->unit, &s->inputs, &s->truth, &verdict));
    w->device_ns += cr_time_ns() - start;
    tally_add(w, i, s->unit, s->draw, &verdict);
    return CR_OK;
}

/* Runs the default algorithm of the kernel; with --algos, for ordinary numbers, all of its algorithms. */
static cr_status run_algos(struct checkops_runner *w, struct checkops_unit *unit, struct sample *s, int i) {
    const bool all    = w->algos && w->kernel[i]->algo_count && s->draw->family == FAMILY_NORMAL;
    const int  algos  = all ? w->kernel[i]->algo_count(w->device, &unit->program, unit->op) : 1;
    cr_status  status = CR_OK;
    for (int algo = 0; algo < CR_MAX(algos, 1) && status == CR_OK; algo++) {
        unit->program.op[0].algo = algo;
        status                   = run_algo(w, s, i);
    }
    unit->program.op[0].algo = 0;
    return status;
}

/* Runs all kernels on one draw; kernels of equal math use the same expected result. */
static cr_status run_draw(struct checkops_runner *w, struct checkops_unit *unit, const struct checkops_draw *draw) {
    struct sample s = {.unit = unit, .draw = draw};
    cr_status     status;
    CR_TRY_OUT(checkops_inputs_make(unit, draw, &s.inputs));
    for (int i = 0; i < w->kernels; i++)
        if (wanted(w, i, unit)) CR_TRY_OUT(run_algos(w, unit, &s, i));
out:
    cr_verify_expected_free(&s.truth);
    checkops_inputs_free(&s.inputs);
    return status;
}

static cr_status run_case(struct checkops_runner *w, const struct checkops_case *c, int index) {
    struct checkops_unit unit;
    struct checkops_draw draws[CHECKOPS_DRAWS_MAX];
    cr_status            status = CR_OK;
    bool                 has_fast;
    CR_TRY(checkops_unit_make(c, &unit));
    if (count_wanted(w, &unit, &has_fast)) {
        const int n     = checkops_draws(&unit, index, draws);
        const int every = CR_MIN(CR_MAX(has_fast ? w->draws : w->reference_draws, 1), n), turn = w->cases % every;
        w->cases++;
        w->only_ref += !has_fast;
        for (int i = turn; i < n && status == CR_OK; i += every) status = run_draw(w, &unit, &draws[i]);
    }
    checkops_unit_free(&unit);
    return status;
}

/* Whether the runner's restrictions allow a case. */
static bool is_chosen(const struct checkops_runner *w, const struct checkops_list *list, int i) {
    const struct checkops_case *c = &list->item[i];
    if (w->shards && i % w->shards != w->shard) return false;
    return !w->only_tf32 || (c->real == CR_F32 && checkops_has_tf32(w, c->kind));
}

static bool is_last_of_kind(const struct checkops_runner *w, const struct checkops_list *list, int i) {
    for (int k = i + 1; k < list->count; k++)
        if (list->item[k].kind == list->item[i].kind && is_chosen(w, list, k)) return false;
    return true;
}

cr_status checkops_runner(struct checkops_runner *w, const struct checkops_list *list) {
    w->arena.device      = w->device;
    w->arena.guard_pages = w->guard_pages && w->device->caps.host_memory;
    for (w->kernels = 0; w->device->kernels[w->kernels]; w->kernels++) {
        CR_ASSERT(w->kernels < CHECKOPS_KERNELS_MAX);
        w->kernel[w->kernels] = w->device->kernels[w->kernels];
    }
    for (int i = 0; i < list->count; i++) {
        if (!is_chosen(w, list, i)) continue;
        if (w->until_ns && cr_time_ns() > w->until_ns) {
            w->cut = true;
            break;
        }
        CR_TRY(run_case(w, &list->item[i], i));
        if (w->kind_done && is_last_of_kind(w, list, i)) w->kind_done(w, list->item[i].kind);
        if (w->until_failure && w->failures) break;
    }
    return CR_OK;
}
