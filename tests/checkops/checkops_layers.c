/* tests/checkops/checkops_layers.c: the layers of ResNet-50 at 224 pixels, because libraries choose their kernels by
 * shape. */
#include "tests/checkops/checkops.h"

static const struct checkops_shape layers[] = {
    {2, 224, 224, 3, 64, 7, 2, 3, true},   {2, 56, 56, 64, 64, 1, 1, 0, true},
    {2, 56, 56, 64, 64, 3, 1, 1, true},    {2, 56, 56, 64, 256, 1, 1, 0, true},
    {2, 56, 56, 256, 64, 1, 1, 0, true},   {2, 56, 56, 256, 128, 1, 1, 0, true},
    {2, 56, 56, 128, 128, 3, 2, 1, true},  {2, 56, 56, 256, 512, 1, 2, 0, true},
    {2, 28, 28, 128, 128, 3, 1, 1, true},  {2, 28, 28, 128, 512, 1, 1, 0, true},
    {2, 28, 28, 512, 128, 1, 1, 0, true},  {2, 28, 28, 512, 256, 1, 1, 0, true},
    {2, 28, 28, 256, 256, 3, 2, 1, true},  {2, 28, 28, 512, 1024, 1, 2, 0, true},
    {2, 14, 14, 256, 256, 3, 1, 1, true},  {2, 14, 14, 256, 1024, 1, 1, 0, true},
    {2, 14, 14, 1024, 256, 1, 1, 0, true}, {2, 14, 14, 1024, 512, 1, 1, 0, true},
    {2, 14, 14, 512, 512, 3, 2, 1, true},  {2, 14, 14, 1024, 2048, 1, 2, 0, true},
    {2, 7, 7, 512, 512, 3, 1, 1, true},    {2, 7, 7, 512, 2048, 1, 1, 0, true},
    {2, 7, 7, 2048, 512, 1, 1, 0, true},
};

void checkops_list_layers(struct checkops_list *list, enum cr_op_kind kind) {
    static const enum cr_dtype types[] = {CR_F32, CR_F16, CR_BF16};
    for (size_t i = 0; i < CR_COUNT(layers); i++)
        for (size_t t = 0; t < CR_COUNT(types); t++) {
            struct checkops_case c = checkops_case_of(&layers[i], kind, 0);
            c.real                 = types[t];
            checkops_list_add(list, &c);
        }
}
