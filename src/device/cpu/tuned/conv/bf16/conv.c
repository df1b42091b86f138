/* device/cpu/tuned/conv/bf16/conv.c: convolutions and input gradients: what cpu.conv_bf16 and cpu.conv_dgrad_bf16 run.
 *
 * A thread copies a strip of the input, rounded, and computes all of its outputs while it is in the second cache. Rows
 * of a tile are windows of positions, read where they lie in the copy. With stride 2 the copy has two planes, of even
 * and of odd rows: in each of them the windows of all positions are equally far apart. */
#include "device/cpu/simd.h"
#include "device/cpu/tuned/conv/bf16/bf16.h"
#include "device/cpu/tuned/conv/window.h"

#include <string.h>

#if defined(__x86_64__)

enum {
    TAPS_MAX     = 64,
    STRIP_BYTES  = 1 << 20,   /* of a copy: it stays in the second cache */
    FILTER_BYTES = 256 << 10, /* of panels that are computed together: they stay in the second cache, too */
    PIXEL_MARGIN = 32,        /* numbers between pixels whose channels fill whole pages or large parts of them */
    ROUND        = 32         /* sizes of copies and filters are multiples of so many numbers */
};

/* ---- the plan ---- */

/* A window in the copy, see window.h. */
struct window {
    struct cr_bf16_span   columns;
    struct cr_bf16_strips strips;
    int64_t               taps, steps; /* a tap is a pixel of the window, or one of its rows */
    int64_t               packed;      /* first number of its packed filter */
    int64_t               numbers;     /* of a copy */
};
struct plan {
    struct cr_conv_plan conv;
    int64_t             skip, stride;    /* between pixels of the input that are copied; between windows in the copy */
    int64_t             pixel;           /* numbers between pixels of the copy */
    int64_t             height, width;   /* of the input without skipped pixels */
    int64_t             packed, numbers; /* of the packed filter, of the copy of a thread */
    bool                stream;          /* the output is too large for a cache: non-temporal stores */
    struct window       window[CR_WINDOWS_MAX];
};

static struct cr_bf16_span rows_of(const struct plan *p, const struct cr_conv_window *v, int64_t row, int64_t rows) {
    return cr_bf16_span_of(p->height, row * p->stride - v->top, rows, p->stride, v->height);
}

/* Rows of a plane of the copy of `images` images. */
static int64_t plane_rows(const struct plan *p, const struct cr_conv_window *v, const struct cr_bf16_span *rows,
                          int64_t images) {
    return images * rows->pitch / p->stride + v->height / p->stride + 1;
}

/* Tiles read beyond the last position where there are few, and beyond the last tap. */
static int64_t copy_numbers(const struct plan *p, const struct cr_conv_window *v, const struct window *w,
                            const struct cr_bf16_span *rows, int64_t images) {
    return cr_rounded_up(p->stride * plane_rows(p, v, rows, images) * w->columns.pitch * p->pixel +
                             CR_BF16_BLOCK * p->stride * p->pixel + CR_BF16_DEPTH,
                         ROUND);
}

static void plan_window(struct plan *p, const struct cr_conv_window *v, struct window *w, int threads) {
    const struct cr_conv_plan *c   = &p->conv;
    const int64_t              row = v->width * c->channels;
    w->columns                     = cr_bf16_span_of(p->width, -v->left, v->columns, p->stride, v->width);
    w->taps                        = c->channels % CR_BF16_DEPTH ? v->height : v->height * v->width;
    w->steps            = cr_rounded_up(w->taps == v->height ? row : c->channels, CR_BF16_DEPTH) / CR_BF16_DEPTH;
    const int64_t bytes = p->stride * w->columns.pitch * p->pixel * (int64_t)sizeof(uint16_t);
    w->strips = cr_bf16_strips_of(c->images, v->rows, v->columns, CR_MAX(STRIP_BYTES / bytes, 1) * v->columns, threads);
    struct cr_bf16_span rows = rows_of(p, v, 0, (v->rows + w->strips.parts - 1) / w->strips.parts);
    if (w->strips.parts > 1)
        rows.pitch = cr_rounded_up(rows.all, p->stride); /* parts without padding are the largest */
    w->numbers = copy_numbers(p, v, w, &rows, w->strips.images);
}

static struct plan plan_of(const struct cr_conv_plan *c, int threads) {
    struct plan p      = {.conv = *c};
    const bool  single = c->windows == 1 && c->window[0].height == 1 && c->window[0].width == 1 && !c->window[0].top;
    p.skip             = single ? c->stride : 1;
    p.stride           = c->stride / p.skip;
    p.height           = (c->height + p.skip - 1) / p.skip;
    p.width            = (c->width + p.skip - 1) / p.skip;
    p.pixel            = c->channels + (c->channels % 512 ? 0 : PIXEL_MARGIN);
    for (int i = 0; i < c->windows; i++) {
        const struct cr_conv_window *v = &c->window[i];
        struct window               *w = &p.window[i];
        w->packed                      = p.packed;
        plan_window(&p, v, w, threads);
        p.packed += cr_rounded_up(c->outputs, CR_BF16_ROWS) * w->taps * w->steps * CR_BF16_DEPTH;
        p.numbers = CR_MAX(p.numbers, w->numbers);
    }
    return p;
}

/* ---- filters ---- */

/* The 32 numbers from `first` on in row r of the window, of 16 outputs from `output` on. */
static void pack_tile(const struct plan *p, const struct cr_conv_window *v, const float *w, int64_t output, int64_t r,
                      int64_t first, uint16_t *to) {
    static const float         zeros[CR_BF16_DEPTH];
    const struct cr_conv_plan *c       = &p->conv;
    const int64_t              outputs = CR_MIN(c->outputs - output, (int64_t)CR_BF16_ROWS);
    const float               *row[CR_BF16_DEPTH];
    w += output * c->by_output + (v->tap_row + r * v->by) * c->by_row + v->tap_column * c->by_tap;
    if (c->by_channel == 1) { /* a row of the window is contiguous */
        for (int64_t o = 0; o < CR_BF16_ROWS; o++) row[o] = o < outputs ? w + o * c->by_output + first : zeros;
        cr_bf16_pairs_transposed(row, CR_MIN(v->width * c->channels - first, (int64_t)CR_BF16_DEPTH), to);
        return;
    }
    for (int64_t i = 0; i < CR_BF16_DEPTH; i++) {
        const int64_t s = (first + i) / c->channels, channel = (first + i) % c->channels;
        row[i] = s < v->width ? w + s * v->by * c->by_tap + channel * c->by_channel : zeros;
    }
    cr_bf16_pairs(row, outputs, to);
}

/* [panel][row of the window][32 numbers of the row][16 outputs of the panel]: tiles of pairs. */
static void pack(const struct cr_conv_plan *plan, const float *w, float *packed, int threads) {
    const struct plan all_windows = plan_of(plan, 1), *p = &all_windows;
    for (int n = 0; n < p->conv.windows; n++) {
        const struct cr_conv_window *v     = &p->conv.window[n];
        const int64_t                steps = v->height ? p->window[n].taps * p->window[n].steps / v->height : 0;
        const int64_t all = v->height * steps, tiles = (p->conv.outputs + CR_BF16_ROWS - 1) / CR_BF16_ROWS;
        CR_PARALLEL_BY(threads, int64_t, i, tiles * v->height) {
            const int64_t tile = i / v->height, r = i % v->height, panel = tile / 2 * 2;
            const int64_t width = CR_MIN(tiles - panel, 2);
            uint16_t     *to =
                (uint16_t *)packed + p->window[n].packed + (panel * all + r * steps * width + tile % 2) * CR_BF16_TILE;
            for (int64_t step = 0; step < steps; step++, to += width * CR_BF16_TILE)
                pack_tile(p, v, w, tile * CR_BF16_ROWS, r, step * CR_BF16_DEPTH, to);
        }
    }
}

/* ---- strips ---- */

/* A copied strip. */
struct task {
    const struct plan           *plan;
    const struct cr_conv_window *v;
    const struct window         *w;
    const struct cr_conv_io     *io;
    struct cr_bf16_strip         strip;
    struct cr_bf16_span          rows;
    const uint16_t              *x;
    int64_t                      tap[TAPS_MAX];
    int64_t                      first, last; /* panels */
};

/* From the first to the last one that is stored. */
static int64_t positions_of(const struct task *t) {
    const int64_t columns = t->w->columns.pitch / t->plan->stride, rows = t->rows.pitch / t->plan->stride;
    return ((t->strip.images - 1) * rows + t->strip.rows - 1) * columns + t->v->columns;
}

static void copy_row(const struct task *t, const float *x, uint16_t *to) {
    const struct plan         *p = t->plan;
    const struct cr_bf16_span *s = &t->w->columns;
    const int64_t              C = p->conv.channels;
    memset(to, 0, (size_t)(s->before * p->pixel) * sizeof *to);
    to += s->before * p->pixel;
    x += s->from * p->skip * C;
    if (p->skip == 1 && p->pixel == C)
        cr_bf16_round(x, s->inside * C, to);
    else
        for (int64_t i = 0; i < s->inside; i++) cr_bf16_round(x + i * p->skip * C, C, to + i * p->pixel);
    memset(to + s->inside * p->pixel, 0, (size_t)((s->pitch - s->before - s->inside) * p->pixel) * sizeof *to);
}

/* Row `row` of the copy, of all rows of a plane together, or zeros after the last image. */
static void copy_strip(const struct task *t, uint16_t *copy) {
    const struct plan *p    = t->plan;
    const int64_t      line = t->w->columns.pitch * p->pixel, image = p->conv.height * p->conv.width * p->conv.channels;
    const int64_t      rows = plane_rows(p, t->v, &t->rows, t->strip.images);
    for (int64_t plane = 0; plane < p->stride; plane++)
        for (int64_t i = 0; i < rows; i++, copy += line) {
            const int64_t n   = i * p->stride / t->rows.pitch,
                          row = i * p->stride % t->rows.pitch + plane - t->rows.before;
            if (n >= t->strip.images || row < 0 || row >= t->rows.inside)
                memset(copy, 0, (size_t)line * sizeof *copy);
            else
                copy_row(t,
                         t->io->x + (t->strip.image + n) * image +
                             (t->rows.from + row) * p->skip * p->conv.width * p->conv.channels,
                         copy);
        }
    const int64_t beyond = positions_of(t) < CR_BF16_BLOCK ? CR_BF16_BLOCK * p->stride * p->pixel : 0;
    memset(copy, 0, (size_t)(beyond + CR_BF16_DEPTH) * sizeof *copy);
}

static void set_taps(struct task *t) {
    const struct plan *p    = t->plan;
    const int64_t      line = t->w->columns.pitch * p->pixel;
    const int64_t plane = plane_rows(p, t->v, &t->rows, t->strip.images), width = t->w->taps / CR_MAX(t->v->height, 1);
    for (int64_t i = 0; i < t->w->taps; i++) {
        const int64_t r = i / width;
        t->tap[i]       = (r % p->stride * plane + r / p->stride) * line + i % width * p->pixel;
    }
}

/* ---- outputs ---- */

/* The first output of a position, or -1 where it is beyond a row or an image. Moves on. */
static int64_t next_output(const struct task *t, struct cr_bf16_place *at) {
    const struct cr_conv_plan *c       = &t->plan->conv;
    const int64_t              columns = t->w->columns.pitch / t->plan->stride, rows = t->rows.pitch / t->plan->stride;
    int64_t                    y = -1;
    if (at->column < t->v->columns && at->row < t->strip.rows && at->image < t->strip.images) {
        const int64_t h = t->v->first_row + (t->strip.row + at->row) * c->step;
        y               = (((t->strip.image + at->image) * c->out_height + h) * c->out_width + t->v->first_column +
             at->column * c->step) *
            c->outputs;
    }
    cr_bf16_next(at, rows, columns);
    return y;
}

static void finish(const struct task *t, const int64_t y[CR_BF16_BLOCK], const float *sums, int64_t output) {
    const struct cr_conv_io *io    = t->io;
    const int64_t            count = CR_MIN(t->plan->conv.outputs - output, (int64_t)CR_BF16_PANEL);
    for (int p = 0; p < CR_BF16_BLOCK; p++, sums += CR_BF16_PANEL)
        if (y[p] >= 0)
            cr_bf16_finish(io->y + y[p] + output, sums, io->bias ? io->bias + output : NULL,
                           io->add ? io->add + y[p] + output : NULL, io->relu, t->plan->stream, count);
}

/* The last block begins so early that it is whole; positions that are done are not stored again. */
static void run_panels(const struct task *t, const uint16_t *packed, int64_t first, int64_t last) {
    _Alignas(64) float   sums[CR_BF16_BLOCK * CR_BF16_PANEL];
    const struct plan   *p     = t->plan;
    const int64_t        count = positions_of(t), by = CR_BF16_PANEL * t->w->taps * t->w->steps * CR_BF16_DEPTH;
    struct cr_bf16_place at  = {0};
    struct cr_bf16_sum   sum = {.pixel = p->stride * p->pixel, .tap = t->tap, .to = sums};
    sum.taps                 = t->w->taps;
    sum.steps                = t->w->steps;
    for (int64_t i = 0; i < count; i += CR_BF16_BLOCK) {
        const int64_t begin = CR_MAX(CR_MIN(i, count - CR_BF16_BLOCK), 0);
        int64_t       y[CR_BF16_BLOCK];
        for (int j = 0; j < CR_BF16_BLOCK; j++) y[j] = begin + j < i ? -1 : next_output(t, &at);
        sum.x = t->x + begin * p->stride * p->pixel;
        for (int64_t panel = first; panel < last; panel++) {
            sum.w     = packed + panel * by;
            sum.tiles = p->conv.outputs - panel * CR_BF16_PANEL > CR_BF16_ROWS ? 2 : 1;
            cr_bf16_sum(&sum);
            finish(t, y, sums, panel * CR_BF16_PANEL);
        }
    }
}

/* Threads divide the strips; where there are fewer strips than threads, the panels. */
static void run_window(struct task *t, const uint16_t *packed, uint16_t *copy, int thread, int threads) {
    const int64_t panels      = (t->plan->conv.outputs + CR_BF16_PANEL - 1) / CR_BF16_PANEL;
    const int64_t panel_bytes = CR_BF16_PANEL * t->w->taps * t->w->steps * CR_BF16_DEPTH * (int64_t)sizeof *packed;
    const int64_t together    = CR_MAX(FILTER_BYTES / CR_MAX(panel_bytes, 1), 1);
    int64_t       begin = 0, end = t->w->strips.count;
    t->first = 0;
    t->last  = panels;
    if (end < threads)
        cr_run_of(panels, thread, threads, &t->first, &t->last);
    else
        cr_run_of(t->w->strips.count, thread, threads, &begin, &end);
    if (t->first == t->last) return;
    for (int64_t i = begin; i < end; i++) {
        t->strip = cr_bf16_strip_at(&t->w->strips, i, t->plan->conv.images, t->v->rows);
        t->rows  = rows_of(t->plan, t->v, t->strip.row, t->strip.rows);
        t->x     = copy;
        set_taps(t);
        if (t->w->taps) copy_strip(t, copy);
        for (int64_t panel = t->first; panel < t->last; panel += together)
            run_panels(t, packed + t->w->packed, panel, CR_MIN(panel + together, t->last));
    }
}

/* ---- the method ---- */

bool cr_conv_bf16_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *w = &p->tensor[op->in[op->kind == CR_OP_conv ? CR_IN_conv_w : CR_IN_conv_dgrad_w]];
    (void)device;
    return op->attr.conv.stride <= 2 && w->dim[1] * w->dim[2] <= TAPS_MAX;
}

static int64_t packed_floats(const struct cr_conv_plan *plan) {
    return plan_of(plan, 1).packed / 2;
}

static int64_t scratch_floats(const struct cr_conv_plan *plan, int threads) {
    return plan_of(plan, threads).numbers / 2;
}

/* Non-temporal stores of outputs that are too large for a cache. Those of gradients gain nothing. */
static bool is_streamed(const struct cr_conv_plan *c, const float *y, int threads) {
    const int64_t bytes = c->images * c->out_height * c->out_width * c->outputs * (int64_t)sizeof *y;
    return c->by_channel == 1 && c->outputs % CR_BF16_ROWS == 0 && (uintptr_t)y % CR_CPU_ALIGN == 0 &&
           bytes / threads > CR_NONTEMPORAL_BYTES;
}

static void run(const struct cr_conv_plan *plan, const struct cr_conv_io *io, float *scratch, int threads) {
    struct plan p = plan_of(plan, threads);
    p.stream      = is_streamed(plan, io->y, threads);
    CR_THREADS(n, threads) {
        struct task t = {.plan = &p, .io = io};
        cr_bf16_begin();
        for (int i = 0; i < plan->windows; i++) {
            t.v = &plan->window[i];
            t.w = &p.window[i];
            run_window(&t, (const uint16_t *)io->packed, (uint16_t *)scratch + n * p.numbers, n, threads);
        }
        cr_bf16_end();
        cr_bf16_fence();
    }
}

const struct cr_conv_method cr_conv_bf16_method = {packed_floats, pack, scratch_floats, run};

#endif
