/* cuda/sparse/direct/direct_grad_kernels.c: the kernel of the gradient of x of sparse convolutions. The weight formats
 * are those of cuda/sparse/direct/direct_kernels.c.
 *
 * The gradient is a convolution of dy with the transposed filter. With a stride it is one convolution for each
 * phase of the stride (sparsity/sparsity.h), by the kernels of the forward pass. One launch gathers the values of all
 * phases. Pixels of dx that no tap reaches are set before. The ReLU gradient and the BN gradient sums of a fused op are
 * computed by a kernel after the convolutions, as for the cuDNN kernels. */
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"
#include "cuda/sparse/sparse_kernels.h"

#include <string.h>

enum { STRIDE_MAX = 4, PHASES_MAX = STRIDE_MAX * STRIDE_MAX };
_Static_assert((int)PHASES_MAX <= (int)CR_CUDA_PHASES_MAX,
               "the filter cache holds all phases of the transposed filter");

struct phase {
    struct cr_transposition transposition;
    struct ck_conv          conv; /* the convolution of dy with the transposed filter */
    struct ck_sparse_plan   plan;
    struct ck_scatter       scatter;
    /* index of the phase's first entry and of its first row start among those of all phases */
    int64_t entry, start;
};
struct prepared {
    struct ck_conv            conv; /* the forward convolution */
    struct phase              phase[PHASES_MAX];
    int                       phases;
    bool                      gaps;         /* some pixels of dx are reached by no tap */
    size_t                    relu_mask_at; /* byte offset in the workspace */
    struct cuda_linear_filter filter;       /* of all phases */
};

/* Sets the phase of the pixels (first_h + stride*i, first_w + stride*j) for all i and j inside the image. Returns false
 * when there are none. */
static bool phase_of(const struct ck_conv *c, int first_h, int first_w, struct phase *f) {
    const int64_t s = c->stride, P = (c->H - first_h + s - 1) / s, Q = (c->W - first_w + s - 1) / s;
    if (first_h >= c->H || first_w >= c->W) return false;
    f->transposition = cr_sparse_transposition(c->R, c->S, s, c->pad, first_h, first_w);
    f->conv          = (struct ck_conv){.type   = c->type,
                                        .R      = (int)f->transposition.R,
                                        .S      = (int)f->transposition.S,
                                        .stride = 1,
                                        .pad    = (int)f->transposition.pad,
                                        .N      = c->N,
                                        .H      = c->P,
                                        .W      = c->Q,
                                        .C      = c->K,
                                        .K      = c->C,
                                        .P      = P,
                                        .Q      = Q};
    f->scatter = (struct ck_scatter){.step = s > 1 ? (int)s : 0, .h = first_h, .w = first_w, .H = c->H, .W = c->W};
    return true;
}

/* Plans all phases. A phase without taps is left out. The estimate assumes that the nonzeros are distributed evenly
 * over the taps. */
static bool plan_phases(const struct cr_device *device, const struct cr_op *op, const struct ck_conv *c,
                        struct prepared *s) {
    const struct cr_sparsity_attr *a = &op->attr.conv.pattern;
    if (c->stride > STRIDE_MAX || c->N * c->H * c->W >= (int64_t)1 << 31) return false;
    s->phases = 0;
    s->gaps   = false;
    for (int i = 0; i < c->stride * c->stride; i++) {
        struct phase *f = &s->phase[s->phases];
        *f              = (struct phase){0};
        if (!phase_of(c, i / c->stride, i % c->stride, f)) continue;
        if (f->transposition.R == 0) {
            s->gaps = true;
            continue;
        }
        const int64_t taps =
            (f->transposition.R - f->transposition.first_r) * (f->transposition.S - f->transposition.first_s);
        if (!cr_cuda_sparse_plan(device, &f->conv, CR_MAX(a->nnz * taps / (c->R * c->S), 1), a->format, false,
                                 &f->plan))
            return false;
        s->phases++;
    }
    return s->phases > 0;
}

static struct ck_conv dgrad_shape(const struct cr_program *p, const struct cr_op *op) {
    return cuda_conv_shape(op, cuda_out(p, op, CR_OUT_conv_dgrad_dx), cuda_in(p, op, CR_IN_conv_dgrad_w),
                           cuda_in(p, op, CR_IN_conv_dgrad_dy));
}

static bool dgrad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_conv    c = dgrad_shape(p, op);
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_conv_dgrad_bn_x);
    struct prepared         s;
    if (x && (x->dim[3] % 8 || op->in[CR_IN_conv_dgrad_mean_rstd] < 0 || op->out[CR_OUT_conv_dgrad_grad_sums] < 0))
        return false;
    return p->store->pattern && plan_phases(device, op, &c, &s);
}

static void release(void *prepared) {
    struct prepared *s = prepared;
    if (s) cr_cuda_linear_free(&s->filter);
    cr_free(s);
}

/* Copies the entries and row starts of all phases to the device, phase by phase. */
static cr_status upload_phases(struct prepared *s, const struct cr_linear_filter *filter) {
    cr_status status = CR_OK;
    int64_t   runs   = 0;
    uint32_t *all    = NULL;
    for (int i = 0; i < s->phases; i++) {
        s->phase[i].entry = s->filter.entries;
        s->phase[i].start = runs;
        s->filter.entries += filter[i].entries;
        runs += filter[i].chunks * filter[i].rows + 1;
    }
    CR_ALLOC(all, (size_t)CR_MAX(CR_MAX(s->filter.entries, runs), 1));
    for (int i = 0; i < s->phases; i++)
        for (int64_t k = 0; k < filter[i].entries; k++) all[s->phase[i].entry + k] = filter[i].entry[k].offset;
    CR_TRY_OUT(cr_cuda_sparse_upload(all, s->filter.entries, &s->filter.offsets));
    for (int i = 0; i < s->phases; i++)
        for (int64_t k = 0; k < filter[i].entries; k++) all[s->phase[i].entry + k] = filter[i].from[k];
    CR_TRY_OUT(cr_cuda_sparse_upload(all, s->filter.entries, &s->filter.from));
    for (int i = 0; i < s->phases; i++)
        memcpy(all + s->phase[i].start, filter[i].start, (size_t)(filter[i].chunks * filter[i].rows + 1) * sizeof *all);
    CR_TRY_OUT(cr_cuda_sparse_upload(all, runs, &s->filter.start));
out:
    cr_free(all);
    return status;
}

static cr_status encode_phases(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                               struct prepared *s) {
    struct cr_linear_filter filter[PHASES_MAX] = {{0}};
    const struct cr_sparse *transposed;
    struct cuda_filter     *cached;
    cr_status               status;
    CR_TRY(cr_cuda_filter_of(device, p, op, &s->conv, &cached));
    for (int i = 0; i < s->phases; i++) {
        struct phase *f = &s->phase[i];
        CR_TRY_OUT(cr_cuda_filter_transposed(cached, &f->transposition, &transposed));
        CR_TRY_OUT(cr_cuda_sparse_order(transposed, &f->conv, &f->plan, cuda_sparse_format(op).kernel, &filter[i]));
    }
    CR_TRY_OUT(upload_phases(s, filter));
out:
    for (int i = 0; i < s->phases; i++) cr_linear_filter_free(&filter[i]);
    return status;
}

static cr_status dgrad_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                               void **prepared, size_t *workspace_bytes) {
    struct prepared *s;
    CR_ALLOC(s, 1);
    *prepared = s;
    s->conv   = dgrad_shape(p, op);
    CR_ASSERT(plan_phases(device, op, &s->conv, s)); /* the accepts function has checked this */
    CR_TRY(encode_phases(device, p, op, s));
    s->relu_mask_at =
        ((size_t)CR_MAX(s->filter.entries, 1) * sizeof(float) + CR_CUDA_ALIGN - 1) / CR_CUDA_ALIGN * CR_CUDA_ALIGN;
    *workspace_bytes = s->relu_mask_at + cr_cuda_bn_relu_grad_workspace(device, p, op);
    return CR_OK;
}

/* Writes the pixels of dx that no tap reaches: `*add`, or 0 when there is none. `*add` is set to the tensor that the
 * convolutions add. */
static cr_status fill_gaps(const struct prepared *s, const struct cr_call *call, const void **add,
                           cudaStream_t stream) {
    const size_t bytes = (size_t)(s->conv.N * s->conv.H * s->conv.W * s->conv.C) * sizeof(float);
    void        *dx    = call->out[CR_OUT_conv_dgrad_dx];
    if (!s->gaps) return CR_OK;
    if (!*add) {
        CUDA_TRY(cudaMemsetAsync(dx, 0, bytes, stream));
        return CR_OK;
    }
    if (*add != dx) CUDA_TRY(cudaMemcpyAsync(dx, *add, bytes, cudaMemcpyDeviceToDevice, stream));
    *add = dx;
    return CR_OK;
}

static cr_status dgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct prepared *s      = call->prepared;
    cudaStream_t           stream = cr_cuda_stream(device, call);
    const void            *add    = call->in[CR_IN_conv_dgrad_add];
    CUDA_TRY(ck_sparse_gather(call->in[CR_IN_conv_dgrad_w], CK_F32, s->filter.from, s->filter.entries, call->workspace,
                              stream));
    CR_TRY(fill_gaps(s, call, &add, stream));
    for (int i = 0; i < s->phases; i++) {
        const struct phase         *f    = &s->phase[i];
        const struct ck_sparse_args args = {.conv    = f->conv,
                                            .x       = call->in[CR_IN_conv_dgrad_dy],
                                            .values  = (float *)call->workspace + f->entry,
                                            .offsets = s->filter.offsets + f->entry,
                                            .start   = s->filter.start + f->start,
                                            .add     = add,
                                            .y       = call->out[CR_OUT_conv_dgrad_dx],
                                            .scatter = f->scatter};
        if (cuda_sparse_format(call->op).kernel == CR_SPARSE_ROWS)
            CUDA_TRY(ck_sell_conv(&args, stream));
        else
            CUDA_TRY(ck_sparse_conv(&args, &f->plan, stream));
    }
    return call->in[CR_IN_conv_dgrad_bn_x] ? cr_cuda_bn_relu_grad(device, call, s->relu_mask_at) : CR_OK;
}

/* ---- kernels ---- */

const struct cr_kernel cr_cuda_direct_grad_kernels[] = {
    {CR_KERNEL("cuda.sparse_dgrad", conv_dgrad, CR_MATH_F32), .dtypes = CR_TYPES_F32, .sparse = true, CUDA_DGRAD_SLOTS,
     .algo_name = cr_cuda_sparse_format_name, .accepts = dgrad_accepts, .prepare = dgrad_prepare, .release = release,
     .launch = dgrad_launch},
    {0}};
