/* cuda/conv/int8/int8_stem.h: launchers of the op qstem (graph/ops.def): ck_int8_stem for Hopper GPUs (compute
 * capability 9.0), ck_int8_stem_mma for all GPUs from 8.0 on. Both give the same y. Conventions:
 * cuda/common/launchers.h. */
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

static inline bool ck_int8_stem_supports(const struct ck_int8_stem *a) {
    const int64_t most = INT32_MAX / 2;
    return a->N > 0 && a->H >= 2 && a->W >= 2 && a->H % 2 == 0 && a->W % 2 == 0 && a->K % 64 == 0 && a->K > 0 &&
           a->K <= 4096 && a->H <= most / a->W / 3 && a->N <= most / a->H;
}
cudaError_t ck_int8_stem(const struct ck_int8_stem *args, int multiprocessors, cudaStream_t stream);
cudaError_t ck_int8_stem_mma(const struct ck_int8_stem *args, int multiprocessors, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
