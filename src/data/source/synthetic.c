/* data/source/synthetic.c: random images and labels, a function of (seed, sample), for benchmarks without input from
 * disk. A small pool of random images is created once; each sample uses one of them and has a label of its own. */
#include "core/rng.h"
#include "data/decode.h"
#include "data/scratch.h"
#include "data/source.h"

#include <stdio.h>

enum {
    POOL_IMAGES    = 64,
    POOL_BYTES_MAX = 32 << 20,
    TRAIN_IMAGES   = 51200,
    VAL_IMAGES     = 5120,
    PURPOSE_PIXELS = 0,
    PURPOSE_LABEL  = 1
};

struct synthetic {
    uint64_t      seed;
    enum cr_split split;
    int           size, images;
    size_t        image_bytes;
    uint8_t      *pool; /* [images][size][size] pixels of the dataset's format */
};

/* Draws the label and the image of a sample. */
static int32_t draw_label(const struct cr_dataset *dataset, int64_t sample, int *image) {
    const struct synthetic *s = dataset->state;
    struct cr_rng rng   = cr_rng_make(s->seed, CR_RNG_SYNTHETIC, (uint64_t)sample, PURPOSE_LABEL + (uint32_t)s->split);
    const int32_t label = (int32_t)cr_rng_below(&rng, (uint64_t)dataset->classes);
    *image              = (int)cr_rng_below(&rng, (uint64_t)s->images);
    return label;
}

static cr_status synthetic_fetch(const struct cr_dataset *dataset, int64_t sample, struct cr_scratch *scratch,
                                 struct cr_stored *out) {
    const struct synthetic *s = dataset->state;
    int                     image;
    (void)scratch;
    (void)draw_label(dataset, sample, &image);
    out->pixels = (struct cr_image){s->size, s->size, s->pool + (size_t)image * s->image_bytes, dataset->format};
    return CR_OK;
}

static void synthetic_name(const struct cr_dataset *dataset, int64_t sample, char *buf, size_t size) {
    (void)dataset;
    snprintf(buf, size, "synthetic[%lld]", (long long)sample);
}

static int32_t synthetic_label(const struct cr_dataset *dataset, int64_t sample) {
    int image;
    return draw_label(dataset, sample, &image);
}

static void synthetic_close(struct cr_dataset *dataset) {
    struct synthetic *s = dataset->state;
    if (s) cr_free(s->pool);
    cr_free(s);
}

static const struct cr_dataset_ops synthetic_ops = {synthetic_fetch, synthetic_name, synthetic_label,
                                                    synthetic_close, NULL,           NULL};

cr_status cr_synthetic_open(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset) {
    struct cr_prepare prep;
    struct synthetic *s;
    CR_TRY(cr_prepare_from_config(config, split, &prep));
    CR_ALLOC(s, 1);
    dataset->state = s;
    dataset->ops   = &synthetic_ops;
    s->seed        = (uint64_t)config->train.seed;
    s->split       = split;
    /* The images have the size of the network's input. If evaluation resizes images, they have that size, so that
     * the resize is measured too. */
    s->size      = CR_MAX(CR_MAX(prep.size, cr_prepare_width(&prep)), prep.eval_resize);
    size_t bytes = s->image_bytes = (size_t)s->size * s->size * cr_format_bytes(dataset->format);
    s->images                     = (int)CR_MAX(1, CR_MIN(POOL_IMAGES, POOL_BYTES_MAX / bytes));
    int64_t wanted                = split == CR_SPLIT_TRAIN ? config->data.train_images : config->data.val_images;
    dataset->count                = wanted ? wanted : split == CR_SPLIT_TRAIN ? TRAIN_IMAGES : VAL_IMAGES;
    dataset->classes = config->model.classes ? (int)config->model.classes : cr_config_is_small(config) ? 10 : 1000;
    CR_ARENA_ALLOC(&dataset->arena, dataset->class_names, (size_t)dataset->classes);
    for (int c = 0; c < dataset->classes; c++) {
        dataset->class_names[c] = cr_arena_printf(&dataset->arena, "class%d", c);
        if (!dataset->class_names[c]) return CR_NO_MEMORY(16);
    }
    CR_ALLOC(s->pool, bytes * (size_t)s->images);
    for (int p = 0; p < s->images; p++) {
        struct cr_rng rng = cr_rng_make(s->seed, CR_RNG_SYNTHETIC, (uint64_t)p, PURPOSE_PIXELS);
        uint8_t      *to  = s->pool + (size_t)p * bytes;
        for (size_t i = 0; i < bytes; i += 4) {
            uint32_t word = cr_rng_u32(&rng);
            for (size_t k = i; k < CR_MIN(i + 4, bytes); k++, word >>= 8) to[k] = (uint8_t)word;
        }
    }
    const uint64_t parts[] = {s->seed, (uint64_t)s->size, (uint64_t)split};
    dataset->fingerprint   = cr_hash_bytes(CR_HASH_START, parts, sizeof parts);
    return CR_OK;
}
