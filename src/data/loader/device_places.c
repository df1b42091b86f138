/* data/loader/device_places.c: how many images of a batch the GPU decodes, and images that it could not decode. */
#include "data/loader/loader_internal.h"
#include "data/source.h"

void cr_loader_balance_places(struct cr_loader *loader) {
    const int64_t batch = loader->options.batch;
    int           ready = 0;
    if (!loader->options.jpeg_auto) return;
    for (int i = 0; i < loader->n_slots; i++) {
        const struct slot *slot = &loader->slots[i];
        ready += slot->seq >= loader->next_out && slot->claimed == batch && slot->done == batch;
    }
    if (!ready)
        loader->device_places = CR_MIN(loader->device_places + CR_MAX(batch / 16, 1), batch);
    else if (ready >= CR_MAX(loader->options.prefetch, 2))
        loader->device_places = CR_MAX(loader->device_places - CR_MAX(batch / 64, 1), 0);
}

cr_status cr_loader_decode_failed(struct cr_loader *loader, struct cr_batch *batch, const uint8_t *failed) {
    struct slot      *slot    = &loader->slots[batch->slot];
    struct cr_scratch scratch = {0};
    cr_status         status  = CR_OK;
    int64_t           start = cr_time_ns(), redone = 0;
    CR_ASSERT(slot->held && batch->scans);
    for (int64_t i = 0; i < loader->options.batch && status == CR_OK; i++) {
        if (!slot->scans[i].bytes) continue;
        const int64_t sample = slot->scan_samples[i];
        /* A device decodes images to their end: one that it has decoded is sound. */
        atomic_fetch_or_explicit((failed[i] ? loader->refused : loader->verified) + sample / 8,
                                 (unsigned char)(1u << (sample % 8)), memory_order_relaxed);
        if (!failed[i]) continue;
        status = cr_loader_fill_place(loader, slot, i, false, &scratch);
        redone++;
    }
    if (redone && status == CR_OK) status = cr_dataset_check_used(loader->dataset, CR_OK);
    pthread_mutex_lock(&loader->mutex);
    if (redone) loader->wait_ns += cr_time_ns() - start; /* the training waits for these */
    pthread_mutex_unlock(&loader->mutex);
    cr_scratch_free(&scratch);
    return status;
}
