/* pruning/latency_target.c: chooses the sparsity of each layer for a target time. See pruning/pruning.h. */
#include "pruning/pruning.h"

#include <math.h>
#include <string.h>

/* The time above the fastest points is divided into PARTS. The parts of a point are rounded up, so that the budget
 * holds. */
enum { PARTS = 1 << 14, POINTS_MAX = 255 };

/* The fastest point. Among equally fast points, the point with the least loss. */
static int fastest(const struct cr_prune_point *point, int points) {
    int best = 0;
    for (int i = 1; i < points; i++) {
        const struct cr_prune_point *a = &point[i], *b = &point[best];
        if (a->seconds < b->seconds || (a->seconds == b->seconds && a->lost < b->lost)) best = i;
    }
    return best;
}

/* Number of parts of a point; PARTS + 1 when it exceeds the budget. */
static int parts_of(double above, double slack) {
    if (above <= 0) return 0;
    return above <= slack ? (int)CR_MIN(ceil(above / slack * PARTS), PARTS) : PARTS + 1;
}

/* least[q]: the least loss of the previous layers in q parts. Sets next[q] to the least loss including one more layer,
 * and from[q] to the chosen point of this layer. */
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
    double   *least = cr_alloc(PARTS + 1, sizeof *least), *next = cr_alloc(PARTS + 1, sizeof *next), *previous;
    uint8_t  *from   = cr_alloc((size_t)CR_MAX(layers, 1) * (PARTS + 1), 1);
    cr_status status = CR_OK;
    int       q      = PARTS;
    if (!least || !next || !from)
        CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory: choosing the sparsity of %d layers", layers);
    for (int l = 0; l < layers; l++) {
        add_layer(point + l * points, points, slack, least, next, from + (size_t)l * (PARTS + 1));
        previous = least;
        least    = next;
        next     = previous;
    }
    for (int l = layers - 1; l >= 0; l--) {
        const struct cr_prune_point *p = point + l * points;
        choice[l]                      = from[(size_t)l * (PARTS + 1) + (size_t)q];
        q -= parts_of(p[choice[l]].seconds - p[fastest(p, points)].seconds, slack);
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
