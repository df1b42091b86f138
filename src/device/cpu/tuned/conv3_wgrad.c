/* device/cpu/tuned/conv3_wgrad.c: filter gradient of the convolutions of device/cpu/tuned/conv3.c.
 *
 * The sums of one filter row, PART input channels and 16 filters stay in registers for all three columns, so each
 * loaded input value is used for three multiply-adds. Sums run in float over BLOCK image rows, then in float over
 * blocks, then in double over threads. */
#include "device/cpu/tuned/conv3.h"

enum { PART = 8, BLOCK = 8, FILTER = CHANNELS * TAPS * TAPS * CHANNELS /* numbers of dw */ };

struct shape {
    int64_t images, H, W;
    int     threads;
};

static struct shape shape_of(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = &p->tensor[op->in[CR_IN_conv_wgrad_x]];
    return (struct shape){.images = x->dim[0], .H = x->dim[1], .W = x->dim[2], .threads = cr_cpu_threads(device)};
}

/* Adds the products of input pixel x with the gradients of three output pixels to sum[c][s]: of the next column, the
 * same and the one before. */
static inline __attribute__((always_inline)) void add_pixel(const float *x, const float *d, bool left, bool right,
                                                            f32x16 sum[PART][TAPS]) {
    f32x16 d0 = {0}, d1 = *(const f32x16 *)d, d2 = {0};
    if (right) d0 = *(const f32x16 *)(d + CHANNELS);
    if (left) d2 = *(const f32x16 *)(d - CHANNELS);
#pragma GCC unroll 8
    for (int c = 0; c < PART; c++) {
        const float value = x[c];
        if (right) sum[c][0] += value * d0;
        sum[c][1] += value * d1;
        if (left) sum[c][2] += value * d2;
    }
}

/* Adds output rows p0 to p1 - 1 of an image to sums[c][s][k] of filter row r. Meanwhile it prefetches row p of
 * `ahead`. */
CR_BY_LEVEL(void, add_block,
            (const struct shape *v, const float *x, const float *dy, int64_t p0, int64_t p1, int r, const float *ahead,
             float *sums),
            (v, x, dy, p0, p1, r, ahead, sums)) {
    f32x16        sum[PART][TAPS];
    f32x16       *total = (f32x16 *)sums;
    const int64_t W = v->W, C = CHANNELS;
    for (int c = 0; c < PART; c++)
        for (int s = 0; s < TAPS; s++) sum[c][s] = (f32x16){0};
    p0 = CR_MAX(p0, (int64_t)1 - r);
    p1 = CR_MIN(p1, v->H + 1 - r);
    for (int64_t p = p0; p < p1; p++) {
        const float *pixel = x + (p + r - 1) * W * C, *d = dy + p * W * C, *fetch = ahead + p * W * C;
        add_pixel(pixel, d, false, true, sum);
        for (int64_t w = 1; w < W - 1; w++) {
            __builtin_prefetch(fetch + w * C);
            add_pixel(pixel + w * C, d + w * C, true, true, sum);
        }
        add_pixel(pixel + (W - 1) * C, d + (W - 1) * C, true, false, sum);
    }
    for (int c = 0; c < PART; c++)
        for (int s = 0; s < TAPS; s++) total[c * TAPS + s] += sum[c][s];
}

/* Adds one image to sums[r][c][s][k]. While one block is processed, the next is prefetched: of x by the first pass, of
 * dy by the following passes. */
static void add_image(const struct shape *v, const float *x, const float *dy, float *sums) {
    const int64_t next = BLOCK * v->W * CHANNELS;
    for (int64_t p = 0; p < v->H; p += BLOCK) {
        float *to = sums;
        for (int r = 0; r < TAPS; r++)
            for (int c = 0; c < CHANNELS; c += PART, to += PART * TAPS * CHANNELS)
                add_block(v, x + c, dy, p, CR_MIN(p + BLOCK, v->H), r, to == sums ? x + next : dy + next, to);
    }
}

/* Adds the sums of the threads in thread order and writes them as [K,3,3,C]. */
static void reduce_threads(const struct shape *v, const float *workspace, float *dw, bool accumulate) {
    for (int i = 0; i < FILTER; i++) {
        const int k = i / (TAPS * TAPS * CHANNELS), r = i / (TAPS * CHANNELS) % TAPS, s = i / CHANNELS % TAPS;
        double    sum = accumulate ? (double)dw[i] : 0;
        for (int t = 0; t < v->threads; t++)
            sum += (double)workspace[t * FILTER + ((r * CHANNELS + i % CHANNELS) * TAPS + s) * CHANNELS + k];
        dw[i] = (float)sum;
    }
}

CR_CPU_WORKSPACE(sums_bytes) {
    return (size_t)cr_cpu_threads(device) * FILTER * sizeof(float);
}

CR_CPU_LAUNCH(conv3_wgrad_launch) {
    struct shape v = shape_of(device, call->program, call->op);
    const float *x = call->in[CR_IN_conv_wgrad_x], *dy = call->in[CR_IN_conv_wgrad_dy];
    CR_THREADS(t, v.threads) {
        float  *sums = (float *)call->workspace + (int64_t)t * FILTER;
        int64_t begin, end;
        cr_run_of(v.images, t, v.threads, &begin, &end);
        memset(sums, 0, FILTER * sizeof *sums);
        for (int64_t n = begin; n < end; n++)
            add_image(&v, x + n * v.H * v.W * CHANNELS, dy + n * v.H * v.W * CHANNELS, sums);
    }
    reduce_threads(&v, call->workspace, call->out[CR_OUT_conv_wgrad_dw], call->op->attr.conv.accumulate);
}

const struct cr_kernel cr_cpu_conv3_wgrad_kernels[] = {{CR_KERNEL("cpu.conv3_wgrad", conv_wgrad, CR_MATH_F32),
                                                        .dtypes = CR_TYPES_F32, .accepts = cr_cpu_conv3_accepts,
                                                        .workspace = sums_bytes, .launch = conv3_wgrad_launch},
                                                       {0}};
