/* cuda/core/sharing_launchers.h: the launcher of cuda/core/reference_work.cu. */
#ifndef CR_SHARING_LAUNCHERS_H
#define CR_SHARING_LAUNCHERS_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One block of a fixed amount of arithmetic for each multiprocessor. ticks: see cr_async.reference_work; `most`: the
 * number of blocks that it has room for. */
cudaError_t ck_reference_work(int multiprocessors, int most, uint64_t *ticks, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
