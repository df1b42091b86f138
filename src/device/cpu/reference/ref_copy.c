/* device/cpu/reference/ref_copy.c: copies to and from host memory (offload, prefetch, barrier), cast, zero,
 * all_reduce. On the CPU both sides of a copy are host memory, and an op is complete when it returns. */
#include "comm/comm.h"
#include "device/cpu/reference/ref.h"

REF_KERNEL(offload) {
    struct ref x = REF_IN(offload, x), y = REF_OUT(offload, y);
    ref_copy_old(&x, &y);
}

REF_KERNEL(prefetch) {
    struct ref x = REF_IN(prefetch, x), y = REF_OUT(prefetch, y);
    ref_copy_old(&x, &y);
}

REF_KERNEL(barrier) {}

/* ---- all_reduce: sums over the ranks through comm/comm.h (shared memory, or TCP between hosts). The sums are in the
 * order of the ranks, so the same ranks give bitwise identical results. ---- */

/* Rounds the values to the type in which they are transferred. */
static void round_to(enum cr_dtype wire, const struct ref *y) {
    if (cr_dtype_bytes(wire) >= cr_dtype_bytes(y->dtype)) return;
    for (int64_t i = 0; i < y->elems; i++) {
        double bits; /* room for any type */
        cr_number_store(wire, &bits, 0, ref_get(y, i));
        ref_put(y, i, cr_number_load(wire, &bits, 0));
    }
}

cr_status cr_ref_all_reduce(struct cr_device *device, const struct cr_call *call) {
    struct ref          x = REF_IN(all_reduce, x), y = REF_OUT(all_reduce, y);
    const enum cr_dtype wire = call->op->attr.reduce.wire;
    CR_ASSERT(y.dtype == CR_F32 || y.dtype == CR_F64);
    ref_copy_old(&x, &y);
    if (cr_comm_size(device->options.comm) == 1) return CR_OK;
    round_to(wire, &y);
    CR_TRY(cr_comm_all_reduce(device->options.comm, y.data, (size_t)y.elems,
                              y.dtype == CR_F64 ? CR_COMM_F64 : CR_COMM_F32));
    round_to(wire, &y);
    return CR_OK;
}

REF_KERNEL(cast) {
    struct ref x = REF_IN(cast, x), y = REF_OUT(cast, y);
    CR_PARALLEL(i, x.elems) ref_put(&y, i, ref_get(&x, i));
}

REF_KERNEL(zero) {
    struct ref y = REF_OUT(zero, y);
    memset(y.data, 0, (size_t)y.elems * cr_dtype_bytes(y.dtype));
}
