/* training/events.c: runs the command of train.on_event. See training/run.h.
 *
 * The command gets the facts of an event as environment variables and as one JSON line on its standard input. Nothing
 * is inserted into its text, so names of files cannot become part of it. */
#include "core/files.h"
#include "core/process/process.h"
#include "formats/json_write.h"
#include "training/run.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { POLL_NS = 5000000, FACTS_MAX = 24, NAME_MAX_BYTES = 32 };

/* ---- the facts of an event ---- */

struct facts {
    struct cr_text        json, variables; /* one line; the variables NAME=VALUE, each with its final 0 */
    struct cr_json_writer writer;
    int                   count;
};

static void add_variable(struct facts *f, const char *name, const char *value) {
    char upper[NAME_MAX_BYTES];
    int  length = 0;
    for (; name[length] && length < NAME_MAX_BYTES - 1; length++)
        upper[length] = (char)(name[length] >= 'a' && name[length] <= 'z' ? name[length] - 'a' + 'A' : name[length]);
    upper[length] = 0;
    cr_text_add(&f->variables, "CRESNET_%s=%s", upper, value);
    cr_text_add_bytes(&f->variables, "", 1);
    f->count++;
    CR_ASSERT(f->count <= FACTS_MAX);
}

static void put_text(struct facts *f, const char *name, const char *value) {
    cr_json_put_string(&f->writer, name, value);
    add_variable(f, name, value);
}

static void put_int(struct facts *f, const char *name, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    cr_json_put_int(&f->writer, name, value);
    add_variable(f, name, text);
}

static void put_real(struct facts *f, const char *name, double value) {
    char text[64];
    snprintf(text, sizeof text, "%.6f", value);
    cr_json_put_fixed(&f->writer, name, value, 6);
    add_variable(f, name, text);
}

static void put_score(struct facts *f, const char *prefix, const char *name, double value) {
    char prefixed[NAME_MAX_BYTES];
    snprintf(prefixed, sizeof prefixed, "%s%s", prefix, name);
    put_real(f, prefixed, value);
}

static void put_bool(struct facts *f, const char *name, bool value) {
    cr_json_put_bool(&f->writer, name, value);
    add_variable(f, name, value ? "1" : "0");
}

/* The facts of the weights have the prefix "", those of their moving averages "ema_". */
static void put_scores(struct facts *f, const struct cr_scores *e, const char *prefix) {
    const double images = (double)e->images;
    if (e->several) {
        put_score(f, prefix, "map", e->map);
    } else {
        put_score(f, prefix, "top1", (double)e->correct1 / images);
        put_score(f, prefix, "top5", (double)e->correct5 / images);
    }
    put_score(f, prefix, "loss", e->loss_sum / images);
}

static void facts_begin(struct facts *f, const struct cr_run *run, const char *event) {
    char        path[PATH_MAX];
    const char *folder = realpath(run->dir, path) ? path : run->dir;
    *f                 = (struct facts){.count = 0};
    f->writer          = cr_json_writer(&f->json, CR_JSON_SPACED);
    cr_json_open_object(&f->writer, NULL);
    put_text(f, "event", event);
    put_text(f, "run", folder);
    put_int(f, "step", run->at.step);
    put_int(f, "steps", run->total_steps);
    put_real(f, "epoch", (double)run->at.step / (double)run->at.steps_per_epoch);
    put_int(f, "epochs", run->config->train.epochs);
}

static void put_checkpoint(struct facts *f, const struct cr_run *run) {
    char        path[PATH_MAX], name[PATH_MAX + 32];
    const char *folder = realpath(run->dir, path) ? path : run->dir;
    snprintf(name, sizeof name, "%s/step-%lld", folder, (long long)run->at.step);
    put_text(f, "checkpoint", name);
}

/* ---- processes ---- */

static void warn_end(const struct cr_run_events *e, int wait_status) {
    if (WIFSIGNALED(wait_status))
        cr_log(CR_LOG_WARN, "train.on_event: the command of the event %s was ended by signal %d", e->event,
               WTERMSIG(wait_status));
    else if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status))
        cr_log(CR_LOG_WARN, "train.on_event: the command of the event %s failed with exit code %d", e->event,
               WEXITSTATUS(wait_status));
}

/* True when no command is running any more. */
static bool has_ended(struct cr_run_events *e) {
    int how;
    if (!e->process) return true;
    if (!cr_process_ended(e->process, &how)) return false;
    warn_end(e, how);
    e->process = 0;
    return true;
}

/* Waits for the command, and kills it when its time is over. */
static void finish(struct cr_run_events *e, double seconds) {
    const struct timespec pause = {.tv_nsec = POLL_NS};
    for (; !has_ended(e); nanosleep(&pause, NULL)) {
        if (cr_time_ns() - e->started_ns < (int64_t)(seconds * 1e9)) continue;
        cr_log(CR_LOG_WARN,
               "train.on_event: the command of the event %s was killed: it was still running after %g seconds",
               e->event, seconds);
        kill(-e->process, SIGKILL);
        (void)cr_process_finish(e->process);
        e->process = 0;
    }
}

static bool is_fact(const char *variable, char *const *facts, int count) {
    for (int i = 0; i < count; i++) {
        const size_t name = (size_t)(strchr(facts[i], '=') - facts[i]) + 1;
        if (strncmp(variable, facts[i], name) == 0) return true;
    }
    return false;
}

/* The environment of this process with the facts; NULL when out of memory. The caller frees the list. */
static char **make_environment(struct facts *f) {
    size_t own = 0, count = (size_t)f->count;
    while (environ && environ[own]) own++;
    char **list = cr_alloc(own + count + 1, sizeof *list);
    char  *next = f->variables.data;
    if (!list) return NULL;
    for (int i = 0; i < f->count; i++, next += strlen(next) + 1) list[i] = next;
    for (size_t i = 0; i < own; i++)
        if (!is_fact(environ[i], list, f->count)) list[count++] = environ[i];
    list[count] = NULL;
    return list;
}

/* The command reads the line and prints to standard error: standard output carries results only. Returns errno. */
static int spawn(struct cr_run_events *e, int input, char **environment) {
    const char *const               argv[]  = {"sh", "-c", e->command, NULL};
    const struct cr_process_program program = {.path        = "/bin/sh",
                                               .argv        = argv,
                                               .environment = environment,
                                               .input       = input,
                                               .output      = STDERR_FILENO,
                                               .errors      = -1};
    return cr_process_start(&program, &e->process);
}

/* Ends the line and starts the command with it. Frees the facts. */
static void run_command(struct cr_run *run, const char *event, struct facts *f) {
    struct cr_run_events *e           = &run->events;
    char                **environment = NULL;
    int                   input = -1, failed = ENOMEM;
    cr_json_close_object(&f->writer);
    cr_json_end_line(&f->writer);
    finish(e, run->config->train.event_timeout);
    if (!f->json.failed && !f->variables.failed) environment = make_environment(f);
    if (environment) {
        input  = cr_fs_memory_file(f->json.data, f->json.length); /* sets no error: that of the run must stay */
        failed = input < 0 ? errno : spawn(e, input, environment);
    }
    if (failed)
        cr_log(CR_LOG_WARN, "train.on_event: the command of the event %s cannot be started: %s", event,
               strerror(failed));
    e->event      = event;
    e->started_ns = cr_time_ns();
    if (input >= 0) close(input);
    cr_free(environment);
    cr_text_free(&f->json);
    cr_text_free(&f->variables);
}

/* ---- events ---- */

static bool reports_events(const struct cr_run *run) {
    return cr_run_reports(run) && run->events.command && *run->events.command && run->events.started;
}

void cr_run_event_start(struct cr_run *run) {
    struct facts f;
    run->events.started = true;
    if (!reports_events(run)) return;
    facts_begin(&f, run, "start");
    put_bool(&f, "resumed", run->from != NULL);
    run_command(run, "start", &f);
}

void cr_run_event_saved(struct cr_run *run) {
    struct facts f;
    if (!reports_events(run)) return;
    facts_begin(&f, run, "checkpoint");
    put_checkpoint(&f, run);
    run_command(run, "checkpoint", &f);
}

void cr_run_event_evaluated(struct cr_run *run, const struct cr_scores *raw, const struct cr_scores *ema,
                            bool is_best) {
    struct facts f;
    if (!reports_events(run)) return;
    facts_begin(&f, run, "evaluation");
    put_checkpoint(&f, run);
    put_scores(&f, raw, "");
    if (ema) put_scores(&f, ema, "ema_");
    put_bool(&f, "best", is_best);
    run_command(run, "evaluation", &f);
}

void cr_run_event_end(struct cr_run *run, cr_status status, int signal) {
    const char  *event = status != CR_OK ? "failed" : signal ? "interrupted" : "finished";
    struct facts f;
    if (!reports_events(run)) return;
    facts_begin(&f, run, event);
    if (status != CR_OK) put_text(&f, "error", cr_error_message());
    if (status == CR_OK && signal) put_int(&f, "signal", signal);
    run_command(run, event, &f);
    finish(&run->events, run->config->train.event_timeout);
}
