/* cuda/sparse/wgmma_sp/wgmma_sp_pack.cu: see cuda/sparse/wgmma_sp/wgmma_sp.h. Filters cut into units, on the host. */
#include "cuda/sparse/wgmma_sp/wgmma_sp.cuh"

#include <math.h>
#include <string.h>

namespace wgmma_sp {
namespace {

enum { HEAD = CK_WGMMA_SP_WORDS - 4 /* word of a unit */ };

struct packer {
    const ck_conv          *c;
    const ck_two_four_plan *p;
    int                     parts;
    const uint8_t          *kept;
    uint32_t               *words, *from;
};

/* A unit's piece of the filter. */
struct piece {
    int64_t k0, tap, c0;
};

const uint8_t *four_of(const packer &m, const piece &at, int row, int four) {
    const int64_t k = at.k0 + row, c = at.c0 + four * 4;
    return k < m.c->K && c < m.c->C ? m.kept + (k * m.c->R * m.c->S + at.tap) * m.c->C + c : nullptr;
}

/* Of a piece: weights that a channel keeps of any 4 neighbours at most, and which halves of its input channels keep
 * some. */
struct census {
    int most = 0, halves = 0;
};

census census_of(const packer &m, const piece &at) {
    census is;
    for (int row = 0; row < CK_WGMMA_SP_ROWS; row++)
        for (int four = 0; four < CK_WGMMA_SP_CHUNK / 4; four++) {
            const uint8_t *kept = four_of(m, at, row, four);
            const int      n    = kept ? (kept[0] != 0) + (kept[1] != 0) + (kept[2] != 0) + (kept[3] != 0) : 0;
            is.most             = n > is.most ? n : is.most;
            if (n) is.halves |= 1 << four / 4;
        }
    return is;
}

/* A piece is walked by sparse units, or each half of its input channels by a plain one. */
enum kind { SPARSE, PLAIN, KINDS };
kind other(kind k) {
    return k == SPARSE ? PLAIN : SPARSE;
}

int units_of(const census &is, kind k) {
    return k == SPARSE ? (is.most + 1) / 2 : (is.halves & 1) + (is.halves >> 1);
}

/* Cycles of one of a unit's three instructions, half of them the tensor cores', half shared memory's. Units of both
 * kinds are not summed together: what a change costs. */
double cost_of(const packer &m, const census &is, kind k) {
    return units_of(is, k) * (m.p->columns * (k == SPARSE ? 0.5 : 0.375) + 8);
}
double change_cost(const packer &m) {
    return m.p->columns / 6.0 + 33;
}

/* A stage's pieces, and how they are walked: those of the kind at hand before the others. */
struct stage {
    int    pieces = 0;
    piece  at[CK_TWO_FOUR_TAPS];
    int    tap[CK_TWO_FOUR_TAPS];
    census is[CK_TWO_FOUR_TAPS];
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
            s.at[n]     = {block * CK_WGMMA_SP_ROWS, m.p->tap[i], (int64_t)chunk * CK_WGMMA_SP_CHUNK};
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

/* A row's i-th value of 16 is this one of the piece's input channels, if it is taken. Operand A is 8x8 matrices down
 * the rows. */
void put_value(const packer &m, const piece &at, int64_t unit, int row, int i, int c, bool taken) {
    m.from[unit * CK_WGMMA_SP_VALUES + (i / 8 * CK_WGMMA_SP_ROWS + row) * 8 + i % 8] =
        taken ? (uint32_t)(((at.k0 + row) * m.c->R * m.c->S + at.tap) * m.c->C + at.c0 + c) : UINT32_MAX;
}

/* A warp has 16 words of places for its 16 rows. */
void put_sparse(const packer &m, const piece &at, int turn, int64_t unit) {
    uint32_t *words = m.words ? m.words + unit * CK_WGMMA_SP_WORDS : nullptr;
    for (int row = 0; row < CK_WGMMA_SP_ROWS; row++)
        for (int four = 0; four < CK_WGMMA_SP_CHUNK / 4; four++) {
            int  place[2];
            bool taken[2];
            places_of(four_of(m, at, row, four), turn, place, taken);
            if (words)
                words[row / 16 * 16 + row % 8 * 2 + four / 4] |= (uint32_t)(place[0] | place[1] << 2)
                                                                 << (four % 4 * 4 + row % 16 / 8 * 16);
            for (int i = 0; i < 2 && m.from; i++)
                put_value(m, at, unit, row, four * 2 + i, four * 4 + place[i], taken[i]);
        }
}
void put_plain(const packer &m, const piece &at, int half, int64_t unit) {
    for (int row = 0; row < CK_WGMMA_SP_ROWS; row++)
        for (int i = 0; i < CK_WGMMA_SP_CHUNK / 2 && m.from; i++) {
            const int      c    = half * CK_WGMMA_SP_CHUNK / 2 + i;
            const uint8_t *kept = four_of(m, at, row, c / 4);
            put_value(m, at, unit, row, i, c, kept && kept[c % 4]);
        }
}

/* Unit `turn` of a piece of a stage. */
void put_unit(const packer &m, const stage &s, int i, kind k, int turn, int64_t unit) {
    const int half = k == PLAIN && (turn || s.is[i].halves == 2);
    if (m.words) {
        uint32_t *words = m.words + unit * CK_WGMMA_SP_WORDS;
        memset(words, 0, CK_WGMMA_SP_WORDS * sizeof *words);
        words[HEAD] = (uint32_t)(m.p->at[s.tap[i]] * (POSITION / 16) + half * (CK_WGMMA_SP_CHUNK / 2 * 2 / 16)) |
                      (k == PLAIN ? (uint32_t)HEAD_PLAIN : 0u);
    }
    if (k == PLAIN)
        put_plain(m, s.at[i], half, unit);
    else
        put_sparse(m, s.at[i], turn, unit);
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
    if (m.words)
        m.words[begin * CK_WGMMA_SP_WORDS + HEAD] |= (uint32_t)HEAD_FIRST,
            m.words[(unit - 1) * CK_WGMMA_SP_WORDS + HEAD] |= (uint32_t)HEAD_LAST;
    return unit - begin;
}

/* Units that are summed together: of one kind, CK_WGMMA_SP_CHAIN at most. */
void put_runs(const packer &m, int64_t begin, int64_t end) {
    for (int64_t first = begin, next; first < end; first = next) {
        uint32_t *head = m.words + first * CK_WGMMA_SP_WORDS + HEAD;
        for (next = first + 1; next < end && next - first < CK_WGMMA_SP_CHAIN; next++)
            if ((m.words[next * CK_WGMMA_SP_WORDS + HEAD] ^ *head) & HEAD_PLAIN) break;
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

} // namespace
} // namespace wgmma_sp

int64_t ck_wgmma_sp_pack(const struct ck_wgmma_sp_plan *plan, const uint8_t *kept, uint32_t *start, uint32_t *words,
                         uint32_t *from) {
    const wgmma_sp::packer m    = {&plan->conv, &plan->tile, plan->parts, kept, words, from};
    int64_t                unit = 0;
    for (int64_t i = 0; i < plan->tile.blocks * plan->parts; i++) {
        if (start) start[i] = (uint32_t)unit;
        unit += wgmma_sp::pack_part(m, i / plan->parts, (int)(i % plan->parts), unit);
    }
    if (start) start[plan->tile.blocks * plan->parts] = (uint32_t)unit;
    return unit;
}
