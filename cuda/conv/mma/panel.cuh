/* cuda/conv/mma/panel.cuh: epilogue: stores results of matrix products from fragments to memory through shared memory.
 *
 * A warp moves 8 rows of 64 columns at a time, in f32, through a panel of shared memory of its own. It then reads them
 * by rows: lane l has 8 neighbouring columns, vector l % 8, of rows l / 8 and l / 8 + 4. So the lanes access whole
 * lines of 128 bytes of the tensors, and a lane has the same 8 columns in all panels. Results that are final move as
 * 16-bit elements. */
#ifndef CK_PANEL_CUH
#define CK_PANEL_CUH

#include "cuda/common/mma.cuh"

namespace {

enum { PANEL_ROW = 72 * 4 /* rows lie in different banks */, PANEL_BYTES = 8 * PANEL_ROW };

/* Rows 8*HALF to 8*HALF+7 of a fragment of 16 rows and 64 columns. */
template <int HALF> __device__ __forceinline__ void put_panel(uint32_t panel, const float (&acc)[8][4]) {
    const int      lane = (int)threadIdx.x % 32;
    const uint32_t to   = panel + (uint32_t)(lane / 4 * PANEL_ROW + lane % 4 * 8);
#pragma unroll
    for (int n = 0; n < 8; n++)
        ck_put8(to + (uint32_t)(n * 32), __float_as_uint(acc[n][HALF * 2]), __float_as_uint(acc[n][HALF * 2 + 1]));
}

__device__ __forceinline__ void set4(float *v, uint4 word) {
    v[0] = __uint_as_float(word.x);
    v[1] = __uint_as_float(word.y);
    v[2] = __uint_as_float(word.z);
    v[3] = __uint_as_float(word.w);
}
/* Eight floats. */
__device__ __forceinline__ void get8(float (&v)[8], uint32_t from) {
    set4(v, ck_get16(from));
    set4(v + 4, ck_get16(from + 16));
}
/* This lane's vector of row `row`. Lanes 4 to 7 read their second half first, so that eight lanes use all banks. */
__device__ __forceinline__ void get_panel(float (&v)[8], uint32_t panel, int row) {
    const int      vector      = (int)threadIdx.x % 8;
    const bool     upper_first = vector >= 4;
    const uint32_t from        = panel + (uint32_t)(row * PANEL_ROW + vector * 32 + (upper_first ? 16 : 0));
    const uint4    first = ck_get16(from), second = ck_get16(upper_first ? from - 16 : from + 16);
    set4(v, upper_first ? second : first);
    set4(v + 4, upper_first ? first : second);
}

/* The same for 16-bit elements: all 16 rows of a fragment, in rows of 144 bytes, which lie in different banks. */
enum { HALF_ROW = 72 * 2 };
static_assert(16 * HALF_ROW <= PANEL_BYTES, "a fragment");
template <typename T, bool RELU>
__device__ __forceinline__ void put_half_panel(uint32_t panel, const float (&acc)[8][4]) {
    const int      lane = (int)threadIdx.x % 32;
    const uint32_t to   = panel + (uint32_t)(lane / 4 * HALF_ROW + lane % 4 * 4);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float low = acc[i % 8][i / 8 * 2], high = acc[i % 8][i / 8 * 2 + 1];
        ck_put4(to + (uint32_t)(i / 8 * 8 * HALF_ROW + i % 8 * 16),
                RELU ? ck_pack_relu<T>(low, high) : ck_pack_pair<T>(low, high));
    }
}
__device__ __forceinline__ uint4 get_half_panel(uint32_t panel, int row) {
    return ck_get16(panel + (uint32_t)(row * HALF_ROW + (int)threadIdx.x % 8 * 16));
}

/* Sums of a lane's 8 columns; of the rows of all panels so far. */
struct column_sums {
    float first[8], second[8];

    __device__ column_sums() {
#pragma unroll
        for (int i = 0; i < 8; i++) first[i] = second[i] = 0.0f;
    }
    /* Adds a vector of elements and their squares. */
    template <typename T> __device__ __forceinline__ void add(uint4 vector) {
        float v[8];
        ck_unpack<T>(vector, v);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            first[i] += v[i];
            second[i] = fmaf(v[i], v[i], second[i]);
        }
    }
    /* Adds the four lanes that have the same columns; lanes 0 to 7 have the result. */
    __device__ __forceinline__ void add_lanes() {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            first[i] += __shfl_xor_sync(0xffffffffu, first[i], 8);
            first[i] += __shfl_xor_sync(0xffffffffu, first[i], 16);
            second[i] += __shfl_xor_sync(0xffffffffu, second[i], 8);
            second[i] += __shfl_xor_sync(0xffffffffu, second[i], 16);
        }
    }
    /* Stores the sums of 64 columns in shared memory, f32 [2][64]; called by lanes 0 to 7. */
    __device__ __forceinline__ void put(uint32_t to) const {
        const uint32_t at = to + (uint32_t)((int)threadIdx.x % 8 * 32);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            ck_put4(at + (uint32_t)(i * 4), first[i]);
            ck_put4(at + (uint32_t)(i * 4 + 256), second[i]);
        }
    }
};

} // namespace

#endif
