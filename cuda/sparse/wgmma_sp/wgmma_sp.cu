/* cuda/sparse/wgmma_sp/wgmma_sp.cu: plans and the conversion of weights for cuda/sparse/wgmma_sp/wgmma_sp.h. Packing is
 * in cuda/sparse/wgmma_sp/wgmma_sp_pack.cu, the kernel in cuda/sparse/wgmma_sp/wgmma_sp_sm90a.cu. */
#include "cuda/sparse/mma_sp/mma_sp.cuh"
#include "cuda/sparse/wgmma_sp/wgmma_sp.cuh"

#include <math.h>

namespace wgmma_sp {
namespace {

/* ---- plans ---- */

int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

enum { MIN_RING = 4, MIN_STAGES = 3 };
const int COLUMNS[] = {64, 96, 104, 112, 120, 160, 192};

/* Sets the number of stages and ring slots that fit in `max_bytes` of shared memory. A worker holds at most two units,
 * and so two stages. */
bool set_rings(int max_bytes, ck_two_four_plan *p) {
    const int fixed = (int)layout(*p).end; /* stages and ring are still 0 */
    for (int stages = MAX_STAGES; stages >= MIN_STAGES && !p->stages; stages--) {
        const int room = (max_bytes - fixed - stages * p->stage_bytes) / (p->workers * UNIT_SLOT);
        if (room < (stages > 5 ? 8 : stages > MIN_STAGES ? 6 : MIN_RING)) continue;
        p->stages = stages;
        p->ring   = room < MAX_RING ? room : MAX_RING;
    }
    p->shared_bytes = (int)layout(*p).end;
    return p->stages > 0;
}

/* Expected units of a tap in a stage, for a random filter of this density: sparse and dense ones. */
struct units {
    double sparse, dense;
    double all() const { return sparse + dense; }
};
units units_of(double density) {
    const double rows = CK_WGMMA_SP_ROWS, four = CK_WGMMA_SP_CHUNK / 4,
                 more = density * density * density * (4 - 3 * density);
    const double fit = pow(1 - more, rows * four), none = pow(1 - density, rows * four * 4);
    return {fit - none, 2 * (1 - fit)};
}

/* Units that the first worker releases before the second one starts, at most `wanted`. The first worker can always
 * release this many: a tile has at least one unit per stage, which is released when the next unit has arrived or the
 * tile is complete, and the number of a unit's stage is at most the unit's number. */
int lead_of(const ck_two_four_plan &p, int wanted) {
    const int limits[] = {p.chunks * p.phases, p.stages - 1, p.ring - 1};
    for (const int n : limits) wanted = wanted < n ? wanted : n;
    return wanted;
}

bool set_cycles(const ck_conv &c, double density, int parts, int multiprocessors, ck_two_four_plan *p) {
    const double chunks = (double)ceil_div(p->chunks, parts), stages = chunks * p->phases, taps = p->taps * chunks;
    const struct units tap   = units_of(density);
    const double       units = fmax(taps * tap.all(), stages), sparse = taps * tap.sparse, dense = units - sparse;
    const double       inputs = (double)p->rows * p->pitch * p->images * POSITION * stages, n = p->columns;
    const double       tensor = units * 3 * n / 2 * p->workers;
    const double       read =
        (sparse * (n / 2 + 16) + dense * (n / 4 + 16)) * 3 * p->workers; /* operands that are read from shared memory */
    const double shared = fmax(tensor, read + inputs * 3 / 128 + p->workers * units * UNIT_BYTES / 128);
    const double alone  = units * (3 * (n / 2 + 16) + 60 + (n / 2 + 100) / CK_WGMMA_SP_CHAIN),
                 fetch = (inputs + p->workers * units * UNIT_BYTES) / 26, out = n * 10 * p->workers;
    const int64_t items         = ceil_div(p->blocks, p->workers) * p->tiles,
                  blocks_per_sm = p->shared_bytes <= SHARED_HALF ? 2 : 1,
                  rounds        = ceil_div(items, multiprocessors * blocks_per_sm);
    const double longest        = fmax(fmax(shared, fetch) * (double)blocks_per_sm, alone);
    const int    half           = (int)(units / 2);
    p->lead                     = p->workers == 2 && rounds > 1 ? lead_of(*p, half) : 0;
    p->cycles                   = (double)rounds * (longest + out * (p->lead ? 0.5 : 1) + 300) + 5000;
    if (parts > 1) p->cycles += n * 10 + 1500; /* exchange of the sums between thread blocks */
    return items < (int64_t)1 << 30 && c.K > 0 &&
           (parts == 1 || (items * parts <= multiprocessors && p->chunks >= parts));
}

/* The tile configs: workers, the range of columns of a tile, bytes of shared memory, parts. */
struct tile_config {
    int workers, min_columns, max_columns, shared, parts;
};
const tile_config TILE_CONFIGS[] = {{2, 33, 64, SHARED_LIMIT, 1},   {2, 65, 120, SHARED_LIMIT, 1},
                                    {2, 121, 160, SHARED_LIMIT, 1}, {1, 65, 120, SHARED_LIMIT, 1},
                                    {1, 121, 192, SHARED_LIMIT, 1}, {1, 33, 64, SHARED_HALF, 1},
                                    {1, 65, 120, SHARED_HALF, 1},   {2, 161, 192, SHARED_LIMIT, 1},
                                    {2, 65, 120, SHARED_LIMIT, 2},  {2, 121, 192, SHARED_LIMIT, 2}};
const int         CONFIG_COUNT   = (int)(sizeof TILE_CONFIGS / sizeof *TILE_CONFIGS);

/* Finds the tile of this config with the fewest cycles. */
bool plan_config(const ck_conv &c, double density, const tile_config &config, int multiprocessors,
                 ck_two_four_plan *best) {
    bool found = false;
    for (int images = 1; images <= 16; images *= 2)
        for (int rows = 1; rows <= c.P && rows <= 256; rows++) {
            ck_two_four_plan p = {};
            p.workers          = config.workers;
            if (!two_four::fit_tile(c, images, rows, COLUMNS, (int)(sizeof COLUMNS / sizeof *COLUMNS), &p)) continue;
            if (p.columns < config.min_columns || p.columns > config.max_columns) continue;
            p.chunks = (int)ceil_div(c.C, CK_WGMMA_SP_CHUNK);
            if (set_rings(config.shared, &p) && set_cycles(c, density, config.parts, multiprocessors, &p) &&
                (!found || p.cycles < best->cycles))
                *best = p, found = true;
        }
    return found;
}

/* ---- filling ---- */

enum { FILL_THREADS = 256 };

/* One thread block per unit. */
__global__ void __launch_bounds__(FILL_THREADS)
    fill(const float *w, int64_t taps, const uint32_t *from, const float *scale, char *to) {
    const int64_t  unit    = blockIdx.x;
    const uint4    at      = reinterpret_cast<const uint4 *>(from + unit * CK_WGMMA_SP_VALUES)[threadIdx.x];
    const uint32_t four[4] = {at.x, at.y, at.z, at.w};
    float          v[4];
    uint2          high, low;
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = four[i] == UINT32_MAX ? 0.0f : w[four[i]] / scale[four[i] / taps];
    mma_sp::split_exactly(v[0], v[1], &high.x, &low.x);
    mma_sp::split_exactly(v[2], v[3], &high.y, &low.y);
    char *mine                                               = to + unit * UNIT_VALUES;
    reinterpret_cast<uint2 *>(mine)[threadIdx.x]             = high;
    reinterpret_cast<uint2 *>(mine + UNIT_PART)[threadIdx.x] = low;
}

} // namespace
} // namespace wgmma_sp

int ck_wgmma_sp_configs(void) {
    return wgmma_sp::CONFIG_COUNT;
}

void ck_wgmma_sp_tile(int config, int tile[4]) {
    const wgmma_sp::tile_config none = {}, &c = config >= 1 && config <= wgmma_sp::CONFIG_COUNT
                                                    ? wgmma_sp::TILE_CONFIGS[config - 1]
                                                    : none;
    tile[0] = c.workers, tile[1] = c.max_columns, tile[2] = c.shared <= wgmma_sp::SHARED_HALF ? 2 : 1,
    tile[3] = c.parts;
}

bool ck_wgmma_sp_make_plan(const struct ck_conv *conv, int64_t nnz, int config, int capability, int multiprocessors,
                           struct ck_wgmma_sp_plan *plan) {
    const int64_t side = 1 << 20, taps = (int64_t)conv->R * conv->S;
    ck_conv       c = *conv;
    if (taps == 1 && c.stride == 1 && c.pad == 0) c.H = c.P = c.N * c.H * c.W, c.N = c.W = c.Q = 1;
    if (config < 1 || config > ck_wgmma_sp_configs() || c.type != CK_F32 || capability != 90 || c.C % 4 || c.K % 4)
        return false;
    if (c.W > side || c.N * c.H * c.W >= (int64_t)1 << 31 || c.N * c.P * c.Q >= (int64_t)1 << 31 ||
        c.K * taps * c.C >= UINT32_MAX)
        return false;
    plan->conv  = c;
    plan->parts = wgmma_sp::TILE_CONFIGS[config - 1].parts;
    return wgmma_sp::plan_config(c, (double)nnz / (double)(c.K * taps * c.C), wgmma_sp::TILE_CONFIGS[config - 1],
                                 multiprocessors, &plan->tile);
}

size_t ck_wgmma_sp_scale_at(int64_t units) {
    return (size_t)units * wgmma_sp::UNIT_VALUES;
}
size_t ck_wgmma_sp_bytes(const struct ck_wgmma_sp_plan *plan, int64_t units) {
    return ck_wgmma_sp_scale_at(units) + (size_t)(plan->tile.blocks * CK_WGMMA_SP_ROWS) * sizeof(float);
}

cudaError_t ck_wgmma_sp_fill(const struct ck_wgmma_sp_plan *plan, const float *w, const uint32_t *from, int64_t units,
                             void *to, cudaStream_t stream) {
    const ck_conv    &c     = plan->conv;
    const int64_t     taps  = (int64_t)c.R * c.S * c.C;
    float            *scale = reinterpret_cast<float *>(static_cast<char *>(to) + ck_wgmma_sp_scale_at(units));
    const cudaError_t e = mma_sp::row_scales(CK_F32, w, c.K, taps, plan->tile.blocks * CK_WGMMA_SP_ROWS, scale, stream);
    if (e != cudaSuccess) return e;
    wgmma_sp::fill<<<(unsigned)units, wgmma_sp::FILL_THREADS, 0, stream>>>(w, taps, from, scale,
                                                                           static_cast<char *>(to));
    return cudaGetLastError();
}

cudaError_t ck_wgmma_sp_conv(const struct ck_wgmma_sp_args *args, const struct ck_wgmma_sp_plan *plan,
                             int multiprocessors, cudaStream_t stream) {
    return wgmma_sp::conv(*args, *plan, multiprocessors, stream);
}
