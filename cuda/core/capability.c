/* cuda/core/capability.c: the compute capability (sm_90, ...) that this project's kernels see: that of the GPU, a
 * smaller one that CRESNET_CAPABILITY names, or the one that the GPU code of this build is for. */
#include "device/capability.h"
#include "cuda/common/conv_family.h"
#include "cuda/common/launchers.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/device_parts.h"

#include <stdlib.h>

#ifndef CR_CUDA_SM90A
#define CR_CUDA_SM90A 0 /* 1: *_sm90a.cu have code for 9.0a */
#endif

enum { PTX_EMULATION = 80 };

/* Code that nvcc compiled for 9.0 may use what 8.0 lacks, such as dependent launches. Only PTX of 8.0, which the driver
 * compiles for this GPU, has none of it. */
static cr_status check_code(const char *value, int ptx) {
    if (ptx == PTX_EMULATION) return CR_OK;
    return CR_FAIL(CR_ERR_CONFIG,
                   "CRESNET_CAPABILITY=%s: this build has GPU code for %d.%d; configure a build with PTX of 8.0: cmake "
                   "--preset emulate, or -DCRESNET_CUDA_TARGETS=EMULATE",
                   value, ptx / 10, ptx % 10);
}

static void use(struct cuda_device *d, const struct cr_capability *c) {
    d->cc                   = c->cc;
    d->block_bytes          = (int)CR_MIN((size_t)d->block_bytes, c->block_bytes);
    d->multiprocessor_bytes = (int)CR_MIN((size_t)d->multiprocessor_bytes, c->multiprocessor_bytes);
}

cr_status cr_cuda_set_capability(struct cuda_device *d, const struct cudaDeviceProp *prop) {
    const char          *value = getenv("CRESNET_CAPABILITY");
    struct cr_capability limits;
    int                  ptx = 0;
    d->cc                    = prop->major * 10 + prop->minor;
    d->block_bytes           = (int)prop->sharedMemPerBlockOptin;
    d->multiprocessor_bytes  = (int)prop->sharedMemPerMultiprocessor;
    if (value && *value) {
        CR_TRY(cr_capability_read(value, &limits));
        CUDA_TRY(ck_ptx_version(&ptx));
        CR_TRY(check_code(value, ptx));
        use(d, &limits);
        d->emulated = value;
        ck_limit_shared(d->block_bytes);
        cr_log(
            CR_LOG_INFO,
            "CRESNET_CAPABILITY=%s: cresnet's kernels are those of compute capability %s with %d KiB of shared memory "
            "a block; the kernels of cuDNN and cuBLAS are those of this GPU (%d.%d): a test, no forecast for a GPU "
            "of %s",
            value, value, d->block_bytes >> 10, prop->major, prop->minor, value);
    } else if (d->cc == 90 && !CR_CUDA_SM90A) {
        const struct cr_capability least = cr_capability_of(PTX_EMULATION);
        cr_log(CR_LOG_INFO, "note: this build has no code for compute capability 9.0: the kernels of 8.0 are used");
        use(d, &least);
    }
    d->families = ck_families_of(d->cc);
    return CR_OK;
}
