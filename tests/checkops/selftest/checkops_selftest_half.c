/* tests/checkops/selftest/checkops_selftest_half.c: wrong kernels for 16-bit types and tensor cores. */
#include "tests/checkops/selftest/checkops_selftest.h"

#include <math.h>
#include <string.h>

static bool is_half(enum cr_dtype dtype) {
    return dtype == CR_F16 || dtype == CR_BF16;
}
bool checkops_only_half(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op) {
    (void)device;
    return is_half(program->tensor[op->out[0]].dtype);
}
bool checkops_not_half(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op) {
    (void)device;
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        if (op->in[s] >= 0 && is_half(program->tensor[op->in[s]].dtype)) return false;
    return !is_half(program->tensor[op->out[0]].dtype);
}

/* The mantissa is truncated to 10 bits, as tf32 may do and f32 may not. */
cr_status checkops_truncates_to_tf32(struct cr_device *device, const struct cr_call *call) {
    struct cr_call narrow  = *call;
    uint32_t      *copy[2] = {NULL, NULL};
    cr_status      status  = CR_OK;
    if (checkops_out_tensor(call, 0)->dtype != CR_F32) return checkops_reference(device, call);
    for (int s = 0; s < 2; s++) {
        const size_t bytes = call->program->tensor[call->op->in[s]].bytes;
        copy[s]            = cr_alloc(bytes, 1);
        if (!copy[s]) CR_FAIL_OUT(CR_ERR_MEMORY, "no memory for a copy");
        memcpy(copy[s], call->in[s], bytes);
        for (size_t i = 0; i < bytes / 4; i++) copy[s][i] &= ~0x1fffu;
        narrow.in[s] = copy[s];
    }
    CR_TRY_OUT(checkops_reference(device, &narrow));
out:
    for (int s = 0; s < 2; s++) cr_free(copy[s]);
    return status;
}

/* Sums are accumulated in the type of the data. */
cr_status checkops_sums_in_16_bits(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = &call->program->tensor[call->op->in[CR_IN_dense_x]], *y = checkops_out_tensor(call, 0);
    (void)device;
    for (int64_t i = 0; i < cr_tensor_elems(y); i++) {
        uint64_t sum = 0; /* one number of y's type */
        for (int64_t c = 0; c < x->dim[3]; c++) {
            const double product = cr_number_load(x->dtype, call->in[CR_IN_dense_x], i / y->dim[3] * x->dim[3] + c) *
                                   cr_number_load(x->dtype, call->in[CR_IN_dense_w], i % y->dim[3] * x->dim[3] + c);
            cr_number_store(y->dtype, &sum, 0, cr_number_load(y->dtype, &sum, 0) + product);
        }
        cr_number_store(y->dtype, call->out[0], i,
                        cr_number_load(y->dtype, &sum, 0) +
                            (double)((const float *)call->in[CR_IN_dense_b])[i % y->dim[3]]);
    }
    return CR_OK;
}

/* The conversion to 16 bits truncates instead of rounding. */
cr_status checkops_truncates_result(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *y = checkops_out_tensor(call, 0);
    (void)device;
    for (int64_t i = 0; i < cr_tensor_elems(y); i++) {
        const double sum  = cr_number_load(y->dtype, call->in[0], i) + cr_number_load(y->dtype, call->in[1], i);
        uint64_t     near = 0; /* one number of y's type */
        cr_number_store(y->dtype, &near, 0, sum);
        if (isfinite(sum) && fabs(cr_number_load(y->dtype, &near, 0)) > fabs(sum)) near--;
        memcpy((uint16_t *)call->out[0] + i, &near, sizeof(uint16_t));
    }
    return CR_OK;
}

/* Overflow gives the largest number instead of infinity. */
cr_status checkops_saturates(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *y = checkops_out_tensor(call, 0);
    CR_TRY(checkops_reference(device, call));
    for (int64_t i = 0; i < cr_tensor_elems(y); i++)
        if (y->dtype == CR_F16 && (((uint16_t *)call->out[0])[i] & 0x7fff) == 0x7c00) ((uint16_t *)call->out[0])[i]--;
    return CR_OK;
}

/* Ties are rounded up instead of to even. */
cr_status checkops_rounds_ties_up(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *y = checkops_out_tensor(call, 0);
    if (y->dtype != CR_BF16) return checkops_reference(device, call);
    for (int64_t i = 0; i < cr_tensor_elems(y); i++) {
        uint32_t bits;
        memcpy(&bits, (const float *)call->in[0] + i, sizeof bits);
        ((uint16_t *)call->out[0])[i] = (uint16_t)((bits + 0x8000u) >> 16);
    }
    return CR_OK;
}
