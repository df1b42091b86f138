/* device/gpu_specs.c: GPUs that are not there, for plans: what data sheets say of them, and rows that answer questions.
 * Where a compiled-in backend can describe the GPU, its own rows are asked; else the list below says what they take. */
#include "device/device.h"

#include <stdio.h>
#include <string.h>

/* ---- the table ---- */

/* bytes_per_s, flops_per_s (dense, sums in f32) and shares: NVIDIA's data sheets and architecture papers: H200 SXM 4.8
 * TB/s and H100 SXM 3.35 TB/s, both 989 TFLOP/s in 16 bits, 495 in TF32, 67 in f32; A100 SXM 80 GB 2.04 TB/s, 312,
 * 156, 19.5; GeForce RTX 4090 (Ada paper) 1.01 TB/s, 165, 83, 83. As for a GPU that is there, 0.875 of the memory's
 * rate and 0.8 of the FLOP/s count. memory_bytes: the total that nvidia-smi shows. copy_bytes_per_s: PCIe 5.0 x16
 * (H200, H100) and 4.0 x16 carry 63 and 31.5 GB/s each way; copies from page-locked memory reach 0.86 of that (measured
 * on an H200, where both ways at once reach 0.86 of each). */
#define MIB ((size_t)1 << 20)
#define MOVED(tb_per_s) (0.875 * 1e12 * (tb_per_s))
#define BOTH_AT_ONCE 0.86
#define RECKONED(tflop_per_s) (0.8 * 1e12 * (tflop_per_s))
static const struct cr_gpu gpus[] = {
    {"h200", "NVIDIA H200", 90, 132, 143771 * MIB, MOVED(4.8), RECKONED(989), 67.0 / 989, 0.5, 54e9},
    {"h100", "NVIDIA H100", 90, 132, 81559 * MIB, MOVED(3.35), RECKONED(989), 67.0 / 989, 0.5, 54e9},
    {"a100", "NVIDIA A100, 80 GB", 80, 108, 81920 * MIB, MOVED(2.04), RECKONED(312), 19.5 / 312, 0.5, 27e9},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 89, 128, 24564 * MIB, MOVED(1.01), RECKONED(165), 0.5, 0.5, 27e9},
};

const struct cr_gpu *cr_gpu_find(const char *name) {
    for (size_t i = 0; i < CR_COUNT(gpus); i++)
        if (strcmp(gpus[i].name, name) == 0) return &gpus[i];
    return NULL;
}

void cr_gpu_names(struct cr_text *out) {
    for (size_t i = 0; i < CR_COUNT(gpus); i++) cr_text_add(out, "%s%s", i ? ", " : "", gpus[i].name);
}

/* ---- a device of paper: one row a kind, which accepts by the list ---- */

enum { ALIGNMENT = 256 };

struct paper_device {
    struct cr_device        base; /* first: a cr_device pointer is a paper_device pointer */
    const struct cr_gpu    *gpu;
    struct cr_kernel        row[CR_OP_COUNT];
    const struct cr_kernel *rows[CR_OP_COUNT + 1];
};

static const struct paper_device *paper_of(const struct cr_device *device) {
    return (const struct paper_device *)(const void *)device;
}

/* A convolution by its forward form. */
struct form {
    const struct cr_tensor *x;
    int64_t                 C, K, R, H;
    int                     stride, pad;
    bool                    half, f16;
    int                     cc;
};

static struct form form_of(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op, int x,
                           int filter) {
    const struct cr_tensor *data = &p->tensor[x];
    const int64_t          *w    = p->tensor[filter].dim;
    return (struct form){.x      = data,
                         .C      = w[3],
                         .K      = w[0],
                         .R      = w[1],
                         .H      = data->dim[1],
                         .stride = op->attr.conv.stride,
                         .pad    = op->attr.conv.pad,
                         .half   = data->dtype == CR_F16 || data->dtype == CR_BF16,
                         .f16    = data->dtype == CR_F16,
                         .cc     = paper_of(device)->gpu->cc};
}

static bool has(const struct cr_op *op, int in) {
    return op->in[in] != CR_NONE;
}
static bool makes(const struct cr_op *op, int out) {
    return op->out[out] != CR_NONE;
}

/* cuDNN 9 has sums and BN's arithmetic beside a convolution in f16 alone, for whole vectors of channels and filters up
 * to 5x5. Its sums are added in whatever order blocks come: not for deterministic runs. */
static bool library_fuses(const struct form *f) {
    return f->f16 && f->C % 8 == 0 && f->K % 8 == 0 && f->R <= 5;
}
static bool library_sums(const struct cr_device *device, const struct form *f) {
    return !device->options.deterministic && library_fuses(f);
}

/* Own kernels. 1x1 and the stem in its space-to-depth form: compute capability 9.0 alone. */
static bool is_point(const struct form *f) {
    return f->cc == 90 && f->half && f->R == 1 && f->pad == 0 && f->C % 8 == 0 && f->K % 8 == 0;
}
static bool is_stem(const struct form *f) {
    return f->cc == 90 && f->half && f->R == 4 && f->stride == 1 && f->pad == 0 && f->C == 16;
}

/* CIFAR's ResNets, from compute capability 9.0 to 11.x. */
static bool is_small(const struct form *f) {
    if (f->cc < 90 || f->cc >= 120 || !f->half || (f->R != 1 && f->R != 3) || f->pad != f->R / 2) return false;
    if (f->stride == 2) return f->K == 2 * f->C && (f->C == 16 || f->C == 32) && f->H * f->C == 512;
    if (f->stride != 1 || f->R != 3) return false;
    return f->C == 3 ? f->K == 16 && f->H == 32 : f->K == f->C && f->H * f->C == 512 && f->C <= 64;
}

static bool conv_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct form f    = form_of(device, p, op, op->in[CR_IN_conv_x], op->in[CR_IN_conv_w]);
    const bool        coef = has(op, CR_IN_conv_scale_bias), bias = has(op, CR_IN_conv_bias),
               stats = makes(op, CR_OUT_conv_sums);
    if (has(op, CR_IN_conv_gamma)) return is_small(&f) && stats && !bias && !has(op, CR_IN_conv_add);
    if (bias || has(op, CR_IN_conv_add) || op->attr.conv.relu) return bias && !coef && !stats;
    if (!coef && !stats) return true;
    if (coef && is_stem(&f)) return false;
    /* cuDNN reads coefficients in the type of the images, own kernels in f32. */
    if (coef && p->tensor[op->in[CR_IN_conv_scale_bias]].dtype != CR_F32)
        return stats ? library_sums(device, &f) : library_fuses(&f);
    return (!coef && library_sums(device, &f)) || (is_point(&f) && !(coef && f.C % 64)) || is_stem(&f) ||
           (is_small(&f) && !(coef && f.C == 3));
}

static bool dgrad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct form f = form_of(device, p, op, op->out[CR_OUT_conv_dgrad_dx], op->in[CR_IN_conv_dgrad_w]);
    if (!has(op, CR_IN_conv_dgrad_bn_x)) return !makes(op, CR_OUT_conv_dgrad_grad_sums);
    if (makes(op, CR_OUT_conv_dgrad_grad_sums))
        return f.C % 8 == 0; /* if by nothing else, in a pass of its own behind a plain one */
    return (library_fuses(&f) && (f.stride == 1 || !has(op, CR_IN_conv_dgrad_add))) || (is_point(&f) && f.stride == 1);
}

static bool wgrad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct form f = form_of(device, p, op, op->in[CR_IN_conv_wgrad_x], op->out[CR_OUT_conv_wgrad_dw]);
    return !has(op, CR_IN_conv_wgrad_scale_bias) ||
           (p->tensor[op->in[CR_IN_conv_wgrad_scale_bias]].dtype == f.x->dtype && library_fuses(&f));
}

/* The whole backward of a convolution in one kernel: which numbers of channels there are kernels for. */
enum mode { INNER, BLOCK, PLAIN, NO_MODE };
static enum mode mode_of(const struct cr_op *op) {
    const bool coef = has(op, CR_IN_conv_grad_scale_bias), saved = has(op, CR_IN_conv_grad_mean_rstd),
               bn_x = has(op, CR_IN_conv_grad_bn_x);
    if (saved) return coef && !bn_x && !has(op, CR_IN_conv_grad_add) ? INNER : !coef && bn_x ? BLOCK : NO_MODE;
    return coef || bn_x ? NO_MODE : PLAIN;
}
static bool has_point_grad(const struct form *f, enum mode mode) {
    enum { SLICES = 8 };
    static const struct {
        int64_t   K, C;
        enum mode mode;
    } kernels[] = {{256, 64, INNER},  {64, 256, BLOCK}, {128, 128, BLOCK},
                   {256, 128, BLOCK}, {64, 64, PLAIN},  {256, 64, PLAIN}};
    if (mode == INNER && f->K == 512 && f->C == 128) return true;
    for (size_t i = 0; i < CR_COUNT(kernels); i++)
        if (kernels[i].mode == mode && f->K == kernels[i].K && f->C % kernels[i].C == 0 &&
            f->C / kernels[i].C <= SLICES)
            return true;
    return false;
}
static bool grad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct form f  = form_of(device, p, op, op->in[CR_IN_conv_grad_x], op->in[CR_IN_conv_grad_w]);
    const bool        dx = makes(op, CR_OUT_conv_grad_dx);
    if (is_small(&f))
        return f.C == 3 ? !dx && !has(op, CR_IN_conv_grad_mean_rstd) && !has(op, CR_IN_conv_grad_scale_bias) &&
                              !has(op, CR_IN_conv_grad_add)
                        : dx;
    if (has(op, CR_IN_conv_grad_gamma)) return false;
    if (!dx)
        return is_stem(&f) && !has(op, CR_IN_conv_grad_mean_rstd) && !has(op, CR_IN_conv_grad_scale_bias) &&
               !has(op, CR_IN_conv_grad_add);
    return is_point(&f) && f.stride == 1 && has(op, CR_IN_conv_grad_dy_x) && has_point_grad(&f, mode_of(op));
}

/* Own passes over a tensor, as far as gradients want what waited; copies. */
static const struct {
    enum cr_op_kind kind;
    int             slot;
} from_host[] = {{CR_OP_bn_apply, CR_IN_bn_apply_x},
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

static void paper_close(struct cr_device *device) {
    cr_free(device);
}
static size_t paper_memory(struct cr_device *device) {
    return paper_of(device)->gpu->memory_bytes;
}
static const struct cr_async   paper_async; /* works beside the host, as far as memory counts it */
static const struct cr_backend paper_backend = {
    .name = "cuda", .close = paper_close, .memory_free = paper_memory, .async = &paper_async};

/* ---- opening ---- */

static void set_caps(const struct cr_gpu *gpu, bool asked, const char *why, struct cr_device_caps *caps) {
    caps->alignment            = ALIGNMENT;
    caps->bytes_per_s          = gpu->bytes_per_s;
    caps->flops_per_s          = gpu->flops_per_s;
    caps->f32_fraction         = gpu->f32_fraction;
    caps->tf32_fraction        = gpu->tf32_fraction;
    caps->half                 = true;
    caps->overhead_bytes       = CR_GPU_OVERHEAD_BYTES;
    caps->host_memory_overhead = 1.0 / CR_GPU_HOST_PAGES;
    caps->to_host_bytes_per_s = caps->to_device_bytes_per_s = BOTH_AT_ONCE * gpu->copy_bytes_per_s;
    caps->copy_latency_s                                    = 10e-6;
    caps->duplex_speedup                                    = 1 / BOTH_AT_ONCE;
    if (snprintf(caps->text, sizeof caps->text, "%s, %.0f GiB, compute capability %d.%d, by its data sheet; %s%.80s",
                 gpu->text, (double)gpu->memory_bytes / (1 << 30), gpu->cc / 10, gpu->cc % 10,
                 asked ? "rows asked" : "rows by a list: ", asked ? "" : why) < 0)
        caps->text[0] = 0;
}

cr_status cr_gpu_open_from_list(const struct cr_gpu *gpu, const struct cr_device_options *options, const char *why,
                                struct cr_device **out) {
    struct paper_device *d;
    CR_ALLOC(d, 1);
    d->gpu  = gpu;
    d->base = (struct cr_device){.backend = &paper_backend, .kernels = d->rows, .options = *options};
    for (int k = 0; k < CR_OP_COUNT; k++) {
        d->row[k] =
            (struct cr_kernel){.name = "offline", .op = (enum cr_op_kind)k, .math = CR_MATH_F16, .deterministic = true};
        d->rows[k] = &d->row[k];
    }
    for (size_t i = 0; i < CR_COUNT(from_host); i++) d->row[from_host[i].kind].host_slots |= 1u << from_host[i].slot;
    d->row[CR_OP_conv].accepts       = conv_accepts;
    d->row[CR_OP_conv_dgrad].accepts = dgrad_accepts;
    d->row[CR_OP_conv_wgrad].accepts = wgrad_accepts;
    d->row[CR_OP_conv_grad].accepts  = grad_accepts;
    set_caps(gpu, false, why, &d->base.caps);
    *out = &d->base;
    return CR_OK;
}

cr_status cr_gpu_open_offline(const struct cr_gpu *gpu, const struct cr_device_options *options, struct cr_device **out,
                              bool *asked) {
    char why[200] = "this build has no CUDA";
    *out          = NULL;
    for (const struct cr_backend *const *b = cr_backends(); *b && !*out; b++) {
        if (!(*b)->open_offline || (*b)->open_offline(gpu, options, out) == CR_OK) continue;
        *out = NULL;
        snprintf(why, sizeof why, "%.190s", cr_error_message());
        cr_error_clear();
    }
    *asked = *out != NULL;
    if (!*out) return cr_gpu_open_from_list(gpu, options, why, out);
    set_caps(gpu, true, "", &(*out)->caps);
    return CR_OK;
}
