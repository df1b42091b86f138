/* verification/program.c: compares a whole program with the FP64 reference, op by op on its device; each op is compared
 * on the inputs that the device holds. Of a fused op each part is compared, on what the parts before it have stored. */
#include "verification/verify.h"

#include <string.h>

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

/* Adds rows of sums up in the first row, like the reference kernels. */
static void add_rows(const struct cr_tensor *t, float *sums) {
    const int64_t row = 2 * t->dim[3];
    for (int64_t i = 0; i < row; i++) {
        double sum = 0;
        for (int64_t at = i; at < cr_tensor_elems(t); at += row) sum += (double)sums[at];
        sums[i] = (float)sum;
    }
    memset(sums + row, 0, t->bytes - (size_t)row * sizeof *sums);
}

/* Returns whether output `slot` of the op is rows of sums that its kernel has not added. */
static bool is_rows(const struct cr_program *p, const struct cr_op *op, int slot) {
    const bool sums = (op->kind == CR_OP_conv && slot == CR_OUT_conv_sums) ||
                      (op->kind == CR_OP_conv_grad && slot == CR_OUT_conv_grad_grad_sums);
    return sums && cr_sum_rows(&p->tensor[op->out[slot]]) > 1;
}

/* Returns whether one of the first `count` ops writes the tensor; such an input is read after the launch. */
static bool is_written(const struct cr_op *op, int count, int tensor) {
    for (int k = 0; k < count; k++)
        for (int s = 0; s < cr_op_info(op[k].kind)->outs; s++)
            if (op[k].out[s] == tensor) return true;
    return false;
}

/* The operands of a launch: those of an op, or of each part of a fused op. */
struct launch {
    struct cr_exec          *exec;
    const struct cr_program *program;
    const struct cr_op      *part; /* [parts] */
    struct copies           *copy; /* [parts] */
    int                      parts;
};

static cr_status fetch_inputs(const struct launch *l, bool after) {
    for (int k = 0; k < l->parts; k++)
        for (int s = 0; s < cr_op_info(l->part[k].kind)->ins; s++)
            if (l->part[k].in[s] >= 0 && is_written(l->part, k, l->part[k].in[s]) == after)
                CR_TRY(fetch(l->exec, l->program, l->part[k].in[s], &l->copy[k].in[s]));
    return CR_OK;
}

static cr_status fetch_before(const struct launch *l) {
    CR_TRY(fetch_inputs(l, false));
    for (int k = 0; k < l->parts; k++)
        for (int s = 0; s < cr_op_info(l->part[k].kind)->outs; s++)
            if (l->part[k].out[s] >= 0 && cr_verify_accumulates(&l->part[k], s))
                CR_TRY(fetch(l->exec, l->program, l->part[k].out[s], &l->copy[k].before[s]));
    return CR_OK;
}

static cr_status fetch_after(const struct launch *l) {
    CR_TRY(fetch_inputs(l, true));
    for (int k = 0; k < l->parts; k++)
        for (int s = 0; s < cr_op_info(l->part[k].kind)->outs; s++) {
            const int tensor = l->part[k].out[s];
            if (tensor < 0) continue;
            CR_TRY(fetch(l->exec, l->program, tensor, &l->copy[k].out[s]));
            if (is_rows(l->program, &l->part[k], s)) add_rows(&l->program->tensor[tensor], l->copy[k].out[s]);
        }
    return CR_OK;
}

static cr_status report(const struct cr_program *program, int index, const struct cr_op *op,
                        const struct cr_kernel *kernel, const struct cr_verify_result *r) {
    const struct cr_tensor *tensor = &program->tensor[op->out[r->slot]];
    return CR_FAIL(
        CR_ERR_NUMERIC,
        "program %s, op %d (%s, kernel %s): %s of %s, element %lld: got %.9g, expected %.9g, allowed difference %.3g",
        program->name, index, cr_op_info(op->kind)->name, kernel->name, cr_op_info(op->kind)->out_name[r->slot],
        tensor->name, (long long)r->index, r->got, r->want, r->bound);
}

/* What is the same for all ops. */
struct check {
    struct cr_device           *cpu, *device;
    struct cr_exec             *exec;
    const struct cr_program    *program;
    const struct cr_step_block *step;
    double                     *worst;
};

static cr_status compare_part(const struct check *c, int index, const struct launch *l, int k) {
    const struct cr_kernel *kernel = c->device->kernels[c->program->op[index].kernel];
    struct cr_verify_io     io     = {.relaxations = kernel->relaxations};
    struct cr_verify_result r      = {0};
    for (int s = 0; s < CR_OP_IN_MAX; s++) io.in[s] = l->copy[k].in[s];
    for (int s = 0; s < CR_OP_OUT_MAX; s++) io.before[s] = l->copy[k].before[s];
    CR_TRY(cr_verify_op(c->cpu, c->program, &l->part[k], kernel->math, c->step, &io,
                        (const void *const *)l->copy[k].out, &r));
    *c->worst = r.worst > *c->worst ? r.worst : *c->worst;
    return r.ok ? CR_OK : report(c->program, index, &l->part[k], kernel, &r);
}

/* The y of a pad_shortcut in a fused op is not stored. It is exact, so the next part gets that of the reference. */
static cr_status make_shortcut(const struct check *c, const struct launch *l, int k) {
    const struct cr_op       *op       = &l->part[k];
    const struct cr_tensor   *y        = &c->program->tensor[op->out[CR_OUT_pad_shortcut_y]];
    struct cr_verify_io       io       = {.in = {l->copy[k].in[0]}};
    struct cr_verify_expected expected = {0};
    CR_TRY(cr_verify_expected_make(c->cpu, c->program, op, CR_MATH_EXACT, c->step, &io, &expected));
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        if (l->part[k + 1].in[s] == op->out[CR_OUT_pad_shortcut_y])
            for (int64_t i = 0; i < cr_tensor_elems(y); i++)
                cr_number_store(y->dtype, l->copy[k + 1].in[s], i, expected.want[CR_OUT_pad_shortcut_y][i]);
    cr_verify_expected_free(&expected);
    return CR_OK;
}

static cr_status check_op(const struct check *c, int index) {
    struct launch l      = {.exec = c->exec, .program = c->program};
    cr_status     status = CR_OK;
    l.part               = cr_op_parts(&c->program->op[index], &l.parts);
    CR_ALLOC(l.copy, (size_t)l.parts);
    CR_TRY_OUT(fetch_before(&l));
    CR_TRY_OUT(cr_exec_run_range(c->exec, c->step, index, index));
    CR_TRY_OUT(fetch_after(&l));
    for (int k = 0; k < l.parts; k++)
        if (l.parts > 1 && l.part[k].kind == CR_OP_pad_shortcut)
            CR_TRY_OUT(make_shortcut(c, &l, k));
        else
            CR_TRY_OUT(compare_part(c, index, &l, k));
out:
    for (int k = 0; k < l.parts; k++) copies_free(&l.copy[k]);
    cr_free(l.copy);
    return status;
}

cr_status cr_verify_program(struct cr_device *cpu, struct cr_device *device, struct cr_exec *exec,
                            const struct cr_program *program, const struct cr_step_block *step, int *checked,
                            double *worst) {
    const struct check c = {cpu, device, exec, program, step, worst};
    *checked             = 0;
    *worst               = 0;
    for (int i = 0; i < program->ops; i++) {
        CR_ASSERT(program->op[i].kernel >= 0); /* compiled programs only */
        CR_TRY(check_op(&c, i));
        ++*checked;
    }
    return CR_OK;
}
