/* device/cpu/tuned/int8/qpack.c: the shape of an 8-bit convolution, and its filter in the order in which tiles read it.
 * See qconv.h. */
#include "device/cpu/tuned/int8/qconv.h"

#include <string.h>

enum { LARGEST = 128 /* sum of weights of one sign whose products stay within 16 bits */ };

/* ---- the shape ---- */

/* Two extras for each step and vector are enough for blocks of one step. */
static void set_packed(struct cr_qshape *s) {
    const int64_t width = (s->tile = cr_qtile_kind_of(s->K)).width;
    s->panels           = (s->K + width - 1) / width;
    s->steps            = s->R * (cr_rounded_up(s->row, CR_QSTEP) / CR_QSTEP);
    s->extras_max       = s->tile.saturates ? 2 * s->steps * s->tile.vectors : 0;
    s->sums             = s->panels * cr_rounded_up(sizeof(struct cr_qpanel_head), 64);
    s->offsets          = s->sums + s->panels * width * 4;
    s->w                = s->offsets + cr_rounded_up(cr_rounded_up(s->steps, 2) * 4, 64);
    s->extra_offsets    = s->w + s->panels * cr_rounded_up(s->steps, 2) * width * CR_QSTEP;
    s->extra_w          = s->extra_offsets + cr_rounded_up(s->panels * s->extras_max * 4, 64);
    s->bytes            = s->extra_w + s->panels * s->extras_max * width / s->tile.vectors * CR_QSTEP;
}

struct cr_qpanel cr_qpanel_at(const struct cr_qshape *s, const void *packed, int64_t i) {
    char *const      at    = (char *)(uintptr_t)packed;
    const int64_t    width = s->tile.width, bytes = cr_rounded_up(s->steps, 2) * width * CR_QSTEP;
    struct cr_qpanel panel = {.head = (struct cr_qpanel_head *)(at + i * 64), .offsets = (int32_t *)(at + s->offsets)};
    panel.sums             = (int32_t *)(at + s->sums) + i * width;
    panel.w                = (int8_t *)at + s->w + i * bytes;
    panel.extra_offsets    = (int32_t *)(at + s->extra_offsets) + i * s->extras_max;
    panel.extra_w          = (int8_t *)at + s->extra_w + i * s->extras_max * (width / s->tile.vectors) * CR_QSTEP;
    return panel;
}

/* Sets what follows from the sizes. A 1x1 convolution of all pixels is one image that is a pixel wide. */
static void complete(struct cr_qshape *s, bool is_signed) {
    s->P      = (s->H + 2 * s->pad - s->R) / s->stride + 1;
    s->Q      = (s->W + 2 * s->pad - s->S) / s->stride + 1;
    s->row    = s->S * s->C;
    s->raised = is_signed;
    s->copied = is_signed || s->R * s->S > 1 || s->pad > 0 || s->C % CR_QSTEP;
    if (!s->copied && s->stride == 1) {
        s->H = s->P = s->N * s->H * s->W;
        s->N = s->W = s->Q = 1;
    }
    s->width = s->copied ? (s->Q - 1) * s->stride + s->S : s->W;
    set_packed(s);
}

struct cr_qshape cr_qshape_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = &p->tensor[op->in[CR_IN_qconv_x]], *w = &p->tensor[op->in[CR_IN_qconv_w]];
    struct cr_qshape        s = {.N = x->dim[0], .H = x->dim[1], .W = x->dim[2], .C = x->dim[3]};
    s.K                       = w->dim[0];
    s.R                       = w->dim[1];
    s.S                       = w->dim[2];
    s.stride                  = op->attr.conv.stride;
    s.pad                     = op->attr.conv.pad;
    complete(&s, x->dtype == CR_I8);
    return s;
}

/* That of the convolution that will read the output of pack_filter. */
struct cr_qshape cr_qshape_of_pack(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor    *w = &p->tensor[op->in[CR_IN_pack_filter_w]];
    const struct cr_conv_attr *a = &op->attr.conv;
    struct cr_qshape           s = {.K = w->dim[0], .R = w->dim[1], .S = w->dim[2], .C = w->dim[3]};
    s.N                          = a->pattern.image[0];
    s.H                          = a->pattern.image[1];
    s.W                          = a->pattern.image[2];
    s.stride                     = a->stride;
    s.pad                        = a->pad;
    complete(&s, a->types.x == CR_I8);
    return s;
}

/* ---- the filter ---- */

/* The weights of a block for one vector of outputs. */
struct block {
    int    steps;
    int8_t w[2][CR_QPANEL_MAX * CR_QSTEP];
};

/* Keeps in b what cannot leave 16 bits: 255 * 128 is less than 2^15. A lane of 16 bits adds two products of each step.
 * Returns whether anything remains, in rest. */
static bool divide(struct block *b, struct block *rest, int64_t bytes) {
    bool some = false;
    for (int64_t lane = 0; lane < bytes; lane += 2) {
        int most = LARGEST, least = -LARGEST; /* what may still be added */
        for (int i = 0; i < 2 * b->steps; i++) {
            int8_t *const w = &b->w[i / 2][lane + i % 2], *const r = &rest->w[i / 2][lane + i % 2];
            const int kept = CR_MAX(CR_MIN(*w, most), least);
            *r             = (int8_t)(*w - kept);
            *w             = (int8_t)kept;
            *(kept < 0 ? &least : &most) -= kept;
            some |= *r != 0;
        }
    }
    return some;
}

/* A panel while it is packed: extras so far, and how many there may be. */
struct packing {
    const struct cr_qshape *shape;
    const int8_t           *w;     /* i8 [K][R][row] */
    int64_t                 first; /* output */
    struct cr_qpanel        to;
    int64_t                 extras;
};

/* Reads step `at` of the outputs of a vector: four weights of a row of the window. Beyond the last step: zeros. */
static void read_step(const struct packing *p, int64_t at, int64_t output, int64_t lanes, int8_t *to) {
    const struct cr_qshape *s = p->shape;
    const int64_t steps = cr_rounded_up(s->row, CR_QSTEP) / CR_QSTEP, r = at / steps, i = at % steps * CR_QSTEP;
    const int64_t count = CR_MIN(CR_QSTEP, s->row - i);
    memset(to, 0, (size_t)(lanes * CR_QSTEP));
    for (int64_t o = 0; o < CR_MIN(lanes, s->K - output) && r < s->R; o++)
        memcpy(to + o * CR_QSTEP, p->w + ((output + o) * s->R + r) * s->row + i, (size_t)count);
}

/* Returns whether the products of two steps together stay within 16 bits. */
static bool fits(const int8_t *w, const int8_t *more, int64_t bytes) {
    struct block both = {.steps = 2}, rest;
    memcpy(both.w[0], w, (size_t)bytes);
    memcpy(both.w[1], more, (size_t)bytes);
    return !divide(&both, &rest, bytes);
}

/* Appends an extra. Extras come in pairs: where this one does not fit to the one before, or without weights, zeros
 * complete the pair. */
static bool put_extra(struct packing *p, const int8_t *w, int32_t offset, int64_t bytes) {
    int8_t *const to = p->to.extra_w + p->extras * bytes;
    if (p->extras % 2 && (!w || !fits(to - bytes, w, bytes))) {
        memset(to, 0, (size_t)bytes);
        p->to.extra_offsets[p->extras++] = 0;
        return !w || put_extra(p, w, offset, bytes);
    }
    if (!w || p->extras == p->shape->extras_max) return !w;
    memcpy(to, w, (size_t)bytes);
    p->to.extra_offsets[p->extras++] = offset;
    return true;
}

/* Appends extras for what remains of a step. */
static bool put_rest(struct packing *p, const int8_t *w, int32_t offset, int64_t bytes) {
    struct block one = {.steps = 1}, more = {.steps = 1};
    bool         again = false;
    memcpy(one.w[0], w, (size_t)bytes);
    for (int64_t i = 0; i < bytes; i++) again |= w[i] != 0;
    for (; again; one = more) {
        again = divide(&one, &more, bytes);
        if (!put_extra(p, one.w[0], offset, bytes)) return false;
    }
    return true;
}

static bool pack_vector(struct packing *p, int vector) {
    const struct cr_qtile_kind *tile  = &p->shape->tile;
    const int                   steps = p->to.head->block;
    const int64_t               lanes = tile->width / tile->vectors, bytes = lanes * CR_QSTEP, before = p->extras;
    for (int64_t at = 0; at < p->to.head->steps; at += steps) {
        struct block b = {.steps = steps}, rest;
        for (int d = 0; d < steps; d++) read_step(p, at + d, p->first + vector * lanes, lanes, b.w[d]);
        const bool some = tile->saturates && divide(&b, &rest, bytes);
        for (int d = 0; d < steps; d++) {
            memcpy(p->to.w + (at + d) * tile->width * CR_QSTEP + vector * bytes, b.w[d], (size_t)bytes);
            if (some && !put_rest(p, rest.w[d], p->to.offsets[at + d], bytes)) return false;
        }
    }
    (void)put_extra(p, NULL, 0, bytes);
    p->to.head->extras[vector] = (int32_t)(p->extras - before);
    return true;
}

/* Packs a panel in blocks of so many steps. Returns the number of instructions for it: two for each step, two to widen
 * and to add the sums of a block; INT64_MAX: there is no room for the extras. */
static int64_t pack_panel(struct packing *p, int block) {
    const struct cr_qshape *s     = p->shape;
    const int64_t           steps = cr_rounded_up(s->steps, block);
    *p->to.head                   = (struct cr_qpanel_head){.steps = (int32_t)steps, .block = block};
    p->extras                     = 0;
    for (int v = 0; v < s->tile.vectors; v++)
        if (!pack_vector(p, v)) return INT64_MAX;
    return steps / block * (2 * block + 1) * s->tile.vectors + p->extras / 2 * 5;
}

void cr_qconv_pack(const struct cr_qshape *s, const int8_t *w, void *packed, int threads) {
    const int64_t length = s->R * s->row, width = s->tile.width, in_row = s->steps / s->R;
    int32_t      *offsets = cr_qpanel_at(s, packed, 0).offsets;
    for (int64_t i = 0; i < cr_rounded_up(s->steps, 2); i++) /* a step beyond the last one has no weights */
        offsets[i] = i < s->steps ? (int32_t)(i / in_row * s->width * s->C + i % in_row * CR_QSTEP) : 0;
    CR_PARALLEL_BY(threads, int64_t, panel, s->panels) {
        struct packing p = {.shape = s, .w = w, .first = panel * width, .to = cr_qpanel_at(s, packed, panel)};
        memset(p.to.sums, 0, (size_t)width * sizeof *p.to.sums);
        for (int64_t i = 0; i < CR_MIN(width, s->K - p.first) * length; i++)
            p.to.sums[i / length] += w[p.first * length + i];
        const int64_t two = s->tile.saturates ? pack_panel(&p, 2) : INT64_MAX;
        if (pack_panel(&p, 1) > two) (void)pack_panel(&p, 2);
    }
}
