/* cli/common/reject_choice.c: chooses the score and threshold that reject images of no class. */
#include "cli/common/reject_choice.h"
#include "data/data.h"
#include "session/saved_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MEANS_IMAGES = 100, FEW_IMAGES = 10 }; /* images of each class for its mean; rejected images, for a warning */
#define RATE_MAX 0.5

cr_status cr_reject_choice_open(const struct cr_args *args, const struct cr_config *config,
                                struct cr_reject_choice *c) {
    const char *given = args->value[CR_OPT_REJECT_RATE];
    *c                = (struct cr_reject_choice){.wanted = given != NULL};
    if (!given)
        return *config->data.outliers ? cr_config_fail(config, "data.outliers", "needs --reject RATE, or --reject auto")
                                      : CR_OK;
    if (config->data.multi_label)
        return cr_args_fail(args, "--reject needs one label per image, but data.multi_label = yes: leave it out");
    c->by_rate = strcmp(given, "auto") != 0;
    if (!c->by_rate && !*config->data.outliers)
        return cr_args_fail(args, "--reject auto needs examples: data.outliers=DIR, or give a rate, such as 0.05");
    if (c->by_rate)
        CR_TRY(cr_args_real(args, CR_OPT_REJECT_RATE, 0, RATE_MAX,
                            "auto, or the fraction of images to reject, from 0 to 0.5", &c->rate));
    return CR_OK;
}

/* ---- images ---- */

static double length_of(const float *vector, int count) {
    double squares = 0;
    for (int i = 0; i < count; i++) squares += (double)vector[i] * (double)vector[i];
    return sqrt(squares);
}

/* Adds the vector, with length 1, to the sum. */
static void add_direction(float *sum, const float *vector, int count) {
    const double length = length_of(vector, count);
    for (int i = 0; length > 0 && i < count; i++) sum[i] += (float)((double)vector[i] / length);
}

void cr_reject_choice_add(struct cr_reject_choice *c, int label, const float *logits, const float *features) {
    const struct cr_reject *r = &c->reject;
    if (!c->now) return add_direction(r->means + (size_t)label * (size_t)r->features, features, r->features);
    for (int k = 0; k < CR_REJECT_SCORES; k++)
        c->now->at[k][c->now->count] = cr_reject_score(r, (enum cr_reject_score)k, logits, features);
    c->now->count++;
}

static void on_sample(void *self, int64_t sample, const int32_t *labels, const float *logits, const float *features) {
    (void)sample;
    cr_reject_choice_add(self, *labels, logits, features);
}

/* The images that are evaluated next, at most `most`, are added to `scores`. */
static cr_status begin(struct cr_reject_choice *c, struct cr_reject_scores *scores, int64_t most) {
    for (int k = 0; k < CR_REJECT_SCORES; k++) CR_ARENA_ALLOC(&c->arena, scores->at[k], (size_t)most);
    c->now = scores;
    return CR_OK;
}

static cr_status evaluate(struct cr_reject_choice *c, struct cr_session *s, const struct cr_dataset *dataset) {
    const struct cr_sample_callback callback = {.self = c, .on_sample = on_sample};
    struct cr_scores                scores;
    return cr_session_evaluate_each(s, dataset, NULL, &callback, &scores);
}

/* ---- the means of the classes ---- */

/* Gives all means length 1. A class without images keeps zeros: nothing is near it. */
static void scale_means(const struct cr_reject *r) {
    for (int k = 0; k < r->classes; k++) {
        float       *mean   = r->means + (size_t)k * (size_t)r->features;
        const double length = length_of(mean, r->features);
        for (int i = 0; length > 0 && i < r->features; i++) mean[i] = (float)((double)mean[i] / length);
    }
}

cr_status cr_reject_choice_prepare(struct cr_reject_choice *c, const struct cr_config *config, struct cr_session *s,
                                   int64_t images) {
    struct cr_dataset *train = NULL;
    cr_status          status;
    CR_TRY_OUT(cr_dataset_open(config, CR_SPLIT_TRAIN, &train));
    CR_TRY_OUT(cr_saved_model_add_classes(config, train));
    CR_TRY_OUT(cr_saved_model_number_classes(config, train, true, CR_CMD_SCORES_BY_NUMBER));
    if (train->classes != s->model.classes)
        CR_FAIL_OUT(CR_ERR_CONFIG, "the training set has %d classes, but the network has %d", train->classes,
                    s->model.classes);
    CR_TRY_OUT(cr_dataset_thin(train, MEANS_IMAGES));
    c->reject.classes  = s->model.classes;
    c->reject.features = cr_session_features(s);
    CR_ALLOC_OUT(c->reject.means, (size_t)c->reject.classes * (size_t)c->reject.features);
    CR_TRY_OUT(evaluate(c, s, train));
    scale_means(&c->reject);
    status = begin(c, &c->images, images);
out:
    cr_dataset_close(train);
    return status;
}

/* ---- outliers ---- */

static cr_status score_outliers(struct cr_reject_choice *c, const struct cr_config *config, struct cr_session *s) {
    struct cr_dataset *dataset = NULL;
    const char       **files;
    int64_t            count;
    cr_status          status;
    CR_TRY_OUT(cr_folder_images(config->data.outliers, &c->arena, &files, &count));
    if (!count) CR_TRY_OUT(cr_config_fail(config, "data.outliers", "contains no images (" CR_IMAGE_ENDINGS ")"));
    CR_TRY_OUT(cr_dataset_open_files(config, ".", files, count, &dataset));
    CR_TRY_OUT(begin(c, &c->outliers, count));
    status = evaluate(c, s, dataset);
out:
    cr_dataset_close(dataset);
    return status;
}

/* ---- the choice ---- */

/* A threshold below which are `less` of the sorted scores. */
static double threshold_at(const double *score, int64_t count, int64_t less) {
    if (less <= 0) return score[0];
    if (less >= count) return nextafter(score[count - 1], INFINITY);
    return score[less - 1] + (score[less] - score[less - 1]) / 2;
}

/* The threshold with the largest difference between the rejected fractions of outliers and of images. */
static double divide(const double *image, int64_t images, const double *outlier, int64_t outliers) {
    double  best = image[0], most = -1;
    int64_t below = 0; /* outliers */
    for (int64_t i = 0; i <= images; i++) {
        const double at = threshold_at(image, images, i);
        while (below < outliers && outlier[below] < at) below++;
        const double difference = (double)below / (double)outliers - (double)i / (double)images;
        if (difference > most) best = at;
        most = CR_MAX(difference, most);
    }
    return best;
}

/* Area under the ROC curve: the probability that an image has a larger score than an outlier; equal ones count half. */
static double area(const double *image, int64_t images, const double *outlier, int64_t outliers) {
    double  sum  = 0;
    int64_t less = 0, not_more = 0; /* outliers, of the score of an image */
    for (int64_t i = 0; i < images; i++) {
        while (less < outliers && outlier[less] < image[i]) less++;
        while (not_more < outliers && outlier[not_more] <= image[i]) not_more++;
        sum += (double)(less + not_more) / 2;
    }
    return sum / ((double)images * (double)outliers);
}

static void sort(struct cr_reject_scores *scores) {
    for (int k = 0; k < CR_REJECT_SCORES && scores->count; k++)
        qsort(scores->at[k], (size_t)scores->count, sizeof *scores->at[k], cr_compare_doubles);
}

static double fraction_below(const struct cr_reject_scores *scores, int score, double threshold) {
    int64_t below = 0;
    while (below < scores->count && scores->at[score][below] < threshold) below++;
    return (double)below / (double)CR_MAX(scores->count, 1);
}

static void choose(struct cr_reject_choice *c) {
    struct cr_reject_scores *in = &c->images, *out = &c->outliers;
    int                      best = CR_REJECT_DEFAULT;
    sort(in);
    sort(out);
    for (int k = 0; out->count && k < CR_REJECT_SCORES; k++)
        c->auroc[k] = area(in->at[k], in->count, out->at[k], out->count);
    for (int k = 0; k < CR_REJECT_SCORES; k++)
        if (c->auroc[k] > c->auroc[best]) best = k;
    const double threshold = c->by_rate
                                 ? threshold_at(in->at[best], in->count, (int64_t)llround(c->rate * (double)in->count))
                                 : divide(in->at[best], in->count, out->at[best], out->count);
    in->rejected           = fraction_below(in, best, threshold);
    out->rejected          = fraction_below(out, best, threshold);
    c->reject.score        = (enum cr_reject_score)best;
    c->reject.threshold    = threshold;
}

cr_status cr_reject_choice_finish(struct cr_reject_choice *c, const struct cr_config *config, struct cr_session *s) {
    const double deciding = c->rate * (double)c->images.count;
    if (*config->data.outliers) CR_TRY(score_outliers(c, config, s));
    choose(c);
    if (deciding > 0 && deciding < FEW_IMAGES)
        cr_log(
            CR_LOG_WARN,
            "--reject %g: only %.0f of %lld images decide about the threshold: other images may be rejected at quite "
            "another rate",
            c->rate, deciding, (long long)c->images.count);
    return cr_reject_save(config->model.weights, &c->reject, c->path);
}

/* ---- results ---- */

void cr_reject_choice_print(const struct cr_reject_choice *c, struct cr_text *out) {
    if (!c->wanted) return;
    cr_text_add(out, "reject: score %s below %.6g: %.2f %% of these %lld images", cr_reject_score_name(c->reject.score),
                c->reject.threshold, 100 * c->images.rejected, (long long)c->images.count);
    if (c->outliers.count)
        cr_text_add(out, ", %.2f %% of %lld outliers; area under the ROC curve: logit %.4f, energy %.4f, distance %.4f",
                    100 * c->outliers.rejected, (long long)c->outliers.count, c->auroc[CR_REJECT_LOGIT],
                    c->auroc[CR_REJECT_ENERGY], c->auroc[CR_REJECT_DISTANCE]);
    cr_text_add(out, "; stored in %s\n", c->path);
}

void cr_reject_choice_json(const struct cr_reject_choice *c, struct cr_json_writer *w) {
    if (!c->wanted) return;
    cr_json_open_object(w, "reject");
    cr_json_put_string(w, "score", cr_reject_score_name(c->reject.score));
    cr_json_put_general(w, "threshold", c->reject.threshold, 17);
    cr_json_put_fixed(w, "rejected", c->images.rejected, 6);
    cr_json_put_int(w, "images", c->images.count);
    if (c->outliers.count) {
        cr_json_put_int(w, "outliers", c->outliers.count);
        cr_json_put_fixed(w, "outliers_rejected", c->outliers.rejected, 6);
        cr_json_open_object(w, "auroc");
        for (int k = 0; k < CR_REJECT_SCORES; k++)
            cr_json_put_fixed(w, cr_reject_score_name((enum cr_reject_score)k), c->auroc[k], 6);
        cr_json_close_object(w);
    }
    cr_json_put_string(w, "file", c->path);
    cr_json_close_object(w);
}

void cr_reject_choice_close(struct cr_reject_choice *c) {
    cr_arena_free(&c->arena);
    cr_reject_free(&c->reject);
}
