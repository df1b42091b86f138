/* session/scores/confusion.c: counts predictions: confusion matrix, calibration. See session/scores/confusion.h. */
#include "session/scores/confusion.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 1024 };

cr_status cr_confusion_open(int classes, struct cr_confusion *out) {
    *out = (struct cr_confusion){.classes = classes};
    CR_ALLOC(out->score, (size_t)classes);
    for (int k = 0; k < classes; k++) out->score[k].confused_with = CR_NONE;
    return CR_OK;
}

void cr_confusion_close(struct cr_confusion *confusion) {
    cr_free(confusion->score);
    cr_free(confusion->cell);
    *confusion = (struct cr_confusion){0};
}

/* ---- the cells, while images are counted: a hash table with linear probing; an empty place has the count 0 ---- */

static struct cr_confusion_cell *place_of(struct cr_confusion_cell *table, int64_t capacity, int32_t label,
                                          int32_t predicted) {
    const uint64_t key = (uint64_t)(uint32_t)label << 32 | (uint32_t)predicted;
    uint64_t       at  = key * UINT64_C(0x9e3779b97f4a7c15);
    for (at ^= at >> 32;; at++) { /* the low bits of the product do not depend on the label */
        struct cr_confusion_cell *c = &table[at & (uint64_t)(capacity - 1)];
        if (!c->count || (c->label == label && c->predicted == predicted)) return c;
    }
}

/* Keeps at least half of the places empty. */
static cr_status make_room(struct cr_confusion *c) {
    const int64_t             capacity = c->capacity ? 2 * c->capacity : FIRST_CAPACITY;
    struct cr_confusion_cell *table;
    if (2 * c->cells < c->capacity) return CR_OK;
    CR_ALLOC(table, (size_t)capacity);
    for (int64_t i = 0; i < c->capacity; i++)
        if (c->cell[i].count) *place_of(table, capacity, c->cell[i].label, c->cell[i].predicted) = c->cell[i];
    cr_free(c->cell);
    c->cell     = table;
    c->capacity = capacity;
    return CR_OK;
}

static void count_prediction(struct cr_confusion *c, int32_t label, int32_t predicted) {
    c->score[label].images++;
    c->score[predicted].predicted++;
    c->score[label].correct += label == predicted;
    if (label == predicted || c->status != CR_OK) return;
    c->status = make_room(c);
    if (c->status != CR_OK) return;
    struct cr_confusion_cell *cell = place_of(c->cell, c->capacity, label, predicted);
    c->cells += !cell->count;
    *cell = (struct cr_confusion_cell){label, predicted, cell->count + 1};
}

static int compare_cells(const void *a, const void *b) {
    const struct cr_confusion_cell *x = a, *y = b;
    const int                       labels = (x->label > y->label) - (x->label < y->label);
    return labels ? labels : (x->predicted > y->predicted) - (x->predicted < y->predicted);
}

cr_status cr_confusion_finish(struct cr_confusion *c) {
    int64_t cells = 0;
    CR_TRY(c->status);
    for (int64_t i = 0; i < c->capacity; i++)
        if (c->cell[i].count) c->cell[cells++] = c->cell[i];
    if (cells) qsort(c->cell, (size_t)cells, sizeof *c->cell, compare_cells);
    c->capacity = 0; /* no hash table any more */
    for (int64_t i = 0; i < cells; i++) {
        struct cr_class_score *score = &c->score[c->cell[i].label];
        if (c->cell[i].count <= score->confused) continue;
        score->confused      = c->cell[i].count;
        score->confused_with = c->cell[i].predicted;
    }
    return CR_OK;
}

int64_t cr_confusion_count(const struct cr_confusion *c, int label, int predicted) {
    const struct cr_confusion_cell wanted = {label, predicted, 0};
    if (label == predicted) return c->score[label].correct;
    const struct cr_confusion_cell *found =
        c->cells ? bsearch(&wanted, c->cell, (size_t)c->cells, sizeof *c->cell, compare_cells) : NULL;
    return found ? found->count : 0;
}

/* ---- images ---- */

/* A NaN loss counts as the largest loss. */
static bool is_worse(const struct cr_sample_loss *a, const struct cr_sample_loss *b) {
    if (isnan(a->loss) != isnan(b->loss)) return isnan(a->loss);
    if (a->loss != b->loss && !isnan(a->loss)) return a->loss > b->loss;
    return a->sample < b->sample;
}

static void insert_worst(struct cr_confusion *c, const struct cr_sample_loss *one) {
    int at = c->worst_count;
    while (at > 0 && is_worse(one, &c->worst[at - 1])) at--;
    if (at == CR_WORST_MAX) return;
    if (c->worst_count < CR_WORST_MAX) c->worst_count++;
    memmove(&c->worst[at + 1], &c->worst[at], (size_t)(c->worst_count - at - 1) * sizeof *c->worst);
    c->worst[at] = *one;
}

/* A bin contains its upper end: 1 belongs to the last one. */
void cr_calibration_count(struct cr_calibration_bin *bins, double probability, bool correct) {
    const int                  at  = (int)ceil(probability * CR_CALIBRATION_BINS) - 1;
    struct cr_calibration_bin *bin = &bins[CR_MIN(CR_MAX(at, 0), CR_CALIBRATION_BINS - 1)];
    bin->images++;
    bin->correct += correct;
    bin->probabilities += probability;
}

static void count_sample(void *self, int64_t sample, const int32_t *labels, const float *logits,
                         const float *features) {
    struct cr_confusion *c     = self;
    const int32_t        label = labels[0];
    int                  top   = 0;
    double               sum   = 0;
    (void)features;
    if (label >= c->classes) return; /* the metrics ignore such labels too */
    for (int k = 1; k < c->classes; k++)
        if (logits[k] > logits[top] || (isnan(logits[top]) && !isnan(logits[k]))) top = k;
    if (isnan(logits[top])) top = label == 0 ? c->classes - 1 : 0; /* all logits are NaN: never correct */
    count_prediction(c, label, top);
    for (int k = 0; k < c->classes; k++) sum += exp((double)logits[k] - (double)logits[top]);
    const struct cr_sample_loss one = {.sample            = sample,
                                       .label             = label,
                                       .predicted         = top,
                                       .probability       = 1 / sum,
                                       .label_probability = exp((double)logits[label] - (double)logits[top]) / sum,
                                       .loss              = log(sum) - ((double)logits[label] - (double)logits[top])};
    insert_worst(c, &one);
    cr_calibration_count(c->bin, isnan(one.probability) ? 0 : one.probability, top == label);
}

struct cr_sample_callback cr_confusion_callback(struct cr_confusion *confusion) {
    return (struct cr_sample_callback){.self = confusion, .on_sample = count_sample};
}

double cr_class_f1(const struct cr_class_score *s) {
    return s->correct ? (double)(2 * s->correct) / (double)(s->images + s->predicted) : 0;
}

struct cr_class_means cr_confusion_means(const struct cr_confusion *c) {
    struct cr_class_means means = {0};
    for (int k = 0; k < c->classes; k++) {
        const struct cr_class_score s = c->score[k];
        if (!s.images) continue;
        means.precision += s.predicted ? (double)s.correct / (double)s.predicted : 0;
        means.recall += (double)s.correct / (double)s.images;
        means.f1 += cr_class_f1(&s);
        means.classes++;
    }
    means.precision = means.classes ? means.precision / means.classes : NAN;
    means.recall    = means.classes ? means.recall / means.classes : NAN;
    means.f1        = means.classes ? means.f1 / means.classes : NAN;
    return means;
}

double cr_calibration_error(const struct cr_calibration_bin *bins) {
    double  distance = 0;
    int64_t images   = 0;
    for (int b = 0; b < CR_CALIBRATION_BINS; b++) {
        distance += fabs((double)bins[b].correct - bins[b].probabilities);
        images += bins[b].images;
    }
    return images ? distance / (double)images : NAN;
}
