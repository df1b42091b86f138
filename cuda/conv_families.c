/* cuda/conv_families.c: the families of convolution kernels of the two kinds of GPU; see cuda/common/conv_family.h. */
#include "cuda/common/conv_family.h"

static const struct ck_conv_families wgmma = {.point_conv         = &ck_point_conv_wgmma,
                                              .point_gram         = &ck_point_gram_wgmma,
                                              .point_grad         = &ck_point_grad_wgmma,
                                              .conv3x3            = &ck_conv3x3_wgmma,
                                              .split_conv         = &ck_split_conv_wgmma,
                                              .stem               = &ck_stem_wgmma,
                                              .stem_grad          = &ck_stem_grad_wgmma,
                                              .stem_pool          = &ck_stem_pool_wgmma,
                                              .gram_wgmma         = &ck_gram_wgmma,
                                              .gram_product_wgmma = &ck_gram_product_wgmma,
                                              .int8_conv          = &ck_int8_conv_wgmma,
                                              .int8_conv_any      = &ck_int8_conv_mma,
                                              .int8_stem          = &ck_int8_stem_wgmma,
                                              .conv_pair          = &ck_conv_pair_wgmma,
                                              .conv_chain         = &ck_conv_chain_wgmma};

static const struct ck_conv_families mma = {.point_conv    = &ck_point_conv_mma,
                                            .point_gram    = &ck_point_gram_mma,
                                            .point_grad    = &ck_point_grad_mma,
                                            .conv3x3       = &ck_conv3x3_mma,
                                            .stem          = &ck_stem_mma,
                                            .stem_grad     = &ck_stem_grad_mma,
                                            .gram          = &ck_gram_mma,
                                            .gram_product  = &ck_gram_product_mma,
                                            .int8_conv_any = &ck_int8_conv_mma,
                                            .int8_stem_mma = &ck_int8_stem_mma};

const struct ck_conv_families *ck_families_of(int cc) {
    return cc == 90 ? &wgmma : &mma;
}
