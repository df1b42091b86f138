/* pruning/budget.c: sparsities by layer from a CSV file. See pruning/pruning.h.
 *
 * The first line names the columns. In the others the first cell names a layer: "layer1.0.conv1", with anything that
 * ends in " - " in front of it, or its number, counted from 1 in the order of the network. Sparsities stand in the
 * column "Sparsity" and those behind it, else in all but the first; in percent where the column's name or the number
 * says "%", else as shares of 1. Of several columns prune.column names one; without it the row "Overall" decides which
 * is nearest to prune.sparsity. */
#include "pruning/pruning.h"

#include "core/files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { FILE_BYTES_MAX = 1 << 20, CELLS_MAX = 64 };

struct line {
    char *cell[CELLS_MAX];
    int   cells, number;
};

struct table {
    const char  *path;
    struct line *line;         /* line[0] is the head */
    int          lines, first; /* first column of sparsities */
    int          column;       /* that counts */
    char        *text;
};

/* ---- reading ---- */

static char *trimmed(char *s) {
    s += strspn(s, " \t\"");
    size_t length = strlen(s);
    while (length && strchr(" \t\"\r", s[length - 1])) s[--length] = 0;
    return s;
}

static cr_status split(const char *path, char *text, struct line *line) {
    for (char *at = text; at;) {
        char *comma = strchr(at, ',');
        if (comma) *comma = 0;
        if (line->cells == CELLS_MAX)
            return CR_FAIL(CR_ERR_FORMAT, "%s:%d: more than %d columns", path, line->number, CELLS_MAX);
        line->cell[line->cells++] = trimmed(at);
        at                        = comma ? comma + 1 : NULL;
    }
    return CR_OK;
}

static cr_status read_lines(const char *path, struct table *t) {
    static const char mark[] = "\xef\xbb\xbf"; /* what some programs put in front of UTF-8 */
    int               most = 1, number = 0;
    size_t            length;
    t->path = path;
    CR_TRY(cr_file_read(path, FILE_BYTES_MAX, &t->text, &length));
    if (strlen(t->text) != length)
        return CR_FAIL(CR_ERR_FORMAT, "%s: there are zero bytes in it: CSV as plain text (UTF-8) is wanted", path);
    for (const char *c = t->text; *c; c++) most += *c == '\n';
    CR_ALLOC(t->line, (size_t)most);
    char *at = strncmp(t->text, mark, strlen(mark)) ? t->text : t->text + strlen(mark);
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
        "%s: no table: a line that names the columns, and a line for each layer are wanted, cells with commas between",
        path);
}

/* ---- numbers ---- */

/* The nearest name at or in front of a column: an empty one belongs to that. */
static const char *head_of(const struct table *t, int column) {
    for (int c = CR_MIN(column, t->line[0].cells - 1); c > 0; c--)
        if (*t->line[0].cell[c]) return t->line[0].cell[c];
    return "";
}

static bool share_at(const struct table *t, const struct line *line, int column, double *out) {
    const char *cell = column < line->cells ? line->cell[column] : "";
    char       *end;
    *out = strtod(cell, &end);
    if (end == cell) return false;
    end += strspn(end, " ");
    const bool percent = *end == '%' || strchr(head_of(t, column), '%');
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
    const double       wanted  = prune->config->prune.sparsity;
    const int          columns = t->line[0].cells - t->first;
    double             best    = 2, share;
    if (!overall)
        return cr_config_fail(prune->config, "prune.column", "%s has %d columns and no row Overall: name one", t->path,
                              columns);
    if (wanted <= 0)
        return cr_config_fail(prune->config, "prune.sparsity",
                              "%s has %d columns: set the overall sparsity that is wanted", t->path, columns);
    for (int c = t->first; c < t->line[0].cells; c++) {
        if (!share_at(t, overall, c, &share) || fabs(share - wanted) >= best) continue;
        best      = fabs(share - wanted);
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

/* Sums over layers are not layers. */
static bool is_sum(const char *label) {
    return strcasecmp(label, "Overall") == 0 || strcasecmp(label, "Backbone") == 0;
}

/* A file without a line of names would lose its first layer. */
static cr_status check_head(struct cr_prune *prune, const struct table *t) {
    const struct line *head = &t->line[0];
    if (!find_layer(prune, head->cell[0])) return CR_OK;
    return CR_FAIL(CR_ERR_FORMAT, "%s:%d: the first line names the columns, e.g. \"layer,sparsity\"; \"%s\" is a layer",
                   t->path, head->number, head->cell[0]);
}

/* line_of: of each layer the line that named it before; 0: none. */
static cr_status set_layer(struct cr_prune *prune, const struct table *t, const struct line *line, double share,
                           int *line_of) {
    struct cr_prune_layer *layer = find_layer(prune, line->cell[0]);
    if (!layer && share > 0)
        return CR_FAIL(CR_ERR_FORMAT, "%s:%d: this network has no layer \"%s\"", t->path, line->number, line->cell[0]);
    if (!layer) return CR_OK;
    int *before = &line_of[layer - prune->layer];
    if (*before)
        return CR_FAIL(CR_ERR_FORMAT, "%s:%d: layer %s has a line already, line %d: one is too many", t->path,
                       line->number, layer->name, *before);
    if (prune->config->prune.pattern == CR_PRUNE_PATTERN_2_4 && !layer->dense && share > 0.5)
        return CR_FAIL(CR_ERR_FORMAT,
                       "%s:%d: %s of layer %s: must not exceed 0.5 with pattern 2:4, which keeps two of four weights",
                       t->path, line->number, line->cell[t->column], layer->name);
    *before         = line->number;
    layer->sparsity = share;
    return CR_OK;
}

static cr_status set_layers(struct cr_prune *prune, const struct table *t, int *line_of) {
    for (int i = 1; i < t->lines; i++) {
        const struct line *line = &t->line[i];
        double             share;
        if (is_sum(line->cell[0])) continue;
        if (!share_at(t, line, t->column, &share))
            return CR_FAIL(CR_ERR_FORMAT, "%s:%d: column %d: a sparsity is wanted, 0 to 1 or 0 to 100 %%, not \"%s\"",
                           t->path, line->number, t->column + 1, t->column < line->cells ? line->cell[t->column] : "");
        CR_TRY(set_layer(prune, t, line, share, line_of));
    }
    return CR_OK;
}

cr_status cr_prune_budget(struct cr_prune *prune, const char *path) {
    struct table t       = {0};
    int         *line_of = cr_alloc((size_t)CR_MAX(prune->layers, 1), sizeof *line_of);
    cr_status    status;
    if (!line_of) CR_FAIL_OUT(CR_ERR_MEMORY, "no memory for the lines of %d layers", prune->layers);
    CR_TRY_OUT(read_lines(path, &t));
    CR_TRY_OUT(check_head(prune, &t));
    CR_TRY_OUT(choose_column(prune, &t));
    CR_TRY_OUT(set_layers(prune, &t, line_of));
out:
    cr_free(line_of);
    cr_free(t.line);
    cr_free(t.text);
    return status;
}
