/* sparse_nm_mma.cu: see sparse_nm.h: the kernel on mma.sp, for all GPUs from compute capability 8.0 on.
 *
 * The packed filter is operand A in the order of registers: a unit has of each of 2 steps and each of 4 warps (16 output channels) the 32
 * lanes' 4 registers; of the metadata lanes 0 and 1 of four have the first step's words, 2 and 3 the second's.
 *
 * A block makes 64 channels x 128 pixels; 4 warps have 32 pixels each. Inputs come by cp.async, a unit a stage; the filter is read from the
 * first-level cache. Limiter: those reads, and that a warp's loads of it are not ahead of its products. */
#include "sparse_nm.cuh"

namespace nm {
namespace {

enum { PIXELS = 128, WARPS = 4, STAGES = 3, STAGE_BYTES = PIXELS * POSITION, MMA_BYTES = STAGES * STAGE_BYTES };
enum { OUT_ROW = CK_NM_ROWS + 4 }; /* floats a pixel on its way out: the 4 keep a warp's stores on different banks */
static_assert(PIXELS * OUT_ROW * 4 <= MMA_BYTES, "results fit");

struct params {
    ck_nm_args a;
    ck_nm_plan plan;
};

__device__ __forceinline__ void copy_piece(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
/* d[16][8] += a[16][32 sparse] b[32][8]; the metadata is in lanes 2*HALF and 2*HALF + 1 of each four. */
#define NM_MMA(type)                                                                                                               \
    asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, " \
                 "{%8,%9,%10,%11}, {%0,%1,%2,%3}, %12, %13;"                                                                       \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                                  \
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(places), "n"(HALF))
template <typename T, int HALF> struct product;
template <int HALF> struct product<__half, HALF> {
    static __device__ __forceinline__ void add(float (&d)[4], uint4 a, const uint32_t (&b)[4], uint32_t places) { NM_MMA("f16"); }
};
template <int HALF> struct product<__nv_bfloat16, HALF> {
    static __device__ __forceinline__ void add(float (&d)[4], uint4 a, const uint32_t (&b)[4], uint32_t places) { NM_MMA("bf16"); }
};
#undef NM_MMA

struct origin {
    int64_t base; /* of the image, pixels; -1: none */
    int     h, w;
};

/* Stage of unit `unit`: row = pixel, 16-byte chunk c of a row at c ^ (row % 8). */
__device__ __forceinline__ void stage_unit(const params &p, const origin *origins, uint32_t to, int unit) {
    const ck_conv &c     = p.a.conv;
    const int      piece = (int)threadIdx.x % 8, chunk = unit / p.plan.taps, tap = p.plan.tap[unit - chunk * p.plan.taps];
    const int      channel = chunk * CK_NM_CHUNK + piece * 8, r = tap / c.S, s = tap - r * c.S;
    const bool     some = channel < c.C;
#pragma unroll
    for (int i = 0; i < PIXELS / 16; i++) {
        const int    row = i * 16 + (int)threadIdx.x / 8;
        const origin o   = origins[row];
        const int    h = o.h + r, w = o.w + s;
        const bool   in = some && o.base >= 0 && h >= 0 && h < c.H && w >= 0 && w < c.W;
        const char  *x  = static_cast<const char *>(p.a.x);
        copy_piece(to + (uint32_t)(row * 128 + (piece ^ row % 8) * 16), in ? x + ((o.base + h * c.W + w) * c.C + channel) * 2 : x,
                   in ? 16 : 0);
    }
}

template <typename T, int HALF>
__device__ __forceinline__ void multiply_step(float (&sum)[4][4][4], const uint4 *unit, const uint32_t (&places)[4], uint32_t from) {
    const int lane = (int)threadIdx.x % CK_WARP, row = (int)threadIdx.x / CK_WARP * 32 + lane % 8;
    uint32_t  b[4][4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        load_matrices(b[j], from + (uint32_t)((row + j * 8) * 128 + ((HALF * 4 + lane / 8) ^ row % 8) * 16));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint4 a = __ldg(unit + (HALF * 4 + i) * CK_WARP + lane);
#pragma unroll
        for (int j = 0; j < 4; j++) product<T, HALF>::add(sum[i][j], a, b[j], places[i]);
    }
}

/* 8 channels of an output pixel, from `from` in shared memory. */
template <typename T> __device__ __forceinline__ void finish(const ck_nm_args &a, const float *from, int64_t pixel, int64_t k) {
    const int64_t at = pixel * a.conv.K + k;
    const float4  low = *reinterpret_cast<const float4 *>(from), high = *reinterpret_cast<const float4 *>(from + 4);
    float         v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    if (a.bias) {
        const float4 b0 = *reinterpret_cast<const float4 *>(a.bias + k), b1 = *reinterpret_cast<const float4 *>(a.bias + k + 4);
        v[0] += b0.x, v[1] += b0.y, v[2] += b0.z, v[3] += b0.w;
        v[4] += b1.x, v[5] += b1.y, v[6] += b1.z, v[7] += b1.w;
    }
    if (a.add) {
        float u[8];
        ck_unpack<T>(*reinterpret_cast<const uint4 *>(static_cast<const T *>(a.add) + at), u);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] += u[i];
    }
    if (a.relu)
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = ck_relu(v[i]);
    ck_store_whole(static_cast<T *>(a.y) + at, ck_pack<T>(v));
}

template <typename T> __global__ void __launch_bounds__(WARPS *CK_WARP) conv_mma(const __grid_constant__ params p) {
    extern __shared__ __align__(128) char memory[];
    __shared__ origin                     origins[PIXELS];
    const ck_conv &c     = p.a.conv;
    const int      lane  = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP;
    const int64_t  block = blockIdx.x % p.plan.blocks, first = blockIdx.x / p.plan.blocks * PIXELS;
    for (int i = (int)threadIdx.x; i < PIXELS; i += WARPS * CK_WARP) {
        const int64_t pixel = first + i, n = pixel / (c.P * c.Q), rest = pixel - n * (c.P * c.Q);
        origins[i].base = n < c.N ? n * c.H * c.W : -1;
        origins[i].h    = (int)(rest / c.Q) * c.stride - c.pad;
        origins[i].w    = (int)(rest % c.Q) * c.stride - c.pad;
    }
    __syncthreads();
    const uint32_t shared = (uint32_t)__cvta_generic_to_shared(memory);
    const int      units  = p.plan.taps * p.plan.chunks;
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < units) stage_unit(p, origins, shared + (uint32_t)(i * STAGE_BYTES), i);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    float sum[4][4][4] = {};
    for (int u = 0; u < units; u++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        if (u + STAGES - 1 < units) stage_unit(p, origins, shared + (uint32_t)((u + STAGES - 1) % STAGES * STAGE_BYTES), u + STAGES - 1);
        asm volatile("cp.async.commit_group;" ::: "memory");
        const uint4    *unit  = static_cast<const uint4 *>(p.a.values) + (block * units + u) * (CK_NM_UNIT / 8);
        const uint32_t *words = p.a.places + (block * units + u) * CK_NM_WORDS + lane;
        const uint32_t  places[4] = {__ldg(words), __ldg(words + 32), __ldg(words + 64), __ldg(words + 96)};
        const uint32_t  from      = shared + (uint32_t)(u % STAGES * STAGE_BYTES);
        multiply_step<T, 0>(sum, unit, places, from);
        multiply_step<T, 1>(sum, unit, places, from);
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    float *out = reinterpret_cast<float *>(memory);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                out[(warp * 32 + j * 8 + lane % 4 * 2 + e % 2) * OUT_ROW + i * 16 + e / 2 * 8 + lane / 4] = sum[i][j][e];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < PIXELS * 8; i += WARPS * CK_WARP) {
        const int64_t pixel = first + i / 8, k = block * CK_NM_ROWS + i % 8 * 8;
        if (pixel < c.N * c.P * c.Q && k < c.K) finish<T>(p.a, out + i / 8 * OUT_ROW + i % 8 * 8, pixel, k);
    }
}

template <typename T> cudaError_t launch_mma(const params &p, cudaStream_t stream) {
    const cudaError_t e = cudaFuncSetAttribute(conv_mma<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, MMA_BYTES);
    if (e != cudaSuccess) return e;
    conv_mma<T><<<(unsigned)(p.plan.tiles * p.plan.blocks), WARPS * CK_WARP, MMA_BYTES, stream>>>(p);
    return cudaGetLastError();
}

} // namespace

cudaError_t conv_mma(const ck_nm_args &args, const ck_nm_plan &plan, cudaStream_t stream) {
    const params p = {args, plan};
    if (args.conv.type == CK_F16) return launch_mma<__half>(p, stream);
    if (args.conv.type == CK_BF16) return launch_mma<__nv_bfloat16>(p, stream);
    return cudaErrorInvalidValue;
}

} // namespace nm
