/* compiler/fusion/filter_grads.c: filter gradients of several convolutions in one op.
 *
 *     conv_grad(dx1, dw1); conv_grad(dx2, dw2); ...    becomes    conv_grad(dx1); conv_grad(dx2); ...; conv_wgrads(dw1, dw2, ...)
 *
 * Only the input gradients depend on each other. In small networks an op takes a few microseconds, most of which are
 * the start and the end of a launch and reads from memory that nothing hides; an input gradient alone is shorter, and
 * many filter gradients in one launch fill the GPU. A group has up to CR_WGRADS convolutions with the same number of
 * output channels, and is split where the ops of the split form take less time. Without measured times nothing is
 * split: the roofline does not know launches. Runs after cr_pass_fuse, which makes the conv_grad. */
#include "compiler/fusion/fusion.h"
#include "compiler/passes.h"

#include <string.h>

enum { GROUPS_MAX = 1024 /* convolutions of a run */ };

static int wide_stride(int64_t h, int64_t p) {
    return (int)((h + p - 1) / p);
}

/* The op can be split, if the device accepts the parts. */
static bool has_both(const struct cr_program *p, const struct cr_op *op) {
    if (op->kind != CR_OP_conv_grad || op->out[CR_OUT_conv_grad_dx] < 0 || op->out[CR_OUT_conv_grad_dw] < 0)
        return false;
    const struct cr_tensor *w = &p->tensor[op->in[CR_IN_conv_grad_w]], *x = &p->tensor[op->in[CR_IN_conv_grad_x]],
                           *g = &p->tensor[op->in[CR_IN_conv_grad_g]];
    return w->dim[1] == w->dim[2] && w->dim[1] % 2 && op->attr.conv.pad == (int)w->dim[1] / 2 &&
           op->attr.conv.stride == wide_stride(x->dim[1], g->dim[1]) &&
           op->attr.conv.stride == wide_stride(x->dim[2], g->dim[2]);
}

static struct cr_op input_grad_of(const struct cr_op *op) {
    struct cr_op alone             = *op;
    alone.out[CR_OUT_conv_grad_dw] = CR_NONE;
    return alone;
}

static void add_filter_grad(struct cr_op *all, int i, const struct cr_op *op) {
    const int from                               = i * CR_WGRADS_STEP;
    all->in[CR_IN_conv_wgrads_g0 + from]          = op->in[CR_IN_conv_grad_g];
    all->in[CR_IN_conv_wgrads_dy_x0 + from]       = op->in[CR_IN_conv_grad_dy_x];
    all->in[CR_IN_conv_wgrads_dy_coeffs0 + from]  = op->in[CR_IN_conv_grad_dy_coeffs];
    all->in[CR_IN_conv_wgrads_x0 + from]          = op->in[CR_IN_conv_grad_x];
    all->in[CR_IN_conv_wgrads_scale_bias0 + from] = op->in[CR_IN_conv_grad_scale_bias];
    all->out[CR_OUT_conv_wgrads_dw0 + i]          = op->out[CR_OUT_conv_grad_dw];
}

static struct cr_op filter_grads_of(const struct cr_program *p, const int *index, int count) {
    const struct cr_op *last = &p->op[index[count - 1]];
    struct cr_op        all  = cr_op_make(CR_OP_conv_wgrads, last->layer);
    all.stream               = last->stream;
    all.attr.conv.accumulate = last->attr.conv.accumulate;
    for (int i = 0; i < count; i++) add_filter_grad(&all, i, &p->op[index[i]]);
    return all;
}

struct filter_grads {
    struct cr_program          *p;
    const struct cr_cost_model *cost_model;
};

static bool accepts(const struct filter_grads *f, const struct cr_op *op) {
    return !f->cost_model->accepts || f->cost_model->accepts(f->cost_model->self, f->p, op);
}

static bool is_candidate(const struct filter_grads *f, int i) {
    const struct cr_op *op = &f->p->op[i];
    if (!has_both(f->p, op)) return false;
    const struct cr_op dx = input_grad_of(op), dw = filter_grads_of(f->p, &i, 1);
    return accepts(f, &dx) && accepts(f, &dw);
}

static bool overlap(const struct cr_tensor *a, const struct cr_tensor *b) {
    return a == b || (a->region == CR_REGION_STORE && b->region == CR_REGION_STORE && a->offset < b->offset + b->bytes &&
                      b->offset < a->offset + a->bytes);
}

/* Ops `from + 1` to `to` do not use the filter gradient that op `from` writes. */
static bool can_wait(const struct cr_program *p, int from, int to) {
    const struct cr_tensor *dw = &p->tensor[p->op[from].out[CR_OUT_conv_grad_dw]];
    for (int i = from + 1; i <= to; i++) {
        int ids[2 * CR_OP_IDS_MAX], n = cr_op_reads(&p->op[i], ids);
        n += cr_op_writes(&p->op[i], ids + n);
        for (int k = 0; k < n; k++)
            if (overlap(&p->tensor[ids[k]], dw)) return false;
    }
    return true;
}

static cr_status add_seconds(const struct filter_grads *f, const struct cr_op *op, double *sum) {
    double seconds = 0;
    CR_TRY(f->cost_model->cost(f->cost_model->self, f->p, op, &seconds));
    *sum += seconds;
    return CR_OK;
}

/* The same op as the one before it, apart from its tensors, needs no second measurement: the cost model keeps times. */
static cr_status is_faster_split(const struct filter_grads *f, const int *index, int count, bool *faster) {
    double             joint = 0, split = 0;
    const struct cr_op all = filter_grads_of(f->p, index, count);
    *faster                = false;
    if (!accepts(f, &all)) return CR_OK;
    for (int i = 0; i < count; i++) {
        const struct cr_op dx = input_grad_of(&f->p->op[index[i]]);
        CR_TRY(add_seconds(f, &f->p->op[index[i]], &joint));
        CR_TRY(add_seconds(f, &dx, &split));
    }
    CR_TRY(add_seconds(f, &all, &split));
    *faster = split < joint;
    return CR_OK;
}

/* Splits the group; its conv_wgrads comes behind its last op. The indices of later ops grow by one. */
static cr_status split_group(struct filter_grads *f, const int *index, int count) {
    struct cr_program *p    = f->p;
    const int          last = index[count - 1];
    bool               faster;
    for (int i = 0; i < count; i++)
        if (!can_wait(p, index[i], last) || p->op[index[i]].attr.conv.accumulate != p->op[last].attr.conv.accumulate ||
            p->op[index[i]].stream != p->op[last].stream)
            return CR_OK;
    CR_TRY(is_faster_split(f, index, count, &faster));
    if (!faster) return CR_OK;
    const struct cr_op all = filter_grads_of(p, index, count);
    for (int i = 0; i < count; i++) p->op[index[i]] = input_grad_of(&p->op[index[i]]);
    const int at = cr_emit(p, &all, "filter_grads");
    if (p->failed) return CR_NO_MEMORY(sizeof *p->op);
    memmove(&p->op[last + 2], &p->op[last + 1], (size_t)(at - last - 1) * sizeof all);
    p->op[last + 1] = all;
    return CR_OK;
}

static int64_t channels_of(const struct cr_program *p, int op) {
    return p->tensor[p->op[op].in[CR_IN_conv_grad_g]].dim[3];
}

/* A run of `count` convolutions becomes groups of nearly equal size, the last one first. */
static cr_status split_run(struct filter_grads *f, const int *index, int count) {
    const int groups = (count + CR_WGRADS - 1) / CR_WGRADS;
    for (int g = groups - 1; g >= 0; g--) {
        const int first = g * count / groups, end = (g + 1) * count / groups;
        CR_TRY(split_group(f, index + first, end - first));
    }
    return CR_OK;
}

/* Runs end where the number of channels changes. They are split from the last one on, so that indices stay valid. */
cr_status cr_pass_filter_grads(struct cr_program *program, const struct cr_cost_model *cost_model) {
    struct filter_grads f = {.p = program, .cost_model = cost_model};
    int                 run[GROUPS_MAX], count = 0;
    if (!cost_model->cost || !cost_model->accepts) return CR_OK;
    for (int i = program->ops - 1; i >= 0; i--) {
        if (!is_candidate(&f, i)) continue;
        if (count && (channels_of(program, i) != channels_of(program, run[GROUPS_MAX - count]) || count == GROUPS_MAX)) {
            CR_TRY(split_run(&f, run + GROUPS_MAX - count, count));
            count = 0;
        }
        run[GROUPS_MAX - ++count] = i;
    }
    return count ? split_run(&f, run + GROUPS_MAX - count, count) : CR_OK;
}
