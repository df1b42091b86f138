/* cuda/conv/mma/stem_mma.cu: forward convolution of the space-to-depth stem (cuda/conv/mma/stem_mma.h).
 *
 * Bytes a pixel: 32 of x, read twice (mostly from L2), and 128 of y. 32,768 operations a pixel for 64 channels. The
 * limiter is the tensor cores, closely followed by shared memory. At batch 256 and 224x224
 * images: 105 GFLOP, 175 us at 600 TFLOP/s; memory takes 124 us.
 *
 * A block has 64 channels, whose filters stay in shared memory, and every groups-th tile of 288 pixels. Each of its
 * 6 warps computes 48 pixels x 64 channels, which takes 7 ldmatrix for 24 products. Copies of the next tile's x run
 * during the products. Results leave through cuda/conv/mma/panel.cuh; the panels use the place of the x that was just
 * read. */
#include "cuda/common/column_sums.cuh"
#include "cuda/conv/mma/panel.cuh"
#include "cuda/conv/mma/stem_mma.cuh"

namespace {

enum {
    EACH      = 3, /* fragments of a warp */
    WARPS     = 6,
    THREADS   = WARPS * 32,
    FRAGMENTS = WARPS * EACH,
    X_ROWS    = (FRAGMENTS + ACROSS - 2) / ACROSS + 1 + SIDE - 1, /* below the lines that a tile can touch */
    X_BYTES   = X_ROWS * ROW_BYTES,
    W_ROW     = TAPS * DEPTH * 2,
    X_AT      = COLUMNS * W_ROW,
    VECTOR_AT = X_AT + STAGES * X_BYTES,
    BYTES     = VECTOR_AT + COLUMNS * 4
};
static_assert(WARPS * PANEL_BYTES <= X_BYTES && X_BYTES % 16 == 0, "panels in the place of x");
static_assert(WARPS * 2 * COLUMNS * 4 <= X_BYTES, "sums of all warps");

struct params {
    struct shape shape;
    const void  *x, *w;
    const float *bias;
    void        *y;
    float       *partial; /* [groups][2][K], NULL without sums */
    int          groups;
    bool         relu;
};

template <typename T, bool INFER> struct worker {
    const params  &p;
    const uint32_t shared;
    const int      warp, lane, column; /* column: first channel of the block */
    float          acc[EACH][8][4];
    column_sums    sums;

    __device__ worker(const params &params_, uint32_t shared_, int column_)
        : p(params_), shared(shared_), warp((int)threadIdx.x / 32), lane((int)threadIdx.x % 32), column(column_) {}

    __device__ __forceinline__ void copy_filters() const {
        for (int i = (int)threadIdx.x; i < COLUMNS * W_ROW / 16; i += THREADS) {
            const int k = i / (W_ROW / 16), chunk = i % (W_ROW / 16);
            ck_copy16(ck_chunk_at(shared, W_ROW, k, chunk),
                      static_cast<const T *>(p.w) + (int64_t)(column + k) * (TAPS * DEPTH) + chunk * 8, true);
        }
        if (INFER && threadIdx.x < COLUMNS)
            ck_put4(shared + (uint32_t)(VECTOR_AT + (int)threadIdx.x * 4),
                    p.bias ? p.bias[column + threadIdx.x] : 0.0f);
    }

    /* Address of this lane's row of fragment m: pixel lane % 16 of plane lane / 16. */
    __device__ __forceinline__ uint32_t pixels(uint32_t x, int m, int first) const {
        const int f = first + warp * EACH + m;
        return x + (uint32_t)((line_of(f) * 2 + lane / 16) * PLANE_BYTES + (pixel_of(f) + lane % 16) * 16);
    }
    __device__ __forceinline__ void multiply(uint32_t x, int first) {
        uint32_t from[EACH];
#pragma unroll
        for (int m = 0; m < EACH; m++) from[m] = pixels(x, m, first);
        clear();
#pragma unroll 2
        for (int tap = 0; tap < TAPS; tap++) {
            const uint32_t on = (uint32_t)(tap / SIDE * ROW_BYTES + tap % SIDE * 16);
            uint32_t       a[EACH][4];
#pragma unroll
            for (int m = 0; m < EACH; m++) ck_ldmatrix(a[m], from[m] + on);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                uint32_t b[4];
                ck_mma_b(b, shared, W_ROW, n * 16, tap * DEPTH);
#pragma unroll
                for (int m = 0; m < EACH; m++) {
                    ck_mma<T>(acc[m][2 * n], a[m], b[0], b[1]);
                    ck_mma<T>(acc[m][2 * n + 1], a[m], b[2], b[3]);
                }
            }
        }
    }
    /* The products start from the bias. */
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float2 bias = make_float2(0.0f, 0.0f);
            if (INFER) bias = ck_get8(shared + (uint32_t)(VECTOR_AT + (n * 8 + lane % 4 * 2) * 4));
#pragma unroll
            for (int m = 0; m < EACH; m++) {
                acc[m][n][0] = acc[m][n][2] = bias.x;
                acc[m][n][1] = acc[m][n][3] = bias.y;
            }
        }
    }

    __device__ __forceinline__ void finish(const place &at, uint32_t x) {
        const uint32_t panel = x + (uint32_t)(warp * PANEL_BYTES);
#pragma unroll
        for (int m = 0; m < EACH; m++) {
            const int     f = at.first + warp * EACH + m, row = at.p + line_of(f), q = at.q + pixel_of(f);
            const int     inside = row < p.shape.P ? p.shape.Q - q : 0; /* pixels of the fragment that are in y */
            const int64_t first  = ((int64_t)at.n * p.shape.P + row) * p.shape.Q + q;
            if (INFER && p.relu)
                put_half_panel<T, true>(panel, acc[m]);
            else
                put_half_panel<T, false>(panel, acc[m]);
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int   pixel = lane / 8 + 4 * i;
                const uint4 word  = get_half_panel(panel, pixel);
                if (pixel < inside) {
                    ck_store_whole(static_cast<T *>(p.y) + (first + pixel) * p.shape.K + column + lane % 8 * 8, word);
                    if (!INFER) sums.template add<T>(word);
                }
            }
            __syncwarp();
        }
    }

    __device__ __forceinline__ uint32_t stage(int i) const {
        return shared + (uint32_t)(X_AT + i % STAGES * X_BYTES);
    }
    __device__ __forceinline__ void copy(int tile, int i) const {
        if (tile < p.shape.tiles) copy_x<THREADS, X_ROWS>(p.shape, p.x, place(p.shape, tile), stage(i));
        ck_copy_commit();
    }
    __device__ __forceinline__ void run(int group) {
        copy_filters();
        copy(group, 0);
        for (int tile = group, i = 0; tile < p.shape.tiles; tile += p.groups, i++) {
            ck_copy_wait<0>();
            __syncthreads(); /* this tile's x is complete; the panels in the other stage have been read */
            copy(tile + p.groups, i + 1);
            multiply(stage(i), place(p.shape, tile).first);
            __syncthreads(); /* x has been read */
            finish(place(p.shape, tile), stage(i));
        }
    }
    /* Stores the block's sums in row `group` of the workspace. */
    __device__ __forceinline__ void write_sums(int group) {
        const uint32_t to = shared + X_AT; /* f32 [WARPS][2][64] */
        sums.add_lanes();
        __syncthreads();
        if (lane < 8) sums.put(to + (uint32_t)(warp * 512));
        __syncthreads();
        if (threadIdx.x < 2 * COLUMNS) {
            const int i   = (int)threadIdx.x;
            float     sum = 0.0f;
            for (int w = 0; w < WARPS; w++) sum += __uint_as_float(ck_get4(to + (uint32_t)(w * 512 + i * 4)));
            p.partial[((int64_t)group * 2 + i / COLUMNS) * p.shape.K + column + i % COLUMNS] = sum;
        }
    }
};

template <typename T, bool INFER> __global__ void __launch_bounds__(THREADS, 2) stem_mma(const params p) {
    extern __shared__ __align__(128) unsigned char memory[];
    const int                                      parts = p.shape.K / COLUMNS, group = (int)blockIdx.x / parts;
    ck_begin_after_last();
    worker<T, INFER> worker(p, ck_shared(memory), (int)blockIdx.x % parts * COLUMNS);
    worker.run(group);
    if (!INFER && p.partial) worker.write_sums(group);
}

template <typename T, bool INFER> cudaError_t start(const params &p, cudaStream_t stream) {
    const auto        kernel = stem_mma<T, INFER>;
    const cudaError_t error  = ck_allow_shared(kernel, BYTES);
    if (error != cudaSuccess) return error;
    return ck_launch(kernel, dim3((unsigned)(p.groups * (p.shape.K / COLUMNS))), dim3(THREADS), BYTES, stream, p);
}
template <typename T> cudaError_t start_kind(const params &p, cudaStream_t stream) {
    return p.bias || p.relu ? start<T, true>(p, stream) : start<T, false>(p, stream);
}

} // namespace

bool ck_stem_mma_supports(const struct ck_stem_conv *a, const struct ck_mma_gpu *gpu) {
    return (a->type == CK_F16 || a->type == CK_BF16) && shape_fits(a->N, a->H, a->W, a->K) &&
           !(a->sums && (a->bias || a->relu)) && (int)BYTES <= gpu->block_bytes;
}

size_t ck_stem_mma_workspace(const struct ck_stem_conv *a, const struct ck_mma_gpu *gpu) {
    const shape s = shape_of(a->N, a->H, a->W, a->K, FRAGMENTS);
    return a->sums ? sizeof(float) * 2 * (size_t)groups_of(s, gpu->multiprocessors) * (size_t)a->K : 0;
}

cudaError_t ck_stem_mma(const struct ck_stem_conv *a, void *workspace, const struct ck_mma_gpu *gpu,
                        cudaStream_t stream) {
    if (!ck_stem_mma_supports(a, gpu)) return cudaErrorInvalidValue;
    params p                = {};
    p.shape                 = shape_of(a->N, a->H, a->W, a->K, FRAGMENTS);
    p.groups                = groups_of(p.shape, gpu->multiprocessors);
    p.x                     = a->x;
    p.w                     = a->w;
    p.bias                  = a->bias;
    p.relu                  = a->relu;
    p.y                     = a->y;
    p.partial               = a->sums ? static_cast<float *>(workspace) : nullptr;
    const cudaError_t error = a->type == CK_F16 ? start_kind<__half>(p, stream) : start_kind<__nv_bfloat16>(p, stream);
    if (error != cudaSuccess || !a->sums) return error;
    return add_column_sums(p.partial, a->sums, p.groups, a->K, a->K, stream);
}
