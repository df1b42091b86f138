/* tests/harness/test_gpu.h: checks that a GPU is available. Cases begin with NEED_GPU(). */
#ifndef CR_TEST_GPU_H
#define CR_TEST_GPU_H

#include "device/capability.h"
#include "tests/harness/test.h"

static inline const char *test_why_no_gpu(void) {
    for (const struct cr_backend *const *b = cr_backends(); *b; b++) {
        const char *why = NULL;
        if (strcmp((*b)->name, "cuda") == 0) return (*b)->available(&why) ? NULL : why;
    }
    return "this build has no CUDA";
}
/* Returns the shared memory that kernels may use in a thread block, bytes. gpu_bytes: what the GPU offers;
 * CRESNET_CAPABILITY may offer less. */
static inline size_t test_block_bytes(int gpu_bytes) {
    const char          *value = getenv("CRESNET_CAPABILITY");
    struct cr_capability limits;
    if (!value || !*value || cr_capability_read(value, &limits) != CR_OK) return (size_t)gpu_bytes;
    return CR_MIN((size_t)gpu_bytes, limits.block_bytes);
}
/* Whether CRESNET_CAPABILITY makes the GPU offer only what an older capability has. */
static inline bool test_is_emulated(void) {
    const char *value = getenv("CRESNET_CAPABILITY");
    return value && *value;
}
#define NEED_GPU()                                                                                                     \
    do {                                                                                                               \
        if (test_why_no_gpu()) SKIP(test_why_no_gpu());                                                                \
    } while (0)

#endif
