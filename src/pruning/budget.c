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
#include "core/files.h"
#include "formats/csv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { FILE_BYTES_MAX = 1 << 20, CELLS_MAX = 64 };

struct line {
    const char *cell[CELLS_MAX];
    int         cells, number;
};

struct table {
    const char  *path;
    struct line *line;         /* line[0] names the columns */
    int          lines, first; /* first column of sparsities */
    int          column;       /* the selected column */
    char        *text;
};

/* ---- reading ---- */

static cr_status split(const char *path, char *text, struct line *line) {
    for (int end = ','; end == ',';) {
        if (line->cells == CELLS_MAX)
            return CR_FAIL(CR_ERR_FORMAT, "%s:%d: more than %d columns", path, line->number, CELLS_MAX);
        end = cr_csv_field(&text, &line->cell[line->cells++]);
        if (end < 0)
            return CR_FAIL(CR_ERR_FORMAT, "%s:%d: a quote is missing, or is not around a whole cell", path,
                           line->number);
    }
    return CR_OK;
}

static cr_status read_lines(const char *path, struct table *t) {
    int    capacity = 1, number = 0;
    size_t length;
    t->path = path;
    CR_TRY(cr_file_read(path, FILE_BYTES_MAX, &t->text, &length));
    if (strlen(t->text) != length)
        return CR_FAIL(CR_ERR_FORMAT, "%s: contains zero bytes: a CSV file in plain text (UTF-8) is needed", path);
    for (const char *c = t->text; *c; c++) capacity += *c == '\n';
    CR_ALLOC(t->line, (size_t)capacity);
    char *at = cr_csv_start(t->text);
    while (at) {
        char *end = strchr(at, '\n');
        if (end) *end = 0;
        number++;
        if (at[strspn(at, " \t\r,")]) {
            struct line *line = &t->line[t->lines++];
            line->number      = number;
            CR_TRY(split(path, at, line));
        }
        at = end ? end + 1 : NULL;
    }
    if (t->lines >= 2 && t->line[0].cells >= 2) return CR_OK;
    return CR_FAIL(
        CR_ERR_FORMAT,
        "%s: not a table: the file needs a line with column names and a line for each layer, separated by commas",
        path);
}

/* ---- numbers ---- */

/* The name of a column; a column without a name belongs to the nearest named column before it. */
static const char *column_name(const struct table *t, int column) {
    for (int c = CR_MIN(column, t->line[0].cells - 1); c > 0; c--)
        if (*t->line[0].cell[c]) return t->line[0].cell[c];
    return "";
}

static bool read_sparsity(const struct table *t, const struct line *line, int column, double *out) {
    const char *cell = column < line->cells ? line->cell[column] : "";
    char       *end;
    *out = strtod(cell, &end);
    if (end == cell) return false;
    end += strspn(end, " ");
    const bool percent = *end == '%' || strchr(column_name(t, column), '%');
    if (*end && strcmp(end, "%") != 0) return false;
    if (percent) *out /= 100;
    return *out >= 0 && *out <= 1;
}

/* ---- the column ---- */

static const struct line *find_overall(const struct table *t) {
    for (int i = 1; i < t->lines; i++)
        if (strcasecmp(t->line[i].cell[0], "Overall") == 0) return &t->line[i];
    return NULL;
}

static cr_status column_by_name(const struct cr_prune *prune, struct table *t) {
    for (t->column = t->first; t->column < t->line[0].cells; t->column++)
        if (strcasecmp(t->line[0].cell[t->column], prune->config->prune.column) == 0) return CR_OK;
    return cr_config_fail(prune->config, "prune.column", "%s has no such column", t->path);
}

static cr_status column_by_overall(const struct cr_prune *prune, struct table *t) {
    const struct line *overall = find_overall(t);
    const double       target  = prune->config->prune.sparsity;
    const int          columns = t->line[0].cells - t->first;
    double             best    = 2, sparsity;
    if (!overall)
        return cr_config_fail(prune->config, "prune.column",
                              "%s has %d columns and no row Overall: name a column, such as prune.column=%s", t->path,
                              columns, t->line[0].cell[t->first]);
    if (target <= 0)
        return cr_config_fail(prune->config, "prune.sparsity", "%s has %d columns: set the overall sparsity", t->path,
                              columns);
    for (int c = t->first; c < t->line[0].cells; c++) {
        if (!read_sparsity(t, overall, c, &sparsity) || fabs(sparsity - target) >= best) continue;
        best      = fabs(sparsity - target);
        t->column = c;
    }
    return best <= 1 ? CR_OK
                     : CR_FAIL(CR_ERR_FORMAT, "%s:%d: no sparsity in the row Overall", t->path, overall->number);
}

static cr_status choose_column(const struct cr_prune *prune, struct table *t) {
    t->first = t->column = 1;
    for (int c = t->line[0].cells - 1; c > 0; c--)
        if (strncasecmp(t->line[0].cell[c], "sparsity", 8) == 0) t->first = t->column = c;
    if (*prune->config->prune.column) return column_by_name(prune, t);
    return t->line[0].cells - t->first > 1 ? column_by_overall(prune, t) : CR_OK;
}

/* ---- the layers ---- */

static struct cr_prune_layer *find_layer(struct cr_prune *prune, const char *label) {
    const char *dash = strstr(label, " - "), *name = dash ? dash + 3 : label;
    char       *end;
    const long  number = strtol(name, &end, 10);
    if (end != name && !*end) return number >= 1 && number <= prune->layers ? &prune->layer[number - 1] : NULL;
    size_t length = strlen(name), suffix = strlen(".weight");
    if (length > suffix && strcmp(name + length - suffix, ".weight") == 0) length -= suffix;
    for (int l = 0; l < prune->layers; l++)
        if (strlen(prune->layer[l].name) == length && strncmp(prune->layer[l].name, name, length) == 0)
            return &prune->layer[l];
    return NULL;
}

/* Rows with totals are not layers. */
static bool is_total(const char *label) {
    return strcasecmp(label, "Overall") == 0 || strcasecmp(label, "Backbone") == 0;
}

/* Rejects a file without column names, whose first layer would be ignored. */
static cr_status check_header(struct cr_prune *prune, const struct table *t) {
    const struct line *header = &t->line[0];
    if (!find_layer(prune, header->cell[0])) return CR_OK;
    return CR_FAIL(CR_ERR_FORMAT, "%s:%d: the first line names the columns, e.g. \"layer,sparsity\"; \"%s\" is a layer",
                   t->path, header->number, header->cell[0]);
}

/* line_of[layer]: number of an earlier line with this layer, 0 when there is none. */
static cr_status set_layer(struct cr_prune *prune, const struct table *t, const struct line *line, double sparsity,
                           int *line_of) {
    struct cr_prune_layer *layer = find_layer(prune, line->cell[0]);
    if (!layer && sparsity > 0)
        return CR_FAIL(CR_ERR_FORMAT, "%s:%d: this network has no layer \"%s\"", t->path, line->number, line->cell[0]);
    if (!layer) return CR_OK;
    int *earlier = &line_of[layer - prune->layer];
    if (*earlier)
        return CR_FAIL(CR_ERR_FORMAT, "%s:%d: layer %s already appears in line %d: remove one of the lines", t->path,
                       line->number, layer->name, *earlier);
    if (prune->config->prune.pattern == CR_PRUNE_PATTERN_2_4 && !layer->dense && sparsity > 0.5)
        return CR_FAIL(CR_ERR_FORMAT,
                       "%s:%d: %s of layer %s: must not exceed 0.5 with pattern 2:4, which keeps two of four weights",
                       t->path, line->number, line->cell[t->column], layer->name);
    *earlier        = line->number;
    layer->sparsity = sparsity;
    return CR_OK;
}

static cr_status set_layers(struct cr_prune *prune, const struct table *t, int *line_of) {
    for (int i = 1; i < t->lines; i++) {
        const struct line *line = &t->line[i];
        double             sparsity;
        if (is_total(line->cell[0])) continue;
        if (!read_sparsity(t, line, t->column, &sparsity))
            return CR_FAIL(CR_ERR_FORMAT, "%s:%d: column %d: expected a sparsity, 0 to 1 or 0 to 100 %%, not \"%s\"",
                           t->path, line->number, t->column + 1, t->column < line->cells ? line->cell[t->column] : "");
        CR_TRY(set_layer(prune, t, line, sparsity, line_of));
    }
    return CR_OK;
}

cr_status cr_prune_budget(struct cr_prune *prune, const char *path) {
    struct table t       = {0};
    int         *line_of = cr_alloc((size_t)CR_MAX(prune->layers, 1), sizeof *line_of);
    cr_status    status;
    if (!line_of) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory: budget of %d layers", prune->layers);
    CR_TRY_OUT(read_lines(path, &t));
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
    cr_free(t.line);
    cr_free(t.text);
    return status;
}
