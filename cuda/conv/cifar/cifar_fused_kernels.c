/* cuda/conv/cifar/cifar_fused_kernels.c: kernels of the op `fused` for chains of CIFAR convolutions, in f16 and bf16:
 *
 *     bn_finalize of rows [, pad_shortcut] [, bn_apply], conv    cuda.cifar_bn_conv
 *     bn_grad_finalize of rows, conv_grad                        cuda.cifar_bn_conv_grad
 *     conv_wgrad, conv_wgrad, ...                                cuda.cifar_wgrads
 */
#include "cuda/conv/cifar/cifar_fused.h"
#include "cuda/core/family_kernels.h"
#include "cuda/core/kernel_tables.h"

#include <string.h>

#define IN(op, kind, slot) cuda_in(p, op, CR_IN_##kind##_##slot)
#define OUT(op, kind, slot) cuda_out(p, op, CR_OUT_##kind##_##slot)

/* A kernel of this project accepts the part by itself, apart from the workspace. */
static bool part_accepted(const struct cr_device *device, const struct cr_program *p, const struct cr_op *part,
                          const char *name) {
    int                     index;
    const struct cr_kernel *kernel = cr_kernel_find(device, p, part, 0, &index);
    for (; kernel; kernel = cr_kernel_find(device, p, part, index + 1, &index))
        if (strncmp(kernel->name, name, strlen(name)) == 0) return true;
    return false;
}

/* ---- forward ---- */

/* The parts of a fused op, or of its call; NULL: absent. */
struct forward {
    int finalize, shortcut, apply, conv; /* -1: absent */
};

static bool find_forward(const struct cr_op *op, struct forward *f) {
    const struct cr_op *part = op->attr.fused.part;
    const int           last = op->attr.fused.parts - 1;
    *f                       = (struct forward){0, -1, -1, last};
    if (last < 1 || last > 3 || part[0].kind != CR_OP_bn_finalize || part[last].kind != CR_OP_conv) return false;
    if (last >= 2) f->apply = last - 1;
    if (last == 3) f->shortcut = 1;
    return (f->apply < 0 || part[f->apply].kind == CR_OP_bn_apply) &&
           (f->shortcut < 0 || part[f->shortcut].kind == CR_OP_pad_shortcut);
}

/* pad_shortcut: the convolution reads every second pixel, and whole vectors of 8 channels. */
static bool reads_shortcut(const struct cr_program *p, const struct cr_op *shortcut, const struct ck_conv *v) {
    const struct cr_tensor *x = IN(shortcut, pad_shortcut, x);
    return shortcut->attr.conv.stride == 2 && shortcut->attr.conv.pad_c % 8 == 0 && x->dim[3] % 8 == 0 &&
           x->dim[1] == 2 * v->H && x->dim[2] == 2 * v->H && v->stride == 1;
}

static bool forward_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    struct forward f;
    if (!find_forward(op, &f)) return false;
    const struct cr_op *part = op->attr.fused.part, *finalize = part, *conv = &part[f.conv];
    const int           multiprocessors = cuda_of(device)->multiprocessors;
    const int           y               = f.apply < 0 ? conv->in[CR_IN_conv_x] : part[f.apply].in[CR_IN_bn_apply_x];
    if (!part_accepted(device, p, conv, "cuda.cifar_conv.")) return false;
    const struct ck_conv v = cuda_conv_shape(conv, IN(conv, conv, x), IN(conv, conv, w), OUT(conv, conv, y));
    if (!cuda_is_f32(IN(finalize, bn_finalize, sums)) || IN(finalize, bn_finalize, center) ||
        OUT(finalize, bn_finalize, scale_bias_half) || p->tensor[y].dim[3] != v.C || IN(conv, conv, bias))
        return false;
    if (f.apply < 0)
        return ck_cifar_conv_finishes(&v) &&
               conv->in[CR_IN_conv_scale_bias] == finalize->out[CR_OUT_bn_finalize_scale_bias];
    const struct cr_op *apply = &part[f.apply];
    if (f.shortcut >= 0 && !reads_shortcut(p, &part[f.shortcut], &v)) return false;
    return apply->attr.bn.relu && !IN(apply, bn_apply, add_scale_bias) && !OUT(apply, bn_apply, mask) &&
           !IN(conv, conv, scale_bias) && ck_cifar_conv_applies(&v, multiprocessors);
}

/* Of the last part. */
static size_t forward_workspace(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return cr_cuda_cifar_conv_workspace(device, p, &op->attr.fused.part[op->attr.fused.parts - 1]);
}

static cr_status forward_launch(struct cr_device *device, const struct cr_call *call) {
    struct forward f;
    CR_ASSERT(find_forward(call->op, &f));
    const struct cr_program *p    = call->program;
    struct ck_cifar_conv     args = cr_cuda_cifar_conv_of(&call->part[f.conv]);
    args.before.rows              = call->part->in[CR_IN_bn_finalize_sums];
    args.before.count             = (int)cr_sum_rows(IN(call->part->op, bn_finalize, sums));
    args.before.finish            = cr_cuda_bn_finalize_args(call->part);
    if (f.apply >= 0) {
        const struct cr_call *apply = &call->part[f.apply];
        args.apply_x                = apply->in[CR_IN_bn_apply_x];
        args.apply_add              = apply->in[CR_IN_bn_apply_add];
    }
    if (f.shortcut >= 0) {
        const struct cr_call *shortcut = &call->part[f.shortcut];
        args.apply_add                 = shortcut->in[CR_IN_pad_shortcut_x];
        args.shortcut_c                = IN(shortcut->op, pad_shortcut, x)->dim[3];
        args.shortcut_pad              = shortcut->op->attr.conv.pad_c;
    }
    return CUDA_STATUS(
        ck_cifar_conv(&args, call->workspace, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
}

/* ---- backward ---- */

static bool backward_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_op *finalize = op->attr.fused.part, *grad = finalize + 1;
    if (op->attr.fused.parts != 2 || finalize->kind != CR_OP_bn_grad_finalize || grad->kind != CR_OP_conv_grad)
        return false;
    if (!part_accepted(device, p, grad, "cuda.cifar_conv_grad.")) return false;
    const struct cr_tensor *g = IN(grad, conv_grad, g), *x = IN(grad, conv_grad, x), *w = IN(grad, conv_grad, w);
    const struct ck_conv    v = cuda_conv_shape(grad, x, w, g);
    return cuda_is_f32(IN(finalize, bn_grad_finalize, grad_sums)) &&
           IN(finalize, bn_grad_finalize, grad_sums)->dim[3] == v.K && finalize->attr.bn.ranks <= 1 &&
           grad->in[CR_IN_conv_grad_dy_coeffs] == finalize->out[CR_OUT_bn_grad_finalize_coeffs] &&
           (OUT(grad, conv_grad, dy) || ck_cifar_conv_grad_finishes(&v, cuda_of(device)->block_bytes));
}

static size_t backward_workspace(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return cr_cuda_cifar_grad_workspace(device, p, &op->attr.fused.part[1]);
}

static cr_status backward_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_program  *p    = call->program;
    struct ck_cifar_conv_grad args = cr_cuda_cifar_grad_of(&call->part[1]);
    args.before.rows               = call->part->in[CR_IN_bn_grad_finalize_grad_sums];
    args.before.count              = (int)cr_sum_rows(IN(call->part->op, bn_grad_finalize, grad_sums));
    args.before.finish             = cr_cuda_bn_grad_finalize_args(call->part);
    return CUDA_STATUS(ck_cifar_conv_grad(&args, call->workspace, cuda_of(device)->multiprocessors,
                                          cuda_of(device)->block_bytes, cr_cuda_stream(device, call)));
}

/* ---- filter gradients ---- */

static struct ck_conv filter_shape(const struct cr_program *p, const struct cr_op *part) {
    return cuda_conv_shape(part, IN(part, conv_wgrad, x), OUT(part, conv_wgrad, dw), IN(part, conv_wgrad, dy));
}

static bool filters_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_op *part = op->attr.fused.part;
    for (int k = 0; k < op->attr.fused.parts; k++) {
        if (part[k].kind != CR_OP_conv_wgrad || cr_op_has_sparsity_pattern(&part[k]) ||
            OUT(&part[k], conv_wgrad, dy_sums))
            return false;
        const struct cr_tensor *dw = OUT(&part[k], conv_wgrad, dw);
        if (!cuda_is_f32(IN(&part[k], conv_wgrad, scale_bias)) || dw->dim[1] > 3 || dw->dim[2] > 3) return false;
        const struct ck_conv v = filter_shape(p, &part[k]), first = filter_shape(p, part);
        if (v.N != first.N || v.type != first.type ||
            !ck_cifar_dgrad_supports(&v, cuda_of(device)->multiprocessors, cuda_of(device)->block_bytes))
            return false;
    }
    return true;
}

static size_t filters_workspace(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    size_t bytes = 0;
    (void)device;
    for (int k = 0; k < op->attr.fused.parts; k++) {
        const struct ck_conv v = filter_shape(p, &op->attr.fused.part[k]);
        bytes += ck_cifar_wgrads_workspace(&v);
    }
    return bytes;
}

static cr_status filters_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_cifar_filter filter[CR_FUSED_MAX];
    const int              count = call->op->attr.fused.parts;
    char                  *room  = call->workspace;
    for (int k = 0; k < count; k++) {
        const struct cr_call *part = &call->part[k];
        filter[k]                  = (struct ck_cifar_filter){.conv       = filter_shape(call->program, part->op),
                                                              .dy         = part->in[CR_IN_conv_wgrad_dy],
                                                              .x          = part->in[CR_IN_conv_wgrad_x],
                                                              .scale_bias = part->in[CR_IN_conv_wgrad_scale_bias],
                                                              .dw         = part->out[CR_OUT_conv_wgrad_dw],
                                                              .partial    = (float *)room,
                                                              .accumulate = part->op->attr.conv.accumulate};
        room += ck_cifar_wgrads_workspace(&filter[k].conv);
    }
    return CUDA_STATUS(ck_cifar_wgrads(filter, count, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
}

/* ---- the kernels ---- */

#define KERNEL(name, kind)                                                                                             \
    { CUDA_HALF_KERNEL(name, fused), .accepts = kind##_accepts, .workspace = kind##_workspace, .launch = kind##_launch }
const struct cr_kernel cr_cuda_cifar_fused_kernels[] = {
    KERNEL("cifar_bn_conv", forward), KERNEL("cifar_bn_conv_grad", backward), KERNEL("cifar_wgrads", filters), {0}};
