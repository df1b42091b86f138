/* device/cpu/tuned/conv3_wgrad.c: filter gradient of the convolutions of device/cpu/tuned/conv3.c.
 *
 * The sums of one filter row, PART input channels and 16 filters stay in registers for all three columns, so each
 * loaded input value is used for three multiply-adds. Sums run in float over BLOCK image rows, then in float over
 * blocks, then in double over threads. */
#include "device/cpu/tuned/conv3.h"

enum { PART = 8, BLOCK = 8 };

struct shape {
    int64_t images, H, W, C, K, filter; /* filter: number of elements of the filter */
    int     threads;
};

static struct shape shape_of(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = &p->tensor[op->in[CR_IN_conv_wgrad_x]], *dw = &p->tensor[op->out[CR_OUT_conv_wgrad_dw]];
    return (struct shape){.images  = x->dim[0],
                          .H       = x->dim[1],
                          .W       = x->dim[2],
                          .C       = dw->dim[3],
                          .K       = dw->dim[0],
                          .filter  = cr_tensor_elems(dw),
                          .threads = cr_cpu_threads(device)};
}

/* Adds the products of input pixel x with the gradients of three output pixels to sum[c][s]: d[K] to the right, d[0] at
 * the same column and d[-K] to the left. */
static inline __attribute__((always_inline)) void add_pixel(const float *x, const float *d, int64_t K, bool left,
                                                            bool right, f32x16 sum[PART][TAPS]) {
    f32x16 d0 = {0}, d1 = *(const f32x16 *)d, d2 = {0};
    if (right) d0 = *(const f32x16 *)(d + K);
    if (left) d2 = *(const f32x16 *)(d - K);
#pragma GCC unroll 8
    for (int c = 0; c < PART; c++) {
        const float value = x[c];
        if (right) sum[c][0] += value * d0;
        sum[c][1] += value * d1;
        if (left) sum[c][2] += value * d2;
    }
}

/* Adds output rows p0 to p1 - 1 of an image to sums[c][s][k] of filter row r. Meanwhile row p of `ahead`, with `step`
 * floats per pixel, is prefetched. */
CR_BY_LEVEL(void, add_block,
            (const struct shape *v, const float *x, const float *dy, int64_t p0, int64_t p1, int r, const float *ahead,
             int64_t step, float *sums),
            (v, x, dy, p0, p1, r, ahead, step, sums)) {
    f32x16        sum[PART][TAPS];
    f32x16       *total = (f32x16 *)sums;
    const int64_t W = v->W, C = v->C, K = v->K;
    for (int c = 0; c < PART; c++)
        for (int s = 0; s < TAPS; s++) sum[c][s] = (f32x16){0};
    p0 = CR_MAX(p0, (int64_t)1 - r);
    p1 = CR_MIN(p1, v->H + 1 - r);
    for (int64_t p = p0; p < p1; p++) {
        const float *pixel = x + (p + r - 1) * W * C, *d = dy + p * W * K, *fetch = ahead + p * W * step;
        add_pixel(pixel, d, K, false, true, sum);
        for (int64_t w = 1; w < W - 1; w++) {
            __builtin_prefetch(fetch + w * step);
            add_pixel(pixel + w * C, d + w * K, K, true, true, sum);
        }
        add_pixel(pixel + (W - 1) * C, d + (W - 1) * K, K, true, false, sum);
    }
    for (int c = 0; c < PART; c++)
        for (int s = 0; s < TAPS; s++) total[c * TAPS + s] += sum[c][s];
}

/* Adds one image to sums[k/16][r][c][s][16]. While one block is processed, the next is prefetched: of x by the first
 * passes, of dy by the following passes. */
static void add_image(const struct shape *v, const float *x, const float *dy, float *sums) {
    for (int64_t p = 0; p < v->H; p += BLOCK) {
        float  *to     = sums;
        int64_t x_pass = 0, dy_pass = 0;
        for (int64_t k = 0; k < v->K; k += LANES)
            for (int r = 0; r < TAPS; r++)
                for (int64_t c = 0; c < v->C; c += PART, to += PART * TAPS * LANES) {
                    const float *ahead = x + BLOCK * v->W * v->C + x_pass * LANES;
                    int64_t      step  = v->C;
                    if (x_pass < v->C / LANES)
                        x_pass++;
                    else {
                        ahead   = dy + BLOCK * v->W * v->K + dy_pass * LANES;
                        step    = v->K;
                        dy_pass = CR_MIN(dy_pass + 1, v->K / LANES - 1);
                    }
                    add_block(v, x + c, dy + k, p, CR_MIN(p + BLOCK, v->H), r, ahead, step, to);
                }
    }
}

/* Adds the sums of the threads in thread order and writes them as [K,3,3,C]. */
static void reduce_threads(const struct shape *v, const float *workspace, float *dw, bool accumulate) {
    CR_PARALLEL_FOR(v->threads)
    for (int64_t k = 0; k < v->K; k++)
        for (int64_t i = 0; i < TAPS * TAPS * v->C; i++) {
            const int64_t r = i / (TAPS * v->C), s = i / v->C % TAPS, c = i % v->C;
            const int64_t from = (((k / LANES * TAPS + r) * v->C + c) * TAPS + s) * LANES + k % LANES;
            float        *to   = dw + k * TAPS * TAPS * v->C + i;
            double        sum  = accumulate ? (double)*to : 0;
            for (int t = 0; t < v->threads; t++) sum += (double)workspace[t * v->filter + from];
            *to = (float)sum;
        }
}

static size_t sums_bytes(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct shape v = shape_of(device, p, op);
    return (size_t)(v.threads * v.filter) * sizeof(float);
}

static cr_status conv3_wgrad_launch(struct cr_device *device, const struct cr_call *call) {
    struct shape v = shape_of(device, call->program, call->op);
    const float *x = call->in[CR_IN_conv_wgrad_x], *dy = call->in[CR_IN_conv_wgrad_dy];
    CR_PARALLEL_FOR(v.threads)
    for (int t = 0; t < v.threads; t++) {
        float  *sums = (float *)call->workspace + t * v.filter;
        int64_t begin, end;
        cr_run_of(v.images, t, v.threads, &begin, &end);
        memset(sums, 0, (size_t)v.filter * sizeof *sums);
        for (int64_t n = begin; n < end; n++) add_image(&v, x + n * v.H * v.W * v.C, dy + n * v.H * v.W * v.K, sums);
    }
    reduce_threads(&v, call->workspace, call->out[CR_OUT_conv_wgrad_dw], call->op->attr.conv.accumulate);
    return CR_OK;
}

const struct cr_kernel cr_cpu_conv3_wgrad_kernels[] = {{CR_KERNEL("cpu.conv3_wgrad", conv_wgrad, CR_MATH_F32),
                                                        .dtypes = CR_TYPES_F32, .accepts = cr_cpu_conv3_accepts,
                                                        .workspace = sums_bytes, .launch = conv3_wgrad_launch},
                                                       {0}};
