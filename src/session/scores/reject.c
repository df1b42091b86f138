/* session/scores/reject.c: scores and thresholds of images of no class. See session/scores/reject.h. */
#include "session/scores/reject.h"
#include "checkpoint/checkpoint.h"
#include "core/files.h"
#include "core/temporary.h"
#include "formats/safetensors.h"
#include "session/saved_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FEATURES_MAX = 1 << 20, NAME_BYTES = 256 };

static const char file_name[] = "reject.safetensors";

static const char *const names[CR_REJECT_SCORES] = {"logit", "energy", "distance"};

const char *cr_reject_score_name(enum cr_reject_score score) {
    return names[score];
}

/* ---- scores ---- */

static double dot(const float *a, const float *b, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

/* The cosine of the features and the nearest mean, minus 1. */
static double nearest(const struct cr_reject *r, const float *features) {
    const double length = sqrt(dot(features, features, r->features));
    double       best   = -INFINITY;
    for (int k = 0; k < r->classes; k++)
        best = CR_MAX(dot(features, r->means + (size_t)k * (size_t)r->features, r->features), best);
    return length > 0 ? best / length - 1 : -1;
}

double cr_reject_score(const struct cr_reject *r, enum cr_reject_score score, const float *logits,
                       const float *features) {
    double largest = -INFINITY, sum = 0;
    if (score == CR_REJECT_DISTANCE) return nearest(r, features);
    for (int k = 0; k < r->classes; k++) largest = CR_MAX((double)logits[k], largest);
    if (score == CR_REJECT_LOGIT) return largest;
    for (int k = 0; k < r->classes; k++) sum += exp((double)logits[k] - largest);
    return largest + log(sum);
}

/* ---- the file ---- */

void cr_reject_free(struct cr_reject *r) {
    cr_free(r->means);
    *r = (struct cr_reject){0};
}

/* The name of the file of the weights. A checkpoint with moving averages has two, whose scores differ. */
static cr_status name_of_weights(const char *weights, char name[NAME_BYTES]) {
    char *path;
    CR_TRY(cr_ckpt_model_path(weights, &path));
    const char *slash = strrchr(path, '/');
    snprintf(name, NAME_BYTES, "%s", slash ? slash + 1 : path);
    cr_free(path);
    return CR_OK;
}

static bool read_number(const struct cr_st_file *file, const char *key, double *out) {
    const char *text = cr_st_meta_find(file, key);
    char       *end;
    if (!text) return false;
    *out = strtod(text, &end);
    return *text && !*end && isfinite(*out);
}

static cr_status read_means(struct cr_st_file *file, const char *path, struct cr_reject *r) {
    const struct cr_st_entry *e = cr_st_find(file, "class_means");
    if (!e || e->dtype != CR_F32 || e->dims != 2 || e->dim[0] != r->classes || e->dim[1] < 1 ||
        e->dim[1] > FEATURES_MAX)
        return CR_FAIL(CR_ERR_FORMAT, "%s: the tensor class_means is missing or has another shape: remove the file",
                       path);
    r->features = (int)e->dim[1];
    CR_ALLOC(r->means, (size_t)r->classes * (size_t)r->features);
    return cr_st_read_whole(file, e, r->means);
}

static cr_status read_file(struct cr_st_file *file, const char *path, int classes, struct cr_reject *r) {
    const char *score = cr_st_meta_find(file, "score");
    double      images, of_classes;
    int         kind = 0;
    while (kind < CR_REJECT_SCORES && (!score || strcmp(score, names[kind]) != 0)) kind++;
    if (kind == CR_REJECT_SCORES || !read_number(file, "threshold", &r->threshold) ||
        !read_number(file, "rate", &r->rate) || !read_number(file, "images", &images) ||
        !read_number(file, "classes", &of_classes))
        return CR_FAIL(CR_ERR_FORMAT, "%s: lacks the score or a number, or has a wrong one: remove the file", path);
    if ((int)of_classes != classes)
        return CR_FAIL(CR_ERR_FORMAT, "%s: is of a network with %g classes, but this one has %d: remove the file", path,
                       of_classes, classes);
    r->score   = (enum cr_reject_score)kind;
    r->images  = (int64_t)images;
    r->classes = classes;
    return r->score == CR_REJECT_DISTANCE ? read_means(file, path, r) : CR_OK;
}

cr_status cr_reject_load(const char *weights, int classes, struct cr_reject *out, bool *found) {
    char               path[CR_PATH_MAX], name[NAME_BYTES];
    struct cr_st_file *file;
    cr_status          status = CR_OK;
    *out                      = (struct cr_reject){0};
    *found                    = false;
    CR_TRY(cr_saved_model_path_beside(weights, file_name, path));
    if (access(path, F_OK) != 0) return CR_OK;
    CR_TRY(name_of_weights(weights, name));
    CR_TRY(cr_st_open(path, &file));
    const char *chosen_for = cr_st_meta_find(file, "weights");
    if (!chosen_for || strcmp(chosen_for, name) == 0) {
        status = read_file(file, path, classes, out);
        *found = status == CR_OK;
    }
    cr_st_close(file);
    if (status != CR_OK) cr_reject_free(out);
    return status;
}

static cr_status write_file(struct cr_temporary *t, const struct cr_reject *r, const char *weights) {
    const struct cr_st_entry means = {
        .name = "class_means", .dtype = CR_F32, .dims = 2, .dim = {r->classes, r->features}};
    const size_t            bytes = (size_t)r->classes * (size_t)r->features * sizeof *r->means;
    char                    text[4][40];
    const struct cr_st_meta meta[] = {
        {"score", names[r->score]}, {"threshold", text[0]}, {"rate", text[1]}, {"images", text[2]},
        {"classes", text[3]},       {"weights", weights},   CR_ST_SUMS};
    struct cr_st_writer *writer;
    const int            fd = t->fd;
    snprintf(text[0], sizeof *text, "%.17g", r->threshold);
    snprintf(text[1], sizeof *text, "%.17g", r->rate);
    snprintf(text[2], sizeof *text, "%lld", (long long)r->images);
    snprintf(text[3], sizeof *text, "%d", r->classes);
    t->fd = -1; /* the writer closes it */
    CR_TRY(cr_st_create_at(fd, t->path, &means, r->means ? 1 : 0, meta, (int)CR_COUNT(meta), &writer));
    const cr_status status = r->means ? cr_st_write(writer, r->means, bytes) : CR_OK;
    if (status == CR_OK) return cr_st_finish(writer);
    cr_st_abandon(writer);
    return status;
}

cr_status cr_reject_save(const char *weights, const struct cr_reject *r, char *path) {
    struct cr_temporary t;
    char                config[CR_PATH_MAX], name[NAME_BYTES];
    CR_TRY(cr_saved_model_path_beside(weights, "config.ini", config));
    if (!cr_fs_is_file(config))
        return CR_FAIL(CR_ERR_CONFIG, "%s: is in no run, which the score of --reject is stored in: give a RUN",
                       weights);
    CR_TRY(name_of_weights(weights, name));
    CR_TRY(cr_saved_model_path_beside(weights, file_name, path));
    CR_TRY(cr_temporary_file(&t, path));
    const cr_status status = write_file(&t, r, name);
    if (status == CR_OK) return cr_temporary_commit(&t);
    cr_temporary_drop(&t);
    return status;
}

/* ---- choosing ---- */

/* The number of sorted scores that are less than the threshold. */
static int64_t count_less(const double *score, int64_t count, double threshold) {
    int64_t low = 0, high = count;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (score[middle] < threshold)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

double cr_reject_fraction(const double *score, int64_t count, double threshold) {
    return count ? (double)count_less(score, count, threshold) / (double)count : 0;
}

/* A threshold between score[at - 1] and score[at]. */
static double between(const double *score, int64_t count, int64_t at) {
    if (at <= 0) return score[0];
    if (at >= count) return nextafter(score[count - 1], INFINITY);
    return score[at - 1] + (score[at] - score[at - 1]) / 2;
}

double cr_reject_quantile(const double *score, int64_t count, double rate) {
    return between(score, count, (int64_t)llround(rate * (double)count));
}

double cr_reject_divide(const double *image, int64_t images, const double *outlier, int64_t outliers) {
    double best = image[0], most = -1;
    for (int64_t i = 0; i <= images; i++) {
        const double at    = between(image, images, i);
        const double right = cr_reject_fraction(outlier, outliers, at) - cr_reject_fraction(image, images, at);
        if (!(right > most)) continue;
        most = right;
        best = at;
    }
    return best;
}

double cr_reject_auroc(const double *image, int64_t images, const double *outlier, int64_t outliers) {
    double sum = 0;
    for (int64_t i = 0; i < images; i++) {
        const int64_t less = count_less(outlier, outliers, image[i]);
        const int64_t same = count_less(outlier, outliers, nextafter(image[i], INFINITY)) - less;
        sum += (double)less + 0.5 * (double)same;
    }
    return sum / ((double)images * (double)outliers);
}

/* ---- the means of the classes ---- */

cr_status cr_reject_means_open(int classes, int features, struct cr_reject_means *m) {
    *m = (struct cr_reject_means){.classes = classes, .features = features};
    CR_ALLOC(m->sum, (size_t)classes * (size_t)features);
    return CR_OK;
}

void cr_reject_means_add(struct cr_reject_means *m, int label, const float *features) {
    const double length = sqrt(dot(features, features, m->features));
    double      *sum    = m->sum + (size_t)label * (size_t)m->features;
    for (int i = 0; length > 0 && i < m->features; i++) sum[i] += (double)features[i] / length;
}

cr_status cr_reject_means_finish(const struct cr_reject_means *m, struct cr_reject *r) {
    const int width = m->features;
    r->classes      = m->classes;
    r->features     = width;
    CR_ALLOC(r->means, (size_t)m->classes * (size_t)width);
    for (int k = 0; k < m->classes; k++) {
        const double *sum    = m->sum + (size_t)k * (size_t)width;
        float        *mean   = r->means + (size_t)k * (size_t)width;
        double        length = 0;
        for (int i = 0; i < width; i++) length += sum[i] * sum[i];
        for (int i = 0; i < width; i++) mean[i] = length > 0 ? (float)(sum[i] / sqrt(length)) : 0;
    }
    return CR_OK;
}

void cr_reject_means_close(struct cr_reject_means *m) {
    cr_free(m->sum);
    *m = (struct cr_reject_means){0};
}
