/* cuda/conv/mma/point_grad_mma.cuh: the division of the work of cuda/conv/mma/point_grad_mma.cu and the loads. */
#ifndef CK_POINT_GRAD_MMA_CUH
#define CK_POINT_GRAD_MMA_CUH

#include "cuda/common/mma.cuh"
#include "cuda/conv/mma/point_grad_mma.h"

namespace {

enum mode { INNER, BLOCK, PLAIN }; /* as in cuda/conv/pointwise/point_grad.h */
enum { WARPS = 16, THREADS = WARPS * 32 };

/* KS, CS: channels of dy and of the slice of x. TILE: pixels. */
template <int KS, int CS, int MODE_, int TILE_> struct plan {
    static constexpr int K = KS, C = CS, MODE = MODE_, TILE = TILE_;
    /* a thread has the same 8 channels of dy and of x in all rows: vectors of a row, rows and vectors at a time */
    static constexpr int KV = K / 8, CV = C / 8, K_ROWS = THREADS / KV, C_ROWS = THREADS / CV;
    static constexpr int KN = TILE / K_ROWS, CN = TILE / C_ROWS;
    static_assert(KN * K_ROWS == TILE && CN * C_ROWS == TILE, "all threads load");
    /* warps of dgrad: rows and columns of v; of wgrad: rows and columns of dw */
    static constexpr int V_DOWN = TILE / 16, V_ACROSS = WARPS / V_DOWN, V_COLUMNS = C / V_ACROSS;
    static constexpr int W_DOWN = K >= 256 ? 8 : 4, W_ACROSS = WARPS / W_DOWN, W_ROWS = K / W_DOWN,
                         W_COLUMNS = C / W_ACROSS;
    static_assert(V_COLUMNS % 16 == 0 && W_ROWS % 16 == 0 && W_COLUMNS % 16 == 0, "whole fragments");
    /* shared memory */
    static constexpr int V_ROW = (C + 8) * 4; /* rows lie in different banks */
    static constexpr int DY_AT = K * C * 2, XA_AT = DY_AT + TILE * K * 2, V_AT = XA_AT + TILE * C * 2;
    static constexpr int ABC_AT = V_AT + TILE * V_ROW, CHANNEL_AT = ABC_AT + 3 * K * 4; /* mean, scale, bias */
    static constexpr int BYTES = CHANNEL_AT + (MODE == INNER ? 3 : MODE == BLOCK ? 1 : 0) * C * 4;
    static_assert(WARPS * 2 * C * 4 <= TILE * V_ROW, "sums of all warps");
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
/* The thread's vectors of a tile: while the products of one tile run, g, dy_x and x of the next are on their way, and
 * add and bn_x of this one. */
template <typename T, typename P> struct loader {
    const params &p;
    const int     slice; /* first channel of x */
    uint4         g[P::KN], d[P::KN], x[P::CN];

    __device__                            loader(const params &params_, int slice_) : p(params_), slice(slice_) {}
    __device__ __forceinline__ static int k_vector() { return (int)threadIdx.x % P::KV; }
    __device__ __forceinline__ static int k_row(int i) { return (int)threadIdx.x / P::KV + i * P::K_ROWS; }
    __device__ __forceinline__ static int c_vector() { return (int)threadIdx.x % P::CV; }
    __device__ __forceinline__ static int c_row(int i) { return (int)threadIdx.x / P::CV + i * P::C_ROWS; }
    __device__ __forceinline__ bool       exists(int tile, int row) const {
              return tile < p.tiles && tile * P::TILE + row < p.pixels;
    }
    /* Number of the vector of x, add, bn_x and dx. */
    __device__ __forceinline__ int64_t c_at(int tile, int i) const {
        return ((int64_t)(tile * P::TILE + c_row(i)) * p.C + slice) / 8 + c_vector();
    }
    __device__ __forceinline__ void load_c(uint4 (&to)[P::CN], const void *from, int tile) const {
#pragma unroll
        for (int i = 0; i < P::CN; i++) {
            to[i] = make_uint4(0, 0, 0, 0);
            if (exists(tile, c_row(i))) to[i] = ck_load(static_cast<const T *>(from), c_at(tile, i));
        }
    }
    __device__ __forceinline__ void load(int tile) {
#pragma unroll
        for (int i = 0; i < P::KN; i++) {
            const int64_t at = (int64_t)(tile * P::TILE + k_row(i)) * P::KV + k_vector();
            g[i] = d[i] = make_uint4(0, 0, 0, 0);
            if (exists(tile, k_row(i))) {
                g[i] = ck_load(static_cast<const T *>(p.g), at);
                d[i] = ck_load(static_cast<const T *>(p.dy_x), at);
            }
        }
        load_c(x, p.x, tile);
    }
};

} // namespace

#endif
