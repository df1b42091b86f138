/* cli/budget/problem.c: the search problem: a variable for the width of each group, a factor for each op. See
 * cli/budget/budget.h. */
#include "cli/budget/budget.h"

#include <string.h>

/* ---- variables and scopes ---- */

static cr_status add_variables(struct cr_budget *b) {
    struct cr_budget_problem *p      = &b->problem;
    const struct cr_widths   *w      = &b->source.widths;
    const int                 groups = w->groups->groups;
    CR_ARENA_ALLOC(&p->arena, p->variable_of, (size_t)groups + 1);
    CR_ARENA_ALLOC(&p->arena, p->group_of, (size_t)groups + 1);
    CR_ALLOC(p->search.values, (size_t)groups + 1);
    for (int k = 0; k < groups; k++) {
        p->variable_of[k] = CR_NONE;
        if (w->levels[k] < 2) continue;
        p->variable_of[k]                       = p->search.variables;
        p->group_of[p->search.variables]        = k;
        p->search.values[p->search.variables++] = w->levels[k];
    }
    return CR_OK;
}

/* A factor for each op whose cost or loss a choice changes. */
static cr_status add_scopes(struct cr_budget *b) {
    const struct cr_program  *p      = &b->clock.program;
    struct cr_search_problem *search = &b->problem.search;
    CR_ALLOC(search->factor, (size_t)p->ops + 1);
    CR_ARENA_ALLOC(&b->problem.arena, b->problem.factor_op, (size_t)p->ops + 1);
    for (int i = p->hoisted; i < p->ops; i++) {
        const int groups = cr_budget_op_groups(&b->axes, &p->op[i], b->problem.group);
        int       layer[CR_BUDGET_OP_LAYERS], choices = 0;
        const int layers = cr_budget_op_layers(&b->axes, &p->op[i], layer);
        for (int l = 0; l < layers; l++) choices += b->layers.at[layer[l]].choices;
        if (!groups && !choices) continue;
        struct cr_search_factor *f              = &search->factor[search->factors];
        b->problem.factor_op[search->factors++] = i;
        f->variables                            = groups;
        CR_ALLOC(f->variable, (size_t)groups + 1);
        for (int k = 0; k < groups; k++) f->variable[k] = b->problem.variable_of[b->problem.group[k]];
    }
    return CR_OK;
}

/* ---- costs ---- */

/* The cost of an op at the present levels, or of its parts where the compiler does not fuse them. Where no kernel
 * accepts either, other ops run instead, whose cost is not known: narrower channels shall not seem to save time then.
 */
static cr_status cost_at(struct cr_budget *b, const struct cr_op *op, double full, double *cost) {
    struct cr_program *p = &b->clock.program;
    double             parts;
    bool               known, known_parts;
    cr_budget_resize(&b->axes, p, &b->clock.model, op, b->problem.level);
    CR_TRY(cr_budget_op_cost(&b->clock, p, op, cost, &known));
    CR_TRY(cr_budget_parts_cost(&b->clock, p, op, &parts, &known_parts));
    if (known_parts && (!known || parts < *cost))
        *cost = parts;
    else if (!known)
        *cost = full;
    return CR_OK;
}

static void restore(struct cr_budget *b, const struct cr_op *op) {
    memset(b->problem.level, 0, (size_t)b->source.widths.groups->groups * sizeof *b->problem.level);
    cr_budget_resize(&b->axes, &b->clock.program, &b->clock.model, op, b->problem.level);
}

/* The options at the present levels: dense, and each pattern that fits the widths. */
static void add_options(const struct cr_budget *b, const struct cr_op *op, double cost, struct cr_search_factor *f,
                        int combination) {
    int       layer[CR_BUDGET_OP_LAYERS];
    const int layers = cr_budget_op_layers(&b->axes, op, layer);
    int       at     = f->first[combination];
    double    left = 1, loss = 0;
    for (int l = 0; l < layers; l++) {
        const struct cr_budget_layer *q = &b->layers.at[layer[l]];
        left                            = cr_width_left(q->bins, q->energy, b->problem.level);
        loss += 1 - left;
    }
    f->option[at++] = (struct cr_search_option){cost, loss, CR_NONE};
    for (int c = 0; layers == 1 && c < b->layers.at[layer[0]].choices; c++) {
        const struct cr_budget_layer  *q = &b->layers.at[layer[0]];
        const struct cr_budget_choice *x = &q->choice[c];
        if (cr_width_of(&q->bins[CR_AXIS_K], b->problem.level) % x->outputs ||
            cr_width_of(&q->bins[CR_AXIS_C], b->problem.level) % x->inputs)
            continue;
        f->option[at++] = (struct cr_search_option){cost * x->ratio, 1 - left * x->left, c};
    }
    f->first[combination + 1] = at;
}

static int combinations_of(const struct cr_budget *b, const struct cr_search_factor *f) {
    int count = 1;
    for (int i = 0; i < f->variables; i++) count *= b->problem.search.values[f->variable[i]];
    return count;
}

static void set_levels(const struct cr_budget *b, const struct cr_search_factor *f, int combination) {
    for (int i = f->variables - 1; i >= 0; i--) {
        const int values                                      = b->problem.search.values[f->variable[i]];
        b->problem.level[b->problem.group_of[f->variable[i]]] = combination % values;
        combination /= values;
    }
}

static cr_status fill_factor(struct cr_budget *b, struct cr_search_factor *f, const struct cr_op *op, double full) {
    const int count = combinations_of(b, f);
    int       layer[CR_BUDGET_OP_LAYERS], choices = 0;
    const int layers = cr_budget_op_layers(&b->axes, op, layer);
    if (layers == 1) choices = b->layers.at[layer[0]].choices;
    for (int l = 0; l < layers; l++) b->layers.at[layer[l]].dense_cost = full;
    CR_ALLOC(f->first, (size_t)count + 1);
    CR_ALLOC(f->option, (size_t)count * (size_t)(1 + choices));
    for (int i = 0; i < count; i++) {
        double cost;
        set_levels(b, f, i);
        CR_TRY(cost_at(b, op, full, &cost));
        add_options(b, op, cost, f, i);
    }
    restore(b, op);
    return CR_OK;
}

static cr_status add_options_of_ops(struct cr_budget *b) {
    const struct cr_program  *p      = &b->clock.program;
    struct cr_search_problem *search = &b->problem.search;
    for (int i = p->hoisted, f = 0; i < p->ops; i++) {
        double full;
        bool   known;
        CR_TRY(cr_budget_op_cost(&b->clock, p, &p->op[i], &full, &known));
        b->problem.dense += full;
        if (f == search->factors || b->problem.factor_op[f] != i) {
            int       layer[CR_BUDGET_OP_LAYERS];
            const int layers = cr_budget_op_layers(&b->axes, &p->op[i], layer);
            for (int l = 0; l < layers; l++) b->layers.at[layer[l]].dense_cost = full;
            b->problem.fixed += full;
            continue;
        }
        CR_TRY(fill_factor(b, &search->factor[f++], &p->op[i], full));
    }
    return CR_OK;
}

static cr_status open_scopes(struct cr_budget *b) {
    const size_t groups = (size_t)b->source.widths.groups->groups + 1;
    CR_ARENA_ALLOC(&b->problem.arena, b->problem.level, groups);
    CR_ARENA_ALLOC(&b->problem.arena, b->problem.group, groups);
    CR_TRY(add_variables(b));
    return add_scopes(b);
}

cr_status cr_budget_problem_open(struct cr_budget *b) {
    CR_TRY(open_scopes(b));
    return add_options_of_ops(b);
}

cr_status cr_budget_problem_size(struct cr_budget *b, double *size) {
    const cr_status status = open_scopes(b);
    if (status == CR_OK) *size = cr_search_size(&b->problem.search);
    cr_budget_problem_close(&b->problem);
    return status;
}

void cr_budget_problem_close(struct cr_budget_problem *p) {
    cr_search_problem_free(&p->search);
    cr_arena_free(&p->arena);
    *p = (struct cr_budget_problem){0};
}
