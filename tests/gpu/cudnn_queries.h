/* tests/gpu/cudnn_queries.h: queries of cuDNN for an offline GPU, which need the libraries, but no GPU. */
#ifndef CR_TEST_CUDNN_QUERIES_H
#define CR_TEST_CUDNN_QUERIES_H

#include "cuda/conv/cudnn/cudnn_conv.h"
#include "cuda/conv/cudnn/cudnn_graph.h"
#include "cuda/core/libraries.h"
#include "device/offline.h"
#include "tests/harness/conv_cases.h"

#define NEED_LIBRARIES()                                                                                               \
    do {                                                                                                               \
        if (cr_cuda_libs_missing()) SKIP(cr_cuda_libs_missing());                                                      \
        if (cr_cudnn_offline_unsupported()) SKIP(cr_cudnn_offline_unsupported());                                      \
    } while (0)

static inline const struct cr_gpu *gpu_of(int cc) {
    return cr_gpu_find(cc == 80 ? "a100" : "h200");
}

static inline struct cudnn_support support_of(const struct alone *a, int cc, enum cr_math math) {
    struct cudnn_support s = {0};
    if (cr_cudnn_support(gpu_of(cc), &a->p, &a->op, math, false, &s) != CR_OK) TEST_FAIL_("%s", cr_error_message());
    return s;
}

#endif
