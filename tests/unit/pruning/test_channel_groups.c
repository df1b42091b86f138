/* tests/unit/pruning/test_channel_groups.c: the traced groups of channels of known networks. That the channels of a
 * group can be removed together, in random networks: test_shrink.c. */
#include "pruning/channel_groups.h"
#include "tests/harness/test.h"

enum { CLASSES = 3, BATCH = 1 };

static cr_status open_network(const char *const *keys, int count, int size, const struct cr_config **config,
                              struct cr_model *model, struct cr_program *program) {
    CR_TRY(cr_config_open(config, NULL, keys, count));
    CR_TRY(cr_model_open(*config, CLASSES, size, size, model));
    return cr_model_program(model, *config, CR_PROGRAM_EVAL, BATCH, program);
}

static const struct cr_channel_group *group_named(const struct cr_channel_groups *g, const char *name) {
    for (int i = 0; i < g->groups; i++)
        if (strcmp(g->group[i].name, name) == 0) return &g->group[i];
    return NULL;
}

struct want {
    const char *name;
    int         units;
    bool        halves;
};

static void check_groups(const char *const *keys, int count, const struct want *want, int groups) {
    OWNED(config)            config  = NULL;
    OWNED(model)             model   = {0};
    OWNED(program)           program = {0};
    struct cr_channel_groups g;
    REQUIRE_OK(open_network(keys, count, 32, &config, &model, &program));
    REQUIRE_OK(cr_channel_groups_trace(&program, &g));
    CHECK_INT(g.groups, groups);
    for (int i = 0; i < groups; i++) {
        const struct cr_channel_group *found = group_named(&g, want[i].name);
        if (!found) TEST_FAIL_("no group %s", want[i].name);
        CHECK_INT(found ? found->units : 0, want[i].units);
        CHECK(found && found->halves == want[i].halves);
    }
    cr_channel_groups_free(&g);
}

/* ResNet-8 with shortcuts of option A: layer1 has 16 channels, which layer2 and layer3 share; layer2 adds 16. */
TEST(option_a) {
    static const char *const keys[] = {"model.arch=custom", "model.depths=1,1,1", "model.widths=16,32,64",
                                       "model.stem=cifar", "model.shortcut=A"};
    static const struct want want[] = {{"conv1", 16, false},          {"layer1.0.conv1", 16, false},
                                       {"layer2.0.conv1", 32, false}, {"layer2.0.conv2", 16, true},
                                       {"layer3.0.conv1", 64, false}, {"layer3.0.conv2", 32, true}};
    check_groups(keys, CR_COUNT(keys), want, CR_COUNT(want));
}

/* The inner channels of grouped convolutions stay: 1 stem and 4 stages remain. */
TEST(grouped_convolutions) {
    static const char *const keys[] = {"model.arch=resnext50_32x4d"};
    static const struct want want[] = {{"conv1", 64, false},
                                       {"layer1.0.conv3", 256, false},
                                       {"layer2.0.conv3", 512, false},
                                       {"layer3.0.conv3", 1024, false},
                                       {"layer4.0.conv3", 2048, false}};
    check_groups(keys, CR_COUNT(keys), want, CR_COUNT(want));
}

/* All that is added has one group: the last convolutions of a stage, its shortcut, the factors of excitation. Inner
 * channels and those of excitation are of one block. */
TEST(bottlenecks) {
    static const char *const keys[] = {"model.arch=custom",      "model.depths=1,2", "model.widths=8,16",
                                       "model.block=bottleneck", "model.stem=deep",  "model.shortcut=D",
                                       "model.excitation=yes"};
    static const struct want want[] = {
        {"conv1.0", 4, false},         {"conv1.3", 4, false},         {"conv1.6", 8, false},
        {"layer1.0.conv1", 8, false},  {"layer1.0.conv2", 8, false},  {"layer1.0.conv3", 32, false},
        {"layer1.0.se.fc1", 8, false}, {"layer2.0.conv1", 16, false}, {"layer2.0.conv2", 16, false},
        {"layer2.0.conv3", 64, false}, {"layer2.0.se.fc1", 8, false}, {"layer2.1.conv1", 16, false},
        {"layer2.1.conv2", 16, false}, {"layer2.1.se.fc1", 8, false}};
    check_groups(keys, CR_COUNT(keys), want, CR_COUNT(want));
}
