/* cuda/norm/bn_apply.cu: applies batch normalisation: y = act(x*scale + bias + add), and the gradient through a BN with
 * fixed statistics. cuda/norm/bn_point.cuh describes how channels are assigned to threads, and the limiter.
 *
 * Bytes an element (times 2 in 16 bits, times 4 in f32): bn_apply 2, with add 3; channel_scale 2. A mask adds 1/8
 * byte. */
#include "cuda/norm/bn_point.cuh"

template <typename T, bool RELU, bool MASK> struct apply_map {
    using Type = T;
    enum { INPUTS = 1, UNROLL = 4, RESIDENT = 4 };
    static constexpr bool READS_BITS = false, WRITES_BITS = MASK;
    const T              *in[1];
    T                    *out;
    uint8_t              *out_bits;
    const float          *scale_bias;
    template <int N> struct Params { float scale[N], bias[N]; };
    template <int N> __device__ __forceinline__ void load_params(Params<N> *k, int64_t c, int64_t C) const {
        point_channels<N>(scale_bias, c, C, k->scale);
        point_channels<N>(scale_bias + C, c, C, k->bias);
    }
    template <int N>
    __device__ __forceinline__ void apply(const Params<N> &k, const float (&in)[1][N], unsigned, float (&y)[N]) const {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float v = fmaf(in[0][i], k.scale[i], k.bias[i]);
            y[i]          = RELU ? ck_relu(v) : v;
        }
    }
};

/* `add` is used unchanged. */
template <typename T, bool RELU, bool MASK> struct apply_add_map {
    using Type = T;
    enum { INPUTS = 2, UNROLL = 2, RESIDENT = 4 };
    static constexpr bool READS_BITS = false, WRITES_BITS = MASK;
    const T              *in[2]; /* x, add */
    T                    *out;
    uint8_t              *out_bits;
    const float          *scale_bias;
    template <int N> struct Params { float scale[N], bias[N]; };
    template <int N> __device__ __forceinline__ void load_params(Params<N> *k, int64_t c, int64_t C) const {
        point_channels<N>(scale_bias, c, C, k->scale);
        point_channels<N>(scale_bias + C, c, C, k->bias);
    }
    template <int N>
    __device__ __forceinline__ void apply(const Params<N> &k, const float (&in)[2][N], unsigned, float (&y)[N]) const {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float v = fmaf(in[0][i], k.scale[i], k.bias[i]) + in[1][i];
            y[i]          = RELU ? ck_relu(v) : v;
        }
    }
};

/* `add` has a BN of its own; the two biases are added once. */
template <typename T, bool RELU, bool MASK> struct apply_pair_map {
    using Type = T;
    enum { INPUTS = 2, UNROLL = 2, RESIDENT = 4 };
    static constexpr bool READS_BITS = false, WRITES_BITS = MASK;
    const T              *in[2];
    T                    *out;
    uint8_t              *out_bits;
    const float          *scale_bias, *add_scale_bias;
    template <int N> struct Params { float scale[N], add_scale[N], bias[N]; };
    template <int N> __device__ __forceinline__ void load_params(Params<N> *k, int64_t c, int64_t C) const {
        float add_bias[N];
        point_channels<N>(scale_bias, c, C, k->scale);
        point_channels<N>(scale_bias + C, c, C, k->bias);
        point_channels<N>(add_scale_bias, c, C, k->add_scale);
        point_channels<N>(add_scale_bias + C, c, C, add_bias);
#pragma unroll
        for (int i = 0; i < N; i++) k->bias[i] += add_bias[i];
    }
    template <int N>
    __device__ __forceinline__ void apply(const Params<N> &k, const float (&in)[2][N], unsigned, float (&y)[N]) const {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float v = fmaf(in[0][i], k.scale[i], fmaf(in[1][i], k.add_scale[i], k.bias[i]));
            y[i]          = RELU ? ck_relu(v) : v;
        }
    }
};

template <typename T> struct scale_map {
    using Type = T;
    enum { INPUTS = 1, UNROLL = 4, RESIDENT = 4 };
    static constexpr bool READS_BITS = false, WRITES_BITS = false;
    const T              *in[1];
    T                    *out;
    const float          *factor;
    template <int N> struct Params { float scale[N]; };
    template <int N> __device__ __forceinline__ void load_params(Params<N> *k, int64_t c, int64_t C) const {
        point_channels<N>(factor, c, C, k->scale);
    }
    template <int N>
    __device__ __forceinline__ void apply(const Params<N> &k, const float (&in)[1][N], unsigned, float (&dx)[N]) const {
#pragma unroll
        for (int i = 0; i < N; i++) dx[i] = in[0][i] * k.scale[i];
    }
};

/* ---- launchers ---- */

template <typename T, bool RELU, bool MASK>
static cudaError_t apply_launch(const struct ck_bn_apply *a, int multiprocessors, cudaStream_t stream) {
    const T *x = (const T *)a->x, *add = (const T *)a->add;
    T       *y = (T *)a->y;
    if (!add) {
        const apply_map<T, RELU, MASK> map = {{x}, y, a->mask, a->scale_bias};
        return point_launch(map, a->pixels, a->channels, multiprocessors, stream);
    }
    if (!a->add_scale_bias) {
        const apply_add_map<T, RELU, MASK> map = {{x, add}, y, a->mask, a->scale_bias};
        return point_launch(map, a->pixels, a->channels, multiprocessors, stream);
    }
    const apply_pair_map<T, RELU, MASK> map = {{x, add}, y, a->mask, a->scale_bias, a->add_scale_bias};
    return point_launch(map, a->pixels, a->channels, multiprocessors, stream);
}

cudaError_t ck_bn_apply(const struct ck_bn_apply *a, int multiprocessors, cudaStream_t stream) {
    if (a->mask && (!a->relu || a->channels % 8 != 0)) return cudaErrorInvalidValue;
    CK_BY_TYPE(a->type, return a->mask   ? apply_launch<T, true, true>(a, multiprocessors, stream)
                               : a->relu ? apply_launch<T, true, false>(a, multiprocessors, stream)
                                         : apply_launch<T, false, false>(a, multiprocessors, stream));
}

template <typename T>
static cudaError_t scale_launch(const void *dy, const float *scale_bias, void *dx, int64_t pixels, int64_t channels,
                                int multiprocessors, cudaStream_t stream) {
    const scale_map<T> map = {{(const T *)dy}, (T *)dx, scale_bias};
    return point_launch(map, pixels, channels, multiprocessors, stream);
}

cudaError_t ck_channel_scale(enum ck_type type, const void *dy, const float *scale_bias, void *dx, int64_t pixels,
                             int64_t channels, int multiprocessors, cudaStream_t stream) {
    CK_BY_TYPE(type, return scale_launch<T>(dy, scale_bias, dx, pixels, channels, multiprocessors, stream));
}
