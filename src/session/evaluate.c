/* session/evaluate.c: evaluates a dataset (validation), also with test-time augmentation; reads logits and features of
 * predictions. See session/session.h. */
#include "session/session.h"

#include "session/labels/label_scores.h"
#include "session/saved_model.h"

#include <math.h>
#include <stdlib.h>

static cr_status add_result(struct cr_session *s, int64_t run, struct cr_scores *out) {
    struct cr_exec_result r;
    CR_TRY(cr_exec_result(s->eval_exec, run, &r));
    out->loss_sum += r.loss_sum;
    out->images += (int64_t)r.valid;
    out->correct1 += (int64_t)r.correct1;
    out->correct5 += (int64_t)r.correct5;
    return CR_OK;
}

/* The result of a batch is read after the next batch was submitted. */
static cr_status run_batches(struct cr_session *s, struct cr_loader *loader, volatile const sig_atomic_t *stop,
                             struct cr_scores *out) {
    const struct cr_step_block step = {0};
    for (int64_t pending = 0;;) {
        int64_t samples;
        if (stop && *stop) return CR_FAIL(CR_ERR_INTERRUPTED, "evaluation interrupted");
        CR_TRY(cr_session_run_next(s, loader, s->eval_exec, &step, &samples));
        if (samples == 0) return pending ? add_result(s, pending, out) : CR_OK;
        if (pending) CR_TRY(add_result(s, pending, out));
        pending = cr_exec_runs(s->eval_exec);
    }
}

/* Sums the scores over all ranks in rank order. *interrupted is true when any rank was interrupted. */
static cr_status reduce_scores(struct cr_comm *comm, struct cr_scores *s, bool *interrupted) {
    int64_t counts[] = {s->images, s->correct1, s->correct5, s->corrupt, *interrupted};
    CR_TRY(cr_comm_all_reduce(comm, counts, CR_COUNT(counts), CR_COMM_I64));
    CR_TRY(cr_comm_all_reduce(comm, &s->loss_sum, 1, CR_COMM_F64));
    s->images    = counts[0];
    s->correct1  = counts[1];
    s->correct5  = counts[2];
    s->corrupt   = counts[3];
    *interrupted = counts[4] > 0;
    return CR_OK;
}

/* Every rank calls this function, so that an interruption of one rank reaches all ranks. */
static cr_status combine_ranks(struct cr_session *s, cr_status status, struct cr_scores *scores) {
    bool interrupted = status == CR_ERR_INTERRUPTED;
    if (cr_comm_size(s->comm) == 1 || (status != CR_OK && !interrupted)) return status;
    CR_TRY(reduce_scores(s->comm, scores, &interrupted));
    return interrupted ? CR_FAIL(CR_ERR_INTERRUPTED, "evaluation interrupted") : CR_OK;
}

/* ---- image by image, with test-time augmentation ---- */

/* What becomes of the logits of a batch. */
struct images {
    const struct cr_sample_callback *callback; /* or NULL */
    struct cr_scores                *out;
    struct cr_arena                  arena;
    int                              views, classes, features; /* features: 0 without them */
    int64_t                          words;                    /* of labels per image */
    int64_t                          place;                    /* logits so far: views of all images */
    float *sum, *feature_sum; /* [classes], [features]: of the logits and features of the views of one image */
};

/* The same scores as the loss op: cross entropy, and the rank of the label with ties by index. */
static void add_image(const float *logits, int classes, int32_t label, struct cr_scores *out) {
    const float own     = logits[label];
    double      largest = (double)own, sum = 0;
    int         before = 0;
    for (int k = 0; k < classes; k++) {
        before += logits[k] > own || (logits[k] == own && k < label);
        largest = CR_MAX(largest, (double)logits[k]);
    }
    for (int k = 0; k < classes; k++) sum += exp((double)logits[k] - largest);
    out->loss_sum += log(sum) + largest - (double)own;
    out->images++;
    out->correct1 += before < 1;
    out->correct5 += before < 5;
}

/* The same with data.multi_label: the mean binary cross-entropy. */
static void add_several(const float *logits, int classes, const int32_t *labels, struct cr_scores *out) {
    double  sum     = 0;
    int64_t correct = 0;
    for (int k = 0; k < classes; k++) {
        const bool   has = cr_dataset_row_has(labels, k);
        const double x   = has ? -(double)logits[k] : (double)logits[k];
        sum += fmax(x, 0) + log1p(exp(-fabs(x)));
        correct += (logits[k] > 0) == has;
    }
    out->loss_sum += sum / classes;
    out->images++;
    out->correct1 += correct == classes;
    out->correct5 += correct;
}

/* Adds values of a view to the sum, which becomes their mean with the last view. */
static void add_to_mean(float *sum, const float *values, int count, int64_t view, int views) {
    for (int k = 0; k < count; k++) sum[k] = view ? sum[k] + values[k] : values[k];
    for (int k = 0; view == views - 1 && views > 1 && k < count; k++) sum[k] /= (float)views;
}

/* Adds a view; after the last view of an image, its mean logits are the result of the image. The scores of images with
 * one view are computed by the device. */
static void add_view(struct images *v, const float *logits, const float *features, const int32_t *label) {
    const int64_t view = v->place % v->views, sample = v->place / v->views;
    add_to_mean(v->sum, logits, v->classes, view, v->views);
    add_to_mean(v->feature_sum, features, v->features, view, v->views);
    v->place++;
    if (view < v->views - 1 || *label < 0) return;
    if (v->views > 1) {
        if (v->words > 1)
            add_several(v->sum, v->classes, label, v->out);
        else
            add_image(v->sum, v->classes, *label, v->out);
    }
    if (v->callback)
        v->callback->on_sample(v->callback->self, sample, label, v->sum, v->features ? v->feature_sum : NULL);
}

/* Runs one batch at a time and passes the logits of its images on. */
static cr_status run_batches_each(struct cr_session *s, struct cr_loader *loader, struct images *v,
                                  volatile const sig_atomic_t *stop) {
    const struct cr_step_block step  = {0};
    const int                  width = s->model.keep_features ? cr_session_features(s) : 0;
    const struct cr_tensor    *t = &s->eval.tensor[s->eval.logits], *f = width ? &s->eval.tensor[s->eval.features] : t;
    float                     *logits, *features;
    char                      *raw;
    v->classes  = s->model.classes;
    v->features = width;
    v->words    = s->eval.tensor[s->eval.labels].dim[3];
    CR_ARENA_ALLOC(&v->arena, logits, (size_t)cr_tensor_elems(t));
    CR_ARENA_ALLOC(&v->arena, features, (size_t)(width * s->state.eval_batch));
    CR_ARENA_ALLOC(&v->arena, raw, CR_MAX(t->bytes, f->bytes));
    CR_ARENA_ALLOC(&v->arena, v->sum, (size_t)v->classes);
    CR_ARENA_ALLOC(&v->arena, v->feature_sum, (size_t)width);
    for (;;) {
        struct cr_batch batch;
        if (stop && *stop) return CR_FAIL(CR_ERR_INTERRUPTED, "evaluation interrupted");
        CR_TRY(cr_loader_next(loader, &batch));
        if (batch.count == 0) return CR_OK;
        cr_status status = cr_exec_feed(s->eval_exec, batch.images, batch.labels, NULL);
        if (status == CR_OK) status = cr_exec_run(s->eval_exec, &step);
        if (status == CR_OK && v->views == 1) status = add_result(s, cr_exec_runs(s->eval_exec), v->out);
        if (status == CR_OK) status = cr_session_read(s, s->eval.logits, raw, logits);
        if (status == CR_OK && width) status = cr_session_read(s, s->eval.features, raw, features);
        for (int64_t i = 0; status == CR_OK && i < batch.count; i++)
            add_view(v, logits + (size_t)i * (size_t)v->classes, features + i * width, batch.labels + i * v->words);
        cr_loader_release(loader, &batch);
        CR_TRY(status);
    }
}

/* ---- several labels per image ---- */

/* Keeps the logits of all images, and calls the callback of the caller. */
struct collector {
    struct cr_label_scores          *scores;
    const struct cr_sample_callback *callback; /* or NULL */
    cr_status                        status;
};

static void collect(void *self, int64_t sample, const int32_t *labels, const float *logits, const float *features) {
    struct collector *c = self;
    if (c->status == CR_OK) c->status = cr_label_scores_add(c->scores, labels, logits);
    if (c->callback) c->callback->on_sample(c->callback->self, sample, labels, logits, features);
}

/* Without images. The images of each rank are gathered: a rank holds its own, a copy to send, and those of all. */
static struct cr_label_scores empty_scores(const struct cr_session *s, const struct cr_dataset *dataset) {
    const int ranks = cr_comm_size(s->comm);
    return (struct cr_label_scores){
        .advice   = "with several labels per image all of them are kept; give a smaller validation set",
        .classes  = s->model.classes,
        .words    = (int)s->eval.tensor[s->eval.labels].dim[3],
        .expected = (dataset->count + ranks - 1) / ranks,
        .copies   = ranks == 1 ? 1 : cr_comm_rank_info(s->comm, cr_comm_rank(s->comm))->local_size * (ranks + 2)};
}

cr_status cr_session_check_evaluation(const struct cr_session *s, const struct cr_dataset *dataset) {
    const struct cr_label_scores empty = empty_scores(s, dataset);
    return s->config->data.multi_label ? cr_label_scores_check(&empty, empty.expected) : CR_OK;
}

static cr_status start_collecting(struct cr_session *s, const struct cr_dataset *dataset, struct collector *c) {
    if (!s->label_scores) CR_ALLOC(s->label_scores, 1);
    cr_label_scores_free(s->label_scores);
    *s->label_scores = empty_scores(s, dataset);
    c->scores        = s->label_scores;
    return cr_session_check_evaluation(s, dataset);
}

/* `status`: of the evaluation so far, the same on all ranks. */
static cr_status finish_collecting(struct cr_session *s, const struct collector *c, cr_status status, double *map) {
    struct cr_label_score *score;
    CR_TRY(status);
    CR_TRY(c->status);
    CR_TRY(cr_label_scores_gather(s->comm, s->label_scores));
    CR_ALLOC(score, (size_t)s->model.classes);
    status = cr_label_scores_classes(s->label_scores, score);
    *map   = cr_label_scores_map(score, s->model.classes);
    cr_free(score);
    return status;
}

double cr_scores_accuracy(const struct cr_scores *s) {
    return s->several ? s->map : (double)s->correct1 / (double)CR_MAX(s->images, 1);
}

double cr_scores_loss(const struct cr_scores *s) {
    return s->loss_sum / (double)CR_MAX(s->images, 1);
}

cr_status cr_session_save_thresholds(const struct cr_session *s, const char *folder) {
    const int              classes    = s->model.classes;
    double                *thresholds = cr_alloc((size_t)classes, sizeof *thresholds);
    struct cr_label_score *score      = cr_alloc((size_t)classes, sizeof *score);
    cr_status              status     = thresholds && score ? CR_OK : CR_NO_MEMORY((size_t)classes * sizeof *score);
    CR_TRY_OUT(status);
    CR_TRY_OUT(cr_label_scores_classes(s->label_scores, score));
    for (int k = 0; k < classes; k++) thresholds[k] = score[k].threshold;
    status = cr_saved_model_put_thresholds(folder, classes, thresholds);
out:
    cr_free(score);
    cr_free(thresholds);
    return status;
}

/* ---- a whole evaluation ---- */

/* `prepare`: as the session's, but its member tta counts in a training session too. */
static cr_status evaluate(struct cr_session *s, const struct cr_dataset *dataset, const struct cr_prepare *prepare,
                          volatile const sig_atomic_t *stop, const struct cr_sample_callback *callback,
                          struct cr_scores *out) {
    const struct cr_config         *c       = s->config;
    struct cr_loader_options        options = cr_loader_options_from(c, CR_SPLIT_VAL, prepare, s->state.eval_batch);
    struct cr_loader               *loader;
    struct cr_scores                scores     = {.several = c->data.multi_label};
    int64_t                         start      = cr_time_ns();
    const bool                      views      = prepare->tta != CR_TTA_NONE;
    struct collector                several    = {.callback = callback};
    const struct cr_sample_callback collecting = {&several, collect};
    options.corrupt_fatal                      = c->data.corrupt == CR_CORRUPT_FATAL;
    options.rank                               = cr_comm_rank(s->comm);
    options.ranks                              = cr_comm_size(s->comm);
    CR_ASSERT(!views || cr_comm_size(s->comm) == 1); /* the views of an image are not divided between ranks */
    if (c->data.multi_label) {
        CR_TRY(start_collecting(s, dataset, &several));
        callback = &collecting;
    }
    CR_TRY(cr_loader_open(dataset, &options, &loader));
    cr_exec_refresh(s->eval_exec); /* training has changed the parameters and reused the pool */
    struct images images = {.callback = callback, .out = &scores, .views = cr_prepare_views(prepare->tta)};
    cr_status     status =
        views || callback ? run_batches_each(s, loader, &images, stop) : run_batches(s, loader, stop, &scores);
    cr_arena_free(&images.arena);
    scores.corrupt = cr_loader_corrupt(loader);
    status         = combine_ranks(s, status, &scores);
    if (c->data.multi_label) status = finish_collecting(s, &several, status, &scores.map);
    scores.seconds = (double)(cr_time_ns() - start) * 1e-9;
    cr_loader_close(loader);
    if (status == CR_OK && scores.images == 0)
        status = CR_FAIL(CR_ERR_FORMAT, "no image of the evaluation could be read");
    if (status == CR_OK && !isfinite(scores.loss_sum))
        status = CR_FAIL(CR_ERR_NUMERIC,
                         "the loss of the evaluation is not finite: the network's outputs overflow "
                         "with these weights%s",
                         s->model.real == CR_F16 ? "; please try train.precision = bf16 or fp32" : "");
    if (status == CR_OK) *out = scores;
    return status;
}

cr_status cr_session_evaluate_each(struct cr_session *s, const struct cr_dataset *dataset,
                                   volatile const sig_atomic_t *stop, const struct cr_sample_callback *callback,
                                   struct cr_scores *out) {
    struct cr_prepare prepare = s->prepare_eval;
    if (s->trains) prepare.tta = CR_TTA_NONE;
    return evaluate(s, dataset, &prepare, stop, callback, out);
}

cr_status cr_session_evaluate(struct cr_session *s, const struct cr_dataset *dataset, volatile const sig_atomic_t *stop,
                              struct cr_scores *out) {
    return cr_session_evaluate_each(s, dataset, stop, NULL, out);
}

cr_status cr_session_evaluate_views(struct cr_session *s, const struct cr_dataset *dataset, enum cr_tta tta,
                                    volatile const sig_atomic_t *stop, struct cr_scores *out) {
    struct cr_prepare prepare = s->prepare_eval;
    prepare.tta               = tta;
    return evaluate(s, dataset, &prepare, stop, NULL, out);
}

/* ---- predictions ---- */

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

int cr_session_features(const struct cr_session *s) {
    return (int)(cr_tensor_elems(&s->eval.tensor[s->eval.features]) / s->state.eval_batch);
}

cr_status cr_session_read(struct cr_session *s, int tensor, void *raw, float *out) {
    const struct cr_tensor *t = &s->eval.tensor[tensor];
    CR_TRY(cr_exec_get(s->eval_exec, tensor, raw));
    cr_numbers_to_f32(t->dtype, raw, cr_tensor_elems(t), out);
    return CR_OK;
}
