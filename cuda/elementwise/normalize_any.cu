/* cuda/elementwise/normalize_any.cu: normalisation of images with any number of channels, and of samples of 16 bits.
 * Images of three bytes have faster kernels in cuda/elementwise/pointwise.cu. Limiter: memory; a thread reads one
 * sample and writes one value. */
#include "cuda/common/common.cuh"

namespace {

enum { THREADS = 256 };

/* (v/largest - mean)/std as v*scale + shift, as in cuda/elementwise/pointwise.cu. */
struct affine {
    float scale[4], shift[4];
};

template <typename S, typename T>
__global__ void __launch_bounds__(THREADS) normalize(const struct ck_images a, T *y, const affine k) {
    const unsigned C = (unsigned)a.channels, W = (unsigned)a.W, H = (unsigned)a.H, elems = H * W * C;
    for (int64_t n = blockIdx.y; n < a.N; n += gridDim.y) {
        const int4 box   = a.boxes ? reinterpret_cast<const int4 *>(a.boxes)[n] : make_int4(0, 0, 0, 0);
        const S   *image = (const S *)a.images + n * elems;
        for (unsigned i = blockIdx.x * THREADS + threadIdx.x; i < elems; i += gridDim.x * THREADS) {
            const unsigned c = i % C, w = i / C % W, h = i / C / W;
            const unsigned row    = h + (unsigned)box.x; /* a negative value also becomes greater than H */
            const unsigned column = (unsigned)box.y + (box.z ? W - 1 - w : w);
            const float    v      = row < H && column < W ? (float)image[(row * W + column) * C + c] : 0.0f;
            y[n * elems + i]      = ck_round<T>(fmaf(v, k.scale[c], k.shift[c]));
        }
    }
}

template <typename T> cudaError_t run(const struct ck_images *a, void *y, const affine &k, cudaStream_t stream) {
    const dim3 grid(ck_blocks(a->H * a->W * a->channels, THREADS, INT32_MAX), ck_blocks(a->N, 1, 65535));
    if (a->wide)
        normalize<uint16_t, T><<<grid, THREADS, 0, stream>>>(*a, (T *)y, k);
    else
        normalize<uint8_t, T><<<grid, THREADS, 0, stream>>>(*a, (T *)y, k);
    return cudaGetLastError();
}

} // namespace

cudaError_t ck_normalize_any(const struct ck_images *a, enum ck_type type, void *y, cudaStream_t stream) {
    affine k = {};
    if (a->channels < 1 || a->channels > 4) return cudaErrorInvalidValue;
    for (int c = 0; c < a->channels; c++) {
        k.scale[c] = (float)(1 / ((a->wide ? 65535 : 255) * (double)a->std[c]));
        k.shift[c] = (float)(-(double)a->mean[c] / (double)a->std[c]);
    }
    CK_BY_TYPE(type, return run<T>(a, y, k, stream));
}
