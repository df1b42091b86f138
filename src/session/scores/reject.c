/* session/scores/reject.c: out-of-distribution images: scores and thresholds of images of no class. See reject.h. */
#include "session/scores/reject.h"
#include "core/files.h"
#include "core/temporary.h"
#include "formats/safetensors.h"
#include "session/saved_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FEATURES_MAX = 1 << 20 };

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

/* The path of the file for these weights. */
static cr_status path_of(const char *weights, char *path) {
    const bool ema = strcmp(cr_path_name(weights), "ema.safetensors") == 0;
    return cr_saved_model_path_beside(weights, ema ? "reject-ema.safetensors" : "reject.safetensors", path);
}

static cr_status read_file(struct cr_st_file *file, const char *path, int classes, struct cr_reject *r) {
    const struct cr_st_entry *e     = cr_st_find(file, "class_means");
    const char               *score = cr_st_meta_find(file, "score"), *number = cr_st_meta_find(file, "threshold");
    char                     *end  = NULL;
    int                       kind = 0;
    while (score && kind < CR_REJECT_SCORES && strcmp(score, names[kind]) != 0) kind++;
    *r = (struct cr_reject){.score = (enum cr_reject_score)kind, .threshold = number ? strtod(number, &end) : 0};
    if (!score || kind == CR_REJECT_SCORES || !number || end == number || *end || !isfinite(r->threshold) || !e ||
        e->dtype != CR_F32 || e->dims != 2 || e->dim[1] < 1 || e->dim[1] > FEATURES_MAX)
        return CR_FAIL(CR_ERR_FORMAT,
                       "%s: lacks the score, its threshold or class_means, or has a wrong one: remove the file", path);
    if (e->dim[0] != classes)
        return CR_FAIL(CR_ERR_FORMAT, "%s: is of a network with %lld classes, but this one has %d: remove the file",
                       path, (long long)e->dim[0], classes);
    r->classes  = classes;
    r->features = (int)e->dim[1];
    CR_ALLOC(r->means, (size_t)r->classes * (size_t)r->features);
    return cr_st_read_whole(file, e, r->means);
}

cr_status cr_reject_load(const char *weights, int classes, struct cr_reject *out) {
    char               path[CR_PATH_MAX];
    struct cr_st_file *file;
    *out = (struct cr_reject){0};
    CR_TRY(path_of(weights, path));
    if (access(path, F_OK) != 0) return CR_OK;
    CR_TRY(cr_st_open(path, &file));
    const cr_status status = read_file(file, path, classes, out);
    cr_st_close(file);
    if (status != CR_OK) cr_reject_free(out);
    return status;
}

cr_status cr_reject_save(const char *weights, const struct cr_reject *r, char *path) {
    const size_t             bytes = (size_t)r->classes * (size_t)r->features * sizeof *r->means;
    const struct cr_st_entry means = {
        .name = "class_means", .dtype = CR_F32, .dims = 2, .dim = {r->classes, r->features}};
    char                    threshold[40];
    const struct cr_st_meta meta[] = {{"score", names[r->score]}, {"threshold", threshold}, CR_ST_SUMS};
    struct cr_st_writer    *writer = NULL;
    struct cr_temporary     t;
    CR_TRY(cr_saved_model_path_beside(weights, "config.ini", path));
    if (!cr_fs_is_file(path))
        return CR_FAIL(CR_ERR_CONFIG, "%s: is in no run, which the score of --reject is stored in: give a RUN",
                       weights);
    CR_TRY(path_of(weights, path));
    snprintf(threshold, sizeof threshold, "%.17g", r->threshold);
    CR_TRY(cr_temporary_file(&t, path));
    const int fd     = t.fd;
    t.fd             = -1; /* the writer closes it */
    cr_status status = cr_st_create_at(fd, t.path, &means, 1, meta, (int)CR_COUNT(meta), &writer);
    if (status == CR_OK) status = cr_st_write(writer, r->means, bytes);
    if (status == CR_OK) status = cr_st_finish(&writer);
    cr_st_abandon(writer);
    if (status == CR_OK) return cr_temporary_commit(&t);
    cr_temporary_drop(&t);
    return status;
}
