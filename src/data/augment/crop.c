/* data/augment/crop.c: the crop of an image that the network sees. Geometry and rounding are torchvision's (Resize,
 * CenterCrop, RandomCrop with padding, RandomResizedCrop, RandomHorizontalFlip). The random numbers are functions of
 * (seed, epoch, sample). Operations that move whole pixels (a shift over a black border, a flip) are only drawn here:
 * the device applies them while it normalises. */
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
    if (kind == CR_DATA_FOLDER || kind == CR_DATA_CSV || kind == CR_DATA_TAR || (kind == CR_DATA_PACKED && size > 32))
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
    if (cr_prepare_views(tta) <= 2 || (prep->fit == CR_FIT_CROP && prep->eval_resize > prep->size)) return CR_OK;
    if (prep->fit != CR_FIT_CROP)
        return cr_config_fail(config, key, "%s needs data.fit = crop: with %s, a view shows the whole image",
                              cr_word_tta(tta), cr_word_fit(prep->fit));
    return cr_config_fail(config, key, "%s needs images larger than the crop of %d pixels: set eval_resize, e.g. to %d",
                          cr_word_tta(tta), prep->size, prep->size * 256 / 224);
}

static cr_status read_views(const struct cr_config *config, enum cr_split split, struct cr_prepare *prep) {
    prep->tta = split == CR_SPLIT_VAL ? config->data.tta : CR_TTA_NONE;
    return cr_prepare_check_views(config, "data.tta", prep->tta, prep);
}

/* The border is black; with letterbox, it has the mean colour. */
static void read_fit(const struct cr_config *config, struct cr_prepare *prep) {
    const int bits = cr_format_bits(prep->format);
    prep->fit      = config->data.fit;
    if (prep->fit == CR_FIT_CROP) return;
    prep->eval_resize = 0;
    for (int c = 0; c < config->data.channels && prep->fit == CR_FIT_LETTERBOX; c++) {
        const double   mean  = CR_MIN(CR_MAX(cr_config_mean(config, c), 0.0), 1.0);
        const uint16_t value = (uint16_t)rint(mean * (bits == 8 ? UINT8_MAX : UINT16_MAX));
        if (bits == 8)
            prep->border[c] = (uint8_t)value;
        else
            memcpy(prep->border + 2 * c, &value, sizeof value);
    }
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
    read_fit(config, &prep);
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
 * box of an allowed aspect. With squash, a square is a box of the shape of the whole image. */
void cr_prepare_draw_box(const struct cr_prepare *prep, int width, int height, struct cr_rng *rng, int box[4]) {
    const double square = prep->fit == CR_FIT_SQUASH ? (double)width / height : 1;
    double       area = (double)width * height, low = log(prep->ratio[0]), high = log(prep->ratio[1]);
    for (int attempt = 0; attempt < 10; attempt++) {
        double target = area * (prep->scale[0] + (prep->scale[1] - prep->scale[0]) * cr_rng_real(rng));
        double aspect = square * exp(low + (high - low) * cr_rng_real(rng));
        double w = rint(sqrt(target * aspect)), h = rint(sqrt(target / aspect));
        if (w < 1 || h < 1 || w > width || h > height) continue;
        box[2] = (int)w;
        box[3] = (int)h;
        box[1] = (int)cr_rng_below(rng, (uint64_t)(height - box[3]) + 1);
        box[0] = (int)cr_rng_below(rng, (uint64_t)(width - box[2]) + 1);
        return;
    }
    double aspect = (double)width / height / square;
    box[2]        = width;
    box[3]        = height;
    if (aspect < prep->ratio[0])
        box[3] = (int)rint(width / (prep->ratio[0] * square));
    else if (aspect > prep->ratio[1])
        box[2] = (int)rint(height * (prep->ratio[1] * square));
    box[2] = CR_MAX(box[2], 1);
    box[3] = CR_MAX(box[3], 1);
    box[0] = (width - box[2]) / 2;
    box[1] = (height - box[3]) / 2;
}

static cr_status prepare_random_resized(const struct cr_prepare *prep, const struct cr_lazy_image *lazy,
                                        struct cr_rng *rng, struct cr_scratch *scratch, uint8_t *out,
                                        const struct cr_jpeg_job *device) {
    const int        width = cr_prepare_width(prep);
    const size_t     bytes = cr_format_bytes(prep->format);
    int              box[4], shown[4] = {0, 0, width, prep->size};
    struct cr_window window;
    if (prep->fit == CR_FIT_LETTERBOX)
        cr_prepare_draw_letterbox(prep, lazy->image.width, lazy->image.height, rng, box, shown);
    else
        cr_prepare_draw_box(prep, lazy->image.width, lazy->image.height, rng, box);
    const int  side  = CR_MAX(shown[2], shown[3]);
    const bool whole = shown[2] == width && shown[3] == prep->size; /* the device knows no borders */
    if (whole && device && cr_jpeg_scan_make(lazy, box, side, scratch, device->data, device->scan)) return CR_OK;
    /* The box is cut out before the resize, as in torchvision: pixels outside of it have no influence. */
    CR_TRY(cr_lazy_image_window(lazy, box, side, scratch, &window));
    struct cr_resize job = {
        .src        = window.rgb,
        .src_w      = window.width,
        .src_h      = window.height,
        .src_stride = window.stride,
        .x          = window.x,
        .y          = window.y,
        .w          = window.w,
        .h          = window.h,
        .full_w     = shown[2],
        .full_h     = shown[3],
        .part_w     = shown[2],
        .part_h     = shown[3],
        .dst        = out + ((size_t)shown[1] * (size_t)width + (size_t)shown[0]) * bytes,
        .dst_stride = (size_t)width * bytes,
        .format     = window.format,
    };
    CR_ASSERT(window.format == prep->format);
    if (!whole) cr_prepare_fill_border(prep, out);
    return cr_prepare_resize(&job, scratch);
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
    struct cr_rng rng = cr_rng_make(seed, CR_RNG_AUGMENT, (uint64_t)sample, (uint32_t)epoch);
    memset(box, 0, 4 * sizeof *box);
    switch (prep->crop) {
    case CR_CROP_PAD: CR_TRY(prepare_pad(prep, lazy, &rng, scratch, out, box)); break;
    case CR_CROP_RANDOM_RESIZED: CR_TRY(prepare_random_resized(prep, lazy, &rng, scratch, out, job)); break;
    case CR_CROP_AUTO:
    case CR_CROP_NONE:
        CR_ASSERT(prep->crop == CR_CROP_NONE);
        CR_TRY(cr_prepare_eval_with(prep, lazy, scratch, out));
        break;
    }
    box[2] = cr_rng_real(&rng) < prep->hflip; /* the last random number */
    if (prep->flip == CR_FLIP_ALTERNATE) box[2] = alternates(prep, seed, epoch, sample);
    return cr_prepare_colour(prep, seed, epoch, sample, scratch, out, box);
}
