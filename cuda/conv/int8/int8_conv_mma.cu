/* cuda/conv/int8/int8_conv_mma.cu: 8-bit convolutions on the tensor cores of all GPUs from compute capability 8.0 on
 * (mma.sync).
 *
 * Bytes: C + K a pixel, K more with add; 2*R*S*C*K operations a pixel, exact in i32. Limiter: copies from the L2 cache,
 * R*S*C bytes for each pixel and each channel of a tile. A convolution is a product of pixels and filters; zeros are
 * copied where a filter reaches beyond the image. A block computes every gridDim-th tile; neighbouring blocks have the
 * same pixels. Copies (cp.async) run up to two steps ahead, also across tiles. Columns are in an order in which a
 * thread has 16 neighbouring channels of a pixel: it scales, adds, rounds and stores them without an exchange between
 * threads. */
#include "cuda/common/conv_family.cuh"
#include "cuda/common/hopper_int8.cuh"
#include "cuda/conv/int8/int8_conv_mma.cuh"
#include "cuda/conv/int8/int8_store.cuh"

namespace {

/* Four f32 values; from `limit` on 0. */
__device__ __forceinline__ void load_four(float *to, const float *from, int limit, bool aligned) {
    if (aligned && limit >= 4) {
        const float4 v = __ldg(reinterpret_cast<const float4 *>(from));
        to[0]          = v.x;
        to[1]          = v.y;
        to[2]          = v.z;
        to[3]          = v.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) to[i] = i < limit ? __ldg(from + i) : 0.0f;
}

/* What one warp multiplies and stores. */
template <class T> struct worker {
    const params &p;
    const int     lane, first, column; /* first row and column of the warp in the tile */
    int           acc[T::HEIGHT][GROUP / 8][4];

    __device__ explicit worker(const params &params_)
        : p(params_), lane((int)threadIdx.x % 32), first((int)threadIdx.x / 32 % T::SIDE * T::HEIGHT * 16),
          column((int)threadIdx.x / 32 / T::SIDE * GROUP) {}

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < T::HEIGHT * GROUP / 8 * 4; i++) acc[i / (GROUP / 2)][i / 4 % (GROUP / 8)][i % 4] = 0;
    }
    template <bool SIGNED> __device__ __forceinline__ void multiply(uint32_t stage) {
#pragma unroll
        for (int k = 0; k < STEP / 32; k++) {
            uint32_t a[T::HEIGHT][4];
#pragma unroll
            for (int i = 0; i < T::HEIGHT; i++)
                ck_ldmatrix(a[i], chunk_at(stage, first + i * 16 + lane % 16, 2 * k + lane / 16));
#pragma unroll
            for (int n = 0; n < GROUP / 8; n += 2) {
                uint32_t b[4];
                ck_ldmatrix(
                    b, chunk_at(stage + T::X_BYTES, column + n * 8 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
#pragma unroll
                for (int i = 0; i < T::HEIGHT; i++) {
                    multiply_add<SIGNED>(acc[i][n], a[i], b[0], b[1]);
                    multiply_add<SIGNED>(acc[i][n + 1], a[i], b[2], b[3]);
                }
            }
        }
    }

    /* The thread's 16 channels of one pixel; bytes: of add. */
    template <int TYPE>
    __device__ __forceinline__ void store(const int (&sums)[GROUP / 8][4], int half, int pixel, int channel,
                                          const float (&scale)[16], const float (&bias)[16], uint4 bytes,
                                          float add_scale) const {
        const int     count = min(16, p.K - channel);
        const int64_t at    = (int64_t)pixel * p.K + channel;
        float         v[16];
        if (pixel >= p.pixels || count <= 0) return;
#pragma unroll
        for (int k = 0; k < 16; k++) v[k] = fmaf((float)sums[k / 2][half * 2 + k % 2], scale[k], bias[k]);
        if (p.add) {
            if (p.add_signed)
                ck_add_bytes<true>(bytes, add_scale, v);
            else
                ck_add_bytes<false>(bytes, add_scale, v);
        }
        if (TYPE != CK_INT8_U8 && p.least == 0.0f) {
#pragma unroll
            for (int k = 0; k < 16; k++) v[k] = ck_at_least(v[k], p.least);
        }
        store_channels<TYPE>(p.y, at, v, count, count == 16 && p.K % (16 / bytes_of<TYPE>) == 0);
    }
    /* y may be add, so the compiler keeps the order of loads and stores. Several loads are started at once here. */
    template <int TYPE> __device__ __forceinline__ void finish(int tile) const {
        constexpr int FETCHED = T::HEIGHT == 4 ? 4 : 2;
        const int     channel = tile % p.blocks_k * T::COLUMNS + column + lane % 4 * 16;
        const int     pixel   = tile / p.blocks_k * T::ROWS + first + lane / 4;
        const float   add     = p.add ? __ldg(p.coeffs + 2 * (int64_t)p.K) : 0.0f;
        float         scale[16], bias[16];
#pragma unroll
        for (int i = 0; i < 2 * T::HEIGHT; i += FETCHED) {
            uint4 bytes[FETCHED] = {};
#pragma unroll
            for (int k = 0; k < FETCHED; k++) {
                const int at = pixel + (i + k) * 8;
                if (p.add && at < p.pixels && channel < p.K)
                    bytes[k] = *reinterpret_cast<const uint4 *>(p.add + (int64_t)at * p.K + channel);
            }
            if (i == 0) {
#pragma unroll
                for (int k = 0; k < 16; k += 4) {
                    load_four(scale + k, p.coeffs + channel + k, p.K - channel - k, true);
                    load_four(bias + k, p.coeffs + p.K + channel + k, p.K - channel - k, p.K % 4 == 0);
                }
            }
#pragma unroll
            for (int k = 0; k < FETCHED; k++)
                store<TYPE>(acc[(i + k) / 2], (i + k) % 2, pixel + (i + k) * 8, channel, scale, bias, bytes[k], add);
        }
    }
    __device__ __forceinline__ void finish_any(int tile) const {
        switch (p.y_type) {
        case CK_INT8_U8: finish<CK_INT8_U8>(tile); break;
        case CK_INT8_I8: finish<CK_INT8_I8>(tile); break;
        case CK_INT8_F16: finish<CK_INT8_F16>(tile); break;
        case CK_INT8_BF16: finish<CK_INT8_BF16>(tile); break;
        default: finish<CK_INT8_F32>(tile); break;
        }
    }
};

template <class T, bool SIGNED> __device__ __forceinline__ void run(const params &p, uint32_t shared) {
    copier<T> copies(p, shared);
    worker<T> work(p);
#pragma unroll
    for (int s = 0; s < T::STAGES - 1; s++) copies.next(s);
    int stage = 0;
    for (int tile = (int)blockIdx.x; tile < p.tiles; tile += (int)gridDim.x) {
        work.clear();
        for (int step = 0; step < p.steps; step++) {
            ck_copy_wait<T::STAGES - 2>();
            __syncthreads(); /* the copies of all threads are visible, and no warp reads the stage before this one */
            copies.next(stage ? stage - 1 : T::STAGES - 1);
            work.template multiply<SIGNED>(shared + (uint32_t)(stage * (T::BYTES / T::STAGES)));
            stage = stage + 1 < T::STAGES ? stage + 1 : 0;
        }
        work.finish_any(tile);
    }
}

template <class T>
__global__ void __launch_bounds__(THREADS, T::BLOCKS) int8_conv_mma(const __grid_constant__ params p) {
    extern __shared__ __align__(128) unsigned char memory[];
    ck_begin_after_last();
    if (p.x_signed)
        run<T, true>(p, ck_shared(memory));
    else
        run<T, false>(p, ck_shared(memory));
}

/* ---- host side ---- */

template <class T> cudaError_t start(params *p, int multiprocessors, cudaStream_t stream) {
    static_assert(T::BYTES <= 48 << 10, "every GPU has it");
    p->blocks_k            = (p->K + T::COLUMNS - 1) / T::COLUMNS;
    const int64_t tiles    = ((int64_t)p->pixels + T::ROWS - 1) / T::ROWS * p->blocks_k;
    const int64_t resident = (int64_t)multiprocessors * T::BLOCKS;
    if (tiles > INT32_MAX / 2) return cudaErrorInvalidValue;
    p->tiles = (int)tiles;
    return ck_launch(int8_conv_mma<T>, dim3((unsigned)(tiles < resident ? tiles : resident)), dim3(THREADS),
                     (size_t)T::BYTES, stream, *p);
}

int configs(const struct ck_int8_conv *a, const struct ck_gpu *) {
    const int64_t most = INT32_MAX / 4;
    if (a->C < 16 || a->C % 16 || a->C > 8192 || a->K < 1 || a->K > 8192 || a->N < 1) return 0;
    if (a->R < 1 || a->R > 16 || a->S < 1 || a->S > 16 || a->stride > 8 || a->pad > 15 || a->P < 1 || a->Q < 1)
        return 0;
    if (a->has_add && a->K % 16) return 0;
    if (a->H > most / a->W || a->N > most / (a->H * a->W) || a->N > most / (a->P * a->Q)) return 0;
    return a->K > GROUP ? 3 : 2;
}

cudaError_t launch(const struct ck_int8_conv *a, void *, const struct ck_gpu *gpu, cudaStream_t stream) {
    const int count = configs(a, gpu);
    if (a->config < 0 || a->config >= count) return cudaErrorInvalidValue;
    params p       = {};
    p.x            = static_cast<const uint8_t *>(a->x);
    p.w            = a->w;
    p.coeffs       = a->coeffs;
    p.add          = static_cast<const uint8_t *>(a->add);
    p.y            = a->y;
    p.pixels       = (int)(a->N * a->P * a->Q);
    p.C            = (int)a->C;
    p.K            = (int)a->K;
    p.H            = (int)a->H;
    p.W            = (int)a->W;
    p.P            = (int)a->P;
    p.Q            = (int)a->Q;
    p.R            = a->R;
    p.S            = a->S;
    p.stride       = a->stride;
    p.pad          = a->pad;
    p.filter_bytes = (int)(a->R * a->S * a->C);
    p.steps        = (p.filter_bytes + STEP - 1) / STEP;
    p.y_type       = a->y_type;
    p.least        = a->relu ? 0.0f : -INFINITY;
    p.x_signed     = a->x_type == CK_INT8_I8;
    p.add_signed   = a->add_type == CK_INT8_I8;
    switch (count - a->config) {
    case 1: return start<tiling<64, 64>>(&p, gpu->multiprocessors, stream);
    case 2: return start<tiling<128, 64>>(&p, gpu->multiprocessors, stream);
    default: return start<tiling<128, 128>>(&p, gpu->multiprocessors, stream);
    }
}

} // namespace

const struct ck_conv_family ck_int8_conv_mma = ck_family<ck_int8_conv, configs, ck_no_workspace, launch>();
