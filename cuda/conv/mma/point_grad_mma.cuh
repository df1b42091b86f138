/* cuda/conv/mma/point_grad_mma.cuh: the division of the work of cuda/conv/mma/point_grad_mma.cu and the loads. */
#ifndef CK_POINT_GRAD_MMA_CUH
#define CK_POINT_GRAD_MMA_CUH

#include "cuda/common/fused_conv.h"
#include "cuda/common/mma.cuh"

namespace {

enum mode { INNER, BLOCK, PLAIN }; /* as in cuda/common/fused_conv.h */

/* KS, CS: channels of dy and of the slice of x. TILE: pixels. COPIES: how many of dy_x and g of the next
 * tile wait in shared memory, for lack of registers; if any, add and bn_x do, too.
 * WARPS: of a block; two blocks of 8 warps share a multiprocessor. EARLY: the loads of the next tile's g and dy_x start
 * before all products, else between those of dw and of dx. */
template <int KS, int CS, int MODE_, int TILE_, int COPIES_ = 0, int WARPS_ = 16, bool EARLY_ = false> struct plan {
    static constexpr int K = KS, C = CS, MODE = MODE_, TILE = TILE_, COPIES = COPIES_, WARPS = WARPS_,
                         THREADS = WARPS * 32, BLOCKS = 16 / WARPS;
    static constexpr bool EARLY = EARLY_;
    /* a thread has the same 8 channels of dy and the same CE of x in all rows: vectors of a row, rows and vectors at a
     * time */
    static constexpr int CE = TILE * C >= THREADS * 8 ? 8 : 4;
    static constexpr int KV = K / 8, CV = C / CE, K_ROWS = THREADS / KV, C_ROWS = THREADS / CV;
    static constexpr int KN = TILE / K_ROWS, CN = TILE / C_ROWS;
    static_assert(KN * K_ROWS == TILE && CN * C_ROWS == TILE, "all threads load");
    /* warps of dgrad: parts of the sum over K, rows and columns of v; of wgrad: rows and columns of dw */
    static constexpr int V_DOWN = TILE / 16, V_PARTS = V_DOWN * (C / 16) < WARPS ? 2 : 1,
                         V_ACROSS = WARPS / V_PARTS / V_DOWN, V_COLUMNS = C / V_ACROSS;
    static constexpr int W_DOWN = K >= 256 ? 8 : WARPS / 4, W_ACROSS = WARPS / W_DOWN, W_ROWS = K / W_DOWN,
                         W_COLUMNS = C / W_ACROSS;
    static_assert(V_COLUMNS % 16 == 0 && W_ROWS % 16 == 0 && W_COLUMNS % 16 == 0, "whole fragments");
    /* shared memory */
    static constexpr int V_ROW = (C + 8) * 4 /* rows lie in different banks */, V_BYTES = TILE * V_ROW;
    static constexpr int DY_AT = K * C * 2, XA_AT = DY_AT + TILE * K * 2, V_AT = XA_AT + TILE * C * 2;
    static constexpr int D_AT = V_AT + V_PARTS * V_BYTES, E_AT = D_AT + COPIES * TILE * K * 2;
    static constexpr int ABC_AT     = E_AT + (COPIES && MODE == BLOCK ? 2 * TILE * C * 2 : 0);
    static constexpr int CHANNEL_AT = ABC_AT + 3 * K * 4; /* mean, scale, bias */
    static constexpr int BYTES      = CHANNEL_AT + (MODE == INNER ? 3 : MODE == BLOCK ? 1 : 0) * C * 4;
    static_assert(WARPS * 2 * C * 4 <= V_PARTS * V_BYTES, "sums of all warps");
};

/* Some elements of a row as they are in memory: 8 or 4. */
template <int ELEMENTS> struct elements {
    uint32_t word[ELEMENTS / 2];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < ELEMENTS / 2; i++) word[i] = 0;
    }
    template <typename T> __device__ __forceinline__ void load(const T *array, int64_t i) {
        if constexpr (ELEMENTS == 8) {
            const uint4 v = reinterpret_cast<const uint4 *>(array)[i];
            word[0] = v.x, word[1] = v.y, word[2] = v.z, word[3] = v.w;
        } else {
            const uint2 v = reinterpret_cast<const uint2 *>(array)[i];
            word[0] = v.x, word[1] = v.y;
        }
    }
    template <typename T> __device__ __forceinline__ void store(T *array, int64_t i) const {
        if constexpr (ELEMENTS == 8)
            ck_store_whole(array + i * 8, make_uint4(word[0], word[1], word[2], word[3]));
        else
            reinterpret_cast<uint2 *>(array)[i] = make_uint2(word[0], word[1]);
    }
    __device__ __forceinline__ void get(uint32_t from) {
        static_assert(ELEMENTS == 8, "16 bytes");
        const uint4 v = ck_get16(from);
        word[0] = v.x, word[1] = v.y, word[2] = v.z, word[3] = v.w;
    }
    __device__ __forceinline__ void put(uint32_t to) const {
        if constexpr (ELEMENTS == 8)
            ck_put16(to, make_uint4(word[0], word[1], word[2], word[3]));
        else
            ck_put8(to, word[0], word[1]);
    }
    template <typename T> __device__ __forceinline__ void unpack(float (&v)[ELEMENTS]) const {
#pragma unroll
        for (int i = 0; i < ELEMENTS / 2; i++) {
            const float2 pair = ck_pair<T>(word[i]);
            v[2 * i] = pair.x, v[2 * i + 1] = pair.y;
        }
    }
    template <typename T> __device__ __forceinline__ void pack(const float (&v)[ELEMENTS]) {
#pragma unroll
        for (int i = 0; i < ELEMENTS / 2; i++) word[i] = ck_pack_pair<T>(v[2 * i], v[2 * i + 1]);
    }
};

struct params {
    const void  *g, *dy_x, *w, *x, *add, *bn_x;
    const float *dy_coeffs, *scale_bias, *mean_rstd; /* [3][K], [2][C], [2][C] of the whole tensors */
    void        *dx;
    float       *dw_part, *sums_part; /* [groups][K][C], [groups][2][C] */
    int          pixels, C, tiles, slices;
};

__device__ __forceinline__ void get4(float *v, uint32_t from) {
    const uint4 word = ck_get16(from);
    v[0] = __uint_as_float(word.x), v[1] = __uint_as_float(word.y);
    v[2] = __uint_as_float(word.z), v[3] = __uint_as_float(word.w);
}
/* Byte at which channel c of `count` is stored in shared memory: the first halves of all vectors of 8, then the second
 * halves, so that threads with neighbouring vectors read from different banks. ELEMENTS: of a vector, 8 or 4. */
template <int ELEMENTS> __device__ __forceinline__ int channel_at(int c, int count) {
    return ELEMENTS == 4 ? c * 4 : c % 8 / 4 * (count * 2) + c / 8 * 16 + c % 4 * 4;
}

/* The thread's vectors of a tile: while the products of one tile run, g, dy_x and x of the next are on their way, and
 * add and bn_x of this one. */
template <typename T, typename P> struct loader {
    using vector = elements<P::CE>;
    const params  &p;
    const uint32_t shared;
    const int      slice; /* first channel of x */
    uint4          g[P::COPIES > 1 ? 1 : P::KN], d[P::COPIES > 0 ? 1 : P::KN];
    vector         x[P::CN];

    __device__ loader(const params &params_, uint32_t shared_, int slice_)
        : p(params_), shared(shared_), slice(slice_) {}
    __device__ __forceinline__ static int k_vector() { return (int)threadIdx.x % P::KV; }
    __device__ __forceinline__ static int k_row(int i) { return (int)threadIdx.x / P::KV + i * P::K_ROWS; }
    __device__ __forceinline__ static int c_vector() { return (int)threadIdx.x % P::CV; }
    __device__ __forceinline__ static int c_row(int i) { return (int)threadIdx.x / P::CV + i * P::C_ROWS; }
    __device__ __forceinline__ bool       exists(int tile, int row) const {
              return tile < p.tiles && tile * P::TILE + row < p.pixels;
    }
    /* Number of the vector of x, add, bn_x and dx. */
    __device__ __forceinline__ int64_t c_at(int tile, int i) const {
        return ((int64_t)(tile * P::TILE + c_row(i)) * p.C + slice) / P::CE + c_vector();
    }
    __device__ __forceinline__ void load_c(vector (&to)[P::CN], const void *from, int tile) const {
#pragma unroll
        for (int i = 0; i < P::CN; i++) {
            to[i].clear();
            if (exists(tile, c_row(i))) to[i].load(static_cast<const T *>(from), c_at(tile, i));
        }
    }
    /* Places of the thread's vector i of add (0) or bn_x (1), and of dy_x (0) or g (1). No other thread uses them, so
     * that its own wait is enough. */
    __device__ __forceinline__ uint32_t c_copy_at(int which, int i) const {
        return shared + (uint32_t)(P::E_AT + ((which * P::CN + i) * P::THREADS + (int)threadIdx.x) * (P::CE * 2));
    }
    __device__ __forceinline__ uint32_t k_copy_at(int which, int i) const {
        return shared + (uint32_t)(P::D_AT + ((which * P::KN + i) * P::THREADS + (int)threadIdx.x) * 16);
    }
    /* Starts the copies of add or bn_x. */
    __device__ __forceinline__ void copy_c(int which, const void *from, int tile) const {
        static_assert(P::COPIES == 0 || P::MODE != BLOCK || P::CE == 8, "copies of 16 bytes");
#pragma unroll
        for (int i = 0; i < P::CN; i++) {
            const bool is = exists(tile, c_row(i));
            ck_copy16(c_copy_at(which, i), static_cast<const T *>(from) + (is ? c_at(tile, i) * 8 : 0), is);
        }
    }
    /* Loads or copies dy_x or g. */
    template <int WHICH, int N> __device__ __forceinline__ void load_k(uint4 (&to)[N], const void *from, int tile) {
#pragma unroll
        for (int i = 0; i < P::KN; i++) {
            const bool    is = exists(tile, k_row(i));
            const int64_t at = (int64_t)(tile * P::TILE + k_row(i)) * P::KV + k_vector();
            if constexpr (P::COPIES > WHICH) {
                ck_copy16(k_copy_at(WHICH, i), static_cast<const T *>(from) + (is ? at * 8 : 0), is);
            } else {
                to[i] = make_uint4(0, 0, 0, 0);
                if (is) to[i] = ck_load(static_cast<const T *>(from), at);
            }
        }
    }
    __device__ __forceinline__ void load_x(int tile) {
        load_c(x, p.x, tile);
    }
    __device__ __forceinline__ void load_g(int tile) {
        load_k<1>(g, p.g, tile);
        load_k<0>(d, p.dy_x, tile);
        if (P::COPIES) ck_copy_commit();
    }
    template <int WHICH, int N> __device__ __forceinline__ uint4 loaded(const uint4 (&from)[N], int i) const {
        if constexpr (P::COPIES > WHICH)
            return ck_get16(k_copy_at(WHICH, i));
        else
            return from[i];
    }
};

} // namespace

#endif
