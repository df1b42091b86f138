/* device/cpu/tuned/conv/bf16/wgrad.c: the kernel cpu.conv_wgrad_bf16: dw[k][r][s][c] = sum over pixels of
 * dy[k] * x[r][s][c].
 *
 * A thread copies a strip of x in pairs of neighbouring positions, and dy transposed. A row of a tile is a channel of
 * dy at 32 positions; for each tap of the filter it is read from another place, with zeros around it. With stride 2, x
 * has a plane for each (h % 2, w % 2), of which a tap needs one.
 *
 * Each thread sums small filters over its own strips, and these sums are added at the end. Of larger filters, threads
 * divide the channels of x or of dy, whichever are more. */
#include "device/cpu/simd.h"
#include "device/cpu/tuned/conv/bf16/bf16.h"

#include <string.h>

#if defined(__x86_64__)

enum {
    TAPS_MAX       = 64,
    STRIP_BYTES    = 1 << 20,   /* of the copies: they stay in the second cache */
    PRIVATE_FLOATS = 128 << 10, /* of a thread's own sums */
    POSITIONS_MAX  = 1 << 14,
    ROW_MAX        = 64,                         /* floats of merged taps */
    SUMS           = CR_BF16_ROWS * CR_BF16_ROWS /* of a tile */
};

/* ---- the plan ---- */

/* How threads divide the work. */
enum share { BY_STRIPS, BY_X, BY_DY };

struct plan {
    int64_t               N, H, W, C, K, R, S, P, Q, pad; /* H, W: without skipped pixels */
    int64_t               skip, stride;                   /* between pixels of x that are copied; between windows */
    int64_t               pixel, row, image;              /* floats of x */
    int64_t               taps_in_row;                    /* taps that count as channels of a pixel; else 1 */
    struct cr_bf16_span   columns;
    struct cr_bf16_strips strips;
    int64_t               planes_h, planes_w;
    enum share            share;
    int64_t               x_channels, dy_channels; /* of a thread, at most; multiples of a tile */
    int64_t               positions, halo;         /* of a strip, at most; before the first position of dy */
};

static struct cr_bf16_span rows_of(const struct plan *v, int64_t row, int64_t rows) {
    return cr_bf16_span_of(v->H, row * v->stride - v->pad, rows, v->stride, v->R);
}

/* Place of a tap in its plane, in positions. */
static int64_t place_of(const struct plan *v, int64_t r, int64_t s) {
    return r / v->stride * (v->columns.pitch / v->stride) + s / v->stride;
}

/* Positions of x that the windows of a strip contain. */
static int64_t positions_of(const struct plan *v, int64_t images, const struct cr_bf16_span *span, int64_t rows) {
    const int64_t last =
        ((images - 1) * (span->pitch / v->stride) + rows - 1) * (v->columns.pitch / v->stride) + v->Q - 1;
    return cr_rounded_up(last + place_of(v, v->R - 1, v->S - 1) + 1, CR_BF16_DEPTH);
}

/* Few channels: a row of the filter counts as one pixel with S * C channels, and tiles have fewer zeros. */
static void merge_rows(struct plan *v) {
    const int64_t merged = v->S * v->C;
    v->taps_in_row       = 1;
    if (merged > ROW_MAX || cr_rounded_up(merged, CR_BF16_ROWS) >= v->S * cr_rounded_up(v->C, CR_BF16_ROWS)) return;
    v->taps_in_row = v->S;
    v->S           = 1;
    v->C           = merged;
}

static void set_share(struct plan *v, int threads) {
    const int64_t C = cr_rounded_up(v->C, CR_BF16_ROWS), K = cr_rounded_up(v->K, CR_BF16_ROWS);
    const int64_t part = (int64_t)threads * CR_BF16_ROWS;
    v->share           = threads > 1 && v->K * v->R * v->S * v->C <= PRIVATE_FLOATS ? BY_STRIPS : C > K ? BY_X : BY_DY;
    v->x_channels      = v->share == BY_X ? CR_MIN(cr_rounded_up(C, part) / threads, C) : C;
    v->dy_channels     = v->share == BY_DY ? CR_MIN(cr_rounded_up(K, part) / threads, K) : K;
}

static struct plan plan_of(const struct cr_program *p, const struct cr_op *op, int threads) {
    const struct cr_tensor *x = &p->tensor[op->in[CR_IN_conv_wgrad_x]], *y = &p->tensor[op->in[CR_IN_conv_wgrad_dy]];
    const struct cr_tensor *w = &p->tensor[op->out[CR_OUT_conv_wgrad_dw]];
    struct plan             v = {.N = x->dim[0], .C = x->dim[3], .K = w->dim[0], .R = w->dim[1], .S = w->dim[2]};
    v.P                       = y->dim[1];
    v.Q                       = y->dim[2];
    v.pad                     = op->attr.conv.pad;
    v.skip                    = v.R == 1 && v.S == 1 && !v.pad ? op->attr.conv.stride : 1;
    v.stride                  = op->attr.conv.stride / v.skip;
    v.H                       = (x->dim[1] + v.skip - 1) / v.skip;
    v.W                       = (x->dim[2] + v.skip - 1) / v.skip;
    v.row                     = x->dim[2] * v.C;
    v.image                   = x->dim[1] * v.row;
    v.pixel                   = v.C;
    merge_rows(&v);
    v.planes_h = CR_MIN(v.stride, v.R);
    v.planes_w = CR_MIN(v.stride, v.S);
    v.columns  = cr_bf16_span_of(v.W, -v.pad, v.Q, v.stride, v.S);
    if (v.taps_in_row > 1) v.columns.pitch = v.Q * v.stride;
    set_share(&v, threads);
    const int64_t bytes      = (v.x_channels + v.dy_channels) * (int64_t)sizeof(uint16_t);
    const int64_t most       = CR_MIN(CR_MAX(STRIP_BYTES / bytes, CR_BF16_DEPTH), POSITIONS_MAX);
    v.strips                 = cr_bf16_strips_of(v.N, v.P, v.Q, most, v.share == BY_STRIPS ? threads : 1);
    const int64_t       part = (v.P + v.strips.parts - 1) / v.strips.parts;
    struct cr_bf16_span rows = rows_of(&v, 0, part);
    if (v.strips.parts > 1) rows.pitch = cr_rounded_up(rows.all, v.stride); /* parts without padding are the largest */
    v.positions = positions_of(&v, v.strips.images, &rows, part);
    v.halo      = cr_rounded_up(place_of(&v, v.R - 1, v.S - 1), CR_BF16_DEPTH);
    return v;
}

/* Rows of dy lie in different sets of the cache. */
static int64_t dy_pitch(const struct plan *v) {
    return ((v->halo + v->positions) / CR_BF16_DEPTH | 1) * CR_BF16_DEPTH;
}
static int64_t x_numbers(const struct plan *v) {
    return v->x_channels * v->positions;
}
static int64_t copy_bytes(const struct plan *v) {
    const int64_t zeros = cr_rounded_up(CR_MAX(v->C, v->K), CR_BF16_ROWS) * (int64_t)sizeof(float);
    return cr_rounded_up((x_numbers(v) + v->dy_channels * dy_pitch(v)) * (int64_t)sizeof(uint16_t) + zeros,
                         CR_CPU_ALIGN);
}
static int64_t thread_bytes(const struct plan *v) {
    const int64_t sums = v->share == BY_STRIPS ? v->K * v->R * v->S * v->C : 0;
    return copy_bytes(v) + cr_rounded_up(sums * (int64_t)sizeof(float), CR_CPU_ALIGN);
}

/* ---- copies of a strip ---- */

/* The work of a thread: channels first_c ... and first_k ... */
struct task {
    const struct plan   *v;
    const float         *x, *dy, *zeros;
    float               *dw;
    uint16_t            *x_copy, *dy_copy;
    int64_t              first_c, C, first_k, K;
    struct cr_bf16_strip strip;
    struct cr_bf16_span  rows;
    int64_t              positions, pitch; /* of the strip; of rows of dy_copy */
    bool                 add;              /* to dw */
};

static void next_place(const struct task *t, struct cr_bf16_place *at) {
    cr_bf16_next(at, t->rows.pitch / t->v->stride, t->v->columns.pitch / t->v->stride);
}

/* Pixels from `column` on, which may begin or end in the padding: then they are copied to `edge`. */
static const float *row_at(const struct plan *v, const float *x, int64_t column, float edge[ROW_MAX]) {
    if (column >= 0 && column + v->taps_in_row <= v->W) return x + column * v->pixel;
    memset(edge, 0, ROW_MAX * sizeof *edge);
    for (int64_t s = CR_MAX(-column, 0); s < v->taps_in_row && column + s < v->W; s++)
        memcpy(edge + s * v->pixel, x + (column + s) * v->pixel, (size_t)v->pixel * sizeof *edge);
    return edge;
}

/* What plane (h, w) of x has at a position. */
static const float *x_at(const struct task *t, const struct cr_bf16_place *at, int64_t h, int64_t w,
                         float edge[ROW_MAX]) {
    const struct plan *v   = t->v;
    const int64_t      row = at->row * v->stride + h - t->rows.before, column = at->column * v->stride + w;
    if (at->image >= t->strip.images || row < 0 || row >= t->rows.inside) return t->zeros;
    const float *x = t->x + (t->strip.image + at->image) * v->image + (t->rows.from + row) * v->skip * v->row;
    if (v->taps_in_row > 1) return row_at(v, x, column - v->pad, edge) + t->first_c;
    if (column < v->columns.before || column >= v->columns.before + v->columns.inside) return t->zeros;
    return x + (v->columns.from + column - v->columns.before) * v->skip * v->pixel + t->first_c;
}

static const float *dy_at(const struct task *t, const struct cr_bf16_place *at) {
    const struct plan *v = t->v;
    if (at->image >= t->strip.images || at->row >= t->strip.rows || at->column >= v->Q) return t->zeros;
    return t->dy + (((t->strip.image + at->image) * v->P + t->strip.row + at->row) * v->Q + at->column) * v->K +
           t->first_k;
}

/* [tile of channels][position] of a plane: tiles of pairs. */
static void copy_x(const struct task *t, int64_t plane) {
    const struct plan   *v     = t->v;
    const int64_t        tiles = (t->C + CR_BF16_ROWS - 1) / CR_BF16_ROWS;
    struct cr_bf16_place at    = {0};
    for (int64_t i = 0; i < t->positions; i += CR_BF16_DEPTH) {
        const float *row[CR_BF16_DEPTH], *part[CR_BF16_DEPTH];
        float        edge[CR_BF16_DEPTH][ROW_MAX];
        for (int j = 0; j < CR_BF16_DEPTH; j++, next_place(t, &at))
            row[j] = x_at(t, &at, plane / v->planes_w, plane % v->planes_w, edge[j]);
        for (int64_t c = 0; c < tiles; c++) {
            for (int j = 0; j < CR_BF16_DEPTH; j++) part[j] = row[j] + c * CR_BF16_ROWS;
            cr_bf16_pairs(part, t->C - c * CR_BF16_ROWS, t->x_copy + (c * t->positions + i) * CR_BF16_ROWS);
        }
    }
}

/* [channel][halo and positions] */
static void copy_dy(const struct task *t) {
    const struct plan   *v  = t->v;
    struct cr_bf16_place at = {0};
    for (int64_t k = 0; k < v->dy_channels; k++)
        memset(t->dy_copy + k * t->pitch, 0, (size_t)v->halo * sizeof *t->dy_copy);
    for (int64_t i = 0; i < t->positions; i += CR_BF16_DEPTH) {
        const float *row[CR_BF16_DEPTH], *part[CR_BF16_DEPTH];
        for (int j = 0; j < CR_BF16_DEPTH; j++, next_place(t, &at)) row[j] = dy_at(t, &at);
        for (int64_t k = 0; k < t->K; k += CR_BF16_ROWS) {
            for (int j = 0; j < CR_BF16_DEPTH; j++) part[j] = row[j] + k;
            cr_bf16_transpose(part, t->K - k, t->dy_copy + k * t->pitch + v->halo + i, t->pitch);
        }
    }
}

/* ---- sums ---- */

/* 16 channels of dy and a tap. */
struct line {
    int64_t k, tap;
};

static void store(const struct task *t, const struct line *line, int64_t c, const float *sums) {
    const struct plan *v      = t->v;
    const int64_t      filter = v->R * v->S * v->C, rows = CR_MIN(t->K - line->k, (int64_t)CR_BF16_ROWS);
    float             *dw = t->dw + (t->first_k + line->k) * filter + line->tap * v->C + t->first_c + c;
    for (int64_t k = 0; k < rows; k++) cr_bf16_store(dw + k * filter, sums + k * CR_BF16_ROWS, t->add, t->C - c);
}

/* Some lines and one or two tiles of channels of x, from tile c on; the taps of one plane. */
static void run_lines(const struct task *t, const struct line *line, int lines, int64_t c, int tiles) {
    _Alignas(64) float      sums[4 * SUMS];
    const struct plan      *v = t->v;
    struct cr_bf16_products m = {.na = lines, .nb = tiles, .pitch = t->pitch, .to = sums};
    m.steps                   = t->positions / CR_BF16_DEPTH;
    for (int i = 0; i < lines; i++) {
        const int64_t r = line[i].tap / v->S, s = line[i].tap % v->S;
        m.a[i] = t->dy_copy + line[i].k * t->pitch + v->halo - place_of(v, r, s);
    }
    for (int j = 0; j < tiles; j++) m.b[j] = t->x_copy + (c + j) * CR_BF16_ROWS * t->positions;
    cr_bf16_multiply(&m);
    for (int i = 0; i < lines; i++)
        for (int j = 0; j < tiles; j++) store(t, &line[i], (c + j) * CR_BF16_ROWS, sums + (i * tiles + j) * SUMS);
}

static void run_plane(const struct task *t, int64_t plane) {
    const struct plan *v     = t->v;
    const int64_t      tiles = (t->C + CR_BF16_ROWS - 1) / CR_BF16_ROWS;
    const int          most  = tiles > 1 ? 2 : 4;
    struct line        line[4];
    int                lines = 0;
    for (int64_t k = 0; k < t->K; k += CR_BF16_ROWS)
        for (int64_t tap = 0; tap < v->R * v->S; tap++) {
            if (tap / v->S % v->stride != plane / v->planes_w || tap % v->S % v->stride != plane % v->planes_w)
                continue;
            line[lines++] = (struct line){k, tap};
            if (lines < most) continue;
            for (int64_t c = 0; c < tiles; c += 2) run_lines(t, line, lines, c, (int)CR_MIN(tiles - c, 2));
            lines = 0;
        }
    for (int64_t c = 0; c < tiles && lines; c += 2) run_lines(t, line, lines, c, (int)CR_MIN(tiles - c, 2));
}

/* Strips begin ... end - 1. */
static void run_strips(struct task *t, int64_t begin, int64_t end) {
    const struct plan *v = t->v;
    for (int64_t i = begin; i < end; i++) {
        t->strip     = cr_bf16_strip_at(&v->strips, i, v->N, v->P);
        t->rows      = rows_of(v, t->strip.row, t->strip.rows);
        t->positions = positions_of(v, t->strip.images, &t->rows, t->strip.rows);
        copy_dy(t);
        for (int64_t plane = 0; plane < v->planes_h * v->planes_w; plane++) {
            copy_x(t, plane);
            run_plane(t, plane);
        }
        t->add = true;
    }
}

/* ---- the kernel ---- */

CR_CPU_ACCEPTS(accepts) {
    const struct cr_tensor *w = &p->tensor[op->out[CR_OUT_conv_wgrad_dw]];
    return op->attr.conv.stride <= 2 && w->dim[1] * w->dim[2] <= TAPS_MAX;
}

CR_CPU_WORKSPACE(workspace) {
    const struct plan v = plan_of(p, op, cr_cpu_threads(device));
    return (size_t)(thread_bytes(&v) * cr_cpu_threads(device));
}

static struct task task_of(const struct plan *v, char *scratch) {
    float *zeros = (float *)(void *)scratch; /* first, because zeros are read a tile at a time */
    memset(zeros, 0, (size_t)cr_rounded_up(CR_MAX(v->C, v->K), CR_BF16_ROWS) * sizeof *zeros);
    struct task t = {.v = v, .zeros = zeros, .C = v->C, .K = v->K};
    t.x_copy      = (uint16_t *)(void *)(zeros + cr_rounded_up(CR_MAX(v->C, v->K), CR_BF16_ROWS));
    t.dy_copy     = t.x_copy + x_numbers(v);
    t.pitch       = dy_pitch(v);
    return t;
}

/* The strips or channels of a thread. sums: its own. */
static void run_thread(struct task *t, int thread, int threads, float *sums) {
    const struct plan *v     = t->v;
    int64_t            begin = 0, end = v->strips.count;
    if (v->share == BY_STRIPS) {
        cr_run_of(v->strips.count, thread, threads, &begin, &end);
        t->dw  = sums;
        t->add = false;
        if (begin == end) memset(sums, 0, (size_t)(v->K * v->R * v->S * v->C) * sizeof *sums);
    } else if (v->share == BY_X) {
        t->first_c = thread * v->x_channels;
        t->C       = CR_MIN(v->x_channels, v->C - t->first_c);
    } else {
        t->first_k = thread * v->dy_channels;
        t->K       = CR_MIN(v->dy_channels, v->K - t->first_k);
    }
    if (t->C > 0 && t->K > 0) run_strips(t, begin, end);
}

static void add_sums(const struct plan *v, const char *scratch, int threads, bool accumulate, float *dw) {
    CR_PARALLEL_BY(threads, int64_t, i, v->K * v->R * v->S * v->C) {
        float sum = 0;
        for (int t = 0; t < threads; t++)
            sum += ((const float *)(const void *)(scratch + t * thread_bytes(v) + copy_bytes(v)))[i];
        dw[i] = accumulate ? dw[i] + sum : sum;
    }
}

CR_CPU_LAUNCH(launch) {
    const int         threads    = cr_cpu_threads(device);
    const struct plan v          = plan_of(call->program, call->op, threads);
    const bool        accumulate = call->op->attr.conv.accumulate;
    char             *scratch    = call->workspace;
    CR_THREADS(n, threads) {
        char       *own = scratch + n * thread_bytes(&v);
        struct task t   = task_of(&v, own);
        t.x             = call->in[CR_IN_conv_wgrad_x];    /* [N,H,W,C] */
        t.dy            = call->in[CR_IN_conv_wgrad_dy];   /* [N,P,Q,K] */
        t.dw            = call->out[CR_OUT_conv_wgrad_dw]; /* [K,R,S,C] */
        t.add           = accumulate;
        cr_bf16_begin();
        run_thread(&t, n, threads, (float *)(void *)(own + copy_bytes(&v)));
        cr_bf16_end();
    }
    if (v.share == BY_STRIPS) add_sums(&v, scratch, threads, accumulate, call->out[CR_OUT_conv_wgrad_dw]);
}

const struct cr_kernel cr_cpu_conv_wgrad_bf16_kernels[] = {
    {CR_KERNEL("cpu.conv_wgrad_bf16", conv_wgrad, CR_MATH_BF16_PRODUCTS), .dtypes = CR_TYPES_F32, .accepts = accepts,
     .workspace = workspace, .launch = launch},
    {0}};

#endif
