/* cli/bench/init.h: the ways that cresnet bench init measures, between cli/bench/init.c (which networks, the report)
 * and cli/bench/init_variants.c (the ways themselves).
 *
 * Laws
 *   - Every way reserves the whole store, all planes in one region, for a trainer needs it, and leaves nothing behind.
 *   - A way's time runs from its first allocation to the moment when the device has the values.
 * Knows devices by device/device.h alone. */
#ifndef CR_CMD_BENCH_INIT_H
#define CR_CMD_BENCH_INIT_H

#include "session/session.h"

enum { CR_INIT_REPEATS_MAX = 100, CR_INIT_RUNS_MAX = 3 * CR_INIT_REPEATS_MAX, CR_INIT_THREADS_MAX = 1024 };

struct cr_init_bench {
    struct cr_device *device;
    enum cr_dtype     real; /* of activations there */
    int64_t           repeats;
    int               threads;
    bool              json;
    struct cr_text    out;
};

struct cr_init_net { /* the network that is measured */
    const char      *name;
    struct cr_config config;
    struct cr_model  model;
    bool             has_model;
    int64_t          value_elems, running_elems;
    size_t           value_bytes, store_bytes; /* value_bytes: parameters and running statistics */
};

enum cr_init_part { CR_INIT_MEMORY, CR_INIT_VALUES, CR_INIT_COPY, CR_INIT_ALL, CR_INIT_PARTS };
struct cr_init_method {
    double  ms[CR_INIT_PARTS]; /* medians */
    int64_t ns[CR_INIT_PARTS][CR_INIT_RUNS_MAX];
    int64_t runs;
    size_t  host_bytes; /* of values, at the most */
};

struct cr_init_result {
    struct cr_init_method direct, thread, cores;
    double                first_ms, device_ms; /* the first direct run; the device's own time for one */
    int64_t               worst_ulp, differing;
};

/* Drawn on the device. */
CR_MUST cr_status cr_init_direct(struct cr_init_bench *bench, const struct cr_init_net *net,
                                 struct cr_init_method *way);
/* Drawn by one thread into an array a tensor, then copied tensor by tensor, as most trainers written in C do. That the
 * device's memory is one region favours this way: such trainers allocate tensor by tensor, too. */
CR_MUST cr_status cr_init_thread(struct cr_init_bench *bench, const struct cr_init_net *net,
                                 struct cr_init_method *way);
/* Drawn by all cores into page-locked memory, then copied plane by plane. *values gets the host's value and running
 * plane, in a row: from host_reserve, the caller's to release, on failure too unless NULL. */
CR_MUST cr_status cr_init_cores(struct cr_init_bench *bench, const struct cr_init_net *net, struct cr_init_method *way,
                                float **values);
/* Where the device's memory is the host's: drawn by all cores at the place where they belong. *region is the caller's
 * to release. */
CR_MUST cr_status cr_init_cores_in_place(struct cr_init_bench *bench, const struct cr_init_net *net,
                                         struct cr_init_method *way, void **region);
/* What the direct way takes on the device itself, between two marks. */
CR_MUST cr_status cr_init_device_time(struct cr_init_bench *bench, const struct cr_init_net *net, double *ms);
/* Draws on the device and compares every value with the host's planes: worst_ulp and differing of the result. */
CR_MUST cr_status cr_init_compare(struct cr_init_bench *bench, const struct cr_init_net *net, const float *value,
                                  const float *running, struct cr_init_result *result);

static inline char *cr_init_buffer(const struct cr_init_net *net, void *region, enum cr_param_buffer plane) {
    return (char *)region + cr_param_store_buffer_offset(&net->model.store, plane);
}

#endif
