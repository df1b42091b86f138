/* cli/report/title.c: title of the report: network, data, date, duration and best evaluation of a run. */
#include "cli/report/report.h"
#include "core/files.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- series ---- */

const struct cr_series *cr_report_series(const struct cr_report_run *run, const char *name) {
    const struct cr_series *s = cr_run_log_find(&run->log, name);
    return s && s->count ? s : NULL;
}

const struct cr_series *cr_report_accuracy(const struct cr_report_run *run, bool averages) {
    if (run->config->data.multi_label) return cr_report_series(run, averages ? "eval/ema_map" : "eval/map");
    return cr_report_series(run, averages ? "eval/ema_top1" : "eval/top1");
}

const char *cr_report_metric(const struct cr_report_run *run) {
    return run->config->data.multi_label ? "mAP" : "top-1";
}

double cr_series_median(const struct cr_series *s) {
    double *copy = cr_alloc((size_t)s->count, sizeof *copy), middle = 0;
    if (!copy) return 0;
    memcpy(copy, s->value, (size_t)s->count * sizeof *copy);
    qsort(copy, (size_t)s->count, sizeof *copy, cr_compare_doubles);
    middle = copy[s->count / 2];
    cr_free(copy);
    return middle;
}

double cr_series_last(const struct cr_series *s) {
    return s ? s->value[s->count - 1] : NAN;
}

double cr_series_at(const struct cr_series *s, double step) {
    double value = NAN;
    for (int i = 0; i < s->count && s->step[i] <= step; i++) value = s->value[i];
    return value;
}

/* The first of the largest values. */
static int largest_of(const struct cr_series *s) {
    int best = 0;
    for (int i = 1; i < s->count; i++)
        if (s->value[i] > s->value[best]) best = i;
    return best;
}

struct cr_best cr_report_best(const struct cr_report_run *run) {
    const struct cr_series *top1 = cr_report_accuracy(run, false), *ema = cr_report_accuracy(run, true);
    struct cr_best          best = {.top1 = top1};
    if (!top1) return best;
    if (ema && ema->value[largest_of(ema)] > top1->value[largest_of(top1)]) {
        best.top1     = ema;
        best.averages = true;
    }
    const int at = largest_of(best.top1);
    best.step    = best.top1->step[at];
    best.value   = best.top1->value[at];
    return best;
}

double cr_report_epoch_steps(const struct cr_report_run *run) {
    const struct cr_config *c = run->config;
    if (run->log.steps_per_epoch > 0) return run->log.steps_per_epoch;
    if (c->train.steps || !run->log.total_steps || run->log.total_steps % c->train.epochs) return 0;
    return (double)(run->log.total_steps / c->train.epochs);
}

/* ---- words ---- */

/* "resnet20" as "ResNet-20", "wide_resnet50_2" as "Wide ResNet-50-2", "resnext50_32x4d" as "ResNeXt-50-32x4d". */
static void network_name(enum cr_arch arch, char *text, size_t size) {
    const char *word = cr_word_arch(arch), *digits = strpbrk(word, "0123456789");
    const bool  wide = strncmp(word, "wide_", 5) == 0, next = strncmp(word, "resnext", 7) == 0;
    if (!digits) {
        snprintf(text, size, "Custom ResNet");
        return;
    }
    snprintf(text, size, "%sResNe%s-%s", wide ? "Wide " : "", next ? "Xt" : "t", digits);
    for (char *c = text; *c; c++)
        if (*c == '_') *c = '-';
}

/* The last part of a path. */
static const char *base_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static const char *data_name(const struct cr_config *c) {
    switch (c->data.kind) {
    case CR_DATA_SHAPES: return "generated shapes";
    case CR_DATA_SYNTHETIC: return "random pixels";
    case CR_DATA_CIFAR10: return "CIFAR-10";
    case CR_DATA_CIFAR100: return "CIFAR-100";
    case CR_DATA_FOLDER:
    case CR_DATA_CSV:
    case CR_DATA_TAR:
    case CR_DATA_PACKED: break;
    }
    return *c->data.root ? base_of(c->data.root) : cr_word_data_kind(c->data.kind);
}

void cr_report_subject(const struct cr_report_run *run, char *text, size_t size) {
    char network[64];
    network_name(run->config->model.arch, network, sizeof network);
    snprintf(text, size, "%s on %s", network, data_name(run->config));
}

void cr_report_when(const struct cr_report_run *run, char text[CR_WHEN_MAX]) {
    const time_t    began = (time_t)run->log.began;
    const long long s     = run->log.seconds;
    struct tm       utc;
    char            day[32];
    *text = 0;
    if (!began || !gmtime_r(&began, &utc) || !strftime(day, sizeof day, "%Y-%m-%d", &utc)) return;
    if (s >= 3600)
        snprintf(text, CR_WHEN_MAX, "%s, %lld h %lld min", day, s / 3600, s / 60 % 60);
    else if (s >= 60)
        snprintf(text, CR_WHEN_MAX, "%s, %lld min %lld s", day, s / 60, s % 60);
    else
        snprintf(text, CR_WHEN_MAX, "%s, %lld s", day, s);
}

void cr_report_name(const struct cr_report_run *run, char *name, size_t size) {
    char        real[PATH_MAX];
    const char *last = realpath(run->dir, real) ? cr_path_name(real) : run->dir;
    snprintf(name, size, "%s", *last ? last : run->dir);
}
