/* data/augment/crop.c: from a decoded image to the rectangle that the network sees. Geometry and rounding are
 * torchvision's (Resize, CenterCrop, RandomCrop with padding, RandomResizedCrop, RandomHorizontalFlip). The random
 * numbers are functions of (seed, epoch, sample). Operations that move whole pixels (a shift over a black border, a
 * flip) are only drawn here: the device applies them while it normalises. */
#include "data/augment.h"
#include "data/decode.h"
#include "data/resize.h"
#include "data/scratch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- options from [data] ---- */

static bool is_small_set(enum cr_data_kind kind) {
    return kind == CR_DATA_CIFAR10 || kind == CR_DATA_CIFAR100 || kind == CR_DATA_SHAPES;
}

static enum cr_crop auto_crop(enum cr_data_kind kind, int size) {
    if (kind == CR_DATA_FOLDER || kind == CR_DATA_CSV || (kind == CR_DATA_PACKED && size > 32))
        return CR_CROP_RANDOM_RESIZED;
    return kind == CR_DATA_SYNTHETIC ? CR_CROP_NONE : CR_CROP_PAD; /* synthetic images have the right size already */
}

static cr_status read_range(const struct cr_config *config, const char *key, const struct cr_reals *reals,
                            double out[2]) {
    if (reals->count != 2 || reals->at[0] > reals->at[1])
        return cr_config_fail(config, key, "must be two numbers, the smaller one first, e.g. 0.08,1.0");
    out[0] = reals->at[0];
    out[1] = reals->at[1];
    return CR_OK;
}

static cr_status read_policy(const struct cr_config *config, enum cr_split split, struct cr_prepare *prep) {
    const struct cr_ints *fill = &config->data.fill;
    if (fill->count != 1 && fill->count != 3)
        return cr_config_fail(config, "data.fill", "must be one number, or three for red, green and blue");
    if (fill->count == 3 && config->data.channels == 1)
        return cr_config_fail(config, "data.fill", "must be one number with channels = 1");
    for (int i = 0; i < 3; i++) prep->fill[i] = (uint8_t)fill->at[fill->count == 3 ? i : 0];
    prep->augment        = split == CR_SPLIT_TRAIN ? config->data.augment : CR_AUGMENT_NONE;
    prep->rand_ops       = (int)config->data.rand_ops;
    prep->rand_magnitude = (int)config->data.rand_magnitude;
    prep->rand_prob      = config->data.rand_prob;
    return CR_OK;
}

int cr_prepare_width(const struct cr_prepare *prep) {
    return prep->width ? prep->width : prep->size;
}

size_t cr_prepare_bytes(const struct cr_prepare *prep) {
    return (size_t)prep->size * (size_t)cr_prepare_width(prep) * cr_format_bytes(prep->format);
}

void cr_prepare_size_text(const struct cr_prepare *prep, char text[32]) {
    if (cr_prepare_width(prep) == prep->size)
        snprintf(text, 32, "%d", prep->size);
    else
        snprintf(text, 32, "%dx%d", prep->size, prep->width);
}

int cr_prepare_views(enum cr_tta tta) {
    switch (tta) {
    case CR_TTA_FLIP: return 2;
    case CR_TTA_FIVE_CROP: return 5;
    case CR_TTA_TEN_CROP: return 10;
    case CR_TTA_NONE: break;
    }
    return 1;
}

cr_status cr_prepare_check_views(const struct cr_config *config, const char *key, enum cr_tta tta,
                                 const struct cr_prepare *prep) {
    if (cr_prepare_views(tta) <= 2 || prep->eval_resize > prep->size) return CR_OK;
    return cr_config_fail(config, key, "%s needs images larger than the crop of %d pixels: set eval_resize, e.g. to %d",
                          cr_word_tta(tta), prep->size, prep->size * 256 / 224);
}

static cr_status read_views(const struct cr_config *config, enum cr_split split, struct cr_prepare *prep) {
    prep->tta = split == CR_SPLIT_VAL ? config->data.tta : CR_TTA_NONE;
    return cr_prepare_check_views(config, "data.tta", prep->tta, prep);
}

cr_status cr_prepare_from_config(const struct cr_config *config, enum cr_split split, struct cr_prepare *out) {
    struct cr_prepare prep  = {.pad      = (int)config->data.pad,
                               .pad_mode = config->data.pad_mode,
                               .hflip    = config->data.hflip,
                               .flip     = config->data.flip};
    bool              small = is_small_set(config->data.kind);
    prep.width              = (int)config->data.image_width;
    prep.format             = cr_format_of(config);
    CR_TRY(read_range(config, "data.scale", &config->data.scale, prep.scale));
    CR_TRY(read_range(config, "data.ratio", &config->data.ratio, prep.ratio));
    prep.size = (int)config->data.image_size;
    if (!prep.size) prep.size = small || cr_config_is_small(config) ? 32 : 224;
    if (split == CR_SPLIT_VAL && config->data.eval_crop) prep.size = (int)config->data.eval_crop;
    prep.eval_resize = (int)config->data.eval_resize;
    bool whole       = small || config->data.kind == CR_DATA_SYNTHETIC || prep.size <= 32;
    if (!prep.eval_resize && !whole) prep.eval_resize = prep.size * 256 / 224;
    prep.crop = config->data.crop == CR_CROP_AUTO ? auto_crop(config->data.kind, prep.size) : config->data.crop;
    if (split == CR_SPLIT_VAL) prep.crop = CR_CROP_NONE;
    CR_TRY(read_views(config, split, &prep));
    CR_TRY(read_range(config, "data.erase_scale", &config->data.erase_scale, prep.erase_scale));
    prep.mixes       = split == CR_SPLIT_TRAIN && cr_config_mixes(config);
    prep.erase       = config->data.erase;
    prep.mixup       = config->data.mixup;
    prep.cutmix      = config->data.cutmix;
    prep.mix_prob    = config->data.mix_prob;
    prep.cutmix_prob = config->data.cutmix_prob;
    CR_TRY(read_policy(config, split, &prep));
    for (int i = 0; i < config->data.jitter.count && split == CR_SPLIT_TRAIN; i++)
        prep.jitter[i] = config->data.jitter.at[i];
    *out = prep;
    return CR_OK;
}

cr_status cr_prepare_of_size(const struct cr_config *config, int size, struct cr_prepare *out) {
    struct cr_config sized = *config;
    sized.data.image_size  = size;
    return cr_prepare_from_config(&sized, CR_SPLIT_TRAIN, out);
}

static cr_status resize(const struct cr_resize *job, struct cr_scratch *scratch) {
    int64_t   start  = cr_time_ns();
    cr_status status = cr_resize_run(job, &scratch->tables);
    scratch->counts.resize_ns += cr_time_ns() - start;
    return status;
}

/* ---- the centre of an image, or another view ---- */

enum {
    CENTRE        = 4, /* the other crops: top left, top right, bottom left, bottom right */
    FULL_SIDE_MAX = 1 << 30,
};

static bool is_mirrored(const struct cr_prepare *prep) {
    return prep->view >= (prep->tta == CR_TTA_FLIP ? 1 : 5);
}

static int crop_of(const struct cr_prepare *prep) {
    return prep->tta == CR_TTA_FIVE_CROP || prep->tta == CR_TTA_TEN_CROP ? prep->view % 5 : CENTRE;
}

/* Along one axis: the cut of `size` pixels out of `have`, at the start, at the end (`last`) or at the centre, rounded
 * half to even; or the black margin if there are fewer. */
static void cut_axis(int have, int size, bool centre, bool last, int *cut, int *margin) {
    *margin = have < size ? (size - have) / 2 : 0;
    *cut    = have <= size ? 0 : centre ? (int)rint((have - size) / 2.0) : last ? have - size : 0;
}

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

/* The size at which the image covers a rectangle of the result's shape and of the height `cover`. For a square, `cover`
 * is the shorter side of the resized image. A side has a pixel even where a narrow rectangle (128 x 16 with
 * eval_resize = 1) leaves less, and a thin image no more pixels than an int can count. */
static void covering_size(const struct cr_prepare *prep, int cover, int64_t w, int64_t h, int *full_w, int *full_h) {
    const int64_t cover_w = CR_MAX((int64_t)cover * cr_prepare_width(prep) / prep->size, (int64_t)1);
    const bool    wide    = w * cover > h * cover_w; /* wider than the rectangle */
    *full_w               = (int)(wide ? cover * w / h : cover_w);
    *full_h               = wide ? cover : (int)CR_MIN(cover_w * h / w, (int64_t)FULL_SIDE_MAX);
}

/* Resizes to the covering size, and cuts the result, black where the image is smaller. */
static cr_status place_view(const struct cr_prepare *prep, int cover, const struct cr_image *image,
                            struct cr_scratch *scratch, uint8_t *out) {
    const int        height = prep->size, width = cr_prepare_width(prep), crop = crop_of(prep);
    const size_t     bytes = cr_format_bytes(image->format);
    struct cr_resize job   = {
          .src        = image->rgb,
          .src_w      = image->width,
          .src_h      = image->height,
          .src_stride = (size_t)image->width * bytes,
          .w          = image->width,
          .h          = image->height,
          .dst_stride = (size_t)width * bytes,
          .format     = image->format,
    };
    CR_ASSERT(image->format == prep->format);
    int margin_x, margin_y;
    covering_size(prep, cover, image->width, image->height, &job.full_w, &job.full_h);
    cut_axis(job.full_w, width, crop == CENTRE, crop % 2 == 1, &job.part_x, &margin_x);
    cut_axis(job.full_h, height, crop == CENTRE, crop >= 2, &job.part_y, &margin_y);
    job.part_w = CR_MIN(job.full_w, width);
    job.part_h = CR_MIN(job.full_h, height);
    if (prep->tta == CR_TTA_TEN_CROP && is_mirrored(prep)) /* the crop is one of the mirrored image */
        job.part_x = job.full_w - job.part_w - job.part_x;
    if (job.part_w < width || job.part_h < height) memset(out, 0, cr_prepare_bytes(prep));
    job.dst = out + ((size_t)margin_y * width + margin_x) * bytes;
    return resize(&job, scratch);
}

void cr_prepare_eval_box(const struct cr_prepare *prep, int width, int height, double box[4]) {
    const int out_w = cr_prepare_width(prep);
    int       full_w, full_h, cut_x, cut_y, margin_x, margin_y;
    covering_size(prep, prep->eval_resize ? prep->eval_resize : prep->size, width, height, &full_w, &full_h);
    cut_axis(full_w, out_w, true, false, &cut_x, &margin_x);
    cut_axis(full_h, prep->size, true, false, &cut_y, &margin_y);
    const double per_x = (double)width / full_w, per_y = (double)height / full_h;
    box[0] = (cut_x - margin_x) * per_x;
    box[1] = (cut_y - margin_y) * per_y;
    box[2] = out_w * per_x;
    box[3] = prep->size * per_y;
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
        CR_TRY(place_view(prep, prep->eval_resize ? prep->eval_resize : prep->size, &image, scratch, out));
    if (is_mirrored(prep)) mirror(out, prep->size, width, prep->format);
    return CR_OK;
}

/* ---- random crops ---- */

/* The pixel that position `at` shows on an axis of `size` pixels, where the image continues beyond its borders. */
static int padded(enum cr_pad_mode mode, int at, int size) {
    if (mode == CR_PAD_EDGE || size == 1) return CR_MIN(CR_MAX(at, 0), size - 1);
    const int period = 2 * size - 2, folded = ((at % period) + period) % period; /* torchvision's reflect */
    return folded < size ? folded : period - folded;
}

/* Shifts the image here instead of on the device, which knows only black borders. */
static cr_status shift_padded(const struct cr_prepare *prep, struct cr_scratch *scratch, uint8_t *rgb, int32_t box[4]) {
    const int    height = prep->size, width = cr_prepare_width(prep);
    const size_t bytes = cr_format_bytes(prep->format), row = (size_t)width * bytes;
    CR_TRY(cr_buffer_reserve(&scratch->copy, cr_prepare_bytes(prep)));
    const uint8_t *copy = memcpy(scratch->copy.bytes, rgb, cr_prepare_bytes(prep));
    for (int y = 0; y < height; y++) {
        const uint8_t *from = copy + (size_t)padded(prep->pad_mode, y + box[0], height) * row;
        for (int x = 0; x < width; x++)
            memcpy(rgb + (size_t)y * row + (size_t)x * bytes,
                   from + (size_t)padded(prep->pad_mode, x + box[1], width) * bytes, bytes);
    }
    box[0] = box[1] = 0;
    return CR_OK;
}

/* A crop of the image's own size, shifted by at most the padding over its border. */
static cr_status prepare_pad(const struct cr_prepare *prep, const struct cr_lazy_image *lazy, struct cr_rng *rng,
                             struct cr_scratch *scratch, uint8_t *out, int32_t box[4]) {
    struct cr_prepare whole = *prep;
    whole.eval_resize       = 0;
    box[0]                  = (int32_t)cr_rng_below(rng, 2 * (uint64_t)prep->pad + 1) - prep->pad;
    box[1]                  = (int32_t)cr_rng_below(rng, 2 * (uint64_t)prep->pad + 1) - prep->pad;
    CR_TRY(cr_prepare_eval_with(&whole, lazy, scratch, out));
    return prep->pad_mode == CR_PAD_CONSTANT ? CR_OK : shift_padded(prep, scratch, out, box);
}

/* Draws a box of random area and aspect within the image. After ten boxes that do not fit, it is the largest centred
 * box of an allowed aspect. */
void cr_prepare_draw_box(const struct cr_prepare *prep, int width, int height, struct cr_rng *rng, int box[4]) {
    double area = (double)width * height, low = log(prep->ratio[0]), high = log(prep->ratio[1]);
    for (int attempt = 0; attempt < 10; attempt++) {
        double target = area * (prep->scale[0] + (prep->scale[1] - prep->scale[0]) * cr_rng_real(rng));
        double aspect = exp(low + (high - low) * cr_rng_real(rng));
        double w = rint(sqrt(target * aspect)), h = rint(sqrt(target / aspect));
        if (w < 1 || h < 1 || w > width || h > height) continue;
        box[2] = (int)w;
        box[3] = (int)h;
        box[1] = (int)cr_rng_below(rng, (uint64_t)(height - box[3]) + 1);
        box[0] = (int)cr_rng_below(rng, (uint64_t)(width - box[2]) + 1);
        return;
    }
    double aspect = (double)width / height;
    box[2]        = width;
    box[3]        = height;
    if (aspect < prep->ratio[0])
        box[3] = (int)rint(width / prep->ratio[0]);
    else if (aspect > prep->ratio[1])
        box[2] = (int)rint(height * prep->ratio[1]);
    box[2] = CR_MAX(box[2], 1);
    box[3] = CR_MAX(box[3], 1);
    box[0] = (width - box[2]) / 2;
    box[1] = (height - box[3]) / 2;
}

static cr_status prepare_random_resized(const struct cr_prepare *prep, const struct cr_lazy_image *lazy,
                                        struct cr_rng *rng, struct cr_scratch *scratch, uint8_t *out,
                                        const struct cr_jpeg_job *device) {
    const int        width = cr_prepare_width(prep);
    int              box[4];
    struct cr_window window;
    cr_prepare_draw_box(prep, lazy->image.width, lazy->image.height, rng, box);
    if (device && cr_jpeg_scan_make(lazy, box, CR_MAX(prep->size, width), scratch, device->data, device->scan))
        return CR_OK;
    /* The box is cut out before the resize, as in torchvision: pixels outside of it have no influence. */
    CR_TRY(cr_lazy_image_window(lazy, box, CR_MAX(prep->size, width), scratch, &window));
    struct cr_resize job = {
        .src        = window.rgb,
        .src_w      = window.width,
        .src_h      = window.height,
        .src_stride = window.stride,
        .x          = window.x,
        .y          = window.y,
        .w          = window.w,
        .h          = window.h,
        .full_w     = width,
        .full_h     = prep->size,
        .part_w     = width,
        .part_h     = prep->size,
        .dst        = out,
        .dst_stride = (size_t)width * cr_format_bytes(window.format),
        .format     = window.format,
    };
    CR_ASSERT(window.format == prep->format);
    return resize(&job, scratch);
}

/* ---- one sample ---- */

/* The flip of the first epoch is random; every later epoch shows the other side of the image. `epoch` may contain the
 * place of the sample in its epoch in the bits above 24. */
static bool alternates(const struct cr_prepare *prep, uint64_t seed, int64_t epoch, int64_t sample) {
    struct cr_rng rng = cr_rng_make(seed, CR_RNG_FLIP, (uint64_t)sample, 0);
    return prep->hflip > 0 && (cr_rng_real(&rng) < prep->hflip) != (epoch % 2 != 0);
}

cr_status cr_prepare_train_with(const struct cr_prepare *prep, const struct cr_lazy_image *lazy, uint64_t seed,
                                int64_t epoch, int64_t sample, struct cr_scratch *scratch, uint8_t *out, int32_t box[4],
                                const struct cr_jpeg_job *job) {
    struct cr_rng rng    = cr_rng_make(seed, CR_RNG_AUGMENT, (uint64_t)sample, (uint32_t)epoch);
    cr_status     status = CR_OK;
    memset(box, 0, 4 * sizeof *box);
    switch (prep->crop) {
    case CR_CROP_PAD: status = prepare_pad(prep, lazy, &rng, scratch, out, box); break;
    case CR_CROP_RANDOM_RESIZED: status = prepare_random_resized(prep, lazy, &rng, scratch, out, job); break;
    case CR_CROP_AUTO:
    case CR_CROP_NONE:
        CR_ASSERT(prep->crop == CR_CROP_NONE);
        status = cr_prepare_eval_with(prep, lazy, scratch, out);
        break;
    }
    if (status != CR_OK) return status;
    box[2] = cr_rng_real(&rng) < prep->hflip; /* the last random number */
    if (prep->flip == CR_FLIP_ALTERNATE) box[2] = alternates(prep, seed, epoch, sample);
    return cr_prepare_colour(prep, seed, epoch, sample, scratch, out, box);
}

cr_status cr_prepare_eval(const struct cr_prepare *prep, const struct cr_image *image, uint8_t *out) {
    struct cr_lazy_image lazy    = {.image = *image};
    struct cr_scratch    scratch = {0};
    cr_status            status  = cr_prepare_eval_with(prep, &lazy, &scratch, out);
    cr_scratch_free(&scratch);
    return status;
}
