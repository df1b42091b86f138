/* exec.c: see exec.h. */
#include "exec.h"

#include <stdlib.h>
#include <string.h>

/* ---- the device as a target of passes ---- */

static bool target_accepts(void *self, const struct cr_program *p, const struct cr_op *op) {
    int index;
    return cr_row_find(self, p, op, 0, &index) != NULL;
}

/* Names the op and the shapes of its operands, for the message of an op that no row takes. */
static void describe_op(const struct cr_program *p, const struct cr_op *op, struct cr_text *out) {
    int ids[8], n = cr_op_reads(op, ids);
    cr_text_add(out, "%s of layer %s", cr_op_info(op->kind)->name, op->layer >= 0 ? p->layer[op->layer] : "?");
    for (int i = 0; i < n; i++) {
        const struct cr_tensor *t = &p->tensor[ids[i]];
        cr_text_add(out, "%s%s[%lld,%lld,%lld,%lld]", i ? ", " : ": ", cr_dtype_name(t->dtype), (long long)t->dim[0],
                    (long long)t->dim[1], (long long)t->dim[2], (long long)t->dim[3]);
    }
}

static cr_status target_select(void *self, const struct cr_program *p, const struct cr_op *op, int *row, size_t *workspace) {
    struct cr_device       *device = self;
    const struct cr_kernel *kernel = cr_row_find(device, p, op, 0, row);
    if (!kernel) {
        struct cr_text text = {0};
        describe_op(p, op, &text);
        cr_status status = CR_FAIL(CR_ERR_DEVICE, "device %s has no kernel for %s", device->backend->name, text.data ? text.data : "an op");
        cr_text_free(&text);
        return status;
    }
    *workspace = 0;
    if (!kernel->prepare) return CR_OK;
    void *prepared = NULL;
    CR_TRY(kernel->prepare(device, p, op, &prepared, workspace));
    if (kernel->release) kernel->release(prepared);
    return CR_OK;
}

struct cr_target cr_device_target(struct cr_device *device) {
    return (struct cr_target){.self = device, .alignment = device->caps.alignment, .bytes_per_s = device->caps.bytes_per_s,
                              .flops_per_s = device->caps.flops_per_s, .accepts = target_accepts, .select = target_select};
}

/* ---- memory ---- */

cr_status cr_memory_open(struct cr_memory *memory, struct cr_device *device, const struct cr_store *store,
                         const struct cr_program *const *programs, int count) {
    struct cr_memory m = {.device = device};
    m.bytes[CR_REGION_STORE] = cr_store_bytes(store);
    for (int i = 0; i < count; i++)
        for (int r = CR_REGION_POOL; r < CR_REGIONS; r++)
            m.bytes[r] = CR_MAX(m.bytes[r], programs[i]->region_bytes[r]);
    for (int r = 0; r < CR_REGIONS; r++) {
        cr_status status = device->backend->reserve(device, CR_MAX(m.bytes[r], (size_t)256), &m.region[r]);
        if (status == CR_OK) continue;
        cr_memory_close(&m);
        return cr_error_forward(status, __FILE__, __LINE__);
    }
    *memory = m;
    return CR_OK;
}

void cr_memory_close(struct cr_memory *memory) {
    for (int r = 0; r < CR_REGIONS; r++)
        if (memory->region[r]) memory->device->backend->release(memory->device, memory->region[r]);
    *memory = (struct cr_memory){0};
}

/* ---- exec ---- */

struct bound_op {
    const struct cr_kernel *kernel;
    struct cr_call          call;
};

struct cr_exec {
    const struct cr_program *program;
    struct cr_memory        *memory;
    struct bound_op         *op;
    bool                     sync_each; /* CRESNET_SYNC=1: a late device fault is charged to its op */
    unsigned char           *poison;    /* NaN bytes, as many as the largest tensor has; NULL: off */
};

static unsigned char *address(const struct cr_exec *exec, int tensor) {
    const struct cr_tensor *t = &exec->program->tensor[tensor];
    CR_ASSERT(t->offset + t->bytes <= exec->memory->bytes[t->region] || t->region == CR_REGION_STORE);
    return (unsigned char *)exec->memory->region[t->region] + t->offset;
}

static cr_status bind(struct cr_exec *exec, int index) {
    const struct cr_program *p      = exec->program;
    const struct cr_op      *op     = &p->op[index];
    struct cr_device        *device = exec->memory->device;
    struct bound_op         *bound  = &exec->op[index];
    size_t                   workspace = 0;
    bound->kernel = device->rows[op->row];
    CR_ASSERT(bound->kernel->op == op->kind);
    bound->call = (struct cr_call){.program = p, .op = op};
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        if (op->in[s] >= 0) bound->call.in[s] = address(exec, op->in[s]);
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (op->out[s] >= 0) bound->call.out[s] = address(exec, op->out[s]);
    if (op->workspace >= 0) bound->call.workspace = address(exec, op->workspace);
    if (!bound->kernel->prepare) return CR_OK;
    CR_TRY(bound->kernel->prepare(device, p, op, &bound->call.prepared, &workspace));
    CR_ASSERT(workspace <= (op->workspace >= 0 ? p->tensor[op->workspace].bytes : 0));
    return CR_OK;
}

cr_status cr_exec_open(const struct cr_program *program, struct cr_memory *memory, struct cr_exec **out) {
    cr_status       status = CR_OK;
    struct cr_exec *exec;
    CR_ALLOC(exec, 1);
    exec->program   = program;
    exec->memory    = memory;
    const char *env = getenv("CRESNET_SYNC");
    exec->sync_each = env && strcmp(env, "1") == 0;
    exec->op        = cr_alloc((size_t)CR_MAX(program->ops, 1), sizeof *exec->op);
    if (!exec->op) {
        status = CR_NO_MEMORY((size_t)program->ops * sizeof *exec->op);
        goto out;
    }
    for (int i = 0; i < program->ops; i++) CR_TRY_OUT(bind(exec, i));
    *out = exec;
    return CR_OK;
out:
    cr_exec_close(exec);
    return status;
}

void cr_exec_close(struct cr_exec *exec) {
    if (!exec) return;
    for (int i = 0; exec->op && i < exec->program->ops; i++)
        if (exec->op[i].kernel && exec->op[i].kernel->release && exec->op[i].call.prepared)
            exec->op[i].kernel->release(exec->op[i].call.prepared);
    cr_free(exec->op);
    cr_free(exec->poison);
    cr_free(exec);
}

const char *cr_exec_row_name(const struct cr_exec *exec, int op) { return exec->op[op].kernel->name; }

cr_status cr_exec_feed(struct cr_exec *exec, const uint8_t *images, const int32_t *labels) {
    CR_TRY(cr_exec_put(exec, exec->program->images, images));
    if (labels) return cr_exec_put(exec, exec->program->labels, labels);
    int64_t  count = exec->program->tensor[exec->program->labels].dim[0];
    int32_t *none;
    CR_ALLOC(none, (size_t)count);
    for (int64_t i = 0; i < count; i++) none[i] = -1;
    cr_status status = cr_exec_put(exec, exec->program->labels, none);
    cr_free(none);
    return status;
}

/* ---- poison ---- */

cr_status cr_exec_poison(struct cr_exec *exec) {
    size_t largest = 1;
    for (int t = 0; t < exec->program->tensors; t++) largest = CR_MAX(largest, exec->program->tensor[t].bytes);
    CR_ALLOC(exec->poison, largest);
    memset(exec->poison, 0xff, largest);
    return CR_OK;
}

static bool taken_over(const struct cr_program *p, int tensor) {
    for (int t = 0; t < p->tensors; t++)
        if (p->tensor[t].alias == tensor && p->tensor[t].first >= 0) return true;
    return false;
}

static cr_status poison_dead(struct cr_exec *exec, int op) {
    const struct cr_program *p = exec->program;
    for (int t = 0; t < p->tensors; t++) {
        const struct cr_tensor *dead = &p->tensor[t];
        if (dead->region != CR_REGION_POOL || dead->last != op || dead->keep || taken_over(p, t)) continue;
        CR_TRY(exec->memory->device->backend->put(exec->memory->device, address(exec, t), exec->poison, dead->bytes));
    }
    return CR_OK;
}

/* ---- run ---- */

cr_status cr_exec_run_range(struct cr_exec *exec, const struct cr_step_block *step, int first, int last) {
    struct cr_device *device = exec->memory->device;
    for (int i = first; i <= last; i++) {
        struct bound_op *bound = &exec->op[i];
        bound->call.step       = step;
        cr_status status       = bound->kernel->launch(device, &bound->call);
        if (status == CR_OK && exec->sync_each) status = device->backend->sync(device);
        if (status != CR_OK)
            return CR_FAIL(status, "op %d, %s by %s in layer %s: %s", i, cr_op_info(bound->call.op->kind)->name,
                           bound->kernel->name, bound->call.op->layer >= 0 ? exec->program->layer[bound->call.op->layer] : "?",
                           cr_error_message());
        if (exec->poison) CR_TRY(poison_dead(exec, i));
    }
    return CR_OK;
}

cr_status cr_exec_run(struct cr_exec *exec, const struct cr_step_block *step) {
    return cr_exec_run_range(exec, step, 0, exec->program->ops - 1);
}

cr_status cr_exec_get(struct cr_exec *exec, int tensor, void *host) {
    return exec->memory->device->backend->get(exec->memory->device, host, address(exec, tensor), exec->program->tensor[tensor].bytes);
}

cr_status cr_exec_put(struct cr_exec *exec, int tensor, const void *host) {
    return exec->memory->device->backend->put(exec->memory->device, address(exec, tensor), host, exec->program->tensor[tensor].bytes);
}
