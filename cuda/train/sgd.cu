/* cuda/train/sgd.cu: the norm of all gradients (clipping, loss scale) and the SGD update of all parameters, each over
 * whole buffers. Reference: device/cpu/reference/ref_optim.c.
 *
 * Limiter of both: memory. The norm reads 4 bytes an element; the update reads 12 (with a mask 12 1/8) and writes 8. */
#include "cuda/train/update.cuh"

enum { THREADS = CK_UPDATE_THREADS, LANES = CK_UPDATE_VECTOR };

/* ---- gradient norm ---- */

enum { CHECK_VECTORS = 4 /* vectors that a thread has in flight */, CHECK_BLOCKS = 1024 };

struct partial {
    double   squares;
    unsigned bad; /* 1 when a gradient is not finite */
};

/* Tests the bits, so that no compiler option can make the result false. */
static __device__ __forceinline__ bool not_finite(unsigned bits) {
    return (bits & 0x7f800000u) == 0x7f800000u;
}

/* Squares of CHECK_VECTORS*4 elements are summed in float: an overflow there implies that the norm, a float, overflows.
 * All other sums are double. `inverse` is 1 / loss scale, exact for a power of two. */
static __device__ __forceinline__ void check_vectors(const uint4 v[CHECK_VECTORS], float inverse, double *squares,
                                                     unsigned *bad) {
    float sum = 0;
#pragma unroll
    for (int u = 0; u < CHECK_VECTORS; u++) {
        const unsigned word[LANES] = {v[u].x, v[u].y, v[u].z, v[u].w};
        float          part        = 0;
#pragma unroll
        for (int j = 0; j < LANES; j++) {
            const float g = __uint_as_float(word[j]) * inverse;
            part          = fmaf(g, g, part);
            *bad |= not_finite(word[j]) ? 1u : 0u;
        }
        sum += part;
    }
    *squares += (double)sum;
}

static __global__ void __launch_bounds__(THREADS)
    check_kernel(const float *grad, int64_t elems, const double *state, struct partial *result) {
    const int64_t vectors = elems / LANES, step = (int64_t)gridDim.x * THREADS * CHECK_VECTORS;
    ck_begin_after_last();
    const float inverse = (float)(1.0 / state[CK_STATE_LOSS_SCALE]);
    double      squares = 0;
    unsigned    bad     = 0;
    for (int64_t first = (int64_t)blockIdx.x * THREADS * CHECK_VECTORS + threadIdx.x; first < vectors; first += step) {
        uint4 v[CHECK_VECTORS];
        if (first + (CHECK_VECTORS - 1) * THREADS < vectors) {
#pragma unroll
            for (int u = 0; u < CHECK_VECTORS; u++) v[u] = ck_load(grad, first + u * THREADS);
        } else {
#pragma unroll
            for (int u = 0; u < CHECK_VECTORS; u++)
                v[u] = first + u * THREADS < vectors ? ck_load(grad, first + u * THREADS) : make_uint4(0, 0, 0, 0);
        }
        check_vectors(v, inverse, &squares, &bad);
    }
    const int64_t rest = vectors * LANES + threadIdx.x; /* elements after the last vector */
    if (blockIdx.x == 0 && rest < elems) {
        const float g = grad[rest] * inverse;
        squares += (double)(g * g);
        bad |= not_finite(__float_as_uint(grad[rest])) ? 1u : 0u;
    }
    squares = ck_block_sum<THREADS>(squares);
    bad     = (unsigned)__syncthreads_or((int)bad);
    if (threadIdx.x == 0) {
        result[blockIdx.x].squares = squares;
        result[blockIdx.x].bad     = bad ? 1u : 0u;
    }
}

static __global__ void __launch_bounds__(THREADS)
    check_sum_kernel(const struct partial *result, unsigned count, const float *metrics, float *norm) {
    ck_begin_after_last();
    double   squares = 0;
    unsigned bad     = not_finite(__float_as_uint(metrics[0])) ? 1u : 0u;
    for (unsigned i = threadIdx.x; i < count; i += THREADS) {
        squares += result[i].squares;
        bad |= result[i].bad;
    }
    squares = ck_block_sum<THREADS>(squares);
    bad     = (unsigned)__syncthreads_or((int)bad);
    if (threadIdx.x == 0) {
        norm[0] = (float)squares;
        norm[1] = bad ? 1.0f : 0.0f;
    }
}

static unsigned check_blocks(int64_t elems) {
    return ck_blocks(elems / LANES, THREADS * CHECK_VECTORS, CHECK_BLOCKS);
}

size_t ck_grad_norm_workspace(int64_t elems) {
    return check_blocks(elems) * sizeof(struct partial);
}

cudaError_t ck_grad_norm(const float *grad, int64_t elems, const float *metrics, const double *state, float *norm,
                         void *workspace, cudaStream_t stream) {
    const unsigned    blocks = check_blocks(elems);
    struct partial   *result = (struct partial *)workspace;
    const cudaError_t error  = ck_launch(check_kernel, blocks, THREADS, 0, stream, grad, elems, state, result);
    return error != cudaSuccess ? error
                                : ck_launch(check_sum_kernel, 1, THREADS, 0, stream, result, blocks, metrics, norm);
}

/* ---- SGD ---- */

enum { SGD_VECTORS = 2 /* vectors of each buffer that a thread has in flight */, SGD_BLOCKS = 4096 };

/* Lanes from `live` on keep their values; lanes below `live` that the mask prunes become 0. */
template <bool NESTEROV>
static __device__ __forceinline__ void sgd_vector(uint4 *value, uint4 gradient, uint4 *momentum, int live,
                                                  unsigned kept, float decay, float lr, struct update_numbers n) {
    float w[LANES], g[LANES], m[LANES];
    ck_unpack<float>(*value, w);
    ck_unpack<float>(gradient, g);
    ck_unpack<float>(*momentum, m);
#pragma unroll
    for (int j = 0; j < LANES; j++) {
        const float grad = n.factor * g[j] + decay * w[j], next = n.mu * m[j] + grad;
        const float moved = w[j] - lr * (NESTEROV ? grad + n.mu * next : next);
        const bool  keeps = kept >> j & 1u;
        w[j]              = j < live ? (keeps ? moved : 0.0f) : w[j];
        m[j]              = j < live ? (keeps ? next : 0.0f) : m[j];
    }
    *value    = ck_pack<float>(w);
    *momentum = ck_pack<float>(m);
}

/* A block processes runs of SGD_VECTORS*THREADS vectors. It neither reads nor writes blocks that are not updated. The
 * loads of the first run are issued before one thread computes the numbers of the step; small networks would wait for
 * them. */
template <bool NESTEROV, bool MASKED, bool SCALED>
static __global__ void __launch_bounds__(THREADS) sgd_kernel(struct ck_sgd a) {
    __shared__ struct update_numbers shared;
    struct update_numbers            n       = {};
    const int64_t                    vectors = a.elems / LANES, step = (int64_t)gridDim.x * THREADS * SGD_VECTORS;
    const int64_t                    begin = (int64_t)blockIdx.x * THREADS * SGD_VECTORS;
    ck_begin_after_last();
    const float suppressed = a.norm[1];
    for (int64_t run = begin; run < vectors; run += step) {
        const int64_t first = run + threadIdx.x;
        uint4         w[SGD_VECTORS], g[SGD_VECTORS], m[SGD_VECTORS];
        unsigned      how[SGD_VECTORS], kept[SGD_VECTORS];
        int           live[SGD_VECTORS];
#pragma unroll
        for (int u = 0; u < SGD_VECTORS; u++) {
            const int64_t i = first + u * THREADS;
            how[u]          = i < vectors ? a.map[i / CK_UPDATE_BLOCK_VECTORS] : 0u;
            kept[u]         = MASKED && i < vectors ? update_mask(a.mask, i) : 15u;
            live[u]         = update_count(how[u], i);
        }
#pragma unroll
        for (int u = 0; u < SGD_VECTORS; u++) {
            const int64_t i = first + u * THREADS;
            if (live[u] == 0) continue;
            w[u] = ck_load(a.value, i);
            g[u] = ck_load(a.grad, i);
            m[u] = ck_load(a.momentum, i);
        }
        if (run == begin) {
            if (threadIdx.x == 0) shared = update_numbers_of(&a);
            __syncthreads();
            n = shared;
        }
        if (suppressed != 0.0f) return; /* also true for NaN */
#pragma unroll
        for (int u = 0; u < SGD_VECTORS; u++) {
            const int64_t i = first + u * THREADS;
            if (live[u] == 0) continue;
            const float lr = SCALED ? n.lr * update_scale<SCALED>(&a, i) : n.lr;
            sgd_vector<NESTEROV>(&w[u], g[u], &m[u], live[u], kept[u], how[u] & CK_SGD_DECAY ? n.decay : 0.0f, lr, n);
            ck_store(a.value, i, w[u]);
            ck_store(a.momentum, i, m[u]);
        }
    }
}

/* Loss scale of mixed-precision training (Micikevicius et al. 2018), with the constants of
 * device/cpu/reference/ref_optim.c: halves on overflow, doubles after a run of finite updates. */
static __global__ void count_kernel(double *state, const float *norm, int micro_batches, bool moving_scale) {
    ck_begin_after_last();
    const bool good = norm[1] == 0.0f;
    state[CK_STATE_BATCHES] += micro_batches;
    state[CK_STATE_NONFINITE] = good ? 0 : 1;
    state[good ? CK_STATE_UPDATES : CK_STATE_SKIPPED] += 1;
    if (!moving_scale) return;
    const double scale = state[CK_STATE_LOSS_SCALE], growth = state[CK_STATE_GROWTH] + 1;
    if (!good)
        state[CK_STATE_LOSS_SCALE] = fmax(scale / 2, 2.0);
    else if (growth >= 2000)
        state[CK_STATE_LOSS_SCALE] = scale * 2;
    state[CK_STATE_GROWTH] = good && growth < 2000 ? growth : 0;
}

cudaError_t ck_update_count(const struct ck_sgd *a, cudaStream_t stream) {
    return ck_launch(count_kernel, 1, 1, 0, stream, a->state, a->norm, a->micro_batches, a->moving_scale);
}

template <bool SCALED> static cudaError_t sgd_launch(const struct ck_sgd *a, cudaStream_t stream) {
    const unsigned blocks = ck_blocks(a->elems / LANES, THREADS * SGD_VECTORS, SGD_BLOCKS);
    const auto     masked = a->nesterov ? sgd_kernel<true, true, SCALED> : sgd_kernel<false, true, SCALED>;
    const auto     plain  = a->nesterov ? sgd_kernel<true, false, SCALED> : sgd_kernel<false, false, SCALED>;
    const auto     kernel = a->mask ? masked : plain;
    return ck_launch(kernel, blocks, THREADS, 0, stream, *a);
}

cudaError_t ck_sgd(const struct ck_sgd *a, cudaStream_t stream) {
    const cudaError_t error = a->scale ? sgd_launch<true>(a, stream) : sgd_launch<false>(a, stream);
    if (error != cudaSuccess) return error;
    /* after the update, which reads the scale that the gradients were computed with */
    return ck_update_count(a, stream);
}
