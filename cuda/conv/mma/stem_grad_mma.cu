/* cuda/conv/mma/stem_grad_mma.cu: filter gradient of the space-to-depth stem (cuda/common/fused_conv.h).
 *
 * Bytes a pixel: 128 of dy and 32 of x, read 2.5 times (mostly from L2). 32,768 operations a pixel for 64 channels. The
 * limiter is the tensor cores, as in the forward convolution.
 *
 * A block has 64 channels of dy and every groups-th tile of 2 x 112 pixels. dw[64][256] stays in the registers of its
 * warps from the first tile to the last. A warp has one row of filter positions and 32 channels, or all 64: then there
 * are half as many warps, and a product needs two thirds of the fragments. Copies of the next tile run during the
 * products. A second kernel adds the blocks' dw in a fixed order. */
#include "cuda/common/point_grad_fold.cuh"
#include "cuda/conv/mma/stem_mma.cuh"

namespace {

enum {
    CONFIGS   = 2,
    LINES     = 2,
    FRAGMENTS = LINES * ACROSS,
    X_ROWS    = LINES + SIDE - 1,
    X_BYTES   = X_ROWS * ROW_BYTES,
    G_ROW     = COLUMNS * 2,
    G_BYTES   = LINES * LINE * G_ROW,
    X_AT      = G_BYTES, /* of a stage */
    STAGE     = G_BYTES + (X_BYTES + 127) / 128 * 128,
    BYTES     = STAGES * STAGE,
    ELEMENTS  = TAPS * DEPTH /* of a filter */
};

struct params {
    struct shape shape;
    const void  *x, *g;
    float       *partial; /* [groups][K][256] */
    int          groups;
};

/* DOWN: fragments of 16 channels of a warp. */
template <typename T, int DOWN> struct worker {
    static constexpr int THREADS = COLUMNS / 16 / DOWN * SIDE * 32;
    const params        &p;
    const uint32_t       shared;
    const int            lane, k, r, column; /* k: first of the warp's channels; r: row of filter positions */
    float                dw[DOWN][2 * SIDE][4];

    __device__ worker(const params &params_, uint32_t shared_, int column_)
        : p(params_), shared(shared_), lane((int)threadIdx.x % 32), k((int)threadIdx.x / 32 / SIDE * (DOWN * 16)),
          r((int)threadIdx.x / 32 % SIDE), column(column_) {
#pragma unroll
        for (int i = 0; i < DOWN * 32; i++) dw[i / 32][i / 4 % 8][i % 4] = 0.0f;
    }

    __device__ __forceinline__ void copy(int tile, int stage) const {
        if (tile < p.shape.tiles) {
            const place    at(p.shape, tile);
            const uint32_t to = shared + (uint32_t)(stage % STAGES * STAGE);
            for (int i = (int)threadIdx.x; i < LINES * LINE * 8; i += THREADS) {
                const int     pixel = i / 8, line = pixel / LINE, q = at.q + pixel % LINE;
                const bool    is   = at.p + line < p.shape.P && q < p.shape.Q;
                const int64_t from = (((int64_t)at.n * p.shape.P + at.p + line) * p.shape.Q + q) * p.shape.K + column;
                ck_copy16(ck_chunk_at(to, G_ROW, pixel, i % 8),
                          static_cast<const T *>(p.g) + (is ? from + i % 8 * 8 : 0), is);
            }
            copy_x<THREADS, X_ROWS>(p.shape, p.x, at, to + X_AT, (int)threadIdx.x);
        }
        ck_copy_commit();
    }
    __device__ __forceinline__ void multiply(uint32_t stage) {
        /* this lane's row of the transposed matrices: pixel lane % 16 of plane lane / 16 */
        const uint32_t x = stage + X_AT + (uint32_t)((r * 2 + lane / 16) * PLANE_BYTES + lane % 16 * 16);
#pragma unroll 1
        for (int f = 0; f < FRAGMENTS; f++) {
            const uint32_t from = x + (uint32_t)(line_of(f) * ROW_BYTES + pixel_of(f) * 16);
            uint32_t       a[DOWN][4];
#pragma unroll
            for (int m = 0; m < DOWN; m++) ck_mma_a_transposed(a[m], stage, G_ROW, k + m * 16, f * 16);
#pragma unroll
            for (int s = 0; s < SIDE; s++) {
                uint32_t b[4];
                ck_ldmatrix_trans(b, from + (uint32_t)(s * 16));
#pragma unroll
                for (int m = 0; m < DOWN; m++) {
                    ck_mma<T>(dw[m][2 * s], a[m], b[0], b[1]);
                    ck_mma<T>(dw[m][2 * s + 1], a[m], b[2], b[3]);
                }
            }
        }
    }
    __device__ __forceinline__ void run(int group) {
        copy(group, 0);
        for (int tile = group, i = 0; tile < p.shape.tiles; tile += p.groups, i++) {
            ck_copy_wait<0>();
            __syncthreads(); /* this tile is complete; the other stage has been read */
            copy(tile + p.groups, i + 1);
            multiply(shared + (uint32_t)(i % STAGES * STAGE));
        }
    }
    __device__ __forceinline__ void write(int group) const {
        float *to = p.partial + ((int64_t)group * p.shape.K + column + k + lane / 4) * ELEMENTS + r * (SIDE * DEPTH) +
                    lane % 4 * 2;
#pragma unroll
        for (int m = 0; m < DOWN; m++)
#pragma unroll
            for (int n = 0; n < 2 * SIDE; n++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    *reinterpret_cast<float2 *>(to + (m * 16 + half * 8) * ELEMENTS + n * 8) =
                        make_float2(dw[m][n][2 * half], dw[m][n][2 * half + 1]);
    }
};

template <typename T, int DOWN>
__global__ void __launch_bounds__((worker<T, DOWN>::THREADS), 2) stem_grad_mma(const params p) {
    extern __shared__ __align__(128) unsigned char memory[];
    const int                                      parts = p.shape.K / COLUMNS, group = (int)blockIdx.x / parts;
    worker<T, DOWN>                                worker(p, ck_shared(memory), (int)blockIdx.x % parts * COLUMNS);
    worker.run(group);
    worker.write(group);
}

template <typename T, int DOWN> cudaError_t start(const params &p, cudaStream_t stream) {
    const auto        kernel  = stem_grad_mma<T, DOWN>;
    const int         threads = worker<T, DOWN>::THREADS;
    const cudaError_t error   = ck_allow_shared(kernel, BYTES);
    if (error != cudaSuccess) return error;
    kernel<<<(unsigned)(p.groups * (p.shape.K / COLUMNS)), threads, BYTES, stream>>>(p);
    return cudaGetLastError();
}

int configs(const struct ck_stem_grad *a, const struct ck_gpu *gpu) {
    const bool fits = (a->type == CK_F16 || a->type == CK_BF16) && shape_fits(a->N, a->H, a->W, a->K) &&
                      (int)BYTES <= gpu->block_bytes;
    return fits ? CONFIGS : 0;
}

size_t workspace_of(const struct ck_stem_grad *a, const struct ck_gpu *gpu) {
    const shape s = shape_of(a->N, a->H, a->W, a->K, FRAGMENTS);
    return sizeof(float) * (size_t)groups_of(s, gpu->multiprocessors) * (size_t)a->K * ELEMENTS;
}

cudaError_t launch(const struct ck_stem_grad *a, void *workspace, const struct ck_gpu *gpu, cudaStream_t stream) {
    if (a->config < 0 || a->config >= configs(a, gpu)) return cudaErrorInvalidValue;
    params p                = {};
    p.shape                 = shape_of(a->N, a->H, a->W, a->K, FRAGMENTS);
    p.groups                = groups_of(p.shape, gpu->multiprocessors);
    p.x                     = a->x;
    p.g                     = a->g;
    p.partial               = static_cast<float *>(workspace);
    const cudaError_t error = ck_by_half(a->type, [&](auto t) {
        using T = decltype(t);
        return a->config == 0 ? start<T, 2>(p, stream) : start<T, 4>(p, stream);
    });
    if (error != cudaSuccess) return error;
    const struct ck_parts parts = {p.partial, NULL, p.groups, 0};
    return ck_fold_parts(&parts, NULL, a->dw, NULL, (int)a->K, ELEMENTS, a->accumulate, stream);
}

} // namespace

const struct ck_conv_family ck_stem_grad_mma = ck_family<ck_stem_grad, configs, workspace_of, launch>();
