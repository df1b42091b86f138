/* cli/sweep/jobs.c: starts and watches the parallel processes of a sweep (jobs). See cli/sweep/sweep.h. */
#include "cli/sweep/sweep.h"

#include "core/process/process.h"
#include "core/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { MESSAGE_BYTES = 400, FULL_BYTES = 64 << 10 /* a disk with less space is called full */ };

/* ---- starting ---- */

/* The run saves and stops when the sweep is killed. */
static cr_status start(struct cr_sweep *sweep, struct cr_sweep_run *run, const char *config) {
    const int    n    = sweep->overrides;
    const char **argv = cr_arena_alloc(&sweep->arena, ((size_t)n + 8) * sizeof *argv);
    const char  *out  = cr_arena_printf(&sweep->arena, "train.output=%s", run->folder);
    const char  *last = cr_arena_printf(&sweep->arena, "%s/last", run->folder);
    const char  *card = NULL;
    int          argc = 0;
    /* Runs that start at the same time would all take the same memory for free. */
    if (run->auto_memory && sweep->jobs > 1 && sweep->part_bytes)
        card = cr_arena_printf(&sweep->arena, "memory.card=%zuB", sweep->part_bytes);
    if (!argv || !out || !last) return CR_NO_MEMORY(((size_t)n + 8) * sizeof *argv);
    argv[argc++] = "cresnet";
    argv[argc++] = "train";
    argv[argc++] = config;
    for (int k = 0; k < n; k++) argv[argc++] = run->override[k];
    if (run->override[n]) argv[argc++] = run->override[n]; /* what the sweep adds */
    if (card) argv[argc++] = card;
    argv[argc++]   = out;
    argv[argc++]   = "--resume=auto";
    const int file = open(run->output, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0) return CR_FAIL(CR_ERR_IO, "%s: cannot be opened: %s", run->output, strerror(errno));
    const bool                      saved   = access(last, F_OK) == 0;
    const struct cr_process_program program = {
        .path = "/proc/self/exe", .argv = argv, .input = -1, .output = file, .errors = file, .stops_with_parent = true};
    const int failed = cr_process_start(&program, &run->process);
    close(file);
    if (failed) return CR_FAIL(CR_ERR_IO, "%s: cannot start a process: %s", run->name, strerror(failed));
    run->state = CR_SWEEP_RUNNING;
    cr_log(CR_LOG_INFO, saved ? "sweep: continues %s from its last checkpoint" : "sweep: started %s", run->name);
    return CR_OK;
}

/* ---- ending ---- */

/* The last line that a failed run printed, which says why; on a full disk this line may be missing. */
static void read_message(const struct cr_sweep *sweep, const struct cr_sweep_run *run, char out[MESSAGE_BYTES]) {
    char           end[MESSAGE_BYTES];
    struct statvfs disk;
    out[0]         = 0;
    const int file = open(run->output, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    const off_t   size  = lseek(file, 0, SEEK_END);
    const ssize_t bytes = pread(file, end, sizeof end - 1, CR_MAX(size - (off_t)sizeof end + 1, (off_t)0));
    close(file);
    size_t length = bytes > 0 ? (size_t)bytes : 0;
    while (length && (end[length - 1] == '\n' || end[length - 1] == '\r')) length--;
    end[length]      = 0;
    const char *line = strrchr(end, '\n');
    if (length) cr_utf8_visible(line ? line + 1 : end, false, out, MESSAGE_BYTES);
    if (statvfs(sweep->root, &disk) == 0 && (uint64_t)disk.f_bavail * disk.f_frsize < FULL_BYTES)
        snprintf(out, MESSAGE_BYTES, "no space is left in %.300s: free some", sweep->root);
}

static void log_end(const struct cr_sweep *sweep, const struct cr_sweep_run *run) {
    int  waiting = 0, running = 0;
    char why[MESSAGE_BYTES];
    if (run->state == CR_SWEEP_FAILED) {
        read_message(sweep, run, why);
        cr_log(CR_LOG_WARN, "sweep: %s failed with exit code %d (all messages: %s): %s", run->name, run->code,
               run->output, why);
    } else
        cr_log(CR_LOG_INFO, "sweep: %s %s", run->name,
               run->state == CR_SWEEP_DONE ? "is done" : "stopped after a checkpoint");
    for (int i = 0; i < sweep->runs; i++) {
        waiting += sweep->run[i].state == CR_SWEEP_WAITING;
        running += sweep->run[i].state == CR_SWEEP_RUNNING;
    }
    cr_log(CR_LOG_INFO, "sweep: %d of %d ended, %d running, %d waiting", sweep->runs - waiting - running, sweep->runs,
           running, waiting);
}

static void collect_ended(struct cr_sweep *sweep, bool stopping) {
    int how;
    for (int i = 0; i < sweep->runs; i++) {
        struct cr_sweep_run *run = &sweep->run[i];
        if (run->state != CR_SWEEP_RUNNING || !cr_process_ended(run->process, &how)) continue;
        run->code  = cr_process_code(how);
        run->state = !run->code                                                              ? CR_SWEEP_DONE
                     : stopping && (run->code == 128 + SIGINT || run->code == 128 + SIGTERM) ? CR_SWEEP_STOPPED
                                                                                             : CR_SWEEP_FAILED;
        log_end(sweep, run);
    }
}

static int running(const struct cr_sweep *sweep, int signal_number) {
    int count = 0;
    for (int i = 0; i < sweep->runs; i++) {
        if (sweep->run[i].state != CR_SWEEP_RUNNING) continue;
        count++;
        if (signal_number) kill(sweep->run[i].process, signal_number);
    }
    return count;
}

cr_status cr_sweep_execute(struct cr_sweep *sweep, const char *config, int *signal_taken) {
    struct cr_process_signals signals;
    cr_status                 status = CR_OK;
    int                       next   = 0;
    cr_process_signals_begin(&signals, NULL, 0);
    for (;;) {
        while (status == CR_OK && !*signal_taken && next < sweep->runs && running(sweep, 0) < sweep->jobs) {
            status = start(sweep, &sweep->run[next++], config);
            if (status != CR_OK) running(sweep, SIGTERM); /* they save and end */
        }
        if (!running(sweep, 0)) break;
        const int got = cr_process_wait(&signals, CR_PROCESS_POLL_MS);
        if (got) {
            *signal_taken = got;
            cr_log(CR_LOG_INFO, "sweep: stopping %d runs after a checkpoint", running(sweep, got));
        }
        collect_ended(sweep, *signal_taken != 0 || status != CR_OK);
    }
    cr_process_signals_end(&signals);
    return status;
}
