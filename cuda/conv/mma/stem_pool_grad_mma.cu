/* cuda/conv/mma/stem_pool_grad_mma.cu: filter gradient of the space-to-depth stem with the gradient of max pooling,
 * ReLU and BN behind it (cuda/common/fused_conv.h). The gradient of the convolution's output is not stored.
 *
 * Bytes a pixel of y: 128 of y, 32 of the gradient of the pooling, 16 of its index, 32 of x. 32,768 operations a pixel
 * for 64 channels. The limiter is the tensor cores.
 *
 * A block has 64 channels and every groups-th tile of 2 x 112 pixels. dw[64][256] stays in registers from the first to
 * the last tile, once for each line. A warp has a line, 32 channels and a row of filter positions. Half of the warps of
 * each scheduler multiply while the others compute the gradient for the next tile, then the reverse. A thread computes
 * 8 channels of 2 x 2 pixels, which four windows of the pooling cover. */
#include "cuda/common/point_grad_fold.cuh"
#include "cuda/conv/mma/stem_mma.cuh"

namespace {

enum {
    LINES     = 2,
    FRAGMENTS = LINES * ACROSS,
    WARPS     = 16,
    THREADS   = WARPS * 32,
    DOWN      = 2, /* fragments of 16 channels of a warp */
    X_ROWS    = LINES + SIDE - 1,
    X_BYTES   = (X_ROWS * ROW_BYTES + 127) / 128 * 128,
    X_BUFFERS = 3, /* of this tile, the next, and the one on its way */
    G_ROW     = COLUMNS * 2,
    G_BYTES   = LINES * LINE * G_ROW,
    QUADS     = LINE / 2 * (COLUMNS / 8), /* threads that have pixels */
    SIGN_AT   = 3 * COLUMNS * 4,          /* behind coeffs[3]; see mask */
    LEAST_AT  = SIGN_AT + COLUMNS * 2,
    Y_AT      = LEAST_AT + COLUMNS * 2,
    G_AT      = Y_AT + 4 * THREADS * 16,
    X_AT      = G_AT + 2 * G_BYTES,
    BYTES     = X_AT + X_BUFFERS * X_BYTES,
    ELEMENTS  = TAPS * DEPTH /* of a filter */
};
static_assert(QUADS <= THREADS && Y_AT % 128 == 0, "a thread for each quad");
static_assert(COLUMNS * ELEMENTS * 4 <= 2 * G_BYTES + X_BUFFERS * X_BYTES, "dw of a line");

struct params {
    struct shape   shape;
    int            pooled_h, pooled_w;
    const void    *x, *g, *y; /* g: dy of the pooling */
    const uint8_t *index;
    const float   *coeffs, *scale_bias; /* [3][K], [2][K] */
    float         *partial;             /* [groups][K][256] */
    int            groups;
};

/* The type of two values in a register. */
template <typename T> struct two_of;
template <> struct two_of<__half> { using type = __half2; };
template <> struct two_of<__nv_bfloat16> { using type = __nv_bfloat162; };

template <typename T> struct worker {
    const params  &p;
    const uint32_t shared;
    const int      warp, lane, column, vector, quad; /* column: first of the block; of the thread: 8 channels, pixels */
    float          dw[DOWN][2 * SIDE][4];
    uint4          g[4]; /* windows (i, j), (i, j + 1), (i + 1, j), (i + 1, j + 1) */
    uint2          winner[4];
    unsigned       here; /* bits of the pixels that exist */

    __device__ worker(const params &params_, uint32_t shared_, int column_)
        : p(params_), shared(shared_), warp((int)threadIdx.x / 32), lane((int)threadIdx.x % 32), column(column_),
          vector((int)threadIdx.x % 8), quad((int)threadIdx.x / 8) {
#pragma unroll
        for (int i = 0; i < DOWN * 32; i++) dw[i / 32][i / 4 % 8][i % 4] = 0.0f;
    }
    __device__ __forceinline__ void set_vectors() const {
        const int i = (int)threadIdx.x;
        if (i < 3 * COLUMNS)
            ck_put4(shared + (uint32_t)(i * 4), p.coeffs[(int64_t)(i / COLUMNS) * p.shape.K + column + i % COLUMNS]);
        if (i >= COLUMNS / 2) return;
        const float *scale = p.scale_bias + column + 2 * i, *bias = scale + p.shape.K;
        ck_put4(shared + (uint32_t)(SIGN_AT + i * 4),
                (scale[0] < 0.0f ? 0x8000u : 0u) | (scale[1] < 0.0f ? 1u << 31 : 0u));
        ck_put4(shared + (uint32_t)(LEAST_AT + i * 4), bound(scale[0], bias[0]) | bound(scale[1], bias[1]) << 16);
    }
    /* The largest number of T for which y*|scale| + bias is not above 0, as bits: numbers are ordered as integers, and
     * so are the sums. All numbers from -infinity to infinity are searched. */
    static __device__ __forceinline__ uint32_t bound(float scale, float bias) {
        constexpr int INFINITE = __is_same(T, __half) ? 0x7c00 : 0x7f80;
        int           low = -INFINITE, above = INFINITE + 1;
        while (above - low > 1) {
            const int middle = (low + above) >> 1;
            if (fmaf(ck_pair<T>(bits_of(middle)).x, fabsf(scale), bias) > 0.0f)
                above = middle;
            else
                low = middle;
        }
        return bits_of(low);
    }
    static __device__ __forceinline__ uint32_t bits_of(int number) {
        return number < 0 ? 0x8000u | (uint32_t)-number : (uint32_t)number;
    }

    /* ---- the gradient of y ---- */

    __device__ __forceinline__ uint32_t y_at(int pixel) const {
        return shared + (uint32_t)(Y_AT + (pixel * THREADS + (int)threadIdx.x) * 16);
    }
    /* Starts the copies of a tile's x and y, and its loads. */
    __device__ __forceinline__ void load(int tile, int buffer) {
#pragma unroll
        for (int k = 0; k < 4; k++) g[k] = make_uint4(0, 0, 0, 0), winner[k] = make_uint2(0xffffffffu, 0xffffffffu);
        here = 0;
        if (tile < p.shape.tiles) {
            const place at(p.shape, tile);
            copy_x<THREADS, X_ROWS>(p.shape, p.x, at, shared + (uint32_t)(X_AT + buffer * X_BYTES), (int)threadIdx.x);
            if (quad < LINE / 2) load_quad(at);
        }
        ck_copy_commit();
    }
    __device__ __forceinline__ void load_quad(const place &at) {
        const int q = at.q + 2 * quad, i = at.p / 2, j = at.q / 2 + quad, K = p.shape.K;
        const T  *y = static_cast<const T *>(p.y) + (((int64_t)at.n * p.shape.P + at.p) * p.shape.Q + q) * K + column +
                     vector * 8;
        const int64_t from = (((int64_t)at.n * p.pooled_h + i) * p.pooled_w + j) * K + column + vector * 8;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const bool is = at.p + k / 2 < p.shape.P && q + k % 2 < p.shape.Q;
            here |= is ? 1u << k : 0u;
            ck_copy16(y_at(k), is ? y + (k / 2 * p.shape.Q + k % 2) * K : p.y, is);
            if (i + k / 2 < p.pooled_h && j + k % 2 < p.pooled_w) {
                const int64_t window = from + (k / 2 * p.pooled_w + k % 2) * K;
                g[k]                 = *reinterpret_cast<const uint4 *>(static_cast<const T *>(p.g) + window);
                winner[k]            = *reinterpret_cast<const uint2 *>(p.index + window);
            }
        }
    }
    static __device__ __forceinline__ uint32_t word_of(const uint4 &v, int i) {
        return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
    }
    /* Keeps those of two channels whose window chose `tap`; the others become 0. */
    static __device__ __forceinline__ uint32_t chosen(uint32_t word, uint2 winner, int i, uint32_t tap) {
        const uint32_t spread = __byte_perm(i < 2 ? winner.x : winner.y, 0u, i % 2 ? 0x4342u : 0x4140u),
                       taps   = tap | tap << 16; /* small numbers, which are different f16 numbers */
        return word & __heq2_mask(reinterpret_cast<const __half2 &>(spread), reinterpret_cast<const __half2 &>(taps));
    }
    /* The gradient of channels 2*i, 2*i + 1 of a pixel: the windows that chose it. Window k is row 2 - k/2*2 of the
     * pixels below, and its middle row is that of the pixels above; columns likewise. */
    __device__ __forceinline__ uint32_t gradient(int pixel, int i) const {
        using pair   = typename two_of<T>::type;
        uint32_t sum = 0;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (k / 2 > pixel / 2 || k % 2 > pixel % 2) continue;
            const uint32_t r = pixel / 2 ? 2 - k / 2 * 2 : 1, s = pixel % 2 ? 2 - k % 2 * 2 : 1;
            const uint32_t more = chosen(word_of(g[k], i), winner[k], i, r * 3 + s);
            const pair     all  = __hadd2(reinterpret_cast<const pair &>(sum), reinterpret_cast<const pair &>(more));
            sum                 = k == 0 ? more : reinterpret_cast<const uint32_t &>(all);
        }
        return sum;
    }
    /* Keeps those of two channels where y*scale + bias > 0: where y, or -y if scale < 0, is above the bound. */
    static __device__ __forceinline__ uint32_t mask(uint32_t word, uint32_t y, uint32_t sign, uint32_t least) {
        using pair         = typename two_of<T>::type;
        const uint32_t own = y ^ sign;
        return word & __hgt2_mask(reinterpret_cast<const pair &>(own), reinterpret_cast<const pair &>(least));
    }
    /* Channels 2*i, 2*i + 1 of a pixel; k: coeffs of four channels. */
    __device__ __forceinline__ uint32_t word(uint32_t y, uint32_t gradient, const float (&k)[3][4], int i) const {
        const float2 v = ck_pair<T>(y), d = ck_pair<T>(gradient);
        const int    c = i % 2 * 2;
        return ck_pack_pair<T>(fmaf(k[0][c], d.x, fmaf(k[1][c], v.x, k[2][c])),
                               fmaf(k[0][c + 1], d.y, fmaf(k[1][c + 1], v.y, k[2][c + 1])));
    }
    /* Four channels at a time, for the registers of the vectors. */
    __device__ __forceinline__ void convert(int buffer) {
        ck_copy_wait_all();
        if (quad >= LINE / 2) return;
        const uint32_t to = shared + (uint32_t)(G_AT + buffer * G_BYTES);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float    k[3][4];
            uint2    y[4]; /* before the first store, so that the loads are in flight together */
            uint32_t at = shared + (uint32_t)((vector * 8 + half * 4) * 4);
#pragma unroll
            for (int pixel = 0; pixel < 4; pixel++) y[pixel] = get_words(y_at(pixel) + (uint32_t)(half * 8));
#pragma unroll
            for (int m = 0; m < 3; m++) set4(k[m], ck_get16(at + (uint32_t)(m * COLUMNS * 4)));
            at               = shared + (uint32_t)((vector * 8 + half * 4) * 2);
            const uint2 sign = get_words(at + SIGN_AT), least = get_words(at + LEAST_AT);
#pragma unroll
            for (int pixel = 0; pixel < 4; pixel++) {
                const uint32_t keep = 0u - (here >> pixel & 1u); /* all bits, or none */
                const uint32_t low  = mask(gradient(pixel, 2 * half), y[pixel].x, sign.x, least.x),
                               high = mask(gradient(pixel, 2 * half + 1), y[pixel].y, sign.y, least.y);
                ck_put8(ck_chunk_at(to, G_ROW, pixel / 2 * LINE + 2 * quad + pixel % 2, vector) + (uint32_t)(half * 8),
                        keep & word(y[pixel].x, low, k, 2 * half), keep & word(y[pixel].y, high, k, 2 * half + 1));
            }
        }
    }
    static __device__ __forceinline__ uint2 get_words(uint32_t at) {
        const float2 v = ck_get8(at);
        return make_uint2(__float_as_uint(v.x), __float_as_uint(v.y));
    }
    static __device__ __forceinline__ void set4(float (&v)[4], uint4 word) {
        v[0] = __uint_as_float(word.x), v[1] = __uint_as_float(word.y);
        v[2] = __uint_as_float(word.z), v[3] = __uint_as_float(word.w);
    }

    /* ---- products ---- */

    __device__ __forceinline__ void multiply(uint32_t g_at, uint32_t x_at) {
        const int line = warp / 8, k = warp / 4 % 2 * (DOWN * 16), r = warp % 4;
        /* this lane's row of the transposed matrices: pixel lane % 16 of plane lane / 16 */
        const uint32_t x = x_at + (uint32_t)(((line + r) * 2 + lane / 16) * PLANE_BYTES + lane % 16 * 16);
#pragma unroll 1
        for (int f = 0; f < ACROSS; f++) {
            uint32_t a[DOWN][4], b[SIDE][4];
#pragma unroll
            for (int m = 0; m < DOWN; m++) ck_mma_a_transposed(a[m], g_at, G_ROW, k + m * 16, line * LINE + f * 16);
#pragma unroll
            for (int s = 0; s < SIDE; s++) ck_ldmatrix_trans(b[s], x + (uint32_t)(f * 256 + s * 16));
#pragma unroll
            for (int s = 0; s < SIDE; s++)
#pragma unroll
                for (int m = 0; m < DOWN; m++) {
                    ck_mma<T>(dw[m][2 * s], a[m], b[s][0], b[s][1]);
                    ck_mma<T>(dw[m][2 * s + 1], a[m], b[s][2], b[s][3]);
                }
        }
    }
    __device__ __forceinline__ void run(int first) {
        const int products = warp / 4 % 2;
        set_vectors();
        load(first, 0);
        __syncthreads(); /* the vectors are complete */
        convert(0);
        load(first + p.groups, 1);
        for (int tile = first, i = 0; tile < p.shape.tiles; tile += p.groups, i++) {
            __syncthreads(); /* this tile is complete; nobody reads the other gradient and the oldest x */
#pragma unroll 1
            for (int phase = 0; phase < 2; phase++) {
                if (phase == products)
                    multiply(shared + (uint32_t)(G_AT + i % 2 * G_BYTES), shared + (uint32_t)(X_AT + i % 3 * X_BYTES));
                else {
                    convert((i + 1) % 2);
                    load(tile + 2 * p.groups, (i + 2) % 3);
                }
            }
        }
        ck_copy_wait_all();
    }
    /* Adds the second line's dw to the first one's and stores it in row `group` of the workspace. */
    __device__ __forceinline__ void write(int group) {
        const uint32_t at = shared + (uint32_t)(G_AT + (int)threadIdx.x % (THREADS / 2) * 4);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < DOWN * 32; i++)
            if (warp >= WARPS / 2) ck_put4(at + (uint32_t)(i * (THREADS / 2) * 4), dw[i / 32][i / 4 % 8][i % 4]);
        __syncthreads();
        if (warp >= WARPS / 2) return;
        float *to = p.partial +
                    ((int64_t)group * p.shape.K + column + warp / 4 % 2 * (DOWN * 16) + lane / 4) * ELEMENTS +
                    warp % 4 * (SIDE * DEPTH) + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < DOWN * 32; i += 2) {
            const int m = i / 32, n = i / 4 % 8, half = i % 4 / 2;
            *reinterpret_cast<float2 *>(to + (m * 16 + half * 8) * ELEMENTS + n * 8) = make_float2(
                dw[m][n][2 * half] + __uint_as_float(ck_get4(at + (uint32_t)(i * (THREADS / 2) * 4))),
                dw[m][n][2 * half + 1] + __uint_as_float(ck_get4(at + (uint32_t)((i + 1) * (THREADS / 2) * 4))));
        }
    }
};

template <typename T> __global__ void __launch_bounds__(THREADS, 1) stem_pool_grad_mma(const params p) {
    extern __shared__ __align__(128) unsigned char memory[];
    const int                                      parts = p.shape.K / COLUMNS, group = (int)blockIdx.x / parts;
    worker<T>                                      worker(p, ck_shared(memory), (int)blockIdx.x % parts * COLUMNS);
    worker.run(group);
    worker.write(group);
}

template <typename T> cudaError_t start(const params &p, cudaStream_t stream) {
    const auto        kernel = stem_pool_grad_mma<T>;
    const cudaError_t error  = ck_allow_shared(kernel, BYTES);
    if (error != cudaSuccess) return error;
    kernel<<<(unsigned)(p.groups * (p.shape.K / COLUMNS)), THREADS, BYTES, stream>>>(p);
    return cudaGetLastError();
}
int blocks_of(const shape &s, const struct ck_gpu *gpu) {
    return (groups_of(s, gpu->multiprocessors) + 1) / 2;
}

int configs(const struct ck_stem_pool_grad *a, const struct ck_gpu *gpu) {
    return (a->type == CK_F16 || a->type == CK_BF16) && shape_fits(a->N, a->H, a->W, a->K) &&
           (int)BYTES <= gpu->block_bytes;
}

size_t workspace_of(const struct ck_stem_pool_grad *a, const struct ck_gpu *gpu) {
    const shape s = shape_of(a->N, a->H, a->W, a->K, FRAGMENTS);
    return sizeof(float) * (size_t)blocks_of(s, gpu) * (size_t)a->K * ELEMENTS;
}

cudaError_t launch(const struct ck_stem_pool_grad *a, void *workspace, const struct ck_gpu *gpu, cudaStream_t stream) {
    if (!configs(a, gpu)) return cudaErrorInvalidValue;
    params p                = {};
    p.shape                 = shape_of(a->N, a->H, a->W, a->K, FRAGMENTS);
    p.groups                = blocks_of(p.shape, gpu);
    p.pooled_h              = (p.shape.P - 1) / 2 + 1;
    p.pooled_w              = (p.shape.Q - 1) / 2 + 1;
    p.x                     = a->x;
    p.g                     = a->g;
    p.y                     = a->y;
    p.index                 = a->index;
    p.coeffs                = a->coeffs;
    p.scale_bias            = a->scale_bias;
    p.partial               = static_cast<float *>(workspace);
    const cudaError_t error = ck_by_half(a->type, [&](auto t) { return start<decltype(t)>(p, stream); });
    if (error != cudaSuccess) return error;
    const struct ck_parts parts = {p.partial, NULL, p.groups, 0};
    return ck_fold_parts(&parts, NULL, a->dw, NULL, (int)a->K, ELEMENTS, a->accumulate, stream);
}

} // namespace

const struct ck_conv_family ck_stem_pool_grad_mma = ck_family<ck_stem_pool_grad, configs, workspace_of, launch>();
