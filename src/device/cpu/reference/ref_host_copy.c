/* device/cpu/reference/ref_host_copy.c: tensors that wait in the host's memory. Here both places are the host's, and an
 * op is done when it returns. */
#include "device/cpu/reference/ref.h"

cr_status cr_ref_offload(struct cr_device *device, const struct cr_call *call) {
    (void)device;
    struct ref x = REF_IN(offload, x), y = REF_OUT(offload, y);
    ref_carry_over(&x, &y);
    return CR_OK;
}

cr_status cr_ref_prefetch(struct cr_device *device, const struct cr_call *call) {
    (void)device;
    struct ref x = REF_IN(prefetch, x), y = REF_OUT(prefetch, y);
    ref_carry_over(&x, &y);
    return CR_OK;
}

cr_status cr_ref_barrier(struct cr_device *device, const struct cr_call *call) {
    (void)device;
    (void)call;
    return CR_OK;
}
