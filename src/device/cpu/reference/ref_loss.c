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

/* The largest logit of an image and the sum of exp(logit - max), which does not overflow. NaN or +inf logits give NaN.
 * The two are not combined, because log(sum) would be lost next to a huge logit. */
struct softmax {
    double max, sum;
};

static struct softmax softmax_of(const struct batch *b, int64_t n) {
    const int64_t  K = b->logits.C;
    struct softmax s = {.max = ref_get(&b->logits, n * K)};
    for (int64_t k = 1; k < K; k++) s.max = fmax(s.max, ref_get(&b->logits, n * K + k));
    for (int64_t k = 0; k < K; k++) s.sum += exp(ref_get(&b->logits, n * K + k) - s.max);
    return s;
}

static double log_probability(const struct batch *b, const struct softmax *s, int64_t i) {
    return ref_get(&b->logits, i) - s->max - log(s->sum);
}

static double target_of(const struct batch *b, int64_t n, int64_t label, int64_t k) {
    int64_t      other;
    const double weight = own_weight(b, n, &other);
    return (1 - b->smoothing) * ((k == label ? weight : 0) + (k == other ? 1 - weight : 0)) +
           b->smoothing / (double)b->logits.C;
}

static double sample_loss(const struct batch *b, int64_t n, int64_t label) {
    const int64_t        K = b->logits.C;
    const struct softmax s = softmax_of(b, n);
    int64_t              other;
    const double         weight = own_weight(b, n, &other);
    double own = weight > 0 ? -weight * log_probability(b, &s, n * K + label) : 0, all = 0; /* 0 * inf would be NaN */
    if (weight < 1) own -= (1 - weight) * log_probability(b, &s, n * K + other);
    if (b->smoothing == 0) return own; /* 0 * inf would be NaN for a class with probability 0 */
    for (int64_t k = 0; k < K; k++) all -= log_probability(b, &s, n * K + k);
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
                  : softmax_of(b, n); /* computed before dx is written, which may be in the memory of the logits */
    for (int64_t k = 0; k < K; k++) {
        int64_t i = n * K + k;
        ref_put(dx, i,
                label < 0 ? 0 : factor * (exp(ref_get(&b->logits, i) - s.max) / s.sum - target_of(b, n, label, k)));
    }
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
