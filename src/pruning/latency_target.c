/* pruning/latency_target.c: which point of each layer's table keeps a time with the least loss. See pruning/pruning.h.
 */
#include "pruning/pruning.h"

#include <math.h>
#include <string.h>

/* Parts of the time above the fastest points; parts of a point are rounded up, so that the budget holds. */
enum { PARTS = 1 << 14, POINTS_MAX = 255 };

/* The fastest; of equals the one that loses least. */
static int fastest(const struct cr_prune_point *point, int points) {
    int best = 0;
    for (int i = 1; i < points; i++) {
        const struct cr_prune_point *a = &point[i], *b = &point[best];
        if (a->seconds < b->seconds || (a->seconds == b->seconds && a->lost < b->lost)) best = i;
    }
    return best;
}

/* Parts that a point takes; PARTS + 1: more than there are. */
static int parts_of(double above, double slack) {
    if (above <= 0) return 0;
    return above <= slack ? (int)CR_MIN(ceil(above / slack * PARTS), PARTS) : PARTS + 1;
}

/* least[q]: the least loss of the layers so far in q parts; it becomes that with one layer more, whose points go to
 * from[q]. */
static void add_layer(const struct cr_prune_point *point, int points, double slack, const double *least, double *next,
                      uint8_t *from) {
    const double base = point[fastest(point, points)].seconds;
    for (int q = 0; q <= PARTS; q++) next[q] = INFINITY;
    for (int i = 0; i < points; i++)
        for (int c = parts_of(point[i].seconds - base, slack), q = c; q <= PARTS; q++) {
            const double lost = least[q - c] + point[i].lost;
            if (lost >= next[q]) continue;
            next[q] = lost;
            from[q] = (uint8_t)i;
        }
}

static cr_status choose(const struct cr_prune_point *point, int layers, int points, double slack, int *choice) {
    double   *least = cr_alloc(PARTS + 1, sizeof *least), *next = cr_alloc(PARTS + 1, sizeof *next), *other;
    uint8_t  *from   = cr_alloc((size_t)CR_MAX(layers, 1) * (PARTS + 1), 1);
    cr_status status = CR_OK;
    int       q      = PARTS;
    if (!least || !next || !from) CR_FAIL_OUT(CR_ERR_MEMORY, "no memory to choose among %d layers", layers);
    for (int l = 0; l < layers; l++) {
        add_layer(point + l * points, points, slack, least, next, from + (size_t)l * (PARTS + 1));
        other = least;
        least = next;
        next  = other;
    }
    for (int l = layers - 1; l >= 0; l--) {
        const struct cr_prune_point *row = point + l * points;
        choice[l]                        = from[(size_t)l * (PARTS + 1) + (size_t)q];
        q -= parts_of(row[choice[l]].seconds - row[fastest(row, points)].seconds, slack);
    }
out:
    cr_free(least);
    cr_free(next);
    cr_free(from);
    return status;
}

cr_status cr_prune_choose(const struct cr_prune_point *point, int layers, int points, double budget, int *choice,
                          double *seconds) {
    double sum = 0;
    CR_ASSERT(points > 0 && points <= POINTS_MAX);
    for (int l = 0; l < layers; l++) {
        choice[l] = fastest(point + l * points, points);
        sum += point[l * points + choice[l]].seconds;
    }
    if (sum <= budget) CR_TRY(choose(point, layers, points, budget - sum, choice));
    *seconds = 0;
    for (int l = 0; l < layers; l++) *seconds += point[l * points + choice[l]].seconds;
    return CR_OK;
}
