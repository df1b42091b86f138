/* cuda/conv/pair/conv_chain_kernels.c: kernel table of a 3x3 convolution and two 1x1 convolutions in one kernel, for
 * compute capability 9.0. */
#include "cuda/conv/pair/conv_chain.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

#define IN(slot) cuda_in(p, op, CR_IN_conv_pair_##slot)

static struct ck_conv_chain chain_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = IN(x);
    return (struct ck_conv_chain){.type   = cuda_type(x),
                                  .N      = x->dim[0],
                                  .H      = x->dim[1],
                                  .W      = x->dim[2],
                                  .K      = IN(w)->dim[0],
                                  .L      = IN(next_w)->dim[0],
                                  .config = op->algo};
}

static bool types_fit(const struct cr_program *p, const struct cr_op *op, enum cr_dtype dtype) {
    return IN(x)->dtype == dtype && IN(first_w)->dtype == dtype && IN(w)->dtype == dtype && IN(add)->dtype == dtype &&
           IN(next_w)->dtype == dtype && IN(first_bias)->dtype == CR_F32 && IN(bias)->dtype == CR_F32 &&
           IN(next_bias)->dtype == CR_F32;
}

static int configs(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                   enum cr_dtype dtype) {
    if (cuda_of(device)->cc != 90 || op->in[CR_IN_conv_pair_first_w] < 0 || !types_fit(p, op, dtype)) return 0;
    if (IN(x)->dim[3] != CK_CONV_CHAIN_CHANNELS || IN(first_w)->dim[0] != CK_CONV_CHAIN_CHANNELS) return 0;
    const struct ck_conv_chain a = chain_of(p, op);
    return ck_conv_chain_configs(&a);
}

static bool f16_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return configs(device, p, op, CR_F16) > 0;
}
static bool bf16_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return configs(device, p, op, CR_BF16) > 0;
}
static int algo_count(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return configs(device, p, op, IN(x)->dtype);
}

static cr_status launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_conv_chain a = chain_of(call->program, call->op);
    a.x                    = call->in[CR_IN_conv_pair_x];
    a.first_w              = call->in[CR_IN_conv_pair_first_w];
    a.first_bias           = call->in[CR_IN_conv_pair_first_bias];
    a.w                    = call->in[CR_IN_conv_pair_w];
    a.bias                 = call->in[CR_IN_conv_pair_bias];
    a.add                  = call->in[CR_IN_conv_pair_add];
    a.next_w               = call->in[CR_IN_conv_pair_next_w];
    a.next_bias            = call->in[CR_IN_conv_pair_next_bias];
    a.y                    = call->out[CR_OUT_conv_pair_y];
    a.z                    = call->out[CR_OUT_conv_pair_z];
    a.early                = call->op->attr.conv.early_filter;
    CUDA_TRY(ck_conv_chain(&a, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

static const struct cr_kernel kernel_f16  = {CR_KERNEL("cuda.conv_chain.f16", conv_pair, CR_MATH_F16),
                                             .accepts = f16_accepts, .algo_count = algo_count, .launch = launch};
static const struct cr_kernel kernel_bf16 = {CR_KERNEL("cuda.conv_chain.bf16", conv_pair, CR_MATH_BF16),
                                             .accepts = bf16_accepts, .algo_count = algo_count, .launch = launch};

const struct cr_kernel *const cr_cuda_conv_chain_kernels[] = {&kernel_f16, &kernel_bf16, NULL};
