/* tests/checkops/checkops_gram.c: cases of 1x1 convolutions whose BN takes its statistics from a Gram matrix. */
#include "tests/checkops/checkops.h"

enum {
    SCALE_BIAS = CHECKOPS_SCALE_BIAS,
    OUT_BN     = CHECKOPS_OUT_SCALE_BIAS,
    END        = CHECKOPS_OUT_SCALE_BIAS | CHECKOPS_RELU | CHECKOPS_ADD,
    BN         = CHECKOPS_SCALE_BIAS | CHECKOPS_BN,
};

/* Stages 1 to 3 of ResNet-50, and small shapes. */
static const struct checkops_shape shapes[] = {
    {1, 1, 1, 3, 8, 1, 1, 0, false},      {2, 5, 4, 7, 13, 1, 1, 0, false},     {2, 7, 6, 8, 16, 1, 2, 0, false},
    {1, 5, 4, 16, 24, 1, 3, 0, false},    {1, 5, 7, 64, 256, 1, 1, 0, true},    {3, 9, 8, 64, 72, 1, 1, 0, true},
    {2, 14, 14, 64, 256, 1, 1, 0, true},  {1, 14, 14, 128, 512, 1, 1, 0, true}, {1, 15, 13, 64, 256, 1, 2, 0, true},
    {1, 9, 7, 256, 1024, 1, 1, 0, true},  {5, 13, 11, 64, 256, 1, 1, 0, true},  {3, 9, 8, 64, 192, 1, 1, 0, true},
    {2, 13, 14, 256, 512, 1, 2, 0, true}, {1, 7, 9, 512, 1024, 1, 2, 0, true},
};
/* All families for the kernels of devices that need 64 channels and more. */
static const struct checkops_shape for_families = {2, 9, 8, 64, 256, 1, 1, 0, false};

static const struct checkops_job jobs[] = {
    {CR_OP_gram, 0},
    {CR_OP_gram, SCALE_BIAS},
    {CR_OP_gram_bn_finalize, 0},
    {CR_OP_gram_bn_sums, 0},
    {CR_OP_gram_bn_grad_sums, 0},
    {CR_OP_gram_bn_grad, 0},
    {CR_OP_gram_bn_grad, CHECKOPS_ACCUMULATE},
    {CR_OP_gram_bn_grad, CHECKOPS_SUMS},
    {CR_OP_gram_bn_grad, CHECKOPS_SUMS | CHECKOPS_ACCUMULATE},
    {CR_OP_gram_dgrad, 0},
    {CR_OP_gram_dgrad, SCALE_BIAS},
    {CR_OP_gram_dgrad, CHECKOPS_ADD},
    {CR_OP_gram_dgrad, CHECKOPS_ADD | CHECKOPS_RELU},
    {CR_OP_gram_dgrad, BN},
    {CR_OP_conv, OUT_BN},
    {CR_OP_conv, OUT_BN | SCALE_BIAS},
    {CR_OP_conv, OUT_BN | CHECKOPS_RELU},
    {CR_OP_conv, END | CHECKOPS_BITS},
    {CR_OP_conv, END | CHECKOPS_BITS | SCALE_BIAS},
    {CR_OP_conv_wgrad, CHECKOPS_SUMS},
    {CR_OP_conv_wgrad, CHECKOPS_SUMS | SCALE_BIAS},
};

static bool exists(const struct checkops_case *c) {
    if (c->flags & CHECKOPS_BITS && c->K % 8) return false;
    return !(c->kind == CR_OP_gram_dgrad && c->flags & CHECKOPS_BN && c->stride > 1);
}

void checkops_list_gram(struct checkops_list *out) {
    for (size_t j = 0; j < CR_COUNT(jobs); j++) {
        for (size_t i = 0; i < CR_COUNT(shapes); i++) {
            const struct checkops_case c = checkops_case_of(&shapes[i], jobs[j].kind, jobs[j].flags);
            if (!exists(&c) || (c.big && out->extent == CHECKOPS_WIDE)) continue;
            checkops_list_add_types(out, &c, i);
        }
        const struct checkops_case c = checkops_case_of(&for_families, jobs[j].kind, jobs[j].flags);
        if (out->extent != CHECKOPS_WIDE) checkops_list_add_types(out, &c, 0);
    }
}

static void add_layer(struct checkops_list *out, const struct checkops_shape *shape, const struct checkops_job *job) {
    struct checkops_case c = checkops_case_of(shape, job->kind, job->flags);
    c.real                 = CR_F16;
    checkops_list_add(out, &c);
}

/* The widening convolutions of ResNet-50 as its fused program has them: those at the end of a block, then shortcuts. */
void checkops_list_gram_layers(struct checkops_list *out) {
    static const struct checkops_shape ends[]        = {{48, 56, 56, 64, 256, 1, 1, 0, true},
                                                        {48, 28, 28, 128, 512, 1, 1, 0, true},
                                                        {48, 14, 14, 256, 1024, 1, 1, 0, true}},
                                       shortcuts[]   = {{48, 56, 56, 64, 256, 1, 1, 0, true},
                                                        {48, 56, 56, 256, 512, 1, 2, 0, true},
                                                        {48, 28, 28, 512, 1024, 1, 2, 0, true}};
    static const struct checkops_job end_jobs[]      = {{CR_OP_gram, SCALE_BIAS},
                                                        {CR_OP_gram_bn_finalize, 0},
                                                        {CR_OP_gram_bn_sums, 0},
                                                        {CR_OP_conv, END | SCALE_BIAS},
                                                        {CR_OP_conv_wgrad, CHECKOPS_SUMS | SCALE_BIAS},
                                                        {CR_OP_gram_bn_grad_sums, 0},
                                                        {CR_OP_gram_bn_grad, 0},
                                                        {CR_OP_gram_bn_grad, CHECKOPS_SUMS},
                                                        {CR_OP_gram_dgrad, BN}},
                                     shortcut_jobs[] = {{CR_OP_gram, 0},
                                                        {CR_OP_conv, OUT_BN},
                                                        {CR_OP_conv_wgrad, CHECKOPS_SUMS},
                                                        {CR_OP_gram_dgrad, 0}};
    for (size_t i = 0; i < CR_COUNT(ends); i++) {
        for (size_t j = 0; j < CR_COUNT(end_jobs); j++) add_layer(out, &ends[i], &end_jobs[j]);
        for (size_t j = 0; j < CR_COUNT(shortcut_jobs); j++) add_layer(out, &shortcuts[i], &shortcut_jobs[j]);
    }
}
