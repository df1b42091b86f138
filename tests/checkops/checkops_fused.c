/* tests/checkops/checkops_fused.c: cases of fused ops, in the combinations of options that programs use. The numbers
 * of channels are those of the networks in configs/ and their neighbours; bit masks need multiples of 8. */
#include "tests/checkops/checkops.h"

static const struct checkops_shape convs[] = {
    {1, 1, 1, 8, 8, 1, 1, 0, false},      {2, 5, 4, 8, 16, 3, 1, 1, false},     {2, 7, 7, 16, 8, 1, 2, 0, false},
    {1, 6, 5, 16, 16, 3, 2, 1, false},    {1, 3, 3, 3, 7, 3, 1, 1, false},      {2, 4, 4, 72, 24, 1, 1, 0, false},
    {1, 5, 7, 64, 64, 1, 1, 0, false},    {3, 7, 7, 32, 64, 3, 1, 1, false},    {1, 9, 9, 64, 32, 3, 2, 1, false},
    {2, 3, 3, 72, 72, 3, 1, 1, false},    {1, 13, 11, 16, 16, 3, 1, 1, false},  {1, 5, 6, 16, 8, 4, 1, 0, false},
    {1, 17, 15, 8, 128, 1, 1, 0, false},  {4, 32, 32, 16, 16, 3, 1, 1, true},   {3, 32, 32, 16, 32, 3, 2, 1, true},
    {4, 16, 16, 32, 32, 3, 1, 1, true},   {2, 16, 16, 32, 64, 3, 2, 1, true},   {4, 8, 8, 64, 64, 3, 1, 1, true},
    {2, 16, 16, 32, 64, 1, 2, 0, true},   {2, 14, 14, 64, 256, 1, 1, 0, true},  {2, 14, 14, 256, 64, 1, 1, 0, true},
    {1, 14, 14, 256, 128, 1, 1, 0, true}, {1, 14, 14, 128, 512, 1, 1, 0, true}, {1, 14, 14, 512, 128, 1, 1, 0, true},
    {2, 14, 14, 64, 64, 3, 1, 1, true},   {1, 14, 14, 128, 128, 3, 1, 1, true}, {1, 14, 14, 128, 128, 3, 2, 1, true},
    {1, 7, 7, 256, 256, 3, 1, 1, true},   {2, 14, 14, 64, 128, 1, 2, 0, true},  {1, 14, 14, 256, 512, 1, 2, 0, true},
    {2, 13, 7, 72, 136, 1, 1, 0, true},   {1, 7, 7, 256, 1024, 1, 1, 0, true},  {1, 7, 7, 1024, 256, 1, 1, 0, true},
    {1, 35, 35, 16, 64, 4, 1, 0, true},
};
static const struct checkops_shape images[] = {
    {1, 1, 1, 8, 0, 0, 0, 0, false},  {1, 1, 1, 3, 0, 0, 0, 0, false},    {2, 3, 5, 16, 0, 0, 0, 0, false},
    {1, 7, 7, 24, 0, 0, 0, 0, false}, {3, 5, 3, 64, 0, 0, 0, 0, false},   {1, 3, 3, 72, 0, 0, 0, 0, false},
    {5, 1, 1, 7, 0, 0, 0, 0, false},  {1, 1, 31, 32, 0, 0, 0, 0, false},  {2, 2, 1, 1000, 0, 0, 0, 0, false},
    {1, 1, 241, 8, 0, 0, 0, 0, true}, {2, 32, 32, 16, 0, 0, 0, 0, true},  {3, 16, 16, 32, 0, 0, 0, 0, true},
    {4, 8, 8, 64, 0, 0, 0, 0, true},  {1, 28, 28, 128, 0, 0, 0, 0, true}, {2, 14, 14, 256, 0, 0, 0, 0, true},
    {2, 7, 7, 512, 0, 0, 0, 0, true}, {1, 4, 4, 2048, 0, 0, 0, 0, true},  {1, 56, 56, 64, 0, 0, 0, 0, true},
};
static const struct checkops_shape pools[] = {
    {1, 2, 2, 3, 0, 2, 2, 0, false},    {2, 5, 4, 7, 0, 3, 2, 1, false},   {1, 7, 7, 16, 0, 3, 2, 1, false},
    {2, 6, 6, 24, 0, 2, 1, 0, false},   {1, 8, 5, 8, 0, 3, 1, 1, false},   {1, 9, 9, 72, 0, 5, 3, 2, false},
    {1, 12, 10, 64, 0, 3, 2, 1, false}, {1, 16, 16, 64, 0, 3, 2, 1, true}, {1, 56, 56, 64, 0, 3, 2, 1, true},
};
static const struct checkops_shape input_images[] = {
    /* even sides, for space-to-depth */
    {1, 2, 2, 3, 0, 0, 0, 0, false},   {2, 4, 6, 3, 0, 0, 0, 0, false},  {3, 10, 8, 3, 0, 0, 0, 0, false},
    {1, 34, 26, 3, 0, 0, 0, 0, false}, {2, 64, 64, 3, 0, 0, 0, 0, true}, {1, 224, 224, 3, 0, 0, 0, 0, true},
};
static const struct checkops_shape stems[] = {
    /* K filters */
    {1, 1, 1, 1, 1, 0, 0, 0, false},
    {1, 1, 1, 1, 7, 0, 0, 0, false},
    {1, 1, 1, 1, 16, 0, 0, 0, false},
    {1, 1, 1, 1, 64, 0, 0, 0, true},
};

/* Convolutions that finish the sums of a BN: those of the CIFAR networks, and small ones for all families. */
static const struct checkops_shape cifar[] = {
    {2, 6, 5, 8, 16, 3, 1, 1, false},   {1, 5, 7, 16, 24, 1, 2, 0, false},  {1, 8, 8, 64, 64, 3, 1, 1, false},
    {4, 32, 32, 16, 16, 3, 1, 1, true}, {3, 32, 32, 16, 32, 3, 2, 1, true}, {2, 32, 32, 16, 32, 1, 2, 0, true},
    {4, 16, 16, 32, 32, 3, 1, 1, true}, {2, 16, 16, 32, 64, 3, 2, 1, true}, {3, 16, 16, 32, 64, 1, 2, 0, true},
    {5, 8, 8, 64, 64, 3, 1, 1, true},   {3, 32, 32, 3, 16, 3, 1, 1, true},
};
/* The same with pruned channels. */
static const struct checkops_shape narrow[] = {
    {4, 32, 32, 8, 8, 3, 1, 1, true},   {3, 32, 32, 8, 16, 3, 1, 1, true},  {5, 32, 32, 16, 8, 3, 1, 1, true},
    {3, 32, 32, 16, 24, 3, 2, 1, true}, {2, 32, 32, 8, 32, 3, 2, 1, true},  {3, 32, 32, 8, 8, 3, 2, 1, true},
    {2, 32, 32, 8, 24, 1, 2, 0, true},  {3, 32, 32, 16, 8, 1, 2, 0, true},  {4, 16, 16, 24, 32, 3, 1, 1, true},
    {3, 16, 16, 32, 8, 3, 1, 1, true},  {5, 16, 16, 16, 16, 3, 1, 1, true}, {2, 16, 16, 8, 24, 3, 1, 1, true},
    {3, 16, 16, 24, 48, 3, 2, 1, true}, {2, 16, 16, 32, 24, 3, 2, 1, true}, {5, 16, 16, 8, 64, 3, 2, 1, true},
    {3, 16, 16, 24, 56, 1, 2, 0, true}, {4, 16, 16, 16, 8, 1, 2, 0, true},  {5, 8, 8, 48, 64, 3, 1, 1, true},
    {6, 8, 8, 64, 56, 3, 1, 1, true},   {3, 8, 8, 8, 40, 3, 1, 1, true},    {7, 8, 8, 32, 32, 3, 1, 1, true},
    {2, 8, 8, 40, 16, 3, 1, 1, true},   {140, 8, 8, 24, 48, 3, 1, 1, true}, {140, 32, 32, 8, 8, 3, 1, 1, true},
    {3, 32, 32, 3, 8, 3, 1, 1, true},
};
#define INFERENCE                                                                                                      \
    CHECKOPS_BIAS, CHECKOPS_BIAS | CHECKOPS_RELU, CHECKOPS_BIAS | CHECKOPS_ADD,                                        \
        CHECKOPS_BIAS | CHECKOPS_ADD | CHECKOPS_RELU

#define FLAGS CHECKOPS_FLAGS
#define TABLE CHECKOPS_TABLE

static void list(struct checkops_list *out, enum cr_op_kind kind, struct checkops_table table, const unsigned *flags,
                 size_t variants) {
    for (size_t i = 0; i < table.shapes; i++)
        for (size_t v = 0; v < variants; v++) {
            const struct checkops_case c = checkops_case_of(&table.shape[i], kind, flags[v]);
            if (c.flags & CHECKOPS_BITS && c.C % 8) continue;
            if (c.big && out->extent == CHECKOPS_WIDE)
                continue; /* only the reference supports these, so small ones suffice */
            checkops_list_add_types(out, &c, i);
        }
}

/* Options of conv_grad in programs of the networks in configs/: a convolution inside a block reads act(x), one at
 * the start of a block reads the output of the block before; the first convolution of a network has no dx. */
#define INNER (CHECKOPS_FROZEN_BN | CHECKOPS_SCALE_BIAS | CHECKOPS_BN)
#define FIRST (CHECKOPS_FROZEN_BN | CHECKOPS_BN)
/* The block before has BN statistics from a Gram matrix. */
#define MASKED (CHECKOPS_FROZEN_BN | CHECKOPS_MASK | CHECKOPS_ADD)

static void list_convs(struct checkops_list *out) {
    list(out, CR_OP_conv, TABLE(convs),
         FLAGS(CHECKOPS_SUMS, CHECKOPS_SCALE_BIAS, CHECKOPS_SCALE_BIAS | CHECKOPS_SUMS,
               CHECKOPS_SCALE_BIAS | CHECKOPS_SCALE_BIAS_HALF | CHECKOPS_SUMS,
               CHECKOPS_SCALE_BIAS | CHECKOPS_SCALE_BIAS_HALF, CHECKOPS_BIAS, CHECKOPS_BIAS | CHECKOPS_RELU,
               CHECKOPS_BIAS | CHECKOPS_ADD, CHECKOPS_BIAS | CHECKOPS_ADD | CHECKOPS_RELU));
    list(out, CR_OP_conv_wgrad, TABLE(convs),
         FLAGS(CHECKOPS_SCALE_BIAS, CHECKOPS_SCALE_BIAS | CHECKOPS_ACCUMULATE,
               CHECKOPS_SCALE_BIAS | CHECKOPS_SCALE_BIAS_HALF,
               CHECKOPS_SCALE_BIAS | CHECKOPS_SCALE_BIAS_HALF | CHECKOPS_ACCUMULATE));
    list(out, CR_OP_conv_dgrad, TABLE(convs), FLAGS(CHECKOPS_ADD, CHECKOPS_BN, CHECKOPS_BN | CHECKOPS_ADD));
    list(out, CR_OP_conv_grad, TABLE(convs),
         FLAGS(0, CHECKOPS_ACCUMULATE, CHECKOPS_ADD, CHECKOPS_SCALE_BIAS, CHECKOPS_FROZEN_BN,
               CHECKOPS_FROZEN_BN | CHECKOPS_ADD, CHECKOPS_FROZEN_BN | CHECKOPS_SCALE_BIAS,
               CHECKOPS_SCALE_BIAS | CHECKOPS_BN, INNER, INNER | CHECKOPS_ACCUMULATE, INNER | CHECKOPS_ADD,
               CHECKOPS_BN | CHECKOPS_ADD, FIRST, FIRST | CHECKOPS_ADD, FIRST | CHECKOPS_ADD | CHECKOPS_ACCUMULATE,
               CHECKOPS_FROZEN_BN | CHECKOPS_NO_DX, CHECKOPS_FROZEN_BN | CHECKOPS_SCALE_BIAS | CHECKOPS_NO_DX));
}

/* TWO: the summand is the gradient of a shortcut without parameters. */
static void list_shortcuts(struct checkops_list *out) {
    static const struct checkops_shape shapes[] = {
        {2, 32, 32, 16, 32, 3, 2, 1, false},  {3, 16, 16, 32, 64, 3, 2, 1, false},
        {2, 32, 32, 8, 24, 3, 2, 1, false},   {1, 6, 5, 2, 4, 3, 2, 1, false},
        {128, 32, 32, 16, 32, 3, 2, 1, true}, {300, 16, 16, 32, 64, 3, 2, 1, true}};
    list(out, CR_OP_conv_grad, TABLE(shapes),
         FLAGS(CHECKOPS_TWO, FIRST | CHECKOPS_TWO, FIRST | CHECKOPS_TWO | CHECKOPS_FINISH));
}

static void list_finishing(struct checkops_list *out) {
    const struct checkops_table tables[] = {TABLE(cifar), TABLE(narrow)};
    for (size_t i = 0; i < CR_COUNT(tables); i++) {
        struct checkops_table inner = tables[i];
        inner.shapes--; /* the stem has no op before it */
        list(out, CR_OP_conv, tables[i], FLAGS(CHECKOPS_SUMS | CHECKOPS_FINISH));
        list(out, CR_OP_conv, inner, FLAGS(CHECKOPS_SCALE_BIAS | CHECKOPS_SUMS | CHECKOPS_FINISH));
        list(out, CR_OP_conv_grad, inner,
             FLAGS(INNER | CHECKOPS_FINISH, INNER | CHECKOPS_FINISH | CHECKOPS_ACCUMULATE,
                   FIRST | CHECKOPS_ADD | CHECKOPS_FINISH, CHECKOPS_SCALE_BIAS | CHECKOPS_BN | CHECKOPS_FINISH));
    }
    list(out, CR_OP_conv, TABLE(cifar), FLAGS(INFERENCE));
    list(out, CR_OP_conv, TABLE(narrow), FLAGS(0, CHECKOPS_SUMS, INFERENCE));
    list(out, CR_OP_conv_grad, TABLE(narrow),
         FLAGS(0, CHECKOPS_ADD, CHECKOPS_ACCUMULATE, CHECKOPS_FROZEN_BN | CHECKOPS_NO_DX));
}

static void list_pointwise(struct checkops_list *out) {
    list(out, CR_OP_bn_apply, TABLE(images),
         FLAGS(CHECKOPS_RELU | CHECKOPS_BITS, CHECKOPS_RELU | CHECKOPS_ADD | CHECKOPS_BITS,
               CHECKOPS_RELU | CHECKOPS_ADD | CHECKOPS_ADD_SCALE_BIAS | CHECKOPS_BITS));
    list(out, CR_OP_relu_grad, TABLE(images),
         FLAGS(CHECKOPS_BITS, CHECKOPS_ADD, CHECKOPS_ADD | CHECKOPS_BITS, CHECKOPS_BN, CHECKOPS_BN | CHECKOPS_BITS,
               CHECKOPS_BN | CHECKOPS_BN2, CHECKOPS_BN | CHECKOPS_BN2 | CHECKOPS_BITS, CHECKOPS_ADD | CHECKOPS_BN,
               CHECKOPS_ADD | CHECKOPS_BN | CHECKOPS_BITS, CHECKOPS_ADD | CHECKOPS_BN | CHECKOPS_BN2,
               CHECKOPS_ADD | CHECKOPS_BN | CHECKOPS_BN2 | CHECKOPS_BITS));
    list(out, CR_OP_bn_grad_sums, TABLE(images), FLAGS(CHECKOPS_MASK | CHECKOPS_BITS, CHECKOPS_MASK_FROM_X));
    list(out, CR_OP_bn_grad_apply, TABLE(images), FLAGS(CHECKOPS_MASK | CHECKOPS_BITS, CHECKOPS_MASK_FROM_X));
}

/* The copy has the program's type, all other tensors are f32. */
static void list_scale_bias_copies(struct checkops_list *out) {
    static const enum cr_dtype types[] = {CR_F32, CR_F64, CR_F16, CR_BF16};
    for (size_t i = 0; i < CR_COUNT(images); i++)
        for (size_t t = 0; t < CR_COUNT(types); t++) {
            struct checkops_case c = checkops_case_of(&images[i], CR_OP_bn_finalize, CHECKOPS_SCALE_BIAS_HALF);
            c.real                 = types[t];
            if ((t < 2 && i > 3) || (c.big && out->extent == CHECKOPS_WIDE)) continue;
            checkops_list_add(out, &c);
        }
}

/* Ops around BN statistics from Gram matrices that exist without them, too. In `many_pixels` the thread blocks of fused
 * kernels have several tiles. */
static void list_gram_neighbours(struct checkops_list *out) {
    static const struct checkops_shape many_pixels[] = {{8, 56, 56, 256, 64, 1, 1, 0, true},
                                                        {12, 28, 28, 512, 128, 1, 1, 0, true},
                                                        {24, 14, 14, 1024, 256, 1, 1, 0, true}};
    list(out, CR_OP_conv_grad, TABLE(many_pixels), FLAGS(MASKED, MASKED & ~CHECKOPS_FROZEN_BN));
    list(out, CR_OP_conv_grad, TABLE(convs),
         FLAGS(CHECKOPS_MASK, CHECKOPS_MASK | CHECKOPS_ADD | CHECKOPS_BITS, CHECKOPS_FROZEN_BN | CHECKOPS_MASK,
               CHECKOPS_FROZEN_BN | CHECKOPS_MASK | CHECKOPS_ADD));
    list(out, CR_OP_bn_finalize, TABLE(images), FLAGS(CHECKOPS_BN));
}

void checkops_list_fused(struct checkops_list *out) {
    list_convs(out);
    list_shortcuts(out);
    checkops_list_gram(out);
    list_gram_neighbours(out);
    checkops_list_sparse(out, convs, CR_COUNT(convs));
    list_finishing(out);
    list_pointwise(out);
    list_scale_bias_copies(out);
    list(out, CR_OP_maxpool, TABLE(pools), FLAGS(CHECKOPS_SCALE_BIAS, CHECKOPS_SCALE_BIAS | CHECKOPS_NO_INDEX));
    list(out, CR_OP_pool_bn_grad_sums, TABLE(pools), FLAGS(0));
    list(out, CR_OP_pool_bn_grad_apply, TABLE(pools), FLAGS(0));
    list(out, CR_OP_normalize, TABLE(input_images), FLAGS(CHECKOPS_S2D, CHECKOPS_S2D | CHECKOPS_BOXES));
    list(out, CR_OP_fold_bn, TABLE(convs), FLAGS(0));
    list(out, CR_OP_s2d_filter, TABLE(stems), FLAGS(0));
    list(out, CR_OP_s2d_filter_grad, TABLE(stems), FLAGS(0, CHECKOPS_ACCUMULATE));
    list(out, CR_OP_conv, (struct checkops_table){&convs[CR_COUNT(convs) - 1], 1},
         FLAGS(0)); /* the stem's convolution, not fused */
    list(out, CR_OP_conv_wgrad, (struct checkops_table){&convs[CR_COUNT(convs) - 1], 1}, FLAGS(0, CHECKOPS_ACCUMULATE));
}

/* ---- layers at full resolution ---- */

static const struct checkops_shape layers[] = {
    {2, 115, 115, 16, 64, 4, 1, 0, true},  {2, 56, 56, 64, 64, 1, 1, 0, true},   {2, 56, 56, 64, 64, 3, 1, 1, true},
    {2, 56, 56, 64, 256, 1, 1, 0, true},   {2, 56, 56, 256, 64, 1, 1, 0, true},  {2, 56, 56, 256, 128, 1, 1, 0, true},
    {2, 56, 56, 128, 128, 3, 2, 1, true},  {2, 56, 56, 256, 512, 1, 2, 0, true}, {2, 28, 28, 128, 512, 1, 1, 0, true},
    {2, 28, 28, 512, 128, 1, 1, 0, true},  {2, 28, 28, 128, 128, 3, 1, 1, true}, {2, 14, 14, 256, 1024, 1, 1, 0, true},
    {2, 14, 14, 1024, 256, 1, 1, 0, true}, {2, 14, 14, 256, 256, 3, 1, 1, true}, {2, 7, 7, 512, 2048, 1, 1, 0, true},
    {2, 7, 7, 512, 512, 3, 1, 1, true},
};

static const struct checkops_job layer_jobs[] = {
    {CR_OP_conv, CHECKOPS_SUMS},
    {CR_OP_conv, CHECKOPS_SCALE_BIAS | CHECKOPS_SCALE_BIAS_HALF | CHECKOPS_SUMS},
    {CR_OP_conv, CHECKOPS_SCALE_BIAS | CHECKOPS_SUMS},
    {CR_OP_conv, CHECKOPS_BIAS | CHECKOPS_RELU},
    {CR_OP_conv, CHECKOPS_BIAS | CHECKOPS_ADD | CHECKOPS_RELU},
    {CR_OP_conv_wgrad, CHECKOPS_SCALE_BIAS | CHECKOPS_SCALE_BIAS_HALF},
    {CR_OP_conv_wgrad, CHECKOPS_SCALE_BIAS},
    {CR_OP_conv_dgrad, CHECKOPS_BN},
    {CR_OP_conv_grad, INNER},
    {CR_OP_conv_grad, FIRST | CHECKOPS_ADD},
    {CR_OP_conv_grad, MASKED},
    {CR_OP_conv_grad, MASKED & ~CHECKOPS_FROZEN_BN},
};

void checkops_list_fused_layers(struct checkops_list *out) {
    static const enum cr_dtype types[] = {CR_F16, CR_BF16};
    for (size_t t = 0; t < CR_COUNT(types); t++)
        for (size_t j = 0; j < CR_COUNT(layer_jobs); j++)
            for (size_t i = 0; i < CR_COUNT(layers); i++) {
                struct checkops_case c = checkops_case_of(&layers[i], layer_jobs[j].kind, layer_jobs[j].flags);
                c.real                 = types[t];
                checkops_list_add(out, &c);
            }
    checkops_list_gram_layers(out);
}
