/* cuda/conv/pointwise/point_conv.h: launchers of 1x1 convolutions on Hopper GPUs (compute capability 9.0 only):
 * cuda/conv/pointwise/point_conv_sm90a.cu. Arguments: cuda/common/fused_conv.h.
 * Conventions: cuda/common/launchers.h. */
#ifndef CR_POINT_CONV_H
#define CR_POINT_CONV_H

#include "cuda/common/fused_conv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Number of tile configs. All give the same y except for the last bit; they add sums in different orders. */
int ck_point_conv_configs(const struct ck_point_conv *args, int multiprocessors);
/* Returns whether the kernel supports the arguments. For pointers, only NULL or not NULL matters. */
bool ck_point_conv_supports(const struct ck_point_conv *args);
/* Workspace of ck_point_conv in bytes. */
size_t      ck_point_conv_workspace(const struct ck_point_conv *args, int multiprocessors);
cudaError_t ck_point_conv(const struct ck_point_conv *args, void *workspace, int multiprocessors, cudaStream_t stream);

/* The same for arguments with out_scale_bias or second_x: cuda/conv/pointwise/point_gram_sm90a.cu. */
int         ck_point_gram_configs(const struct ck_point_conv *args, int multiprocessors);
bool        ck_point_gram_supports(const struct ck_point_conv *args);
size_t      ck_point_gram_workspace(const struct ck_point_conv *args, int multiprocessors);
cudaError_t ck_point_gram(const struct ck_point_conv *args, void *workspace, int multiprocessors, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
