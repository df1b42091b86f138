/* cuda/conv/cifar/cifar_forward_kernels.c: runs consecutive convolutions of a CIFAR ResNet with one launch each instead
 * of two or three. The next convolution finishes the BN sums of the last one, and applies the BN, addition and ReLU at
 * the end of a block. The other ops between them are launched by their own kernels. And
 * the list of all chain kernels. */
#include "cuda/conv/cifar/cifar_calls.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

#include <string.h>

struct walk {
    const struct cr_device  *device;
    const struct cr_program *p;
};

static bool is_conv(const struct walk *w, int i) {
    const struct cr_op *op = &w->p->op[i];
    return i < w->p->ops && op->kind == CR_OP_conv && op->in[CR_IN_conv_gamma] >= 0 && op->kernel >= 0 &&
           strncmp(w->device->kernels[op->kernel]->name, "cuda.cifar_conv.", 16) == 0;
}
/* Whether the kernel can finish the sums that belong to the convolution's input. */
static bool is_whole(const struct walk *w, int i) {
    return is_conv(w, i) && w->p->op[i].attr.conv.stride == 1 && w->p->tensor[w->p->op[i].in[CR_IN_conv_x]].dim[3] != 3;
}

/* Op i is the end of a block that the convolution behind it can compute. */
static bool ends_block(const struct walk *w, int i) {
    const struct cr_program *p     = w->p;
    const struct cr_op      *apply = &p->op[i], *conv = apply + 1;
    if (i + 1 >= p->ops || apply->kind != CR_OP_bn_apply || !is_whole(w, i + 1)) return false;
    if (!apply->attr.bn.relu || apply->out[CR_OUT_bn_apply_mask] >= 0) return false;
    const int           y = apply->out[CR_OUT_bn_apply_y], add = apply->in[CR_IN_bn_apply_add];
    const enum cr_dtype type = p->tensor[y].dtype;
    return conv->in[CR_IN_conv_x] == y && conv->in[CR_IN_conv_scale_bias] < 0 &&
           p->tensor[apply->in[CR_IN_bn_apply_x]].dtype == type && (add < 0 || p->tensor[add].dtype == type);
}

/* Number of ops of the chain that begins with op `first`: convolutions and what lies between them. */
static int chain_ops(const struct walk *w, int first) {
    int ops = 0;
    if (!is_conv(w, first)) return 0;
    for (int i = first; i < w->p->ops; i++) {
        const enum cr_op_kind kind = w->p->op[i].kind;
        if (is_conv(w, i))
            ops = i + 1 - first;
        else if (kind != CR_OP_bn_apply && kind != CR_OP_pad_shortcut)
            break;
    }
    return ops > 1 ? ops : 0;
}

/* Op i reads an output of convolution `conv` other than y. */
static bool reads_finished(const struct cr_program *p, int i, int conv) {
    const struct cr_op *c = &p->op[conv];
    int                 ids[CR_OP_IDS_MAX], n = cr_op_reads(&p->op[i], ids);
    while (n-- > 0)
        for (int s = 0; s < CR_OP_OUT_MAX; s++)
            if (c->out[s] >= 0 && c->out[s] != c->out[CR_OUT_conv_y] && c->out[s] == ids[n]) return true;
    return false;
}

/* The convolution that can finish the sums of convolution i, in the chain that ends before op `end`; or CR_NONE. */
static int finished_by(const struct walk *w, int i, int end) {
    const struct cr_program *p = w->p;
    const struct cr_op      *c = &p->op[i];
    int                      j = i + 1;
    while (j < end && !reads_finished(p, j, i)) j++;
    if (j == end) return CR_NONE;
    const struct cr_op *op = &p->op[j];
    const int           y = c->out[CR_OUT_conv_y], scale_bias = c->out[CR_OUT_conv_next_scale_bias];
    if (is_whole(w, j) && op->in[CR_IN_conv_x] == y && op->in[CR_IN_conv_scale_bias] == scale_bias) return j;
    return j + 1 < end && ends_block(w, j) && op->in[CR_IN_bn_apply_x] == y &&
                   op->in[CR_IN_bn_apply_scale_bias] == scale_bias
               ? j + 1
               : CR_NONE;
}

static int forward_match(const struct cr_device *device, const struct cr_program *p, int first) {
    return cuda_of(device)->offline ? 0 : chain_ops(&(const struct walk){.device = device, .p = p}, first);
}

/* ---- launch ---- */

struct step {
    bool                    conv; /* a convolution of this folder; otherwise the op's own kernel */
    struct ck_cifar_conv    args;
    void                   *workspace;
    const struct cr_kernel *kernel;
    struct cr_call          call;
};
struct prepared {
    int          steps;
    struct step *step;
    void        *places;
};

/* Workspaces of convolutions whose sums the next one finishes: those of the ops may share memory. */
enum { PLACES = 4, CHANNELS_MOST = 64 };
static size_t place_bytes(const struct cr_device *device) {
    const struct ck_conv most = {.K = CHANNELS_MOST};
    return ck_cifar_conv_workspace(&most, cuda_of(device)->multiprocessors);
}

static void forward_release(struct cr_device *device, void *prepared) {
    struct prepared *a = prepared;
    if (!a) return;
    if (a->places) device->backend->release(device, a->places);
    cr_free(a->step);
    cr_free(a);
}

/* The convolution of step i, which also computes the end of the block before it if `apply` is not NULL. */
static void add_conv(struct step *s, const struct cr_call *conv, const struct cr_call *apply) {
    s->conv      = true;
    s->args      = cuda_cifar_conv_args(conv);
    s->workspace = conv->workspace;
    if (!apply) return;
    s->args.x              = apply->in[CR_IN_bn_apply_x];
    s->args.scale_bias     = apply->in[CR_IN_bn_apply_scale_bias];
    s->args.add            = apply->in[CR_IN_bn_apply_add];
    s->args.add_scale_bias = apply->in[CR_IN_bn_apply_add_scale_bias];
    s->args.z              = apply->out[CR_OUT_bn_apply_y];
}

/* Step of each op; an op that the next step computes has none. */
static void add_steps(struct prepared *a, const struct walk *w, const struct cr_call *const *call, int first, int ops,
                      int *step_of) {
    for (int i = 0; i < ops; i++) {
        const bool   joined = ends_block(w, first + i) && i + 1 < ops;
        struct step *s      = &a->step[a->steps];
        step_of[i]          = a->steps;
        if (joined) continue;
        a->steps++;
        if (is_conv(w, first + i)) {
            add_conv(s, call[i], i > 0 && ends_block(w, first + i - 1) ? call[i - 1] : NULL);
        } else {
            s->kernel = w->device->kernels[call[i]->op->kernel];
            s->call   = *call[i];
        }
    }
}

/* Which convolution finishes which one. */
static void connect(struct prepared *a, const struct walk *w, size_t bytes, int first, int ops, const int *step_of) {
    int deferred = 0;
    for (int i = 0; i < ops; i++) {
        const int by = is_conv(w, first + i) ? finished_by(w, first + i, first + ops) : CR_NONE;
        if (by == CR_NONE) continue;
        struct step *s = &a->step[step_of[i]], *next = &a->step[step_of[by - first]];
        s->args.defer               = true;
        s->workspace                = (char *)a->places + (size_t)(deferred++ % PLACES) * bytes;
        next->args.before           = &s->args;
        next->args.before_workspace = s->workspace;
    }
}

static cr_status allocate(struct cr_device *device, struct prepared *a, int ops, size_t bytes, int **step_of) {
    CR_ALLOC(a->step, (size_t)ops);
    CR_ALLOC(*step_of, (size_t)ops);
    return device->backend->reserve(device, PLACES * bytes, &a->places);
}

static cr_status forward_prepare(struct cr_device *device, const struct cr_call *const *call, int ops,
                                 void **prepared) {
    const struct walk w       = {.device = device, .p = call[0]->program};
    const int         first   = (int)(call[0]->op - w.p->op);
    const size_t      bytes   = (place_bytes(device) + 255) / 256 * 256;
    int              *step_of = NULL;
    struct prepared  *a;
    *prepared = NULL;
    CR_ALLOC(a, 1);
    const cr_status status = allocate(device, a, ops, bytes, &step_of);
    if (status == CR_OK) {
        add_steps(a, &w, call, first, ops, step_of);
        connect(a, &w, bytes, first, ops, step_of);
        *prepared = a;
    } else {
        forward_release(device, a);
    }
    cr_free(step_of);
    return status;
}

static cr_status forward_launch(struct cr_device *device, void *prepared) {
    const struct prepared    *a = prepared;
    const struct cuda_device *d = cuda_of(device);
    for (int i = 0; i < a->steps; i++) {
        const struct step *s = &a->step[i];
        if (s->conv)
            CUDA_TRY(ck_cifar_conv(&s->args, s->workspace, d->multiprocessors, d->stream[CR_STREAM_COMPUTE]));
        else
            CR_TRY(s->kernel->launch(device, &s->call));
    }
    return CR_OK;
}

static const struct cr_chain_kernel forward = {.name    = "cuda.cifar_forward",
                                               .match   = forward_match,
                                               .prepare = forward_prepare,
                                               .launch  = forward_launch,
                                               .release = forward_release};

const struct cr_chain_kernel *const cr_cuda_chains[] = {&cr_cuda_cifar_head, &forward, NULL};
