/* session/predict.c: predicts the top classes of image files. See session/session.h. */
#include "session/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct ranked {
    double logit; /* NaN counts as the smallest value */
    int    label;
};

static int compare_ranked(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return x->label - y->label;
}

/* Softmax over the logits; the most probable classes first. `ranked` is scratch memory for all classes. */
static void top_classes(const float *logits, int classes, struct ranked *ranked, struct cr_prediction *out) {
    double largest = -INFINITY, sum = 0;
    for (int k = 0; k < classes; k++) largest = fmax(largest, (double)logits[k]);
    for (int k = 0; k < classes; k++) sum += exp((double)logits[k] - largest);
    for (int k = 0; k < classes; k++) ranked[k] = (struct ranked){isnan(logits[k]) ? -INFINITY : (double)logits[k], k};
    qsort(ranked, (size_t)classes, sizeof *ranked, compare_ranked);
    out->count = CR_MIN(classes, out->top);
    for (int i = 0; i < out->count; i++) {
        out->label[i]       = ranked[i].label;
        out->probability[i] = (float)(exp((double)logits[ranked[i].label] - largest) / sum);
    }
}

static bool all_finite(const float *logits, int classes) {
    bool finite = true;
    for (int k = 0; k < classes; k++) finite &= isfinite(logits[k]) != 0;
    return finite;
}

/* The type of the logits in the program may be f16 or bf16. */
cr_status cr_session_logits(struct cr_session *s, void *raw, float *logits) {
    const struct cr_tensor *t = &s->eval.tensor[s->eval.logits];
    CR_TRY(cr_exec_get(s->eval_exec, s->eval.logits, raw));
    for (int64_t i = 0; i < cr_tensor_elems(t); i++) logits[i] = (float)cr_number_load(t->dtype, raw, i);
    return CR_OK;
}

/* Reads and prepares one image. A file that cannot be read sets out->error; only lack of memory is an error. */
static cr_status prepare_image(const struct cr_session *s, const char *path, uint8_t *dst, struct cr_prediction *out) {
    struct cr_image image  = {0};
    cr_status       status = cr_image_read(path, s->config->data.exif, &image);
    if (status == CR_OK) status = cr_prepare_eval(&s->prepare_eval, &image, dst);
    cr_image_free(&image);
    out->count    = 0;
    out->error[0] = 0;
    if (status != CR_ERR_FORMAT && status != CR_ERR_IO) return status;
    snprintf(out->error, sizeof out->error, "%s", cr_error_message());
    cr_error_clear();
    return CR_OK;
}

cr_status cr_session_predict(struct cr_session *s, const char *const *paths, int count, struct cr_prediction *out) {
    const struct cr_step_block step  = {0};
    size_t                     bytes = (size_t)s->prepare_eval.size * (size_t)s->prepare_eval.size * 3;
    int                        batch = (int)s->eval_batch, classes = s->model.classes;
    cr_status                  status = CR_OK;
    uint8_t                   *images = cr_alloc((size_t)batch, bytes);
    float                     *logits = cr_alloc((size_t)batch * (size_t)classes, sizeof *logits);
    void                      *raw    = cr_alloc(s->eval.tensor[s->eval.logits].bytes, 1);
    struct ranked             *ranked = cr_alloc((size_t)classes, sizeof *ranked);
    if (!images || !logits || !raw || !ranked)
        CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory: %d images of %d x %d pixels", batch, s->prepare_eval.size,
                    s->prepare_eval.size);
    cr_exec_refresh(s->eval_exec);
    for (int first = 0; first < count; first += batch) {
        int n = CR_MIN(batch, count - first);
        for (int i = 0; i < n; i++)
            CR_TRY_OUT(prepare_image(s, paths[first + i], images + (size_t)i * bytes, &out[first + i]));
        CR_TRY_OUT(cr_exec_feed(s->eval_exec, images, NULL, NULL));
        CR_TRY_OUT(cr_exec_run(s->eval_exec, &step));
        CR_TRY_OUT(cr_session_logits(s, raw, logits));
        for (int i = 0; i < n; i++)
            if (!*out[first + i].error && !all_finite(logits + (size_t)i * (size_t)classes, classes))
                CR_FAIL_OUT(CR_ERR_NUMERIC, "%s: the network's output is not finite with these weights",
                            paths[first + i]);
        for (int i = 0; i < n; i++)
            if (!*out[first + i].error)
                top_classes(logits + (size_t)i * (size_t)classes, classes, ranked, &out[first + i]);
    }
out:
    cr_free(images);
    cr_free(logits);
    cr_free(raw);
    cr_free(ranked);
    return status;
}
