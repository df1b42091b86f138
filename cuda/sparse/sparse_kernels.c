/* cuda/sparse/sparse_kernels.c: functions that the kernels of all sparse weight formats share. */
#include "cuda/sparse/sparse_kernels.h"
#include "cuda/core/op_shapes.h"

/* ---- operands ---- */

struct ck_conv cuda_sparse_conv_shape(const struct cr_program *p, const struct cr_op *op) {
    if (op->kind == CR_OP_conv)
        return cuda_conv_shape(op, cuda_in(p, op, CR_IN_conv_x), cuda_in(p, op, CR_IN_conv_w),
                               cuda_out(p, op, CR_OUT_conv_y));
    return cuda_filter_shape(op, cuda_in(p, op, CR_IN_sparse_filter_w));
}

bool cuda_sparse_operands_fit(const struct cr_program *p, const struct cr_op *op) {
    const unsigned known = 1u << CR_IN_conv_x | 1u << CR_IN_conv_w | 1u << CR_IN_conv_bias | 1u << CR_IN_conv_add |
                           1u << CR_IN_conv_packed;
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_conv_x), *bias = cuda_in(p, op, CR_IN_conv_bias),
                           *add = cuda_in(p, op, CR_IN_conv_add);
    if (!cr_op_uses_only(op, known, 1u << CR_OUT_conv_y) || !cuda_is_data(x) ||
        !cuda_is_data(cuda_in(p, op, CR_IN_conv_w)))
        return false;
    return cuda_out(p, op, CR_OUT_conv_y)->dtype == x->dtype && (!bias || bias->dtype == CR_F32) &&
           (!add || add->dtype == x->dtype);
}

bool cuda_sparse_operands_are(const struct cr_program *p, const struct cr_op *op, enum cr_dtype type) {
    return cuda_sparse_operands_fit(p, op) && cuda_in(p, op, CR_IN_conv_x)->dtype == type &&
           cuda_in(p, op, CR_IN_conv_w)->dtype == type;
}

bool cuda_sparse_filter_fits(const struct cr_program *p, const struct cr_op *op) {
    return cuda_is_data(cuda_in(p, op, CR_IN_sparse_filter_w)) &&
           cuda_out(p, op, CR_OUT_sparse_filter_y)->dtype == CR_F32;
}

/* The maximum clock rate gives a lower bound on the time: an estimate must not be too long. */
double cr_cuda_cycles_to_seconds(const struct cr_device *device, double cycles) {
    int khz = 0;
    if (cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, cuda_of(device)->index) != cudaSuccess || khz <= 0) return 0;
    return cycles / (1e3 * khz);
}

/* ---- device memory ---- */

cr_status cr_cuda_sparse_upload(const void *host, int64_t count, uint32_t **device) {
    const size_t bytes = (size_t)count * sizeof **device;
    CUDA_TRY(cudaMalloc((void **)device, CR_MAX(bytes, sizeof **device)));
    CUDA_TRY(cudaMemcpy(*device, host, bytes, cudaMemcpyHostToDevice));
    return CR_OK;
}

cr_status cr_cuda_linear_upload(const struct cr_linear_filter *f, bool gathers, bool convolves,
                                struct cuda_linear_filter *to) {
    cr_status status = CR_OK;
    uint32_t *offset = NULL;
    to->entries      = f->entries;
    if (gathers) CR_TRY_OUT(cr_cuda_sparse_upload(f->from, f->entries, &to->from));
    if (!convolves) goto out;
    CR_ALLOC(offset, (size_t)CR_MAX(f->entries, 1));
    for (int64_t i = 0; i < f->entries; i++) offset[i] = f->entry[i].offset;
    CR_TRY_OUT(cr_cuda_sparse_upload(offset, f->entries, &to->offsets));
    CR_TRY_OUT(cr_cuda_sparse_upload(f->start, f->chunks * f->rows + 1, &to->start));
out:
    cr_free(offset);
    return status;
}

void cr_cuda_linear_free(struct cuda_linear_filter *filter) {
    (void)cudaFree(filter->offsets);
    (void)cudaFree(filter->start);
    (void)cudaFree(filter->from);
}
