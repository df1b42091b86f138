/* cuda/sparse/wgmma_sp/wgmma_sp_pack.cu: divides a filter into the units of cuda/sparse/wgmma_sp/wgmma_sp.h, on the
 * host. */
#include "cuda/sparse/wgmma_sp/wgmma_sp.cuh"

#include <math.h>
#include <string.h>

namespace wgmma_sp {
namespace {

enum { HEAD = CK_WGMMA_SP_WORDS - 4 /* first word of the head of a unit */ };

struct packer {
    const ck_conv          *c;
    const ck_two_four_plan *p;
    int                     parts;
    const uint8_t          *nonzero;
    uint32_t               *words, *from;
};

/* The piece of the filter that a unit belongs to. */
struct piece {
    int64_t k0, tap, c0;
};

const uint8_t *four_of(const packer &m, const piece &at, int row, int four) {
    const int64_t k = at.k0 + row, c = at.c0 + four * 4;
    return k < m.c->K && c < m.c->C ? m.nonzero + (k * m.c->R * m.c->S + at.tap) * m.c->C + c : nullptr;
}

/* Summary of a piece: the most nonzeros that a channel has in any 4 neighbours, and a bit for each half of the input
 * channels that has nonzeros. */
struct piece_summary {
    int max_nonzeros = 0, halves = 0;
};

piece_summary summarize(const packer &m, const piece &at) {
    piece_summary summary;
    for (int row = 0; row < CK_WGMMA_SP_ROWS; row++)
        for (int four = 0; four < CK_WGMMA_SP_CHUNK / 4; four++) {
            const uint8_t *nonzero = four_of(m, at, row, four);
            const int n = nonzero ? (nonzero[0] != 0) + (nonzero[1] != 0) + (nonzero[2] != 0) + (nonzero[3] != 0) : 0;
            summary.max_nonzeros = n > summary.max_nonzeros ? n : summary.max_nonzeros;
            if (n) summary.halves |= 1 << four / 4;
        }
    return summary;
}

/* The kinds of units. A piece has sparse units, or one dense unit for each half of its input channels. */
enum kind { SPARSE, DENSE, KINDS };
kind other(kind k) {
    return k == SPARSE ? DENSE : SPARSE;
}

int units_of(const piece_summary &summary, kind k) {
    return k == SPARSE ? (summary.max_nonzeros + 1) / 2 : (summary.halves & 1) + (summary.halves >> 1);
}

/* cost_of: cycles of one of a piece's three instructions, the mean of those of the tensor cores and of shared memory.
 * change_cost: the cost of a change of kind, because units of both kinds are not summed together. */
double cost_of(const packer &m, const piece_summary &summary, kind k) {
    return units_of(summary, k) * (m.p->columns * (k == SPARSE ? 0.5 : 0.375) + 8);
}
double change_cost(const packer &m) {
    return m.p->columns / 6.0 + 33;
}

/* The pieces of a stage. Units of the current kind come before those of the other kind. */
struct stage {
    int           pieces = 0;
    piece         at[CK_TWO_FOUR_TAPS];
    int           tap[CK_TWO_FOUR_TAPS];
    piece_summary summary[CK_TWO_FOUR_TAPS];
};
struct packing_state {
    kind    current = SPARSE;
    double  cost    = 0;
    int64_t units   = 0;
};

/* Returns whether a change to the other kind reduces the cost. */
bool change_pays(const packer &m, const stage &s, kind current) {
    double saved = 0;
    for (int i = 0; i < s.pieces; i++)
        saved += fmax(cost_of(m, s.summary[i], current) - cost_of(m, s.summary[i], other(current)), 0);
    return saved > change_cost(m);
}
bool uses_other(const packer &m, const stage &s, int i, kind current, bool changed) {
    return changed && cost_of(m, s.summary[i], other(current)) < cost_of(m, s.summary[i], current);
}

void add_stage(const packer &m, const stage &s, packing_state *w) {
    const bool    changed = change_pays(m, s, w->current);
    const int64_t before  = w->units;
    for (int i = 0; i < s.pieces; i++) {
        const kind k = uses_other(m, s, i, w->current, changed) ? other(w->current) : w->current;
        w->cost += cost_of(m, s.summary[i], k);
        w->units += units_of(s.summary[i], k);
    }
    if (w->units == before) w->units++;
    if (changed) w->cost += change_cost(m), w->current = other(w->current);
}

/* Calls `call` with each stage of a block's part. */
template <typename F> void for_stages(const packer &m, int64_t block, int part, const F &call) {
    stage s;
    for (int chunk = chunk_from(*m.p, m.parts, part); chunk < chunk_from(*m.p, m.parts, part + 1); chunk++)
        for (int i = 0; i < m.p->taps; i++) {
            if (m.p->first >> i & 1) s.pieces = 0;
            const int n  = s.pieces++;
            s.at[n]      = {block * CK_WGMMA_SP_ROWS, m.p->tap[i], (int64_t)chunk * CK_WGMMA_SP_CHUNK};
            s.tap[n]     = i;
            s.summary[n] = summarize(m, s.at[n]);
            if (m.p->last >> i & 1) call(s);
        }
}

/* Returns the kind to begin with that has the lower cost. */
kind first_kind(const packer &m, int64_t block, int part, int64_t *units) {
    packing_state w[KINDS];
    w[DENSE].current = DENSE;
    for_stages(m, block, part, [&](const stage &s) {
        for (int k = 0; k < KINDS; k++) add_stage(m, s, &w[k]);
    });
    const kind best = w[DENSE].cost < w[SPARSE].cost ? DENSE : SPARSE;
    *units          = w[best].units;
    return best;
}

/* Positions of the nonzeros that pass `pass` takes of four weights, the smaller position first. exists: whether there
 * is a weight. */
void places_of(const uint8_t *four, int pass, int place[2], bool exists[2]) {
    int seen = 0, got = 0;
    place[0] = 0, place[1] = 3;
    exists[0] = exists[1] = false;
    for (int i = 0; four && i < 4; i++) {
        if (!four[i]) continue;
        if (seen++ / 2 == pass) place[got] = i, exists[got++] = true;
    }
    if (got == 1 && place[0] == 3) place[0] = 0, exists[0] = false, exists[1] = true;
}

/* Sets value i of 16 of a row to input channel `c` of the piece, or to none. Operand A is 8x8 matrices, row by row. */
void write_value(const packer &m, const piece &at, int64_t unit, int row, int i, int c, bool exists) {
    m.from[unit * CK_WGMMA_SP_VALUES + (i / 8 * CK_WGMMA_SP_ROWS + row) * 8 + i % 8] =
        exists ? (uint32_t)(((at.k0 + row) * m.c->R * m.c->S + at.tap) * m.c->C + at.c0 + c) : UINT32_MAX;
}

/* A warp has 16 words of metadata for its 16 rows. */
void write_sparse(const packer &m, const piece &at, int pass, int64_t unit) {
    uint32_t *words = m.words ? m.words + unit * CK_WGMMA_SP_WORDS : nullptr;
    for (int row = 0; row < CK_WGMMA_SP_ROWS; row++)
        for (int four = 0; four < CK_WGMMA_SP_CHUNK / 4; four++) {
            int  place[2];
            bool exists[2];
            places_of(four_of(m, at, row, four), pass, place, exists);
            if (words)
                words[row / 16 * 16 + row % 8 * 2 + four / 4] |= (uint32_t)(place[0] | place[1] << 2)
                                                                 << (four % 4 * 4 + row % 16 / 8 * 16);
            for (int i = 0; i < 2 && m.from; i++)
                write_value(m, at, unit, row, four * 2 + i, four * 4 + place[i], exists[i]);
        }
}
void write_dense(const packer &m, const piece &at, int half, int64_t unit) {
    for (int row = 0; row < CK_WGMMA_SP_ROWS; row++)
        for (int i = 0; i < CK_WGMMA_SP_CHUNK / 2 && m.from; i++) {
            const int      c       = half * CK_WGMMA_SP_CHUNK / 2 + i;
            const uint8_t *nonzero = four_of(m, at, row, c / 4);
            write_value(m, at, unit, row, i, c, nonzero && nonzero[c % 4]);
        }
}

/* Writes unit `pass` of piece i of a stage. */
void write_unit(const packer &m, const stage &s, int i, kind k, int pass, int64_t unit) {
    const int half = k == DENSE && (pass || s.summary[i].halves == 2);
    if (m.words) {
        uint32_t *words = m.words + unit * CK_WGMMA_SP_WORDS;
        memset(words, 0, CK_WGMMA_SP_WORDS * sizeof *words);
        words[HEAD] = (uint32_t)(m.p->at[s.tap[i]] * (POSITION / 16) + half * (CK_WGMMA_SP_CHUNK / 2 * 2 / 16)) |
                      (k == DENSE ? (uint32_t)HEAD_DENSE : 0u);
    }
    if (k == DENSE)
        write_dense(m, s.at[i], half, unit);
    else
        write_sparse(m, s.at[i], pass, unit);
}

/* Writes the units of a stage from `unit` on, at least one. Returns their number. */
int64_t write_stage(const packer &m, const stage &s, kind current, int64_t unit) {
    const bool    changed = change_pays(m, s, current);
    const int64_t begin   = unit;
    for (int later = 0; later < KINDS; later++)
        for (int i = 0; i < s.pieces; i++) {
            const kind k = later ? other(current) : current;
            if (uses_other(m, s, i, current, changed) != (k != current)) continue;
            for (int pass = 0; pass < units_of(s.summary[i], k); pass++) write_unit(m, s, i, k, pass, unit++);
        }
    if (unit == begin) write_unit(m, s, 0, current, 0, unit++);
    if (m.words)
        m.words[begin * CK_WGMMA_SP_WORDS + HEAD] |= (uint32_t)HEAD_FIRST,
            m.words[(unit - 1) * CK_WGMMA_SP_WORDS + HEAD] |= (uint32_t)HEAD_LAST;
    return unit - begin;
}

/* Writes the lengths of the runs of units that are summed together: of one kind, at most CK_WGMMA_SP_CHAIN. */
void write_run_lengths(const packer &m, int64_t begin, int64_t end) {
    for (int64_t first = begin, next; first < end; first = next) {
        uint32_t *head = m.words + first * CK_WGMMA_SP_WORDS + HEAD;
        for (next = first + 1; next < end && next - first < CK_WGMMA_SP_CHAIN; next++)
            if ((m.words[next * CK_WGMMA_SP_WORDS + HEAD] ^ *head) & HEAD_DENSE) break;
        head[1] = (uint32_t)(next - first);
    }
}

/* Writes all units of a block's part from `unit` on. Returns their number. */
int64_t pack_part(const packer &m, int64_t block, int part, int64_t unit) {
    const int64_t begin = unit;
    int64_t       units;
    packing_state w;
    w.current = first_kind(m, block, part, &units);
    if (!m.words && !m.from) return units;
    for_stages(m, block, part, [&](const stage &s) {
        unit += write_stage(m, s, w.current, unit);
        add_stage(m, s, &w);
    });
    if (m.words) write_run_lengths(m, begin, unit);
    return unit - begin;
}

} // namespace
} // namespace wgmma_sp

int64_t ck_wgmma_sp_pack(const struct ck_wgmma_sp_plan *plan, const uint8_t *nonzero, uint32_t *start, uint32_t *words,
                         uint32_t *from) {
    const wgmma_sp::packer m    = {&plan->conv, &plan->tile, plan->parts, nonzero, words, from};
    int64_t                unit = 0;
    for (int64_t i = 0; i < plan->tile.blocks * plan->parts; i++) {
        if (start) start[i] = (uint32_t)unit;
        unit += wgmma_sp::pack_part(m, i / plan->parts, (int)(i % plan->parts), unit);
    }
    if (start) start[plan->tile.blocks * plan->parts] = (uint32_t)unit;
    return unit;
}
