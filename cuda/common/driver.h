/* cuda/common/driver.h: looks up functions of the CUDA driver through the runtime, so that nothing links with the
 * driver. */
#ifndef CK_DRIVER_H
#define CK_DRIVER_H

#include <cuda_runtime_api.h>
#include <stddef.h>

/* Returns the driver's function of this name, in the version of CUDA 12.0; NULL when there is no driver or the driver
 * lacks the function. */
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
