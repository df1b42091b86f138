/* session/labels/label_scores.c: scores of multi-label evaluation (average precision). */
#include "session/labels/label_scores.h"

#include "core/cpu.h"
#include "data/data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double cr_label_probability(double logit) {
    return logit >= 0 ? 1 / (1 + exp(-logit)) : exp(logit) / (1 + exp(logit));
}

/* ---- collecting ---- */

enum { RESERVED_FRACTION = 16 }; /* 1/16 of the free memory stays free */

/* The system would kill a process that takes more memory than is free. */
cr_status cr_label_scores_check(const struct cr_label_scores *s, int64_t images) {
    const size_t image = (size_t)s->classes * sizeof *s->logits + (size_t)s->words * sizeof *s->labels;
    const size_t bytes = (size_t)images * image * (size_t)CR_MAX(s->copies, 1), left = cr_cpu_memory_free();
    if (!left || bytes <= left - left / RESERVED_FRACTION) return CR_OK;
    return CR_FAIL(CR_ERR_MEMORY,
                   "out of memory: the outputs of %lld images for %d classes take %.0f MiB, and %.0f MiB are free: %s",
                   (long long)images, s->classes, cr_mib(bytes), cr_mib(left), s->advice);
}

static cr_status reserve(struct cr_label_scores *s, int64_t images) {
    CR_TRY(cr_label_scores_check(s, images));
    const size_t   logits = (size_t)images * (size_t)s->classes, words = (size_t)images * (size_t)s->words;
    float *const   grown_logits = cr_realloc(s->logits, logits, sizeof *s->logits);
    int32_t *const grown_labels = grown_logits ? cr_realloc(s->labels, words, sizeof *s->labels) : NULL;
    if (grown_logits) s->logits = grown_logits;
    if (!grown_labels) return CR_NO_MEMORY(logits * sizeof *s->logits);
    s->labels   = grown_labels;
    s->capacity = images;
    return CR_OK;
}

cr_status cr_label_scores_add(struct cr_label_scores *s, const int32_t *labels, const float *logits) {
    const size_t classes = (size_t)s->classes, words = (size_t)s->words, at = (size_t)s->images;
    if (s->images == s->capacity) CR_TRY(reserve(s, s->capacity ? 2 * s->capacity : s->expected ? s->expected : 1024));
    memcpy(s->logits + at * classes, logits, classes * sizeof *logits);
    memcpy(s->labels + at * words, labels, words * sizeof *labels);
    s->images++;
    return CR_OK;
}

void cr_label_scores_free(struct cr_label_scores *s) {
    cr_free(s->logits);
    cr_free(s->labels);
    *s = (struct cr_label_scores){0};
}

/* Gathers one array with `row` bytes per image, of which every rank sends `most` images. counts: images of each
 * rank. */
static cr_status gather_array(struct cr_comm *comm, const int64_t *counts, int64_t most, size_t row, void **array) {
    const int    ranks        = cr_comm_size(comm);
    const size_t part         = (size_t)most * row;
    char        *of_this_rank = cr_alloc(part + 1, 1), *all = cr_alloc((size_t)ranks * part + 1, 1), *to = all;
    cr_status    status = of_this_rank && all ? CR_OK : CR_NO_MEMORY((size_t)ranks * part);
    if (status == CR_OK) {
        if (*array) memcpy(of_this_rank, *array, (size_t)counts[cr_comm_rank(comm)] * row);
        status = cr_comm_all_gather(comm, of_this_rank, part, all);
    }
    cr_free(of_this_rank);
    if (status != CR_OK) {
        cr_free(all);
        return status;
    }
    for (int r = 0; r < ranks; r++) {
        memmove(to, all + (size_t)r * part, (size_t)counts[r] * row);
        to += (size_t)counts[r] * row;
    }
    cr_free(*array);
    *array = all;
    return CR_OK;
}

cr_status cr_label_scores_gather(struct cr_comm *comm, struct cr_label_scores *s) {
    const int ranks = cr_comm_size(comm);
    int64_t  *counts, most = 0, sum = 0;
    void     *logits = s->logits, *labels = s->labels;
    cr_status status;
    if (ranks == 1) return CR_OK;
    CR_ALLOC(counts, (size_t)ranks);
    CR_TRY_OUT(cr_comm_all_gather(comm, &s->images, sizeof s->images, counts));
    for (int r = 0; r < ranks; r++) {
        most = CR_MAX(most, counts[r]);
        sum += counts[r];
    }
    status    = gather_array(comm, counts, most, (size_t)s->classes * sizeof *s->logits, &logits);
    s->logits = logits;
    CR_TRY_OUT(status);
    status    = gather_array(comm, counts, most, (size_t)s->words * sizeof *s->labels, &labels);
    s->labels = labels;
    CR_TRY_OUT(status);
    s->images = s->capacity = sum;
out:
    cr_free(counts);
    return status;
}

/* ---- one class ---- */

struct scored {
    float logit;
    bool  has;
};

/* Descending; NaN is last. */
static int compare_scored(const void *a, const void *b) {
    const struct scored *x = a, *y = b;
    if (isnan(x->logit) || isnan(y->logit)) return !!isnan(x->logit) - !!isnan(y->logit);
    return (x->logit < y->logit) - (x->logit > y->logit);
}

/* Between the probability of the last image that is predicted and that of the next one. */
static double threshold_after(const struct scored *list, int64_t last, int64_t count) {
    const double p = cr_label_probability((double)list[last].logit);
    return (p + (last + 1 < count ? cr_label_probability((double)list[last + 1].logit) : 0)) / 2;
}

static struct cr_label_score score_of(struct scored *list, int64_t count, int64_t images) {
    struct cr_label_score s = {.images = images, .ap = images ? 0 : (double)NAN, .threshold = 0.5};
    qsort(list, (size_t)count, sizeof *list, compare_scored);
    for (int64_t i = 0, correct = 0, before = 0; i < count && images; i++) {
        correct += list[i].has;
        if (i + 1 < count && list[i + 1].logit == list[i].logit) continue; /* equal logits are predicted together */
        s.ap += (double)(correct - before) / (double)images * ((double)correct / (double)(i + 1));
        before          = correct;
        const double f1 = 2 * (double)correct / (double)(i + 1 + images);
        if (f1 > s.f1) {
            s.f1        = f1;
            s.threshold = threshold_after(list, i, count);
        }
    }
    return s;
}

cr_status cr_label_scores_classes(const struct cr_label_scores *s, struct cr_label_score *out) {
    struct scored *list;
    CR_ALLOC(list, (size_t)CR_MAX(s->images, 1));
    for (int k = 0; k < s->classes; k++) {
        int64_t images = 0;
        for (int64_t i = 0; i < s->images; i++) {
            list[i] = (struct scored){s->logits[i * s->classes + k], cr_dataset_row_has(s->labels + i * s->words, k)};
            images += list[i].has;
        }
        out[k] = score_of(list, s->images, images);
    }
    cr_free(list);
    return CR_OK;
}

double cr_label_scores_map(const struct cr_label_score *score, int classes) {
    double sum   = 0;
    int    count = 0;
    for (int k = 0; k < classes; k++) {
        if (!score[k].images) continue;
        sum += score[k].ap;
        count++;
    }
    return count ? sum / count : (double)NAN;
}

/* ---- given thresholds ---- */

struct cr_label_counts cr_label_scores_count(const struct cr_label_scores *s, int k, double threshold) {
    struct cr_label_counts c = {0};
    for (int64_t i = 0; i < s->images; i++) {
        const bool has       = cr_dataset_row_has(s->labels + i * s->words, k);
        const bool predicted = cr_label_probability((double)s->logits[i * s->classes + k]) > threshold;
        c.images += has;
        c.predicted += predicted;
        c.correct += has && predicted;
    }
    return c;
}

double cr_label_f1(const struct cr_label_counts *c) {
    return c->correct ? 2 * (double)c->correct / (double)(c->images + c->predicted) : 0;
}
