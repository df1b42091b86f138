/* tests/gpu/cudnn_queries.h: queries of cuDNN for an offline GPU, which need the libraries, but no GPU; a program with
 * one op for each form of a convolution that cuDNN has only for some shapes. */
#ifndef CR_TEST_CUDNN_QUERIES_H
#define CR_TEST_CUDNN_QUERIES_H

#include "cuda/conv/cudnn/cudnn_conv.h"
#include "cuda/conv/cudnn/cudnn_graph.h"
#include "cuda/core/libraries.h"
#include "device/offline.h"
#include "tests/harness/test.h"

#define NEED_LIBRARIES()                                                                                               \
    do {                                                                                                               \
        if (cr_cuda_libs_missing()) SKIP(cr_cuda_libs_missing());                                                      \
        if (cr_cudnn_offline_unsupported()) SKIP(cr_cudnn_offline_unsupported());                                      \
    } while (0)

static inline const struct cr_gpu *gpu_of(int cc) {
    return cr_gpu_find(cc == 80 ? "a100" : "h200");
}

enum form { PLAIN, ACT, ACT_WGRAD };

struct shape_of_conv {
    int64_t N, H, C, K; /* square images */
    int     window, stride, pad;
};

/* A program with one op. */
struct alone {
    struct cr_param_store store;
    struct cr_program     p;
    struct cr_op          op;
};

static inline int tensor(struct alone *a, const char *name, enum cr_dtype type, int64_t d0, int64_t d1, int64_t d2,
                         int64_t d3) {
    return cr_tensor_add(&a->p, name, type, CR_REGION_POOL, d0, d1, d2, d3);
}

static inline void alone_open(struct alone *a, enum form form, enum cr_dtype real, const struct shape_of_conv *s) {
    const int64_t P = (s->H + 2 * s->pad - s->window) / s->stride + 1;
    *a              = (struct alone){.store = {.real = CR_F32, .half = CR_F32}};
    cr_program_init(&a->p, "alone", &a->store);
    const int layer = cr_program_layer(&a->p, "alone"), x = tensor(a, "x", real, s->N, s->H, s->H, s->C),
              y = tensor(a, "y", real, s->N, P, P, s->K),
              w = tensor(a, "w", form == ACT_WGRAD ? CR_F32 : real, s->K, s->window, s->window, s->C);
    if (form == ACT_WGRAD) {
        a->op                                 = op_on(CR_OP_conv_wgrad, x, y);
        a->op.out[CR_OUT_conv_wgrad_dw]       = w;
        a->op.in[CR_IN_conv_wgrad_scale_bias] = tensor(a, "scale_bias", real, 2, 1, 1, s->C);
    } else {
        a->op                    = op_on(CR_OP_conv, x, w);
        a->op.out[CR_OUT_conv_y] = y;
        if (form == ACT) a->op.in[CR_IN_conv_scale_bias] = tensor(a, "scale_bias", real, 2, 1, 1, s->C);
    }
    a->op.layer     = layer;
    a->op.attr.conv = (struct cr_conv_attr){.stride = s->stride, .pad = s->pad};
}

static inline void alone_close(struct alone *a) {
    cr_program_free(&a->p);
    cr_param_store_free(&a->store);
}

#endif
