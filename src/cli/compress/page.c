/* cli/compress/page.c: OUT/report.html. See cli/compress/compress.h. */
#include "cli/compress/compress.h"
#include "cli/report/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const steps[] = {"not compressed", "BN statistics re-estimated", "fine-tuned", "int8"};

/* The network to use; the first try when none keeps the accuracy. */
static const struct cr_compress_point *shown(const struct cr_compress *c) {
    for (int i = 0; i < c->tries && !c->best; i++)
        if (!isnan(c->attempt[i].accuracy)) return cr_compress_result(c, &c->attempt[i]);
    return c->best ? cr_compress_result(c, c->best) : NULL;
}

static void add_header(const struct cr_compress *c, struct cr_text *out) {
    const struct cr_compress_point *before = cr_compress_reference(c), *after = shown(c);
    cr_text_add(out, "<h1>");
    cr_page_escape(out, c->run);
    cr_text_add(out, ", compressed</h1>\n<p class=\"sub\">target: %g times as fast%s, batch %lld; ", c->speedup,
                c->int8 ? " as the network in int8" : "", (long long)c->batch);
    cr_page_escape(out, c->root);
    cr_text_add(out, "</p>\n");
    if (isfinite(c->max_drop) && !c->best)
        cr_page_note(out, "No network that was tried keeps the accuracy within %g points.", c->max_drop);
    if (!after) return;
    cr_text_add(out, "<dl class=\"facts\">\n");
    cr_page_fact(out, "patterns", "%s", after->name);
    cr_page_fact(out, "speed, measured", "%.2f times", before->ms / after->ms);
    cr_page_fact(out, "time of a batch", "%.3f ms, before %.3f ms", after->ms, before->ms);
    cr_page_fact(out, "accuracy", "%.2f %%", 100 * after->accuracy);
    cr_page_fact(out, "change", "%+.2f points", 0 - cr_compress_drop(c, after->accuracy));
    cr_page_fact(out, "size on disk", "%.0f KiB, before %.0f KiB", after->bytes / 1024, c->point[0].bytes / 1024);
    cr_text_add(out, "</dl>\n");
}

static void add_row(const struct cr_compress *c, const struct cr_compress_point *p, struct cr_text *out) {
    cr_text_add(out, "<tr><td class=\"l\">");
    cr_page_escape(out, p->name);
    cr_text_add(out, "</td><td class=\"l\">%s</td><td>%.2f %%</td><td>%+.2f</td><td>%.3f</td><td>%.2f</td>",
                steps[p->step], 100 * p->accuracy, 0 - cr_compress_drop(c, p->accuracy), p->ms,
                cr_compress_reference(c)->ms / p->ms);
    if (p->predicted_ms > 0)
        cr_text_add(out, "<td>%.3f</td><td>%+.1f %%</td>", p->predicted_ms, 100 * (p->predicted_ms / p->ms - 1));
    else
        cr_text_add(out, "<td>-</td><td>-</td>");
    cr_text_add(out, "<td>%.0f</td></tr>\n", p->bytes / 1024);
}

static void add_table(const struct cr_compress *c, struct cr_text *out) {
    cr_page_section(out, "steps", "Accuracy, time and size of each step");
    cr_text_add(out, "<div class=\"wide\"><table><tr><th class=\"l\">patterns</th><th class=\"l\">step</th><th>accuracy"
                     "</th><th>points</th><th>ms</th><th>times as fast</th><th>predicted ms</th><th>predicted, measured"
                     "</th><th>KiB</th></tr>\n");
    for (int i = 0; i < c->points; i++) add_row(c, &c->point[i], out);
    cr_text_add(out, "</table></div>\n");
    for (int i = 0; i < c->tries; i++)
        if (c->attempt[i].unreachable) cr_page_note(out, "%s: %s", c->attempt[i].name, c->attempt[i].why);
    cr_page_note(out,
                 "ms is measured with cresnet bench infer, of a batch of %lld. Fine-tuned is the set of patterns with "
                 "the best accuracy after pruning and new BN statistics.",
                 (long long)c->batch);
    cr_text_add(out, "</section>\n");
}

/* The widths and patterns of the network that is shown. */
static cr_status add_layers(struct cr_compress *c, struct cr_text *out) {
    const struct cr_compress_point *p = shown(c);
    struct cr_compress_layer       *layer;
    int                             count;
    char                            file[CR_PATH_MAX];
    if (!p) return CR_OK;
    if (snprintf(file, sizeof file, "%s/%s/pruned.json", c->root, p->name) >= (int)sizeof file) return CR_OK;
    CR_TRY(cr_compress_layers(file, &layer, &count));
    cr_page_section(out, "layers", "Widths and patterns by layer");
    cr_compress_draw_layers(layer, count, out);
    cr_text_add(out, "</section>\n");
    cr_free(layer);
    return CR_OK;
}

cr_status cr_compress_page(struct cr_compress *c) {
    struct cr_text text = {0};
    char           file[CR_PATH_MAX];
    cr_status      status;
    cr_page_begin(&text, "compressed network");
    add_header(c, &text);
    cr_page_section(&text, "plot", "Accuracy against measured time");
    cr_compress_draw_points(c, &text);
    cr_text_add(&text, "</section>\n");
    add_table(c, &text);
    CR_TRY_OUT(add_layers(c, &text));
    cr_page_end(&text);
    CR_TRY_OUT(cr_path_join(file, c->root, "report.html"));
    status = text.failed ? CR_NO_MEMORY(text.length) : cr_file_write_atomic(file, text.data, text.length);
out:
    cr_text_free(&text);
    return status;
}
