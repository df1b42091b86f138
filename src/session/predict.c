/* session/predict.c: reads logits and features, and sorts classes by probability. See session/session.h. */
#include "session/labels/label_scores.h"
#include "session/session.h"

#include <math.h>
#include <stdlib.h>

static int compare_ranked(const void *a, const void *b) {
    const struct cr_ranked *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return x->label - y->label;
}

enum { FEW = 8, WIDE = 16 };

/* The first of the largest logits; -1 when there is none, because all are NaN or minus infinity. WIDE maxima at a time
 * are a vector: one at a time takes longer than some GPUs need for an image. */
static int largest_logit(const float *logits, int classes) {
    float most[WIDE], largest = -INFINITY;
    int   k = 0;
    for (int i = 0; i < WIDE; i++) most[i] = -INFINITY;
    for (; k + WIDE <= classes; k += WIDE)
        for (int i = 0; i < WIDE; i++) most[i] = logits[k + i] > most[i] ? logits[k + i] : most[i];
    for (int i = 0; i < WIDE; i++) largest = most[i] > largest ? most[i] : largest;
    for (; k < classes; k++) largest = logits[k] > largest ? logits[k] : largest;
    for (k = 0; k < classes; k++)
        if (logits[k] >= largest && largest > -INFINITY) return k;
    return -1;
}

/* Ranks the first `top` classes. For a few of them one pass over the logits is much faster than sorting. */
static void rank(const float *logits, int classes, int top, struct cr_ranked *ranked) {
    const int first = top == 1 ? largest_logit(logits, classes) : -1;
    if (first >= 0) {
        ranked[0] = (struct cr_ranked){(double)logits[first], first};
        return;
    }
    if (top > FEW) {
        for (int k = 0; k < classes; k++) ranked[k] = (struct cr_ranked){(double)logits[k], k};
        qsort(ranked, (size_t)classes, sizeof *ranked, compare_ranked);
        return;
    }
    for (int k = 0, held = 0; k < classes; k++) {
        const double logit = (double)logits[k];
        int          at;
        if (held == top && logit <= ranked[top - 1].logit) continue; /* of equal logits the lower label is first */
        for (at = held < top ? held++ : top - 1; at > 0 && logit > ranked[at - 1].logit; at--)
            ranked[at] = ranked[at - 1];
        ranked[at] = (struct cr_ranked){logit, k};
    }
}

void cr_session_top_classes(const float *logits, int classes, int top, bool several, struct cr_ranked *ranked,
                            int32_t *labels, float *probabilities) {
    double     largest = -INFINITY, sum = 0;
    const bool softmax = probabilities && !several;
    /* not fmax: GCC 12 stops with an internal error when it vectorises that for ARM */
    for (int k = 0; softmax && k < classes; k++) largest = CR_MAX((double)logits[k], largest);
    for (int k = 0; softmax && k < classes; k++) sum += exp((double)logits[k] - largest);
    rank(logits, classes, top, ranked);
    for (int i = 0; i < top; i++) {
        if (labels) labels[i] = ranked[i].label;
        if (probabilities)
            probabilities[i] =
                (float)(several ? cr_label_probability(ranked[i].logit) : exp(ranked[i].logit - largest) / sum);
    }
}

cr_status cr_session_read(struct cr_session *s, int tensor, void *raw, float *out) {
    const struct cr_tensor *t = &s->eval.tensor[tensor];
    CR_TRY(cr_exec_get(s->eval_exec, tensor, raw));
    cr_numbers_to_f32(t->dtype, raw, cr_tensor_elems(t), out);
    return CR_OK;
}
