/* cuda/conv/int8/int8_split_sm90a.cu: 8-bit convolutions of few pixels on compute capability
 * 9.0: the last tile configs of the family int8_conv (cuda/conv/int8/int8_conv_sm90a.cu).
 *
 * With one image a convolution of 7x7 pixels and 512 channels has 8 tiles of 64 x 64 outputs: 8 of 132 multiprocessors
 * would read the whole filter. Here a cluster of 2, 4 or 8 blocks computes a tile. Each block has a part of the steps
 * (a filter position and `chunk` channels), all of them in shared memory at once, and loads its part of the filter
 * before the launch before it has ended. Then each block sends its sums to the blocks that store them, 8 pixels each
 * for 8 blocks, through distributed shared memory. The sums are exact in i32, so their order does not matter. */
#include "cuda/common/conv_family.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/conv/int8/int8_conv_work.cuh"

namespace {

enum {
    COLUMNS    = 64, /* of a tile */
    UNITS      = 8,  /* of 8 rows: what a block sends to another */
    UNIT_BYTES = 8 * COLUMNS * 4,
    SUMS_BYTES = UNITS * UNIT_BYTES,
    THREADS    = GROUP + 32 /* one warpgroup multiplies, one warp loads */
};

/* Offsets are into shared memory: the steps' tiles of x and of the filter are first. */
struct split_params {
    CUtensorMap    x, w;
    const float   *coeffs;
    const uint8_t *add;
    void          *y;
    int            parts, steps, chunks; /* blocks of a cluster; steps of a tile; steps over the channels */
    int            blocks_k, positions, K, P, Q, S, stride, pad;
    int            sums_at, bar_at, bytes;
    int            y_type;
    bool           relu, add_signed, early, by_pixel;
};

#if CK_HAS_SM90A

/* This block's tile and steps. */
struct share {
    int        rank, row, column, first, count;
    __device__ share(const split_params &p) {
        const int tile = (int)blockIdx.x / p.parts;
        rank           = (int)blockIdx.x % p.parts;
        row            = tile / p.blocks_k * ROWS;
        column         = tile % p.blocks_k * COLUMNS;
        first          = p.steps * rank / p.parts;
        count          = p.steps * (rank + 1) / p.parts - first;
    }
};

/* Barrier `i` counts the bytes of step `i`: of x and of the filter. */
template <int CHUNK> struct loader {
    static constexpr uint32_t TILE = ROWS * CHUNK;
    const split_params       &p;
    const share               mine;
    const uint32_t            shared, bars;
    __device__                loader(const split_params &params_, uint32_t shared_)
        : p(params_), mine(params_), shared(shared_), bars(shared_ + (uint32_t)params_.bar_at) {}

    __device__ __forceinline__ void load_filter() const {
        for (int i = 0; i < mine.count; i++) {
            const uint32_t bar = bars + 8 * (uint32_t)i;
            ck_mbar_expect(bar, 2 * TILE);
            ck_tma_load(shared + (uint32_t)(2 * i + 1) * TILE, &p.w, bar, (mine.first + i) * CHUNK, mine.column);
        }
    }
    __device__ __forceinline__ void load_x() const {
        const int line = mine.row / p.Q, w = mine.row - line * p.Q, n = line / p.P, h = line - n * p.P;
        for (int i = 0; i < mine.count; i++) {
            const uint32_t bar = bars + 8 * (uint32_t)i, to = shared + (uint32_t)(2 * i) * TILE;
            const int      step = mine.first + i, tap = step / p.chunks, c = step - tap * p.chunks, r = tap / p.S;
            if (p.by_pixel)
                ck_tma_load_pixels(to, &p.x, bar, c * CHUNK, w * p.stride - p.pad, h * p.stride - p.pad, n,
                                   tap - r * p.S, r);
            else
                ck_tma_load(to, &p.x, bar, c * CHUNK, mine.row);
        }
    }
};

/* Where the 16 bytes `part` (four columns) of row `row` of a unit are: neighbouring threads use different banks. */
__device__ __forceinline__ uint32_t sums_place(int row, int part) {
    return (uint32_t)(row * COLUMNS * 4 + (part ^ (part >> 3 & 1) ^ (row & 1) << 1) * 16);
}

template <int CHUNK, bool SIGNED> struct split_worker {
    const split_params &p;
    const share         mine;
    const int           thread, warp, lane, each; /* each: units that a block stores */
    const uint32_t      shared;
    int                 acc[COLUMNS / 2];
    float               scale[4], bias[4];

    __device__ split_worker(const split_params &params_, uint32_t shared_)
        : p(params_), mine(params_), thread((int)threadIdx.x), warp((int)threadIdx.x / 32), lane((int)threadIdx.x % 32),
          each(UNITS / params_.parts), shared(shared_) {}

    /* The first of the thread's four channels when sums are stored. */
    __device__ __forceinline__ int  channel() const { return mine.column + thread % 16 * 4; }
    __device__ __forceinline__ void load_coeffs() {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const bool real = channel() + k < p.K;
            scale[k]        = real ? __ldg(p.coeffs + channel() + k) : 0.0f;
            bias[k]         = real ? __ldg(p.coeffs + p.K + channel() + k) : 0.0f;
        }
    }

    __device__ __forceinline__ void multiply() {
        const uint32_t bars = shared + (uint32_t)p.bar_at, tile = ROWS * CHUNK;
        for (int i = 0; i < mine.count; i++) {
            ck_mbar_wait(bars + 8 * (uint32_t)i, 0);
            ck_wgmma_fence();
#pragma unroll
            for (int k = 0; k < CHUNK / 32; k++)
                ck_wgmma_int8<SIGNED, COLUMNS>::run(
                    acc, ck_operand_rows<CHUNK>(shared + 2 * (uint32_t)i * tile) + 2 * k,
                    ck_operand_rows<CHUNK>(shared + (2 * (uint32_t)i + 1) * tile) + 2 * k, i + k);
            ck_wgmma_commit();
        }
        ck_wgmma_wait<0>();
        ck_wgmma_hold(acc);
    }

    /* Sends the sums of each unit to the block that stores it. A thread has 16 channels of two pixels. */
    __device__ __forceinline__ void send() const {
        const int q = lane % 4, row = lane / 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int      unit = warp * 2 + half;
            const uint32_t slot = shared + (uint32_t)(p.sums_at + (mine.rank * each + unit % each) * UNIT_BYTES);
            const uint32_t to   = ck_other_block(slot, unit / each);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float v[4];
#pragma unroll
                for (int k = 0; k < 4; k++) v[k] = __int_as_float(acc[(4 * i + k) / 2 * 4 + half * 2 + k % 2]);
                ck_send_four(to + sums_place(row, 4 * q + i), v);
            }
        }
    }

    __device__ __forceinline__ void store_four(int64_t at, const float (&v)[4]) const {
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

    /* Adds the parts of the sums of a unit, and stores four channels of a pixel. */
    __device__ __forceinline__ void finish(int number, uint32_t added, float add_scale) const {
        const int unit = mine.rank * each + number, position = mine.row + unit * 8 + thread / 16;
        int       sum[4] = {};
        for (int part = 0; part < p.parts; part++) {
            const uint4 v = ck_get16(shared + (uint32_t)(p.sums_at + (part * each + number) * UNIT_BYTES) +
                                     sums_place(thread / 16, thread % 16));
            sum[0] += (int)v.x;
            sum[1] += (int)v.y;
            sum[2] += (int)v.z;
            sum[3] += (int)v.w;
        }
        float v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t byte = added >> 8 * k & 255u;
            v[k]                = fmaf((float)sum[k], scale[k], bias[k]);
            if (p.add) v[k] = fmaf(p.add_signed ? (float)(int8_t)byte : (float)byte, add_scale, v[k]);
            if (p.relu) v[k] = ck_at_least(v[k], 0.0f);
        }
        if (position < p.positions && channel() < p.K) store_four((int64_t)position * p.K + channel(), v);
    }
    /* The thread's four bytes of add. */
    __device__ __forceinline__ uint32_t get_add(int number) const {
        const int position = mine.row + (mine.rank * each + number) * 8 + thread / 16;
        if (!p.add || position >= p.positions || channel() >= p.K) return 0;
        return *reinterpret_cast<const volatile uint32_t *>(p.add + (int64_t)position * p.K + channel());
    }
};

#endif

template <int CHUNK, bool SIGNED>
__global__ void __launch_bounds__(THREADS, 1) int8_split(const __grid_constant__ split_params p) {
#if CK_HAS_SM90A
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t                                  shared = ck_shared(memory);
    const bool                                      loads  = (int)threadIdx.x == GROUP;
    split_worker<CHUNK, SIGNED>                     worker(p, shared);
    uint32_t                                        added[UNITS / 2];
    if (loads) {
        for (int i = 0; i < worker.mine.count; i++) ck_mbar_init(shared + (uint32_t)(p.bar_at + 8 * i), 1);
        ck_mbar_init_fence();
        ck_tma_prefetch(&p.w);
        ck_tma_prefetch(&p.x);
    }
    ck_cluster_sync(); /* blocks send to each other only after all have started */
    if (!p.early) ck_wait_for_last();
    if (threadIdx.x >= GROUP) {
        const loader<CHUNK> loader(p, shared);
        if (loads) loader.load_filter();
        ck_begin_after_last();
        if (loads) loader.load_x();
    } else {
        worker.load_coeffs();
        ck_begin_after_last();
        const float add_scale = p.add ? __ldg(p.coeffs + 2 * p.K) : 0.0f;
#pragma unroll
        for (int i = 0; i < UNITS / 2; i++) added[i] = i < worker.each ? worker.get_add(i) : 0u;
        worker.multiply();
        worker.send();
        ck_cluster_sync();
#pragma unroll
        for (int i = 0; i < UNITS / 2; i++)
            if (i < worker.each) worker.finish(i, added[i], add_scale);
        return;
    }
    ck_cluster_sync();
#else
    (void)p;
    __trap();
#endif
}

/* ---- host side ---- */

const int part_counts[] = {2, 4, 8};

/* Sets what depends on sizes. Returns false when the arguments are not supported. */
bool make_plan(struct split_params *p, const struct ck_int8_conv *a, int config, int multiprocessors) {
    const int     chunk = a->C % 128 == 0 ? 128 : 64, parts = part_counts[config];
    const int64_t positions = a->N * a->P * a->Q, rows = (positions + ROWS - 1) / ROWS;
    if (a->C < 64 || a->C % 64 || a->K < 4 || a->K % 4 || a->R > 16 || a->S > 16 || a->stride > 8 || a->pad > 15)
        return false;
    if (a->C > 8192 || a->K > 8192 || positions < 1 || positions > 1 << 20) return false;
    p->parts       = parts;
    p->chunks      = (int)a->C / chunk;
    p->steps       = a->R * a->S * p->chunks;
    p->blocks_k    = (int)(a->K + COLUMNS - 1) / COLUMNS;
    const int most = (p->steps + parts - 1) / parts; /* steps of a block */
    if (p->steps < parts || rows * p->blocks_k * parts > 2 * multiprocessors) return false;
    p->sums_at   = most * 2 * ROWS * chunk;
    p->bar_at    = p->sums_at + SUMS_BYTES;
    p->bytes     = p->bar_at + 8 * most;
    p->positions = (int)positions;
    return p->bytes <= SHARED_LIMIT;
}

bool make_maps(struct split_params *p, const struct ck_int8_conv *a, int chunk) {
    const int     low[2] = {-a->pad, -a->pad}, high[2] = {a->pad - (a->S - 1), a->pad - (a->R - 1)};
    const int64_t filters = (a->K + 63) / 64 * 64, row = a->R * a->S * a->C;
    if (!ck_tma_byte_matrix(&p->w, a->packed, filters, row, chunk, COLUMNS)) return false;
    if (p->by_pixel) return ck_tma_byte_pixels(&p->x, a->x, a->N, a->H, a->W, a->C, low, high, a->stride, chunk, ROWS);
    return ck_tma_byte_matrix(&p->x, a->x, p->positions, a->C, chunk, ROWS);
}

template <int CHUNK, bool SIGNED> cudaError_t start(const struct split_params *p, cudaStream_t stream) {
    const auto          kernel        = int8_split<CHUNK, SIGNED>;
    const cudaError_t   error         = ck_allow_shared(kernel, p->bytes);
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t  config        = {};
    if (error != cudaSuccess) return error;
    attributes[0].id                                         = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id                                         = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x                           = (unsigned)p->parts;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    config.gridDim          = dim3((unsigned)((p->positions + ROWS - 1) / ROWS * p->blocks_k * p->parts));
    config.blockDim         = dim3(THREADS);
    config.dynamicSmemBytes = (size_t)p->bytes;
    config.stream           = stream;
    config.attrs            = attributes;
    config.numAttrs         = 2;
    return cudaLaunchKernelEx(&config, kernel, *p);
}

int configs(const struct ck_int8_conv *a, const struct ck_gpu *gpu) {
    struct split_params p     = {};
    int                 count = 0;
    for (int i = 0; i < (int)(sizeof part_counts / sizeof *part_counts); i++)
        count += make_plan(&p, a, i, gpu->multiprocessors) ? 1 : 0;
    return count;
}

cudaError_t launch(const struct ck_int8_conv *a, void *, const struct ck_gpu *gpu, cudaStream_t stream) {
    struct split_params p     = {};
    int                 found = -1;
    bool                fits  = false;
    for (int i = 0; i < (int)(sizeof part_counts / sizeof *part_counts) && found < a->config; i++) {
        fits = make_plan(&p, a, i, gpu->multiprocessors);
        found += fits ? 1 : 0;
    }
    if (a->config < 0 || found != a->config || !fits) return cudaErrorInvalidValue;
    p.coeffs        = a->coeffs;
    p.add           = static_cast<const uint8_t *>(a->add);
    p.y             = a->y;
    p.K             = (int)a->K;
    p.P             = (int)a->P;
    p.Q             = (int)a->Q;
    p.S             = a->S;
    p.stride        = a->stride;
    p.pad           = a->pad;
    p.y_type        = a->y_type;
    p.relu          = a->relu;
    p.add_signed    = a->add_type == CK_INT8_I8;
    p.early         = a->early;
    p.by_pixel      = a->stride > 1 || a->pad > 0 || a->R > 1 || a->S > 1;
    const int chunk = a->C % 128 == 0 ? 128 : 64;
    if (!make_maps(&p, a, chunk)) return cudaErrorNotSupported;
    if (chunk == 64) return a->x_type == CK_INT8_I8 ? start<64, true>(&p, stream) : start<64, false>(&p, stream);
    return a->x_type == CK_INT8_I8 ? start<128, true>(&p, stream) : start<128, false>(&p, stream);
}

} // namespace

const struct ck_conv_family ck_int8_split_wgmma = ck_family<ck_int8_conv, configs, ck_no_workspace, launch>();
