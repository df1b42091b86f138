/* cli/bench/run.h: times a workload, for benchmarks that time several. */
#ifndef CR_CLI_BENCH_RUN_H
#define CR_CLI_BENCH_RUN_H

#include "session/session.h"

struct cr_bench_figures {
    double  images_per_s;
    double  ms;           /* of a step or batch, without synchronisation between them */
    double  latency_ms;   /* of one, with synchronisation after it */
    int64_t batch;        /* images */
    size_t  device_bytes; /* GPU memory of the process without the bare context; 0 when unknown */
};
/* Reads what it needs of a session whose program `p` has been timed. */
typedef cr_status cr_bench_visit(struct cr_session *session, const struct cr_program *p, const struct cr_exec *exec,
                                 void *context);

/* Times a training step, or with `infer` one batch through the network, as cresnet bench step and bench infer do, of
 * the configuration that `overrides` ("key=value") make from the default values. Then calls visit(..., context). */
CR_MUST cr_status cr_bench_workload(const char *const *overrides, int count, bool infer, int64_t steps,
                                    struct cr_bench_figures *out, cr_bench_visit *visit, void *context);

#endif
