/* cuda/registry.c: the GPU's rows in one table. Where several take an op, the order is that of preference when times are not
 * measured: own kernels for small channels first, then cuDNN, then own ones for what is left. */
#include "cuda/core/cuda_device.h"

void cr_cuda_rows_collect(struct cuda_device *device) {
    const struct cr_kernel *const *const tables[] = {
        cr_cuda_small_rows, cr_cudnn_conv_rows, cr_cuda_point_rows, cr_cuda_point_grad_rows, cr_cuda_stem_rows,
        cr_cuda_conv_rows,  cr_cuda_dense_rows, cr_cuda_bn_rows,    cr_cuda_fold_rows,       cr_cuda_data_rows,
        cr_cuda_swap_rows,  cr_cuda_peer_rows,  cr_cuda_comm_rows,  cr_cuda_excite_rows, cr_cuda_train_rows, cr_cuda_update_rows, cr_cuda_sparse_rows,
        cr_cuda_sparse_grad_rows, cr_cuda_union_rows, cr_cuda_nm_rows, cr_cuda_walks_rows, cr_cuda_block_rows, cr_cuda_im2col_rows};
    int count = 0;
    for (size_t t = 0; t < CR_COUNT(tables); t++)
        for (const struct cr_kernel *const *row = tables[t]; *row; row++) {
            CR_ASSERT(count < CR_CUDA_ROWS_MAX);
            device->rows[count++] = *row;
        }
    device->rows[count] = NULL;
}
