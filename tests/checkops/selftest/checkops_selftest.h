/* tests/checkops/selftest/checkops_selftest.h: shared by the files of the self test. */
#ifndef CHECKOPS_SELFTEST_H
#define CHECKOPS_SELFTEST_H

#include "tests/checkops/checkops.h"

struct checkops_wrong_kernel {
    struct cr_kernel kernel;
    bool             wrong; /* whether checkops must detect an error */
};
extern const struct checkops_wrong_kernel checkops_wrong_kernels[];
extern const int                          checkops_wrong_kernel_count;

/* The kernels of the CPU. The device under test has only the wrong kernel. */
extern const struct cr_kernel *const *checkops_reference_kernels;
/* Runs the reference kernel of the op. */
cr_status               checkops_reference(struct cr_device *device, const struct cr_call *call);
const struct cr_tensor *checkops_out_tensor(const struct cr_call *call, int slot);

/* ---- checkops_selftest_half.c: wrong kernels, and whether they accept an op ---- */
cr_status checkops_rounds_ties_up(struct cr_device *device, const struct cr_call *call);
cr_status checkops_saturates(struct cr_device *device, const struct cr_call *call);
cr_status checkops_sums_in_16_bits(struct cr_device *device, const struct cr_call *call);
cr_status checkops_truncates_result(struct cr_device *device, const struct cr_call *call);
cr_status checkops_truncates_to_tf32(struct cr_device *device, const struct cr_call *call);
bool      checkops_not_half(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
bool      checkops_only_half(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op);

#endif
