/* cuda/conv/pointwise/point_grad_work.cuh: backward of 1x1 convolutions: a warpgroup that owns a part of dw: products,
 * units, final stores of the block. */
#ifndef CK_POINT_GRAD_WORK_CUH
#define CK_POINT_GRAD_WORK_CUH

#include "cuda/conv/pointwise/point_grad_make.cuh"

namespace {

template <typename T, typename P> struct worker : maker<T, P> {
    using block_part<P>::a;
    using block_part<P>::base;
    using block_part<P>::at;
    using block_part<P>::barrier;
    using block_part<P>::dy_at;
    using block_part<P>::x_at;
    using block_part<P>::xa_at;
    using block_part<P>::warp_arrive;
    using maker<T, P>::group;
    using maker<T, P>::thread;
    int   warp /* in the group */, lane;
    float dw[P::TILES][P::ACC];
    float v[32];
    float sum[4]; /* of dx or dx*(x-mean), see add_rows */

    /* The chunk of C whose unit of this tile belongs to this group. In a pair, the groups process the block's own chunk
     * alternately. */
    __device__ __forceinline__ int unit_chunk(int index) const {
        return P::PAIR ? at.rank ^ ((index + group) & 1) : group % P::CC;
    }
    /* Mean, scale or bias of the slice's channels c and c+1. */
    __device__ __forceinline__ float2 channel(int which, int c) const {
        return ck_get8(base + P::CHANNEL_AT + (which * P::C + c) * 4);
    }

    /* ---- products ---- */

    /* Tile t of the group in dw: its chunk along K and along C. */
    __device__ __forceinline__ int tile_k(int t) const {
        if (P::GROUPS == 2) return group * 2 + t;
        return P::KC == 4 ? group : P::KC == 2 ? (P::CC == 4 ? t : group / 2) : 0;
    }
    __device__ __forceinline__ int tile_c(int t) const {
        if (P::GROUPS == 2) return P::PAIR ? at.rank ^ 1 : 0; /* the first of two chunks */
        return P::CC == 4 ? group : P::CC == 2 ? (P::KC == 4 ? t : group % 2) : 0;
    }
    __device__ __forceinline__ void wgrad(int index) {
        constexpr uint64_t STEP = 2048 >> 4; /* 16 rows */
#pragma unroll
        for (int t = 0; t < P::TILES; t++) {
            const uint32_t x_from = xa_at(index, tile_c(t)), wide = P::WIDE ? xa_at(index, tile_c(t) ^ 1) - x_from : 16;
            const uint64_t d = ck_operand(dy_at(index) + tile_k(t) * CHUNK), x = ck_operand_transposed(x_from, wide);
#pragma unroll
            for (int s = 0; s < 4; s++) {
                if constexpr (P::WIDE)
                    multiply_wide<T>(dw[t], d + s * STEP, x + s * STEP);
                else
                    multiply_64<T, true>(dw[t], d + s * STEP, x + s * STEP, true);
            }
        }
    }
    __device__ __forceinline__ void dgrad(int index) {
        const uint64_t dy = ck_operand(dy_at(index)), w = ck_operand(base + unit_chunk(index) * CHUNK);
#pragma unroll
        for (int k = 0; k < P::KC; k++)
#pragma unroll
            for (int s = 0; s < 4; s++)
                multiply_64<T, false>(v, dy + k * (CHUNK >> 4) + s * (32 >> 4),
                                      w + k * P::CC * (CHUNK >> 4) + s * (2048 >> 4), k > 0 || s > 0);
    }

    /* ---- the end of a unit ---- */

    /* The inputs of a thread for a pair of columns: two rows, 8 apart. */
    struct pair {
        float2   mean, scale, bias;
        uint32_t x[2], y[2], add[2];
    };
    __device__ __forceinline__ void read_pair(pair &p, int c, uint32_t out, uint32_t x_from, uint32_t add_from) const {
        if (P::SUMS) p.mean = channel(0, c);
        if (P::MODE == INNER) p.scale = channel(1, c), p.bias = channel(2, c);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (P::HAS_A && a.has_add) p.add[h] = ck_get4(add_from + h * 1024);
            if (P::MODE != PLAIN) p.x[h] = ck_get4(x_from + h * 1024);
            if (P::MODE == BLOCK) p.y[h] = ck_get4(out + h * 1024);
        }
    }
    /* Stores dx of pair j in shared memory; s: sums of dx of both columns, and of dx*(x-mean). */
    __device__ __forceinline__ void finish_pair(int j, const pair &r, uint32_t out, float (&s)[4]) const {
        s[0] = s[1] = s[2] = s[3] = 0.0f;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float p = v[4 * j + 2 * h], q = v[4 * j + 2 * h + 1];
            if (P::HAS_A && a.has_add) {
                const float2 f = ck_pair<T>(r.add[h]);
                p += f.x;
                q += f.y;
            }
            if (P::MODE != PLAIN) {
                const float2 x = ck_pair<T>(r.x[h]), y = P::MODE == BLOCK ? ck_pair<T>(r.y[h]) : x;
                p = (P::MODE == INNER ? fmaf(x.x, r.scale.x, r.bias.x) : x.x) > 0.0f ? p : 0.0f;
                q = (P::MODE == INNER ? fmaf(x.y, r.scale.y, r.bias.y) : x.y) > 0.0f ? q : 0.0f;
                if (P::SUMS) {
                    s[0] += p;
                    s[1] += q;
                    s[2] = fmaf(p, y.x - r.mean.x, s[2]);
                    s[3] = fmaf(q, y.y - r.mean.y, s[3]);
                }
            }
            ck_put4(out + h * 1024, ck_pack_pair<T>(p, q));
        }
    }
    /* Reduces over the 8 rows that lanes 4, 8 and 16 apart hold. Lanes with bit 16 get the sums of dx*(x-mean), lanes
     * with bit 8 the odd column, lanes with bit 4 odd pairs. */
    __device__ __forceinline__ void add_rows(int j, const float (&s)[4]) {
        const float even = fold(s[0], s[2], 16), odd = fold(s[1], s[3], 16);
        float       one = fold(even, odd, 8);
        one += __shfl_xor_sync(0xffffffffu, one, 4);
        if ((lane & 4) == (j & 1) * 4) sum[j / 2] += one;
    }
    /* Lanes with the bit keep `high`, the other lanes `low`, of both. */
    __device__ __forceinline__ float fold(float low, float high, int bit) const {
        const float keep = lane & bit ? high : low, give = lane & bit ? low : high;
        return keep + __shfl_xor_sync(0xffffffffu, give, bit);
    }
    __device__ __forceinline__ void finish_rows(int chunk, uint32_t out, uint32_t x_from, uint32_t add_from) {
        constexpr int BATCH = P::GROUPS == 2 ? 2 : 1; /* pairs in flight: as many as the registers hold */
#pragma unroll
        for (int j = 0; j < 8; j += BATCH) {
            pair  r[BATCH];
            float s[BATCH][4];
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                const uint32_t in = (uint32_t)((j + b ^ lane / 4) << 4);
                read_pair(r[b], chunk * 64 + 8 * (j + b) + lane % 4 * 2, out + in, x_from + in, add_from + in);
            }
#pragma unroll
            for (int b = 0; b < BATCH; b++) finish_pair(j + b, r[b], out + (uint32_t)((j + b ^ lane / 4) << 4), s[b]);
            if constexpr (P::SUMS)
#pragma unroll
                for (int b = 0; b < BATCH; b++) add_rows(j + b, s[b]);
        }
    }

    /* A pair's block has half of the sum over K. It sends the chunk that the other block finishes, and receives the
     * chunk that it finishes itself. The 16 bytes of a thread are stored next to those of its neighbours. There is one
     * place for them but two barriers: the groups, which alternate, may be a tile apart, and each must see all phases
     * of its barrier. */
    __device__ __forceinline__ void send(int index) const {
        const uint32_t to   = ck_other_block(base + P::SENT_AT + thread() * 16, at.rank ^ 1);
        const uint32_t full = ck_other_block(barrier(P::FULL_SENT + (index & 1)), at.rank ^ 1);
        if (index > 0) wait_cluster(barrier(P::EMPTY_SENT + (index - 1 & 1)), index - 1 >> 1 & 1);
#pragma unroll
        for (int i = 0; i < 8; i++)
            send16(to + i * GROUP * 16, make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]), full);
    }
    __device__ __forceinline__ void receive(int index) {
        const uint32_t full = barrier(P::FULL_SENT + (index & 1));
        if (warp == 0 && lane == 0) ck_mbar_expect(full, SENT);
        wait_cluster(full, index >> 1 & 1);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint4 f = ck_get16(base + P::SENT_AT + (i * GROUP + thread()) * 16);
            v[4 * i] += __uint_as_float(f.x);
            v[4 * i + 1] += __uint_as_float(f.y);
            v[4 * i + 2] += __uint_as_float(f.z);
            v[4 * i + 3] += __uint_as_float(f.w);
        }
        __syncwarp();
        if (lane == 0) arrive_peer(ck_other_block(barrier(P::EMPTY_SENT + (index & 1)), at.rank ^ 1));
    }

    /* unit: its number in the block; dx is stored from the place of bn_x, add or x. */
    __device__ __forceinline__ void finish(int tile, int index, int unit) {
        const int      slot = slot_of<P::E>(unit), chunk = unit_chunk(index);
        const uint32_t parity = parity_of<P::E>(unit);
        const uint32_t x_from = x_at(index) + chunk * CHUNK, add_from = base + P::A_AT + slot * CHUNK;
        const uint32_t out = P::MODE == INNER ? x_from : P::MODE == BLOCK ? base + P::B_AT + slot * CHUNK : add_from;
        const uint32_t row = (warp * 16 + lane / 4) * 128 + lane % 4 * 4;
        if (P::HAS_A && a.has_add) ck_mbar_wait(barrier(P::FULL_A + slot), parity);
        if (P::HAS_B) ck_mbar_wait(barrier(P::FULL_B + slot), parity);
        /* Where nothing is loaded into `out`, only the storing thread knows that the last store from it has been
         * read. */
        if (P::HAS_A && !P::HAS_B && !a.has_add) ck_barrier(1 + group, GROUP);
        finish_rows(chunk, out + row, x_from + row, add_from + row);
        ck_fence_async();
        ck_barrier(1 + group, GROUP);
        if (warp != 0 || lane != 0) return;
        ck_tma_store(&a.dx, out, at.c + chunk * 64, tile * TILE);
        ck_bulk_commit();
        if (P::MODE == BLOCK) ck_mbar_arrive(barrier(P::EMPTY_A + slot));
        ck_bulk_wait_read<0>();
        ck_mbar_arrive(barrier(P::MODE == INNER   ? P::EMPTY_X + slot_of<P::SX>(index)
                               : P::MODE == BLOCK ? P::EMPTY_B + slot
                                                  : P::EMPTY_A + slot));
    }

    /* ---- loop over tiles ---- */

    /* The products of a tile, while this group computes its part of the next tile if it has one. */
    __device__ __forceinline__ void multiply(int tile, int index, bool mine) {
        const int  next = tile + P::AHEAD * at.step;
        const bool more = !P::MAKER && next < a.tiles;
        ck_wgmma_fence();
        wgrad(index);
        if constexpr (P::MAKER) dgrad(index);
        if constexpr (P::EARLY)
            if (mine) {
                ck_wgmma_fence();
                dgrad(index);
            }
        ck_wgmma_commit();
        if constexpr (P::EARLY) {
            if (more) this->make_dy(next, index + P::AHEAD, this->own_share(0));
        } else if constexpr (!P::MAKER) {
            if (more) this->make(next, index + P::AHEAD, 0);
            if (mine) {
                ck_wgmma_fence();
                dgrad(index);
                ck_wgmma_commit();
            }
        }
        ck_wgmma_wait<0>();
        warp_arrive(P::EMPTY_G + slot_of<P::SG>(index));
        if constexpr (P::EARLY)
            if (more) this->make(next, index + P::AHEAD, 1);
    }

    /* dy is complete: the end of the unit runs during the products of dw. */
    __device__ __forceinline__ void multiply_and_finish(int tile, int index, int unit) {
        ck_wgmma_fence();
        dgrad(index);
        ck_wgmma_commit();
        wgrad(index);
        ck_wgmma_commit();
        ck_wgmma_wait<1>();
        ck_wgmma_hold(v);
        finish(tile, index, unit);
        ck_wgmma_wait<0>();
        warp_arrive(P::EMPTY_G + slot_of<P::SG>(index));
        warp_arrive(P::EMPTY_X + slot_of<P::SX>(index));
    }

    __device__ __forceinline__ void wait_dy(int index) const {
        const int slot = slot_of<P::SG>(index);
        for (int i = 0; i < SHARES && P::GIVEN; i++)
            ck_mbar_wait(barrier(P::FULL_G + SHARES * slot + i), parity_of<P::SG>(index));
        if (!P::GIVEN) ck_mbar_wait(barrier(P::READY + slot), parity_of<P::SG>(index));
    }
    __device__ __forceinline__ void step(int tile, int index) {
        const int  unit = index * P::CC + unit_chunk(index);
        const bool mine = P::ALONE || P::CC == P::GROUPS || unit % P::GROUPS == group;
        if (P::MODE != INNER || P::MAKER) this->wait_x(index); /* otherwise the computation of xa has waited for it */
        wait_dy(index);
        if constexpr (P::GIVEN) {
            multiply_and_finish(tile, index, unit);
        } else {
            multiply(tile, index, mine);
            if (P::PAIR && unit_chunk(index) != at.rank)
                send(index);
            else if (mine) {
                if constexpr (P::PAIR) receive(index);
                finish(tile, index, unit);
            }
            if (P::MODE != INNER || P::PAIR) warp_arrive(P::EMPTY_X + slot_of<P::SX>(index));
        }
    }

    __device__ __forceinline__ void run() {
        int index = P::ALONE ? group : 0, tile = at.first + index * at.step;
#pragma unroll
        for (int i = 0; i < P::TILES * P::ACC; i++) dw[i / P::ACC][i % P::ACC] = 0.0f;
        sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
        if constexpr (!P::MAKER && !P::GIVEN)
            if (tile < a.tiles) this->make(tile, index, 0);
        ck_mbar_wait(barrier(P::FULL_W), 0);
        for (; tile < a.tiles; tile += P::AHEAD * at.step, index += P::AHEAD) step(tile, index);
    }

    /* ---- final stores of the block ---- */

    __device__ __forceinline__ void write_dw() const {
        const int64_t part = P::ALONE ? (int64_t)at.first * P::GROUPS + group : at.first;
        float        *to   = a.dw_part + (part * a.K + at.k) * a.C + at.c;
#pragma unroll
        for (int t = 0; t < P::TILES; t++)
#pragma unroll
            for (int i = 0; i < P::ACC; i += 2) {
                const int k                            = tile_k(t) * 64 + warp * 16 + lane / 4 + i / 2 % 2 * 8;
                const int c                            = (tile_c(t) ^ i / 32) * 64 + i % 32 / 4 * 8 + lane % 4 * 2;
                *(float2 *)(to + (int64_t)k * a.C + c) = make_float2(dw[t][i], dw[t][i + 1]);
            }
    }
    /* The sums of the warps that share channels, in order; `scratch` is shared memory that is no longer used. */
    __device__ __forceinline__ void write_grad_sums(uint32_t scratch) const {
        if (!P::SUMS) return;
        const int which = lane / 16, c = lane / 4 % 2 * 8 + lane % 4 * 2 + lane / 8 % 2;
#pragma unroll
        for (int i = 0; i < 4; i++)
            ck_put4(scratch + (((group * 4 + warp) * 2 + which) * 64 + 16 * i + c) * 4, __float_as_uint(sum[i]));
        ck_barrier(1 + P::GROUPS, P::WORKERS);
        for (int o = group * GROUP + thread(); o < 2 * P::C; o += P::WORKERS) {
            const int row = o / P::C, chunk = o % P::C / 64;
            if (P::PAIR && chunk != at.rank) continue;
            float s = 0.0f;
            for (int w = 0; w < P::WARPS; w++)
                if (P::PAIR || w / 4 % P::CC == chunk)
                    s += __uint_as_float(ck_get4(scratch + ((w * 2 + row) * 64 + o % 64) * 4));
            a.sums_part[((int64_t)at.first * 2 + row) * a.C + at.c + o % P::C] = s;
        }
    }
};

} // namespace

#endif
