/* cuda/elementwise/pointwise.cu: normalisation of the input, elementwise ops (ReLU, add, cast), and the shortcut
 * without parameters. Limiter of all: memory; no kernel has more than a few operations an element. */
#include "cuda/common/common.cuh"

namespace {

/* ---- pointwise: a thread processes IN_FLIGHT vectors, a block apart, and issues all loads before it uses one ---- */

enum { THREADS = 256, IN_FLIGHT = 4 };

struct relu_of {
    static constexpr int                    reads = 1;
    static __device__ __forceinline__ float at(float x, float) { return ck_relu(x); }
};
struct add_of {
    static constexpr int                    reads = 2;
    static __device__ __forceinline__ float at(float a, float b) { return a + b; }
};

/* Bytes an element: (reads + 1) * size. y may be a or b. The last block processes the elements after the last whole
 * vector. */
template <class Op, typename T>
__global__ void __launch_bounds__(THREADS) pointwise(const T *a, const T *b, T *y, int64_t elems) {
    constexpr int lanes   = ck_vector_elems<T>();
    const int64_t vectors = elems / lanes, first = (int64_t)blockIdx.x * (THREADS * IN_FLIGHT) + threadIdx.x;
    uint4         va[IN_FLIGHT] = {}, vb[IN_FLIGHT] = {};
#pragma unroll
    for (int k = 0; k < IN_FLIGHT; k++)
        if (first + k * THREADS < vectors) {
            va[k] = ck_load(a, first + k * THREADS);
            if (Op::reads == 2) vb[k] = ck_load(b, first + k * THREADS);
        }
#pragma unroll
    for (int k = 0; k < IN_FLIGHT; k++) {
        float fa[lanes], fb[lanes];
        ck_unpack<T>(va[k], fa);
        ck_unpack<T>(vb[k], fb);
#pragma unroll
        for (int i = 0; i < lanes; i++) fa[i] = Op::at(fa[i], fb[i]);
        if (first + k * THREADS < vectors) ck_store(y, first + k * THREADS, ck_pack<T>(fa));
    }
    const int64_t rest = vectors * lanes + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && rest < elems)
        y[rest] = ck_round<T>(Op::at(ck_float(a[rest]), Op::reads == 2 ? ck_float(b[rest]) : 0.0f));
}

template <class Op, typename T>
cudaError_t pointwise_run(const void *a, const void *b, void *y, int64_t elems, cudaStream_t stream) {
    const unsigned blocks = ck_blocks(elems / ck_vector_elems<T>(), THREADS * IN_FLIGHT, INT32_MAX);
    pointwise<Op, T><<<blocks, THREADS, 0, stream>>>((const T *)a, (const T *)b, (T *)y, elems);
    return cudaGetLastError();
}

/* f32 to 16 bits: 4 + 2 bytes an element. A thread reads 16 bytes and writes 8, so reads and writes of a warp are both
 * whole cache lines. */
template <typename T> __global__ void __launch_bounds__(THREADS) cast(const float *x, T *y, int64_t elems) {
    const int64_t vectors = elems / 4, first = (int64_t)blockIdx.x * (THREADS * IN_FLIGHT) + threadIdx.x;
    uint4         v[IN_FLIGHT] = {};
    ck_begin_after_last();
#pragma unroll
    for (int k = 0; k < IN_FLIGHT; k++)
        if (first + k * THREADS < vectors) v[k] = ck_load(x, first + k * THREADS);
#pragma unroll
    for (int k = 0; k < IN_FLIGHT; k++) {
        float f[4];
        ck_unpack<float>(v[k], f);
        if (first + k * THREADS < vectors)
            reinterpret_cast<uint2 *>(y)[first + k * THREADS] =
                make_uint2(ck_pack_word<T>(f[0], f[1]), ck_pack_word<T>(f[2], f[3]));
    }
    const int64_t rest = vectors * 4 + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && rest < elems) y[rest] = ck_round<T>(x[rest]);
}

template <typename T> cudaError_t cast_run(const float *x, void *y, int64_t elems, cudaStream_t stream) {
    return ck_launch(cast<T>, ck_blocks(elems / 4, THREADS * IN_FLIGHT, INT32_MAX), THREADS, 0, stream, x, (T *)y,
                     elems);
}

/* ---- normalize: 1 byte read, 2 or 4 written an element ---- */

/* (v/255 - mean)/std as v*scale + shift. Both are rounded to float and the sum is rounded once, so the error is at most
 * 2 units in the last place of (v/255 + |mean|)/std. */
struct affine {
    float scale[3], shift[3];
};

__device__ __forceinline__ float pick(const float (&of)[3], int channel) {
    return channel == 0 ? of[0] : channel == 1 ? of[1] : of[2];
}

/* The same, starting with `channel`: element i of a run uses entry i % 3. */
__device__ __forceinline__ affine rotated(const affine &k, int channel) {
    affine t;
#pragma unroll
    for (int i = 0; i < 3; i++) {
        const int c = channel + i < 3 ? channel + i : channel + i - 3;
        t.scale[i]  = pick(k.scale, c);
        t.shift[i]  = pick(k.shift, c);
    }
    return t;
}

enum { FLAT_THREADS = 192 }; /* a multiple of 3, so that all vectors of a thread begin with the same channel */

template <int N> struct bytes_of;
template <> struct bytes_of<4> {
    using word = uint32_t;
    static __device__ __forceinline__ float at(word w, int i) { return (float)(w >> 8 * i & 255u); }
};
template <> struct bytes_of<8> {
    using word = uint2;
    static __device__ __forceinline__ float at(word w, int i) {
        return (float)((i < 4 ? w.x : w.y) >> 8 * (i % 4) & 255u);
    }
};

template <typename T>
__global__ void __launch_bounds__(FLAT_THREADS) normalize_flat(const uint8_t *images, T *y, int64_t elems, affine k) {
    constexpr int lanes   = ck_vector_elems<T>();
    using bytes           = bytes_of<lanes>;
    const int64_t vectors = elems / lanes, first = (int64_t)blockIdx.x * (FLAT_THREADS * IN_FLIGHT) + threadIdx.x;
    const affine  t                   = rotated(k, (int)(threadIdx.x * lanes % 3));
    typename bytes::word w[IN_FLIGHT] = {};
#pragma unroll
    for (int j = 0; j < IN_FLIGHT; j++)
        if (first + j * FLAT_THREADS < vectors)
            w[j] = reinterpret_cast<const typename bytes::word *>(images)[first + j * FLAT_THREADS];
#pragma unroll
    for (int j = 0; j < IN_FLIGHT; j++) {
        float f[lanes];
#pragma unroll
        for (int i = 0; i < lanes; i++) f[i] = fmaf(bytes::at(w[j], i), t.scale[i % 3], t.shift[i % 3]);
        if (first + j * FLAT_THREADS < vectors) ck_store(y, first + j * FLAT_THREADS, ck_pack<T>(f));
    }
    const int64_t rest = vectors * lanes + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && rest < elems) {
        const int c = (int)(rest % 3);
        y[rest]     = ck_round<T>(fmaf((float)images[rest], pick(k.scale, c), pick(k.shift, c)));
    }
}

/* Pixel (h, w) of a result is pixel (h + dy, w + dx) of the image, mirrored (h + dy, W-1 - w + dx); pixels outside the
 * image are black. Bytes are read one by one (neighbours in the warp read neighbouring bytes, so they come from L1);
 * LANES results are written at once; LANES divides a row. */
template <typename T, int LANES>
__global__ void __launch_bounds__(THREADS)
    normalize_boxed(const uint8_t *images, const int4 *boxes, T *y, int64_t N, unsigned H, unsigned W, affine k) {
    const unsigned row_vectors = W * 3 / LANES, vectors = H * row_vectors;
    ck_begin_after_last();
    for (int64_t n = blockIdx.y; n < N; n += gridDim.y) {
        const int4     box   = boxes[n]; /* dy, dx, flip, 0 */
        const uint8_t *image = images + n * H * W * 3;
        for (unsigned i = blockIdx.x * THREADS + threadIdx.x; i < vectors; i += gridDim.x * THREADS) {
            const unsigned h = i / row_vectors, e = (i - h * row_vectors) * LANES, w = e / 3;
            const int      c      = (int)(e - 3 * w);
            const unsigned row    = h + (unsigned)box.x; /* a negative value also becomes greater than H */
            unsigned       column = (unsigned)box.y + (box.z ? W - 1 - w : w);
            const affine   t      = rotated(k, c);
            const uint8_t *line   = image + (int64_t)row * W * 3;
            float          f[LANES];
            int            channel = c;
#pragma unroll
            for (int j = 0; j < LANES; j++) {
                const uint8_t byte = row < H && column < W ? line[column * 3 + (unsigned)channel] : (uint8_t)0;
                f[j]               = fmaf((float)byte, t.scale[j % 3], t.shift[j % 3]);
                if (++channel == 3) {
                    channel = 0;
                    column += box.z ? ~0u : 1u;
                }
            }
            T *to = y + n * H * W * 3;
            if constexpr (LANES == 1)
                to[i] = ck_round<T>(f[0]);
            else
                ck_store(to, i, ck_pack<T>(f));
        }
    }
}

template <typename T>
cudaError_t normalize_run(const uint8_t *images, const int32_t *boxes, void *y, int64_t N, int64_t H, int64_t W,
                          affine k, cudaStream_t stream) {
    constexpr int lanes = ck_vector_elems<T>();
    const int64_t elems = N * H * W * 3;
    if (!boxes) {
        normalize_flat<T><<<ck_blocks(elems / lanes, FLAT_THREADS * IN_FLIGHT, INT32_MAX), FLAT_THREADS, 0, stream>>>(
            images, (T *)y, elems, k);
        return cudaGetLastError();
    }
    const int4    *box  = reinterpret_cast<const int4 *>(boxes);
    const unsigned down = ck_blocks(N, 1, 65535);
    if (W * 3 % lanes == 0)
        return ck_launch(normalize_boxed<T, lanes>, dim3(ck_blocks(H * W * 3 / lanes, THREADS, INT32_MAX), down),
                         THREADS, 0, stream, images, box, (T *)y, N, (unsigned)H, (unsigned)W, k);
    return ck_launch(normalize_boxed<T, 1>, dim3(ck_blocks(H * W * 3, THREADS, INT32_MAX), down), THREADS, 0, stream,
                     images, box, (T *)y, N, (unsigned)H, (unsigned)W, k);
}

/* ---- option A shortcut: moves words of any type ---- */

/* Sizes in words of type U. grid.y runs over images; indices within an image have 32 bits. */
struct shortcut_shape {
    int64_t  N;
    unsigned H, W, C, P, Q, K, stride, front;
};

/* y is written once; every stride-th pixel of x is read. */
template <typename U> __global__ void __launch_bounds__(THREADS) shortcut(const U *x, U *y, shortcut_shape g) {
    const unsigned row = g.Q * g.K, work = g.P * row;
    ck_begin_after_last();
    for (int64_t n = blockIdx.y; n < g.N; n += gridDim.y)
        for (unsigned i = blockIdx.x * THREADS + threadIdx.x; i < work; i += gridDim.x * THREADS) {
            const unsigned p = i / row, in_row = i - p * row, q = in_row / g.K,
                           c = in_row - q * g.K - g.front; /* wraps around below 0 */
            U v              = {};
            if (c < g.C) v = x[((n * g.H + p * g.stride) * g.W + q * g.stride) * g.C + c];
            y[n * work + i] = v;
        }
}

/* dx is written once; dy is read for the pixels that the shortcut used. */
template <typename U> __global__ void __launch_bounds__(THREADS) shortcut_grad(const U *dy, U *dx, shortcut_shape g) {
    const unsigned row = g.W * g.C, work = g.H * row;
    ck_begin_after_last();
    for (int64_t n = blockIdx.y; n < g.N; n += gridDim.y)
        for (unsigned i = blockIdx.x * THREADS + threadIdx.x; i < work; i += gridDim.x * THREADS) {
            const unsigned h = i / row, in_row = i - h * row, w = in_row / g.C, c = in_row - w * g.C;
            const unsigned p = h / g.stride, q = w / g.stride;
            U              v = {};
            if (p * g.stride == h && q * g.stride == w) v = dy[((n * g.P + p) * g.Q + q) * g.K + g.front + c];
            dx[n * work + i] = v;
        }
}

template <typename U>
cudaError_t shortcut_run(const void *from, void *to, const struct ck_window *w, int per_word, bool grad,
                         cudaStream_t stream) {
    const shortcut_shape g    = {w->N,
                                 (unsigned)w->H,
                                 (unsigned)w->W,
                                 (unsigned)(w->C / per_word),
                                 (unsigned)w->P,
                                 (unsigned)w->Q,
                                 (unsigned)(w->K / per_word),
                                 (unsigned)w->stride,
                                 (unsigned)(w->pad / per_word)};
    const int64_t        work = grad ? w->H * w->W * g.C : w->P * w->Q * g.K;
    const dim3           grid(ck_blocks(work, THREADS, INT32_MAX), ck_blocks(w->N, 1, 65535));
    const auto           kernel = grad ? shortcut_grad<U> : shortcut<U>;
    const cudaError_t    error  = ck_most_shared(kernel);
    if (error != cudaSuccess) return error;
    return ck_launch(kernel, grid, THREADS, 0, stream, (const U *)from, (U *)to, g);
}

cudaError_t shortcut_by_type(enum ck_type type, const void *from, void *to, const struct ck_window *w, bool grad,
                             cudaStream_t stream) {
    const int lanes = type == CK_F32 ? 4 : 8;
    if (w->C % lanes == 0 && w->K % lanes == 0 && w->pad % lanes == 0)
        return shortcut_run<uint4>(from, to, w, lanes, grad, stream);
    if (type == CK_F32) return shortcut_run<uint32_t>(from, to, w, 1, grad, stream);
    return shortcut_run<uint16_t>(from, to, w, 1, grad, stream);
}

} // namespace

cudaError_t ck_relu(enum ck_type type, const void *x, void *y, int64_t elems, cudaStream_t stream) {
    CK_BY_TYPE(type, return pointwise_run<relu_of, T>(x, x, y, elems, stream));
}

cudaError_t ck_add(enum ck_type type, const void *a, const void *b, void *y, int64_t elems, cudaStream_t stream) {
    CK_BY_TYPE(type, return pointwise_run<add_of, T>(a, b, y, elems, stream));
}

cudaError_t ck_cast(const float *x, enum ck_type type, void *y, int64_t elems, cudaStream_t stream) {
    switch (type) {
    case CK_F16: return cast_run<__half>(x, y, elems, stream);
    case CK_BF16: return cast_run<__nv_bfloat16>(x, y, elems, stream);
    case CK_F32: break;
    }
    return cudaErrorInvalidValue;
}

cudaError_t ck_normalize(const uint8_t *images, const int32_t *boxes, enum ck_type type, void *y, int64_t N, int64_t H,
                         int64_t W, const float mean[3], const float std[3], cudaStream_t stream) {
    affine k;
    for (int c = 0; c < 3; c++) {
        k.scale[c] = (float)(1 / (255 * (double)std[c]));
        k.shift[c] = (float)(-(double)mean[c] / (double)std[c]);
    }
    CK_BY_TYPE(type, return normalize_run<T>(images, boxes, y, N, H, W, k, stream));
}

cudaError_t ck_pad_shortcut(enum ck_type type, const void *x, void *y, const struct ck_window *w, cudaStream_t stream) {
    return shortcut_by_type(type, x, y, w, false, stream);
}

cudaError_t ck_pad_shortcut_grad(enum ck_type type, const void *dy, void *dx, const struct ck_window *w,
                                 cudaStream_t stream) {
    return shortcut_by_type(type, dy, dx, w, true, stream);
}
