/* cuda/conv/pointwise/point_conv_plan.cuh: host side of cuda/conv/pointwise/point_conv_block.cuh: the tile configs of a
 * launch, best first. */
#ifndef CK_POINT_CONV_PLAN_CUH
#define CK_POINT_CONV_PLAN_CUH

#include "cuda/common/fused_conv.h"
#include "cuda/conv/pointwise/point_conv.cuh"

namespace {

/* Number of workers of a streamed tile. */
int team(const struct plan *p) {
    return p->workers == 4 ? 2 : p->workers;
}

/* Computes the offsets in shared memory, with as many stages as fit. Returns false when fewer than `least` fit. */
bool lay_out(struct plan *p, const struct ck_fused_conv *a, int least) {
    const int w_bytes = p->columns * 128, rings = p->resident ? p->workers : 1;
    const int stage     = p->resident ? X_BYTES : team(p) * X_BYTES + w_bytes,
              per_stage = rings * stage + (a->has_scale_bias && !p->resident ? SCALE_BIAS_BYTES : 0);
    p->vectors          = a->has_bn_x ? 4 : a->has_out_scale_bias ? 2 : a->has_bias || a->relu || a->has_add ? 1 : 0;
    if (a->has_second) p->vectors += 2;
    const int columns          = (p->resident ? 1 : p->workers) * p->vectors * p->columns * 4;
    const int scratch          = a->has_sums && a->has_add && !p->resident ? p->workers * 4 * GROUP * 4 : 0;
    const int ring_of_panels   = p->workers * 4 * p->panels * PANEL_BYTES,
              act_steps        = a->has_second ? p->second_steps : p->steps,
              scale_bias_bytes = a->has_scale_bias && p->resident ? act_steps * SCALE_BIAS_BYTES : 0;
    p->w_at                    = 0;
    p->panel_at                = p->resident ? p->steps * w_bytes : 0;
    p->other_at                = p->panel_at + ring_of_panels;
    p->stage_at                = p->other_at + (a->has_bn_x ? ring_of_panels : 0);
    const int room             = SHARED_LIMIT - p->stage_at - scale_bias_bytes - columns - scratch - 8 * BAR_COUNT;
    p->stages                  = room <= 0 ? 0 : room / per_stage;
    if (p->stages < least) return false;
    if (p->stages > STAGES_MAX) p->stages = STAGES_MAX;
    p->scale_bias_at = p->stage_at + rings * p->stages * stage;
    p->column_at     = p->scale_bias_at + (p->resident         ? scale_bias_bytes
                                           : a->has_scale_bias ? p->stages * SCALE_BIAS_BYTES
                                                               : 0);
    p->scratch_at    = p->column_at + columns;
    p->bar_at        = p->scratch_at + scratch;
    p->bytes         = p->bar_at + 8 * BAR_COUNT;
    return true;
}

/* A plan of this kind, if at least `least` stages fit. */
bool plan_as(struct plan *p, const struct ck_fused_conv *a, bool resident, int columns, int workers, int panels,
             int least, int multiprocessors) {
    p->resident     = resident;
    p->columns      = columns;
    p->workers      = workers;
    p->panels       = panels;
    p->blocks_k     = (int)((a->K + columns - 1) / columns);
    p->second_steps = a->has_second ? (int)((a->K + STEP - 1) / STEP) : 0;
    p->steps        = (int)((a->C + STEP - 1) / STEP) + p->second_steps;
    if (resident && (p->blocks_k > multiprocessors || (int64_t)p->steps * columns * 128 >= SHARED_LIMIT)) return false;
    if (workers * panels > PANELS_MAX || !lay_out(p, a, least)) return false;
    const int64_t rows = a->N * a->P * a->Q, high = resident ? ROWS : team(p) * ROWS, down = (rows + high - 1) / high;
    const int64_t tiles = resident ? down : down * p->blocks_k, share = resident ? workers : 1;
    /* resident: blocks with the same columns */
    int64_t blocks = resident ? multiprocessors / p->blocks_k : multiprocessors;
    if (tiles > INT32_MAX / 2) return false;
    if (blocks > (tiles + share - 1) / share) blocks = (tiles + share - 1) / share;
    p->tiles = (int)tiles;
    p->grid  = (int)(resident ? blocks * p->blocks_k : blocks);
    /* with second_x and one set of columns a worker adds the sums of all of its tiles */
    p->partial_rows = (int)(resident || (a->has_second && p->blocks_k == 1) ? blocks * workers : down * team(p));
    return true;
}

/* Tile configs by problem class; each list is ordered by speed on an H200 over the shapes of ResNet-50. */
struct choice {
    bool resident;
    int  columns, workers, panels;
    int  least;    /* minimum number of stages */
    int  blocks_k; /* maximum; 0: no limit */
};
enum { CHOICES_MAX = 8 };
const struct choice choices_narrow[CHOICES_MAX + 1] = {{true, 64, 4, 2, 2, 1}, {false, 128, 2, 2, 2, 0}}; /* K <= 64 */
const struct choice choices_plain[CHOICES_MAX + 1]  = {
     {true, 256, 2, 4, 4, 0},  {true, 256, 2, 2, 4, 0}, {true, 128, 3, 4, 2, 1},  {true, 128, 2, 2, 4, 2},
     {false, 128, 4, 2, 3, 0}, {true, 128, 3, 2, 3, 0}, {false, 256, 2, 2, 3, 0}, {false, 128, 2, 2, 2, 0},
};
const struct choice choices_act[CHOICES_MAX + 1] = {
    {true, 256, 2, 4, 4, 0},  {true, 256, 2, 2, 4, 0},  {true, 128, 3, 4, 2, 1},  {true, 128, 2, 2, 3, 1},
    {false, 256, 2, 2, 3, 0}, {false, 128, 3, 2, 2, 0}, {false, 128, 2, 2, 2, 0},
};
const struct choice choices_add[CHOICES_MAX + 1] = {
    {true, 128, 3, 2, 4, 0},  {true, 128, 2, 2, 4, 1},  {false, 128, 4, 2, 3, 0}, {true, 128, 2, 4, 4, 0},
    {false, 128, 2, 4, 3, 0}, {false, 256, 2, 4, 3, 0}, {false, 128, 2, 2, 2, 0},
};
const struct choice choices_bn[CHOICES_MAX + 1] = {
    {true, 128, 3, 2, 4, 0},  {true, 128, 3, 2, 2, 1},  {true, 128, 2, 2, 4, 0}, {false, 128, 2, 2, 2, 0},
    {false, 256, 2, 2, 3, 0}, {false, 128, 3, 2, 3, 0}, {true, 128, 2, 4, 3, 0},
};

/* Not measured: in the order of bytes in flight. */
const struct choice choices_scale[CHOICES_MAX + 1] = {
    {true, 256, 2, 4, 4, 0}, {true, 256, 2, 2, 2, 0},  {true, 128, 3, 2, 2, 0},
    {true, 128, 3, 4, 2, 0}, {false, 256, 2, 2, 3, 0},
};
const struct choice choices_joined[CHOICES_MAX + 1] = {
    {true, 64, 4, 2, 2, 1},   {true, 64, 3, 2, 2, 1},   {true, 64, 2, 2, 4, 1},
    {false, 256, 2, 2, 2, 0}, {false, 128, 2, 2, 3, 0}, {false, 128, 3, 2, 2, 0},
};

/* The autotuner measures all that fit. Rejected, measured on an H200: two blocks of a cluster that load the filters
 * together (gradient of the strided shortcuts with second_x: 339 us instead of 233). */
const struct choice *choices_for(const struct ck_fused_conv *a) {
    if (a->has_second) return choices_joined; /* 64 columns resident: w and second_w share the memory */
    if (a->has_out_scale_bias) return choices_scale;
    if (a->K <= 64) return choices_narrow; /* wider tiles would have unused columns */
    if (a->has_bn_x) return choices_bn;    /* a second ring of panels: 128 columns before 256 */
    if (a->has_add) return choices_add;    /* a prefetch into L2 loses: 7,385, not 7,465 img/s of ResNet-101 */
    return a->has_scale_bias ? choices_act : choices_plain;
}

/* Stores tile config number `algo` of those that fit in *p. It exists when the result is above algo. With algo < 0,
 * counts the configs that fit. */
int find_plan(struct plan *p, const struct ck_fused_conv *a, int algo, int multiprocessors) {
    int fitting = 0;
    for (const struct choice *c = choices_for(a); c->columns && (algo < 0 || fitting <= algo); c++) {
        if (c->columns == 256 && a->K <= 128) continue; /* half of the columns would be unused */
        if (c->blocks_k && (a->K + c->columns - 1) / c->columns > c->blocks_k) continue;
        if (plan_as(p, a, c->resident, c->columns, c->workers, c->panels, c->least, multiprocessors)) fitting++;
    }
    return fitting;
}

} // namespace

#endif
