/* device/cpu/reference/ref_pointwise.c: elementwise ops, dropout and stochastic depth, normalize, and the filter of the
 * space-to-depth stem. */
#include "core/rng.h"
#include "device/cpu/reference/ref.h"

/* Sample i of the images, as a fraction of the largest. */
static double sample(const struct ref *images, bool wide, int64_t i) {
    return wide ? ((const uint16_t *)images->data)[i] / 65535.0 : ref_get(images, i) / 255;
}

/* Channel c of pixel (h, w) of image n after the shift and flip of its box; 0 outside the image. */
static double cropped_pixel(const struct ref *images, const struct ref *boxes, bool wide, int64_t n, int64_t h,
                            int64_t w, int64_t c) {
    const int64_t channels = wide ? images->C / 2 : images->C;
    if (boxes->data) {
        h += (int64_t)ref_get(boxes, 4 * n);
        if (ref_get(boxes, 4 * n + 2) != 0) w = images->W - 1 - w;
        w += (int64_t)ref_get(boxes, 4 * n + 1);
    }
    if (h < 0 || h >= images->H || w < 0 || w >= images->W) return 0;
    return sample(images, wide, ((n * images->H + h) * images->W + w) * channels + c);
}

struct image_input {
    const struct cr_input_attr *a;
    struct ref                  images, boxes;
};

static double normalized(const struct image_input *v, int64_t n, int64_t h, int64_t w, int64_t c) {
    return (cropped_pixel(&v->images, &v->boxes, v->a->wide, n, h, w, c) - (double)v->a->mean[c]) /
           (double)v->a->std[c];
}

/* Space to depth: channel (dh*2+dw)*3+c of pixel (i, j) is channel c of (2(i-2)+dh, 2(j-2)+dw), 0 outside the image. */
static double s2d_pixel(const struct image_input *v, int64_t n, int64_t i, int64_t j, int64_t channel) {
    const int64_t part = channel / 3, h = 2 * (i - 2) + part / 2, w = 2 * (j - 2) + part % 2;
    if (part > 3 || h < 0 || h >= v->images.H || w < 0 || w >= v->images.W) return 0;
    return normalized(v, n, h, w, channel % 3);
}

REF_KERNEL(normalize) {
    struct image_input v = {
        .a = &call->op->attr.input, .images = REF_IN(normalize, images), .boxes = REF_IN(normalize, boxes)};
    struct ref y = REF_OUT(normalize, y);
    CR_PARALLEL(i, y.elems) {
        const int64_t c = i % y.C, w = i / y.C % y.W, h = i / y.C / y.W % y.H, n = i / y.C / y.W / y.H;
        ref_put(&y, i, v.a->s2d ? s2d_pixel(&v, n, h, w, c) : normalized(&v, n, h, w, c));
    }
}

/* ---- the filter of the space-to-depth stem ---- */

/* Index in the [K,7,7,3] filter of element i of its [K,4,4,16] form; -1: the element is 0. */
static int64_t filter_element(const struct ref *s2d, int64_t i) {
    const int64_t channel = i % 16, part = channel / 3, s = 2 * (i / 16 % 4) + part % 2 - 1,
                  r = 2 * (i / 64 % 4) + part / 2 - 1;
    CR_ASSERT(s2d->H == 4 && s2d->W == 4 && s2d->C == 16);
    return part > 3 || r < 0 || s < 0 ? -1 : ((i / 256 * 7 + r) * 7 + s) * 3 + channel % 3;
}

REF_KERNEL(s2d_filter) {
    struct ref w = REF_IN(s2d_filter, w), y = REF_OUT(s2d_filter, y);
    for (int64_t i = 0; i < y.elems; i++) {
        const int64_t from = filter_element(&y, i);
        ref_put(&y, i, from < 0 ? 0 : ref_get(&w, from));
    }
}

/* Each element of the 7x7 filter corresponds to one element of the other form. */
REF_KERNEL(s2d_filter_grad) {
    struct ref dy = REF_IN(s2d_filter_grad, dy), dw = REF_OUT(s2d_filter_grad, dw);
    for (int64_t i = 0; i < dy.elems; i++) {
        const int64_t to = filter_element(&dy, i);
        if (to >= 0) ref_put(&dw, to, ref_get(&dy, i) + (call->op->attr.conv.accumulate ? ref_get(&dw, to) : 0));
    }
}

REF_KERNEL(relu) {
    struct ref x = REF_IN(relu, x), y = REF_OUT(relu, y);
    CR_PARALLEL(i, y.elems) ref_put(&y, i, ref_rectified(ref_get(&x, i)));
}

REF_KERNEL(add) {
    struct ref a = REF_IN(add, a), b = REF_IN(add, b), y = REF_OUT(add, y);
    CR_PARALLEL(i, y.elems) ref_put(&y, i, ref_get(&a, i) + ref_get(&b, i));
}

/* Dropout and stochastic depth. */
REF_KERNEL(drop) {
    struct ref                  x = REF_IN(drop, x), y = REF_OUT(drop, y);
    const struct cr_drop_attr  *a     = &call->op->attr.drop;
    const struct cr_step_block *step  = call->step;
    const int64_t               image = x.H * x.W * x.C, first = step->first_image * (a->images ? 1 : image);
    const uint32_t              threshold = cr_drop_threshold(a);
    const double                scale     = (double)cr_drop_scale(a);
    CR_PARALLEL(i, y.elems) {
        const uint64_t at   = (uint64_t)(first + (a->images ? i / image : i));
        const uint32_t word = cr_rng_word(step->seed, CR_RNG_DROP, (uint64_t)step->step, a->index, at);
        ref_put(&y, i, word >= threshold ? ref_get(&x, i) * scale : 0);
    }
}
