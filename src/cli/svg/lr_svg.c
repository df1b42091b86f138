/* cli/svg/lr_svg.c: draws the curve of the learning-rate finder as a file of its own. */
#include "cli/svg/svg.h"
#include "core/output_file.h"

#include <math.h>

enum { WIDTH = 640, HEIGHT = 380, LEFT = 62, RIGHT = 18, TOP = 46, BOTTOM = 48, TICKS = 7 };
enum { PLOT_WIDTH = WIDTH - LEFT - RIGHT, PLOT_HEIGHT = HEIGHT - TOP - BOTTOM };

struct drawing {
    const struct cr_lr_curve *curve;
    double                    x0, x1; /* decimal logarithms of rates */
    double                    y0, y1; /* losses */
    double                    step;   /* between two lines of the grid */
};

static double x_of(const struct drawing *d, double lr) {
    return LEFT + (log10(lr) - d->x0) / (d->x1 - d->x0) * PLOT_WIDTH;
}

/* Values outside the scale are drawn at its edge. */
static double y_of(const struct drawing *d, double loss) {
    const double inside = fmax(d->y0, fmin(d->y1, loss));
    return TOP + PLOT_HEIGHT - (inside - d->y0) / (d->y1 - d->y0) * PLOT_HEIGHT;
}

/* The scale ends where the loss has risen as far as it had fallen: a divergence would flatten the curve. */
static void find_ranges(struct drawing *d) {
    const struct cr_lr_curve *c      = d->curve;
    const double              lowest = c->smoothed[c->lowest];
    double                    most   = c->smoothed[0];
    d->x0                            = log10(c->lr[0]);
    d->x1                            = log10(c->lr[c->count - 1]);
    if (d->x1 <= d->x0) d->x1 = d->x0 + 1;
    for (int64_t i = 0; i < c->count; i++) most = fmax(most, c->smoothed[i]);
    most    = fmin(most, c->smoothed[0] + fmax(c->smoothed[0] - lowest, 0.05 * fabs(c->smoothed[0])));
    d->y0   = lowest;
    d->y1   = most > lowest ? most : lowest + fmax(0.1, 0.1 * fabs(lowest));
    d->step = cr_chart_step(d->y1 - d->y0, TICKS);
    d->y0   = floor(d->y0 / d->step + 1e-9) * d->step;
    d->y1   = ceil(d->y1 / d->step - 1e-9) * d->step;
}

static void draw_axes(const struct drawing *d, struct cr_text *out) {
    const double step = d->step;
    for (int k = 0; d->y0 + k * step <= d->y1 + step * 1e-6; k++) {
        const double v = d->y0 + k * step, y = y_of(d, v);
        cr_text_add(out,
                    "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.6g"
                    "</text>\n",
                    LEFT, y, WIDTH - RIGHT, LEFT - 7, y + 4, fabs(v) < step * 1e-6 ? 0 : v);
    }
    for (double power = ceil(d->x0 - 1e-9); power <= d->x1 + 1e-9; power++)
        cr_text_add(out,
                    "<path class=\"axis\" d=\"M%.1f %dv5\"/><text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0e"
                    "</text>\n",
                    x_of(d, pow(10, power)), TOP + PLOT_HEIGHT, x_of(d, pow(10, power)), TOP + PLOT_HEIGHT + 20,
                    pow(10, power));
    cr_text_add(out, "<path class=\"axis\" d=\"M%d %dH%d\"/>\n", LEFT, TOP + PLOT_HEIGHT, WIDTH - RIGHT);
    cr_text_add(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">optim.lr</text>\n", WIDTH - RIGHT, HEIGHT - 8);
}

static void draw_line(const struct drawing *d, const char *name, const double *loss, struct cr_text *out) {
    cr_text_add(out, "<path class=\"%s\" d=\"", name);
    for (int64_t i = 0; i < d->curve->count; i++)
        cr_text_add(out, "%s%.1f %.1f", i ? "L" : "M", x_of(d, d->curve->lr[i]), y_of(d, loss[i]));
    cr_text_add(out, "\"/>\n");
}

static void draw_suggestion(const struct drawing *d, struct cr_text *out) {
    const struct cr_lr_curve *c = d->curve;
    if (c->steepest < 0) return;
    const double x = x_of(d, c->lr[c->steepest]), y = y_of(d, c->smoothed[c->steepest]);
    cr_text_add(out, "<path class=\"suggestion\" d=\"M%.1f %dV%d\"/><circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\"/>\n", x,
                TOP, TOP + PLOT_HEIGHT, x, y);
    cr_text_add(out, "<text class=\"strong\" x=\"%.1f\" y=\"%d\" text-anchor=\"%s\">suggestion: %.2g</text>\n", x,
                TOP - 8, x > LEFT + PLOT_WIDTH / 2 ? "end" : "start", c->lr[c->steepest]);
}

void cr_lr_svg(const struct cr_lr_curve *curve, struct cr_text *out) {
    struct drawing d = {.curve = curve};
    find_ranges(&d);
    cr_text_add(out, CR_OUTPUT_LR_SVG_START " viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\">\n", WIDTH, HEIGHT,
                WIDTH, HEIGHT);
    cr_text_add(out,
                "<title>Loss over the learning rate</title>\n"
                "<style>svg{color-scheme:light dark}.page{fill:#fff}text{fill:#5a636e;font:12px system-ui,sans-serif}"
                ".strong{fill:#b84600;font-weight:600}.grid{stroke:#e6e8ec}.axis{stroke:#5a636e}"
                ".raw{fill:none;stroke:#b8bec6}.line{fill:none;stroke:#0067a8;stroke-width:2}"
                ".suggestion{stroke:#b84600;stroke-dasharray:4 3}circle{fill:#b84600}"
                "@media(prefers-color-scheme:dark){.page{fill:#14171a}text{fill:#a3abb5}.strong{fill:#f0a23a}"
                ".grid{stroke:#2b3036}.axis{stroke:#a3abb5}.raw{stroke:#4b535c}.line{stroke:#63b8f0}"
                ".suggestion{stroke:#f0a23a}circle{fill:#f0a23a}}</style>\n"
                "<rect class=\"page\" width=\"%d\" height=\"%d\"/>\n",
                WIDTH, HEIGHT);
    cr_text_add(out, "<text x=\"%d\" y=\"18\">loss: each step (grey), smoothed (blue)</text>\n", LEFT);
    draw_axes(&d, out);
    draw_line(&d, "raw", curve->loss, out);
    draw_line(&d, "line", curve->smoothed, out);
    draw_suggestion(&d, out);
    cr_text_add(out, "</svg>\n");
}
