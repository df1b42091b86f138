/* cuda/conv/fused/split_conv_sm90a.cu: the family split_conv on compute capability 9.0: convolutions of few pixels in
 * 16 bits (cuda/common/fused_conv.h). See cuda/common/split_conv.cuh. */
#include "cuda/common/fused_conv.h"
#include "cuda/common/split_conv.cuh"

namespace {

enum { CHANNELS = 64, CHUNK = 2 * CHANNELS /* bytes of a row of shared memory */ };

struct params {
    struct split_plan plan;
    const float      *bias;
    const void       *add;
    void             *y;
    int               K;
    bool              relu;
};

template <typename T, int COLUMNS, int PARTS> struct tile : split_kind<COLUMNS, PARTS, CHUNK, 2, float, false> {
#if CK_HAS_SM90A
    static __device__ __forceinline__ void product(float (&acc)[COLUMNS / 2], uint64_t x, uint64_t w, int keep) {
        ck_wgmma<T, COLUMNS>::template both<0>(acc, x, w, keep);
    }
#endif
};

#if CK_HAS_SM90A
template <typename T, int ROUNDS> struct output {
    const params &p;
    float         bias[4];
    uint2         added[ROUNDS];
    __device__    output(const params &params_) : p(params_) {}

    __device__ __forceinline__ void load_coeffs(int channel) {
#pragma unroll
        for (int k = 0; k < 4; k++) bias[k] = channel < p.K ? __ldg(p.bias + channel + k) : 0.0f;
    }
    __device__ __forceinline__ void load_add(int round, int64_t at, bool stores) {
        added[round] = make_uint2(0, 0);
        if (!p.add || !stores) return;
        const volatile uint32_t *from = static_cast<const uint32_t *>(p.add) + at / 2;
        added[round]                  = make_uint2(from[0], from[1]);
    }
    __device__ __forceinline__ void store(int round, int64_t at, const float (&sum)[4]) const {
        const float2 low = ck_unpack_word<T>(added[round].x), high = ck_unpack_word<T>(added[round].y);
        const float  add[4] = {low.x, low.y, high.x, high.y};
        float        v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            v[k] = sum[k] + bias[k];
            if (p.add) v[k] += add[k];
            if (p.relu) v[k] = ck_at_least(v[k], 0.0f);
        }
        *reinterpret_cast<uint2 *>(static_cast<T *>(p.y) + at) =
            make_uint2(ck_pack_word<T>(v[0], v[1]), ck_pack_word<T>(v[2], v[3]));
    }
};
#endif

template <typename T, int COLUMNS, int PARTS>
__global__ void __launch_bounds__(SPLIT_THREADS, 1) split_conv(const __grid_constant__ params p) {
#if CK_HAS_SM90A
    using Tile = tile<T, COLUMNS, PARTS>;
    split_block<Tile>(p.plan, output<T, Tile::ROUNDS>(p));
#else
    __trap();
#endif
}

/* ---- host side ---- */

/* Programs of inference have biases. */
bool supports(const struct ck_fused_conv *a) {
    return a->type != CK_F32 && a->has_bias && a->K % 8 == 0 && !a->transposed && !a->has_scale_bias && !a->has_bn_x &&
           !a->has_sums && !a->has_out_scale_bias && !a->has_mask && !a->has_second;
}

bool make_maps(struct split_plan *p, const struct ck_fused_conv *a) {
    const int low[2] = {-a->pad, -a->pad}, high[2] = {a->pad - (a->S - 1), a->pad - (a->R - 1)};
    if (!ck_tma_matrix(&p->w, a->type, a->w, a->K, a->R * a->S * a->C, p->columns)) return false;
    if (p->by_pixel)
        return ck_tma_pixels(&p->x, a->type, a->x, a->N, a->H, a->W, a->C, low, high, a->stride, SPLIT_ROWS);
    return ck_tma_matrix(&p->x, a->type, a->x, p->positions, a->C, SPLIT_ROWS);
}

int configs(const struct ck_fused_conv *a, const struct ck_gpu *gpu) {
    struct split_plan plan;
    return supports(a) ? split_find_plan(&plan, a, -1, CHANNELS, CHUNK, gpu->multiprocessors) : 0;
}

cudaError_t launch(const struct ck_fused_conv *a, void *, const struct ck_gpu *gpu, cudaStream_t stream) {
    struct params p = {};
    if (a->config < 0 || !supports(a) ||
        split_find_plan(&p.plan, a, a->config, CHANNELS, CHUNK, gpu->multiprocessors) <= a->config)
        return cudaErrorInvalidValue;
    p.bias = a->bias;
    p.add  = a->has_add ? a->add : nullptr;
    p.y    = a->y;
    p.K    = (int)a->K;
    p.relu = a->relu;
    if (!make_maps(&p.plan, a)) return cudaErrorNotSupported;
    return ck_by_half(a->type, [&](auto t) {
        return split_by_tile(&p.plan, [&](auto tile) {
            using Tile = decltype(tile);
            return split_start(split_conv<decltype(t), Tile::COLUMNS, Tile::PARTS>, &p.plan, p, stream);
        });
    });
}

} // namespace

const struct ck_conv_family ck_split_conv_wgmma = ck_family<ck_fused_conv, configs, ck_no_workspace, launch>();
