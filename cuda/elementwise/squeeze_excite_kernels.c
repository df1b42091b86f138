/* cuda/elementwise/squeeze_excite_kernels.c: the GPU's rows for squeeze and excitation's gate and ResNet-D's 2x2 means. Data is f32, f16 or bf16, one type in an op. */
#include "cuda/core/cuda_device.h"

/* All that is read and written is of one type. */
static bool one_type(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_op_info *info  = cr_op_info(op->kind);
    const struct cr_tensor  *first = cuda_in(p, op, 0);
    (void)device;
    for (int s = 0; s < info->ins; s++)
        if (!cuda_is_data(cuda_in(p, op, s)) || cuda_in(p, op, s)->dtype != first->dtype) return false;
    for (int s = 0; s < info->outs; s++)
        if (cuda_out(p, op, s)->dtype != first->dtype) return false;
    return true;
}

static struct ck_gate gate_of(const struct cr_tensor *x) {
    return (struct ck_gate){.type = cuda_type(x), .N = x->dim[0], .pixels = x->dim[1] * x->dim[2], .C = x->dim[3]};
}

static cr_status gate_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_gate args = gate_of(cuda_in(call->program, call->op, CR_IN_gate_x));
    args.x              = call->in[CR_IN_gate_x];
    args.gate           = call->in[CR_IN_gate_gate];
    args.y              = call->out[CR_OUT_gate_y];
    CUDA_TRY(ck_gate(&args, cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status gate_grad_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_gate args = gate_of(cuda_in(call->program, call->op, CR_IN_gate_grad_x));
    args.dy             = call->in[CR_IN_gate_grad_dy];
    args.x              = call->in[CR_IN_gate_grad_x];
    args.gate           = call->in[CR_IN_gate_grad_gate];
    args.dx             = call->out[CR_OUT_gate_grad_dx];
    args.dgate          = call->out[CR_OUT_gate_grad_dgate];
    CUDA_TRY(ck_gate_grad(&args, cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status meanpool_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = cuda_in(call->program, call->op, CR_IN_meanpool_x);
    CUDA_TRY(ck_meanpool(cuda_type(x), call->in[CR_IN_meanpool_x], call->out[CR_OUT_meanpool_y], x->dim[0], x->dim[1], x->dim[2], x->dim[3],
                         cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status meanpool_grad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *dx = cuda_out(call->program, call->op, CR_OUT_meanpool_grad_dx);
    CUDA_TRY(ck_meanpool_grad(cuda_type(dx), call->in[CR_IN_meanpool_grad_dy], call->out[CR_OUT_meanpool_grad_dx], dx->dim[0], dx->dim[1],
                              dx->dim[2], dx->dim[3], cr_cuda_stream(device, call)));
    return CR_OK;
}

#define ROW(kind)                                                                                                      \
    static const struct cr_kernel kind##_row = {.name = "cuda." #kind, .op = CR_OP_##kind, .math = CR_MATH_F32, .deterministic = true, \
                                                .accepts = one_type, .launch = kind##_launch}
ROW(gate);
ROW(gate_grad);
ROW(meanpool);
ROW(meanpool_grad);

const struct cr_kernel *const cr_cuda_excite_rows[] = {&gate_row, &gate_grad_row, &meanpool_row, &meanpool_grad_row, NULL};
