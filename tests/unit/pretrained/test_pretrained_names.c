/* tests/unit/pretrained/test_pretrained_names.c: names of published weights and the classes of ImageNet. Downloads:
 * tests/cli/test_pretrained.sh. */
#include "pretrained/pretrained.h"
#include "session/saved_model.h"
#include "tests/harness/failing_alloc.h"
#include "tests/harness/folder.h"

/* torchvision's files, from its resnet.py. */
static const char *const files[][2] = {
    {"resnet18", "resnet18-f37072fd.pth"},
    {"resnet18.v1", "resnet18-f37072fd.pth"},
    {"resnet34", "resnet34-b627a593.pth"},
    {"resnet50", "resnet50-0676ba61.pth"},
    {"resnet50.v1", "resnet50-0676ba61.pth"},
    {"resnet50.v2", "resnet50-11ad3fa6.pth"},
    {"resnet101", "resnet101-63fe2227.pth"},
    {"resnet101.v2", "resnet101-cd907fc2.pth"},
    {"resnet152", "resnet152-394f9c45.pth"},
    {"resnet152.v2", "resnet152-f82ba261.pth"},
    {"wide_resnet50_2", "wide_resnet50_2-95faca4d.pth"},
    {"wide_resnet50_2.v2", "wide_resnet50_2-9ba9bcbe.pth"},
    {"wide_resnet101_2", "wide_resnet101_2-32ee1156.pth"},
    {"wide_resnet101_2.v2", "wide_resnet101_2-d733dc28.pth"},
    {"resnext50_32x4d", "resnext50_32x4d-7cdf4587.pth"},
    {"resnext50_32x4d.v1", "resnext50_32x4d-7cdf4587.pth"},
    {"resnext50_32x4d.v2", "resnext50_32x4d-1a0047aa.pth"},
    {"resnext101_32x8d", "resnext101_32x8d-8ba56ff5.pth"},
    {"resnext101_32x8d.v2", "resnext101_32x8d-110c445d.pth"},
    {"resnext101_64x4d", "resnext101_64x4d-173b62eb.pth"},
};

TEST(names) {
    struct cr_pretrained entry;
    unsetenv("CRESNET_WEIGHTS_LIST");
    for (size_t i = 0; i < CR_COUNT(files); i++) {
        REQUIRE_OK(cr_pretrained_find(files[i][0], &entry));
        CHECK_STR(entry.file, files[i][1]);
        CHECK(strlen(entry.hash) == 8 && strstr(entry.file, entry.hash));
        CHECK(cr_pretrained_is_name(files[i][0]));
        CHECK(cr_pretrained_has_imagenet_classes(formatted("/some/where/%s", files[i][1])) &&
              cr_pretrained_has_imagenet_classes(files[i][1]));
    }
    static const char *const none[] = {
        "",         "resnet",     "resnet20",        "resnet18.v2",          "resnet50.v3", "resnet50.v1x",
        "RESNET50", "./resnet50", "resnext50_64x4d", "resnet50-0676ba61.pth"};
    for (size_t i = 0; i < CR_COUNT(none); i++) {
        cr_error_clear();
        CHECK(!cr_pretrained_is_name(none[i]));
        CHECK_STR(cr_error_message(), "");
        CHECK_STATUS(cr_pretrained_find(none[i], &entry), CR_ERR_CONFIG);
    }
    CHECK(!cr_pretrained_has_imagenet_classes("model.safetensors"));
    CHECK(!cr_pretrained_has_imagenet_classes("my-resnet18-f37072fd.pth"));
}

static void classes_of(const char *name, int want) {
    OWNED(arena) arena = {0};
    const char **list;
    int          count;
    folder_open();
    REQUIRE_OK(cr_fs_write_new(in_folder("%s", name), "x", 1));
    REQUIRE_OK(cr_saved_model_names(in_folder("%s", name), &arena, &list, &count));
    CHECK_INT(count, want);
    if (count == 1000) {
        CHECK_STR(list[0], "tench");
        CHECK_STR(list[1], "goldfish");
        CHECK_STR(list[207], "golden retriever");
        CHECK_STR(list[999], "toilet tissue");
        for (int i = 0; i < count; i++) CHECK(*list[i]);
    }
}

TEST(classes) {
    classes_of("resnet18-f37072fd.pth", 1000);
    classes_of("wide_resnet101_2-d733dc28.pth", 1000);
    classes_of("weights.pth", 0);
}

TEST(memory_runs_out) {
    setenv("CRESNET_OFFLINE", "1", 1);
    setenv("CRESNET_CACHE", "/nonexistent", 1);
    for_each_failing_alloc(f, .least = 1, .want = CR_ERR_IO, .tolerated = true) {
        char path[CR_PATH_MAX];
        failing_alloc_run(&f, cr_pretrained_file("resnet18", path));
    }
}
