/* cuda/core/libraries.h: opens cuDNN and cuBLAS when a GPU is first used. A build with CUDA therefore runs on the CPU
 * of machines without these libraries, starts quickly there, and reports in one line which library is missing. */
#ifndef CR_LIBRARIES_H
#define CR_LIBRARIES_H

#include "core/base.h"

/* Begins to open both libraries in a thread, which cr_cuda_libs_missing joins: that takes 60 ms or more, most of it for
 * cuBLAS, while the driver needs 100 ms to find the GPUs. Thread-safe. */
void cr_cuda_libs_begin(void);

/* Opens both libraries at the first call. Returns NULL on success, else a message for the user (static memory).
 * Thread-safe. */
const char *cr_cuda_libs_missing(void);

/* Opens cuDNN, cuBLAS, NVRTC and NCCL, and adds a line for each: its name and its file. */
void cr_cuda_libs_list(struct cr_text *out);

/* Loads NVRTC, where it is found, and keeps it. cuDNN loads and unloads it for each engine whose support is queried.
 * Thread-safe. */
void cr_cuda_keep_nvrtc(void);

#endif
