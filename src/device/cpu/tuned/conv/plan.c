/* device/cpu/tuned/conv/plan.c: plans of CPU convolutions and their gradients: windows, and filters packed in the order
 * in which tiles read them. */
#include "device/cpu/tuned/conv/window.h"

#include <string.h>

/* ---- windows ---- */

static struct cr_conv_plan plan_of_conv(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = &p->tensor[op->in[CR_IN_conv_x]], *w = &p->tensor[op->in[CR_IN_conv_w]];
    const struct cr_tensor *y = &p->tensor[op->out[CR_OUT_conv_y]];
    const int64_t           R = w->dim[1], S = w->dim[2], C = x->dim[3], K = w->dim[0], pad = op->attr.conv.pad;
    struct cr_conv_plan     plan = {.channels = C, .outputs = K, .height = x->dim[1], .width = x->dim[2]};
    plan.stride                  = op->attr.conv.stride;
    plan.out_height              = y->dim[1];
    plan.out_width               = y->dim[2];
    plan.step                    = 1;
    plan.by_output               = R * S * C;
    plan.by_channel              = 1;
    plan.windows                 = 1;
    plan.window[0]               = (struct cr_conv_window){.height = R, .width = S, .top = pad, .left = pad, .by = 1};
    plan.window[0].rows          = y->dim[1];
    plan.window[0].columns       = y->dim[2];
    return plan;
}

/* One direction of a window of the input gradient: pixel first + i * stride of dx reads the pixels
 * (first + pad - r) / stride + i of dy for the taps r of the filter where this is an integer. */
struct taps {
    int64_t count, before; /* the first one lies `before` pixels before pixel i of dy */
    int64_t last;          /* tap of the first pixel of the window */
};

static struct taps taps_of(int64_t first, int64_t stride, int64_t pad, int64_t size) {
    struct taps   t    = {0};
    const int64_t tap0 = (first + pad) % stride;
    if (tap0 >= size) return t;
    t.count  = (size - tap0 + stride - 1) / stride;
    t.last   = tap0 + (t.count - 1) * stride;
    t.before = t.count - 1 - (first + pad - tap0) / stride;
    return t;
}

static struct cr_conv_plan plan_of_gradient(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *dy = &p->tensor[op->in[CR_IN_conv_dgrad_dy]], *w = &p->tensor[op->in[CR_IN_conv_dgrad_w]];
    const struct cr_tensor *dx     = &p->tensor[op->out[CR_OUT_conv_dgrad_dx]];
    const int64_t           stride = op->attr.conv.stride, pad = op->attr.conv.pad, H = dx->dim[1], W = dx->dim[2];
    struct cr_conv_plan     plan = {.channels = dy->dim[3], .outputs = dx->dim[3], .height = dy->dim[1]};
    plan.width                   = dy->dim[2];
    plan.stride                  = 1;
    plan.out_height              = H;
    plan.out_width               = W;
    plan.step                    = stride;
    plan.by_output               = 1;
    plan.by_channel              = w->dim[1] * w->dim[2] * w->dim[3];
    for (int64_t h = 0; h < CR_MIN(stride, H); h++)
        for (int64_t v = 0; v < CR_MIN(stride, W); v++) {
            const struct taps rows = taps_of(h, stride, pad, w->dim[1]), columns = taps_of(v, stride, pad, w->dim[2]);
            const bool        some      = rows.count && columns.count;
            plan.window[plan.windows++] = (struct cr_conv_window){.height       = some ? rows.count : 0,
                                                                  .width        = some ? columns.count : 0,
                                                                  .top          = rows.before,
                                                                  .left         = columns.before,
                                                                  .rows         = (H - h + stride - 1) / stride,
                                                                  .columns      = (W - v + stride - 1) / stride,
                                                                  .first_row    = h,
                                                                  .first_column = v,
                                                                  .tap_row      = rows.last,
                                                                  .tap_column   = columns.last,
                                                                  .by           = -stride};
        }
    return plan;
}

struct cr_conv_plan cr_conv_plan_of(const struct cr_program *p, const struct cr_op *op) {
    const bool              gradient = op->kind == CR_OP_conv_dgrad;
    struct cr_conv_plan     plan     = gradient ? plan_of_gradient(p, op) : plan_of_conv(p, op);
    const struct cr_tensor *w        = &p->tensor[op->in[gradient ? CR_IN_conv_dgrad_w : CR_IN_conv_w]];
    const int64_t           panel = cr_conv_tile_size(plan.outputs).panel, panels = (plan.outputs + panel - 1) / panel;
    plan.images   = p->tensor[op->in[gradient ? CR_IN_conv_dgrad_dy : CR_IN_conv_x]].dim[0];
    plan.by_tap   = w->dim[3];
    plan.by_row   = w->dim[2] * w->dim[3];
    plan.winograd = cr_winograd_choose(&plan);
    if (plan.winograd) plan.packed_floats = cr_winograd_packed_floats(&plan);
    for (int i = 0; i < plan.windows && !plan.winograd; i++) {
        plan.window[i].packed = plan.packed_floats;
        plan.packed_floats += panels * panel * plan.window[i].height * plan.window[i].width * plan.channels;
    }
    return plan;
}

/* ---- filters ---- */

/* The filter of the program is read a line of the cache at a time; the places of 16 channels in the packed filter stay
 * in the first cache. */
void cr_conv_pack_tap(const struct cr_conv_plan *plan, const float *w, int64_t outputs, int64_t channels, int64_t panel,
                      float *to) {
    enum { LINE = 16 };
    if (outputs < panel) memset(to, 0, (size_t)(channels * panel) * sizeof *to);
    if (plan->by_output == 1)
        for (int64_t c = 0; c < channels; c++)
            memcpy(to + c * panel, w + c * plan->by_channel, (size_t)outputs * sizeof *to);
    else
        for (int64_t first = 0; first < channels; first += LINE)
            for (int64_t o = 0; o < outputs; o++)
                for (int64_t c = first; c < CR_MIN(first + LINE, channels); c++)
                    to[c * panel + o] = w[o * plan->by_output + c];
}

void cr_conv_pack(const struct cr_conv_plan *plan, const float *w, float *packed, int threads) {
    const int64_t panel = cr_conv_tile_size(plan->outputs).panel, panels = (plan->outputs + panel - 1) / panel;
    if (plan->winograd) {
        cr_winograd_pack(plan, w, packed, threads);
        return;
    }
    for (int n = 0; n < plan->windows; n++) {
        const struct cr_conv_window *v    = &plan->window[n];
        const int64_t                taps = v->height * v->width;
        CR_PARALLEL_BY(threads, int64_t, i, panels * taps) {
            const int64_t first = i / taps * panel, r = v->tap_row + i % taps / v->width * v->by;
            const int64_t s = v->tap_column + i % taps % v->width * v->by;
            cr_conv_pack_tap(plan, w + first * plan->by_output + r * plan->by_row + s * plan->by_tap,
                             CR_MIN(panel, plan->outputs - first), plan->channels, panel,
                             packed + v->packed + i * plan->channels * panel);
        }
    }
}
