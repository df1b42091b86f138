/* device/benchmarks.h: what a device offers to `cresnet bench` alone. No program uses it. */
#ifndef CR_DEVICE_BENCHMARKS_H
#define CR_DEVICE_BENCHMARKS_H

#include "device/device.h"

/* One request to a dynamic allocator, for a comparison with planned memory (runtime/allocator_bench.h). */
struct cr_pool_event {
    int    block; /* number of the block; each block is allocated once and then freed once */
    bool   alloc; /* true: allocate; false: free */
    size_t bytes; /* size of the block, at least 1 */
};
struct cr_pool_times {
    double ms;         /* milliseconds for all requests of one step: the median over the steps */
    size_t peak_bytes; /* most device memory that the allocator held; 0 when the device does not report it */
};
/* A dynamic allocator of the device. */
struct cr_pool {
    const char *name, *what; /* a word, and a sentence for people; a list ends with name NULL */
    /* Replays the requests of one step `steps` times after one warm-up step. It only allocates and frees; it launches
     * nothing. CR_ERR_MEMORY when a request fails. */
    cr_status (*measure)(struct cr_device *device, const struct cr_pool_event *event, int events, int steps,
                         struct cr_pool_times *out);
};

struct cr_spdnn_net; /* spdnn/spdnn.h */
struct cr_spdnn_inputs;
struct cr_spdnn_options;
struct cr_spdnn_result;

struct cr_benchmarks {
    const struct cr_pool *pools; /* bench allocators: list of dynamic allocators; NULL: none */
    /* bench sparse: kernels that sparse kernels are compared with, outside the device's table. The list ends with NULL;
     * NULL when there are none. */
    const struct cr_kernel *const *baselines;
    /* bench spdnn: runs inference of a sparse deep network. *out must be empty; it is empty after an error, otherwise
     * the caller frees it. NULL: not supported. */
    cr_status (*spdnn)(struct cr_device *device, const struct cr_spdnn_net *net, const struct cr_spdnn_inputs *inputs,
                       const struct cr_spdnn_options *options, struct cr_spdnn_result *out);
};

#endif
