/* device/cpu/onednn/dnnl_layouts.c: primitive descriptors of 8-bit convolutions from which only layouts and sizes are
 * taken. oneDNN needs 0.1 ms for each, and the compiler and the executor need one several times for every convolution,
 * so the device keeps one for each shape. */
#include "device/cpu/onednn/dnnl.h"

#include <string.h>

struct cr_dnnl_layout {
    struct cr_dnnl_qconv  conv; /* scale is NULL */
    dnnl_primitive_desc_t pd;
};

static bool same_shape(const struct cr_dnnl_qconv *a, const struct cr_dnnl_qconv *b) {
    return memcmp(a->x, b->x, sizeof a->x) == 0 && memcmp(a->w, b->w, sizeof a->w) == 0 &&
           memcmp(a->y, b->y, sizeof a->y) == 0 && a->stride == b->stride && a->pad == b->pad && a->relu == b->relu &&
           a->types.x == b->types.x && a->types.y == b->types.y && a->types.has_add == b->types.has_add &&
           (!a->types.has_add || a->types.add == b->types.add);
}

/* Layouts and sizes do not depend on the factors, which are 1 here. */
static cr_status add(struct dnnl_handles *h, const struct cr_dnnl_qconv *conv) {
    struct cr_dnnl_qconv  c  = *conv;
    dnnl_primitive_desc_t pd = NULL;
    float                *ones;
    CR_GROW(h->layout, h->layouts, h->layout_capacity, 32);
    CR_ALLOC(ones, (size_t)c.w[0]);
    for (int64_t k = 0; k < c.w[0]; k++) ones[k] = 1;
    c.scale                = ones;
    c.add_scale            = 1;
    const cr_status status = cr_dnnl_qconv_desc(&c, h->engine, &pd);
    c.scale                = NULL;
    cr_free(ones);
    if (status == CR_OK) h->layout[h->layouts++] = (struct cr_dnnl_layout){c, pd};
    return status;
}

cr_status cr_dnnl_qconv_layout(struct cr_device *device, const struct cr_dnnl_qconv *conv,
                               const_dnnl_primitive_desc_t *out) {
    struct dnnl_handles *h;
    CR_TRY(cr_dnnl_open(device, &h));
    for (int i = 0; i < h->layouts; i++)
        if (same_shape(&h->layout[i].conv, conv)) {
            *out = h->layout[i].pd;
            return CR_OK;
        }
    CR_TRY(add(h, conv));
    *out = h->layout[h->layouts - 1].pd;
    return CR_OK;
}

void cr_dnnl_layouts_free(struct dnnl_handles *h) {
    for (int i = 0; i < h->layouts; i++) dnnl_primitive_desc_destroy(h->layout[i].pd);
    cr_free(h->layout);
}
