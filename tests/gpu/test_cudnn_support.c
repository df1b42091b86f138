/* tests/gpu/test_cudnn_support.c: every op of the configurations in configs/ has a kernel on compute capability 8.0
 * and 9.0, in every precision, plain and fused, and so has every op of networks with other numbers of channels; the
 * fused forms of a convolution that cuDNN supports for ResNet-50's shapes. cuDNN is queried for an offline GPU: the
 * test needs the libraries, but no GPU. */
#include "compiler/passes.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "session/session.h"
#include "tests/gpu/cudnn_queries.h"

#include <dirent.h>

static const int capabilities[] = {80, 90};
static const struct precision {
    const char   *name;
    enum cr_dtype real;
    enum cr_math  math;
} precisions[] = {{"fp32", CR_F32, CR_MATH_F32},
                  {"tf32", CR_F32, CR_MATH_TF32},
                  {"fp16", CR_F16, CR_MATH_F16},
                  {"bf16", CR_BF16, CR_MATH_BF16}};

/* ---- cache of queried shapes ---- */

enum { SHAPES_MAX = 2000 };
struct shape {
    int64_t kind, stride, pad, accumulate, dim[12];
};
static struct shape seen[SHAPES_MAX];
static int          seens;

static bool is_new(const struct cr_program *p, const struct cr_op *op) {
    const int    ids[] = {op->in[0], op->in[1], op->out[0]};
    struct shape s     = {.kind       = op->kind,
                          .stride     = op->attr.conv.stride,
                          .pad        = op->attr.conv.pad,
                          .accumulate = op->attr.conv.accumulate};
    for (int i = 0; i < 3; i++) memcpy(&s.dim[4 * i], p->tensor[ids[i]].dim, 4 * sizeof s.dim[0]);
    for (int i = 0; i < seens; i++)
        if (memcmp(&seen[i], &s, sizeof s) == 0) return false;
    CR_ASSERT(seens < SHAPES_MAX);
    seen[seens++] = s;
    return true;
}

/* ---- one op, one program, one config ---- */

struct tally {
    int    cudnn, own, none; /* shapes of convolutions */
    int    others;           /* ops that are not convolutions */
    size_t workspace;        /* largest workspace that cuDNN needs */
};

static bool is_conv(enum cr_op_kind kind) {
    return kind == CR_OP_conv || kind == CR_OP_conv_dgrad || kind == CR_OP_conv_wgrad;
}

static bool own_row_accepts(int cc, const struct precision *precision, const struct cr_program *p,
                            const struct cr_op *op) {
    struct cuda_device device = {.cc = cc, .base.options.tf32 = precision->math == CR_MATH_TF32};
    for (const struct cr_kernel *const *kernel = cr_cuda_conv_kernels; *kernel; kernel++)
        if ((*kernel)->op == op->kind && (!(*kernel)->accepts || (*kernel)->accepts(&device.base, p, op))) return true;
    return false;
}

static void query(int cc, const struct precision *precision, const struct cr_program *p, const struct cr_op *op,
                  struct tally *t) {
    const unsigned       tensor_core = 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    struct cudnn_support s;
    REQUIRE_OK(cr_cudnn_support(gpu_of(cc), p, op, precision->math, false, &s));
    t->cudnn += s.supported;
    t->workspace = CR_MAX(t->workspace, s.workspace_bytes);
    if (s.supported && precision->math == CR_MATH_F32) CHECK(!(s.notes & tensor_core)); /* fp32 means fp32 */
    CHECK(!(s.notes & 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC));
    if (s.supported) return;
    const struct cr_tensor *a = &p->tensor[op->in[0]], *w = &p->tensor[op->in[1]];
    const bool              own = own_row_accepts(cc, precision, p, op);
    t->own += own;
    t->none += !own;
    if (!own)
        TEST_FAIL_("cc %d, %s: no kernel for %s of layer %s: %lld,%lld,%lld,%lld and %lld,%lld,%lld,%lld", cc,
                   precision->name, cr_op_info(op->kind)->name, p->layer[op->layer], (long long)a->dim[0],
                   (long long)a->dim[1], (long long)a->dim[2], (long long)a->dim[3], (long long)w->dim[0],
                   (long long)w->dim[1], (long long)w->dim[2], (long long)w->dim[3]);
}

static void open_device(int cc, const struct precision *precision, struct cuda_device *out) {
    *out = (struct cuda_device){.cc = cc, .multiprocessors = 108, .base.options.tf32 = precision->math == CR_MATH_TF32};
    cr_cuda_collect_kernels(out);
    out->base.kernels = out->kernels;
}

/* Other ops: their kernels depend on shapes and types only. */
static void query_others(int cc, const struct precision *precision, const struct cr_program *p, struct tally *t) {
    struct cuda_device device;
    int                index;
    open_device(cc, precision, &device);
    for (int i = 0; i < p->ops; i++) {
        if (is_conv(p->op[i].kind)) continue;
        t->others++;
        if (!cr_kernel_find(&device.base, p, &p->op[i], 0, &index))
            TEST_FAIL_("cc %d, %s, %s: no kernel for %s of layer %s", cc, precision->name, p->name,
                       cr_op_info(p->op[i].kind)->name, p->op[i].layer >= 0 ? p->layer[p->op[i].layer] : "?");
    }
}

/* The answer of the GPU's kernels, for fused ops that are not convolutions. */
static bool accepts(void *self, const struct cr_program *p, const struct cr_op *op) {
    int index;
    return is_conv(op->kind) || cr_kernel_find(self, p, op, 0, &index);
}

/* Yes, except for the gradient of pooling inside a filter gradient: few GPUs have a kernel for it. */
static bool accepts_most(void *self, const struct cr_program *p, const struct cr_op *op) {
    return op->kind != CR_OP_conv_pool_grad || accepts(self, p, op);
}

/* `any_fusion`: ops are fused without a question to the GPU, so each fused form must have a kernel. */
static void query_program(int cc, const struct precision *precision, const struct cr_config *c, struct cr_model *model,
                          enum cr_program_kind kind, bool any_fusion, struct tally *t) {
    const int64_t     batch = kind == CR_PROGRAM_EVAL && c->train.eval_batch ? c->train.eval_batch : c->train.batch;
    struct cr_program program;
    int               convs = 0;
    REQUIRE_OK(cr_model_program(model, c, kind, batch, &program));
    for (int i = 0; i < program.ops; i++) {
        if (!is_conv(program.op[i].kind)) continue;
        convs++;
        if (is_new(&program, &program.op[i])) query(cc, precision, &program, &program.op[i], t);
    }
    CHECK(convs > 0);
    struct cuda_device device;
    open_device(cc, precision, &device);
    const struct cr_cost_model cost_model = {
        .self = &device.base, .alignment = CR_CUDA_ALIGN, .accepts = any_fusion ? accepts_most : accepts};
    const int plain = program.ops;
    query_others(cc, precision, &program, t);
    REQUIRE_OK(cr_pass_fuse(&program, &cost_model));
    CHECK(program.ops < plain);
    query_others(cc, precision, &program, t);
    cr_program_free(&program);
}

/* Queries a configuration; with `widths`, the network has these numbers of channels. */
static void query_config(int cc, const struct precision *precision, const char *path, const char *widths,
                         struct tally *t) {
    static const enum cr_program_kind kinds[] = {CR_PROGRAM_STEP, CR_PROGRAM_MICRO, CR_PROGRAM_EVAL};
    const struct cr_config           *c;
    struct cr_model                   model;
    struct cr_prepare                 train, eval;
    REQUIRE_OK(cr_config_open(&c, path, widths ? &widths : NULL, widths ? 1 : 0));
    REQUIRE_OK(cr_prepare_from_config(c, CR_SPLIT_TRAIN, &train));
    REQUIRE_OK(cr_prepare_from_config(c, CR_SPLIT_VAL, &eval));
    REQUIRE_OK(cr_model_open(c, c->model.classes ? (int)c->model.classes : 10, train.size, eval.size, &model));
    cr_model_set_real(&model, precision->real);
    for (size_t k = 0; k < CR_COUNT(kinds); k++) query_program(cc, precision, c, &model, kinds[k], !widths, t);
    cr_model_close(&model);
    cr_config_close(c);
}

/* ---- cases ---- */

static void every_op_of_the_shipped_configs_has_a_kernel(void) {
    NEED_LIBRARIES();
    char path[600];
    int  configs = 0;
    for (size_t i = 0; i < CR_COUNT(capabilities) * CR_COUNT(precisions); i++) {
        const int               cc        = capabilities[i / CR_COUNT(precisions)];
        const struct precision *precision = &precisions[i % CR_COUNT(precisions)];
        struct tally            t         = {0};
        const int64_t           start     = cr_time_ns();
        DIR                    *dir       = opendir(CR_SOURCE_DIR "/configs");
        REQUIRE(dir);
        seens = configs = 0;
        for (const struct dirent *entry; (entry = readdir(dir));) {
            const size_t length = strlen(entry->d_name);
            if (length < 5 || strcmp(entry->d_name + length - 4, ".ini") != 0) continue;
            snprintf(path, sizeof path, "%s/configs/%s", CR_SOURCE_DIR, entry->d_name);
            query_config(cc, precision, path, NULL, &t);
            configs++;
        }
        closedir(dir);
        CHECK(configs >= 5);
        CHECK_INT(t.cudnn + t.own + t.none, seens);
        printf(
            "    cc %d.%d %s: %d configs: %d convolution shapes, %d by cuDNN, %d by own kernels, %d by none, workspace "
            "up to %zu MiB; "
            "%d other ops; %.1f s\n",
            cc / 10, cc % 10, precision->name, configs, seens, t.cudnn, t.own, t.none, t.workspace >> 20, t.others,
            (double)(cr_time_ns() - start) * 1e-9);
    }
}

/* Fused forms with sums or with mask bits need multiples of 8 channels; other networks must get plain forms. */
static void networks_with_any_number_of_channels_have_kernels(void) {
    NEED_LIBRARIES();
    static const char *const widths[] = {"model.widths=8,12,16", "model.widths=5,7,9"};
    for (size_t i = 0; i < CR_COUNT(capabilities) * CR_COUNT(precisions) * CR_COUNT(widths); i++) {
        struct tally t = {0};
        seens          = 0;
        query_config(capabilities[i / CR_COUNT(widths) / CR_COUNT(precisions)],
                     &precisions[i / CR_COUNT(widths) % CR_COUNT(precisions)], CR_SOURCE_DIR "/configs/demo.ini",
                     widths[i % CR_COUNT(widths)], &t);
        CHECK_INT(t.cudnn + t.own, seens);
    }
}

/* ---- fused forms ---- */

/* ResNet-50 at batch 256; the strided ones are last but one, then the stem, plain and as space to depth. */
static const struct shape_of_conv resnet50[] = {
    {256, 56, 64, 64, 1, 1, 0},     {256, 56, 64, 64, 3, 1, 1},    {256, 56, 64, 256, 1, 1, 0},
    {256, 56, 256, 64, 1, 1, 0},    {256, 56, 256, 128, 1, 1, 0},  {256, 28, 128, 512, 1, 1, 0},
    {256, 28, 512, 128, 1, 1, 0},   {256, 28, 128, 128, 3, 1, 1},  {256, 28, 512, 256, 1, 1, 0},
    {256, 14, 256, 1024, 1, 1, 0},  {256, 14, 1024, 256, 1, 1, 0}, {256, 14, 256, 256, 3, 1, 1},
    {256, 14, 1024, 512, 1, 1, 0},  {256, 7, 512, 2048, 1, 1, 0},  {256, 7, 2048, 512, 1, 1, 0},
    {256, 7, 512, 512, 3, 1, 1},    {256, 56, 128, 128, 3, 2, 1},  {256, 28, 256, 256, 3, 2, 1},
    {256, 14, 512, 512, 3, 2, 1},   {256, 56, 256, 512, 1, 2, 0},  {256, 28, 512, 1024, 1, 2, 0},
    {256, 14, 1024, 2048, 1, 2, 0}, {256, 224, 3, 64, 7, 2, 3},    {256, 115, 16, 64, 4, 1, 0},
};

/* Forms for which cuDNN 9.19 has compiled kernels: y everywhere, 1 at stride 1 only, n nowhere, ? for some shapes
 * (others exceed our workspace limit); the stem of 7x7 and 3 channels is a case of its own. A later cuDNN may have
 * more: then update these tables and review the fusion table. */
static const struct expected {
    int           cc;
    enum cr_dtype real;
    enum cr_math  math;
    const char   *others, *stem; /* one letter per form */
    size_t        since;         /* of cuDNN, if an older version has less */
} expectations[] = {
    {90, CR_F16, CR_MATH_F16, "yyyyyyyyyyyyy1", "ynnnyyyyynyynn", 0},
    {90, CR_BF16, CR_MATH_BF16, "ynnnyyyyynyynn", "ynnnyyyyynyynn", 0},
    {90, CR_F32, CR_MATH_TF32, "ynnnyyyyynyynn", "ynnnyyyyynyynn", 0},
    {80, CR_F16, CR_MATH_F16, "yyyyyyyyyyyy??", "ynnnyyyyynyynn", 91900},
};

static bool as_expected(const struct expected *e, enum form form, const struct shape_of_conv *s, bool supported) {
    const char letter = (s->C == 3 ? e->stem : e->others)[form];
    return letter == '?' || supported == (letter == 'y' || (letter == '1' && s->stride == 1));
}

static void expected_fused_forms_exist(void) {
    NEED_LIBRARIES();
    for (size_t i = 0; i < CR_COUNT(expectations) * FORMS; i++) {
        const struct expected *e    = &expectations[i / FORMS];
        const enum form        form = (enum form)(i % FORMS);
        if (cudnnGetVersion() < e->since) continue;
        for (size_t k = 0; k < CR_COUNT(resnet50); k++) {
            struct alone a;
            alone_open(&a, form, e->real, &resnet50[k]);
            const struct cudnn_support s = support_of(&a, e->cc, e->math);
            if (!as_expected(e, form, &resnet50[k], s.supported))
                TEST_FAIL_("cc %d, %s, %s, %lldx%lld %lld-%lld %dx%d/%d: %s", e->cc, cr_dtype_name(e->real),
                           form_name[form], (long long)resnet50[k].H, (long long)resnet50[k].H,
                           (long long)resnet50[k].C, (long long)resnet50[k].K, resnet50[k].window, resnet50[k].window,
                           resnet50[k].stride, s.supported ? "supported" : "not supported");
            if (s.supported) CHECK(s.slices == 1 && s.algos == 1); /* existing plans can be built */
            alone_close(&a);
        }
    }
}

/* What cuDNN says about an offline device depends on the GPUs that it can see: see cr_cudnn_device_open_offline. */
static void offline_queries_see_no_gpu(void) {
    NEED_LIBRARIES();
    struct alone a;
    int          count = 0;
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    alone_open(&a, ACT_SUMS, CR_F16, &resnet50[0]);
    support_of(&a, 80, CR_MATH_F16);
    alone_close(&a);
    CHECK_STR(getenv("CUDA_VISIBLE_DEVICES"), "");
    CHECK(cudaGetDeviceCount(&count) != cudaSuccess || count == 0);
}

static void forms_have_several_algos(void) {
    NEED_LIBRARIES();
    static const enum form forms[] = {PLAIN, SUMS, ACT_SUMS, BIAS_ADD_RELU, WGRAD, ACT_WGRAD, DGRAD_ADD, DGRAD_BN};
    for (size_t i = 0; i < CR_COUNT(forms); i++) {
        struct alone         a;
        struct cudnn_support one, all;
        alone_open(&a, forms[i], CR_F16, &resnet50[1]);
        REQUIRE_OK(cr_cudnn_support(gpu_of(90), &a.p, &a.op, CR_MATH_F16, false, &one));
        REQUIRE_OK(cr_cudnn_support(gpu_of(90), &a.p, &a.op, CR_MATH_F16, true, &all));
        CHECK_INT(one.algos, 1);
        CHECK_INT(all.algos, CR_CUDNN_CANDIDATES);
        CHECK_INT(one.engine, all.engine); /* the first plan stays first */
        alone_close(&a);
    }
}

/* ---- unsupported ops ---- */

/* A single op `conv`: x N,8,8,8 with a 3x3 filter; y has `P` pixels per side, 8 is correct. */
static bool is_supported(enum cr_dtype real, enum cr_math math, int64_t P) {
    const struct shape_of_conv s = {2, 8, 8, 8, 3, 1, 1};
    struct alone               a;
    alone_open(&a, PLAIN, real, &s);
    a.op.out[CR_OUT_conv_y] = tensor(&a, "other", real, 2, P, P, 8);
    const bool yes          = support_of(&a, 90, math).supported;
    alone_close(&a);
    return yes;
}

static void unsupported_ops_are_refused(void) {
    NEED_LIBRARIES();
    CHECK(is_supported(CR_F32, CR_MATH_F32, 8));
    CHECK(is_supported(CR_F32, CR_MATH_TF32, 8));
    CHECK(is_supported(CR_F16, CR_MATH_F16, 8));
    CHECK(is_supported(CR_BF16, CR_MATH_BF16, 8));
    CHECK(!is_supported(CR_F64, CR_MATH_F32, 8));
    CHECK(!is_supported(CR_F32, CR_MATH_F16, 8));
    CHECK(!is_supported(CR_BF16, CR_MATH_F16, 8));
    CHECK(!is_supported(CR_F16, CR_MATH_F16, 9)); /* the answer of cuDNN, not of our rules */
}

/* Whether a form is still supported when one slot has another type or has another option. */
static bool form_is_supported(enum form form, void (*change)(struct alone *a)) {
    const struct shape_of_conv s = {2, 8, 16, 16, 3, 1, 1};
    struct alone               a;
    alone_open(&a, form, CR_F16, &s);
    if (change) change(&a);
    const bool yes = support_of(&a, 90, CR_MATH_F16).supported;
    alone_close(&a);
    return yes;
}
static void wide_scale_bias(struct alone *a) {
    a->op.in[CR_IN_conv_scale_bias] = tensor(a, "wide", CR_F32, 2, 1, 1, 16);
}
static void wide_wgrad_scale_bias(struct alone *a) {
    a->op.in[CR_IN_conv_wgrad_scale_bias] = tensor(a, "wide", CR_F32, 2, 1, 1, 16);
}
static void with_relu(struct alone *a) {
    a->op.attr.conv.relu = true;
}
static void with_sums(struct alone *a) {
    a->op.out[CR_OUT_conv_sums] = tensor(a, "more", CR_F32, 2, 1, 1, 16);
}
static void half_sums(struct alone *a) {
    a->op.out[CR_OUT_conv_sums] = tensor(a, "more", CR_F16, 2, 1, 1, 16);
}
static void half_bias(struct alone *a) {
    a->op.in[CR_IN_conv_bias] = tensor(a, "other", CR_F16, 1, 1, 1, 16);
}
static void other_bias(struct alone *a) {
    a->op.in[CR_IN_conv_bias] = tensor(a, "other", CR_BF16, 1, 1, 1, 16);
}
static void no_gamma(struct alone *a) {
    a->op.in[CR_IN_conv_dgrad_gamma] = CR_NONE;
}
static void no_bn_x(struct alone *a) {
    a->op.in[CR_IN_conv_dgrad_bn_x] = CR_NONE;
}
static void no_grad_sums(struct alone *a) {
    a->op.out[CR_OUT_conv_dgrad_grad_sums] = CR_NONE;
}
static void wide_dgrad_add(struct alone *a) {
    a->op.in[CR_IN_conv_dgrad_add] = tensor(a, "wide", CR_F32, 2, 8, 8, 16);
}

static void slot_types_are_checked(void) {
    NEED_LIBRARIES();
    CHECK(form_is_supported(ACT_SUMS, NULL));
    CHECK(!form_is_supported(ACT_SUMS, wide_scale_bias));
    CHECK(!form_is_supported(ACT_SUMS, half_sums));
    CHECK(!form_is_supported(ACT_SUMS, with_relu));
    CHECK(!form_is_supported(PLAIN, with_relu));
    CHECK(!form_is_supported(BIAS_RELU, with_sums));
    CHECK(!form_is_supported(BIAS_RELU, wide_scale_bias));
    CHECK(form_is_supported(BIAS_RELU, half_bias));
    CHECK(!form_is_supported(BIAS_RELU, other_bias));
    CHECK(form_is_supported(ACT_WGRAD, NULL));
    CHECK(!form_is_supported(ACT_WGRAD, wide_wgrad_scale_bias));
    CHECK(form_is_supported(DGRAD_BN, no_grad_sums));
    CHECK(!form_is_supported(DGRAD_BN, no_gamma));
    CHECK(!form_is_supported(DGRAD_BN, no_bn_x));
    CHECK(!form_is_supported(DGRAD_ADD, wide_dgrad_add));
}

/* Our own kernels, which come after cuDNN's, support a plain convolution in every type, without fused options. */
static void own_convolution_kernels_are_plain(void) {
    const struct shape_of_conv s = {2, 8, 16, 16, 3, 1, 1};
    for (size_t i = 0; i < CR_COUNT(precisions) * FORMS; i++) {
        const struct precision *precision = &precisions[i / FORMS];
        const enum form         form      = (enum form)(i % FORMS);
        const bool              plain     = form == PLAIN || form == WGRAD || form == DGRAD;
        struct alone            a;
        alone_open(&a, form, precision->real, &s);
        if (own_row_accepts(80, precision, &a.p, &a.op) != plain)
            TEST_FAIL_("%s, %s: %s", precision->name, form_name[form], plain ? "refused" : "taken");
        if (form == PLAIN) {
            with_relu(&a);
            CHECK(!own_row_accepts(80, precision, &a.p, &a.op));
        }
        alone_close(&a);
    }
}

TESTS(CASE(offline_queries_see_no_gpu), CASE(every_op_of_the_shipped_configs_has_a_kernel),
      CASE(networks_with_any_number_of_channels_have_kernels), CASE(expected_fused_forms_exist),
      CASE(forms_have_several_algos), CASE(unsupported_ops_are_refused), CASE(slot_types_are_checked),
      CASE(own_convolution_kernels_are_plain))
