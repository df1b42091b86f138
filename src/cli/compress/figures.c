/* cli/compress/figures.c: the figures, as SVG. See cli/compress/compress.h. */
#include "cli/compress/compress.h"
#include "cli/report/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 640, HEIGHT = 320, LEFT = 62, RIGHT = 20, TOP = 16, BOTTOM = 40, TICKS = 6 };

struct range {
    double low, high, step;
};

static struct range range_of(double low, double high) {
    struct range r;
    if (high - low < 1e-9 * fabs(high)) high = low + CR_MAX(fabs(low) * 0.1, 1e-3);
    r.step = cr_chart_step(high - low, TICKS);
    r.low  = floor(low / r.step) * r.step;
    r.high = ceil(high / r.step) * r.step;
    return r;
}

static double x_of(const struct range *r, double v) {
    return LEFT + (v - r->low) / (r->high - r->low) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct range *r, double v) {
    return HEIGHT - BOTTOM - (v - r->low) / (r->high - r->low) * (HEIGHT - TOP - BOTTOM);
}

static void add_axes(const struct range *x, const struct range *y, struct cr_text *out) {
    for (double v = y->low; v <= y->high + y->step / 2; v += y->step)
        cr_text_add(
            out, "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.6g</text>\n",
            LEFT, y_of(y, v), WIDTH - RIGHT, LEFT - 6, y_of(y, v) + 4, fabs(v) < y->step / 2 ? 0 : v);
    for (double v = x->low; v <= x->high + x->step / 2; v += x->step)
        cr_text_add(
            out,
            "<path class=\"axis\" d=\"M%.1f %dv4\"/><text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.6g</text>\n",
            x_of(x, v), HEIGHT - BOTTOM, x_of(x, v), HEIGHT - BOTTOM + 17, fabs(v) < x->step / 2 ? 0 : v);
    cr_text_add(
        out, "<path class=\"axis\" d=\"M%d %dH%d\"/><text x=\"%d\" y=\"%d\" text-anchor=\"end\">ms per batch</text>\n",
        LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, WIDTH - RIGHT, HEIGHT - 4);
}

/* One shape for each step, so that nothing is shown by colour alone. */
static void add_symbol(double x, double y, enum cr_compress_step step, struct cr_text *out) {
    switch (step) {
    case CR_COMPRESS_DENSE: cr_text_add(out, "<circle class=\"dot s1\" cx=\"%.1f\" cy=\"%.1f\" r=\"6\">", x, y); break;
    case CR_COMPRESS_BN: cr_text_add(out, "<circle class=\"ring s2\" cx=\"%.1f\" cy=\"%.1f\" r=\"5\">", x, y); break;
    case CR_COMPRESS_TUNED:
        cr_text_add(out, "<rect class=\"dot s3\" x=\"%.1f\" y=\"%.1f\" width=\"11\" height=\"11\">", x - 5.5, y - 5.5);
        break;
    case CR_COMPRESS_INT8: cr_text_add(out, "<path class=\"dot s4\" d=\"M%.1f %.1fl7 12h-14z\">", x, y - 7); break;
    }
}

static const char *end_of(enum cr_compress_step step) {
    return step == CR_COMPRESS_TUNED ? "rect" : step == CR_COMPRESS_INT8 ? "path" : "circle";
}

static void add_legend(struct cr_text *out) {
    static const char *const names[] = {"not compressed", "pruned, BN statistics re-estimated", "fine-tuned", "int8"};
    cr_text_add(out, "<p class=\"legend\">");
    for (int s = 0; s < (int)CR_COUNT(names); s++) {
        cr_text_add(out, "<span><svg class=\"key\" viewBox=\"0 0 28 16\" aria-hidden=\"true\">");
        add_symbol(14, 8, (enum cr_compress_step)s, out);
        cr_text_add(out, "</%s></svg>%s</span> ", end_of((enum cr_compress_step)s), names[s]);
    }
    cr_text_add(out, "</p>\n");
}

/* The name of a network, next to its symbol, on the side with more space. */
static void add_label(const struct cr_compress_point *p, double x, double y, struct cr_text *out) {
    const bool right = x < WIDTH / 2.0;
    cr_text_add(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x + (right ? 9 : -9), y + 4,
                right ? "start" : "end");
    cr_page_escape(out, p->name);
    cr_text_add(out, "</text>\n");
}

void cr_compress_draw_points(const struct cr_compress *c, struct cr_text *out) {
    double ms = 0, low = 1, high = 0;
    for (int i = 0; i < c->points; i++) {
        ms   = CR_MAX(ms, c->point[i].ms);
        low  = CR_MIN(low, c->point[i].accuracy);
        high = CR_MAX(high, c->point[i].accuracy);
    }
    const struct range x = range_of(0, ms), y = range_of(100 * low, 100 * high);
    cr_text_add(out,
                "<figure><figcaption>Accuracy <span class=\"unit\">%%</span></figcaption>\n<svg class=\"chart\" "
                "viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"accuracy against time\">\n",
                WIDTH, HEIGHT);
    add_axes(&x, &y, out);
    for (int i = 0; i < c->points; i++) {
        const struct cr_compress_point *p = &c->point[i];
        add_symbol(x_of(&x, p->ms), y_of(&y, 100 * p->accuracy), p->step, out);
        cr_text_add(out, "<title>");
        cr_page_escape(out, p->name);
        cr_text_add(out, "\n%.2f %%, %.3f ms</title></%s>\n", 100 * p->accuracy, p->ms, end_of(p->step));
        add_label(p, x_of(&x, p->ms), y_of(&y, 100 * p->accuracy), out);
    }
    cr_text_add(out, "</svg>\n");
    add_legend(out);
    cr_text_add(out, "</figure>\n");
}

/* ---- layers ---- */

static const char *class_of(const struct cr_compress_layer *l) {
    return strcmp(l->pattern, "dense") == 0   ? "a"
           : strcmp(l->pattern, "2:4") == 0   ? "g"
           : strcmp(l->pattern, "block") == 0 ? "s"
                                              : "w";
}

static void add_layer(const struct cr_compress_layer *l, double widest, int y, struct cr_text *out) {
    const double full = 360 * sqrt(l->channels / widest), left = full * l->left / CR_MAX(l->channels, 1);
    cr_text_add(out, "<text x=\"170\" y=\"%d\" text-anchor=\"end\">", y + 11);
    cr_page_escape(out, l->name);
    cr_text_add(out,
                "</text><rect x=\"176\" y=\"%d\" width=\"%.1f\" height=\"13\" fill=\"none\" stroke=\"currentColor\" "
                "stroke-opacity=\".4\"/><rect class=\"%s\" x=\"176\" y=\"%d\" width=\"%.1f\" height=\"13\"><title>",
                y, full, class_of(l), y, left);
    cr_text_add(out, "%.0f of %.0f channels, %s, %.1f us, before %.1f us</title></rect>", l->left, l->channels,
                l->pattern, l->us, l->before_us);
    cr_text_add(out, "<text x=\"%.1f\" y=\"%d\">%.0f", 182 + full, y + 11, l->left);
    if (l->left < l->channels) cr_text_add(out, " of %.0f", l->channels);
    if (l->sparsity > 0) cr_text_add(out, ", %.3g %% %s", 100 * l->sparsity, l->pattern);
    cr_text_add(out, "</text>\n");
}

void cr_compress_draw_layers(const struct cr_compress_layer *layer, int count, struct cr_text *out) {
    static const char *const keys[][2] = {{"a", "dense"}, {"g", "2:4"}, {"s", "blocks"}, {"w", "single weights"}};
    double                   widest    = 1;
    for (int i = 0; i < count; i++) widest = CR_MAX(widest, layer[i].channels);
    cr_text_add(out,
                "<figure><svg viewBox=\"0 0 720 %d\" role=\"img\" aria-label=\"channels that are left of each "
                "layer\">\n",
                18 * count + 6);
    for (int i = 0; i < count; i++) add_layer(&layer[i], widest, 18 * i + 3, out);
    cr_text_add(out, "</svg>\n<p class=\"legend\">");
    for (size_t i = 0; i < CR_COUNT(keys); i++)
        cr_text_add(out, "<span><i class=\"%s swatch\"></i>%s</span> ", keys[i][0], keys[i][1]);
    cr_text_add(out, "</p></figure>\n");
    cr_page_note(out, "The frame has the channels before, the bar those that are left; lengths are square roots.");
}
