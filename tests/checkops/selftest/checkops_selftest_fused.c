/* tests/checkops/selftest/checkops_selftest_fused.c: fused convolutions with one error each, which must be detected,
 * and with each deviation that a kernel may announce, which must then pass. The results are those of the reference,
 * with another input or changed afterwards: whole kernels that round and sum as devices do are in the main run. */
#include "device/cpu/cpu.h"
#include "tests/checkops/selftest/checkops_selftest.h"

#include <math.h>
#include <string.h>

/* ---- operands ---- */

static const struct cr_tensor *in_tensor(const struct cr_call *call, int slot) {
    return &call->program->tensor[call->op->in[slot]];
}
static bool has_in(const struct cr_call *call, int slot) {
    return call->op->in[slot] >= 0;
}
static double in_at(const struct cr_call *call, int slot, int64_t i) {
    return cr_number_load(in_tensor(call, slot)->dtype, call->in[slot], i);
}
static double out_at(const struct cr_call *call, int slot, int64_t i) {
    return cr_number_load(checkops_out_tensor(call, slot)->dtype, call->out[slot], i);
}
static void set_out(const struct cr_call *call, int slot, int64_t i, double x) {
    cr_number_store(checkops_out_tensor(call, slot)->dtype, call->out[slot], i, x);
}

/* The reference, as if the op did not have this input. */
static cr_status without(struct cr_device *device, const struct cr_call *call, int slot) {
    struct cr_op   op    = *call->op;
    struct cr_call other = *call;
    op.in[slot]          = CR_NONE;
    other.in[slot]       = NULL;
    other.op             = &op;
    return checkops_reference(device, &other);
}

/* The reference, with elements `from` and later of an input replaced. */
static cr_status with_input(struct cr_device *device, const struct cr_call *call, int slot, int64_t from,
                            double (*change)(double x)) {
    struct cr_call          other = *call;
    const struct cr_tensor *t     = in_tensor(call, slot);
    char                   *copy;
    CR_ALLOC(copy, t->bytes);
    memcpy(copy, call->in[slot], t->bytes);
    for (int64_t i = from; i < cr_tensor_elems(t); i++)
        cr_number_store(t->dtype, copy, i, change(cr_number_load(t->dtype, copy, i)));
    other.in[slot]         = copy;
    const cr_status status = checkops_reference(device, &other);
    cr_free(copy);
    return status;
}

/* ---- forward ---- */

static cr_status forgets_activation(struct cr_device *device, const struct cr_call *call) {
    return without(device, call, CR_IN_conv_scale_bias);
}

/* Missing in the sums. */
static cr_status forgets_last_pixel(struct cr_device *device, const struct cr_call *call) {
    CR_TRY(checkops_reference(device, call));
    if (call->op->out[CR_OUT_conv_sums] < 0) return CR_OK;
    const int64_t n = cr_tensor_elems(checkops_out_tensor(call, CR_OUT_conv_y)),
                  K = checkops_out_tensor(call, CR_OUT_conv_y)->dim[3];
    for (int64_t k = 0; k < K; k++) {
        const double y = out_at(call, CR_OUT_conv_y, n - K + k);
        set_out(call, CR_OUT_conv_sums, k, out_at(call, CR_OUT_conv_sums, k) - y);
        set_out(call, CR_OUT_conv_sums, K + k, out_at(call, CR_OUT_conv_sums, K + k) - y * y);
    }
    return CR_OK;
}

/* Means divide by one pixel too many. */
static cr_status finishes_other_count(struct cr_device *device, const struct cr_call *call) {
    struct cr_op   op    = *call->op;
    struct cr_call other = *call;
    op.attr.conv.bn.count++;
    other.op = &op;
    return checkops_reference(device, &other);
}

/* The running variance is not corrected for bias. */
static cr_status finishes_biased(struct cr_device *device, const struct cr_call *call) {
    if (!has_in(call, CR_IN_conv_gamma)) return checkops_reference(device, call);
    const struct cr_bn_attr *a = &call->op->attr.conv.bn;
    const int64_t            K = in_tensor(call, CR_IN_conv_gamma)->dim[3];
    double                  *old;
    CR_ALLOC(old, (size_t)K); /* the output has the storage of the input */
    for (int64_t k = 0; k < K; k++) old[k] = in_at(call, CR_IN_conv_running_var, k);
    const cr_status status = checkops_reference(device, call);
    for (int64_t k = 0; k < K && status == CR_OK; k++) {
        const double now = out_at(call, CR_OUT_conv_running_var, k), kept = (1 - (double)a->momentum) * old[k];
        set_out(call, CR_OUT_conv_running_var, k, kept + (now - kept) * (double)(a->count - 1) / (double)a->count);
    }
    cr_free(old);
    return status;
}

static double rounded_to_f16(double x) {
    return cr_verify_stored(CR_F16, x);
}
static double coarse(double x) { /* three bits fewer */
    return ldexp(nearbyint(ldexp(x, 7)), -7);
}
static cr_status rounds_bias(struct cr_device *device, const struct cr_call *call) {
    if (!has_in(call, CR_IN_conv_bias)) return checkops_reference(device, call);
    return with_input(device, call, CR_IN_conv_bias, 0, rounded_to_f16);
}
static cr_status coarsens_bias(struct cr_device *device, const struct cr_call *call) {
    if (!has_in(call, CR_IN_conv_bias)) return checkops_reference(device, call);
    return with_input(device, call, CR_IN_conv_bias, 0, coarse);
}

/* The sum of products is rounded before `bias` and `add`, whose storage y may have. */
static cr_status rounds_before_add(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *y     = checkops_out_tensor(call, CR_OUT_conv_y);
    struct cr_op            op    = *call->op;
    struct cr_call          other = *call;
    double                 *more;
    if (!has_in(call, CR_IN_conv_add) || op.out[CR_OUT_conv_sums] >= 0) return checkops_reference(device, call);
    CR_ALLOC(more, (size_t)cr_tensor_elems(y));
    for (int64_t i = 0; i < cr_tensor_elems(y); i++)
        more[i] = in_at(call, CR_IN_conv_add, i) +
                  (has_in(call, CR_IN_conv_bias) ? in_at(call, CR_IN_conv_bias, i % y->dim[3]) : 0);
    op.in[CR_IN_conv_add] = op.in[CR_IN_conv_bias] = CR_NONE;
    other.in[CR_IN_conv_add] = other.in[CR_IN_conv_bias] = NULL;
    op.attr.conv.relu                                    = false;
    other.op                                             = &op;
    const cr_status status                               = checkops_reference(device, &other);
    for (int64_t i = 0; i < cr_tensor_elems(y) && status == CR_OK; i++) {
        const double sum = out_at(call, CR_OUT_conv_y, i) + more[i];
        set_out(call, CR_OUT_conv_y, i, call->op->attr.conv.relu && sum < 0 ? 0 : sum);
    }
    cr_free(more);
    return status;
}

/* ReLU(NaN) is 0. */
static cr_status drops_nan(struct cr_device *device, const struct cr_call *call) {
    CR_TRY(checkops_reference(device, call));
    for (int64_t i = 0; call->op->attr.conv.relu && i < cr_tensor_elems(checkops_out_tensor(call, 0)); i++)
        if (isnan(out_at(call, CR_OUT_conv_y, i))) set_out(call, CR_OUT_conv_y, i, 0);
    return CR_OK;
}

/* ---- backward ---- */

static cr_status forgets_add(struct cr_device *device, const struct cr_call *call) {
    return without(device, call, CR_IN_conv_grad_add);
}

/* xhat is computed from x although the input of the BN is another tensor. */
static cr_status reads_other_input(struct cr_device *device, const struct cr_call *call) {
    struct cr_call other = *call;
    if (has_in(call, CR_IN_conv_grad_bn_x)) other.in[CR_IN_conv_grad_bn_x] = call->in[CR_IN_conv_grad_x];
    return checkops_reference(device, &other);
}

/* Of the BN after the convolution: the third row of its coefficients. */
static double zero(double x) {
    (void)x;
    return 0;
}
static cr_status forgets_offset(struct cr_device *device, const struct cr_call *call) {
    if (!has_in(call, CR_IN_conv_grad_dy_coeffs)) return checkops_reference(device, call);
    return with_input(device, call, CR_IN_conv_grad_dy_coeffs, 2 * in_tensor(call, CR_IN_conv_grad_dy_coeffs)->dim[3],
                      zero);
}

/* The first gradient sums, or the gradient of beta, lack the last pixel. */
static cr_status lacks_last(struct cr_device *device, const struct cr_call *call, int slot) {
    CR_TRY(checkops_reference(device, call));
    if (call->op->out[slot] < 0 || call->op->out[CR_OUT_conv_grad_dx] < 0) return CR_OK;
    const struct cr_tensor *dx = checkops_out_tensor(call, CR_OUT_conv_grad_dx);
    const int64_t           C = dx->dim[3], last = cr_tensor_elems(dx) - C;
    for (int64_t c = 0; c < C; c++)
        set_out(call, slot, c, out_at(call, slot, c) - out_at(call, CR_OUT_conv_grad_dx, last + c));
    return CR_OK;
}
static cr_status sums_lack_last(struct cr_device *device, const struct cr_call *call) {
    return lacks_last(device, call, CR_OUT_conv_grad_grad_sums);
}
static cr_status finishes_before_last(struct cr_device *device, const struct cr_call *call) {
    return lacks_last(device, call, CR_OUT_conv_grad_dbeta);
}

/* ---- the table ---- */

/* Slots of BN statistics from Gram matrices, and a shortcut as summand, are not changed here. */
static bool slots_are_known(const struct cr_op *op) {
    return op->kind == CR_OP_conv ? op->in[CR_IN_conv_out_scale_bias] < 0 && op->out[CR_OUT_conv_mask] < 0
                                  : op->in[CR_IN_conv_grad_y] < 0 && !op->attr.conv.add_pad_c;
}
static bool accepts_f32(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return p->real == CR_F32 && slots_are_known(op);
}
static bool accepts_f16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return p->real == CR_F16 && slots_are_known(op);
}

static const struct {
    struct cr_kernel kernel;
    unsigned         relaxations;
} kernels[] = {
    {CHECKOPS_KERNEL("bad.forgets_activation", conv, F32, accepts_f32, forgets_activation), 0},
    {CHECKOPS_KERNEL("bad.forgets_activation_of_tile", conv, F32, accepts_f32, forgets_activation),
     CR_RELAXED_TILE_ERROR},
    {CHECKOPS_KERNEL("bad.forgets_activation_half", conv, F16, accepts_f16, forgets_activation), 0},
    {CHECKOPS_KERNEL("bad.forgets_last_pixel", conv, F16, accepts_f16, forgets_last_pixel), 0},
    {CHECKOPS_KERNEL("bad.finishes_biased", conv, F16, accepts_f16, finishes_biased), 0},
    {CHECKOPS_KERNEL("bad.finishes_other_count", conv, F16, accepts_f16, finishes_other_count), 0},
    {CHECKOPS_KERNEL("bad.rounds_bias", conv, F16, accepts_f16, rounds_bias), 0},
    {CHECKOPS_KERNEL("bad.rounds_before_add", conv, F16, accepts_f16, rounds_before_add), 0},
    {CHECKOPS_KERNEL("bad.drops_nan", conv, F32, accepts_f32, drops_nan), 0},
    {CHECKOPS_KERNEL("good.rounds_bias", conv, F16, accepts_f16, rounds_bias), CR_RELAXED_HALF_BIAS},
    {CHECKOPS_KERNEL("good.rounds_before_add", conv, F16, accepts_f16, rounds_before_add), CR_RELAXED_ROUNDED_SUM},
    {CHECKOPS_KERNEL("good.drops_nan", conv, F32, accepts_f32, drops_nan), CR_RELAXED_NAN_RELU},
    {CHECKOPS_KERNEL("bad.coarse_bias", conv, F16, accepts_f16, coarsens_bias),
     CR_RELAXED_HALF_BIAS | CR_RELAXED_ROUNDED_SUM},
    {CHECKOPS_KERNEL("bad.forgets_add_of_grad", conv_grad, F16, accepts_f16, forgets_add), 0},
    {CHECKOPS_KERNEL("bad.reads_other_input", conv_grad, F16, accepts_f16, reads_other_input), 0},
    {CHECKOPS_KERNEL("bad.forgets_offset", conv_grad, F16, accepts_f16, forgets_offset), 0},
    {CHECKOPS_KERNEL("bad.forgets_last_of_grad", conv_grad, F16, accepts_f16, sums_lack_last), 0},
    {CHECKOPS_KERNEL("bad.finishes_before_last", conv_grad, F16, accepts_f16, finishes_before_last), 0},
    {CHECKOPS_KERNEL("bad.finishes_other_count_of_grad", conv_grad, F16, accepts_f16, finishes_other_count), 0},
};

int checkops_selftest_fused(checkops_blames *blames, void *self) {
    int missed = 0;
    for (size_t i = 0; i < CR_COUNT(kernels); i++) {
        struct cr_kernel kernel = kernels[i].kernel;
        kernel.relaxations      = kernels[i].relaxations;
        kernel.workspace        = cr_ref_workspace;
        missed += !blames(self, &kernel);
    }
    return missed;
}
