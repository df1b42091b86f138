/* cuda/conv/int8/int8_stem.h: arguments of the family int8_stem: the op qstem (graph/ops.def). Conventions:
 * cuda/common/launchers.h. */
#ifndef CR_INT8_STEM_H
#define CR_INT8_STEM_H

#include "cuda/common/conv_family.h"

struct ck_int8_stem {
    int64_t        N, H, W, K; /* H and W are even, K is a multiple of 64 */
    float          mean[3], std[3];
    const uint8_t *images; /* [N][H][W][3] */
    const float   *scale;  /* [1], of the quantised image */
    const int8_t  *w;      /* [K][7][7][3] */
    const float   *coeffs; /* [3][K] */
    uint8_t       *y;      /* [N][(H/2-1)/2+1][(W/2-1)/2+1][K] */
};

/* The same on all GPUs: there is one tile config. */
static inline int ck_int8_stem_configs(const struct ck_int8_stem *a, const struct ck_gpu *gpu) {
    const int64_t most = INT32_MAX / 2;
    (void)gpu;
    return a->N > 0 && a->H >= 2 && a->W >= 2 && a->H % 2 == 0 && a->W % 2 == 0 && a->K % 64 == 0 && a->K > 0 &&
           a->K <= 4096 && a->H <= most / a->W / 3 && a->N <= most / a->H;
}

#endif
