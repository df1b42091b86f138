/* runtime/executor_internal.h: the structure of a bound program, shared by the files executor*.c only. */
#ifndef CR_EXECUTOR_INTERNAL_H
#define CR_EXECUTOR_INTERNAL_H

#include "core/rng.h"
#include "runtime/executor.h"

/* An op with its kernel and addresses. */
struct cr_bound_op {
    const struct cr_kernel *kernel;
    struct cr_call          call;
    char                   *title; /* "conv layer1.0.conv1", for the timeline of a profiler */
    void                   *done;  /* event after the op; NULL when no other stream waits for the op */
};

/* Host copies of the results of a run, in the types of their tensors; page-locked on a device with async. */
struct cr_raw_result {
    double metrics[4], norm[2], state[CR_STATE_COUNT];
};

/* A range of the pool whose tensor is dead from this point on: tests/harness/executor_poison.h. */
struct cr_fill {
    int    op;           /* op of the compute stream; program->ops: at the end, when all streams are done */
    bool   after_launch; /* true: after the launch of the op, before its event. false: before the launch, after its
                            waits */
    size_t begin, end;   /* bytes of the pool */
};
enum { CR_POISON_BYTE = 0xff }; /* NaN in every floating-point type */

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
    void        *begun;                 /* event of the compute stream after which the other streams start */
    int          last_of[CR_STREAMS];   /* last op of each stream; CR_NONE: the stream is not used */
    int          last_image_reader;     /* last op that reads the images; CR_NONE: none */
    void *const *before, *const *after; /* events around every op during cr_exec_run_timed; else NULL */

    /* Results. */
    int                   state;                  /* tensor id; CR_NONE: the program does not have the tensor */
    struct cr_raw_result *result;                 /* [CR_EXEC_RESULTS] */
    void                 *ready[CR_EXEC_RESULTS]; /* events: the copy of the result is complete */

    /* Tests set these members: cr_exec_poison and cr_exec_jitter of tests/harness/executor_poison.h. */
    struct cr_fill *fill; /* [fills], in the order of ops; NULL: no poisoning */
    int             fills;
    unsigned char  *poison; /* on a device without async: poison bytes, as many as the largest fill */
    bool            jitter;
    struct cr_rng   jitter_rng;
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

/* ---- runtime/executor_poison.c ---- */

/* Enqueues the fills at op `op`: those before its launch, or those after it. Does nothing without poisoning. */
CR_MUST cr_status cr_exec_fill_at(struct cr_exec *exec, int op, bool after_launch);
/* With jitter, delays the stream at random. */
CR_MUST cr_status cr_exec_delay(struct cr_exec *exec, enum cr_stream stream);

#endif
