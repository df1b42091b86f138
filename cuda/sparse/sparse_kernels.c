/* cuda/sparse/sparse_kernels.c: functions that the kernels of all sparse weight formats share: shapes, upload. */
#include "cuda/sparse/sparse_kernels.h"
#include "cuda/core/op_shapes.h"

/* ---- operands ---- */

struct ck_conv cuda_sparse_conv_shape(const struct cr_program *p, const struct cr_op *op) {
    if (op->kind == CR_OP_conv)
        return cuda_conv_shape(op, cuda_in(p, op, CR_IN_conv_x), cuda_in(p, op, CR_IN_conv_w),
                               cuda_out(p, op, CR_OUT_conv_y));
    /* of a sparse_filter, from the filter and the image size in the op's attributes */
    const struct cr_tensor *w = cuda_in(p, op, CR_IN_sparse_filter_w);
    struct cr_tensor        x = *w, y = *w;
    for (int i = 0; i < 3; i++) x.dim[i] = op->attr.conv.pattern.image[i];
    for (int i = 1; i < 3; i++) y.dim[i] = (x.dim[i] + 2 * op->attr.conv.pad - w->dim[i]) / op->attr.conv.stride + 1;
    y.dim[3] = w->dim[0];
    return cuda_conv_shape(op, &x, w, &y);
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
    return CUDA_STATUS(cudaMemcpy(*device, host, bytes, cudaMemcpyHostToDevice));
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
