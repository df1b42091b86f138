/* pruning/widths.c: the number of channels that each group may keep, and their losses. See pruning/widths.h. */
#include "pruning/widths.h"

#include "config/config.h"

#include <stdlib.h>

/* ---- levels ---- */

/* Widths of a group: the full one, then multiples of a step. pad_shortcut needs the same number of channels on both
 * sides, so its groups lose an even number. */
static void set_levels(const struct cr_shrink *shrink, struct cr_widths *w, int k, int64_t unit, bool rounded) {
    const struct cr_channel_group *group = &shrink->groups->group[k];
    const int64_t                  wide  = (group->units + w->most - 1) / w->most;
    int64_t                        step  = rounded ? unit : (wide + unit - 1) / unit * unit;
    int                           *width = w->width + (size_t)k * (size_t)w->most;
    while (step < wide) step *= 2;
    width[w->levels[k]++] = group->units;
    if (shrink->keeps[k]) return;
    for (int64_t next = (group->units - 1) / step * step; next >= step && w->levels[k] < w->most; next -= step)
        if (!group->halves || (group->units - next) % 2 == 0) width[w->levels[k]++] = (int)next;
}

/* Sets w->last of the units of a group, given in ascending order of importance. */
static void set_last(const struct cr_widths *w, int k, const struct cr_ranked_unit *unit, int count) {
    const bool halves = w->groups->group[k].halves;
    const int *width  = w->width + (size_t)k * (size_t)w->most;
    for (int i = 0; i < count; i++) w->last[unit[i].unit] = w->levels[k] - 1;
    for (int level = w->levels[k] - 1; level > 0; level--) { /* fewer units leave at the levels before */
        const int gone    = count - width[level];
        int       left[2] = {halves ? gone / 2 : gone, halves ? gone / 2 : 0};
        for (int i = 0; i < count; i++) {
            const int side = halves && w->groups->behind[unit[i].unit];
            if (left[side]-- > 0) w->last[unit[i].unit] = level - 1;
        }
    }
}

cr_status cr_widths_open(const struct cr_shrink *shrink, const struct cr_multiples *multiples, bool rounded, int most,
                         struct cr_widths *out) {
    const struct cr_channel_groups *g    = shrink->groups;
    struct cr_widths                w    = {.groups = g,
                                            .levels = cr_alloc((size_t)g->groups + 1, sizeof *w.levels),
                                            .width  = cr_alloc((size_t)g->groups * (size_t)most + 1, sizeof *w.width),
                                            .last   = cr_alloc((size_t)g->units + 1, sizeof *w.last),
                                            .most   = most};
    struct cr_ranked_unit          *list = cr_alloc((size_t)g->units + 1, sizeof *list);
    *out                                 = w;
    if (!w.levels || !w.width || !w.last || !list) {
        cr_free(list);
        return CR_NO_MEMORY((size_t)g->units * sizeof *w.last);
    }
    for (int k = 0; k < g->groups; k++) {
        set_levels(shrink, &w, k, cr_multiple_of_group(multiples, g, k), rounded);
        set_last(&w, k, list, cr_shrink_rank(shrink, k, list));
    }
    cr_free(list);
    return CR_OK;
}

void cr_widths_free(struct cr_widths *w) {
    cr_free(w->levels);
    cr_free(w->width);
    cr_free(w->last);
    *w = (struct cr_widths){0};
}

void cr_widths_apply(const struct cr_widths *w, const int *level, struct cr_shrink *shrink) {
    for (int k = 0; k < w->groups->groups; k++)
        shrink->width[k] = w->width[(size_t)k * (size_t)w->most + (size_t)level[k]];
    for (int u = 0; u < w->groups->units; u++) {
        const int k        = w->groups->group_of[u];
        shrink->removed[u] = k != CR_NONE && w->last[u] < level[k];
    }
}

/* ---- axes ---- */

static int find_bin(const struct cr_widths *w, struct cr_width_bins *bins, int unit) {
    const int group = w->groups->group_of[unit], last = group == CR_NONE ? 0 : w->last[unit];
    int       i = 0;
    while (i < bins->bins && (bins->bin[i].group != group || bins->bin[i].last != last)) i++;
    if (i == bins->bins) bins->bin[bins->bins++] = (struct cr_width_bin){.group = group, .last = last};
    return i;
}

static int64_t axis_size(const struct cr_widths *w, int tensor, enum cr_channel_axis axis) {
    const struct cr_tensor *t = &w->groups->program->tensor[tensor];
    return w->groups->first[tensor * CR_CHANNEL_AXES + (int)axis] == CR_NONE ? 0 : t->dim[axis == CR_AXIS_K ? 0 : 3];
}

cr_status cr_width_bins_of(const struct cr_widths *w, int tensor, enum cr_channel_axis axis,
                           struct cr_width_bins *out) {
    const int64_t size = axis_size(w, tensor, axis);
    *out               = (struct cr_width_bins){0};
    CR_ALLOC(out->bin, (size_t)size + 1);
    for (int64_t i = 0; i < size; i++)
        out->bin[find_bin(w, out, cr_channel_unit(w->groups, tensor, axis, i))].channels++;
    return CR_OK;
}

static bool is_left(const struct cr_width_bin *bin, const int *level) {
    return bin->group == CR_NONE || level[bin->group] <= bin->last;
}

int64_t cr_width_of(const struct cr_width_bins *bins, const int *level) {
    int64_t sum = 0;
    for (int i = 0; i < bins->bins; i++) sum += is_left(&bins->bin[i], level) ? bins->bin[i].channels : 0;
    return sum;
}

/* ---- what is lost ---- */

static double squared_importance(const struct cr_widths *w, const struct cr_shrink *shrink, int unit) {
    return w->groups->group_of[unit] == CR_NONE ? 1 : shrink->importance[unit] * shrink->importance[unit];
}

/* The bin of each index of an axis. */
static cr_status bins_of_indices(const struct cr_widths *w, int tensor, enum cr_channel_axis axis,
                                 const struct cr_width_bins *bins, int **out) {
    const int64_t        size  = axis_size(w, tensor, axis);
    struct cr_width_bins known = *bins;
    CR_ALLOC(*out, (size_t)size + 1);
    for (int64_t i = 0; i < size; i++) (*out)[i] = find_bin(w, &known, cr_channel_unit(w->groups, tensor, axis, i));
    return CR_OK;
}

cr_status cr_width_energy(const struct cr_widths *w, const struct cr_shrink *shrink,
                          enum cr_prune_importance importance, const struct cr_param *q, int tensor, const float *value,
                          const struct cr_width_bins bins[CR_CHANNEL_AXES], double **energy) {
    const int64_t K = q->dim[0], C = q->dim[3], inner = q->dim[1] * q->dim[2];
    const int     columns = bins[CR_AXIS_C].bins;
    int          *row = NULL, *column = NULL;
    cr_status     status = CR_OK;
    *energy              = NULL;
    CR_TRY_OUT(bins_of_indices(w, tensor, CR_AXIS_K, &bins[CR_AXIS_K], &row));
    CR_TRY_OUT(bins_of_indices(w, tensor, CR_AXIS_C, &bins[CR_AXIS_C], &column));
    CR_ALLOC_OUT(*energy, (size_t)(bins[CR_AXIS_K].bins * columns) + 1);
    for (int64_t k = 0; k < K; k++)
        for (int64_t c = 0; c < C; c++) {
            double x = 0;
            if (importance != CR_PRUNE_IMPORTANCE_L2)
                x = squared_importance(w, shrink, cr_channel_unit(w->groups, tensor, CR_AXIS_K, k)) *
                    squared_importance(w, shrink, cr_channel_unit(w->groups, tensor, CR_AXIS_C, c));
            else
                for (int64_t i = 0; i < inner; i++) {
                    const double v = (double)value[q->offset + (k * inner + i) * C + c];
                    x += v * v;
                }
            (*energy)[row[k] * columns + column[c]] += x;
        }
out:
    cr_free(row);
    cr_free(column);
    return status;
}

double cr_width_left(const struct cr_width_bins bins[CR_CHANNEL_AXES], const double *energy, const int *level) {
    double left = 0, all = 0;
    for (int k = 0; k < bins[CR_AXIS_K].bins; k++)
        for (int c = 0; c < bins[CR_AXIS_C].bins; c++) {
            const double x = energy[k * bins[CR_AXIS_C].bins + c];
            all += x;
            if (is_left(&bins[CR_AXIS_K].bin[k], level) && is_left(&bins[CR_AXIS_C].bin[c], level)) left += x;
        }
    return all > 0 ? CR_MIN(left / all, 1) : 1;
}
