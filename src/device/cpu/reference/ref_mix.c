/* device/cpu/reference/ref_mix.c: crops, flips, erases and mixes the images of a batch as bytes. */
#include "device/cpu/reference/ref.h"

struct mixing {
    const uint8_t *images;
    const int32_t *boxes, *mixes;
    int64_t        N, H, W;
    uint8_t        fill[3];
};

static bool inside(const int32_t rect[4], int64_t h, int64_t w) {
    return h >= rect[0] && h < rect[2] && w >= rect[1] && w < rect[3];
}

/* Pixel (h, w) of image n after its crop, flip and erased rectangle. */
static const uint8_t *source_pixel(const struct mixing *m, int64_t n, int64_t h, int64_t w) {
    static const uint8_t black[3] = {0, 0, 0};
    const int32_t       *box      = m->boxes + 4 * n;
    if (inside(m->mixes + CR_MIX_NUMBERS * n + CR_MIX_ERASE, h, w)) return m->fill;
    const int64_t row = h + box[0], column = (box[2] ? m->W - 1 - w : w) + box[1];
    if (row < 0 || row >= m->H || column < 0 || column >= m->W) return black;
    return m->images + ((n * m->H + row) * m->W + column) * 3;
}

static void mix_row(const struct mixing *m, int64_t n, int64_t h, uint8_t *y) {
    const int32_t *mix     = m->mixes + CR_MIX_NUMBERS * n;
    const int64_t  partner = mix[CR_MIX_PARTNER] >= 0 && mix[CR_MIX_PARTNER] < m->N ? mix[CR_MIX_PARTNER] : n,
                  weight   = mix[CR_MIX_WEIGHT];
    for (int64_t w = 0; w < m->W; w++, y += 3) {
        const bool     cut   = inside(mix + CR_MIX_CUT, h, w);
        const uint8_t *own   = cut ? source_pixel(m, partner, h, w) : source_pixel(m, n, h, w);
        const uint8_t *other = cut || weight == CR_MIX_ONE ? own : source_pixel(m, partner, h, w);
        for (int c = 0; c < 3; c++)
            y[c] = (uint8_t)((weight * own[c] + (CR_MIX_ONE - weight) * other[c] + CR_MIX_ONE / 2) / CR_MIX_ONE);
    }
}

cr_status cr_ref_mix(struct cr_device *device, const struct cr_call *call) {
    struct ref    images = REF_IN(mix, images), y = REF_OUT(mix, y);
    struct mixing m = {.images = images.data,
                       .boxes  = call->in[CR_IN_mix_boxes],
                       .mixes  = call->in[CR_IN_mix_mixes],
                       .N      = images.N,
                       .H      = images.H,
                       .W      = images.W};
    for (int c = 0; c < 3; c++)
        m.fill[c] = (uint8_t)rint(fmin(fmax(255 * (double)call->op->attr.input.mean[c], 0), 255));
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t row = 0; row < m.N * m.H; row++) mix_row(&m, row / m.H, row % m.H, (uint8_t *)y.data + row * m.W * 3);
    return CR_OK;
}
