/* pruning/budget/search.c: finds the values with the least loss within a budget; see pruning/budget/search.h. */
#include "pruning/budget/lists.h"

#include <math.h>
#include <string.h>

/* ---- combinations ---- */

static double combinations(const struct cr_search_state *s, const int *variable, int variables) {
    double count = 1;
    for (int i = 0; i < variables; i++) count *= s->problem->values[variable[i]];
    return count;
}

/* Index in a table of a combination: value[variable]. */
static size_t index_of(const struct cr_search_state *s, const struct cr_search_table *t, const int *value) {
    size_t at = 0;
    for (int i = 0; i < t->variables; i++)
        at = at * (size_t)s->problem->values[t->variable[i]] + (size_t)value[t->variable[i]];
    return at;
}

/* Advances the values of the variables, the last one first; false after the last combination. */
static bool advance(const struct cr_search_state *s, const int *variable, int variables, int *value) {
    for (int i = variables - 1; i >= 0; i--) {
        if (++value[variable[i]] < s->problem->values[variable[i]]) return true;
        value[variable[i]] = 0;
    }
    return false;
}

static bool has_variable(const struct cr_search_table *t, int variable) {
    for (int i = 0; i < t->variables; i++)
        if (t->variable[i] == variable) return true;
    return false;
}

/* Adds a variable in ascending order; false when there are too many. */
static bool add_variable(int *variable, int *variables, int v) {
    int at = 0;
    while (at < *variables && variable[at] < v) at++;
    if (at < *variables && variable[at] == v) return true;
    if (*variables == CR_SEARCH_SCOPE) return false;
    memmove(variable + at + 1, variable + at, (size_t)(*variables - at) * sizeof *variable);
    variable[at] = v;
    (*variables)++;
    return true;
}

static bool is_needed(const struct cr_search_state *s, int v) {
    for (int t = 0; t < s->tables; t++)
        if (!s->table[t].used && has_variable(&s->table[t], v)) return true;
    return false;
}

/* The variables of all unused tables with `v`, which is left out; returns their number, or CR_SEARCH_NONE when
 * there are too many. */
static int joint_scope(const struct cr_search_state *s, int v, int *variable) {
    int variables = 0;
    for (int t = 0; t < s->tables; t++) {
        if (s->table[t].used || !has_variable(&s->table[t], v)) continue;
        for (int i = 0; i < s->table[t].variables; i++)
            if (s->table[t].variable[i] != v && !add_variable(variable, &variables, s->table[t].variable[i]))
                return CR_SEARCH_NONE;
    }
    return variables;
}

/* The variable with the smallest elimination step among those not `done`; *size: its combinations. */
static int next_variable(const struct cr_search_state *s, const bool *done, double *size) {
    int best = CR_SEARCH_NONE;
    for (int v = 0; v < s->problem->variables; v++) {
        int    variable[CR_SEARCH_SCOPE];
        double count;
        if (done[v]) continue;
        const int variables = joint_scope(s, v, variable);
        count = variables == CR_SEARCH_NONE ? INFINITY : combinations(s, variable, variables) * s->problem->values[v];
        if (best != CR_SEARCH_NONE && count >= *size) continue;
        best  = v;
        *size = count;
    }
    return best;
}

/* ---- elimination ---- */

static void free_table(const struct cr_search_state *s, struct cr_search_table *t) {
    if (t->list)
        for (size_t i = 0; i < (size_t)combinations(s, t->variable, t->variables); i++) cr_free(t->list[i].point);
    cr_free(t->list);
    t->list = NULL;
}

/* The sum of the lists of all tables with `v` (with CR_SEARCH_NONE: of all tables) for one combination of values.
 * The caller frees out->point, also after a failure. Adds to *error. */
static cr_status sum_of(struct cr_search_state *s, int v, const int *value, struct cr_search_list *out, double *error) {
    double    floor  = 0;
    cr_status status = CR_OK;
    *out             = (struct cr_search_list){0};
    for (int t = 0; t < s->tables && status == CR_OK; t++) {
        struct cr_search_table *table = &s->table[t];
        struct cr_search_list   more, sum = {0};
        if (table->used || (v != CR_SEARCH_NONE && !has_variable(table, v))) continue;
        floor += table->floor;
        const struct cr_search_list *from = &table->list[index_of(s, table, value)];
        CR_ALLOC(more.point, (size_t)from->count);
        more.count = from->count;
        if (from->count) memcpy(more.point, from->point, (size_t)from->count * sizeof *from->point);
        if (out->point) {
            status = cr_search_add_lists(s, out, &more, floor, &sum, error);
            cr_free(out->point);
            cr_free(more.point);
            more = sum;
        }
        *out = more;
    }
    return status;
}

/* For one combination of the other variables: the best options of all values of `v`. */
static cr_status best_of(struct cr_search_state *s, int v, int *value, double floor, struct cr_search_list *out,
                         double *error) {
    struct cr_search_list *by_value;
    double                 most = 0, ranges = 0;
    cr_status              status = CR_OK;
    CR_ALLOC(by_value, (size_t)s->problem->values[v]);
    for (value[v] = 0; value[v] < s->problem->values[v] && status == CR_OK; value[v]++) {
        double here = 0;
        status      = sum_of(s, v, value, &by_value[value[v]], &here);
        most        = CR_MAX(most, here);
    }
    value[v] = 0;
    cr_search_clear_cells(s);
    for (int x = 0; x < s->problem->values[v] && status == CR_OK; x++)
        for (int i = 0; i < by_value[x].count; i++) {
            const struct cr_search_point *p    = &by_value[x].point[i];
            struct cr_search_point       *cell = cr_search_find_cell(s, floor, p->cost, p->loss, &ranges);
            if (cell)
                *cell =
                    (struct cr_search_point){p->cost, p->loss, cr_search_add_trail(s, CR_FROM_VALUE, v, x, p->trail)};
        }
    *error = CR_MAX(*error, most + ranges);
    if (status == CR_OK) status = cr_search_take(s, out);
    for (int x = 0; x < s->problem->values[v]; x++) cr_free(by_value[x].point);
    cr_free(by_value);
    return status;
}

static cr_status eliminate(struct cr_search_state *s, int v) {
    struct cr_search_table *to    = &s->table[s->tables];
    int                    *value = cr_alloc((size_t)s->problem->variables, sizeof *value);
    int                     variable[CR_SEARCH_SCOPE];
    const int               variables = joint_scope(s, v, variable);
    double                  error     = 0;
    cr_status               status    = CR_OK;
    if (!value) return CR_NO_MEMORY((size_t)s->problem->variables * sizeof *value);
    *to = (struct cr_search_table){.variables = CR_MAX(variables, 0)};
    memcpy(to->variable, variable, (size_t)to->variables * sizeof *variable);
    CR_ALLOC_OUT(to->list, (size_t)combinations(s, variable, to->variables));
    for (int t = 0; t < s->tables; t++)
        if (!s->table[t].used && has_variable(&s->table[t], v)) {
            to->floor += s->table[t].floor;
            to->error += s->table[t].error;
        }
    do {
        CR_TRY_OUT(best_of(s, v, value, to->floor, &to->list[index_of(s, to, value)], &error));
        if (s->failed) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory: choosing widths and patterns");
    } while (advance(s, to->variable, to->variables, value));
    to->error += error;
    for (int t = 0; t < s->tables; t++)
        if (!s->table[t].used && has_variable(&s->table[t], v)) {
            s->table[t].used = true;
            free_table(s, &s->table[t]);
        }
out:
    s->tables++; /* also after a failure, so that it is freed */
    cr_free(value);
    return status;
}

/* ---- the first tables ---- */

/* The options of one combination of a factor that are not dominated. */
static cr_status add_options(struct cr_search_state *s, int f, size_t combination, double floor,
                             struct cr_search_list *out, double *error) {
    const struct cr_search_factor *factor = &s->problem->factor[f];
    cr_search_clear_cells(s);
    for (int o = factor->first[combination]; o < factor->first[combination + 1]; o++) {
        const struct cr_search_option *option = &factor->option[o];
        struct cr_search_point        *cell   = cr_search_find_cell(s, floor, option->cost, option->loss, error);
        if (cell) *cell = (struct cr_search_point){option->cost, option->loss, o};
    }
    CR_TRY(cr_search_take(s, out));
    for (int i = 0; i < out->count; i++)
        out->point[i].trail = cr_search_add_trail(s, CR_FROM_FACTOR, f, out->point[i].trail, 0);
    return CR_OK;
}

static double least_cost(const struct cr_search_state *s, const struct cr_search_factor *f) {
    const size_t count = (size_t)combinations(s, f->variable, f->variables);
    double       least = INFINITY;
    for (int o = 0; o < f->first[count]; o++) least = CR_MIN(least, f->option[o].cost);
    return least;
}

static cr_status add_factor(struct cr_search_state *s, int f) {
    const struct cr_search_factor *factor = &s->problem->factor[f];
    struct cr_search_table        *to     = &s->table[s->tables++];
    const size_t                   count  = (size_t)combinations(s, factor->variable, factor->variables);
    CR_ASSERT(factor->variables <= CR_SEARCH_SCOPE);
    *to = (struct cr_search_table){.variables = factor->variables, .floor = least_cost(s, factor)};
    memcpy(to->variable, factor->variable, (size_t)factor->variables * sizeof *factor->variable);
    CR_ALLOC(to->list, count);
    for (size_t i = 0; i < count; i++) CR_TRY(add_options(s, f, i, to->floor, &to->list[i], &to->error));
    return s->failed ? CR_NO_MEMORY(sizeof *s->trail) : CR_OK;
}

/* ---- the result ---- */

static cr_status follow(const struct cr_search_state *s, int trail, struct cr_search_result *out) {
    int *stack, count = 0; /* sums of sums: depth-first */
    CR_ALLOC(stack, (size_t)s->problem->factors + (size_t)s->problem->variables + 2);
    stack[count++] = trail;
    while (count) {
        const struct cr_search_trail *t = &s->trail[stack[--count]];
        if (t->origin == CR_FROM_FACTOR)
            out->option[t->a] = t->b;
        else if (t->origin == CR_FROM_VALUE) {
            out->value[t->a] = t->b;
            stack[count++]   = t->below;
        } else {
            stack[count++] = t->a;
            stack[count++] = t->b;
        }
    }
    cr_free(stack);
    return CR_OK;
}

static cr_status finish(struct cr_search_state *s, struct cr_search_result *out) {
    struct cr_search_list all;
    double                error = 0;
    int                   at    = 0;
    int                  *value = cr_alloc((size_t)s->problem->variables + 1, sizeof *value);
    if (!value) return CR_NO_MEMORY((size_t)s->problem->variables * sizeof *value);
    for (int t = 0; t < s->tables; t++) error += s->table[t].used ? 0 : s->table[t].error;
    cr_status status = sum_of(s, CR_SEARCH_NONE, value, &all, &error);
    while (at + 1 < all.count && all.point[at + 1].cost <= s->budget) at++;
    out->cost = INFINITY; /* nothing fits */
    if (status == CR_OK && all.count) {
        out->cost = all.point[at].cost;
        out->loss = all.point[at].loss;
        out->gap  = s->cheapest ? 0 : error;
        status    = follow(s, all.point[at].trail, out);
    }
    cr_free(all.point);
    cr_free(value);
    return status;
}

/* Looks at scopes only. */
double cr_search_size(const struct cr_search_problem *problem) {
    struct cr_search_state s       = {.problem = problem};
    bool                  *done    = cr_alloc((size_t)problem->variables + 1, sizeof *done);
    double                 largest = 0;
    s.table                        = cr_alloc((size_t)(problem->factors + problem->variables) + 1, sizeof *s.table);
    if (!done || !s.table) largest = INFINITY;
    for (int f = 0; f < problem->factors && isfinite(largest); f++) {
        struct cr_search_table *t = &s.table[s.tables++];
        t->variables              = problem->factor[f].variables;
        memcpy(t->variable, problem->factor[f].variable, (size_t)t->variables * sizeof *t->variable);
    }
    for (int i = 0; i < problem->variables && isfinite(largest); i++) {
        double    size;
        const int v                = next_variable(&s, done, &size);
        done[v]                    = true;
        largest                    = CR_MAX(largest, size);
        struct cr_search_table *to = &s.table[s.tables];
        to->variables              = CR_MAX(joint_scope(&s, v, to->variable), 0);
        for (int t = 0; t < s.tables; t++) s.table[t].used |= has_variable(&s.table[t], v);
        s.tables++;
    }
    cr_free(s.table);
    cr_free(done);
    return largest;
}

/* *full: the lists are too long for the memory that the search may have. */
static cr_status run(const struct cr_search_problem *problem, double budget, int parts, bool *full,
                     struct cr_search_result *out) {
    const bool             cheapest = !parts;
    struct cr_search_state s        = {
               .problem = problem, .budget = budget, .cheapest = cheapest, .slack = budget, .parts = parts};
    bool     *done = cr_alloc((size_t)problem->variables + 1, sizeof *done);
    double    size;
    cr_status status = CR_OK;
    s.table          = cr_alloc((size_t)(problem->factors + problem->variables) + 1, sizeof *s.table);
    if (!done || !s.table) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory: choosing widths and patterns");
    for (int f = 0; f < problem->factors; f++) s.slack -= least_cost(&s, &problem->factor[f]);
    s.part = cheapest ? 0 : s.slack / parts;
    s.last = parts + 1;
    CR_ALLOC_OUT(s.cell, (size_t)parts + 2);
    for (int f = 0; f < problem->factors; f++) CR_TRY_OUT(add_factor(&s, f));
    for (int i = 0; i < problem->variables; i++) {
        const int v = next_variable(&s, done, &size);
        done[v]     = true;
        if (is_needed(&s, v)) CR_TRY_OUT(eliminate(&s, v)); /* else any value does: 0 */
    }
    CR_TRY_OUT(finish(&s, out));
out:
    *full = s.full;
    for (int t = 0; t < s.tables; t++) free_table(&s, &s.table[t]);
    cr_free(s.table);
    cr_free(s.trail);
    cr_free(s.cell);
    cr_free(done);
    return status;
}

static cr_status open_result(const struct cr_search_problem *problem, struct cr_search_result *out) {
    *out = (struct cr_search_result){.value  = cr_alloc((size_t)problem->variables + 1, sizeof *out->value),
                                     .option = cr_alloc((size_t)problem->factors + 1, sizeof *out->option)};
    return out->value && out->option ? CR_OK : CR_NO_MEMORY((size_t)problem->variables * sizeof *out->value);
}

/* The cheapest choice, or the one of least loss that the budget allows. */
static cr_status choose(const struct cr_search_problem *problem, double budget, struct cr_search_result *out) {
    struct cr_search_result other;
    bool                    full;
    CR_TRY(run(problem, budget, 0, &full, out));
    if (out->cost > budget) return CR_OK;
    cr_status status = open_result(problem, &other);
    full             = status == CR_OK; /* lists become shorter until they fit */
    for (int parts = CR_SEARCH_PARTS_MAX; full && parts >= CR_SEARCH_PARTS_MIN; parts /= 4) {
        cr_error_clear();
        status = run(problem, budget, parts, &full, &other);
    }
    if (status == CR_OK && other.cost <= budget) {
        const struct cr_search_result cheapest = *out;
        *out                                   = other;
        other                                  = cheapest;
    } else /* thinned lists may lack the only choice that fits */
        out->gap = other.gap;
    cr_search_free(&other);
    return status;
}

cr_status cr_search(const struct cr_search_problem *problem, double budget, struct cr_search_result *out) {
    CR_TRY(open_result(problem, out));
    CR_TRY(choose(problem, budget, out));
    out->cost = out->loss = 0; /* of the factors one after the other: lists add them in another order */
    for (int f = 0; f < problem->factors; f++) {
        const struct cr_search_option *option = &problem->factor[f].option[out->option[f]];
        out->cost += option->cost;
        out->loss += option->loss;
    }
    return CR_OK;
}

void cr_search_free(struct cr_search_result *r) {
    cr_free(r->value);
    cr_free(r->option);
    *r = (struct cr_search_result){0};
}

void cr_search_problem_free(struct cr_search_problem *p) {
    for (int f = 0; f < p->factors && p->factor; f++) {
        cr_free(p->factor[f].variable);
        cr_free(p->factor[f].first);
        cr_free(p->factor[f].option);
    }
    cr_free(p->factor);
    cr_free(p->values);
    *p = (struct cr_search_problem){0};
}
