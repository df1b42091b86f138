/* device/cpu/reference/ref_loss.c: loss and loss_grad: cross-entropy of softmax, also with class weights or as focal
 * loss, and binary cross-entropy (sigmoid) of one or several labels per sample. graph/ops.def defines them. With
 * softmax, without focal loss, they equal PyTorch's CrossEntropyLoss(weight=..., label_smoothing=...); with sigmoid
 * BCEWithLogitsLoss(pos_weight=...), and for one label per sample timm's BinaryCrossEntropy. Focal loss with sigmoid
 * equals torchvision's sigmoid_focal_loss without alpha. For mixed images the target is divided between the image's own
 * label and its partner's. */
#include "device/cpu/reference/ref.h"

struct batch {
    struct ref          logits, weights; /* weights.data is NULL without class weights */
    const int32_t      *labels, *mixes;
    int64_t             words; /* per sample in `labels` */
    struct cr_loss_attr attr;
};

/* Both ops have logits, labels and class weights in the same slots. */
static struct batch batch_of(const struct cr_call *call) {
    struct batch b = {.logits  = REF_IN(loss, logits),
                      .weights = REF_IN(loss, class_weights),
                      .labels  = call->in[CR_IN_loss_labels],
                      .mixes   = call->in[CR_IN_loss_mixes],
                      .attr    = call->op->attr.loss};
    b.words        = b.attr.several ? cr_label_words(b.logits.C) : 1;
    return b;
}

static double class_weight(const struct batch *b, int64_t k) {
    return b->weights.data ? ref_get(&b->weights, k) : 1;
}

/* False for the padding of the last batch, whose label is -1, and for labels outside of [0, classes). */
static bool is_valid(const struct batch *b, int64_t n) {
    const int32_t first = b->labels[n * b->words];
    return first >= 0 && (b->attr.several || first < b->logits.C);
}

static bool has_label(const struct batch *b, int64_t n, int64_t k) {
    return b->attr.several ? cr_label_has(b->labels + n * b->words, k) : b->labels[n] == k;
}

/* n: the sample. other: the sample that it is mixed with (mixup, cutmix), or -1. own_part: weight of its own labels. */
struct sample {
    int64_t n, other;
    double  own_part;
};

static struct sample sample_of(const struct batch *b, int64_t n) {
    const int32_t *mix     = b->mixes ? b->mixes + CR_MIX_NUMBERS * n : NULL;
    const int64_t  partner = mix ? mix[CR_MIX_PARTNER] : -1;
    if (partner < 0 || partner >= b->logits.N || !is_valid(b, partner)) return (struct sample){n, -1, 1};
    return (struct sample){n, partner, (double)mix[CR_MIX_LABEL_WEIGHT] / CR_MIX_ONE};
}

/* The target of class k. Smoothing moves a part of it to all classes, or with several labels to 1/2. */
static double target_of(const struct batch *b, const struct sample *i, int64_t k) {
    const double smoothing = (double)b->attr.smoothing, even = b->attr.several ? 0.5 : 1 / (double)b->logits.C;
    const double mixed =
        (has_label(b, i->n, k) ? i->own_part : 0) + (i->other >= 0 && has_label(b, i->other, k) ? 1 - i->own_part : 0);
    const double soft = (1 - smoothing) * mixed + smoothing * even;
    return b->attr.threshold > 0 ? soft > (double)b->attr.threshold : soft;
}

/* ---- one class ---- */

/* -log p with its factor (1-p)^gamma, and the derivative by log(p / (1-p)), which is -slope. `q` is 1-p, which would
 * lose its digits as a difference when p is almost 1. */
struct term {
    double loss, slope, q;
};
static struct term focal_term(double log_loss, double p, double q, double gamma) {
    const double factor = gamma == 0 ? 1 : pow(q, gamma);
    const double steep  = gamma == 0 || p == 0 ? 0 : gamma * p * (q > 0 ? log_loss / q : 1);
    return (struct term){factor * log_loss, factor * (1 + steep), q};
}

/* ---- softmax ---- */

/* rest: the sum of exp(logit - max) without the largest logit, so that log_rest, which is log(1 + rest), keeps its
 * digits. */
struct softmax {
    double max, rest, log_rest;
};

static struct softmax softmax_of(const struct batch *b, int64_t n) {
    const int64_t  K   = b->logits.C;
    int64_t        top = 0;
    struct softmax s   = {.max = ref_get(&b->logits, n * K)};
    for (int64_t k = 1; k < K; k++) {
        const double x = ref_get(&b->logits, n * K + k);
        if (x <= s.max) continue;
        top   = k; /* also of a NaN */
        s.max = x;
    }
    for (int64_t k = 0; k < K; k++)
        if (k != top) s.rest += exp(ref_get(&b->logits, n * K + k) - s.max);
    s.rest += s.max - s.max; /* NaN and +inf logits give NaN */
    s.log_rest = log1p(s.rest);
    return s;
}

static double softmax_log_loss(const struct softmax *s, double x) {
    return s->log_rest + (s->max - x);
}

/* p of class k and its term. */
static struct term softmax_term(const struct batch *b, const struct softmax *s, double x, double *p) {
    const double e = exp(x - s->max), sum = 1 + s->rest;
    *p = e / sum;
    return focal_term(softmax_log_loss(s, x), *p, e == 1 ? s->rest / sum : (sum - e) / sum, (double)b->attr.gamma);
}

/* Without focal loss no p is needed, which saves an exp for each class. */
static double softmax_loss(const struct batch *b, int64_t n) {
    const struct sample  i   = sample_of(b, n);
    const int64_t        K   = b->logits.C;
    const struct softmax s   = softmax_of(b, n);
    double               sum = 0, p;
    for (int64_t k = 0; k < K; k++) {
        const double a = class_weight(b, k) * target_of(b, &i, k), x = ref_get(&b->logits, n * K + k);
        if (a != 0) /* 0 * inf is NaN */
            sum += a * (b->attr.gamma == 0 ? softmax_log_loss(&s, x) : softmax_term(b, &s, x, &p).loss);
    }
    return sum + 0 * s.rest;
}

/* The gradient by logit j is p(j) * (sum of a*slope over the other classes) - a(j) * slope(j) * (1 - p(j)), where a is
 * weight * target. */
static void softmax_grad(const struct batch *b, const struct ref *dx, int64_t n, double factor) {
    const struct sample  i     = sample_of(b, n);
    const int64_t        K     = b->logits.C;
    const struct softmax s     = softmax_of(b, n);
    double               total = 0, p;
    for (int64_t k = 0; k < K; k++) {
        const double a = class_weight(b, k) * target_of(b, &i, k);
        if (a != 0) total += b->attr.gamma == 0 ? a : a * softmax_term(b, &s, ref_get(&b->logits, n * K + k), &p).slope;
    }
    for (int64_t k = 0; k < K; k++) { /* each logit is read before dx, which may be in its memory, is written */
        const double      a    = class_weight(b, k) * target_of(b, &i, k);
        const struct term t    = softmax_term(b, &s, ref_get(&b->logits, n * K + k), &p);
        const double      mine = a != 0 ? a * t.slope : 0;
        ref_put(dx, n * K + k, factor * (p * (total - mine) - mine * t.q));
    }
}

/* ---- sigmoid ---- */

static double sigmoid(double x) {
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

/* log(1 + exp(x)) */
static double softplus(double x) {
    return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
}

static double sigmoid_loss(const struct batch *b, int64_t n) {
    const struct sample i   = sample_of(b, n);
    const int64_t       K   = b->logits.C;
    double              sum = 0;
    for (int64_t k = 0; k < K; k++) {
        const double x = ref_get(&b->logits, n * K + k), p = sigmoid(x), q = sigmoid(-x), t = target_of(b, &i, k);
        if (isnan(x)) return x;
        if (t != 0) sum += class_weight(b, k) * t * focal_term(softplus(-x), p, q, (double)b->attr.gamma).loss;
        if (t != 1) sum += (1 - t) * focal_term(softplus(x), q, p, (double)b->attr.gamma).loss;
    }
    return sum / (double)K;
}

/* The derivative of a term by the logit is its slope times q, with the sign of its class. */
static void sigmoid_grad(const struct batch *b, const struct ref *dx, int64_t n, double factor) {
    const struct sample i = sample_of(b, n);
    const int64_t       K = b->logits.C;
    for (int64_t k = 0; k < K; k++) {
        const double x = ref_get(&b->logits, n * K + k), p = sigmoid(x), q = sigmoid(-x), t = target_of(b, &i, k);
        double       d = 0;
        if (t != 0) d -= class_weight(b, k) * t * q * focal_term(softplus(-x), p, q, (double)b->attr.gamma).slope;
        if (t != 1) d += (1 - t) * p * focal_term(softplus(x), q, p, (double)b->attr.gamma).slope;
        ref_put(dx, n * K + k, factor / (double)K * d);
    }
}

/* Number of classes whose logit is above 0 where the sample has the label, and nowhere else. */
static int64_t labels_correct(const struct batch *b, int64_t n) {
    const int64_t K       = b->logits.C;
    int64_t       correct = 0;
    for (int64_t k = 0; k < K; k++) {
        const double x = ref_get(&b->logits, n * K + k);
        correct += !isnan(x) && (x > 0) == has_label(b, n, k);
    }
    return correct;
}

/* ---- the ops ---- */

/* The divisor of the mean: the number of valid samples, or the weights of their labels. */
static double divisor_of(const struct batch *b, double *valid) {
    double sum = 0;
    *valid     = 0;
    for (int64_t n = 0; n < b->logits.N; n++) {
        if (!is_valid(b, n)) continue;
        ++*valid;
        if (b->attr.sigmoid) continue;
        const struct sample i = sample_of(b, n);
        sum += i.own_part * class_weight(b, b->labels[n]);
        if (i.other >= 0) sum += (1 - i.own_part) * class_weight(b, b->labels[i.other]);
    }
    return b->attr.sigmoid ? *valid : sum;
}

/* Number of classes ranked before the label: larger logits, and equal logits of a lower class. A NaN is never correct.
 */
static int64_t rank_of(const struct batch *b, int64_t n) {
    const int64_t K = b->logits.C, label = b->labels[n];
    const double  own  = ref_get(&b->logits, n * K + label);
    int64_t       rank = 0;
    if (isnan(own)) return K + 5;
    for (int64_t k = 0; k < K; k++) {
        const double other = ref_get(&b->logits, n * K + k);
        rank += other > own || (other == own && k < label);
    }
    return rank;
}

REF_KERNEL(loss) {
    const struct batch b   = batch_of(call);
    struct ref         old = REF_IN(loss, metrics), metrics = REF_OUT(loss, metrics);
    double             sum = 0, valid, first = 0, second = 0;
    const double       divisor = divisor_of(&b, &valid);
    for (int64_t n = 0; n < b.logits.N; n++) {
        if (!is_valid(&b, n)) continue;
        sum += b.attr.sigmoid ? sigmoid_loss(&b, n) : softmax_loss(&b, n);
        const int64_t score = b.attr.several ? labels_correct(&b, n) : rank_of(&b, n);
        first += (double)(b.attr.several ? score == b.logits.C : score < 1);
        second += (double)(b.attr.several ? score : score < 5);
    }
    const double add[4] = {divisor > 0 ? sum * (valid / divisor) : sum, valid, first, second};
    for (int i = 0; i < 4; i++) ref_put(&metrics, i, ref_get(&old, i) + add[i]);
}

REF_KERNEL(loss_grad) {
    const struct batch b     = batch_of(call);
    struct ref         state = REF_IN(loss_grad, state), dx = REF_OUT(loss_grad, dx);
    double             valid;
    const double       divisor = divisor_of(&b, &valid);
    const double       scale   = ref_get(&state, CR_STATE_LOSS_SCALE) * (double)b.attr.weight;
    for (int64_t n = 0; n < b.logits.N; n++) {
        if (!is_valid(&b, n) || divisor <= 0)
            for (int64_t k = 0; k < b.logits.C; k++) ref_put(&dx, n * b.logits.C + k, 0);
        else if (b.attr.sigmoid)
            sigmoid_grad(&b, &dx, n, scale / divisor);
        else
            softmax_grad(&b, &dx, n, scale / divisor);
    }
}
