/* sparse_walks.cu: see sparse_walks.h. Plans, packing, filling; the kernel is in sparse_walks_sm90a.cu. */
#include "sparse_walks.cuh"
#include "union_conv.cuh"

#include <math.h>
#include <string.h>

namespace walks {
namespace {

/* ---- plans ---- */

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

enum { LEAST_RING = 4, LEAST_STAGES = 3, HEAD = CK_WALKS_WORDS - 4 /* word of a unit */ };
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

/* Units of a stage's tap, when a weight is kept with this probability: sparse ones, plain ones. */
struct units {
    double sparse, plain;
    double all() const { return sparse + plain; }
};
units units_of(double kept) {
    const double rows = CK_WALKS_ROWS, four = CK_WALKS_CHUNK / 4, more = kept * kept * kept * (4 - 3 * kept);
    const double fit = pow(1 - more, rows * four), none = pow(1 - kept, rows * four * 4);
    return {fit - none, 2 * (1 - fit)};
}

/* Units that the first worker gives back before the second begins. It surely can: a tile has a unit a stage at least, which it gives back when
 * it has the next one or the tile is over, and a unit lies in a stage no later than its number. */
int lead_of(const ck_nm_plan &p, int wanted) {
    const int most[] = {p.chunks * p.phases, p.stages - 1, p.ring - 1};
    for (const int n : most) wanted = wanted < n ? wanted : n;
    return wanted;
}

bool set_cycles(const ck_conv &c, double kept, int parts, int multiprocessors, ck_nm_plan *p) {
    const double  chunks = (double)ceil_div(p->chunks, parts), stages = chunks * p->phases, taps = p->taps * chunks;
    const struct units tap = units_of(kept);
    const double  units  = fmax(taps * tap.all(), stages), sparse = taps * tap.sparse, plain = units - sparse;
    const double  inputs = (double)p->rows * p->pitch * p->images * POSITION * stages, n = p->columns;
    const double  tensor = units * 3 * n / 2 * p->workers;
    const double  read   = (sparse * (n / 2 + 16) + plain * (n / 4 + 16)) * 3 * p->workers; /* operands from shared memory */
    const double  shared = fmax(tensor, read + inputs * 3 / 128 + p->workers * units * UNIT_BYTES / 128);
    const double  alone  = units * (3 * (n / 2 + 16) + 60 + (n / 2 + 100) / CK_WALKS_CHAIN), fetch = (inputs + p->workers * units * UNIT_BYTES) / 26, out = n * 10 * p->workers;
    const int64_t items = ceil_div(p->blocks, p->workers) * p->tiles, some = p->shared_bytes <= SHARED_HALF ? 2 : 1, rounds = ceil_div(items, multiprocessors * some);
    const double  most  = fmax(fmax(shared, fetch) * (double)some, alone);
    const int     half  = (int)(units / 2);
    p->lead   = p->workers == 2 && rounds > 1 ? lead_of(*p, half) : 0;
    p->cycles = (double)rounds * (most + out * (p->lead ? 0.5 : 1) + 300) + 5000;
    if (parts > 1) p->cycles += n * 10 + 1500; /* sums pass from block to block */
    return items < (int64_t)1 << 30 && c.K > 0 && (parts == 1 || (items * parts <= multiprocessors && p->chunks >= parts));
}

/* The ways: workers, the columns that a tile may have, bytes of shared memory. */
struct cut {
    int workers, least, most, shared, parts;
};
const cut CUTS[] = {{2, 33, 64, SHARED_MOST, 1},   {2, 65, 120, SHARED_MOST, 1}, {2, 121, 160, SHARED_MOST, 1}, {1, 65, 120, SHARED_MOST, 1},
                    {1, 121, 192, SHARED_MOST, 1}, {1, 33, 64, SHARED_HALF, 1},  {1, 65, 120, SHARED_HALF, 1},  {2, 161, 192, SHARED_MOST, 1},
                    {2, 65, 120, SHARED_MOST, 2},  {2, 121, 192, SHARED_MOST, 2}};
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
            if (set_rings(cut.shared, &p) && set_cycles(c, kept, cut.parts, multiprocessors, &p) && (!any || p.cycles < best->cycles)) *best = p, any = true;
        }
    return any;
}

/* ---- packing ---- */

struct packer {
    const ck_conv     *c;
    const ck_nm_plan  *p;
    int                parts;
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

/* Of a piece: weights that a channel keeps of any 4 neighbours at most, and which halves of its input channels keep some. */
struct census {
    int most = 0, halves = 0;
};

census census_of(const packer &m, const piece &at) {
    census is;
    for (int row = 0; row < CK_WALKS_ROWS; row++)
        for (int four = 0; four < CK_WALKS_CHUNK / 4; four++) {
            const uint8_t *kept = four_of(m, at, row, four);
            const int      n    = kept ? (kept[0] != 0) + (kept[1] != 0) + (kept[2] != 0) + (kept[3] != 0) : 0;
            is.most             = n > is.most ? n : is.most;
            if (n) is.halves |= 1 << four / 4;
        }
    return is;
}

/* A piece is walked by sparse units, or each half of its input channels by a plain one. */
enum kind { SPARSE, PLAIN, KINDS };
kind other(kind k) { return k == SPARSE ? PLAIN : SPARSE; }

int units_of(const census &is, kind k) { return k == SPARSE ? (is.most + 1) / 2 : (is.halves & 1) + (is.halves >> 1); }

/* Cycles of one of a unit's three instructions, half of them the tensor cores', half shared memory's. Units of both kinds are not summed
 * together: what a change costs. */
double cost_of(const packer &m, const census &is, kind k) { return units_of(is, k) * (m.p->columns * (k == SPARSE ? 0.5 : 0.375) + 8); }
double change_cost(const packer &m) { return m.p->columns / 6.0 + 33; }

/* A stage's pieces, and how they are walked: those of the kind at hand before the others. */
struct stage {
    int    pieces = 0;
    piece  at[CK_NM_TAPS];
    int    tap[CK_NM_TAPS];
    census is[CK_NM_TAPS];
};
struct walk {
    kind    now   = SPARSE;
    double  cost  = 0;
    int64_t units = 0;
};

/* Is another kind worth a change? */
bool is_changed(const packer &m, const stage &s, kind now) {
    double saved = 0;
    for (int i = 0; i < s.pieces; i++) saved += fmax(cost_of(m, s.is[i], now) - cost_of(m, s.is[i], other(now)), 0);
    return saved > change_cost(m);
}
bool is_other(const packer &m, const stage &s, int i, kind now, bool changed) {
    return changed && cost_of(m, s.is[i], other(now)) < cost_of(m, s.is[i], now);
}

void pass(const packer &m, const stage &s, walk *w) {
    const bool    changed = is_changed(m, s, w->now);
    const int64_t before  = w->units;
    for (int i = 0; i < s.pieces; i++) {
        const kind k = is_other(m, s, i, w->now, changed) ? other(w->now) : w->now;
        w->cost += cost_of(m, s.is[i], k);
        w->units += units_of(s.is[i], k);
    }
    if (w->units == before) w->units++;
    if (changed) w->cost += change_cost(m), w->now = other(w->now);
}

/* Calls with each stage of a block's part. */
template <typename F> void for_stages(const packer &m, int64_t block, int part, const F &call) {
    stage s;
    for (int chunk = chunk_from(*m.p, m.parts, part); chunk < chunk_from(*m.p, m.parts, part + 1); chunk++)
        for (int i = 0; i < m.p->taps; i++) {
            if (m.p->first >> i & 1) s.pieces = 0;
            const int n = s.pieces++;
            s.at[n]     = {block * CK_WALKS_ROWS, m.p->tap[i], (int64_t)chunk * CK_WALKS_CHUNK};
            s.tap[n]    = i;
            s.is[n]     = census_of(m, s.at[n]);
            if (m.p->last >> i & 1) call(s);
        }
}

/* The better of both kinds to begin with. */
kind first_kind(const packer &m, int64_t block, int part, int64_t *units) {
    walk w[KINDS];
    w[PLAIN].now = PLAIN;
    for_stages(m, block, part, [&](const stage &s) {
        for (int k = 0; k < KINDS; k++) pass(m, s, &w[k]);
    });
    const kind best = w[PLAIN].cost < w[SPARSE].cost ? PLAIN : SPARSE;
    *units          = w[best].units;
    return best;
}

/* Places of what `turn` takes of four weights, the smaller first; taken: are there weights? */
void places_of(const uint8_t *is, int turn, int place[2], bool taken[2]) {
    int kept = 0, got = 0;
    place[0] = 0, place[1] = 3;
    taken[0] = taken[1] = false;
    for (int i = 0; is && i < 4; i++) {
        if (!is[i]) continue;
        if (kept++ / 2 == turn) place[got] = i, taken[got++] = true;
    }
    if (got == 1 && place[0] == 3) place[0] = 0, taken[0] = false, taken[1] = true;
}

/* A row's i-th value of 16 is this one of the piece's input channels, if it is taken. Operand A is 8x8 matrices down the rows. */
void put_value(const packer &m, const piece &at, int64_t unit, int row, int i, int c, bool taken) {
    m.from[unit * CK_WALKS_VALUES + (i / 8 * CK_WALKS_ROWS + row) * 8 + i % 8] =
        taken ? (uint32_t)(((at.k0 + row) * m.c->R * m.c->S + at.tap) * m.c->C + at.c0 + c) : UINT32_MAX;
}

/* A warp has 16 words of places for its 16 rows. */
void put_sparse(const packer &m, const piece &at, int turn, int64_t unit) {
    uint32_t *words = m.words ? m.words + unit * CK_WALKS_WORDS : nullptr;
    for (int row = 0; row < CK_WALKS_ROWS; row++)
        for (int four = 0; four < CK_WALKS_CHUNK / 4; four++) {
            int  place[2];
            bool taken[2];
            places_of(four_of(m, at, row, four), turn, place, taken);
            if (words) words[row / 16 * 16 + row % 8 * 2 + four / 4] |= (uint32_t)(place[0] | place[1] << 2) << (four % 4 * 4 + row % 16 / 8 * 16);
            for (int i = 0; i < 2 && m.from; i++) put_value(m, at, unit, row, four * 2 + i, four * 4 + place[i], taken[i]);
        }
}
void put_plain(const packer &m, const piece &at, int half, int64_t unit) {
    for (int row = 0; row < CK_WALKS_ROWS; row++)
        for (int i = 0; i < CK_WALKS_CHUNK / 2 && m.from; i++) {
            const int      c    = half * CK_WALKS_CHUNK / 2 + i;
            const uint8_t *kept = four_of(m, at, row, c / 4);
            put_value(m, at, unit, row, i, c, kept && kept[c % 4]);
        }
}

/* Unit `turn` of a piece of a stage. */
void put_unit(const packer &m, const stage &s, int i, kind k, int turn, int64_t unit) {
    const int half = k == PLAIN && (turn || s.is[i].halves == 2);
    if (m.words) {
        uint32_t *words = m.words + unit * CK_WALKS_WORDS;
        memset(words, 0, CK_WALKS_WORDS * sizeof *words);
        words[HEAD] = (uint32_t)(m.p->at[s.tap[i]] * (POSITION / 16) + half * (CK_WALKS_CHUNK / 2 * 2 / 16)) | (k == PLAIN ? (uint32_t)HEAD_PLAIN : 0u);
    }
    if (k == PLAIN) put_plain(m, s.at[i], half, unit);
    else put_sparse(m, s.at[i], turn, unit);
}

/* A stage's units, from `unit` on, of which there is one at least; gives how many. */
int64_t put_stage(const packer &m, const stage &s, kind now, int64_t unit) {
    const bool    changed = is_changed(m, s, now);
    const int64_t begin   = unit;
    for (int later = 0; later < KINDS; later++)
        for (int i = 0; i < s.pieces; i++) {
            const kind k = later ? other(now) : now;
            if (is_other(m, s, i, now, changed) != (k != now)) continue;
            for (int turn = 0; turn < units_of(s.is[i], k); turn++) put_unit(m, s, i, k, turn, unit++);
        }
    if (unit == begin) put_unit(m, s, 0, now, 0, unit++);
    if (m.words) m.words[begin * CK_WALKS_WORDS + HEAD] |= (uint32_t)HEAD_FIRST, m.words[(unit - 1) * CK_WALKS_WORDS + HEAD] |= (uint32_t)HEAD_LAST;
    return unit - begin;
}

/* Units that are summed together: of one kind, CK_WALKS_CHAIN at most. */
void put_runs(const packer &m, int64_t begin, int64_t end) {
    for (int64_t first = begin, next; first < end; first = next) {
        uint32_t *head = m.words + first * CK_WALKS_WORDS + HEAD;
        for (next = first + 1; next < end && next - first < CK_WALKS_CHAIN; next++)
            if ((m.words[next * CK_WALKS_WORDS + HEAD] ^ *head) & HEAD_PLAIN) break;
        head[1] = (uint32_t)(next - first);
    }
}

/* All units of a block's part, from `unit` on; gives how many. */
int64_t pack_part(const packer &m, int64_t block, int part, int64_t unit) {
    const int64_t begin = unit;
    int64_t       units;
    walk          w;
    w.now = first_kind(m, block, part, &units);
    if (!m.words && !m.from) return units;
    for_stages(m, block, part, [&](const stage &s) {
        unit += put_stage(m, s, w.now, unit);
        pass(m, s, &w);
    });
    if (m.words) put_runs(m, begin, unit);
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

void ck_walks_cut(int way, int cut[4]) {
    const walks::cut none = {}, &c = way >= 1 && way <= walks::CUT_COUNT ? walks::CUTS[way - 1] : none;
    cut[0] = c.workers, cut[1] = c.most, cut[2] = c.shared <= walks::SHARED_HALF ? 2 : 1, cut[3] = c.parts;
}

bool ck_walks_make(const struct ck_conv *conv, int64_t kept, int way, int capability, int multiprocessors, struct ck_walks_plan *plan) {
    const int64_t side = 1 << 20, taps = (int64_t)conv->R * conv->S;
    ck_conv       c    = *conv;
    if (taps == 1 && c.stride == 1 && c.pad == 0) c.H = c.P = c.N * c.H * c.W, c.N = c.W = c.Q = 1;
    if (way < 1 || way > ck_walks_ways() || c.type != CK_F32 || capability != 90 || c.C % 4 || c.K % 4) return false;
    if (c.W > side || c.N * c.H * c.W >= (int64_t)1 << 31 || c.N * c.P * c.Q >= (int64_t)1 << 31 || c.K * taps * c.C >= UINT32_MAX) return false;
    plan->conv  = c;
    plan->parts = walks::CUTS[way - 1].parts;
    return walks::plan_cut(c, (double)kept / (double)(c.K * taps * c.C), walks::CUTS[way - 1], multiprocessors, &plan->tile);
}

int64_t ck_walks_pack(const struct ck_walks_plan *plan, const uint8_t *kept, uint32_t *start, uint32_t *words, uint32_t *from) {
    const walks::packer m    = {&plan->conv, &plan->tile, plan->parts, kept, words, from};
    int64_t             unit = 0;
    for (int64_t i = 0; i < plan->tile.blocks * plan->parts; i++) {
        if (start) start[i] = (uint32_t)unit;
        unit += walks::pack_part(m, i / plan->parts, (int)(i % plan->parts), unit);
    }
    if (start) start[plan->tile.blocks * plan->parts] = (uint32_t)unit;
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
