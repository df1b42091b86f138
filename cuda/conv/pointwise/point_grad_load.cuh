/* cuda/conv/pointwise/point_grad_load.cuh: backward of 1x1 convolutions: the thread that issues the TMA loads. */
#ifndef CK_POINT_GRAD_LOAD_CUH
#define CK_POINT_GRAD_LOAD_CUH

#include "cuda/conv/pointwise/point_grad_plan.cuh"

namespace {

template <typename P> struct loader : block_part<P> {
    using block_part<P>::a;
    using block_part<P>::base;
    using block_part<P>::at;
    using block_part<P>::barrier;

    __device__ __forceinline__ int tile(int index) const { return at.first + index * at.step; }

    __device__ __forceinline__ void load_w() const {
        ck_mbar_expect(barrier(P::FULL_W), P::KC * P::CC * CHUNK);
        for (int k = 0; k < P::KC; k++)
            for (int c = 0; c < P::CC; c++)
                ck_tma_load(base + (k * P::CC + c) * CHUNK, &a.w, barrier(P::FULL_W), at.c + c * 64, at.k + k * 64);
    }
    /* A part of a tile of g or dy_x. */
    __device__ __forceinline__ void load_share(const CUtensorMap *map, uint32_t to, int number, int share,
                                               int full) const {
        const int chunk = share * P::KC / 4, row = share * P::SHARE_ROWS % 64;
        ck_mbar_expect(barrier(full), P::SHARE_ROWS * 128);
        ck_tma_load(to + chunk * CHUNK + row * 128, map, barrier(full), at.k + chunk * 64, number * TILE + row);
    }
    /* 64 channels of a tile of x, add or bn_x. */
    __device__ __forceinline__ void load_chunk(const CUtensorMap *map, uint32_t to, int number, int chunk,
                                               int full) const {
        ck_tma_load(to, map, barrier(full), at.c + chunk * 64, number * TILE);
    }

    /* Loads item n of a stream if its slot is free. */
    __device__ __forceinline__ bool next_g(int n) const {
        const int slot = slot_of<P::SG>(n);
        if (!is_complete(barrier(P::EMPTY_G + slot), parity_of<P::SG>(n) ^ 1)) return false;
        for (int share = 0; share < SHARES; share++)
            load_share(&a.g, this->dy_at(n), tile(n), share, P::FULL_G + 4 * slot + share);
        return true;
    }
    __device__ __forceinline__ bool next_d(int n) const { /* in units of parts, not tiles */
        const int index = n / SHARES, share = n % SHARES, slot = slot_of<P::SD>(index);
        if (!is_complete(barrier(P::EMPTY_D + 4 * slot + share), parity_of<P::SD>(index) ^ 1)) return false;
        load_share(&a.d, base + P::D_AT + slot * P::KC * CHUNK, tile(index), share, P::FULL_D + 4 * slot + share);
        return true;
    }
    __device__ __forceinline__ bool next_x(int n) const {
        const int slot = slot_of<P::SX>(n);
        if (!is_complete(barrier(P::EMPTY_X + slot), parity_of<P::SX>(n) ^ 1)) return false;
        ck_mbar_expect(barrier(P::FULL_X + slot), P::CC * CHUNK);
        for (int c = 0; c < P::CC; c++) load_chunk(&a.x, this->x_at(n) + c * CHUNK, tile(n), c, P::FULL_X + slot);
        return true;
    }
    __device__ __forceinline__ bool next_unit(const CUtensorMap *map, int from, int n, int empty, int full) const {
        const int slot = slot_of<P::E>(n);
        if (!is_complete(barrier(empty + slot), parity_of<P::E>(n) ^ 1)) return false;
        ck_mbar_expect(barrier(full + slot), CHUNK);
        load_chunk(map, base + from + slot * CHUNK, tile(n / P::CC), n % P::CC, full + slot);
        return true;
    }

    /* Each stream advances when its next slot is free; no stream waits for another. */
    __device__ __forceinline__ void run() const {
        const int tiles   = (a.tiles - at.first + at.step - 1) / at.step;
        const int a_units = P::HAS_A && a.has_add ? tiles * P::CC : 0, b_units = P::HAS_B ? tiles * P::CC : 0;
        const int parts = P::GIVEN ? 0 : tiles * SHARES;
        int       g = 0, d = 0, x = 0, ua = 0, ub = 0;
        load_w();
        while (g < tiles || d < parts || x < tiles || ua < a_units || ub < b_units) {
            if (g < tiles) g += next_g(g);
            if constexpr (!P::GIVEN)
                if (d < parts) d += next_d(d);
            if (x < tiles) x += next_x(x);
            if (ua < a_units) ua += next_unit(&a.add, P::A_AT, ua, P::EMPTY_A, P::FULL_A);
            if (ub < b_units) ub += next_unit(&a.bn_x, P::B_AT, ub, P::EMPTY_B, P::FULL_B);
        }
    }
};

} // namespace

#endif
