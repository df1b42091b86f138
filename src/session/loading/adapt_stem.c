/* session/loading/adapt_stem.c: loads the first convolution of an RGB network into a network whose images have another
 * number of channels. The values are those of timm's adapt_input_conv. See session/checkpoint_tensors.h. */
#include "session/checkpoint_tensors.h"

#include <string.h>

enum { RGB = 3 };

static size_t filter_elems(const struct cr_param *q) { /* of one input channel */
    return (size_t)(q->dim[0] * q->dim[1] * q->dim[2]);
}

static cr_status stem_put(void *self, struct cr_ckpt_address to, uint64_t offset, const void *host, size_t bytes) {
    struct cr_stem_filter *stem = self;
    if (to.kind != CR_STATE_IN_STEM) return stem->below.put(stem->below.self, to, offset, host, bytes);
    memcpy((char *)stem->rgb + offset, host, bytes);
    return CR_OK;
}

cr_status cr_stem_filter_take(const struct cr_session *s, struct cr_st_file *file, const char *path,
                              struct cr_state_list *list, struct cr_ckpt_io *io, struct cr_stem_filter *stem) {
    const struct cr_param_store *store = &s->model.store;
    const int                    param = cr_param_store_first_filter(store);
    *stem                              = (struct cr_stem_filter){.param = CR_NONE};
    if (param == CR_NONE) return CR_OK;
    const struct cr_param    *q = &store->param[param];
    const struct cr_st_entry *e = cr_st_find(file, q->name);
    if (!e || e->dims != 4 || e->dim[1] != RGB || q->dim[3] == RGB) return CR_OK;
    for (int i = 0; i < list->count; i++) {
        struct cr_ckpt_tensor *t = &list->tensor[i];
        if (strcmp(t->name, q->name) != 0) continue;
        t->dim[1]  = RGB;
        t->address = (struct cr_ckpt_address){CR_STATE_IN_STEM, 0};
        CR_ALLOC(stem->rgb, filter_elems(q) * RGB);
        stem->param = param;
        stem->below = *io;
        *io         = (struct cr_ckpt_io){.self = stem, .put = stem_put, .parallel_put = stem->below.parallel_put};
        cr_log(CR_LOG_INFO, "weights: %s of %s, of three input channels, was adapted to data.channels = %lld", q->name,
               path, (long long)q->dim[3]);
    }
    return CR_OK;
}

cr_status cr_stem_filter_put(const struct cr_session *s, struct cr_stem_filter *stem) {
    const struct cr_param_store *store = &s->model.store;
    float                       *adapted;
    if (stem->param == CR_NONE) return CR_OK;
    const struct cr_param *q        = &store->param[stem->param];
    const size_t           channels = (size_t)q->dim[3], elems = filter_elems(q);
    CR_ALLOC(adapted, elems * channels);
    for (size_t i = 0; i < elems; i++) {
        const float *rgb = stem->rgb + RGB * i;
        for (size_t c = 0; c < channels; c++)
            adapted[channels * i + c] =
                channels == 1 ? rgb[0] + rgb[1] + rgb[2] : rgb[c % RGB] * ((float)RGB / (float)channels);
    }
    const struct cr_ckpt_address to = {CR_STATE_IN_STORE, cr_param_store_buffer_offset(store, CR_BUFFER_VALUE) +
                                                              (uint64_t)q->offset * sizeof *adapted};
    cr_status status = stem->below.put(stem->below.self, to, 0, adapted, elems * channels * sizeof *adapted);
    cr_free(adapted);
    return status;
}

void cr_stem_filter_free(struct cr_stem_filter *stem) {
    cr_free(stem->rgb);
}
