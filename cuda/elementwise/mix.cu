/* cuda/elementwise/mix.cu: random crop, flip, erasing, mixup, cutmix of the images of a batch, in bytes or samples of
 * 16 bits. Results are bitwise identical to device/cpu/reference/ref_mix.c. Limiter: memory; 3 or 6 bytes read and 3
 * written a pixel. Byte accesses reach only a part of the memory's rate. A batch of 256 at 224 px: 0.1 % of a step. */
#include "cuda/common/common.cuh"

namespace {

enum { THREADS = 256 };

__device__ __forceinline__ bool inside(const int32_t *rect, int h, int w) {
    return h >= rect[0] && h < rect[2] && w >= rect[1] && w < rect[3];
}

template <int COLOURS> struct pixel { int of[COLOURS]; };

/* Products of 16-bit samples and weights need 64 bits. */
template <typename S> struct product_of { using type = int; };
template <> struct product_of<uint16_t> { using type = int64_t; };

/* Pixel (h, w) of image n after its box and with its rectangle erased. */
template <int COLOURS, typename S>
__device__ __forceinline__ pixel<COLOURS> moved(const struct ck_mix &a, int64_t n, int h, int w) {
    const int4     box = reinterpret_cast<const int4 *>(a.boxes)[n]; /* dy, dx, flip, 0 */
    pixel<COLOURS> p   = {};
    if (inside(a.mixes + CK_MIX_NUMBERS * n + CK_MIX_ERASE, h, w)) {
#pragma unroll
        for (int c = 0; c < COLOURS; c++) p.of[c] = a.fill[c];
        return p;
    }
    const int64_t row = (int64_t)h + box.x, column = (int64_t)(box.z ? (int)a.W - 1 - w : w) + box.y;
    if (row < 0 || row >= a.H || column < 0 || column >= a.W) return p;
    const S *from = (const S *)a.images + ((n * a.H + row) * a.W + column) * COLOURS;
#pragma unroll
    for (int c = 0; c < COLOURS; c++) p.of[c] = from[c];
    return p;
}

template <int COLOURS, typename S> __global__ void __launch_bounds__(THREADS) mix(const struct ck_mix a) {
    using product    = typename product_of<S>::type;
    const int pixels = (int)(a.H * a.W);
    for (int64_t n = blockIdx.y; n < a.N; n += gridDim.y) {
        const int32_t *record = a.mixes + CK_MIX_NUMBERS * n;
        const product  weight = record[CK_MIX_WEIGHT];
        const int64_t  partner =
            record[CK_MIX_PARTNER] >= 0 && record[CK_MIX_PARTNER] < a.N ? record[CK_MIX_PARTNER] : n;
        for (int at = (int)(blockIdx.x * THREADS + threadIdx.x); at < pixels; at += (int)(gridDim.x * THREADS)) {
            const int  h = at / (int)a.W, w = at - h * (int)a.W;
            const bool cut   = inside(record + CK_MIX_CUT, h, w);
            const auto own   = moved<COLOURS, S>(a, cut ? partner : n, h, w);
            const auto other = cut || weight == CK_MIX_ONE ? own : moved<COLOURS, S>(a, partner, h, w);
            S         *to    = (S *)a.y + (n * pixels + at) * COLOURS;
#pragma unroll
            for (int c = 0; c < COLOURS; c++)
                to[c] = (S)((weight * own.of[c] + (CK_MIX_ONE - weight) * other.of[c] + CK_MIX_ONE / 2) / CK_MIX_ONE);
        }
    }
}

template <int COLOURS> void launch(const struct ck_mix *a, cudaStream_t stream) {
    const dim3 grid(ck_blocks(a->H * a->W, THREADS, 65535), ck_blocks(a->N, 1, 65535));
    if (a->wide)
        mix<COLOURS, uint16_t><<<grid, THREADS, 0, stream>>>(*a);
    else
        mix<COLOURS, uint8_t><<<grid, THREADS, 0, stream>>>(*a);
}

} // namespace

cudaError_t ck_mix(const struct ck_mix *a, cudaStream_t stream) {
    switch (a->channels) {
    case 1: launch<1>(a, stream); break;
    case 3: launch<3>(a, stream); break;
    case 4: launch<4>(a, stream); break;
    default: return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}
