/* tests/unit/device/test_ref_loss.c: the reference loss with class weights, focal loss and several labels per sample:
 * against PyTorch (tests/golden/loss/make.py), and its gradient against finite differences. */
#define GOLDEN_FILE "loss/loss.safetensors"
#include "tests/harness/finite_differences.h"
#include "tests/harness/golden_tensors.h"

/* The ops loss and loss_grad on these tensors. */
struct losses {
    struct cr_op loss, grad;
    int          logits, labels, weights, metrics, mixes;
};

static void make_ops(struct losses *l, struct ref_run *run, struct cr_loss_attr attr) {
    l->loss                       = cr_op_make(CR_OP_loss, CR_NONE);
    l->grad                       = cr_op_make(CR_OP_loss_grad, CR_NONE);
    l->loss.in[CR_IN_loss_logits] = l->grad.in[CR_IN_loss_grad_logits] = l->logits;
    l->loss.in[CR_IN_loss_labels] = l->grad.in[CR_IN_loss_grad_labels] = l->labels;
    l->loss.in[CR_IN_loss_class_weights]                               = l->weights;
    l->grad.in[CR_IN_loss_grad_class_weights]                          = l->weights;
    l->loss.in[CR_IN_loss_mixes] = l->grad.in[CR_IN_loss_grad_mixes] = l->mixes;
    l->loss.in[CR_IN_loss_metrics] = l->loss.out[CR_OUT_loss_metrics] = l->metrics;
    l->grad.in[CR_IN_loss_grad_state] = cr_tensor_store(&run->p, CR_BUFFER_STATE, CR_NONE);
    l->loss.attr.loss = l->grad.attr.loss = attr;
}

static void check_golden(enum cr_dtype real, const char *part, bool sigmoid, bool several, double ulps) {
    OWNED(ref_run) run = {0};
    int64_t        n, shape[4];
    OWNED(doubles) options = golden_read(part, "options", &n);
    REQUIRE(options);
    REQUIRE_OK(ref_open(&run, real, 2));
    golden_shape(part, "labels", shape);
    struct losses l  = {.logits  = golden_leaf(&run, part, "logits"),
                        .labels  = CR_NONE,
                        .weights = golden_leaf(&run, part, "weights"),
                        .metrics = golden_leaf(&run, part, "metrics"),
                        .mixes   = CR_NONE};
    l.labels         = cr_tensor_add(&run.p, "labels", CR_I32, CR_REGION_INPUT, shape[0], 1, 1, shape[3]);
    const bool mixed = sigmoid && !several; /* these parts have mixes and a threshold */
    if (mixed) l.mixes = cr_tensor_add(&run.p, "mixes", CR_I32, CR_REGION_INPUT, shape[0], 1, 1, CR_MIX_NUMBERS);
    make_ops(&l, &run,
             (struct cr_loss_attr){.smoothing = (float)options[0],
                                   .weight    = 1,
                                   .gamma     = (float)options[1],
                                   .threshold = mixed ? (float)options[2] : 0,
                                   .sigmoid   = sigmoid,
                                   .several   = several});
    l.grad.out[CR_OUT_loss_grad_dx] = l.logits; /* in place, as the planner may choose */
    cr_emit(&run.p, &l.loss, "");
    cr_emit(&run.p, &l.grad, "");
    REQUIRE_OK(ref_bind(&run));
    golden_fill(&run, l.logits, part, "logits");
    golden_fill(&run, l.labels, part, "labels");
    golden_fill(&run, l.weights, part, "weights");
    if (mixed) golden_fill(&run, l.mixes, part, "mixes");
    REQUIRE_OK(ref_exec(&run, 0, 2));
    golden_check(&run, l.metrics, part, "metrics", ulps);
    golden_check(&run, l.logits, part, "dx", ulps);
}

TEST(equal_to_pytorch) {
    static const enum cr_dtype types[]   = {CR_F64, CR_F32};
    static const double        ulps[]    = {64, 1.01};
    static const char *const   single[]  = {"weights", "smooth", "focal", "focal_smooth"};
    static const char *const   binary[]  = {"timm", "timm_smooth", "timm_mixed", "timm_threshold", "timm_weights"};
    static const char *const   several[] = {"bce", "bce_smooth", "bce_focal"};
    for (int t = 0; t < 2; t++) {
        for (size_t i = 0; i < CR_COUNT(single); i++) check_golden(types[t], single[i], false, false, ulps[t]);
        for (size_t i = 0; i < CR_COUNT(binary); i++) check_golden(types[t], binary[i], true, false, ulps[t]);
        for (size_t i = 0; i < CR_COUNT(several); i++) check_golden(types[t], several[i], true, true, ulps[t]);
    }
}

enum { N = 6, K = 35 /* labels need two words of bits */ };

struct problem {
    struct cr_loss_attr attr;
    bool                weights, mixes;
    double              scale;
};

static void draw_labels(struct ref_run *run, int labels, bool several) {
    struct cr_rng rng   = cr_rng_make(7, 0, 0, 0);
    int32_t      *at    = run->own[labels];
    const int64_t words = several ? cr_label_words(K) : 1;
    for (int64_t n = 0; n < N; n++)
        for (int64_t w = 0; w < words; w++)
            at[n * words + w] = n == 1 && w == 0     ? -1 /* not counted */
                                : w == 0 && !several ? (int32_t)cr_rng_below(&rng, K)
                                                     : (int32_t)cr_rng_below(&rng, 1u << (w == words - 1 ? 3 : 31));
}

static void draw_mixes(struct ref_run *run, int mixes) {
    int32_t *mix = run->own[mixes];
    for (int32_t n = 0; n < N; n++, mix += CR_MIX_NUMBERS) {
        memset(mix, 0, CR_MIX_NUMBERS * sizeof *mix);
        mix[CR_MIX_PARTNER]      = (n + 2) % N; /* of one sample the one that is not counted */
        mix[CR_MIX_LABEL_WEIGHT] = CR_MIX_ONE / 4 * (n % 5);
    }
}

static void check_gradient(const struct problem *p) {
    OWNED(ref_run) run = {0};
    REQUIRE_OK(ref_open(&run, CR_F64, 1));
    const int64_t words = p->attr.several ? cr_label_words(K) : 1;
    struct losses l     = {.logits  = ref_leaf(&run, "logits", N, 1, 1, K),
                           .labels  = cr_tensor_add(&run.p, "labels", CR_I32, CR_REGION_INPUT, N, 1, 1, words),
                           .weights = p->weights ? ref_leaf(&run, "weights", 1, 1, 1, K) : CR_NONE,
                           .mixes   = CR_NONE,
                           .metrics = ref_leaf(&run, "metrics", 1, 1, 1, 4)};
    if (p->mixes) l.mixes = cr_tensor_add(&run.p, "mixes", CR_I32, CR_REGION_INPUT, N, 1, 1, CR_MIX_NUMBERS);
    make_ops(&l, &run, p->attr);
    struct cr_op zero       = cr_op_make(CR_OP_zero, CR_NONE);
    zero.out[CR_OUT_zero_y] = l.metrics;
    cr_emit(&run.p, &zero, "");
    cr_emit(&run.p, &l.loss, "");
    const int dx = ref_emit(&run, &l.grad, "dx");
    struct fd f  = {
         .run = &run, .forward_ops = 2, .y = l.metrics, .dy = CR_NONE, .factor = p->scale * (double)p->attr.weight};
    REQUIRE_OK(ref_bind(&run));
    ref_fill(&run, l.logits, 0, 2);
    for (int k = 0; p->weights && k < K; k++) ref_set(&run, l.weights, k, k == 3 ? 0 : 0.25 + 0.125 * k);
    ref_set(&run, l.grad.in[CR_IN_loss_grad_state], CR_STATE_LOSS_SCALE, p->scale);
    draw_labels(&run, l.labels, p->attr.several);
    if (p->mixes) draw_mixes(&run, l.mixes);
    REQUIRE_OK(ref_exec(&run, 0, run.p.ops));
    fd_check(&f, l.logits, dx, 1);
    fd_finish(&f);
    CHECK_INT(ref_at(&run, l.metrics, 1), N - 1);
}

TEST(gradients) {
    for (int i = 0; i < 24; i++) {
        const struct problem p = {.attr    = {.smoothing = i & 1 ? 0.125f : 0,
                                              .weight    = i & 1 ? 0.25f : 1,
                                              .gamma     = i & 2 ? 1.5f : 0,
                                              .sigmoid   = (i & 4) != 0 || i >= 16,
                                              .several   = (i & 4) != 0 && i < 16,
                                              .threshold = i >= 20 ? 0.3f : 0},
                                  .weights = true,
                                  .mixes   = (i & 8) != 0 || i >= 16,
                                  .scale   = i & 2 ? 1024 : 1};
        check_gradient(&p);
    }
    check_gradient(&(struct problem){.attr = {.weight = 0.25f}, .scale = 1024}); /* neither weights nor focal */
    check_gradient(&(struct problem){.attr = {.weight = 0.5f, .smoothing = 0.25f}, .scale = 8});
    check_gradient(&(struct problem){.attr = {.weight = 1, .gamma = 2}, .scale = 1});
    check_gradient(
        &(struct problem){.attr = {.weight = 1, .gamma = 0.5f, .sigmoid = true, .several = true}, .scale = 1});
    check_gradient(&(struct problem){.attr = {.weight = 1, .sigmoid = true}, .scale = 1});
}

/* One sample with label 1 of three classes: the mean loss, and the gradient in dx. */
static double one_sample(const double logits[3], double weight, float gamma, double dx[3]) {
    OWNED(ref_run) run = {0};
    ref_open(&run, CR_F64, 1);
    struct losses l = {.logits  = ref_leaf(&run, "logits", 1, 1, 1, 3),
                       .labels  = cr_tensor_add(&run.p, "labels", CR_I32, CR_REGION_INPUT, 1, 1, 1, 1),
                       .weights = ref_leaf(&run, "weights", 1, 1, 1, 3),
                       .metrics = ref_leaf(&run, "metrics", 1, 1, 1, 4),
                       .mixes   = CR_NONE};
    make_ops(&l, &run, (struct cr_loss_attr){.weight = 1, .gamma = gamma});
    cr_emit(&run.p, &l.loss, "");
    const int out = ref_emit(&run, &l.grad, "dx");
    double    loss;
    if (ref_bind(&run) != CR_OK) return NAN;
    for (int k = 0; k < 3; k++) {
        ref_set(&run, l.logits, k, logits[k]);
        ref_set(&run, l.weights, k, weight);
    }
    ref_set(&run, l.labels, 0, 1);
    ref_set(&run, l.grad.in[CR_IN_loss_grad_state], CR_STATE_LOSS_SCALE, 1);
    if (ref_exec(&run, 0, 2) != CR_OK) TEST_FAIL_("%s", cr_error_message());
    loss = ref_at(&run, l.metrics, 0);
    for (int k = 0; k < 3; k++) dx[k] = ref_at(&run, out, k);
    return loss;
}

TEST(special_values) {
    double dx[3];
    /* A class that is certain: no digits are lost. -log p = log(1 + 2e-20), and its gradient is p - 1 = -2e-20. */
    const double certain[3] = {-46.0517018598809136804, 0, -46.0517018598809136804}; /* log(1e-20) */
    CHECK_NEAR(one_sample(certain, 1, 0, dx) / 2e-20, 1, 1e-12);
    CHECK_NEAR(dx[1] / -2e-20, 1, 1e-12);
    /* Focal loss: (1-p) * -log p and its gradient -2 (1-p)^2 at gamma 1. */
    CHECK_NEAR(one_sample(certain, 1, 1, dx) / 4e-40, 1, 1e-12);
    CHECK_NEAR(dx[1] / -8e-40, 1, 1e-12);
    /* Impossible classes do not make NaN. */
    const double impossible[3] = {-INFINITY, 2, -INFINITY};
    CHECK(one_sample(impossible, 1, 2, dx) == 0 && dx[0] == 0 && dx[1] == 0 && dx[2] == 0);
    const double wrong[3] = {3, -INFINITY, -INFINITY};
    CHECK(isinf(one_sample(wrong, 1, 2, dx)) && dx[0] == 1 && dx[1] == -1 && dx[2] == 0);
    const double nan[3] = {NAN, 1, 2};
    CHECK(isnan(one_sample(nan, 1, 2, dx)) && isnan(dx[0]) && isnan(dx[1]) && isnan(dx[2]));
    /* Labels whose classes all have weight 0 give no gradient. */
    const double some[3] = {1, 2, 3};
    CHECK(one_sample(some, 0, 0, dx) == 0 && dx[0] == 0 && dx[1] == 0);
}
