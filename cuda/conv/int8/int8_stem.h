/* cuda/conv/int8/int8_stem.h: launcher of the op qstem (graph/ops.def) on Hopper GPUs (compute capability 9.0).
 * Conventions: cuda/common/launchers.h. */
#ifndef CR_INT8_STEM_H
#define CR_INT8_STEM_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ck_int8_stem {
    int64_t        N, H, W, K; /* H and W are even, K is a multiple of 64 */
    float          mean[3], std[3];
    const uint8_t *images; /* [N,H,W,3] */
    const float   *scale;  /* [1], of the quantised image */
    const int8_t  *w;      /* [K,7,7,3] */
    const float   *coeffs; /* [3][K] */
    uint8_t       *y;      /* [N, (H/2-1)/2+1, (W/2-1)/2+1, K] */
};

bool        ck_int8_stem_supports(const struct ck_int8_stem *args);
cudaError_t ck_int8_stem(const struct ck_int8_stem *args, int multiprocessors, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
