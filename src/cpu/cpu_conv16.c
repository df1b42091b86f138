/* cpu_conv16.c: 3x3 convolutions of 16 channels to 16 (the first stage of the CIFAR nets), stride 1, padding 1, images a
 * multiple of TILE pixels wide.
 *
 * 16 floats are one vector of AVX-512, and with so few filters a general kernel loads one number for each multiply-add it
 * does. Here an input number, once loaded, serves the three filter columns at once: TILE output pixels stand in registers,
 * and input pixel j adds to outputs j-2, j-1 and j. The filter's gradient holds three columns of
 * half the channels in registers likewise. The limiter is arithmetic: 98 % of the multiply-adds of an AVX-512 core from its
 * caches, 90 % (gradient of the filter: 83 %) from memory.
 * The sums of the filter's gradient run in float over a block of BLOCK image rows, then in float over blocks. */
#include "cpu_lanes.h"

/* Multiply-adds may be fused in this file: the bounds that rows are judged by hold for either. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=fast")
#endif

enum { CH = 16, TAPS = 3, TILE = 16, BLOCK = 8, HALF = CH / 2, AHEAD = 3, FILTER = TAPS * TAPS * CH * CH };

typedef float lanes16 __attribute__((vector_size(4 * CH), aligned(4), may_alias));

struct conv16 {
    int64_t images, H, W;
    int     threads;
};

static struct conv16 shape_of(const struct cr_tensor *image, int threads) {
    return (struct conv16){.images = image->dim[0], .H = image->dim[1], .W = image->dim[2], .threads = threads};
}

/* ---- what fits ---- */

static bool fits(const struct cr_program *p, const struct cr_op *op, int image, int filter) {
    const struct cr_tensor *x = &p->tensor[image], *w = &p->tensor[filter];
    return cr_accepts_f32(p, op) && x->dim[3] == CH && x->dim[2] % TILE == 0 && w->dim[0] == CH && w->dim[1] == TAPS &&
           w->dim[2] == TAPS && w->dim[3] == CH && op->attr.conv.stride == 1 && op->attr.conv.pad == 1;
}

static bool conv16_accepts(const struct cr_program *p, const struct cr_op *op) {
    return fits(p, op, op->in[CR_IN_conv_x], op->in[CR_IN_conv_w]);
}
static bool conv16_dgrad_accepts(const struct cr_program *p, const struct cr_op *op) {
    return fits(p, op, op->in[CR_IN_conv_dgrad_dy], op->in[CR_IN_conv_dgrad_w]);
}
static bool conv16_wgrad_accepts(const struct cr_program *p, const struct cr_op *op) {
    return fits(p, op, op->in[CR_IN_conv_wgrad_x], op->out[CR_OUT_conv_wgrad_dw]);
}

/* Measured against oneDNN: faster with AVX-512. Other vectors have too few registers for TILE sums. */
bool cr_cpu_conv16_is_best(const struct cr_program *p, const struct cr_op *op) {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
    bool takes = op->kind == CR_OP_conv ? conv16_accepts(p, op) : op->kind == CR_OP_conv_dgrad ? conv16_dgrad_accepts(p, op)
                                                                                                : conv16_wgrad_accepts(p, op);
    return takes && __builtin_cpu_supports("avx512f");
#else
    (void)p;
    (void)op;
    return false;
#endif
}

/* ---- forward, and the input's gradient, which is the same with the filter turned round ---- */

/* packed[r][c][s][k], c the channel that is summed over. */
static void pack_forward(const float *w, float *packed) {
    for (int k = 0; k < CH; k++)
        for (int r = 0; r < TAPS; r++)
            for (int s = 0; s < TAPS; s++)
                for (int c = 0; c < CH; c++) packed[((r * CH + c) * TAPS + s) * CH + k] = w[((k * TAPS + r) * TAPS + s) * CH + c];
}
static void pack_turned(const float *w, float *packed) {
    for (int k = 0; k < CH; k++)
        for (int r = 0; r < TAPS; r++)
            for (int s = 0; s < TAPS; s++)
                for (int c = 0; c < CH; c++)
                    packed[(((2 - r) * CH + k) * TAPS + 2 - s) * CH + c] = w[((k * TAPS + r) * TAPS + s) * CH + c];
}

/* TILE output pixels from up to three rows (NULL: outside the image); row[r] is the pixel left of the first output. What is
 * outside is left out, not multiplied by zero: a weight may be infinite. */
static inline __attribute__((always_inline)) void tile(const float *const row[TAPS], const float *packed, bool left, bool right,
                                                       lanes16 sum[TILE]) {
    for (int i = 0; i < TILE; i++) sum[i] = (lanes16){0};
    for (int r = 0; r < TAPS; r++) {
        if (!row[r]) continue;
        for (int c = 0; c < CH; c++) {
            const lanes16 *w  = (const lanes16 *)(packed + (r * CH + c) * TAPS * CH);
            const lanes16  w0 = w[0], w1 = w[1], w2 = w[2];
            const float   *x = row[r] + c;
            if (left) sum[0] += x[0] * w0;
#pragma GCC unroll 16
            for (int j = 1; j <= TILE; j++) {
                const float v = x[j * CH];
                if (j < TILE) sum[j] += v * w0;
                sum[j - 1] += v * w1;
                if (j > 1) sum[j - 2] += v * w2;
            }
            if (right) sum[TILE - 1] += x[(TILE + 1) * CH] * w2;
        }
    }
}

CR_CLONES static void output_row(const float *const row[TAPS], const float *packed, float *y, int64_t W) {
    for (int64_t q = 0; q < W; q += TILE) {
        lanes16            sum[TILE];
        const float *const at[TAPS] = {row[0] ? row[0] + (q - 1) * CH : NULL, row[1] + (q - 1) * CH,
                                       row[2] ? row[2] + (q - 1) * CH : NULL};
        for (int i = 0; i < TILE; i++) { /* what comes AHEAD rows later; past the tensors' end it does nothing */
            __builtin_prefetch(row[1] + (q + i + AHEAD * W) * CH);
            __builtin_prefetch(y + (q + i + AHEAD * W) * CH, 1);
        }
        tile(at, packed, q > 0, q + TILE < W, sum);
        for (int i = 0; i < TILE; i++) *(lanes16 *)(y + (q + i) * CH) = sum[i];
    }
}

static void forward(const struct conv16 *v, const float *x, float *y, const float *packed) {
    const int64_t row = v->W * CH;
    CR_PARALLEL_FOR(v->threads)
    for (int64_t i = 0; i < v->images * v->H; i++) {
        const int64_t      p         = i % v->H;
        const float       *at        = x + i * row;
        const float *const rows[TAPS] = {p > 0 ? at - row : NULL, at, p + 1 < v->H ? at + row : NULL};
        output_row(rows, packed, y + i * row, v->W);
    }
}

static cr_status forward_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op, void **prepared,
                                 size_t *workspace_bytes) {
    (void)device;
    (void)p;
    (void)op;
    *prepared        = NULL;
    *workspace_bytes = FILTER * sizeof(float);
    return CR_OK;
}

static cr_status conv16_launch(struct cr_device *device, const struct cr_call *call) {
    struct conv16 v = shape_of(&call->program->tensor[call->op->in[CR_IN_conv_x]], cr_cpu_threads(device));
    pack_forward(call->in[CR_IN_conv_w], call->workspace);
    forward(&v, call->in[CR_IN_conv_x], call->out[CR_OUT_conv_y], call->workspace);
    return CR_OK;
}

static cr_status conv16_dgrad_launch(struct cr_device *device, const struct cr_call *call) {
    struct conv16 v = shape_of(&call->program->tensor[call->op->in[CR_IN_conv_dgrad_dy]], cr_cpu_threads(device));
    pack_turned(call->in[CR_IN_conv_dgrad_w], call->workspace);
    forward(&v, call->in[CR_IN_conv_dgrad_dy], call->out[CR_OUT_conv_dgrad_dx], call->workspace);
    return CR_OK;
}

/* ---- the filter's gradient ---- */

/* What input pixel x adds to the sums: with output pixels d[1] (right of it), d[0] and d[-1], as far as they are there. */
static inline __attribute__((always_inline)) void gradient_pixel(const float *x, const float *d, bool left, bool right,
                                                                 lanes16 sum[HALF][TAPS]) {
    lanes16 d0 = {0}, d1 = *(const lanes16 *)d, d2 = {0};
    if (right) d0 = *(const lanes16 *)(d + CH);
    if (left) d2 = *(const lanes16 *)(d - CH);
#pragma GCC unroll 8
    for (int c = 0; c < HALF; c++) {
        const float value = x[c];
        if (right) sum[c][0] += value * d0;
        sum[c][1] += value * d1;
        if (left) sum[c][2] += value * d2;
    }
}

/* sums[r][c][s][k] of one r and HALF channels c, over output rows [p0, p1) of an image; row p of `ahead` is fetched. */
CR_CLONES static void gradient_block(const struct conv16 *v, const float *x, const float *dy, int64_t p0, int64_t p1, int r,
                                     const float *ahead, float *sums) {
    lanes16       sum[HALF][TAPS];
    lanes16      *total = (lanes16 *)sums;
    const int64_t W = v->W, row = W * CH;
    for (int c = 0; c < HALF; c++)
        for (int s = 0; s < TAPS; s++) sum[c][s] = (lanes16){0};
    p0 = CR_MAX(p0, (int64_t)1 - r);
    p1 = CR_MIN(p1, v->H + 1 - r);
    for (int64_t p = p0; p < p1; p++) {
        const float *pixel = x + (p + r - 1) * row, *d = dy + p * row;
        gradient_pixel(pixel, d, false, true, sum);
        for (int64_t w = 1; w < W - 1; w++) {
            __builtin_prefetch(ahead + p * row + w * CH);
            gradient_pixel(pixel + w * CH, d + w * CH, true, true, sum);
        }
        gradient_pixel(pixel + (W - 1) * CH, d + (W - 1) * CH, true, false, sum);
    }
    for (int c = 0; c < HALF; c++)
        for (int s = 0; s < TAPS; s++) total[c * TAPS + s] += sum[c][s];
}

static void gradient_image(const struct conv16 *v, const float *x, const float *dy, float *sums) {
    for (int64_t p = 0; p < v->H; p += BLOCK)
        for (int r = 0; r < TAPS; r++)
            for (int c = 0; c < CH; c += HALF)
                gradient_block(v, x + c, dy, p, CR_MIN(p + BLOCK, v->H), r, (c ? x : dy) + BLOCK * v->W * CH,
                               sums + (r * CH + c) * TAPS * CH);
}

static cr_status gradient_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op, void **prepared,
                                  size_t *workspace_bytes) {
    (void)p;
    (void)op;
    *prepared        = NULL;
    *workspace_bytes = (size_t)cr_cpu_threads(device) * FILTER * sizeof(float);
    return CR_OK;
}

/* Threads' sums into the filter's layout, in thread order. */
static void gradient_fold(const struct conv16 *v, const float *workspace, float *dw, bool accumulate) {
    for (int k = 0; k < CH; k++)
        for (int r = 0; r < TAPS; r++)
            for (int s = 0; s < TAPS; s++)
                for (int c = 0; c < CH; c++) {
                    float *to  = &dw[((k * TAPS + r) * TAPS + s) * CH + c];
                    double sum = accumulate ? (double)*to : 0;
                    for (int t = 0; t < v->threads; t++)
                        sum += (double)workspace[t * FILTER + ((r * CH + c) * TAPS + s) * CH + k];
                    *to = (float)sum;
                }
}

static cr_status conv16_wgrad_launch(struct cr_device *device, const struct cr_call *call) {
    struct conv16 v = shape_of(&call->program->tensor[call->op->in[CR_IN_conv_wgrad_x]], cr_cpu_threads(device));
    const float  *x = call->in[CR_IN_conv_wgrad_x], *dy = call->in[CR_IN_conv_wgrad_dy];
    float        *workspace = call->workspace;
    CR_PARALLEL_FOR(v.threads)
    for (int t = 0; t < v.threads; t++) {
        float  *sums = workspace + t * FILTER;
        int64_t begin, end, image = v.H * v.W * CH;
        cr_run_of(v.images, t, v.threads, &begin, &end);
        memset(sums, 0, FILTER * sizeof *sums);
        for (int64_t n = begin; n < end; n++) gradient_image(&v, x + n * image, dy + n * image, sums);
    }
    gradient_fold(&v, workspace, call->out[CR_OUT_conv_wgrad_dw], call->op->attr.conv.accumulate);
    return CR_OK;
}

static void release_nothing(void *prepared) { (void)prepared; }

#define CONV16_ROW(row, kind, test, make)                                                                              \
    const struct cr_kernel cr_cpu_##row = {.name = "cpu." #row, .op = CR_OP_##kind, .math = CR_MATH_F32,              \
                                           .deterministic = true, .accepts = test, .prepare = make,                   \
                                           .launch = row##_launch, .release = release_nothing}
CONV16_ROW(conv16, conv, conv16_accepts, forward_prepare);
CONV16_ROW(conv16_dgrad, conv_dgrad, conv16_dgrad_accepts, forward_prepare);
CONV16_ROW(conv16_wgrad, conv_wgrad, conv16_wgrad_accepts, gradient_prepare);
