/* tests/gpu/test_cuda_finish_later.c: convolutions and their gradients that complete the one before them, in a whole
 * training on the GPU, while the memory of dead tensors is filled with NaN: as good as the same values as with a second
 * launch for each of them, and bitwise the same values in every run. */
#include "autotune/cost_table.h"
#include "compiler/compiler.h"
#include "tests/harness/executor_poison.h"
#include "tests/harness/gpu_training.h"
#include "tests/harness/offload_support.h"
#include "tests/harness/test_gpu.h"

enum { BATCH = 40, SIZE = 32, CLASSES = 10, PIXELS = BATCH * SIZE * SIZE * 3 };

enum level { APART, FORWARD, BOTH }; /* which ops may be marked */
enum { GRADS_MAX = 128 };
/* The first convolution of each of nine blocks, the second one of six of them, and the stem. The first blocks of two
 * stages add the BN of their shortcut, and the last block is part of the op head. Also the ends of these six blocks and
 * of the stem. */
enum { FORWARD_LATER = 9 + 6 + 1 + 7, BACKWARD_LATER = 18 };

/* With CRESNET_CAPABILITY fewer ops wait: a kernel needs more shared memory to complete the one before it.
 *   - 8.0, 163 KiB a block: the gradient of the 3x3 convolution from 32x32 to 16x16 pixels completes none: 17 of 18.
 *   - 8.6, 8.9 and 12.0, 99 KiB: only the gradients of one shortcut, of the 3x3 convolution from 16x16 to 8x8 pixels
 *     and of the stem complete the one before them: 3 of 18. The gradient of the convolution from 32x32 to 16x16 pixels
 *     is several ops, of which relu_grad reads a mask. The bn_apply that stores this mask, at the end of the first
 *     stage, completes no convolution: 15 of 16. */
static void check_marked(int marked, int most) {
    if (test_is_emulated())
        CHECK(marked > 0 && marked <= most);
    else
        CHECK_INT(marked, most);
}

struct outcome {
    float *values; /* parameter store */
    size_t bytes;
    double loss;
    int    marked;
    int    grads; /* results of conv_grad in the parameter store: first byte and number of bytes */
    size_t grad_at[GRADS_MAX], grad_bytes[GRADS_MAX];
};

static bool forward_only(void *self, const struct cr_program *p, const struct cr_op *last, const struct cr_op *op) {
    return op->kind != CR_OP_conv_grad && cr_device_finishes(self, p, last, op);
}

static cr_status compile(struct run *r, enum cr_dtype real, enum level level) {
    static const char *const        overrides[] = {"model.arch=resnet20", "model.shortcut=B", "data.kind=synthetic",
                                                   "data.image_size=32", "train.device=cuda"};
    const struct cr_device_options  options     = {.deterministic = true};
    const struct cr_compile_options how         = {.fuse = true, .reuse = true};
    CR_TRY(cr_config_open(&r->config, NULL, overrides, CR_COUNT(overrides)));
    CR_TRY(cr_model_open(r->config, CLASSES, SIZE, SIZE, &r->model));
    cr_model_set_real(&r->model, real);
    CR_TRY(cr_device_open(CR_DEVICE_CUDA, &options, &r->device));
    struct cr_cost_model cost_model = cr_device_cost_model(r->device);
    if (level == APART) cost_model.finishes = NULL;
    if (level == FORWARD) cost_model.finishes = forward_only;
    CR_TRY(cr_model_program(&r->model, r->config, CR_PROGRAM_STEP, BATCH, &r->program));
    CR_TRY(cr_compile(&r->program, &cost_model, &how));
    return exec_begin(r->device, &r->model, r->config, &r->program, &r->memory, &r->exec);
}

static cr_status train(struct run *r, int steps, struct outcome *out) {
    static uint8_t             pixels[PIXELS];
    static int32_t             labels[BATCH], boxes[BATCH * 4];
    const struct cr_step_block block = {.lr = 0.05f, .momentum = 0.9f, .weight_decay = 1e-4f};
    struct cr_exec_result      result;
    struct cr_rng              rng = cr_rng_make(21, CR_RNG_TEST, 0, 0);
    for (int i = 0; i < BATCH; i++) labels[i] = i % CLASSES;
    for (int i = 0; i < PIXELS; i++)
        pixels[i] = (uint8_t)(labels[i / (SIZE * SIZE * 3)] * 20 + (int32_t)cr_rng_below(&rng, 60));
    for (int i = 0; i < steps; i++) {
        CR_TRY(cr_exec_feed(r->exec, pixels, labels, boxes));
        CR_TRY(cr_exec_run(r->exec, &block));
    }
    CR_TRY(cr_exec_result(r->exec, steps, &result));
    out->loss  = result.loss_sum / BATCH;
    out->bytes = r->memory.bytes[CR_REGION_STORE];
    CR_ALLOC(out->values, out->bytes / sizeof *out->values);
    return r->device->backend->get(r->device, out->values, r->memory.region[CR_REGION_STORE], out->bytes);
}

static void list_grads(const struct cr_program *p, struct outcome *out) {
    for (int i = 0; i < p->ops; i++) {
        out->marked += cr_op_finishes_later(&p->op[i]);
        for (int s = CR_OUT_conv_grad_dw; p->op[i].kind == CR_OP_conv_grad && s <= CR_OUT_conv_grad_dbeta; s++) {
            const struct cr_tensor *t = p->op[i].out[s] < 0 ? NULL : &p->tensor[p->op[i].out[s]];
            if (!t || t->region != CR_REGION_STORE || out->grads == GRADS_MAX) continue;
            out->grad_at[out->grads]      = t->offset;
            out->grad_bytes[out->grads++] = t->bytes;
        }
    }
}

static cr_status outcome_of(enum cr_dtype real, enum level level, int steps, struct outcome *out) {
    struct run r = {0};
    cr_status  status;
    *out = (struct outcome){0};
    CR_TRY_OUT(compile(&r, real, level));
    list_grads(&r.program, out);
    CR_TRY_OUT(cr_exec_poison(r.exec));
    CR_TRY_OUT(train(&r, steps, out));
out:
    run_close(&r);
    return status;
}

/* After one step: the order of the sums of a BN differs, and 16-bit activations may be rounded to the other side. */
static void a_step_gives_nearly_the_same_values(void) {
    NEED_GPU();
    for (int half = 0; half < 2; half++) {
        const enum cr_dtype real  = half ? CR_F16 : CR_BF16;
        struct outcome      apart = {0}, later = {0};
        double              off = 0, size = 0;
        REQUIRE_OK(outcome_of(real, APART, 1, &apart));
        REQUIRE_OK(outcome_of(real, FORWARD, 1, &later));
        CHECK_INT(apart.marked, 0);
        check_marked(later.marked, FORWARD_LATER);
        CHECK_NEAR(later.loss, apart.loss, half ? 5e-3 : 3e-2);
        for (size_t i = 0; i < apart.bytes / sizeof(float); i++) {
            if (!isfinite(apart.values[i])) continue; /* 16-bit copies that are no numbers as f32 */
            if (fabs((double)apart.values[i]) > 1e3) continue;
            off += pow((double)later.values[i] - (double)apart.values[i], 2);
            size += pow((double)apart.values[i], 2);
        }
        CHECK(size > 0 && sqrt(off / size) < (half ? 1e-2 : 5e-2));
        cr_free(apart.values);
        cr_free(later.values);
    }
}

/* One step with the same forward pass: each gradient of a convolution and its BN. */
static void gradients_are_nearly_the_same(void) {
    NEED_GPU();
    for (int half = 0; half < 2; half++) {
        struct outcome apart = {0}, later = {0};
        double         worst = 0;
        REQUIRE_OK(outcome_of(half ? CR_F16 : CR_BF16, FORWARD, 1, &apart));
        REQUIRE_OK(outcome_of(half ? CR_F16 : CR_BF16, BOTH, 1, &later));
        CHECK(later.marked > apart.marked);
        check_marked(later.marked, FORWARD_LATER + BACKWARD_LATER);
        CHECK(later.loss == apart.loss);
        CHECK(later.grads == apart.grads && later.grads >= BACKWARD_LATER + 3);
        for (int i = 0; i < later.grads; i++) {
            const float *a = apart.values + apart.grad_at[i] / sizeof *a,
                        *b = later.values + later.grad_at[i] / sizeof *b;
            double off = 0, size = 0;
            CHECK(apart.grad_bytes[i] == later.grad_bytes[i]);
            for (size_t k = 0; k < later.grad_bytes[i] / sizeof *a; k++)
                off += pow((double)b[k] - (double)a[k], 2), size += pow((double)a[k], 2);
            CHECK(size > 0);
            worst = fmax(worst, sqrt(off / size));
        }
        printf("    %s: a gradient differs by %.1e at most\n", half ? "f16" : "bf16", worst);
        CHECK(worst < (half ? 1e-2 : 8e-2));
        cr_free(apart.values);
        cr_free(later.values);
    }
}

static void every_run_gives_the_same_values(void) {
    NEED_GPU();
    struct outcome first = {0}, again = {0};
    REQUIRE_OK(outcome_of(CR_F16, BOTH, 40, &first));
    REQUIRE_OK(outcome_of(CR_F16, BOTH, 40, &again));
    CHECK(isfinite(first.loss) && first.loss < 2);
    CHECK(first.bytes == again.bytes && memcmp(first.values, again.values, first.bytes) == 0);
    cr_free(first.values);
    cr_free(again.values);
}

TESTS(CASE(a_step_gives_nearly_the_same_values), CASE(gradients_are_nearly_the_same),
      CASE(every_run_gives_the_same_values))
