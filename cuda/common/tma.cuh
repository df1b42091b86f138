/* cuda/common/tma.cuh: host side of cuda/common/hopper.cuh: tensor maps of the tensor memory accelerator (TMA).
 *
 * All maps have these properties: shared memory in rows of 128 bytes with the 128-byte swizzle, L2 promotion to 256
 * bytes, zeros for elements outside the tensor. The contiguous dimension comes first; pitch[i] is the distance in bytes
 * of dimension i + 1. The driver's functions are looked up once. */
#ifndef CK_TMA_CUH
#define CK_TMA_CUH

#include "cuda/common/driver.h"
#include "cuda/common/launchers.h"

#include <cuda.h>

inline CUtensorMapDataType ck_tma_type(enum ck_type type) {
    return type == CK_F32   ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
           : type == CK_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                            : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

/* Map for boxes of a tensor of `rank` dimensions (2 to 5). Returns false when the driver lacks the function or rejects
 * the sizes. */
inline bool ck_tma_boxes(CUtensorMap *map, enum ck_type type, int rank, const void *data, const cuuint64_t *dim,
                         const cuuint64_t *pitch, const cuuint32_t *box) {
    static const auto encode =
        reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(ck_driver_function("cuTensorMapEncodeTiled"));
    const cuuint32_t every[5] = {1, 1, 1, 1, 1};
    return encode && encode(map, ck_tma_type(type), (cuuint32_t)rank, const_cast<void *>(data), dim, pitch, box, every,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Map of matrix[rows][columns] of 16-bit elements, in boxes of 64 columns x box_rows. */
inline bool ck_tma_matrix(CUtensorMap *map, enum ck_type type, const void *matrix, int64_t rows, int64_t columns,
                          int box_rows) {
    const cuuint64_t dim[2] = {(cuuint64_t)columns, (cuuint64_t)rows}, pitch[1] = {(cuuint64_t)columns * 2};
    const cuuint32_t box[2] = {64, (cuuint32_t)box_rows};
    return ck_tma_boxes(map, type, 2, matrix, dim, pitch, box);
}

/* Map of 64 16-bit channels of x [N][H][W][C], `pixels` pixels for each load, in the order of a convolution's output:
 * every stride-th pixel of every stride-th row. low and high are (column, row): the offset of the first pixel from the
 * image's first pixel, and of the last pixel from the image's last pixel. They are negative in front of these pixels,
 * so a padded convolution has a negative `low`. */
inline bool ck_tma_pixels(CUtensorMap *map, enum ck_type type, const void *x, int64_t N, int64_t H, int64_t W,
                          int64_t C, const int *low, const int *high, int stride, int pixels) {
    static const auto encode =
        reinterpret_cast<decltype(&cuTensorMapEncodeIm2col)>(ck_driver_function("cuTensorMapEncodeIm2col"));
    const cuuint64_t dim[4]   = {(cuuint64_t)C, (cuuint64_t)W, (cuuint64_t)H, (cuuint64_t)N};
    const cuuint64_t pitch[3] = {(cuuint64_t)C * 2, (cuuint64_t)(W * C) * 2, (cuuint64_t)(H * W * C) * 2};
    const cuuint32_t every[4] = {1, (cuuint32_t)stride, (cuuint32_t)stride, 1};
    return encode && encode(map, ck_tma_type(type), 4, const_cast<void *>(x), dim, pitch, low, high, 64,
                            (cuuint32_t)pixels, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* ---- 8-bit elements: rows of `chunk` bytes in shared memory, 64 or 128, with the swizzle of that width ---- */

inline CUtensorMapSwizzle ck_tma_swizzle(int chunk) {
    return chunk == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
}

/* As ck_tma_matrix, in boxes of `chunk` columns x box_rows. */
inline bool ck_tma_byte_matrix(CUtensorMap *map, const void *matrix, int64_t rows, int64_t columns, int chunk,
                               int box_rows) {
    static const auto encode =
        reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(ck_driver_function("cuTensorMapEncodeTiled"));
    const cuuint64_t dim[2] = {(cuuint64_t)columns, (cuuint64_t)rows}, pitch[1] = {(cuuint64_t)columns};
    const cuuint32_t box[2] = {(cuuint32_t)chunk, (cuuint32_t)box_rows}, every[2] = {1, 1};
    return encode && encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void *>(matrix), dim, pitch, box, every,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, ck_tma_swizzle(chunk), CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* As ck_tma_pixels, with `chunk` channels of `pixels` pixels for each load. */
inline bool ck_tma_byte_pixels(CUtensorMap *map, const void *x, int64_t N, int64_t H, int64_t W, int64_t C,
                               const int *low, const int *high, int stride, int chunk, int pixels) {
    static const auto encode =
        reinterpret_cast<decltype(&cuTensorMapEncodeIm2col)>(ck_driver_function("cuTensorMapEncodeIm2col"));
    const cuuint64_t dim[4]   = {(cuuint64_t)C, (cuuint64_t)W, (cuuint64_t)H, (cuuint64_t)N};
    const cuuint64_t pitch[3] = {(cuuint64_t)C, (cuuint64_t)(W * C), (cuuint64_t)(H * W * C)};
    const cuuint32_t every[4] = {1, (cuuint32_t)stride, (cuuint32_t)stride, 1};
    return encode &&
           encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 4, const_cast<void *>(x), dim, pitch, low, high,
                  (cuuint32_t)chunk, (cuuint32_t)pixels, every, CU_TENSOR_MAP_INTERLEAVE_NONE, ck_tma_swizzle(chunk),
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

#endif
