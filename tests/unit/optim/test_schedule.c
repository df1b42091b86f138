/* tests/unit/optim/test_schedule.c: the learning rate against closed forms and against CosineAnnealingLR, MultiStepLR,
 * StepLR, LinearLR, PolynomialLR and OneCycleLR of PyTorch 1.13, stepped once per update (values printed with %.12g by
 * lr_scheduler after k calls of step()). */
#include "optim/optim.h"
#include "tests/harness/test.h"

static double evaluated(double (*rule)(const struct cr_config *, int64_t, int64_t), int64_t step, int64_t per_epoch,
                        const char *const *overrides) {
    OWNED(config) config = NULL;
    int           n      = 0;
    while (overrides[n]) n++;
    if (cr_config_open(&config, NULL, overrides, n) != CR_OK) {
        TEST_FAIL_("%s", cr_error_message());
        return NAN;
    }
    return rule(config, step, per_epoch);
}
#define LR(step, per_epoch, ...)                                                                                       \
    evaluated(cr_schedule_lr, (step), (per_epoch), (const char *const[]){__VA_ARGS__, NULL})
#define MOMENTUM(step, per_epoch, ...)                                                                                 \
    evaluated(cr_schedule_momentum, (step), (per_epoch), (const char *const[]){__VA_ARGS__, NULL})

/* CosineAnnealingLR(opt, T_max=50, eta_min=0.001) of lr 0.1 */
TEST(cosine_matches_torch) {
#define COSINE "schedule.kind=cosine", "train.epochs=5", "optim.lr=0.1", "schedule.min_lr=0.001"
    CHECK_NEAR(LR(0, 10, COSINE), 0.1, 1e-15);
    CHECK_NEAR(LR(1, 10, COSINE), 0.0999023230572, 1e-12);
    CHECK_NEAR(LR(7, 10, COSINE), 0.0952889390971, 1e-12);
    CHECK_NEAR(LR(25, 10, COSINE), 0.0505, 1e-12);
    CHECK_NEAR(LR(49, 10, COSINE), 0.0010976769428, 1e-12);
    CHECK_NEAR(LR(50, 10, COSINE), 0.001, 1e-15);
    CHECK_NEAR(LR(5000, 10, COSINE), 0.001, 1e-15); /* does not increase again */
}

/* train.steps ends a run early; the schedule keeps its length. */
TEST(steps_do_not_change_the_schedule) {
    CHECK_NEAR(LR(7, 10, COSINE, "train.steps=8"), 0.0952889390971, 1e-12);
}

/* MultiStepLR(opt, [2, 3.5 epochs], 0.1): the update that begins a milestone is the first with the new rate. */
TEST(multistep_falls_at_milestones) {
#define MULTI                                                                                                          \
    "schedule.kind=multistep", "train.epochs=5", "optim.lr=0.5", "schedule.milestones=2,3.5", "schedule.gamma=0.1"
    CHECK_NEAR(LR(0, 10, MULTI), 0.5, 1e-15);
    CHECK_NEAR(LR(19, 10, MULTI), 0.5, 1e-15);
    CHECK_NEAR(LR(20, 10, MULTI), 0.05, 1e-15);
    CHECK_NEAR(LR(34, 10, MULTI), 0.05, 1e-15);
    CHECK_NEAR(LR(35, 10, MULTI), 0.005, 1e-15);
    CHECK_NEAR(LR(49, 10, MULTI), 0.005, 1e-15);
    for (int64_t per_epoch = 1; per_epoch <= 3000; per_epoch += 13) { /* for any rounding of the division */
        CHECK_NEAR(LR(2 * per_epoch - 1, per_epoch, MULTI), 0.5, 1e-15);
        CHECK_NEAR(LR(2 * per_epoch, per_epoch, MULTI), 0.05, 1e-15);
    }
}

/* StepLR(opt, 20, 0.3) at updates 0, 19, 20, 40, 99: 0.2 * 0.3^(k/20) */
TEST(step_falls_at_regular_intervals) {
#define STEP "schedule.kind=step", "train.epochs=10", "optim.lr=0.2", "schedule.step_epochs=2", "schedule.gamma=0.3"
    CHECK_NEAR(LR(0, 10, STEP), 0.2, 1e-15);
    CHECK_NEAR(LR(19, 10, STEP), 0.2, 1e-15);
    CHECK_NEAR(LR(20, 10, STEP), 0.06, 1e-15);
    CHECK_NEAR(LR(40, 10, STEP), 0.018, 1e-15);
    CHECK_NEAR(LR(99, 10, STEP), 0.00162, 1e-15);
    CHECK_NEAR(LR(3, 1, STEP, "schedule.step_epochs=0.1"), 0.2 * pow(0.3, 30), 1e-20);
}

TEST(constant_does_not_change) {
    CHECK_NEAR(LR(0, 10, "schedule.kind=constant", "optim.lr=0.3"), 0.3, 0);
    CHECK_NEAR(LR(99, 10, "schedule.kind=constant", "optim.lr=0.3"), 0.3, 0);
}

/* LinearLR(start_factor=0.25, total_iters=20), then CosineAnnealingLR(T_max=30): SequentialLR with milestone 20 */
TEST(warm_up_is_linear_before_the_schedule) {
#define WARM COSINE, "schedule.min_lr=0", "schedule.warmup_epochs=2", "schedule.warmup_start=0.25"
    CHECK_NEAR(LR(0, 10, WARM), 0.025, 1e-15);
    CHECK_NEAR(LR(10, 10, WARM), 0.0625, 1e-15);
    CHECK_NEAR(LR(19, 10, WARM), 0.09625, 1e-15);
    CHECK_NEAR(LR(20, 10, WARM), 0.1, 1e-15);
    CHECK_NEAR(LR(35, 10, WARM), 0.05, 1e-12);
    CHECK_NEAR(LR(50, 10, WARM), 0, 1e-12);
    CHECK_NEAR(LR(0, 10, MULTI, "schedule.warmup_epochs=1"), 0, 0);
    CHECK_NEAR(LR(20, 10, MULTI, "schedule.warmup_epochs=1"), 0.05, 1e-15); /* milestones count from the start */
    CHECK_NEAR(LR(49, 10, COSINE, "schedule.warmup_epochs=5"), 0.1 * 49 / 50, 1e-12);
    CHECK_NEAR(LR(50, 10, COSINE, "schedule.warmup_epochs=5"), 0.001, 1e-15); /* a warm-up as long as the run */
}

/* PolynomialLR(opt, total_iters=50, power) of lr 0.1 */
TEST(polynomial_matches_torch) {
#define POLY "schedule.kind=polynomial", "train.epochs=5", "optim.lr=0.1"
    static const struct {
        int64_t step;
        double  square, root;
    } want[] = {{0, 0.1, 0.1},
                {1, 0.09604, 0.0989949493661},
                {7, 0.07396, 0.092736184955},
                {25, 0.025, 0.0707106781187},
                {49, 4e-05, 0.0141421356237},
                {50, 0, 0},
                {500, 0, 0}};
    for (size_t i = 0; i < CR_COUNT(want); i++) {
        CHECK_NEAR(LR(want[i].step, 10, POLY, "schedule.power=2"), want[i].square, 1e-12);
        CHECK_NEAR(LR(want[i].step, 10, POLY, "schedule.power=0.5"), want[i].root, 1e-12);
        CHECK_NEAR(LR(want[i].step, 10, POLY, "schedule.min_lr=0.02", "schedule.power=2"), 0.02 + 0.8 * want[i].square,
                   1e-12);
    }
    CHECK_NEAR(LR(30, 10, POLY, "schedule.warmup_epochs=1"), 0.05,
               1e-12); /* 20 of the 40 updates after the warm-up are done */
    CHECK_NEAR(MOMENTUM(30, 10, POLY, "optim.momentum=0.8"), 0.8, 0);
}

/* OneCycleLR(opt, max_lr=0.4, total_steps=50): the defaults of torch, and another form. */
TEST(one_cycle_matches_torch) {
#define CYCLE "schedule.kind=one_cycle", "train.epochs=5", "optim.lr=0.4"
    static const struct {
        int64_t step;
        double  lr, momentum, other_lr, other_momentum;
    } want[] = {{0, 0.016, 0.95, 0.04, 0.9},
                {1, 0.0208138408611, 0.948746395609, 0.0419181937465, 0.899467168404},
                {7, 0.208, 0.9, 0.126230738712, 0.876047017024},
                {13, 0.395186159139, 0.851253604391, 0.278118472859, 0.833855979761},
                {14, 0.4, 0.85, 0.302303618195, 0.827137883835},
                {15, 0.39919486202, 0.8502012853, 0.3247346048, 0.820907054222},
                {21, 0.361803551661, 0.859549150281, 0.399519811059, 0.800133385817},
                {22, 0.350614490744, 0.8623464267, 0.399674146964, 0.800081544804},
                {30, 0.226847345777, 0.893288336709, 0.31297575513, 0.821777839057},
                {48, 0.000806737980387, 0.9497987147, 0.00170234927736, 0.899674086767},
                {49, 1.6e-06, 0.95, 0.0004, 0.9}};
    for (size_t i = 0; i < CR_COUNT(want); i++) {
#define OTHER                                                                                                          \
    CYCLE, "schedule.peak=0.45", "schedule.div_factor=10", "schedule.final_div_factor=100", "optim.momentum=0.9",      \
        "schedule.low_momentum=0.8"
        CHECK_NEAR(LR(want[i].step, 10, CYCLE), want[i].lr, 1e-12);
        CHECK_NEAR(MOMENTUM(want[i].step, 10, CYCLE, "optim.momentum=0.95", "schedule.low_momentum=0.85"),
                   want[i].momentum, 1e-12);
        CHECK_NEAR(LR(want[i].step, 10, OTHER), want[i].other_lr, 1e-12);
        CHECK_NEAR(MOMENTUM(want[i].step, 10, OTHER), want[i].other_momentum, 1e-12);
    }
    CHECK_NEAR(MOMENTUM(14, 10, CYCLE), 0.9, 0); /* changes only when requested */
    CHECK_NEAR(LR(0, 10, CYCLE, "schedule.peak=0"), 0.4, 1e-12);
    CHECK_NEAR(LR(49, 10, CYCLE, "schedule.peak=1"), 0.4, 1e-12);
}
