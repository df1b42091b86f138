/* data/loader/loader.c: turns samples into batches with worker threads. See data/data.h.
 *
 * A ring of slots, one a batch; batch number `seq` (counted from the loader's start) lives in slot seq % slots. Workers
 * open the next slot when it is free, claim its samples a few at a time, and the last one to finish makes it ready. The
 * consumer takes ready batches in order and gives slots back.
 *
 * All shared fields are guarded by `mutex`, except a claimed sample's pixels, label and box, which belong to the worker
 * until it reports them done. `stop` is also read without it, to leave in mid-claim. */
#include "data/data_internal.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { CLAIM_MAX = 16, UNREADABLE_MAX = 100, ERROR_BYTES = 1024 };

struct slot {
    uint8_t  *images;
    int32_t  *labels;
    int32_t  *boxes;   /* [batch][4]; NULL in evaluation */
    int32_t  *mixes;   /* [batch][CR_MIX_NUMBERS]; NULL when nothing is mixed */
    int64_t  *samples; /* [batch]; -1: padding */
    int64_t   seq;     /* -1: free */
    int64_t   epoch, index;
    int64_t   claimed, done;
    bool      held;   /* by the consumer */
    cr_status status; /* of the first sample, in batch order, that failed for good */
    int64_t   error_at;
    char      error[ERROR_BYTES];
};

struct cr_loader {
    const struct cr_dataset *dataset;
    struct cr_loader_options options;
    int64_t                  count, batches, first_seq; /* samples and batches an epoch; batches before the start */
    struct slot             *slots;
    int                      n_slots;
    uint32_t                *order; /* of epoch order_epoch; NULL in evaluation */
    int64_t                  order_epoch;

    pthread_mutex_t mutex;
    pthread_cond_t  work, ready;
    bool            sync_made;
    atomic_bool     stop;
    bool            failed;
    int64_t         next_open, next_out; /* seq */

    /* Corrupt images, with a lock of their own: meeting one must not stop the others. */
    pthread_mutex_t corrupt_mutex;
    uint8_t        *corrupt_seen; /* a bit a sample */
    int64_t         corrupt_count;
    uint32_t       *spare_order; /* made when the first replacement is needed */
    int64_t         spare_epoch;

    /* A bit a sample: read to its end once without a fault. Whether an image is corrupt is so a property of the file,
     * not of the crop that was drawn first, and yet each file is read to its end only once. */
    atomic_uchar *verified;

    struct worker        *workers;
    int                   started;
    int64_t               wait_ns;
    struct cr_load_counts counts; /* guarded by `mutex`; workers bring theirs with each claim */
};

struct worker {
    struct cr_loader *loader;
    struct cr_scratch scratch;
    pthread_t         thread;
};

/* ---- order ---- */

/* The first place of batch `index` in the order of its epoch. */
static int64_t first_place(const struct cr_loader *loader, int64_t index) {
    const struct cr_loader_options *o = &loader->options;
    return (index * CR_MAX(o->ranks, 1) + o->rank) * o->batch;
}

/* Does batch `seq` exist? Training has no end; an evaluation's ends with the images. */
static bool exists(const struct cr_loader *loader, int64_t seq) {
    return loader->options.split == CR_SPLIT_TRAIN || first_place(loader, loader->first_seq + seq) < loader->count;
}

/* Gives batch `seq` to its free slot and notes which samples it has. */
static void open_slot(struct cr_loader *loader, struct slot *slot, int64_t seq) {
    int64_t batch = loader->options.batch, at = loader->first_seq + seq;
    slot->seq     = seq;
    slot->epoch   = loader->options.epoch + at / loader->batches;
    slot->index   = at % loader->batches;
    slot->claimed = slot->done = 0;
    slot->status               = CR_OK;
    if (loader->order && loader->order_epoch != slot->epoch) {
        cr_order_shuffle(loader->order, loader->count, loader->options.seed, slot->epoch);
        loader->order_epoch = slot->epoch;
    }
    for (int64_t i = 0; i < batch; i++) {
        int64_t position = first_place(loader, slot->index) + i;
        if (loader->order)
            slot->samples[i] = loader->order[position % loader->count];
        else
            slot->samples[i] = position < loader->count ? position : -1;
    }
}

/* ---- one sample ---- */

/* Names a corrupt image the first time that it is met. Its message is the thread's current error. */
static void note_corrupt(struct cr_loader *loader, int64_t sample, const char *message) {
    uint8_t bit = (uint8_t)(1u << (sample % 8));
    pthread_mutex_lock(&loader->corrupt_mutex);
    bool fresh = !(loader->corrupt_seen[sample / 8] & bit);
    loader->corrupt_seen[sample / 8] |= bit;
    loader->corrupt_count += fresh;
    pthread_mutex_unlock(&loader->corrupt_mutex);
    if (fresh) cr_log(CR_LOG_WARN, "skipped an image: %s", message);
}

/* The sample `step` places after position in the order of `epoch`: a batch that is being filled may belong to another
 * epoch than the newest order, so replacements come from an order of their own. */
static cr_status replacement(struct cr_loader *loader, int64_t epoch, int64_t position, int64_t step, int64_t *out) {
    cr_status status = CR_OK;
    pthread_mutex_lock(&loader->corrupt_mutex);
    if (!loader->spare_order) {
        loader->spare_order = cr_alloc((size_t)loader->count, sizeof *loader->spare_order);
        loader->spare_epoch = -1;
        if (!loader->spare_order) status = CR_NO_MEMORY((size_t)loader->count * sizeof *loader->spare_order);
    }
    if (status == CR_OK) {
        if (loader->spare_epoch != epoch)
            cr_order_shuffle(loader->spare_order, loader->count, loader->options.seed, epoch);
        loader->spare_epoch = epoch;
        *out                = loader->spare_order[(position + step) % loader->count];
    }
    pthread_mutex_unlock(&loader->corrupt_mutex);
    return status;
}

/* One sample of the data set into its place; what comes back as FORMAT or IO is an image that cannot be read. */
static cr_status load_sample(struct cr_loader *loader, struct cr_scratch *scratch, int64_t epoch, int64_t sample,
                             uint8_t *image, int32_t *label, int32_t *box) {
    const struct cr_loader_options *o     = &loader->options;
    const struct cr_dataset        *set   = loader->dataset;
    unsigned char                   bit   = (unsigned char)(1u << (sample % 8));
    int64_t                         start = cr_time_ns();
    char                            name[CR_SAMPLE_NAME_BYTES];
    struct cr_stored                stored;
    struct cr_lazy_image            lazy;
    CR_TRY(set->ops->fetch(set, sample, scratch, &stored, label));
    scratch->counts.fetch_ns += cr_time_ns() - start;
    size_t pixel_bytes = stored.bytes ? 0 : (size_t)stored.pixels.width * (size_t)stored.pixels.height * 3;
    scratch->counts.file_bytes += (int64_t)(stored.bytes ? stored.count : pixel_bytes);
    stored.verified =
        stored.verified || (atomic_load_explicit(&loader->verified[sample / 8], memory_order_relaxed) & bit);
    set->ops->name(set, sample, name, sizeof name);
    CR_TRY(cr_lazy_image_open(&stored, name, scratch, &lazy));
    if (o->split == CR_SPLIT_TRAIN)
        CR_TRY(cr_prepare_train_with(&o->prepare, &lazy, o->seed, epoch, sample, scratch, image, box));
    else
        CR_TRY(cr_prepare_eval_with(&o->prepare, &lazy, scratch, image));
    if (!stored.verified) atomic_fetch_or_explicit(&loader->verified[sample / 8], bit, memory_order_relaxed);
    scratch->counts.images++;
    scratch->counts.verified += stored.verified;
    return CR_OK;
}

static bool is_corrupt(cr_status status) {
    return status == CR_ERR_FORMAT || status == CR_ERR_IO;
}

static void fill_black(const struct cr_loader *loader, uint8_t *image, int32_t *label) {
    memset(image, 0, (size_t)loader->options.prepare.size * loader->options.prepare.size * 3);
    *label = -1;
}

/* Fills place `at` of the slot, with a replacement where the image is corrupt and training may go on. */
static cr_status fill_place(struct cr_loader *loader, struct slot *slot, int64_t at, struct cr_scratch *scratch) {
    size_t   bytes  = (size_t)loader->options.prepare.size * loader->options.prepare.size * 3;
    uint8_t *image  = slot->images + (size_t)at * bytes;
    int32_t *box    = slot->boxes ? slot->boxes + 4 * at : NULL;
    int64_t  sample = slot->samples[at], most = CR_MIN(loader->count, UNREADABLE_MAX);
    if (sample < 0) {
        fill_black(loader, image, &slot->labels[at]);
        return CR_OK;
    }
    if (slot->mixes)
        cr_prepare_mix(&loader->options.prepare, loader->options.seed, slot->epoch, sample, at, loader->options.batch,
                       slot->mixes + CR_MIX_NUMBERS * at);
    for (int64_t step = 1;; step++) {
        cr_status status = load_sample(loader, scratch, slot->epoch, sample, image, &slot->labels[at], box);
        if (status == CR_OK || !is_corrupt(status)) return status;
        if (loader->options.corrupt_fatal)
            return CR_FAIL(status, "%s (set data.corrupt = skip to go on without such images)", cr_error_message());
        note_corrupt(loader, sample, cr_error_message());
        if (loader->options.split != CR_SPLIT_TRAIN) {
            fill_black(loader, image, &slot->labels[at]);
            return CR_OK;
        }
        if (step == most)
            return CR_FAIL(status, "%lld images in a row could not be read; the last one: %s", (long long)most,
                           cr_error_message());
        int64_t position = first_place(loader, slot->index) + at;
        CR_TRY(replacement(loader, slot->epoch, position, step, &sample));
    }
}

/* ---- workers ---- */

struct claim {
    struct slot *slot;
    int64_t      first, count;
};

/* Claims the next few samples in order; false when there is nothing to do now. Holds the mutex. */
static bool try_claim(struct cr_loader *loader, struct claim *claim) {
    if (loader->failed || loader->stop) return false;
    int64_t      batch = loader->options.batch;
    struct slot *slot  = loader->next_open ? &loader->slots[(loader->next_open - 1) % loader->n_slots] : NULL;
    if (!slot || slot->seq != loader->next_open - 1 || slot->claimed == batch) {
        slot = &loader->slots[loader->next_open % loader->n_slots];
        if (slot->seq >= 0 || !exists(loader, loader->next_open)) return false;
        open_slot(loader, slot, loader->next_open++);
        pthread_cond_broadcast(&loader->work); /* there is work for all */
    }
    int64_t share = batch / (4 * CR_MAX(loader->options.workers, 1)); /* so that all end at about the same time */
    claim->slot   = slot;
    claim->first  = slot->claimed;
    claim->count  = CR_MIN(CR_MAX(1, CR_MIN(share, CLAIM_MAX)), batch - slot->claimed);
    slot->claimed += claim->count;
    return true;
}

/* Reports a claim as done, with its error if there was one. Holds the mutex. */
static void finish_claim(struct cr_loader *loader, const struct claim *claim, struct cr_scratch *scratch,
                         cr_status status, int64_t error_at) {
    struct slot *slot = claim->slot;
    slot->done += claim->count;
    cr_load_counts_take(&loader->counts, &scratch->counts);
    if (status != CR_OK) {
        loader->failed = true;
        if (slot->status == CR_OK || error_at < slot->error_at) {
            slot->status   = status;
            slot->error_at = error_at;
            snprintf(slot->error, sizeof slot->error, "%s", cr_error_message());
        }
    }
    if (slot->done == slot->claimed && (slot->claimed == loader->options.batch || loader->failed))
        pthread_cond_broadcast(&loader->ready);
}

static cr_status run_claim(struct cr_loader *loader, const struct claim *claim, struct cr_scratch *scratch,
                           int64_t *error_at) {
    int64_t   start = cr_time_ns(), cpu = cr_thread_cpu_ns();
    cr_status status = CR_OK;
    for (int64_t i = claim->first; i < claim->first + claim->count && status == CR_OK && !loader->stop; i++) {
        status    = fill_place(loader, claim->slot, i, scratch);
        *error_at = i;
    }
    scratch->counts.other_ns = cr_time_ns() - start; /* the whole; cr_load_counts_take leaves the rest */
    scratch->counts.cpu_ns   = cr_thread_cpu_ns() - cpu;
    return status;
}

static void *worker_main(void *argument) {
    struct worker    *worker = argument;
    struct cr_loader *loader = worker->loader;
    struct claim      claim;
    pthread_mutex_lock(&loader->mutex);
    while (!loader->stop) {
        if (!try_claim(loader, &claim)) {
            pthread_cond_wait(&loader->work, &loader->mutex);
            continue;
        }
        pthread_mutex_unlock(&loader->mutex);
        int64_t   error_at = 0;
        cr_status status   = run_claim(loader, &claim, &worker->scratch, &error_at);
        pthread_mutex_lock(&loader->mutex);
        finish_claim(loader, &claim, &worker->scratch, status, error_at);
    }
    pthread_mutex_unlock(&loader->mutex);
    return NULL;
}

/* ---- open, close ---- */

static cr_status check_options(const struct cr_dataset *dataset, const struct cr_loader_options *o) {
    CR_ASSERT(o->batch >= 1 && o->workers >= 0 && o->prefetch >= 1 && o->prepare.size >= 1);
    CR_ASSERT(o->epoch >= 0 && o->first_batch >= 0 && o->rank >= 0 && o->rank < CR_MAX(o->ranks, 1));
    CR_ASSERT(o->split == CR_SPLIT_TRAIN || (o->epoch == 0 && o->first_batch == 0));
    if (dataset->count < 1) return CR_FAIL(CR_ERR_CONFIG, "the data set has no images");
    if (o->split == CR_SPLIT_TRAIN && dataset->count < o->batch * CR_MAX(o->ranks, 1))
        return CR_FAIL(
            CR_ERR_CONFIG,
            "[train] batch = %lld, of %d rank%s, is more than the %lld training images: take a smaller batch",
            (long long)o->batch, CR_MAX(o->ranks, 1), o->ranks > 1 ? "s" : "", (long long)dataset->count);
    if (dataset->count > UINT32_MAX) return CR_FAIL(CR_ERR_CONFIG, "more than 2^32 images in a data set");
    return CR_OK;
}

static cr_status make_slots(struct cr_loader *loader) {
    const struct cr_loader_options *o = &loader->options;
    size_t batch = (size_t)o->batch, image_bytes = (size_t)o->prepare.size * o->prepare.size * 3;
    CR_ALLOC(loader->slots, (size_t)loader->n_slots);
    for (int i = 0; i < loader->n_slots; i++) {
        struct slot *slot = &loader->slots[i];
        slot->seq         = -1;
        slot->images      = cr_alloc(batch, image_bytes);
        if (!slot->images) return CR_NO_MEMORY(batch * image_bytes);
        CR_ALLOC(slot->labels, batch);
        if (o->split == CR_SPLIT_TRAIN) CR_ALLOC(slot->boxes, 4 * batch);
        if (o->split == CR_SPLIT_TRAIN && o->prepare.mixes) CR_ALLOC(slot->mixes, CR_MIX_NUMBERS * batch);
        CR_ALLOC(slot->samples, batch);
    }
    return CR_OK;
}

static void make_sync(struct cr_loader *loader) {
    pthread_mutex_init(&loader->mutex, NULL); /* with default attributes these cannot fail here */
    pthread_mutex_init(&loader->corrupt_mutex, NULL);
    pthread_cond_init(&loader->work, NULL);
    pthread_cond_init(&loader->ready, NULL);
    loader->sync_made = true;
}

/* Signals are the main thread's business: the workers start with all of them blocked. */
static cr_status start_workers(struct cr_loader *loader) {
    sigset_t all, before;
    int      error = 0;
    CR_ALLOC(loader->workers, (size_t)CR_MAX(loader->options.workers, 1));
    for (int i = 0; i < CR_MAX(loader->options.workers, 1); i++) loader->workers[i].loader = loader;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (loader->started < loader->options.workers && !error) {
        struct worker *worker = &loader->workers[loader->started];
        error                 = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (!error) loader->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error) return CR_OK;
    return CR_FAIL(CR_ERR_IO, "only %d of %d worker threads could be started (%s): lower data.workers", loader->started,
                   loader->options.workers, strerror(error));
}

static cr_status build(struct cr_loader *loader) {
    make_sync(loader);
    CR_TRY(make_slots(loader));
    CR_ALLOC(loader->corrupt_seen, (size_t)loader->count / 8 + 1);
    CR_ALLOC(loader->verified, (size_t)loader->count / 8 + 1);
    if (loader->options.split == CR_SPLIT_TRAIN) CR_ALLOC(loader->order, (size_t)loader->count);
    loader->order_epoch = -1;
    return start_workers(loader);
}

cr_status cr_loader_open(const struct cr_dataset *dataset, const struct cr_loader_options *options,
                         struct cr_loader **out) {
    struct cr_loader *loader;
    CR_TRY(check_options(dataset, options));
    CR_ALLOC(loader, 1);
    loader->dataset   = dataset;
    loader->options   = *options;
    loader->count     = dataset->count;
    loader->batches   = cr_loader_batches(dataset, options);
    loader->first_seq = options->first_batch;
    loader->n_slots   = (options->workers ? options->prefetch : 1) + 1; /* one more: the consumer holds one */
    cr_status status  = build(loader);
    if (status != CR_OK) {
        cr_loader_close(loader);
        return cr_error_forward(status, __FILE__, __LINE__);
    }
    *out = loader;
    return CR_OK;
}

static void stop_workers(struct cr_loader *loader) {
    pthread_mutex_lock(&loader->mutex);
    loader->stop = true;
    pthread_cond_broadcast(&loader->work);
    pthread_mutex_unlock(&loader->mutex);
    for (int i = 0; i < loader->started; i++) pthread_join(loader->workers[i].thread, NULL);
}

void cr_loader_close(struct cr_loader *loader) {
    if (!loader) return;
    if (loader->sync_made) {
        stop_workers(loader);
        pthread_cond_destroy(&loader->work);
        pthread_cond_destroy(&loader->ready);
        pthread_mutex_destroy(&loader->mutex);
        pthread_mutex_destroy(&loader->corrupt_mutex);
    }
    for (int i = 0; loader->workers && i < CR_MAX(loader->options.workers, 1); i++)
        cr_scratch_free(&loader->workers[i].scratch);
    for (int i = 0; loader->slots && i < loader->n_slots; i++) {
        cr_free(loader->slots[i].images);
        cr_free(loader->slots[i].labels);
        cr_free(loader->slots[i].boxes);
        cr_free(loader->slots[i].mixes);
        cr_free(loader->slots[i].samples);
    }
    cr_free(loader->slots);
    cr_free(loader->order);
    cr_free(loader->spare_order);
    cr_free(loader->corrupt_seen);
    cr_free(loader->verified);
    cr_free(loader->workers);
    cr_free(loader);
}

/* ---- the consumer ---- */

/* Without workers the consumer fills the slot itself. Holds the mutex, though nobody else is there. */
static void fill_inline(struct cr_loader *loader, struct slot *slot) {
    struct claim claim;
    while (!(slot->seq == loader->next_out && slot->claimed == loader->options.batch) && try_claim(loader, &claim)) {
        int64_t   error_at = 0;
        cr_status status   = run_claim(loader, &claim, &loader->workers[0].scratch, &error_at);
        finish_claim(loader, &claim, &loader->workers[0].scratch, status, error_at);
    }
}

/* Is the slot, which has its batch, as done as it will ever be? */
static bool settled(const struct cr_loader *loader, const struct slot *slot) {
    if (slot->seq != loader->next_out) return false;
    return slot->done == slot->claimed && (slot->claimed == loader->options.batch || loader->failed);
}

static cr_status take_batch(struct cr_loader *loader, struct cr_batch *batch) {
    struct slot *slot = &loader->slots[loader->next_out % loader->n_slots];
    CR_ASSERT(!slot->held); /* every batch must be released before the ring comes round to it */
    if (!loader->started) fill_inline(loader, slot);
    while (!settled(loader, slot)) pthread_cond_wait(&loader->ready, &loader->mutex);
    if (slot->status != CR_OK) return CR_FAIL(slot->status, "%s", slot->error);
    CR_ASSERT(slot->claimed == loader->options.batch); /* batches before the failed one were claimed whole */
    slot->held    = true;
    int64_t start = first_place(loader, slot->index);
    batch->images = slot->images;
    batch->labels = slot->labels;
    batch->boxes  = slot->boxes;
    batch->mixes  = slot->mixes;
    batch->epoch  = slot->epoch;
    batch->index  = slot->index;
    batch->slot   = (int)(slot - loader->slots);
    batch->count  = loader->options.batch;
    if (loader->options.split != CR_SPLIT_TRAIN) batch->count = CR_MIN(batch->count, loader->count - start);
    loader->next_out++;
    return CR_OK;
}

cr_status cr_loader_next(struct cr_loader *loader, struct cr_batch *batch) {
    int64_t   start  = cr_time_ns();
    cr_status status = CR_OK;
    pthread_mutex_lock(&loader->mutex);
    if (exists(loader, loader->next_out))
        status = take_batch(loader, batch);
    else
        *batch = (struct cr_batch){.slot = -1};
    loader->wait_ns += cr_time_ns() - start;
    pthread_mutex_unlock(&loader->mutex);
    return status;
}

void cr_loader_release(struct cr_loader *loader, struct cr_batch *batch) {
    if (batch->slot < 0) return;
    pthread_mutex_lock(&loader->mutex);
    struct slot *slot = &loader->slots[batch->slot];
    CR_ASSERT(slot->held);
    slot->held = false;
    slot->seq  = -1;
    pthread_cond_broadcast(&loader->work);
    pthread_mutex_unlock(&loader->mutex);
    *batch = (struct cr_batch){.slot = -1};
}

int64_t cr_loader_wait_ns(const struct cr_loader *loader) {
    return loader->wait_ns;
}

int64_t cr_loader_corrupt(const struct cr_loader *loader) {
    struct cr_loader *shared = (struct cr_loader *)loader; /* reading a counter leaves it as it was */
    pthread_mutex_lock(&shared->corrupt_mutex);
    int64_t count = loader->corrupt_count;
    pthread_mutex_unlock(&shared->corrupt_mutex);
    return count;
}

void cr_loader_counts(const struct cr_loader *loader, struct cr_load_counts *out) {
    struct cr_loader *shared = (struct cr_loader *)loader; /* as above */
    pthread_mutex_lock(&shared->mutex);
    *out = loader->counts;
    pthread_mutex_unlock(&shared->mutex);
}
