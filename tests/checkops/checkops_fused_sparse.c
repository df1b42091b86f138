/* tests/checkops/checkops_fused_sparse.c: cases of convolutions whose filters have a sparsity pattern. */
#include "tests/checkops/checkops.h"

/* For kernels that need whole blocks: 64 channels and multiples of 64, images that fill no tile, several images. */
static const struct checkops_shape blocked[] = {
    {1, 5, 7, 64, 64, 1, 1, 0, false},   {2, 6, 5, 64, 192, 3, 1, 1, false},   {1, 7, 7, 128, 64, 3, 2, 1, false},
    {3, 3, 3, 192, 128, 1, 2, 0, false}, {5, 7, 7, 128, 128, 3, 1, 1, true},   {2, 28, 28, 64, 128, 3, 1, 1, true},
    {1, 20, 60, 128, 64, 3, 1, 1, true}, {2, 14, 14, 128, 256, 3, 2, 1, true}, {3, 14, 14, 256, 320, 1, 1, 0, true},
    {2, 9, 130, 64, 64, 3, 1, 1, true},
};

/* Filters with a sparsity pattern: each weight format that a device may have, with varying type except for the
 * f32-only formats. Kernels refuse formats of other kernels. */
static void list_patterns(struct checkops_list *out, const struct checkops_shape *convs, size_t count) {
    static const unsigned ends[] = {0, CHECKOPS_BIAS | CHECKOPS_RELU, CHECKOPS_BIAS | CHECKOPS_ADD | CHECKOPS_RELU};
    static const enum cr_dtype types[] = {CR_F32, CR_F16, CR_BF16};
    const bool                 wide    = out->extent == CHECKOPS_WIDE; /* the CPU has one weight format and one type */
    for (size_t i = 0; i < count; i++)
        for (size_t f = 0, variant = i; f < (wide ? 1 : CR_SPARSE_FORMATS); f++) {
            struct checkops_case c = checkops_case_of(&convs[i], CR_OP_conv, CHECKOPS_PATTERN);
            c.format               = cr_sparse_format_at((int)f);
            if (c.format.kernel == CR_SPARSE_TWO_FOUR || c.format.kernel == CR_SPARSE_BLOCK) continue;
            const bool f32_only = wide || c.format.kernel == CR_SPARSE_WGMMA_SP;
            c.flags |= ends[(i + (variant - i) / 2) % CR_COUNT(ends)];
            c.real = f32_only ? CR_F32 : types[variant % CR_COUNT(types)];
            variant++;
            checkops_list_add(out, &c);
            c.kind  = CR_OP_sparse_filter;
            c.flags = CHECKOPS_PATTERN;
            if (!c.big || (c.C == 256 && c.K == 256)) checkops_list_add(out, &c);
        }
}

/* 2:4: the weight formats for 2:4 filters only, in the types that have kernels, and two formats for any pattern.
 * Layers of ResNet-50 and small shapes: several tiles, several images. */
static void list_two_of_four(struct checkops_list *out, const struct checkops_shape *convs, size_t count) {
    static const struct checkops_shape layers[] = {
        {5, 14, 14, 128, 192, 3, 1, 1, true}, {9, 7, 7, 192, 128, 3, 1, 1, true}, {3, 28, 28, 64, 128, 3, 2, 1, true},
        {9, 14, 14, 64, 72, 3, 2, 1, true},   {2, 11, 29, 80, 64, 3, 1, 1, true}, {2, 10, 6, 24, 8, 5, 3, 2, true}};
    static const unsigned ends[] = {CHECKOPS_BIAS | CHECKOPS_ADD | CHECKOPS_RELU, 0, CHECKOPS_BIAS | CHECKOPS_RELU};
    static const enum cr_dtype types[]  = {CR_F16, CR_BF16};
    const unsigned             two_four = CHECKOPS_PATTERN | CHECKOPS_TWO;
    if (out->extent == CHECKOPS_WIDE) return;
    for (size_t i = 0; i < count + CR_COUNT(layers); i++)
        for (int f = 0; f < CR_SPARSE_FORMATS; f++) {
            const struct cr_sparse_format format = cr_sparse_format_at(f);
            const size_t                  number = (size_t)cr_sparse_format_number(format);
            const struct checkops_shape  *shape  = i < count ? &convs[i] : &layers[i - count];
            struct checkops_case          c =
                checkops_case_of(shape, CR_OP_conv, two_four | ends[(i + number) % CR_COUNT(ends)]);
            c.format = format;
            c.real   = types[(i + number / 3) % CR_COUNT(types)];
            if (c.C % 8 || c.K % 8 || (f > 1 && format.kernel != CR_SPARSE_TWO_FOUR)) continue;
            checkops_list_add(out, &c);
            c.kind  = CR_OP_sparse_filter;
            c.flags = CHECKOPS_PATTERN | CHECKOPS_TWO;
            if (!c.big) checkops_list_add(out, &c);
        }
}

/* Strides, paddings and sides that no network in configs/ has. */
static const struct checkops_shape odd[] = {
    {1, 1, 1, 1, 1, 1, 1, 0, false},  {2, 9, 8, 7, 5, 3, 3, 1, false},    {1, 8, 9, 16, 12, 5, 2, 2, false},
    {1, 6, 7, 8, 8, 3, 1, 0, false},  {1, 5, 5, 8, 6, 1, 1, 1, false},    {3, 7, 5, 4, 6, 2, 2, 1, false},
    {3, 9, 9, 3, 16, 7, 2, 3, false}, {1, 5, 5, 8, 8, 3, 3, 0, false},    {1, 4, 4, 12, 9, 1, 3, 0, false},
    {2, 8, 8, 8, 8, 3, 4, 1, false},  {33, 2, 3, 5, 34, 3, 1, 1, false},  {1, 1, 40, 24, 8, 3, 1, 1, false},
    {1, 6, 6, 8, 8, 2, 1, 2, false},  {5, 7, 7, 100, 40, 1, 1, 0, false}, {1, 9, 7, 33, 70, 3, 2, 0, false},
};

/* Gradients of such convolutions, which exist in f32 only. On a device with many weight formats each shape gets
 * every `every`th format. */
static void list_pattern_grads(struct checkops_list *out, const struct checkops_shape *shapes, size_t count,
                               int every) {
    static const unsigned dgrads[] = {0, CHECKOPS_BN, CHECKOPS_ADD, CHECKOPS_BN | CHECKOPS_ADD},
                          wgrads[] = {0, CHECKOPS_ACCUMULATE};
    /* Kernels refuse the formats after CR_SPARSE_DIRECT. */
    const int layouts = out->extent == CHECKOPS_WIDE ? 1 : 1 + cr_sparse_tiles(CR_SPARSE_DIRECT) + 1;
    for (size_t i = 0; i < count; i++)
        for (int format_index = 0; format_index < layouts; format_index++) {
            const size_t turn = i + (size_t)format_index / 2;
            if (layouts > 1 && ((int)i + format_index) % every) continue;
            struct checkops_case c =
                checkops_case_of(&shapes[i], CR_OP_conv_dgrad, CHECKOPS_PATTERN | dgrads[turn % CR_COUNT(dgrads)]);
            c.format = cr_sparse_format_at(format_index);
            if (c.C % 8) c.flags &= ~(unsigned)CHECKOPS_BN;
            checkops_list_add(out, &c);
            c.kind  = CR_OP_conv_wgrad;
            c.flags = CHECKOPS_PATTERN | wgrads[turn % CR_COUNT(wgrads)];
            checkops_list_add(out, &c);
        }
}

/* Block-sparse filters: formats of devices that have kernels for them, 16-bit types only. */
static void list_blocks(struct checkops_list *out) {
    const size_t               tiles  = (size_t)cr_sparse_tiles(CR_SPARSE_BLOCK);
    static const unsigned      ends[] = {0, CHECKOPS_BIAS | CHECKOPS_RELU, CHECKOPS_BIAS | CHECKOPS_ADD | CHECKOPS_RELU,
                                         CHECKOPS_ADD};
    static const enum cr_dtype types[] = {CR_F16, CR_BF16};
    for (size_t i = 0; i < CR_COUNT(blocked) && out->extent != CHECKOPS_WIDE; i++)
        for (size_t tile = 0; tile < tiles; tile++) {
            struct checkops_case c =
                checkops_case_of(&blocked[i], CR_OP_conv, CHECKOPS_PATTERN | ends[(i + tile / 2) % CR_COUNT(ends)]);
            c.format = (struct cr_sparse_format){CR_SPARSE_BLOCK, (int)tile};
            c.real   = types[(i + tile) % CR_COUNT(types)];
            checkops_list_add(out, &c);
            c.kind  = CR_OP_sparse_filter;
            c.flags = CHECKOPS_PATTERN;
            if (!c.big) checkops_list_add(out, &c);
        }
}

void checkops_list_sparse(struct checkops_list *out, const struct checkops_shape *convs, size_t count) {
    list_patterns(out, convs, count);
    list_two_of_four(out, convs, count);
    list_pattern_grads(out, odd, CR_COUNT(odd), 1);
    list_pattern_grads(out, convs, count, 2);
    list_blocks(out);
}
