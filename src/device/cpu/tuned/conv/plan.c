/* device/cpu/tuned/conv/plan.c: which rows each output pixel reads, and filters in the order in which tiles read them. */
#include "device/cpu/tuned/conv/gather.h"

#include <string.h>

enum { FEW_CHANNELS = 16 };

/* The convolution that the op computes, or whose gradient. */
struct window {
    const struct cr_tensor *x, *w, *y;
    int64_t                 stride, pad;
    bool                    gradient;
};

static struct window window_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *t = p->tensor;
    struct window           v = {
                  .stride = op->attr.conv.stride, .pad = op->attr.conv.pad, .gradient = op->kind == CR_OP_conv_dgrad};
    v.x = &t[v.gradient ? op->out[CR_OUT_conv_dgrad_dx] : op->in[CR_IN_conv_x]];
    v.w = &t[v.gradient ? op->in[CR_IN_conv_dgrad_w] : op->in[CR_IN_conv_w]];
    v.y = &t[v.gradient ? op->in[CR_IN_conv_dgrad_dy] : op->out[CR_OUT_conv_y]];
    return v;
}

static cr_status allocate_phase(struct cr_conv_phase *f) {
    CR_ALLOC(f->tap, (size_t)CR_MAX(f->taps, 1));
    CR_ALLOC(f->from, (size_t)CR_MAX(f->pixels * f->taps, 1));
    CR_ALLOC(f->to, (size_t)CR_MAX(f->pixels, 1));
    return CR_OK;
}

/* ---- convolutions ---- */

/* The rows of pixel (p, q). */
static void put_rows(const struct cr_conv_plan *plan, const struct window *v, int64_t p, int64_t q, int32_t *from) {
    const int64_t S = v->w->dim[2], C = v->x->dim[3];
    for (int64_t t = 0; t < plan->phase[0].taps; t++) {
        const int64_t h      = p * v->stride + (plan->padded ? t : t / S - v->pad);
        const int64_t w      = q * v->stride + (plan->padded ? 0 : t % S - v->pad);
        const bool    inside = h >= 0 && w >= 0 && h < plan->height && w < plan->width;
        from[t]              = inside ? (int32_t)((h * plan->width + w) * C) : CR_ROW_OUTSIDE;
    }
}

static cr_status plan_forward(struct cr_conv_plan *plan, const struct window *v) {
    const int64_t         R = v->w->dim[1], S = v->w->dim[2], C = v->x->dim[3], K = v->w->dim[0];
    const int64_t         P = v->y->dim[1], Q = v->y->dim[2], edge = C < FEW_CHANNELS && R * S > 1 ? v->pad : 0;
    struct cr_conv_phase *f = &plan->phase[0];
    plan->padded            = C < FEW_CHANNELS && R * S > 1;
    plan->image_height      = v->x->dim[1];
    plan->image_width       = v->x->dim[2];
    plan->height            = plan->image_height + 2 * edge;
    plan->width             = plan->image_width + 2 * edge;
    plan->pad               = edge;
    plan->channels          = C;
    plan->len               = plan->padded ? S * C : C;
    plan->outputs           = K;
    plan->in_image          = plan->height * plan->width * C;
    plan->out_image         = P * Q * K;
    plan->by_output         = R * S * C;
    plan->by_tap            = plan->len;
    plan->by_float          = 1;
    plan->phases            = 1;
    f->pixels               = P * Q;
    f->taps                 = plan->padded ? R : R * S;
    CR_TRY(allocate_phase(f));
    for (int t = 0; t < f->taps; t++) f->tap[t] = t;
    for (int64_t i = 0; i < f->pixels; i++) {
        f->to[i] = (int32_t)(i * K);
        put_rows(plan, v, i / Q, i % Q, f->from + i * f->taps);
    }
    return CR_OK;
}

/* ---- input gradients ---- */

/* dx[h][w] = sum of dy[p][q] * w[r][s] over p * stride + r = h + pad and q * stride + s = w + pad. */
static int64_t taps_of_phase(const struct window *v, int64_t h, int64_t w, int *tap) {
    int64_t       taps = 0;
    const int64_t S    = v->w->dim[2];
    for (int64_t r = 0; r < v->w->dim[1]; r++)
        for (int64_t s = 0; s < S; s++) {
            if ((h + v->pad - r) % v->stride || (w + v->pad - s) % v->stride) continue;
            if (tap) tap[taps] = (int)(r * S + s);
            taps++;
        }
    return taps;
}

static int32_t row_of_gradient(const struct window *v, int64_t h, int64_t w, int64_t r, int64_t s) {
    const int64_t P = v->y->dim[1], Q = v->y->dim[2], p = (h + v->pad - r) / v->stride,
                  q   = (w + v->pad - s) / v->stride;
    const bool inside = h + v->pad >= r && w + v->pad >= s && p < P && q < Q;
    return inside ? (int32_t)((p * Q + q) * v->y->dim[3]) : CR_ROW_OUTSIDE;
}

static cr_status plan_phase(struct cr_conv_phase *f, const struct window *v, int64_t first_h, int64_t first_w) {
    const int64_t H = v->x->dim[1], W = v->x->dim[2], S = v->w->dim[2], by = v->stride;
    int64_t       i = 0;
    f->pixels       = ((H - first_h + by - 1) / by) * ((W - first_w + by - 1) / by);
    f->taps         = taps_of_phase(v, first_h, first_w, NULL);
    CR_TRY(allocate_phase(f));
    taps_of_phase(v, first_h, first_w, f->tap);
    for (int64_t h = first_h; h < H; h += by)
        for (int64_t w = first_w; w < W; w += by, i++) {
            f->to[i] = (int32_t)((h * W + w) * v->x->dim[3]);
            for (int64_t t = 0; t < f->taps; t++)
                f->from[i * f->taps + t] = row_of_gradient(v, h, w, f->tap[t] / S, f->tap[t] % S);
        }
    return CR_OK;
}

static cr_status plan_gradient(struct cr_conv_plan *plan, const struct window *v) {
    const int64_t R = v->w->dim[1], S = v->w->dim[2], C = v->x->dim[3], K = v->w->dim[0];
    plan->len       = K;
    plan->outputs   = C;
    plan->in_image  = v->y->dim[1] * v->y->dim[2] * K;
    plan->out_image = v->x->dim[1] * v->x->dim[2] * C;
    plan->by_output = 1;
    plan->by_tap    = C;
    plan->by_float  = R * S * C;
    for (int64_t h = 0; h < CR_MIN(v->stride, v->x->dim[1]); h++)
        for (int64_t w = 0; w < CR_MIN(v->stride, v->x->dim[2]); w++)
            CR_TRY(plan_phase(&plan->phase[plan->phases++], v, h, w));
    return CR_OK;
}

/* ---- the plan ---- */

int64_t cr_conv_packed_floats(int64_t outputs, int64_t taps, int64_t len) {
    const int64_t panel = cr_conv_tile_size(outputs).panel;
    return (outputs + panel - 1) / panel * panel * taps * len;
}

void cr_conv_plan_free(struct cr_conv_plan *plan) {
    if (!plan) return;
    for (int f = 0; f < plan->phases; f++) {
        cr_free(plan->phase[f].tap);
        cr_free(plan->phase[f].from);
        cr_free(plan->phase[f].to);
    }
    cr_free(plan->zero);
    cr_free(plan);
}

cr_status cr_conv_plan_make(const struct cr_program *p, const struct cr_op *op, struct cr_conv_plan **out) {
    const struct window  v = window_of(p, op);
    struct cr_conv_plan *plan;
    cr_status            status = CR_OK;
    CR_ALLOC(plan, 1);
    plan->images = v.x->dim[0];
    CR_TRY_OUT(v.gradient ? plan_gradient(plan, &v) : plan_forward(plan, &v));
    for (int f = 0; f < plan->phases; f++) {
        plan->phase[f].packed = plan->packed_floats;
        plan->packed_floats += cr_conv_packed_floats(plan->outputs, plan->phase[f].taps, plan->len);
    }
    plan->zero = cr_alloc((size_t)plan->len, sizeof *plan->zero);
    CR_TRY_OUT(plan->zero ? CR_OK : CR_NO_MEMORY((size_t)plan->len * sizeof *plan->zero));
    *out = plan;
    plan = NULL;
out:
    cr_conv_plan_free(plan);
    return status;
}

/* ---- filters ---- */

/* One tap of a panel. The inner loop follows the filter of the program, which does not fit into a cache. */
static void pack_tap(const struct cr_conv_plan *plan, const float *w, int64_t outputs, int64_t panel, float *to) {
    const int64_t len = plan->len;
    if (outputs < panel) memset(to, 0, (size_t)(len * panel) * sizeof *to);
    if (plan->by_output == 1) {
        for (int64_t i = 0; i < len; i++) memcpy(to + i * panel, w + i * plan->by_float, (size_t)outputs * sizeof *to);
        return;
    }
    for (int64_t o = 0; o < outputs; o++)
        for (int64_t i = 0; i < len; i++) to[i * panel + o] = w[o * plan->by_output + i];
}

void cr_conv_pack(const struct cr_conv_plan *plan, const float *w, float *packed, int threads) {
    const int64_t panel = cr_conv_tile_size(plan->outputs).panel, panels = (plan->outputs + panel - 1) / panel;
    for (int f = 0; f < plan->phases; f++) {
        const struct cr_conv_phase *phase = &plan->phase[f];
        CR_PARALLEL_FOR(threads)
        for (int64_t i = 0; i < panels * phase->taps; i++) {
            const int64_t first = i / phase->taps * panel, tap = phase->tap[i % phase->taps];
            pack_tap(plan, w + first * plan->by_output + tap * plan->by_tap, CR_MIN(panel, plan->outputs - first),
                     panel, packed + phase->packed + i * plan->len * panel);
        }
    }
}
