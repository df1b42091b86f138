/* device/cpu/reference/ref_conv_grad.c: the fused backward of a convolution: gradient of the BN after it, input and
 * filter gradients, mask of the ReLU before it, and the gradient sums of the BN before that ReLU. */
#include "device/cpu/reference/ref_conv.h"

REF_KERNEL(conv_grad) {
    struct ref g = REF_IN(conv_grad, g), dy_x = REF_IN(conv_grad, dy_x), dy_coeffs = REF_IN(conv_grad, dy_coeffs),
               dy = g;
    struct ref w = REF_IN(conv_grad, w), x = REF_IN(conv_grad, x), scale_bias = REF_IN(conv_grad, scale_bias),
               active    = x;
    struct ref mean_rstd = REF_IN(conv_grad, mean_rstd), bn_x = REF_IN(conv_grad, bn_x), dw = REF_OUT(conv_grad, dw);
    struct ref dx = REF_OUT(conv_grad, dx), grad_sums = REF_OUT(conv_grad, grad_sums), stored = REF_OUT(conv_grad, dy);
    const size_t x_bytes = (size_t)x.elems * cr_dtype_bytes(x.dtype),
                 g_bytes = (size_t)g.elems * cr_dtype_bytes(g.dtype);
    ref_conv_activate(device, &active, &scale_bias, call->workspace);
    if (dy_coeffs.data) {
        dy = ref_scratch_like(&g, (char *)call->workspace + x_bytes);
        CR_PARALLEL(i, g.elems) ref_put(&dy, i, ref_bn_gradient(&dy_coeffs, ref_get(&g, i), &dy_x, i, i % g.C));
    }
    if (stored.data)
        for (int64_t i = 0; i < dy.elems; i++) ref_put(&stored, i, ref_get(&dy, i));
    struct ref_conv v = ref_conv_of(call, active, dw, dy); /* dw first, because dx may use the memory of an input */
    if (dw.data) cr_ref_wgrad(device, &v);
    if (!dx.data) return;
    v                 = ref_conv_of(call, dx, w, dy);
    v.epilogue.add    = REF_IN(conv_grad, add);
    v.epilogue.mask.y = REF_IN(conv_grad, y);
    if (call->op->attr.conv.add_pad_c) {
        const struct ref add         = v.epilogue.add;
        v.epilogue.add               = ref_scratch_like(&dx, (char *)call->workspace + x_bytes + g_bytes);
        struct cr_conv_attr shortcut = call->op->attr.conv;
        shortcut.pad_c               = shortcut.add_pad_c;
        cr_ref_shortcut_grad(device, &shortcut, &add, &v.epilogue.add);
    }
    if (mean_rstd.data && bn_x.data)
        v.epilogue.mask.y = x;
    else if (mean_rstd.data)
        v.epilogue.mask = (struct ref_relu_mask){.x = x, .scale_bias = scale_bias};
    cr_ref_dgrad(device, &v);
    cr_ref_sum_grads(device, &dx, NULL, bn_x.data ? &bn_x : &x, &mean_rstd, &grad_sums);
    if (call->op->in[CR_IN_conv_grad_gamma] >= 0)
        cr_ref_grad_finalize(&(struct ref_grad_finalize){.attr      = call->op->attr.conv.bn,
                                                         .grad_sums = grad_sums,
                                                         .gamma     = REF_IN(conv_grad, gamma),
                                                         .mean_rstd = mean_rstd,
                                                         .dgamma    = REF_OUT(conv_grad, dgamma),
                                                         .dbeta     = REF_OUT(conv_grad, dbeta),
                                                         .coeffs    = REF_OUT(conv_grad, grad_coeffs)});
}

static size_t bytes_of(const struct cr_program *p, int tensor) {
    return tensor < 0 ? 0 : p->tensor[tensor].bytes;
}

/* The result of a convolution of x with stride 1, which is not stored; 0 without one. */
static size_t between(const struct cr_program *p, int x, int w) {
    return w < 0 ? 0 : bytes_of(p, x) / (size_t)p->tensor[x].dim[3] * (size_t)p->tensor[w].dim[0];
}

/* The parts one after the other; each may use the whole workspace. */
cr_status cr_ref_fused(struct cr_device *device, const struct cr_call *call) {
    for (int k = 0; k < call->op->attr.fused.parts; k++) {
        struct cr_call part = call->part[k];
        int            i    = 0;
        while (!device->kernels[i]->reference || device->kernels[i]->op != part.op->kind) i++;
        part.workspace = call->workspace;
        part.step      = call->step;
        CR_TRY(device->kernels[i]->launch(device, &part));
    }
    return CR_OK;
}

size_t cr_ref_workspace(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const int *in   = op->in;
    size_t     most = 0; /* of the parts of a fused op */
    if (op->kind == CR_OP_conv && in[CR_IN_conv_scale_bias] >= 0) return bytes_of(p, in[CR_IN_conv_x]);
    if (op->kind == CR_OP_conv_wgrad && in[CR_IN_conv_wgrad_scale_bias] >= 0)
        return bytes_of(p, in[CR_IN_conv_wgrad_x]);
    if (op->kind == CR_OP_gram && in[CR_IN_gram_scale_bias] >= 0) return bytes_of(p, in[CR_IN_gram_x]);
    if (op->kind == CR_OP_conv_pair)
        return between(p, in[CR_IN_conv_pair_x], in[CR_IN_conv_pair_first_w]) +
               between(p, in[CR_IN_conv_pair_shortcut_x], in[CR_IN_conv_pair_shortcut_w]);
    if (op->kind == CR_OP_qconv_pair) return between(p, in[CR_IN_qconv_pair_x], in[CR_IN_qconv_pair_first_w]);
    if (op->kind == CR_OP_gram_bn_grad) return cr_ref_gram_bn_grad_workspace(p, op);
    if (op->kind == CR_OP_gram_dgrad && in[CR_IN_gram_dgrad_scale_bias] >= 0)
        return bytes_of(p, in[CR_IN_gram_dgrad_x]);
    if (op->kind == CR_OP_conv_grad &&
        (in[CR_IN_conv_grad_scale_bias] >= 0 || in[CR_IN_conv_grad_dy_coeffs] >= 0 || op->attr.conv.add_pad_c))
        return bytes_of(p, in[CR_IN_conv_grad_x]) + bytes_of(p, in[CR_IN_conv_grad_g]) +
               (op->attr.conv.add_pad_c ? bytes_of(p, in[CR_IN_conv_grad_x]) : 0);
    if (op->kind == CR_OP_muon_direction) return cr_ref_muon_workspace(p);
    if (op->kind == CR_OP_head) return cr_ref_head_workspace(p, op);
    for (int k = 0; op->kind == CR_OP_fused && k < op->attr.fused.parts; k++)
        most = CR_MAX(most, cr_ref_workspace(device, p, &op->attr.fused.part[k]));
    return most;
}
