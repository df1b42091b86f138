/* cuda/conv/int8/int8_conv_kernels.c: kernel table of 8-bit convolutions: cuda.int8_conv for compute capability 9.0
 * (cuda/conv/int8/int8_conv_sm90a.cu) with its packed filter, cuda.int8_conv_mma for other GPUs and for shapes that it
 * does not support, and cuda.int8_conv_plain for all other shapes on compute capability 9.0. */
#include "cuda/conv/int8/int8_conv.h"
#include "cuda/conv/int8/int8_conv_mma.h"
#include "cuda/conv/int8/int8_split.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

#define IN(slot) cuda_in(p, op, CR_IN_qconv_##slot)

static bool is_int8(const struct cr_tensor *t) {
    return t->dtype == CR_I8 || t->dtype == CR_U8;
}

static enum ck_int8_type type_of(const struct cr_tensor *t) {
    switch (t->dtype) {
    case CR_U8: return CK_INT8_U8;
    case CR_I8: return CK_INT8_I8;
    case CR_F16: return CK_INT8_F16;
    case CR_BF16: return CK_INT8_BF16;
    default: return CK_INT8_F32;
    }
}

/* The pointers are only NULL or not NULL; they are set at launch. */
static struct ck_int8_conv conv_of(const struct cr_program *p, const struct cr_op *op) {
    static const char       present;
    const struct cr_tensor *add = IN(add), *y = cuda_out(p, op, CR_OUT_qconv_y);
    const struct ck_conv    c = cuda_conv_shape(op, IN(x), IN(w), y);
    return (struct ck_int8_conv){.R        = c.R,
                                 .S        = c.S,
                                 .stride   = c.stride,
                                 .pad      = c.pad,
                                 .N        = c.N,
                                 .H        = c.H,
                                 .W        = c.W,
                                 .C        = c.C,
                                 .K        = c.K,
                                 .P        = c.P,
                                 .Q        = c.Q,
                                 .x_type   = type_of(IN(x)),
                                 .add_type = add ? type_of(add) : CK_INT8_U8,
                                 .y_type   = type_of(y),
                                 .relu     = op->attr.conv.relu,
                                 .config   = op->algo,
                                 .add      = add ? &present : NULL};
}

static bool operands_fit(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *add = IN(add), *y = cuda_out(p, op, CR_OUT_qconv_y);
    return is_int8(IN(x)) && IN(w)->dtype == CR_I8 && IN(coeffs)->dtype == CR_F32 && (!add || is_int8(add)) &&
           (is_int8(y) || cuda_is_data(y));
}

/* Whether the convolution becomes a qstem together with the ops around it (compiler/fusion/quantize_stem.c). */
static bool belongs_to_stem(const struct ck_int8_conv *a) {
    return a->R == 7 && a->S == 7 && a->stride == 2 && a->pad == 3 && a->C == 3 && a->H % 2 == 0 && a->W % 2 == 0 &&
           a->K % 64 == 0 && a->x_type == CK_INT8_I8 && a->y_type == CK_INT8_U8 && !a->add;
}

/* On other GPUs than Hopper such convolutions stay in floating point with rounded values: cuDNN's kernels are much
 * faster than this one. */
static bool plain_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_int8_conv a = conv_of(p, op);
    return (cuda_of(device)->cc == 90 || belongs_to_stem(&a)) && operands_fit(p, op) &&
           cr_tensor_elems(cuda_out(p, op, CR_OUT_qconv_y)) < (int64_t)INT32_MAX * 128;
}

static bool fast_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_int8_conv a = conv_of(p, op);
    return cuda_of(device)->cc == 90 && operands_fit(p, op) &&
           ck_int8_conv_configs(&a, cuda_of(device)->multiprocessors) > 0;
}

static bool mma_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_int8_conv a = conv_of(p, op);
    return cuda_of(device)->cc >= 80 && operands_fit(p, op) && ck_int8_conv_mma_configs(&a) > 0 &&
           !fast_accepts(device, p, op);
}

static int mma_algos(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_int8_conv a = conv_of(p, op);
    (void)device;
    return ck_int8_conv_mma_configs(&a);
}

/* First the tile configs of ck_int8_conv, then those of ck_int8_split. */
static int fast_algo_count(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_int8_conv a               = conv_of(p, op);
    const int                 multiprocessors = cuda_of(device)->multiprocessors;
    return ck_int8_conv_configs(&a, multiprocessors) + ck_int8_split_configs(&a, multiprocessors);
}
static cudaError_t launch_config(struct ck_int8_conv *a, int multiprocessors, cudaStream_t stream) {
    const int tiles = ck_int8_conv_configs(a, multiprocessors);
    if (a->config < tiles) return ck_int8_conv(a, multiprocessors, stream);
    a->config -= tiles;
    return ck_int8_split(a, multiprocessors, stream);
}

/* Without a packed filter the kernel packs it in its workspace. */
static cr_status fast_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              void **prepared, size_t *workspace_bytes) {
    const struct ck_int8_conv a = conv_of(p, op);
    (void)device;
    *prepared        = NULL;
    *workspace_bytes = IN(packed) ? 0 : ck_int8_packed_bytes(a.K, a.R, a.S, a.C);
    return CR_OK;
}

static void nothing_to_release(void *prepared) {
    (void)prepared;
}

static void set_pointers(struct ck_int8_conv *a, const struct cr_call *call) {
    a->x      = call->in[CR_IN_qconv_x];
    a->w      = call->in[CR_IN_qconv_w];
    a->coeffs = call->in[CR_IN_qconv_coeffs];
    a->add    = call->in[CR_IN_qconv_add];
    a->y      = call->out[CR_OUT_qconv_y];
}

static cr_status fast_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_int8_conv a      = conv_of(call->program, call->op);
    cudaStream_t        stream = cr_cuda_stream(device, call);
    set_pointers(&a, call);
    if (call->in[CR_IN_qconv_packed]) {
        a.w     = call->in[CR_IN_qconv_packed];
        a.early = cr_call_reads_early(call, 1u << CR_IN_qconv_packed | 1u << CR_IN_qconv_coeffs);
    } else {
        CUDA_TRY(ck_int8_pack(a.w, call->workspace, a.K, a.R, a.S, a.C, stream));
        a.w = call->workspace;
    }
    CUDA_TRY(launch_config(&a, cuda_of(device)->multiprocessors, stream));
    return CR_OK;
}

static cr_status mma_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_int8_conv a = conv_of(call->program, call->op);
    set_pointers(&a, call);
    CUDA_TRY(ck_int8_conv_mma(&a, cuda_of(device)->multiprocessors, cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status plain_launch(struct cr_device *device, const struct cr_call *call) {
    struct ck_int8_conv a = conv_of(call->program, call->op);
    set_pointers(&a, call);
    CUDA_TRY(ck_int8_conv_plain(&a, cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- the packed filter ---- */

int64_t cr_cuda_int8_packed_bytes(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_int8_conv a = conv_of(p, op);
    return fast_accepts(device, p, op) ? (int64_t)ck_int8_packed_bytes(a.K, a.R, a.S, a.C) : 0;
}

static size_t packed_bytes(const struct cr_tensor *w) {
    return ck_int8_packed_bytes(w->dim[0], (int)w->dim[1], (int)w->dim[2], w->dim[3]);
}

static bool pack_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const size_t bytes = packed_bytes(cuda_in(p, op, CR_IN_pack_filter_w));
    return cuda_of(device)->cc == 90 && bytes && bytes <= cuda_out(p, op, CR_OUT_pack_filter_y)->bytes;
}

static cr_status pack_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *w = cuda_in(call->program, call->op, CR_IN_pack_filter_w);
    CUDA_TRY(ck_int8_pack(call->in[CR_IN_pack_filter_w], call->out[CR_OUT_pack_filter_y], w->dim[0], (int)w->dim[1],
                          (int)w->dim[2], w->dim[3], cr_cuda_stream(device, call)));
    return CR_OK;
}

static const struct cr_kernel kernel_fast  = {CR_KERNEL("cuda.int8_conv", qconv, CR_MATH_EXACT),
                                              .accepts    = fast_accepts,
                                              .algo_count = fast_algo_count,
                                              .prepare    = fast_prepare,
                                              .launch     = fast_launch,
                                              .release    = nothing_to_release};
static const struct cr_kernel kernel_mma   = {CR_KERNEL("cuda.int8_conv_mma", qconv, CR_MATH_EXACT),
                                              .accepts = mma_accepts, .algo_count = mma_algos, .launch = mma_launch};
static const struct cr_kernel kernel_plain = {CR_KERNEL("cuda.int8_conv_plain", qconv, CR_MATH_EXACT),
                                              .accepts = plain_accepts, .launch = plain_launch};
static const struct cr_kernel kernel_pack  = {CR_KERNEL("cuda.int8_pack", pack_filter, CR_MATH_EXACT),
                                              .accepts = pack_accepts, .launch = pack_launch};

const struct cr_kernel *const cr_cuda_int8_conv_kernels[] = {&kernel_fast, &kernel_mma, &kernel_plain, &kernel_pack,
                                                             NULL};
