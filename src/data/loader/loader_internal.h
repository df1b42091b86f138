/* data/loader/loader_internal.h: the state of a loader, which loader.c and samples.c share. */
#ifndef CR_LOADER_INTERNAL_H
#define CR_LOADER_INTERNAL_H

#include "data/decode.h"

#include <pthread.h>
#include <stdatomic.h>

enum { CR_LOADER_ERROR_BYTES = 1024 };

struct slot { /* one batch in preparation */
    uint8_t             *images;
    int32_t             *labels;
    int32_t             *boxes;         /* [batch][4]; NULL in evaluation */
    int32_t             *mixes;         /* [batch][CR_MIX_NUMBERS]; NULL when nothing is mixed */
    int64_t             *samples;       /* [batch], sample numbers; -1: padding */
    struct cr_jpeg_scan *scans;         /* [batch], for a device; NULL without one */
    struct cr_jpeg_data  jpeg;          /* their data */
    int64_t             *scan_samples;  /* [batch], the sample of each scan: a replacement, where one was corrupt */
    int64_t              device_places; /* the device may decode the images of the first places */
    int64_t              seq; /* number of the batch, counted from the start of the loader; -1: the slot is free */
    int64_t              epoch, index;
    int64_t              claimed, done; /* samples that workers have claimed, and finished */
    bool                 held;          /* the consumer has the batch */
    cr_status            status;        /* of the first sample, in batch order, that failed */
    int64_t              error_at;
    char                 error[CR_LOADER_ERROR_BYTES];
};

/* The samples of each class, for balanced sampling. */
struct class_index {
    int       classes, present; /* present: classes that have samples */
    uint32_t *sample;           /* [count], by class; NULL without balanced sampling */
    int64_t  *first;            /* [classes + 1], where the samples of each class begin */
};

struct cr_loader {
    const struct cr_dataset *dataset;
    struct cr_loader_options options;
    struct cr_size_schedule  sizes; /* count is at least 1 */
    struct cr_prepare        prepare[CR_SIZES_MAX];
    int64_t                  count, batches, first_seq; /* samples and batches per epoch; batches before the start */
    struct slot             *slots;
    int                      n_slots;
    int                      in_flight[CR_LOADER_IN_FLIGHT + 1]; /* slots that were released last, the oldest first */
    int                      n_in_flight;
    struct class_index       index;
    uint32_t                *order; /* the order of epoch order_epoch, see cr_loader_order_new; NULL in evaluation */
    int64_t                  order_epoch;

    pthread_mutex_t mutex;
    pthread_cond_t  work, ready; /* work: samples can be claimed; ready: a batch is complete */
    atomic_bool     stop;
    bool            failed;
    int64_t         device_places;       /* of the next batch */
    int64_t         next_open, next_out; /* seq of the next batch to open, and of the next batch to deliver */

    /* Corrupt images have a mutex of their own, so that one does not block the other workers. */
    pthread_mutex_t corrupt_mutex;
    uint8_t        *corrupt_seen; /* one bit per sample */
    int64_t         corrupt_count;
    uint32_t       *spare_order; /* allocated for the first replacement */
    int64_t         spare_epoch;

    /* One bit per sample: the sample was read to its end once without an error. Whether an image is corrupt is
     * therefore a property of the file and not of the crop that was drawn first, and each file is read to its end
     * only once. */
    atomic_uchar *verified;
    atomic_uchar *refused; /* one bit per sample: a device could not decode the image; NULL without a device */

    struct worker        *workers;
    int                   started;
    int64_t               wait_ns;
    struct cr_load_counts counts; /* guarded by `mutex`; workers add their counts after each claim */
};

/* The index of the first place of batch `index` in the order of its epoch. */
int64_t cr_loader_first_place(const struct cr_loader *loader, int64_t index);
/* Evaluation with test-time augmentation: the number of consecutive places that are views of one sample, else 1. */
int cr_loader_views(const struct cr_loader *loader);
/* The preparation of the images of an epoch. */
const struct cr_prepare *cr_loader_prepare(const struct cr_loader *loader, int64_t epoch);
/* Returns whether batch `seq` exists. Training has no end; an evaluation ends with the images. */
bool cr_loader_has_batch(const struct cr_loader *loader, int64_t seq);
/* Assigns batch `seq` to a free slot and selects its samples. The caller holds the mutex. */
void cr_loader_slot_open(struct cr_loader *loader, struct slot *slot, int64_t seq);
/* Fills place `at` of the slot, or with `device` leaves the decoding of the image to the device. In training, a
 * replacement is used for a corrupt image unless corrupt_fatal is set.
 * CR_ERR_FORMAT, CR_ERR_IO: the image is corrupt. */
CR_MUST cr_status cr_loader_fill_place(struct cr_loader *loader, struct slot *slot, int64_t at, bool device,
                                       struct cr_scratch *scratch);

/* data/loader/device_places.c: with jpeg_auto, moves places of the next batches from the device to the workers while
 * all batches are ready, and back, faster, when the consumer has to wait. The caller holds the mutex. */
void cr_loader_balance_places(struct cr_loader *loader);

/* Adds the counts of a worker to `sum` and sets them to 0. part->other_ns is the total time of the worker on input;
 * the times of the single stages are subtracted. */
void    cr_load_counts_add(struct cr_load_counts *sum, struct cr_load_counts *part);
int64_t cr_thread_cpu_ns(void); /* CPU time of the calling thread */

/* data/loader/shuffle.c: fills order[count] with the samples of an epoch in their order, a function of seed and
 * epoch. */
void cr_order_shuffle(uint32_t *order, int64_t count, uint64_t seed, int64_t epoch);
/* The order of an epoch with repeated augmentation: the first count / repeats samples of the shuffled order, each
 * `repeats` times. order has room for 2 * count. */
void cr_order_repeat(uint32_t *order, int64_t count, int repeats, uint64_t seed, int64_t epoch);
/* Does a sample occur several times in an epoch? */
bool cr_loader_repeats(const struct cr_loader *loader);
/* Allocates memory for the order of an epoch (NULL: out of memory), and fills it by the options of the loader. */
uint32_t *cr_loader_order_new(const struct cr_loader *loader);
void      cr_loader_order_fill(const struct cr_loader *loader, uint32_t *order, int64_t epoch);

/* ---- data/loader/balance.c ---- */

/* Lists the samples of each class; the caller frees the lists with cr_class_index_free, also on failure. */
CR_MUST cr_status cr_class_index_make(const struct cr_dataset *dataset, struct class_index *out);
void              cr_class_index_free(struct class_index *index);
/* Fills order[count] with samples, a function of seed and epoch: all classes occur count / classes times, some of them
 * once more. A sample occurs again only after all samples of its class. order has room for 2 * count. */
void cr_order_balance(uint32_t *order, int64_t count, const struct class_index *index, uint64_t seed, int64_t epoch);

#endif
