/* cuda/train/update_rules.cu: AdamW, LARS, LAMB, the norms of parameters for LARS and LAMB, and moving averages (EMA),
 * each over whole buffers. Reference: device/cpu/reference/ref_optim.c and device/cpu/reference/ref_ema.c.
 *
 * Limiter of all: memory. Bytes an element (a mask adds 1/8): AdamW reads 16 and writes 12; LARS reads 12 and writes 8;
 * its norms read 8; LAMB
 * reads 16 and writes 12, its norms read 16; moving averages read 8 and write 4. */
#include "cuda/train/update.cuh"

enum { THREADS = CK_UPDATE_THREADS, LANES = CK_UPDATE_VECTOR, BLOCKS = 4096 };

/* ---- AdamW and LAMB ---- */

/* Trust ratio of LAMB for a block with weight decay. */
static __device__ __forceinline__ float lamb_ratio(const struct ck_rule *a, int owner, float decay) {
    if (owner < 0 || decay == 0.0f) return 1.0f;
    const float w = sqrtf(a->norms[2 * (int64_t)owner]), u = sqrtf(a->norms[2 * (int64_t)owner + 1]);
    return w > 0.0f && u > 0.0f ? w / u : 1.0f;
}

/* With LAMB the trust ratio of the parameter multiplies the step and the decay. */
template <bool LAMB, bool MASKED, bool SCALED>
static __global__ void __launch_bounds__(THREADS) adam_kernel(struct ck_rule a) {
    __shared__ struct adamw_numbers shared;
    const float                     suppressed = a.sgd.norm[1];
    if (threadIdx.x == 0) shared = adamw_numbers_of(&a);
    __syncthreads();
    if (suppressed != 0.0f) return; /* also true for NaN */
    const struct adamw_numbers s       = shared;
    const int64_t              vectors = a.sgd.elems / LANES, step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < vectors; i += step) {
        const unsigned how = a.sgd.map[i / CK_UPDATE_BLOCK_VECTORS], kept = MASKED ? update_mask(a.sgd.mask, i) : 15u;
        const int      live = update_count(how, i);
        if (live == 0) continue;
        struct update_vectors v     = update_load(&a.sgd, a.second, i);
        const float           scale = update_scale<SCALED>(&a.sgd, i), plain = SCALED ? s.size * scale : s.size;
        const float           own   = how & CK_SGD_DECAY ? (SCALED ? s.n.lr * scale : s.n.lr) * s.n.decay : 0.0f;
        const float           ratio = LAMB ? lamb_ratio(&a, a.owner[i / CK_UPDATE_BLOCK_VECTORS], own) : 1.0f;
        const float           size = LAMB ? plain * ratio : plain, decay = LAMB ? own * ratio : own;
        adamw_vector(&a.sgd, a.second, &s, i, size, decay, kept, live, &v);
    }
}

/* ---- LARS ---- */

/* Trust ratio of the parameter that owns the block; 1 for parameters without a trust ratio. */
static __device__ __forceinline__ float lars_ratio(const struct ck_rule *a, int owner, float decay, float clip) {
    if (owner < 0) return 1.0f;
    const float w = sqrtf(a->norms[2 * (int64_t)owner]), g = clip * sqrtf(a->norms[2 * (int64_t)owner + 1]);
    return w > 0.0f && g > 0.0f ? (float)a->trust * w / (g + decay * w + (float)a->eps) : 1.0f;
}

template <bool NESTEROV, bool MASKED, bool SCALED>
static __global__ void __launch_bounds__(THREADS) lars_kernel(struct ck_rule a) {
    __shared__ struct update_numbers shared;
    const float                      suppressed = a.sgd.norm[1];
    if (threadIdx.x == 0) shared = update_numbers_of(&a.sgd);
    __syncthreads();
    if (suppressed != 0.0f) return; /* also true for NaN */
    const struct update_numbers n       = shared;
    const int64_t               vectors = a.sgd.elems / LANES, step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < vectors; i += step) {
        const unsigned how = a.sgd.map[i / CK_UPDATE_BLOCK_VECTORS], kept = MASKED ? update_mask(a.sgd.mask, i) : 15u;
        const int      live = update_count(how, i);
        if (live == 0) continue;
        const uint4 words[3] = {ck_load(a.sgd.value, i), ck_load(a.sgd.grad, i), ck_load(a.sgd.momentum, i)};
        const float decay    = how & CK_SGD_DECAY ? n.decay : 0.0f;
        const float lr       = SCALED ? n.lr * update_scale<SCALED>(&a.sgd, i) : n.lr;
        const float ratio    = lars_ratio(&a, a.owner[i / CK_UPDATE_BLOCK_VECTORS], decay, n.clip);
        float       w[LANES], g[LANES], m[LANES];
        ck_unpack<float>(words[0], w);
        ck_unpack<float>(words[1], g);
        ck_unpack<float>(words[2], m);
#pragma unroll
        for (int j = 0; j < LANES; j++) {
            const float grad = ratio * (n.factor * g[j] + decay * w[j]), next = n.mu * m[j] + grad;
            const float moved = w[j] - lr * (NESTEROV ? grad + n.mu * next : next);
            const bool  keeps = kept >> j & 1u;
            if (j >= live) continue;
            w[j] = keeps ? moved : 0.0f;
            m[j] = keeps ? next : 0.0f;
        }
        ck_store(a.sgd.value, i, ck_pack<float>(w));
        ck_store(a.sgd.momentum, i, ck_pack<float>(m));
    }
}

/* ---- norms of parameters: a block sums a tile, then a warp sums the tiles of a parameter, each in a fixed order
 * ---- */

static __global__ void __launch_bounds__(THREADS) norm_tiles_kernel(struct ck_param_norms a, double2 *part) {
    const struct ck_norm_tile tile    = a.tile[blockIdx.x];
    const float               inverse = (float)(1.0 / a.state[CK_STATE_LOSS_SCALE]);
    double                    w = 0, g = 0;
    for (int64_t v = threadIdx.x; v * LANES < tile.elems; v += THREADS) {
        const uint4 words[2] = {ck_load(a.value + tile.first, v), ck_load(a.grad + tile.first, v)};
        float       x[LANES], y[LANES], ww = 0, gg = 0;
        ck_unpack<float>(words[0], x);
        ck_unpack<float>(words[1], y);
#pragma unroll
        for (int j = 0; j < LANES; j++) {
            const float scaled = y[j] * inverse;
            if (v * LANES + j >= tile.elems) continue; /* padding after the parameter */
            ww = fmaf(x[j], x[j], ww);
            gg = fmaf(scaled, scaled, gg);
        }
        w += (double)ww;
        g += (double)gg;
    }
    w = ck_block_sum<THREADS>(w);
    g = ck_block_sum<THREADS>(g);
    if (threadIdx.x == 0) part[blockIdx.x] = make_double2(w, g);
}

static __global__ void __launch_bounds__(CK_WARP)
    norm_params_kernel(const int32_t *first_tile, float *norms, const double2 *part) {
    const int param = (int)blockIdx.x;
    double    w = 0, g = 0;
    for (int t = first_tile[param] + (int)threadIdx.x; t < first_tile[param + 1]; t += CK_WARP) {
        w += part[t].x;
        g += part[t].y;
    }
    w = ck_warp_sum(w);
    g = ck_warp_sum(g);
    if (threadIdx.x != 0) return;
    norms[2 * (int64_t)param]     = (float)w;
    norms[2 * (int64_t)param + 1] = (float)g;
}

/* As norm_tiles_kernel, with the squares of LAMB's direction. A second moment of 0 makes the direction large, so its
 * squares are added in double. */
static __global__ void __launch_bounds__(THREADS) lamb_tiles_kernel(struct ck_lamb_norms a, double2 *part) {
    __shared__ struct adamw_numbers shared;
    const struct ck_norm_tile       tile  = a.tile[blockIdx.x];
    const bool                      good  = a.rule.sgd.norm[1] == 0.0f;
    const int64_t                   first = tile.first / LANES;
    double                          w2 = 0, u2 = 0;
    if (threadIdx.x == 0) shared = adamw_numbers_of(&a.rule);
    __syncthreads();
    const struct adamw_numbers s      = shared;
    const bool                 decays = a.rule.sgd.map[tile.first / CK_SGD_BLOCK] & CK_SGD_DECAY;
    const float                decay  = decays ? s.n.decay : 0.0f;
    for (int64_t v = threadIdx.x; good && v * LANES < tile.elems; v += THREADS) {
        const int64_t  i        = first + v;
        const uint4    words[4] = {ck_load(a.rule.sgd.value, i), ck_load(a.rule.sgd.grad, i),
                                   ck_load(a.rule.sgd.momentum, i), ck_load(a.rule.second, i)};
        const unsigned kept     = a.rule.sgd.mask ? update_mask(a.rule.sgd.mask, i) : 15u;
        float          w[LANES], g[LANES], m[LANES], q[LANES];
        ck_unpack<float>(words[0], w);
        ck_unpack<float>(words[1], g);
        ck_unpack<float>(words[2], m);
        ck_unpack<float>(words[3], q);
#pragma unroll
        for (int j = 0; j < LANES; j++) {
            if (v * LANES + j >= tile.elems) continue; /* padding after the parameter */
            const float grad = s.n.factor * g[j], mean = s.n.mu * m[j] + s.rest1 * grad,
                        second    = s.b2 * q[j] + s.rest2 * (grad * grad);
            const float direction = s.correct * mean / (sqrtf(second) * s.root + s.eps) + decay * w[j];
            w2 += (double)w[j] * (double)w[j];
            if (kept >> j & 1u) u2 += (double)direction * (double)direction;
        }
    }
    w2 = ck_block_sum<THREADS>(w2);
    u2 = ck_block_sum<THREADS>(u2);
    if (threadIdx.x == 0) part[blockIdx.x] = make_double2(w2, u2);
}

/* ---- moving averages ---- */

static __device__ double ema_decay_of(const struct ck_ema *a) {
    const double updates = a->state[CK_STATE_UPDATES];
    if (updates <= 1) return 0;
    return a->warmup ? fmin(a->decay, 1 - pow(updates, -2.0 / 3)) : a->decay;
}

/* Exact at both ends: d = 0 gives w. */
static __global__ void __launch_bounds__(THREADS)
    ema_kernel(struct ck_ema a, const float *now, float *mean, const uint8_t *mask, int64_t elems) {
    __shared__ double shared;
    const float       suppressed = a.norm[1];
    if (threadIdx.x == 0) shared = ema_decay_of(&a);
    __syncthreads();
    if (suppressed != 0.0f) return; /* also true for NaN */
    const bool    near = shared < 0.5;
    const float   d = (float)shared, rest = (float)(1 - shared);
    const int64_t vectors = elems / LANES, step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < vectors; i += step) {
        const uint4    words[2] = {ck_load(now, i), ck_load(mean, i)};
        const unsigned kept     = mask ? update_mask(mask, i) : 15u;
        float          w[LANES], e[LANES];
        ck_unpack<float>(words[0], w);
        ck_unpack<float>(words[1], e);
#pragma unroll
        for (int j = 0; j < LANES; j++) {
            const float moved = near ? w[j] + d * (e[j] - w[j]) : e[j] + rest * (w[j] - e[j]);
            e[j]              = kept >> j & 1u ? moved : 0.0f;
        }
        ck_store(mean, i, ck_pack<float>(e));
    }
}

/* ---- launchers ---- */

template <bool LAMB, bool SCALED> static void adam_launch(const struct ck_rule *a, cudaStream_t stream) {
    const unsigned blocks = ck_blocks(a->sgd.elems / LANES, THREADS, BLOCKS);
    const auto     kernel = a->sgd.mask ? adam_kernel<LAMB, true, SCALED> : adam_kernel<LAMB, false, SCALED>;
    kernel<<<blocks, THREADS, 0, stream>>>(*a);
}

template <bool LAMB> static cudaError_t adam(const struct ck_rule *a, cudaStream_t stream) {
    if (a->sgd.scale)
        adam_launch<LAMB, true>(a, stream);
    else
        adam_launch<LAMB, false>(a, stream);
    const cudaError_t error = cudaGetLastError();
    return error != cudaSuccess ? error : ck_update_count(&a->sgd, stream);
}

cudaError_t ck_adamw(const struct ck_rule *a, cudaStream_t stream) {
    return adam<false>(a, stream);
}

cudaError_t ck_lamb(const struct ck_rule *a, cudaStream_t stream) {
    return adam<true>(a, stream);
}

template <bool SCALED> static void lars_launch(const struct ck_rule *a, cudaStream_t stream) {
    const unsigned blocks = ck_blocks(a->sgd.elems / LANES, THREADS, BLOCKS);
    const auto     masked = a->sgd.nesterov ? lars_kernel<true, true, SCALED> : lars_kernel<false, true, SCALED>;
    const auto     plain  = a->sgd.nesterov ? lars_kernel<true, false, SCALED> : lars_kernel<false, false, SCALED>;
    const auto     kernel = a->sgd.mask ? masked : plain;
    kernel<<<blocks, THREADS, 0, stream>>>(*a);
}

cudaError_t ck_lars(const struct ck_rule *a, cudaStream_t stream) {
    if (a->sgd.scale)
        lars_launch<true>(a, stream);
    else
        lars_launch<false>(a, stream);
    const cudaError_t error = cudaGetLastError();
    return error != cudaSuccess ? error : ck_update_count(&a->sgd, stream);
}

size_t ck_param_norms_workspace(int tiles) {
    return (size_t)tiles * sizeof(double2);
}

cudaError_t ck_param_norms(const struct ck_param_norms *a, void *workspace, cudaStream_t stream) {
    double2 *part = (double2 *)workspace;
    if (a->tiles) norm_tiles_kernel<<<(unsigned)a->tiles, THREADS, 0, stream>>>(*a, part);
    norm_params_kernel<<<(unsigned)a->params, CK_WARP, 0, stream>>>(a->first_tile, a->norms, part);
    return cudaGetLastError();
}

cudaError_t ck_lamb_norms(const struct ck_lamb_norms *a, void *workspace, cudaStream_t stream) {
    double2 *part = (double2 *)workspace;
    if (a->tiles) lamb_tiles_kernel<<<(unsigned)a->tiles, THREADS, 0, stream>>>(*a, part);
    norm_params_kernel<<<(unsigned)a->params, CK_WARP, 0, stream>>>(a->first_tile, a->norms, part);
    return cudaGetLastError();
}

cudaError_t ck_ema(const struct ck_ema *a, cudaStream_t stream) {
    if (a->elems)
        ema_kernel<<<ck_blocks(a->elems / LANES, THREADS, BLOCKS), THREADS, 0, stream>>>(*a, a->value, a->averages,
                                                                                         a->mask, a->elems);
    if (a->running_elems)
        ema_kernel<<<ck_blocks(a->running_elems / LANES, THREADS, BLOCKS), THREADS, 0, stream>>>(
            *a, a->running, a->running_averages, NULL, a->running_elems);
    return cudaGetLastError();
}
