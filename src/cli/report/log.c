/* cli/report/log.c: reads log.jsonl as series of numbers (loss, accuracy, learning rate), for the report. */
#include "cli/report/report.h"
#include "formats/json.h"

#include <stdio.h>
#include <string.h>

enum { LOG_BYTES_MAX = 1 << 30, SERIES_MAX = 256 };

struct cr_series *cr_run_log_find(const struct cr_run_log *log, const char *name) {
    for (int i = 0; i < log->count; i++)
        if (strcmp(log->series[i].name, name) == 0) return &log->series[i];
    return NULL;
}

void cr_run_log_free(struct cr_run_log *log) {
    for (int i = 0; i < log->count; i++) {
        cr_free(log->series[i].step);
        cr_free(log->series[i].value);
    }
    cr_free(log->series);
    *log = (struct cr_run_log){0};
}

static cr_status series_for(struct cr_run_log *log, const char *event, const char *member, struct cr_series **out) {
    char name[sizeof log->series->name];
    *out = NULL;
    if (snprintf(name, sizeof name, "%s/%s", event, member) >= (int)sizeof name)
        return CR_OK; /* no name that the program writes */
    *out = cr_run_log_find(log, name);
    if (*out || log->count == SERIES_MAX) return CR_OK;
    CR_GROW(log->series, log->count, log->capacity, 16);
    *out  = &log->series[log->count++];
    **out = (struct cr_series){0};
    memcpy((*out)->name, name, sizeof name);
    return CR_OK;
}

static cr_status add_value(struct cr_series *s, double step, double value) {
    int steps = s->capacity; /* as many as values */
    CR_GROW(s->step, s->count, steps, 64);
    CR_GROW(s->value, s->count, s->capacity, 64);
    s->step[s->count]    = step;
    s->value[s->count++] = value;
    return CR_OK;
}

/* Drops the entries after `step`: a run that was resumed there repeats them. */
static void drop_after(struct cr_run_log *log, double step) {
    for (int i = 0; i < log->count; i++)
        while (log->series[i].count && log->series[i].step[log->series[i].count - 1] > step) log->series[i].count--;
}

/* Times of day are whole seconds since 1970. The duration is the sum over the processes of a run: from the start or the
 * resumption to the last line with a time. */
static void add_time(struct cr_run_log *log, bool begins, double time) {
    const int64_t now = (int64_t)time;
    if (begins) {
        if (!log->began) log->began = now;
    } else if (now > log->last_time && log->last_time)
        log->seconds += now - log->last_time;
    log->last_time = now;
}

enum { MEMBERS_MAX = 64 };
struct line {
    const char *event;
    const char *version, *hint;
    double      step;
    int         count;
    struct {
        const char *name;
        double      value;
    } member[MEMBERS_MAX];
};

static bool scan_line(struct cr_json *json, struct line *line) {
    char *name, *text;
    *line = (struct line){.event = ""};
    for (bool first = true; cr_json_member(json, &first, &name);) {
        double         number;
        struct cr_json number_at = *json;
        if (cr_json_number(&number_at, &number)) {
            *json = number_at;
            if (strcmp(name, "step") == 0)
                line->step = number;
            else if (line->count < MEMBERS_MAX) {
                line->member[line->count].name    = name;
                line->member[line->count++].value = number;
            }
        } else if (strcmp(name, "event") == 0 || strcmp(name, "version") == 0 || strcmp(name, "hint") == 0) {
            if (!cr_json_string(json, &text)) return false;
            *(*name == 'e' ? &line->event : *name == 'v' ? &line->version : &line->hint) = text;
        } else if (!cr_json_skip(json))
            return false;
    }
    return cr_json_end(json);
}

static cr_status add_line(struct cr_run_log *log, char *text) {
    struct cr_json json;
    struct line    line;
    cr_json_start(&json, text, strlen(text));
    log->lines++;
    if (!scan_line(&json, &line)) {
        log->bad_lines++;
        return CR_OK;
    }
    const bool resumes = strcmp(line.event, "resume") == 0;
    if (resumes || strcmp(line.event, "start") == 0) {
        drop_after(log, line.step);
        log->resumes += resumes;
        if (line.version) snprintf(log->version, sizeof log->version, "%s", line.version);
        log->hint[0] = 0;
    }
    if (line.hint) snprintf(log->hint, sizeof log->hint, "%s", line.hint);
    for (int i = 0; i < line.count; i++) {
        struct cr_series *series;
        const char       *name  = line.member[i].name;
        const double      value = line.member[i].value;
        if (strcmp(name, "total_steps") == 0) log->total_steps = (int64_t)value;
        if (strcmp(name, "steps_per_epoch") == 0) log->steps_per_epoch = value;
        if (strcmp(name, "time") == 0 && value > 0 && value < 1e12)
            add_time(log, resumes || strcmp(line.event, "start") == 0, value);
        CR_TRY(series_for(log, line.event, line.member[i].name, &series));
        if (series) CR_TRY(add_value(series, line.step, line.member[i].value));
    }
    return CR_OK;
}

cr_status cr_run_log_read(const char *path, struct cr_run_log *out) {
    struct cr_run_log log  = {0};
    char             *text = NULL;
    cr_status         status;
    CR_TRY_OUT(cr_file_read(path, LOG_BYTES_MAX, &text, NULL));
    for (char *line = text; *line;) {
        const size_t length = strcspn(line, "\n");
        const bool   more   = line[length] == '\n';
        line[length]        = 0;
        if (length) CR_TRY_OUT(add_line(&log, line));
        line += length + more;
    }
    *out = log;
    log  = (struct cr_run_log){0};
out:
    cr_run_log_free(&log);
    cr_free(text);
    return status;
}
