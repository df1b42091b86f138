/* cuda/conv/pair/conv_pair_plan.cuh: host side of cuda/conv/pair/conv_pair_sm90a.cu: the tile configs of a launch. */
#ifndef CK_CONV_PAIR_PLAN_CUH
#define CK_CONV_PAIR_PLAN_CUH

#include "cuda/conv/pair/conv_pair.cuh"

namespace {

struct tile_config {
    int  workers;
    bool resident;
};
const struct tile_config tile_configs[] = {{3, true}, {2, true}, {2, false}};

int size_of(const struct ck_conv_pair *a) {
    return a->type == CK_PAIR_U8 ? 1 : 2;
}

/* The kernel is compiled for these. */
bool is_compiled(const struct plan *p, const struct ck_conv_pair *a) {
    const bool bytes = a->type == CK_PAIR_U8;
    if (p->resident && p->workers == 3) return a->L == 64 ? !bytes || p->x_panel == 64 : a->L == 128 && !bytes;
    if (p->resident) return a->L == 64 ? !bytes || p->x_panel == 64 : a->L == 128;
    return p->x_panel == 128 && (a->L == 128 || a->L == 256);
}

/* Computes the offsets in shared memory. Returns false when the rings do not fit. */
bool lay_out(struct plan *p, const struct ck_conv_pair *a) {
    const int size = size_of(a), coeffs = (int)(a->K + a->L) * (size == 1 ? 8 : 4);
    const int held = p->resident ? p->chunks * p->filter_bytes : p->filters * p->filter_bytes;
    const int room = SHARED_LIMIT - held - coeffs - 8 * BAR_COUNT - p->workers * p->x_slots * p->x_bytes;
    p->y_slots     = room <= 0 ? 0 : room / (p->workers * SLOT_BYTES);
    if (p->y_slots < 2) return false;
    if (p->y_slots > Y_SLOTS_MAX) p->y_slots = Y_SLOTS_MAX;
    p->y_at      = held;
    p->x_at      = p->y_at + p->workers * p->y_slots * SLOT_BYTES;
    p->coeffs_at = p->x_at + p->workers * p->x_slots * p->x_bytes;
    p->bar_at    = p->coeffs_at + coeffs;
    p->bytes     = p->bar_at + 8 * BAR_COUNT;
    return true;
}

/* The first of these ring sizes that fits; three slots of y keep loads, products and stores going at the same time. */
bool choose_rings(struct plan *p, const struct ck_conv_pair *a) {
    static const struct {
        int filters, x_slots, least_y_slots;
    } resident[] = {{1, 2, 3}, {1, 1, 2}}, streamed[] = {{3, 2, 3}, {2, 2, 3}, {2, 1, 2}};
    for (const auto &sizes : resident)
        if (p->resident) {
            p->filters = sizes.filters;
            p->x_slots = sizes.x_slots;
            if (lay_out(p, a) && p->y_slots >= sizes.least_y_slots) return true;
        }
    for (const auto &sizes : streamed)
        if (!p->resident) {
            p->filters = sizes.filters;
            p->x_slots = sizes.x_slots;
            if (lay_out(p, a) && p->y_slots >= sizes.least_y_slots) return true;
        }
    return false;
}

bool plan_as(struct plan *p, const struct ck_conv_pair *a, const struct tile_config *c, int multiprocessors) {
    const int size  = size_of(a);
    p->L            = (int)a->L;
    p->workers      = c->workers;
    p->resident     = c->resident;
    p->x_panel      = a->C * size % 128 == 0 ? 128 : 64;
    p->panels       = (int)a->C * size / p->x_panel;
    p->chunks       = (int)a->K * size / PANEL;
    p->x_bytes      = ROWS * (int)a->C * size;
    p->filter_bytes = PANEL / size * (int)a->C * size + (int)a->L * PANEL;
    if (!is_compiled(p, a)) return false;
    if (!choose_rings(p, a)) return false;
    const int64_t rows = c->resident ? ROWS : ROWS * c->workers, tiles = (a->pixels + rows - 1) / rows;
    const int64_t share = c->resident ? c->workers : 1, blocks = (tiles + share - 1) / share;
    p->tiles = (int)tiles;
    p->grid  = (int)(blocks < multiprocessors ? blocks : multiprocessors);
    return true;
}

/* Stores tile config number `config` of those that fit in *p. It exists when the result is above it. With config < 0,
 * counts the configs that fit. */
int find_plan(struct plan *p, const struct ck_conv_pair *a, int config, int multiprocessors) {
    int fitting = 0;
    for (const struct tile_config &c : tile_configs) {
        if (config >= 0 && fitting > config) break;
        if (plan_as(p, a, &c, multiprocessors)) fitting++;
    }
    return fitting;
}

bool supports(const struct ck_conv_pair *a) {
    const int64_t size = size_of(a);
    return a->C > 0 && a->C * size % 64 == 0 && a->C <= 1024 && a->K > 0 && a->K * size % PANEL == 0 && a->K <= 4096 &&
           (a->L == 64 || a->L == 128 || a->L == 256) && a->pixels > 0 && a->pixels < INT32_MAX / 2 &&
           (size == 2 ? a->C % 64 == 0 : a->C == 64 || a->C % 128 == 0);
}

} // namespace

#endif
