/* tests/harness/conv_cases.h: helper of the tests of the cuDNN kernels: a program with one op for each form of a
 * convolution that these kernels support. */
#ifndef CR_TEST_CONV_FORMS_H
#define CR_TEST_CONV_FORMS_H

#include "tests/harness/test.h"

enum form {
    PLAIN,
    SUMS,
    ACT,
    ACT_SUMS,
    BIAS,
    BIAS_RELU,
    BIAS_ADD,
    BIAS_ADD_RELU, /* conv */
    WGRAD,
    ACT_WGRAD,
    DGRAD,
    DGRAD_ADD,
    DGRAD_BN,
    DGRAD_ADD_BN,
    FORMS
};
static const char *const form_name[FORMS] = {"conv",      "conv+sums",      "act+conv",      "act+conv+sums",
                                             "conv+bias", "conv+bias+relu", "conv+add+bias", "conv+add+bias+relu",
                                             "wgrad",     "act+wgrad",      "dgrad",         "dgrad+add",
                                             "dgrad+bn",  "dgrad+add+bn"};

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

static inline void make_forward(struct alone *a, enum form form, enum cr_dtype real, const struct shape_of_conv *s,
                                int y) {
    const bool act = form == ACT || form == ACT_SUMS, sums = form == SUMS || form == ACT_SUMS;
    a->op.out[CR_OUT_conv_y] = y;
    if (act) a->op.in[CR_IN_conv_scale_bias] = tensor(a, "scale_bias", real, 2, 1, 1, s->C);
    if (sums) a->op.out[CR_OUT_conv_sums] = tensor(a, "sums", CR_F32, 2, 1, 1, s->K);
    if (form >= BIAS) a->op.in[CR_IN_conv_bias] = tensor(a, "bias", CR_F32, 1, 1, 1, s->K);
    if (form == BIAS_ADD || form == BIAS_ADD_RELU) {
        const int64_t *d         = a->p.tensor[y].dim;
        a->op.in[CR_IN_conv_add] = tensor(a, "add", real, d[0], d[1], d[2], d[3]);
    }
    a->op.attr.conv.relu = form == BIAS_RELU || form == BIAS_ADD_RELU;
}

static inline void make_dgrad(struct alone *a, enum form form, enum cr_dtype real, const struct shape_of_conv *s) {
    if (form == DGRAD_ADD || form == DGRAD_ADD_BN)
        a->op.in[CR_IN_conv_dgrad_add] = tensor(a, "add", real, s->N, s->H, s->H, s->C);
    if (form < DGRAD_BN) return;
    a->op.in[CR_IN_conv_dgrad_bn_x]        = tensor(a, "bn_x", real, s->N, s->H, s->H, s->C);
    a->op.in[CR_IN_conv_dgrad_mean_rstd]   = tensor(a, "mean_rstd", CR_F32, 2, 1, 1, s->C);
    a->op.in[CR_IN_conv_dgrad_gamma]       = tensor(a, "gamma", CR_F32, 1, 1, 1, s->C);
    a->op.in[CR_IN_conv_dgrad_beta]        = tensor(a, "beta", CR_F32, 1, 1, 1, s->C);
    a->op.out[CR_OUT_conv_dgrad_grad_sums] = tensor(a, "grad_sums", CR_F32, 2, 1, 1, s->C);
}

static inline void alone_open(struct alone *a, enum form form, enum cr_dtype real, const struct shape_of_conv *s) {
    const int64_t P = (s->H + 2 * s->pad - s->window) / s->stride + 1;
    *a              = (struct alone){.store = {.real = CR_F32, .half = CR_F32}};
    cr_program_init(&a->p, "alone", &a->store);
    const enum cr_op_kind kind   = form < WGRAD ? CR_OP_conv : form < DGRAD ? CR_OP_conv_wgrad : CR_OP_conv_dgrad;
    const enum cr_dtype   filter = kind == CR_OP_conv_wgrad ? CR_F32 : real;
    a->op                        = cr_op_make(kind, cr_program_layer(&a->p, "alone"));
    a->op.attr.conv              = (struct cr_conv_attr){.stride = s->stride, .pad = s->pad};
    const int x                  = tensor(a, "x", real, s->N, s->H, s->H, s->C),
              w                  = tensor(a, "w", filter, s->K, s->window, s->window, s->C);
    const int y                  = tensor(a, "y", real, s->N, P, P, s->K);
    if (kind == CR_OP_conv) {
        a->op.in[CR_IN_conv_x] = x;
        a->op.in[CR_IN_conv_w] = w;
        make_forward(a, form, real, s, y);
    } else if (kind == CR_OP_conv_wgrad) {
        a->op.in[CR_IN_conv_wgrad_x]    = x;
        a->op.in[CR_IN_conv_wgrad_dy]   = y;
        a->op.out[CR_OUT_conv_wgrad_dw] = w;
        if (form == ACT_WGRAD) a->op.in[CR_IN_conv_wgrad_scale_bias] = tensor(a, "scale_bias", real, 2, 1, 1, s->C);
    } else {
        a->op.in[CR_IN_conv_dgrad_dy]   = y;
        a->op.in[CR_IN_conv_dgrad_w]    = w;
        a->op.out[CR_OUT_conv_dgrad_dx] = x;
        make_dgrad(a, form, real, s);
    }
}

static inline void alone_close(struct alone *a) {
    cr_program_free(&a->p);
    cr_param_store_free(&a->store);
}
OWNABLE(alone, struct alone, alone_close(x))

#endif
