/* cuda/conv/gram/gram_grad.cu: what the backward pass of a BN needs, from a Gram matrix: ck_gram_bn_grad,
 * ck_gram_bn_grad_sums.
 *
 * ck_gram_bn_grad is two launches. The first computes the coefficients of each output channel
 * (gram_grad_channels.cuh). In the second, the products run together: a block computes 16 x 128 elements of w^T B w
 * over 256 output channels, or of w G, from which dw follows. The last block of 16 lines of w^T B w adds the parts and
 * makes w_x and the biases. All sums are in f64 and have a fixed order. Limited by f64 products and the L2 cache: 5 to
 * 30 microseconds. */
#include "cuda/common/shared.cuh"
#include "cuda/conv/gram/gram_grad_channels.cuh"

namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32, TILES = 2, WARP_COLUMNS = 8 * TILES, COLUMNS = WARPS * WARP_COLUMNS,
              SPLIT = 256, STEPS = 4, CHANNELS_MAX = 512;

/* Parts of the workspace, and the blocks of the second launch: first those of w^T B w. */
struct plan {
    int      panels, chunks, splits, lines; /* panels of input channels; chunks of columns; panels of output channels */
    channel *channels;                      /* [K] */
    double  *parts, *biases;                /* [splits][C][C], [splits][C] */
    unsigned *done;                         /* [panels]: blocks that are complete */
};

/* ---- products ---- */

/* Elements of a line from `column` on; behind the last they are those before, which are not used. EVEN: C is. */
template <bool EVEN>
__device__ __forceinline__ void read_columns(float (&to)[TILES], const float *line, int column, int C) {
    if constexpr (EVEN) {
        const float2 v = *(const float2 *)(line + (column < C ? column : C - TILES));
        to[0] = v.x, to[1] = v.y;
    } else {
#pragma unroll
        for (int n = 0; n < TILES; n++) to[n] = line[column + n < C ? column + n : C - 1];
    }
}
template <bool EVEN, typename T>
__device__ __forceinline__ void read_columns(float (&to)[TILES], const T *line, int column, int C) {
    if constexpr (EVEN) {
        const float2 v = ck_pair<T>(*(const uint32_t *)(line + (column < C ? column : C - TILES)));
        to[0] = v.x, to[1] = v.y;
    } else {
#pragma unroll
        for (int n = 0; n < TILES; n++) to[n] = ck_float(line[column + n < C ? column + n : C - 1]);
    }
}

/* The part of this warp: sum = left[16][depth] * right[depth][columns from `column` on]. */
template <bool EVEN, class Value>
__device__ __forceinline__ void multiply_panel(double (&sum)[TILES][4], const double *left, int length, int depth,
                                               const Value *right, int C, int column) {
    const int mine = column + (int)threadIdx.x % 32 / 4 * TILES;
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) sum[n][i] = 0.0;
    add_panel<TILES, STEPS>(sum, left, length, depth, [&](int row, float(&v)[TILES]) {
        read_columns<EVEN>(v, right + (int64_t)row * C, mine, C);
    });
}

/* each(line of the panel, column, value) for the results of this lane. */
template <class Each>
__device__ __forceinline__ void for_results(const double (&sum)[TILES][4], int C, int column, const Each &each) {
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                const int at = column + (2 * t + i) * TILES + n;
                if (at < C) each(g + 8 * half, at, sum[n][2 * half + i]);
            }
}

/* A line of dw by the lane that has the products `line` of these columns. */
__device__ __forceinline__ void put_filters(const struct ck_gram_bn_grad &a, const plan &p, int64_t k, int column,
                                            const double (&line)[2 * TILES]) {
    const int C = (int)a.C;
    if (k >= a.K) return;
    const channel h = p.channels[k];
    float         m[2 * TILES], s[2 * TILES], t[2 * TILES], old[2 * TILES];
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) { /* all reads before the first store */
        const int c = column + i < C ? column + i : C - 1;
        m[i]        = a.m[k * C + c];
        s[i]        = a.gram[C * C + c];
        t[i]        = a.gram[(C + 1) * C + c];
        old[i]      = a.accumulate ? a.dw[k * C + c] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) {
        const double v = h.A * (double)m[i] + h.D * ((double)s[i] + a.pixels * (double)t[i]) +
                         h.B * ((h.shift - h.mean) * (double)s[i] + h.apart * (double)t[i] + line[i]);
        if (column + i < C) a.dw[k * C + column + i] = (float)((double)old[i] + v);
    }
}

/* 16 lines of dw, COLUMNS columns. */
template <typename T, bool EVEN>
__device__ void make_filters(const struct ck_gram_bn_grad &a, const plan &p, double *left, int block) {
    const int C = (int)a.C, length = row_length(C), lane = (int)threadIdx.x % 32,
              column = block % p.chunks * COLUMNS + (int)threadIdx.x / 32 * WARP_COLUMNS;
    const int64_t k0 = (int64_t)(block / p.chunks) * PANEL;
    double        sum[TILES][4];
#pragma unroll 8
    for (int i = (int)threadIdx.x; i < PANEL * length; i += THREADS) {
        const int row = i / length, c = i % length;
        left[i] = k0 + row < a.K && c < C ? (double)ck_float(((const T *)a.w)[(k0 + row) * C + c]) : 0.0;
    }
    __syncthreads();
    if (column >= C) return;
    multiply_panel<EVEN>(sum, left, length, C, a.gram, C, column);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        double line[2 * TILES];
#pragma unroll
        for (int i = 0; i < 2 * TILES; i++) line[i] = sum[i % TILES][2 * half + i / TILES];
        put_filters(a, p, k0 + lane / 4 + 8 * half, column + lane % 4 * 2 * TILES, line);
    }
}

/* PANEL elements of a line from `column` on; 0 behind the last. */
template <typename T>
__device__ __forceinline__ void read_filters(float (&to)[PANEL], const T *line, int column, int C) {
    if (C % PANEL == 0) {
#pragma unroll
        for (int i = 0; i < PANEL / 8; i++) {
            const uint4    v       = ((const uint4 *)(line + column))[i];
            const uint32_t pair[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float2 two  = ck_pair<T>(pair[j]);
                to[8 * i + 2 * j] = two.x, to[8 * i + 2 * j + 1] = two.y;
            }
        }
        return;
    }
#pragma unroll
    for (int c = 0; c < PANEL; c++) to[c] = column + c < C ? ck_float(line[column + c]) : 0.0f;
}

/* left[c][k] = w B of 16 input channels and SPLIT output channels; `puts`: also their part of w_g and of the biases. */
template <typename T>
__device__ __forceinline__ void make_left(const struct ck_gram_bn_grad &a, const plan &p, double *left, int length,
                                          int c0, int split, bool puts) {
    __shared__ double sums[WARPS][PANEL];
    const int         C = (int)a.C, k = split * SPLIT + (int)threadIdx.x;
    double            bias[PANEL] = {};
    float             w[PANEL];
    static_assert(SPLIT == THREADS, "a thread for each output channel");
    if (k < a.K) {
        const channel h       = p.channels[k];
        const double  average = (double)a.dy_sums[k] / a.pixels;
        read_filters(w, (const T *)a.w + (int64_t)k * C, c0, C);
#pragma unroll
        for (int c = 0; c < PANEL; c++) {
            const double v                      = (double)w[c];
            left[c * length + (int)threadIdx.x] = v * h.B;
            if (!puts || c0 + c >= C) continue;
            const double scaled                       = h.A * v;
            const T      rounded                      = ck_round<T>((float)scaled);
            ((T *)a.w_g)[(int64_t)(c0 + c) * a.K + k] = rounded;
            bias[c] = v * (h.D - h.B * h.mean) + (scaled - (double)ck_float(rounded)) * average;
        }
    } else {
#pragma unroll
        for (int c = 0; c < PANEL; c++) left[c * length + (int)threadIdx.x] = 0.0;
    }
    if (puts)
#pragma unroll
        for (int c = 0; c < PANEL; c++) {
            const double sum = warp_sum(bias[c]);
            if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32][c] = sum;
        }
    __syncthreads();
    if (!puts || threadIdx.x >= PANEL || c0 + (int)threadIdx.x >= C) return;
    double sum = 0.0;
    for (int i = 0; i < WARPS; i++) sum += sums[i][threadIdx.x];
    p.biases[(int64_t)split * C + c0 + threadIdx.x] = sum;
}

/* The power of two for which the largest element is in [128, 256) after the division. */
__device__ __forceinline__ double factor_of(double most) {
    int exponent;
    if (!(most > 0.0) || isinf(most)) return 1.0;
    (void)frexp(most, &exponent);
    return ldexp(1.0, exponent - 8 < -120 ? -120 : exponent - 8);
}

/* The largest size in a warp; NaN if one is NaN. */
__device__ __forceinline__ double largest(double most) {
#pragma unroll
    for (int i = 16; i; i /= 2) {
        const double other = __shfl_xor_sync(0xffffffffu, most, i);
        if (other > most || isnan(other)) most = other;
    }
    return most;
}

/* Line c of w_x, its factor and bias, by a warp; a lane has EACH columns. WHOLE: C is 32 * EACH, so all reads of a part
 * are in flight together. */
template <typename T, int EACH, bool WHOLE>
__device__ __forceinline__ void make_line(const struct ck_gram_bn_grad &a, const plan &p, int c) {
    const int    C = WHOLE ? 32 * EACH : (int)a.C, lane = (int)threadIdx.x % 32;
    const double each = 1.0 / a.pixels;
    double       exact[EACH], most = 0.0, bias = 0.0;
#pragma unroll
    for (int i = 0; i < EACH; i++) exact[i] = 0.0;
#pragma unroll(WHOLE &&EACH <= 8 ? 32 / EACH : 1)
    for (int split = 0; split < p.splits; split++)
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (WHOLE || i * 32 + lane < C) exact[i] += p.parts[((int64_t)split * C + c) * C + i * 32 + lane];
    float t[EACH], s[EACH]; /* all reads before the first store */
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int j = WHOLE || i * 32 + lane < C ? i * 32 + lane : C - 1;
        t[i]        = a.gram[(C + 1) * C + j];
        s[i]        = a.gram[C * C + j];
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) { /* if an element is NaN, the factor is 1 */
        const double size = fabs(exact[i]);
        if (size > most || isnan(size)) most = size;
    }
    const double factor = factor_of(largest(most)), reverse = 1.0 / factor;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int j = i * 32 + lane;
        if (!WHOLE && j >= C) continue;
        const T rounded                  = ck_round<T>((float)(exact[i] * reverse));
        ((T *)a.w_x)[(int64_t)c * C + j] = rounded;
        bias += (exact[i] - (double)ck_float(rounded) * factor) * ((double)t[i] + (double)s[i] * each);
    }
    bias = warp_sum(bias);
    if (lane) return;
    for (int split = 0; split < p.splits; split++) bias += p.biases[(int64_t)split * C + c];
    a.factor_bias[c]     = (float)factor;
    a.factor_bias[C + c] = (float)bias;
}

/* The lines of a panel, by a block. */
template <typename T, int EACH, bool WHOLE>
__device__ __forceinline__ void make_lines(const struct ck_gram_bn_grad &a, const plan &p, int c0) {
    for (int row = (int)threadIdx.x / 32; row < PANEL && c0 + row < (int)a.C; row += WARPS)
        make_line<T, EACH, WHOLE>(a, p, c0 + row);
}

/* Returns whether this block is the last one of its panel; then it sees what the others have written. */
__device__ __forceinline__ bool is_last(const plan &p, int panel) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(p.done + panel, 1u) == (unsigned)(p.splits * p.chunks - 1);
    __syncthreads();
    if (last) __threadfence();
    return last;
}

/* 16 lines of w^T B w, COLUMNS columns, SPLIT output channels. */
template <typename T, bool EVEN>
__device__ void make_inputs(const struct ck_gram_bn_grad &a, const plan &p, double *left, int block) {
    const int C = (int)a.C, length = row_length(SPLIT), warp = (int)threadIdx.x / 32, chunk = block % p.chunks,
              split = block / p.chunks % p.splits, panel = block / p.chunks / p.splits, c0 = panel * PANEL,
              k0 = split * SPLIT, column = chunk * COLUMNS + warp * WARP_COLUMNS,
              depth = (int)a.K - k0 < SPLIT ? (int)a.K - k0 : SPLIT;
    make_left<T>(a, p, left, length, c0, split, chunk == 0);
    if (column < C) {
        double sum[TILES][4];
        multiply_panel<EVEN>(sum, left, length, depth, (const T *)a.w + (int64_t)k0 * C, C, column);
        for_results(sum, C, column, [&](int row, int j, double v) {
            if (c0 + row < C) p.parts[((int64_t)split * C + c0 + row) * C + j] = v;
        });
    }
    if (!is_last(p, panel)) return;
    if (C == 64)
        make_lines<T, 2, true>(a, p, c0);
    else if (C == 128)
        make_lines<T, 4, true>(a, p, c0);
    else if (C == 256)
        make_lines<T, 8, true>(a, p, c0);
    else if (C == 512)
        make_lines<T, 16, true>(a, p, c0);
    else
        make_lines<T, CHANNELS_MAX / 32, false>(a, p, c0);
}

template <typename T, bool EVEN>
__global__ void __launch_bounds__(THREADS, 2) grad_products(const struct ck_gram_bn_grad a, const plan p) {
    extern __shared__ __align__(16) unsigned char memory[]; /* f64 left[PANEL][length] */
    double *const                                 left   = reinterpret_cast<double *>(memory);
    const int                                     inputs = p.panels * p.splits * p.chunks;
    ck_begin_after_last();
    if ((int)blockIdx.x < inputs)
        make_inputs<T, EVEN>(a, p, left, (int)blockIdx.x);
    else
        make_filters<T, EVEN>(a, p, left, (int)blockIdx.x - inputs);
}

/* ---- host side ---- */

int parts_of(int64_t n, int64_t part) {
    return (int)((n + part - 1) / part);
}

/* Returns the bytes of the workspace. */
size_t plan_work(struct plan *p, int64_t K, int64_t C, void *workspace) {
    const size_t channels = sizeof(channel) * (size_t)K;
    p->panels = parts_of(C, PANEL), p->chunks = parts_of(C, COLUMNS);
    p->splits = parts_of(K, SPLIT), p->lines = parts_of(K, PANEL);
    const size_t parts  = sizeof(double) * (size_t)(p->splits * C * C),
                 biases = sizeof(double) * (size_t)(p->splits * C), done = sizeof(unsigned) * (size_t)p->panels;
    char *const at = static_cast<char *>(workspace);
    p->channels    = reinterpret_cast<channel *>(at);
    p->parts       = reinterpret_cast<double *>(at + channels);
    p->biases      = reinterpret_cast<double *>(at + channels + parts);
    p->done        = reinterpret_cast<unsigned *>(at + channels + parts + biases);
    return channels + parts + biases + done;
}

template <typename T, bool EVEN>
cudaError_t start_products(const struct ck_gram_bn_grad *a, const plan *p, cudaStream_t stream) {
    const int         length = row_length((int)a->C > SPLIT ? (int)a->C : SPLIT);
    const int64_t     bytes  = (int64_t)sizeof(double) * PANEL * length;
    const dim3        blocks((unsigned)(p->chunks * (p->panels * p->splits + p->lines)));
    const cudaError_t error = ck_allow_shared(grad_products<T, EVEN>, bytes);
    if (error != cudaSuccess) return error;
    return ck_launch(grad_products<T, EVEN>, blocks, dim3(THREADS), (size_t)bytes, stream, *a, *p);
}

template <typename T> cudaError_t start_grad(const struct ck_gram_bn_grad *a, const plan *p, cudaStream_t stream) {
    const cudaError_t error = start_channels<T>(a, p->channels, p->done, p->panels, stream);
    if (error != cudaSuccess) return error;
    return a->C % 2 == 0 ? start_products<T, true>(a, p, stream) : start_products<T, false>(a, p, stream);
}

} // namespace

size_t ck_gram_bn_grad_workspace(int64_t K, int64_t C) {
    struct plan p;
    char        any; /* only sizes are used */
    return plan_work(&p, K, C, &any);
}

cudaError_t ck_gram_bn_grad(const struct ck_gram_bn_grad *a, void *workspace, cudaStream_t stream) {
    struct plan p;
    (void)plan_work(&p, a->K, a->C, workspace);
    return a->type == CK_F16 ? start_grad<__half>(a, &p, stream) : start_grad<__nv_bfloat16>(a, &p, stream);
}

cudaError_t ck_gram_bn_grad_sums(const struct ck_gram_bn_grad_sums *a, cudaStream_t stream) {
    return a->type == CK_F16 ? start_grad_sums<__half>(a, stream) : start_grad_sums<__nv_bfloat16>(a, stream);
}
