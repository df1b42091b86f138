/* device/cpu/reference/ref_host_copy.c: offload, prefetch and barrier. On the CPU both sides are host memory, and an op
 * is complete when it returns. */
#include "device/cpu/reference/ref.h"

cr_status cr_ref_offload(struct cr_device *device, const struct cr_call *call) {
    (void)device;
    struct ref x = REF_IN(offload, x), y = REF_OUT(offload, y);
    ref_copy_old(&x, &y);
    return CR_OK;
}

cr_status cr_ref_prefetch(struct cr_device *device, const struct cr_call *call) {
    (void)device;
    struct ref x = REF_IN(prefetch, x), y = REF_OUT(prefetch, y);
    ref_copy_old(&x, &y);
    return CR_OK;
}

cr_status cr_ref_barrier(struct cr_device *device, const struct cr_call *call) {
    (void)device;
    (void)call;
    return CR_OK;
}
