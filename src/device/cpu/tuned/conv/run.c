/* device/cpu/tuned/conv/run.c: runs a plan: divides strips and panels among the threads, and sums into chunks whose filters stay in
 * the first cache. */
#include "device/cpu/simd.h"
#include "device/cpu/tuned/conv/window.h"

#include <string.h>

enum {
    CHUNK_FLOATS     = 384,      /* of a window: the filters of a chunk of a panel stay in the first cache */
    STRIP_FLOATS     = 48 << 10, /* of the input: a strip stays in the second cache */
    TILES_PER_THREAD = 8         /* with fewer, threads divide the panels, too */
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

/* All windows of a plan are divided alike, so that a strip of the input is read from memory once for all of them. */
static struct strips strips_of(const struct cr_conv_plan *plan, int window, int threads) {
    struct strips s = {.plan = plan, .window = &plan->window[0], .copied = true, .parts = 1};
    s.width         = (s.window->columns - 1) * plan->stride + s.window->width;
    s.images        = STRIP_FLOATS / CR_MAX(strip_floats(&s, s.window->rows), 1);
    s.images        = CR_MAX(CR_MIN(s.images, (plan->images + threads - 1) / threads), 1);
    while (s.parts < s.window->rows && strip_floats(&s, part_rows(&s)) > STRIP_FLOATS) s.parts++;
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
    int64_t groups, rows; /* of rows; rows of a group */
    int64_t parts, len;   /* of a row; floats of a part */
};

/* Chunks are about equally long. A window without rows has one empty chunk. */
static struct chunks chunks_of(const struct cr_conv_window *v, int64_t len) {
    struct chunks c    = {.parts = CR_MAX((len + CHUNK_FLOATS - 1) / CHUNK_FLOATS, 1)};
    const int64_t most = len ? CR_MAX(CHUNK_FLOATS / len, 1) : 1;
    c.len              = (len + c.parts - 1) / c.parts;
    c.groups           = CR_MAX((v->height + most - 1) / most, 1);
    c.rows             = (v->height + c.groups - 1) / c.groups;
    return c;
}

/* ---- one panel of one strip ---- */

struct task {
    const struct strips     *strips;
    const struct strip      *strip;
    const struct cr_conv_io *io;
    struct cr_tile_size      size;
    cr_tile_function        *tile;
    int64_t                  panel, outputs; /* the first output, and how many there are */
    struct chunks            chunks;
};

static const float zeros[CR_PANEL_MAX];

/* A pixel of a strip, and where its input and its outputs begin. */
struct pixel {
    int64_t image, row, column;
    int64_t x, y;
};

static void locate(const struct task *t, struct pixel *p) {
    const struct cr_conv_plan   *plan = t->strips->plan;
    const struct cr_conv_window *v    = t->strips->window;
    const int64_t h = v->first_row + (t->strip->row + p->row) * plan->step, image = t->strip->image + p->image;
    p->x = (p->image * t->strip->height + p->row * plan->stride) * t->strip->width * plan->channels;
    p->y = ((image * plan->out_height + h) * plan->out_width + v->first_column) * plan->outputs + t->panel;
}

static void advance(const struct task *t, struct pixel *p) {
    const struct cr_conv_plan *plan = t->strips->plan;
    p->x += plan->stride * plan->channels;
    p->y += plan->step * plan->outputs;
    if (++p->column < t->strips->window->columns) return;
    p->column = 0;
    if (++p->row == t->strip->rows) {
        p->row = 0;
        p->image++;
    }
    locate(t, p);
}

/* What follows the sum of an output pixel: add where the tile did not begin with it, bias, ReLU. */
CR_BY_LEVEL(void, finish, (float *y, const float *sum, const float *add, const float *bias, bool relu, int64_t outputs),
            (y, sum, add, bias, relu, outputs)) {
    for (int64_t o = 0; o < outputs; o++) {
        const float v = sum[o] + (add ? add[o] : 0) + (bias ? bias[o] : 0);
        y[o]          = relu && v < 0 ? 0 : v;
    }
}

static void finish_tile(const struct task *t, const struct cr_tile *tile, int count, const int64_t *place) {
    const struct cr_conv_io *io    = t->io;
    const bool               whole = t->outputs == t->size.panel;
    if (whole && !io->bias && !io->relu) return;
    for (int p = 0; p < count; p++)
        finish(io->y + place[p], tile->out[p], !whole && io->add ? io->add + place[p] : NULL,
               io->bias ? io->bias + t->panel : NULL, io->relu, t->outputs);
}

/* Chunk `c` of the sums of the tile that begins at `at`, which moves on. Places after the last pixel read the first one and
 * write into `spare`. So do all pixels of a panel that has fewer outputs than the tile. */
static void run_tile(const struct task *t, int64_t c, struct pixel *at, int count, float *spare) {
    const struct chunks       *k     = &t->chunks;
    const struct cr_conv_plan *plan  = t->strips->plan;
    const bool                 whole = t->outputs == t->size.panel, last = c == k->groups * k->parts - 1;
    const int64_t              len = t->strips->window->width * plan->channels, row = c / k->parts * k->rows,
                  first   = c % k->parts * k->len;
    const float   *before = c == 0 ? t->io->add : t->io->y;
    int64_t        place[CR_TILE_PIXELS_MAX];
    struct cr_tile tile = {.rows = CR_MIN(k->rows, t->strips->window->height - row),
                           .len  = CR_MIN(k->len, len - first)};
    tile.row            = t->strip->width * plan->channels;
    tile.w              = t->io->packed + t->strips->window->packed + t->panel * t->strips->window->height * len +
             (row * len + first) * t->size.panel;
    const float *x = t->strip->x + row * tile.row + first;
    for (int p = 0; p < t->size.pixels; p++) {
        place[p]     = at->y;
        tile.x[p]    = p < count ? x + at->x : tile.x[0];
        tile.out[p]  = p < count && whole ? t->io->y + at->y : spare + p * CR_PANEL_MAX;
        tile.init[p] = !whole ? (c == 0 ? zeros : tile.out[p]) : before && p < count ? before + at->y : zeros;
        if (p < count) advance(t, at);
    }
    t->tile(&tile);
    if (last) finish_tile(t, &tile, count, place);
}

/* Chunk by chunk, so that all tiles of the strip read its filters from the first cache. The sums of a panel that has fewer
 * outputs than the tile stay in `spare` between chunks, so such a panel runs tile by tile. */
static void run_panel(const struct task *t) {
    float         spare[CR_TILE_PIXELS_MAX * CR_PANEL_MAX];
    const int64_t chunks = t->chunks.groups * t->chunks.parts, by = t->size.pixels;
    const int64_t pixels = t->strip->images * t->strip->rows * t->strips->window->columns;
    const bool    whole  = t->outputs == t->size.panel;
    for (int64_t outer = 0; outer < (whole ? chunks : 1); outer++) {
        struct pixel at = {0};
        locate(t, &at);
        for (int64_t done = 0; done < pixels; done += by) {
            const int    count = (int)CR_MIN(by, pixels - done);
            struct pixel next  = at;
            for (int64_t c = 0; c < (whole ? 1 : chunks); c++) {
                next = at;
                run_tile(t, outer + c, &next, count, spare);
            }
            at = next;
        }
    }
}

/* ---- the part of a thread ---- */

/* Strip `i` of one window, outputs first ... last - 1. */
static void run_strip(struct task t, int64_t i, int64_t first, int64_t last, float *scratch) {
    const struct cr_conv_plan *plan  = t.strips->plan;
    const struct strip         strip = strip_at(t.strips, i, t.io->x, scratch);
    t.strip                          = &strip;
    t.chunks                         = chunks_of(t.strips->window, t.strips->window->width * plan->channels);
    for (t.panel = first; t.panel < last; t.panel += t.size.panel) {
        t.outputs = CR_MIN((int64_t)t.size.panel, last - t.panel);
        run_panel(&t);
    }
}

/* Threads divide the strips; where these have few tiles, the panels too. */
static void run_thread(const struct strips *windows, struct task t, int thread, int threads, float *scratch) {
    const struct cr_conv_plan *plan = windows->plan;
    const int64_t pixels = plan->images * windows->window->rows * windows->window->columns, panel = t.size.panel;
    const int64_t panels = (plan->outputs + panel - 1) / panel, enough = (int64_t)TILES_PER_THREAD * t.size.pixels;
    int           columns = 1;
    int64_t       begin, end, first, last;
    while ((pixels * columns < enough * threads || windows->count * columns < threads) &&
           threads % (2 * columns) == 0 && 2 * columns <= panels)
        columns *= 2;
    cr_run_of(windows->count, thread / columns, threads / columns, &begin, &end);
    cr_run_of(panels, thread % columns, columns, &first, &last);
    for (int64_t i = begin; i < end; i++)
        for (int w = 0; w < plan->windows; w++) {
            t.strips = &windows[w];
            run_strip(t, i, first * panel, CR_MIN(last * panel, plan->outputs), scratch);
        }
}

int64_t cr_conv_scratch_floats(const struct cr_conv_plan *plan, int threads) {
    int64_t most = 0;
    for (int w = 0; w < plan->windows; w++) {
        const struct strips s = strips_of(plan, w, threads);
        if (s.copied) most = CR_MAX(most, s.images * strip_floats(&s, part_rows(&s)));
    }
    return (most + CR_CPU_ALIGN - 1) / CR_CPU_ALIGN * CR_CPU_ALIGN;
}

void cr_conv_run(const struct cr_conv_plan *plan, const struct cr_conv_io *io, float *scratch, int threads) {
    const int64_t part = cr_conv_scratch_floats(plan, threads);
    struct task   t    = {.io = io, .size = cr_conv_tile_size(plan->outputs), .tile = cr_conv_tile(plan->outputs)};
    struct strips strips[CR_WINDOWS_MAX];
    for (int w = 0; w < plan->windows; w++) strips[w] = strips_of(plan, w, threads);
    CR_PARALLEL_FOR(threads)
    for (int n = 0; n < threads; n++) run_thread(strips, t, n, threads, scratch + n * part);
}
