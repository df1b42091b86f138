/* cuda/train/muon.cu: Muon's update, and its direction but for the matrix products (cuda/train/muon_kernels.c).
 * Reference: device/cpu/reference/ref_optim.c.
 *
 * Limiter of all: memory. Bytes an element of a filter: the update reads 16 and writes 8; the direction reads 8 and
 * writes 4 for its input, then reads 4 and writes a product's type, and the other way round at its end. */
#include "cuda/train/muon.h"
#include "cuda/train/update.cuh"

enum { THREADS = CK_UPDATE_THREADS, LANES = CK_UPDATE_VECTOR, BLOCKS = 4096 };

/* ---- the update ---- */

/* Vector i of a filter, of which `live` elements are updated. */
static __device__ __forceinline__ void move_filter(const struct ck_muon *a, const struct adamw_numbers *s, int64_t i,
                                                   float lr, float decay, float factor, unsigned kept, int live) {
    const struct ck_sgd  *buffers = &a->rule.sgd;
    struct update_vectors v       = update_load(buffers, a->direction, i);
#pragma unroll
    for (int j = 0; j < LANES; j++) {
        const float first = s->n.mu * v.m[j] + s->rest1 * (s->n.factor * v.g[j]);
        const float moved = v.w[j] - lr * decay * v.w[j] - lr * factor * v.other[j];
        const bool  keeps = kept >> j & 1u;
        if (j >= live) continue;
        v.w[j] = keeps ? moved : 0.0f;
        v.m[j] = keeps ? first : 0.0f;
    }
    ck_store(buffers->value, i, ck_pack<float>(v.w));
    ck_store(buffers->momentum, i, ck_pack<float>(v.m));
}

/* Vector i of any other parameter. */
static __device__ __forceinline__ void move_other(const struct ck_muon *a, const struct adamw_numbers *s, int64_t i,
                                                  float scale, float decay, unsigned kept, int live) {
    struct update_vectors v = update_load(&a->rule.sgd, a->rule.second, i);
    adamw_vector(&a->rule.sgd, a->rule.second, s, i, s->size * scale, s->n.lr * scale * decay, kept, live, &v);
}

template <bool MASKED, bool SCALED> static __global__ void __launch_bounds__(THREADS) muon_kernel(struct ck_muon a) {
    __shared__ struct adamw_numbers shared;
    const struct ck_sgd            *buffers    = &a.rule.sgd;
    const float                     suppressed = buffers->norm[1];
    if (threadIdx.x == 0) shared = adamw_numbers_of(&a.rule);
    __syncthreads();
    if (suppressed != 0.0f) return; /* also true for NaN */
    const struct adamw_numbers s       = shared;
    const int64_t              vectors = buffers->elems / LANES, step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < vectors; i += step) {
        const unsigned how  = buffers->map[i / CK_UPDATE_BLOCK_VECTORS];
        const unsigned kept = MASKED ? update_mask(buffers->mask, i) : 15u;
        const int      live = update_count(how, i);
        if (live == 0) continue;
        const float scale = update_scale<SCALED>(buffers, i), factor = a.factor[i / CK_UPDATE_BLOCK_VECTORS];
        const float decay = how & CK_SGD_DECAY ? s.n.decay : 0.0f;
        if (factor > 0.0f)
            move_filter(&a, &s, i, s.n.lr * scale, decay, factor, kept, live);
        else
            move_other(&a, &s, i, scale, decay, kept, live);
    }
}

/* ---- the input of the iteration: a block writes a tile and sums its squares, then a warp sums the tiles of a filter,
 * each in a fixed order ---- */

static __global__ void __launch_bounds__(THREADS) input_kernel(struct ck_muon_input a, double *part) {
    __shared__ struct update_numbers shared;
    const struct ck_norm_tile        tile = a.tile[blockIdx.x];
    const bool                       good = a.norm[1] == 0.0f;
    struct ck_sgd                    step = {};
    double                           sum  = 0;
    step.step                             = a.step;
    step.norm                             = a.norm;
    step.state                            = (double *)a.state;
    if (threadIdx.x == 0) shared = update_numbers_of(&step);
    __syncthreads();
    const struct update_numbers n    = shared;
    const float                 rest = (float)(1 - (double)n.mu);
    for (int64_t v = threadIdx.x; good && v * LANES < tile.elems; v += THREADS) {
        const int64_t  i        = tile.first / LANES + v;
        const uint4    words[2] = {ck_load(a.grad, i), ck_load(a.momentum, i)};
        const unsigned kept     = a.mask ? update_mask(a.mask, i) : 15u;
        float          g[LANES], m[LANES], d[LANES];
        ck_unpack<float>(words[0], g);
        ck_unpack<float>(words[1], m);
#pragma unroll
        for (int j = 0; j < LANES; j++) {
            const float grad = n.factor * g[j], mean = n.mu * m[j] + rest * grad;
            const float next  = a.nesterov ? grad + n.mu * (mean - grad) : mean;
            const bool  valid = v * LANES + j < tile.elems && (kept >> j & 1u); /* the rest is padding */
            d[j]              = valid ? next : 0.0f;
            sum += (double)d[j] * (double)d[j];
        }
        ck_store(a.y, i, ck_pack<float>(d));
    }
    sum = ck_block_sum<THREADS>(sum);
    if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(CK_WARP)
    inverse_kernel(const int32_t *first_tile, double least, double *inverse, const double *part) {
    const int filter = (int)blockIdx.x;
    double    sum    = 0;
    for (int t = first_tile[filter] + (int)threadIdx.x; t < first_tile[filter + 1]; t += CK_WARP) sum += part[t];
    sum = ck_warp_sum(sum);
    if (threadIdx.x == 0) inverse[filter] = 1 / fmax(sqrt(sum), least);
}

/* ---- between y and the operand of the products ---- */

/* A large number times a small inverse is computed in FP64, because the inverse may be too small for f32. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) load_kernel(struct ck_muon_group a, const float *y, T *x) {
    const int64_t step    = (int64_t)gridDim.x * THREADS;
    const float  *from    = y + a.offset[blockIdx.y];
    T            *to      = x + (int64_t)blockIdx.y * a.elems;
    const double  inverse = a.inverse[blockIdx.y];
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.elems; i += step)
        to[i] = ck_round<T>((float)((double)from[i] * inverse));
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) store_kernel(struct ck_muon_group a, const T *x, float *y) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    const T      *from = x + (int64_t)blockIdx.y * a.elems;
    float        *to   = y + a.offset[blockIdx.y];
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.elems; i += step) to[i] = ck_float(from[i]);
}

template <typename T> static __global__ void __launch_bounds__(THREADS) polynomial_kernel(struct ck_muon_polynomial a) {
    const int64_t step = (int64_t)gridDim.x * THREADS, elems = a.rows * a.rows;
    const T      *from   = static_cast<const T *>(a.from) + (int64_t)blockIdx.y * elems;
    const float  *square = a.square + (int64_t)blockIdx.y * elems;
    T            *p      = static_cast<T *>(a.p) + (int64_t)blockIdx.y * elems;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < elems; i += step) {
        const float diagonal = i % (a.rows + 1) == 0 ? a.a : 0.0f;
        p[i]                 = ck_round<T>(diagonal + a.b * ck_float(from[i]) + a.c * square[i]);
    }
}

/* ---- launchers ---- */

cudaError_t ck_muon(const struct ck_muon *a, cudaStream_t stream) {
    const struct ck_sgd *buffers = &a->rule.sgd;
    const unsigned       blocks  = ck_blocks(buffers->elems / LANES, THREADS, BLOCKS);
    const auto           scaled  = buffers->mask ? muon_kernel<true, true> : muon_kernel<false, true>;
    const auto           plain   = buffers->mask ? muon_kernel<true, false> : muon_kernel<false, false>;
    const auto           kernel  = buffers->scale ? scaled : plain;
    kernel<<<blocks, THREADS, 0, stream>>>(*a);
    const cudaError_t error = cudaGetLastError();
    return error != cudaSuccess ? error : ck_update_count(buffers, stream);
}

size_t ck_muon_input_workspace(int tiles) {
    return (size_t)tiles * sizeof(double);
}

cudaError_t ck_muon_input(const struct ck_muon_input *a, double *inverse, void *workspace, cudaStream_t stream) {
    double           *part  = static_cast<double *>(workspace);
    const cudaError_t error = cudaMemsetAsync(a->y, 0, (size_t)a->elems * sizeof *a->y, stream);
    if (error != cudaSuccess || a->filters == 0) return error;
    input_kernel<<<(unsigned)a->tiles, THREADS, 0, stream>>>(*a, part);
    inverse_kernel<<<(unsigned)a->filters, CK_WARP, 0, stream>>>(a->first_tile, a->least, inverse, part);
    return cudaGetLastError();
}

static dim3 grid_of(int64_t elems, int count) {
    return dim3(ck_blocks(elems, THREADS, BLOCKS), (unsigned)count);
}

cudaError_t ck_muon_load(const struct ck_muon_group *a, const float *y, void *x, cudaStream_t stream) {
    CK_BY_TYPE(a->type,
               load_kernel<T><<<grid_of(a->elems, a->filters), THREADS, 0, stream>>>(*a, y, static_cast<T *>(x)));
    return cudaGetLastError();
}

cudaError_t ck_muon_store(const struct ck_muon_group *a, const void *x, float *y, cudaStream_t stream) {
    CK_BY_TYPE(a->type, store_kernel<T>
               <<<grid_of(a->elems, a->filters), THREADS, 0, stream>>>(*a, static_cast<const T *>(x), y));
    return cudaGetLastError();
}

cudaError_t ck_muon_polynomial(const struct ck_muon_polynomial *a, cudaStream_t stream) {
    CK_BY_TYPE(a->type, polynomial_kernel<T><<<grid_of(a->rows * a->rows, a->count), THREADS, 0, stream>>>(*a));
    return cudaGetLastError();
}
