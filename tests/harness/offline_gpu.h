/* tests/harness/offline_gpu.h: devices for plans of GPUs that are not in this machine. */
#ifndef CR_TEST_OFFLINE_GPU_H
#define CR_TEST_OFFLINE_GPU_H

#include "device/offline.h"
#include "tests/harness/test.h"

/* For SKIP, where open_gpu returns NULL. */
static const char no_kernels_for_gpus[] = "no CUDA in this build, or one of its libraries is missing";

/* The device with the kernels of the GPU "h200"; NULL where they cannot be queried. */
static inline struct cr_device *open_gpu(const char *name, bool deterministic) {
    const struct cr_device_options options = {.deterministic = deterministic};
    struct cr_device              *device  = NULL;
    const struct cr_gpu           *gpu     = cr_gpu_find(name);
    if (!gpu) TEST_FAIL_("%s: unknown GPU", name);
    if (!gpu || cr_gpu_open_offline(gpu, &options, &device) != CR_OK) cr_error_clear();
    return device;
}

#endif
