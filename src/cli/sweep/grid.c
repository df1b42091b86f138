/* cli/sweep/grid.c: expands the lists and ranges of a sweep to a grid of runs. See cli/sweep/sweep.h. */
#include "cli/sweep/sweep.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct axis { /* one override with its values */
    const char  *key;
    const char **value; /* [count] */
    int          count;
    bool         listed; /* part of the names of runs */
};

/* Parses "a..b" with integers in ascending order; false for any other text. */
static bool parse_range(const char *text, long *low, long *high) {
    char *end;
    if (!isdigit((unsigned char)*text) && *text != '-') return false;
    *low = strtol(text, &end, 10);
    if (end == text || strncmp(end, "..", 2) != 0 || (!isdigit((unsigned char)end[2]) && end[2] != '-')) return false;
    const char *second = end + 2;
    *high              = strtol(second, &end, 10);
    return end != second && !*end;
}

static cr_status add_value(struct cr_sweep *sweep, struct axis *axis, const char *text, size_t length) {
    if (axis->count >= CR_SWEEP_RUNS)
        return CR_FAIL(CR_ERR_USAGE, "%s: a sweep has at most %d runs", axis->key, CR_SWEEP_RUNS);
    const char *copy = cr_arena_printf(&sweep->arena, "%.*s", (int)length, text);
    if (!copy) return CR_NO_MEMORY(length);
    axis->value[axis->count++] = copy;
    return CR_OK;
}

static cr_status add_range(struct cr_sweep *sweep, struct axis *axis, long low, long high) {
    char text[32];
    if (low > high) return CR_FAIL(CR_ERR_USAGE, "%s=%ld..%ld: the range is empty", axis->key, low, high);
    if ((unsigned long)high - (unsigned long)low >= CR_SWEEP_RUNS)
        return CR_FAIL(CR_ERR_USAGE, "%s=%ld..%ld: a sweep has at most %d runs", axis->key, low, high, CR_SWEEP_RUNS);
    for (long i = low;; i++) {
        snprintf(text, sizeof text, "%ld", i);
        CR_TRY(add_value(sweep, axis, text, strlen(text)));
        if (i == high) return CR_OK;
    }
}

/* One part between commas: a range, a value, or a value in double quotes. */
static cr_status add_part(struct cr_sweep *sweep, struct axis *axis, const char *part, size_t length) {
    char text[64];
    long low, high;
    if (length >= 2 && part[0] == '"' && part[length - 1] == '"') {
        axis->listed = true;
        return add_value(sweep, axis, part + 1, length - 2);
    }
    snprintf(text, sizeof text, "%.*s", (int)CR_MIN(length, sizeof text - 1), part);
    if (length >= sizeof text || !parse_range(text, &low, &high)) {
        if (isdigit((unsigned char)text[*text == '-']) && strstr(text, "..") && !strchr(text, '/'))
            return CR_FAIL(CR_ERR_USAGE, "%s=%s: a range has two integers, such as 1..8; list other values with commas",
                           axis->key, text);
        return add_value(sweep, axis, part, length);
    }
    axis->listed = true;
    return add_range(sweep, axis, low, high);
}

static cr_status split(struct cr_sweep *sweep, const char *override, struct axis *axis) {
    const char *equals = strchr(override, '='), *at = equals + 1;
    axis->key   = cr_arena_printf(&sweep->arena, "%.*s", (int)(equals - override), override);
    axis->value = cr_arena_alloc(&sweep->arena, CR_SWEEP_RUNS * sizeof *axis->value);
    if (!axis->key || !axis->value) return CR_NO_MEMORY(CR_SWEEP_RUNS * sizeof *axis->value);
    for (;; at++) {
        bool        quoted = false;
        const char *start  = at;
        for (; *at && (quoted || *at != ','); at++) quoted ^= *at == '"';
        if (quoted) return CR_FAIL(CR_ERR_USAGE, "%s: a double quote is not closed", override);
        axis->listed |= *at == ',';
        if (at == start && (axis->listed || *at))
            return CR_FAIL(CR_ERR_USAGE, "%s: a value of the list is empty", override);
        CR_TRY(add_part(sweep, axis, start, (size_t)(at - start)));
        if (!*at) return CR_OK;
    }
}

/* The name of a run may hold any text of a value that is no path: other characters become _. */
static const char *name_run(struct cr_sweep *sweep, const struct axis *axis, const int *pick) {
    struct cr_text text = {0};
    for (int k = 0; k < sweep->overrides; k++) {
        if (!axis[k].listed) continue;
        cr_text_add(&text, "%s%s=", text.length ? "," : "", axis[k].key);
        for (const char *p = axis[k].value[pick[k]]; *p; p++)
            cr_text_add(&text, "%c", isalnum((unsigned char)*p) || strchr("+-._,", *p) ? *p : '_');
    }
    const char *name = text.failed ? NULL : cr_arena_printf(&sweep->arena, "%s", text.data);
    cr_text_free(&text);
    return name;
}

static cr_status make_run(struct cr_sweep *sweep, const struct axis *axis, const int *pick) {
    struct cr_sweep_run *run = &sweep->run[sweep->runs];
    run->override            = cr_arena_alloc(&sweep->arena, ((size_t)sweep->overrides + 1) * sizeof *run->override);
    run->name                = name_run(sweep, axis, pick);
    if (!run->override || !run->name) return CR_NO_MEMORY(CR_PATH_MAX);
    for (int k = 0; k < sweep->overrides; k++) {
        run->override[k] = cr_arena_printf(&sweep->arena, "%s=%s", axis[k].key, axis[k].value[pick[k]]);
        if (!run->override[k]) return CR_NO_MEMORY(CR_PATH_MAX);
    }
    if (strlen(run->name) > 200)
        return CR_FAIL(CR_ERR_USAGE, "%s: the name of the run folder is longer than 200 characters", run->name);
    for (int i = 0; i < sweep->runs; i++)
        if (strcmp(sweep->run[i].name, run->name) == 0)
            return CR_FAIL(CR_ERR_USAGE, "two runs have the same folder, %s: a value is listed twice", run->name);
    sweep->runs++;
    return CR_OK;
}

static cr_status check_keys(const struct axis *axis, int count) {
    for (int i = 0; i < count; i++) {
        if (axis[i].listed && strcmp(axis[i].key, "train.output") == 0)
            return CR_FAIL(CR_ERR_USAGE, "train.output: cannot vary; -o names the folder of all runs");
        for (int k = 0; k < i; k++)
            if (strcmp(axis[i].key, axis[k].key) == 0 && (axis[i].listed || axis[k].listed))
                return CR_FAIL(CR_ERR_USAGE, "%s is given twice: give all values in one list", axis[i].key);
    }
    return CR_OK;
}

cr_status cr_sweep_expand(const struct cr_args *args, struct cr_sweep *sweep) {
    struct axis *axis;
    int         *pick;
    int64_t      runs = 1;
    CR_ARENA_ALLOC(&sweep->arena, axis, (size_t)args->overrides + 1);
    CR_ARENA_ALLOC(&sweep->arena, pick, (size_t)args->overrides + 1);
    sweep->overrides = args->overrides;
    for (int k = 0; k < args->overrides; k++) {
        CR_TRY(split(sweep, args->override[k], &axis[k]));
        runs *= axis[k].count;
        sweep->varied += axis[k].listed;
        if (runs > CR_SWEEP_RUNS) return cr_args_fail(args, "the lists give more than %d runs", CR_SWEEP_RUNS);
    }
    if (!sweep->varied)
        return cr_args_fail(args, "no key has a list of values, e.g. optim.lr=0.05,0.1 train.seed=1..4");
    CR_TRY(check_keys(axis, args->overrides));
    CR_ARENA_ALLOC(&sweep->arena, sweep->run, (size_t)runs);
    while (sweep->runs < runs) {
        CR_TRY(make_run(sweep, axis, pick));
        for (int k = args->overrides - 1; k >= 0 && ++pick[k] == axis[k].count; k--) pick[k] = 0;
    }
    return CR_OK;
}
