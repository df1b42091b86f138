/* device/cpu/tuned/bn.c: tuned kernels for the sums of batch normalisation. They read each tensor once and are limited
 * by memory.
 *
 * Sums run in float over blocks of BLOCK rows, then in double. So the rounding error is that of a short sum, also for a
 * large mean with a small variance. */
#include "device/cpu/simd.h"

#include <string.h>

enum { BLOCK = 32 };

/* ---- per-channel sums ---- */

/* Workspace: sums of each thread, then two rows that all threads share. */
struct sums_plan {
    struct cr_simd_shape shape;
    int                  threads;
};

static size_t padded(int64_t width) {
    return (size_t)(width + CR_STRIP - 1) / CR_STRIP * CR_STRIP;
}

static struct sums_plan plan_of(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const int x = op->kind == CR_OP_bn_sums ? op->in[CR_IN_bn_sums_x] : op->in[CR_IN_bn_grad_sums_x];
    return (struct sums_plan){.shape = cr_simd_shape_of(&p->tensor[x]), .threads = cr_cpu_threads(device)};
}

/* For each thread 2 rows of double and 2 rows of float; shared: 2 rows of float (the repeated mean; one is unused). */
CR_CPU_WORKSPACE(sums_bytes) {
    const struct sums_plan plan = plan_of(device, p, op);
    const size_t           row  = padded(plan.shape.width);
    return (size_t)plan.threads * row * (2 * sizeof(double) + 2 * sizeof(float)) + 2 * row * sizeof(float);
}

struct sums {
    double *first, *second; /* [width] */
    float  *block_first, *block_second;
};

static struct sums sums_of(const struct sums_plan *plan, void *workspace, int thread) {
    size_t  row = padded(plan->shape.width), threads = (size_t)plan->threads, t = (size_t)thread;
    double *d = workspace;
    float  *f = (float *)(d + 2 * threads * row);
    return (struct sums){d + 2 * t * row, d + (2 * t + 1) * row, f + 2 * t * row, f + (2 * t + 1) * row};
}

static float *shared_row(const struct sums_plan *plan, void *workspace) {
    size_t row = padded(plan->shape.width), threads = (size_t)plan->threads;
    return (float *)((double *)workspace + 2 * threads * row) + 2 * threads * row;
}

static void sums_clear(struct sums *s, int64_t width) {
    memset(s->first, 0, (size_t)width * sizeof(double));
    memset(s->second, 0, (size_t)width * sizeof(double));
}

static inline __attribute__((always_inline)) void flush(struct sums *s, int64_t from, int64_t width, const float *a,
                                                        const float *b) {
    for (int64_t i = 0; i < width; i++) s->first[from + i] += (double)a[i];
    for (int64_t i = 0; i < width; i++) s->second[from + i] += (double)b[i];
}

/* Adds the sums of the threads for each channel, in thread order. scale: a factor of the second sum for each channel,
 * or NULL. */
static void reduce_threads(const struct sums_plan *plan, void *workspace, float *out, const float *scale) {
    int64_t C = plan->shape.channels;
    for (int64_t c = 0; c < C; c++) {
        double a = 0, b = 0;
        for (int t = 0; t < plan->threads; t++) {
            struct sums s = sums_of(plan, workspace, t);
            for (int64_t i = c; i < plan->shape.width; i += C) {
                a += s.first[i];
                b += s.second[i];
            }
        }
        out[c]     = (float)a;
        out[C + c] = (float)(scale ? b * (double)scale[c] : b);
    }
}

/* ---- bn_sums ---- */

/* Sums of one strip over `rows` rows at a distance of `stride` floats. */
static inline __attribute__((always_inline)) void sums_strip(const float *x, int64_t rows, int64_t stride, float *a,
                                                             float *b) {
    float s[CR_STRIP] = {0}, q[CR_STRIP] = {0};
    for (int64_t r = 0; r < rows; r++, x += stride) {
        for (int i = 0; i < CR_STRIP; i++) {
            s[i] += x[i];
            q[i] += x[i] * x[i];
        }
    }
    memcpy(a, s, sizeof s);
    memcpy(b, q, sizeof q);
}

CR_BY_LEVEL(void, sums_run, (const float *x, int64_t rows, int64_t width, struct sums *s), (x, rows, width, s)) {
    for (int64_t r = 0; r < rows; r += BLOCK) {
        int64_t      n = CR_MIN((int64_t)BLOCK, rows - r), i = 0;
        const float *px = x + r * width;
        for (; i + CR_STRIP <= width; i += CR_STRIP) {
            sums_strip(px + i, n, width, s->block_first, s->block_second);
            flush(s, i, CR_STRIP, s->block_first, s->block_second);
        }
        for (; i < width; i++)
            for (int64_t k = 0; k < n; k++) {
                double v = (double)px[k * width + i];
                s->first[i] += v;
                s->second[i] += v * v;
            }
    }
}

CR_CPU_LAUNCH(bn_sums_launch) {
    const struct sums_plan      plan = plan_of(device, call->program, call->op);
    const float                *x    = call->in[CR_IN_bn_sums_x];
    const struct cr_simd_shape *l    = &plan.shape;
    CR_THREADS(t, plan.threads) {
        struct sums s = sums_of(&plan, call->workspace, t);
        int64_t     begin, end;
        cr_run_of(l->rows, t, plan.threads, &begin, &end);
        sums_clear(&s, l->width);
        sums_run(x + begin * l->width, end - begin, l->width, &s);
        if (t == plan.threads - 1)
            for (int64_t i = 0; i < l->tail; i++) {
                double v = (double)x[l->rows * l->width + i];
                s.first[i] += v;
                s.second[i] += v * v;
            }
    }
    reduce_threads(&plan, call->workspace, call->out[CR_OUT_bn_sums_sums], NULL);
}

/* ---- bn_grad_sums: sum g and sum g*(x - mean); rstd is applied when the sums of the threads are added ---- */

static inline __attribute__((always_inline)) void grad_strip(const float *dy, const float *x, const float *y,
                                                             const float *mean, int64_t rows, int64_t stride, float *a,
                                                             float *b) {
    float s[CR_STRIP] = {0}, q[CR_STRIP] = {0};
    for (int64_t r = 0; r < rows; r++, dy += stride, x += stride, y = y ? y + stride : NULL) {
        cr_strip_prefetch(dy);
        cr_strip_prefetch(x);
        if (y) cr_strip_prefetch(y);
        for (int i = 0; i < CR_STRIP; i++) {
            float d = dy[i], g = !y || y[i] > 0 ? d : 0.0f;
            s[i] += g;
            q[i] += g * (x[i] - mean[i]);
        }
    }
    memcpy(a, s, sizeof s);
    memcpy(b, q, sizeof q);
}

CR_BY_LEVEL(void, grad_run,
            (const float *dy, const float *x, const float *y, const float *mean, int64_t rows, int64_t width,
             struct sums *s),
            (dy, x, y, mean, rows, width, s)) {
    for (int64_t r = 0; r < rows; r += BLOCK) {
        int64_t n = CR_MIN((int64_t)BLOCK, rows - r), i = 0, at = r * width;
        for (; i + CR_STRIP <= width; i += CR_STRIP) {
            grad_strip(dy + at + i, x + at + i, y ? y + at + i : NULL, mean + i, n, width, s->block_first,
                       s->block_second);
            flush(s, i, CR_STRIP, s->block_first, s->block_second);
        }
        for (; i < width; i++)
            for (int64_t k = at + i; k < at + n * width; k += width) {
                double g = !y || y[k] > 0 ? (double)dy[k] : 0.0;
                s->first[i] += g;
                s->second[i] += g * (double)(x[k] - mean[i]);
            }
    }
}

static void grad_tail(const float *dy, const float *x, const float *y, const float *mean, int64_t count,
                      struct sums *s) {
    for (int64_t i = 0; i < count; i++) {
        double g = !y || y[i] > 0 ? (double)dy[i] : 0.0;
        s->first[i] += g;
        s->second[i] += g * (double)(x[i] - mean[i]);
    }
}

CR_CPU_LAUNCH(bn_grad_sums_launch) {
    const struct sums_plan      plan = plan_of(device, call->program, call->op);
    const struct cr_simd_shape *l    = &plan.shape;
    const float                *dy = call->in[CR_IN_bn_grad_sums_dy], *x = call->in[CR_IN_bn_grad_sums_x];
    const float                *y = call->in[CR_IN_bn_grad_sums_y], *mean_rstd = call->in[CR_IN_bn_grad_sums_mean_rstd];
    float                      *mean = shared_row(&plan, call->workspace);
    cr_simd_broadcast(l, mean_rstd, mean);
    CR_THREADS(t, plan.threads) {
        struct sums s = sums_of(&plan, call->workspace, t);
        int64_t     begin, end;
        cr_run_of(l->rows, t, plan.threads, &begin, &end);
        int64_t at = begin * l->width, done = l->rows * l->width;
        sums_clear(&s, l->width);
        grad_run(dy + at, x + at, y ? y + at : NULL, mean, end - begin, l->width, &s);
        if (t == plan.threads - 1) grad_tail(dy + done, x + done, y ? y + done : NULL, mean, l->tail, &s);
    }
    reduce_threads(&plan, call->workspace, call->out[CR_OUT_bn_grad_sums_grad_sums], mean_rstd + l->channels);
}

const struct cr_kernel cr_cpu_bn_kernels[] = {CR_CPU_KERNEL(bn_sums, CR_MATH_F32, .workspace = sums_bytes),
                                              CR_CPU_KERNEL(bn_grad_sums, CR_MATH_F32,
                                                            .optional_in = CR_IN_BIT(bn_grad_sums, y),
                                                            .accepts = cr_has_plain_mask, .workspace = sums_bytes),
                                              {0}};
