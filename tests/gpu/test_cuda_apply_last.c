/* tests/gpu/test_cuda_apply_last.c: a convolution of a CIFAR network, the bn_apply behind it and the convolution that
 * reads it on the GPU: bn_apply finishes the BN of the first convolution, or the second convolution does both, and
 * reads the input of a shortcut without parameters. All results are compared with an FP64 reference, and with those of
 * separate launches. */
#include "core/rng.h"
#include "runtime/executor.h"
#include "tests/harness/device_values.h"
#include "tests/harness/test_gpu.h"

#include <math.h>
#include <stdlib.h>

/* The convolution reads images of side H with C channels; bn_apply has no summand, one of its shape, or a shortcut
 * without parameters. The second convolution has a stride of 1, or 2 and twice as many channels (down). */
enum summand { NONE, LIKE_Y, SHORTCUT };
struct shape {
    int64_t      H, C, K, stride, R;
    enum summand add;
    bool         down;
};
static const struct shape shapes[] = {
    {32, 3, 16, 1, 3, NONE, false},      {32, 16, 16, 1, 3, LIKE_Y, false},  {32, 16, 32, 2, 3, LIKE_Y, false},
    {32, 16, 32, 2, 1, NONE, false},     {16, 32, 32, 1, 3, LIKE_Y, false},  {16, 32, 64, 2, 3, LIKE_Y, false},
    {8, 64, 64, 1, 3, LIKE_Y, false},    {8, 64, 64, 1, 3, NONE, false},     {16, 32, 32, 1, 3, SHORTCUT, false},
    {16, 32, 64, 2, 3, SHORTCUT, false}, {8, 64, 64, 1, 3, SHORTCUT, false}, {32, 16, 16, 1, 3, LIKE_Y, true},
    {32, 16, 16, 1, 3, NONE, true},      {16, 32, 32, 1, 3, LIKE_Y, true},   {16, 32, 32, 1, 3, NONE, true},
};

enum { TENSORS_MAX = 32, OPS_MAX = 4 };
enum level { APART, BY_APPLY, BY_CONV }; /* who finishes the BN: the convolution, bn_apply, the second convolution */
struct side {
    struct cr_device       *device;
    int                     ops; /* the convolution, the shortcut if there is one, bn_apply, the second convolution */
    const struct cr_kernel *kernel[OPS_MAX];
    struct cr_program       p;
    struct cr_op            op[OPS_MAX];
    struct cr_call          call[OPS_MAX];
    void                   *at[TENSORS_MAX];
    bool                    positive[TENSORS_MAX];
    enum cr_dtype           data, wide; /* of activations and filters; of everything else */
};

static int tensor(struct side *s, enum cr_dtype dtype, bool positive, const int64_t dim[4]) {
    char name[16];
    snprintf(name, sizeof name, "t%d", s->p.tensors);
    s->positive[s->p.tensors] = positive;
    return cr_tensor_add(&s->p, name, dtype, CR_REGION_POOL, dim[0], dim[1], dim[2], dim[3]);
}
static int vector(struct side *s, int64_t rows, int64_t channels, bool positive) {
    return tensor(s, s->wide, positive, (const int64_t[4]){rows, 1, 1, channels});
}

static void make_ops(struct side *s, const struct shape *v, int64_t N) {
    const int64_t P = v->H / v->stride, x[4] = {N, v->H, v->H, v->C}, y[4] = {N, P, P, v->K},
                  w[4] = {v->K, v->R, v->R, v->C}, shortcut[4] = {N, 2 * P, 2 * P, v->K / 2},
                  next_w[4] = {v->down ? 2 * v->K : v->K, 3, 3, v->K},
                  next_y[4] = {N, v->down ? P / 2 : P, v->down ? P / 2 : P, next_w[0]};
    s->ops                  = v->add == SHORTCUT ? 4 : 3;
    struct cr_op *conv = &s->op[0], *pad = &s->op[1], *apply = &s->op[s->ops - 2], *next = &s->op[s->ops - 1];
    *conv                  = cr_op_make(CR_OP_conv, CR_NONE);
    conv->attr.conv        = (struct cr_conv_attr){.stride = (int)v->stride, .pad = (int)v->R / 2};
    conv->attr.conv.bn     = (struct cr_bn_attr){.eps = 1e-5f, .momentum = 0.1f, .count = N * P * P};
    conv->in[CR_IN_conv_x] = tensor(s, s->data, false, x);
    conv->in[CR_IN_conv_w] = tensor(s, s->data, false, w);
    for (int i = CR_IN_conv_gamma; i <= CR_IN_conv_running_var; i++) conv->in[i] = vector(s, 1, v->K, true);
    conv->out[CR_OUT_conv_y]               = tensor(s, s->data, false, y);
    conv->out[CR_OUT_conv_sums]            = vector(s, 2, v->K, false);
    conv->out[CR_OUT_conv_next_scale_bias] = vector(s, 2, v->K, false);
    conv->out[CR_OUT_conv_mean_rstd]       = vector(s, 2, v->K, false);
    conv->out[CR_OUT_conv_running_mean]    = vector(s, 1, v->K, false);
    conv->out[CR_OUT_conv_running_var]     = vector(s, 1, v->K, false);
    *apply                                 = cr_op_make(CR_OP_bn_apply, CR_NONE);
    apply->attr.bn.relu                    = true;
    apply->in[CR_IN_bn_apply_x]            = conv->out[CR_OUT_conv_y];
    apply->in[CR_IN_bn_apply_scale_bias]   = conv->out[CR_OUT_conv_next_scale_bias];
    if (v->add == LIKE_Y) apply->in[CR_IN_bn_apply_add] = tensor(s, s->data, false, y);
    if (v->add == SHORTCUT) {
        *pad                            = cr_op_make(CR_OP_pad_shortcut, CR_NONE);
        pad->attr.conv                  = (struct cr_conv_attr){.stride = 2, .pad_c = (int)v->K / 4};
        pad->in[CR_IN_pad_shortcut_x]   = tensor(s, s->data, false, shortcut);
        pad->out[CR_OUT_pad_shortcut_y] = apply->in[CR_IN_bn_apply_add] = tensor(s, s->data, false, y);
    }
    apply->out[CR_OUT_bn_apply_y] = tensor(s, s->data, false, y);
    *next                         = cr_op_make(CR_OP_conv, CR_NONE);
    next->attr.conv               = (struct cr_conv_attr){.stride = v->down ? 2 : 1, .pad = 1};
    next->in[CR_IN_conv_x]        = apply->out[CR_OUT_bn_apply_y];
    next->in[CR_IN_conv_w]        = tensor(s, s->data, false, next_w);
    next->out[CR_OUT_conv_y]      = tensor(s, s->data, false, next_y);
    next->out[CR_OUT_conv_sums]   = vector(s, 2, next_w[0], false);
}

/* All sides get the same numbers, which the 16-bit type can represent. */
static cr_status fill(struct side *s, int id, enum cr_dtype half) {
    const struct cr_tensor *t    = &s->p.tensor[id];
    struct cr_rng           rng  = cr_rng_make((uint64_t)id + 1, CR_RNG_TEST, 0, 0);
    char                   *host = malloc(t->bytes);
    if (!host) return CR_NO_MEMORY(t->bytes);
    for (int64_t i = 0; i < cr_tensor_elems(t); i++) {
        uint64_t word = 0;
        cr_number_store(half, &word, 0, cr_rng_real(&rng) + (s->positive[id] ? 0.5 : -0.5));
        cr_number_store(t->dtype, host, i, cr_number_load(half, &word, 0));
    }
    const cr_status status = s->device->backend->put(s->device, s->at[id], host, t->bytes);
    free(host);
    return status;
}

static cr_status bind(struct side *s, int i) {
    size_t bytes = 0;
    s->kernel[i] = cr_kernel_find(s->device, &s->p, &s->op[i], 0, &s->op[i].kernel);
    if (!s->kernel[i]) return CR_FAIL(CR_ERR_DEVICE, "no kernel");
    s->call[i] = (struct cr_call){.program = &s->p, .op = &s->op[i]};
    for (int k = 0; k < CR_OP_IN_MAX; k++)
        if (s->op[i].in[k] >= 0) s->call[i].in[k] = s->at[s->op[i].in[k]];
    for (int k = 0; k < CR_OP_OUT_MAX; k++)
        if (s->op[i].out[k] >= 0) s->call[i].out[k] = s->at[s->op[i].out[k]];
    CR_TRY(cr_kernel_prepare(s->device, s->kernel[i], &s->p, &s->op[i], &s->call[i].prepared, &bytes));
    return bytes ? s->device->backend->reserve(s->device, bytes, &s->call[i].workspace) : CR_OK;
}

static cr_status side_open(struct side *s, const struct shape *v, int64_t N, enum cr_dtype half) {
    cr_program_init(&s->p, "pair", NULL);
    s->p.real = s->data;
    make_ops(s, v, N);
    CR_ASSERT(s->p.tensors <= TENSORS_MAX);
    for (int i = 0; i < s->p.tensors; i++) {
        CR_TRY(s->device->backend->reserve(s->device, s->p.tensor[i].bytes, &s->at[i]));
        CR_TRY(fill(s, i, half));
    }
    for (int i = 0; i < s->ops; i++) CR_TRY(bind(s, i));
    return CR_OK;
}
static void side_close(struct side *s) {
    for (int i = 0; i < s->p.tensors; i++)
        if (s->at[i]) s->device->backend->release(s->device, s->at[i]);
    for (int i = 0; i < s->ops; i++)
        if (s->call[i].workspace) s->device->backend->release(s->device, s->call[i].workspace);
    cr_program_free(&s->p);
    if (s->device) cr_device_close(s->device);
}

/* Op `by` completes op `first`. */
static cr_status leave(struct side *s, int first, int by) {
    if (!cr_device_finishes(s->device, &s->p, &s->op[first], &s->op[by]))
        return CR_FAIL(CR_ERR_DEVICE, "op %d does not finish op %d", by, first);
    s->call[first].finish_later = true;
    return CR_OK;
}
static cr_status run(struct side *s, enum level level) {
    const int apply = s->ops - 2;
    if (level >= BY_APPLY) CR_TRY(leave(s, 0, apply));
    if (level >= BY_APPLY) s->call[apply].last = &s->call[0];
    if (level == BY_CONV) CR_TRY(leave(s, apply, apply + 1));
    if (level == BY_CONV) s->call[apply + 1].last = &s->call[apply];
    if (level == BY_CONV && apply > 1) {
        CR_TRY(leave(s, 1, apply + 1));
        s->call[apply].shortcut = &s->call[1];
    }
    for (int i = 0; i < s->ops; i++) CR_TRY(s->kernel[i]->launch(s->device, &s->call[i]));
    return s->device->backend->sync ? s->device->backend->sync(s->device) : CR_OK;
}

static double distance(const struct side *a, const struct side *b, int id) {
    return values_distance((struct device_values){a->device, &a->p.tensor[id], a->at[id]},
                           (struct device_values){b->device, &b->p.tensor[id], b->at[id]});
}

static void compare(const struct side *a, const struct side *b, double bound, const char *what) {
    for (int i = 0; i < a->ops; i++)
        for (int k = 0; k < CR_OP_OUT_MAX; k++) { /* a shortcut that another launch reads is not stored */
            if (a->op[i].out[k] < 0 || (a->op[i].kind == CR_OP_pad_shortcut && a->call[i].finish_later)) continue;
            const double off = distance(a, b, a->op[i].out[k]);
            if (!(off <= bound)) TEST_FAIL_("%s: result %d of op %d is off by %.2e", what, k, i, off);
        }
}

static void check_shape(const struct shape *v, int64_t N, enum cr_dtype data) {
    const struct cr_device_options gpu = {.deterministic = true}, cpu = {.deterministic = true, .ref_only = true};
    struct side truth = {.data = CR_F64, .wide = CR_F64}, apart = {.data = data, .wide = CR_F32}, later = apart,
                applied      = apart;
    struct side *const all[] = {&truth, &apart, &later, &applied};
    char               what[96];
    cr_status          status = CR_OK;
    snprintf(what, sizeof what, "%s, N %d, %d->%d channels, stride %d, %dx%d%s", cr_dtype_name(data), (int)N, (int)v->C,
             (int)v->K, (int)v->stride, (int)v->R, (int)v->R, v->down ? ", then stride 2" : "");
    for (int i = 0; i < 4 && status == CR_OK; i++) {
        status = cr_device_open(i ? CR_DEVICE_CUDA : CR_DEVICE_CPU, i ? &gpu : &cpu, &all[i]->device);
        if (status == CR_OK) status = side_open(all[i], v, N, data);
        if (status == CR_OK) status = run(all[i], i < 2 ? APART : i == 2 ? BY_APPLY : BY_CONV);
    }
    CHECK_STATUS(status, CR_OK);
    if (status == CR_OK) {
        compare(&later, &apart, data == CR_F16 ? 1e-4 : 1e-3, what);
        compare(&later, &truth, data == CR_F16 ? 2e-3 : 2e-2, what);
        compare(&applied, &apart, data == CR_F16 ? 1e-4 : 1e-3, what);
        compare(&applied, &truth, data == CR_F16 ? 2e-3 : 2e-2, what);
    }
    for (int i = 0; i < 4; i++) side_close(all[i]);
}

static void small_batches(void) {
    NEED_GPU();
    for (size_t i = 0; i < CR_COUNT(shapes); i++) {
        check_shape(&shapes[i], 1, CR_F16);
        check_shape(&shapes[i], 5, CR_BF16);
    }
}
/* More images than blocks; several turns of a thread. A convolution with a stride of 2 would have several tiles a block
 * and leaves the BN to bn_apply. */
static void large_batches(void) {
    NEED_GPU();
    for (size_t i = 0; i < CR_COUNT(shapes); i++)
        if (!shapes[i].down) check_shape(&shapes[i], i % 2 ? 150 : 190, CR_F16);
}
/* Less images than multiprocessors, but more than half as many: the first blocks of a launch have no image, and one of
 * them stores the results of the BN. */
static void blocks_without_image(void) {
    NEED_GPU();
    for (size_t i = 0; i < CR_COUNT(shapes); i++) check_shape(&shapes[i], 100, i % 2 ? CR_BF16 : CR_F16);
}

TESTS(CASE(small_batches), CASE(large_batches), CASE(blocks_without_image))
