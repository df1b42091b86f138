/* cuda/conv/pair/conv_chain_kernels.c: kernel table of a 3x3 convolution and two 1x1 convolutions in one kernel, for
 * compute capability 9.0. */
#include "cuda/conv/int8/int8_conv.h"
#include "cuda/conv/pair/conv_chain.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

#define IN_BIT(kind, slot) (1u << CR_IN_##kind##_##slot)
/* Filters and coefficients, which kernels read early if they can. */
enum {
    EARLY = IN_BIT(conv_pair, w) | IN_BIT(conv_pair, bias) | IN_BIT(conv_pair, next_w) | IN_BIT(conv_pair, next_bias) |
            IN_BIT(conv_pair, first_w) | IN_BIT(conv_pair, first_bias) | IN_BIT(conv_pair, shortcut_w) |
            IN_BIT(conv_pair, shortcut_bias),
    EARLY_BYTES = IN_BIT(qconv_pair, packed) | IN_BIT(qconv_pair, coeffs) | IN_BIT(qconv_pair, next_packed) |
                  IN_BIT(qconv_pair, next_coeffs) | IN_BIT(qconv_pair, first_packed) | IN_BIT(qconv_pair, first_coeffs)
};

/* ---- f16 and bf16 ---- */

#define IN(slot) cuda_in(p, op, CR_IN_conv_pair_##slot)

static struct ck_conv_chain half_chain_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = IN(x);
    return (struct ck_conv_chain){.type     = x->dtype == CR_F16 ? CK_PAIR_F16 : CK_PAIR_BF16,
                                  .N        = x->dim[0],
                                  .H        = x->dim[1],
                                  .W        = x->dim[2],
                                  .K        = IN(w)->dim[0],
                                  .L        = IN(next_w)->dim[0],
                                  .shortcut = op->in[CR_IN_conv_pair_shortcut_w] >= 0,
                                  .config   = op->algo};
}

static bool summand_fits(const struct cr_program *p, const struct cr_op *op, enum cr_dtype dtype) {
    if (op->in[CR_IN_conv_pair_add] >= 0) return IN(add)->dtype == dtype && op->in[CR_IN_conv_pair_shortcut_w] < 0;
    return IN(shortcut_x)->dtype == dtype && IN(shortcut_w)->dtype == dtype && IN(shortcut_bias)->dtype == CR_F32 &&
           IN(shortcut_x)->dim[3] == CK_CONV_CHAIN_CHANNELS;
}

static bool types_fit(const struct cr_program *p, const struct cr_op *op, enum cr_dtype dtype) {
    return IN(x)->dtype == dtype && IN(first_w)->dtype == dtype && IN(w)->dtype == dtype &&
           summand_fits(p, op, dtype) && IN(next_w)->dtype == dtype && IN(first_bias)->dtype == CR_F32 &&
           IN(bias)->dtype == CR_F32 && IN(next_bias)->dtype == CR_F32;
}

static int half_configs(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                        enum cr_dtype dtype) {
    if (cuda_of(device)->cc != 90 || op->in[CR_IN_conv_pair_first_w] < 0 || !types_fit(p, op, dtype)) return 0;
    if (IN(x)->dim[3] != CK_CONV_CHAIN_CHANNELS || IN(first_w)->dim[0] != CK_CONV_CHAIN_CHANNELS) return 0;
    const struct ck_conv_chain a = half_chain_of(p, op);
    return ck_conv_chain_configs(&a);
}

static bool f16_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return half_configs(device, p, op, CR_F16) > 0;
}
static bool bf16_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return half_configs(device, p, op, CR_BF16) > 0;
}
static int half_algo_count(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return half_configs(device, p, op, IN(x)->dtype);
}

static cr_status half_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_conv_chain a = half_chain_of(call->program, call->op);
    a.x                    = call->in[CR_IN_conv_pair_x];
    a.first_w              = call->in[CR_IN_conv_pair_first_w];
    a.first_coeffs         = call->in[CR_IN_conv_pair_first_bias];
    a.w                    = call->in[CR_IN_conv_pair_w];
    a.coeffs               = call->in[CR_IN_conv_pair_bias];
    a.add                  = call->in[CR_IN_conv_pair_add];
    a.next_w               = call->in[CR_IN_conv_pair_next_w];
    a.next_coeffs          = call->in[CR_IN_conv_pair_next_bias];
    a.shortcut_x           = call->in[CR_IN_conv_pair_shortcut_x];
    a.shortcut_w           = call->in[CR_IN_conv_pair_shortcut_w];
    a.shortcut_bias        = call->in[CR_IN_conv_pair_shortcut_bias];
    a.y                    = call->out[CR_OUT_conv_pair_y];
    a.z                    = call->out[CR_OUT_conv_pair_z];
    a.early                = cr_call_reads_early(call, EARLY);
    CUDA_TRY(ck_conv_chain(&a, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

#undef IN

/* ---- 8-bit integers ---- */

#define IN(slot) cuda_in(p, op, CR_IN_qconv_pair_##slot)

static struct ck_conv_chain chain_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = IN(x);
    return (struct ck_conv_chain){.type       = CK_PAIR_U8,
                                  .N          = x->dim[0],
                                  .H          = x->dim[1],
                                  .W          = x->dim[2],
                                  .K          = IN(w)->dim[0],
                                  .L          = IN(next_w)->dim[0],
                                  .add_signed = IN(add)->dtype == CR_I8,
                                  .config     = op->algo};
}

static int byte_configs(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const enum cr_dtype add = IN(add)->dtype;
    if (cuda_of(device)->cc != 90 || op->in[CR_IN_qconv_pair_first_w] < 0 || IN(x)->dtype != CR_U8) return 0;
    if (IN(x)->dim[3] != CK_CONV_CHAIN_CHANNELS || IN(first_w)->dim[0] != CK_CONV_CHAIN_CHANNELS) return 0;
    const struct ck_conv_chain a = chain_of(p, op);
    return add == CR_U8 || add == CR_I8 ? ck_conv_chain_configs(&a) : 0;
}

static bool byte_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return byte_configs(device, p, op) > 0;
}
static int byte_algo_count(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return byte_configs(device, p, op);
}

static bool is_packed(const struct cr_op *op) {
    return op->in[CR_IN_qconv_pair_first_packed] >= 0 && op->in[CR_IN_qconv_pair_packed] >= 0 &&
           op->in[CR_IN_qconv_pair_next_packed] >= 0;
}

enum { FIRST, MIDDLE, NEXT, FILTERS };

static void packed_bytes(const struct ck_conv_chain *a, size_t bytes[FILTERS]) {
    bytes[FIRST]  = ck_int8_packed_bytes(CK_CONV_CHAIN_CHANNELS, 3, 3, CK_CONV_CHAIN_CHANNELS);
    bytes[MIDDLE] = ck_int8_packed_bytes(a->K, 1, 1, CK_CONV_CHAIN_CHANNELS);
    bytes[NEXT]   = ck_int8_packed_bytes(a->L, 1, 1, a->K);
}

/* Filters that are not packed are packed in the workspace. */
static cr_status byte_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              void **prepared, size_t *workspace_bytes) {
    const struct ck_conv_chain a = chain_of(p, op);
    size_t                     bytes[FILTERS];
    (void)device;
    packed_bytes(&a, bytes);
    *prepared        = NULL;
    *workspace_bytes = is_packed(op) ? 0 : bytes[FIRST] + bytes[MIDDLE] + bytes[NEXT];
    return CR_OK;
}

static void nothing_to_release(void *prepared) {
    (void)prepared;
}

static cr_status pack_filters(struct ck_conv_chain *a, const struct cr_call *call, cudaStream_t stream) {
    size_t bytes[FILTERS];
    packed_bytes(a, bytes);
    int8_t *const first = call->workspace, *const middle = first + bytes[FIRST], *const next = middle + bytes[MIDDLE];
    const int64_t C = CK_CONV_CHAIN_CHANNELS;
    CUDA_TRY(ck_int8_pack(call->in[CR_IN_qconv_pair_first_w], first, C, 3, 3, C, stream));
    CUDA_TRY(ck_int8_pack(call->in[CR_IN_qconv_pair_w], middle, a->K, 1, 1, C, stream));
    CUDA_TRY(ck_int8_pack(call->in[CR_IN_qconv_pair_next_w], next, a->L, 1, 1, a->K, stream));
    a->first_w = first;
    a->w       = middle;
    a->next_w  = next;
    return CR_OK;
}

static cr_status byte_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_conv_chain a      = chain_of(call->program, call->op);
    cudaStream_t         stream = cr_cuda_stream(device, call);
    a.x                         = call->in[CR_IN_qconv_pair_x];
    a.add                       = call->in[CR_IN_qconv_pair_add];
    a.first_coeffs              = call->in[CR_IN_qconv_pair_first_coeffs];
    a.coeffs                    = call->in[CR_IN_qconv_pair_coeffs];
    a.next_coeffs               = call->in[CR_IN_qconv_pair_next_coeffs];
    a.y                         = call->out[CR_OUT_qconv_pair_y];
    a.z                         = call->out[CR_OUT_qconv_pair_z];
    a.first_w                   = call->in[CR_IN_qconv_pair_first_packed];
    a.w                         = call->in[CR_IN_qconv_pair_packed];
    a.next_w                    = call->in[CR_IN_qconv_pair_next_packed];
    a.early                     = is_packed(call->op) && cr_call_reads_early(call, EARLY_BYTES);
    if (!is_packed(call->op)) CR_TRY(pack_filters(&a, call, stream));
    CUDA_TRY(ck_conv_chain(&a, cuda_of(device)->multiprocessors, stream));
    return CR_OK;
}

static const struct cr_kernel kernel_f16  = {CR_KERNEL("cuda.conv_chain.f16", conv_pair, CR_MATH_F16),
                                             .accepts = f16_accepts, .algo_count = half_algo_count,
                                             .launch = half_launch};
static const struct cr_kernel kernel_bf16 = {CR_KERNEL("cuda.conv_chain.bf16", conv_pair, CR_MATH_BF16),
                                             .accepts = bf16_accepts, .algo_count = half_algo_count,
                                             .launch = half_launch};
static const struct cr_kernel kernel_byte = {CR_KERNEL("cuda.int8_conv_chain", qconv_pair, CR_MATH_EXACT),
                                             .accepts    = byte_accepts,
                                             .algo_count = byte_algo_count,
                                             .prepare    = byte_prepare,
                                             .launch     = byte_launch,
                                             .release    = nothing_to_release};

const struct cr_kernel *const cr_cuda_conv_chain_kernels[] = {&kernel_f16, &kernel_bf16, &kernel_byte, NULL};
