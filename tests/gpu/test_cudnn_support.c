/* tests/gpu/test_cudnn_support.c: every op of networks with any number of channels has a kernel on compute capability
 * 8.0 and 9.0, in every precision, plain and fused. cuDNN is queried for an offline GPU: the test needs the libraries,
 * but no GPU. Results of what kernels accept: test_checkops, on a GPU. */
#include "compiler/passes.h"
#include "cuda/common/conv_family.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/device_parts.h"
#include "cuda/core/kernel_tables.h"
#include "tests/gpu/cudnn_queries.h"

static const int capabilities[] = {80, 90};
static const struct precision {
    const char   *name;
    enum cr_dtype real;
    enum cr_math  math;
} precisions[] = {{"fp32", CR_F32, CR_MATH_F32},
                  {"tf32", CR_F32, CR_MATH_TF32},
                  {"fp16", CR_F16, CR_MATH_F16},
                  {"bf16", CR_BF16, CR_MATH_BF16}};

/* ---- one op, one program, one config ---- */

static bool is_conv(enum cr_op_kind kind) {
    return kind == CR_OP_conv || kind == CR_OP_conv_dgrad || kind == CR_OP_conv_wgrad;
}

static bool own_row_accepts(const struct cuda_device *device, const struct cr_program *p, const struct cr_op *op) {
    for (const struct cr_kernel *kernel = cr_cuda_conv_kernels; kernel->name; kernel++)
        if (cr_kernel_accepts(&device->base, kernel, p, op)) return true;
    return false;
}

static void query(struct cuda_device *device, const struct precision *precision, const struct cr_program *p,
                  const struct cr_op *op) {
    struct cudnn_conv_key    key;
    struct cudnn_slices      slices;
    struct cudnn_conv_plans *s = NULL;
    if (cr_cudnn_key_of(p, op, precision->math, &key) && cr_cudnn_may_have(&key) && cr_cudnn_slices_of(&key, &slices)) {
        key = cr_cudnn_slice_key(&key, &slices, 0);
        REQUIRE_OK(cr_cudnn_conv_plans(device, &key, 1, &s));
    }
    const unsigned notes = s && s->plans ? s->plan[0].notes : 0;
    if (precision->math == CR_MATH_F32) CHECK(!(notes & 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE)); /* fp32 means fp32 */
    CHECK(!(notes & 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC));
    if ((!s || !s->plans) && !own_row_accepts(device, p, op))
        TEST_FAIL_("cc %d, %s: no kernel for %s of layer %s", device->cc, precision->name, cr_op_info(op->kind)->name,
                   p->layer[op->layer]);
}

/* Other ops: their kernels depend on shapes and types only. */
static void query_others(const struct cuda_device *d, const struct precision *precision, const struct cr_program *p) {
    int index;
    for (int i = 0; i < p->ops; i++) {
        if (is_conv(p->op[i].kind)) continue;
        if (!cr_kernel_find(&d->base, p, &p->op[i], 0, &index))
            TEST_FAIL_("cc %d, %s, %s: no kernel for %s of layer %s", d->cc, precision->name, p->name,
                       cr_op_info(p->op[i].kind)->name, p->op[i].layer >= 0 ? p->layer[p->op[i].layer] : "?");
    }
}

/* The answer of the GPU's kernels, for fused ops that are not convolutions. */
static bool accepts(void *self, const struct cr_program *p, const struct cr_op *op) {
    int index;
    return is_conv(op->kind) || cr_kernel_find(self, p, op, 0, &index);
}

/* `any_fusion`: ops are fused without a question to the GPU, so each fused form must have a kernel. */
static void query_program(int cc, const struct precision *precision, const struct cr_config *c, struct cr_model *model,
                          enum cr_program_kind kind, bool any_fusion) {
    const int64_t      batch   = kind == CR_PROGRAM_EVAL && c->train.eval_batch ? c->train.eval_batch : c->train.batch;
    OWNED(program)     program = {0};
    int                convs   = 0;
    struct cuda_device device  = {.cc                = cc,
                                  .multiprocessors   = 108,
                                  .families          = ck_families_of(cc),
                                  .offline           = gpu_of(cc),
                                  .base.options.tf32 = precision->math == CR_MATH_TF32};
    cr_cuda_collect_kernels(&device);
    device.base.kernels = device.kernels.kernel;
    REQUIRE_OK(cr_model_program(model, c, kind, batch, &program));
    for (int i = 0; i < program.ops; i++) {
        if (!is_conv(program.op[i].kind)) continue;
        convs++;
        query(&device, precision, &program, &program.op[i]);
    }
    CHECK(convs > 0);
    const struct cr_cost_model cost_model = {
        .self = &device.base, .alignment = CR_CUDA_ALIGN, .accepts = any_fusion ? NULL : accepts};
    const int plain = program.ops;
    query_others(&device, precision, &program);
    REQUIRE_OK(cr_pass_fuse(&program, &cost_model));
    CHECK(program.ops < plain);
    query_others(&device, precision, &program);
    cr_cudnn_cache_close(device.plans);
}

/* Queries a configuration; with `widths`, the network has these numbers of channels. */
static void query_config(int cc, const struct precision *precision, const char *path, const char *widths) {
    static const enum cr_program_kind kinds[] = {CR_PROGRAM_STEP, CR_PROGRAM_MICRO, CR_PROGRAM_EVAL};
    OWNED(config)                     c       = NULL;
    OWNED(model)                      model   = {0};
    struct cr_prepare                 train, eval;
    REQUIRE_OK(cr_config_open(&c, path, widths ? &widths : NULL, widths ? 1 : 0));
    REQUIRE_OK(cr_prepare_from_config(c, CR_SPLIT_TRAIN, &train));
    REQUIRE_OK(cr_prepare_from_config(c, CR_SPLIT_VAL, &eval));
    REQUIRE_OK(cr_model_open(c, c->model.classes ? (int)c->model.classes : 10, train.size, eval.size, &model));
    cr_model_set_real(&model, precision->real);
    for (size_t k = 0; k < CR_COUNT(kinds); k++) query_program(cc, precision, c, &model, kinds[k], !widths);
}

/* Fused forms with sums or with mask bits need multiples of 8 channels; other networks must get plain forms. */
TEST(networks_with_any_number_of_channels_have_kernels) {
    NEED_LIBRARIES();
    static const char *const widths[] = {NULL, "model.widths=8,12,16", "model.widths=5,7,9"};
    for (size_t i = 0; i < CR_COUNT(capabilities) * CR_COUNT(precisions) * CR_COUNT(widths); i++)
        query_config(capabilities[i / CR_COUNT(widths) / CR_COUNT(precisions)],
                     &precisions[i / CR_COUNT(widths) % CR_COUNT(precisions)], CR_SOURCE_DIR "/configs/demo.ini",
                     widths[i % CR_COUNT(widths)]);
}

/* What cuDNN says about an offline device depends on the GPUs that it can see: see cr_cudnn_device_open_offline. */
TEST(offline_queries_see_no_gpu) {
    NEED_LIBRARIES();
    struct cudnn_device gpu;
    int                 count = 0;
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    REQUIRE_OK(cr_cudnn_device_open_offline(gpu_of(80), &gpu));
    cr_cudnn_device_close(&gpu);
    CHECK_STR(getenv("CUDA_VISIBLE_DEVICES"), "");
    CHECK(cudaGetDeviceCount(&count) != cudaSuccess || count == 0);
}
