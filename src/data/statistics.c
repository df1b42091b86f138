/* data/statistics.c: statistics of a dataset: reads every image of a split with threads, sums up mean and std. */
#include "data/statistics.h"

#include "data/pack.h"
#include "data/source.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct job {
    const struct cr_dataset *dataset;
    struct cr_data_stat     *stat;
    atomic_llong             next;
    atomic_int               ended; /* a worker failed with an error that is not the fault of an image */
    pthread_mutex_t          mutex; /* guards the members below and stat->bad */
    cr_status                status;
    char                     message[1024];
};

/* Sums of bytes are integers: exact, in any order. */
static void measure(const struct cr_image *image, struct cr_sample_stat *out) {
    const int64_t pixels   = (int64_t)image->width * image->height;
    const int     channels = cr_format_channels(image->format);
    const bool    wide     = cr_format_bits(image->format) == 16;
    const double  largest  = wide ? 65535 : 255;
    uint64_t      sum[4] = {0}, square[4] = {0};
    for (int64_t i = 0; i < pixels; i++)
        for (int c = 0; c < channels; c++) {
            uint16_t       v16 = 0;
            const uint8_t *at  = image->rgb + (i * channels + c) * (wide ? 2 : 1);
            if (wide) memcpy(&v16, at, sizeof v16);
            const uint64_t v = wide ? v16 : *at;
            sum[c] += v;
            square[c] += v * v;
        }
    for (int c = 0; c < channels; c++) {
        out->mean[c]   = (float)((double)sum[c] / (double)pixels / largest);
        out->square[c] = (float)((double)square[c] / (double)pixels / (largest * largest));
    }
    const int32_t shape[] = {image->width, image->height};
    uint64_t      hash    = cr_hash_bytes(CR_HASH_START, shape, sizeof shape);
    out->hash   = cr_hash_mix(cr_hash_bytes(hash, image->rgb, (size_t)pixels * cr_format_bytes(image->format)));
    out->width  = image->width;
    out->height = image->height;
}

static cr_status add_bad(struct cr_data_stat *s, int64_t sample) {
    const char *why = cr_arena_printf(&s->arena, "%s", cr_error_message());
    if (!why) return CR_NO_MEMORY(256);
    CR_GROW(s->bad, s->bads, s->bad_capacity, 16);
    s->bad[s->bads++] = (struct cr_bad_sample){sample, why};
    return CR_OK;
}

static cr_status note_bad(struct job *job, int64_t sample) {
    pthread_mutex_lock(&job->mutex);
    const cr_status status = add_bad(job->stat, sample);
    pthread_mutex_unlock(&job->mutex);
    return status;
}

static cr_status read_one(struct job *job, int64_t i, struct cr_scratch *scratch) {
    struct cr_sample_stat *s = &job->stat->sample[i];
    struct cr_stored       stored;
    struct cr_image        image;
    int32_t                label;
    cr_status              status = cr_dataset_view(job->dataset, i, scratch, &stored, &image, &label);
    if (status == CR_OK) {
        s->label = label;
        s->pages = stored.bytes ? cr_tiff_pages(stored.bytes, stored.count) : 1;
        measure(&image, s);
    }
    cr_scratch_release(scratch);
    if (!cr_dataset_is_corrupt(job->dataset, status)) return status;
    s->bad = true;
    status = note_bad(job, i);
    if (status == CR_OK) cr_error_clear();
    return status;
}

static void *work(void *argument) {
    struct job       *job     = argument;
    struct cr_scratch scratch = {0};
    while (!atomic_load(&job->ended)) {
        const int64_t i = (int64_t)atomic_fetch_add(&job->next, 1);
        if (i >= job->stat->count) break;
        const cr_status status = read_one(job, i, &scratch);
        if (status == CR_OK) continue;
        pthread_mutex_lock(&job->mutex);
        if (job->status == CR_OK) {
            job->status = status;
            cr_error_copy(job->message, sizeof job->message);
        }
        pthread_mutex_unlock(&job->mutex);
        atomic_store(&job->ended, 1);
    }
    cr_scratch_free(&scratch);
    return NULL;
}

static int compare_bad(const void *a, const void *b) {
    const struct cr_bad_sample *x = a, *y = b;
    return (x->sample > y->sample) - (x->sample < y->sample);
}

static void compute_totals(struct cr_data_stat *s) {
    double mean[4] = {0}, square[4] = {0};
    if (s->bads) qsort(s->bad, (size_t)s->bads, sizeof *s->bad, compare_bad);
    for (int64_t i = 0; i < s->count; i++)
        for (int c = 0; c < s->channels; c++) {
            mean[c] += (double)s->sample[i].mean[c];
            square[c] += (double)s->sample[i].square[c];
        }
    const double good = (double)CR_MAX(s->count - s->bads, 1);
    for (int c = 0; c < s->channels; c++) {
        s->mean[c] = mean[c] / good;
        s->std[c]  = sqrt(fmax(square[c] / good - s->mean[c] * s->mean[c], 0));
    }
}

cr_status cr_data_stat_open(const struct cr_dataset *dataset, int workers, struct cr_data_stat *out) {
    struct job job = {.dataset = dataset, .stat = out, .mutex = PTHREAD_MUTEX_INITIALIZER};
    *out           = (struct cr_data_stat){.count = dataset->count, .classes = dataset->classes};
    out->channels  = cr_format_channels(dataset->format);
    CR_ALLOC(out->sample, (size_t)out->count);
    cr_work_together(work, &job, workers);
    pthread_mutex_destroy(&job.mutex);
    if (job.status == CR_OK) {
        compute_totals(out);
        return CR_OK;
    }
    cr_data_stat_close(out);
    return CR_FAIL(job.status, "%s", job.message);
}

void cr_data_stat_close(struct cr_data_stat *stat) {
    cr_free(stat->sample);
    cr_free(stat->bad);
    cr_arena_free(&stat->arena);
    *stat = (struct cr_data_stat){0};
}
