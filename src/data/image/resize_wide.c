/* data/image/resize_wide.c: the resize of data/image/resize.c for samples of 16 bits, with PIL's arithmetic for the
 * mode I;16: weights and sums in double precision, a horizontal pass to 16 bits, then a vertical pass. Each channel is
 * bitwise identical to PIL's Image.resize(..., BILINEAR, box=...) of an image of this channel. */
#include "data/resize.h"
#include "data/scratch.h"

#include <math.h>
#include <string.h>

struct axis {
    int     count, stride; /* number of output pixels; weights reserved per pixel */
    int    *first, *taps;  /* [count]: first source pixel, number of taps */
    double *weight;        /* [count][stride] */
};

/* PIL stores the box as floats, so the scale is computed from a float difference. */
static double axis_scale(double at, double length, int full) {
    const float low = (float)at, high = (float)(at + length);
    return (double)(high - low) / full;
}

static void axis_fill(struct axis *axis, double at, double scale, int source, int part) {
    const double reduction = CR_MAX(scale, 1.0), low = (double)(float)at, inverse = 1.0 / reduction;
    for (int i = 0; i < axis->count; i++) {
        const double center = low + (i + part + 0.5) * scale;
        const int    first  = CR_MAX((int)(center - reduction + 0.5), 0);
        const int    taps   = CR_MIN((int)(center + reduction + 0.5), source) - first;
        double      *weight = axis->weight + (size_t)i * (size_t)axis->stride, sum = 0;
        CR_ASSERT(taps >= 1 && taps <= axis->stride);
        for (int t = 0; t < taps; t++) {
            const double distance = fabs((t + first - center + 0.5) * inverse);
            weight[t]             = distance < 1.0 ? 1.0 - distance : 0.0;
            sum += weight[t];
        }
        for (int t = 0; t < taps && sum != 0.0; t++) weight[t] /= sum;
        axis->first[i] = first;
        axis->taps[i]  = taps;
    }
}

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

/* Source rows [row, row + rows) to dst rows of part_w pixels. */
static void pass_across(const struct cr_resize *job, const struct axis *axis, int row, int rows, uint8_t *dst,
                        size_t dst_stride) {
    const size_t pixel = cr_format_bytes(job->format);
    for (int y = 0; y < rows; y++) {
        const uint8_t *from = job->src + (size_t)(row + y) * job->src_stride;
        for (int x = 0; x < axis->count; x++) {
            uint8_t *to = dst + (size_t)y * dst_stride + (size_t)(job->flip ? axis->count - 1 - x : x) * pixel;
            for (size_t c = 0; c < pixel; c += 2)
                put(to + c, filtered(axis->weight + (size_t)x * (size_t)axis->stride, axis->taps[x],
                                     from + (size_t)axis->first[x] * pixel + c, pixel));
        }
    }
}

static void pass_down(const struct cr_resize *job, const struct axis *axis, const uint8_t *src, size_t stride,
                      int row) {
    const size_t bytes = (size_t)job->part_w * cr_format_bytes(job->format);
    for (int y = 0; y < axis->count; y++) {
        const uint8_t *from = src + (size_t)(axis->first[y] - row) * stride;
        for (size_t b = 0; b < bytes; b += 2)
            put(job->dst + (size_t)y * job->dst_stride + b,
                filtered(axis->weight + (size_t)y * (size_t)axis->stride, axis->taps[y], from + b, stride));
    }
}

/* Places the tables of an axis in the working memory; if base is NULL, only adds up the sizes. */
static void place(struct axis *axis, uint8_t *base, size_t *used) {
    const size_t count = (size_t)axis->count;
    axis->weight       = (double *)(void *)(base ? base + *used : NULL);
    *used += count * (size_t)axis->stride * sizeof *axis->weight;
    axis->first = (int *)(void *)(base ? base + *used : NULL);
    *used += count * sizeof *axis->first;
    axis->taps = (int *)(void *)(base ? base + *used : NULL);
    *used += (count + count % 2) * sizeof *axis->taps + count % 2 * sizeof *axis->first; /* keeps doubles aligned */
}

cr_status cr_resize_run_wide(const struct cr_resize *job, struct cr_buffer *tables) {
    const double scale_x = axis_scale(job->x, job->w, job->full_w), scale_y = axis_scale(job->y, job->h, job->full_h);
    const size_t pixel = cr_format_bytes(job->format), row_bytes = (size_t)job->part_w * pixel;
    /* As in PIL, an axis whose pixels do not change is copied, not filtered; the horizontal pass mirrors. */
    const bool  across = job->flip || job->full_w != job->src_w || job->x != 0 || job->w != job->src_w;
    const bool  down   = job->full_h != job->src_h || job->y != 0 || job->h != job->src_h;
    struct axis ax     = {.count = job->part_w, .stride = (int)ceil(CR_MAX(scale_x, 1.0)) * 2 + 1};
    struct axis ay     = {.count = job->part_h, .stride = (int)ceil(CR_MAX(scale_y, 1.0)) * 2 + 1};
    size_t      used   = 0;
    place(&ax, NULL, &used);
    place(&ay, NULL, &used);
    const size_t at = used, rows_most = across && down ? (size_t)job->src_h : 0;
    CR_TRY(cr_buffer_reserve(tables, at + rows_most * row_bytes));
    used = 0;
    place(&ax, tables->bytes, &used);
    place(&ay, tables->bytes, &used);
    uint8_t *middle = tables->bytes + at;
    axis_fill(&ax, job->x, scale_x, job->src_w, job->part_x);
    axis_fill(&ay, job->y, scale_y, job->src_h, job->part_y);
    const uint8_t *left = job->src + (size_t)job->part_x * pixel;
    if (across && down) {
        const int first = ay.first[0], rows = ay.first[ay.count - 1] + ay.taps[ay.count - 1] - first;
        pass_across(job, &ax, first, rows, middle, row_bytes);
        pass_down(job, &ay, middle, row_bytes, first);
    } else if (across) {
        pass_across(job, &ax, job->part_y, job->part_h, job->dst, job->dst_stride);
    } else if (down) {
        pass_down(job, &ay, left, job->src_stride, 0);
    } else {
        for (int y = 0; y < job->part_h; y++)
            memcpy(job->dst + (size_t)y * job->dst_stride, left + (size_t)(job->part_y + y) * job->src_stride,
                   row_bytes);
    }
    return CR_OK;
}
