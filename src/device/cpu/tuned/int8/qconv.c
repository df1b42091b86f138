/* device/cpu/tuned/int8/qconv.c: 8-bit convolution on every processor, with exact sums.
 *
 * The rounding rule of graph/ops.def is followed exactly, so results equal those of the reference. Threads divide the
 * output into strips: some rows of an image, or whole images. A thread copies the input of a strip, with padding, and
 * computes its outputs while it is in the second cache. 1x1 convolutions without padding read x itself. */
#include "device/cpu/tuned/int8/qconv.h"
#include "device/cpu/simd.h"

#include <string.h>

enum {
    RAISE            = 0x80,      /* signed inputs are raised by 128 */
    STRIP_BYTES      = 128 << 10, /* of the input: a strip stays in the second cache */
    STRIP_PIXELS     = 256,       /* of the output, in strips of whole images */
    FILTER_BYTES     = 128 << 10, /* of the panels that are computed together, tile by tile */
    TILES_PER_THREAD = 8          /* with fewer, threads divide the panels, too */
};

/* ---- strips ---- */

/* `images` whole images each, or one of `parts` of the rows of an image. */
struct strips {
    int64_t images, parts, count;
};

static int64_t input_rows(const struct cr_qshape *s, int64_t rows) {
    return (rows - 1) * s->stride + s->R;
}

static int64_t strip_bytes(const struct cr_qshape *s, int64_t rows) {
    return input_rows(s, rows) * s->width * s->C;
}

static struct strips strips_of(const struct cr_qshape *s, int threads) {
    struct strips to = {.parts = 1};
    to.images        = CR_MIN(STRIP_BYTES / CR_MAX(strip_bytes(s, s->P), 1), STRIP_PIXELS / (s->P * s->Q));
    to.images        = CR_MAX(CR_MIN(to.images, (s->N + threads - 1) / threads), 1);
    while (to.parts < s->P && strip_bytes(s, (s->P + to.parts - 1) / to.parts) > STRIP_BYTES) to.parts++;
    if (s->N % threads && to.images == 1) to.parts = CR_MIN(cr_rounded_up(to.parts, threads), s->P);
    to.count = (s->N + to.images - 1) / to.images * to.parts;
    return to;
}

/* Bytes that the copy of a strip needs; the last step of a window may read three bytes behind it. */
static int64_t scratch_bytes(const struct cr_qshape *s, int threads) {
    const struct strips to = strips_of(s, threads);
    if (!s->copied) return 0;
    return cr_rounded_up(to.images * strip_bytes(s, (s->P + to.parts - 1) / to.parts) + CR_QSTEP, CR_CPU_ALIGN);
}

struct strip {
    int64_t        image, images, row, rows; /* of the output */
    int64_t        height;                   /* input rows of an image, as they lie in memory */
    const uint8_t *x;                        /* input of the first pixel */
};

CR_BY_LEVEL_AVX2(void, raise, (const uint8_t *x, uint8_t *to, int64_t count), (x, to, count)) {
    for (int64_t i = 0; i < count; i++) to[i] = x[i] ^ RAISE;
}

static void copy_row(const struct cr_qshape *s, const uint8_t *x, uint8_t *to) {
    const int64_t inside = CR_MIN(s->W, s->width - s->pad), right = s->width - s->pad - inside;
    const int     zero = s->raised ? RAISE : 0;
    memset(to, zero, (size_t)(s->pad * s->C));
    if (s->raised)
        raise(x, to + s->pad * s->C, inside * s->C);
    else
        memcpy(to + s->pad * s->C, x, (size_t)(inside * s->C));
    memset(to + (s->pad + inside) * s->C, zero, (size_t)(right * s->C));
}

static void copy_strip(const struct cr_qshape *s, const struct strip *to, const uint8_t *x, uint8_t *scratch) {
    const int64_t bytes = s->width * s->C, first = to->row * s->stride - s->pad;
    for (int64_t i = 0; i < to->images * to->height; i++, scratch += bytes) {
        const int64_t row = first + i % to->height, image = to->image + i / to->height;
        if (row < 0 || row >= s->H)
            memset(scratch, s->raised ? RAISE : 0, (size_t)bytes);
        else
            copy_row(s, x + (image * s->H + row) * s->W * s->C, scratch);
    }
}

static struct strip strip_at(const struct cr_qshape *s, const struct strips *strips, int64_t i, const uint8_t *x,
                             uint8_t *scratch) {
    struct strip to = {.image = i / strips->parts * strips->images};
    int64_t      end;
    cr_run_of(s->P, (int)(i % strips->parts), (int)strips->parts, &to.row, &end);
    to.rows   = end - to.row;
    to.images = CR_MIN(strips->images, s->N - to.image);
    to.height = s->copied ? input_rows(s, to.rows) : s->H;
    to.x      = s->copied ? scratch : x + (to.image * s->H + to.row * s->stride) * s->W * s->C;
    if (s->copied) copy_strip(s, &to, x, scratch);
    return to;
}

/* ---- the tiles of a strip ---- */

struct work {
    struct cr_qshape shape;
    struct cr_qout   out;
    const uint8_t   *x;
    const void      *packed;
};

/* A pixel of a strip, and where its input and its outputs begin. */
struct pixel {
    int64_t image, row, column;
    int64_t x, y;
};

static void begin_row(const struct cr_qshape *s, const struct strip *strip, struct pixel *p) {
    const int64_t line = (strip->image + p->image) * s->P + strip->row + p->row;
    p->x               = (p->image * strip->height + p->row * s->stride) * s->width * s->C;
    p->y               = line * s->Q * s->K;
    p->column          = 0;
}

/* Sets the pixels of a tile from `at` on, which moves on. */
static void set_pixels(const struct cr_qshape *s, const struct strip *strip, struct pixel *at, struct cr_qtile *tile) {
    for (int p = 0; p < tile->count; p++) {
        tile->x[p] = strip->x + at->x;
        tile->y[p] = at->y;
        at->x += s->stride * s->C;
        at->y += s->K;
        if (++at->column < s->Q) continue;
        if (++at->row == strip->rows) {
            at->row = 0;
            at->image++;
        }
        begin_row(s, strip, at);
    }
    for (int p = tile->count; p < s->tile.pixels; p++) {
        tile->x[p] = tile->x[tile->count - 1];
        tile->y[p] = tile->y[tile->count - 1];
    }
}

/* Panels first ... last - 1 of all pixels of a strip. */
static void run_panels(const struct work *w, const struct strip *strip, int64_t first, int64_t last) {
    const struct cr_qshape *s      = &w->shape;
    const int64_t           pixels = s->tile.pixels;
    struct pixel            at     = {0};
    begin_row(s, strip, &at);
    for (int64_t left = strip->images * strip->rows * s->Q; left > 0; left -= pixels) {
        struct cr_qtile tile = {.count = (int)CR_MIN(left, pixels)};
        set_pixels(s, strip, &at, &tile);
        for (int64_t panel = first; panel < last; panel++) {
            tile.panel  = cr_qpanel_at(s, w->packed, panel);
            tile.output = panel * s->tile.width;
            s->tile.run[tile.panel.head->block - 1](&tile, &w->out);
        }
    }
}

/* Threads divide the strips; where these have few tiles, the panels too. */
static void run_thread(const struct work *w, int thread, int threads, uint8_t *scratch) {
    const struct cr_qshape *s      = &w->shape;
    const struct strips     strips = strips_of(s, threads);
    const int64_t           enough = (int64_t)threads * TILES_PER_THREAD * s->tile.pixels, pixels = s->N * s->P * s->Q;
    const int64_t           fit     = CR_MAX(FILTER_BYTES / (s->R * s->row * s->tile.width), 1);
    int                     columns = 1;
    int64_t                 begin, end, first, last;
    while ((pixels * columns < enough || strips.count * columns < threads) && threads % (2 * columns) == 0 &&
           2 * columns <= s->panels)
        columns *= 2;
    cr_run_of(strips.count, thread / columns, threads / columns, &begin, &end);
    cr_run_of(s->panels, thread % columns, columns, &first, &last);
    for (int64_t i = begin; i < end; i++) {
        const struct strip strip = strip_at(s, &strips, i, w->x, scratch);
        for (int64_t panel = first; panel < last; panel += fit) run_panels(w, &strip, panel, CR_MIN(panel + fit, last));
    }
}

/* ---- kernels ---- */

int64_t cr_cpu_qconv_own_bytes(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_qshape s = cr_qshape_of(p, op);
    return s.bytes;
}

CR_CPU_ACCEPTS(pack_accepts) {
    const struct cr_qshape s = cr_qshape_of_pack(p, op);
    return (int64_t)p->tensor[op->out[CR_OUT_pack_filter_y]].bytes >= s.bytes;
}

CR_CPU_LAUNCH(pack_launch) {
    const struct cr_qshape s = cr_qshape_of_pack(call->program, call->op);
    cr_qconv_pack(&s, call->in[CR_IN_pack_filter_w], call->out[CR_OUT_pack_filter_y], cr_cpu_threads(device));
}

static bool is_byte(enum cr_dtype dtype) {
    return dtype == CR_I8 || dtype == CR_U8;
}

CR_CPU_ACCEPTS(qconv_accepts) {
    const enum cr_dtype x = p->tensor[op->in[CR_IN_qconv_x]].dtype, y = p->tensor[op->out[CR_OUT_qconv_y]].dtype;
    const int           add = op->in[CR_IN_qconv_add];
    return is_byte(x) && (is_byte(y) || y == CR_F32) && (add < 0 || is_byte(p->tensor[add].dtype));
}

/* The workspace holds the strips of all threads, and behind them the filter if the program has not packed it. */
CR_CPU_WORKSPACE(qconv_workspace) {
    const int              threads = cr_cpu_threads(device);
    const struct cr_qshape s       = cr_qshape_of(p, op);
    return (size_t)(threads * scratch_bytes(&s, threads) + (op->in[CR_IN_qconv_packed] < 0 ? s.bytes : 0));
}

static struct work work_of(const struct cr_call *call) {
    const struct cr_op     *op  = call->op;
    const struct cr_tensor *t   = call->program->tensor;
    const int               add = op->in[CR_IN_qconv_add];
    const enum cr_dtype     y   = t[op->out[CR_OUT_qconv_y]].dtype;
    struct work             w   = {.shape = cr_qshape_of(call->program, op), .x = call->in[CR_IN_qconv_x]};
    w.packed                    = call->in[CR_IN_qconv_packed];
    w.out                       = (struct cr_qout){.coeffs   = call->in[CR_IN_qconv_coeffs],
                                                   .add      = add >= 0 ? call->in[CR_IN_qconv_add] : NULL,
                                                   .y        = call->out[CR_OUT_qconv_y],
                                                   .outputs  = w.shape.K,
                                                   .add_type = add >= 0 ? t[add].dtype : CR_U8,
                                                   .y_type   = y,
                                                   .relu     = op->attr.conv.relu && y != CR_U8,
                                                   .raised   = w.shape.raised};
    return w;
}

CR_CPU_LAUNCH(qconv_launch) {
    struct work    w       = work_of(call);
    const int      threads = cr_cpu_threads(device);
    const int64_t  bytes   = scratch_bytes(&w.shape, threads);
    uint8_t *const scratch = call->workspace;
    if (call->op->in[CR_IN_qconv_packed] < 0) {
        w.packed = scratch + threads * bytes;
        cr_qconv_pack(&w.shape, call->in[CR_IN_qconv_w], scratch + threads * bytes, threads);
    }
    CR_THREADS(n, threads) run_thread(&w, n, threads, scratch + n * bytes);
}

const struct cr_kernel cr_cpu_qconv_kernels[] = {
    {CR_KERNEL("cpu.pack_filter", pack_filter, CR_MATH_EXACT), .accepts = pack_accepts, .launch = pack_launch},
    {CR_KERNEL("cpu.qconv", qconv, CR_MATH_EXACT), .accepts = qconv_accepts, .workspace = qconv_workspace,
     .launch = qconv_launch},
    {0}};
