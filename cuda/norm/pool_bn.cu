/* cuda/norm/pool_bn.cu: gradient of BN, ReLU and max pooling (window 3, stride 2), in two passes over the BN's input x:
 * the sums, then the gradient. The gradient of the pooling, g, is as large as x. Both passes compute it; it is
 * never stored.
 *
 * The sums are computed window by window. Each window sends its dy to one pixel of a channel, so a thread selects that
 * pixel's x among the nine and adds a quarter of the terms that a loop over pixels has. The gradient is computed pixel
 * by pixel. The four pixels whose padded coordinates are 2i, 2i+1 by 2j, 2j+1 are covered only by the windows at i-1, i
 * by j-1, j; of those 16 combinations only 9 fall inside a window. A thread processes one vector of channels of such a
 * quad: dy and index are loaded once for four pixels. Windows, or quads, are the rows of cuda/norm/bn_sums.cuh.
 *
 * Bytes an element of x (times 2 in 16 bits, times 4 in f32): sums 1, apply 2; dy adds 1/4 of an element and index 1/4
 * byte. Limiter: memory; instructions come close. */
#include "cuda/norm/bn_sums.cuh"

namespace {

struct geometry {
    int64_t N;
    int     H, W, C, P, Q, pad;
    int     down, across; /* rows of cuda/norm/bn_sums.cuh in an image: windows or quads */
};

struct place {
    int64_t n;
    int     i, j;
};
__device__ __forceinline__ place place_of(const geometry &g, int64_t row) {
    const int64_t line = row / g.across;
    return {line / g.down, (int)(line % g.down), (int)(row % g.across)};
}
__device__ __forceinline__ void step_on(const geometry &g, const place &step, place *at) {
    at->j += step.j;
    at->i += step.i;
    at->n += step.n;
    if (at->j >= g.across) at->j -= g.across, at->i++;
    if (at->i >= g.down) at->i -= g.down, at->n++;
}

/* Calls job.row(place, channel) for each row of the thread. */
template <typename T, class Job>
__device__ __forceinline__ void for_each_row(const geometry &g, const struct sums_shape &shape, Job job) {
    const int row       = (int)threadIdx.x / shape.width,
              column    = (int)blockIdx.x * shape.width + (int)threadIdx.x % shape.width;
    const int64_t begin = blockIdx.y * shape.span_rows + row, end = min((blockIdx.y + 1) * shape.span_rows, shape.rows);
    if (row >= shape.depth || column >= shape.vectors || begin >= end) return;
    const int   c    = column * ck_vector_elems<T>();
    const place step = place_of(g, shape.depth);
    place       at   = place_of(g, begin);
    job.begin(c);
#pragma unroll 1
    for (int64_t r = begin; r < end; r += shape.depth, step_on(g, step, &at)) job.row(at, c);
    job.end();
}

/* ---- the index bytes of a vector; in 16 bits two channels at a time: the bytes are spread over the halves of a word
 * and compared as fp16 numbers, which represent small integers exactly ---- */

template <int N> struct winner_word { using word = uint2; };
template <> struct winner_word<4> { using word = unsigned; };
template <int N> using winners = typename winner_word<N>::word;

__device__ __forceinline__ void nowhere(uint2 *w) {
    *w = make_uint2(~0u, ~0u);
}
__device__ __forceinline__ void nowhere(unsigned *w) {
    *w = ~0u;
}

/* Keeps the lanes of `word` (two channels, or one) whose index is `tap`; the other lanes become 0. */
__device__ __forceinline__ unsigned where(unsigned word, uint2 winner, int i, unsigned tap) {
    const unsigned spread = __byte_perm(i < 2 ? winner.x : winner.y, 0u, i % 2 ? 0x4342u : 0x4140u),
                   taps   = tap | tap << 16;
    return word & __heq2_mask(reinterpret_cast<const __half2 &>(spread), reinterpret_cast<const __half2 &>(taps));
}
__device__ __forceinline__ unsigned where(unsigned word, unsigned winner, int i, unsigned tap) {
    return (winner >> 8 * i & 255u) == tap ? word : 0u;
}

/* ---- sums: one window at a time ---- */

enum { TAPS = 9 };

template <typename T> struct window_sums_job {
    enum { N = ck_vector_elems<T>() };
    const struct ck_pool_bn_grad   &a;
    const geometry                 &g;
    double                         *part;
    int                             run;
    float                           acc[2][N], mean[N], scale[N], bias[N];
    __device__ __forceinline__ void begin(int c) {
        point_channels<N>(a.mean_rstd, c, g.C, mean);
        point_channels<N>(a.act, c, g.C, scale);
        point_channels<N>(a.act + g.C, c, g.C, bias);
        run = 0;
#pragma unroll
        for (int i = 0; i < N; i++) acc[0][i] = acc[1][i] = 0;
    }
    /* Positions outside the image read the nearest pixel inside; no index refers to them. */
    __device__ __forceinline__ void row(const place &at, int c) {
        const T      *x    = (const T *)a.x + at.n * g.H * g.W * g.C + c;
        const int64_t from = ((at.n * g.P + at.i) * g.Q + at.j) * g.C + c;
        const int     top = 2 * at.i - g.pad, left = 2 * at.j - g.pad;
        uint4         v[TAPS];
#pragma unroll
        for (int t = 0; t < TAPS; t++) {
            const int h = min(max(top + t / 3, 0), g.H - 1), w = min(max(left + t % 3, 0), g.W - 1);
            v[t] =
                *reinterpret_cast<const uint4 *>(x + (h * g.W + w) * g.C); /* an image has fewer than 2^31 elements */
        }
        const uint4      dy     = *reinterpret_cast<const uint4 *>((const T *)a.dy + from);
        const winners<N> winner = *reinterpret_cast<const winners<N> *>(a.index + from);
        uint4            best   = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int t = 0; t < TAPS; t++) {
            best.x |= where(v[t].x, winner, 0, (unsigned)t);
            best.y |= where(v[t].y, winner, 1, (unsigned)t);
            best.z |= where(v[t].z, winner, 2, (unsigned)t);
            best.w |= where(v[t].w, winner, 3, (unsigned)t);
        }
        add(dy, best);
        if (++run < SUMS_RUN) return;
        sums_flush(part, acc);
        run = 0;
    }
    __device__ __forceinline__ void add(uint4 dy, uint4 best) {
        float d[N], x[N];
        ck_unpack<T>(dy, d);
        ck_unpack<T>(best, x);
#pragma unroll
        for (int i = 0; i < N; i++) {
            d[i] = fmaf(x[i], scale[i], bias[i]) > 0.0f ? d[i] : 0.0f;
            acc[0][i] += d[i];
            acc[1][i] = fmaf(d[i], x[i] - mean[i], acc[1][i]);
        }
    }
    __device__ __forceinline__ void end() {
        sums_flush(part, acc);
    }
};

template <typename T>
__global__ void __launch_bounds__(SUMS_THREADS, 2)
    pool_sums(const struct ck_pool_bn_grad a, const geometry g, const struct sums_shape shape, double *partial) {
    extern __shared__ double part[];
    constexpr int            N = ck_vector_elems<T>();
    ck_begin_after_last();
    sums_clear<2 * N>(part);
    for_each_row<T>(g, shape, window_sums_job<T>{a, g, part, 0, {}, {}, {}, {}});
    sums_end<2, N>(shape, part, partial);
}

struct pool_sums_put {
    const float                    *mean_rstd;
    float                          *grad_sums;
    __device__ __forceinline__ void put(int which, int64_t c, int64_t C, double sum) const {
        grad_sums[which * C + c] = (float)(which ? sum * (double)mean_rstd[C + c] : sum);
    }
};

/* ---- apply: one quad at a time ---- */

enum { APPLY_RESIDENT = 3 };

template <typename T> struct quad_words {
    uint4                         dy[4], x[4]; /* of windows; of pixels */
    winners<ck_vector_elems<T>()> winner[4];
};

__device__ __forceinline__ bool inside(const geometry &g, const place &at, int pixel) {
    const int h = 2 * at.i + pixel / 2 - g.pad, w = 2 * at.j + pixel % 2 - g.pad;
    return h >= 0 && h < g.H && w >= 0 && w < g.W;
}
__device__ __forceinline__ int64_t pixel_at(const geometry &g, const place &at, int pixel, int c) {
    return ((at.n * g.H + 2 * at.i + pixel / 2 - g.pad) * g.W + 2 * at.j + pixel % 2 - g.pad) * g.C + c;
}

template <typename T>
__device__ __forceinline__ void quad_load(const geometry &g, const struct ck_pool_bn_grad &a, const place &at, int c,
                                          quad_words<T> *q) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const int row = at.i - 1 + k / 2, column = at.j - 1 + k % 2;
        q->dy[k] = q->x[k] = make_uint4(0, 0, 0, 0);
        nowhere(&q->winner[k]);
        if (row >= 0 && row < g.P && column >= 0 && column < g.Q) {
            const int64_t from = ((at.n * g.P + row) * g.Q + column) * g.C + c;
            q->dy[k]           = *reinterpret_cast<const uint4 *>((const T *)a.dy + from);
            q->winner[k]       = *reinterpret_cast<const winners<ck_vector_elems<T>()> *>(a.index + from);
        }
        if (inside(g, at, k)) q->x[k] = *reinterpret_cast<const uint4 *>((const T *)a.x + pixel_at(g, at, k, c));
    }
}

/* Sums of two 16-bit channels are rounded after each addition. The result equals g of maxpool_grad, except for the one
 * pixel in four that is covered by four windows, where up to three sums are rounded. */
template <typename T> __device__ __forceinline__ unsigned word_add(unsigned a, unsigned b);
template <> __device__ __forceinline__ unsigned           word_add<__half>(unsigned a, unsigned b) {
              const __half2 sum = __hadd2(reinterpret_cast<const __half2 &>(a), reinterpret_cast<const __half2 &>(b));
              return reinterpret_cast<const unsigned &>(sum);
}
template <> __device__ __forceinline__ unsigned word_add<__nv_bfloat16>(unsigned a, unsigned b) {
    const __nv_bfloat162 sum =
        __hadd2(reinterpret_cast<const __nv_bfloat162 &>(a), reinterpret_cast<const __nv_bfloat162 &>(b));
    return reinterpret_cast<const unsigned &>(sum);
}
template <> __device__ __forceinline__ unsigned word_add<float>(unsigned a, unsigned b) {
    return __float_as_uint(__uint_as_float(a) + __uint_as_float(b));
}

__device__ __forceinline__ unsigned word_of(uint4 v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Word i of g before the ReLU, for one pixel: padded 2i + pixel/2 is row r of the window at i-1 + k/2. Window 3, at i,
 * j, covers all four pixels. */
template <typename T> __device__ __forceinline__ unsigned quad_word(const quad_words<T> &q, int pixel, int i) {
    unsigned g = 0;
#pragma unroll
    for (int k = 3; k >= 0; k--) {
        const int r = 2 - k / 2 * 2 + pixel / 2, s = 2 - k % 2 * 2 + pixel % 2;
        if (r >= 3 || s >= 3) continue;
        const unsigned more = where(word_of(q.dy[k], i), q.winner[k], i, (unsigned)(r * 3 + s));
        g                   = k == 3 ? more : word_add<T>(g, more);
    }
    return g;
}

/* Converts one channel, or two in a word, to and from float. */
template <typename T> __device__ __forceinline__ void open_word(unsigned word, float (&out)[4 / sizeof(T)]) {
    if constexpr (sizeof(T) == 4)
        out[0] = __uint_as_float(word);
    else {
        const float2 pair = ck_unpack_word<T>(word);
        out[0] = pair.x, out[1] = pair.y;
    }
}
template <typename T> __device__ __forceinline__ unsigned close_word(const float (&in)[4 / sizeof(T)]) {
    if constexpr (sizeof(T) == 4)
        return __float_as_uint(in[0]);
    else
        return ck_pack_word<T>(in[0], in[1]);
}

/* Numbers of a channel: coeffs[3], act[2]. They are read word by word from shared memory, which leaves the registers to
 * the quad. */
enum { NUMBERS = 5 };

template <typename T> struct apply_job {
    enum { N = ck_vector_elems<T>(), PER_WORD = 4 / (int)sizeof(T) };
    const struct ck_pool_bn_grad       &a;
    const geometry                     &g;
    const float                        *numbers; /* [NUMBERS][channels of the block] */
    int                                 channels, own;
    __device__ __forceinline__ void     begin(int c) { own = c - (int)blockIdx.x * channels; }
    __device__ __forceinline__ unsigned word(unsigned gradient, unsigned x, int i) const {
        float d[PER_WORD], v[PER_WORD], k[NUMBERS][PER_WORD];
        open_word<T>(gradient, d);
        open_word<T>(x, v);
#pragma unroll
        for (int m = 0; m < NUMBERS; m++)
#pragma unroll
            for (int e = 0; e < PER_WORD; e++) k[m][e] = numbers[m * channels + own + i * PER_WORD + e];
#pragma unroll
        for (int e = 0; e < PER_WORD; e++) {
            d[e] = fmaf(v[e], k[3][e], k[4][e]) > 0.0f ? d[e] : 0.0f;
            v[e] = fmaf(k[0][e], d[e], fmaf(k[1][e], v[e], k[2][e]));
        }
        return close_word<T>(v);
    }
    __device__ __forceinline__ void row(const place &at, int c) {
        quad_words<T> q;
        quad_load(g, a, at, c, &q);
        unsigned out[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int pixel = 0; pixel < 4; pixel++)
                out[pixel][i] = word(quad_word(q, pixel, i), word_of(q.x[pixel], i), i);
#pragma unroll
        for (int pixel = 0; pixel < 4; pixel++)
            if (inside(g, at, pixel))
                ck_store_whole((T *)a.dx + pixel_at(g, at, pixel, c),
                               make_uint4(out[pixel][0], out[pixel][1], out[pixel][2], out[pixel][3]));
    }
    __device__ __forceinline__ void end() {}
};

template <typename T>
__global__ void __launch_bounds__(SUMS_THREADS, APPLY_RESIDENT)
    pool_apply(const struct ck_pool_bn_grad a, const geometry g, const struct sums_shape shape) {
    __shared__ __align__(16) float numbers[NUMBERS * SUMS_WIDTH * ck_vector_elems<T>()];
    const int                      channels = shape.width * ck_vector_elems<T>(), first = (int)blockIdx.x * channels;
    for (int i = (int)threadIdx.x; i < NUMBERS * channels; i += SUMS_THREADS) {
        const int m = i / channels, c = first + i % channels;
        if (c < g.C) numbers[i] = m < 3 ? a.coeffs[(int64_t)m * g.C + c] : a.act[(int64_t)(m - 3) * g.C + c];
    }
    __syncthreads();
    for_each_row<T>(g, shape, apply_job<T>{a, g, numbers, channels, 0});
}

/* ---- launchers ---- */

enum { RESIDENT = 2 };

geometry geometry_of(const struct ck_window *w, bool quads) {
    geometry g = {w->N, (int)w->H, (int)w->W, (int)w->C, (int)w->P, (int)w->Q, w->pad, (int)w->P, (int)w->Q};
    if (quads) g.down = (g.H + g.pad + 1) / 2, g.across = (g.W + g.pad + 1) / 2;
    return g;
}
template <typename T> struct sums_shape shape_of(const geometry &g, int64_t resident) {
    return sums_shape_of(ck_vector_elems<T>(), g.N * g.down * g.across, g.C, resident);
}
template <typename T> size_t pool_sums_bytes(const struct ck_window *w, int multiprocessors) {
    const struct sums_shape s = shape_of<T>(geometry_of(w, false), (int64_t)multiprocessors * RESIDENT);
    return sums_workspace(&s, 2);
}

template <typename T>
cudaError_t pool_sums_run(const struct ck_pool_bn_grad *a, void *workspace, int multiprocessors, cudaStream_t stream) {
    const geometry          g     = geometry_of(&a->w, false);
    const struct sums_shape s     = shape_of<T>(g, (int64_t)multiprocessors * RESIDENT);
    const size_t            bytes = (size_t)2 * ck_vector_elems<T>() * SUMS_PITCH * sizeof(double);
    pool_sums<T>
        <<<dim3((unsigned)s.columns, (unsigned)s.spans), SUMS_THREADS, bytes, stream>>>(*a, g, s, (double *)workspace);
    const cudaError_t   error = cudaGetLastError();
    const pool_sums_put put   = {a->mean_rstd, a->grad_sums};
    return error != cudaSuccess ? error : sums_fold_launch(put, s, 2, (const double *)workspace, stream);
}

template <typename T> cudaError_t apply_run(const struct ck_pool_bn_grad *a, int multiprocessors, cudaStream_t stream) {
    const geometry          g = geometry_of(&a->w, true);
    const struct sums_shape s = shape_of<T>(g, (int64_t)multiprocessors * APPLY_RESIDENT);
    pool_apply<T><<<dim3((unsigned)s.columns, (unsigned)s.spans), SUMS_THREADS, 0, stream>>>(*a, g, s);
    return cudaGetLastError();
}

bool fits(enum ck_type type, const struct ck_window *w) {
    return w->window == 3 && w->stride == 2 && w->C % (type == CK_F32 ? 4 : 8) == 0;
}

} // namespace

extern "C" size_t ck_pool_bn_grad_sums_workspace(enum ck_type type, const struct ck_window *w, int multiprocessors) {
    CK_BY_TYPE(type, return pool_sums_bytes<T>(w, multiprocessors));
}

extern "C" cudaError_t ck_pool_bn_grad_sums(const struct ck_pool_bn_grad *a, void *workspace, int multiprocessors,
                                            cudaStream_t stream) {
    if (!fits(a->type, &a->w)) return cudaErrorInvalidValue;
    CK_BY_TYPE(a->type, return pool_sums_run<T>(a, workspace, multiprocessors, stream));
}

extern "C" cudaError_t ck_pool_bn_grad_apply(const struct ck_pool_bn_grad *a, int multiprocessors,
                                             cudaStream_t stream) {
    if (!fits(a->type, &a->w)) return cudaErrorInvalidValue;
    CK_BY_TYPE(a->type, return apply_run<T>(a, multiprocessors, stream));
}
