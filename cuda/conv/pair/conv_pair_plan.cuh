/* cuda/conv/pair/conv_pair_plan.cuh: host side of cuda/conv/pair/conv_pair_sm90a.cu: the division of a launch. */
#ifndef CK_CONV_PAIR_PLAN_CUH
#define CK_CONV_PAIR_PLAN_CUH

#include "cuda/conv/pair/conv_pair.cuh"

namespace {

int size_of(const struct ck_conv_pair *a) {
    return a->type == CK_PAIR_U8 ? 1 : 2;
}

/* Computes the offsets in shared memory. Returns false when the rings do not fit: three slots of y keep loads, products
 * and stores going at the same time. */
bool lay_out(struct plan *p, const struct ck_conv_pair *a) {
    const int coeffs = (int)(a->K + a->L) * (size_of(a) == 1 ? 8 : 4), filters = p->chunks * p->filter_bytes;
    const int room = SHARED_LIMIT - filters - coeffs - 8 * BAR_COUNT - WORKERS * p->x_slots * p->x_bytes;
    p->y_slots     = room <= 0 ? 0 : room / (WORKERS * SLOT_BYTES);
    if (p->y_slots < 3) return false;
    if (p->y_slots > Y_SLOTS_MAX) p->y_slots = Y_SLOTS_MAX;
    p->y_at      = filters;
    p->x_at      = p->y_at + WORKERS * p->y_slots * SLOT_BYTES;
    p->coeffs_at = p->x_at + WORKERS * p->x_slots * p->x_bytes;
    p->bar_at    = p->coeffs_at + coeffs;
    p->bytes     = p->bar_at + 8 * BAR_COUNT;
    return true;
}

/* Returns false when the arguments are not supported. Does not set the grid. */
bool make_plan(struct plan *p, const struct ck_conv_pair *a) {
    const int64_t size = size_of(a), pixels = a->N * a->H * a->W;
    if (a->has_first || a->has_shortcut || a->C <= 0 || a->C > 1024 || a->K <= 0 || a->K > 4096 || a->K * size % PANEL)
        return false;
    if (a->C % 64 || (a->C != 64 && a->C * size % 128)) return false;
    if (a->L != 64 && a->L != 128) return false;
    if (pixels <= 0 || pixels >= INT32_MAX / 2) return false;
    p->L            = (int)a->L;
    p->x_panel      = a->C * size % 128 == 0 ? 128 : 64;
    p->panels       = (int)(a->C * size) / p->x_panel;
    p->chunks       = (int)(a->K * size) / PANEL;
    p->x_bytes      = ROWS * (int)(a->C * size);
    p->filter_bytes = PANEL * (int)a->C + (int)a->L * PANEL;
    p->tiles        = (int)((pixels + ROWS - 1) / ROWS);
    p->x_slots      = X_SLOTS_MAX;
    if (lay_out(p, a)) return true;
    p->x_slots = 1;
    return lay_out(p, a);
}

} // namespace

#endif
