/* test_cudnn_support.c: has every op of the shipped configs a kernel on compute capability 8.0 and 9.0, in every precision,
 * plain and fused? cuDNN is asked about a GPU that is only described, so no GPU is needed, only the libraries. */
#include "cuda.h"
#include "cuda_libs.h"
#include "cudnn_conv.h"
#include "session.h"
#include "test.h"

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

#define NEED_LIBRARIES()                                                                                               \
    do {                                                                                                               \
        if (cr_cuda_libs_missing()) SKIP(cr_cuda_libs_missing());                                                      \
    } while (0)

/* ---- shapes that were asked about, so that each is asked about once ---- */

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
    int    others;           /* ops that are none */
    size_t workspace; /* largest that cuDNN asks for */
};

static bool is_conv(enum cr_op_kind kind) {
    return kind == CR_OP_conv || kind == CR_OP_conv_dgrad || kind == CR_OP_conv_wgrad;
}

static bool own_row_accepts(int cc, const struct precision *precision, const struct cr_program *p,
                            const struct cr_op *op) {
    struct cuda_device device = {.cc = cc, .base.options.tf32 = precision->math == CR_MATH_TF32};
    for (const struct cr_kernel *const *row = cr_cuda_conv_rows; *row; row++)
        if ((*row)->op == op->kind && (!(*row)->accepts || (*row)->accepts(&device.base, p, op))) return true;
    return false;
}

static void ask(int cc, const struct precision *precision, const struct cr_program *p, const struct cr_op *op,
                struct tally *t) {
    const unsigned       tensor_core = 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    struct cudnn_support s;
    REQUIRE_OK(cr_cudnn_support(cc, p, op, precision->math, &s));
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

/* All other ops: rows decide by shapes and types alone. */
static void ask_others(int cc, const struct precision *precision, const struct cr_program *p, struct tally *t) {
    struct cuda_device device = {.cc = cc, .multiprocessors = 108, .base.options.tf32 = precision->math == CR_MATH_TF32};
    int                index;
    cr_cuda_rows_collect(&device);
    device.base.rows = device.rows;
    for (int i = 0; i < p->ops; i++) {
        if (is_conv(p->op[i].kind)) continue;
        t->others++;
        if (!cr_row_find(&device.base, p, &p->op[i], 0, &index))
            TEST_FAIL_("cc %d, %s, %s: no kernel for %s of layer %s", cc, precision->name, p->name, cr_op_info(p->op[i].kind)->name,
                       p->op[i].layer >= 0 ? p->layer[p->op[i].layer] : "?");
    }
}

static void ask_program(int cc, const struct precision *precision, const struct cr_config *c, struct cr_model *model,
                        enum cr_program_kind kind, struct tally *t) {
    const int64_t     batch = kind == CR_PROGRAM_EVAL && c->train.eval_batch ? c->train.eval_batch : c->train.batch;
    struct cr_program program;
    int               convs = 0;
    REQUIRE_OK(cr_model_program(model, c, kind, batch, &program));
    for (int i = 0; i < program.ops; i++) {
        if (!is_conv(program.op[i].kind)) continue;
        convs++;
        if (is_new(&program, &program.op[i])) ask(cc, precision, &program, &program.op[i], t);
    }
    CHECK(convs > 0);
    const struct cr_target anything = {.alignment = CR_CUDA_ALIGN};
    const int              plain    = program.ops;
    ask_others(cc, precision, &program, t);
    REQUIRE_OK(cr_pass_fuse(&program, &anything));
    CHECK(program.ops < plain);
    ask_others(cc, precision, &program, t);
    cr_program_free(&program);
}

static void ask_config(int cc, const struct precision *precision, const char *path, struct tally *t) {
    static const enum cr_program_kind kinds[] = {CR_PROGRAM_STEP, CR_PROGRAM_MICRO, CR_PROGRAM_EVAL};
    struct cr_config                  c;
    struct cr_model                   model;
    struct cr_prepare                 train, eval;
    REQUIRE_OK(cr_config_open(&c, path, NULL, 0));
    REQUIRE_OK(cr_prepare_from_config(&c, CR_SPLIT_TRAIN, &train));
    REQUIRE_OK(cr_prepare_from_config(&c, CR_SPLIT_VAL, &eval));
    REQUIRE_OK(cr_model_open(&c, c.model.classes ? (int)c.model.classes : 10, train.size, eval.size, &model));
    cr_model_set_real(&model, precision->real);
    for (size_t k = 0; k < CR_COUNT(kinds); k++) ask_program(cc, precision, &c, &model, kinds[k], t);
    cr_model_close(&model);
    cr_config_close(&c);
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
            ask_config(cc, precision, path, &t);
            configs++;
        }
        closedir(dir);
        CHECK(configs >= 5);
        CHECK_INT(t.cudnn + t.own + t.none, seens);
        printf("    cc %d.%d %s: %d configs: %d convolution shapes, %d by cuDNN, %d by own rows, %d by none, workspace up to %zu MiB; "
               "%d other ops; %.1f s\n",
               cc / 10, cc % 10, precision->name, configs, seens, t.cudnn, t.own, t.none, t.workspace >> 20, t.others,
               (double)(cr_time_ns() - start) * 1e-9);
    }
}

/* One op `conv` of its own: x N,8,8,8 by a 3x3 filter; y is `P` pixels a side, 8 are right. */
static bool is_supported_for(int64_t N, enum cr_dtype real, enum cr_math math, int64_t P) {
    struct cr_store      store = {.real = CR_F32, .half = CR_F32};
    struct cudnn_support s     = {0};
    struct cr_program    p;
    cr_program_init(&p, "alone", &store);
    struct cr_op op       = cr_op_make(CR_OP_conv, cr_program_layer(&p, "alone"));
    op.in[CR_IN_conv_x]   = cr_tensor_add(&p, "x", real, CR_REGION_POOL, N, 8, 8, 8);
    op.in[CR_IN_conv_w]   = cr_tensor_add(&p, "w", real, CR_REGION_POOL, 8, 3, 3, 8);
    op.out[CR_OUT_conv_y] = cr_tensor_add(&p, "y", real, CR_REGION_POOL, N, P, P, 8);
    op.attr.conv          = (struct cr_conv_attr){.stride = 1, .pad = 1};
    if (cr_cudnn_support(90, &p, &op, math, &s) != CR_OK) TEST_FAIL_("%s", cr_error_message());
    cr_program_free(&p);
    cr_store_free(&store);
    return s.supported;
}

static bool is_supported(enum cr_dtype real, enum cr_math math, int64_t P) { return is_supported_for(2, real, math, P); }

static void what_cannot_be_is_refused(void) {
    NEED_LIBRARIES();
    CHECK(is_supported_for((1 << 22) - 1, CR_F16, CR_MATH_F16, 8)); /* 512 elements an image */
    CHECK(!is_supported_for(1 << 22, CR_F16, CR_MATH_F16, 8));
    CHECK(is_supported(CR_F32, CR_MATH_F32, 8));
    CHECK(is_supported(CR_F32, CR_MATH_TF32, 8));
    CHECK(is_supported(CR_F16, CR_MATH_F16, 8));
    CHECK(is_supported(CR_BF16, CR_MATH_BF16, 8));
    CHECK(!is_supported(CR_F64, CR_MATH_F32, 8));
    CHECK(!is_supported(CR_F32, CR_MATH_F16, 8));
    CHECK(!is_supported(CR_BF16, CR_MATH_F16, 8));
    CHECK(!is_supported(CR_F16, CR_MATH_F16, 9)); /* cuDNN's answer, not ours */
}

TESTS(CASE(every_op_of_the_shipped_configs_has_a_kernel), CASE(what_cannot_be_is_refused))
