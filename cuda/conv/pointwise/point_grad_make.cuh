/* cuda/conv/pointwise/point_grad_make.cuh: backward of 1x1 convolutions: computes dy in place of g, and xa. */
#ifndef CK_POINT_GRAD_MAKE_CUH
#define CK_POINT_GRAD_MAKE_CUH

#include "cuda/conv/pointwise/point_grad_plan.cuh"

namespace {

/* A warpgroup's part of the work. group: index among the groups that process a tile together; each has OWN_SHARES
 * parts. */
template <typename T, typename P> struct maker : block_part<P> {
    using block_part<P>::a;
    using block_part<P>::base;
    using block_part<P>::at;
    using block_part<P>::barrier;
    using block_part<P>::dy_at;
    using block_part<P>::x_at;
    using block_part<P>::xa_at;
    using block_part<P>::warp_arrive;
    int group;

    __device__ __forceinline__ int thread() const { return (int)threadIdx.x % GROUP; }
    __device__ __forceinline__ int vector() const { return (int)threadIdx.x % 8; } /* of a row of a chunk */
    __device__ __forceinline__ int own_share(int i) const {
        return P::OWN_SHARES == SHARES ? i : group * P::OWN_SHARES + i;
    }

    /* The coefficients of the thread's 8 channels of a part. They are read again for each tile, because there are no
     * registers to hold them. */
    __device__ __forceinline__ void load_abc(float (&abc)[3][8], int share) const {
        const int      k    = share * P::KC / 4 * 64 + vector() * 8;
        const uint32_t from = base + P::ABC_AT + k * 4;
#pragma unroll
        for (int i = 0; i < 6; i++) {
            const uint4 f = P::ABC_SHARED ? ck_get16(from + i / 2 * P::K * 4 + i % 2 * 16)
                                          : fetch16(a.dy_coeffs + i / 2 * a.K + at.k + k + i % 2 * 4);
            put_floats(f, &abc[i / 2][i % 2 * 4]);
        }
    }
    __device__ __forceinline__ uint32_t dy_word(uint32_t g, uint32_t d, const float (&abc)[3][8], int i) const {
        const float2 p = ck_pair<T>(g), q = ck_pair<T>(d);
        return ck_pack_pair<T>(fmaf(abc[0][i], p.x, fmaf(abc[1][i], q.x, abc[2][i])),
                               fmaf(abc[0][i + 1], p.y, fmaf(abc[1][i + 1], q.y, abc[2][i + 1])));
    }

    /* Computes a part of a tile of dy in place of g. Rows after the last pixel become 0; without this they would be
     * coefficient c. */
    __device__ __forceinline__ void make_dy(int tile, int index, int share) const {
        /* vectors in flight: as many as the registers hold */
        constexpr int  BATCH = P::GROUPS == 2 || P::KC < 2 ? P::KC : 2;
        const int      slot = slot_of<P::SD>(index), row = share * P::SHARE_ROWS % 64 + thread() / 8;
        const uint32_t in   = share * P::KC / 4 * CHUNK + row * 128 + ((vector() ^ row % 8) << 4);
        const uint32_t g_at = dy_at(index) + in, d_at = base + P::D_AT + slot * P::KC * CHUNK + in;
        const int      left = (int)(a.pixels - (int64_t)tile * TILE) - row;
        ck_mbar_wait(barrier(P::FULL_G + 4 * slot_of<P::SG>(index) + share), parity_of<P::SG>(index));
        ck_mbar_wait(barrier(P::FULL_D + 4 * slot + share), parity_of<P::SD>(index));
        float abc[3][8];
        load_abc(abc, share);
#pragma unroll
        for (int i = 0; i < P::KC; i += BATCH) {
            uint4 g[BATCH], d[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; b++)
                g[b] = ck_get16(g_at + (i + b) * 2048), d[b] = ck_get16(d_at + (i + b) * 2048);
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                const uint4 y = make_uint4(dy_word(g[b].x, d[b].x, abc, 0), dy_word(g[b].y, d[b].y, abc, 2),
                                           dy_word(g[b].z, d[b].z, abc, 4), dy_word(g[b].w, d[b].w, abc, 6));
                ck_put16(g_at + (i + b) * 2048, left > 16 * (i + b) ? y : make_uint4(0, 0, 0, 0));
            }
        }
        warp_arrive(P::EMPTY_D + 4 * slot + share);
    }

    /* relu(x*scale + bias) of this group's rows. */
    __device__ __forceinline__ void make_xa(int index) const {
        this->wait_x(index);
#pragma unroll
        for (int chunk = 0; chunk < P::CC; chunk++) {
            float scale[8], bias[8];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t from = base + P::CHANNEL_AT + (P::C + chunk * 64 + vector() * 8 + 4 * h) * 4;
                put_floats(ck_get16(from), scale + 4 * h);
                put_floats(ck_get16(from + P::C * 4), bias + 4 * h);
            }
            const int      row = own_share(0) * 16 + thread() / 8;
            const uint32_t in  = row * 128 + ((vector() ^ row % 8) << 4);
            uint4          x[P::OWN_SHARES];
#pragma unroll
            for (int i = 0; i < P::OWN_SHARES; i++) x[i] = ck_get16(x_at(index) + chunk * CHUNK + in + i * 2048);
#pragma unroll
            for (int i = 0; i < P::OWN_SHARES; i++)
                ck_put16(xa_at(index, chunk) + in + i * 2048,
                         make_uint4(xa_word(x[i].x, scale, bias, 0), xa_word(x[i].y, scale, bias, 2),
                                    xa_word(x[i].z, scale, bias, 4), xa_word(x[i].w, scale, bias, 6)));
        }
    }
    __device__ __forceinline__ uint32_t xa_word(uint32_t x, const float (&scale)[8], const float (&bias)[8],
                                                int      i) const {
        const float2 p = ck_pair<T>(x);
        return ck_pack_pair<T>(ck_relu(fmaf(p.x, scale[i], bias[i])), ck_relu(fmaf(p.y, scale[i + 1], bias[i + 1])));
    }

    /* Parts from `from` on, then xa. g of a tile is loaded when all groups have finished the products of the tile SG
     * before it; the place of xa is free then, too. */
    __device__ __forceinline__ void make(int tile, int index, int from) const {
#pragma unroll
        for (int i = from; i < P::OWN_SHARES; i++) make_dy(tile, index, own_share(i));
        if constexpr (P::MODE == INNER) make_xa(index);
        ck_fence_async();
        warp_arrive(P::READY + slot_of<P::SG>(index));
    }

    /* All tiles, for the group that computes dy and xa for the other groups. */
    __device__ __forceinline__ void run() const {
        for (int tile = at.first, index = 0; tile < a.tiles; tile += at.step, index++) make(tile, index, 0);
    }
};

} // namespace

#endif
