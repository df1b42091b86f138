/* cuda/conv/pair/conv_pair_kernels.c: kernel table of two 1x1 convolutions in one kernel, for compute capability
 * 9.0. */
#include "cuda/conv/int8/int8_conv.h"
#include "cuda/conv/pair/conv_pair.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

#define IN_BIT(kind, slot) (1u << CR_IN_##kind##_##slot)
/* Filters and coefficients, which kernels read early if they can. */
enum {
    EARLY = IN_BIT(conv_pair, w) | IN_BIT(conv_pair, bias) | IN_BIT(conv_pair, next_w) | IN_BIT(conv_pair, next_bias),
    EARLY_BYTES = IN_BIT(qconv_pair, packed) | IN_BIT(qconv_pair, coeffs) | IN_BIT(qconv_pair, next_packed) |
                  IN_BIT(qconv_pair, next_coeffs)
};

/* ---- f16 and bf16 ---- */

static struct ck_conv_pair half_pair_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_conv_pair_x), *w = cuda_in(p, op, CR_IN_conv_pair_w);
    return (struct ck_conv_pair){.type   = x->dtype == CR_F16 ? CK_PAIR_F16 : CK_PAIR_BF16,
                                 .pixels = x->dim[0] * x->dim[1] * x->dim[2],
                                 .C      = w->dim[3],
                                 .K      = w->dim[0],
                                 .L      = cuda_in(p, op, CR_IN_conv_pair_next_w)->dim[0]};
}

static bool half_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                         enum cr_dtype dtype) {
    const struct ck_conv_pair a = half_pair_of(p, op);
    return cuda_of(device)->cc == 90 && op->in[CR_IN_conv_pair_first_w] < 0 && op->in[CR_IN_conv_pair_add] >= 0 &&
           cuda_in(p, op, CR_IN_conv_pair_x)->dtype == dtype && cuda_in(p, op, CR_IN_conv_pair_w)->dtype == dtype &&
           cuda_in(p, op, CR_IN_conv_pair_add)->dtype == dtype &&
           cuda_in(p, op, CR_IN_conv_pair_next_w)->dtype == dtype &&
           cuda_in(p, op, CR_IN_conv_pair_bias)->dtype == CR_F32 &&
           cuda_in(p, op, CR_IN_conv_pair_next_bias)->dtype == CR_F32 && ck_conv_pair_supports(&a);
}

static bool f16_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return half_accepts(device, p, op, CR_F16);
}
static bool bf16_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return half_accepts(device, p, op, CR_BF16);
}

static cr_status half_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_conv_pair a = half_pair_of(call->program, call->op);
    a.x                   = call->in[CR_IN_conv_pair_x];
    a.w                   = call->in[CR_IN_conv_pair_w];
    a.coeffs              = call->in[CR_IN_conv_pair_bias];
    a.add                 = call->in[CR_IN_conv_pair_add];
    a.next_w              = call->in[CR_IN_conv_pair_next_w];
    a.next_coeffs         = call->in[CR_IN_conv_pair_next_bias];
    a.y                   = call->out[CR_OUT_conv_pair_y];
    a.z                   = call->out[CR_OUT_conv_pair_z];
    a.early               = cr_call_reads_early(call, EARLY);
    CUDA_TRY(ck_conv_pair(&a, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- 8-bit integers ---- */

#define IN(slot) cuda_in(p, op, CR_IN_qconv_pair_##slot)

static struct ck_conv_pair pair_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = IN(x), *w = IN(w), *next = IN(next_w);
    return (struct ck_conv_pair){.type       = CK_PAIR_U8,
                                 .pixels     = x->dim[0] * x->dim[1] * x->dim[2],
                                 .C          = w->dim[3],
                                 .K          = w->dim[0],
                                 .L          = next->dim[0],
                                 .add_signed = IN(add)->dtype == CR_I8};
}

static bool pair_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor   *add = IN(add);
    const struct ck_conv_pair a   = pair_of(p, op);
    return cuda_of(device)->cc == 90 && op->in[CR_IN_qconv_pair_first_w] < 0 && IN(x)->dtype == CR_U8 &&
           (add->dtype == CR_U8 || add->dtype == CR_I8) && ck_conv_pair_supports(&a);
}

/* Filters that are not packed are packed in the workspace. */
static cr_status pair_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              void **prepared, size_t *workspace_bytes) {
    const struct ck_conv_pair a = pair_of(p, op);
    (void)device;
    *prepared = NULL;
    *workspace_bytes =
        IN(packed) && IN(next_packed) ? 0 : ck_int8_packed_bytes(a.K, 1, 1, a.C) + ck_int8_packed_bytes(a.L, 1, 1, a.K);
    return CR_OK;
}

static void nothing_to_release(void *prepared) {
    (void)prepared;
}

static cr_status pack_filters(struct ck_conv_pair *a, const struct cr_call *call, cudaStream_t stream) {
    int8_t *const first = call->workspace, *const next = first + ck_int8_packed_bytes(a->K, 1, 1, a->C);
    CUDA_TRY(ck_int8_pack(call->in[CR_IN_qconv_pair_w], first, a->K, 1, 1, a->C, stream));
    CUDA_TRY(ck_int8_pack(call->in[CR_IN_qconv_pair_next_w], next, a->L, 1, 1, a->K, stream));
    a->w      = first;
    a->next_w = next;
    return CR_OK;
}

static cr_status pair_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_conv_pair a      = pair_of(call->program, call->op);
    cudaStream_t        stream = cr_cuda_stream(device, call);
    a.x                        = call->in[CR_IN_qconv_pair_x];
    a.add                      = call->in[CR_IN_qconv_pair_add];
    a.coeffs                   = call->in[CR_IN_qconv_pair_coeffs];
    a.next_coeffs              = call->in[CR_IN_qconv_pair_next_coeffs];
    a.y                        = call->out[CR_OUT_qconv_pair_y];
    a.z                        = call->out[CR_OUT_qconv_pair_z];
    a.w                        = call->in[CR_IN_qconv_pair_packed];
    a.next_w                   = call->in[CR_IN_qconv_pair_next_packed];
    a.early                    = a.w && a.next_w && cr_call_reads_early(call, EARLY_BYTES);
    if (!a.w || !a.next_w) CR_TRY(pack_filters(&a, call, stream));
    CUDA_TRY(ck_conv_pair(&a, cuda_of(device)->multiprocessors, stream));
    return CR_OK;
}

static const struct cr_kernel kernel_pair = {CR_KERNEL("cuda.int8_conv_pair", qconv_pair, CR_MATH_EXACT),
                                             .accepts = pair_accepts, .prepare = pair_prepare, .launch = pair_launch,
                                             .release = nothing_to_release};

static const struct cr_kernel kernel_f16  = {CR_KERNEL("cuda.conv_pair.f16", conv_pair, CR_MATH_F16),
                                             .accepts = f16_accepts, .launch = half_launch};
static const struct cr_kernel kernel_bf16 = {CR_KERNEL("cuda.conv_pair.bf16", conv_pair, CR_MATH_BF16),
                                             .accepts = bf16_accepts, .launch = half_launch};

const struct cr_kernel *const cr_cuda_conv_pair_kernels[] = {&kernel_f16, &kernel_bf16, &kernel_pair, NULL};
