/* compiler/rewrite/select_kernels.c: chooses a kernel for each op by the cost model. The workspace of a kernel becomes
 * a transient that lives during that op, so the planner places it like any other tensor. Also: the roofline time. */
#include "compiler/cost_model.h"
#include "compiler/passes.h"

#include <stdio.h>

/* Names the workspace after the op's first output. The op index keeps the names of two ops with one output apart (zero
 * and loss both write the metrics). */
static cr_status add_workspace(struct cr_program *program, int index, size_t bytes) {
    char name[256];
    int  ids[CR_OP_IDS_MAX];
    CR_ASSERT(bytes <= INT64_MAX && cr_op_writes(&program->op[index], ids) > 0);
    snprintf(name, sizeof name, "ws.%d.%s", index, program->tensor[ids[0]].name);
    int id = cr_tensor_add(program, name, CR_U8, CR_REGION_POOL, 1, 1, 1, (int64_t)bytes);
    if (program->failed) return CR_NO_MEMORY(sizeof *program->tensor);
    program->op[index].workspace = id;
    return CR_OK;
}

cr_status cr_select_op(struct cr_program *program, const struct cr_cost_model *cost_model, int index) {
    struct cr_op *op        = &program->op[index];
    size_t        workspace = 0;
    op->workspace           = CR_NONE;
    op->kernel = op->algo = 0;
    if (cost_model->select) CR_TRY(cost_model->select(cost_model->self, program, op, &workspace));
    return workspace ? add_workspace(program, index, workspace) : CR_OK;
}

cr_status cr_insert_op(struct cr_program *p, const struct cr_cost_model *cost_model, int at, const struct cr_op *op,
                       const char *name) {
    cr_emit_at(p, at, op, name);
    return p->failed ? CR_NO_MEMORY(sizeof *op) : cr_select_op(p, cost_model, at);
}

cr_status cr_pass_select(struct cr_program *program, const struct cr_cost_model *cost_model) {
    for (int i = 0; i < program->ops; i++) CR_TRY(cr_select_op(program, cost_model, i));
    return CR_OK;
}

static double copy_seconds(double bytes, double bytes_per_s, double latency_s) {
    return bytes_per_s > 0 ? latency_s + bytes / bytes_per_s : 0;
}

double cr_op_seconds(const struct cr_cost_model *cost_model, const struct cr_program *program, const struct cr_op *op) {
    double bytes, flops;
    switch (op->kind) {
    case CR_OP_barrier: return 0;
    case CR_OP_offload:
        bytes = (double)program->tensor[op->in[CR_IN_offload_x]].bytes;
        return copy_seconds(bytes, cost_model->to_host_bytes_per_s, cost_model->copy_latency_s);
    case CR_OP_prefetch:
        bytes = (double)program->tensor[op->in[CR_IN_prefetch_x]].bytes;
        return copy_seconds(bytes, cost_model->to_device_bytes_per_s, cost_model->copy_latency_s);
    default: break;
    }
    cr_op_cost(program, op, &bytes, &flops);
    double memory_s     = cost_model->bytes_per_s > 0 ? bytes / cost_model->bytes_per_s : 0;
    double arithmetic_s = cost_model->flops_per_s > 0 ? flops / cost_model->flops_per_s : 0;
    return CR_MAX(memory_s, arithmetic_s);
}
