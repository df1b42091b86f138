/* tests/harness/test_gpu.h: checks that a GPU is available. Cases begin with NEED_GPU(). */
#ifndef CR_TEST_GPU_H
#define CR_TEST_GPU_H

#include "device/device.h"
#include "tests/harness/test.h"

#include <string.h>

static inline const char *test_why_no_gpu(void) {
    for (const struct cr_backend *const *b = cr_backends(); *b; b++) {
        const char *why = NULL;
        if (strcmp((*b)->name, "cuda") == 0) return (*b)->available(&why) ? NULL : why;
    }
    return "this build has no CUDA";
}
#define NEED_GPU()                                                                                                     \
    do {                                                                                                               \
        if (test_why_no_gpu()) SKIP(test_why_no_gpu());                                                                \
    } while (0)

#endif
