/* cuda/core/libraries.h: cuDNN and cuBLAS are opened when a GPU is used, not when the program starts: a build with CUDA
 * runs on machines without them (on the CPU), starts at once there, and says in one line what is missing. */
#ifndef CR_CUDA_LIBS_H
#define CR_CUDA_LIBS_H

/* Opens both libraries once; NULL: they are there. Else what is missing, in words for the user. Thread-safe. */
const char *cr_cuda_libs_missing(void);

#endif
