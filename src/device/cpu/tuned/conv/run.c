/* device/cpu/tuned/conv/run.c: runs a plan: divides strips and panels among the threads, and sums into chunks whose
 * filters stay in the first cache. */
#include "device/cpu/simd.h"
#include "device/cpu/tuned/conv/window.h"

#include <string.h>

enum {
    CHUNK_FILTERS    = 6 << 10,   /* floats of the filters of a chunk of a panel: they stay in the first cache */
    STRIP_FLOATS     = 48 << 10,  /* of the input: a strip stays in the second cache */
    LARGE_FILTERS    = 256 << 10, /* floats; they do not stay in the second cache, and each strip reads them again: */
    LARGE_STRIP      = 128 << 10, /* STRIP_FLOATS for them */
    STRIP_PIXELS     = 256,       /* of the output, in strips of whole images; larger strips are not faster */
    FILTER_FLOATS    = 48 << 10,  /* of all panels: they stay in the second cache */
    TILES_PER_THREAD = 8          /* with fewer, threads divide the panels, too */
};

/* ---- strips ---- */

/* The strips of a window: `images` whole images each, or one of `parts` of the rows of an image. */
struct strips {
    const struct cr_conv_plan   *plan;
    const struct cr_conv_window *window;
    bool                         copied;
    int64_t                      width, images, parts, count; /* width: input pixels in a row */
};

/* Whether the windows are single pixels inside the image. */
static bool is_direct(const struct cr_conv_plan *plan, const struct cr_conv_window *v) {
    return v->height * v->width == 0 || (v->height == 1 && v->width == 1 && v->top <= 0 && v->left <= 0 &&
                                         (v->rows - 1) * plan->stride - v->top < plan->height &&
                                         (v->columns - 1) * plan->stride - v->left < plan->width);
}

/* Input rows, with padding, that `rows` rows of the output read. */
static int64_t input_rows(const struct strips *s, int64_t rows) {
    return (rows - 1) * s->plan->stride + s->window->height;
}

static int64_t strip_floats(const struct strips *s, int64_t rows) {
    return input_rows(s, rows) * s->width * s->plan->channels;
}

static int64_t part_rows(const struct strips *s) {
    return (s->window->rows + s->parts - 1) / s->parts;
}

/* Input floats of a strip that are read: 1x1 windows with a stride skip pixels. */
static int64_t read_floats(const struct strips *s, int64_t rows) {
    return is_direct(s->plan, s->window) ? rows * s->window->columns * s->plan->channels : strip_floats(s, rows);
}

/* All windows of a plan have the same strips, so that a strip of the input is read from memory once for all windows. */
static struct strips strips_of(const struct cr_conv_plan *plan, int window, int threads) {
    struct strips s    = {.plan = plan, .window = &plan->window[0], .copied = true, .parts = 1};
    const int64_t most = plan->packed_floats > LARGE_FILTERS ? LARGE_STRIP : STRIP_FLOATS;
    s.width            = (s.window->columns - 1) * plan->stride + s.window->width;
    s.images           = CR_MIN(most / CR_MAX(read_floats(&s, s.window->rows), 1),
                                STRIP_PIXELS / CR_MAX(s.window->rows * s.window->columns, 1));
    s.images           = CR_MAX(CR_MIN(s.images, (plan->images + threads - 1) / threads), 1);
    while (s.parts < s.window->rows && read_floats(&s, part_rows(&s)) > most) s.parts++;
    if (s.parts > 1 && plan->images % threads)
        s.parts = CR_MIN((s.parts + threads - 1) / threads * threads, s.window->rows);
    s.count  = (plan->images + s.images - 1) / s.images * s.parts;
    s.window = &plan->window[window];
    s.copied = !is_direct(plan, s.window);
    s.width  = s.copied ? (s.window->columns - 1) * plan->stride + s.window->width : plan->width;
    return s;
}

struct strip {
    int64_t      image, images, row, rows; /* of the output */
    const float *x;                        /* input of its first pixel */
    int64_t      height, width;            /* input rows of an image and pixels of a row, as they lie in memory */
};

static void copy_row(const struct strips *s, const float *x, float *to) {
    const int64_t C = s->plan->channels, left = CR_MAX(s->window->left, 0), from = CR_MAX(-s->window->left, 0);
    const int64_t inside = CR_MAX(CR_MIN(s->plan->width - from, s->width - left), 0);
    memset(to, 0, (size_t)(CR_MIN(left, s->width) * C) * sizeof *to);
    memcpy(to + left * C, x + from * C, (size_t)(inside * C) * sizeof *to);
    memset(to + (left + inside) * C, 0, (size_t)(CR_MAX(s->width - left - inside, 0) * C) * sizeof *to);
}

/* Copies the input of a strip, with zeros around the images. */
static void copy_strip(const struct strips *s, const struct strip *to, const float *x, float *scratch) {
    const int64_t row_floats = s->width * s->plan->channels, first = to->row * s->plan->stride - s->window->top;
    for (int64_t i = 0; i < to->images * to->height; i++, scratch += row_floats) {
        const int64_t row = first + i % to->height, image = to->image + i / to->height;
        if (row < 0 || row >= s->plan->height)
            memset(scratch, 0, (size_t)row_floats * sizeof *scratch);
        else
            copy_row(s, x + (image * s->plan->height + row) * s->plan->width * s->plan->channels, scratch);
    }
}

static struct strip strip_at(const struct strips *s, int64_t i, const float *x, float *scratch) {
    const struct cr_conv_plan *plan = s->plan;
    struct strip               to   = {.image = i / s->parts * s->images, .width = s->width};
    int64_t                    end;
    cr_run_of(s->window->rows, (int)(i % s->parts), (int)s->parts, &to.row, &end);
    to.rows   = end - to.row;
    to.images = CR_MIN(s->images, plan->images - to.image);
    to.height = s->copied ? input_rows(s, to.rows) : plan->height;
    if (s->copied) {
        copy_strip(s, &to, x, scratch);
        to.x = scratch;
    } else {
        const int64_t row = to.image * plan->height + to.row * plan->stride - s->window->top;
        to.x              = x + (row * plan->width - s->window->left) * plan->channels;
    }
    return to;
}

/* ---- chunks of a sum: some rows of the windows, or a part of one ---- */

struct chunks {
    int64_t count, height, width; /* of the windows: rows, floats of a row */
    int64_t rows;                 /* of a group of rows */
    int64_t parts, len;           /* of a row; floats of a part */
};
struct chunk {
    int64_t row, rows, first, len;
    bool    is_first, is_last;
};

/* Chunks are about equally long. A window without rows has one empty chunk. */
static struct chunks chunks_of(const struct cr_conv_window *v, int64_t channels, int64_t panel) {
    struct chunks c    = {.height = v->height, .width = v->width * channels};
    const int64_t fit  = CHUNK_FILTERS / panel;
    const int64_t most = CR_MAX(fit / CR_MAX(c.width, 1), 1), groups = CR_MAX((c.height + most - 1) / most, 1);
    c.parts = CR_MAX((c.width + fit - 1) / fit, 1);
    c.len   = (c.width + c.parts - 1) / c.parts;
    c.rows  = (c.height + groups - 1) / groups;
    c.count = groups * c.parts;
    return c;
}

static struct chunk chunk_at(const struct chunks *c, int64_t i) {
    struct chunk to = {.row = i / c->parts * c->rows, .first = i % c->parts * c->len, .is_first = i == 0};
    to.rows         = CR_MIN(c->rows, c->height - to.row);
    to.len          = CR_MIN(c->len, c->width - to.first);
    to.is_last      = i == c->count - 1;
    return to;
}

/* ---- the tiles of a strip ---- */

struct task {
    const struct strips     *strips;
    const struct strip      *strip;
    const struct cr_conv_io *io;
    struct cr_tile_size      size;
    cr_tile_function        *tile;
    int64_t       first, last, whole; /* outputs first ... last - 1; those before `whole` fill their panels */
    struct chunks chunks;
    int64_t       pixels, tiles; /* of the strip */
};

/* A pixel of a strip, and where its input and its outputs begin. */
struct pixel {
    int64_t image, row, column;
    int64_t x, y;
};

static void begin_row(const struct task *t, struct pixel *p) {
    const struct cr_conv_plan   *plan = t->strips->plan;
    const struct cr_conv_window *v    = t->strips->window;
    const int64_t h = v->first_row + (t->strip->row + p->row) * plan->step, image = t->strip->image + p->image;
    p->x      = (p->image * t->strip->height + p->row * plan->stride) * t->strip->width * plan->channels;
    p->y      = ((image * plan->out_height + h) * plan->out_width + v->first_column) * plan->outputs;
    p->column = 0;
}

static void next_row(const struct task *t, struct pixel *p) {
    if (++p->row == t->strip->rows) {
        p->row = 0;
        p->image++;
    }
    begin_row(t, p);
}

/* Sets the pixels of a tile: `count` from `at` on, which moves on. Places after them repeat the last pixel, which is
 * computed several times. */
static void set_pixels(const struct task *t, const float *x, struct pixel *at, int count, struct cr_tile *tile) {
    const struct cr_conv_plan *plan = t->strips->plan;
    const int64_t              by_x = plan->stride * plan->channels, by_y = plan->step * plan->outputs;
    const int64_t              columns = t->strips->window->columns;
    for (int p = 0; p < count; p++) {
        tile->x[p] = x + at->x;
        tile->y[p] = at->y;
        at->x += by_x;
        at->y += by_y;
        if (++at->column == columns) next_row(t, at);
    }
    for (int p = count; p < t->size.pixels; p++) {
        tile->x[p] = tile->x[count - 1];
        tile->y[p] = tile->y[count - 1];
    }
}

/* What follows the sum of an output pixel: bias, add, ReLU, in the order of the ops that they replace. */
CR_BY_LEVEL(void, finish_pixel,
            (float *y, const float *sum, const float *add, const float *bias, bool relu, int64_t outputs),
            (y, sum, add, bias, relu, outputs)) {
    for (int64_t o = 0; o < outputs; o++) {
        const float v = sum[o] + (bias ? bias[o] : 0) + (add ? add[o] : 0);
        y[o]          = relu && v < 0 ? 0 : v;
    }
}

void cr_conv_finish(float *y, const float *sum, const float *add, const float *bias, bool relu, int64_t outputs) {
    finish_pixel(y, sum, add, bias, relu, outputs);
}

static const float *filters_of(const struct task *t, const struct chunk *c, int64_t output) {
    const struct cr_conv_window *v   = t->strips->window;
    const int64_t                len = v->width * t->strips->plan->channels;
    return t->io->packed + v->packed + output * v->height * len + (c->row * len + c->first) * t->size.panel;
}

/* The place of a chunk in the input of a pixel. */
static int64_t place_of(const struct task *t, const struct chunk *c) {
    return c->row * t->strip->width * t->strips->plan->channels + c->first;
}

static void set_chunk(const struct task *t, const struct chunk *c, struct cr_tile *tile) {
    tile->rows = c->rows;
    tile->len  = c->len;
    tile->row  = t->strip->width * t->strips->plan->channels;
}

/* One chunk of outputs first ... last - 1, which fill their panels, summed in y. */
static void run_chunk(const struct task *t, const struct chunk *c, int64_t first, int64_t last) {
    const struct cr_conv_io *io      = t->io;
    const bool               ends    = c->is_last && (io->bias || io->relu);
    const int64_t            by      = filters_of(t, c, t->size.panel) - filters_of(t, c, 0);
    const int64_t            next    = c->rows * c->len * (last - first); /* the filters that are read next */
    const float             *filters = filters_of(t, c, first), *bias = io->bias ? io->bias + first : NULL;
    struct cr_tile           tile = {.begin = c->is_first ? NULL : io->y, .to = io->y};
    struct pixel             at   = {0};
    set_chunk(t, c, &tile);
    begin_row(t, &at);
    for (int64_t number = 0; number < t->tiles; number++) {
        const int    count = (int)CR_MIN(t->pixels - number * t->size.pixels, (int64_t)t->size.pixels);
        const float *w     = filters;
        set_pixels(t, t->strip->x + place_of(t, c), &at, count, &tile);
        for (int64_t output = first; output < last; output += t->size.panel, w += by) {
            cr_tile_prefetch(&tile, w + next, t->size.panel, number, t->tiles);
            t->tile(&tile, w, output);
        }
        for (int p = 0; ends && p < count; p++) {
            float *y = io->y + tile.y[p] + first;
            finish_pixel(y, y, NULL, bias, io->relu, last - first);
        }
    }
}

/* The sums of tile `number` of pixels and one panel, all chunks, in `sums`. x: the input of each pixel. next: how far
 * behind these filters those that are read next lie. */
static void sum_tile(const struct task *t, const float *const x[CR_TILE_PIXELS_MAX], int64_t number, int64_t output,
                     int64_t next, float *sums) {
    struct cr_tile tile = {.to = sums};
    for (int p = 0; p < t->size.pixels; p++) tile.y[p] = (int64_t)p * CR_PANEL_MAX;
    for (int64_t i = 0; i < t->chunks.count; i++) {
        const struct chunk c = chunk_at(&t->chunks, i);
        set_chunk(t, &c, &tile);
        for (int p = 0; p < t->size.pixels; p++) tile.x[p] = x[p] + place_of(t, &c);
        const float *w = filters_of(t, &c, output);
        cr_tile_prefetch(&tile, w + next, t->size.panel, number, t->tiles);
        t->tile(&tile, w, 0);
        tile.begin = sums;
    }
}

/* Outputs first ... last - 1 tile by tile, summed outside y: y may hold `add`, and the last panel may not be full. */
static void run_tiles(const struct task *t, int64_t first, int64_t last) {
    const struct cr_conv_io *io = t->io;
    float                    sums[CR_TILE_PIXELS_MAX * CR_PANEL_MAX];
    struct cr_tile           tile;
    struct pixel             at = {0};
    begin_row(t, &at);
    for (int64_t number = 0; number < t->tiles; number++) {
        const int count = (int)CR_MIN(t->pixels - number * t->size.pixels, (int64_t)t->size.pixels);
        set_pixels(t, t->strip->x, &at, count, &tile);
        for (int64_t output = first; output < last; output += t->size.panel) {
            sum_tile(t, tile.x, number, output, t->chunks.height * t->chunks.width * (last - first), sums);
            for (int p = 0; p < count; p++) {
                const int64_t place = tile.y[p] + output;
                finish_pixel(io->y + place, sums + p * CR_PANEL_MAX, io->add ? io->add + place : NULL,
                             io->bias ? io->bias + output : NULL, io->relu,
                             CR_MIN((int64_t)t->size.panel, last - output));
            }
        }
    }
}

/* Panels whose filters fit into the second cache are computed together, tile by tile. Others run panel by panel, and
 * those that are summed in y also chunk by chunk, so that all tiles of the strip read a chunk's filters from the first
 * cache. */
static void run_panels(const struct task *t) {
    const int64_t panel = t->size.panel, filter = CR_MAX(t->chunks.height * t->chunks.width, 1);
    const int64_t fit   = CR_MAX(FILTER_FLOATS / filter / panel, 1) * panel;
    const int64_t whole = t->io->add ? t->first : t->whole, by = t->chunks.count == 1 ? fit : panel;
    for (int64_t output = t->first; output < whole; output += by)
        for (int64_t i = 0; i < t->chunks.count; i++) {
            const struct chunk c = chunk_at(&t->chunks, i);
            run_chunk(t, &c, output, CR_MIN(output + by, whole));
        }
    for (int64_t output = whole; output < t->last; output += fit) run_tiles(t, output, CR_MIN(output + fit, t->last));
}

/* ---- the part of a thread ---- */

static void run_strip(struct task *t, int64_t i, float *scratch) {
    const struct cr_conv_window *v     = t->strips->window;
    const struct strip           strip = strip_at(t->strips, i, t->io->x, scratch);
    t->strip                           = &strip;
    t->pixels                          = strip.images * strip.rows * v->columns;
    t->tiles                           = (t->pixels + t->size.pixels - 1) / t->size.pixels;
    t->chunks                          = chunks_of(v, t->strips->plan->channels, t->size.panel);
    run_panels(t);
}

/* Threads divide the strips; where these have few tiles, the panels too. */
static void run_thread(const struct strips *windows, const struct cr_conv_io *io, int thread, int threads,
                       float *scratch) {
    const struct cr_tile_size  size = cr_conv_tile_size(windows->plan->outputs);
    const struct cr_conv_plan *plan = windows->plan;
    const int64_t pixels = plan->images * windows->window->rows * windows->window->columns, panel = size.panel;
    const int64_t panels = (plan->outputs + panel - 1) / panel, enough = (int64_t)TILES_PER_THREAD * size.pixels;
    int           columns = 1;
    int64_t       begin, end, first, last;
    while ((pixels * columns < enough * threads || windows->count * columns < threads) &&
           threads % (2 * columns) == 0 && 2 * columns <= panels)
        columns *= 2;
    cr_run_of(windows->count, thread / columns, threads / columns, &begin, &end);
    cr_run_of(panels, thread % columns, columns, &first, &last);
    struct task t = {.io = io, .size = size, .tile = cr_conv_tile(plan->outputs)};
    t.first       = first * panel;
    t.last        = CR_MIN(last * panel, plan->outputs);
    t.whole       = t.last / panel * panel;
    for (int64_t i = begin; i < end; i++)
        for (int w = 0; w < plan->windows; w++) {
            t.strips = &windows[w];
            run_strip(&t, i, scratch);
        }
}

int64_t cr_conv_scratch_floats(const struct cr_conv_plan *plan, int threads) {
    int64_t most = plan->winograd ? cr_winograd_scratch_floats(plan) : 0;
    for (int w = 0; w < plan->windows && !plan->winograd; w++) {
        const struct strips s = strips_of(plan, w, threads);
        if (s.copied) most = CR_MAX(most, s.images * strip_floats(&s, part_rows(&s)));
    }
    return (most + CR_CPU_ALIGN - 1) / CR_CPU_ALIGN * CR_CPU_ALIGN;
}

void cr_conv_run(const struct cr_conv_plan *plan, const struct cr_conv_io *io, float *scratch, int threads) {
    const int64_t part = cr_conv_scratch_floats(plan, threads);
    struct strips strips[CR_WINDOWS_MAX];
    if (plan->winograd) {
        cr_winograd_run(plan, io, scratch, threads);
        return;
    }
    for (int w = 0; w < plan->windows; w++) strips[w] = strips_of(plan, w, threads);
    CR_THREADS(n, threads) run_thread(strips, io, n, threads, scratch + n * part);
}
