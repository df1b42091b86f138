/* data/loader/loader.c: the data loader: worker threads that prefetch batches into a ring, and the consumer's side.
 *
 * The ring has one slot per batch; batch `seq` (counted from the start of the loader) uses slot seq % slots. Workers
 * open the next slot when it is free and claim its samples a few at a time; the last worker to finish makes the batch
 * ready. The consumer gets ready batches in order and releases their slots.
 *
 * `mutex` guards all shared members, except the pixels, label and box of a claimed sample, which belong to the
 * worker until it reports them as done. `stop` is also read without the mutex, so that a worker can stop within a
 * claim. */
#include "data/loader/loader_internal.h"
#include "data/source.h"
#include "graph/graph.h"

#include <signal.h>
#include <string.h>

enum { CLAIM_MAX = 16 }; /* samples that a worker claims at once, at most */

struct worker {
    struct cr_loader *loader;
    struct cr_scratch scratch;
    pthread_t         thread;
    bool              retired; /* one of too many: see start_workers */
};

/* ---- workers ---- */

struct claim {
    struct slot *slot;
    int64_t      first, count;
};

/* Claims the next few samples in order; false when no sample can be claimed now. The caller holds the mutex. */
static bool try_claim(struct cr_loader *loader, struct claim *claim) {
    if (loader->failed || loader->stop) return false;
    int64_t      batch = loader->options.batch;
    struct slot *slot  = loader->next_open ? &loader->slots[(loader->next_open - 1) % loader->n_slots] : NULL;
    if (!slot || slot->seq != loader->next_open - 1 || slot->claimed == batch) {
        slot = &loader->slots[loader->next_open % loader->n_slots];
        if (slot->seq >= 0 || !cr_loader_has_batch(loader, loader->next_open)) return false;
        cr_loader_slot_open(loader, slot, loader->next_open++);
        pthread_cond_broadcast(&loader->work);
    }
    int64_t even_part =
        batch / (4 * CR_MAX(loader->options.workers, 1)); /* so that all workers end at about the same time */
    claim->slot  = slot;
    claim->first = slot->claimed;
    claim->count = CR_MIN(CR_MAX(1, CR_MIN(even_part, CLAIM_MAX)), batch - slot->claimed);
    slot->claimed += claim->count;
    return true;
}

/* Reports a claim as done, with its error if it has one. The caller holds the mutex. */
static void finish_claim(struct cr_loader *loader, const struct claim *claim, struct cr_scratch *scratch,
                         cr_status status, int64_t error_at) {
    struct slot *slot = claim->slot;
    slot->done += claim->count;
    cr_load_counts_add(&loader->counts, &scratch->counts);
    if (status != CR_OK) {
        loader->failed = true;
        if (slot->status == CR_OK || error_at < slot->error_at) {
            slot->status   = status;
            slot->error_at = error_at;
            cr_error_copy(slot->error, sizeof slot->error);
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
        status    = cr_loader_fill_place(loader, claim->slot, i, true, scratch);
        *error_at = i;
    }
    if (status == CR_OK) status = cr_dataset_check_used(loader->dataset, CR_OK); /* a system call: once for a claim */
    scratch->counts.other_ns =
        cr_time_ns() - start; /* the total time; cr_load_counts_add subtracts the single stages */
    scratch->counts.cpu_ns = cr_thread_cpu_ns() - cpu;
    return status;
}

static void *worker_main(void *argument) {
    struct worker    *worker = argument;
    struct cr_loader *loader = worker->loader;
    struct claim      claim;
    pthread_mutex_lock(&loader->mutex);
    while (!loader->stop && !worker->retired) {
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
    if (dataset->count < 1) return CR_FAIL(CR_ERR_CONFIG, "the dataset has no images");
    if (o->split == CR_SPLIT_TRAIN && dataset->count < o->batch * CR_MAX(o->ranks, 1))
        return CR_FAIL(CR_ERR_CONFIG,
                       "[train] batch = %lld, of %d rank%s, is more than the %lld training images: set a smaller batch",
                       (long long)o->batch, CR_MAX(o->ranks, 1), o->ranks > 1 ? "s" : "", (long long)dataset->count);
    if (dataset->count > UINT32_MAX) return CR_FAIL(CR_ERR_CONFIG, "more than 2^32 images in a dataset");
    return CR_OK;
}

static cr_status reserve_images(struct cr_loader *loader, size_t bytes, uint8_t **out) {
    const struct cr_loader_memory *m = &loader->options.memory;
    void                          *images;
    if (m->reserve) CR_TRY(m->reserve(m->owner, bytes, &images));
    if (!m->reserve && !(images = cr_alloc(bytes, 1))) return CR_NO_MEMORY(bytes);
    *out = images;
    return CR_OK;
}

static void release_images(struct cr_loader *loader, uint8_t *images) {
    const struct cr_loader_memory *m = &loader->options.memory;
    if (!images || !m->release)
        cr_free(images);
    else
        m->release(m->owner, images);
}

static cr_status make_slots(struct cr_loader *loader) {
    const struct cr_loader_options *o     = &loader->options;
    size_t                          batch = (size_t)o->batch, image_bytes = 0;
    for (int k = 0; k < loader->sizes.count; k++)
        image_bytes = CR_MAX(image_bytes, cr_prepare_bytes(&loader->prepare[k]));
    CR_ALLOC(loader->slots, (size_t)loader->n_slots);
    for (int i = 0; i < loader->n_slots; i++) {
        struct slot *slot = &loader->slots[i];
        slot->seq         = -1;
        CR_TRY(reserve_images(loader, batch * image_bytes, &slot->images));
        CR_ALLOC(slot->labels, batch * (size_t)cr_dataset_label_words(loader->dataset));
        if (o->split == CR_SPLIT_TRAIN) CR_ALLOC(slot->boxes, 4 * batch);
        if (o->split == CR_SPLIT_TRAIN && o->prepare.mixes) CR_ALLOC(slot->mixes, CR_MIX_NUMBERS * batch);
        CR_ALLOC(slot->samples, batch);
        if (!o->jpeg_bytes) continue;
        slot->jpeg.capacity = o->jpeg_bytes;
        CR_ALLOC(slot->scans, batch);
        CR_ALLOC(slot->scan_samples, batch);
        CR_TRY(reserve_images(loader, o->jpeg_bytes, &slot->jpeg.bytes));
    }
    return CR_OK;
}

/* Called when the system refuses a thread. Batches do not depend on the number of workers, so the loader continues with
 * half of the workers that have started. The remaining ones end, because other parts of the program need threads. */
static void keep_half(struct cr_loader *loader, int error) {
    const int left = loader->started / 2;
    cr_log(CR_LOG_WARN, "%d of %d threads load images (data.workers)%s: the system starts no more (%s)", left,
           loader->options.workers, left ? "" : ", the main thread does", strerror(error));
    pthread_mutex_lock(&loader->mutex);
    for (int i = left; i < loader->started; i++) loader->workers[i].retired = true;
    loader->options.workers = left;
    pthread_cond_broadcast(&loader->work);
    pthread_mutex_unlock(&loader->mutex);
    while (loader->started > left) {
        struct worker *worker = &loader->workers[--loader->started];
        pthread_join(worker->thread, NULL);
        cr_scratch_free(&worker->scratch);
    }
}

/* The main thread handles signals: workers start with all but SIGBUS blocked. */
static cr_status start_workers(struct cr_loader *loader) {
    sigset_t all, before;
    int      error = 0;
    CR_ALLOC(loader->workers, (size_t)CR_MAX(loader->options.workers, 1));
    for (int i = 0; i < CR_MAX(loader->options.workers, 1); i++) loader->workers[i].loader = loader;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* the handler of data/source/pack_map.c: a blocked SIGBUS ends the process */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (loader->started < loader->options.workers && !error) {
        struct worker *worker = &loader->workers[loader->started];
        error                 = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (!error) loader->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) keep_half(loader, error);
    return CR_OK;
}

static cr_status build(struct cr_loader *loader) {
    pthread_mutex_init(&loader->mutex, NULL); /* with default attributes these calls cannot fail here */
    pthread_mutex_init(&loader->corrupt_mutex, NULL);
    pthread_cond_init(&loader->work, NULL);
    pthread_cond_init(&loader->ready, NULL);
    CR_TRY(make_slots(loader));
    CR_ALLOC(loader->corrupt_seen, (size_t)loader->count / 8 + 1);
    CR_ALLOC(loader->verified, (size_t)loader->count / 8 + 1);
    if (loader->options.jpeg_bytes) CR_ALLOC(loader->refused, (size_t)loader->count / 8 + 1);
    if (loader->options.split == CR_SPLIT_TRAIN) {
        if (loader->options.balanced) CR_TRY(cr_class_index_make(loader->dataset, &loader->index));
        loader->order = cr_loader_order_new(loader);
        if (!loader->order) return CR_NO_MEMORY((size_t)loader->count * sizeof *loader->order);
    }
    loader->order_epoch = -1;
    return start_workers(loader);
}

static void set_sizes(struct cr_loader *loader) {
    const struct cr_loader_options *o = &loader->options;
    loader->sizes                     = o->sizes ? *o->sizes : (struct cr_size_schedule){.count = 1};
    for (int k = 0; k < loader->sizes.count; k++) loader->prepare[k] = o->sizes ? o->prepare_sizes[k] : o->prepare;
    loader->options.sizes         = NULL; /* they belong to the caller */
    loader->options.prepare_sizes = NULL;
}

cr_status cr_loader_open(const struct cr_dataset *dataset, const struct cr_loader_options *options,
                         struct cr_loader **out) {
    struct cr_loader *loader;
    CR_TRY(check_options(dataset, options));
    CR_ALLOC(loader, 1);
    loader->dataset = dataset;
    loader->options = *options;
    set_sizes(loader);
    loader->count     = dataset->count * cr_loader_views(loader);
    loader->batches   = cr_loader_batches(dataset, options);
    loader->first_seq = options->first_batch;
    loader->n_slots   = (options->workers ? options->prefetch : 1) + 1; /* one more, because the consumer holds one */
    if (options->memory.reserve) loader->n_slots += CR_LOADER_IN_FLIGHT;
    loader->device_places = options->jpeg_bytes ? options->batch : 0;
    cr_status status      = build(loader);
    if (status == CR_OK)
        *out = loader;
    else
        cr_loader_close(loader);
    return status;
}

void cr_loader_close(struct cr_loader *loader) {
    if (!loader) return;
    pthread_mutex_lock(&loader->mutex);
    loader->stop = true;
    pthread_cond_broadcast(&loader->work);
    pthread_mutex_unlock(&loader->mutex);
    for (int i = 0; i < loader->started; i++) pthread_join(loader->workers[i].thread, NULL);
    pthread_cond_destroy(&loader->work);
    pthread_cond_destroy(&loader->ready);
    pthread_mutex_destroy(&loader->mutex);
    pthread_mutex_destroy(&loader->corrupt_mutex);
    for (int i = 0; loader->workers && i < CR_MAX(loader->options.workers, 1); i++)
        cr_scratch_free(&loader->workers[i].scratch);
    for (int i = 0; loader->slots && i < loader->n_slots; i++) {
        release_images(loader, loader->slots[i].images);
        release_images(loader, loader->slots[i].jpeg.bytes);
        cr_free(loader->slots[i].scans);
        cr_free(loader->slots[i].scan_samples);
        cr_free(loader->slots[i].labels);
        cr_free(loader->slots[i].boxes);
        cr_free(loader->slots[i].mixes);
        cr_free(loader->slots[i].samples);
    }
    cr_free(loader->slots);
    cr_class_index_free(&loader->index);
    cr_free(loader->order);
    cr_free(loader->spare_order);
    cr_free(loader->corrupt_seen);
    cr_free(loader->verified);
    cr_free(loader->refused);
    cr_free(loader->workers);
    cr_free(loader);
}

/* ---- the consumer ---- */

/* Without workers the consumer fills the slot itself. The caller holds the mutex, although no other thread exists. */
static void fill_inline(struct cr_loader *loader, struct slot *slot) {
    struct claim claim;
    while (!(slot->seq == loader->next_out && slot->claimed == loader->options.batch) && try_claim(loader, &claim)) {
        int64_t   error_at = 0;
        cr_status status   = run_claim(loader, &claim, &loader->workers[0].scratch, &error_at);
        finish_claim(loader, &claim, &loader->workers[0].scratch, status, error_at);
    }
}

/* Returns whether the slot is complete, or no worker will continue it. */
static bool is_finished(const struct cr_loader *loader, const struct slot *slot) {
    if (slot->seq != loader->next_out) return false;
    return slot->done == slot->claimed && (slot->claimed == loader->options.batch || loader->failed);
}

static cr_status deliver_batch(struct cr_loader *loader, struct cr_batch *batch) {
    struct slot *slot = &loader->slots[loader->next_out % loader->n_slots];
    cr_loader_balance_places(loader);
    CR_ASSERT(!slot->held); /* the consumer must release every batch before the ring returns to its slot */
    if (!loader->started) fill_inline(loader, slot);
    while (!is_finished(loader, slot)) pthread_cond_wait(&loader->ready, &loader->mutex);
    if (slot->status != CR_OK) return CR_FAIL(slot->status, "%s", slot->error);
    CR_ASSERT(slot->claimed ==
              loader->options.batch); /* all samples of the batches before the failed one were claimed */
    slot->held         = true;
    int64_t start      = cr_loader_first_place(loader, slot->index);
    batch->images      = slot->images;
    batch->labels      = slot->labels;
    batch->boxes       = slot->boxes;
    batch->mixes       = slot->mixes;
    batch->epoch       = slot->epoch;
    batch->index       = slot->index;
    batch->slot        = (int)(slot - loader->slots);
    batch->width       = cr_prepare_width(cr_loader_prepare(loader, slot->epoch));
    batch->height      = cr_loader_prepare(loader, slot->epoch)->size;
    batch->scans       = slot->device_places ? slot->scans : NULL;
    batch->jpeg_data   = slot->jpeg.bytes;
    batch->jpeg_bytes  = atomic_load(&slot->jpeg.used);
    batch->page_locked = loader->options.memory.reserve != NULL;
    batch->count       = loader->options.batch;
    if (loader->options.split != CR_SPLIT_TRAIN) batch->count = CR_MIN(batch->count, loader->count - start);
    loader->next_out++;
    return CR_OK;
}

cr_status cr_loader_next(struct cr_loader *loader, struct cr_batch *batch) {
    int64_t   start  = cr_time_ns();
    cr_status status = CR_OK;
    pthread_mutex_lock(&loader->mutex);
    if (cr_loader_has_batch(loader, loader->next_out))
        status = deliver_batch(loader, batch);
    else
        *batch = (struct cr_batch){.slot = -1};
    loader->wait_ns += cr_time_ns() - start;
    pthread_mutex_unlock(&loader->mutex);
    return status;
}

/* Frees released slots until `keep` of them remain. The caller holds the mutex. */
static void free_slots(struct cr_loader *loader, int keep) {
    while (loader->n_in_flight > keep) {
        loader->slots[loader->in_flight[0]].seq = -1;
        loader->n_in_flight--;
        memmove(loader->in_flight, loader->in_flight + 1, (size_t)loader->n_in_flight * sizeof *loader->in_flight);
    }
    pthread_cond_broadcast(&loader->work);
}

void cr_loader_settle(struct cr_loader *loader) {
    pthread_mutex_lock(&loader->mutex);
    free_slots(loader, 0);
    pthread_mutex_unlock(&loader->mutex);
}

void cr_loader_release(struct cr_loader *loader, struct cr_batch *batch) {
    if (batch->slot < 0) return;
    pthread_mutex_lock(&loader->mutex);
    struct slot *slot = &loader->slots[batch->slot];
    CR_ASSERT(slot->held);
    slot->held                               = false;
    loader->in_flight[loader->n_in_flight++] = batch->slot;
    free_slots(loader, batch->page_locked ? CR_LOADER_IN_FLIGHT : 0);
    pthread_mutex_unlock(&loader->mutex);
    *batch = (struct cr_batch){.slot = -1};
}

int64_t cr_loader_wait_ns(const struct cr_loader *loader) {
    return loader->wait_ns;
}

int64_t cr_loader_corrupt(const struct cr_loader *loader) {
    struct cr_loader *shared = (struct cr_loader *)loader; /* reading a counter does not change the loader */
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
