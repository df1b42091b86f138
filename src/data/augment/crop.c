/* data/augment/crop.c: from a decoded image to the square that the network sees. Geometry and rounding are
 * torchvision's (Resize, CenterCrop, RandomCrop with padding, RandomResizedCrop, RandomHorizontalFlip). The random
 * numbers are functions of (seed, epoch, sample). Operations that move whole pixels (a shift over a black border, a
 * flip) are only drawn here: the device applies them while it normalises. */
#include "data/augment.h"
#include "data/decode.h"
#include "data/resize.h"
#include "data/scratch.h"

#include <math.h>
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

cr_status cr_prepare_from_config(const struct cr_config *config, enum cr_split split, struct cr_prepare *out) {
    struct cr_prepare prep  = {.pad = (int)config->data.pad, .hflip = config->data.hflip};
    bool              small = is_small_set(config->data.kind);
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
    CR_TRY(read_range(config, "data.erase_scale", &config->data.erase_scale, prep.erase_scale));
    prep.mixes       = split == CR_SPLIT_TRAIN && cr_config_mixes(config);
    prep.erase       = config->data.erase;
    prep.mixup       = config->data.mixup;
    prep.cutmix      = config->data.cutmix;
    prep.mix_prob    = config->data.mix_prob;
    prep.cutmix_prob = config->data.cutmix_prob;
    prep.trivial     = split == CR_SPLIT_TRAIN && config->data.augment == CR_AUGMENT_TRIVIAL;
    for (int i = 0; i < config->data.jitter.count && split == CR_SPLIT_TRAIN; i++)
        prep.jitter[i] = config->data.jitter.at[i];
    *out = prep;
    return CR_OK;
}

static cr_status resize(const struct cr_resize *job, struct cr_scratch *scratch) {
    int64_t   start  = cr_time_ns();
    cr_status status = cr_resize_run(job, &scratch->tables);
    scratch->counts.resize_ns += cr_time_ns() - start;
    return status;
}

/* ---- the centre of an image ---- */

/* Along one axis: the cut of `size` pixels out of `have`, rounded half to even, or the black margin if there are
 * fewer. */
static void center(int have, int size, int *cut, int *margin) {
    *margin = have < size ? (size - have) / 2 : 0;
    *cut    = have > size ? (int)rint((have - size) / 2.0) : 0;
}

/* The size of an image whose short side becomes `short_side`. */
static void full_size(int short_side, int width, int height, int *full_w, int *full_h) {
    const int64_t shorter = CR_MIN(width, height), longer = CR_MAX(width, height);
    const int     long_side = (int)(short_side * longer / shorter);
    *full_w                 = width <= height ? short_side : long_side;
    *full_h                 = width <= height ? long_side : short_side;
}

/* Resizes the short side to `short_side` pixels and cuts the centre square of `size` pixels, black where the image
 * is smaller. */
static cr_status place_center(int size, int short_side, const struct cr_image *image, struct cr_scratch *scratch,
                              uint8_t *out) {
    struct cr_resize job = {
        .src        = image->rgb,
        .src_w      = image->width,
        .src_h      = image->height,
        .src_stride = (size_t)image->width * 3,
        .w          = image->width,
        .h          = image->height,
        .dst_stride = (size_t)size * 3,
    };
    int margin_x, margin_y;
    full_size(short_side, image->width, image->height, &job.full_w, &job.full_h);
    center(job.full_w, size, &job.part_x, &margin_x);
    center(job.full_h, size, &job.part_y, &margin_y);
    job.part_w = CR_MIN(job.full_w, size);
    job.part_h = CR_MIN(job.full_h, size);
    if (job.part_w < size || job.part_h < size) memset(out, 0, (size_t)size * size * 3);
    job.dst = out + ((size_t)margin_y * size + margin_x) * 3;
    return resize(&job, scratch);
}

void cr_prepare_eval_box(const struct cr_prepare *prep, int width, int height, double box[4]) {
    int full_w, full_h, cut_x, cut_y, margin_x, margin_y;
    full_size(prep->eval_resize ? prep->eval_resize : prep->size, width, height, &full_w, &full_h);
    center(full_w, prep->size, &cut_x, &margin_x);
    center(full_h, prep->size, &cut_y, &margin_y);
    const double per_x = (double)width / full_w, per_y = (double)height / full_h;
    box[0] = (cut_x - margin_x) * per_x;
    box[1] = (cut_y - margin_y) * per_y;
    box[2] = prep->size * per_x;
    box[3] = prep->size * per_y;
}

cr_status cr_prepare_eval_with(const struct cr_prepare *prep, const struct cr_lazy_image *lazy,
                               struct cr_scratch *scratch, uint8_t *out) {
    int             size = prep->size;
    struct cr_image image;
    CR_TRY(cr_lazy_image_whole(lazy, scratch, &image));
    if (image.width == size && image.height == size && !prep->eval_resize) {
        memcpy(out, image.rgb, (size_t)size * size * 3);
        return CR_OK;
    }
    return place_center(size, prep->eval_resize ? prep->eval_resize : size, &image, scratch, out);
}

/* ---- random crops ---- */

/* A square of the image's own size, shifted by at most the padding over its border. */
static cr_status prepare_pad(const struct cr_prepare *prep, const struct cr_lazy_image *lazy, struct cr_rng *rng,
                             struct cr_scratch *scratch, uint8_t *out, int32_t box[4]) {
    struct cr_prepare whole = *prep;
    whole.eval_resize       = 0;
    box[0]                  = (int32_t)cr_rng_below(rng, 2 * (uint64_t)prep->pad + 1) - prep->pad;
    box[1]                  = (int32_t)cr_rng_below(rng, 2 * (uint64_t)prep->pad + 1) - prep->pad;
    return cr_prepare_eval_with(&whole, lazy, scratch, out);
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
                                        struct cr_rng *rng, struct cr_scratch *scratch, uint8_t *out) {
    int              box[4];
    struct cr_window window;
    cr_prepare_draw_box(prep, lazy->image.width, lazy->image.height, rng, box);
    /* The box is cut out before the resize, as in torchvision: pixels outside of it have no influence. */
    CR_TRY(cr_lazy_image_window(lazy, box, prep->size, scratch, &window));
    struct cr_resize job = {
        .src        = window.rgb,
        .src_w      = window.width,
        .src_h      = window.height,
        .src_stride = window.stride,
        .x          = window.x,
        .y          = window.y,
        .w          = window.w,
        .h          = window.h,
        .full_w     = prep->size,
        .full_h     = prep->size,
        .part_w     = prep->size,
        .part_h     = prep->size,
        .dst        = out,
        .dst_stride = (size_t)prep->size * 3,
    };
    return resize(&job, scratch);
}

/* ---- one sample ---- */

cr_status cr_prepare_train_with(const struct cr_prepare *prep, const struct cr_lazy_image *lazy, uint64_t seed,
                                int64_t epoch, int64_t sample, struct cr_scratch *scratch, uint8_t *out,
                                int32_t box[4]) {
    struct cr_rng rng    = cr_rng_make(seed, CR_RNG_AUGMENT, (uint64_t)sample, (uint32_t)epoch);
    cr_status     status = CR_OK;
    memset(box, 0, 4 * sizeof *box);
    switch (prep->crop) {
    case CR_CROP_PAD: status = prepare_pad(prep, lazy, &rng, scratch, out, box); break;
    case CR_CROP_RANDOM_RESIZED: status = prepare_random_resized(prep, lazy, &rng, scratch, out); break;
    case CR_CROP_AUTO:
    case CR_CROP_NONE:
        CR_ASSERT(prep->crop == CR_CROP_NONE);
        status = cr_prepare_eval_with(prep, lazy, scratch, out);
        break;
    }
    if (status != CR_OK) return status;
    box[2] = cr_rng_real(&rng) < prep->hflip; /* the last random number */
    return cr_prepare_colour(prep, seed, epoch, sample, scratch, out, box);
}

cr_status cr_prepare_eval(const struct cr_prepare *prep, const struct cr_image *image, uint8_t *out) {
    struct cr_lazy_image lazy    = {.image = *image};
    struct cr_scratch    scratch = {0};
    cr_status            status  = cr_prepare_eval_with(prep, &lazy, &scratch, out);
    cr_scratch_free(&scratch);
    return status;
}
