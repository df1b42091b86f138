/* device/libraries.h: lists the libraries (cuDNN, cuBLAS, NVRTC, NCCL) that this build opens at run time. */
#ifndef CR_DEVICE_LIBRARIES_H
#define CR_DEVICE_LIBRARIES_H

#include "core/base.h"

/* Opens these libraries (cuDNN, cuBLAS, NVRTC, NCCL) and adds one line for each: its name, and the file that was opened
 * or that there is none. Adds nothing in a build without CUDA. */
void cr_device_list_libraries(struct cr_text *out);

#endif
