/* tests/unit/device/test_ref_distill.c: the reference kernels of knowledge distillation: against PyTorch
 * (tests/golden/loss/make.py), and special values. */
#define GOLDEN_FILE "loss/distill.safetensors"
#include "tests/harness/golden_tensors.h"

/* The op and its gradient on these tensors. */
struct distilled {
    struct cr_op loss, grad;
    int          x, teacher, labels, before, dy;
};

static void make_ops(struct distilled *d, struct ref_run *run, struct cr_distill_attr attr) {
    d->loss                          = cr_op_make(CR_OP_distill, CR_NONE);
    d->grad                          = cr_op_make(CR_OP_distill_grad, CR_NONE);
    d->loss.in[CR_IN_distill_logits] = d->grad.in[CR_IN_distill_grad_logits] = d->x;
    d->loss.in[CR_IN_distill_labels] = d->grad.in[CR_IN_distill_grad_labels] = d->labels;
    d->loss.in[CR_IN_distill_teacher] = d->grad.in[CR_IN_distill_grad_teacher] = d->teacher;
    d->loss.in[CR_IN_distill_metrics] = d->loss.out[CR_OUT_distill_metrics] = d->before;
    d->grad.in[CR_IN_distill_grad_state] = cr_tensor_store(&run->p, CR_BUFFER_STATE, CR_NONE);
    d->grad.in[CR_IN_distill_grad_dy]    = d->dy;
    d->loss.attr.distill = d->grad.attr.distill = attr;
}

static void check_golden(enum cr_dtype real, const char *part, double ulps) {
    OWNED(ref_run) run = {0};
    int64_t        n;
    OWNED(doubles) options = golden_read(part, "options", &n);
    REQUIRE(options);
    REQUIRE_OK(ref_open(&run, real, 2));
    struct distilled d = {.x       = golden_leaf(&run, part, "logits"),
                          .teacher = golden_leaf(&run, part, "teacher"),
                          .labels  = cr_tensor_add(&run.p, "labels", CR_I32, CR_REGION_INPUT, 8, 1, 1, 1),
                          .before  = golden_leaf(&run, part, "before"),
                          .dy      = golden_leaf(&run, part, "dy")};
    make_ops(&d, &run, (struct cr_distill_attr){(float)options[0], (float)options[1]});
    d.grad.out[CR_OUT_distill_grad_dx] = d.dy; /* in place, as the planner may choose */
    cr_emit(&run.p, &d.loss, "");
    cr_emit(&run.p, &d.grad, "");
    REQUIRE_OK(ref_bind(&run));
    golden_fill(&run, d.x, part, "logits");
    golden_fill(&run, d.teacher, part, "teacher");
    golden_fill(&run, d.labels, part, "labels");
    golden_fill(&run, d.before, part, "before");
    golden_fill(&run, d.dy, part, "dy");
    ref_set(&run, d.grad.in[CR_IN_distill_grad_state], CR_STATE_LOSS_SCALE, 1);
    REQUIRE_OK(ref_exec(&run, 0, 2));
    golden_check(&run, d.before, part, "metrics", ulps);
    golden_check(&run, d.dy, part, "dx", ulps);
    double *before = golden_read(part, "dy", &n); /* the loss scale is a factor: -1 takes the gradient away again */
    ref_set(&run, d.grad.in[CR_IN_distill_grad_state], CR_STATE_LOSS_SCALE, -1);
    REQUIRE_OK(ref_exec(&run, 1, 2));
    for (int64_t i = 0; i < n; i++) CHECK_NEAR(ref_at(&run, d.dy, i), before[i], real == CR_F64 ? 1e-12 : 1e-5);
    cr_free(before);
}

TEST(equal_to_pytorch) {
    static const enum cr_dtype types[] = {CR_F64, CR_F32};
    static const double        ulps[]  = {64, 1.01};
    static const char *const   names[] = {"warm", "cold", "alone"};
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < CR_COUNT(names); i++) check_golden(types[t], names[i], ulps[t]);
}

/* One sample of three classes with weight 1 and T = 1: the loss, and the gradient in dx. */
static double one_sample(const double logits[3], const double teacher[3], double hard, double dx[3]) {
    OWNED(ref_run) run = {0};
    ref_open(&run, CR_F64, 1);
    struct distilled d = {.x       = ref_leaf(&run, "x", 1, 1, 1, 3),
                          .teacher = ref_leaf(&run, "teacher", 1, 1, 1, 3),
                          .labels  = cr_tensor_add(&run.p, "labels", CR_I32, CR_REGION_INPUT, 1, 1, 1, 1),
                          .before  = ref_leaf(&run, "metrics", 1, 1, 1, 4),
                          .dy      = ref_leaf(&run, "dy", 1, 1, 1, 3)};
    make_ops(&d, &run, (struct cr_distill_attr){1, 1});
    d.grad.out[CR_OUT_distill_grad_dx] = d.dy;
    cr_emit(&run.p, &d.loss, "");
    cr_emit(&run.p, &d.grad, "");
    if (ref_bind(&run) != CR_OK) return NAN;
    for (int k = 0; k < 3; k++) {
        ref_set(&run, d.x, k, logits[k]);
        ref_set(&run, d.teacher, k, teacher[k]);
        ref_set(&run, d.dy, k, 0);
    }
    ref_set(&run, d.labels, 0, 1);
    ref_set(&run, d.before, 0, hard);
    ref_set(&run, d.grad.in[CR_IN_distill_grad_state], CR_STATE_LOSS_SCALE, 1);
    if (ref_exec(&run, 0, 2) != CR_OK) TEST_FAIL_("%s", cr_error_message());
    const double loss = ref_at(&run, d.before, 0);
    for (int k = 0; k < 3; k++) dx[k] = ref_at(&run, d.dy, k);
    return loss;
}

TEST(special_values) {
    double       dx[3];
    const double some[3] = {1, 2, 3}, sure[3] = {-INFINITY, 0, -INFINITY}, nan[3] = {NAN, 1, 2};
    /* Equal networks: no loss and no gradient; with weight 1 an infinite loss of the label has no part. */
    CHECK(one_sample(some, some, INFINITY, dx) == 0 && dx[0] == 0 && dx[1] == 0 && dx[2] == 0);
    /* Classes that the teacher excludes have no part: the loss is -log p of the other class. */
    CHECK_NEAR(one_sample(some, sure, 0, dx), log(exp(-1) + 1 + exp(1)), 1e-12);
    CHECK(one_sample(sure, sure, 0, dx) == 0 && dx[0] == 0);
    /* A class that the student excludes and the teacher does not: infinite, with a finite gradient. */
    CHECK(isinf(one_sample(sure, some, 0, dx)) && isfinite(dx[0]) && isfinite(dx[1]));
    CHECK(isnan(one_sample(nan, some, 0, dx)) && isnan(dx[0]) && isnan(dx[2]));
    CHECK(isnan(one_sample(some, nan, 0, dx)) && isnan(dx[1]));
}
