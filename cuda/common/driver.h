/* cuda/common/driver.h: functions of the driver, asked of the runtime: nothing links with the driver itself. */
#ifndef CK_DRIVER_H
#define CK_DRIVER_H

#include <cuda_runtime_api.h>
#include <stddef.h>

/* The driver's function of this name, as CUDA 12.0 defined it; NULL: the driver has none, or there is no driver. */
static inline void *ck_driver_function(const char *name) {
    enum cudaDriverEntryPointQueryResult found;
    void                                *f = NULL;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &f, 12000, cudaEnableDefault, &found);
#else
    const cudaError_t error = cudaGetDriverEntryPoint(name, &f, cudaEnableDefault, &found);
#endif
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? f : NULL;
}

#endif
