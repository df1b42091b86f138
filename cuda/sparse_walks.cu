/* sparse_walks.cu: see sparse_walks.h. Plans, packing, filling; the kernel is in sparse_walks_sm90a.cu. */
#include "sparse_walks.cuh"
#include "union_conv.cuh"

#include <math.h>
#include <string.h>

namespace walks {
namespace {

/* ---- plans ---- */

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

enum { LEAST_RING = 4, LEAST_STAGES = 3 };
const int COLUMNS[] = {64, 96, 104, 112, 120, 160, 192};

/* Stages and ring in `most` bytes: a worker holds two units back at most, and so two stages. */
bool set_rings(int most, ck_nm_plan *p) {
    const int fixed = (int)layout(*p).end; /* stages and ring are 0 as yet */
    for (int stages = MOST_STAGES; stages >= LEAST_STAGES && !p->stages; stages--) {
        const int room = (most - fixed - stages * p->stage_bytes) / (p->workers * UNIT_SLOT);
        if (room < (stages > 5 ? 8 : stages > LEAST_STAGES ? 6 : LEAST_RING)) continue;
        p->stages = stages;
        p->ring   = room < MOST_RING ? room : MOST_RING;
    }
    p->shared_bytes = (int)layout(*p).end;
    return p->stages > 0;
}

/* Units of a stage's tap, when a weight is kept with this probability. */
double walks_of(double kept) {
    const double rows = CK_WALKS_ROWS, four = CK_WALKS_CHUNK / 4, more = kept * kept * kept * (4 - 3 * kept);
    return 2 - pow(1 - kept, rows * four * 4) - pow(1 - more, rows * four);
}

/* Units that the first worker gives back before the second begins. It surely can: a tile has a unit a stage at least, which it gives back when
 * it has the next one or the tile is over, and a unit lies in a stage no later than its number. */
int lead_of(const ck_nm_plan &p, int wanted) {
    const int most[] = {p.chunks * p.phases, p.stages - 1, p.ring - 1};
    for (const int n : most) wanted = wanted < n ? wanted : n;
    return wanted;
}

bool set_cycles(const ck_conv &c, double kept, int multiprocessors, ck_nm_plan *p) {
    const double  stages = (double)p->chunks * p->phases, taps = (double)p->taps * p->chunks, units = fmax(taps * walks_of(kept), stages);
    const double  inputs = (double)p->rows * p->pitch * p->images * POSITION * stages, n = p->columns;
    const double  read   = units * 3 * (n / 2 + 16) * p->workers; /* operands from shared memory; the tensor cores take n/2 cycles */
    const double  shared = read + inputs * 3 / 128 + p->workers * units * UNIT_BYTES / 128;
    const double  alone  = units * (3 * (n / 2 + 16) + 60 + (n / 2 + 100) / CK_WALKS_CHAIN), fetch = (inputs + p->workers * units * UNIT_BYTES) / 26, out = n * 10 * p->workers;
    const int64_t items = ceil_div(p->blocks, p->workers) * p->tiles, some = p->shared_bytes <= SHARED_HALF ? 2 : 1, rounds = ceil_div(items, multiprocessors * some);
    const double  most  = fmax(fmax(shared, fetch) * (double)some, alone);
    const int     half  = (int)(units / 2);
    p->lead   = p->workers == 2 && rounds > 1 ? lead_of(*p, half) : 0;
    p->cycles = (double)rounds * (most + out * (p->lead ? 0.5 : 1) + 300) + 5000;
    return items < (int64_t)1 << 30 && c.K > 0;
}

/* The ways: workers, the columns that a tile may have, bytes of shared memory. */
struct cut {
    int workers, least, most, shared;
};
const cut CUTS[] = {{2, 33, 64, SHARED_MOST},   {2, 65, 120, SHARED_MOST}, {2, 121, 160, SHARED_MOST}, {1, 65, 120, SHARED_MOST},
                    {1, 121, 192, SHARED_MOST}, {1, 33, 64, SHARED_HALF},  {1, 65, 120, SHARED_HALF},  {2, 161, 192, SHARED_MOST}};
const int CUT_COUNT = (int)(sizeof CUTS / sizeof *CUTS);

/* The tile of this cut with the fewest cycles. */
bool plan_cut(const ck_conv &c, double kept, const cut &cut, int multiprocessors, ck_nm_plan *best) {
    bool any = false;
    for (int images = 1; images <= 16; images *= 2)
        for (int rows = 1; rows <= c.P && rows <= 256; rows++) {
            ck_nm_plan p = {};
            p.workers    = cut.workers;
            if (!nm::cut_tile(c, images, rows, COLUMNS, (int)(sizeof COLUMNS / sizeof *COLUMNS), &p)) continue;
            if (p.columns < cut.least || p.columns > cut.most) continue;
            p.chunks = (int)ceil_div(c.C, CK_WALKS_CHUNK);
            if (set_rings(cut.shared, &p) && set_cycles(c, kept, multiprocessors, &p) && (!any || p.cycles < best->cycles)) *best = p, any = true;
        }
    return any;
}

/* ---- packing ---- */

struct packer {
    const ck_conv     *c;
    const ck_nm_plan  *p;
    const uint8_t     *kept;
    uint32_t          *words, *from;
};

/* A unit's piece of the filter. */
struct piece {
    int64_t k0, tap, c0;
};

const uint8_t *four_of(const packer &m, const piece &at, int row, int four) {
    const int64_t k = at.k0 + row, c = at.c0 + four * 4;
    return k < m.c->K && c < m.c->C ? m.kept + (k * m.c->R * m.c->S + at.tap) * m.c->C + c : nullptr;
}

int walks_of(const packer &m, const piece &at) {
    int most = 0;
    for (int row = 0; row < CK_WALKS_ROWS; row++)
        for (int four = 0; four < CK_WALKS_CHUNK / 4; four++) {
            const uint8_t *is = four_of(m, at, row, four);
            const int      n  = is ? (is[0] != 0) + (is[1] != 0) + (is[2] != 0) + (is[3] != 0) : 0;
            most              = n > most ? n : most;
        }
    return (most + 1) / 2;
}

/* Places of what `walk` takes of four weights, the smaller first; taken: are there weights? */
void places_of(const uint8_t *is, int walk, int place[2], bool taken[2]) {
    int kept = 0, got = 0;
    place[0] = 0, place[1] = 3;
    taken[0] = taken[1] = false;
    for (int i = 0; is && i < 4; i++) {
        if (!is[i]) continue;
        if (kept++ / 2 == walk) place[got] = i, taken[got++] = true;
    }
    if (got == 1 && place[0] == 3) place[0] = 0, taken[0] = false, taken[1] = true;
}

/* Operand A is 8x8 matrices down the rows; a warp has 16 words of places for its 16 rows. */
void put_unit(const packer &m, const piece &at, int walk, int64_t unit) {
    uint32_t *words = m.words ? m.words + unit * CK_WALKS_WORDS : nullptr, *from = m.from ? m.from + unit * CK_WALKS_VALUES : nullptr;
    if (words) memset(words, 0, CK_WALKS_WORDS * sizeof *words);
    for (int row = 0; row < CK_WALKS_ROWS; row++)
        for (int four = 0; four < CK_WALKS_CHUNK / 4; four++) {
            int  place[2];
            bool taken[2];
            places_of(four_of(m, at, row, four), walk, place, taken);
            if (words) words[row / 16 * 16 + row % 8 * 2 + four / 4] |= (uint32_t)(place[0] | place[1] << 2) << (four % 4 * 4 + row % 16 / 8 * 16);
            for (int i = 0; i < 2 && from; i++)
                from[(four / 4 * CK_WALKS_ROWS + row) * 8 + four % 4 * 2 + i] =
                    taken[i] ? (uint32_t)(((at.k0 + row) * m.c->R * m.c->S + at.tap) * m.c->C + at.c0 + four * 4 + place[i]) : UINT32_MAX;
        }
}

/* All units of a block, from `unit` on; gives how many. */
int64_t pack_block(const packer &m, int64_t block, int64_t unit) {
    const int64_t begin = unit;
    int64_t       stage = unit;
    for (int chunk = 0; chunk < m.p->chunks; chunk++)
        for (int i = 0; i < m.p->taps; i++) {
            const piece at    = {block * CK_WALKS_ROWS, m.p->tap[i], (int64_t)chunk * CK_WALKS_CHUNK};
            const bool  first = m.p->first >> i & 1, last = m.p->last >> i & 1;
            int         walks = walks_of(m, at);
            if (first) stage = unit;
            if (last && unit == stage && walks == 0) walks = 1;
            for (int walk = 0; walk < walks; walk++, unit++) {
                if (m.words || m.from) put_unit(m, at, walk, unit);
                if (!m.words) continue;
                m.words[unit * CK_WALKS_WORDS + CK_WALKS_WORDS - 4] = (uint32_t)(m.p->at[i] * (POSITION / 16)) | (unit == stage ? (uint32_t)HEAD_FIRST : 0u);
            }
            if (last && m.words) m.words[(unit - 1) * CK_WALKS_WORDS + CK_WALKS_WORDS - 4] |= (uint32_t)HEAD_LAST;
        }
    return unit - begin;
}

/* ---- filling ---- */

enum { FILL_THREADS = 256 };

/* A block a unit. */
__global__ void __launch_bounds__(FILL_THREADS) fill(const float *w, int64_t taps, const uint32_t *from, const float *scale, char *to) {
    const int64_t unit = blockIdx.x;
    const uint4   at   = reinterpret_cast<const uint4 *>(from + unit * CK_WALKS_VALUES)[threadIdx.x];
    const uint32_t four[4] = {at.x, at.y, at.z, at.w};
    float          v[4];
    uint2          high, low;
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = four[i] == UINT32_MAX ? 0.0f : w[four[i]] / scale[four[i] / taps];
    uni::split_exactly(v[0], v[1], &high.x, &low.x);
    uni::split_exactly(v[2], v[3], &high.y, &low.y);
    char *mine = to + unit * UNIT_VALUES;
    reinterpret_cast<uint2 *>(mine)[threadIdx.x]             = high;
    reinterpret_cast<uint2 *>(mine + UNIT_PART)[threadIdx.x] = low;
}

} // namespace
} // namespace walks

int ck_walks_ways(void) { return walks::CUT_COUNT; }

void ck_walks_cut(int way, int cut[3]) {
    const walks::cut none = {}, &c = way >= 1 && way <= walks::CUT_COUNT ? walks::CUTS[way - 1] : none;
    cut[0] = c.workers, cut[1] = c.most, cut[2] = c.shared <= walks::SHARED_HALF ? 2 : 1;
}

bool ck_walks_make(const struct ck_conv *conv, int64_t kept, int way, int capability, int multiprocessors, struct ck_walks_plan *plan) {
    const int64_t side = 1 << 20, taps = (int64_t)conv->R * conv->S;
    ck_conv       c    = *conv;
    if (taps == 1 && c.stride == 1 && c.pad == 0) c.H = c.P = c.N * c.H * c.W, c.N = c.W = c.Q = 1;
    if (way < 1 || way > ck_walks_ways() || c.type != CK_F32 || capability != 90 || c.C % 4 || c.K % 4) return false;
    if (c.W > side || c.N * c.H * c.W >= (int64_t)1 << 31 || c.N * c.P * c.Q >= (int64_t)1 << 31 || c.K * taps * c.C >= UINT32_MAX) return false;
    plan->conv = c;
    return walks::plan_cut(c, (double)kept / (double)(c.K * taps * c.C), walks::CUTS[way - 1], multiprocessors, &plan->tile);
}

int64_t ck_walks_pack(const struct ck_walks_plan *plan, const uint8_t *kept, uint32_t *start, uint32_t *words, uint32_t *from) {
    const walks::packer m    = {&plan->conv, &plan->tile, kept, words, from};
    int64_t             unit = 0;
    for (int64_t block = 0; block < plan->tile.blocks; block++) {
        if (start) start[block] = (uint32_t)unit;
        unit += walks::pack_block(m, block, unit);
    }
    if (start) start[plan->tile.blocks] = (uint32_t)unit;
    return unit;
}

size_t ck_walks_scale_at(int64_t units) { return (size_t)units * walks::UNIT_VALUES; }
size_t ck_walks_bytes(const struct ck_walks_plan *plan, int64_t units) {
    return ck_walks_scale_at(units) + (size_t)(plan->tile.blocks * CK_WALKS_ROWS) * sizeof(float);
}

cudaError_t ck_walks_fill(const struct ck_walks_plan *plan, const float *w, const uint32_t *from, int64_t units, void *to, cudaStream_t stream) {
    const ck_conv    &c     = plan->conv;
    const int64_t     taps  = (int64_t)c.R * c.S * c.C;
    float            *scale = reinterpret_cast<float *>(static_cast<char *>(to) + ck_walks_scale_at(units));
    const cudaError_t e     = uni::row_scales(CK_F32, w, c.K, taps, plan->tile.blocks * CK_WALKS_ROWS, scale, stream);
    if (e != cudaSuccess) return e;
    walks::fill<<<(unsigned)units, walks::FILL_THREADS, 0, stream>>>(w, taps, from, scale, static_cast<char *>(to));
    return cudaGetLastError();
}

cudaError_t ck_walks_conv(const struct ck_walks_args *args, const struct ck_walks_plan *plan, int multiprocessors, cudaStream_t stream) {
    return walks::conv(*args, *plan, multiprocessors, stream);
}
