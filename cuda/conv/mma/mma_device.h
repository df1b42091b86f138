/* cuda/conv/mma/mma_device.h: the GPU as the kernels in cuda/conv/mma/ see it. */
#ifndef CR_MMA_DEVICE_H
#define CR_MMA_DEVICE_H

#include "cuda/conv/mma/mma_gpu.h"
#include "cuda/core/cuda_device.h"

/* Returns whether the device has the kernels of compute capability 9.0 (wgmma, TMA). */
static inline bool cuda_has_wgmma(const struct cr_device *device) {
    return cuda_of(device)->cc == 90;
}
/* Returns whether the kernels with mma.sync are used: everywhere else, from 8.0 on. */
static inline bool cuda_uses_mma(const struct cr_device *device) {
    return cuda_of(device)->cc >= 80 && !cuda_has_wgmma(device);
}
static inline struct ck_mma_gpu cuda_mma_gpu(const struct cr_device *device) {
    const struct cuda_device *d = cuda_of(device);
    return (struct ck_mma_gpu){.multiprocessors      = d->multiprocessors,
                               .block_bytes          = d->block_bytes,
                               .multiprocessor_bytes = d->multiprocessor_bytes};
}

#endif
