/* device/cpu/tuned/conv/bf16/layout.c: where images lie in copies that AMX reads, and the strips of these copies. */
#include "device/cpu/simd.h"
#include "device/cpu/tuned/conv/bf16/bf16.h"

#if defined(__x86_64__)

struct cr_bf16_span cr_bf16_span_of(int64_t size, int64_t first, int64_t outputs, int64_t stride, int64_t window) {
    struct cr_bf16_span s = {.from = CR_MAX(first, 0), .all = (outputs - 1) * stride + window};
    s.before              = CR_MIN(CR_MAX(-first, 0), s.all);
    s.inside              = CR_MAX(CR_MIN(size, first + s.all) - s.from, 0);
    s.pitch               = s.inside + CR_MAX(s.before, s.all - s.before - s.inside);
    s.pitch               = (CR_MAX(s.pitch, outputs * stride) + stride - 1) / stride * stride;
    return s;
}

struct cr_bf16_strips cr_bf16_strips_of(int64_t N, int64_t rows, int64_t columns, int64_t positions, int64_t least) {
    struct cr_bf16_strips s = {.parts = CR_MIN(CR_MAX((rows * columns + positions - 1) / positions, 1), rows)};
    s.images                = s.parts > 1 ? 1 : CR_MAX(CR_MIN(positions / (rows * columns), N), 1);
    if (N < least) s.parts = CR_MIN(CR_MAX(s.parts, (least + N - 1) / N), rows);
    const int64_t groups = ((N + s.images - 1) / s.images + least - 1) / least * least; /* as many for each thread */
    s.images             = CR_MAX((N + groups - 1) / groups, 1);
    s.count              = (N + s.images - 1) / s.images * s.parts;
    return s;
}

struct cr_bf16_strip cr_bf16_strip_at(const struct cr_bf16_strips *strips, int64_t i, int64_t N, int64_t rows) {
    struct cr_bf16_strip s = {.image = i / strips->parts * strips->images};
    int64_t              end;
    cr_run_of(rows, (int)(i % strips->parts), (int)strips->parts, &s.row, &end);
    s.rows   = end - s.row;
    s.images = CR_MIN(strips->images, N - s.image);
    return s;
}

#endif
