/* cuda/conv/conv3x3/conv3x3_kernels.c: kernel table of 3x3 convolutions with 64 channels on both sides, on compute
 * capability 9.0. */
#include "cuda/conv/conv3x3/conv3x3.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"
#include "cuda/core/typed_kernels.h"

/* The pointers are set at launch. */
static struct ck_conv3x3 conv_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = IN(conv, x);
    return (struct ck_conv3x3){
        .type = cuda_type(x), .N = x->dim[0], .H = x->dim[1], .W = x->dim[2], .relu = op->attr.conv.relu};
}

static bool has_sums(const struct cr_op *op) {
    return op->out[CR_OUT_conv_sums] >= 0;
}

static bool conv_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                         enum cr_dtype type) {
    const struct cr_tensor *x = IN(conv, x), *w = IN(conv, w), *bias = IN(conv, bias), *y = OUT(conv, y);
    if (cuda_of(device)->cc != 90 || !cr_op_uses_only(op, IN_BIT(conv, x) | IN_BIT(conv, w) | IN_BIT(conv, bias),
                                                      OUT_BIT(conv, y) | OUT_BIT(conv, sums)))
        return false;
    if (has_sums(op) && (bias || op->attr.conv.relu)) return false;
    if (x->dtype != type || w->dtype != type || y->dtype != type || (bias && bias->dtype != CR_F32)) return false;
    if (w->dim[0] != CK_CONV3X3_CHANNELS || w->dim[1] != 3 || w->dim[2] != 3 || w->dim[3] != CK_CONV3X3_CHANNELS)
        return false;
    const struct ck_conv3x3 a = conv_of(p, op);
    return op->attr.conv.stride == 1 && op->attr.conv.pad == 1 && ck_conv3x3_supports(&a);
}
BOTH_TYPES(conv)

static cr_status prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op, void **prepared,
                         size_t *workspace_bytes) {
    (void)p;
    *prepared        = NULL;
    *workspace_bytes = has_sums(op) ? ck_conv3x3_workspace(cuda_of(device)->multiprocessors) : 0;
    return CR_OK;
}

static cr_status launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_conv3x3 a = conv_of(call->program, call->op);
    a.x                 = call->in[CR_IN_conv_x];
    a.w                 = call->in[CR_IN_conv_w];
    a.bias              = call->in[CR_IN_conv_bias];
    a.y                 = call->out[CR_OUT_conv_y];
    a.sums              = call->out[CR_OUT_conv_sums];
    a.early             = call->op->attr.conv.early_filter;
    CUDA_TRY(ck_conv3x3(&a, call->workspace, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

static const struct cr_kernel kernel_f16  = {CR_KERNEL("cuda.conv3x3.f16", conv, CR_MATH_F16),
                                             .accepts = conv_accepts_f16, .prepare = prepare,
                                             .release = nothing_to_release, .launch = launch},
                              kernel_bf16 = {CR_KERNEL("cuda.conv3x3.bf16", conv, CR_MATH_BF16),
                                             .accepts = conv_accepts_bf16, .prepare = prepare,
                                             .release = nothing_to_release, .launch = launch};

const struct cr_kernel *const cr_cuda_conv3x3_kernels[] = {&kernel_f16, &kernel_bf16, NULL};
