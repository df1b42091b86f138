/* pruning/budget/lists.c: lists of the best options (Pareto front) of a search; see pruning/budget/search.h. */
#include "pruning/budget/lists.h"

#include <math.h>
#include <string.h>

enum { PAIRS_MAX = 1 << 25 }; /* pairs of options that one sum of two lists looks at */

int cr_search_add_trail(struct cr_search_state *s, enum cr_search_origin origin, int a, int b, int below) {
    if (s->trails == CR_SEARCH_TRAILS_MAX) {
        s->failed = s->full = true;
        return 0;
    }
    if (s->trails == s->capacity) {
        const int               capacity = CR_MAX(2 * s->capacity, 4096);
        struct cr_search_trail *more     = cr_alloc((size_t)capacity, sizeof *more);
        if (!more) {
            s->failed = true;
            return 0;
        }
        if (s->trails) memcpy(more, s->trail, (size_t)s->trails * sizeof *more);
        cr_free(s->trail);
        s->trail    = more;
        s->capacity = capacity;
    }
    s->trail[s->trails] = (struct cr_search_trail){origin, a, b, below};
    return s->trails++;
}

void cr_search_clear_cells(struct cr_search_state *s) {
    for (int i = s->first; i <= s->last; i++) s->cell[i].loss = s->cell[i].cost = INFINITY;
    s->first = s->parts + 2;
    s->last  = -1;
}

static bool is_better(const struct cr_search_state *s, const struct cr_search_point *old, double cost, double loss) {
    if (s->cheapest) return cost < old->cost || (cost <= old->cost && loss < old->loss);
    return loss < old->loss || (loss <= old->loss && cost < old->cost);
}

struct cr_search_point *cr_search_find_cell(struct cr_search_state *s, double floor, double cost, double loss,
                                            double *error) {
    const double above = cost - floor;
    if (!s->cheapest && above > s->slack + 1e-12 * fabs(s->budget)) return NULL;
    const int               at  = s->cheapest || s->part <= 0 ? 0 : (int)CR_MIN(fmax(above, 0) / s->part, s->parts + 1);
    struct cr_search_point *old = &s->cell[at];
    const bool              better = is_better(s, old, cost, loss);
    if (!s->cheapest && isfinite(old->loss)) {
        const double in = better ? cost : old->cost, out = better ? old->cost : cost;
        if (out < in) *error = CR_MAX(*error, s->part);
    }
    if (at < s->first) s->first = at;
    if (at > s->last) s->last = at;
    return better ? old : NULL;
}

cr_status cr_search_take(struct cr_search_state *s, struct cr_search_list *out) {
    double least = INFINITY;
    int    count = 0;
    for (int i = s->first; i <= s->last; i++) {
        if (s->cell[i].loss >= least) {
            s->cell[i].loss = INFINITY;
            continue;
        }
        least = s->cell[i].loss;
        count++;
    }
    *out = (struct cr_search_list){.point = cr_alloc((size_t)count, sizeof *out->point)};
    if (!out->point) return CR_NO_MEMORY((size_t)count * sizeof *out->point);
    for (int i = s->first; i <= s->last; i++)
        if (isfinite(s->cell[i].loss)) out->point[out->count++] = s->cell[i];
    return CR_OK;
}

/* At most about `most` options: the first one, and of each further run of neighbours the last one, which has the least
 * loss. Returns the largest range of cost of a run. */
static double shorten(struct cr_search_list *l, int most) {
    const int n     = (l->count + most - 1) / most;
    int       count = 1;
    double    range = 0;
    for (int i = 1; i < l->count && n > 1; i += n) {
        const int last    = CR_MIN(i + n, l->count) - 1;
        range             = CR_MAX(range, l->point[last].cost - l->point[i].cost);
        l->point[count++] = l->point[last];
    }
    if (n > 1) l->count = count;
    return range;
}

cr_status cr_search_add_lists(struct cr_search_state *s, struct cr_search_list *a, struct cr_search_list *b,
                              double floor, struct cr_search_list *out, double *error) {
    double ranges = 0;
    if ((double)a->count * b->count > PAIRS_MAX) {
        const int most = CR_MAX(PAIRS_MAX / CR_MIN(a->count, b->count), 1 << 11);
        *error += shorten(a, most);
        *error += shorten(b, most);
    }
    cr_search_clear_cells(s);
    for (int i = 0; i < a->count; i++)
        for (int k = 0; k < b->count; k++) {
            const double cost = a->point[i].cost + b->point[k].cost, loss = a->point[i].loss + b->point[k].loss;
            struct cr_search_point *cell = cr_search_find_cell(s, floor, cost, loss, &ranges);
            if (cell) *cell = (struct cr_search_point){cost, loss, i * b->count + k};
        }
    *error += ranges;
    CR_TRY(cr_search_take(s, out));
    for (int i = 0; i < out->count; i++) {
        const int pair = out->point[i].trail;
        out->point[i].trail =
            cr_search_add_trail(s, CR_FROM_SUM, a->point[pair / b->count].trail, b->point[pair % b->count].trail, 0);
    }
    return CR_OK;
}
