/* session/scores/confusion.c: counts the predictions of an evaluation. See session/scores/confusion.h. */
#include "session/scores/confusion.h"

#include <math.h>
#include <string.h>

cr_status cr_confusion_open(int classes, struct cr_confusion *out) {
    *out = (struct cr_confusion){.classes = classes};
    CR_ALLOC(out->count, (size_t)classes * (size_t)classes);
    return CR_OK;
}

void cr_confusion_close(struct cr_confusion *confusion) {
    cr_free(confusion->count);
    *confusion = (struct cr_confusion){0};
}

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

static void count_sample(void *self, int64_t sample, const int32_t *labels, const float *logits) {
    struct cr_confusion *c     = self;
    const int32_t        label = labels[0];
    int                  top   = 0;
    double               sum   = 0;
    if (label >= c->classes) return; /* the metrics ignore such labels too */
    for (int k = 1; k < c->classes; k++)
        if (logits[k] > logits[top] || (isnan(logits[top]) && !isnan(logits[k]))) top = k;
    if (isnan(logits[top])) top = label == 0 ? c->classes - 1 : 0; /* all logits are NaN: never correct */
    c->count[(size_t)label * (size_t)c->classes + (size_t)top]++;
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

struct cr_class_score cr_confusion_class(const struct cr_confusion *c, int label) {
    struct cr_class_score score = {.confused_with = CR_NONE};
    const size_t          n     = (size_t)c->classes;
    for (int k = 0; k < c->classes; k++) {
        const int64_t n_k = c->count[(size_t)label * n + (size_t)k];
        score.images += n_k;
        score.predicted += c->count[(size_t)k * n + (size_t)label];
        if (k == label)
            score.correct = n_k;
        else if (n_k > score.confused) {
            score.confused      = n_k;
            score.confused_with = k;
        }
    }
    return score;
}

double cr_class_f1(const struct cr_class_score *s) {
    return s->correct ? (double)(2 * s->correct) / (double)(s->images + s->predicted) : 0;
}

struct cr_class_means cr_confusion_means(const struct cr_confusion *c) {
    struct cr_class_means means = {0};
    for (int k = 0; k < c->classes; k++) {
        const struct cr_class_score s = cr_confusion_class(c, k);
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
