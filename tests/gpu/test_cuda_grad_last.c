/* tests/gpu/test_cuda_grad_last.c: three conv_grad of a CIFAR network in a row on the GPU, of which each completes the
 * one before it: its parts of dw and the sums of its BN; or the last one computes dw of the others. They are compared
 * with an FP64 reference, and what the first left with the results of a second launch.
 *
 * The GPU as it is completes all of them. With CRESNET_CAPABILITY a kernel may need more shared memory for that than a
 * block has: then it completes nothing and the others still do, or no kernel accepts the op. Chains in which no kernel
 * completes another are not compared; a case without any other chain is skipped. */
#include "core/rng.h"
#include "runtime/executor.h"
#include "tests/harness/device_values.h"
#include "tests/harness/test_gpu.h"

#include <math.h>
#include <stdlib.h>

/* The output of a convolution is the x of the one before it here. */
enum { OPS = 3 };
struct shape {
    int64_t H, C, K, stride, R;
};
static const struct shape c64 = {8, 64, 64, 1, 3}, c32 = {16, 32, 32, 1, 3}, c16 = {32, 16, 16, 1, 3},
                          down64 = {16, 32, 64, 2, 3}, down32 = {32, 16, 32, 2, 3}, short64 = {16, 32, 64, 2, 1},
                          short32 = {32, 16, 32, 2, 1}, stem = {32, 3, 16, 1, 3};
static const struct shape *const chains[][OPS] = {
    {&c64, &c64, &down64}, {&c64, &down64, &c32}, {&down64, &c32, &c32},  {&c32, &c32, &down32},  {&c32, &down32, &c16},
    {&down32, &c16, &c16}, {&c16, &c16, &stem},   {&c64, &c64, &short64}, {&c32, &c32, &short32},
};
enum mode { APART, LATER, FILTERS };

enum { TENSORS_MAX = 64 };
struct side {
    struct cr_device       *device;
    const struct cr_kernel *kernel;
    struct cr_program       p;
    struct cr_op            op[OPS];
    struct cr_call          call[OPS];
    void                   *at[TENSORS_MAX];
    bool                    positive[TENSORS_MAX], is_data[TENSORS_MAX];
    bool                    refused;    /* no kernel accepts an op */
    enum cr_dtype           data, real; /* of activations and filters (is_data); of everything else */
};

static int tensor(struct side *s, bool is_data, bool positive, const int64_t dim[4]) {
    char name[16];
    snprintf(name, sizeof name, "t%d", s->p.tensors);
    s->positive[s->p.tensors] = positive;
    s->is_data[s->p.tensors]  = is_data;
    return cr_tensor_add(&s->p, name, is_data ? s->data : s->real, CR_REGION_POOL, dim[0], dim[1], dim[2], dim[3]);
}
static int vector(struct side *s, int64_t rows, int64_t channels, bool positive) {
    return tensor(s, false, positive, (const int64_t[4]){rows, 1, 1, channels});
}

/* Adds a BN: the first op reads its input, the second one the activation and bn_x, and adds another gradient. */
static void add_bn(struct side *s, struct cr_op *op, const struct shape *v, const int64_t x[4], bool first) {
    op->in[CR_IN_conv_grad_mean_rstd] = vector(s, 2, v->C, true);
    op->in[CR_IN_conv_grad_gamma]     = vector(s, 1, v->C, true);
    if (first)
        op->in[CR_IN_conv_grad_scale_bias] = vector(s, 2, v->C, false);
    else
        op->in[CR_IN_conv_grad_bn_x] = tensor(s, true, false, x),
        op->in[CR_IN_conv_grad_add]  = tensor(s, true, false, x);
    op->out[CR_OUT_conv_grad_grad_sums]   = vector(s, 2, v->C, false);
    op->out[CR_OUT_conv_grad_dgamma]      = vector(s, 1, v->C, false);
    op->out[CR_OUT_conv_grad_dbeta]       = vector(s, 1, v->C, false);
    op->out[CR_OUT_conv_grad_grad_coeffs] = vector(s, 3, v->C, false);
}
static struct cr_op op_of(struct side *s, const struct shape *v, int64_t N, int g, int coeffs, bool first) {
    const int64_t P = v->H / v->stride, x[4] = {N, v->H, v->H, v->C}, y[4] = {N, P, P, v->K},
                  w[4] = {v->K, v->R, v->R, v->C};
    struct cr_op op    = cr_op_make(CR_OP_conv_grad, CR_NONE);
    op.attr.conv       = (struct cr_conv_attr){.stride = (int)v->stride, .pad = (int)v->R / 2, .accumulate = true};
    op.attr.conv.bn    = (struct cr_bn_attr){.count = N * v->H * v->H, .accumulate = true};
    op.in[CR_IN_conv_grad_g]         = g >= 0 ? g : tensor(s, true, false, y);
    op.in[CR_IN_conv_grad_dy_x]      = tensor(s, true, false, y);
    op.in[CR_IN_conv_grad_dy_coeffs] = coeffs >= 0 ? coeffs : vector(s, 3, v->K, false);
    op.in[CR_IN_conv_grad_w]         = tensor(s, true, false, w);
    op.in[CR_IN_conv_grad_x]         = tensor(s, true, false, x);
    op.out[CR_OUT_conv_grad_dw]      = tensor(s, false, false, w);
    if (v->C != 3) op.out[CR_OUT_conv_grad_dx] = tensor(s, true, false, x);
    if (v->C != 3 && v->R == 3) add_bn(s, &op, v, x, first);
    return op;
}

/* Both sides get the same numbers, which the 16-bit type can represent. */
static cr_status fill(struct side *s, int id, enum cr_dtype data, enum cr_dtype real) {
    const struct cr_tensor *t     = &s->p.tensor[id];
    const int64_t           count = cr_tensor_elems(t);
    struct cr_rng           rng   = cr_rng_make((uint64_t)id + 1, CR_RNG_TEST, 0, 0);
    char                   *host  = malloc(t->bytes);
    if (!host) return CR_NO_MEMORY(t->bytes);
    for (int64_t i = 0; i < count; i++) {
        const double        v    = cr_rng_real(&rng) + (s->positive[id] ? 0.5 : -0.5);
        const enum cr_dtype type = s->is_data[id] ? data : real;
        double              word = 0;
        cr_number_store(type, &word, 0, v);
        cr_number_store(t->dtype, host, i, cr_number_load(type, &word, 0));
    }
    const cr_status status = s->device->backend->put(s->device, s->at[id], host, t->bytes);
    free(host);
    return status;
}

static cr_status bind(struct side *s, int i) {
    size_t bytes = 0;
    int    index;
    for (int from = 0; (s->kernel = cr_kernel_find(s->device, &s->p, &s->op[i], from, &index)); from = index + 1)
        if (strncmp(s->kernel->name, "cuda.cifar_conv_grad", 20) == 0 || s->kernel->reference) break;
    s->refused = !s->kernel;
    if (s->refused) return CR_FAIL(CR_ERR_DEVICE, "no kernel");
    s->op[i].kernel = index;
    s->call[i]      = (struct cr_call){.program = &s->p, .op = &s->op[i]};
    for (int k = 0; k < CR_OP_IN_MAX; k++)
        if (s->op[i].in[k] >= 0) s->call[i].in[k] = s->at[s->op[i].in[k]];
    for (int k = 0; k < CR_OP_OUT_MAX; k++)
        if (s->op[i].out[k] >= 0) s->call[i].out[k] = s->at[s->op[i].out[k]];
    CR_TRY(cr_kernel_prepare(s->device, s->kernel, &s->p, &s->op[i], &s->call[i].prepared, &bytes));
    return bytes ? s->device->backend->reserve(s->device, bytes, &s->call[i].workspace) : CR_OK;
}

static cr_status side_open(struct side *s, const struct shape *const *chain, int64_t N, enum cr_dtype data,
                           enum cr_dtype real) {
    cr_program_init(&s->p, "chain", NULL);
    s->p.real = s->data;
    s->op[0]  = op_of(s, chain[0], N, CR_NONE, CR_NONE, true);
    for (int i = 1; i < OPS; i++)
        s->op[i] = op_of(s, chain[i], N, s->op[i - 1].out[CR_OUT_conv_grad_dx],
                         s->op[i - 1].out[CR_OUT_conv_grad_grad_coeffs], false);
    CR_ASSERT(s->p.tensors <= TENSORS_MAX);
    for (int i = 0; i < s->p.tensors; i++) {
        CR_TRY(s->device->backend->reserve(s->device, s->p.tensor[i].bytes, &s->at[i]));
        CR_TRY(fill(s, i, data, real));
    }
    for (int i = 0; i < OPS; i++) CR_TRY(bind(s, i));
    return CR_OK;
}
static void side_close(struct side *s) {
    for (int i = 0; i < s->p.tensors; i++)
        if (s->at[i]) s->device->backend->release(s->device, s->at[i]);
    for (int i = 0; i < OPS; i++)
        if (s->call[i].workspace) s->device->backend->release(s->device, s->call[i].workspace);
    cr_program_free(&s->p);
    if (s->device) cr_device_close(s->device);
}

/* Whether call i completes the one before it. `*left`: how many do. */
static cr_status leave(struct side *s, int i, enum mode mode, int *left) {
    const struct cr_kernel *k = s->kernel;
    if (!k->finishes || !k->finishes(s->device, &s->p, &s->op[i - 1], &s->op[i]))
        return test_is_emulated() ? CR_OK : CR_FAIL(CR_ERR_DEVICE, "op %d does not complete the one before it", i);
    /* An op that leaves dw completes only one that leaves it too. */
    const bool follows = !s->call[i - 1].last || s->op[i - 2].attr.conv.filter_later,
               filters = k->leaves_filter(s->device, &s->p, &s->op[i - 1]);
    if (mode == FILTERS && !(follows && filters) && !test_is_emulated())
        return CR_FAIL(CR_ERR_DEVICE, "op %d does not leave dw", i - 1);
    s->call[i - 1].finish_later         = true;
    s->op[i - 1].attr.conv.filter_later = mode == FILTERS && follows && filters;
    s->call[i].last                     = &s->call[i - 1];
    *left += 1;
    return CR_OK;
}
static cr_status run(struct side *s, enum mode mode, int *left) {
    for (int i = 1; i < OPS && mode != APART; i++) CR_TRY(leave(s, i, mode, left));
    for (int i = 0; i < OPS; i++) CR_TRY(s->kernel->launch(s->device, &s->call[i]));
    return s->device->backend->sync ? s->device->backend->sync(s->device) : CR_OK;
}

static double distance(const struct side *a, const struct side *b, int id) {
    return values_distance((struct device_values){a->device, &a->p.tensor[id], a->at[id]},
                           (struct device_values){b->device, &b->p.tensor[id], b->at[id]});
}

static const char *const slots[] = {"dx", "dw", "grad_sums", "dgamma", "dbeta", "grad_coeffs"};
static void              compare(const struct side *a, const struct side *b, int op, double bound, const char *what) {
                 for (int k = 0; k < (int)CR_COUNT(slots); k++) {
                     if (a->op[op].out[CR_OUT_conv_grad_dx + k] < 0) continue;
        const double off = distance(a, b, a->op[op].out[CR_OUT_conv_grad_dx + k]);
                     if (!(off <= bound)) TEST_FAIL_("%s: %s of op %d is off by %.2e", what, slots[k], op, off);
    }
}

static const struct cr_device_options gpu = {.deterministic = true}, cpu = {.deterministic = true, .ref_only = true};

/* The reference, then the GPU in each mode. `*left`: the number of ops that another one completes. */
static cr_status open_and_run(struct side *s, int i, const struct shape *const *chain, int64_t N, enum cr_dtype data,
                              int *left) {
    s->data = i ? data : CR_F64;
    s->real = i ? CR_F32 : CR_F64;
    CR_TRY(cr_device_open(i ? CR_DEVICE_CUDA : CR_DEVICE_CPU, i ? &gpu : &cpu, &s->device));
    CR_TRY(side_open(s, chain, N, data, CR_F32));
    return run(s, i ? (enum mode)(i - 1) : APART, left);
}

enum { SIDES = 1 + FILTERS + 1 };
/* Returns the number of ops that another one has completed, in all modes. */
static int check_chain(const struct shape *const *chain, int64_t N, enum cr_dtype data) {
    const double bound      = data == CR_F16 ? 3e-3 : 2e-2;
    struct side  all[SIDES] = {0};
    int          left       = 0;
    cr_status    status     = CR_OK;
    for (int i = 0; i < SIDES && status == CR_OK; i++) status = open_and_run(&all[i], i, chain, N, data, &left);
    if (!test_is_emulated() || !all[1].refused) CHECK_STATUS(status, CR_OK);
    for (int i = 2; i < SIDES && status == CR_OK; i++) {
        char what[96];
        snprintf(what, sizeof what, "mode %d, %s, N %d, %d->%d->%d->%d channels", i - 1, cr_dtype_name(data), (int)N,
                 (int)chain[2]->C, (int)chain[1]->C, (int)chain[0]->C, (int)chain[0]->K);
        compare(&all[i], &all[1], 0, i == 2 ? 1e-5 : bound, what);
        for (int op = 0; op < OPS; op++) compare(&all[i], &all[0], op, bound, what);
    }
    for (int i = 0; i < SIDES; i++) side_close(&all[i]);
    return left;
}
static void report(int left) {
    printf("    %d ops are completed by the next one\n", left);
    if (left == 0) SKIP("with this capability no kernel completes the one before it");
}

static void small_batches(void) {
    NEED_GPU();
    int left = 0;
    for (size_t i = 0; i < CR_COUNT(chains); i++) {
        left += check_chain(chains[i], 1, CR_F16);
        left += check_chain(chains[i], 5, CR_BF16);
    }
    report(left);
}
/* Whole images as tiles, or more tiles than multiprocessors. */
static void large_batches(void) {
    NEED_GPU();
    int left = 0;
    for (size_t i = 0; i < CR_COUNT(chains); i++) left += check_chain(chains[i], 79 + (int64_t)i, CR_F16);
    report(left);
}

TESTS(CASE(small_batches), CASE(large_batches))
