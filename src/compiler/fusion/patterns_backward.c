/* compiler/fusion/patterns_backward.c: fusion patterns of the backward pass: the ReLU mask is recomputed or read as
 * bits, and the gradient at the end of a residual block. */
#include "compiler/fusion/fusion.h"

/* ---- recomputed masks ---- */

/* The mask `y` of a BN gradient is the output of that BN and its ReLU. With scale_bias the op can recompute the mask
 * from the BN's input, which it reads anyway. y, x and scale_bias are input slots. */
static bool recompute_mask(struct cr_edit *edit, int root, int y, int x, int scale_bias) {
    struct cr_op fresh = *cr_fuse_op(edit, root);
    int          bn    = cr_fuse_writer(edit, fresh.in[y], CR_OP_bn_apply);
    if (bn == CR_NONE || fresh.in[scale_bias] != CR_NONE) return false;
    const struct cr_op *apply = cr_fuse_op(edit, bn);
    if (!apply->attr.bn.relu || apply->in[CR_IN_bn_apply_add] != CR_NONE) return false;
    if (apply->in[CR_IN_bn_apply_x] != fresh.in[x] || apply->out[CR_OUT_bn_apply_y] != fresh.in[y]) return false;
    if (!cr_edit_can_move(edit, bn, root)) return false;
    fresh.in[scale_bias] = apply->in[CR_IN_bn_apply_scale_bias];
    fresh.in[y]          = CR_NONE;
    return cr_fuse_replace(edit, root, &fresh, CR_NONE, CR_NONE);
}

bool cr_fuse_sums_mask(struct cr_edit *edit, int root) {
    return recompute_mask(edit, root, CR_IN_bn_grad_sums_y, CR_IN_bn_grad_sums_x, CR_IN_bn_grad_sums_scale_bias);
}

bool cr_fuse_apply_mask(struct cr_edit *edit, int root) {
    return recompute_mask(edit, root, CR_IN_bn_grad_apply_y, CR_IN_bn_grad_apply_x, CR_IN_bn_grad_apply_scale_bias);
}

/* ---- the mask of a residual block as bits ---- */

/* The slot in which a backward op reads a mask; CR_NONE: the op has no mask. */
static int mask_slot(const struct cr_op *op) {
    switch (op->kind) {
    case CR_OP_relu_grad: return CR_IN_relu_grad_y;
    case CR_OP_bn_grad_sums: return CR_IN_bn_grad_sums_y;
    case CR_OP_bn_grad_apply: return CR_IN_bn_grad_apply_y;
    default: return CR_NONE;
    }
}

/* Makes every op that reads `y` as a mask read `bits` instead; with check_only, only checks that the device accepts all
 * of them. Returns the number of these ops, or -1 when one is not accepted. */
static int read_bits(struct cr_edit *edit, int root, int y, int bits, bool check_only) {
    int readers = 0;
    for (int k = cr_edit_next_reader(edit, y, root); k != CR_NONE; k = cr_edit_next_reader(edit, y, k)) {
        struct cr_op fresh = *cr_fuse_op(edit, k);
        int          slot  = mask_slot(&fresh);
        if (slot == CR_NONE || fresh.in[slot] != y) continue;
        fresh.in[slot] = bits;
        readers++;
        if (check_only && !cr_fuse_accepted(edit, &fresh)) return -1;
        if (!check_only) cr_edit_replace(edit, k, &fresh);
    }
    return readers;
}

/* Makes the op at `root` store the bits of its output 0 in output `slot`, for all ops that read output 0 as a mask. */
static bool store_mask(struct cr_edit *edit, int root, int slot) {
    struct cr_op fresh = *cr_fuse_op(edit, root);
    int          y     = fresh.out[0];
    if (fresh.out[slot] != CR_NONE || edit->program->tensor[y].dim[3] % 8 != 0) return false;
    if (read_bits(edit, root, y, y, true) < 1) return false; /* no op reads the mask */
    int bits = cr_fuse_output(edit, &fresh, slot, y, "mask");
    if (bits == CR_NONE) return false;
    fresh.out[slot] = bits;
    if (!cr_fuse_accepted(edit, &fresh) || read_bits(edit, root, y, bits, true) < 1) return false;
    cr_edit_replace(edit, root, &fresh);
    read_bits(edit, root, y, bits, false);
    return true;
}

bool cr_fuse_block_mask(struct cr_edit *edit, int root) {
    const struct cr_op *bn = cr_fuse_op(edit, root);
    return bn->attr.bn.relu && bn->in[CR_IN_bn_apply_add] != CR_NONE && store_mask(edit, root, CR_OUT_bn_apply_mask);
}

bool cr_fuse_conv_mask(struct cr_edit *edit, int root) {
    const struct cr_op *conv = cr_fuse_op(edit, root);
    return conv->attr.conv.relu && conv->in[CR_IN_conv_out_scale_bias] != CR_NONE &&
           store_mask(edit, root, CR_OUT_conv_mask);
}

/* ---- the end of a residual block ---- */

/* The ops that one relu_grad can fuse: the add that writes its dy, and the gradient sums of the BNs that read its
 * dx. */
struct block_end {
    int add, sums[2], count; /* op indices; CR_NONE: absent */
};

static struct block_end find_block_end(const struct cr_edit *edit, int root) {
    const struct cr_op *relu = cr_fuse_op(edit, root);
    int                 dx   = relu->out[CR_OUT_relu_grad_dx];
    struct block_end    e    = {.add = cr_fuse_before(edit, relu->in[CR_IN_relu_grad_dy], CR_OP_add, root)};
    for (int k = cr_edit_next_reader(edit, dx, root); k != CR_NONE && e.count < 2;
         k     = cr_edit_next_reader(edit, dx, k)) {
        const struct cr_op *op = cr_fuse_op(edit, k);
        if (op->kind != CR_OP_bn_grad_sums || op->in[CR_IN_bn_grad_sums_dy] != dx ||
            !cr_fuse_same_stream(edit, root, k))
            continue;
        if (op->in[CR_IN_bn_grad_sums_y] != CR_NONE || op->in[CR_IN_bn_grad_sums_scale_bias] != CR_NONE) continue;
        int x = op->in[CR_IN_bn_grad_sums_x], mean_rstd = op->in[CR_IN_bn_grad_sums_mean_rstd];
        if (x == dx || edit->writer[x] > root || edit->writer[mean_rstd] > root) continue; /* not computed yet */
        e.sums[e.count++] = k;
    }
    return e;
}

static void fuse_sums(const struct cr_edit *edit, struct cr_op *relu, int sums, bool second) {
    const struct cr_op *op                                                    = cr_fuse_op(edit, sums);
    relu->in[second ? CR_IN_relu_grad_bn2_x : CR_IN_relu_grad_bn_x]           = op->in[CR_IN_bn_grad_sums_x];
    relu->in[second ? CR_IN_relu_grad_mean_rstd2 : CR_IN_relu_grad_mean_rstd] = op->in[CR_IN_bn_grad_sums_mean_rstd];
    relu->out[second ? CR_OUT_relu_grad_grad_sums2 : CR_OUT_relu_grad_grad_sums] =
        op->out[CR_OUT_bn_grad_sums_grad_sums];
}

static bool fuse_block_end(struct cr_edit *edit, int root, struct block_end e, bool add, int sums) {
    if ((add && e.add == CR_NONE) || sums > e.count || (!add && !sums)) return false;
    struct cr_op fused = *cr_fuse_op(edit, root);
    if (add) {
        fused.in[CR_IN_relu_grad_dy]  = cr_fuse_op(edit, e.add)->in[CR_IN_add_a];
        fused.in[CR_IN_relu_grad_add] = cr_fuse_op(edit, e.add)->in[CR_IN_add_b];
    }
    for (int i = 0; i < sums; i++) fuse_sums(edit, &fused, e.sums[i], i == 1);
    if (!cr_fuse_accepted(edit, &fused)) return false;
    if (add) cr_edit_remove(edit, e.add);
    for (int i = 0; i < sums; i++) cr_edit_remove(edit, e.sums[i]);
    cr_edit_replace(edit, root, &fused);
    return true;
}

bool cr_fuse_block_end_grad(struct cr_edit *edit, int root) {
    /* In the order of what they save: an add saves two passes over a tensor, each gradient sum saves one. */
    static const struct {
        bool add;
        int  sums;
    } parts[]                = {{true, 2}, {true, 1}, {true, 0}, {false, 2}, {false, 1}};
    const struct cr_op *relu = cr_fuse_op(edit, root);
    if (relu->in[CR_IN_relu_grad_add] != CR_NONE || relu->out[CR_OUT_relu_grad_grad_sums] != CR_NONE) return false;
    struct block_end e = find_block_end(edit, root);
    for (size_t i = 0; i < CR_COUNT(parts); i++)
        if (fuse_block_end(edit, root, e, parts[i].add, parts[i].sums)) return true;
    return false;
}
