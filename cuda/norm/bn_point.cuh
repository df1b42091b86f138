/* cuda/norm/bn_point.cuh: one kernel for all ops that map pixels*C elements to as many with per-channel coefficients.
 *
 * Vector v of a tensor begins at channel v*N % C (N elements a vector), so the channels repeat every C/gcd(C,N)
 * vectors. The grid's stride is a multiple of that period: a thread has the same N channels in all its vectors and
 * reads their coefficients once, for any C. The first threads process the last elems % N elements one by one.
 *
 * Limiter: memory, (INPUTS + 1) * sizeof(T) bytes an element. A thread has UNROLL * INPUTS loads of 16 bytes in flight.
 * The RESIDENT blocks of a multiprocessor have 64 KiB or more in flight, twice as much as the latency requires at 4
 * TB/s. */
#ifndef CK_BN_POINT_CUH
#define CK_BN_POINT_CUH

#include "cuda/common/common.cuh"

enum { POINT_THREADS = 256, POINT_WAVES = 2 /* waves of resident blocks: slow multiprocessors get less work */ };

/* A map is a struct with these members:
 *   Type, INPUTS, UNROLL, RESIDENT      element type, number of tensors read, vectors at a time, blocks a
 *   multiprocessor
 *   READS_BITS, WRITES_BITS             whether there is a bit mask; then C is a multiple of 8
 *   const Type *in[INPUTS]; Type *out;  may be the same memory
 *   const uint8_t *in_bits; uint8_t *out_bits                          bit masks that are read or written
 *   template <int N> struct Params                                     in registers
 *   template <int N> void load_params(Params<N> *, c, C)               parameters of the channels from c on, modulo C
 *   template <int N> void apply(const Params<N> &, const float in[INPUTS][N], unsigned bits, float out[N])
 * Written bits are those of out > 0. */

/* Entries c to c + N - 1 of a vector of per-channel values, modulo C. */
template <int N> __device__ __forceinline__ void point_channels(const float *row, int64_t c, int64_t C, float out[N]) {
    if constexpr (N % 4 == 0) {
        if (C % N == 0) { /* then c is a multiple of N, and every row of C floats begins at a multiple of 16 bytes */
#pragma unroll
            for (int i = 0; i < N; i += 4) {
                const float4 four = *reinterpret_cast<const float4 *>(row + c + i);
                out[i]            = four.x;
                out[i + 1]        = four.y;
                out[i + 2]        = four.z;
                out[i + 3]        = four.w;
            }
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        out[i] = row[c];
        c      = c + 1 < C ? c + 1 : 0;
    }
}

template <typename Map> struct point_words {
    uint4    in[Map::INPUTS];
    unsigned bits;
};

template <int N> __device__ __forceinline__ unsigned point_above(const float (&y)[N]) {
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < N; i++) bits |= y[i] > 0.0f ? 1u << i : 0u;
    return bits;
}

template <typename Map, int N>
__device__ __forceinline__ void point_vector(const Map &map, const typename Map::template Params<N> &params,
                                             const point_words<Map> &raw, int64_t v) {
    using T = typename Map::Type;
    float in[Map::INPUTS][N], out[N];
#pragma unroll
    for (int s = 0; s < Map::INPUTS; s++) ck_unpack<T>(raw.in[s], in[s]);
    map.template apply<N>(params, in, raw.bits, out);
    const uint4 packed = ck_pack<T>(out);
    ck_store(map.out, v, packed);
    if constexpr (Map::WRITES_BITS) {
        ck_unpack<T>(packed, out); /* a value too small for the type is 0 */
        ck_store_bits<N>(map.out_bits, v, point_above<N>(out));
    }
}

template <typename Map> __device__ __forceinline__ void point_element(const Map &map, int64_t i, int64_t C) {
    using T = typename Map::Type;
    typename Map::template Params<1> params;
    float                            in[Map::INPUTS][1], out[1];
    map.template load_params<1>(&params, i % C, C);
#pragma unroll
    for (int s = 0; s < Map::INPUTS; s++) in[s][0] = ck_float(map.in[s][i]);
    map.template apply<1>(params, in, 0u, out);
    map.out[i] = ck_round<T>(out[0]);
}

/* Loads up to UNROLL vectors: v, v - stride, ...; none before `first`. */
template <typename Map>
__device__ __forceinline__ void point_load(const Map &map, point_words<Map> (&raw)[Map::UNROLL], int64_t v,
                                           int64_t stride, int64_t first) {
#pragma unroll
    for (int u = 0; u < Map::UNROLL; u++)
        if (v - u * stride >= first) {
#pragma unroll
            for (int s = 0; s < Map::INPUTS; s++) raw[u].in[s] = ck_load(map.in[s], v - u * stride);
            if constexpr (Map::READS_BITS)
                raw[u].bits = ck_load_bits<ck_vector_elems<typename Map::Type>()>(map.in_bits, v - u * stride);
            else
                raw[u].bits = 0;
        }
}

/* `stride`: in vectors, a multiple of the channels' period and at least the number of threads. The first loads are in
 * progress while the coefficients are loaded. From the end to the begin: the kernel before has written its last part
 * last, and the next one begins at the begin, so both parts are still in the L2 cache. */
template <typename Map>
__global__ void __launch_bounds__(POINT_THREADS, Map::RESIDENT)
    point_kernel(Map map, int64_t elems, int64_t C, int64_t stride) {
    constexpr int N = ck_vector_elems<typename Map::Type>(), U = Map::UNROLL;
    const int64_t vectors = elems / N, first = (int64_t)blockIdx.x * POINT_THREADS + threadIdx.x;
    ck_begin_after_last();
    if constexpr (!Map::READS_BITS && !Map::WRITES_BITS) /* with bit masks there are whole vectors only */
        if (first < elems % N) point_element(map, vectors * N + first, C);
    if (first >= vectors) return;
    int64_t          v = first + (vectors - 1 - first) / stride * stride;
    point_words<Map> raw[U];
    point_load(map, raw, v, stride, first);
    typename Map::template Params<N> params;
    map.template load_params<N>(&params, first * N % C, C);
    while (true) {
#pragma unroll
        for (int u = 0; u < U; u++)
            if (v - u * stride >= first) point_vector<Map, N>(map, params, raw[u], v - u * stride);
        v -= U * stride;
        if (v < first) return;
        point_load(map, raw, v, stride, first);
    }
}

template <typename Map>
static cudaError_t point_launch(const Map &map, int64_t pixels, int64_t C, int multiprocessors, cudaStream_t stream) {
    constexpr int64_t N   = ck_vector_elems<typename Map::Type>();
    const int64_t vectors = pixels * C / N, period = C / ck_gcd(C, N), step = period / ck_gcd(period, POINT_THREADS);
    const int64_t most   = (int64_t)multiprocessors * Map::RESIDENT * POINT_WAVES;
    const int64_t wanted = ck_blocks(vectors, (int64_t)POINT_THREADS * Map::UNROLL, most);
    /* number of blocks whose threads are a multiple of the period */
    const int64_t  strided = (wanted + step - 1) / step * step;
    const int64_t  stride  = strided * POINT_THREADS;
    const unsigned blocks  = ck_blocks(vectors, POINT_THREADS, strided); /* no block is past the end */
    return ck_launch(point_kernel<Map>, blocks, POINT_THREADS, 0, stream, map, pixels * C, C, stride);
}

#endif
