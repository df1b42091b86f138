/* tests/unit/model/test_channels.c: model.channels: the layers have the given channels; the channels of an architecture
 * give the same network as the architecture; bad texts are refused. */
#include "model/channels.h"
#include "tests/harness/network_support.h"

static int64_t filters(void *self, const char *layer) {
    const struct cr_model *m     = self;
    const int              param = cr_param_store_find(&m->store, formatted("%s.weight", layer));
    return param == CR_NONE ? -1 : m->store.param[param].dim[0];
}

static cr_status open_with(const char *const *keys, const char *channels, const struct cr_config **config,
                           struct cr_model *model) {
    const char *all[16] = {NULL};
    int         count   = 0;
    for (; keys[count]; count++) all[count] = keys[count];
    all[count++] = formatted("model.channels=%s", channels);
    CR_TRY(cr_config_open(config, NULL, all, count));
    const cr_status status = cr_model_open(*config, 5, 32, 32, model);
    if (status != CR_OK) cr_config_close(*config);
    return status;
}

static const char *const basic[]      = {"model.arch=custom", "model.depths=2,1", "model.widths=8,16",
                                         "model.shortcut=B",  "model.stem=cifar", NULL};
static const char *const shortcut_a[] = {"model.arch=custom", "model.depths=1,1", "model.widths=8,16",
                                         "model.shortcut=A",  "model.stem=cifar", NULL};
static const char *const deep[]       = {
          "model.arch=custom", "model.depths=1,2", "model.widths=8,16",    "model.block=bottleneck",
          "model.stem=deep",   "model.shortcut=D", "model.excitation=yes", NULL};
static const char *const grouped[]   = {"model.arch=resnext50_32x4d", NULL};
static const char *const attention[] = {"model.arch=resnet18", "model.eca=yes", "model.blur_pool=yes", NULL};

struct want {
    const char *layer;
    int64_t     channels;
};

static void check_layers(const char *const *keys, const char *text, const struct want *want, int count) {
    OWNED(config) config = NULL;
    OWNED(model)  model  = {0};
    OWNED(text)   again  = {0};
    REQUIRE_OK(open_with(keys, text, &config, &model));
    for (int i = 0; i < count; i++) {
        CHECK_INT(filters(&model, want[i].layer), want[i].channels);
        if (filters(&model, want[i].layer) != want[i].channels) printf("    %s\n", want[i].layer);
    }
    cr_channels_text(&model, config, filters, &model, &again);
    CHECK_STR(again.data, text);
}

TEST(layers_have_the_given_channels) {
    static const struct want of_basic[] = {{"conv1", 5},          {"layer1.0.conv1", 1},       {"layer1.0.conv2", 5},
                                           {"layer1.1.conv1", 7}, {"layer1.1.conv2", 5},       {"layer2.0.conv1", 3},
                                           {"layer2.0.conv2", 4}, {"layer2.0.downsample.0", 4}};
    static const struct want of_deep[]  = {
         {"conv1.0", 3},         {"conv1.3", 4},
         {"conv1.6", 9},         {"layer1.0.conv1", 2},
         {"layer1.0.conv2", 3},  {"layer1.0.se.fc1", 1},
         {"layer1.0.conv3", 9},  {"layer1.0.downsample.1", 9}, /* although 9 channels come in */
         {"layer1.0.se.fc2", 9}, {"layer2.0.conv1", 5},
         {"layer2.1.conv2", 8},  {"layer2.1.se.fc1", 6},
         {"layer2.1.conv3", 11}};
    check_layers(basic, "5/5,1,7/4,3", of_basic, CR_COUNT(of_basic));
    check_layers(deep, "3,4,9/9,2,3,1/11,5,6,2,7,8,6", of_deep, CR_COUNT(of_deep));
}

static char *program_text(struct cr_model *model, const struct cr_config *config) {
    OWNED(program) p    = {0};
    struct cr_text text = {0};
    if (cr_model_program(model, config, CR_PROGRAM_STEP, 2, &p) != CR_OK) return NULL;
    cr_program_print(&p, &text);
    return text.data;
}

/* Writing the channels of an architecture and building from them gives the same ops and shapes. */
TEST(channels_of_an_architecture) {
    const char *const *const networks[] = {basic, shortcut_a, deep, grouped, attention};
    for (size_t i = 0; i < CR_COUNT(networks); i++) {
        OWNED(config) plain = NULL, given = NULL;
        OWNED(model)  plain_model = {0}, given_model = {0};
        OWNED(text)   text = {0};
        REQUIRE_OK(open_with(networks[i], "", &plain, &plain_model));
        cr_channels_text(&plain_model, plain, filters, &plain_model, &text);
        REQUIRE_OK(open_with(networks[i], text.data, &given, &given_model));
        OWNED(string) a = program_text(&plain_model, plain), b = program_text(&given_model, given);
        REQUIRE(a && b);
        CHECK(strstr(a, "conv") != NULL);
        CHECK_STR(b, a);
    }
}

TEST(trains) {
    const char *all[8] = {"model.channels=5/5,1,7/4,3", "train.threads=1"};
    OWNED(net)  net    = {0};
    for (int i = 0; basic[i]; i++) all[2 + i] = basic[i];
    const struct net_plan plan = {
        .overrides = all, .count = 7, .kind = CR_PROGRAM_STEP, .classes = 5, .size = 8, .batch = 2, .fuse = true};
    REQUIRE_OK(net_open(&net, &plan));
    CHECK(net_train(&net, 2, 5) == CR_OK);
}

TEST(bad_texts) {
    static const struct {
        const char *const *keys;
        const char        *text, *says;
    } cases[] = {
        {basic, "5", "the stem needs exactly 1"},
        {basic, "5/5,1,7", "layer1 needs exactly 3"},
        {basic, "5/5,1,7/4", "layer2 needs exactly 2"},
        {basic, "5/5,1,7/4,3,9", "layer2 needs exactly 2"},
        {basic, "5/5,1,7/4,3/", "layer2 needs exactly 2"},
        {basic, "5/5,1,,7/4,3", "layer1 needs exactly 3"},
        {basic, "5/5,1,7/4,-3", "layer2 needs exactly 2"},
        {basic, "5/5,1,x/4,3", "layer1 needs exactly 3"},
        {basic, "5/5,0,7/4,3", "number 2 of layer1 must be from 1 to 65536"},
        {basic, "5/5,1,65537/4,3", "number 3 of layer1 must be from 1 to 65536"},
        {basic, "5/5,1,99999999999999999999999/4,3", "number 3 of layer1 must be from 1 to 65536"},
        {basic, "5/6,1,7/4,3", "the stem has 5 channels and layer1 6"},
        {deep, "3/9,2,3,1/11,5,6,2,7,8,6", "the stem needs exactly 3"},
        {shortcut_a, "8/8,3/13,3", "impossible from 8 to 13 at stage 2"},
        {shortcut_a, "8/8,3/6,3", "impossible from 8 to 6 at stage 2"},
        {grouped,
         "64/256,120,128,128,128,128,128/512,256,256,256,256,256,256,256,256/1024,512,512,512,512,512,512,512,512,512,"
         "512,512,512/2048,1024,1024,1024,1024,1024,1024",
         "layer1.0: a grouped convolution keeps its 128"},
    };
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        const struct cr_config *config;
        struct cr_model         model;
        const cr_status         status = open_with(cases[i].keys, cases[i].text, &config, &model);
        CHECK_INT(status, CR_ERR_CONFIG);
        if (!strstr(cr_error_message(), cases[i].says)) TEST_FAIL_("%s: %s", cases[i].text, cr_error_message());
    }
}
