/* inspect/plan_png.c: draws the pool of a planned program. Text uses a font of 3 x 5 dots at double size. */
#include "inspect/plan_png.h"

#include "core/files.h"
#include "core/output_file.h"
#include "data/data.h"
#include "inspect/plan_print.h"

#include <stdio.h>
#include <string.h>

enum {
    LEFT        = 70,
    RIGHT       = 20,
    TOP         = 34,
    BOTTOM      = 34,
    PLOT_WIDTH  = 1200,
    PLOT_HEIGHT = 640,
    TICKS       = 8,
    TICK        = 5,
    DOT         = 2
};
enum {
    WIDTH        = LEFT + PLOT_WIDTH + RIGHT,
    HEIGHT       = TOP + PLOT_HEIGHT + BOTTOM,
    GLYPH_WIDTH  = 4 * DOT,
    GLYPH_HEIGHT = 5 * DOT
};

struct colour {
    uint8_t r, g, b;
};

/* Tensors that are held until the end of the program have a colour of their own. */
static const struct {
    struct colour colour;
    const char   *name;
} kinds[CR_PLAN_KINDS + 1] = {
    [CR_PLAN_ACTIVATION] = {{66, 133, 190}, "activations"}, [CR_PLAN_GRADIENT] = {{226, 130, 50}, "gradients"},
    [CR_PLAN_STATISTICS] = {{80, 170, 90}, "statistics"},   [CR_PLAN_WORKSPACE] = {{205, 70, 80}, "workspaces"},
    [CR_PLAN_OFFLOADED] = {{210, 190, 60}, "offloaded"},    [CR_PLAN_KINDS] = {{130, 100, 170}, "held"}};

static const struct colour text_colour = {40, 40, 40}, background = {255, 255, 255}, free_colour = {236, 236, 236};

struct canvas {
    uint8_t *rgb;
    double   span, bytes; /* range of the time axis, and of the address axis in bytes */
};

/* ---- dots ---- */

static void fill(struct canvas *canvas, int x0, int y0, int x1, int y1, struct colour c) {
    for (int y = CR_MAX(y0, 0); y < CR_MIN(y1, HEIGHT); y++)
        for (int x = CR_MAX(x0, 0); x < CR_MIN(x1, WIDTH); x++) {
            uint8_t *at = &canvas->rgb[((size_t)y * WIDTH + (size_t)x) * 3];
            at[0]       = c.r;
            at[1]       = c.g;
            at[2]       = c.b;
        }
}

/* The pixels of a character: five rows of three dots, the top row in the highest bits. */
static unsigned glyph_of(char c) {
    static const char letters[] = "0123456789.abcdefghijklmnopqrstuvwxyz";
    /* clang-format off */
    static const uint16_t dots[] = {
        075557, 026227, 071747, 071717, 055711, 074717, 074757, 071122, 075757, 075717, 000002, /* digits, point */
        025755, 065656, 034443, 065556, 074647, 074644, 034553, 055755, 072227, 011152, 055655, 044447, /* a to l */
        057755, 065555, 025552, 065644, 025563, 065655, 034216, 072222, 055557, 055552, 055775, 055255, /* m to x */
        055222, 071247};                                                                                /* y, z */
    /* clang-format on */
    const char *at = c ? strchr(letters, c) : NULL;
    return at ? dots[at - letters] : 0;
}

static int draw_text(struct canvas *canvas, int x, int y, const char *text) {
    for (; *text; text++, x += GLYPH_WIDTH) {
        unsigned glyph = glyph_of(*text);
        for (int k = 0; k < 15; k++)
            if (glyph >> (14 - k) & 1)
                fill(canvas, x + k % 3 * DOT, y + k / 3 * DOT, x + (k % 3 + 1) * DOT, y + (k / 3 + 1) * DOT,
                     text_colour);
    }
    return x;
}

/* ---- the pool ---- */

static int column_of(const struct canvas *canvas, double time) {
    return LEFT + (int)(time / canvas->span * PLOT_WIDTH + 0.5);
}

static int row_of(const struct canvas *canvas, double byte) {
    return TOP + PLOT_HEIGHT - (int)(byte / canvas->bytes * PLOT_HEIGHT + 0.5);
}

/* Draws the rectangle of a tensor, with an edge if it is large enough, so that neighbours of one kind can be
 * distinguished. */
static void draw_tensor(struct canvas *canvas, double from, double to, const struct cr_tensor *t, struct colour c) {
    int x0 = column_of(canvas, from), x1 = CR_MAX(column_of(canvas, to), x0 + 1);
    int y1 = row_of(canvas, (double)t->offset), y0 = row_of(canvas, (double)t->offset + (double)t->bytes);
    if (y0 == y1) return;
    struct colour edge = {(uint8_t)(c.r * 3 / 4), (uint8_t)(c.g * 3 / 4), (uint8_t)(c.b * 3 / 4)};
    bool          wide = x1 - x0 > 3, high = y1 - y0 > 3;
    fill(canvas, x0, y0, x1, y1, wide && high ? edge : c);
    if (wide && high) fill(canvas, x0 + 1, y0 + 1, x1, y1, c);
}

static void draw_pool(struct canvas *canvas, const struct cr_program *p, const double *at,
                      const enum cr_plan_kind *kind) {
    fill(canvas, LEFT, TOP, LEFT + PLOT_WIDTH, TOP + PLOT_HEIGHT, free_colour);
    for (int t = 0; t < p->tensors; t++) {
        const struct cr_tensor *x = &p->tensor[t];
        if (x->region != CR_REGION_POOL || x->first < 0) continue;
        int end = x->keep ? p->ops : x->last + 1;
        draw_tensor(canvas, at[x->first], at[end], x, kinds[x->keep ? CR_PLAN_KINDS : kind[t]].colour);
    }
}

/* Returns 1, 2 or 5 times a power of ten, so that the range has at most TICKS ticks. */
static double tick_step(double range) {
    double step = 1;
    while (step > range / TICKS) step /= 10;
    while (step * 10 <= range / TICKS) step *= 10;
    for (int k = 0; k < 3 && step < range / TICKS; k++) step *= k == 1 ? 2.5 : 2;
    return step;
}

static void draw_axes(struct canvas *canvas, bool timed) {
    char   text[32];
    bool   small = canvas->bytes < 1 << 20;
    double unit = small ? 1 << 10 : 1 << 20, high = canvas->bytes / unit, scale = timed ? 1e3 : 1,
           wide = canvas->span * scale;
    for (double step = tick_step(high), v = 0; v <= high * 1.0001; v += step) {
        int y = row_of(canvas, v * unit);
        fill(canvas, LEFT - TICK, y, LEFT, y + 1, text_colour);
        snprintf(text, sizeof text, "%.6g", v);
        draw_text(canvas, LEFT - TICK - 3 - (int)strlen(text) * GLYPH_WIDTH, y - GLYPH_HEIGHT / 2, text);
    }
    for (double step = tick_step(wide), v = 0; v <= wide * 1.0001; v += step) {
        int x = column_of(canvas, v / scale);
        fill(canvas, x, TOP + PLOT_HEIGHT, x + 1, TOP + PLOT_HEIGHT + TICK, text_colour);
        snprintf(text, sizeof text, "%.6g", v);
        draw_text(canvas, x - (int)strlen(text) * GLYPH_WIDTH / 2, TOP + PLOT_HEIGHT + TICK + 3, text);
    }
    draw_text(canvas, 6, TOP - GLYPH_HEIGHT - 6, small ? "kib" : "mib");
    draw_text(canvas, 6, TOP + PLOT_HEIGHT + TICK + 3, timed ? "ms" : "op");
}

static void draw_legend(struct canvas *canvas) {
    int x = LEFT;
    for (int k = 0; k <= CR_PLAN_KINDS; k++) {
        fill(canvas, x, 10, x + GLYPH_HEIGHT, 10 + GLYPH_HEIGHT, kinds[k].colour);
        x = draw_text(canvas, x + GLYPH_HEIGHT + 5, 10, kinds[k].name) + 20;
    }
}

/* ---- the file ---- */

static cr_status write_file(const struct canvas *canvas, const char *path) {
    struct cr_text png    = {0};
    cr_status      status = cr_image_encode_png(CR_OUTPUT_PLAN_SOFTWARE, canvas->rgb, WIDTH, HEIGHT, &png);
    if (status == CR_OK) status = cr_file_write_atomic(path, png.data, png.length);
    cr_text_free(&png);
    return status;
}

static cr_status draw(struct canvas *canvas, const struct cr_program *p, const double *seconds, double *at,
                      enum cr_plan_kind *kind, const char *path) {
    for (int i = 0; i < p->ops; i++) at[i + 1] = at[i] + (seconds ? seconds[i] : 1);
    canvas->span  = at[p->ops] > 0 ? at[p->ops] : 1;
    canvas->bytes = (double)CR_MAX(p->region_bytes[CR_REGION_POOL], 1);
    cr_plan_kinds(p, kind);
    fill(canvas, 0, 0, WIDTH, HEIGHT, background);
    draw_pool(canvas, p, at, kind);
    draw_axes(canvas, seconds != NULL);
    draw_legend(canvas);
    return write_file(canvas, path);
}

cr_status cr_plan_png_write(const struct cr_program *p, const double *seconds, const char *path) {
    struct canvas      canvas = {.rgb = cr_alloc((size_t)WIDTH * HEIGHT, 3)};
    double            *at     = cr_alloc((size_t)p->ops + 1, sizeof *at);
    enum cr_plan_kind *kind   = cr_alloc((size_t)p->tensors, sizeof *kind);
    cr_status          status =
        canvas.rgb && at && kind ? draw(&canvas, p, seconds, at, kind, path) : CR_NO_MEMORY((size_t)WIDTH * HEIGHT * 3);
    cr_free(canvas.rgb);
    cr_free(at);
    cr_free(kind);
    return status;
}
