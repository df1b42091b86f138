/* cuda/sparse/mma_sp/mma_sp_plan.cu: plans for cuda/sparse/mma_sp/mma_sp.h: how a convolution is divided into tiles.
 * This file runs on the host only. */
#include "cuda/sparse/mma_sp/mma_sp.cuh"

#include <math.h>

namespace mma_sp {
namespace {

struct tile_config {
    int bands, columns, split;
};
const tile_config TILE_CONFIGS[] = {{1, 4, 1}, {2, 4, 1}, {4, 4, 1}, {1, 3, 1}, {2, 3, 1}, {4, 3, 1},
                                    {8, 3, 1}, {1, 2, 1}, {2, 2, 1}, {4, 2, 1}, {8, 2, 1}, {2, 1, 1},
                                    {4, 1, 1}, {8, 1, 1}, {2, 3, 2}, {4, 3, 2}, {2, 2, 2}, {4, 2, 2},
                                    {1, 3, 4}, {2, 3, 4}, {1, 2, 4}, {2, 2, 4}, {1, 3, 8}, {1, 2, 8}};
const int         CONFIG_COUNT   = (int)(sizeof TILE_CONFIGS / sizeof *TILE_CONFIGS);

int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
/* Bytes of results that go through shared memory. FP32 results without a split go directly to y. */
size_t outputs_bytes(const ck_mma_sp_plan &p, bool is_f32) {
    return is_f32 && p.split == 1 ? 0 : (size_t)items_of(p) * (size_t)(p.bands * CK_MMA_SP_BAND + 4) * 4;
}
/* Bytes of a staged pixel: an odd multiple of 16, so that 8 neighbours access 8 different banks. */
int place_bytes_of(int chunk, bool is_f32) {
    return (chunk * (is_f32 ? 4 : 2) / 16 | 1) * 16;
}

/* Sets the plan for a patch of TP x TQ. Returns false when the tile does not fit in `room` bytes of shared memory. */
bool set_layout(const ck_conv &conv, const tile_config &c, int64_t TP, int64_t TQ, int64_t room, ck_mma_sp_plan *plan) {
    ck_mma_sp_plan &p      = *plan;
    const bool      is_f32 = conv.type == CK_F32;
    p.bands = c.bands, p.columns = c.columns, p.split = c.split, p.TP = (int)TP, p.TQ = (int)TQ;
    p.patches_p = (int)ceil_div(conv.P, TP), p.patches_q = (int)ceil_div(conv.Q, TQ);
    const int64_t all = conv.N * p.patches_p * p.patches_q, max_groups = items_of(p) / (TP * TQ);
    if (max_groups < 1) return false;
    p.groups = (int)(all < max_groups ? all : max_groups);
    p.tiles  = ceil_div(all, p.groups);
    p.IH     = (int)(TP - 1) * conv.stride + conv.R;
    p.phase  = (int)ceil_div((TQ - 1) * conv.stride + conv.S, conv.stride);
    p.pitch  = p.phase * (conv.S < conv.stride ? conv.S : conv.stride);
    room -= (int64_t)tables_bytes(p) + 16;
    const int64_t places = places_of(p), whole = ceil_div(conv.C, CK_MMA_SP_BLOCK) * CK_MMA_SP_BLOCK;
    int64_t       chunk = (room / places / 16 - 1) * 16 / (is_f32 ? 4 : 2) / CK_MMA_SP_BLOCK * CK_MMA_SP_BLOCK;
    if (chunk < CK_MMA_SP_BLOCK || room < (int64_t)outputs_bytes(p, is_f32)) return false;
    chunk              = chunk < whole ? chunk : whole;
    p.chunks           = ceil_div(whole, chunk);
    const int64_t unit = chunk >= 32 ? 32 : CK_MMA_SP_BLOCK, even = ceil_div(ceil_div(whole, p.chunks), unit) * unit;
    p.chunk             = (int)(even < chunk ? even : chunk);
    p.chunks            = ceil_div(whole, p.chunk);
    p.place_bytes       = place_bytes_of(p.chunk, is_f32);
    p.k_blocks          = ceil_div(conv.K, p.bands * CK_MMA_SP_BAND);
    const size_t staged = (size_t)places * (size_t)p.place_bytes, out = outputs_bytes(p, is_f32);
    p.shared_bytes = (((staged > out ? staged : out) + 15) & ~(size_t)15) + tables_bytes(p);
    return p.tiles * p.k_blocks < ((int64_t)1 << 31) && places * p.place_bytes < (1 << 20);
}

/* Expected passes of 16 output channels over a block of 8 columns, for a random filter of this density. There is no
 * pass when the block is zero, and a second pass when any of 32 quads has more than 2 nonzeros of 4. */
double passes_of(double density) {
    const double more = density * density * density * (4 - 3 * density),
                 none = pow(1 - density, CK_MMA_SP_BAND * CK_MMA_SP_BLOCK);
    return 2 - none - pow(1 - (more < 1 ? more : 1), 32);
}

/* 16-bit launches take longer than this model counts: on one H200 the fastest kernels of 312 pruned layers took 0.9 to
 * 6 times as long as the estimate, 1.9 times on average. */
const double FACTOR_16_BIT = 1.9;

/* Estimated cycles of the busiest multiprocessor. Thread blocks that share a multiprocessor hide each other's latency.
 */
double cycles(const ck_conv &conv, const ck_mma_sp_plan &p, double passes, int multiprocessors) {
    const bool   is_f32 = conv.type == CK_F32;
    const double bytes = is_f32 ? 4 : 2, places = places_of(p), taps = conv.R * conv.S;
    double       steps = 0;
    for (int64_t i = 0; i < p.chunks; i++) {
        const int64_t left = conv.C - i * p.chunk;
        steps += (double)ceil_div(ceil_div(left < p.chunk ? left : p.chunk, 8) * (int64_t)taps, 4);
    }
    const int64_t bands = ceil_div(conv.K, CK_MMA_SP_BAND), used = bands < p.bands ? bands : p.bands;
    const double  spans = warps_of(p.columns) / p.bands / p.split, warps = spans * (double)used;
    const double  mma = steps * passes * warps * CK_MMA_SP_GROUPS * p.columns * (is_f32 ? 3 : 1) * 2.3;
    const double  reads =
        steps * passes * warps * (CK_MMA_SP_GROUPS * (is_f32 ? 9 : 5) + 1.3 * p.columns * 4 * (is_f32 ? 2 : 1));
    const double l2 =
        (steps * passes * (double)used * CK_MMA_SP_GROUPS * (is_f32 ? 1152 : 640) + places * (double)conv.C * bytes) /
        30;
    const double staged  = places * (double)conv.C / 12 + (double)p.chunks * 1200,
                 out     = items_of(p) * p.bands * 64.0 / 12 + 2000;
    double busiest_unit  = mma > reads ? mma : reads;
    busiest_unit         = busiest_unit > l2 ? busiest_unit : l2;
    const int64_t blocks = p.tiles * p.k_blocks, rounds = ceil_div(blocks, 2 * (int64_t)multiprocessors);
    const double  alone = busiest_unit * 1.3 + staged + out;
    if (blocks <= multiprocessors) return alone * (is_f32 ? 1 : FACTOR_16_BIT);
    const double busy  = (double)ceil_div(blocks, multiprocessors) * (busiest_unit + (staged + out) * 0.5),
                 waits = (double)rounds * alone * 1.2;
    return (busy > waits ? busy : waits) * (is_f32 ? 1 : FACTOR_16_BIT);
}

void choose_patch(const ck_conv &conv, const tile_config &c, double passes, int multiprocessors, int64_t room,
                  double *min_cycles, ck_mma_sp_plan *plan) {
    const bool    pointwise = conv.R == 1 && conv.S == 1; /* no taps overlap, so that any pixels can form a patch */
    const int64_t items     = warps_of(c.columns) / c.bands / c.split * c.columns * 8;
    for (int64_t np = pointwise ? conv.P : 1; np <= conv.P; np++) {
        const int64_t TP = ceil_div(conv.P, np);
        if (np > 1 && !pointwise && ceil_div(conv.P, np - 1) == TP) continue;
        for (int64_t nq = pointwise ? conv.Q : 1; nq <= conv.Q; nq++) {
            ck_mma_sp_plan p  = {};
            const int64_t  TQ = ceil_div(conv.Q, nq);
            if (TP * TQ > items || (nq > 1 && !pointwise && ceil_div(conv.Q, nq - 1) == TQ)) continue;
            if (!set_layout(conv, c, TP, TQ, room, &p)) continue;
            p.cycles = cycles(conv, p, passes, multiprocessors);
            if (*min_cycles < 0 || p.cycles < *min_cycles) *min_cycles = p.cycles, *plan = p;
        }
    }
}

} // namespace
} // namespace mma_sp

int ck_mma_sp_conv_configs(void) {
    return mma_sp::CONFIG_COUNT;
}

void ck_mma_sp_conv_tile(int config, int tile[3]) {
    const mma_sp::tile_config none = {}, &c = config >= 1 && config <= mma_sp::CONFIG_COUNT
                                                  ? mma_sp::TILE_CONFIGS[config - 1]
                                                  : none;
    tile[0] = c.bands, tile[1] = c.columns, tile[2] = c.split;
}

bool ck_mma_sp_conv_plan(const struct ck_conv *conv, int64_t nnz, int config, int multiprocessors, int shared_bytes,
                         struct ck_mma_sp_plan *plan) {
    using namespace mma_sp;
    const double  passes = passes_of((double)nnz / ((double)conv->K * conv->R * conv->S * (double)conv->C));
    const int64_t limit = (int64_t)1 << 31, room = shared_bytes / 2 - 1024;
    if (config < 0 || config > CONFIG_COUNT || conv->N < 1 || conv->P < 1 || conv->Q < 1 ||
        conv->N * conv->H * conv->W >= limit || conv->N * conv->P * conv->Q >= limit)
        return false;
    double min_cycles = -1;
    for (int i = 0; i < CONFIG_COUNT; i++)
        if (!config || i == config - 1)
            choose_patch(*conv, TILE_CONFIGS[i], passes, multiprocessors, room, &min_cycles, plan);
    return min_cycles >= 0;
}

struct ck_mma_sp_steps ck_mma_sp_conv_steps(const struct ck_mma_sp_plan *plan) {
    struct ck_mma_sp_steps steps = {};
    steps.c_step                 = 16;
    steps.r_step                 = (int64_t)plan->pitch * plan->place_bytes;
    steps.s_phase                = (int64_t)plan->phase * plan->place_bytes;
    steps.s_step                 = plan->place_bytes;
    return steps;
}
