/* runtime/memory_regions.c: the cost model of a device, and the memory regions that the programs of a process share.
 * See runtime/executor.h. */
#include "runtime/executor.h"

#include <string.h>

/* ---- the device as passes see it ---- */

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
        const struct cr_tensor *t = &p->tensor[ids[i]];
        cr_text_add(out, "%s%s[%lld,%lld,%lld,%lld]", i ? ", " : ": ", cr_dtype_name(t->dtype), (long long)t->dim[0],
                    (long long)t->dim[1], (long long)t->dim[2], (long long)t->dim[3]);
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

int64_t cr_device_packed_elems(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return device->backend->packed_elems ? device->backend->packed_elems(device, p, op) : 0;
}

double cr_device_estimate(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
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

static int64_t model_packed_elems(void *self, const struct cr_program *p, const struct cr_op *op) {
    return cr_device_packed_elems(self, p, op);
}

static double model_estimate(void *self, const struct cr_program *p, const struct cr_op *op) {
    return cr_device_estimate(self, p, op);
}

static void model_algo_name(void *self, const struct cr_program *p, const struct cr_op *op, struct cr_text *out) {
    cr_device_algo_name(self, p, op, out);
}

static cr_status model_select(void *self, const struct cr_program *p, struct cr_op *op, size_t *workspace) {
    return cr_device_select(self, p, op, workspace);
}

static cr_status model_explain(void *self, const struct cr_program *p, const struct cr_op *op,
                               struct cr_selection *out) {
    struct cr_cost_model    roofline = cr_device_cost_model(self);
    int                     index;
    const struct cr_kernel *kernel = cr_kernel_find(self, p, op, 0, &index);
    if (kernel)
        *out = (struct cr_selection){
            .kernel = kernel->name, .seconds = cr_op_seconds(&roofline, p, op), .source = "roofline"};
    return CR_OK;
}

bool cr_device_reads_host(const struct cr_device *device, const struct cr_op *op, int slot) {
    return cr_kernel_reads_host(device, device->kernels[op->kernel], slot);
}

static bool model_reads_host(void *self, const struct cr_op *op, int slot) {
    return cr_device_reads_host(self, op, slot);
}

int cr_device_sum_rows(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_kernel *kernel = device->kernels[op->kernel];
    return kernel->sum_rows ? kernel->sum_rows(device, p, op) : CR_NONE;
}

static int model_sum_rows(void *self, const struct cr_program *p, const struct cr_op *op) {
    return cr_device_sum_rows(self, p, op);
}

struct cr_cost_model cr_device_cost_model(struct cr_device *device) {
    const struct cr_device_caps *caps = &device->caps;
    return (struct cr_cost_model){.self                  = device,
                                  .alignment             = caps->alignment,
                                  .bytes_per_s           = caps->bytes_per_s,
                                  .flops_per_s           = caps->flops_per_s,
                                  .to_host_bytes_per_s   = caps->to_host_bytes_per_s,
                                  .to_device_bytes_per_s = caps->to_device_bytes_per_s,
                                  .copy_latency_s        = caps->copy_latency_s,
                                  .duplex_speedup        = caps->duplex_speedup,
                                  .host_memory_overhead  = caps->host_memory_overhead,
                                  .sparse_density_max    = caps->sparse_density_max,
                                  .packed_elems          = model_packed_elems,
                                  .estimate              = model_estimate,
                                  .algo_name             = model_algo_name,
                                  .accepts               = model_accepts,
                                  .select                = model_select,
                                  .explain               = model_explain,
                                  .reads_host            = model_reads_host,
                                  .sum_rows              = model_sum_rows};
}

/* ---- memory ---- */

/* Bytes of each region: the maximum over the programs. Regions other than HOST have at least 256 bytes, because a
 * kernel may receive their address. */
static void region_sizes(const struct cr_param_store *store, const struct cr_program *const *programs, int count,
                         size_t bytes[CR_REGIONS]) {
    memset(bytes, 0, CR_REGIONS * sizeof *bytes);
    bytes[CR_REGION_STORE] = cr_param_store_bytes(store);
    for (int i = 0; i < count; i++)
        for (int r = CR_REGION_POOL; r < CR_REGIONS; r++) bytes[r] = CR_MAX(bytes[r], programs[i]->region_bytes[r]);
    for (int r = 0; r < CR_REGIONS; r++)
        if (r != CR_REGION_HOST) bytes[r] = CR_MAX(bytes[r], (size_t)256);
}

static size_t small_bytes(const struct cr_program *const *programs, int count) {
    size_t max = 0;
    for (int i = 0; i < count; i++) max = CR_MAX(max, cr_feed_small_bytes(programs[i]));
    return max;
}

size_t cr_memory_need(const struct cr_device *device, const struct cr_param_store *store,
                      const struct cr_program *const *programs, int count) {
    size_t bytes[CR_REGIONS], sum = 0;
    region_sizes(store, programs, count, bytes);
    for (int r = 0; r < CR_REGIONS; r++)
        if (r != CR_REGION_HOST) sum += bytes[r];
    sum += (size_t)((double)bytes[CR_REGION_HOST] * device->caps.host_memory_overhead);
    return sum + cr_feed_need(device, small_bytes(programs, count));
}

/* The HOST region is page-locked host memory on a device with async, else ordinary device memory. */
static cr_status reserve_host(struct cr_memory *m) {
    const struct cr_async *async = m->device->backend->async;
    const size_t           bytes = m->bytes[CR_REGION_HOST];
    if (!bytes) return CR_OK;
    if (!async) return m->device->backend->reserve(m->device, bytes, &m->region[CR_REGION_HOST]);
    const cr_status status = async->host_reserve(m->device, bytes, &m->region[CR_REGION_HOST]);
    return status != CR_ERR_MEMORY
               ? status
               : CR_FAIL(status, "the host cannot provide %.0f MiB of page-locked memory for offloaded tensors",
                         (double)bytes / (1 << 20));
}

static void release_host(struct cr_memory *m) {
    const struct cr_async *async = m->device->backend->async;
    if (!m->region[CR_REGION_HOST]) return;
    if (async)
        async->host_release(m->device, m->region[CR_REGION_HOST]);
    else
        m->device->backend->release(m->device, m->region[CR_REGION_HOST]);
}

cr_status cr_memory_open(struct cr_memory *memory, struct cr_device *device, const struct cr_param_store *store,
                         const struct cr_program *const *programs, int count) {
    struct cr_memory m      = {.device = device};
    cr_status        status = CR_OK;
    region_sizes(store, programs, count, m.bytes);
    for (int r = 0; r < CR_REGIONS; r++)
        if (r != CR_REGION_HOST) CR_TRY_OUT(device->backend->reserve(device, m.bytes[r], &m.region[r]));
    CR_TRY_OUT(reserve_host(&m));
    CR_TRY_OUT(cr_feed_open(device, m.bytes[CR_REGION_INPUT], small_bytes(programs, count), &m.ring));
    if (device->backend->share)
        CR_TRY_OUT(device->backend->share(
            device, m.region[CR_REGION_STORE])); /* last, so that no rank waits for one that failed above */
    *memory = m;
    return CR_OK;
out:
    cr_memory_close(&m);
    return status;
}

void cr_memory_close(struct cr_memory *memory) {
    cr_feed_close(memory->device, memory->ring);
    release_host(memory);
    if (memory->device->backend->unshare) memory->device->backend->unshare(memory->device);
    for (int r = 0; r < CR_REGIONS; r++)
        if (r != CR_REGION_HOST && memory->region[r])
            memory->device->backend->release(memory->device, memory->region[r]);
    *memory = (struct cr_memory){0};
}
