/* tests/tools/batches_tool.c: writes the first batches that a training run draws from its dataset, for comparisons with
 * other trainers: images as the loader gives them to the network.
 *
 *   batches_tool CONFIG FILE N [section.key=value ...]
 *
 * FILE is a safetensors file with images U8 [N,batch,H,W,3] and labels I32 [N,batch]. The configuration must name one
 * image size, 3 channels of 8 bits and no augmentation that the device applies: crop = none, hflip = 0. */
#include "data/data.h"
#include "formats/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct draws {
    const struct cr_config *config;
    struct cr_dataset      *dataset;
    struct cr_loader       *loader;
    struct cr_prepare       prepare;
    int64_t                 count, batch;
    size_t                  image_bytes; /* of one batch */
    uint8_t                *images;
    int32_t                *labels;
};

static cr_status open_loader(struct draws *d) {
    const struct cr_config *c = d->config;
    CR_TRY(cr_prepare_from_config(c, CR_SPLIT_TRAIN, &d->prepare));
    d->batch                               = c->train.batch;
    d->image_bytes                         = (size_t)d->batch * cr_prepare_bytes(&d->prepare);
    const struct cr_loader_options options = {.split     = CR_SPLIT_TRAIN,
                                              .prepare   = d->prepare,
                                              .batch     = d->batch,
                                              .seed      = (uint64_t)c->train.seed,
                                              .workers   = (int)c->data.workers,
                                              .prefetch  = (int)c->data.prefetch,
                                              .drop_last = c->data.drop_last,
                                              .balanced  = c->data.sampling == CR_SAMPLING_BALANCED,
                                              .repeats   = (int)c->data.repeats};
    CR_TRY(cr_dataset_open(c, CR_SPLIT_TRAIN, &d->dataset));
    CR_ALLOC(d->images, (size_t)d->count * d->image_bytes);
    CR_ALLOC(d->labels, (size_t)(d->count * d->batch));
    return cr_loader_open(d->dataset, &options, &d->loader);
}

static cr_status draw(struct draws *d) {
    for (int64_t k = 0; k < d->count; k++) {
        struct cr_batch batch;
        CR_TRY(cr_loader_next(d->loader, &batch));
        memcpy(d->images + (size_t)k * d->image_bytes, batch.images, d->image_bytes);
        memcpy(d->labels + k * d->batch, batch.labels, (size_t)d->batch * sizeof *d->labels);
        cr_loader_release(d->loader, &batch);
    }
    return CR_OK;
}

static cr_status save(const struct draws *d, const char *path) {
    const int64_t            size      = d->prepare.size;
    const struct cr_st_entry entries[] = {
        {.name = "images", .dtype = CR_U8, .dims = 5, .dim = {d->count, d->batch, size, size, 3}},
        {.name = "labels", .dtype = CR_I32, .dims = 2, .dim = {d->count, d->batch}}};
    const void *const data[]  = {d->images, d->labels};
    const size_t      bytes[] = {(size_t)d->count * d->image_bytes, (size_t)(d->count * d->batch) * sizeof *d->labels};
    struct cr_st_writer *writer;
    cr_status            status = CR_OK;
    (void)unlink(path); /* the writer refuses to overwrite files */
    CR_TRY(cr_st_create(path, entries, 2, NULL, 0, &writer));
    for (int i = 0; i < 2 && status == CR_OK; i++) {
        const int k = cr_st_writer_index(writer, i);
        status      = cr_st_write(writer, data[k], bytes[k]);
    }
    if (status == CR_OK) return cr_st_finish(writer);
    cr_st_abandon(writer);
    return status;
}

int main(int argc, char **argv) {
    struct draws d      = {0};
    cr_status    status = CR_OK;
    if (argc < 4 || (d.count = strtoll(argv[3], NULL, 10)) < 1) {
        fprintf(stderr, "usage: batches_tool CONFIG FILE N [section.key=value ...]\n");
        return 2;
    }
    cr_log_quiet(true);
    status = cr_config_open(&d.config, argv[1], (const char *const *)argv + 4, argc - 4);
    if (status == CR_OK) status = open_loader(&d);
    if (status == CR_OK) status = draw(&d);
    if (status == CR_OK) status = save(&d, argv[2]);
    if (status != CR_OK) fprintf(stderr, "batches_tool: %s\n", cr_error_message());
    cr_loader_close(d.loader);
    if (d.dataset) cr_dataset_close(d.dataset);
    cr_free(d.images);
    cr_free(d.labels);
    cr_config_close(d.config);
    return status == CR_OK ? 0 : 1;
}
