/* device/cpu/reference/ref_loss.c: cross-entropy of softmax with label smoothing, its metrics and its gradient.
 * The target of a class is (1-smoothing)*[class is the label] + smoothing/K, as in PyTorch's CrossEntropyLoss. For
 * mixed images the target is divided between the image's own label and its partner's. */
#include "device/cpu/reference/ref.h"

struct batch {
    struct ref     logits, labels;
    const int32_t *mixes; /* NULL: none */
    double         smoothing;
};

static struct batch batch_of(const struct cr_call *call, struct ref logits, struct ref labels, const void *mixes) {
    return (struct batch){
        .logits = logits, .labels = labels, .mixes = mixes, .smoothing = (double)call->op->attr.loss.smoothing};
}

/* -1 is padding of the last batch. Other values that are not a class count as -1. */
static int64_t label_of(const struct batch *b, int64_t n) {
    int64_t label = ((const int32_t *)b->labels.data)[n];
    return label >= 0 && label < b->logits.C ? label : -1;
}

/* Weight of the image's own label; *other receives the partner's label, or -1. */
static double own_weight(const struct batch *b, int64_t n, int64_t *other) {
    const int32_t *mix = b->mixes ? b->mixes + CR_MIX_NUMBERS * n : NULL;
    *other =
        mix && mix[CR_MIX_PARTNER] >= 0 && mix[CR_MIX_PARTNER] < b->logits.N ? label_of(b, mix[CR_MIX_PARTNER]) : -1;
    return *other < 0 ? 1 : (double)mix[CR_MIX_LABEL_WEIGHT] / CR_MIX_ONE;
}

/* The softmax of an image's logits divided by the temperature: the largest logit, and the sum of exp(logit - max),
 * which does not overflow. NaN or +inf logits give NaN. The two are not combined, because log(sum) would be lost next
 * to a huge logit. */
struct softmax {
    const struct ref *logits;
    int64_t           first; /* index of the image's first logit */
    double            max, sum, temperature;
};

static struct softmax softmax_of(const struct ref *logits, int64_t n, double temperature) {
    const int64_t  K = logits->C;
    struct softmax s = {.logits = logits, .first = n * K, .max = ref_get(logits, n * K), .temperature = temperature};
    for (int64_t k = 1; k < K; k++) s.max = fmax(s.max, ref_get(logits, n * K + k));
    for (int64_t k = 0; k < K; k++) s.sum += exp((ref_get(logits, n * K + k) - s.max) / temperature);
    return s;
}

static double log_probability(const struct softmax *s, int64_t k) {
    return (ref_get(s->logits, s->first + k) - s->max) / s->temperature - log(s->sum);
}

static double probability(const struct softmax *s, int64_t k) {
    return exp((ref_get(s->logits, s->first + k) - s->max) / s->temperature) / s->sum;
}

static double target_of(const struct batch *b, int64_t n, int64_t label, int64_t k) {
    int64_t      other;
    const double weight = own_weight(b, n, &other);
    return (1 - b->smoothing) * ((k == label ? weight : 0) + (k == other ? 1 - weight : 0)) +
           b->smoothing / (double)b->logits.C;
}

static double sample_loss(const struct batch *b, int64_t n, int64_t label) {
    const int64_t        K = b->logits.C;
    const struct softmax s = softmax_of(&b->logits, n, 1);
    int64_t              other;
    const double         weight = own_weight(b, n, &other);
    double own = weight > 0 ? -weight * log_probability(&s, label) : 0, all = 0; /* 0 * inf would be NaN */
    if (weight < 1) own -= (1 - weight) * log_probability(&s, other);
    if (b->smoothing == 0) return own; /* 0 * inf would be NaN for a class with probability 0 */
    for (int64_t k = 0; k < K; k++) all -= log_probability(&s, k);
    return (1 - b->smoothing) * own + b->smoothing / (double)K * all;
}

/* Number of classes ranked before the label: larger logits, and equal logits of a lower class. A NaN is never correct.
 */
static int64_t rank_of(const struct batch *b, int64_t n, int64_t label) {
    const int64_t K    = b->logits.C;
    const double  own  = ref_get(&b->logits, n * K + label);
    int64_t       rank = 0;
    if (isnan(own)) return K + 5;
    for (int64_t k = 0; k < K; k++) {
        double other = ref_get(&b->logits, n * K + k);
        rank += other > own || (other == own && k < label);
    }
    return rank;
}

cr_status cr_ref_loss(struct cr_device *device, const struct cr_call *call) {
    if (!cr_loss_is_plain(call->op)) return cr_ref_loss_weighted(device, call);
    struct batch b   = batch_of(call, REF_IN(loss, logits), REF_IN(loss, labels), call->in[CR_IN_loss_mixes]);
    struct ref   old = REF_IN(loss, metrics), metrics = REF_OUT(loss, metrics);
    double       sum = 0, valid = 0, correct1 = 0, correct5 = 0;
    for (int64_t n = 0; n < b.logits.N; n++) {
        int64_t label = label_of(&b, n);
        if (label < 0) continue;
        int64_t rank = rank_of(&b, n, label);
        sum += sample_loss(&b, n, label);
        valid++;
        correct1 += rank < 1;
        correct5 += rank < 5;
    }
    const double add[4] = {sum, valid, correct1, correct5};
    for (int i = 0; i < 4; i++) ref_put(&metrics, i, ref_get(&old, i) + add[i]);
    return CR_OK;
}

static void grad_sample(const struct batch *b, const struct ref *dx, int64_t n, double factor) {
    const int64_t        K     = b->logits.C;
    const int64_t        label = label_of(b, n);
    const struct softmax s =
        label < 0 ? (struct softmax){0}
                  : softmax_of(&b->logits, n,
                               1); /* computed before dx is written, which may be in the memory of the logits */
    for (int64_t k = 0; k < K; k++)
        ref_put(dx, n * K + k, label < 0 ? 0 : factor * (probability(&s, k) - target_of(b, n, label, k)));
}

cr_status cr_ref_loss_grad(struct cr_device *device, const struct cr_call *call) {
    if (!cr_loss_is_plain(call->op)) return cr_ref_loss_weighted_grad(device, call);
    struct batch b =
        batch_of(call, REF_IN(loss_grad, logits), REF_IN(loss_grad, labels), call->in[CR_IN_loss_grad_mixes]);
    struct ref state = REF_IN(loss_grad, state), dx = REF_OUT(loss_grad, dx);
    double     valid = 0;
    for (int64_t n = 0; n < b.logits.N; n++) valid += label_of(&b, n) >= 0;
    double factor = ref_get(&state, CR_STATE_LOSS_SCALE) * (double)call->op->attr.loss.weight / fmax(valid, 1);
    for (int64_t n = 0; n < b.logits.N; n++) grad_sample(&b, &dx, n, factor);
    return CR_OK;
}

/* ---- knowledge distillation ---- */

static bool counts(const struct ref *labels, int64_t n, int64_t classes) {
    const int32_t label = ((const int32_t *)labels->data)[n];
    return label >= 0 && label < classes;
}

cr_status cr_ref_distill(struct cr_device *device, const struct cr_call *call) {
    (void)device;
    const struct cr_distill_attr *attr   = &call->op->attr.distill;
    const struct ref              logits = REF_IN(distill, logits), teacher = REF_IN(distill, teacher),
                     labels = REF_IN(distill, labels), old = REF_IN(distill, metrics),
                     metrics = REF_OUT(distill, metrics);
    const double T = (double)attr->temperature, weight = (double)attr->weight;
    double       sum = 0;
    for (int64_t n = 0; n < logits.N; n++) {
        if (!counts(&labels, n, logits.C)) continue;
        const struct softmax p = softmax_of(&logits, n, T), q = softmax_of(&teacher, n, T);
        for (int64_t k = 0; k < logits.C; k++) {
            const double part = probability(&q, k);
            if (part != 0) sum += part * (log_probability(&q, k) - log_probability(&p, k)); /* 0 * inf: NaN */
        }
    }
    ref_copy_old(&old, &metrics);
    /* With weight 1 the loss of the labels has no part, even if it is infinite. */
    ref_put(&metrics, 0, (weight < 1 ? (1 - weight) * ref_get(&old, 0) : 0) + weight * T * T * sum);
    return CR_OK;
}

cr_status cr_ref_distill_grad(struct cr_device *device, const struct cr_call *call) {
    (void)device;
    const struct cr_distill_attr *attr   = &call->op->attr.distill;
    const struct ref              logits = REF_IN(distill_grad, logits), teacher = REF_IN(distill_grad, teacher),
                     labels = REF_IN(distill_grad, labels), state = REF_IN(distill_grad, state),
                     dy = REF_IN(distill_grad, dy), dx = REF_OUT(distill_grad, dx);
    const double T     = (double)attr->temperature;
    double       valid = 0;
    for (int64_t n = 0; n < logits.N; n++) valid += counts(&labels, n, logits.C);
    const double factor = ref_get(&state, CR_STATE_LOSS_SCALE) * (double)attr->weight * T / fmax(valid, 1);
    for (int64_t n = 0; n < logits.N; n++) {
        const struct softmax p = softmax_of(&logits, n, T), q = softmax_of(&teacher, n, T);
        const bool           here = counts(&labels, n, logits.C);
        for (int64_t k = 0; k < logits.C; k++) {
            const double before = ref_get(&dy, n * logits.C + k);
            ref_put(&dx, n * logits.C + k, here ? before + factor * (probability(&p, k) - probability(&q, k)) : before);
        }
    }
    return CR_OK;
}
