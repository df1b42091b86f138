/* cuda/common/common.cuh: helpers for .cu files: 16-byte vectors of f32, f16 and bf16, sums over a warp and a block,
 * grid sizes.
 *
 * Invariants
 *   - A vector is 16 bytes: ck_vector_elems<T>() elements at an address that is a multiple of 16.
 *   - Loading and unpacking are separate functions, so that a thread can have several loads in flight before it uses
 *     one.
 *   - Loads and stores are plain. A kernel may overwrite its input (INPLACE in graph/ops.def) if each thread reads its
 *     elements before it writes them.
 *   - The order of a sum depends on sizes only. */
#ifndef CK_COMMON_CUH
#define CK_COMMON_CUH

#include "cuda/common/launchers.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

enum { CK_WARP = 32, CK_VECTOR_BYTES = 16 };

/* ---- one element ---- */

__device__ __forceinline__ float ck_float(float x) {
    return x;
}
__device__ __forceinline__ float ck_float(__half x) {
    return __half2float(x);
}
__device__ __forceinline__ float ck_float(__nv_bfloat16 x) {
    return __bfloat162float(x);
}

/* Rounds to nearest, ties to even. Overflow becomes infinity; NaN stays NaN. */
template <typename T> __device__ __forceinline__ T ck_round(float x);
template <> __device__ __forceinline__ float       ck_round<float>(float x) {
          return x;
}
template <> __device__ __forceinline__ __half ck_round<__half>(float x) {
    return __float2half_rn(x);
}
template <> __device__ __forceinline__ __nv_bfloat16 ck_round<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}

/* max(x, 0); NaN stays NaN. */
__device__ __forceinline__ float ck_relu(float x) {
    return x < 0.0f ? 0.0f : x;
}

/* ---- 16 bytes ---- */

template <typename T> __host__ __device__ constexpr int ck_vector_elems() {
    return CK_VECTOR_BYTES / (int)sizeof(T);
}

/* Loads vector `i` of an array. */
template <typename T> __device__ __forceinline__ uint4 ck_load(const T *array, int64_t i) {
    return reinterpret_cast<const uint4 *>(array)[i];
}
template <typename T> __device__ __forceinline__ void ck_store(T *array, int64_t i, uint4 vector) {
    reinterpret_cast<uint4 *>(array)[i] = vector;
}

/* Two 16-bit elements of a word; the lower half is the first. */
template <typename T> __device__ __forceinline__ float2 ck_unpack_word(uint32_t word);
template <> __device__ __forceinline__ float2           ck_unpack_word<__half>(uint32_t word) {
              __half2_raw raw;
              raw.x = (unsigned short)(word & 0xffffu);
              raw.y = (unsigned short)(word >> 16);
              return __half22float2(__half2(raw));
}
template <> __device__ __forceinline__ float2 ck_unpack_word<__nv_bfloat16>(uint32_t word) {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}
template <typename T> __device__ __forceinline__ uint32_t ck_pack_word(float low, float high);
template <> __device__ __forceinline__ uint32_t           ck_pack_word<__half>(float low, float high) {
              const __half2_raw raw = __floats2half2_rn(low, high);
              return (uint32_t)raw.x | (uint32_t)raw.y << 16;
}
template <> __device__ __forceinline__ uint32_t ck_pack_word<__nv_bfloat16>(float low, float high) {
    const __nv_bfloat162_raw raw = __floats2bfloat162_rn(low, high);
    return (uint32_t)raw.x | (uint32_t)raw.y << 16;
}

/* Writes out[ck_vector_elems<T>()]. Index `out` with constants only, so that it stays in registers. */
template <typename T> __device__ __forceinline__ void ck_unpack(uint4 v, float *out) {
    if constexpr (sizeof(T) == 4) {
        out[0] = __uint_as_float(v.x);
        out[1] = __uint_as_float(v.y);
        out[2] = __uint_as_float(v.z);
        out[3] = __uint_as_float(v.w);
    } else {
        const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 pair = ck_unpack_word<T>(word[i]);
            out[2 * i]        = pair.x;
            out[2 * i + 1]    = pair.y;
        }
    }
}
template <typename T> __device__ __forceinline__ uint4 ck_pack(const float *in) {
    if constexpr (sizeof(T) == 4)
        return make_uint4(__float_as_uint(in[0]), __float_as_uint(in[1]), __float_as_uint(in[2]),
                          __float_as_uint(in[3]));
    else
        return make_uint4(ck_pack_word<T>(in[0], in[1]), ck_pack_word<T>(in[2], in[3]), ck_pack_word<T>(in[4], in[5]),
                          ck_pack_word<T>(in[6], in[7]));
}

/* Stores 16 bytes with one instruction. Behind a branch, the compiler would split a plain store into four. */
template <typename T> __device__ __forceinline__ void ck_store_whole(T *at, uint4 vector) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(vector.x), "r"(vector.y), "r"(vector.z),
                 "r"(vector.w)
                 : "memory");
}

/* The unit that a thread loads, LANES elements: 16 bytes, or one element where C is not a whole number of vectors. */
template <typename T, int LANES> struct ck_word {
    using word = uint4;
    static __device__ __forceinline__ word load(const T *array, int64_t i) { return ck_load(array, i); }
    static __device__ __forceinline__ void open(const word &w, float (&out)[LANES]) { ck_unpack<T>(w, out); }
    static __device__ __forceinline__ word close(const float (&in)[LANES]) { return ck_pack<T>(in); }
    static __device__ __forceinline__ void store(T *array, int64_t i, const word &w) { ck_store(array, i, w); }
};
template <typename T> struct ck_word<T, 1> {
    using word = T;
    static __device__ __forceinline__ word load(const T *array, int64_t i) { return array[i]; }
    static __device__ __forceinline__ void open(const word &w, float (&out)[1]) { out[0] = ck_float(w); }
    static __device__ __forceinline__ word close(const float (&in)[1]) { return ck_round<T>(in[0]); }
    static __device__ __forceinline__ void store(T *array, int64_t i, const word &w) { array[i] = w; }
};

/* ---- bit masks: bit i%8 of byte i/8 belongs to element i ---- */

/* The bits of vector v of N elements: one byte for N = 8, half a byte for N = 4. */
template <int N> __device__ __forceinline__ unsigned ck_load_bits(const uint8_t *bits, int64_t v) {
    static_assert(N == 4 || N == 8, "a vector of 16 bytes");
    if constexpr (N == 8)
        return bits[v];
    else
        return (unsigned)bits[v >> 1] >> ((unsigned)v & 1u) * 4u & 15u;
}
/* Stores the bits of vector v. For N = 4 the two lanes with vectors 2k and 2k+1 share a byte, so both must call. */
template <int N> __device__ __forceinline__ void ck_store_bits(uint8_t *bits, int64_t v, unsigned set) {
    static_assert(N == 4 || N == 8, "a vector of 16 bytes");
    if constexpr (N == 8)
        bits[v] = (uint8_t)set;
    else {
        const unsigned other = __shfl_xor_sync(3u << (threadIdx.x & 30u), set, 1);
        if (((unsigned)v & 1u) == 0) bits[v >> 1] = (uint8_t)(set | other << 4);
    }
}

/* ---- sums ---- */

/* Sum over the warp; every lane gets it. All 32 lanes must call. */
template <typename A> __device__ __forceinline__ A ck_warp_sum(A x) {
#pragma unroll
    for (int offset = CK_WARP / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

/* Sum over a block of THREADS threads (a multiple of 32); every thread gets it. All threads must call. The function
 * begins and ends with a barrier, so it can be called again immediately. */
template <int THREADS, typename A> __device__ __forceinline__ A ck_block_sum(A x) {
    static_assert(THREADS % CK_WARP == 0 && THREADS <= 1024, "whole warps");
    constexpr int WARPS = THREADS / CK_WARP;
    __shared__ A  part[WARPS];
    x = ck_warp_sum(x);
    __syncthreads();
    if (threadIdx.x % CK_WARP == 0) part[threadIdx.x / CK_WARP] = x;
    __syncthreads();
    x = part[0];
    for (int w = 1; w < WARPS; w++) x += part[w];
    __syncthreads();
    return x;
}

/* ---- overlapping launches (programmatic dependent launch) ---- */

/* A kernel launched by ck_launch may be placed on the multiprocessors while the kernel before it still runs. The kernel
 * begins with ck_begin_after_last(): it waits until the kernel before it is complete and its writes are visible, then
 * allows the next kernel to be placed. Before its wait a kernel writes no global memory, and reads only the inputs of
 * the op that runtime/launch_overlap.c lists: a kernel that reads another one there adds it to that list. The executor
 * makes sure that these inputs are complete. */
__device__ __forceinline__ void ck_wait_for_last() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void ck_let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void ck_begin_after_last() {
    ck_wait_for_last();
    ck_let_next_begin();
}

/* Saves about 1 us between two small launches. With `overlap` false the launch is a normal one. */
template <typename... Parameters, typename... Args>
static cudaError_t ck_launch_if(bool overlap, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                                cudaStream_t stream, const Args &...args) {
    cudaFuncAttributes  binary;
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t  config    = {};
    const cudaError_t   error     = cudaFuncGetAttributes(&binary, kernel);
    if (error != cudaSuccess) return error;
    attribute.id                                         = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim                                       = grid;
    config.blockDim                                      = block;
    config.dynamicSmemBytes                              = shared_bytes;
    config.stream                                        = stream;
    config.attrs                                         = &attribute;
    /* the __CUDA_ARCH__ that the kernel was compiled for: code for older GPUs has no wait, on any GPU */
    config.numAttrs = overlap && binary.ptxVersion >= 90 ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, Parameters(args)...);
}
template <typename... Parameters, typename... Args>
static cudaError_t ck_launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                             cudaStream_t stream, const Args &...args) {
    return ck_launch_if(true, kernel, grid, block, shared_bytes, stream, args...);
}

/* ---- host side ---- */

/* A multiprocessor can change the division only while it runs no block. For a kernel of which one block fits, the
 * driver sets aside what one block needs. A block of the next launch then waits until that block has ended, although
 * there would be room for both. It does not wait if all kernels of a sequence of small launches request the most shared
 * memory. For a large launch more L1 cache is better: a load in flight needs a place there. Code for GPUs before
 * compute capability 9.0 has no overlapping launches, and keeps the driver's choice. */
template <typename Kernel> static cudaError_t ck_most_shared(Kernel kernel) {
    cudaFuncAttributes binary;
    const cudaError_t  error = cudaFuncGetAttributes(&binary, kernel);
    if (error != cudaSuccess || binary.ptxVersion < 90) return error;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

/* Allows blocks of the kernel `bytes` of dynamic shared memory. Returns cudaErrorInvalidValue if a block of the
 * capability that ck_limit_shared named has less. */
template <typename Kernel> static cudaError_t ck_allow_shared(Kernel kernel, int64_t bytes) {
    if (const int limit = ck_shared_limit()) {
        cudaFuncAttributes binary;
        const cudaError_t  error = cudaFuncGetAttributes(&binary, kernel);
        if (error != cudaSuccess) return error;
        if (bytes + (int64_t)binary.sharedSizeBytes > limit) return cudaErrorInvalidValue;
    }
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

/* Number of blocks for `work` items at `per_block` items a block: 1 to `most`. Kernels loop over the remaining
 * items. */
static inline unsigned ck_blocks(int64_t work, int64_t per_block, int64_t most) {
    const int64_t blocks = (work + per_block - 1) / per_block;
    return (unsigned)(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

static inline int64_t ck_gcd(int64_t a, int64_t b) {
    while (b) {
        const int64_t rest = a % b;
        a                  = b;
        b                  = rest;
    }
    return a;
}

/* Runs the statement with T as the element type of `type`:  CK_BY_TYPE(type, launch<T>(...)); */
#define CK_BY_TYPE(type, ...)                                                                                          \
    do {                                                                                                               \
        if ((type) == CK_F32) {                                                                                        \
            using T = float;                                                                                           \
            __VA_ARGS__;                                                                                               \
        } else if ((type) == CK_F16) {                                                                                 \
            using T = __half;                                                                                          \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            using T = __nv_bfloat16;                                                                                   \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)

#endif
