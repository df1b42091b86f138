/* cuda/conv/int8/int8_stem_kernels.c: kernel table of the 8-bit stem: cuda.int8_stem for compute capability 9.0,
 * cuda.int8_stem_mma for other GPUs. */
#include "cuda/conv/int8/int8_stem.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

static struct ck_int8_stem stem_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_qstem_images);
    struct ck_int8_stem     a = {
            .N = x->dim[0], .H = x->dim[1], .W = x->dim[2], .K = cuda_out(p, op, CR_OUT_qstem_y)->dim[3]};
    for (int c = 0; c < 3; c++) {
        a.mean[c] = op->attr.input.mean[c];
        a.std[c]  = op->attr.input.std[c];
    }
    return a;
}

static bool operands_fit(const struct cr_program *p, const struct cr_op *op) {
    const struct ck_int8_stem a = stem_of(p, op);
    return cuda_in(p, op, CR_IN_qstem_images)->dtype == CR_U8 && cuda_in(p, op, CR_IN_qstem_w)->dtype == CR_I8 &&
           cuda_in(p, op, CR_IN_qstem_scale)->dtype == CR_F32 && cuda_in(p, op, CR_IN_qstem_coeffs)->dtype == CR_F32 &&
           ck_int8_stem_supports(&a);
}

static bool stem_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return cuda_of(device)->cc == 90 && operands_fit(p, op);
}
static bool mma_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return cuda_of(device)->cc >= 80 && cuda_of(device)->cc != 90 && operands_fit(p, op);
}

static struct ck_int8_stem stem_at(const struct cr_call *call) {
    struct ck_int8_stem a = stem_of(call->program, call->op);
    a.images              = call->in[CR_IN_qstem_images];
    a.scale               = call->in[CR_IN_qstem_scale];
    a.w                   = call->in[CR_IN_qstem_w];
    a.coeffs              = call->in[CR_IN_qstem_coeffs];
    a.y                   = call->out[CR_OUT_qstem_y];
    return a;
}
static cr_status stem_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_int8_stem a = stem_at(call);
    CUDA_TRY(ck_int8_stem(&a, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}
static cr_status mma_launch(struct cr_device *device, const struct cr_call *call) {
    const struct ck_int8_stem a = stem_at(call);
    CUDA_TRY(ck_int8_stem_mma(&a, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

static const struct cr_kernel kernel_stem = {CR_KERNEL("cuda.int8_stem", qstem, CR_MATH_EXACT), .accepts = stem_accepts,
                                             .launch = stem_launch};

static const struct cr_kernel kernel_mma = {CR_KERNEL("cuda.int8_stem_mma", qstem, CR_MATH_EXACT),
                                            .accepts = mma_accepts, .launch = mma_launch};

const struct cr_kernel *const cr_cuda_int8_stem_kernels[] = {&kernel_stem, &kernel_mma, NULL};
