/* data/augment/view.c: the views of an image in evaluation: centre crop, letterbox or squash ([data] fit), ten crops
 * (data.tta); and the letterbox in training. Rounding is torchvision's (Resize, CenterCrop, FiveCrop, TenCrop). */
#include "data/augment.h"
#include "data/decode.h"
#include "data/resize.h"
#include "data/scratch.h"

#include <math.h>
#include <string.h>

enum {
    CENTRE        = 4, /* the other crops: top left, top right, bottom left, bottom right */
    FULL_SIDE_MAX = 1 << 30,
    DRAWS_MAX     = 10,
};

cr_status cr_prepare_resize(const struct cr_resize *job, struct cr_scratch *scratch) {
    int64_t   start  = cr_time_ns();
    cr_status status = cr_resize_run(job, &scratch->tables);
    scratch->counts.resize_ns += cr_time_ns() - start;
    return status;
}

void cr_prepare_fill_border(const struct cr_prepare *prep, uint8_t *out) {
    const size_t bytes = cr_format_bytes(prep->format);
    for (uint8_t *end = out + cr_prepare_bytes(prep); out < end; out += bytes) cr_pixel_copy(out, prep->border, bytes);
}

/* ---- where the image is ---- */

/* The image is resized to full_w x full_h pixels. The result shows part_w x part_h of them, from (part_x, part_y) on,
 * at (margin_x, margin_y). */
struct place {
    int full_w, full_h, part_x, part_y, part_w, part_h, margin_x, margin_y;
};

static bool is_mirrored(const struct cr_prepare *prep) {
    return prep->view >= (prep->tta == CR_TTA_FLIP ? 1 : 5);
}

static int crop_of(const struct cr_prepare *prep) {
    return prep->tta == CR_TTA_FIVE_CROP || prep->tta == CR_TTA_TEN_CROP ? prep->view % 5 : CENTRE;
}

/* Along one axis of `have` pixels: the first of `size` pixels that are cut out, at the start, at the end (`last`) or at
 * the centre, rounded half to even. If there are fewer than `size` pixels: the margin before them. */
static void cut_axis(int have, int size, bool centre, bool last, int *cut, int *margin) {
    *margin = have < size ? (size - have) / 2 : 0;
    *cut    = have <= size ? 0 : centre ? (int)rint((have - size) / 2.0) : last ? have - size : 0;
}

/* The size at which the image covers a rectangle of the result's shape and of the height `cover`. For a square, `cover`
 * is the shorter side of the resized image. Each side has at least 1 pixel (a rectangle of 128 x 16 with
 * eval_resize = 1 would have fewer) and at most FULL_SIDE_MAX. */
static void covering_size(const struct cr_prepare *prep, int cover, int64_t w, int64_t h, int *full_w, int *full_h) {
    const int64_t cover_w = CR_MAX((int64_t)cover * cr_prepare_width(prep) / prep->size, (int64_t)1);
    const bool    wide    = w * cover > h * cover_w; /* wider than the rectangle */
    *full_w               = (int)(wide ? cover * w / h : cover_w);
    *full_h               = wide ? cover : (int)CR_MIN(cover_w * h / w, (int64_t)FULL_SIDE_MAX);
}

/* The size at which the whole image is within the result and touches two opposite sides of it. */
static void contained_size(const struct cr_prepare *prep, int64_t w, int64_t h, int *full_w, int *full_h) {
    const int64_t out_w = cr_prepare_width(prep), out_h = prep->size;
    const bool    wide = w * out_h > h * out_w;
    *full_w            = (int)(wide ? out_w : CR_MAX(out_h * w / h, (int64_t)1));
    *full_h            = (int)(wide ? CR_MAX(out_w * h / w, (int64_t)1) : out_h);
}

/* Of an image of w x h pixels that is resized to the height `cover`. */
static struct place place_image(const struct cr_prepare *prep, int cover, int w, int h) {
    const int    height = prep->size, width = cr_prepare_width(prep), crop = crop_of(prep);
    struct place p = {.full_w = width, .full_h = height};
    switch (prep->fit) {
    case CR_FIT_CROP: covering_size(prep, cover, w, h, &p.full_w, &p.full_h); break;
    case CR_FIT_LETTERBOX: contained_size(prep, w, h, &p.full_w, &p.full_h); break;
    case CR_FIT_SQUASH: break;
    }
    cut_axis(p.full_w, width, crop == CENTRE, crop % 2 == 1, &p.part_x, &p.margin_x);
    cut_axis(p.full_h, height, crop == CENTRE, crop >= 2, &p.part_y, &p.margin_y);
    p.part_w = CR_MIN(p.full_w, width);
    p.part_h = CR_MIN(p.full_h, height);
    return p;
}

void cr_prepare_eval_box(const struct cr_prepare *prep, int width, int height, double box[4]) {
    struct cr_prepare plain  = *prep;
    plain.tta                = CR_TTA_NONE;
    const struct place p     = place_image(&plain, prep->eval_resize ? prep->eval_resize : prep->size, width, height);
    const double       per_x = (double)width / p.full_w, per_y = (double)height / p.full_h;
    box[0] = (p.part_x - p.margin_x) * per_x;
    box[1] = (p.part_y - p.margin_y) * per_y;
    box[2] = cr_prepare_width(prep) * per_x;
    box[3] = prep->size * per_y;
}

/* ---- the view ---- */

static void mirror(uint8_t *rgb, int height, int width, enum cr_pixel_format format) {
    const size_t bytes = cr_format_bytes(format);
    for (int y = 0; y < height; y++) {
        uint8_t *row = rgb + (size_t)y * (size_t)width * bytes, pixel[8];
        for (int a = 0, b = width - 1; a < b; a++, b--) {
            cr_pixel_copy(pixel, row + bytes * (size_t)a, bytes);
            cr_pixel_copy(row + bytes * (size_t)a, row + bytes * (size_t)b, bytes);
            cr_pixel_copy(row + bytes * (size_t)b, pixel, bytes);
        }
    }
}

/* Resizes the image to its place, and fills the border that it leaves. */
static cr_status show_view(const struct cr_prepare *prep, const struct cr_image *image, struct cr_scratch *scratch,
                           uint8_t *out) {
    const int    height = prep->size, width = cr_prepare_width(prep);
    const size_t bytes = cr_format_bytes(image->format);
    struct place p     = place_image(prep, prep->eval_resize ? prep->eval_resize : height, image->width, image->height);
    if (prep->tta == CR_TTA_TEN_CROP && is_mirrored(prep)) /* the crop is one of the mirrored image */
        p.part_x = p.full_w - p.part_w - p.part_x;
    const struct cr_resize job = {
        .src        = image->rgb,
        .src_w      = image->width,
        .src_h      = image->height,
        .src_stride = (size_t)image->width * bytes,
        .w          = image->width,
        .h          = image->height,
        .full_w     = p.full_w,
        .full_h     = p.full_h,
        .part_x     = p.part_x,
        .part_y     = p.part_y,
        .part_w     = p.part_w,
        .part_h     = p.part_h,
        .dst        = out + ((size_t)p.margin_y * (size_t)width + (size_t)p.margin_x) * bytes,
        .dst_stride = (size_t)width * bytes,
        .format     = image->format,
    };
    if (p.part_w < width || p.part_h < height) cr_prepare_fill_border(prep, out);
    return cr_prepare_resize(&job, scratch);
}

cr_status cr_prepare_eval_with(const struct cr_prepare *prep, const struct cr_lazy_image *lazy,
                               struct cr_scratch *scratch, uint8_t *out) {
    const int       width = cr_prepare_width(prep);
    struct cr_image image;
    CR_TRY(cr_lazy_image_whole(lazy, scratch, &image));
    CR_ASSERT(image.format == prep->format);
    if (image.width == width && image.height == prep->size && !prep->eval_resize)
        memcpy(out, image.rgb, cr_prepare_bytes(prep));
    else
        CR_TRY(show_view(prep, &image, scratch, out));
    if (is_mirrored(prep)) mirror(out, prep->size, width, prep->format);
    return CR_OK;
}

cr_status cr_prepare_eval(const struct cr_prepare *prep, const struct cr_image *image, uint8_t *out) {
    struct cr_lazy_image lazy    = {.image = *image};
    struct cr_scratch    scratch = {0};
    cr_status            status  = cr_prepare_eval_with(prep, &lazy, &scratch, out);
    cr_scratch_free(&scratch);
    return status;
}

/* ---- random crops of a letterboxed image ---- */

/* Along one axis: of the `size` pixels of a box at `start` of the canvas, those that show the image, in pixels of the
 * image: at[0] the first, at[1] their number; and the pixels of the result, `out` of the box, that show them. */
static void clip_axis(int start, int size, int offset, int have, int out, int at[2], int shown[2]) {
    const int first = CR_MAX(start - offset, 0), end = CR_MIN(start + size - offset, have);
    const int from = (int)rint((double)(first + offset - start) * out / size),
              to   = (int)rint((double)(end + offset - start) * out / size);
    at[0]          = first;
    at[1]          = end - first;
    shown[0]       = CR_MIN(from, out - 1);
    shown[1]       = CR_MAX(to - shown[0], 1);
}

void cr_prepare_draw_letterbox(const struct cr_prepare *prep, int width, int height, struct cr_rng *rng, int box[4],
                               int shown[4]) {
    const int64_t out_w = cr_prepare_width(prep), out_h = prep->size;
    const int     canvas_w = (int)CR_MAX(width, (height * out_w + out_h - 1) / out_h),
              canvas_h     = (int)CR_MAX(height, (width * out_h + out_w - 1) / out_w);
    const int left = (canvas_w - width) / 2, top = (canvas_h - height) / 2;
    int       drawn[4] = {0, 0, canvas_w, canvas_h}, x[2], y[2], over[2], down[2];
    for (int i = 0; i < DRAWS_MAX; i++) {
        int at[4];
        cr_prepare_draw_box(prep, canvas_w, canvas_h, rng, at);
        const int centre_x = at[0] + at[2] / 2 - left, centre_y = at[1] + at[3] / 2 - top;
        if (centre_x < 0 || centre_y < 0 || centre_x >= width || centre_y >= height) continue;
        memcpy(drawn, at, sizeof drawn);
        break;
    }
    clip_axis(drawn[0], drawn[2], left, width, (int)out_w, x, over);
    clip_axis(drawn[1], drawn[3], top, height, (int)out_h, y, down);
    memcpy(box, (int[]){x[0], y[0], x[1], y[1]}, 4 * sizeof *box);
    memcpy(shown, (int[]){over[0], down[0], over[1], down[1]}, 4 * sizeof *shown);
}
