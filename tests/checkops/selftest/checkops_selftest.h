/* tests/checkops/selftest/checkops_selftest.h: shared by the files of the self test. */
#ifndef CHECKOPS_SELFTEST_H
#define CHECKOPS_SELFTEST_H

#include "tests/checkops/checkops.h"

/* Version 14 of clang-format moves a backslash beyond column 120. */
/* clang-format off */
#define CHECKOPS_KERNEL(text, kind, how, who, function)                                                                \
    {                                                                                                                  \
        .name          = text,                                                                                         \
        .op            = CR_OP_##kind,                                                                                 \
        .math          = CR_MATH_##how,                                                                                \
        .deterministic = true,                                                                                         \
        .accepts       = who,                                                                                          \
        .launch        = function                                                                                      \
    }
/* clang-format on */

/* checkops must detect an error in those whose name begins with "bad", and in no other. */
extern const struct cr_kernel checkops_wrong_kernels[];
extern const int              checkops_wrong_kernel_count;

/* The kernels of the CPU. The device under test has only the wrong kernel. */
extern const struct cr_kernel *const *checkops_reference_kernels;
/* Runs the reference kernel of the op. */
cr_status               checkops_reference(struct cr_device *device, const struct cr_call *call);
const struct cr_tensor *checkops_out_tensor(const struct cr_call *call, int slot);

#endif
