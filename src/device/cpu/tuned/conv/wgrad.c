/* device/cpu/tuned/conv/wgrad.c: the kernel cpu.conv_wgrad: dw[k][r][s][c] = sum over pixels of dy[k] * x[r][s][c].
 *
 * The sums of a tile stay in registers: two vectors of floats of a window's row for 6 or 4 channels of dy. A tile runs
 * over all pixels of a strip. Strips of x are copied with zeros as padding; the pixels of the copy lie so that the same
 * channels of different pixels are in different sets of the cache. dy is copied in the order in which tiles read it:
 * [group of channels][pixel][channel of the group].
 *
 * Each thread sums small filters over its own strips, and these sums are added at the end. Of larger filters, threads
 * divide the channels of dy. */
#include "device/cpu/simd.h"
#include "device/cpu/tuned/conv/window.h"

#include <string.h>

/* The compiler may contract multiply-adds; the error bounds of verification hold for both forms. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=fast")
#endif

typedef float f32x8 __attribute__((vector_size(32), aligned(4), may_alias));

enum {
    WIDE           = 6,
    NARROW         = 4,        /* channels of dy in a group */
    LINE           = 16,       /* floats that a tile reads of a row */
    PIXELS         = 256,      /* of a strip, about: a line of each of them is in the first cache */
    DY_FLOATS      = 64 << 10, /* of a block of dy: it stays in the second cache */
    PRIVATE_FLOATS = 512 << 10 /* of all threads' sums */
};

/* ---- tiles ---- */

struct tile {
    int64_t      images, rows, columns;       /* of the strip */
    int64_t      by_image, by_row, by_column; /* in floats of x */
    const float *x, *dy;
    float       *dw[WIDE]; /* [LINE] each */
};

#define TILE(name, attribute, channels)                                                                                \
    attribute static void name(const struct tile *t) {                                                                 \
        const float *dy = t->dy;                                                                                       \
        f32x8        sum[channels][2];                                                                                 \
        _Pragma("GCC unroll 8") for (int k = 0; k < channels; k++) sum[k][0] = sum[k][1] = (f32x8){0};                 \
        for (int64_t i = 0; i < t->images * t->rows; i++) {                                                            \
            const float *x = t->x + i / t->rows * t->by_image + i % t->rows * t->by_row;                               \
            for (int64_t q = 0; q < t->columns; q++, x += t->by_column, dy += channels) {                              \
                const f32x8 a = *(const f32x8 *)x, b = *(const f32x8 *)(x + LINE / 2);                                 \
                _Pragma("GCC unroll 8") for (int k = 0; k < channels; k++) {                                           \
                    sum[k][0] += dy[k] * a;                                                                            \
                    sum[k][1] += dy[k] * b;                                                                            \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 8") for (int k = 0; k < channels; k++) {                                                   \
            *(f32x8 *)t->dw[k] += sum[k][0];                                                                           \
            *(f32x8 *)(t->dw[k] + LINE / 2) += sum[k][1];                                                              \
        }                                                                                                              \
    }
TILE(wide_baseline, , 6)
TILE(narrow_baseline, , 4)
#if defined(__x86_64__)
TILE(wide_avx2, __attribute__((target("avx2,fma"))), 6)
TILE(narrow_avx2, __attribute__((target("avx2,fma"))), 4)
#endif

static void run_tile(const struct tile *t, int64_t channels) {
#if defined(__x86_64__)
    if (cr_cpu_level() >= CR_CPU_AVX2) {
        if (channels == WIDE)
            wide_avx2(t);
        else
            narrow_avx2(t);
        return;
    }
#endif
    if (channels == WIDE)
        wide_baseline(t);
    else
        narrow_baseline(t);
}

/* ---- the plan ---- */

struct plan {
    int64_t N, H, W, C, K, R, S, P, Q, stride, pad;
    int64_t pitch, width;         /* of the copy of x: floats of a pixel, pixels of a row */
    int64_t images, parts, count; /* strips: whole images, or parts of the rows of one */
    int64_t block;                /* channels of dy that are copied at once */
    bool    shared;               /* threads divide the channels of dy */
};

static int64_t rows_of(const struct plan *v) {
    return (v->P + v->parts - 1) / v->parts;
}

static struct plan plan_of(const struct cr_program *p, const struct cr_op *op, int threads) {
    const struct cr_tensor *x = &p->tensor[op->in[CR_IN_conv_wgrad_x]], *y = &p->tensor[op->in[CR_IN_conv_wgrad_dy]];
    const struct cr_tensor *w = &p->tensor[op->out[CR_OUT_conv_wgrad_dw]];
    struct plan v = {.N = x->dim[0], .H = x->dim[1], .W = x->dim[2], .C = x->dim[3], .K = w->dim[0], .R = w->dim[1]};
    v.S           = w->dim[2];
    v.P           = y->dim[1];
    v.Q           = y->dim[2];
    v.stride      = op->attr.conv.stride;
    v.pad         = op->attr.conv.pad;
    v.pitch       = v.C % (4 * LINE) ? v.C : v.C + LINE;
    v.width       = (v.Q - 1) * v.stride + v.S;
    v.parts       = CR_MAX((v.P * v.Q + PIXELS) / (2 * PIXELS), 1);
    v.parts       = CR_MIN(v.parts, v.P);
    v.images      = v.parts > 1 ? 1 : CR_MAX(CR_MIN(PIXELS / (v.P * v.Q), v.N), 1);
    v.count       = (v.N + v.images - 1) / v.images * v.parts;
    v.block       = CR_MAX(DY_FLOATS / (v.images * rows_of(&v) * v.Q) / (2 * WIDE) * (2 * WIDE), (int64_t)2 * WIDE);
    v.shared      = v.K * v.R * v.S * v.C * threads > PRIVATE_FLOATS && v.K >= (int64_t)WIDE * threads;
    return v;
}

static int64_t rounded_up(int64_t value, int64_t unit) {
    return (value + unit - 1) / unit * unit;
}
/* The last line of a row may read beyond the copy. */
static int64_t x_floats(const struct plan *v) {
    return rounded_up(v->images * ((rows_of(v) - 1) * v->stride + v->R) * v->width * v->pitch + LINE, LINE);
}
static int64_t dy_floats(const struct plan *v) {
    return rounded_up(v->images * rows_of(v) * v->Q * (CR_MIN(v->block, v->K) + NARROW), LINE);
}
static int64_t dw_floats(const struct plan *v) {
    return v->shared ? 0 : rounded_up(v->K * v->R * v->S * v->C, LINE);
}
static int64_t thread_floats(const struct plan *v) {
    return x_floats(v) + dy_floats(v) + dw_floats(v);
}

/* ---- strips ---- */

struct strip {
    int64_t image, images, row, rows;
};

static struct strip strip_at(const struct plan *v, int64_t i) {
    struct strip s = {.image = i / v->parts * v->images};
    int64_t      end;
    cr_run_of(v->P, (int)(i % v->parts), (int)v->parts, &s.row, &end);
    s.rows   = end - s.row;
    s.images = CR_MIN(v->images, v->N - s.image);
    return s;
}

static void copy_row(const struct plan *v, const float *x, float *to) {
    const int64_t left = CR_MIN(v->pad, v->width), inside = CR_MIN(v->W, v->width - left);
    memset(to, 0, (size_t)(left * v->pitch) * sizeof *to);
    to += left * v->pitch;
    if (v->pitch == v->C)
        memcpy(to, x, (size_t)(inside * v->C) * sizeof *to);
    else
        for (int64_t q = 0; q < inside; q++) memcpy(to + q * v->pitch, x + q * v->C, (size_t)v->C * sizeof *to);
    memset(to + inside * v->pitch, 0, (size_t)((v->width - left - inside) * v->pitch) * sizeof *to);
}

static void copy_x(const struct plan *v, const struct strip *s, const float *x, float *to) {
    const int64_t rows = (s->rows - 1) * v->stride + v->R;
    for (int64_t i = 0; i < s->images * rows; i++, to += v->width * v->pitch) {
        const int64_t row = s->row * v->stride - v->pad + i % rows, image = s->image + i / rows;
        if (row < 0 || row >= v->H)
            memset(to, 0, (size_t)(v->width * v->pitch) * sizeof *to);
        else
            copy_row(v, x + (image * v->H + row) * v->W * v->C, to);
    }
}

/* Channels of the group that begins at `k`, of those before `end`: as few places as possible stay empty. */
static int64_t group_at(int64_t k, int64_t end) {
    const int64_t left = end - k;
    return left == NARROW || left == 2 * NARROW || left < NARROW ? NARROW : WIDE;
}

/* `size` channels of a row of pixels, of which `count` exist. */
static inline __attribute__((always_inline)) float *copy_group(const float *dy, int64_t pixels, int64_t K, float *to,
                                                               int64_t count, const int64_t size) {
    for (int64_t i = 0; i < pixels; i++, dy += K, to += size) {
        if (count >= size)
            memcpy(to, dy, (size_t)size * sizeof *to);
        else
            for (int64_t j = 0; j < size; j++) to[j] = j < count ? dy[j] : 0;
    }
    return to;
}

static void copy_dy(const struct plan *v, const struct strip *s, const float *dy, int64_t first, int64_t end,
                    float *to) {
    const int64_t image = v->P * v->Q * v->K;
    for (int64_t k = first, size; k < end; k += size) {
        size = group_at(k, end);
        for (int64_t n = 0; n < s->images; n++) {
            const float *from = dy + (s->image + n) * image + s->row * v->Q * v->K + k;
            to                = size == WIDE ? copy_group(from, s->rows * v->Q, v->K, to, end - k, WIDE)
                                             : copy_group(from, s->rows * v->Q, v->K, to, end - k, NARROW);
        }
    }
}

/* ---- sums ---- */

/* All tiles of channels first ... end - 1 and one line of a row of the window. dw: the filter's sums. */
static void run_line(const struct plan *v, struct tile *t, const float *dy, int64_t first, int64_t end, int64_t r,
                     int64_t i, float *dw) {
    const int64_t filter = v->R * v->S * v->C, len = v->S * v->C, pixels = t->images * t->rows * t->columns;
    const bool    whole = i + LINE <= len;
    float         spare[WIDE][LINE];
    for (int64_t k = first, size; k < end; k += size) {
        size = group_at(k, end);
        memset(spare, 0, sizeof spare);
        for (int64_t j = 0; j < size; j++)
            t->dw[j] = whole && k + j < end ? dw + (k + j) * filter + r * len + i : spare[j];
        t->dy = dy + (k - first) * pixels;
        run_tile(t, size);
        for (int64_t j = 0; !whole && j < CR_MIN(size, end - k); j++)
            for (int64_t n = 0; n < len - i; n++) dw[(k + j) * filter + r * len + i + n] += spare[j][n];
    }
}

static void run_strip(const struct plan *v, const struct strip *s, const float *x, const float *dy, int64_t first,
                      int64_t end, float *dw) {
    const int64_t row = v->width * v->pitch;
    struct tile   t   = {.images = s->images, .rows = s->rows, .columns = v->Q, .by_row = v->stride * row};
    t.by_image        = ((s->rows - 1) * v->stride + v->R) * row;
    t.by_column       = v->stride * v->pitch;
    for (int64_t r = 0; r < v->R; r++)
        for (int64_t i = 0; i < v->S * v->C; i += LINE) {
            t.x = x + r * row + i / v->C * v->pitch + i % v->C;
            run_line(v, &t, dy, first, end, r, i, dw);
        }
}

/* Strips begin ... end - 1 of channels first ... last - 1. */
static void run_thread(const struct plan *v, const float *x, const float *dy, int64_t begin, int64_t end, int64_t first,
                       int64_t last, float *dw, float *scratch) {
    float *to = scratch + x_floats(v);
    for (int64_t i = begin; i < end; i++) {
        const struct strip s = strip_at(v, i);
        copy_x(v, &s, x, scratch);
        for (int64_t k = first; k < last; k += v->block) {
            const int64_t until = CR_MIN(k + v->block, last);
            copy_dy(v, &s, dy, k, until, to);
            run_strip(v, &s, scratch, to, k, until, dw);
        }
    }
}

static void add_sums(const struct plan *v, const float *scratch, int threads, bool accumulate, float *dw) {
    const float *first = scratch + x_floats(v) + dy_floats(v);
    CR_PARALLEL_FOR(threads)
    for (int64_t i = 0; i < v->K * v->R * v->S * v->C; i++) {
        float sum = 0;
        for (int t = 0; t < threads; t++) sum += first[t * thread_floats(v) + i];
        dw[i] = accumulate ? dw[i] + sum : sum;
    }
}

/* ---- the kernel ---- */

static bool accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device, (void)p;
    return op->attr.conv.stride <= 2;
}

static size_t workspace(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct plan v = plan_of(p, op, cr_cpu_threads(device));
    return (size_t)(thread_floats(&v) * cr_cpu_threads(device)) * sizeof(float);
}

static cr_status launch(struct cr_device *device, const struct cr_call *call) {
    const int         threads    = cr_cpu_threads(device);
    const struct plan v          = plan_of(call->program, call->op, threads);
    const float      *x          = call->in[CR_IN_conv_wgrad_x];    /* [N,H,W,C] */
    const float      *dy         = call->in[CR_IN_conv_wgrad_dy];   /* [N,P,Q,K] */
    float            *dw         = call->out[CR_OUT_conv_wgrad_dw]; /* [K,R,S,C] */
    float            *scratch    = call->workspace;
    const bool        accumulate = call->op->attr.conv.accumulate;
    const int64_t     filter     = v.R * v.S * v.C;
    CR_PARALLEL_FOR(threads)
    for (int t = 0; t < threads; t++) {
        float  *own = scratch + t * thread_floats(&v), *sums = own + x_floats(&v) + dy_floats(&v);
        int64_t begin, end;
        if (v.shared) {
            cr_run_of(v.K, t, threads, &begin, &end);
            if (!accumulate) memset(dw + begin * filter, 0, (size_t)((end - begin) * filter) * sizeof *dw);
            run_thread(&v, x, dy, 0, v.count, begin, end, dw, own);
        } else {
            cr_run_of(v.count, t, threads, &begin, &end);
            memset(sums, 0, (size_t)(v.K * filter) * sizeof *sums);
            run_thread(&v, x, dy, begin, end, 0, v.K, sums, own);
        }
    }
    if (!v.shared) add_sums(&v, scratch, threads, accumulate, dw);
    return CR_OK;
}

const struct cr_kernel cr_cpu_conv_wgrad_kernels[] = {{CR_KERNEL("cpu.conv_wgrad", conv_wgrad, CR_MATH_F32),
                                                       .dtypes = CR_TYPES_F32, .accepts = accepts,
                                                       .workspace = workspace, .launch = launch},
                                                      {0}};
