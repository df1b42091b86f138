/* device/cpu/tuned/conv/winograd_transform.c: the matrices A, B and G of F(2x2, 3x3) and F(4x4, 3x3).
 *
 * They follow from polynomials that agree in m + 1 points and in their highest coefficient (Toom and Cook; Lavin and
 * Gray 2016). F(2x2) takes the points 0, 1 and -1. F(4x4) takes 0, 5/8, -5/8, 3/2 and -3/2, because its rounding errors
 * are then 1.26e-6 of the root mean square of the outputs with 256 channels; the usual points 0, 1, -1, 2 and -2 give
 * 2.8e-6, F(2x2) or the plain sum 0.6e-6. All factors of B and A, and the points, are exact in fp32. */
#include "device/cpu/tuned/conv/winograd.h"

#include "core/cpu.h"

#include <string.h>

typedef float f32x8 __attribute__((vector_size(32), aligned(4), may_alias));

enum { VECTOR = 8, EDGE_MAX = 6 };

#define CR_POINT_A 0.625f
#define CR_POINT_B 1.5f
#define CR_A2 (CR_POINT_A * CR_POINT_A)
#define CR_B2 (CR_POINT_B * CR_POINT_B)
/* The factors of the filter for the points. */
#define CR_NEAR (1 / (2 * CR_A2 * (CR_A2 - CR_B2)))
#define CR_FAR (1 / (2 * CR_B2 * (CR_B2 - CR_A2)))
#define CR_INLINE static inline __attribute__((always_inline))

/* ---- the transforms of a row or a column; m is a constant in each call ---- */

/* The values at 5/8, -5/8, 3/2 and -3/2, from the even and the odd terms of a polynomial at the positive points. */
CR_INLINE void at_points(f32x8 even_a, f32x8 odd_a, f32x8 even_b, f32x8 odd_b, f32x8 *value) {
    value[1] = even_a + odd_a;
    value[2] = even_a - odd_a;
    value[3] = even_b + odd_b;
    value[4] = even_b - odd_b;
}

/* G g. */
CR_INLINE void filter_line(int m, const f32x8 *g, f32x8 *u) {
    const f32x8 sum = g[0] + g[2];
    if (m == 2) {
        u[0] = g[0];
        u[1] = (sum + g[1]) * 0.5f;
        u[2] = (sum - g[1]) * 0.5f;
        u[3] = g[2];
        return;
    }
    const f32x8 even_a = (g[0] + g[2] * CR_A2) * CR_NEAR, odd_a = g[1] * (CR_POINT_A * CR_NEAR);
    const f32x8 even_b = (g[0] + g[2] * CR_B2) * CR_FAR, odd_b = g[1] * (CR_POINT_B * CR_FAR);
    u[0] = g[0] * (1 / (CR_A2 * CR_B2));
    at_points(even_a, odd_a, even_b, odd_b, u);
    u[5] = g[2];
}

/* B^T d. */
CR_INLINE void input_line(int m, const f32x8 *d, f32x8 *v) {
    if (m == 2) {
        v[0] = d[0] - d[2];
        v[1] = d[1] + d[2];
        v[2] = d[2] - d[1];
        v[3] = d[1] - d[3];
        return;
    }
    const f32x8 even_a = d[4] - d[2] * CR_B2, odd_a = (d[3] - d[1] * CR_B2) * CR_POINT_A;
    const f32x8 even_b = d[4] - d[2] * CR_A2, odd_b = (d[3] - d[1] * CR_A2) * CR_POINT_B;
    v[0] = d[0] * (CR_A2 * CR_B2) - d[2] * (CR_A2 + CR_B2) + d[4];
    at_points(even_a, odd_a, even_b, odd_b, v);
    v[5] = d[1] * (CR_A2 * CR_B2) - d[3] * (CR_A2 + CR_B2) + d[5];
}

/* A^T p. */
CR_INLINE void output_line(int m, const f32x8 *p, f32x8 *y) {
    if (m == 2) {
        y[0] = p[0] + p[1] + p[2];
        y[1] = p[1] - p[2] - p[3];
        return;
    }
    const f32x8 even_a = p[1] + p[2], odd_a = (p[1] - p[2]) * CR_POINT_A;
    const f32x8 even_b = p[3] + p[4], odd_b = (p[3] - p[4]) * CR_POINT_B;
    y[0] = p[0] + even_a + even_b;
    y[1] = odd_a + odd_b;
    y[2] = even_a * CR_A2 + even_b * CR_B2;
    y[3] = odd_a * CR_A2 + odd_b * CR_B2 + p[5];
}

/* A d. */
CR_INLINE void gradient_line(int m, const f32x8 *d, f32x8 *t) {
    if (m == 2) {
        t[0] = d[0];
        t[1] = d[0] + d[1];
        t[2] = d[0] - d[1];
        t[3] = -d[1];
        return;
    }
    const f32x8 even_a = d[0] + d[2] * CR_A2, odd_a = (d[1] + d[3] * CR_A2) * CR_POINT_A;
    const f32x8 even_b = d[0] + d[2] * CR_B2, odd_b = (d[1] + d[3] * CR_B2) * CR_POINT_B;
    t[0] = d[0];
    at_points(even_a, odd_a, even_b, odd_b, t);
    t[5] = d[3];
}

/* G^T u. */
CR_INLINE void filter_gradient_line(int m, const f32x8 *u, f32x8 *g) {
    if (m == 2) {
        const f32x8 sum = (u[1] + u[2]) * 0.5f;
        g[0]            = u[0] + sum;
        g[1]            = (u[1] - u[2]) * 0.5f;
        g[2]            = sum + u[3];
        return;
    }
    const f32x8 even_a = (u[1] + u[2]) * CR_NEAR, even_b = (u[3] + u[4]) * CR_FAR;
    g[0] = u[0] * (1 / (CR_A2 * CR_B2)) + even_a + even_b;
    g[1] = (u[1] - u[2]) * (CR_POINT_A * CR_NEAR) + (u[3] - u[4]) * (CR_POINT_B * CR_FAR);
    g[2] = even_a * CR_A2 + even_b * CR_B2 + u[5];
}

/* ---- the transforms of tiles ---- */

typedef void line_function(int m, const f32x8 *from, f32x8 *to);

/* The columns first, then the rows: `from` lines of numbers each way, `to` after the transform. Number (i, j) is
 * in[i * row + j * column]; it goes to out[(i * to + j) * by]. */
CR_INLINE void transform(int m, line_function *line, int from, int to, const float *in, int64_t row, int64_t column,
                         float *out, int64_t by) {
    f32x8 half[EDGE_MAX][EDGE_MAX], numbers[EDGE_MAX], done[EDGE_MAX];
    for (int j = 0; j < from; j++) {
        for (int i = 0; i < from; i++) numbers[i] = *(const f32x8 *)(in + i * row + j * column);
        line(m, numbers, done);
        for (int i = 0; i < to; i++) half[i][j] = done[i];
    }
    for (int i = 0; i < to; i++) {
        line(m, half[i], done);
        for (int j = 0; j < to; j++) *(f32x8 *)(out + (i * to + j) * by) = done[j];
    }
}

/* name(m, ...) runs `body`, in which M is m as a constant, for `count` channels, a vector from i on at a time. */
#define CR_TRANSFORM(name, count, parameters, arguments, body)                                                         \
    CR_BY_LEVEL(void, name, parameters, arguments) {                                                                   \
        if (m == 2) {                                                                                                  \
            enum { M = 2 };                                                                                            \
            for (int64_t i = 0; i < count; i += VECTOR) body;                                                          \
        } else {                                                                                                       \
            enum { M = 4 };                                                                                            \
            for (int64_t i = 0; i < count; i += VECTOR) body;                                                          \
        }                                                                                                              \
    }

CR_TRANSFORM(filters, count, (int m, const float *g, int64_t step, int64_t count, float *u, int64_t by),
             (m, g, step, count, u, by), transform(M, filter_line, 3, M + 2, g + i, 3 * step, step, u + i, by))

void cr_winograd_filters(int m, const float *g, int64_t step, int64_t count, float *u, int64_t by) {
    filters(m, g, step, count, u, by);
}

CR_TRANSFORM(input, channels,
             (int m, const float *x, int64_t row, int64_t pixel, int64_t channels, float *v, int64_t step),
             (m, x, row, pixel, channels, v, step),
             transform(M, input_line, M + 2, M + 2, x + i, row, pixel, v + i, step))

/* The pixels of a tile that reaches over an edge, with zeros outside the image. */
static void copy_tile(int edge, const struct cr_winograd_image *image, int64_t h, int64_t w, int64_t channels,
                      float *to) {
    for (int i = 0; i < edge * edge; i++, to += channels) {
        const int64_t row = h + i / edge, column = w + i % edge;
        if (row < 0 || row >= image->height || column < 0 || column >= image->width)
            memset(to, 0, (size_t)channels * sizeof *to);
        else
            memcpy(to, image->x + (row * image->width + column) * image->pitch, (size_t)channels * sizeof *to);
    }
}

void cr_winograd_input(int m, const struct cr_winograd_image *image, int64_t h, int64_t w, int64_t channels, float *v,
                       int64_t step, float *edge) {
    const int    side = m + 2;
    int64_t      row = image->width * image->pitch, pixel = image->pitch;
    const float *x = image->x + h * row + w * pixel;
    if (h < 0 || w < 0 || h + side > image->height || w + side > image->width) {
        copy_tile(side, image, h, w, channels, edge);
        x     = edge;
        row   = side * channels;
        pixel = channels;
    }
    input(m, x, row, pixel, channels, v, step);
}

CR_TRANSFORM(output, outputs, (int m, const float *p, int64_t step, int64_t outputs, float *to),
             (m, p, step, outputs, to),
             transform(M, output_line, M + 2, M, p + i, (M + 2) * step, step, to + i, outputs))

void cr_winograd_output(int m, const float *products, int64_t step, int64_t outputs, float *to) {
    output(m, products, step, outputs, to);
}

/* ---- filter gradients ---- */

CR_INLINE void gradient_tile(int m, const float *const *d, int64_t k, int64_t group, int64_t by_group, float *to,
                             int64_t step) {
    f32x8 half[EDGE_MAX][EDGE_MAX], pixels[EDGE_MAX], done[EDGE_MAX];
    for (int j = 0; j < m; j++) {
        for (int i = 0; i < m; i++) pixels[i] = *(const f32x8 *)(d[m * i + j] + k);
        gradient_line(m, pixels, done);
        for (int i = 0; i < m + 2; i++) half[i][j] = done[i];
    }
    for (int i = 0; i < m + 2; i++) {
        gradient_line(m, half[i], done);
        for (int j = 0; j < m + 2; j++) {
            float *at = to + ((m + 2) * i + j) * step + k / group * by_group;
            memcpy(at, &done[j], (size_t)group * sizeof *at);
            if (group < VECTOR) memcpy(at + by_group, (const float *)&done[j] + VECTOR / 2, sizeof done[j] / 2);
        }
    }
}

CR_TRANSFORM(gradient, channels,
             (int m, const float *const *d, int64_t channels, int64_t group, int64_t by_group, float *to, int64_t step),
             (m, d, channels, group, by_group, to, step), gradient_tile(M, d, i, group, by_group, to, step))

void cr_winograd_gradient(int m, const float *const *d, int64_t channels, int64_t group, int64_t by_group, float *to,
                          int64_t step) {
    gradient(m, d, channels, group, by_group, to, step);
}

CR_INLINE void filter_gradient(int m, const struct cr_winograd_sums *s, int64_t c, float *dw, int64_t by_tap,
                               bool accumulate) {
    f32x8 half[EDGE_MAX][EDGE_MAX], numbers[EDGE_MAX], done[EDGE_MAX];
    for (int j = 0; j < m + 2; j++) {
        for (int i = 0; i < m + 2; i++) {
            const float *u = s->u + ((m + 2) * i + j) * s->step + c;
            numbers[i]     = *(const f32x8 *)u;
            for (int n = 1; n < s->copies; n++) numbers[i] += *(const f32x8 *)(u + n * s->by_copy);
        }
        filter_gradient_line(m, numbers, done);
        for (int i = 0; i < 3; i++) half[i][j] = done[i];
    }
    for (int i = 0; i < 3; i++) {
        filter_gradient_line(m, half[i], done);
        for (int j = 0; j < 3; j++) {
            f32x8 *to = (f32x8 *)(dw + (3 * i + j) * by_tap + c);
            if (accumulate) done[j] += *to;
            *to = done[j];
        }
    }
}

CR_TRANSFORM(filter_gradients, channels,
             (int m, const struct cr_winograd_sums *s, int64_t channels, float *dw, int64_t by_tap, bool accumulate),
             (m, s, channels, dw, by_tap, accumulate), filter_gradient(M, s, i, dw, by_tap, accumulate))

void cr_winograd_filter_gradient(int m, const struct cr_winograd_sums *sums, int64_t channels, float *dw,
                                 int64_t by_tap, bool accumulate) {
    filter_gradients(m, sums, channels, dw, by_tap, accumulate);
}
