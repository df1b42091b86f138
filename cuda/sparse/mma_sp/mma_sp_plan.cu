/* cuda/sparse/mma_sp/mma_sp_plan.cu: how a convolution on the sparse tensor cores is cut: see
 * cuda/sparse/mma_sp/mma_sp.h. Arithmetic on the host alone. */
#include "cuda/sparse/mma_sp/mma_sp.cuh"

#include <math.h>

namespace mma_sp {
namespace {

struct cut {
    int bands, columns, split;
};
const cut CUTS[] = {{1, 4, 1}, {2, 4, 1}, {4, 4, 1}, {1, 3, 1}, {2, 3, 1}, {4, 3, 1}, {8, 3, 1}, {1, 2, 1},
                    {2, 2, 1}, {4, 2, 1}, {8, 2, 1}, {2, 1, 1}, {4, 1, 1}, {8, 1, 1}, {2, 3, 2}, {4, 3, 2},
                    {2, 2, 2}, {4, 2, 2}, {1, 3, 4}, {2, 3, 4}, {1, 2, 4}, {2, 2, 4}, {1, 3, 8}, {1, 2, 8}};
const int WAYS   = (int)(sizeof CUTS / sizeof *CUTS);

int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
/* Of results on their way through shared memory; those of f32 that no other warp adds to go straight to y. */
size_t outputs_bytes(const ck_mma_sp_plan &p, bool two) {
    return two && p.split == 1 ? 0 : (size_t)items_of(p) * (size_t)(p.bands * CK_MMA_SP_BAND + 4) * 4;
}
/* Of a staged pixel: an odd number of 16 bytes, so that 8 neighbours meet 8 different banks. */
int place_bytes_of(int chunk, bool two) {
    return (chunk * (two ? 4 : 2) / 16 | 1) * 16;
}

/* false: does not fit. */
bool lay_out(const ck_conv &conv, const cut &c, int64_t TP, int64_t TQ, int64_t room, ck_mma_sp_plan *plan) {
    ck_mma_sp_plan &p   = *plan;
    const bool      two = conv.type == CK_F32;
    p.bands = c.bands, p.columns = c.columns, p.split = c.split, p.TP = (int)TP, p.TQ = (int)TQ;
    p.patches_p = (int)ceil_div(conv.P, TP), p.patches_q = (int)ceil_div(conv.Q, TQ);
    const int64_t all = conv.N * p.patches_p * p.patches_q, most = items_of(p) / (TP * TQ);
    if (most < 1) return false;
    p.groups = (int)(all < most ? all : most);
    p.tiles  = ceil_div(all, p.groups);
    p.IH     = (int)(TP - 1) * conv.stride + conv.R;
    p.phase  = (int)ceil_div((TQ - 1) * conv.stride + conv.S, conv.stride);
    p.pitch  = p.phase * (conv.S < conv.stride ? conv.S : conv.stride);
    room -= (int64_t)tables_bytes(p) + 16;
    const int64_t places = places_of(p), whole = ceil_div(conv.C, CK_MMA_SP_BLOCK) * CK_MMA_SP_BLOCK;
    int64_t       chunk = (room / places / 16 - 1) * 16 / (two ? 4 : 2) / CK_MMA_SP_BLOCK * CK_MMA_SP_BLOCK;
    if (chunk < CK_MMA_SP_BLOCK || room < (int64_t)outputs_bytes(p, two)) return false;
    chunk              = chunk < whole ? chunk : whole;
    p.chunks           = ceil_div(whole, chunk);
    const int64_t unit = chunk >= 32 ? 32 : CK_MMA_SP_BLOCK, even = ceil_div(ceil_div(whole, p.chunks), unit) * unit;
    p.chunk             = (int)(even < chunk ? even : chunk);
    p.chunks            = ceil_div(whole, p.chunk);
    p.place_bytes       = place_bytes_of(p.chunk, two);
    p.k_blocks          = ceil_div(conv.K, p.bands * CK_MMA_SP_BAND);
    const size_t staged = (size_t)places * (size_t)p.place_bytes, out = outputs_bytes(p, two);
    p.shared_bytes = (((staged > out ? staged : out) + 15) & ~(size_t)15) + tables_bytes(p);
    return p.tiles * p.k_blocks < ((int64_t)1 << 31) && places * p.place_bytes < (1 << 20);
}

/* How often 16 channels walk a block of 8 columns when a weight is kept with this probability: in none of 32 quads more
 * than 2 of 4. */
double walks_of(double kept) {
    const double more = kept * kept * kept * (4 - 3 * kept), none = pow(1 - kept, CK_MMA_SP_BAND * CK_MMA_SP_BLOCK);
    return 2 - none - pow(1 - (more < 1 ? more : 1), 32);
}

/* In 16 bits launches take longer than is counted here: on one H200 the fastest of 312 pruned layers 0.9 to 6 times as
 * long, 1.9 times in the mean. */
const double HALF_SLOWER = 1.9;

/* Cycles on the busiest multiprocessor; blocks that share one hide each other's waiting. */
double cycles(const ck_conv &conv, const ck_mma_sp_plan &p, double walks, int multiprocessors) {
    const bool   two   = conv.type == CK_F32;
    const double bytes = two ? 4 : 2, places = places_of(p), taps = conv.R * conv.S;
    double       steps = 0;
    for (int64_t i = 0; i < p.chunks; i++) {
        const int64_t left = conv.C - i * p.chunk;
        steps += (double)ceil_div(ceil_div(left < p.chunk ? left : p.chunk, 8) * (int64_t)taps, 4);
    }
    const int64_t bands = ceil_div(conv.K, CK_MMA_SP_BAND), used = bands < p.bands ? bands : p.bands;
    const double  spans = warps_of(p.columns) / p.bands / p.split, warps = spans * (double)used;
    const double  mma = steps * walks * warps * CK_MMA_SP_GROUPS * p.columns * (two ? 3 : 1) * 2.3;
    const double  reads =
        steps * walks * warps * (CK_MMA_SP_GROUPS * (two ? 9 : 5) + 1.3 * p.columns * 4 * (two ? 2 : 1));
    const double l2 =
        (steps * walks * (double)used * CK_MMA_SP_GROUPS * (two ? 1152 : 640) + places * (double)conv.C * bytes) / 30;
    const double staged  = places * (double)conv.C / 12 + (double)p.chunks * 1200,
                 out     = items_of(p) * p.bands * 64.0 / 12 + 2000;
    double most          = mma > reads ? mma : reads;
    most                 = most > l2 ? most : l2;
    const int64_t blocks = p.tiles * p.k_blocks, rounds = ceil_div(blocks, 2 * (int64_t)multiprocessors);
    const double  alone = most * 1.3 + staged + out;
    if (blocks <= multiprocessors) return alone * (two ? 1 : HALF_SLOWER);
    const double busy  = (double)ceil_div(blocks, multiprocessors) * (most + (staged + out) * 0.5),
                 waits = (double)rounds * alone * 1.2;
    return (busy > waits ? busy : waits) * (two ? 1 : HALF_SLOWER);
}

void choose_patch(const ck_conv &conv, const cut &c, double walks, int multiprocessors, int64_t room, double *least,
                  ck_mma_sp_plan *plan) {
    const bool    point = conv.R == 1 && conv.S == 1; /* no taps to share: any pixels make a patch */
    const int64_t items = warps_of(c.columns) / c.bands / c.split * c.columns * 8;
    for (int64_t np = point ? conv.P : 1; np <= conv.P; np++) {
        const int64_t TP = ceil_div(conv.P, np);
        if (np > 1 && !point && ceil_div(conv.P, np - 1) == TP) continue;
        for (int64_t nq = point ? conv.Q : 1; nq <= conv.Q; nq++) {
            ck_mma_sp_plan p  = {};
            const int64_t  TQ = ceil_div(conv.Q, nq);
            if (TP * TQ > items || (nq > 1 && !point && ceil_div(conv.Q, nq - 1) == TQ)) continue;
            if (!lay_out(conv, c, TP, TQ, room, &p)) continue;
            p.cycles = cycles(conv, p, walks, multiprocessors);
            if (*least < 0 || p.cycles < *least) *least = p.cycles, *plan = p;
        }
    }
}

} // namespace
} // namespace mma_sp

int ck_mma_sp_conv_configs(void) {
    return mma_sp::WAYS;
}

void ck_mma_sp_conv_tile(int way, int cut[3]) {
    const mma_sp::cut none = {}, &c = way >= 1 && way <= mma_sp::WAYS ? mma_sp::CUTS[way - 1] : none;
    cut[0] = c.bands, cut[1] = c.columns, cut[2] = c.split;
}

bool ck_mma_sp_conv_plan(const struct ck_conv *conv, int64_t kept, int way, int multiprocessors, int shared_bytes,
                         struct ck_mma_sp_plan *plan) {
    using namespace mma_sp;
    const double  walks = walks_of((double)kept / ((double)conv->K * conv->R * conv->S * (double)conv->C));
    const int64_t most = (int64_t)1 << 31, room = shared_bytes / 2 - 1024;
    if (way < 0 || way > WAYS || conv->N < 1 || conv->P < 1 || conv->Q < 1 || conv->N * conv->H * conv->W >= most ||
        conv->N * conv->P * conv->Q >= most)
        return false;
    double least = -1;
    for (int i = 0; i < WAYS; i++)
        if (!way || i == way - 1) choose_patch(*conv, CUTS[i], walks, multiprocessors, room, &least, plan);
    return least >= 0;
}

struct ck_mma_sp_steps ck_mma_sp_conv_steps(const struct ck_mma_sp_plan *plan) {
    struct ck_mma_sp_steps steps = {};
    steps.c_step                 = 16;
    steps.r_step                 = (int64_t)plan->pitch * plan->place_bytes;
    steps.s_phase                = (int64_t)plan->phase * plan->place_bytes;
    steps.s_step                 = plan->place_bytes;
    return steps;
}
