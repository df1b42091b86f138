/* device/cpu/reference/ref_conv.h: declarations that ref_conv.c and ref_conv_grad.c share. */
#ifndef CR_REF_CONV_H
#define CR_REF_CONV_H

#include "device/cpu/reference/ref.h"

struct ref_conv {
    struct ref          x, w, y; /* or their gradients */
    int64_t             stride, pad;
    bool                accumulate, pooled; /* pooled: y is the max-pooled result */
    const uint8_t      *pattern;            /* of dw: element i is a nonzero if bit first_bit + i is set; NULL: dense */
    int64_t             first_bit;
    struct ref_epilogue epilogue; /* of y in the forward op, of the gradient of x in the backward op */
};

static inline struct ref_conv ref_conv_of(const struct cr_call *call, struct ref x, struct ref w, struct ref y) {
    const struct cr_conv_attr *a = &call->op->attr.conv;
    return (struct ref_conv){.x = x, .w = w, .y = y, .stride = a->stride, .pad = a->pad, .accumulate = a->accumulate};
}

/* If scale_bias is present, replaces x by act(x) in scratch memory. */
static inline void ref_conv_activate(struct cr_device *device, struct ref *x, const struct ref *scale_bias,
                                     void *scratch) {
    if (!scale_bias->data) return;
    const struct ref active = ref_scratch_like(x, scratch);
    cr_ref_activate(device, x, scale_bias, &active);
    *x = active;
}

void cr_ref_dgrad(struct cr_device *device, const struct ref_conv *conv);
/* ref_gram.c: bytes of scratch memory of gram_bn_grad. */
size_t cr_ref_gram_bn_grad_workspace(const struct cr_program *program, const struct cr_op *op);
void   cr_ref_wgrad(struct cr_device *device, const struct ref_conv *conv);

#endif
