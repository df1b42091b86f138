/* cuda_kernels.c: the GPU's rows. The order of the tables does not matter (each op kind stands in one, or in conv's two). */
#include "cuda.h"

const struct cr_kernel *const *const cr_cuda_tables[] = {cr_cudnn_conv_rows, cr_cuda_conv_rows, cr_cuda_dense_rows,
                                                         cr_cuda_bn_rows, cr_cuda_data_rows, cr_cuda_train_rows, NULL};
