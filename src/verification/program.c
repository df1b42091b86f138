/* verification/program.c: verifies a whole program op by op on its device; each op is compared on the inputs that the
 * device holds. */
#include "verification/verify.h"

/* Host copies of one op's operands. */
struct copies {
    void *in[CR_OP_IN_MAX], *before[CR_OP_OUT_MAX], *out[CR_OP_OUT_MAX];
};

static void copies_free(struct copies *c) {
    for (int s = 0; s < CR_OP_IN_MAX; s++) cr_free(c->in[s]);
    for (int s = 0; s < CR_OP_OUT_MAX; s++) {
        cr_free(c->before[s]);
        cr_free(c->out[s]);
    }
}

static cr_status fetch(struct cr_exec *exec, const struct cr_program *program, int tensor, void **host) {
    const size_t bytes = program->tensor[tensor].bytes;
    *host              = cr_alloc(bytes, 1);
    if (!*host) return CR_NO_MEMORY(bytes);
    return cr_exec_get(exec, tensor, *host);
}

static cr_status fetch_before(struct cr_exec *exec, const struct cr_program *program, const struct cr_op *op,
                              struct copies *c) {
    const struct cr_op_info *info = cr_op_info(op->kind);
    for (int s = 0; s < info->ins; s++)
        if (op->in[s] >= 0) CR_TRY(fetch(exec, program, op->in[s], &c->in[s]));
    for (int s = 0; s < info->outs; s++)
        if (op->out[s] >= 0 && cr_verify_accumulates(op, s)) CR_TRY(fetch(exec, program, op->out[s], &c->before[s]));
    return CR_OK;
}

static cr_status fetch_after(struct cr_exec *exec, const struct cr_program *program, const struct cr_op *op,
                             struct copies *c) {
    for (int s = 0; s < cr_op_info(op->kind)->outs; s++)
        if (op->out[s] >= 0) CR_TRY(fetch(exec, program, op->out[s], &c->out[s]));
    return CR_OK;
}

static cr_status report(const struct cr_program *program, int index, const struct cr_kernel *kernel,
                        const struct cr_verify_result *r) {
    const struct cr_op     *op     = &program->op[index];
    const struct cr_tensor *tensor = &program->tensor[op->out[r->slot]];
    return CR_FAIL(
        CR_ERR_NUMERIC,
        "program %s, op %d (%s, kernel %s): %s of %s, element %lld: got %.9g, expected %.9g, allowed difference %.3g",
        program->name, index, cr_op_info(op->kind)->name, kernel->name, cr_op_info(op->kind)->out_name[r->slot],
        tensor->name, (long long)r->index, r->got, r->want, r->bound);
}

static cr_status check_op(struct cr_device *cpu, struct cr_device *device, struct cr_exec *exec,
                          const struct cr_program *program, const struct cr_step_block *step, int index,
                          double *worst) {
    const struct cr_op     *op     = &program->op[index];
    const struct cr_kernel *kernel = device->kernels[op->kernel];
    struct copies           c      = {0};
    struct cr_verify_io     io     = {.relaxations = kernel->relaxations};
    struct cr_verify_result r      = {0};
    cr_status               status;
    CR_TRY_OUT(fetch_before(exec, program, op, &c));
    CR_TRY_OUT(cr_exec_run_range(exec, step, index, index));
    CR_TRY_OUT(fetch_after(exec, program, op, &c));
    for (int s = 0; s < CR_OP_IN_MAX; s++) io.in[s] = c.in[s];
    for (int s = 0; s < CR_OP_OUT_MAX; s++) io.before[s] = c.before[s];
    CR_TRY_OUT(cr_verify_op(cpu, program, op, kernel->math, step, &io, (const void *const *)c.out, &r));
    *worst = r.worst > *worst ? r.worst : *worst;
    if (!r.ok) CR_TRY_OUT(report(program, index, kernel, &r));
out:
    copies_free(&c);
    return status;
}

cr_status cr_verify_program(struct cr_device *cpu, struct cr_device *device, struct cr_exec *exec,
                            const struct cr_program *program, const struct cr_step_block *step, int *checked,
                            double *worst) {
    *checked = 0;
    *worst   = 0;
    for (int i = 0; i < program->ops; i++) {
        CR_ASSERT(program->op[i].kernel >= 0); /* compiled programs only */
        CR_TRY(check_op(cpu, device, exec, program, step, i, worst));
        ++*checked;
    }
    return CR_OK;
}
