/* cli/report/chart_svg.c: draws line charts over training steps as SVG. */
#include "cli/report/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { WIDTH = 480, HEIGHT = 250, LEFT = 58, RIGHT = 14, TOP = 22, BOTTOM = 36, POINTS_MAX = 300, TICKS = 6 };
enum { PLOT_WIDTH = WIDTH - LEFT - RIGHT, PLOT_HEIGHT = HEIGHT - TOP - BOTTOM };

/* A series reduced to at most POINTS_MAX values: longer series are averaged over groups of neighbours. */
struct points {
    int    count;
    double step[POINTS_MAX], value[POINTS_MAX];
};

struct drawing {
    const struct cr_chart *chart;
    struct points         *points; /* [CR_CHART_LINES]; in units of the x axis */
    double                 unit;   /* steps of one unit of the x axis */
    double                 x0, x1, y0, y1;
};

static void reduce(const struct cr_series *s, double scale, double unit, struct points *out) {
    const int group = (s->count + POINTS_MAX - 1) / POINTS_MAX;
    for (int first = 0; first < s->count; first += group) {
        const int n   = CR_MIN(group, s->count - first);
        double    sum = 0, steps = 0;
        for (int i = first; i < first + n; i++) {
            sum += s->value[i] * scale;
            steps += s->step[i];
        }
        out->step[out->count]    = (n == 1 ? s->step[first] : steps / n) / unit;
        out->value[out->count++] = sum / n;
    }
}

static double x_of(const struct drawing *d, double step) {
    return LEFT + (step - d->x0) / (d->x1 - d->x0) * PLOT_WIDTH;
}
static double y_of(const struct drawing *d, double value) {
    return TOP + PLOT_HEIGHT - (fmin(value, d->y1) - d->y0) / (d->y1 - d->y0) * PLOT_HEIGHT;
}

/* Top of the scale: 1.5 times the 90th percentile, or the highest value when it is less than 2.5 times the
 * percentile. */
static double usual_top(const struct drawing *d, double highest) {
    static const double far_factor = 2.5;
    double              top        = highest;
    double             *all        = cr_alloc(CR_CHART_LINES * POINTS_MAX, sizeof *all);
    int                 count      = 0;
    if (!all) return highest;
    for (int l = 0; l < CR_CHART_LINES; l++)
        for (int i = 0; i < d->points[l].count; i++) all[count++] = d->points[l].value[i];
    qsort(all, (size_t)count, sizeof *all, cr_compare_doubles);
    const double usual = all[(int)(0.9 * (count - 1))];
    if (usual > 0 && highest > far_factor * usual) top = 1.5 * usual;
    cr_free(all);
    return top;
}

static void find_ranges(struct drawing *d) {
    d->x0 = d->y0 = INFINITY;
    d->x1 = d->y1 = -INFINITY;
    for (int l = 0; l < CR_CHART_LINES; l++)
        for (int i = 0; i < d->points[l].count; i++) {
            d->x0 = fmin(d->x0, d->points[l].step[i]);
            d->x1 = fmax(d->x1, d->points[l].step[i]);
            d->y0 = fmin(d->y0, d->points[l].value[i]);
            d->y1 = fmax(d->y1, d->points[l].value[i]);
        }
    d->x0 = 0; /* training starts at step 0 */
    d->x1 = fmax(d->x1, d->chart->steps / d->unit);
    if (d->chart->clip) d->y1 = usual_top(d, d->y1);
    if (d->x1 <= d->x0) d->x1 = d->x0 + 1;
    d->y1 = fmax(d->y1, d->chart->min_top);
    if (d->chart->from_zero) d->y0 = fmin(d->y0, 0);
    if (d->y1 <= d->y0) d->y1 = d->y0 + (d->y0 == 0 ? 1 : fabs(d->y0) * 0.1);
    const double step = cr_chart_step(d->y1 - d->y0, TICKS);
    d->y0             = floor(d->y0 / step + 1e-9) * step;
    d->y1             = ceil(d->y1 / step - 1e-9) * step;
}

/* Formats an axis label: 12500 becomes 12.5k. */
static void short_number(char *text, size_t size, double v) {
    const double a = fabs(v);
    if (a >= 1e6)
        snprintf(text, size, "%.6gM", v / 1e6);
    else if (a >= 1e4)
        snprintf(text, size, "%.6gk", v / 1e3);
    else
        snprintf(text, size, "%.6g", a < 1e-12 ? 0 : v);
}

static void draw_axes(const struct drawing *d, struct cr_text *out) {
    char         text[32];
    const double ystep = cr_chart_step(d->y1 - d->y0, TICKS),
                 xstep = fmax(d->chart->epoch > 0 ? 0 : 1, cr_chart_step(d->x1 - d->x0, TICKS));
    for (int k = 0; d->y0 + k * ystep <= d->y1 + ystep * 1e-6; k++) {
        const double v = d->y0 + k * ystep, y = y_of(d, v);
        short_number(text, sizeof text, fabs(v) < ystep * 1e-6 ? 0 : v);
        cr_text_add(out,
                    "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                    LEFT, y, WIDTH - RIGHT, LEFT - 6, y + 4, text);
    }
    for (int k = 0; d->x0 + k * xstep <= d->x1 * (1 + 1e-9); k++) {
        const double v = d->x0 + k * xstep, x = x_of(d, v);
        short_number(text, sizeof text, v);
        cr_text_add(
            out, "<path class=\"axis\" d=\"M%.1f %dv4\"/><text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
            x, TOP + PLOT_HEIGHT, x, TOP + PLOT_HEIGHT + 17, text);
    }
    cr_text_add(out,
                "<path class=\"axis\" d=\"M%d %dH%d\"/><text class=\"unit\" x=\"%d\" y=\"%d\" "
                "text-anchor=\"end\">%s</text>\n",
                LEFT, TOP + PLOT_HEIGHT, WIDTH - RIGHT, WIDTH - RIGHT, HEIGHT - 4,
                d->chart->epoch > 0 ? "epoch" : "step");
}

static void draw_line(const struct drawing *d, int l, struct cr_text *out) {
    const struct points *p = &d->points[l];
    if (!p->count) return;
    cr_text_add(out, "<path class=\"line s%d\" d=\"", l + 1);
    for (int i = 0; i < p->count; i++)
        cr_text_add(out, "%s%.1f %.1f", i ? "L" : "M", x_of(d, p->step[i]), y_of(d, p->value[i]));
    cr_text_add(out, "\"/>\n");
    if (!d->chart->line[l].dots && p->count > 1) return;
    for (int i = 0; i < p->count && p->count <= 80; i++)
        cr_text_add(out, "<circle class=\"dot s%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>", l + 1, x_of(d, p->step[i]),
                    y_of(d, p->value[i]));
    cr_text_add(out, "\n");
}

/* The value of a line at the marked step, as the log has it; NAN when there is none. */
static double best_value(const struct drawing *d, int l) {
    const struct cr_series *s = d->chart->line[l].series;
    return s && d->chart->best > 0 ? cr_series_at(s, d->chart->best) * d->chart->line[l].scale : NAN;
}

/* A vertical line at the step of the best evaluation, and a ring on every line. */
static void draw_best(const struct drawing *d, struct cr_text *out) {
    if (d->chart->best <= 0) return;
    const double x     = x_of(d, d->chart->best / d->unit);
    const bool   right = x > LEFT + PLOT_WIDTH - 30, left = x < LEFT + 30;
    cr_text_add(out,
                "<path class=\"best\" d=\"M%.1f %dV%d\"/><text class=\"best\" x=\"%.1f\" y=\"%d\" "
                "text-anchor=\"%s\">best</text>\n",
                x, TOP, TOP + PLOT_HEIGHT, x, TOP - 6,
                right  ? "end"
                : left ? "start"
                       : "middle");
    for (int l = 0; l < CR_CHART_LINES; l++) {
        const double v = best_value(d, l);
        if (d->points[l].count && !isnan(v))
            cr_text_add(out, "<circle class=\"ring s%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"5\"/>\n", l + 1, x, y_of(d, v));
    }
}

/* The last value of a line up to a step; NULL when there is none yet. */
static const double *value_at(const struct points *p, double step) {
    const double *found = NULL;
    for (int i = 0; i < p->count && p->step[i] <= step; i++) found = &p->value[i];
    return found;
}

/* Draws invisible vertical strips with tooltips of the values: one per value of the line with the most values. */
static void draw_tooltips(const struct drawing *d, struct cr_text *out) {
    const struct points *longest = &d->points[0];
    for (int l = 1; l < CR_CHART_LINES; l++)
        if (d->points[l].count > longest->count) longest = &d->points[l];
    for (int i = 0; i < longest->count; i++) {
        const double here  = x_of(d, longest->step[i]);
        const double left  = i ? 0.5 * (here + x_of(d, longest->step[i - 1])) : LEFT;
        const double right = i + 1 < longest->count ? 0.5 * (here + x_of(d, longest->step[i + 1])) : WIDTH - RIGHT;
        cr_text_add(out, "<rect class=\"hit\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\"><title>", left, TOP,
                    right - left, PLOT_HEIGHT);
        if (!d->chart->relative) cr_text_add(out, "step %.0f", longest->step[i] * d->unit);
        if (d->chart->epoch > 0) cr_text_add(out, "%sepoch %.2f", d->chart->relative ? "" : "\n", longest->step[i]);
        for (int l = 0; l < CR_CHART_LINES; l++) {
            const double *v = value_at(&d->points[l], longest->step[i]);
            char          text[64];
            if (!v) continue;
            snprintf(text, sizeof text, d->chart->format, *v);
            cr_text_add(out, "\n");
            cr_page_escape(out, d->chart->line[l].name);
            cr_text_add(out, " %s", text);
        }
        cr_text_add(out, "</title></rect>\n");
    }
}

static void draw_legend(const struct drawing *d, struct cr_text *out) {
    cr_text_add(out, "<p class=\"legend\">");
    for (int l = 0; l < CR_CHART_LINES; l++) {
        const struct points *p = &d->points[l];
        char                 text[64];
        if (!p->count) continue;
        snprintf(text, sizeof text, d->chart->format, p->value[p->count - 1]);
        cr_text_add(out,
                    "<span><svg class=\"key\" viewBox=\"0 0 28 10\" aria-hidden=\"true\"><path class=\"line s%d\" "
                    "d=\"M1 5H27\"/></svg>",
                    l + 1);
        cr_page_escape(out, d->chart->line[l].name);
        cr_text_add(out, ": %s", text);
        if (!isnan(best_value(d, l))) {
            snprintf(text, sizeof text, d->chart->format, best_value(d, l));
            cr_text_add(out, ", at best %s", text);
        }
        cr_text_add(out, "</span> ");
    }
    bool clipped = false;
    for (int l = 0; l < CR_CHART_LINES; l++)
        for (int i = 0; i < d->points[l].count; i++) clipped |= d->points[l].value[i] > d->y1 * (1 + 1e-9);
    cr_text_add(out, "%s</p>",
                clipped ? "<span class=\"unit\">values above the scale are drawn at its edge</span>" : "");
}

void cr_page_chart(struct cr_text *out, const struct cr_chart *chart) {
    struct drawing d     = {.chart  = chart,
                            .points = cr_alloc(CR_CHART_LINES, sizeof *d.points),
                            .unit   = chart->epoch > 0 ? chart->epoch : 1};
    int            drawn = 0;
    if (!d.points) {
        out->failed = true;
        return;
    }
    for (int l = 0; l < CR_CHART_LINES; l++)
        if (chart->line[l].series)
            reduce(chart->line[l].series, chart->line[l].scale,
                   chart->line[l].epoch > 0 ? chart->line[l].epoch : d.unit, &d.points[l]);
    for (int l = 0; l < CR_CHART_LINES; l++) drawn += d.points[l].count > 0;
    if (drawn) {
        find_ranges(&d);
        cr_text_add(out, "<figure><figcaption>%s <span class=\"unit\">%s</span></figcaption>\n", chart->title,
                    chart->unit);
        cr_text_add(out, "<svg class=\"chart\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s over %s\">\n", WIDTH,
                    HEIGHT, chart->title, chart->epoch > 0 ? "epochs" : "steps");
        draw_axes(&d, out);
        for (int l = CR_CHART_LINES - 1; l >= 0; l--) draw_line(&d, l, out);
        draw_best(&d, out);
        draw_tooltips(&d, out);
        cr_text_add(out, "</svg>\n");
        draw_legend(&d, out);
        cr_text_add(out, "</figure>\n");
    }
    cr_free(d.points);
}
