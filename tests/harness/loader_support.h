/* tests/harness/loader_support.h: helpers of the loader tests: a dataset of small images, loader options, checksums of
 * batches. */
#ifndef CR_TEST_LOADER_SUPPORT_H
#define CR_TEST_LOADER_SUPPORT_H

#include "tests/harness/data_support.h"

#include "data/source.h"

enum { IMAGES = 60 }; /* 30 images in each of two classes */

/* Writes the images to a new folder. Each image has a different colour, so that a test can identify samples. */
static inline void write_set(void) {
    folder_open();
    for (int i = 0; i < IMAGES; i++)
        put_image(tmp_path, formatted("%s/%03d.png", i < IMAGES / 2 ? "a" : "b", i), 8, 8, i + 1);
}
static inline cr_status open_folder(struct cr_dataset **set) {
    return OPEN_SET(set, FOLDER_SET);
}

static inline struct cr_loader_options plain_options(enum cr_split split, int64_t batch, int workers) {
    return (struct cr_loader_options){
        .split     = split,
        .batch     = batch,
        .workers   = workers,
        .prefetch  = 3,
        .seed      = 9,
        .drop_last = true,
        .prepare   = {.size = 8, .crop = split == CR_SPLIT_TRAIN ? CR_CROP_PAD : CR_CROP_NONE, .pad = 2, .hflip = 0.5},
    };
}

/* Adds a batch, as the network input, to a running checksum. */
static inline uint64_t sum_seen(uint64_t sum, const struct cr_batch *batch, int64_t images, int size) {
    uint8_t *seen = cr_alloc((size_t)size * size, 3);
    CHECK(batch->boxes != NULL);
    for (int64_t i = 0; seen && batch->boxes && i < images; i++) {
        apply_box(batch->images + (size_t)i * size * size * 3, size, batch->boxes + 4 * i, seen);
        sum = cr_hash_bytes(sum, seen, (size_t)size * size * 3);
    }
    cr_free(seen);
    return cr_hash_bytes(sum, batch->labels, (size_t)images * sizeof *batch->labels);
}

/* Checksum of the images and labels of `batches` batches from the start of the options; *ends = epoch and index of the
 * last. */
static inline uint64_t sum_batches(const struct cr_dataset *set, struct cr_loader_options options, int batches,
                                   int64_t ends[2]) {
    struct cr_loader *loader;
    uint64_t          sum    = CR_HASH_START;
    cr_status         status = cr_loader_open(set, &options, &loader);
    if (ends) ends[0] = ends[1] = -1;
    if (status != CR_OK) {
        TEST_FAIL_("%s", cr_error_message());
        return 0;
    }
    for (int b = 0; b < batches; b++) {
        struct cr_batch batch;
        if (cr_loader_next(loader, &batch) != CR_OK) {
            TEST_FAIL_("batch %d: %s", b, cr_error_message());
            break;
        }
        sum = sum_seen(sum, &batch, options.batch, options.prepare.size);
        if (ends) ends[0] = batch.epoch, ends[1] = batch.index;
        cr_loader_release(loader, &batch);
    }
    cr_loader_close(loader);
    return sum;
}

/* Identifies the sample of image i of a batch by the colour in the middle. */
static inline int sample_of(const struct cr_batch *batch, int i) {
    return batch->images[(size_t)i * 192 + (4 * 8 + 4) * 3] - 1;
}

#endif
