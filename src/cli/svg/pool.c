/* cli/svg/pool.c: draws the memory pool of a planned program as SVG, for the report and for cresnet plan --svg: ops
 * to the right, addresses upwards, a rectangle for each tensor, coloured by kind. */
#include "cli/svg/svg.h"
#include "core/output_file.h"
#include "inspect/plan_print.h"

enum { WIDTH = 1000, HEIGHT = 446, LEFT = 62, RIGHT = 8, TOP = 34, BOTTOM = 34, TICKS = 6, LEGEND_WIDTH = 110 };
enum { PLOT_WIDTH = WIDTH - LEFT - RIGHT, PLOT_HEIGHT = HEIGHT - TOP - BOTTOM };

/* Tensors that are held until the end of the program have a colour of their own. */
static const struct {
    const char *class, *name;
} kinds[CR_PLAN_KINDS + 1] = {[CR_PLAN_ACTIVATION] = {"a", "activations"}, [CR_PLAN_GRADIENT] = {"g", "gradients"},
                              [CR_PLAN_STATISTICS] = {"s", "statistics"},  [CR_PLAN_WORKSPACE] = {"w", "workspaces"},
                              [CR_PLAN_OFFLOADED] = {"o", "offloaded"},    [CR_PLAN_KINDS] = {"k", "live to the end"}};

/* Colours of the report where the drawing is a part of it, else the given ones. These stand there twice: many viewers
 * of SVG files know no variables of CSS and leave out what has one. */
static const char style[] =
    "<style>.pool{color-scheme:light dark;background:#fff;background:var(--bg,#fff)}"
    ".pool text{font:12px system-ui,sans-serif;fill:#5a636e;fill:var(--soft,#5a636e)}"
    ".pool .grid{stroke:#e6e8ec;stroke:var(--grid,#e6e8ec)}"
    ".pool rect{stroke-width:.4;stroke:#fff;stroke:var(--bg,#fff)}"
    ".pool rect:hover{stroke-width:1.2;stroke:#000;stroke:var(--fg,#000)}"
    ".pool .a{fill:#4285be;fill:var(--s1,#4285be)}"
    ".pool .g{fill:#e28232;fill:var(--s2,#e28232)}"
    ".pool .s{fill:#50aa5a;fill:var(--s3,#50aa5a)}"
    ".pool .w{fill:#cd4650;fill:var(--s4,#cd4650)}"
    ".pool .o{fill:#c9a400}.pool .k{fill:#8264aa;fill:var(--soft,#8264aa)}"
    "@media(prefers-color-scheme:dark){.pool{background:var(--bg,#14171a)}.pool text{fill:var(--soft,#a3abb5)}"
    ".pool .grid{stroke:var(--grid,#2b3036)}.pool rect{stroke:var(--bg,#14171a)}"
    ".pool rect:hover{stroke:var(--fg,#fff)}}</style>\n";

static bool is_drawn(const struct cr_tensor *x) {
    return x->region == CR_REGION_POOL && x->first >= 0;
}

static void draw_tensors(struct cr_text *out, const struct cr_program *p, const enum cr_plan_kind *kind, double pool) {
    for (int t = 0; t < p->tensors; t++) {
        const struct cr_tensor *x = &p->tensor[t];
        if (!is_drawn(x)) continue;
        const int    end    = x->keep ? p->ops : x->last + 1;
        const double height = (double)x->bytes / pool * PLOT_HEIGHT;
        if (height < 0.25) continue; /* too small to be visible */
        cr_text_add(out, "<rect class=\"%s\" x=\"%.1f\" y=\"%.2f\" width=\"%.1f\" height=\"%.2f\"><title>",
                    kinds[x->keep ? CR_PLAN_KINDS : kind[t]].class, LEFT + (double)x->first / p->ops * PLOT_WIDTH,
                    TOP + PLOT_HEIGHT - (double)(x->offset + x->bytes) / pool * PLOT_HEIGHT,
                    (double)(end - x->first) / p->ops * PLOT_WIDTH, height);
        cr_page_escape(out, x->name);
        cr_text_add(out, "\n%s [%lld, %lld, %lld, %lld], %.2f MiB, ops %d to %d</title></rect>\n",
                    cr_dtype_name(x->dtype), (long long)x->dim[0], (long long)x->dim[1], (long long)x->dim[2],
                    (long long)x->dim[3], (double)x->bytes / (1 << 20), x->first, end - 1);
    }
}

static void draw_axes(struct cr_text *out, const struct cr_program *p, double pool) {
    const bool   small = pool < 8 << 20;
    const double unit = small ? 1 << 10 : 1 << 20, high = pool / unit, ystep = cr_chart_step(high, TICKS),
                 xstep = CR_MAX(1, cr_chart_step(p->ops, 10));
    for (int k = 0; k * ystep <= high; k++) {
        const double y = TOP + PLOT_HEIGHT - k * ystep / high * PLOT_HEIGHT;
        cr_text_add(
            out, "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.6g</text>\n",
            LEFT, y, WIDTH - RIGHT, LEFT - 6, y + 4, k * ystep);
    }
    for (int k = 0; k * xstep <= p->ops; k++)
        cr_text_add(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.6g</text>\n",
                    LEFT + k * xstep / p->ops * PLOT_WIDTH, HEIGHT - 14, k * xstep);
    cr_text_add(out, "<text x=\"%d\" y=\"14\" text-anchor=\"end\">%s</text><text x=\"6\" y=\"%d\">op</text>\n",
                LEFT - 6, small ? "KiB" : "MiB", HEIGHT - 14);
}

/* The kinds of tensor that the pool has. */
static void draw_legend(struct cr_text *out, const struct cr_program *p, const enum cr_plan_kind *kind) {
    bool seen[CR_PLAN_KINDS + 1] = {false};
    int  x                       = LEFT;
    for (int t = 0; t < p->tensors; t++)
        if (is_drawn(&p->tensor[t])) seen[p->tensor[t].keep ? CR_PLAN_KINDS : kind[t]] = true;
    for (int k = 0; k <= CR_PLAN_KINDS; k++) {
        if (!seen[k]) continue;
        cr_text_add(
            out, "<rect class=\"%s\" x=\"%d\" y=\"4\" width=\"12\" height=\"12\"/><text x=\"%d\" y=\"14\">%s</text>\n",
            kinds[k].class, x, x + 18, kinds[k].name);
        x += LEGEND_WIDTH;
    }
}

void cr_pool_svg(struct cr_text *out, const struct cr_program *p, bool alone) {
    const double       pool = (double)CR_MAX(p->region_bytes[CR_REGION_POOL], 1);
    enum cr_plan_kind *kind = cr_alloc((size_t)p->tensors, sizeof *kind);
    if (!kind) {
        out->failed = true;
        return;
    }
    cr_plan_kinds(p, kind);
    cr_text_add(out, "%s", alone ? CR_OUTPUT_POOL_SVG_START : "<svg class=\"pool\"");
    cr_text_add(out,
                " style=\"min-width:560px\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"memory pool: ops to the "
                "right, addresses upwards\">\n%s",
                WIDTH, HEIGHT, style);
    draw_axes(out, p, pool);
    draw_tensors(out, p, kind, pool);
    draw_legend(out, p, kind);
    cr_text_add(out, "</svg>\n");
    cr_free(kind);
}
