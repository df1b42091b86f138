/* cuda/elementwise/space_to_depth.cu: the space-to-depth stem: the input normalised into 16 channels (12 of 2x2 image
 * pixels, 4 of zeros), and the 7x7 filter as the 4x4 filter for that input.
 *
 * ck_normalize_s2d: 3/4 byte read and 2 or 4 written an element of y. Limiter: memory. The filters have some thousand
 * elements; their limiter is the launch. */
#include "cuda/common/common.cuh"

namespace {

enum {
    THREADS  = 256,
    DEEP     = 16,
    SIDE     = 4 /* of the filter */,
    OLD_SIDE = 7,
    COLOURS  = 3,
    MORE     = 3 /* extra rows and columns */
};

/* (v/255 - mean)/std = v*scale + shift. */
struct affine {
    float scale[COLOURS], shift[COLOURS];
};

/* A thread computes a pixel of y. Neighbouring threads read the same bytes, which come from L1. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    normalize(const uint8_t *images, const int4 *boxes, T *y, int64_t N, unsigned H, unsigned W, const affine k) {
    constexpr int  LANES  = ck_vector_elems<T>();
    const unsigned across = W / 2 + MORE, pixels = (H / 2 + MORE) * across;
    ck_begin_after_last();
    for (int64_t n = blockIdx.y; n < N; n += gridDim.y) {
        const int4     box   = boxes ? boxes[n] : make_int4(0, 0, 0, 0); /* dy, dx, flip, 0 */
        const uint8_t *image = images + n * H * W * COLOURS;
        for (unsigned at = blockIdx.x * THREADS + threadIdx.x; at < pixels; at += gridDim.x * THREADS) {
            const unsigned i = at / across, j = at - i * across;
            uint8_t        byte[4][COLOURS];
            float          out[DEEP] = {};
            unsigned       inside    = 0;
#pragma unroll
            for (unsigned tap = 0; tap < 4; tap++) {
                const unsigned h   = 2 * i + tap / 2 - 4,
                               w   = 2 * j + tap % 2 - 4; /* a negative value also becomes greater than the image */
                const unsigned row = h + (unsigned)box.x, column = (unsigned)box.y + (box.z ? W - 1 - w : w);
                const bool     there = h < H && w < W, seen = there && row < H && column < W;
                const uint8_t *from = image + (seen ? (row * W + column) * COLOURS : 0u);
                inside |= there ? 1u << tap : 0u;
#pragma unroll
                for (int c = 0; c < COLOURS; c++) byte[tap][c] = seen ? from[c] : (uint8_t)0;
            }
#pragma unroll
            for (int e = 0; e < 4 * COLOURS; e++) {
                const int tap = e / COLOURS, c = e % COLOURS;
                out[e] = inside >> tap & 1u ? fmaf((float)byte[tap][c], k.scale[c], k.shift[c]) : 0.0f;
            }
            T *to = y + (n * pixels + at) * DEEP;
#pragma unroll
            for (int e = 0; e < DEEP; e += LANES) ck_store(to + e, 0, ck_pack<T>(out + e));
        }
    }
}

template <typename T>
cudaError_t normalize_run(const uint8_t *images, const int32_t *boxes, void *y, int64_t N, int64_t H, int64_t W,
                          affine k, cudaStream_t stream) {
    const dim3 grid(ck_blocks((H / 2 + MORE) * (W / 2 + MORE), THREADS, INT32_MAX), ck_blocks(N, 1, 65535));
    return ck_launch(normalize<T>, grid, THREADS, 0, stream, images, reinterpret_cast<const int4 *>(boxes), (T *)y, N,
                     (unsigned)H, (unsigned)W, k);
}

/* ---- the filter: w16[k][R][S][(dh*2+dw)*3+c] = w[k][2R+dh-1][2S+dw-1][c], 0 where w has no such element ---- */

template <typename T> __global__ void __launch_bounds__(THREADS) filter(const T *w, T *y, int64_t elems) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= elems) return;
    const int     channel = (int)(i % DEEP), S = (int)(i / DEEP % SIDE), R = (int)(i / (DEEP * SIDE) % SIDE);
    const int64_t k   = i / (DEEP * SIDE * SIDE);
    const int     tap = channel / COLOURS, r = 2 * R + tap / 2 - 1, s = 2 * S + tap % 2 - 1;
    const bool    there = tap < 4 && r >= 0 && s >= 0; /* never greater than 6 */
    y[i] = there ? w[((k * OLD_SIDE + r) * OLD_SIDE + s) * COLOURS + channel % COLOURS] : ck_round<T>(0.0f);
}

__global__ void __launch_bounds__(THREADS) filter_grad(const float *dy, float *dw, int64_t elems, bool accumulate) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= elems) return;
    const int c = (int)(i % COLOURS), s = (int)(i / COLOURS % OLD_SIDE) + 1,
              r     = (int)(i / (COLOURS * OLD_SIDE) % OLD_SIDE) + 1;
    const int64_t k = i / (COLOURS * OLD_SIDE * OLD_SIDE);
    const float   v = dy[((k * SIDE + r / 2) * SIDE + s / 2) * DEEP + (r % 2 * 2 + s % 2) * COLOURS + c];
    dw[i]           = accumulate ? dw[i] + v : v;
}

template <typename T> cudaError_t filter_run(const void *w, void *y, int64_t K, cudaStream_t stream) {
    const int64_t elems = K * SIDE * SIDE * DEEP;
    filter<T><<<ck_blocks(elems, THREADS, INT32_MAX), THREADS, 0, stream>>>((const T *)w, (T *)y, elems);
    return cudaGetLastError();
}

} // namespace

cudaError_t ck_normalize_s2d(const uint8_t *images, const int32_t *boxes, enum ck_type type, void *y, int64_t N,
                             int64_t H, int64_t W, const float mean[3], const float std[3], cudaStream_t stream) {
    affine k;
    for (int c = 0; c < COLOURS; c++) {
        k.scale[c] = (float)(1 / (255 * (double)std[c]));
        k.shift[c] = (float)(-(double)mean[c] / (double)std[c]);
    }
    if (H % 2 != 0 || W % 2 != 0) return cudaErrorInvalidValue;
    CK_BY_TYPE(type, return normalize_run<T>(images, boxes, y, N, H, W, k, stream));
}

cudaError_t ck_s2d_filter(enum ck_type type, const void *w, void *y, int64_t K, cudaStream_t stream) {
    CK_BY_TYPE(type, return filter_run<T>(w, y, K, stream));
}

cudaError_t ck_s2d_filter_grad(const float *dy, float *dw, int64_t K, bool accumulate, cudaStream_t stream) {
    const int64_t elems = K * OLD_SIDE * OLD_SIDE * COLOURS;
    filter_grad<<<ck_blocks(elems, THREADS, INT32_MAX), THREADS, 0, stream>>>(dy, dw, elems, accumulate);
    return cudaGetLastError();
}
