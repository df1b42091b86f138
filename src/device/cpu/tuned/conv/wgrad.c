/* device/cpu/tuned/conv/wgrad.c: the kernel cpu.conv_wgrad: dw[k][r][s][c] = sum over pixels of dy[k] * x[r][s][c].
 *
 * Strips of x are copied with zeros as padding; the pixels of the copy lie so that the same channels of different
 * pixels are in different sets of the cache. dy is copied in the order in which tiles read it.
 *
 * Each thread sums small filters over its own strips, and these sums are added at the end. Of larger filters, threads
 * divide the channels of x or of dy, whichever are more, because each copies all of the other. */
#include "device/cpu/tuned/conv/wgrad.h"

#include "device/cpu/simd.h"

#include <string.h>

enum {
    PIXELS         = 128,      /* of a strip, about: a line of each of them is in the first cache */
    DY_FLOATS      = 64 << 10, /* of a block of dy: it stays in the second cache */
    PRIVATE_FLOATS = 64 << 10  /* of a thread's own sums */
};

/* ---- the plan ---- */

/* How threads divide the work. */
enum share { BY_STRIPS, BY_X, BY_DY };

struct plan {
    int64_t    N, H, W, C, K, R, S, P, Q, pad; /* C, K: of this thread */
    int64_t    x_channels, dy_channels;        /* of all threads */
    int64_t    skip, stride;                   /* between pixels of x that are copied; between windows in the copy */
    int64_t    pitch, width;                   /* of the copy of x: floats of a pixel, pixels of a row */
    int64_t    images, parts, count;           /* strips: whole images, or parts of the rows of one */
    int64_t    block;                          /* channels of dy that are copied at once */
    enum share share;
    int        group; /* channels of dy in a group */
};

static int64_t rows_of(const struct plan *v) {
    return (v->P + v->parts - 1) / v->parts;
}

/* The part of the channels of a thread. */
static void set_channels(struct plan *v, int64_t C, int64_t K) {
    v->C     = C;
    v->K     = K;
    v->pitch = cr_wgrad_pitch(C);
    v->block = DY_FLOATS / (v->images * rows_of(v) * v->Q) / CR_WGRAD_GROUP_MAX * CR_WGRAD_GROUP_MAX;
    v->block = CR_MIN(CR_MAX(v->block, CR_WGRAD_GROUP_MAX), K);
}

static struct plan plan_of(const struct cr_program *p, const struct cr_op *op, int threads) {
    const struct cr_tensor *x = &p->tensor[op->in[CR_IN_conv_wgrad_x]], *y = &p->tensor[op->in[CR_IN_conv_wgrad_dy]];
    const struct cr_tensor *w = &p->tensor[op->out[CR_OUT_conv_wgrad_dw]];
    struct plan             v = {.N = x->dim[0], .H = x->dim[1], .W = x->dim[2], .R = w->dim[1], .S = w->dim[2]};
    v.P                       = y->dim[1];
    v.Q                       = y->dim[2];
    v.x_channels              = x->dim[3];
    v.dy_channels             = w->dim[0];
    v.skip                    = v.R == 1 && v.S == 1 ? op->attr.conv.stride : 1;
    v.stride                  = op->attr.conv.stride / v.skip;
    v.pad                     = op->attr.conv.pad;
    v.group                   = cr_wgrad_group();
    v.width                   = (v.Q - 1) * v.stride + v.S;
    v.parts                   = CR_MIN(CR_MAX((v.P * v.Q + PIXELS) / (2 * PIXELS), 1), v.P);
    v.images                  = v.parts > 1 ? 1 : CR_MAX(CR_MIN(PIXELS / (v.P * v.Q), v.N), 1);
    v.count                   = (v.N + v.images - 1) / v.images * v.parts;
    if (threads > 1 && cr_tensor_elems(w) <= PRIVATE_FLOATS)
        v.share = BY_STRIPS;
    else
        v.share = v.x_channels >= CR_MAX(v.dy_channels, CR_WGRAD_LINE_MAX * (int64_t)threads) ? BY_X : BY_DY;
    set_channels(&v, v.x_channels, v.dy_channels);
    return v;
}

/* The last line of a row may read beyond the copy. */
static int64_t x_floats(const struct plan *v) {
    return cr_rounded_up(v->images * ((rows_of(v) - 1) * v->stride + v->R) * v->width * v->pitch + CR_WGRAD_LINE_MAX,
                         CR_WGRAD_PITCH);
}
static int64_t dy_floats(const struct plan *v) {
    const int64_t groups = (CR_MIN(v->block, v->K) + v->group - 1) / v->group;
    return cr_rounded_up(groups * cr_wgrad_group_floats(v->images * rows_of(v) * v->Q), CR_WGRAD_PITCH);
}
static int64_t dw_floats(const struct plan *v) {
    return v->share == BY_STRIPS ? cr_rounded_up(v->K * v->R * v->S * v->C, CR_WGRAD_PITCH) : 0;
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
    const int64_t left   = CR_MIN(v->pad, v->width);
    const int64_t inside = CR_MIN((v->W + v->skip - 1) / v->skip, v->width - left);
    memset(to, 0, (size_t)(left * v->pitch) * sizeof *to);
    to += left * v->pitch;
    if (v->pitch == v->x_channels && v->skip == 1)
        memcpy(to, x, (size_t)(inside * v->C) * sizeof *to);
    else
        for (int64_t q = 0; q < inside; q++)
            memcpy(to + q * v->pitch, x + q * v->skip * v->x_channels, (size_t)v->C * sizeof *to);
    memset(to + inside * v->pitch, 0, (size_t)((v->width - left - inside) * v->pitch) * sizeof *to);
}

static void copy_x(const struct plan *v, const struct strip *s, const float *x, float *to) {
    const int64_t rows = (s->rows - 1) * v->stride + v->R;
    for (int64_t i = 0; i < s->images * rows; i++, to += v->width * v->pitch) {
        const int64_t row = (s->row * v->stride + i % rows) * v->skip - v->pad, image = s->image + i / rows;
        if (row < 0 || row >= v->H)
            memset(to, 0, (size_t)(v->width * v->pitch) * sizeof *to);
        else
            copy_row(v, x + (image * v->H + row) * v->W * v->x_channels, to);
    }
}

/* Channels first ... end - 1 of `pixels` pixels that are next to each other. */
static inline __attribute__((always_inline)) void
copy_groups(const float *dy, int64_t pixels, int64_t K, int64_t channels, float *to, int64_t by, const int64_t group) {
    for (int64_t i = 0; i < pixels; i++, dy += K, to += group) {
        float  *at = to;
        int64_t k  = 0;
        for (; k + group <= channels; k += group, at += by) memcpy(at, dy + k, (size_t)group * sizeof *at);
        if (k < channels)
            for (int64_t j = 0; j < group; j++) at[j] = k + j < channels ? dy[k + j] : 0;
    }
}

static void copy_dy(const struct plan *v, const struct strip *s, const float *dy, int64_t first, int64_t end,
                    float *to) {
    const int64_t K = v->dy_channels, image = v->P * v->Q * K, pixels = s->rows * v->Q,
                  by = cr_wgrad_group_floats(s->images * pixels);
    for (int64_t n = 0; n < s->images; n++, to += pixels * v->group) {
        const float *from = dy + (s->image + n) * image + s->row * v->Q * K + first;
        if (v->group == 8)
            copy_groups(from, pixels, K, end - first, to, by, 8);
        else
            copy_groups(from, pixels, K, end - first, to, by, 4);
    }
}

/* ---- sums ---- */

/* Channels first ... end - 1 of dy, for which `dy` is a copy. */
static void run_strip(const struct plan *v, const struct strip *s, const float *x, const float *dy, int64_t first,
                      int64_t end, float *dw) {
    const int64_t          row = v->width * v->pitch, taps = v->pitch == v->x_channels ? v->S : 1;
    const int64_t          filter = v->R * v->S * v->x_channels;
    struct cr_wgrad_pixels t      = {.dy = dy, .images = s->images, .rows = s->rows, .columns = v->Q};
    t.by_image                    = ((s->rows - 1) * v->stride + v->R) * row;
    t.by_row                      = v->stride * row;
    t.by_column                   = v->stride * v->pitch;
    t.by_group                    = cr_wgrad_group_floats(t.images * t.rows * t.columns);
    for (int64_t r = 0; r < v->R; r++)
        for (int64_t i = 0; i < v->S; i += taps) {
            t.x = x + r * row + i * v->pitch;
            cr_wgrad_add(&t, end - first, taps * v->C, dw + first * filter + (r * v->S + i) * v->x_channels, filter);
        }
}

/* Strips begin ... end - 1. */
static void run_strips(const struct plan *v, const float *x, const float *dy, int64_t begin, int64_t end, float *dw,
                       float *scratch) {
    float *to = scratch + x_floats(v);
    for (int64_t i = begin; i < end; i++) {
        const struct strip s = strip_at(v, i);
        copy_x(v, &s, x, scratch);
        for (int64_t k = 0; k < v->K; k += v->block) {
            const int64_t until = CR_MIN(k + v->block, v->K);
            copy_dy(v, &s, dy, k, until, to);
            run_strip(v, &s, scratch, to, k, until, dw);
        }
    }
}

/* The channels of x or dy of a thread; all strips. */
static void run_channels(struct plan v, const float *x, const float *dy, int thread, int threads, bool accumulate,
                         float *dw, float *scratch) {
    const int64_t unit = v.share == BY_X ? CR_WGRAD_PITCH : CR_WGRAD_GROUP_MAX, taps = v.R * v.S,
                  filter   = taps * v.x_channels;
    const int64_t channels = v.share == BY_X ? v.x_channels : v.dy_channels;
    int64_t       first, end;
    cr_run_of((channels + unit - 1) / unit, thread, threads, &first, &end);
    first *= unit;
    end = CR_MIN(end * unit, channels);
    if (first >= end) return;
    set_channels(&v, v.share == BY_X ? end - first : v.C, v.share == BY_X ? v.K : end - first);
    x += v.share == BY_X ? first : 0;
    dy += v.share == BY_X ? 0 : first;
    dw += v.share == BY_X ? first : first * filter;
    for (int64_t i = 0; !accumulate && i < v.K * taps; i++) memset(dw + i * v.x_channels, 0, (size_t)v.C * sizeof *dw);
    run_strips(&v, x, dy, 0, v.count, dw, scratch);
}

static void add_sums(const struct plan *v, const float *scratch, int threads, bool accumulate, float *dw) {
    const float *first = scratch + x_floats(v) + dy_floats(v);
    CR_PARALLEL_BY(threads, int64_t, i, v->K * v->R * v->S * v->C) {
        float sum = 0;
        for (int t = 0; t < threads; t++) sum += first[t * thread_floats(v) + i];
        dw[i] = accumulate ? dw[i] + sum : sum;
    }
}

/* ---- the kernel ---- */

CR_CPU_ACCEPTS(accepts) {
    return op->attr.conv.stride <= 2;
}

static struct cr_winograd_wgrad winograd_of(const struct plan *v) {
    return (struct cr_winograd_wgrad){
        .N = v->N, .H = v->H, .W = v->W, .C = v->x_channels, .P = v->P, .Q = v->Q, .K = v->dy_channels, .pad = v->pad};
}

static bool is_winograd(const struct plan *v) {
    const struct cr_winograd_wgrad shape = winograd_of(v);
    return v->R == 3 && v->S == 3 && v->stride == 1 && cr_winograd_wgrad_choose(&shape);
}

CR_CPU_WORKSPACE(workspace) {
    const struct plan              v     = plan_of(p, op, cr_cpu_threads(device));
    const struct cr_winograd_wgrad shape = winograd_of(&v);
    if (is_winograd(&v)) return (size_t)cr_winograd_wgrad_floats(&shape, cr_cpu_threads(device)) * sizeof(float);
    return (size_t)(thread_floats(&v) * cr_cpu_threads(device)) * sizeof(float);
}

CR_CPU_LAUNCH(launch) {
    const int         threads    = cr_cpu_threads(device);
    const struct plan v          = plan_of(call->program, call->op, threads);
    const float      *x          = call->in[CR_IN_conv_wgrad_x];    /* [N,H,W,C] */
    const float      *dy         = call->in[CR_IN_conv_wgrad_dy];   /* [N,P,Q,K] */
    float            *dw         = call->out[CR_OUT_conv_wgrad_dw]; /* [K,R,S,C] */
    float            *scratch    = call->workspace;
    const bool        accumulate = call->op->attr.conv.accumulate;
    if (is_winograd(&v)) {
        const struct cr_winograd_wgrad shape = winograd_of(&v);
        cr_winograd_wgrad_run(&shape, x, dy, accumulate, dw, scratch, threads);
        return;
    }
    CR_THREADS(t, threads) {
        float  *own = scratch + t * thread_floats(&v), *sums = own + x_floats(&v) + dy_floats(&v);
        int64_t begin, end;
        if (v.share != BY_STRIPS) {
            run_channels(v, x, dy, t, threads, accumulate, dw, own);
            continue;
        }
        cr_run_of(v.count, t, threads, &begin, &end);
        memset(sums, 0, (size_t)dw_floats(&v) * sizeof *sums);
        run_strips(&v, x, dy, begin, end, sums, own);
    }
    if (v.share == BY_STRIPS) add_sums(&v, scratch, threads, accumulate, dw);
}

const struct cr_kernel cr_cpu_conv_wgrad_kernels[] = {{CR_KERNEL("cpu.conv_wgrad", conv_wgrad, CR_MATH_F32),
                                                       .dtypes = CR_TYPES_F32, .accepts = accepts,
                                                       .workspace = workspace, .launch = launch},
                                                      {0}};
