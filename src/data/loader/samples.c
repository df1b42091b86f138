/* data/loader/samples.c: the samples of a batch: reads, decodes and augments each image, replaces corrupt images. */
#include "data/augment.h"
#include "data/decode.h"
#include "data/loader/loader_internal.h"
#include "data/source.h"
#include "graph/graph.h"

#include <string.h>

enum { UNREADABLE_MAX = 100 }; /* corrupt images in a row that end training */

int cr_loader_views(const struct cr_loader *loader) {
    return loader->options.split == CR_SPLIT_VAL ? cr_prepare_views(loader->options.prepare.tta) : 1;
}

const struct cr_prepare *cr_loader_prepare(const struct cr_loader *loader, int64_t epoch) {
    return &loader->prepare[cr_size_index(&loader->sizes, epoch)];
}

/* ---- order ---- */

int64_t cr_loader_first_place(const struct cr_loader *loader, int64_t index) {
    const struct cr_loader_options *o = &loader->options;
    return (index * CR_MAX(o->ranks, 1) + o->rank) * o->batch;
}

bool cr_loader_has_batch(const struct cr_loader *loader, int64_t seq) {
    return loader->options.split == CR_SPLIT_TRAIN ||
           cr_loader_first_place(loader, loader->first_seq + seq) < loader->count;
}

void cr_loader_slot_open(struct cr_loader *loader, struct slot *slot, int64_t seq) {
    int64_t batch = loader->options.batch, at = loader->first_seq + seq;
    slot->seq     = seq;
    slot->epoch   = loader->options.epoch + at / loader->batches;
    slot->index   = at % loader->batches;
    slot->claimed = slot->done = 0;
    slot->device_places        = loader->device_places;
    atomic_store(&slot->jpeg.used, 0);
    slot->status = CR_OK;
    if (loader->order && loader->order_epoch != slot->epoch) {
        cr_loader_order_fill(loader, loader->order, slot->epoch);
        loader->order_epoch = slot->epoch;
    }
    for (int64_t i = 0; i < batch; i++) {
        int64_t position = cr_loader_first_place(loader, slot->index) + i;
        if (loader->order)
            slot->samples[i] = loader->order[position % loader->count];
        else
            slot->samples[i] = position < loader->count ? position / cr_loader_views(loader) : -1;
    }
}

/* ---- one sample ---- */

/* Counts a corrupt image once for each loader, and logs it once for the dataset, because each evaluation opens a new
 * loader. `message` is the current error of the thread. */
static void log_corrupt(struct cr_loader *loader, int64_t sample, const char *message) {
    uint8_t bit = (uint8_t)(1u << (sample % 8));
    pthread_mutex_lock(&loader->corrupt_mutex);
    bool first_time = !(loader->corrupt_seen[sample / 8] & bit);
    loader->corrupt_seen[sample / 8] |= bit;
    loader->corrupt_count += first_time;
    pthread_mutex_unlock(&loader->corrupt_mutex);
    if (first_time && !(atomic_fetch_or(&loader->dataset->logged[sample / 8], bit) & bit))
        cr_log(CR_LOG_WARN, "skipped an image: %s", message);
}

/* Returns the sample `step` places after `position` in the order of `epoch`. The batch may belong to another epoch
 * than the newest order, so replacements use an order of their own. */
static cr_status replacement(struct cr_loader *loader, int64_t epoch, int64_t position, int64_t step, int64_t *out) {
    cr_status status = CR_OK;
    pthread_mutex_lock(&loader->corrupt_mutex);
    if (!loader->spare_order) {
        loader->spare_order = cr_loader_order_new(loader);
        loader->spare_epoch = -1;
        if (!loader->spare_order) status = CR_NO_MEMORY((size_t)loader->count * sizeof *loader->spare_order);
    }
    if (status == CR_OK) {
        if (loader->spare_epoch != epoch) cr_loader_order_fill(loader, loader->spare_order, epoch);
        loader->spare_epoch = epoch;
        *out                = loader->spare_order[(position + step) % loader->count];
    }
    pthread_mutex_unlock(&loader->corrupt_mutex);
    return status;
}

/* The number by which a place draws its crop and augmentation: the epoch. With balanced sampling and with repeated
 * augmentation a sample occurs several times in an epoch, and each place draws its own. */
static int64_t draw_of(const struct cr_loader *loader, const struct slot *slot, int64_t at) {
    if (!cr_loader_repeats(loader)) return slot->epoch;
    return slot->epoch + ((cr_loader_first_place(loader, slot->index) + at + 1) << 24); /* epochs are below 2^24 */
}

/* Prepares one sample of the dataset. CR_ERR_FORMAT or CR_ERR_IO: the image cannot be read. */
static cr_status load_sample(struct cr_loader *loader, struct cr_scratch *scratch, int64_t draw, int64_t sample,
                             const struct cr_prepare *prep, uint8_t *image, int32_t *label, int32_t *box,
                             const struct cr_jpeg_job *job) {
    const struct cr_loader_options *o     = &loader->options;
    const struct cr_dataset        *set   = loader->dataset;
    unsigned char                   bit   = (unsigned char)(1u << (sample % 8));
    int64_t                         start = cr_time_ns();
    char                            name[CR_SAMPLE_NAME_BYTES];
    struct cr_stored                stored;
    struct cr_lazy_image            lazy;
    CR_TRY(cr_dataset_fetch(set, sample, scratch, &stored, label));
    if (set->label_rows) memcpy(label, cr_dataset_labels(set, sample), (size_t)set->label_words * sizeof *label);
    scratch->counts.fetch_ns += cr_time_ns() - start;
    size_t pixel_bytes = stored.bytes ? 0
                                      : (size_t)stored.pixels.width * (size_t)stored.pixels.height *
                                            cr_format_bytes(stored.pixels.format);
    scratch->counts.file_bytes += (int64_t)(stored.bytes ? stored.count : pixel_bytes);
    stored.verified =
        stored.verified || (atomic_load_explicit(&loader->verified[sample / 8], memory_order_relaxed) & bit);
    cr_dataset_sample_name(set, sample, name, sizeof name);
    CR_TRY(cr_lazy_image_open(&stored, name, scratch, &lazy));
    const bool is_jpeg = !lazy.image.rgb;
    if (o->split == CR_SPLIT_TRAIN)
        CR_TRY(cr_prepare_train_with(prep, &lazy, o->seed, draw, sample, scratch, image, box, job));
    else
        CR_TRY(cr_prepare_eval_with(prep, &lazy, scratch, image));
    const bool left = job && job->scan->bytes; /* to the device, which finds out whether the image is sound */
    if (!stored.verified && !left) atomic_fetch_or_explicit(&loader->verified[sample / 8], bit, memory_order_relaxed);
    scratch->counts.images++;
    scratch->counts.verified += stored.verified;
    scratch->counts.jpegs += is_jpeg;
    scratch->counts.device += left;
    return CR_OK;
}

static void fill_black(const struct cr_prepare *prep, uint8_t *image, int32_t *label) {
    memset(image, 0, cr_prepare_bytes(prep));
    *label = -1;
}

cr_status cr_loader_fill_place(struct cr_loader *loader, struct slot *slot, int64_t at, bool device,
                               struct cr_scratch *scratch) {
    struct cr_prepare prep  = *cr_loader_prepare(loader, slot->epoch);
    size_t            bytes = cr_prepare_bytes(&prep);
    uint8_t          *image = slot->images + (size_t)at * bytes;
    int32_t          *label = slot->labels + at * cr_dataset_label_words(loader->dataset);
    int32_t          *box   = slot->boxes ? slot->boxes + 4 * at : NULL;
    int64_t           draw = draw_of(loader, slot, at), sample = slot->samples[at],
            max_replacements     = CR_MIN(loader->count, UNREADABLE_MAX);
    const struct cr_jpeg_job job = {&slot->jpeg, slot->scans ? slot->scans + at : NULL};
    if (job.scan) job.scan->bytes = 0;
    device = device && job.scan && at < slot->device_places && !cr_prepare_colours(&prep);
    if (sample < 0) {
        fill_black(&prep, image, label);
        return CR_OK;
    }
    prep.view = (int)((cr_loader_first_place(loader, slot->index) + at) % cr_loader_views(loader));
    if (loader->options.split == CR_SPLIT_TRAIN) prep.tta = CR_TTA_NONE; /* calibration: the plain image */
    if (slot->mixes)
        cr_prepare_mix(&prep, loader->options.seed, draw, sample, at, loader->options.batch,
                       slot->mixes + CR_MIX_NUMBERS * at);
    for (int64_t step = 1;; step++) {
        const bool refused =
            device && atomic_load_explicit(&loader->refused[sample / 8], memory_order_relaxed) >> (sample % 8) & 1;
        cr_status status =
            load_sample(loader, scratch, draw, sample, &prep, image, label, box, device && !refused ? &job : NULL);
        cr_scratch_release(scratch);
        if (status != CR_OK) status = cr_dataset_check_used(loader->dataset, status);
        if (job.scan) slot->scan_samples[at] = sample;
        if (status == CR_OK || !cr_dataset_is_corrupt(loader->dataset, status)) return status;
        if (loader->options.corrupt_fatal)
            return CR_FAIL(status, "%s (set data.corrupt = skip to continue without such images)", cr_error_message());
        log_corrupt(loader, sample, cr_error_message());
        if (loader->options.split != CR_SPLIT_TRAIN) {
            fill_black(&prep, image, label);
            return CR_OK;
        }
        if (step == max_replacements)
            return CR_FAIL(status, "%lld images in a row could not be read; the last one: %s",
                           (long long)max_replacements, cr_error_message());
        int64_t position = cr_loader_first_place(loader, slot->index) + at;
        CR_TRY(replacement(loader, slot->epoch, position, step, &sample));
    }
}
