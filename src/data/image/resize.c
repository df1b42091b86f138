/* data/image/resize.c: antialiased bilinear resize with PIL's arithmetic: a triangle filter whose support grows with
 * the reduction, weights of 22 fractional bits, a horizontal pass to 8 bits, then a vertical pass. The result is
 * bitwise identical to PIL's Image.resize(..., BILINEAR, box=...). Only the requested part of the result is computed,
 * because every output pixel depends on its own taps alone.
 *
 * Both passes run over blocks whose inner loops compilers can vectorise. On x86-64 a second copy is compiled for
 * AVX2, whose 32-bit multiplication the baseline lacks. It serves what data/image/resize_avx2.c and
 * data/image/resize_avx512.c leave to this file: strong reductions and tiny images. All versions give the same bits. */
#include "data/resize.h"
#include "core/cpu.h"
#include "data/image/resize_kernels.h"
#include "data/scratch.h"

#include <math.h>
#include <string.h>

enum {
    WEIGHT_BITS = CR_RESIZE_WEIGHT_BITS,
    ROW_BLOCK   = 8,   /* rows that the horizontal pass processes together */
    COLUMNS     = 192, /* bytes of a row that the vertical pass processes together */
    ALIGN       = 64,
};

static size_t align_up(size_t bytes) {
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* PIL stores the box as floats, so the scale is computed from a float difference. */
static double axis_scale(double at, double length, int full) {
    float low = (float)at, high = (float)(at + length);
    return (double)(high - low) / full;
}

static int axis_stride(double scale) {
    return (int)ceil(CR_MAX(scale, 1.0)) * 2 + 1;
}

static void axis_fill(struct cr_axis *axis, double *raw, double at, double scale, int source, int part) {
    double reduction = CR_MAX(scale, 1.0), low = (double)(float)at;
    for (int i = 0; i < axis->count; i++) {
        double center = low + (i + part + 0.5) * scale, sum = 0, inverse = 1.0 / reduction;
        int    first = CR_MAX((int)(center - reduction + 0.5), 0);
        int    taps  = CR_MIN((int)(center + reduction + 0.5), source) - first;
        CR_ASSERT(taps >= 1 && taps <= axis->stride);
        if (axis->real) raw = axis->real + (size_t)i * axis->stride;
        for (int t = 0; t < taps; t++) {
            double distance = fabs((t + first - center + 0.5) * inverse);
            raw[t]          = distance < 1.0 ? 1.0 - distance : 0.0;
            sum += raw[t];
        }
        for (int t = 0; t < taps && sum != 0.0; t++) raw[t] /= sum;
        for (int t = 0; t < taps && !axis->real; t++)
            axis->weight[(size_t)i * axis->stride + t] = (int32_t)(0.5 + raw[t] * (1 << WEIGHT_BITS));
        axis->first[i] = first;
        axis->taps[i]  = taps;
        axis->taps_max = CR_MAX(axis->taps_max, taps);
    }
}

static inline uint8_t clip(int32_t sum) {
    int32_t value = sum >> WEIGHT_BITS;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* Horizontal pass: ROW_BLOCK rows, interleaved as block[x][ROW_BLOCK][channels], to the same rows of the output; row r
 * is written at dst + r*dst_stride. */
static inline __attribute__((always_inline)) void across_channels(const struct cr_axis *axis, const uint8_t *block,
                                                                  uint8_t *dst, size_t dst_stride, int rows, bool flip,
                                                                  const int channels) {
    enum { LANES_MAX = ROW_BLOCK * 4 };
    const int lanes = ROW_BLOCK * channels;
    for (int i = 0; i < axis->count; i++) {
        const int32_t *weight = axis->weight + (size_t)i * axis->stride;
        const uint8_t *from   = block + (size_t)axis->first[i] * lanes;
        int32_t        sum[LANES_MAX];
        for (int k = 0; k < lanes; k++) sum[k] = 1 << (WEIGHT_BITS - 1);
        for (int t = 0; t < axis->taps[i]; t++, from += lanes)
            for (int k = 0; k < lanes; k++) sum[k] += weight[t] * from[k];
        uint8_t result[LANES_MAX];
        for (int k = 0; k < lanes; k++) result[k] = clip(sum[k]);
        uint8_t *to = dst + (size_t)((flip ? axis->count - 1 - i : i) * channels);
        for (int r = 0; r < rows; r++, to += dst_stride) memcpy(to, result + r * channels, (size_t)channels);
    }
}

/* A loop for each number of channels. */
CR_BY_LEVEL_AVX2(void, across,
                 (const struct cr_axis *axis, const uint8_t *block, uint8_t *dst, size_t dst_stride, int rows,
                  bool flip),
                 (axis, block, dst, dst_stride, rows, flip)) {
    if (axis->channels == 1)
        across_channels(axis, block, dst, dst_stride, rows, flip, 1);
    else if (axis->channels == 3)
        across_channels(axis, block, dst, dst_stride, rows, flip, 3);
    else
        across_channels(axis, block, dst, dst_stride, rows, flip, 4);
}

/* Vertical pass: one output row from `taps` rows at src. */
CR_BY_LEVEL_AVX2(void, down,
                 (const int32_t *weight, int taps, const uint8_t *src, size_t stride, uint8_t *dst, size_t count),
                 (weight, taps, src, stride, dst, count)) {
    for (size_t at = 0; at < count; at += COLUMNS) {
        int            width = (int)CR_MIN(count - at, (size_t)COLUMNS);
        int32_t        sum[COLUMNS];
        const uint8_t *from = src + at;
        for (int k = 0; k < COLUMNS; k++) sum[k] = 1 << (WEIGHT_BITS - 1);
        for (int t = 0; t < taps; t++, from += stride)
            for (int k = 0; k < width; k++) sum[k] += weight[t] * from[k];
        for (int k = 0; k < width; k++) dst[at + k] = clip(sum[k]);
    }
}

/* Interleaves columns [from, to) of up to ROW_BLOCK rows: block[x][row][channel]. Missing rows keep their old
 * content. */
static inline __attribute__((always_inline)) void gather_channels(const uint8_t *src, size_t stride, int rows, int from,
                                                                  int to, uint8_t *block, const size_t channels) {
    for (int r = 0; r < rows; r++) {
        const uint8_t *row = src + (size_t)r * stride;
        for (int x = from; x < to; x++)
            memcpy(block + ((size_t)x * ROW_BLOCK + (size_t)r) * channels, row + (size_t)x * channels, channels);
    }
}

static void gather_rows(const uint8_t *src, size_t stride, int rows, int from, int to, int channels, uint8_t *block) {
    if (channels == 1)
        gather_channels(src, stride, rows, from, to, block, 1);
    else if (channels == 3)
        gather_channels(src, stride, rows, from, to, block, 3);
    else
        gather_channels(src, stride, rows, from, to, block, 4);
}

/* The passes for this CPU; NULL: those of this file. */
static const struct cr_resize_kernel *kernel_of_cpu(void) {
#if defined(__x86_64__)
    if (cr_cpu_has(CR_CPU_AVX512_VBMI) && cr_cpu_has(CR_CPU_AVX512_VNNI)) return &cr_resize_avx512;
    if (cr_cpu_level() >= CR_CPU_AVX2) return &cr_resize_avx2;
#endif
    return NULL;
}

/* Source rows [row, row + rows) to dst rows of part_w pixels. `tables` belong to the kernel of the CPU, or are NULL. */
static void pass_across(const struct cr_resize *job, const struct cr_axis *axis, int row, int rows, uint8_t *block,
                        const uint8_t *tables, uint8_t *dst, size_t dst_stride) {
    const uint8_t *src = job->src + (size_t)row * job->src_stride;
    if (axis->real) {
        cr_resize_across_wide(job, axis, row, rows, dst, dst_stride);
        return;
    }
    if (tables) {
        kernel_of_cpu()->across(axis, tables, src, job->src_stride, rows, dst, dst_stride);
        return;
    }
    int last = axis->count - 1, from = axis->first[0], to = axis->first[last] + axis->taps[last];
    for (int y = 0; y < rows; y += ROW_BLOCK) {
        int n = CR_MIN(rows - y, ROW_BLOCK);
        gather_rows(src + (size_t)y * job->src_stride, job->src_stride, n, from, to, axis->channels, block);
        across(axis, block, dst + (size_t)y * dst_stride, dst_stride, n, job->flip);
    }
}

static void pass_down(const struct cr_resize *job, const struct cr_axis *axis, const uint8_t *src, size_t stride,
                      int row) {
    const struct cr_resize_kernel *kernel = kernel_of_cpu();
    const size_t                   count  = (size_t)job->part_w * cr_format_bytes(job->format);
    if (axis->real) {
        cr_resize_down_wide(job, axis, src, stride, row);
        return;
    }
    for (int i = 0; i < axis->count; i++) {
        const int32_t *weight = axis->weight + (size_t)i * axis->stride;
        const uint8_t *from   = src + (size_t)(axis->first[i] - row) * stride;
        uint8_t       *to     = job->dst + (size_t)i * job->dst_stride;
        if (!kernel || !kernel->down(weight, axis->taps[i], from, stride, to, count))
            down(weight, axis->taps[i], from, stride, to, count);
    }
}

/* Returns the next table in the working memory; if base is NULL, only adds up the sizes. */
static void *place_table(uint8_t *base, size_t *used, size_t bytes) {
    void *at = base ? base + *used : NULL;
    *used += align_up(bytes);
    return at;
}

static void place_axis_tables(struct cr_axis *axis, bool wide, uint8_t *base, size_t *used) {
    size_t n = (size_t)axis->count, weights = n * (size_t)axis->stride;
    axis->first = place_table(base, used, n * sizeof(int));
    axis->taps  = place_table(base, used, n * sizeof(int));
    if (wide)
        axis->real = place_table(base, used, weights * sizeof(double));
    else
        axis->weight = place_table(base, used, weights * sizeof(int32_t));
}

cr_status cr_resize_run(const struct cr_resize *job, struct cr_buffer *tables) {
    CR_ASSERT(job->part_w > 0 && job->part_h > 0 && job->w > 0 && job->h > 0);
    const bool                     wide     = cr_format_bits(job->format) == 16;
    const struct cr_resize_kernel *cpu      = wide ? NULL : kernel_of_cpu();
    const size_t                   pixel    = cr_format_bytes(job->format);
    const int                      channels = cr_format_channels(job->format);
    double scale_x = axis_scale(job->x, job->w, job->full_w), scale_y = axis_scale(job->y, job->h, job->full_h);
    /* As in PIL, an axis whose pixels do not change is copied, not filtered; the horizontal pass mirrors. */
    bool           across    = job->flip || job->full_w != job->src_w || job->x != 0 || job->w != job->src_w;
    bool           down      = job->full_h != job->src_h || job->y != 0 || job->h != job->src_h;
    struct cr_axis ax        = {.count = job->part_w, .stride = axis_stride(scale_x), .channels = channels};
    struct cr_axis ay        = {.count = job->part_h, .stride = axis_stride(scale_y), .channels = channels};
    size_t         row_bytes = (size_t)job->part_w * pixel, used = 0, middle_rows = 0;
    double        *raw;
    uint8_t       *block, *middle, *kernel, *base = NULL;
    if (across && down) /* an upper bound on the rows that the vertical taps read */
        middle_rows =
            (size_t)CR_MIN((double)job->src_h, ceil((job->part_h + 1) * scale_y + 2 * CR_MAX(scale_y, 1.0)) + 2);
    for (int round = 0; round < 2; round++) {
        used = 0;
        place_axis_tables(&ax, wide, base, &used);
        place_axis_tables(&ay, wide, base, &used);
        raw    = place_table(base, &used, (size_t)CR_MAX(ax.stride, ay.stride) * sizeof *raw);
        block  = place_table(base, &used, across && !wide ? (size_t)job->src_w * ROW_BLOCK * pixel : 0);
        middle = place_table(base, &used, middle_rows * row_bytes);
        kernel = place_table(base, &used, across && cpu ? cpu->across_bytes(&ax) : 0);
        if (base) break;
        CR_TRY(cr_buffer_reserve(tables, used));
        base = tables->bytes;
    }
    axis_fill(&ax, raw, job->x, scale_x, job->src_w, job->part_x);
    axis_fill(&ay, raw, job->y, scale_y, job->src_h, job->part_y);
    if (!across || !cpu || !cpu->make_across(&ax, job->src_w * channels, job->flip, kernel)) kernel = NULL;

    if (across && down) {
        int first = ay.first[0], rows = ay.first[ay.count - 1] + ay.taps[ay.count - 1] - first;
        CR_ASSERT((size_t)rows <= middle_rows);
        pass_across(job, &ax, first, rows, block, kernel, middle, row_bytes);
        pass_down(job, &ay, middle, row_bytes, first);
    } else if (across) {
        pass_across(job, &ax, job->part_y, job->part_h, block, kernel, job->dst, job->dst_stride);
    } else if (down) {
        pass_down(job, &ay, job->src + (size_t)job->part_x * pixel, job->src_stride, 0);
    } else {
        const uint8_t *from = job->src + (size_t)job->part_y * job->src_stride + (size_t)job->part_x * pixel;
        for (int y = 0; y < job->part_h; y++)
            memcpy(job->dst + (size_t)y * job->dst_stride, from + (size_t)y * job->src_stride, row_bytes);
    }
    return CR_OK;
}

cr_status cr_image_resize(const struct cr_image *src, double x, double y, double w, double h, uint8_t *dst, int out_w,
                          int out_h, bool flip) {
    struct cr_buffer tables = {0};
    struct cr_resize job    = {
           .src        = src->rgb,
           .src_w      = src->width,
           .src_h      = src->height,
           .src_stride = (size_t)src->width * cr_format_bytes(src->format),
           .x          = x,
           .y          = y,
           .w          = w,
           .h          = h,
           .full_w     = out_w,
           .full_h     = out_h,
           .part_w     = out_w,
           .part_h     = out_h,
           .dst        = dst,
           .dst_stride = (size_t)out_w * cr_format_bytes(src->format),
           .format     = src->format,
           .flip       = flip,
    };
    CR_ASSERT(x >= 0 && y >= 0 && x + w <= src->width && y + h <= src->height);
    cr_status status = cr_resize_run(&job, &tables);
    cr_free(tables.bytes);
    return status;
}
