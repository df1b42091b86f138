/* compiler/schedule/bn_chains.c: fuses the end of a BN with the next convolution, and many filter gradients (wgrad).
 *
 * A convolution that computes the sums of the BN behind it has a second, small launch, because the sums of all its
 * blocks must exist before one of them is added. If the next convolution reads the BN, each of its blocks can add the
 * sums itself. The first one then only stores its rows of sums:
 *
 *     conv -> y, bn_finalize; conv(act(y))              become
 *     conv -> y, rows; fused {bn_finalize(rows), conv(act(y))}
 *
 *     conv -> y, bn_finalize; bn_apply(y) -> z; conv(z) become
 *     conv -> y, rows; fused {bn_finalize(rows), bn_apply(y), conv(z)}
 *
 * A pad_shortcut directly before the bn_apply, whose summand it is, becomes a part as well. The same in the backward
 * pass, from a conv_grad that ends the chain (that of the first convolution of a network) back to the first one whose
 * kernel has no sum_rows. The conv_grads of the chain store dy instead of computing dw, because no input gradient waits
 * for a filter gradient, and one fused op behind the chain computes all filter gradients:
 *
 *     conv_grad -> dx, dw, bn_grad_finalize; conv_grad(dx)...   become
 *     conv_grad -> dx, dy, rows; fused {bn_grad_finalize(rows), conv_grad(dx) -> dy}...; fused {conv_wgrad(dy), ...}
 *
 * All ops of a chain are neighbours on one stream, so an op may be moved to the next one. */
#include "compiler/passes.h"
#include "compiler/rewrite/rewrite.h"
#include "compiler/uses.h"

#include <string.h>

/* Few filter gradients in one op gain nothing over one op for each, measured on one H200 with 4, 6 and 8. */
enum { FILTERS_MIN = 9, LINK_PARTS = 4 /* bn_finalize, pad_shortcut, bn_apply, conv */ };

static int sum_rows(const struct cr_cost_model *m, const struct cr_program *p, const struct cr_op *op) {
    return m->device.sum_rows ? m->device.sum_rows(m->device.self, p, op) : CR_NONE;
}

/* The op, or the last part of a fused op. */
static const struct cr_op *last_part(const struct cr_op *op) {
    int                 parts;
    const struct cr_op *part = cr_op_parts(op, &parts);
    return &part[parts - 1];
}

/* Number of ops that read the tensor. */
static int readers(const struct cr_program *p, int tensor) {
    int count = 0;
    for (int i = 0; i < p->ops; i++) {
        int ids[CR_OP_IDS_MAX], n = cr_op_reads(&p->op[i], ids);
        while (n > 0 && ids[n - 1] != tensor) n--;
        count += n > 0;
    }
    return count + p->tensor[tensor].keep;
}

/* Adds a transient that is named after `like`. */
static int add_tensor(struct cr_program *p, int like, const char *suffix, int64_t d0) {
    const struct cr_tensor *t = &p->tensor[like];
    return cr_tensor_derive(p, t->name, suffix, t->dtype, CR_REGION_POOL,
                            (const int64_t[]){d0, t->dim[1], t->dim[2], t->dim[3]});
}

static int add_rows(struct cr_program *p, int sums, int rows) {
    return add_tensor(p, sums, ".rows", 2 * (int64_t)rows);
}

static void clear_slots(int *slots, int first, int last) {
    for (int s = first; s <= last; s++) slots[s] = CR_NONE;
}

static void remove_ops(struct cr_program *p, int first, int count) {
    memmove(&p->op[first], &p->op[first + count], (size_t)(p->ops - first - count) * sizeof *p->op);
    p->ops -= count;
}

/* ---- forward ---- */

/* The ops that a convolution is fused with; CR_NONE: absent. */
struct link {
    int conv, shortcut, apply;
};

static bool find_link(const struct cr_program *p, int at, struct link *l) {
    const struct cr_op *op = &p->op[at];
    *l                     = (struct link){at - 1, CR_NONE, CR_NONE};
    if (op->kind != CR_OP_conv || at < 1) return false;
    if (p->op[at - 1].kind == CR_OP_bn_apply) {
        l->apply = at - 1;
        l->conv  = at - 2;
        if (l->conv >= 0 && p->op[l->conv].kind == CR_OP_pad_shortcut) l->shortcut = l->conv--;
    }
    if (l->conv < p->hoisted) return false;
    for (int k = l->conv; k < at; k++)
        if (p->op[k].stream != op->stream) return false;
    const struct cr_op *conv = last_part(&p->op[l->conv]), *apply = &p->op[at - 1];
    if (conv->kind != CR_OP_conv || conv->in[CR_IN_conv_gamma] < 0) return false;
    const int y = conv->out[CR_OUT_conv_y], scale_bias = conv->out[CR_OUT_conv_next_scale_bias];
    if (l->apply == CR_NONE) return op->in[CR_IN_conv_x] == y && op->in[CR_IN_conv_scale_bias] == scale_bias;
    if (l->shortcut != CR_NONE) {
        const int summand = p->op[l->shortcut].out[CR_OUT_pad_shortcut_y];
        if (apply->in[CR_IN_bn_apply_add] != summand || readers(p, summand) != 1) return false;
    }
    return op->in[CR_IN_conv_x] == apply->out[CR_OUT_bn_apply_y] && op->in[CR_IN_conv_scale_bias] < 0 &&
           apply->in[CR_IN_bn_apply_x] == y && apply->in[CR_IN_bn_apply_scale_bias] == scale_bias &&
           apply->in[CR_IN_bn_apply_add] != y;
}

static struct cr_op finalize_of(const struct cr_op *conv, int rows) {
    struct cr_op op                         = cr_op_make(CR_OP_bn_finalize, conv->layer);
    op.stream                               = conv->stream;
    op.attr.bn                              = conv->attr.conv.bn;
    op.in[CR_IN_bn_finalize_sums]           = rows;
    op.in[CR_IN_bn_finalize_gamma]          = conv->in[CR_IN_conv_gamma];
    op.in[CR_IN_bn_finalize_beta]           = conv->in[CR_IN_conv_beta];
    op.in[CR_IN_bn_finalize_running_mean]   = conv->in[CR_IN_conv_running_mean];
    op.in[CR_IN_bn_finalize_running_var]    = conv->in[CR_IN_conv_running_var];
    op.out[CR_OUT_bn_finalize_scale_bias]   = conv->out[CR_OUT_conv_next_scale_bias];
    op.out[CR_OUT_bn_finalize_mean_rstd]    = conv->out[CR_OUT_conv_mean_rstd];
    op.out[CR_OUT_bn_finalize_running_mean] = conv->out[CR_OUT_conv_running_mean];
    op.out[CR_OUT_bn_finalize_running_var]  = conv->out[CR_OUT_conv_running_var];
    return op;
}

/* The op with a last part that stores rows of sums. */
static struct cr_op with_rows(struct cr_program *p, const struct cr_op *op, int rows) {
    struct cr_op        part[LINK_PARTS];
    int                 parts;
    const struct cr_op *from = cr_op_parts(op, &parts);
    memcpy(part, from, (size_t)parts * sizeof *part);
    struct cr_op *conv = &part[parts - 1];
    clear_slots(conv->in, CR_IN_conv_gamma, CR_IN_conv_running_var);
    clear_slots(conv->out, CR_OUT_conv_next_scale_bias, CR_OUT_conv_running_var);
    conv->out[CR_OUT_conv_sums] = rows;
    conv->workspace             = CR_NONE; /* its kernel stays: it has these rows */
    return op->kind == CR_OP_fused ? cr_op_fuse(p, part, parts) : *conv;
}

/* Fuses the convolution at *at with the ops before it, and sets *at to its new place. */
static cr_status fuse_forward(struct cr_program *p, const struct cr_cost_model *m, int *at) {
    struct link         l;
    struct cr_op        part[LINK_PARTS];
    int                 parts = 0;
    const int           found = find_link(p, *at, &l);
    const struct cr_op *conv  = found ? last_part(&p->op[l.conv]) : NULL;
    const int           rows  = found ? sum_rows(m, p, conv) : CR_NONE;
    if (rows < 2 || readers(p, conv->out[CR_OUT_conv_sums]) > 0) return CR_OK;
    const int    tensor = add_rows(p, conv->out[CR_OUT_conv_sums], rows);
    struct cr_op before = with_rows(p, &p->op[l.conv], tensor);
    part[parts++]       = finalize_of(conv, tensor);
    if (l.shortcut != CR_NONE) part[parts++] = p->op[l.shortcut];
    if (l.apply != CR_NONE) part[parts++] = p->op[l.apply];
    part[parts++]      = p->op[*at];
    struct cr_op fused = cr_op_fuse(p, part, parts);
    if (p->failed) return CR_NO_MEMORY(sizeof part);
    if (!cr_accepts(m, p, &fused) || (before.kind == CR_OP_fused && !cr_accepts(m, p, &before))) return CR_OK;
    p->op[l.conv]     = before;
    p->op[l.conv + 1] = fused;
    remove_ops(p, l.conv + 2, *at - l.conv - 1);
    *at = l.conv + 1;
    if (before.kind == CR_OP_fused) CR_TRY(cr_select_op(p, m, l.conv));
    return cr_select_op(p, m, *at);
}

/* ---- backward ---- */

/* The conv_grad at `at` may leave its sums and its dw to the ops behind it. */
static bool is_chained(const struct cr_program *p, const struct cr_cost_model *m, int at) {
    const struct cr_op *op = &p->op[at], *next = &p->op[at + 1];
    return op->kind == CR_OP_conv_grad && op->stream == next->stream && op->in[CR_IN_conv_grad_gamma] >= 0 &&
           op->in[CR_IN_conv_grad_dy_coeffs] >= 0 && op->out[CR_OUT_conv_grad_dw] >= 0 &&
           next->in[CR_IN_conv_grad_dy_coeffs] == op->out[CR_OUT_conv_grad_grad_coeffs] &&
           next->in[CR_IN_conv_grad_g] == op->out[CR_OUT_conv_grad_dx] &&
           readers(p, op->out[CR_OUT_conv_grad_grad_sums]) == 0 && sum_rows(m, p, op) > 1;
}

/* Sets *first and *end: ops *first to *end - 1 are chained, and *end finishes the last BN. */
static bool find_chain(const struct cr_program *p, const struct cr_cost_model *m, int *first, int *end) {
    for (*end = p->ops - 1; *end > p->hoisted && p->op[*end].kind != CR_OP_conv_grad;) --*end;
    for (*first = *end; *first > p->hoisted && is_chained(p, m, *first - 1);) --*first;
    return *end - *first >= FILTERS_MIN;
}

static struct cr_op grad_finalize_of(const struct cr_op *grad, int rows) {
    struct cr_op op                         = cr_op_make(CR_OP_bn_grad_finalize, grad->layer);
    op.stream                               = grad->stream;
    op.attr.bn                              = grad->attr.conv.bn;
    op.in[CR_IN_bn_grad_finalize_grad_sums] = rows;
    op.in[CR_IN_bn_grad_finalize_gamma]     = grad->in[CR_IN_conv_grad_gamma];
    op.in[CR_IN_bn_grad_finalize_mean_rstd] = grad->in[CR_IN_conv_grad_mean_rstd];
    op.out[CR_OUT_bn_grad_finalize_dgamma]  = grad->out[CR_OUT_conv_grad_dgamma];
    op.out[CR_OUT_bn_grad_finalize_dbeta]   = grad->out[CR_OUT_conv_grad_dbeta];
    op.out[CR_OUT_bn_grad_finalize_coeffs]  = grad->out[CR_OUT_conv_grad_grad_coeffs];
    return op;
}

static struct cr_op filter_grad_of(const struct cr_op *grad, int dy) {
    struct cr_op op                    = cr_op_make(CR_OP_conv_wgrad, grad->layer);
    op.stream                          = grad->stream;
    op.attr.conv.stride                = grad->attr.conv.stride;
    op.attr.conv.pad                   = grad->attr.conv.pad;
    op.attr.conv.accumulate            = grad->attr.conv.accumulate;
    op.in[CR_IN_conv_wgrad_x]          = grad->in[CR_IN_conv_grad_x];
    op.in[CR_IN_conv_wgrad_dy]         = dy;
    op.in[CR_IN_conv_wgrad_scale_bias] = grad->in[CR_IN_conv_grad_scale_bias];
    op.out[CR_OUT_conv_wgrad_dw]       = grad->out[CR_OUT_conv_grad_dw];
    return op;
}

/* The conv_grad that stores dy and rows of sums. */
static struct cr_op with_dy(struct cr_program *p, const struct cr_cost_model *m, const struct cr_op *grad) {
    struct cr_op op                    = *grad;
    op.in[CR_IN_conv_grad_gamma]       = CR_NONE;
    op.workspace                       = CR_NONE;
    op.out[CR_OUT_conv_grad_dw]        = CR_NONE;
    op.out[CR_OUT_conv_grad_grad_sums] = add_rows(p, grad->out[CR_OUT_conv_grad_grad_sums], sum_rows(m, p, grad));
    op.out[CR_OUT_conv_grad_dy] =
        add_tensor(p, grad->in[CR_IN_conv_grad_g], ".dy", p->tensor[grad->in[CR_IN_conv_grad_g]].dim[0]);
    clear_slots(op.out, CR_OUT_conv_grad_dgamma, CR_OUT_conv_grad_grad_coeffs);
    return op;
}

/* Inserts the ops that compute all dw behind op `end`. The last convolution of the backward pass comes first. */
static cr_status insert_filter_grads(struct cr_program *p, const struct cr_cost_model *m, int end,
                                     const struct cr_op *filter, int count, bool *accepted) {
    for (int left = count; left > 0 && *accepted; left -= CR_FUSED_MAX) {
        const int          parts = CR_MIN(left, CR_FUSED_MAX);
        const struct cr_op fused = cr_op_fuse(p, &filter[left - parts], parts);
        if (p->failed) return CR_NO_MEMORY(sizeof fused * (size_t)parts);
        *accepted = cr_accepts(m, p, &fused);
        if (*accepted) CR_TRY(cr_insert_op(p, m, end + 1, &fused, ""));
    }
    return CR_OK;
}

/* Rewrites ops first to end. filter: room for the ops of their filter gradients. *accepted becomes false when no kernel
 * accepts one of the new ops; the program is in an undefined state then. */
static cr_status rewrite_backward(struct cr_program *p, const struct cr_cost_model *m, int first, int end,
                                  struct cr_op *filter, bool *accepted) {
    struct cr_op finalize = {0};
    for (int i = first; i <= end; i++) {
        const struct cr_op grad    = p->op[i];
        const struct cr_op part[2] = {finalize, i < end ? with_dy(p, m, &grad) : grad};
        if (i < end) {
            finalize            = grad_finalize_of(&grad, part[1].out[CR_OUT_conv_grad_grad_sums]);
            filter[end - 1 - i] = filter_grad_of(&grad, part[1].out[CR_OUT_conv_grad_dy]);
        }
        p->op[i] = i > first ? cr_op_fuse(p, part, 2) : part[1];
        if (p->failed) return CR_NO_MEMORY(sizeof part);
        if (i == first) continue; /* its kernel stays: it has these rows */
        *accepted = cr_accepts(m, p, &p->op[i]);
        if (!*accepted) return CR_OK;
        CR_TRY(cr_select_op(p, m, i));
    }
    return insert_filter_grads(p, m, end, filter, end - first, accepted);
}

/* Largest sum of the bytes that are live at an op. */
static cr_status find_peak(struct cr_program *p, struct cr_arena *arena, size_t *peak) {
    size_t *load;
    CR_ARENA_ALLOC(arena, load, (size_t)p->ops);
    cr_program_lifetimes(p);
    cr_add_live_bytes(p, 1, load);
    for (int i = 0; i < p->ops; i++) *peak = CR_MAX(*peak, load[i]);
    return CR_OK;
}

/* Fuses the chain of the backward pass in a copy of the program, and keeps the copy if it is within the limit: all dy
 * are live until their filter gradients are computed. */
static cr_status fuse_backward(struct cr_program *p, const struct cr_cost_model *m, size_t pool_limit) {
    int               first, end;
    bool              kept = true;
    size_t            peak = 0;
    cr_status         status;
    struct cr_op     *filter;
    struct cr_arena   arena = {0};
    struct cr_program copy;
    if (!find_chain(p, m, &first, &end)) return CR_OK;
    CR_TRY(cr_program_copy(p, &copy));
    filter = cr_arena_array(&arena, (size_t)(end - first), sizeof *filter);
    if (!filter) CR_NO_MEMORY_OUT((size_t)(end - first) * sizeof *filter);
    CR_TRY_OUT(rewrite_backward(&copy, m, first, end, filter, &kept));
    if (kept) CR_TRY_OUT(find_peak(&copy, &arena, &peak));
    if (kept && peak <= pool_limit) {
        const struct cr_program plain = *p;
        *p                            = copy;
        copy                          = plain;
    }
out:
    cr_arena_free(&arena);
    cr_program_free(&copy);
    return status;
}

cr_status cr_pass_bn_chains(struct cr_program *p, const struct cr_cost_model *cost_model, size_t pool_limit) {
    struct cr_edit edit;
    const int      tensors = p->tensors;
    if (!cost_model->device.sum_rows) return CR_OK;
    for (int i = p->hoisted + 1; i < p->ops; i++) CR_TRY(fuse_forward(p, cost_model, &i));
    CR_TRY(fuse_backward(p, cost_model, pool_limit));
    if (p->tensors == tensors) return CR_OK;
    CR_TRY(cr_edit_open(&edit, p, cost_model)); /* drops tensors that no op uses any more */
    const cr_status status = cr_edit_finish(&edit);
    cr_edit_close(&edit);
    return status;
}
