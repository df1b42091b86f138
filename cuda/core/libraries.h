/* cuda/core/libraries.h: opens cuDNN and cuBLAS when a GPU is first used. A build with CUDA therefore runs on the CPU
 * of machines without these libraries, starts quickly there, and reports in one line which library is missing. */
#ifndef CR_LIBRARIES_H
#define CR_LIBRARIES_H

/* Opens both libraries at the first call. Returns NULL on success, else a message for the user (static memory).
 * Thread-safe. */
const char *cr_cuda_libs_missing(void);

/* Loads NVRTC, where it is found, and keeps it. cuDNN loads and unloads it for each engine whose support is queried.
 * Thread-safe. */
void cr_cuda_keep_nvrtc(void);

#endif
