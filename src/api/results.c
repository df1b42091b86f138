/* api/results.c: C API: reads the results of a batch (labels, probabilities, logits) for the caller. */
#include "api/model.h"

#include <math.h>
#include <string.h>

void cresnet_output_init(cresnet_output *output) {
    if (output) *output = (cresnet_output){.size = sizeof *output, .top = 1};
}

cresnet_status cr_api_read_output(const struct cresnet_model *m, const cresnet_output *given, cresnet_output *o,
                                  cresnet_error *error) {
    const int classes = m->session.model.classes;
    cresnet_output_init(o);
    if (!given) return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "output is NULL");
    if (given->size != sizeof *o && given->size != offsetof(cresnet_output, scores))
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT,
                           "output.size = %zu is not the size of a cresnet_output: call cresnet_output_init first",
                           given->size);
    memcpy(o, given, given->size);
    if ((o->scores || o->rejected) && !m->reject.means)
        return cr_api_fail(error, CRESNET_ERROR_CONFIG,
                           "output.scores, output.rejected: %s has no threshold of images of no class: please run "
                           "cresnet eval RUN --reject 0.05",
                           m->info.weights);
    if ((o->labels || o->probabilities) && (o->top < 1 || o->top > classes))
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT, "output.top = %d: the network has %d classes", o->top,
                           classes);
    if (o->features && !m->has_features)
        return cr_api_fail(error, CRESNET_ERROR_ARGUMENT,
                           "output.features: open the model with options.features = 1 to get features");
    return CRESNET_OK;
}

bool cr_api_wants_features(const struct cresnet_model *m, const cresnet_output *o) {
    return o->features || ((o->scores || o->rejected) && m->reject.score == CR_REJECT_DISTANCE);
}

static bool all_finite(const float *values, int count) {
    bool finite = true;
    for (int k = 0; k < count; k++) finite &= isfinite(values[k]) != 0;
    return finite;
}

static void fill(float *to, int count, float value) {
    for (int i = 0; to && i < count; i++) to[i] = value;
}

/* An image that could not be decoded. */
static void write_nothing(const struct cresnet_model *m, const cresnet_output *o, int image) {
    const size_t top = (size_t)o->top, at = (size_t)image;
    const int    classes = m->session.model.classes;
    for (int i = 0; o->labels && i < o->top; i++) o->labels[at * top + (size_t)i] = -1;
    if (o->probabilities) fill(o->probabilities + at * top, o->top, 0);
    if (o->logits) fill(o->logits + at * (size_t)classes, classes, 0);
    if (o->scores) o->scores[at] = 0;
    if (o->rejected) o->rejected[at] = 0;
    if (o->features) fill(o->features + at * (size_t)m->feature_count, m->feature_count, 0);
}

static void write_image(struct cresnet_model *m, const cresnet_output *o, int image, int in_batch) {
    const size_t classes = (size_t)m->session.model.classes, width = (size_t)m->feature_count;
    const size_t top = (size_t)o->top, at = (size_t)image;
    const float *logits = m->logits + (size_t)in_batch * classes;
    if (o->logits) memcpy(o->logits + at * classes, logits, classes * sizeof *logits);
    const float *features = m->features ? m->features + (size_t)in_batch * width : NULL;
    if (o->features) memcpy(o->features + at * width, features, width * sizeof *features);
    if (o->scores || o->rejected) {
        const double score = cr_reject_score(&m->reject, m->reject.score, logits, features);
        if (o->scores) o->scores[at] = score;
        if (o->rejected) o->rejected[at] = score < m->reject.threshold;
    }
    if (o->labels || o->probabilities)
        cr_session_top_classes(logits, (int)classes, o->top, m->threshold != NULL, m->ranked,
                               o->labels ? o->labels + at * top : NULL,
                               o->probabilities ? o->probabilities + at * top : NULL);
}

static bool image_failed(const cresnet_output *o, int image) {
    return o->image_errors && o->image_errors[image].status != CRESNET_OK;
}

/* Reads a tensor into `to`; with several views adds it to `to`, which becomes the mean after the last view. */
static cr_status read_mean(struct cresnet_model *m, int tensor, int view, int views, float *to) {
    if (views == 1) return cr_session_read(&m->session, tensor, m->raw, to);
    const int64_t elems = cr_tensor_elems(&m->session.eval.tensor[tensor]);
    CR_TRY(cr_session_read(&m->session, tensor, m->raw, m->view));
    for (int64_t i = 0; i < elems; i++) {
        to[i] = view ? to[i] + m->view[i] : m->view[i];
        if (view == views - 1) to[i] /= (float)views;
    }
    return CR_OK;
}

cr_status cr_api_read_results(struct cresnet_model *m, const cresnet_output *o, int view, int views) {
    CR_TRY(read_mean(m, m->session.eval.logits, view, views, m->logits));
    return cr_api_wants_features(m, o) ? read_mean(m, m->session.eval.features, view, views, m->features) : CR_OK;
}

cr_status cr_api_write_results(struct cresnet_model *m, const cresnet_output *o, int first, int count) {
    const int classes = m->session.model.classes;
    for (int i = 0; i < count; i++)
        if (!image_failed(o, first + i) && !all_finite(m->logits + (size_t)i * (size_t)classes, classes))
            return CR_FAIL(CR_ERR_NUMERIC, "image %d: the network's output is not finite with these weights",
                           first + i);
    for (int i = 0; i < count; i++) {
        if (image_failed(o, first + i))
            write_nothing(m, o, first + i);
        else
            write_image(m, o, first + i, i);
    }
    return CR_OK;
}
