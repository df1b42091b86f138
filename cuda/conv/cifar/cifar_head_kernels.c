/* cuda/conv/cifar/cifar_head_kernels.c: finds the ops between the last convolution's forward and its backward in the
 * training step of a CIFAR ResNet, and runs them in two launches (cuda/conv/cifar/cifar_head.cu). */
#include "cuda/conv/cifar/cifar_head.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"
#include "graph/loss.h"

/* The ops, in the order of the program. */
enum head_op {
    APPLY,
    POOL,
    DENSE,
    ZERO,
    LOSS,
    LOSS_GRAD,
    WGRAD,
    BGRAD,
    DGRAD,
    POOL_GRAD,
    RELU_GRAD,
    FINALIZE,
    HEAD_OPS
};
static const enum cr_op_kind kinds[HEAD_OPS] = {CR_OP_bn_apply,     CR_OP_avgpool,     CR_OP_dense,
                                                CR_OP_zero,         CR_OP_loss,        CR_OP_loss_grad,
                                                CR_OP_dense_wgrad,  CR_OP_dense_bgrad, CR_OP_dense_dgrad,
                                                CR_OP_avgpool_grad, CR_OP_relu_grad,   CR_OP_bn_grad_finalize};

/* No op outside the chain reads the tensor. */
static bool is_inner(const struct cr_program *p, int tensor, int first) {
    if (tensor < 0) return true;
    if (p->tensor[tensor].keep || p->tensor[tensor].region != CR_REGION_POOL) return false;
    for (int i = 0; i < p->ops; i++) {
        int ids[CR_OP_IDS_MAX], n = i >= first && i < first + HEAD_OPS ? 0 : cr_op_reads(&p->op[i], ids);
        while (n > 0)
            if (ids[--n] == tensor) return false;
    }
    return true;
}

/* Each op reads what the ops before it have written, and only the last ones' outputs are needed elsewhere. */
static bool is_connected(const struct cr_program *p, int first) {
    const struct cr_op *op = &p->op[first];
    const int           z = op[APPLY].out[CR_OUT_bn_apply_y], mask = op[APPLY].out[CR_OUT_bn_apply_mask],
              features = op[POOL].out[CR_OUT_avgpool_y], logits = op[DENSE].out[CR_OUT_dense_y],
              dlogits = op[LOSS_GRAD].out[CR_OUT_loss_grad_dx], dfeatures = op[DGRAD].out[CR_OUT_dense_dgrad_dx],
              dz = op[POOL_GRAD].out[CR_OUT_avgpool_grad_dx], w = op[DENSE].in[CR_IN_dense_w],
              labels = op[LOSS].in[CR_IN_loss_labels], metrics = op[LOSS].out[CR_OUT_loss_metrics];
    const int inner[] = {z, mask, features, logits, dlogits, dfeatures, dz};
    for (int i = 0; i < (int)CR_COUNT(inner); i++)
        if (!is_inner(p, inner[i], first)) return false;
    return op[POOL].in[CR_IN_avgpool_x] == z && op[DENSE].in[CR_IN_dense_x] == features &&
           op[ZERO].out[CR_OUT_zero_y] == metrics && op[LOSS].in[CR_IN_loss_metrics] == metrics &&
           op[LOSS].in[CR_IN_loss_logits] == logits && op[LOSS_GRAD].in[CR_IN_loss_grad_logits] == logits &&
           op[LOSS_GRAD].in[CR_IN_loss_grad_labels] == labels &&
           op[LOSS_GRAD].in[CR_IN_loss_grad_mixes] == op[LOSS].in[CR_IN_loss_mixes] &&
           op[WGRAD].in[CR_IN_dense_wgrad_x] == features && op[WGRAD].in[CR_IN_dense_wgrad_dy] == dlogits &&
           op[BGRAD].in[CR_IN_dense_bgrad_dy] == dlogits && op[DGRAD].in[CR_IN_dense_dgrad_dy] == dlogits &&
           op[DGRAD].in[CR_IN_dense_dgrad_w] == w && op[POOL_GRAD].in[CR_IN_avgpool_grad_dy] == dfeatures &&
           op[RELU_GRAD].in[CR_IN_relu_grad_dy] == dz && op[RELU_GRAD].in[CR_IN_relu_grad_y] == (mask < 0 ? z : mask) &&
           op[RELU_GRAD].in[CR_IN_relu_grad_bn_x] == op[APPLY].in[CR_IN_bn_apply_x] &&
           op[FINALIZE].in[CR_IN_bn_grad_finalize_grad_sums] == op[RELU_GRAD].out[CR_OUT_relu_grad_grad_sums] &&
           op[FINALIZE].in[CR_IN_bn_grad_finalize_mean_rstd] == op[RELU_GRAD].in[CR_IN_relu_grad_mean_rstd];
}

/* The shapes, types and attributes are those of ck_cifar_head. */
static bool is_supported(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x      = cuda_in(p, &op[APPLY], CR_IN_bn_apply_x),
                           *add    = cuda_in(p, &op[APPLY], CR_IN_bn_apply_add),
                           *logits = cuda_out(p, &op[DENSE], CR_OUT_dense_y);
    if (!add || !op[APPLY].attr.bn.relu || x->dim[1] != 8 || x->dim[2] != 8 || x->dim[3] != CK_HEAD_CHANNELS)
        return false;
    if (!cuda_is_data(x) || x->dtype == CR_F32 || add->dtype != x->dtype || logits->dtype != x->dtype) return false;
    if (cuda_in(p, &op[DENSE], CR_IN_dense_w)->dtype != x->dtype ||
        cuda_out(p, &op[RELU_GRAD], CR_OUT_relu_grad_dx)->dtype != x->dtype)
        return false;
    if (op[RELU_GRAD].in[CR_IN_relu_grad_add] >= 0 || op[RELU_GRAD].in[CR_IN_relu_grad_bn2_x] >= 0 ||
        op[RELU_GRAD].in[CR_IN_relu_grad_mean_rstd] < 0)
        return false;
    if (!cr_loss_is_plain(&op[LOSS]) || !cr_loss_is_plain(&op[LOSS_GRAD]) ||
        op[LOSS].attr.loss.smoothing != op[LOSS_GRAD].attr.loss.smoothing)
        return false;
    return ck_cifar_head_supports(cuda_type(x), x->dim[0], logits->dim[3]);
}

static int head_match(const struct cr_device *device, const struct cr_program *p, int first) {
    if (cuda_of(device)->offline || first + HEAD_OPS > p->ops) return 0;
    for (int i = 0; i < HEAD_OPS; i++)
        if (p->op[first + i].kind != kinds[i]) return 0;
    return is_connected(p, first) && is_supported(p, &p->op[first]) ? HEAD_OPS : 0;
}

struct prepared {
    struct ck_cifar_head args;
    void                *workspace;
};

static struct ck_cifar_head head_args(const struct cr_call *const *call) {
    const struct cr_op      *loss   = call[LOSS]->op;
    const struct cr_tensor  *logits = cuda_in(call[LOSS]->program, loss, CR_IN_loss_logits);
    const struct cr_bn_attr *bn     = &call[FINALIZE]->op->attr.bn;
    return (struct ck_cifar_head){.x              = call[APPLY]->in[CR_IN_bn_apply_x],
                                  .add            = call[APPLY]->in[CR_IN_bn_apply_add],
                                  .scale_bias     = call[APPLY]->in[CR_IN_bn_apply_scale_bias],
                                  .add_scale_bias = call[APPLY]->in[CR_IN_bn_apply_add_scale_bias],
                                  .mean_rstd      = call[RELU_GRAD]->in[CR_IN_relu_grad_mean_rstd],
                                  .w              = call[DENSE]->in[CR_IN_dense_w],
                                  .bias           = call[DENSE]->in[CR_IN_dense_b],
                                  .loss           = {.type      = cuda_type(logits),
                                                     .labels    = call[LOSS]->in[CR_IN_loss_labels],
                                                     .mixes     = call[LOSS]->in[CR_IN_loss_mixes],
                                                     .samples   = cuda_pixels(logits),
                                                     .classes   = logits->dim[3],
                                                     .smoothing = loss->attr.loss.smoothing},
                                  .weight         = call[LOSS_GRAD]->op->attr.loss.weight,
                                  .state          = call[LOSS_GRAD]->in[CR_IN_loss_grad_state],
                                  .metrics        = call[LOSS]->out[CR_OUT_loss_metrics],
                                  .dx             = call[RELU_GRAD]->out[CR_OUT_relu_grad_dx],
                                  .dw             = call[WGRAD]->out[CR_OUT_dense_wgrad_dw],
                                  .db             = call[BGRAD]->out[CR_OUT_dense_bgrad_db],
                                  .accumulate_dw  = call[WGRAD]->op->attr.dense.accumulate,
                                  .accumulate_db  = call[BGRAD]->op->attr.dense.accumulate,
                                  .grad_sums      = call[RELU_GRAD]->out[CR_OUT_relu_grad_grad_sums],
                                  .finish         = {.gamma      = call[FINALIZE]->in[CR_IN_bn_grad_finalize_gamma],
                                                     .dgamma     = call[FINALIZE]->out[CR_OUT_bn_grad_finalize_dgamma],
                                                     .dbeta      = call[FINALIZE]->out[CR_OUT_bn_grad_finalize_dbeta],
                                                     .coeffs     = call[FINALIZE]->out[CR_OUT_bn_grad_finalize_coeffs],
                                                     .count      = bn->count,
                                                     .accumulate = bn->accumulate,
                                                     .ranks      = bn->ranks}};
}

static void head_release(struct cr_device *device, void *prepared) {
    struct prepared *a = prepared;
    if (!a) return;
    if (a->workspace) device->backend->release(device, a->workspace);
    cr_free(a);
}

static cr_status head_prepare(struct cr_device *device, const struct cr_call *const *call, int ops, void **prepared) {
    struct prepared *a;
    (void)ops;
    CR_ALLOC(a, 1);
    a->args                = head_args(call);
    const cr_status status = device->backend->reserve(
        device, ck_cifar_head_workspace(a->args.loss.samples, a->args.loss.classes), &a->workspace);
    if (status == CR_OK)
        *prepared = a;
    else
        head_release(device, a);
    return status;
}

static cr_status head_launch(struct cr_device *device, void *prepared) {
    const struct prepared *a = prepared;
    CUDA_TRY(ck_cifar_head(&a->args, a->workspace, cuda_of(device)->stream[CR_STREAM_COMPUTE]));
    return CR_OK;
}

const struct cr_chain_kernel cr_cuda_cifar_head = {.name    = "cuda.cifar_head",
                                                   .match   = head_match,
                                                   .prepare = head_prepare,
                                                   .launch  = head_launch,
                                                   .release = head_release};
