/* runtime/executor_internal.h: the structure of a bound program, shared by the files executor*.c only. */
#ifndef CR_EXECUTOR_INTERNAL_H
#define CR_EXECUTOR_INTERNAL_H

#include "runtime/executor.h"

/* An op with its kernel and addresses. */
struct cr_bound_op {
    const struct cr_kernel *kernel;
    struct cr_call          call;
    char                   *title;     /* "conv layer1.0.conv1", for the timeline of a profiler */
    void                   *done;      /* event after the op; NULL when no other stream waits for the op */
    bool                    separated; /* all launches before the op on its stream are complete when it begins */
};

/* Host copies of the results of a run, in the types of their tensors; page-locked on a device with async. */
struct cr_raw_result {
    double metrics[4], norm[2], state[CR_STATE_COUNT];
};

enum { CR_LAUNCH_HOOKS_MAX = 4 };

struct cr_exec {
    const struct cr_program *program;
    struct cr_memory        *memory;
    struct cr_bound_op      *op;    /* [program->ops] */
    struct cr_arena          arena; /* owns the titles */
    int64_t                  runs;
    bool                     hoisted_done; /* the first program->hoisted ops have run on the present parameters */
    void                    *graph;        /* captured graph of all other ops; NULL: not captured */
    bool                     sync_each;    /* CRESNET_SYNC=1: wait after every op, so that an error names its op */

    /* Streams. */
    void *begun;               /* event of the compute stream after which the other streams start */
    int   last_of[CR_STREAMS]; /* last op of each stream; CR_NONE: the stream is not used */
    int   last_image_reader;   /* last op that reads the images; CR_NONE: none */

    /* Results. */
    int                   state;                  /* tensor id; CR_NONE: the program does not have the tensor */
    struct cr_raw_result *result;                 /* [CR_EXEC_RESULTS] */
    void                 *ready[CR_EXEC_RESULTS]; /* events: the copy of the result is complete */

    struct cr_launch_hook hook[CR_LAUNCH_HOOKS_MAX];
    int                   hooks;
};

static inline struct cr_device *cr_exec_device(const struct cr_exec *exec) {
    return exec->memory->device;
}
static inline const struct cr_async *cr_exec_async(const struct cr_exec *exec) {
    return exec->memory->device->backend->async;
}
/* Destroys the captured graph because later runs shall differ from it. */
CR_MUST cr_status cr_exec_drop_graph(struct cr_exec *exec);

/* ---- runtime/executor_io.c ---- */

/* Address of a tensor: of the device, or of the host for the HOST region. */
unsigned char    *cr_exec_address(const struct cr_exec *exec, int tensor);
CR_MUST cr_status cr_exec_open_results(struct cr_exec *exec);
/* Enqueues the copies of the results of the run that has just been enqueued (exec->runs counts it). */
CR_MUST cr_status cr_exec_fetch_results(struct cr_exec *exec);

/* ---- runtime/launch_overlap.c ---- */

/* Sets `separated` of all ops. bound: [program->ops] */
void cr_exec_find_separations(const struct cr_program *program, struct cr_bound_op *bound);

/* ---- runtime/launch_hooks.c ---- */

/* Call the hooks' functions before and after the launch of op `op`, and after the last op. They do nothing without
 * hooks. */
CR_MUST cr_status cr_exec_before_launch(struct cr_exec *exec, int op);
CR_MUST cr_status cr_exec_after_launch(struct cr_exec *exec, int op);
CR_MUST cr_status cr_exec_at_end(struct cr_exec *exec);
/* Destroys the captured graph before a run when a hook requires it (recapture_runs). */
CR_MUST cr_status cr_exec_recapture(struct cr_exec *exec);
void              cr_exec_close_hooks(struct cr_exec *exec);

#endif
