/* tests/checkops/checkops_layers.c: the layers of ResNet-50 at 224 pixels: batch 2 for comparing results, because
 * libraries choose their kernels by shape; batch 256 for --bench. */
#include "tests/checkops/checkops.h"

struct layer {
    int64_t side, C, K; /* side of the input */
    int     window, stride;
};
static const struct layer layers[] = {
    {224, 3, 64, 7, 2},    {56, 64, 64, 1, 1},    {56, 64, 64, 3, 1},    {56, 64, 256, 1, 1},   {56, 256, 64, 1, 1},
    {56, 256, 128, 1, 1},  {56, 128, 128, 3, 2},  {56, 256, 512, 1, 2},  {28, 128, 128, 3, 1},  {28, 128, 512, 1, 1},
    {28, 512, 128, 1, 1},  {28, 512, 256, 1, 1},  {28, 256, 256, 3, 2},  {28, 512, 1024, 1, 2}, {14, 256, 256, 3, 1},
    {14, 256, 1024, 1, 1}, {14, 1024, 256, 1, 1}, {14, 1024, 512, 1, 1}, {14, 512, 512, 3, 2},  {14, 1024, 2048, 1, 2},
    {7, 512, 512, 3, 1},   {7, 512, 2048, 1, 1},  {7, 2048, 512, 1, 1},
};

static struct checkops_case case_of(const struct layer *l, enum cr_op_kind kind, int64_t N, enum cr_dtype real) {
    return (struct checkops_case){.kind   = kind,
                                  .N      = N,
                                  .H      = l->side,
                                  .W      = l->side,
                                  .C      = l->C,
                                  .K      = l->K,
                                  .window = l->window,
                                  .stride = l->stride,
                                  .pad    = l->window / 2,
                                  .real   = real,
                                  .big    = true};
}

void checkops_list_layers(struct checkops_list *list, enum cr_op_kind kind) {
    static const enum cr_dtype types[] = {CR_F32, CR_F16, CR_BF16};
    for (size_t i = 0; i < CR_COUNT(layers); i++)
        for (size_t t = 0; t < CR_COUNT(types); t++) {
            const struct checkops_case c = case_of(&layers[i], kind, 2, types[t]);
            checkops_list_add(list, &c);
        }
}

/* ---- full size ---- */

static void add_image(struct checkops_list *list, enum cr_op_kind kind, int64_t side, int64_t C, unsigned flags) {
    const struct checkops_case c = {.kind   = kind,
                                    .N      = 256,
                                    .H      = side,
                                    .W      = side,
                                    .C      = C,
                                    .K      = 1000,
                                    .window = 3,
                                    .stride = 2,
                                    .pad    = 1,
                                    .flags  = flags,
                                    .real   = CR_F16,
                                    .big    = true};
    checkops_list_add(list, &c);
}

static void add_bn(struct checkops_list *list, int64_t side, int64_t C, bool joins) {
    add_image(list, CR_OP_bn_sums, side, C, 0);
    add_image(list, CR_OP_bn_apply, side, C, CHECKOPS_RELU);
    if (joins) add_image(list, CR_OP_bn_apply, side, C, CHECKOPS_RELU | CHECKOPS_ADD);
    if (joins) add_image(list, CR_OP_bn_apply, side, C, CHECKOPS_RELU | CHECKOPS_ADD | CHECKOPS_ADD_SCALE_BIAS);
    add_image(list, CR_OP_bn_grad_sums, side, C, CHECKOPS_MASK);
    add_image(list, CR_OP_bn_grad_apply, side, C, CHECKOPS_MASK);
}

void checkops_list_full_size(struct checkops_list *list) {
    static const enum cr_op_kind convs[]     = {CR_OP_conv, CR_OP_conv_dgrad, CR_OP_conv_wgrad};
    static const enum cr_op_kind pointwise[] = {CR_OP_relu, CR_OP_relu_grad, CR_OP_add, CR_OP_channel_scale,
                                                CR_OP_zero};
    static const enum cr_op_kind denses[]    = {CR_OP_dense, CR_OP_dense_dgrad, CR_OP_dense_wgrad, CR_OP_dense_bgrad};
    static const enum cr_op_kind copies[]    = {CR_OP_offload, CR_OP_prefetch}; /* to and from the host */
    static const enum cr_op_kind vectors[]   = {CR_OP_bn_finalize, CR_OP_bn_scale_bias, CR_OP_bn_grad_finalize};
    add_image(list, CR_OP_normalize, 224, 3, 0);
    add_image(list, CR_OP_normalize, 224, 3, CHECKOPS_BOXES);
    add_image(list, CR_OP_mix, 224, 3, 0);
    add_bn(list, 112, 64, false);
    add_bn(list, 56, 64, false);
    add_bn(list, 56, 256, true);
    add_bn(list, 28, 512, true);
    add_bn(list, 14, 1024, true);
    add_bn(list, 7, 2048, true);
    for (size_t i = 0; i < CR_COUNT(pointwise); i++) add_image(list, pointwise[i], 56, 256, 0);
    add_image(list, CR_OP_maxpool, 112, 64, 0);
    add_image(list, CR_OP_maxpool_grad, 112, 64, 0);
    add_image(list, CR_OP_avgpool, 7, 2048, 0);
    add_image(list, CR_OP_avgpool2x2, 56, 256, 0);
    add_image(list, CR_OP_avgpool2x2_grad, 56, 256, 0);
    add_image(list, CR_OP_se_scale, 56, 256, 0);
    add_image(list, CR_OP_se_scale_grad, 56, 256, 0);
    add_image(list, CR_OP_avgpool_grad, 7, 2048, 0);
    for (size_t i = 0; i < CR_COUNT(copies); i++) add_image(list, copies[i], 56, 256, 0);
    for (size_t i = 0; i < CR_COUNT(vectors); i++) {
        const struct checkops_case c = {
            .kind = vectors[i], .N = 256, .H = 7, .W = 7, .C = 2048, .real = CR_F32, .big = true};
        checkops_list_add(list, &c);
    }
    for (size_t i = 0; i < CR_COUNT(denses); i++) add_image(list, denses[i], 1, 2048, 0);
    add_image(list, CR_OP_loss, 1, 1, 0);
    add_image(list, CR_OP_loss_grad, 1, 1, 0);
    add_image(list, CR_OP_distill, 1, 1, 0);
    add_image(list, CR_OP_distill_grad, 1, 1, 0);
    add_image(list, CR_OP_distill_features, 14, 1024, 0);
    add_image(list, CR_OP_distill_features_grad, 14, 1024, 0);
    add_image(list, CR_OP_cast, 10, 1000, 0); /* 25.6 million parameters, as ResNet-50 */
    for (int kind = CR_OP_grad_norm; kind <= CR_OP_ema; kind++) {
        const struct checkops_case c = {
            .kind = (enum cr_op_kind)kind, .N = 1, .H = 1, .W = 1, .C = 1, .K = 25600, .real = CR_F32, .big = true};
        checkops_list_add(list, &c);
    }
    checkops_list_fused_full_size(list);
    for (size_t k = 0; k < CR_COUNT(convs); k++)
        for (size_t i = 0; i < CR_COUNT(layers); i++) {
            const struct checkops_case c = case_of(&layers[i], convs[k], 256, CR_F16);
            checkops_list_add(list, &c);
        }
}
