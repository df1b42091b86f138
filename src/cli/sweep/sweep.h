/* cli/sweep/sweep.h: cresnet sweep: trains one configuration with every combination of listed values.
 *
 * Invariants
 *   - Every run is a process that executes `cresnet train ... --resume auto` in its own run folder. A run is therefore
 *     bitwise identical to the same command given by hand, and one failed run cannot damage another.
 *   - Nothing starts before the configuration of every run has been checked. */
#ifndef CR_SWEEP_H
#define CR_SWEEP_H

#include "cli/common/command.h"

enum { CR_SWEEP_RUNS = 1000 };

enum cr_sweep_state { CR_SWEEP_WAITING, CR_SWEEP_RUNNING, CR_SWEEP_DONE, CR_SWEEP_STOPPED, CR_SWEEP_FAILED };

struct cr_sweep_run {
    const char         *name;            /* "optim.lr=0.1,train.seed=2", the name of the run folder */
    const char        **override;        /* [overrides] of the sweep: "section.key=value", varied keys included */
    const char         *folder, *output; /* run folder; file with what the training prints */
    enum cr_sweep_state state;
    bool                several; /* data.multi_label: the best score is the mean average precision */
    bool                cpu;     /* computes on the CPU, with this number of threads */
    int64_t             threads;
    bool                auto_memory;   /* on the CPU, with memory.limit = auto and no memory.card */
    int                 process, code; /* process id while running; exit code of an ended run */
};
struct cr_sweep {
    struct cr_sweep_run *run; /* [runs] */
    int                  runs, overrides, varied;
    int                  jobs;       /* runs at once */
    size_t               part_bytes; /* free memory for the plan of each of them; 0 when unknown */
    char                *root;       /* folder of the run folders */
    struct cr_arena      arena;      /* owns all strings and arrays */
};

/* cli/sweep/grid.c: expands lists (a,b,c; double quotes keep commas) and ranges of integers (a..b) in the overrides of
 * the command line. The first key varies slowest. CR_ERR_USAGE: no list, an empty value, a key given twice, equal names
 * of runs, more than CR_SWEEP_RUNS runs. */
CR_MUST cr_status cr_sweep_expand(const struct cr_args *args, struct cr_sweep *sweep);
/* cli/sweep/jobs.c: runs what waits, at most `jobs` at once. SIGINT and SIGTERM are forwarded to the runs, and no other
 * run starts; *signal_taken is then the signal. A failed run gets the state CR_SWEEP_FAILED and is no error here. */
CR_MUST cr_status cr_sweep_execute(struct cr_sweep *sweep, const char *config, int *signal_taken);

#endif
