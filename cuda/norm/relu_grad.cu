/* cuda/norm/relu_grad.cu: the gradient at the end of a residual block: adds the gradients of both branches, applies the
 * ReLU mask, and computes the sums of the BNs in front of the addition while the gradient is in registers.
 *
 * Bytes an element (times 2 in 16 bits, times 4 in f32): 2, plus 1 for each of add and the BNs' inputs; the mask adds 1
 * as an activation, 1/8 byte as bits. Limiter: memory. */
#include "cuda/norm/bn_point.cuh"
#include "cuda/norm/bn_sums.cuh"

template <ck_mask MASK, int N> static __device__ __forceinline__ bool alive(const float (&y)[N], unsigned bits, int i) {
    if constexpr (MASK == CK_MASK_BITS)
        return bits >> i & 1u;
    else
        return y[i] > 0.0f;
}

/* ---- without sums: a map ---- */

template <typename T, ck_mask MASK, bool ADD> struct relu_grad_map {
    using Type = T;
    enum { Y = 1 + ADD, INPUTS = Y + (MASK == CK_MASK_Y), UNROLL = INPUTS == 1 ? 4 : 2, RESIDENT = 4 };
    static constexpr bool READS_BITS = MASK == CK_MASK_BITS, WRITES_BITS = false;
    const T              *in[INPUTS]; /* dy, add, y */
    T                    *out;
    const uint8_t        *in_bits;
    template <int N> struct Params {};
    template <int N> __device__ __forceinline__ void load_params(Params<N> *, int64_t, int64_t) const {}
    template <int N>
    __device__ __forceinline__ void apply(const Params<N> &, const float (&in)[INPUTS][N], unsigned bits,
                                          float (&dx)[N]) const {
#pragma unroll
        for (int i = 0; i < N; i++)
            dx[i] = alive<MASK>(in[MASK == CK_MASK_Y ? Y : 0], bits, i) ? in[0][i] + (ADD ? in[ADD][i] : 0.0f) : 0.0f;
    }
};

/* ---- with sums ---- */

/* Sums: dx, then dx*(bn_x - mean) of each BN; the end multiplies by rstd. */
template <typename T, ck_mask MASK, bool ADD, int BNS> struct relu_grad_terms {
    using Type = T;
    enum {
        LANES    = ck_vector_elems<T>(),
        X        = 1,
        A        = X + BNS,
        Y        = A + ADD,
        INPUTS   = Y + (MASK == CK_MASK_Y),
        SUMS     = 1 + BNS,
        BATCH    = INPUTS > (LANES == 8 ? 3 : 4) ? 2 : 4,
        RESIDENT = 2
    };
    static constexpr bool READS_BITS = MASK == CK_MASK_BITS, WRITES = true;
    const T              *in[INPUTS]; /* dy, bn_x of each BN, add, y */
    const uint8_t        *bits;
    T                    *out;
    const float          *mean_rstd[BNS];
    float                *grad_sums[BNS];
    struct Params {
        float mean[BNS][LANES];
    };
    __device__ __forceinline__ void load_params(Params *k, int64_t c, int64_t C) const {
#pragma unroll
        for (int b = 0; b < BNS; b++) point_channels<LANES>(mean_rstd[b], c, C, k->mean[b]);
    }
    __device__ __forceinline__ void add(const Params &k, const float (&in)[INPUTS][LANES], unsigned set,
                                        float (&acc)[SUMS][LANES], float (&dx)[LANES]) const {
#pragma unroll
        for (int i = 0; i < LANES; i++) {
            dx[i] = in[0][i];
            if constexpr (ADD) dx[i] += in[A][i];
            dx[i] = alive<MASK>(in[MASK == CK_MASK_Y ? Y : 0], set, i) ? dx[i] : 0.0f;
        }
        if constexpr (ADD) { /* the stored value; without add it is rounded already */
            const uint4 stored = ck_pack<T>(dx);
            ck_unpack<T>(stored, dx);
        }
#pragma unroll
        for (int i = 0; i < LANES; i++) {
            acc[0][i] += dx[i];
#pragma unroll
            for (int b = 0; b < BNS; b++) acc[1 + b][i] = fmaf(dx[i], in[X + b][i] - k.mean[b][i], acc[1 + b][i]);
        }
    }
    __device__ __forceinline__ void put(int which, int64_t c, int64_t C, double sum) const {
#pragma unroll
        for (int b = 0; b < BNS; b++) {
            if (which == 0) grad_sums[b][c] = (float)sum;
            if (which == 1 + b) grad_sums[b][C + c] = (float)(sum * (double)mean_rstd[b][C + c]);
        }
    }
};

/* ---- launchers ---- */

struct relu_grad_job {
    const struct ck_relu_grad                                *a;
    void                                                     *workspace;
    int                                                       multiprocessors;
    cudaStream_t                                              stream;
    template <typename T, ck_mask MASK, bool ADD> cudaError_t map() const {
        using Map = relu_grad_map<T, MASK, ADD>;
        Map map   = {{(const T *)a->dy}, (T *)a->dx, (const uint8_t *)a->y};
        if constexpr (ADD) map.in[ADD] = (const T *)a->add;
        if constexpr (MASK == CK_MASK_Y) map.in[Map::Y] = (const T *)a->y;
        return point_launch(map, a->pixels, a->channels, multiprocessors, stream);
    }
    template <typename T, ck_mask MASK, bool ADD, int BNS> cudaError_t sums() const {
        using Terms = relu_grad_terms<T, MASK, ADD, BNS>;
        Terms terms = {{(const T *)a->dy}, (const uint8_t *)a->y, (T *)a->dx, {}, {}};
        for (int b = 0; b < BNS; b++) {
            terms.in[Terms::X + b] = (const T *)a->bn_x[b];
            terms.mean_rstd[b]     = a->mean_rstd[b];
            terms.grad_sums[b]     = a->grad_sums[b];
        }
        if constexpr (ADD) terms.in[Terms::A] = (const T *)a->add;
        if constexpr (MASK == CK_MASK_Y) terms.in[Terms::Y] = (const T *)a->y;
        return sums_launch(terms, a->pixels, a->channels, workspace, multiprocessors, stream);
    }
    template <typename T, ck_mask MASK, bool ADD> cudaError_t by_bns() const {
        return a->bns == 0 ? map<T, MASK, ADD>() : a->bns == 1 ? sums<T, MASK, ADD, 1>() : sums<T, MASK, ADD, 2>();
    }
    template <typename T> cudaError_t run() const {
        if (a->by == CK_MASK_BITS) return a->add ? by_bns<T, CK_MASK_BITS, true>() : by_bns<T, CK_MASK_BITS, false>();
        return a->add ? by_bns<T, CK_MASK_Y, true>() : by_bns<T, CK_MASK_Y, false>();
    }
};

cudaError_t ck_relu_grad(const struct ck_relu_grad *a, void *workspace, int multiprocessors, cudaStream_t stream) {
    const bool whole = a->channels % 8 == 0;
    if ((a->by != CK_MASK_Y && a->by != CK_MASK_BITS) || a->bns < 0 || a->bns > 2) return cudaErrorInvalidValue;
    if (!whole && (a->by == CK_MASK_BITS || a->bns > 0)) return cudaErrorInvalidValue;
    const relu_grad_job job = {a, workspace, multiprocessors, stream};
    CK_BY_TYPE(a->type, return job.run<T>());
}

/* The same for all masks, with and without add: their kernels have the same number of sums and of resident blocks. */
template <typename T> static size_t bytes_by_bns(const struct ck_relu_grad *a, int multiprocessors) {
    if (a->bns == 1) return sums_bytes<relu_grad_terms<T, CK_MASK_Y, true, 1>>(a->pixels, a->channels, multiprocessors);
    return sums_bytes<relu_grad_terms<T, CK_MASK_Y, true, 2>>(a->pixels, a->channels, multiprocessors);
}
size_t ck_relu_grad_workspace(const struct ck_relu_grad *a, int multiprocessors) {
    if (a->bns > 0) CK_BY_TYPE(a->type, return bytes_by_bns<T>(a, multiprocessors));
    return 0;
}
