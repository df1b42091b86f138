/* layers/input.c: the input tensors of a batch, augmentation on the device (crop, flip, mixup), normalisation. */
#include "layers/layer.h"

/* Augments the images while they are bytes (boxes, erasing, mixing), before any kind of normalisation. */
static int emit_mix(struct cr_net *net, struct cr_input_attr attr, int64_t batch) {
    struct cr_program *p    = net->program;
    p->mixes                = cr_tensor_add(p, "mixes", CR_I32, CR_REGION_INPUT, batch, 1, 1, CR_MIX_NUMBERS);
    struct cr_op op         = cr_op_make(CR_OP_mix, net->layer);
    op.in[CR_IN_mix_images] = p->images;
    op.in[CR_IN_mix_boxes]  = p->boxes;
    op.in[CR_IN_mix_mixes]  = p->mixes;
    op.attr.input           = attr;
    return cr_net_emit(net, &op, "mix");
}

/* Images that the caller has normalised are only rounded to the type of activations. */
static int emit_rounded(struct cr_net *net) {
    struct cr_program *p = net->program;
    if (p->failed || p->real == CR_F32) return p->images;
    const int64_t *dim    = p->tensor[p->images].dim;
    struct cr_op   op     = cr_op_make(CR_OP_cast, net->layer);
    op.in[CR_IN_cast_x]   = p->images;
    op.out[CR_OUT_cast_y] = cr_tensor_add(p, "input", p->real, CR_REGION_POOL, dim[0], dim[1], dim[2], dim[3]);
    return cr_net_emit(net, &op, "input");
}

int cr_layer_input(struct cr_net *net, int64_t batch, int64_t size) {
    struct cr_program *p     = net->program;
    const int64_t      width = net->config->data.image_width ? net->config->data.image_width : size;
    cr_net_layer(net, "input");
    const int64_t channels = net->config->data.channels;
    const bool    wide     = net->config->data.bits == 16;
    p->images = cr_tensor_add(p, "images", net->f32_input ? CR_F32 : CR_U8, CR_REGION_INPUT, batch, size, width,
                              wide && !net->f32_input ? 2 * channels : channels);
    p->labels = cr_tensor_add(p, "labels", CR_I32, CR_REGION_INPUT, batch, 1, 1,
                              net->config->data.multi_label ? cr_label_words(net->classes) : 1);

    if (net->f32_input) return emit_rounded(net);

    /* Training images are cropped and mirrored on the device. */
    if (net->training) p->boxes = cr_tensor_add(p, "boxes", CR_I32, CR_REGION_INPUT, batch, 1, 1, 4);

    struct cr_input_attr attr = {.wide = wide};
    for (int c = 0; c < channels; c++) {
        attr.mean[c] = (float)cr_config_mean(net->config, c);
        attr.std[c]  = (float)cr_config_std(net->config, c);
    }
    const bool   mixes            = net->training && cr_config_mixes(net->config);
    struct cr_op op               = cr_op_make(CR_OP_normalize, net->layer);
    op.in[CR_IN_normalize_images] = mixes ? emit_mix(net, attr, batch) : p->images;
    op.in[CR_IN_normalize_boxes]  = mixes ? CR_NONE : p->boxes; /* the op mix has applied the boxes */
    op.attr.input                 = attr;
    return cr_net_emit(net, &op, "input");
}
