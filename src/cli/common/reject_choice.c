/* cli/common/reject_choice.c: chooses when an image is rejected. See cli/common/reject_choice.h. */
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

/* ---- the means of the classes ---- */

static void add_to_means(void *self, int64_t sample, const int32_t *labels, const float *logits,
                         const float *features) {
    (void)sample;
    (void)logits;
    cr_reject_means_add(self, *labels, features);
}

cr_status cr_reject_choice_prepare(struct cr_reject_choice *c, const struct cr_config *config, struct cr_session *s) {
    const struct cr_sample_callback callback = {.self = &c->means, .on_sample = add_to_means};
    struct cr_dataset              *train    = NULL;
    struct cr_scores                scores;
    cr_status                       status;
    c->reject.classes = s->model.classes;
    CR_TRY_OUT(cr_dataset_open(config, CR_SPLIT_TRAIN, &train));
    CR_TRY_OUT(cr_saved_model_add_classes(config, train));
    CR_TRY_OUT(cr_saved_model_number_classes(config, train, true, CR_CMD_SCORES_BY_NUMBER));
    if (cr_dataset_classes(train) != s->model.classes)
        CR_FAIL_OUT(CR_ERR_CONFIG, "the training set has %d classes, but the network has %d", cr_dataset_classes(train),
                    s->model.classes);
    CR_TRY_OUT(cr_dataset_thin(train, MEANS_IMAGES));
    CR_TRY_OUT(cr_reject_means_open(s->model.classes, cr_session_features(s), &c->means));
    CR_TRY_OUT(cr_session_evaluate_each(s, train, NULL, &callback, &scores));
    status = cr_reject_means_finish(&c->means, &c->reject);
out:
    cr_dataset_close(train);
    return status;
}

/* ---- scores ---- */

static cr_status add_scores(const struct cr_reject *r, struct cr_reject_scores *to, const float *logits,
                            const float *features) {
    double score[CR_REJECT_SCORES];
    for (int k = 0; k < CR_REJECT_SCORES; k++) {
        score[k] = cr_reject_score(r, (enum cr_reject_score)k, logits, features);
        if (!isfinite(score[k])) return CR_OK;
    }
    for (int k = 0; k < CR_REJECT_SCORES; k++) {
        int64_t capacity = to->capacity;
        CR_GROW(to->at[k], to->count, capacity, 4096);
        if (k == CR_REJECT_SCORES - 1) to->capacity = capacity;
    }
    for (int k = 0; k < CR_REJECT_SCORES; k++) to->at[k][to->count] = score[k];
    to->count++;
    return CR_OK;
}

void cr_reject_choice_add(struct cr_reject_choice *c, const float *logits, const float *features) {
    if (c->status == CR_OK) c->status = add_scores(&c->reject, &c->images, logits, features);
}

static void add_outlier(void *self, int64_t sample, const int32_t *labels, const float *logits, const float *features) {
    struct cr_reject_choice *c = self;
    (void)sample;
    (void)labels;
    if (c->status == CR_OK) c->status = add_scores(&c->reject, &c->outliers, logits, features);
}

static cr_status score_outliers(struct cr_reject_choice *c, const struct cr_config *config, struct cr_session *s) {
    const struct cr_sample_callback callback = {.self = c, .on_sample = add_outlier};
    const char                     *folder   = config->data.outliers;
    struct cr_dataset              *dataset  = NULL;
    struct cr_arena                 arena    = {0};
    const char                    **files;
    int64_t                         count;
    struct cr_scores                scores;
    cr_status                       status;
    CR_TRY_OUT(cr_folder_images(folder, &arena, &files, &count));
    if (!count) {
        status = cr_config_fail(config, "data.outliers", "contains no images (" CR_IMAGE_ENDINGS ")");
        goto out;
    }
    const size_t length = strlen(folder);
    for (int64_t i = 0; i < count; i++) files[i] += length + strspn(files[i] + length, "/");
    CR_TRY_OUT(cr_dataset_open_files(config, folder, files, count, &dataset));
    CR_TRY_OUT(cr_session_evaluate_each(s, dataset, NULL, &callback, &scores));
    status = c->status;
out:
    cr_dataset_close(dataset);
    cr_arena_free(&arena);
    return status;
}

/* ---- the choice ---- */

static void sort_scores(struct cr_reject_scores *scores) {
    for (int k = 0; k < CR_REJECT_SCORES && scores->count; k++)
        qsort(scores->at[k], (size_t)scores->count, sizeof *scores->at[k], cr_compare_doubles);
}

static void choose(struct cr_reject_choice *c) {
    const struct cr_reject_scores *in = &c->images, *out = &c->outliers;
    int                            best = CR_REJECT_DEFAULT;
    for (int k = 0; out->count && k < CR_REJECT_SCORES; k++)
        c->auroc[k] = cr_reject_auroc(in->at[k], in->count, out->at[k], out->count);
    for (int k = 0; k < CR_REJECT_SCORES; k++)
        if (c->auroc[k] > c->auroc[best]) best = k;
    c->reject.score     = (enum cr_reject_score)best;
    c->reject.threshold = c->by_rate ? cr_reject_quantile(in->at[best], in->count, c->rate)
                                     : cr_reject_divide(in->at[best], in->count, out->at[best], out->count);
    c->reject.images    = in->count;
    c->rejected         = cr_reject_fraction(in->at[best], in->count, c->reject.threshold);
    c->reject.rate      = c->rejected;
    if (out->count) c->outliers_rejected = cr_reject_fraction(out->at[best], out->count, c->reject.threshold);
    if (best == CR_REJECT_DISTANCE) return;
    cr_free(c->reject.means);
    c->reject.means    = NULL;
    c->reject.features = 0;
}

cr_status cr_reject_choice_finish(struct cr_reject_choice *c, const struct cr_config *config, struct cr_session *s) {
    CR_TRY(c->status);
    if (*config->data.outliers) CR_TRY(score_outliers(c, config, s));
    if (!c->images.count || (*config->data.outliers && !c->outliers.count))
        return CR_FAIL(CR_ERR_NUMERIC, "--reject: the network's outputs are not finite with these weights");
    sort_scores(&c->images);
    sort_scores(&c->outliers);
    choose(c);
    if (c->by_rate && c->rate > 0 && c->rate * (double)c->images.count < FEW_IMAGES)
        cr_log(
            CR_LOG_WARN,
            "--reject %g: only %.0f of %lld images decide about the threshold: other images may be rejected at quite "
            "another rate",
            c->rate, c->rate * (double)c->images.count, (long long)c->images.count);
    return cr_reject_save(config->model.weights, &c->reject, c->path);
}

/* ---- results ---- */

void cr_reject_choice_print(const struct cr_reject_choice *c, struct cr_text *out) {
    if (!c->wanted) return;
    cr_text_add(out, "reject: score %s below %.6g: %.2f %% of these %lld images", cr_reject_score_name(c->reject.score),
                c->reject.threshold, 100 * c->rejected, (long long)c->images.count);
    if (c->outliers.count)
        cr_text_add(out, ", %.2f %% of %lld outliers; area under the ROC curve: logit %.4f, energy %.4f, distance %.4f",
                    100 * c->outliers_rejected, (long long)c->outliers.count, c->auroc[CR_REJECT_LOGIT],
                    c->auroc[CR_REJECT_ENERGY], c->auroc[CR_REJECT_DISTANCE]);
    cr_text_add(out, "; stored in %s\n", c->path);
}

void cr_reject_choice_json(const struct cr_reject_choice *c, struct cr_json_writer *w) {
    if (!c->wanted) return;
    cr_json_open_object(w, "reject");
    cr_json_put_string(w, "score", cr_reject_score_name(c->reject.score));
    cr_json_put_general(w, "threshold", c->reject.threshold, 17);
    cr_json_put_fixed(w, "rejected", c->rejected, 6);
    cr_json_put_int(w, "images", c->images.count);
    if (c->outliers.count) {
        cr_json_put_int(w, "outliers", c->outliers.count);
        cr_json_put_fixed(w, "outliers_rejected", c->outliers_rejected, 6);
        cr_json_open_object(w, "auroc");
        for (int k = 0; k < CR_REJECT_SCORES; k++)
            cr_json_put_fixed(w, cr_reject_score_name((enum cr_reject_score)k), c->auroc[k], 6);
        cr_json_close_object(w);
    }
    cr_json_put_string(w, "file", c->path);
    cr_json_close_object(w);
}

void cr_reject_choice_close(struct cr_reject_choice *c) {
    for (int k = 0; k < CR_REJECT_SCORES; k++) {
        cr_free(c->images.at[k]);
        cr_free(c->outliers.at[k]);
    }
    cr_reject_means_close(&c->means);
    cr_reject_free(&c->reject);
}
