/* cuda/common/conv_family.h: families of convolution kernels. A family computes one sort of convolution on one kind of
 * GPU, and this is its host half: three functions, the same for all families. cuda/conv_families.c lists the families
 * of the two kinds of GPU; a device chooses one of the lists when it is opened. cuda/core/family_kernels.h makes
 * kernels of the kernel table from a family. Conventions: cuda/common/launchers.h. */
#ifndef CK_CONV_FAMILY_H
#define CK_CONV_FAMILY_H

#include "cuda/common/launch_types.h"

/* What the sizes of tiles, stages and grids follow from. */
struct ck_gpu {
    int multiprocessors;
    int block_bytes;          /* most shared memory of a thread block */
    int multiprocessor_bytes; /* shared memory of a multiprocessor */
};

/* args: the family's arguments, see struct ck_conv_families. configs and workspace do not read their pointers. */
struct ck_conv_family {
    /* Number of tile configs, which add in different orders; 0: the family does not support the arguments. */
    int (*configs)(const void *args, const struct ck_gpu *gpu);
    /* Bytes of workspace that a launch with these arguments needs. */
    size_t (*workspace)(const void *args, const struct ck_gpu *gpu);
    cudaError_t (*launch)(const void *args, void *workspace, const struct ck_gpu *gpu, cudaStream_t stream);
};

/* The families of a kind of GPU; NULL: it has none. */
struct ck_conv_families {
    const struct ck_conv_family *point_conv, *point_gram, *conv3x3, *stem; /* struct ck_fused_conv */
    const struct ck_conv_family *split_conv;                               /* the same */
    const struct ck_conv_family *point_grad;                               /* struct ck_point_grad */
    const struct ck_conv_family *gram, *gram_wgmma;                        /* struct ck_gram_matrix */
    const struct ck_conv_family *gram_product, *gram_product_wgmma;        /* struct ck_gram_product */
    const struct ck_conv_family *stem_grad;                                /* struct ck_stem_grad */
    const struct ck_conv_family *stem_pool;                                /* struct ck_stem_pool */
    const struct ck_conv_family *int8_conv, *int8_conv_any;                /* struct ck_int8_conv */
    const struct ck_conv_family *int8_stem, *int8_stem_mma;                /* struct ck_int8_stem */
    const struct ck_conv_family *conv_pair, *conv_chain;                   /* struct ck_conv_pair */
};

CK_C_BEGIN

/* cuda/conv_families.c: the families of a compute capability: for 9.0 (90) those with wgmma and TMA, for all others
 * from 8.0 on those with mma.sync. */
const struct ck_conv_families *ck_families_of(int cc);

/* cuda/conv/int8/int8_conv_sm90a.cu: 8-bit filters as the families of compute capability 9.0 read them. Bytes of the
 * packed filter of w [K][R][S][C]; 0 when C does not suit the families. */
size_t      ck_int8_packed_bytes(int64_t K, int R, int S, int64_t C);
cudaError_t ck_int8_pack(const int8_t *w, int8_t *packed, int64_t K, int R, int S, int64_t C, cudaStream_t stream);

/* Each is defined at the end of the file that has its name, cuda/conv/.../NAME_sm90a.cu or NAME_mma.cu. */
extern const struct ck_conv_family ck_point_conv_wgmma, ck_point_gram_wgmma, ck_point_grad_wgmma, ck_conv3x3_wgmma,
    ck_conv3x3_wide_wgmma, ck_split_conv_wgmma, ck_stem_wgmma, ck_stem_grad_wgmma, ck_stem_pool_wgmma, ck_gram_wgmma,
    ck_gram_product_wgmma, ck_int8_conv_wgmma, ck_int8_split_wgmma, ck_int8_stem_wgmma, ck_conv_pair_wgmma,
    ck_conv_chain_wgmma;
extern const struct ck_conv_family ck_point_conv_mma, ck_point_gram_mma, ck_point_grad_mma, ck_conv3x3_mma, ck_stem_mma,
    ck_stem_grad_mma, ck_gram_mma, ck_gram_product_mma, ck_int8_conv_mma, ck_int8_stem_mma;

CK_C_END

#endif
