/* compiler/gram/gram_choose.c: chooses by cost which candidates of compiler/gram/gram_bn.h are rewritten. */
#include "compiler/gram/gram_bn.h"
#include "compiler/passes.h"

#include <string.h>

static const double uncertainty = 0.002; /* of the measured time of a program */

/* Candidates with the same shapes have the same costs, so they are chosen together. */
struct group {
    int64_t x[4], w[4]; /* shapes of input and filter */
    int     stride;
    bool    chosen;
};

struct choice {
    const struct cr_cost_model *cost_model;
    struct group               *group; /* [groups] */
    int                         groups;
    int *group_of; /* [ops] of the unchanged program: the group of a candidate; CR_NONE: no candidate */
};

static struct group group_at(const struct cr_program *p, int conv) {
    const struct cr_op *op = &p->op[conv];
    struct group        g  = {.stride = op->attr.conv.stride};
    memcpy(g.x, p->tensor[op->in[CR_IN_conv_x]].dim, sizeof g.x);
    memcpy(g.w, p->tensor[op->in[CR_IN_conv_w]].dim, sizeof g.w);
    return g;
}

static int find_group(struct choice *c, const struct group *g) {
    for (int i = 0; i < c->groups; i++)
        if (memcmp(c->group[i].x, g->x, sizeof g->x) == 0 && memcmp(c->group[i].w, g->w, sizeof g->w) == 0 &&
            c->group[i].stride == g->stride)
            return i;
    c->group[c->groups] = *g;
    return c->groups++;
}

static void find_candidates(struct choice *c, const struct cr_edit *edit) {
    const struct cr_program *p = edit->program;
    struct cr_gram_candidate candidate;
    for (int i = 0; i < p->ops; i++) {
        c->group_of[i] = CR_NONE;
        if (p->op[i].kind != CR_OP_conv || !cr_gram_match(edit, i, &candidate)) continue;
        const struct group g = group_at(p, i);
        c->group_of[i]       = find_group(c, &g);
    }
}

/* Rewrites the candidates of the chosen groups. Op indices stay valid until the edit is finished. */
static void rewrite_chosen(const struct choice *c, struct cr_edit *edit) {
    struct cr_gram_candidate candidate;
    const int                ops = edit->program->ops;
    for (int i = 0; i < ops; i++)
        if (c->group_of[i] != CR_NONE && c->group[c->group_of[i]].chosen && cr_gram_match(edit, i, &candidate))
            (void)cr_gram_rewrite(edit, &candidate);
}

static cr_status rewrite(const struct choice *c, struct cr_program *program) {
    struct cr_edit edit;
    CR_TRY(cr_edit_open(&edit, program, c->cost_model));
    rewrite_chosen(c, &edit);
    const cr_status status = cr_edit_finish(&edit);
    cr_edit_close(&edit);
    return status;
}

/* *some: the device rewrites some of the chosen groups. */
static cr_status rewrites_some(const struct choice *c, const struct cr_program *program, bool *some) {
    struct cr_program copy;
    CR_TRY(cr_program_copy(program, &copy));
    const cr_status status = rewrite(c, &copy);
    *some                  = false;
    for (int i = 0; i < copy.ops && !*some; i++) *some = copy.op[i].kind == CR_OP_gram;
    cr_program_free(&copy);
    return status;
}

/* Seconds of the fused program with the chosen groups. */
static cr_status chosen_seconds(const struct choice *c, const struct cr_program *program, double *seconds) {
    struct cr_program copy;
    cr_status         status;
    *seconds = 0;
    CR_TRY(cr_program_copy(program, &copy));
    CR_TRY_OUT(rewrite(c, &copy));
    CR_TRY_OUT(cr_pass_fuse(&copy, c->cost_model));
    for (int i = 0; i < copy.ops; i++) {
        double op_s = 0;
        CR_TRY_OUT(c->cost_model->cost(c->cost_model->self, &copy, &copy.op[i], &op_s));
        *seconds += op_s;
    }
out:
    cr_program_free(&copy);
    return status;
}

static void choose_all(struct choice *c, bool chosen) {
    for (int g = 0; g < c->groups; g++) c->group[g].chosen = chosen;
}

/* Begins with all groups, because neighbours save more together than alone, and removes one after the other, the last
 * of the program first, when the program becomes faster by more than the error of the measured times. Below that a
 * group stays, because it saves memory. */
static cr_status choose_fastest(struct choice *c, const struct cr_program *program) {
    double plain_s, best_s, without_s;
    CR_TRY(chosen_seconds(c, program, &plain_s));
    choose_all(c, true);
    CR_TRY(chosen_seconds(c, program, &best_s));
    for (int g = c->groups - 1; g >= 0; g--) {
        c->group[g].chosen = false;
        CR_TRY(chosen_seconds(c, program, &without_s));
        c->group[g].chosen = without_s > best_s * (1 - uncertainty);
        if (!c->group[g].chosen) best_s = without_s;
    }
    if (plain_s <= best_s * (1 - uncertainty)) choose_all(c, false);
    return CR_OK;
}

static cr_status choose(struct choice *c, struct cr_program *program, enum cr_gram_mode mode) {
    struct cr_edit edit;
    bool           some;
    CR_TRY(cr_edit_open(&edit, program, c->cost_model));
    find_candidates(c, &edit);
    cr_edit_close(&edit);
    choose_all(c, true);
    CR_TRY(rewrites_some(c, program, &some));
    choose_all(c, some && mode == CR_GRAM_ALL);
    return some && mode == CR_GRAM_AUTO ? choose_fastest(c, program) : CR_OK;
}

cr_status cr_pass_gram(struct cr_program *program, const struct cr_cost_model *cost_model, enum cr_gram_mode mode) {
    const size_t  ops = (size_t)program->ops;
    struct choice c   = {.cost_model = cost_model};
    cr_status     status;
    if (mode == CR_GRAM_NO || (mode == CR_GRAM_AUTO && !cost_model->cost)) return CR_OK;
    CR_ALLOC_OUT(c.group, ops);
    CR_ALLOC_OUT(c.group_of, ops);
    CR_TRY_OUT(choose(&c, program, mode));
    CR_TRY_OUT(rewrite(&c, program));
out:
    cr_free(c.group);
    cr_free(c.group_of);
    return status;
}
