/* session/scores/temperature.c: fits the temperature of the logits (calibration); see session/scores/temperature.h. */
#include "session/scores/temperature.h"

#include "session/scores/confusion.h"

#include <math.h>

cr_status cr_temperature_add(struct cr_label_scores *t, int32_t label, const float *logits) {
    if (label < 0 || label >= t->classes) return CR_OK;
    for (int k = 0; k < t->classes; k++)
        if (!isfinite(logits[k])) return CR_OK;
    return cr_label_scores_add(t, &label, logits);
}

/* Moments of one image's logits under the probabilities of the logits times `factor`, relative to the largest logit. */
struct moments {
    double top;    /* the largest logit */
    double sum;    /* of exp(factor * (logit - top)) */
    double mean;   /* of logit - top */
    double square; /* mean of its square */
};

static struct moments moments_of(const float *logits, int classes, double factor) {
    struct moments m = {.top = (double)logits[0]};
    for (int k = 1; k < classes; k++) m.top = fmax(m.top, (double)logits[k]);
    for (int k = 0; k < classes; k++) {
        const double z = (double)logits[k] - m.top, p = exp(factor * z);
        m.sum += p;
        m.mean += p * z;
        m.square += p * z * z;
    }
    m.mean /= m.sum;
    m.square /= m.sum;
    return m;
}

static const float *row_of(const struct cr_label_scores *t, int64_t i) {
    return t->logits + (size_t)i * (size_t)t->classes;
}

struct cr_temperature cr_temperature_scores(const struct cr_label_scores *t, double temperature) {
    struct cr_temperature     out                      = {.temperature = temperature};
    struct cr_calibration_bin bin[CR_CALIBRATION_BINS] = {{0}};
    for (int64_t i = 0; i < t->images; i++) {
        const float         *z     = row_of(t, i);
        const struct moments m     = moments_of(z, t->classes, 1 / temperature);
        const double         label = (double)z[t->labels[i]];
        out.loss += log(m.sum) - (label - m.top) / temperature;
        cr_calibration_count(bin, 1 / m.sum, label == m.top);
    }
    out.loss              = t->images ? out.loss / (double)t->images : NAN;
    out.calibration_error = cr_calibration_error(bin);
    return out;
}

/* The loss is convex in the factor 1/T: Newton's method inside a bracket that becomes smaller. */
struct cr_temperature cr_temperature_fit(const struct cr_label_scores *t) {
    enum { STEPS = 60 };
    double low = 0.01, high = 100, factor = 1;
    for (int step = 0; step < STEPS && t->images; step++) {
        double slope = 0, curvature = 0;
        for (int64_t i = 0; i < t->images; i++) {
            const struct moments m = moments_of(row_of(t, i), t->classes, factor);
            slope += m.mean - ((double)row_of(t, i)[t->labels[i]] - m.top);
            curvature += m.square - m.mean * m.mean;
        }
        if (slope > 0)
            high = factor;
        else
            low = factor;
        const double newton = curvature > 0 ? factor - slope / curvature : NAN, before = factor;
        factor = newton > low && newton < high ? newton : sqrt(low * high);
        if (fabs(factor - before) <= 1e-9 * before) break;
    }
    return cr_temperature_scores(t, 1 / factor);
}
