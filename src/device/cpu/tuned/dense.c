/* device/cpu/tuned/dense.c: tuned kernels for the dense layer and its gradients. They read the weights once from
 * memory. They are limited by memory for small batches and by arithmetic for large ones. Sums run in float over 16
 * lanes (forward) or in groups of GROUP products (gradients), so that chains of additions are short. */
#include "device/cpu/simd.h"

enum { LANES = 16, GROUP = 8, IMAGES = 4 };

/* ---- forward: dot products, IMAGES at a time so that a filter is loaded once for all of them ---- */

static inline __attribute__((always_inline)) float reduce_lanes(const f32x16 *sum, const float *x, const float *w,
                                                                int64_t from, int64_t C) {
    double total = 0;
    for (int i = 0; i < LANES; i++) total += (double)(*sum)[i];
    for (int64_t c = from; c < C; c++) total += (double)x[c] * (double)w[c];
    return (float)total;
}

CR_BY_LEVEL(void, dots, (const float *x, const float *w, int64_t C, float y[IMAGES]), (x, w, C, y)) {
    f32x16  sum[IMAGES] = {{0}};
    int64_t c           = 0;
    for (; c + LANES <= C; c += LANES) {
        f32x16 filter = *(const f32x16 *)(w + c);
        for (int n = 0; n < IMAGES; n++) sum[n] += *(const f32x16 *)(x + n * C + c) * filter;
    }
    for (int n = 0; n < IMAGES; n++) y[n] = reduce_lanes(&sum[n], x + n * C, w, c, C);
}

CR_BY_LEVEL(float, dot, (const float *x, const float *w, int64_t C), (x, w, C)) {
    f32x16  sum = {0};
    int64_t c   = 0;
    for (; c + LANES <= C; c += LANES) sum += *(const f32x16 *)(x + c) * *(const f32x16 *)(w + c);
    return reduce_lanes(&sum, x, w, c, C);
}

static void forward_class(const struct cr_call *call, int64_t N, int64_t C, int64_t K, int64_t k) {
    const float *x = call->in[CR_IN_dense_x], *w = (const float *)call->in[CR_IN_dense_w] + k * C;
    float       *y = call->out[CR_OUT_dense_y], bias = ((const float *)call->in[CR_IN_dense_b])[k];
    int64_t      n = 0;
    for (; n + IMAGES <= N; n += IMAGES) {
        float sum[IMAGES];
        dots(x + n * C, w, C, sum);
        for (int i = 0; i < IMAGES; i++) y[(n + i) * K + k] = sum[i] + bias;
    }
    for (; n < N; n++) y[n * K + k] = dot(x + n * C, w, C) + bias;
}

CR_CPU_LAUNCH(dense_launch) {
    const struct cr_tensor *x = &call->program->tensor[call->op->in[CR_IN_dense_x]];
    const int64_t N = x->dim[0], C = x->dim[3], K = call->program->tensor[call->op->out[CR_OUT_dense_y]].dim[3];
    CR_PARALLEL(k, K) forward_class(call, N, C, K, k);
}

/* ---- gradients: sums of rows, each times a factor ---- */

/* out = (add ? out : 0) + sum over j < count of factor[j * factor_stride] * rows[j * row_stride ..]; count <= GROUP. */
struct rows_sum {
    const float *rows, *factor;
    int64_t      row_stride, factor_stride;
};

CR_BY_LEVEL(void, add_group, (const struct rows_sum *s, float *out, int64_t width, bool add), (s, out, width, add)) {
    float        f[GROUP];
    const float *row[GROUP];
    for (int j = 0; j < GROUP; j++) {
        f[j]   = s->factor[j * s->factor_stride];
        row[j] = s->rows + j * s->row_stride;
    }
    int64_t c = 0;
    for (; c + LANES <= width; c += LANES) {
        f32x16 sum = *(const f32x16 *)(row[0] + c) * f[0];
        for (int j = 1; j < GROUP; j++) sum += *(const f32x16 *)(row[j] + c) * f[j];
        if (add) sum += *(const f32x16 *)(out + c);
        *(f32x16 *)(out + c) = sum;
    }
    for (; c < width; c++) {
        float sum = 0;
        for (int j = 0; j < GROUP; j++) sum += row[j][c] * f[j];
        out[c] = add ? out[c] + sum : sum;
    }
}

CR_BY_LEVEL(void, add_remainder, (const struct rows_sum *s, float *out, int64_t width, bool add, int count),
            (s, out, width, add, count)) {
    for (int64_t c = 0; c < width; c++) {
        float sum = 0;
        for (int j = 0; j < count; j++) sum += s->rows[j * s->row_stride + c] * s->factor[j * s->factor_stride];
        out[c] = add ? out[c] + sum : sum;
    }
}

static void add_rows(struct rows_sum s, float *out, int64_t width, bool add, int64_t from, int64_t count) {
    s.rows += from * s.row_stride;
    s.factor += from * s.factor_stride;
    if (count - from >= GROUP)
        add_group(&s, out, width, add || from > 0);
    else
        add_remainder(&s, out, width, add || from > 0, (int)(count - from));
}

/* Each thread computes a range of C for all images, so that it reads its part of the weights once. */
CR_CPU_LAUNCH(dense_dgrad_launch) {
    const struct cr_tensor *dx = &call->program->tensor[call->op->out[CR_OUT_dense_dgrad_dx]];
    const int64_t           N = dx->dim[0], C = dx->dim[3], blocks = (C + LANES - 1) / LANES;
    const int64_t           K     = call->program->tensor[call->op->in[CR_IN_dense_dgrad_dy]].dim[3];
    const int               parts = cr_cpu_threads(device);
    CR_THREADS(t, parts) {
        int64_t begin, end;
        cr_run_of(blocks, t, parts, &begin, &end);
        begin *= LANES;
        end = CR_MIN(end * LANES, C);
        for (int64_t k = 0; k < K; k += GROUP)
            for (int64_t n = 0; n < N; n++) {
                struct rows_sum s = {.rows          = (const float *)call->in[CR_IN_dense_dgrad_w] + begin,
                                     .row_stride    = C,
                                     .factor        = (const float *)call->in[CR_IN_dense_dgrad_dy] + n * K,
                                     .factor_stride = 1};
                add_rows(s, (float *)call->out[CR_OUT_dense_dgrad_dx] + n * C + begin, end - begin, false, k, K);
            }
    }
}

CR_CPU_LAUNCH(dense_wgrad_launch) {
    const struct cr_tensor *x = &call->program->tensor[call->op->in[CR_IN_dense_wgrad_x]];
    const int64_t N = x->dim[0], C = x->dim[3], K = call->program->tensor[call->op->out[CR_OUT_dense_wgrad_dw]].dim[0];
    CR_PARALLEL(k, K)
        for (int64_t n = 0; n < N; n += GROUP) {
            struct rows_sum s = {.rows          = call->in[CR_IN_dense_wgrad_x],
                                 .row_stride    = C,
                                 .factor        = (const float *)call->in[CR_IN_dense_wgrad_dy] + k,
                                 .factor_stride = K};
            add_rows(s, (float *)call->out[CR_OUT_dense_wgrad_dw] + k * C, C, call->op->attr.dense.accumulate, n, N);
        }
}

const struct cr_kernel cr_cpu_dense_kernels[] = {CR_CPU_KERNEL(dense, CR_MATH_F32),
                                                 CR_CPU_KERNEL(dense_dgrad, CR_MATH_F32),
                                                 CR_CPU_KERNEL(dense_wgrad, CR_MATH_F32),
                                                 {0}};
