/* pruning/budget.c: reads the sparsity of each layer from a CSV file. See pruning/pruning.h.
 *
 * The first line names the columns. In every other line the first cell names a layer: "layer1.0.conv1", optionally
 * after a prefix that ends with " - ", or the layer's number, counted from 1 in the order of the network. The
 * sparsities are in the column "Sparsity" and the columns after it, or in all columns except the first when there is no
 * such column. They are percentages when the name of the column or the number has "%", and fractions otherwise.
 * prune.column selects one of several columns; without it, the column is used whose value in the row "Overall" is
 * nearest to prune.sparsity. */
#include "pruning/pruning.h"

#include "config/config.h"
#include "formats/csv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct table {
    struct cr_csv_table csv;    /* the first row names the columns */
    int                 first;  /* column of sparsities */
    int                 column; /* the selected column */
};

static const char *cell(const struct table *t, int64_t row, int column) {
    return t->csv.cell[row * t->csv.columns + column];
}

/* ---- numbers ---- */

/* The name of a column; a column without a name belongs to the nearest named column before it. */
static const char *column_name(const struct table *t, int column) {
    while (column > 0 && !*cell(t, 0, column)) column--;
    return column > 0 ? cell(t, 0, column) : "";
}

static bool read_sparsity(const struct table *t, int64_t row, int column, double *out) {
    const char *text = cell(t, row, column);
    char       *end;
    *out = strtod(text, &end);
    if (end == text) return false;
    end += strspn(end, " ");
    const bool percent = *end == '%' || strchr(column_name(t, column), '%');
    if (*end && strcmp(end, "%") != 0) return false;
    if (percent) *out /= 100;
    return *out >= 0 && *out <= 1;
}

/* ---- the column ---- */

static cr_status column_by_overall(const struct cr_prune *prune, struct table *t) {
    const double target  = prune->config->prune.sparsity;
    const int    columns = t->csv.columns - t->first;
    double       best    = 2, sparsity;
    int64_t      overall = 1;
    while (overall < t->csv.rows && strcasecmp(cell(t, overall, 0), "Overall") != 0) overall++;
    if (overall == t->csv.rows)
        return cr_config_fail(prune->config, "prune.column",
                              "%s has %d columns and no row Overall: name a column, such as prune.column=%s",
                              t->csv.path, columns, cell(t, 0, t->first));
    if (target <= 0)
        return cr_config_fail(prune->config, "prune.sparsity", "%s has %d columns: set the overall sparsity",
                              t->csv.path, columns);
    for (int c = t->first; c < t->csv.columns; c++) {
        if (!read_sparsity(t, overall, c, &sparsity) || fabs(sparsity - target) >= best) continue;
        best      = fabs(sparsity - target);
        t->column = c;
    }
    return best <= 1 ? CR_OK
                     : CR_FAIL(CR_ERR_FORMAT, "%s:%lld: no sparsity in the row Overall", t->csv.path,
                               (long long)t->csv.line[overall]);
}

static cr_status choose_column(const struct cr_prune *prune, struct table *t) {
    t->first = t->column = 1;
    for (int c = t->csv.columns - 1; c > 0; c--)
        if (strncasecmp(cell(t, 0, c), "sparsity", 8) == 0) t->first = t->column = c;
    if (!*prune->config->prune.column) return t->csv.columns - t->first > 1 ? column_by_overall(prune, t) : CR_OK;
    for (t->column = t->first; t->column < t->csv.columns; t->column++)
        if (strcasecmp(cell(t, 0, t->column), prune->config->prune.column) == 0) return CR_OK;
    return cr_config_fail(prune->config, "prune.column", "%s has no such column", t->csv.path);
}

/* ---- the layers ---- */

static struct cr_prune_layer *find_layer(struct cr_prune *prune, const char *label) {
    const char *dash = strstr(label, " - "), *name = dash ? dash + 3 : label;
    char       *end;
    const long  number = strtol(name, &end, 10);
    if (end != name && !*end) return number >= 1 && number <= prune->layers ? &prune->layer[number - 1] : NULL;
    const size_t length = strlen(name) - (cr_ends_with(name, ".weight") ? strlen(".weight") : 0);
    for (int l = 0; l < prune->layers; l++)
        if (strlen(prune->layer[l].name) == length && strncmp(prune->layer[l].name, name, length) == 0)
            return &prune->layer[l];
    return NULL;
}

/* Rejects a file without column names, whose first layer would be ignored. */
static cr_status check_header(struct cr_prune *prune, const struct table *t) {
    if (!find_layer(prune, cell(t, 0, 0))) return CR_OK;
    return CR_FAIL(CR_ERR_FORMAT,
                   "%s:%lld: the first line names the columns, e.g. \"layer,sparsity\"; \"%s\" is a layer", t->csv.path,
                   (long long)t->csv.line[0], cell(t, 0, 0));
}

/* line_of[layer]: number of an earlier line with this layer, 0 when there is none. */
static cr_status set_layer(struct cr_prune *prune, const struct table *t, int64_t row, double sparsity,
                           int64_t *line_of) {
    const char            *name  = cell(t, row, 0);
    const long long        line  = t->csv.line[row];
    struct cr_prune_layer *layer = find_layer(prune, name);
    if (!layer && sparsity > 0)
        return CR_FAIL(CR_ERR_FORMAT, "%s:%lld: this network has no layer \"%s\"", t->csv.path, line, name);
    if (!layer) return CR_OK;
    int64_t *earlier = &line_of[layer - prune->layer];
    if (*earlier)
        return CR_FAIL(CR_ERR_FORMAT, "%s:%lld: layer %s already appears in line %lld: remove one of the lines",
                       t->csv.path, line, layer->name, (long long)*earlier);
    if (prune->config->prune.pattern == CR_PRUNE_PATTERN_2_4 && !layer->dense && sparsity > 0.5)
        return CR_FAIL(CR_ERR_FORMAT,
                       "%s:%lld: %s of layer %s: must not exceed 0.5 with pattern 2:4, which keeps two of four weights",
                       t->csv.path, line, cell(t, row, t->column), layer->name);
    *earlier        = line;
    layer->sparsity = sparsity;
    return CR_OK;
}

static cr_status set_layers(struct cr_prune *prune, const struct table *t, int64_t *line_of) {
    for (int64_t i = 1; i < t->csv.rows; i++) {
        const char *label = cell(t, i, 0);
        double      sparsity;
        if (strcasecmp(label, "Overall") == 0 || strcasecmp(label, "Backbone") == 0) continue; /* totals */
        if (!read_sparsity(t, i, t->column, &sparsity))
            return CR_FAIL(CR_ERR_FORMAT, "%s:%lld: column %d: expected a sparsity, 0 to 1 or 0 to 100 %%, not \"%s\"",
                           t->csv.path, (long long)t->csv.line[i], t->column + 1, cell(t, i, t->column));
        CR_TRY(set_layer(prune, t, i, sparsity, line_of));
    }
    return CR_OK;
}

cr_status cr_prune_budget(struct cr_prune *prune, const char *path) {
    struct table t = {0};
    int64_t     *line_of;
    cr_status    status;
    CR_ALLOC_OUT(line_of, (size_t)prune->layers);
    CR_TRY_OUT(cr_csv_table_read(path, &t.csv));
    if (t.csv.rows < 2 || t.csv.columns < 2)
        CR_FAIL_OUT(
            CR_ERR_FORMAT,
            "%s: not a table: the file needs a line with column names and a line for each layer, separated by commas",
            path);
    CR_TRY_OUT(check_header(prune, &t));
    CR_TRY_OUT(choose_column(prune, &t));
    CR_TRY_OUT(set_layers(prune, &t, line_of));
out:
    /* the configuration of a run may come from somebody else and may name any file of this user */
    if (status == CR_ERR_FORMAT && prune->config->stored && !cr_config_given(prune->config, "prune.budget"))
        status =
            CR_FAIL(CR_ERR_FORMAT,
                    "%s: is not a budget for this network; the configuration of a run names it, so its text is not "
                    "shown (prune.budget=FILE on the command line shows it)",
                    path);
    cr_free(line_of);
    cr_csv_table_free(&t.csv);
    return status;
}
