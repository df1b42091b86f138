/* test_schedule.c: the learning rate against closed forms and against PyTorch 1.13's CosineAnnealingLR, MultiStepLR,
 * StepLR and LinearLR, stepped once an update (values printed with %.12g by lr_scheduler after k calls of step()). */
#include "optim/optim.h"
#include "test.h"

static double lr_of(int64_t step, int64_t per_epoch, const char *const *overrides) {
    struct cr_config config;
    int              n = 0;
    while (overrides[n]) n++;
    if (cr_config_open(&config, NULL, overrides, n) != CR_OK) {
        TEST_FAIL_("%s", cr_error_message());
        return NAN;
    }
    double lr = cr_schedule_lr(&config, step, per_epoch);
    cr_config_close(&config);
    return lr;
}
#define LR(step, per_epoch, ...) lr_of((step), (per_epoch), (const char *const[]){__VA_ARGS__, NULL})

/* CosineAnnealingLR(opt, T_max=50, eta_min=0.001) of lr 0.1 */
static void cosine_is_torchs(void) {
#define COSINE "schedule.kind=cosine", "train.epochs=5", "optim.lr=0.1", "schedule.min_lr=0.001"
    CHECK_NEAR(LR(0, 10, COSINE), 0.1, 1e-15);
    CHECK_NEAR(LR(1, 10, COSINE), 0.0999023230572, 1e-12);
    CHECK_NEAR(LR(7, 10, COSINE), 0.0952889390971, 1e-12);
    CHECK_NEAR(LR(25, 10, COSINE), 0.0505, 1e-12);
    CHECK_NEAR(LR(49, 10, COSINE), 0.0010976769428, 1e-12);
    CHECK_NEAR(LR(50, 10, COSINE), 0.001, 1e-15);
    CHECK_NEAR(LR(5000, 10, COSINE), 0.001, 1e-15); /* does not rise again */
}

/* train.steps cuts a run; the schedule keeps its length. */
static void steps_do_not_change_the_schedule(void) {
    CHECK_NEAR(LR(7, 10, COSINE, "train.steps=8"), 0.0952889390971, 1e-12);
}

/* MultiStepLR(opt, [2, 3.5 epochs], 0.1): the update that begins a milestone is the first at the new rate. */
static void multistep_falls_at_milestones(void) {
#define MULTI "schedule.kind=multistep", "train.epochs=5", "optim.lr=0.5", "schedule.milestones=2,3.5", "schedule.gamma=0.1"
    CHECK_NEAR(LR(0, 10, MULTI), 0.5, 1e-15);
    CHECK_NEAR(LR(19, 10, MULTI), 0.5, 1e-15);
    CHECK_NEAR(LR(20, 10, MULTI), 0.05, 1e-15);
    CHECK_NEAR(LR(34, 10, MULTI), 0.05, 1e-15);
    CHECK_NEAR(LR(35, 10, MULTI), 0.005, 1e-15);
    CHECK_NEAR(LR(49, 10, MULTI), 0.005, 1e-15);
    for (int64_t per_epoch = 1; per_epoch <= 3000; per_epoch += 13) { /* whatever the division rounds to */
        CHECK_NEAR(LR(2 * per_epoch - 1, per_epoch, MULTI), 0.5, 1e-15);
        CHECK_NEAR(LR(2 * per_epoch, per_epoch, MULTI), 0.05, 1e-15);
    }
}

/* StepLR(opt, 20, 0.3) at updates 0, 19, 20, 40, 99: 0.2 * 0.3^(k/20) */
static void step_falls_every_so_often(void) {
#define STEP "schedule.kind=step", "train.epochs=10", "optim.lr=0.2", "schedule.step_epochs=2", "schedule.gamma=0.3"
    CHECK_NEAR(LR(0, 10, STEP), 0.2, 1e-15);
    CHECK_NEAR(LR(19, 10, STEP), 0.2, 1e-15);
    CHECK_NEAR(LR(20, 10, STEP), 0.06, 1e-15);
    CHECK_NEAR(LR(40, 10, STEP), 0.018, 1e-15);
    CHECK_NEAR(LR(99, 10, STEP), 0.00162, 1e-15);
    CHECK_NEAR(LR(3, 1, STEP, "schedule.step_epochs=0.1"), 0.2 * pow(0.3, 30), 1e-20);
}

static void constant_stays(void) {
    CHECK_NEAR(LR(0, 10, "schedule.kind=constant", "optim.lr=0.3"), 0.3, 0);
    CHECK_NEAR(LR(99, 10, "schedule.kind=constant", "optim.lr=0.3"), 0.3, 0);
}

/* LinearLR(start_factor=0.25, total_iters=20), then CosineAnnealingLR(T_max=30): SequentialLR with milestone 20 */
static void warm_up_is_linear_then_the_rule_begins(void) {
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

TESTS(CASE(cosine_is_torchs), CASE(steps_do_not_change_the_schedule), CASE(multistep_falls_at_milestones),
      CASE(step_falls_every_so_often), CASE(constant_stays), CASE(warm_up_is_linear_then_the_rule_begins))
