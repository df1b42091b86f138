/* device/cpu/reference/ref_distill.c: the loss of knowledge distillation (KL divergence), and its gradient. */
#include "device/cpu/reference/ref.h"

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

static bool counts(const struct ref *labels, int64_t n, int64_t classes) {
    const int32_t label = ((const int32_t *)labels->data)[n];
    return label >= 0 && label < classes;
}

REF_KERNEL(distill) {
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
}

REF_KERNEL(distill_grad) {
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
}
