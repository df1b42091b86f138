/* tests/unit/optim/test_lr_scales.c: the factors of the learning rate that optim.head_lr, layer_decay and
 * bn_bias_factor give to each parameter. That the updates use them: test_update.c and test_golden_train. */
#include "tests/harness/pruning_session.h"
#include "tests/harness/test.h"

static const char *const keys[] = {"optim.lr=0.1",           "optim.head_lr=0.3", "optim.layer_decay=0.5",
                                   "optim.bn_bias_factor=8", "train.device=cpu",  NULL};

static void factors_of_parameters(void) {
    static const struct {
        const char *name;
        double      factor;
    } want[] = {{"conv1.weight", 0.125},
                {"bn1.weight", 0.125},
                {"bn1.bias", 1},
                {"layer1.0.conv1.weight", 0.25},
                {"layer1.0.bn2.weight", 0.25},
                {"layer1.0.bn2.bias", 2},
                {"layer2.0.bn1.bias", 4},
                {"fc.weight", 3},
                {"fc.bias", 3}};
    struct pruned p;
    REQUIRE_OK(pruned_open(&p, keys));
    for (size_t i = 0; i < CR_COUNT(want); i++) {
        const int at = cr_param_store_find(&p.session.model.store, want[i].name);
        REQUIRE(at != CR_NONE);
        CHECK_NEAR(p.session.model.store.param[at].lr_scale, want[i].factor, 1e-12);
    }
    pruned_close(&p);
}

TESTS(CASE(factors_of_parameters))
