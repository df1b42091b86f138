/* tests/unit/training/test_image_sizes.c: data.image_sizes: training images change their size between epochs. The truth
 * is a run that is stopped, and resumed with another data.image_size by --force. */
#include "tests/harness/train_support.h"

/* The drawn shapes of 32 pixels, which each run resizes; evaluation of one size. */
static struct run prepare_shapes(void) {
    static char root[SUPPORT_PATH + 64];
    struct run  r = prepare();
    snprintf(root, sizeof root, "data.root=%s/shapes", r.dir);
    give(&r, "data.kind=shapes", root, "data.val_images=10", "data.eval_crop=12", "model.classes=10");
    return r;
}

TEST(one_size_is_a_plain_run) {
    struct run r = prepare_shapes();
    give(&r, "data.image_size=12");
    REQUIRE_OK(TRAIN(&r, "plain", "data.image_sizes="));
    REQUIRE_OK(TRAIN(&r, "listed", "data.image_sizes=12@0"));
    check_same(&r, "plain", "listed");
    REQUIRE_OK(TRAIN(&r, "others", "data.image_sizes=8@0,12@1"));
    CHECK(!same_file(&r, "plain", "others", "model.safetensors"));
}

/* The epochs of 8 and 12 pixels, and again 8 pixels, equal the parts that a person would run one after the other. */
static void check_by_hand(const char *extra, const char *const steps[2]) {
    struct run r = prepare_shapes();
    give(&r, "train.epochs=3", extra);
    REQUIRE_OK(TRAIN(&r, "sizes", "data.image_size=12", "data.image_sizes=8@0, 12@1,8@2"));
    REQUIRE_OK(TRAIN(&r, "hand", "data.image_size=8", steps[0]));
    REQUIRE_OK(train(&r, "hand", "auto", true, (const char *const[]){"data.image_size=12", steps[1], NULL}));
    REQUIRE_OK(train(&r, "hand", "auto", true, (const char *const[]){"data.image_size=8", "train.steps=0", NULL}));
    check_same(&r, "sizes", "hand");
}

TEST(sizes_change_between_epochs) {
    const char *const whole[] = {"train.steps=6", "train.steps=12"}, *const parts[] = {"train.steps=3",
                                                                                       "train.steps=6"};
    check_by_hand("data.workers=3", whole);
    check_by_hand("data.crop=random_resized", whole);
    check_by_hand("train.accumulate=2", parts);
    check_by_hand("data.cutmix=1", whole);
}

TEST(resume_is_bitwise) {
    struct run r = prepare_shapes();
    give(&r, "data.image_size=12", "data.image_sizes=8@0,12@1", "ema.swa_start=1");
    resumes_bitwise(&r, 12, 2);
    CHECK_STATUS(RESUME(&r, "whole", "data.image_sizes=8@0,12@2", "train.epochs=3"), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "data.image_sizes: 8@0,12@1 -> 8@0,12@2");
}

/* One pool serves all sizes: it is as large as the largest needs. */
TEST(the_largest_size_gives_the_pool) {
    static const char *const sizes[] = {"data.image_sizes=16@0,24@1", "data.image_sizes=24@0"};
    size_t                   bytes[2];
    for (int i = 0; i < 2; i++) {
        const char *const keys[] = {"model.arch=resnet20", "data.kind=synthetic", "data.image_size=24",
                                    "train.batch=4",       "train.device=cpu",    sizes[i]};
        OWNED(config)     config = NULL;
        OWNED(session)    s      = {0};
        REQUIRE_OK(cr_config_open(&config, NULL, keys, CR_COUNT(keys)));
        REQUIRE_OK(cr_session_open(
            config, &(struct cr_session_options){.train = true, .all_sizes = true, .eval = true, .execute = true}, &s));
        CHECK_INT(s.trains, i ? 1 : 2);
        bytes[i] = s.memory.bytes[CR_REGION_POOL];
    }
    CHECK(bytes[0] == bytes[1]);
}

TEST(texts_are_checked) {
    static const struct {
        const char *text;
        int         count, size, epoch; /* of the last */
    } cases[] = {
        {"", 0, 0, 0},        {"128@0", 1, 128, 0},      {"128@0,160@6,224@12", 3, 224, 12}, {" 8@0 , 12@1", 2, 12, 1},
        {"128", -1, 0, 0},    {"128@1", -1, 0, 0},       {"128@0,160@0", -1, 0, 0},          {"128@0,160", -1, 0, 0},
        {"128@0,", -1, 0, 0}, {"0@0", -1, 0, 0},         {"128@0;160@2", -1, 0, 0},          {"9999@0", -1, 0, 0},
        {"128@-1", -1, 0, 0}, {"128@0 160@1", -1, 0, 0},
    };
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        OWNED(config)           config = NULL;
        struct cr_size_schedule sizes;
        char                    key[64];
        const char *const       keys[] = {key};
        snprintf(key, sizeof key, "data.image_sizes=%s", cases[i].text);
        CHECK_INT(cr_config_open(&config, NULL, keys, 1), cases[i].count < 0 ? CR_ERR_CONFIG : CR_OK);
        if (cases[i].count < 0) {
            CHECK_HAS(cr_error_message(), "each with @ and the epoch");
            continue;
        }
        CHECK(cr_config_sizes(config, &sizes));
        CHECK_INT(sizes.count, cases[i].count);
        if (sizes.count) CHECK_INT(sizes.size[sizes.count - 1], cases[i].size);
        if (sizes.count) CHECK_INT(sizes.epoch[sizes.count - 1], cases[i].epoch);
    }
    const struct cr_size_schedule sizes  = {3, {8, 16, 12}, {0, 2, 5}};
    const int                     want[] = {0, 0, 1, 1, 1, 2, 2};
    for (int e = 0; e < 7; e++) CHECK_INT(cr_size_index(&sizes, e), want[e]);
    CHECK_INT(cr_size_largest(&sizes), 1);
}

/* The input of the largest size is a part of the memory while programs of smaller sizes are compiled. */
TEST(a_limit_holds_for_all_sizes) {
    struct run r = prepare();
    give(&r, "train.steps=1", "train.batch=16");
    for (int kib = 400; kib <= 1600; kib += 50) {
        const char *const limit = formatted("memory.limit=%dKiB", kib), *const name = formatted("of%d", kib);
        const bool fits = TRAIN(&r, formatted("one%d", kib), "data.image_size=32", limit) == CR_OK;
        CHECK(fits || kib < 1600); /* the largest limit is enough: the loop compares something */
        if (fits) REQUIRE_OK(TRAIN(&r, name, "data.image_sizes=16@0,24@1,32@2", limit));
    }
}
