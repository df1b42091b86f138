/* tools/init-bench/methods.h: the methods of weight initialisation that cresnet-init-bench times.
 *
 * Invariants
 *   - Every method allocates the whole parameter store, all buffers in one region, as a trainer does, and then frees
 *     the region.
 *   - The time of a method runs from its first allocation until the device has the values.
 * Devices are used through device/device.h only. */
#ifndef CR_INIT_METHODS_H
#define CR_INIT_METHODS_H

#include "session/session.h"

enum { CR_INIT_REPEATS_MAX = 100, CR_INIT_RUNS_MAX = 3 * CR_INIT_REPEATS_MAX, CR_INIT_THREADS_MAX = 1024 };

struct cr_init_bench {
    struct cr_device *device;
    enum cr_dtype     real; /* data type of activations on the device */
    int64_t           repeats;
    int               threads;
    bool              json;
    struct cr_text    out;
};

struct cr_init_net { /* the network that is initialised */
    const char             *name;
    const struct cr_config *config;
    struct cr_model         model;
    bool                    has_model;
    int64_t                 value_elems, running_elems;
    size_t                  value_bytes; /* parameters and running statistics */
    size_t                  store_bytes; /* all buffers of the parameter store */
};

enum cr_init_part { CR_INIT_MEMORY, CR_INIT_VALUES, CR_INIT_COPY, CR_INIT_ALL, CR_INIT_PARTS };
struct cr_init_method {        /* the times of one method, by part */
    double  ms[CR_INIT_PARTS]; /* medians */
    int64_t ns[CR_INIT_PARTS][CR_INIT_RUNS_MAX];
    int64_t runs;
    size_t  host_bytes; /* peak host memory for values */
};

struct cr_init_result {
    struct cr_init_method direct, thread, cores;
    double                first_ms;  /* the first run of the method `direct` */
    double                device_ms; /* time of `direct` on the device itself */
    int64_t               worst_ulp, differing;
};

/* Generates the values on the device. */
CR_MUST cr_status cr_init_direct(struct cr_init_bench *bench, const struct cr_init_net *net,
                                 struct cr_init_method *method);
/* Generates the values with one thread into one array per tensor and copies tensor by tensor, as most trainers written
 * in C do. The device memory is one region, which favours this method: such trainers allocate device memory per tensor,
 * too. */
CR_MUST cr_status cr_init_thread(struct cr_init_bench *bench, const struct cr_init_net *net,
                                 struct cr_init_method *method);
/* Generates the values with all cores in pinned memory and copies buffer by buffer. *values becomes the host copy of
 * the value buffer followed by the running buffer; the caller releases it with host_release, also after a failure
 * unless it is NULL. */
CR_MUST cr_status cr_init_cores(struct cr_init_bench *bench, const struct cr_init_net *net,
                                struct cr_init_method *method, float **values);
/* For devices that use host memory: generates the values in place with all cores. The caller releases *region. */
CR_MUST cr_status cr_init_cores_in_place(struct cr_init_bench *bench, const struct cr_init_net *net,
                                         struct cr_init_method *method, void **region);
/* Time of the method `direct` on the device itself, between two events. */
CR_MUST cr_status cr_init_device_time(struct cr_init_bench *bench, const struct cr_init_net *net, double *ms);
/* Generates the values on the device and compares all of them with the host's value and running buffers: sets worst_ulp
 * and differing of the result. */
CR_MUST cr_status cr_init_compare(struct cr_init_bench *bench, const struct cr_init_net *net, const float *value,
                                  const float *running, struct cr_init_result *result);

/* Address of a buffer of the parameter store in a region. */
static inline char *cr_init_buffer(const struct cr_init_net *net, void *region, enum cr_param_buffer buffer) {
    return (char *)region + cr_param_store_buffer_offset(&net->model.store, buffer);
}

#endif
