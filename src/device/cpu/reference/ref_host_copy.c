/* device/cpu/reference/ref_host_copy.c: tensors that wait in the host's memory. Here both places are the host's, and an op is done when it returns. */
#include "device/cpu/reference/ref.h"

cr_status cr_ref_swap_out(struct cr_device *device, const struct cr_call *call) {
    (void)device;
    struct ref x = REF_IN(swap_out, x), y = REF_OUT(swap_out, y);
    ref_carry_over(&x, &y);
    return CR_OK;
}

cr_status cr_ref_swap_in(struct cr_device *device, const struct cr_call *call) {
    (void)device;
    struct ref x = REF_IN(swap_in, x), y = REF_OUT(swap_in, y);
    ref_carry_over(&x, &y);
    return CR_OK;
}

cr_status cr_ref_sync(struct cr_device *device, const struct cr_call *call) {
    (void)device;
    (void)call;
    return CR_OK;
}
