/* cuda/conv/cifar/chain/forward_kernels.c: finds the forward pass of a CIFAR ResNet in a program and runs it in one
 * cooperative launch (cuda/conv/cifar/chain/forward.cu). Compute capability 9.0. */
#include "cuda/conv/cifar/chain/forward.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

#include <string.h>

/* A convolution of the chain and what follows it; op indices. */
struct link {
    int                conv, apply; /* apply: CR_NONE in the middle of a block */
    enum ck_chain_skip skip;
    bool               pad;
};
struct found {
    struct link link[CK_CHAIN_STEPS_MAX];
    int         links, ops;
};

struct walk {
    const struct cr_device  *device;
    const struct cr_program *p;
    int                      first;
    struct found            *found;
};

/* A convolution with sums and their finalization whose own kernel is that of this folder: the chain repeats its bits.
 * */
static bool is_conv(const struct walk *w, int i) {
    const struct cr_op *op = &w->p->op[i];
    return op->kind == CR_OP_conv && op->in[CR_IN_conv_gamma] >= 0 && op->kernel >= 0 &&
           strncmp(w->device->kernels[op->kernel]->name, "cuda.cifar_conv.", 16) == 0;
}

/* bn_apply with ReLU of the convolution's output and the factors that it has made. */
static bool applies(const struct walk *w, int i, int conv) {
    const struct cr_op *op = &w->p->op[i], *c = &w->p->op[conv];
    return op->kind == CR_OP_bn_apply && op->attr.bn.relu && op->in[CR_IN_bn_apply_x] == c->out[CR_OUT_conv_y] &&
           op->in[CR_IN_bn_apply_scale_bias] == c->out[CR_OUT_conv_next_scale_bias];
}

/* No op outside [from, end) uses the tensor. */
static bool is_inner(const struct cr_program *p, int tensor, int from, int end) {
    if (p->tensor[tensor].keep || p->tensor[tensor].region != CR_REGION_POOL) return false;
    for (int i = 0; i < p->ops; i++) {
        int ids[CR_OP_IDS_MAX], n = i >= from && i < end ? 0 : cr_op_reads(&p->op[i], ids);
        while (n > 0)
            if (ids[--n] == tensor) return false;
    }
    return true;
}

/* The parts of a block; op indices, CR_NONE where absent. */
struct block {
    int conv1, conv2, shortcut, pad, apply;
};

/* Assigns op i to its part of the block whose input is tensor x. */
static bool take(const struct walk *w, struct block *b, int i, int x) {
    const struct cr_op     *op = &w->p->op[i];
    const struct cr_tensor *f  = op->kind == CR_OP_conv ? &w->p->tensor[op->in[CR_IN_conv_w]] : NULL;
    if (op->kind == CR_OP_pad_shortcut && op->in[CR_IN_pad_shortcut_x] == x && b->pad == CR_NONE)
        b->pad = i;
    else if (!is_conv(w, i))
        return false;
    else if (op->in[CR_IN_conv_x] == x && op->in[CR_IN_conv_scale_bias] == CR_NONE && f->dim[1] == 1)
        b->shortcut = b->shortcut == CR_NONE ? i : CR_NONE;
    else if (op->in[CR_IN_conv_x] == x && op->in[CR_IN_conv_scale_bias] == CR_NONE && b->conv1 == CR_NONE)
        b->conv1 = i;
    else if (b->conv1 != CR_NONE && b->conv2 == CR_NONE &&
             op->in[CR_IN_conv_x] == w->p->op[b->conv1].out[CR_OUT_conv_y] &&
             op->in[CR_IN_conv_scale_bias] == w->p->op[b->conv1].out[CR_OUT_conv_next_scale_bias])
        b->conv2 = i;
    else
        return false;
    return true;
}

/* The output of the shortcut is what bn_apply adds, with the factors that belong to it. */
static bool shortcut_fits(const struct walk *w, const struct block *b, int x, int begin) {
    const struct cr_program *p     = w->p;
    const struct cr_op      *apply = &p->op[b->apply], *conv1 = &p->op[b->conv1];
    const int                add = apply->in[CR_IN_bn_apply_add], factors = apply->in[CR_IN_bn_apply_add_scale_bias];
    if (b->shortcut != CR_NONE)
        return b->pad == CR_NONE && conv1->attr.conv.stride == 2 && add == p->op[b->shortcut].out[CR_OUT_conv_y] &&
               factors == p->op[b->shortcut].out[CR_OUT_conv_next_scale_bias];
    if (factors != CR_NONE) return false;
    if (conv1->attr.conv.stride == 1) return b->pad == CR_NONE && add == x;
    if (b->pad == CR_NONE || add != p->op[b->pad].out[CR_OUT_pad_shortcut_y]) return false;
    const int64_t more = p->tensor[add].dim[3] - p->tensor[x].dim[3];
    return p->op[b->pad].attr.conv.stride == 2 && p->op[b->pad].attr.conv.pad_c == more / 2 &&
           is_inner(p, add, begin, b->apply + 1);
}

static bool add_link(struct found *f, int conv, int apply, enum ck_chain_skip skip, bool pad) {
    if (f->links == CK_CHAIN_STEPS_MAX) return false;
    f->link[f->links++] = (struct link){.conv = conv, .apply = apply, .skip = skip, .pad = pad};
    return true;
}

/* Adds the block that begins with op i and reads tensor x; returns its last op, or CR_NONE. */
static int add_block(const struct walk *w, int i, int x) {
    const int    begin = i, links = w->found->links;
    struct block b = {CR_NONE, CR_NONE, CR_NONE, CR_NONE, CR_NONE};
    while (i < w->p->ops && i < begin + 3 && take(w, &b, i, x)) i++;
    if (b.conv1 == CR_NONE || b.conv2 == CR_NONE || i == w->p->ops || !applies(w, i, b.conv2)) return CR_NONE;
    b.apply = i;
    if (w->p->op[b.conv2].attr.conv.stride != 1 || !shortcut_fits(w, &b, x, begin)) return CR_NONE;
    const bool own_bn = b.shortcut != CR_NONE;
    if (add_link(w->found, b.conv1, CR_NONE, CK_CHAIN_PLAIN, b.pad != CR_NONE) &&
        (!own_bn || add_link(w->found, b.shortcut, CR_NONE, CK_CHAIN_PLAIN, false)) &&
        add_link(w->found, b.conv2, b.apply, own_bn ? CK_CHAIN_SHORTCUT : CK_CHAIN_IDENTITY, false))
        return i;
    w->found->links = links;
    return CR_NONE;
}

/* The stem and its bn_apply, then as many blocks as follow. */
static void find(const struct walk *w) {
    const struct cr_program *p    = w->p;
    const int                stem = w->first;
    *w->found                     = (struct found){0};
    if (stem + 1 >= p->ops || !is_conv(w, stem) || !applies(w, stem + 1, stem)) return;
    const struct cr_op *apply = &p->op[stem + 1];
    if (p->tensor[p->op[stem].in[CR_IN_conv_x]].dim[3] != 3 || apply->in[CR_IN_bn_apply_add] != CR_NONE) return;
    (void)add_link(w->found, stem, stem + 1, CK_CHAIN_PLAIN, false);
    for (int i = stem + 1, end; i + 1 < p->ops; i = end) {
        end = add_block(w, i + 1, p->op[i].out[CR_OUT_bn_apply_y]);
        if (end == CR_NONE) return;
        w->found->ops = end + 1 - stem;
    }
}

static int forward_match(const struct cr_device *device, const struct cr_program *p, int first) {
    const struct cuda_device *d  = cuda_of(device);
    const struct cr_op       *op = &p->op[first];
    struct found              found;
    if (op->kind != CR_OP_conv || d->cc != 90 || d->offline) return 0;
    if (!ck_cifar_chain_supports(p->tensor[op->in[CR_IN_conv_x]].dim[0], d->multiprocessors, d->block_bytes)) return 0;
    find(&(const struct walk){.device = device, .p = p, .first = first, .found = &found});
    return found.ops;
}

/* ---- launch ---- */

struct prepared {
    void                *exchange;
    const void          *x;
    int                  steps;
    struct ck_chain_step step[CK_CHAIN_STEPS_MAX];
};

static struct ck_bn_finalize finish_of(const struct cr_call *call) {
    const struct cr_bn_attr *a = &call->op->attr.conv.bn;
    return (struct ck_bn_finalize){.gamma      = call->in[CR_IN_conv_gamma],
                                   .beta       = call->in[CR_IN_conv_beta],
                                   .old_mean   = call->in[CR_IN_conv_running_mean],
                                   .old_var    = call->in[CR_IN_conv_running_var],
                                   .scale_bias = call->out[CR_OUT_conv_next_scale_bias],
                                   .mean_rstd  = call->out[CR_OUT_conv_mean_rstd],
                                   .new_mean   = call->out[CR_OUT_conv_running_mean],
                                   .new_var    = call->out[CR_OUT_conv_running_var],
                                   .count      = a->count,
                                   .eps        = a->eps,
                                   .momentum   = a->momentum};
}

static struct ck_chain_step step_of(const struct cr_call *conv, const struct cr_call *apply, const struct link *l) {
    const struct cr_program *p  = conv->program;
    const struct cr_op      *op = conv->op;
    const struct cr_tensor  *x = cuda_in(p, op, CR_IN_conv_x), *w = cuda_in(p, op, CR_IN_conv_w);
    return (struct ck_chain_step){.conv   = cuda_conv_shape(op, x, w, cuda_out(p, op, CR_OUT_conv_y)),
                                  .w      = conv->in[CR_IN_conv_w],
                                  .y      = conv->out[CR_OUT_conv_y],
                                  .sums   = conv->out[CR_OUT_conv_sums],
                                  .finish = finish_of(conv),
                                  .z      = apply ? apply->out[CR_OUT_bn_apply_y] : NULL,
                                  .mask   = apply ? apply->out[CR_OUT_bn_apply_mask] : NULL,
                                  .skip   = l->skip,
                                  .pad    = l->pad};
}

static void forward_release(struct cr_device *device, void *prepared) {
    struct prepared *a = prepared;
    if (!a) return;
    if (a->exchange) device->backend->release(device, a->exchange);
    cr_free(a);
}

static cr_status forward_prepare(struct cr_device *device, const struct cr_call *const *call, int ops,
                                 void **prepared) {
    const struct cr_program *p     = call[0]->program;
    const int                first = (int)(call[0]->op - p->op);
    struct found             found;
    struct prepared         *a;
    find(&(const struct walk){.device = device, .p = p, .first = first, .found = &found});
    CR_ASSERT(found.ops == ops);
    CR_ALLOC(a, 1);
    *prepared = a;
    a->x      = call[0]->in[CR_IN_conv_x];
    a->steps  = found.links;
    for (int i = 0; i < found.links; i++) {
        const struct link *l = &found.link[i];
        a->step[i]           = step_of(call[l->conv - first], l->apply == CR_NONE ? NULL : call[l->apply - first], l);
    }
    const cr_status status = device->backend->reserve(device, ck_cifar_chain_exchange(), &a->exchange);
    if (status == CR_OK) return CR_OK;
    forward_release(device, a);
    *prepared = NULL;
    return status;
}

static cr_status forward_launch(struct cr_device *device, void *prepared) {
    const struct prepared *a = prepared;
    CUDA_TRY(ck_cifar_chain(a->step, a->steps, a->x, a->exchange, cuda_of(device)->stream[CR_STREAM_COMPUTE]));
    return CR_OK;
}

static const struct cr_chain_kernel forward = {.name    = "cuda.cifar_forward",
                                               .match   = forward_match,
                                               .prepare = forward_prepare,
                                               .launch  = forward_launch,
                                               .release = forward_release};

const struct cr_chain_kernel *const cr_cuda_chains[] = {&forward, NULL};
