/* cli/report/plan.c: sections of the report: the memory plan, the profile, the sparsity of each layer. */
#include "cli/report/report.h"
#include "formats/json.h"
#include "session/checkpoint_tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double mib(size_t bytes) {
    return (double)bytes / (1 << 20);
}

/* ---- the plan ---- */

void cr_report_plan(struct cr_text *out, const struct cr_program *p, const struct cr_param_store *store) {
    cr_text_add(
        out, "<div class=\"wide\"><table><tr><th class=\"l\">memory of the program <i>%s</i></th><th>MiB</th></tr>\n",
        p->name);
    cr_text_add(
        out,
        "<tr><td class=\"l\">pool: activations, gradients, workspaces (lower bound %.2f MiB)</td><td>%.2f</td></tr>\n",
        mib(p->bound_bytes), mib(p->region_bytes[CR_REGION_POOL]));
    for (int k = 0; k < CR_BUFFERS; k++) {
        const size_t bytes = cr_param_store_buffer_bytes(store, (enum cr_param_buffer)k);
        if (bytes)
            cr_text_add(out, "<tr><td class=\"l\">parameter store: %s</td><td>%.2f</td></tr>\n",
                        cr_param_buffer_name((enum cr_param_buffer)k), mib(bytes));
    }
    cr_text_add(out, "<tr><td class=\"l\">input: one batch</td><td>%.2f</td></tr>\n",
                mib(p->region_bytes[CR_REGION_INPUT]));
    if (p->region_bytes[CR_REGION_HOST])
        cr_text_add(out, "<tr><td class=\"l\">host: offloaded tensors</td><td>%.2f</td></tr>\n",
                    mib(p->region_bytes[CR_REGION_HOST]));
    cr_text_add(out, "</table></div>\n");
    if (p->region_bytes[CR_REGION_POOL] && p->ops) {
        cr_text_add(out, "<figure><figcaption>Memory pool over one step</figcaption>\n<div class=\"wide\">\n");
        cr_pool_svg(out, p, false);
        cr_text_add(out, "</div></figure>\n");
    }
}

/* ---- the profile ---- */

enum { PROFILE_BYTES_MAX = 1 << 28, GROUPS_MAX = 2000, SHOWN = 40, NAME_MAX_ = 96 };

struct group { /* the ops of a layer, or of a kind */
    char   name[NAME_MAX_];
    double ms, roofline_ms, bytes;
    int    ops;
};
struct groups {
    struct group *at;
    int           count;
};

static void add_to_group(struct groups *g, const char *name, double ms, double roofline, double bytes) {
    int i = 0;
    while (i < g->count && strncmp(g->at[i].name, name, NAME_MAX_ - 1) != 0) i++;
    if (i == GROUPS_MAX) return;
    if (i == g->count) {
        snprintf(g->at[i].name, NAME_MAX_, "%s", name);
        g->count++;
    }
    g->at[i].ms += ms;
    g->at[i].roofline_ms += roofline * ms;
    g->at[i].bytes += bytes;
    g->at[i].ops++;
}

struct totals {
    double whole_ms, sum_ms, passes;
    char   device[128];
};

/* Reads one line of a profile: an op, or the totals. Returns false when the line is something else. */
static bool profile_line(char *text, struct groups *layers, struct groups *by_kind, struct totals *totals) {
    struct cr_json json;
    char          *name, *word, *layer = NULL, *kind = NULL;
    double         number, ms = 0, roofline = 0, bytes = 0; /* roofline: roofline time / measured time */
    cr_json_start(&json, text, strlen(text));
    if (!cr_json_expect(&json, '{')) return false;
    do {
        if (!cr_json_string(&json, &name) || !cr_json_expect(&json, ':')) return false;
        struct cr_json ahead = json;
        if (cr_json_number(&ahead, &number)) {
            json = ahead;
            if (!strcmp(name, "ms"))
                ms = number;
            else if (!strcmp(name, "roofline"))
                roofline = number;
            else if (!strcmp(name, "bytes"))
                bytes = number;
            else if (!strcmp(name, "whole_ms"))
                totals->whole_ms = number;
            else if (!strcmp(name, "sum_ms"))
                totals->sum_ms = number;
            else if (!strcmp(name, "passes"))
                totals->passes = number;
        } else {
            if (cr_json_word(&json, "null")) continue; /* the roofline of a device without known rates */
            if (!cr_json_string(&json, &word)) return false;
            if (!strcmp(name, "layer"))
                layer = word;
            else if (!strcmp(name, "kind"))
                kind = word;
            else if (!strcmp(name, "device"))
                snprintf(totals->device, sizeof totals->device, "%s", word);
        }
    } while (cr_json_take(&json, ','));
    if (!cr_json_expect(&json, '}') || !cr_json_end(&json)) return false;
    if (!layer || !kind) return true; /* the line of totals */
    add_to_group(layers, strcmp(layer, "-") ? layer : "(no layer: update, casts, checks)", ms, roofline, bytes);
    add_to_group(by_kind, kind, ms, roofline, bytes);
    return true;
}

static int compare_groups(const void *a, const void *b) {
    const struct group *x = a, *y = b;
    if (x->ms != y->ms) return x->ms < y->ms ? 1 : -1;
    return strcmp(x->name, y->name);
}

static void add_groups(struct cr_text *out, const char *label, struct groups *g, double sum_ms) {
    struct cr_bar bars[SHOWN];
    char          text[SHOWN][64], title[SHOWN][160];
    const int     count = CR_MIN(g->count, SHOWN);
    qsort(g->at, (size_t)g->count, sizeof *g->at, compare_groups);
    for (int i = 0; i < count; i++) {
        const struct group *x = &g->at[i];
        snprintf(text[i], sizeof text[i], "%.3f ms  %.1f %%", x->ms, sum_ms > 0 ? 100 * x->ms / sum_ms : 0);
        const int used = snprintf(title[i], sizeof title[i], "%d ops, %.1f MB", x->ops, x->bytes * 1e-6);
        if (x->roofline_ms > 0 && x->ms > 0)
            snprintf(title[i] + used, sizeof title[i] - (size_t)used, ", %.0f %% of roofline",
                     100 * x->roofline_ms / x->ms);
        bars[i] = (struct cr_bar){
            .name = x->name, .text = text[i], .title = title[i], .fraction = g->at[0].ms > 0 ? x->ms / g->at[0].ms : 0};
    }
    cr_text_add(out, "<figure><figcaption>%s</figcaption>\n", label);
    cr_page_bars(out, label, bars, count);
    if (g->count > count) cr_page_note(out, "and %d more", g->count - count);
    cr_text_add(out, "</figure>\n");
}

cr_status cr_report_profile(struct cr_text *out, const char *path) {
    struct groups layers  = {.at = cr_alloc(GROUPS_MAX, sizeof *layers.at)},
                  by_kind = {.at = cr_alloc(GROUPS_MAX, sizeof *by_kind.at)};
    struct totals totals  = {0};
    char         *text = NULL, *save = NULL;
    cr_status     status;
    if (!layers.at || !by_kind.at) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while reading %s", path);
    CR_TRY_OUT(cr_file_read(path, PROFILE_BYTES_MAX, &text, NULL));
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        if (!profile_line(line, &layers, &by_kind, &totals))
            CR_FAIL_OUT(CR_ERR_FORMAT, "%s: is not output of cresnet profile --json", path);
    if (!layers.count) CR_FAIL_OUT(CR_ERR_FORMAT, "%s: contains no ops: cresnet profile --json writes them", path);
    cr_page_note(out, "One training step: %.3f ms; sum of its ops: %.3f ms (medians of %.0f passes) on %s.",
                 totals.whole_ms, totals.sum_ms, totals.passes, *totals.device ? totals.device : "an unknown device");
    cr_text_add(out, "<div class=\"charts\">\n");
    add_groups(out, "Time by layer, forward and backward", &layers, totals.sum_ms);
    add_groups(out, "Time by kind of op", &by_kind, totals.sum_ms);
    cr_text_add(out, "</div>\n");
out:
    cr_free(layers.at);
    cr_free(by_kind.at);
    cr_free(text);
    return status;
}

/* ---- sparsity ---- */

cr_status cr_report_sparsity(struct cr_text *out, struct cr_session *session) {
    const struct cr_param_store *store = &session->model.store;
    float                       *value = NULL;
    struct cr_arena              arena = {0};
    struct cr_bar               *bars  = NULL;
    int                          count = 0;
    int64_t                      zeros = 0, elems = 0;
    cr_status                    status = CR_OK;
    CR_TRY(cr_state_buffer_copy(session, CR_BUFFER_VALUE, &value));
    bars = cr_alloc((size_t)store->params + 1, sizeof *bars);
    if (!bars) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory");
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q = &store->param[i];
        if (q->role != CR_ROLE_CONV && q->role != CR_ROLE_DENSE_WEIGHT) continue;
        int64_t count_zero = 0;
        for (int64_t k = 0; k < q->elems; k++) count_zero += value[q->offset + k] == 0;
        zeros += count_zero;
        elems += q->elems;
        bars[count]      = (struct cr_bar){.name = q->name, .fraction = (double)count_zero / (double)q->elems};
        bars[count].text = cr_arena_printf(&arena, "%.2f %%", 100 * bars[count].fraction);
        bars[count].title =
            cr_arena_printf(&arena, "%lld of %lld weights are 0", (long long)count_zero, (long long)q->elems);
        if (!bars[count].text || !bars[count].title) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory");
        count++;
    }
    /* A few weights may be 0 by chance. */
    if ((double)zeros < 1e-3 * (double)elems)
        cr_page_note(out, "The network is dense: %lld of its %lld weights are 0.", (long long)zeros, (long long)elems);
    else {
        cr_page_note(out, "%.2f %% of the weights of convolutions and classifier are 0 (%lld of %lld).",
                     100 * (double)zeros / (double)elems, (long long)zeros, (long long)elems);
        cr_page_bars(out, "fraction of weights that are 0", bars, count);
    }
out:
    cr_free(bars);
    cr_arena_free(&arena);
    cr_free(value);
    return status;
}
