/* cuda/norm/bn_relu_grad.cu: masks a gradient by the ReLU behind a BN, in place, and computes that BN's sums. It runs
 * behind a convolution's data gradient when the convolution's kernel does not sum in a fixed order.
 *
 * Bytes an element (times 2 in 16 bits, times 4 in f32): 3. Limiter: memory. */
#include "cuda/norm/bn_point.cuh"
#include "cuda/norm/bn_sums.cuh"

namespace {

/* Sums: g, then g*(x - mean); the end multiplies by rstd. */
template <typename T> struct relu_mask_terms {
    using Type = T;
    enum { LANES = ck_vector_elems<T>(), INPUTS = 2, SUMS = 2, BATCH = 4, RESIDENT = 2 };
    static constexpr bool READS_BITS = false, WRITES = true;
    const T              *in[INPUTS]; /* the gradient; x */
    const uint8_t        *bits;
    T                    *out;
    const float          *mean_rstd, *gamma, *beta;
    float                *grad_sums;
    struct Params {
        float mean[LANES], scale[LANES], beta[LANES];
    };
    __device__ __forceinline__ void load_params(Params *k, int64_t c, int64_t C) const {
        float rstd[LANES];
        point_channels<LANES>(mean_rstd, c, C, k->mean);
        point_channels<LANES>(mean_rstd + C, c, C, rstd);
        point_channels<LANES>(gamma, c, C, k->scale);
        point_channels<LANES>(beta, c, C, k->beta);
#pragma unroll
        for (int i = 0; i < LANES; i++) k->scale[i] *= rstd[i];
    }
    __device__ __forceinline__ void add(const Params &k, const float (&v)[INPUTS][LANES], unsigned,
                                        float (&acc)[SUMS][LANES], float (&g)[LANES]) const {
#pragma unroll
        for (int i = 0; i < LANES; i++) {
            const float d = v[1][i] - k.mean[i];
            g[i]          = fmaf(d, k.scale[i], k.beta[i]) > 0.0f ? v[0][i] : 0.0f;
            acc[0][i] += g[i];
            acc[1][i] = fmaf(g[i], d, acc[1][i]);
        }
    }
    __device__ __forceinline__ void put(int which, int64_t c, int64_t C, double sum) const {
        grad_sums[which * C + c] = (float)(which ? sum * (double)mean_rstd[C + c] : sum);
    }
};

template <typename T>
cudaError_t run(const struct ck_bn_relu_grad *a, void *workspace, int multiprocessors, cudaStream_t stream) {
    const relu_mask_terms<T> terms = {
        {(const T *)a->g, (const T *)a->x}, nullptr, (T *)a->g, a->mean_rstd, a->gamma, a->beta, a->grad_sums};
    return sums_launch(terms, a->pixels, a->channels, workspace, multiprocessors, stream);
}
template <typename T> size_t bytes(int64_t pixels, int64_t channels, int multiprocessors) {
    return sums_bytes<relu_mask_terms<T>>(pixels, channels, multiprocessors);
}

} // namespace

size_t ck_bn_relu_grad_workspace(enum ck_type type, int64_t pixels, int64_t channels, int multiprocessors) {
    CK_BY_TYPE(type, return bytes<T>(pixels, channels, multiprocessors));
}

cudaError_t ck_bn_relu_grad(const struct ck_bn_relu_grad *args, void *workspace, int multiprocessors,
                            cudaStream_t stream) {
    if (args->channels % 8 != 0) return cudaErrorInvalidValue;
    CK_BY_TYPE(args->type, return run<T>(args, workspace, multiprocessors, stream));
}
