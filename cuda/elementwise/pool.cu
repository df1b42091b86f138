/* cuda/elementwise/pool.cu: max pooling, average pooling and its gradient. Limiter of all: memory. See
 * cuda/elementwise/pool.cuh; cuda/elementwise/pool_grad.cu has the gradient of max pooling. */
#include "cuda/elementwise/pool.cuh"

namespace {

/* ---- max pooling: 1/stride^2 of (x + index) written for each x read; windows share reads ---- */

/* The maxima of LANES channels and their positions in the window. Starts with -inf at the first position inside the
 * image: a value that cannot exceed -inf gives the same result. A NaN exceeds every value except an earlier NaN. */
template <typename T, int LANES> struct winners {
    using words = word_of<T, LANES>;
    float                           best[LANES];
    unsigned                        at[LANES];
    __device__ __forceinline__ void begin(unsigned first) {
#pragma unroll
        for (int i = 0; i < LANES; i++) {
            best[i] = __uint_as_float(0xff800000u);
            at[i]   = first;
        }
    }
    __device__ __forceinline__ void update(const typename words::word &x, unsigned tap) {
        float v[LANES];
        words::open(x, v);
#pragma unroll
        for (int i = 0; i < LANES; i++) {
            const bool wins = !(v[i] <= best[i]) && best[i] == best[i];
            best[i]         = wins ? v[i] : best[i];
            at[i]           = wins ? tap : at[i];
        }
    }
    __device__ __forceinline__ void end(T *y, uint8_t *index) const {
        words::store(y, best);
        if (!index) return;
        if constexpr (LANES == 1)
            *index = (uint8_t)at[0];
        else
            *reinterpret_cast<unsigned *>(index) = at[0] | at[1] << 8 | at[2] << 16 | at[3] << 24;
    }
};

/* 16 bits: two channels in a word, compared and selected by masks. This halves the instructions, which would be the
 * limiter otherwise. */
template <typename T> struct pair_of;
template <> struct pair_of<__half> {
    using pair                       = __half2;
    static constexpr unsigned lowest = 0xfc00fc00u; /* -inf, -inf */
};
template <> struct pair_of<__nv_bfloat16> {
    using pair                       = __nv_bfloat162;
    static constexpr unsigned lowest = 0xff80ff80u;
};
template <typename T> struct winners<T, 8> {
    using pair = typename pair_of<T>::pair;
    unsigned                        best[4], at[4];
    __device__ __forceinline__ void begin(unsigned first) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            best[i] = pair_of<T>::lowest;
            at[i]   = first | first << 16;
        }
    }
    __device__ __forceinline__ void update(const uint4 &x, unsigned tap) {
        const unsigned word[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 4; i++) { /* greater or unordered, and the maximum so far is a number */
            const pair challenger = reinterpret_cast<const pair &>(word[i]),
                       holder     = reinterpret_cast<const pair &>(best[i]);
            const unsigned wins   = __hgtu2_mask(challenger, holder) & __heq2_mask(holder, holder);
            best[i]               = (word[i] & wins) | (best[i] & ~wins);
            at[i]                 = ((tap | tap << 16) & wins) | (at[i] & ~wins);
        }
    }
    __device__ __forceinline__ void end(T *y, uint8_t *index) const {
        ck_store_whole(y, make_uint4(best[0], best[1], best[2], best[3]));
        if (index) /* the low byte of each half */
            *reinterpret_cast<uint2 *>(index) =
                make_uint2(__byte_perm(at[0], at[1], 0x6420), __byte_perm(at[2], at[3], 0x6420));
    }
};

/* act(x) of a thread's channels: max(x*scale + bias, 0), rounded to the type; the identity without ACT. */
template <typename T, int LANES, bool ACT> struct actor {
    using words = word_of<T, LANES>;
    float      scale[LANES], bias[LANES];
    __device__ __forceinline__ typename words::word of(const typename words::word &x) const {
        float v[LANES];
        words::open(x, v);
#pragma unroll
        for (int i = 0; i < LANES; i++) {
            v[i] = fmaf(v[i], scale[i], bias[i]);
            if (LANES != 8) v[i] = ck_relu(v[i]);
        }
        typename words::word w = words::close(v);
        if constexpr (LANES == 8) { /* two channels at a time; NaN stays NaN */
            using pair     = typename pair_of<T>::pair;
            unsigned *word = &w.x;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const unsigned none = 0;
                const pair     top =
                    __hmax2_nan(reinterpret_cast<const pair &>(word[i]), reinterpret_cast<const pair &>(none));
                word[i] = reinterpret_cast<const unsigned &>(top);
            }
        }
        return w;
    }
    __device__ __forceinline__ void begin(const float *scale_bias, int c, int C) {
#pragma unroll
        for (int i = 0; i < LANES; i++) {
            scale[i] = scale_bias[c + i];
            bias[i]  = scale_bias[C + c + i];
        }
    }
};
template <typename T, int LANES> struct actor<T, LANES, false> {
    using word = typename word_of<T, LANES>::word;
    __device__ __forceinline__ word of(const word &x) const { return x; }
    __device__ __forceinline__ void begin(const float *, int, int) {}
};

/* Results of a thread, one below another: rows of x that two results share are still in L1. */
enum { POOL_ROWS = 4 };

/* SIZE 0: any window size. With a known size all loads of a window are in flight together. A position outside the image
 * reads the nearest position inside instead; this does not change the result, because a value that is seen twice does
 * not replace itself. `shared` is the last row of the result above, which is the first row of this result where windows
 * overlap by one row: act is not computed again. */
template <typename T, int LANES, int SIZE, class Act>
__device__ __forceinline__ void pool_one(const window &g, const Act                                       &act,
                                         typename word_of<T, LANES>::word (&shared)[SIZE ? SIZE : 1], bool has_shared,
                                         const T *x, T *y, uint8_t *index, int p, int q, int c) {
    using words            = word_of<T, LANES>;
    const int         size = SIZE ? SIZE : g.size, top = p * g.stride - g.pad, left = q * g.stride - g.pad;
    const int         r0 = max(0, -top), s0 = max(0, -left), r1 = min(size, g.H - top), s1 = min(size, g.W - left);
    winners<T, LANES> w;
    w.begin((unsigned)(r0 * size + s0));
    if constexpr (SIZE != 0) {
        typename words::word v[SIZE][SIZE];
#pragma unroll
        for (int r = 0; r < SIZE; r++)
#pragma unroll
            for (int s = 0; s < SIZE; s++) {
                if (r == 0 && has_shared) continue;
                const int h = top + min(max(r, r0), r1 - 1), column = left + min(max(s, s0), s1 - 1);
                v[r][s] = words::load(x + ((h * g.W + column) * g.C + c)); /* an image has fewer than 2^31 elements */
            }
#pragma unroll
        for (int r = 0; r < SIZE; r++)
#pragma unroll
            for (int s = 0; s < SIZE; s++) {
                const typename words::word one = r == 0 && has_shared ? shared[s] : act.of(v[r][s]);
                if (r == SIZE - 1) shared[s] = one;
                w.update(one, (unsigned)(min(max(r, r0), r1 - 1) * SIZE + min(max(s, s0), s1 - 1)));
            }
    } else {
        for (int r = r0; r < r1; r++)
#pragma unroll 2
            for (int s = s0; s < s1; s++)
                w.update(act.of(words::load(x + (((top + r) * g.W + left + s) * g.C + c))), (unsigned)(r * size + s));
    }
    const int to = (p * g.Q + q) * g.C + c;
    w.end(y + to, index ? index + to : nullptr);
}

template <typename T, int LANES, int SIZE, bool ACT>
__global__ void __launch_bounds__(THREADS, ACT ? 2 : 4)
    maxpool(const T *x, const float *scale_bias, T *y, uint8_t *index, window g) {
    const unsigned row = (unsigned)g.Q * g.groups, bands = ((unsigned)g.P + POOL_ROWS - 1) / POOL_ROWS,
                   work = bands * row;
    for (int64_t n = blockIdx.y; n < g.N; n += gridDim.y) {
        const int64_t image = n * g.H * g.W * g.C, result = n * g.P * g.Q * g.C;
        for (unsigned i = blockIdx.x * THREADS + threadIdx.x; i < work; i += gridDim.x * THREADS) {
            const unsigned band = i / row, in_row = i - band * row, q = in_row / g.groups,
                           c        = (in_row - q * g.groups) * LANES;
            const int            p0 = (int)band * POOL_ROWS, p1 = min(p0 + POOL_ROWS, g.P);
            actor<T, LANES, ACT> act;
            act.begin(scale_bias, (int)c, g.C);
            typename word_of<T, LANES>::word shared[SIZE ? SIZE : 1];
            for (int p = p0; p < p1; p++)
                pool_one<T, LANES, SIZE>(g, act, shared, ACT && SIZE == g.stride + 1 && p > p0, x + image, y + result,
                                         index ? index + result : nullptr, p, (int)q, (int)c);
        }
    }
}

template <typename T, int LANES, bool ACT>
void maxpool_by_size(const void *x, const float *scale_bias, void *y, uint8_t *index, const struct ck_window *w,
                     cudaStream_t stream) {
    const window g    = window_of(w, LANES);
    const dim3   grid = grid_of((w->P + POOL_ROWS - 1) / POOL_ROWS * w->Q * g.groups, w->N);
    if (g.size == 3)
        maxpool<T, LANES, 3, ACT><<<grid, THREADS, 0, stream>>>((const T *)x, scale_bias, (T *)y, index, g);
    else
        maxpool<T, LANES, 0, ACT><<<grid, THREADS, 0, stream>>>((const T *)x, scale_bias, (T *)y, index, g);
}
template <typename T, int LANES>
cudaError_t maxpool_run(const void *x, const float *scale_bias, void *y, uint8_t *index, const struct ck_window *w,
                        cudaStream_t stream) {
    if (scale_bias)
        maxpool_by_size<T, LANES, true>(x, scale_bias, y, index, w, stream);
    else
        maxpool_by_size<T, LANES, false>(x, scale_bias, y, index, w, stream);
    return cudaGetLastError();
}

/* ---- average over the image ---- */

/* A block processes `across` neighbouring vectors of channels (a power of two, at most 32) of one image; its other
 * threads divide the pixels among them. */
struct average {
    int64_t  N, pixels, C;
    unsigned groups, across;
};
enum { AVERAGE_ACROSS = 32, AVERAGE_FLIGHT = 8 };

/* x is read once. Eight pixels are summed in float in pairs and these sums in double. The error stays below 4 roundings
 * for any image size. */
template <typename T, int LANES> __global__ void __launch_bounds__(THREADS) avgpool(const T *x, T *y, average g) {
    using words = word_of<T, LANES>;
    __shared__ double part[LANES][THREADS];
    const unsigned    lane = threadIdx.x % g.across, share = threadIdx.x / g.across, shares = THREADS / g.across;
    ck_begin_after_last();
    for (int64_t n = blockIdx.y; n < g.N; n += gridDim.y)
        for (unsigned block = blockIdx.x; block * g.across < g.groups; block += gridDim.x) {
            const unsigned group      = block * g.across + lane;
            const T       *from       = x + n * g.pixels * g.C + (int64_t)group * LANES;
            double         sum[LANES] = {};
            for (int64_t m = share; group < g.groups && m < g.pixels; m += shares * AVERAGE_FLIGHT) {
                typename words::word w[AVERAGE_FLIGHT] = {};
                float                v[AVERAGE_FLIGHT][LANES];
#pragma unroll
                for (int k = 0; k < AVERAGE_FLIGHT; k++)
                    if (m + k * shares < g.pixels) w[k] = words::load(from + (m + k * shares) * g.C);
#pragma unroll
                for (int k = 0; k < AVERAGE_FLIGHT; k++) words::open(w[k], v[k]);
#pragma unroll
                for (int i = 0; i < LANES; i++)
                    sum[i] += (double)(((v[0][i] + v[1][i]) + (v[2][i] + v[3][i])) +
                                       ((v[4][i] + v[5][i]) + (v[6][i] + v[7][i])));
            }
#pragma unroll
            for (int i = 0; i < LANES; i++) part[i][threadIdx.x] = sum[i];
            __syncthreads();
            /* one thread for each channel; LANES * across <= THREADS */
            const unsigned of = threadIdx.x / g.across, channel_group = block * g.across + lane;
            if (of < LANES && channel_group < g.groups) {
                double total = 0;
                for (unsigned s = 0; s < shares; s++) total += part[of][s * g.across + lane];
                y[n * g.C + (int64_t)channel_group * LANES + of] = ck_round<T>((float)(total / (double)g.pixels));
            }
            __syncthreads();
        }
}

/* dx is written once. */
template <typename T, int LANES>
__global__ void __launch_bounds__(THREADS) avgpool_grad(const T *dy, T *dx, average g) {
    using words         = word_of<T, LANES>;
    const unsigned lane = threadIdx.x % g.across, share = threadIdx.x / g.across, shares = THREADS / g.across;
    const float    pixels = (float)g.pixels;
    ck_begin_after_last();
    for (int64_t n = blockIdx.y; n < g.N; n += gridDim.y)
        for (unsigned group = blockIdx.x * g.across + lane; group < g.groups; group += gridDim.x * g.across) {
            float v[LANES];
            words::open(words::load(dy + n * g.C + (int64_t)group * LANES), v);
#pragma unroll
            for (int i = 0; i < LANES; i++) v[i] = v[i] / pixels;
            T *to = dx + n * g.pixels * g.C + (int64_t)group * LANES;
            for (int64_t m = (int64_t)blockIdx.z * shares + share; m < g.pixels; m += (int64_t)gridDim.z * shares)
                words::store(to + m * g.C, v);
        }
}

average average_of(int64_t N, int64_t pixels, int64_t C, int lanes) {
    average g = {N, pixels, C, (unsigned)(C / lanes), 1};
    while (g.across < AVERAGE_ACROSS && g.across < g.groups) g.across *= 2;
    return g;
}

template <typename T, int LANES>
cudaError_t avgpool_run(const void *x, void *y, int64_t N, int64_t pixels, int64_t C, cudaStream_t stream) {
    static_assert(LANES * AVERAGE_ACROSS <= THREADS, "a thread a channel");
    const average g = average_of(N, pixels, C, LANES);
    const dim3    grid(ck_blocks(g.groups, g.across, INT32_MAX), ck_blocks(N, 1, IMAGES_MOST));
    return ck_launch(avgpool<T, LANES>, grid, THREADS, 0, stream, (const T *)x, (T *)y, g);
}

template <typename T, int LANES>
cudaError_t avgpool_grad_run(const void *dy, void *dx, int64_t N, int64_t pixels, int64_t C, cudaStream_t stream) {
    const average g = average_of(N, pixels, C, LANES);
    const dim3    grid(ck_blocks(g.groups, g.across, INT32_MAX), ck_blocks(N, 1, IMAGES_MOST),
                       ck_blocks(pixels, 8 * (THREADS / g.across), 65535));
    return ck_launch(avgpool_grad<T, LANES>, grid, THREADS, 0, stream, (const T *)dy, (T *)dx, g);
}

} // namespace

cudaError_t ck_maxpool(enum ck_type type, const void *x, const float *scale_bias, void *y, uint8_t *index,
                       const struct ck_window *w, cudaStream_t stream) {
    BY_LANES(type, w->C, maxpool_run, x, scale_bias, y, index, w, stream);
}

cudaError_t ck_avgpool(enum ck_type type, const void *x, void *y, int64_t N, int64_t pixels, int64_t C,
                       cudaStream_t stream) {
    BY_LANES(type, C, avgpool_run, x, y, N, pixels, C, stream);
}

cudaError_t ck_avgpool_grad(enum ck_type type, const void *dy, void *dx, int64_t N, int64_t pixels, int64_t C,
                            cudaStream_t stream) {
    BY_LANES(type, C, avgpool_grad_run, dy, dx, N, pixels, C, stream);
}
