/* cuda/conv/cifar/chain/backward_kernels.c: finds convolutions of a CIFAR ResNet whose backward follows each other in a
 * program and runs them in three launches (cuda/conv/cifar/chain/backward.cu). Compute capability 9.0. */
#include "cuda/conv/cifar/chain/backward.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

#include <string.h>

#define IN(slot) (op->in[CR_IN_conv_grad_##slot])
#define OUT(slot) (op->out[CR_OUT_conv_grad_##slot])

static struct ck_conv shape_of(const struct cr_program *p, const struct cr_op *op) {
    return cuda_conv_shape(op, &p->tensor[IN(x)], &p->tensor[IN(w)], &p->tensor[IN(g)]);
}

/* A gradient whose own kernel is that of this folder, with the BN behind the convolution: the chain repeats its bits.
 * */
static bool is_grad(const struct cr_device *device, const struct cr_program *p, int i) {
    const struct cr_op *op = &p->op[i];
    return i < p->ops && op->kind == CR_OP_conv_grad && op->kernel >= 0 && IN(dy_x) >= 0 &&
           strncmp(device->kernels[op->kernel]->name, "cuda.cifar_conv_grad.", 21) == 0;
}
/* With the BN in front of it, whose gradient it finishes. */
static bool is_link(const struct cr_device *device, const struct cr_program *p, int i) {
    if (!is_grad(device, p, i)) return false;
    const struct cr_op  *op    = &p->op[i];
    const struct ck_conv shape = shape_of(p, op);
    return IN(gamma) >= 0 && IN(mean_rstd) >= 0 && OUT(dx) >= 0 && ck_cifar_backward_accepts(&shape);
}

/* Op i reads what link `before` has made. */
static bool follows(const struct cr_program *p, int i, int before) {
    const struct cr_op *op = &p->op[i], *last = &p->op[before];
    const int           bn_x = last->in[CR_IN_conv_grad_bn_x];
    return IN(g) == last->out[CR_OUT_conv_grad_dx] && IN(dy_coeffs) == last->out[CR_OUT_conv_grad_grad_coeffs] &&
           IN(dy_x) == (bn_x >= 0 ? bn_x : last->in[CR_IN_conv_grad_x]);
}

/* Op i is the gradient of a shortcut without parameters whose output's gradient link `before` has made. */
static bool is_pad(const struct cr_program *p, int i, int before) {
    const struct cr_op *op = &p->op[i];
    if (i >= p->ops || op->kind != CR_OP_pad_shortcut_grad) return false;
    const struct cr_tensor *dy = &p->tensor[op->in[CR_IN_pad_shortcut_grad_dy]],
                           *dx = &p->tensor[op->out[CR_OUT_pad_shortcut_grad_dx]];
    return op->in[CR_IN_pad_shortcut_grad_dy] == p->op[before].out[CR_OUT_conv_grad_dx] && op->attr.conv.stride == 2 &&
           dx->dim[1] == 2 * dy->dim[1] && 2 * dx->dim[3] == dy->dim[3] && dx->dtype == dy->dtype &&
           op->attr.conv.pad_c == (dy->dim[3] - dx->dim[3]) / 2 && p->op[before].attr.conv.stride == 1;
}

static int backward_match(const struct cr_device *device, const struct cr_program *p, int first) {
    const struct cuda_device *d = cuda_of(device);
    if (d->cc != 90 || d->offline || !is_link(device, p, first)) return 0;
    if (!ck_cifar_backward_supports(p->tensor[p->op[first].in[CR_IN_conv_grad_x]].dim[0], d->multiprocessors,
                                    d->block_bytes))
        return 0;
    int links = 1, last = first;
    for (int i; links < CK_BACKWARD_STEPS_MAX; last = i, links++) {
        i = last + 1 + is_pad(p, last + 1, last);
        if (!is_grad(device, p, i) || !follows(p, i, last)) break;
        if (is_link(device, p, i)) continue;
        if (shape_of(p, &p->op[i]).C != 3) break;
        last = i, links++; /* the stem */
        break;
    }
    return links > 1 ? last + 1 - first : 0;
}

/* The steps of ops `first` to first + ops - 1; call: NULL for shapes only. Returns their number. */
static int steps_of(const struct cr_program *p, int first, int ops, const struct cr_call *const *call,
                    struct ck_backward_step *step);

static size_t backward_workspace(const struct cr_device *device, const struct cr_program *p, int first, int ops) {
    struct ck_backward_step step[CK_BACKWARD_STEPS_MAX];
    (void)device;
    return ck_cifar_backward_workspace(step, steps_of(p, first, ops, NULL, step));
}

/* ---- launch ---- */

struct prepared {
    void                   *exchange, *workspace;
    int                     steps;
    struct ck_backward_step step[CK_BACKWARD_STEPS_MAX];
};

static struct ck_cifar_conv_grad grad_of(const struct cr_call *call) {
    const struct cr_op *op = call->op;
    return (struct ck_cifar_conv_grad){.conv       = shape_of(call->program, op),
                                       .g          = call->in[CR_IN_conv_grad_g],
                                       .dy_x       = call->in[CR_IN_conv_grad_dy_x],
                                       .dy_coeffs  = call->in[CR_IN_conv_grad_dy_coeffs],
                                       .w          = call->in[CR_IN_conv_grad_w],
                                       .x          = call->in[CR_IN_conv_grad_x],
                                       .scale_bias = call->in[CR_IN_conv_grad_scale_bias],
                                       .mean_rstd  = call->in[CR_IN_conv_grad_mean_rstd],
                                       .add        = call->in[CR_IN_conv_grad_add],
                                       .bn_x       = call->in[CR_IN_conv_grad_bn_x],
                                       .dx         = call->out[CR_OUT_conv_grad_dx],
                                       .dw         = call->out[CR_OUT_conv_grad_dw],
                                       .grad_sums  = call->out[CR_OUT_conv_grad_grad_sums],
                                       .accumulate = op->attr.conv.accumulate,
                                       .finish     = {.gamma      = call->in[CR_IN_conv_grad_gamma],
                                                      .dgamma     = call->out[CR_OUT_conv_grad_dgamma],
                                                      .dbeta      = call->out[CR_OUT_conv_grad_dbeta],
                                                      .coeffs     = call->out[CR_OUT_conv_grad_grad_coeffs],
                                                      .count      = op->attr.conv.bn.count,
                                                      .accumulate = op->attr.conv.bn.accumulate}};
}

static int steps_of(const struct cr_program *p, int first, int ops, const struct cr_call *const *call,
                    struct ck_backward_step *step) {
    int n = 0;
    for (int i = 0; i < ops; i++) {
        const struct cr_op *op = &p->op[first + i];
        if (op->kind == CR_OP_conv_grad)
            step[n++] = (struct ck_backward_step){.grad = call ? grad_of(call[i])
                                                               : (struct ck_cifar_conv_grad){.conv = shape_of(p, op)}};
        else if (call)
            step[n - 1].pad_dx = call[i]->out[CR_OUT_pad_shortcut_grad_dx];
    }
    return n;
}

static void backward_release(struct cr_device *device, void *prepared) {
    struct prepared *a = prepared;
    if (!a) return;
    if (a->exchange) device->backend->release(device, a->exchange);
    cr_free(a);
}

static cr_status backward_prepare(struct cr_device *device, const struct cr_call *const *call, int ops,
                                  void **prepared) {
    struct prepared *a;
    CR_ALLOC(a, 1);
    a->workspace           = call[0]->workspace;
    a->steps               = steps_of(call[0]->program, (int)(call[0]->op - call[0]->program->op), ops, call, a->step);
    const cr_status status = device->backend->reserve(device, ck_cifar_backward_exchange(), &a->exchange);
    if (status == CR_OK)
        *prepared = a;
    else
        backward_release(device, a);
    return status;
}

static cr_status backward_launch(struct cr_device *device, void *prepared) {
    const struct prepared *a = prepared;
    CUDA_TRY(ck_cifar_backward(a->step, a->steps, a->exchange, a->workspace, cuda_of(device)->multiprocessors,
                               cuda_of(device)->stream[CR_STREAM_COMPUTE]));
    return CR_OK;
}

const struct cr_chain_kernel cr_cuda_cifar_backward = {.name      = "cuda.cifar_backward",
                                                       .match     = backward_match,
                                                       .workspace = backward_workspace,
                                                       .prepare   = backward_prepare,
                                                       .launch    = backward_launch,
                                                       .release   = backward_release};
