/* compiler/schedule/side_stream.c: runs filter gradients (wgrad) on a second stream, beside input gradients (dgrad).
 *
 * Only the update reads the gradient of a filter, so no input gradient has to wait for it. A kernel that does not fill
 * the device, as most do with a small batch, leaves room for one of the other stream.
 *
 * The tensors that a moved op reads live until the compute stream waits for that op: see insert_waits.c. */
#include "compiler/passes.h"

/* Only ops of the update read what the op writes. Sparse kernels share a device's cache of pruned filters, so they stay
 * on one stream. */
static bool is_filter_gradient(const struct cr_program *p, const struct cr_op *op) {
    return op->kind == CR_OP_conv_wgrad && !cr_op_has_sparsity_pattern(op) &&
           p->tensor[op->out[CR_OUT_conv_wgrad_dw]].buffer == CR_BUFFER_GRAD;
}

static void move_filter_gradients(struct cr_program *p, enum cr_stream to) {
    for (int i = 0; i < p->ops; i++)
        if (is_filter_gradient(p, &p->op[i])) p->op[i].stream = to;
}

static cr_status pool_bytes(struct cr_program *p, const struct cr_cost_model *m, bool reuse, size_t *bytes) {
    struct cr_program copy;
    CR_TRY(cr_program_copy(p, &copy));
    cr_status status = cr_pass_insert_waits(&copy);
    if (status == CR_OK) status = cr_pass_plan(&copy, m->alignment, reuse);
    *bytes = copy.region_bytes[CR_REGION_POOL];
    cr_program_free(&copy);
    return status;
}

cr_status cr_pass_side_stream(struct cr_program *p, const struct cr_cost_model *m,
                              const struct cr_compile_options *options) {
    size_t bytes = 0;
    if (!m->concurrent_kernels) return CR_OK;
    move_filter_gradients(p, CR_STREAM_SIDE);
    if (options->pool_limit) CR_TRY(pool_bytes(p, m, options->reuse, &bytes));
    if (bytes > options->pool_limit) move_filter_gradients(p, CR_STREAM_COMPUTE);
    return CR_OK;
}
