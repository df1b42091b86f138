/* device/cpu/reference/ref_mix.c: augmentation on the device: crops, flips, erases and mixes (mixup, cutmix) the images
 * of a batch, of bytes or uint16_t. */
#include "device/cpu/reference/ref.h"

#include <string.h>

static bool inside(const int32_t rect[4], int64_t h, int64_t w) {
    return h >= rect[0] && h < rect[2] && w >= rect[1] && w < rect[3];
}

static int64_t sample(const struct cr_mixing *m, int64_t i) {
    return m->wide ? ((const uint16_t *)m->images)[i] : ((const uint8_t *)m->images)[i];
}

/* Pixel (h, w) of image n after its crop, flip and erased rectangle. */
static void source_pixel(const struct cr_mixing *m, int64_t n, int64_t h, int64_t w, int64_t out[CR_MIXING_CHANNELS]) {
    const int32_t *box = m->boxes + 4 * n;
    memcpy(out, m->fill, sizeof m->fill);
    if (inside(m->mixes + CR_MIX_NUMBERS * n + CR_MIX_ERASE, h, w)) return;
    const int64_t row = h + box[0], column = (box[2] ? m->W - 1 - w : w) + box[1];
    const bool    black = row < 0 || row >= m->H || column < 0 || column >= m->W;
    for (int64_t c = 0; c < m->C; c++) out[c] = black ? 0 : sample(m, ((n * m->H + row) * m->W + column) * m->C + c);
}

void cr_ref_mix_row(const struct cr_mixing *m, int64_t n, int64_t h, void *y) {
    const int32_t *mix     = m->mixes + CR_MIX_NUMBERS * n;
    const int64_t  partner = mix[CR_MIX_PARTNER] >= 0 && mix[CR_MIX_PARTNER] < m->N ? mix[CR_MIX_PARTNER] : n;
    int64_t        own[CR_MIXING_CHANNELS], other[CR_MIXING_CHANNELS], i = (n * m->H + h) * m->W * m->C;
    for (int64_t w = 0; w < m->W; w++) {
        const bool    cut    = inside(mix + CR_MIX_CUT, h, w);
        const int64_t weight = cut ? CR_MIX_ONE : mix[CR_MIX_WEIGHT];
        source_pixel(m, cut ? partner : n, h, w, own);
        if (weight != CR_MIX_ONE) source_pixel(m, partner, h, w, other);
        for (int64_t c = 0; c < m->C; c++, i++) {
            const int64_t both = weight == CR_MIX_ONE ? 0 : (CR_MIX_ONE - weight) * other[c];
            const int64_t v    = (weight * own[c] + both + CR_MIX_ONE / 2) / CR_MIX_ONE;
            if (m->wide)
                ((uint16_t *)y)[i] = (uint16_t)v;
            else
                ((uint8_t *)y)[i] = (uint8_t)v;
        }
    }
}

REF_KERNEL(mix) {
    const struct cr_input_attr *a      = &call->op->attr.input;
    struct ref                  images = REF_IN(mix, images), y = REF_OUT(mix, y);
    struct cr_mixing            m       = {.images = images.data,
                                           .boxes  = call->in[CR_IN_mix_boxes],
                                           .mixes  = call->in[CR_IN_mix_mixes],
                                           .N      = images.N,
                                           .H      = images.H,
                                           .W      = images.W,
                                           .C      = a->wide ? images.C / 2 : images.C,
                                           .wide   = a->wide};
    const double                largest = a->wide ? 65535 : 255;
    for (int64_t c = 0; c < m.C; c++) m.fill[c] = (int64_t)rint(fmin(fmax(largest * (double)a->mean[c], 0), largest));
    CR_PARALLEL(row, m.N * m.H) cr_ref_mix_row(&m, row / m.H, row % m.H, y.data);
}
