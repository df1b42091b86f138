/* cuda/conv/conv3x3/conv3x3_wide_sm90a.cu: 3x3 convolutions of 128 and more channels, and the gradient of their input,
 * on compute capability 9.0: the other half of the family conv3x3 (cuda/common/fused_conv.h).
 *
 * With 128 channels on both sides: 512 bytes a pixel, with bn_x 768; 294,912 floating-point operations a pixel. The
 * limiter is the tensor cores.
 *
 * A tile is 256 pixels and 128 channels of y. One block for each multiprocessor: a thread that loads x, one that loads
 * the filters, two warpgroups ("workers") that multiply 128 pixels each, and one that stores. x is loaded once for all
 * nine filter positions: neighbouring pixels of the tensor, without a border. A row of the product is the row of shared
 * memory with the pixel's neighbour, or a row of zeros; ldmatrix reads it into registers. Filters pass through a ring
 * that both workers read. Workers write their results to shared memory and begin the next tile. The third warpgroup
 * applies the mask, adds to the sums and stores meanwhile (conv3x3_wide_store.cuh).
 *
 * The gradient of the input with stride 2: pixels of y with even and odd rows and columns are four passes, with one,
 * two, two and four filter positions. */
#include "cuda/common/column_sums.cuh"
#include "cuda/common/conv_family.cuh"
#include "cuda/conv/conv3x3/conv3x3_wide_store.cuh"
#include "cuda/conv/conv3x3/conv3x3_wide_work.cuh"

namespace {

template <typename T, int KIND>
__global__ void __launch_bounds__(GROUPS *GROUP, 1) conv3x3_wide(const __grid_constant__ params p) {
#if CK_HAS_SM90A
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t                                  shared = ck_shared(memory);
    const int                                       group = (int)threadIdx.x / GROUP, bar = (int)threadIdx.x;
    if (bar < BAR_COUNT) {
        const unsigned arrivals = bar < BAR_X_EMPTY ? 1 : bar < BAR_Y ? WORKERS * WARPS : WARPS;
        ck_mbar_init(shared + (uint32_t)(p.plan.bar_at + 8 * bar), arrivals);
        ck_mbar_init_fence();
    }
    if (bar < ROW / 4) ck_put4(shared + (uint32_t)(p.plan.zero_at + 4 * bar), 0u);
    ck_begin_after_last();
    __syncthreads();
    if (group < WORKERS) {
        ck_registers_increase<192>();
        worker<T, KIND>(p, shared, group).run();
    } else if (group == WORKERS) {
        ck_registers_decrease<96>();
        storer<T, KIND>(p, shared).run();
    } else {
        ck_registers_decrease<32>();
        if (threadIdx.x == (WORKERS + 1) * GROUP) load_x(p, shared);
        if (threadIdx.x == (WORKERS + 1) * GROUP + 32) load_w<KIND != FORWARD>(p, shared);
    }
#else
    __trap();
#endif
}

/* ---- host side ---- */

/* Forward, the neighbours are the filter's positions. In the gradient a neighbour at distance d has the filter's
 * position 1 - d; with stride 2 only those with the parity of the pixel of y. */
void make_passes(struct params *p, const struct ck_fused_conv *a) {
    p->plan.passes = a->stride * a->stride;
    for (int i = 0; i < p->plan.passes; i++) {
        struct pass *to = &p->pass[i];
        to->row         = i / a->stride;
        to->column      = i % a->stride;
        for (int h = -1; h <= 1; h++)
            for (int w = -1; w <= 1; w++) {
                const int r = a->transposed ? to->row + 1 - a->stride * h : h + 1,
                          s = a->transposed ? to->column + 1 - a->stride * w : w + 1;
                if (r < 0 || r > 2 || s < 0 || s > 2) continue;
                to->neighbour[to->taps] = (unsigned char)((h + 1) * 3 + w + 1);
                to->filter[to->taps++]  = (unsigned char)(r * 3 + s);
            }
    }
}

bool are_allowed(const struct ck_fused_conv *a) {
    const int64_t most = INT32_MAX / 4;
    if (!ck_is_conv3x3(a) || a->has_bias || a->relu || a->has_add) return false;
    if (a->Q > 127 * a->stride || a->P > 4096) return false;
    if (a->C % COLUMNS || a->K % COLUMNS || a->C < 1 || a->K < 1 || a->C > 8192 || a->K > 8192) return false;
    if (a->stride != 1 && !(a->stride == 2 && a->transposed)) return false;
    if (a->P % a->stride || a->Q % a->stride) return false;
    if (a->P < 2 * a->stride || a->Q < 2 * a->stride) return false; /* the divisors are above 1 */
    /* in 32 bits: pixels behind the last tile too, also times the divisors */
    return a->N <= most / (a->P * a->Q) / (a->P > a->Q ? a->P : a->Q) - 1;
}

bool lay_out(struct plan *p, const struct ck_fused_conv *a, int filters) {
    p->filters  = filters;
    p->ahead    = a->stride == 1 ? AHEAD_MIN : AHEAD_MAX; /* with stride 2, storing takes longer than the products */
    p->y_at     = SLOTS * p->slot_bytes;
    p->w_at     = p->y_at + WORKERS * HALVES * HALF_BYTES;
    p->ahead_at = p->w_at + filters * W_BYTES;
    p->sums_at  = p->ahead_at + (a->has_bn_x ? p->ahead * AHEAD_BYTES : 0);
    p->bn_at    = p->sums_at + (a->has_sums ? SUMS_BYTES : 0);
    p->zero_at  = p->bn_at + (a->has_bn_x ? BN_BYTES : 0);
    p->bar_at   = p->zero_at + ROW;
    p->bytes    = p->bar_at + 8 * BAR_COUNT;
    return p->bytes <= SHARED_LIMIT;
}

int rounds(int items, int blocks) {
    return (items + blocks - 1) / blocks;
}

bool make_plan(struct plan *p, const struct ck_fused_conv *a, int multiprocessors) {
    if (!are_allowed(a)) return false;
    const int64_t wide = a->Q / a->stride, pixels = a->N * (a->P / a->stride) * wide;
    p->rows       = (TILE + 2 * ((int)wide + 1) + 15) / 16 * 16; /* two boxes of whole swizzled blocks of 8 rows */
    p->slot_bytes = p->rows * ROW;
    p->chunks     = (int)(a->C / CHUNK);
    p->columns    = (int)(a->K / COLUMNS);
    p->tiles      = (int)((pixels + TILE - 1) / TILE);
    if (p->columns > multiprocessors) return false;
    /* A block has tiles of the same columns, and then one row of sums, if this does not take more rounds. */
    const int items = p->tiles * p->columns, most = multiprocessors / p->columns * p->columns;
    p->flat   = p->tiles <= FLAT_MAX && rounds(items, multiprocessors) < rounds(items, most);
    p->blocks = p->flat ? multiprocessors : items < most ? items : most;
    p->sums   = p->flat ? p->tiles : p->blocks / p->columns;
    for (int filters = FILTERS_MAX; filters >= FILTERS_MIN; filters--)
        if (lay_out(p, a, filters)) return true;
    return false;
}

bool make_maps(struct params *p, const struct ck_fused_conv *a) {
    return ck_tma_matrix(&p->x, a->type, a->x, p->pixels, a->C, p->plan.rows / 2) &&
           (a->transposed ? ck_tma_matrix(&p->w, a->type, a->w, a->C, TAPS * a->K, CHUNK)
                          : ck_tma_matrix(&p->w, a->type, a->w, a->K, TAPS * a->C, COLUMNS));
}

template <typename T> cudaError_t start(const struct params *p, enum kind kind, cudaStream_t stream) {
    const auto kernel = kind == FORWARD      ? conv3x3_wide<T, FORWARD>
                        : kind == TRANSPOSED ? conv3x3_wide<T, TRANSPOSED>
                                             : conv3x3_wide<T, GRADIENT>;
    return ck_launch_shared(kernel, dim3((unsigned)p->plan.blocks), dim3(GROUPS * GROUP), p->plan.bytes, stream, *p);
}

int configs(const struct ck_fused_conv *a, const struct ck_gpu *gpu) {
    struct plan plan;
    return make_plan(&plan, a, gpu->multiprocessors);
}

size_t workspace_of(const struct ck_fused_conv *a, const struct ck_gpu *gpu) {
    struct plan plan;
    if (!a->has_sums || !make_plan(&plan, a, gpu->multiprocessors)) return 0;
    return sizeof(float) * (size_t)plan.sums * 2 * (size_t)a->K;
}

cudaError_t launch(const struct ck_fused_conv *a, void *workspace, const struct ck_gpu *gpu, cudaStream_t stream) {
    struct params p = {};
    if (!make_plan(&p.plan, a, gpu->multiprocessors)) return cudaErrorInvalidValue;
    p.bn_x      = a->bn_x;
    p.mean_rstd = a->mean_rstd;
    p.gamma     = a->gamma;
    p.beta      = a->beta;
    p.y         = a->y;
    p.partial   = a->has_sums ? static_cast<float *>(workspace) : nullptr;
    p.P         = (int)a->P / a->stride;
    p.Q         = (int)a->Q / a->stride;
    p.pixels    = (int)a->N * p.P * p.Q;
    p.C         = (int)a->C;
    p.H         = (int)a->P;
    p.W         = (int)a->Q;
    p.K         = (int)a->K;
    p.stride    = a->stride;
    p.lines     = ck_divisor_of(p.Q);
    p.images    = ck_divisor_of(p.P);
    make_passes(&p, a);
    if (!make_maps(&p, a)) return cudaErrorNotSupported;
    const enum kind   kind  = !a->transposed ? FORWARD : a->has_bn_x ? GRADIENT : TRANSPOSED;
    const cudaError_t error = ck_by_half(a->type, [&](auto t) { return start<decltype(t)>(&p, kind, stream); });
    if (error != cudaSuccess || !a->has_sums) return error;
    return add_column_sums(p.partial, a->sums, p.plan.sums, a->K, a->K, stream);
}

} // namespace

const struct ck_conv_family ck_conv3x3_wide_wgmma = ck_family<ck_fused_conv, configs, workspace_of, launch>();
