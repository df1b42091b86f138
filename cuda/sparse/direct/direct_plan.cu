/* cuda/sparse/direct/direct_plan.cu: plans of the direct sparse convolution: how a convolution is divided into tiles.
 *
 * This file runs on the host only. cuda/sparse/direct/direct_conv.cu and cuda/sparse/direct/direct_wgrad.cu have the
 * kernels. */
#include "cuda/sparse/direct/direct_tile.cuh"

namespace sparse {
namespace {

/* The sums use quads*rows*4 of the 128 registers per thread that 16 warps leave. A tile config is a pair of these
 * numbers and a range of warps: thread blocks that share a multiprocessor, or one thread block per multiprocessor. */
struct tile_config {
    int quads, rows, min_warps, max_warps;
};
enum { MAX_WARPS = 16 };
const tile_config TILE_CONFIGS[] = {{4, 4, 9, 16}, {4, 4, 4, 8},  {2, 8, 9, 16}, {2, 8, 4, 8},  {2, 4, 9, 16},
                                    {2, 4, 4, 8},  {1, 8, 9, 16}, {1, 8, 4, 8},  {1, 4, 9, 16}, {1, 4, 4, 8},
                                    {1, 2, 9, 16}, {1, 2, 4, 8},  {1, 1, 9, 16}, {1, 1, 4, 8}};
const int         CONFIG_COUNT   = (int)(sizeof TILE_CONFIGS / sizeof *TILE_CONFIGS);

int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
/* Thread blocks of `warps` warps that fit on a multiprocessor together. */
int resident(int warps) {
    return MAX_WARPS / warps;
}

/* Bytes of the tables, which follow the staged input (or the outputs, which reuse its space). */
size_t tables_bytes(const ck_sparse_plan &plan, int slots) {
    return (size_t)slots * 16 + (size_t)plan.quads * CK_WARP * 16 + (size_t)(plan.warps * plan.warp_bytes);
}
size_t outputs_bytes(const ck_sparse_plan &plan) {
    return (size_t)(plan.quads * CK_WARP * 16) * (size_t)(plan.channels + 4) * (size_t)plan.split;
}
int slots_of(const ck_sparse_plan &plan) {
    return plan.groups * plan.IH * plan.pitch;
}
int plane_of(const ck_sparse_plan &plan) {
    return slots_of(plan) | 1;
} /* odd, see stage_lines */

/* Sets all members except `order`. Returns false when the tile does not fit. */
bool set_layout(const ck_conv &conv, const tile_config &c, int warps, int split, int TP, int TQ, int64_t shared,
                ck_sparse_plan *plan) {
    ck_sparse_plan &p = *plan;
    p.quads = c.quads, p.rows = c.rows, p.warps = warps, p.split = split, p.channels = warps / split * c.rows;
    p.TP = TP, p.TQ = TQ;
    p.patches_p = (int)ceil_div(conv.P, TP), p.patches_q = (int)ceil_div(conv.Q, TQ);
    const int64_t fours = ceil_div(conv.N * p.patches_p * p.patches_q, 4), max_groups = c.quads * CK_WARP / (TP * TQ);
    if (max_groups < 1) return false;
    p.groups            = (int)(fours < max_groups ? fours : max_groups);
    p.tiles             = ceil_div(fours, p.groups);
    p.IH                = (TP - 1) * conv.stride + conv.R;
    p.columns           = (int)ceil_div((TQ - 1) * conv.stride + conv.S, conv.stride);
    p.pitch             = p.columns * (conv.S < conv.stride ? conv.S : conv.stride);
    const int     slots = slots_of(p);
    const int64_t limit = shared / resident(warps) - 1024, capacity = limit - (int64_t)tables_bytes(p, slots);
    const int64_t plane = (int64_t)plane_of(p) * CK_VECTOR_BYTES;
    if (capacity < (int64_t)outputs_bytes(p) || capacity < plane) return false;
    int64_t chunk = capacity / plane;
    if (chunk >= 8) chunk -= chunk % (chunk >= 32 ? 32 : 8);
    p.chunks = ceil_div(conv.C, chunk);
    if (chunk >= 8) {
        const int64_t unit = chunk >= 32 ? 32 : 8, even = ceil_div(ceil_div(conv.C, p.chunks), unit) * unit;
        chunk    = even < chunk ? even : chunk;
        p.chunks = ceil_div(conv.C, chunk);
    } else if (conv.C > chunk)
        return false; /* a chunk must be a multiple of the vector size */
    p.chunk         = (int)chunk;
    p.k_blocks      = ceil_div(conv.K, p.channels);
    const size_t xs = (size_t)chunk * (size_t)plane;
    p.shared_bytes  = (xs > outputs_bytes(p) ? xs : outputs_bytes(p)) + tables_bytes(p, slots);
    return p.tiles * p.k_blocks < ((int64_t)1 << 31);
}

/* Estimated cycles of the busiest multiprocessor, from its reads and writes of shared memory; with few warps, from the
 * latency. */
double cycles(const ck_conv &conv, const ck_sparse_plan &p, double nnz_per_row, int multiprocessors) {
    const double rows = p.channels, work = nnz_per_row * rows * (4 * p.quads + 2), slots = slots_of(p);
    const double staged = (double)conv.C * slots * 4 / CK_WARP * 2.5, out = p.quads * 4.0 * rows * (2 + p.split);
    const double block =
        work + rows * (double)p.chunks * 8 + staged + out + (double)p.chunks * 1500 / resident(p.warps);
    const int64_t blocks = p.tiles * p.k_blocks;
    const double  alone =
        nnz_per_row * p.rows / p.split / CK_SPARSE_PAIR * 90 + (double)p.chunks * 3000 + staged / p.warps;
    const double busy  = (double)ceil_div(blocks, multiprocessors) * block;
    const double waits = (double)ceil_div(blocks, (int64_t)multiprocessors * resident(p.warps)) * alone;
    return busy > waits ? busy : waits;
}

/* Assigns items to lanes. 8 neighbouring lanes read 128 bytes together, so that their slots should differ modulo 8. */
void set_order(const ck_conv &conv, ck_sparse_plan *p) {
    const int size = p->TP * p->TQ, items = p->groups * size, capacity = p->quads * CK_WARP;
    bool      used[CK_SPARSE_ITEMS] = {};
    unsigned  banks                 = 0;
    for (int i = 0; i < capacity; i++) {
        if (i % 8 == 0) banks = 0;
        int best = -1, bank = 0;
        for (int item = 0; item < items; item++) {
            if (used[item]) continue;
            const int row = item / size * p->IH + item % size / p->TQ * conv.stride;
            const int at  = (row * p->pitch + item % size % p->TQ) % 8;
            if (best < 0 || !(banks >> at & 1u)) best = item, bank = at;
            if (!(banks >> bank & 1u)) break;
        }
        p->order[i] = best < 0 ? (uint16_t)0xffff : (uint16_t)best;
        if (best >= 0) used[best] = true, banks |= 1u << bank;
    }
}

/* Finds the patch with the fewest estimated cycles. Updates `plan` and `min_cycles` when it is better. */
void choose_patch(const ck_conv &conv, const tile_config &c, int warps, int split, double nnz_per_row,
                  int multiprocessors, int64_t shared, int warp_bytes, double *min_cycles, ck_sparse_plan *plan) {
    const bool pointwise = conv.R == 1 && conv.S == 1; /* no taps overlap, so that any pixels can form a patch */
    for (int64_t np = pointwise ? conv.P : 1; np <= conv.P; np++) {
        const int64_t TP = ceil_div(conv.P, np);
        if (np > 1 && !pointwise && ceil_div(conv.P, np - 1) == TP) continue;
        for (int64_t nq = pointwise ? conv.Q : 1; nq <= conv.Q; nq++) {
            ck_sparse_plan p  = {};
            const int64_t  TQ = ceil_div(conv.Q, nq);
            p.warp_bytes      = warp_bytes;
            if (TP * TQ > CK_SPARSE_ITEMS || (nq > 1 && !pointwise && ceil_div(conv.Q, nq - 1) == TQ)) continue;
            if (!set_layout(conv, c, warps, split, (int)TP, (int)TQ, shared, &p)) continue;
            p.cycles = cycles(conv, p, nnz_per_row, multiprocessors);
            if (*min_cycles < 0 || p.cycles < *min_cycles) *min_cycles = p.cycles, *plan = p;
        }
    }
}

} // namespace

kernel_args tile_args(const ck_sparse_args &args, const ck_sparse_plan &plan) {
    kernel_args k = {};
    k.a           = args;
    k.plan        = plan;
    k.patches     = args.conv.N * plan.patches_p * plan.patches_q;
    k.slots       = slots_of(plan);
    k.plane       = plane_of(plan);
    k.table_at    = (int)(plan.shared_bytes - tables_bytes(plan, k.slots));
    k.points_at   = k.table_at + k.slots * 16;
    k.ring_at     = k.points_at + plan.quads * CK_WARP * 16;
    return k;
}

bool plan_tiles(const ck_conv &conv, int64_t nnz, int config, int multiprocessors, int shared_bytes, int warp_bytes,
                ck_sparse_plan *plan) {
    const int64_t limit = (int64_t)1 << 31;
    if (config < 0 || config > CONFIG_COUNT || conv.N * conv.H * conv.W >= limit || conv.N * conv.P * conv.Q >= limit)
        return false;
    double min_cycles = -1;
    for (int i = 0; i < CONFIG_COUNT; i++)
        for (int warps = TILE_CONFIGS[i].min_warps; (!config || i == config - 1) && warps <= TILE_CONFIGS[i].max_warps;
             warps++)
            for (int split = 1; split <= (TILE_CONFIGS[i].rows == 1 ? 4 : 1); split *= 2)
                if (warps % split == 0 && warps / split * TILE_CONFIGS[i].rows % 4 == 0)
                    choose_patch(conv, TILE_CONFIGS[i], warps, split, (double)nnz / (double)conv.K, multiprocessors,
                                 shared_bytes, warp_bytes, &min_cycles, plan);
    if (min_cycles < 0) return false;
    set_order(conv, plan);
    return true;
}

} // namespace sparse

void ck_sparse_conv_tile(int config, int tile[3]) {
    const sparse::tile_config none = {}, &c = config >= 1 && config <= sparse::CONFIG_COUNT
                                                  ? sparse::TILE_CONFIGS[config - 1]
                                                  : none;
    tile[0] = c.quads, tile[1] = c.rows, tile[2] = c.max_warps;
}

bool ck_sparse_conv_plan(const struct ck_conv *conv, int64_t nnz, int config, int multiprocessors, int shared_bytes,
                         struct ck_sparse_plan *plan) {
    return sparse::plan_tiles(*conv, nnz, config, multiprocessors, shared_bytes, CK_WARP * (int)sizeof(uint2), plan);
}

struct ck_sparse_steps ck_sparse_conv_steps(const struct ck_conv *conv, const struct ck_sparse_plan *plan) {
    (void)conv;
    struct ck_sparse_steps steps = {};
    steps.c_step                 = (int64_t)sparse::plane_of(*plan) * CK_VECTOR_BYTES;
    steps.r_step                 = (int64_t)plan->pitch * CK_VECTOR_BYTES;
    steps.s_phase                = (int64_t)plan->columns * CK_VECTOR_BYTES;
    steps.s_step                 = CK_VECTOR_BYTES;
    return steps;
}
