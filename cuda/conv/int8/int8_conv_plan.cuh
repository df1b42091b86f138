/* cuda/conv/int8/int8_conv_plan.cuh: host side of cuda/conv/int8/int8_conv_sm90a.cu: the tile configs of a launch. */
#ifndef CK_INT8_CONV_PLAN_CUH
#define CK_INT8_CONV_PLAN_CUH

#include "cuda/conv/int8/int8_conv.cuh"

namespace {

/* The kernel is compiled for these tiles: columns, height, workers, resident, halo. */
const struct tile_config tile_configs[] = {
    {256, 1, 2, true, false}, {128, 2, 2, true, false},  {128, 1, 3, true, false},  {64, 4, 2, true, false},
    {64, 2, 3, true, false},  {256, 1, 2, false, false}, {128, 2, 2, false, false}, {256, 1, 2, true, true},
    {128, 2, 2, true, true},  {128, 1, 3, true, true},   {64, 4, 2, true, true},    {64, 2, 3, true, true},
    {256, 1, 2, false, true}, {128, 2, 2, false, true},  {64, 1, 2, true, false},   {64, 1, 2, false, false},
    {64, 1, 2, true, true},   {64, 1, 2, false, true},   {64, 1, 1, true, false},   {64, 1, 1, false, false},
    {64, 1, 1, true, true},   {64, 1, 1, false, true},
};

int chunk_of(int64_t C) {
    return C % 128 == 0 ? 128 : 64;
}
int rounded(int bytes, int to) {
    return (bytes + to - 1) / to * to;
}

/* Computes the offsets in shared memory. Returns false when the rings do not fit. */
bool lay_out(struct plan *p, const struct ck_int8_conv *a, int filters, int least_slots) {
    const struct tile_config *c     = &p->config;
    const int                 rings = c->resident ? c->workers : 1, team = c->resident ? 1 : c->workers;
    const int                 high = team * c->height * ROWS, w_bytes = c->columns * p->chunk;
    const int                 coeffs = 2 * 4 * (c->resident ? c->columns : p->blocks_k * c->columns);
    p->rows                          = c->halo ? rounded(high + 2 * ((int)a->W + 1) + 2, 8) : high;
    p->slot_bytes                    = rounded(p->rows * p->chunk, 1024);
    p->add_bytes                     = a->has_add ? high * c->columns : 0;
    p->filters                       = filters;
    if (p->rows > (c->halo ? 1024 : 256) || (int64_t)filters * w_bytes > SHARED_LIMIT) return false;
    p->w_at        = 0;
    p->add_at      = filters * w_bytes;
    p->x_at        = p->add_at + rings * ADDS * p->add_bytes;
    const int room = SHARED_LIMIT - p->x_at - coeffs - 8 * BAR_COUNT;
    p->slots       = room <= 0 ? 0 : room / (rings * p->slot_bytes);
    if (p->slots < least_slots) return false;
    if (p->slots > SLOTS_MAX) p->slots = SLOTS_MAX;
    p->coeffs_at = p->x_at + rings * p->slots * p->slot_bytes;
    p->bar_at    = p->coeffs_at + coeffs;
    p->bytes     = p->bar_at + 8 * BAR_COUNT;
    return true;
}

/* Filters that pass through a ring: as many slots as fit, because few blocks must load them when the batch is small. A
 * step of the product takes one slot of filters and, without a halo, one of x. */
bool lay_out_rings(struct plan *p, const struct ck_int8_conv *a) {
    if (p->config.resident) return lay_out(p, a, p->taps * p->rounds, 2);
    for (int filters = FILTERS_MAX; filters > 4; filters--)
        if (lay_out(p, a, filters, p->config.halo ? 2 : filters)) return true;
    return lay_out(p, a, 4, 2);
}

bool plan_as(struct plan *p, const struct ck_int8_conv *a, const struct tile_config *c, int multiprocessors) {
    const int     taps = a->R * a->S, chunk = chunk_of(a->C), chunks = (int)(a->C / chunk);
    const int64_t positions = c->halo ? a->N * (a->H + 1) * (a->W + 1) : a->N * a->P * a->Q;
    if (c->halo && (a->R != 3 || a->S != 3 || a->pad != 1 || a->stride != 1)) return false;
    if (c->columns > 64 && a->K <= c->columns / 2) return false;
    p->config   = *c;
    p->chunk    = chunk;
    p->taps     = c->halo ? taps : 1;
    p->rounds   = c->halo ? chunks : taps * chunks;
    p->blocks_k = (int)((a->K + c->columns - 1) / c->columns);
    if (c->resident && p->blocks_k > multiprocessors) return false;
    if (!lay_out_rings(p, a)) return false;
    const int64_t high = (c->resident ? 1 : c->workers) * c->height * ROWS, down = (positions + high - 1) / high;
    const int64_t tiles = c->resident ? down : down * p->blocks_k, share = c->resident ? c->workers : 1;
    int64_t       blocks = c->resident ? multiprocessors / p->blocks_k : multiprocessors;
    if (blocks > (tiles + share - 1) / share) blocks = (tiles + share - 1) / share;
    p->tiles = (int)tiles;
    p->grid  = (int)(c->resident ? blocks * p->blocks_k : blocks);
    return true;
}

/* Stores tile config number `config` of those that fit in *p. It exists when the result is above it. With config < 0,
 * counts the configs that fit. */
int find_plan(struct plan *p, const struct ck_int8_conv *a, int config, int multiprocessors) {
    int fitting = 0;
    for (const struct tile_config &c : tile_configs) {
        if (config >= 0 && fitting > config) break;
        if (plan_as(p, a, &c, multiprocessors)) fitting++;
    }
    return fitting;
}

} // namespace

#endif
