/* cuda/conv/generic/conv.cu: convolutions of any shape, for shapes that cuDNN does not support, and conversion or
 * addition of gradients in f32. Reference: device/cpu/reference/ref_conv.c. */
#include "cuda/common/common.cuh"

namespace {

enum { THREADS = 256, IN_FLIGHT = 4 /* vectors that a thread has in flight */ };

/* ---- convert_add: 4 or 2 bytes read and 4 written an element, 4 more read with ADD; limiter: memory ---- */

/* Four elements of x as float. */
template <typename T> __device__ __forceinline__ void load4(const T *x, int64_t i, float *f) {
    if constexpr (sizeof(T) == 4)
        ck_unpack<float>(ck_load(x, i), f);
    else {
        const uint2  v = reinterpret_cast<const uint2 *>(x)[i];
        const float2 a = ck_unpack_word<T>(v.x), b = ck_unpack_word<T>(v.y);
        f[0] = a.x, f[1] = a.y, f[2] = b.x, f[3] = b.y;
    }
}

/* A thread processes IN_FLIGHT vectors of four elements: all its loads are in flight before the first store. x may be
 * y. */
template <typename T, bool ADD>
__global__ void __launch_bounds__(THREADS) convert_add(const T *x, float *y, int64_t n) {
    const int64_t vectors = n / 4, first = (int64_t)blockIdx.x * (THREADS * IN_FLIGHT) + threadIdx.x;
    float         f[IN_FLIGHT][4] = {}, old[IN_FLIGHT][4] = {};
#pragma unroll
    for (int j = 0; j < IN_FLIGHT; j++)
        if (first + j * THREADS < vectors) {
            load4(x, first + j * THREADS, f[j]);
            if constexpr (ADD) load4(y, first + j * THREADS, old[j]);
        }
#pragma unroll
    for (int j = 0; j < IN_FLIGHT; j++) {
        if constexpr (ADD)
            for (int k = 0; k < 4; k++) f[j][k] += old[j][k];
        if (first + j * THREADS < vectors) ck_store(y, first + j * THREADS, ck_pack<float>(f[j]));
    }
    const int64_t rest = vectors * 4 + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && rest < n) y[rest] = ADD ? ck_float(x[rest]) + y[rest] : ck_float(x[rest]);
}

template <typename T> cudaError_t convert_add_run(const void *x, float *y, int64_t n, bool add, cudaStream_t stream) {
    const unsigned blocks = ck_blocks(n / 4, THREADS * IN_FLIGHT, INT32_MAX);
    if (add)
        convert_add<T, true><<<blocks, THREADS, 0, stream>>>((const T *)x, y, n);
    else
        convert_add<T, false><<<blocks, THREADS, 0, stream>>>((const T *)x, y, n);
    return cudaGetLastError();
}

/* ---- convolutions: matrix products of tiles gathered into shared memory ----
 *
 * sum[m][n] = sum over e of a[m][e] * b[e][n], in f32 with fma, e in increasing order:
 *               m                    n             e
 *   forward     pixels of y          K             R,S,C     a from x by windows, b from w
 *   dgrad       pixels of dx         C             R,S,K     a from dy by windows, b from w
 *   wgrad       K                    R,S,C         pixels    a from dy, b from x by windows; blocks divide the pixels
 * Any shape is supported. Tile elements past the end of an image or a matrix, and in the holes of a stride, are 0.
 *
 * Roofline: FFMA. A thread's 4x4 sums need four 8-byte reads of shared memory for 16 fma, so a third to a half of the
 * f32 peak is expected. A dgrad with a stride also multiplies 1 - 1/stride^2 zeros. These kernels come after cuDNN's in
 * the kernel table. */

enum {
    TILE  = 64,
    DEPTH = 16,
    SIDE  = 4 /* sums of a thread in each direction */,
    ROW   = TILE + 2 /* floats: see put */,
    LOADS = TILE * DEPTH / THREADS
};
static_assert(LOADS == SIDE && THREADS == (TILE / SIDE) * (TILE / SIDE), "");

/* An operand gives a thread LOADS elements of a tile at a time and advances by DEPTH. The elements are contiguous in
 * memory along e (16 threads read a run; the thread's elements are 16 rows apart) or along m or n (64 threads read a
 * run; 4 steps of e apart). The address in the tile, e * ROW + m, gives each lane of a warp a different bank in both
 * cases. */
struct along_depth {
    static __device__ __forceinline__ int  deep() { return (int)threadIdx.x % DEPTH; }
    static __device__ __forceinline__ int  row() { return (int)threadIdx.x / DEPTH; }
    static __device__ __forceinline__ void put(float *tile, const float *v) {
#pragma unroll
        for (int j = 0; j < LOADS; j++) tile[deep() * ROW + row() + j * (THREADS / DEPTH)] = v[j];
    }
};
struct along_side {
    static constexpr int                   APART = THREADS / TILE;
    static __device__ __forceinline__ int  deep() { return (int)threadIdx.x / TILE; }
    static __device__ __forceinline__ int  row() { return (int)threadIdx.x % TILE; }
    static __device__ __forceinline__ void put(float *tile, const float *v) {
#pragma unroll
        for (int j = 0; j < LOADS; j++) tile[(deep() + j * APART) * ROW + row()] = v[j];
    }
};

/* Rows m are pixels of an image of OUT_H x OUT_W; e = (r, s, c) selects an element of the window on `data`, an image of
 * H x W x C. GRAD: the rows are the pixels below the windows and data has the windows' results. */
template <typename T, bool GRAD> struct windows : along_depth {
    const T *data;
    int      H, W, C, R, S, stride, r, s, c;
    int      top[LOADS], left[LOADS];
    int64_t  image[LOADS], at[LOADS]; /* pixel indices of data: first pixel of the image; pixel of the element, or -1 */

    __device__ __forceinline__ windows(const T *from, const ck_conv &v, int64_t first)
        : data(from), R(v.R), S(v.S), stride(v.stride) {
        H = (int)(GRAD ? v.P : v.H), W = (int)(GRAD ? v.Q : v.W), C = (int)(GRAD ? v.K : v.C);
        const int64_t out_h = GRAD ? v.H : v.P, out_w = GRAD ? v.W : v.Q;
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            const int64_t m = first + row() + j * (THREADS / DEPTH), line = m / out_w, n = line / out_h;
            const int     p = (int)(line - n * out_h), q = (int)(m - line * out_w);
            top[j]   = n >= v.N ? INT32_MIN / 2
                       : GRAD   ? p + v.pad
                                : p * v.stride - v.pad; /* past the end of the batch: a row above all images */
            left[j]  = GRAD ? q + v.pad : q * v.stride - v.pad;
            image[j] = n * H * W;
        }
        r = s = 0;
        c     = deep();
        wrap();
        locate();
    }
    __device__ __forceinline__ void wrap() {
        while (c >= C) {
            c -= C;
            if (++s == S) s = 0, r++;
        }
    }
    __device__ __forceinline__ void locate() {
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            int  y = GRAD ? top[j] - r : top[j] + r, x = GRAD ? left[j] - s : left[j] + s;
            bool in = r < R && y >= 0 && x >= 0;
            if (GRAD && stride > 1 && in) {
                const int whole_y = y / stride, whole_x = x / stride;
                in = whole_y * stride == y && whole_x * stride == x;
                y = whole_y, x = whole_x;
            }
            at[j] = in && y < H && x < W ? image[j] + (int64_t)y * W + x : -1;
        }
    }
    __device__ __forceinline__ void load(float *v) {
#pragma unroll
        for (int j = 0; j < LOADS; j++) v[j] = at[j] >= 0 ? ck_float(data[at[j] * C + c]) : 0.0f;
        c += DEPTH;
        if (c < C) return;
        wrap();
        locate();
    }
};

/* Rows n are filters; e runs through one filter. */
template <typename T> struct filters : along_depth {
    const T                   *data;
    int64_t                    k, K;
    int                        e, E;
    __device__ __forceinline__ filters(const T *from, const ck_conv &v, int64_t first)
        : data(from), k(first + row()), K(v.K), e(deep()), E((int)(v.R * v.S * v.C)) {}
    __device__ __forceinline__ void load(float *v) {
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            const int64_t at = k + j * (THREADS / DEPTH);
            v[j]             = e < E && at < K ? ck_float(data[at * E + e]) : 0.0f;
        }
        e += DEPTH;
    }
};

/* Columns n are channels of the filters, e = (r, s, k). */
template <typename T> struct filters_transposed : along_side {
    const T                   *data;
    int64_t                    c, C;
    int                        rs, RS, k, K;
    __device__ __forceinline__ filters_transposed(const T *from, const ck_conv &v, int64_t first)
        : data(from), c(first + row()), C(v.C), rs(0), RS(v.R * v.S), k(deep()), K((int)v.K) {}
    __device__ __forceinline__ void load(float *v) {
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            for (; k >= K; k -= K) rs++;
            v[j] = rs < RS && c < C ? ck_float(data[((int64_t)k * RS + rs) * C + c]) : 0.0f;
            k += APART;
        }
    }
};

/* Rows m are channels of dy; e runs over its pixels from `pixel` to `end`. */
template <typename T> struct pixels : along_side {
    const T                   *data;
    int64_t                    k, K, pixel, end;
    __device__ __forceinline__ pixels(const T *from, const ck_conv &v, int64_t first, int64_t begin, int64_t stop)
        : data(from), k(first + row()), K(v.K), pixel(begin + deep()), end(stop) {}
    __device__ __forceinline__ void load(float *v) {
#pragma unroll
        for (int j = 0; j < LOADS; j++, pixel += APART)
            v[j] = pixel < end && k < K ? ck_float(data[pixel * K + k]) : 0.0f;
    }
};

/* Columns n = (r, s, c) select elements of x through windows e, from `pixel` to `end`. */
template <typename T> struct windows_transposed : along_side {
    const T                   *data;
    int64_t                    pixel, end, image; /* image: first pixel of x */
    int                        H, W, P, Q, stride, top, left, p, q, c, C;
    __device__ __forceinline__ windows_transposed(const T *from, const ck_conv &v, int64_t first, int64_t begin,
                                                  int64_t stop)
        : data(from), pixel(begin + deep()), end(stop), H((int)v.H), W((int)v.W), P((int)v.P), Q((int)v.Q),
          stride(v.stride), C((int)v.C) {
        const int     n = (int)first + row(), rs = n / C, r = rs / v.S;
        const int64_t line = pixel / v.Q, of = line / v.P;
        p = (int)(line - of * v.P), q = (int)(pixel - line * v.Q), c = n - rs * C;
        top   = r < v.R ? r - v.pad : INT32_MIN / 2; /* past the last column: a row above all images */
        left  = rs - r * v.S - v.pad;
        image = of * v.H * v.W;
    }
    __device__ __forceinline__ void load(float *v) {
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            const int  y = p * stride + top, x = q * stride + left;
            const bool in = pixel < end && y >= 0 && y < H && x >= 0 && x < W;
            v[j]          = in ? ck_float(data[(image + (int64_t)y * W + x) * C + c]) : 0.0f;
            pixel += APART;
            for (q += APART; q >= Q; q -= Q)
                if (++p == P) p = 0, image += (int64_t)H * W;
        }
    }
};

/* Thread (x, y) computes 2 rows and 2 columns of the tile, and the same 32 further on, so that reads have 8 bytes
 * without bank conflicts. */
__device__ __forceinline__ int place(int thread, int i) {
    return 2 * thread + i % 2 + i / 2 * (TILE / 2);
}

template <class A, class B>
__device__ __forceinline__ void multiply(A &a, B &b, int64_t steps, float (&sum)[SIDE][SIDE]) {
    __shared__ __align__(16) float tile_a[DEPTH * ROW], tile_b[DEPTH * ROW];
    const int                      tx = (int)threadIdx.x % (TILE / SIDE), ty = (int)threadIdx.x / (TILE / SIDE);
    float                          next_a[LOADS], next_b[LOADS];
    a.load(next_a);
    b.load(next_b);
    for (int64_t step = 0; step < steps; step++) {
        A::put(tile_a, next_a);
        B::put(tile_b, next_b);
        __syncthreads();
        if (step + 1 < steps) { /* in flight while the tile is multiplied */
            a.load(next_a);
            b.load(next_b);
        }
#pragma unroll
        for (int e = 0; e < DEPTH; e++) {
            const float2 *row_a = reinterpret_cast<const float2 *>(tile_a + e * ROW),
                         *row_b = reinterpret_cast<const float2 *>(tile_b + e * ROW);
            const float2 a0 = row_a[ty], a1 = row_a[ty + TILE / 4], b0 = row_b[tx], b1 = row_b[tx + TILE / 4];
            const float  x[SIDE] = {a0.x, a0.y, a1.x, a1.y}, y[SIDE] = {b0.x, b0.y, b1.x, b1.y};
#pragma unroll
            for (int i = 0; i < SIDE; i++)
#pragma unroll
                for (int j = 0; j < SIDE; j++) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
        }
        __syncthreads();
    }
}

/* to[m][n], rounded, for m < M and n < N. */
template <typename T>
__device__ __forceinline__ void put_sums(T *to, int64_t m0, int64_t n0, int64_t M, int64_t N,
                                         const float (&sum)[SIDE][SIDE]) {
    const int tx = (int)threadIdx.x % (TILE / SIDE), ty = (int)threadIdx.x / (TILE / SIDE);
#pragma unroll
    for (int i = 0; i < SIDE; i++)
#pragma unroll
        for (int j = 0; j < SIDE; j++) {
            const int64_t m = m0 + place(ty, i), n = n0 + place(tx, j);
            if (m < M && n < N) to[m * N + n] = ck_round<T>(sum[i][j]);
        }
}

__host__ __device__ __forceinline__ int64_t tiles_of(int64_t rows) {
    return (rows + TILE - 1) / TILE;
}
__host__ __device__ __forceinline__ int64_t steps_of(int64_t depth) {
    return (depth + DEPTH - 1) / DEPTH;
}

/* Blocks iterate over the columns first: neighbouring blocks read the same pixels. */
template <typename T> __global__ void __launch_bounds__(THREADS) forward(const T *x, const T *w, T *y, ck_conv v) {
    const int64_t     across = tiles_of(v.K), m0 = blockIdx.x / across * TILE, n0 = blockIdx.x % across * TILE;
    float             sum[SIDE][SIDE] = {};
    windows<T, false> a(x, v, m0);
    filters<T>        b(w, v, n0);
    multiply(a, b, steps_of(v.R * v.S * v.C), sum);
    put_sums(y, m0, n0, v.N * v.P * v.Q, v.K, sum);
}

template <typename T> __global__ void __launch_bounds__(THREADS) dgrad(const T *dy, const T *w, T *dx, ck_conv v) {
    const int64_t         across = tiles_of(v.C), m0 = blockIdx.x / across * TILE, n0 = blockIdx.x % across * TILE;
    float                 sum[SIDE][SIDE] = {};
    windows<T, true>      a(dy, v, m0);
    filters_transposed<T> b(w, v, n0);
    multiply(a, b, steps_of(v.R * v.S * v.K), sum);
    put_sums(dx, m0, n0, v.N * v.H * v.W, v.C, sum);
}

/* Block y sums its fraction of the pixels: part[fraction][k][r,s,c]. */
template <typename T>
__global__ void __launch_bounds__(THREADS) wgrad(const T *x, const T *dy, float *part, int64_t share, ck_conv v) {
    const int64_t E = v.R * v.S * v.C, across = tiles_of(E), m0 = blockIdx.x / across * TILE,
                  n0  = blockIdx.x % across * TILE;
    const int64_t all = v.N * v.P * v.Q, begin = blockIdx.y * share, end = begin + share < all ? begin + share : all;
    float         sum[SIDE][SIDE] = {};
    pixels<T>     a(dy, v, m0, begin, end);
    windows_transposed<T> b(x, v, n0, begin, end);
    multiply(a, b, steps_of(end - begin), sum);
    put_sums(part + blockIdx.y * v.K * E, m0, n0, v.K, E, sum);
}

/* dw (+)= sum of the parts, in double, in order: 4 bytes read for each part and element; limiter: memory. */
template <bool ADD>
__global__ void __launch_bounds__(THREADS) sum_shares(const float *part, float *dw, int64_t elems, int shares) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= elems) return;
    double sum = ADD ? (double)dw[i] : 0;
#pragma unroll 4
    for (int s = 0; s < shares; s++) sum += (double)part[s * elems + i];
    dw[i] = (float)sum;
}

/* Pixels of a part, a multiple of DEPTH. There are enough parts to fill the GPU a few times, and each has enough work
 * for a block. */
int64_t share_of(const ck_conv *v, int multiprocessors, int *shares) {
    const int64_t pixels = v->N * v->P * v->Q, tiles = tiles_of(v->K) * tiles_of(v->R * v->S * v->C), least = 8 * DEPTH;
    int64_t       wanted = (6 * (int64_t)multiprocessors + tiles - 1) / tiles;
    if (wanted > pixels / least) wanted = pixels / least;
    if (wanted < 1) wanted = 1;
    const int64_t share = steps_of((pixels + wanted - 1) / wanted) * DEPTH;
    *shares             = (int)((pixels + share - 1) / share);
    return share;
}

cudaError_t too_large(int64_t blocks) {
    return blocks > INT32_MAX ? cudaErrorInvalidConfiguration : cudaSuccess;
}

} // namespace

cudaError_t ck_conv_forward(const struct ck_conv *v, const void *x, const void *w, void *y, cudaStream_t stream) {
    const int64_t blocks = tiles_of(v->N * v->P * v->Q) * tiles_of(v->K);
    if (too_large(blocks)) return too_large(blocks);
    CK_BY_TYPE(v->type, forward<T><<<(unsigned)blocks, THREADS, 0, stream>>>((const T *)x, (const T *)w, (T *)y, *v));
    return cudaGetLastError();
}

cudaError_t ck_conv_dgrad(const struct ck_conv *v, const void *dy, const void *w, void *dx, cudaStream_t stream) {
    const int64_t blocks = tiles_of(v->N * v->H * v->W) * tiles_of(v->C);
    if (too_large(blocks)) return too_large(blocks);
    CK_BY_TYPE(v->type, dgrad<T><<<(unsigned)blocks, THREADS, 0, stream>>>((const T *)dy, (const T *)w, (T *)dx, *v));
    return cudaGetLastError();
}

size_t ck_conv_wgrad_workspace(const struct ck_conv *v, int multiprocessors) {
    int shares;
    (void)share_of(v, multiprocessors, &shares);
    return (size_t)shares * (size_t)(v->K * v->R * v->S * v->C) * sizeof(float);
}

cudaError_t ck_conv_wgrad(const struct ck_conv *v, const void *x, const void *dy, float *dw, bool accumulate,
                          void *workspace, int multiprocessors, cudaStream_t stream) {
    int           shares;
    const int64_t share = share_of(v, multiprocessors, &shares), E = v->R * v->S * v->C, elems = v->K * E;
    const int64_t blocks = tiles_of(v->K) * tiles_of(E);
    float        *part   = (float *)workspace;
    if (too_large(blocks)) return too_large(blocks);
    const dim3 grid((unsigned)blocks, (unsigned)shares);
    CK_BY_TYPE(v->type, wgrad<T><<<grid, THREADS, 0, stream>>>((const T *)x, (const T *)dy, part, share, *v));
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
    const unsigned rest = ck_blocks(elems, THREADS, INT32_MAX);
    if (accumulate)
        sum_shares<true><<<rest, THREADS, 0, stream>>>(part, dw, elems, shares);
    else
        sum_shares<false><<<rest, THREADS, 0, stream>>>(part, dw, elems, shares);
    return cudaGetLastError();
}

cudaError_t ck_convert_add(enum ck_type type, const void *x, float *y, int64_t n, bool add, cudaStream_t stream) {
    CK_BY_TYPE(type, return convert_add_run<T>(x, y, n, add, stream));
}
