/* device/gpu_specs.c: offline devices for plans: kernels that state which ops they support.
 *
 * If a backend of this build can open the GPU offline, the kernels of the backend state this. Otherwise the rules in
 * this file state which fused ops they support. */
#include "device/capability.h"
#include "device/device.h"
#include "device/kernel.h"
#include "device/offline.h"

#include <stdio.h>

/* ---- the device without CUDA: one kernel for each op kind, whose accepts follows the rules below ---- */

enum { ALIGNMENT = 256 };
/* Copies in both directions at once reach this part of the rate of one direction (measured on an H200). */
#define DUPLEX_FRACTION 0.86

struct offline_device {
    struct cr_device        base; /* first member, so that a cr_device pointer converts to an offline_device pointer */
    const struct cr_gpu    *gpu;
    struct cr_kernel        kernel[CR_OP_COUNT];
    const struct cr_kernel *list[CR_OP_COUNT + 1]; /* ends with NULL */
};

static const struct offline_device *offline_of(const struct cr_device *device) {
    return (const struct offline_device *)(const void *)device;
}

/* A convolution, or the forward convolution of a gradient op. */
struct conv_shape {
    const struct cr_tensor *x;
    int64_t                 C, K, R, H; /* channels, filters, filter size, image height */
    int                     stride, pad;
    bool                    half, f16; /* 16-bit, f16 */
    int                     cc;        /* compute capability times 10 */
};

static struct conv_shape conv_shape_of(const struct cr_device *device, const struct cr_program *p,
                                       const struct cr_op *op, int x, int filter) {
    const struct cr_tensor *data = &p->tensor[x];
    const int64_t          *w    = p->tensor[filter].dim;
    return (struct conv_shape){.x      = data,
                               .C      = w[3],
                               .K      = w[0],
                               .R      = w[1],
                               .H      = data->dim[1],
                               .stride = op->attr.conv.stride,
                               .pad    = op->attr.conv.pad,
                               .half   = data->dtype == CR_F16 || data->dtype == CR_BF16,
                               .f16    = data->dtype == CR_F16,
                               .cc     = offline_of(device)->gpu->cc};
}

static bool has_input(const struct cr_op *op, int in) {
    return op->in[in] != CR_NONE;
}
static bool has_output(const struct cr_op *op, int out) {
    return op->out[out] != CR_NONE;
}

/* cuDNN 9 fuses BN arithmetic and BN sums into a convolution in f16 only, for channel counts that are multiples of 8
 * and filters up to 5x5. It adds the sums of thread blocks in arbitrary order, so the sums are not deterministic. */
static bool cudnn_fuses(const struct conv_shape *f) {
    return f->f16 && f->C % 8 == 0 && f->K % 8 == 0 && f->R <= 5;
}
/* Fused forward convolutions: cuDNN 9.19 has none for 12.0. */
static bool cudnn_fuses_forward(const struct conv_shape *f) {
    return f->cc < 120 && cudnn_fuses(f);
}
static bool cudnn_sums(const struct cr_device *device, const struct conv_shape *f) {
    return !device->options.deterministic && cudnn_fuses_forward(f);
}

/* Kernels of this project for 1x1 convolutions and for the stem in space-to-depth form: wgmma on compute capability
 * 9.0, mma.sync on all others from 8.0 on. */
static bool has_wgmma(const struct conv_shape *f) {
    return f->cc == 90;
}
static bool is_1x1(const struct conv_shape *f) {
    return f->cc >= 80 && f->half && f->R == 1 && f->pad == 0 && f->C % 8 == 0 && f->K % 8 == 0;
}
static bool is_stem(const struct conv_shape *f) {
    return f->cc >= 80 && f->half && f->R == 4 && f->stride == 1 && f->pad == 0 && f->C == 16;
}

/* 3x3 convolutions with sums: of 64 channels and of multiples of 128 with wgmma; of 64 with mma.sync where a block has
 * the shared memory for the filter and two tiles. With multiples of 128, rows longer than 87 pixels do not fit into the
 * shared memory. */
static bool is_3x3_with_sums(const struct conv_shape *f) {
    if (!f->half || f->R != 3 || f->stride != 1 || f->pad != 1) return false;
    if (has_wgmma(f) && f->C % 128 == 0 && f->K % 128 == 0)
        return f->x->dim[1] >= 2 && f->x->dim[2] >= 2 && f->x->dim[2] <= 87;
    if (f->C != 64 || f->K != 64) return false;
    return has_wgmma(f) || (f->cc >= 80 && f->x->dim[2] <= 66 && cr_capability_of(f->cc).block_bytes >= 163 << 10);
}

/* Kernels of this project for the ResNets for CIFAR: multiples of 8 channels, at most 16 for 32x32 pixels, 32 for 16x16
 * and 64 for 8x8. */
static bool is_cifar_width(int64_t side, int64_t channels) {
    return channels >= 8 && channels % 8 == 0 && side * channels <= 512;
}
static bool is_cifar(const struct conv_shape *f) {
    if (!f->half || (f->R != 1 && f->R != 3) || f->pad != f->R / 2) return false;
    const int64_t side = f->H / f->stride; /* of the output */
    if (f->stride == 2) {
        if (f->H != 32 && f->H != 16) return false;
    } else if (f->stride != 1 || f->R != 3 || (f->H != 32 && f->H != 16 && f->H != 8))
        return false;
    if (!is_cifar_width(side, f->K)) return false;
    return is_cifar_width(f->H, f->C) || (f->C == 3 && f->stride == 1 && f->H == 32);
}

/* Their backward, where a block has the shared memory: it needs 103 KiB for one of the shapes. */
static bool is_cifar_grad(const struct conv_shape *f) {
    const bool large = f->H == 32 && f->stride == 2 && f->R == 3;
    return is_cifar(f) && (!large || cr_capability_of(f->cc).block_bytes >= 103 << 10);
}

/* Kernels of this project for BN statistics from Gram matrices: 1x1 convolutions from 64 or 128 channels, and on 9.0
 * from up to 512 channels. */
static bool is_gram_width(int cc, int64_t C, int64_t K) {
    if (cc == 90) return (C == 64 || (C % 128 == 0 && C <= 512)) && K % 256 == 0;
    return cc >= 80 && (C == 64 || C == 128) && K % 64 == 0;
}
static bool is_gram(const struct conv_shape *f) {
    return f->half && f->R == 1 && f->pad == 0 && is_gram_width(f->cc, f->C, f->K);
}

static bool gram_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const bool              dgrad = op->kind == CR_OP_gram_dgrad;
    const struct cr_tensor *x     = &p->tensor[op->in[dgrad ? CR_IN_gram_dgrad_x : CR_IN_gram_x]];
    const int64_t           K     = dgrad ? p->tensor[op->in[CR_IN_gram_dgrad_g]].dim[3] : 256;
    if (x->dtype != CR_F16 && x->dtype != CR_BF16) return false;
    return is_gram_width(offline_of(device)->gpu->cc, x->dim[3], K);
}

/* gram_bn_finalize, gram_bn_sums, gram_bn_grad_sums and gram_bn_grad. */
static bool gram_bn_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const enum cr_dtype type = p->tensor[op->in[0]].dtype; /* of w */
    return offline_of(device)->gpu->cc >= 80 && (type == CR_F16 || type == CR_BF16);
}

static bool conv_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct conv_shape f          = conv_shape_of(device, p, op, op->in[CR_IN_conv_x], op->in[CR_IN_conv_w]);
    const bool              scale_bias = has_input(op, CR_IN_conv_scale_bias), bias = has_input(op, CR_IN_conv_bias),
               sums = has_output(op, CR_OUT_conv_sums);
    if (has_input(op, CR_IN_conv_out_scale_bias)) return is_gram(&f);
    if (has_input(op, CR_IN_conv_gamma)) return is_cifar(&f) && sums && !bias && !has_input(op, CR_IN_conv_add);
    if (bias || has_input(op, CR_IN_conv_add) || op->attr.conv.relu) return bias && !scale_bias && !sums;
    if (!scale_bias && !sums) return true;
    if (scale_bias && is_stem(&f)) return false;
    /* cuDNN reads scale and bias in the type of the images; the kernels of this project read them in f32. */
    if (scale_bias && p->tensor[op->in[CR_IN_conv_scale_bias]].dtype != CR_F32)
        return sums ? cudnn_sums(device, &f) : cudnn_fuses_forward(&f);
    return (!scale_bias && cudnn_sums(device, &f)) || (is_1x1(&f) && !(scale_bias && f.C % 64)) || is_stem(&f) ||
           (!scale_bias && is_3x3_with_sums(&f)) || (is_cifar(&f) && !(scale_bias && f.C == 3));
}

static bool pool_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct conv_shape f = conv_shape_of(device, p, op, op->in[CR_IN_conv_pool_x], op->in[CR_IN_conv_pool_w]);
    return has_wgmma(&f) && is_stem(&f) && f.K % 64 == 0 && f.x->dim[2] <= 115;
}

static bool pool_grad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct conv_shape f =
        conv_shape_of(device, p, op, op->in[CR_IN_conv_pool_grad_x], op->out[CR_OUT_conv_pool_grad_dw]);
    return !has_wgmma(&f) && is_stem(&f) && f.K % 64 == 0 && cr_capability_of(f.cc).block_bytes >= 145 << 10;
}

static bool dgrad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct conv_shape f = conv_shape_of(device, p, op, op->out[CR_OUT_conv_dgrad_dx], op->in[CR_IN_conv_dgrad_w]);
    if (!has_input(op, CR_IN_conv_dgrad_bn_x)) return !has_output(op, CR_OUT_conv_dgrad_grad_sums);
    if (has_output(op, CR_OUT_conv_dgrad_grad_sums))
        return f.C % 8 == 0; /* at least as a plain convolution followed by a separate pass for the sums */
    return (cudnn_fuses(&f) && (f.stride == 1 || !has_input(op, CR_IN_conv_dgrad_add))) ||
           (is_1x1(&f) && f.stride == 1);
}

static bool wgrad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct conv_shape f = conv_shape_of(device, p, op, op->in[CR_IN_conv_wgrad_x], op->out[CR_OUT_conv_wgrad_dw]);
    if (has_output(op, CR_OUT_conv_wgrad_dy_sums)) return is_gram(&f);
    return !has_input(op, CR_IN_conv_wgrad_scale_bias) ||
           (p->tensor[op->in[CR_IN_conv_wgrad_scale_bias]].dtype == f.x->dtype && cudnn_fuses(&f));
}

/* Fused backward of a convolution (conv_grad): the position of the convolution in its block, and the numbers of
 * channels that have a kernel. INNER: BN and ReLU precede the convolution. BLOCK: the output of a residual block
 * precedes it. PLAIN: neither is fused. */
enum mode { INNER, BLOCK, PLAIN, NO_MODE };
static enum mode mode_of(const struct cr_op *op) {
    const bool scale_bias = has_input(op, CR_IN_conv_grad_scale_bias),
               mean_rstd = has_input(op, CR_IN_conv_grad_mean_rstd), bn_x = has_input(op, CR_IN_conv_grad_bn_x);
    if (mean_rstd)
        return scale_bias && !bn_x && !has_input(op, CR_IN_conv_grad_add) ? INNER
               : !scale_bias && bn_x                                      ? BLOCK
                                                                          : NO_MODE;
    if (has_input(op, CR_IN_conv_grad_y)) /* the output of a residual block is its own mask */
        return !scale_bias && op->in[CR_IN_conv_grad_y] == op->in[CR_IN_conv_grad_x] ? BLOCK : NO_MODE;
    return scale_bias || bn_x ? NO_MODE : PLAIN;
}
static bool has_1x1_grad(const struct conv_shape *f, enum mode mode) {
    enum { SLICES = 8 }; /* the kernels split C into at most 8 slices */
    static const struct shape {
        int64_t   K, C;
        enum mode mode;
        int       kib; /* shared memory of a block */
    } wgmma[] = {{256, 64, INNER, 0},  {64, 256, BLOCK, 0}, {128, 128, BLOCK, 0},
                 {256, 128, BLOCK, 0}, {64, 64, PLAIN, 0},  {256, 64, PLAIN, 0}},
      mma[]   = {{256, 64, INNER, 99},   {64, 128, BLOCK, 99}, {128, 128, BLOCK, 99}, {64, 64, PLAIN, 99},
                 {256, 128, BLOCK, 157}, {256, 64, PLAIN, 99}, {512, 64, INNER, 157}};
    const struct shape *kernels = has_wgmma(f) ? wgmma : mma;
    const size_t count = has_wgmma(f) ? CR_COUNT(wgmma) : CR_COUNT(mma), bytes = cr_capability_of(f->cc).block_bytes;
    if (has_wgmma(f) && mode == INNER && f->K == 512 && f->C == 128) return true;
    for (size_t i = 0; i < count; i++)
        if (kernels[i].mode == mode && f->K == kernels[i].K && f->C % kernels[i].C == 0 &&
            f->C / kernels[i].C <= SLICES && (size_t)kernels[i].kib << 10 <= bytes)
            return true;
    return false;
}
static bool grad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct conv_shape f  = conv_shape_of(device, p, op, op->in[CR_IN_conv_grad_x], op->in[CR_IN_conv_grad_w]);
    const bool              dx = has_output(op, CR_OUT_conv_grad_dx);
    if (op->attr.conv.add_pad_c && (!is_cifar_grad(&f) || f.stride != 2 || op->attr.conv.add_pad_c % 8 != 0))
        return false;
    if (is_cifar_grad(&f) && !has_input(op, CR_IN_conv_grad_y))
        return f.C == 3 ? !dx && !has_input(op, CR_IN_conv_grad_mean_rstd) &&
                              !has_input(op, CR_IN_conv_grad_scale_bias) && !has_input(op, CR_IN_conv_grad_add)
                        : dx;
    if (has_input(op, CR_IN_conv_grad_gamma)) return false;
    if (!dx)
        return is_stem(&f) && (has_wgmma(&f) || !has_input(op, CR_IN_conv_grad_dy_x)) &&
               !has_input(op, CR_IN_conv_grad_mean_rstd) && !has_input(op, CR_IN_conv_grad_scale_bias) &&
               !has_input(op, CR_IN_conv_grad_add);
    return is_1x1(&f) && f.stride == 1 && has_input(op, CR_IN_conv_grad_dy_x) && has_1x1_grad(&f, mode_of(op));
}

/* Kernels that store one bit per element, or compute sums with the ReLU gradient, read 8 channels at a time. */
static bool bn_apply_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return !has_output(op, CR_OUT_bn_apply_mask) || p->tensor[op->in[CR_IN_bn_apply_x]].dim[3] % 8 == 0;
}
static bool relu_grad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return !has_input(op, CR_IN_relu_grad_bn_x) || p->tensor[op->in[CR_IN_relu_grad_dy]].dim[3] % 8 == 0;
}

/* CIFAR networks: see cuda/conv/cifar/head/cifar_head_kernels.c. */
static bool head_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = &p->tensor[op->in[CR_IN_head_x]];
    (void)device;
    return (x->dtype == CR_F16 || x->dtype == CR_BF16) && x->dim[1] * x->dim[2] == 64 && x->dim[3] <= 64 &&
           x->dim[3] % 8 == 0 && p->tensor[op->out[CR_OUT_head_logits]].dim[3] <= 128;
}

/* 8-bit convolutions: of any shape on 9.0, of a multiple of 16 channels on the others, and as a part of the stem. */
static bool qconv_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct conv_shape f    = conv_shape_of(device, p, op, op->in[CR_IN_qconv_x], op->in[CR_IN_qconv_w]);
    const bool              stem = f.R == 7 && f.C == 3 && f.stride == 2 && f.pad == 3 && f.K % 64 == 0;
    return f.cc == 90 || (f.cc >= 80 && (f.C % 16 == 0 || stem));
}

/* Several convolutions in a row: from 64 channels to 64 or 128, and in 8 bits two of 1x1 from 128 to 128. */
static bool pair_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const bool     bytes = op->kind == CR_OP_qconv_pair;
    const bool     first = op->in[bytes ? (int)CR_IN_qconv_pair_first_w : (int)CR_IN_conv_pair_first_w] != CR_NONE;
    const int      next  = bytes ? (int)CR_IN_qconv_pair_next_w : (int)CR_IN_conv_pair_next_w;
    const int64_t *w = p->tensor[op->in[CR_IN_conv_pair_w]].dim, L = p->tensor[op->in[next]].dim[0];
    if (offline_of(device)->gpu->cc != 90 || (L != 64 && L != 128)) return false;
    if (!bytes && p->tensor[op->in[CR_IN_conv_pair_x]].dtype == CR_F32) return false;
    return w[3] == 64 || (bytes && !first && w[3] == 128 && L == 128);
}

/* Inputs that may lie in the HOST region: inputs of elementwise passes whose tensors are offloaded, and copies. */
static const struct {
    enum cr_op_kind kind;
    int             slot;
} host_inputs[] = {{CR_OP_bn_apply, CR_IN_bn_apply_x},
                   {CR_OP_bn_apply, CR_IN_bn_apply_add},
                   {CR_OP_bn_grad_sums, CR_IN_bn_grad_sums_x},
                   {CR_OP_bn_grad_sums, CR_IN_bn_grad_sums_y},
                   {CR_OP_bn_grad_apply, CR_IN_bn_grad_apply_x},
                   {CR_OP_bn_grad_apply, CR_IN_bn_grad_apply_y},
                   {CR_OP_relu_grad, CR_IN_relu_grad_y},
                   {CR_OP_relu_grad, CR_IN_relu_grad_bn_x},
                   {CR_OP_relu_grad, CR_IN_relu_grad_bn2_x},
                   {CR_OP_prefetch, CR_IN_prefetch_x},
                   {CR_OP_barrier, CR_IN_barrier_x}};

static void offline_close(struct cr_device *device) {
    cr_free(device);
}
static size_t offline_memory(struct cr_device *device) {
    return cr_gpu_memory(offline_of(device)->gpu, &device->options);
}
static const struct cr_async   offline_async; /* not NULL, because the memory that a run needs depends on it */
static const struct cr_backend offline_backend = {
    .name = "cuda", .close = offline_close, .memory_free = offline_memory, .async = &offline_async};

bool cr_gpu_is_listed(const struct cr_device *device) {
    return device->backend == &offline_backend;
}

/* ---- opening ---- */

/* `why`: why the kernels could not be queried; NULL when they were. */
static void set_caps(const struct cr_gpu *gpu, const char *why, struct cr_device_caps *caps) {
    caps->alignment            = ALIGNMENT;
    caps->bytes_per_s          = gpu->bytes_per_s;
    caps->flops_per_s          = gpu->flops_per_s;
    caps->f32_fraction         = gpu->f32_fraction;
    caps->tf32_fraction        = gpu->tf32_fraction;
    caps->half                 = true;
    caps->overhead_bytes       = CR_GPU_OVERHEAD_BYTES;
    caps->context_bytes        = CR_GPU_CONTEXT_BYTES;
    caps->host_memory_overhead = 1.0 / CR_GPU_HOST_PAGES;
    caps->to_host_bytes_per_s = caps->to_device_bytes_per_s = DUPLEX_FRACTION * gpu->copy_bytes_per_s;
    caps->copy_latency_s                                    = 10e-6;
    caps->duplex_speedup                                    = 1 / DUPLEX_FRACTION;
    if (snprintf(caps->text, sizeof caps->text, "%s, %.0f GiB, compute capability %d.%d, from its data sheet; %s%.80s",
                 gpu->text, (double)gpu->memory_bytes / (1 << 30), gpu->cc / 10, gpu->cc % 10,
                 why ? "kernels from a list: " : "kernels queried", why ? why : "") < 0)
        caps->text[0] = 0;
}

cr_status cr_gpu_open_from_list(const struct cr_gpu *gpu, const struct cr_device_options *options, const char *why,
                                struct cr_device **out) {
    struct offline_device *d;
    CR_ALLOC(d, 1);
    d->gpu  = gpu;
    d->base = (struct cr_device){.backend = &offline_backend, .kernels = d->list, .options = *options};
    for (int k = 0; k < CR_OP_COUNT; k++) {
        d->kernel[k] =
            (struct cr_kernel){.name = "offline", .op = (enum cr_op_kind)k, .math = CR_MATH_F16, .deterministic = true};
        d->list[k] = &d->kernel[k];
    }
    for (size_t i = 0; i < CR_COUNT(host_inputs); i++)
        d->kernel[host_inputs[i].kind].host_slots |= 1u << host_inputs[i].slot;
    d->kernel[CR_OP_conv].accepts           = conv_accepts;
    d->kernel[CR_OP_conv_pool].accepts      = pool_accepts;
    d->kernel[CR_OP_conv_pool_grad].accepts = pool_grad_accepts;
    d->kernel[CR_OP_gram].accepts = d->kernel[CR_OP_gram_dgrad].accepts = gram_accepts;
    d->kernel[CR_OP_gram_bn_finalize].accepts = d->kernel[CR_OP_gram_bn_sums].accepts = gram_bn_accepts;
    d->kernel[CR_OP_gram_bn_grad_sums].accepts = d->kernel[CR_OP_gram_bn_grad].accepts = gram_bn_accepts;
    d->kernel[CR_OP_conv_dgrad].accepts                                                = dgrad_accepts;
    d->kernel[CR_OP_conv_wgrad].accepts                                                = wgrad_accepts;
    d->kernel[CR_OP_conv_grad].accepts                                                 = grad_accepts;
    d->kernel[CR_OP_bn_apply].accepts                                                  = bn_apply_accepts;
    d->kernel[CR_OP_relu_grad].accepts                                                 = relu_grad_accepts;
    d->kernel[CR_OP_head].accepts                                                      = head_accepts;
    d->kernel[CR_OP_qconv].accepts                                                     = qconv_accepts;
    d->kernel[CR_OP_conv_pair].accepts = d->kernel[CR_OP_qconv_pair].accepts = pair_accepts;
    set_caps(gpu, why, &d->base.caps);
    *out = &d->base;
    return CR_OK;
}

cr_status cr_gpu_open_offline(const struct cr_gpu *gpu, const struct cr_device_options *options, struct cr_device **out,
                              bool *kernels_queried) {
    char why[200] = "this build has no CUDA";
    *out          = NULL;
    for (const struct cr_backend *const *b = cr_backends(); *b && !*out; b++) {
        if (!(*b)->open_offline || (*b)->open_offline(gpu, options, out) == CR_OK) continue;
        *out = NULL;
        snprintf(why, sizeof why, "%.190s", cr_error_message());
        cr_error_clear();
    }
    *kernels_queried = *out != NULL;
    if (!*out) return cr_gpu_open_from_list(gpu, options, why, out);
    set_caps(gpu, NULL, &(*out)->caps);
    return CR_OK;
}
