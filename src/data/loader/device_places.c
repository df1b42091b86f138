/* data/loader/device_places.c: which images of a batch a device decodes, and the images that it could not decode. */
#include "data/loader/loader_internal.h"

void cr_loader_share_places(struct cr_loader *loader) {
    const int64_t batch = loader->options.batch;
    int           ready = 0;
    for (int i = 0; i < loader->n_slots; i++) {
        const struct slot *slot = &loader->slots[i];
        ready += slot->seq >= loader->next_out && slot->claimed == batch && slot->done == batch;
    }
    if (!loader->options.jpeg_shared) return;
    if (!ready)
        loader->device_places = CR_MIN(loader->device_places + CR_MAX(batch / 16, 1), batch);
    else if (ready >= loader->options.prefetch)
        loader->device_places = CR_MAX(loader->device_places - CR_MAX(batch / 64, 1), 0);
}

cr_status cr_loader_decode_failed(struct cr_loader *loader, struct cr_batch *batch, const uint8_t *failed) {
    struct slot      *slot    = &loader->slots[batch->slot];
    struct cr_scratch scratch = {0};
    cr_status         status  = CR_OK;
    CR_ASSERT(slot->held && batch->scans);
    for (int64_t i = 0; i < loader->options.batch && status == CR_OK; i++) {
        if (!slot->scans[i].bytes) continue;
        const int64_t sample = slot->scan_samples[i];
        /* A device decodes images to their end: one that it has decoded is sound. */
        atomic_fetch_or_explicit((failed[i] ? loader->refused : loader->verified) + sample / 8,
                                 (unsigned char)(1u << (sample % 8)), memory_order_relaxed);
        if (failed[i]) status = cr_loader_fill_place(loader, slot, i, false, &scratch);
    }
    cr_scratch_free(&scratch);
    return status;
}
