/* cuda/conv/int8/int8_split_sm90a.cu: 8-bit convolutions of few pixels on compute capability 9.0: the last tile configs
 * of the family int8_conv (cuda/conv/int8/int8_conv_sm90a.cu). See cuda/common/split_conv.cuh. The sums are exact in
 * i32. */
#include "cuda/common/split_conv.cuh"
#include "cuda/conv/int8/int8_store.cuh"

namespace {

struct params {
    struct split_plan plan;
    const float      *coeffs;
    const uint8_t    *add;
    void             *y;
    int               K, y_type;
    bool              relu, add_signed;
};

template <int COLUMNS, int PARTS, int CHUNK, bool SIGNED>
struct tile : split_kind<COLUMNS, PARTS, CHUNK, 1, int, true> {
#if CK_HAS_SM90A
    static __device__ __forceinline__ void product(int (&acc)[COLUMNS / 2], uint64_t x, uint64_t w, int keep) {
        ck_wgmma_int8<SIGNED, COLUMNS>::run(acc, x, w, keep);
    }
#endif
};

#if CK_HAS_SM90A
template <int ROUNDS> struct output {
    const params &p;
    float         scale[4], bias[4], add_scale;
    uint32_t      added[ROUNDS];
    __device__    output(const params &params_) : p(params_) {}

    __device__ __forceinline__ void load_coeffs(int channel) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const bool real = channel + k < p.K;
            scale[k]        = real ? __ldg(p.coeffs + channel + k) : 0.0f;
            bias[k]         = real ? __ldg(p.coeffs + p.K + channel + k) : 0.0f;
        }
        add_scale = p.add ? __ldg(p.coeffs + 2 * p.K) : 0.0f;
    }
    __device__ __forceinline__ void load_add(int round, int64_t at, bool stores) {
        added[round] = p.add && stores ? *reinterpret_cast<const volatile uint32_t *>(p.add + at) : 0u;
    }
    __device__ __forceinline__ void store(int round, int64_t at, const int (&sum)[4]) const {
        float v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t byte = added[round] >> 8 * k & 255u;
            v[k]                = fmaf((float)sum[k], scale[k], bias[k]);
            if (p.add) v[k] = fmaf(p.add_signed ? (float)(int8_t)byte : (float)byte, add_scale, v[k]);
            if (p.relu) v[k] = ck_at_least(v[k], 0.0f);
        }
        if (p.y_type == CK_INT8_U8) {
            *reinterpret_cast<uint32_t *>(static_cast<uint8_t *>(p.y) + at) = pack_four<false>(v);
        } else if (p.y_type == CK_INT8_I8) {
            *reinterpret_cast<uint32_t *>(static_cast<uint8_t *>(p.y) + at) = pack_four<true>(v);
        } else if (p.y_type == CK_INT8_F32) {
            *reinterpret_cast<float4 *>(static_cast<float *>(p.y) + at) = make_float4(v[0], v[1], v[2], v[3]);
        } else {
            const bool  half = p.y_type == CK_INT8_F16;
            const uint2 words =
                half ? make_uint2(ck_pack_word<__half>(v[0], v[1]), ck_pack_word<__half>(v[2], v[3]))
                     : make_uint2(ck_pack_word<__nv_bfloat16>(v[0], v[1]), ck_pack_word<__nv_bfloat16>(v[2], v[3]));
            *reinterpret_cast<uint2 *>(static_cast<uint16_t *>(p.y) + at) = words;
        }
    }
};
#endif

template <int COLUMNS, int PARTS, int CHUNK, bool SIGNED>
__global__ void __launch_bounds__(SPLIT_THREADS, 1) int8_split(const __grid_constant__ params p) {
#if CK_HAS_SM90A
    using Tile = tile<COLUMNS, PARTS, CHUNK, SIGNED>;
    split_block<Tile>(p.plan, output<Tile::ROUNDS>(p));
#else
    __trap();
#endif
}

/* ---- host side ---- */

int chunk_of(const struct ck_int8_conv *a) {
    return a->C % 128 == 0 ? 128 : 64;
}

bool make_maps(struct split_plan *p, const struct ck_int8_conv *a) {
    const int     low[2] = {-a->pad, -a->pad}, high[2] = {a->pad - (a->S - 1), a->pad - (a->R - 1)};
    const int     chunk   = chunk_of(a);
    const int64_t filters = (a->K + SPLIT_GROUPED - 1) / SPLIT_GROUPED * SPLIT_GROUPED, row = a->R * a->S * a->C;
    if (!ck_tma_byte_matrix(&p->w, a->packed, filters, row, chunk, p->columns)) return false;
    if (p->by_pixel)
        return ck_tma_byte_pixels(&p->x, a->x, a->N, a->H, a->W, a->C, low, high, a->stride, chunk, SPLIT_ROWS);
    return ck_tma_byte_matrix(&p->x, a->x, p->positions, a->C, chunk, SPLIT_ROWS);
}

template <int COLUMNS, int PARTS, int CHUNK> auto kernel_of(bool is_signed) {
    return is_signed ? int8_split<COLUMNS, PARTS, CHUNK, true> : int8_split<COLUMNS, PARTS, CHUNK, false>;
}

int configs(const struct ck_int8_conv *a, const struct ck_gpu *gpu) {
    struct split_plan plan;
    return split_find_plan(&plan, a, -1, chunk_of(a), chunk_of(a), gpu->multiprocessors);
}

cudaError_t launch(const struct ck_int8_conv *a, void *, const struct ck_gpu *gpu, cudaStream_t stream) {
    struct params p     = {};
    const int     chunk = chunk_of(a);
    if (a->config < 0 || split_find_plan(&p.plan, a, a->config, chunk, chunk, gpu->multiprocessors) <= a->config)
        return cudaErrorInvalidValue;
    p.coeffs             = a->coeffs;
    p.add                = static_cast<const uint8_t *>(a->add);
    p.y                  = a->y;
    p.K                  = (int)a->K;
    p.y_type             = a->y_type;
    p.relu               = a->relu;
    p.add_signed         = a->add_type == CK_INT8_I8;
    const bool is_signed = a->x_type == CK_INT8_I8;
    if (!make_maps(&p.plan, a)) return cudaErrorNotSupported;
    return split_by_tile(&p.plan, [&](auto tile) {
        using Tile        = decltype(tile);
        const auto kernel = chunk == 64 ? kernel_of<Tile::COLUMNS, Tile::PARTS, 64>(is_signed)
                                        : kernel_of<Tile::COLUMNS, Tile::PARTS, 128>(is_signed);
        return split_start(kernel, &p.plan, p, stream);
    });
}

} // namespace

const struct ck_conv_family ck_int8_split_wgmma = ck_family<ck_int8_conv, configs, ck_no_workspace, launch>();
