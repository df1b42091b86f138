/* runtime/device_view.c: the cost model of a device without measured times: struct cr_cost_model, as passes see it. See
 * runtime/executor.h. */
#include "runtime/executor.h"

bool cr_device_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    int                     index;
    const struct cr_kernel *kernel = cr_kernel_find(device, p, op, 0, &index);
    if (!kernel) return false;
    /* Reference kernels accept every op but are slow, so no fusion may rely on them unless all kernels are reference.
     */
    return !kernel->reference || device->options.ref_only || p->real == CR_F64;
}

static bool model_accepts(void *self, const struct cr_program *p, const struct cr_op *op) {
    return cr_device_accepts(self, p, op);
}

/* Appends the op and the shapes of its operands, for the error message when no kernel accepts the op. */
static void describe_op(const struct cr_program *p, const struct cr_op *op, struct cr_text *out) {
    int ids[CR_OP_IDS_MAX], n = cr_op_reads(op, ids);
    cr_text_add(out, "%s of layer %s", cr_op_info(op->kind)->name, op->layer >= 0 ? p->layer[op->layer] : "?");
    for (int i = 0; i < n; i++) {
        cr_text_add(out, i ? ", " : ": ");
        cr_tensor_add_shape(&p->tensor[ids[i]], out);
    }
}

cr_status cr_device_workspace(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              size_t *workspace) {
    const struct cr_kernel *kernel   = device->kernels[op->kernel];
    void                   *prepared = NULL;
    CR_TRY(cr_kernel_prepare(device, kernel, p, op, &prepared, workspace));
    cr_kernel_release(kernel, prepared);
    return CR_OK;
}

static int64_t packed_elems(void *self, const struct cr_program *p, const struct cr_op *op) {
    struct cr_device *device = self;
    return device->backend->packed_elems ? device->backend->packed_elems(device, p, op) : 0;
}

static double estimate(void *self, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_device *device = self;
    int                     index;
    const struct cr_kernel *kernel = cr_kernel_find(device, p, op, 0, &index);
    return kernel && kernel->estimate ? kernel->estimate(device, p, op) : 0;
}

void cr_device_algo_name(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                         struct cr_text *out) {
    int                     index;
    const struct cr_kernel *kernel = cr_kernel_find(device, p, op, 0, &index);
    if (kernel && kernel->algo_name) kernel->algo_name(op, out);
}

static void algo_name(void *self, const struct cr_program *p, const struct cr_op *op, struct cr_text *out) {
    cr_device_algo_name(self, p, op, out);
}

cr_status cr_device_select(struct cr_device *device, const struct cr_program *p, struct cr_op *op, size_t *workspace) {
    op->algo = 0;
    if (cr_kernel_find(device, p, op, 0, &op->kernel)) return cr_device_workspace(device, p, op, workspace);
    struct cr_text text = {0};
    describe_op(p, op, &text);
    cr_status status = CR_FAIL(CR_ERR_DEVICE, "device %s has no kernel for %s (images N,H,W,C, filters K,R,S,C) on %s",
                               device->backend->name, text.data ? text.data : "an op", device->caps.text);
    cr_text_free(&text);
    return status;
}

static cr_status model_select(void *self, const struct cr_program *p, struct cr_op *op, size_t *workspace) {
    return cr_device_select(self, p, op, workspace);
}

static struct cr_kernel_traits traits(void *self, const struct cr_op *op) {
    const struct cr_device *device = self;
    return device->kernels[op->kernel]->traits;
}

static int sum_rows(void *self, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_device *device = self;
    const struct cr_kernel *kernel = device->kernels[op->kernel];
    return kernel->sum_rows ? kernel->sum_rows(device, p, op) : CR_NONE;
}

struct cr_cost_model cr_device_cost_model(struct cr_device *device) {
    const struct cr_device_caps *caps = &device->caps;
    return (struct cr_cost_model){.device                = {.self         = device,
                                                            .packed_elems = packed_elems,
                                                            .estimate     = estimate,
                                                            .algo_name    = algo_name,
                                                            .traits       = traits,
                                                            .sum_rows     = sum_rows},
                                  .self                  = device,
                                  .alignment             = caps->alignment,
                                  .bytes_per_s           = caps->bytes_per_s,
                                  .flops_per_s           = caps->flops_per_s,
                                  .to_host_bytes_per_s   = caps->to_host_bytes_per_s,
                                  .to_device_bytes_per_s = caps->to_device_bytes_per_s,
                                  .copy_latency_s        = caps->copy_latency_s,
                                  .duplex_speedup        = caps->duplex_speedup,
                                  .host_memory_overhead  = caps->host_memory_overhead,
                                  .concurrent_kernels    = caps->concurrent_kernels,
                                  .sparse_density_max    = caps->sparse_density_max,
                                  .accepts               = model_accepts,
                                  .select                = model_select};
}
