/* data/image/resize_wide.c: the passes of data/image/resize.c for samples of 16 bits, with PIL's arithmetic for the
 * mode I;16: weights and sums in double precision, a horizontal pass to 16 bits, then a vertical pass. Each channel is
 * bitwise identical to PIL's Image.resize(..., BILINEAR, box=...) of an image of this channel. */
#include "data/image/resize_kernels.h"
#include "data/resize.h"

#include <string.h>

/* Sums `taps` samples that are `step` samples apart, and rounds. */
static uint16_t filtered(const double *weight, int taps, const uint8_t *from, size_t step) {
    double sum = 0;
    for (int t = 0; t < taps; t++) {
        uint16_t v;
        memcpy(&v, from + (size_t)t * step, sizeof v);
        sum += v * weight[t];
    }
    return (uint16_t)CR_MIN((int)(sum + 0.5), 65535);
}

static void put(uint8_t *to, uint16_t value) {
    memcpy(to, &value, sizeof value);
}

void cr_resize_across_wide(const struct cr_resize *job, const struct cr_axis *axis, int row, int rows, uint8_t *dst,
                           size_t dst_stride) {
    const size_t pixel = cr_format_bytes(job->format);
    for (int y = 0; y < rows; y++) {
        const uint8_t *from = job->src + (size_t)(row + y) * job->src_stride;
        for (int x = 0; x < axis->count; x++) {
            uint8_t *to = dst + (size_t)y * dst_stride + (size_t)(job->flip ? axis->count - 1 - x : x) * pixel;
            for (size_t c = 0; c < pixel; c += 2)
                put(to + c, filtered(axis->real + (size_t)x * (size_t)axis->stride, axis->taps[x],
                                     from + (size_t)axis->first[x] * pixel + c, pixel));
        }
    }
}

void cr_resize_down_wide(const struct cr_resize *job, const struct cr_axis *axis, const uint8_t *src, size_t stride,
                         int row) {
    const size_t bytes = (size_t)job->part_w * cr_format_bytes(job->format);
    for (int y = 0; y < axis->count; y++) {
        const uint8_t *from = src + (size_t)(axis->first[y] - row) * stride;
        for (size_t b = 0; b < bytes; b += 2)
            put(job->dst + (size_t)y * job->dst_stride + b,
                filtered(axis->real + (size_t)y * (size_t)axis->stride, axis->taps[y], from + b, stride));
    }
}
