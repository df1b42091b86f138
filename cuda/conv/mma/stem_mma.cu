/* cuda/conv/mma/stem_mma.cu: forward convolution of the stem (7x7, space-to-depth; cuda/common/fused_conv.h).
 *
 * Bytes a pixel: 32 of x, read twice (mostly from L2), and 128 of y. 32,768 operations a pixel for 64 channels. The
 * tensor cores limit the time. At batch 256 and 224x224 images: 105 GFLOP, 222 us at the 8 cycles that a product takes
 * on an H200; memory takes 124 us.
 *
 * A block has 64 channels, whose filters stay in shared memory. Where the memory suffices, two groups of 4 warps share
 * them and take turns: one multiplies while the other stores its results and copies its next x. Otherwise a block has
 * one group. A group has tiles of 256 pixels of its own; a warp computes 64 pixels x 64 channels, which takes 8
 * ldmatrix for 32 products, and loads the fragments of the next filter position during the products of this one.
 * Results leave through cuda/conv/mma/panel.cuh. */
#include "cuda/common/column_sums.cuh"
#include "cuda/conv/mma/panel.cuh"
#include "cuda/conv/mma/stem_mma.cuh"

namespace {

enum {
    EACH      = 4, /* fragments of a warp */
    WARPS     = 4, /* of a group */
    THREADS   = WARPS * 32,
    FRAGMENTS = WARPS * EACH,
    X_ROWS    = (FRAGMENTS + ACROSS - 2) / ACROSS + 1 + SIDE - 1, /* below the lines that a tile can touch */
    X_BYTES   = X_ROWS * ROW_BYTES,
    W_ROW     = TAPS * DEPTH * 2,
    VECTOR_AT = COLUMNS * W_ROW,
    GROUPS_AT = VECTOR_AT + COLUMNS * 4,
    PANELS_AT = STAGES * X_BYTES, /* of a group */
    GROUP     = PANELS_AT + WARPS * PANEL_BYTES
};
static_assert(WARPS * 2 * COLUMNS * 4 <= X_BYTES && X_BYTES % 16 == 0, "sums of all warps");
constexpr int bytes_of(int groups) {
    return GROUPS_AT + groups * GROUP;
}

struct params {
    struct shape shape;
    const void  *x, *w;
    const float *bias;
    void        *y;
    float       *partial; /* [groups][2][K], NULL without sums */
    int          groups;  /* of all blocks with the same channels */
    bool         relu;
};

template <typename T, bool INFER, int GROUPS> struct worker {
    const params  &p;
    const uint32_t shared, own;               /* of the block, of the group */
    const int      group, warp, lane, column; /* column: first channel of the block */
    float          acc[EACH][8][4];
    column_sums    sums;

    __device__ worker(const params &params_, uint32_t shared_, int column_)
        : p(params_), shared(shared_), own(shared_ + (uint32_t)(GROUPS_AT + (int)threadIdx.x / THREADS * GROUP)),
          group((int)threadIdx.x / THREADS), warp((int)threadIdx.x % THREADS / 32), lane((int)threadIdx.x % 32),
          column(column_) {}

    __device__ __forceinline__ void copy_filters() const {
        for (int i = (int)threadIdx.x; i < COLUMNS * W_ROW / 16; i += GROUPS * THREADS) {
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
    struct fragments {
        uint32_t a[EACH][4], b[4][4];
    };
    __device__ __forceinline__ void load(fragments &f, const uint32_t (&from)[EACH], int tap) const {
#pragma unroll
        for (int m = 0; m < EACH; m++)
            ck_ldmatrix(f.a[m], from[m] + (uint32_t)(tap / SIDE * ROW_BYTES + tap % SIDE * 16));
#pragma unroll
        for (int n = 0; n < 4; n++) ck_mma_b(f.b[n], shared, W_ROW, n * 16, tap * DEPTH);
    }
    __device__ __forceinline__ void multiply(uint32_t x, int first) {
        uint32_t  from[EACH];
        fragments f[2]; /* of this tap and the next */
#pragma unroll
        for (int m = 0; m < EACH; m++) from[m] = pixels(x, m, first);
        load(f[0], from, 0);
        clear();
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) {
            if (tap + 1 < TAPS) load(f[(tap + 1) % 2], from, tap + 1);
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int m = 0; m < EACH; m++) {
                    ck_mma<T>(acc[m][2 * n], f[tap % 2].a[m], f[tap % 2].b[n][0], f[tap % 2].b[n][1]);
                    ck_mma<T>(acc[m][2 * n + 1], f[tap % 2].a[m], f[tap % 2].b[n][2], f[tap % 2].b[n][3]);
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

    __device__ __forceinline__ void finish(const place &at) {
        const uint32_t panel = own + (uint32_t)(PANELS_AT + warp * PANEL_BYTES);
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
        return own + (uint32_t)(i % STAGES * X_BYTES);
    }
    __device__ __forceinline__ void copy(int tile, int i) const {
        if (tile < p.shape.tiles)
            copy_x<THREADS, X_ROWS>(p.shape, p.x, place(p.shape, tile), stage(i), warp * 32 + lane);
        ck_copy_commit();
    }

    enum { ALONE = 1 /* barriers of one group */, TURN = 3 /* a group's turn with the products */ };
    /* Also waits for the whole group. */
    __device__ __forceinline__ void take_turn() const {
        if (GROUPS == 1)
            __syncthreads();
        else
            ck_group_wait(TURN + group, GROUPS * THREADS);
    }
    __device__ __forceinline__ void end_turn(bool last) const {
        if (GROUPS > 1 && !(last && group == 1)) ck_group_arrive(TURN + (group ^ 1), GROUPS * THREADS);
    }
    __device__ __forceinline__ void sync() const {
        if (GROUPS == 1)
            __syncthreads();
        else
            ck_group_wait(ALONE + group, THREADS);
    }

    /* Tiles first + group, first + group + step, ...: as many as the first group has. */
    __device__ __forceinline__ void run(int first, int step) {
        copy_filters();
        copy(first + group, 0);
        ck_copy_wait<0>();
        __syncthreads(); /* the filters are complete */
        if (GROUPS > 1 && group == 1 && first < p.shape.tiles) ck_group_arrive(TURN, GROUPS * THREADS);
        for (int i = 0; first < p.shape.tiles; first += step, i++) {
            const int   tile = first + group;
            const place at(p.shape, tile);
            ck_copy_wait<0>();
            take_turn(); /* this tile's x is complete; the other stage has been read */
            multiply(stage(i), at.first);
            end_turn(first + step >= p.shape.tiles);
            copy(tile + step, i + 1);
            if (tile < p.shape.tiles) finish(at);
        }
    }
    /* Stores the group's sums in row `row` of the workspace. */
    __device__ __forceinline__ void write_sums(int row) {
        const uint32_t to = own; /* f32 [WARPS][2][64] */
        sums.add_lanes();
        sync();
        if (lane < 8) sums.put(to + (uint32_t)(warp * 512));
        sync();
        for (int i = warp * 32 + lane; i < 2 * COLUMNS; i += THREADS) {
            float sum = 0.0f;
            for (int w = 0; w < WARPS; w++) sum += __uint_as_float(ck_get4(to + (uint32_t)(w * 512 + i * 4)));
            p.partial[((int64_t)row * 2 + i / COLUMNS) * p.shape.K + column + i % COLUMNS] = sum;
        }
    }
};

template <typename T, bool INFER, int GROUPS>
__global__ void __launch_bounds__(GROUPS *THREADS, 2 / GROUPS) stem_mma(const params p) {
    extern __shared__ __align__(128) unsigned char memory[];
    const int parts = p.shape.K / COLUMNS, first = (int)blockIdx.x / parts * GROUPS;
    ck_begin_after_last();
    worker<T, INFER, GROUPS> worker(p, ck_shared(memory), (int)blockIdx.x % parts * COLUMNS);
    worker.run(first, p.groups);
    if (!INFER && p.partial) worker.write_sums(first + worker.group);
}

template <typename T, bool INFER, int GROUPS> cudaError_t start(const params &p, cudaStream_t stream) {
    return ck_launch_shared(stem_mma<T, INFER, GROUPS>, dim3((unsigned)(p.groups / GROUPS * (p.shape.K / COLUMNS))),
                            dim3(GROUPS * THREADS), bytes_of(GROUPS), stream, p);
}
template <typename T> cudaError_t start_kind(const params &p, bool two, cudaStream_t stream) {
    const bool infer = p.bias || p.relu;
    if (two) return infer ? start<T, true, 2>(p, stream) : start<T, false, 2>(p, stream);
    return infer ? start<T, true, 1>(p, stream) : start<T, false, 1>(p, stream);
}

/* Two groups share a block and its filters where they fit. */
bool has_two(const struct ck_gpu *gpu) {
    return bytes_of(2) <= gpu->block_bytes;
}
int groups_for(const shape &s, const struct ck_gpu *gpu) {
    const int groups = groups_of(s, gpu->multiprocessors);
    return has_two(gpu) ? (groups + 1) / 2 * 2 : groups;
}

int configs(const struct ck_fused_conv *a, const struct ck_gpu *gpu) {
    return ck_is_stem(a) && shape_fits(a->N, a->H, a->W, a->K) && bytes_of(1) <= gpu->block_bytes;
}

size_t workspace_of(const struct ck_fused_conv *a, const struct ck_gpu *gpu) {
    const shape s = shape_of(a->N, a->H, a->W, a->K, FRAGMENTS);
    return a->has_sums ? sizeof(float) * 2 * (size_t)groups_for(s, gpu) * (size_t)a->K : 0;
}

cudaError_t launch(const struct ck_fused_conv *a, void *workspace, const struct ck_gpu *gpu, cudaStream_t stream) {
    if (!configs(a, gpu)) return cudaErrorInvalidValue;
    params p  = {};
    p.shape   = shape_of(a->N, a->H, a->W, a->K, FRAGMENTS);
    p.groups  = groups_for(p.shape, gpu);
    p.x       = a->x;
    p.w       = a->w;
    p.bias    = a->bias;
    p.relu    = a->relu;
    p.y       = a->y;
    p.partial = a->has_sums ? static_cast<float *>(workspace) : nullptr;
    const cudaError_t error =
        ck_by_half(a->type, [&](auto t) { return start_kind<decltype(t)>(p, has_two(gpu), stream); });
    if (error != cudaSuccess || !a->has_sums) return error;
    return add_column_sums(p.partial, a->sums, p.groups, a->K, a->K, stream);
}

} // namespace

const struct ck_conv_family ck_stem_mma = ck_family<ck_fused_conv, configs, workspace_of, launch>();
