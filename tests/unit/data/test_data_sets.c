/* tests/unit/data/test_data_sets.c: the dataset formats folders, shapes, synthetic: counts, names and error messages.
 * CIFAR: test_cifar.c. */
#include "tests/harness/datasets_support.h"

#include "data/source.h"
#include "tests/harness/failing_alloc.h"

/* ---- folders ---- */

static void put_flat(int classes, int each) {
    for (int c = 0; c < classes; c++)
        for (int i = 0; i < each; i++) put_image(tmp_path, formatted("class%c/%03d.png", 'A' + c, i), 5, 4, c * 40 + i);
}

TEST(folders_are_listed_in_order) {
    char name[SUPPORT_PATH];
    folder_open();
    put_image(tmp_path, "train/dog/b.png", 3, 4, 1);
    put_image(tmp_path, "train/dog/deep/er/a.PNG", 3, 4, 2);
    put_image(tmp_path, "train/cat/x.JPEG", 3, 4, 3); /* a PNG by content */
    put_image(tmp_path, "train/Zebra/y.png", 3, 4, 4);
    put_image(tmp_path, "train/dog/.hidden.png", 3, 4, 5);
    put_image(tmp_path, "train/.trash/z.png", 3, 4, 6);
    put_text(tmp_path, "train/dog/notes.txt", "no image");
    put_text(tmp_path, "train/readme.png", "not in a class");
    put_image(tmp_path, "valid/dog/1.png", 3, 4, 1);
    put_image(tmp_path, "valid/cat/1.png", 3, 4, 1);
    put_image(tmp_path, "valid/Zebra/1.png", 3, 4, 1);
    /* a loop, a link without target, a link to an image, a pipe */
    REQUIRE(symlink("..", in_folder("train/dog/loop")) == 0);
    REQUIRE(symlink("/nonexistent/file.png", in_folder("train/cat/gone.png")) == 0);
    REQUIRE(symlink("x.JPEG", in_folder("train/cat/linked.png")) == 0);
    REQUIRE(mkfifo(in_folder("train/cat/pipe.png"), 0666) == 0);
    struct cr_dataset *set;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &set, FOLDER_SET));
    static const char *const want[] = {"Zebra/y.png", "cat/linked.png", "cat/x.JPEG", "dog/b.png", "dog/deep/er/a.PNG"};
    static const int         labels[] = {0, 1, 1, 2, 2}, colours[] = {4, 3, 3, 1, 2};
    REQUIRE(set->classes == 3);
    CHECK_STR(set->class_names[0], "Zebra"); /* byte order: capitals first */
    CHECK_STR(set->class_names[2], "dog");
    REQUIRE(set->count == 5);
    for (int64_t i = 0; i < 5; i++) {
        OWNED(image) image = {0};
        int32_t      label;
        cr_dataset_sample_name(set, i, name, sizeof name);
        CHECK_STR(name + strlen(tmp_path) + strlen("/train/"), want[i]);
        REQUIRE_OK(cr_dataset_get(set, i, &image, &label));
        CHECK_INT(label, labels[i]);
        CHECK(image.width == 3 && image.height == 4 && image.rgb[0] == colours[i]);
    }
    cr_dataset_close(set);
    REQUIRE_OK(OPEN(CR_SPLIT_VAL, &set, FOLDER_SET));
    CHECK_INT(set->count, 3);
    cr_dataset_close(set);
}

TEST(invalid_folders_are_refused) {
    folder_open();
    CHECK_REFUSED(CR_ERR_CONFIG, "/nonexistent/x", "data", CR_SPLIT_TRAIN, "data.kind=folder",
                  "data.root=/nonexistent/x");
    CHECK_REFUSED(CR_ERR_FORMAT, tmp_path, "no class folders", CR_SPLIT_TRAIN, FOLDER_SET);
    put_image(tmp_path, "train/a/1.png", 2, 2, 0);
    CHECK_REFUSED(CR_ERR_FORMAT, "only one class folder, a; at least two classes are needed", "train", CR_SPLIT_TRAIN,
                  FOLDER_SET);
    CHECK(!strstr(cr_error_message(), "did you mean"));
    put_image(tmp_path, "parent/inner/train/a/1.png", 2, 2, 0); /* the folder above a dataset was given */
    put_image(tmp_path, "parent/inner/val/a/1.png", 2, 2, 0);
    CHECK_REFUSED(CR_ERR_FORMAT, "only one class folder, inner", "/parent/inner?)", CR_SPLIT_TRAIN, "data.kind=folder",
                  "data.val_fraction=0.5", root_is(in_folder("parent")));
    REQUIRE(mkdir(in_folder("train/b"), 0777) == 0);
    CHECK_REFUSED(CR_ERR_FORMAT, "train/b: no image", "fill it or remove it", CR_SPLIT_TRAIN, FOLDER_SET);
    put_text(tmp_path, "train/b/x.avif", "RIFF");
    CHECK_REFUSED(CR_ERR_FORMAT, "train/b", "x.avif", CR_SPLIT_TRAIN, FOLDER_SET);
    put_image(tmp_path, "train/b/1.png", 2, 2, 0);
    CHECK_REFUSED(CR_ERR_CONFIG, "val_fraction", "no val/", CR_SPLIT_VAL, FOLDER_SET);
    put_image(tmp_path, "val/a/1.png", 2, 2, 0);
    put_image(tmp_path, "val/c/1.png", 2, 2, 0);
    CHECK_REFUSED(CR_ERR_FORMAT, "the class b", "same class folders", CR_SPLIT_TRAIN, FOLDER_SET);
    CHECK_REFUSED(CR_ERR_FORMAT, "the class b", "same class folders", CR_SPLIT_VAL, FOLDER_SET);
}

/* Validation images: each of them in exactly one split, the correct fraction of each class, the same images when files
 * are added. */
TEST(val_fraction_selects_by_name) {
    char name[SUPPORT_PATH];
    folder_open();
    put_flat(3, 20);
    struct cr_dataset *train, *val;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &train, FOLDER_SET, "data.val_fraction=0.25"));
    REQUIRE_OK(OPEN(CR_SPLIT_VAL, &val, FOLDER_SET, "data.val_fraction=0.25"));
    CHECK_INT(train->count, 45);
    CHECK_INT(val->count, 15);
    char taken[3][20] = {{0}};
    int  labels[3]    = {0};
    for (int k = 0; k < 60; k++) {
        const struct cr_dataset *set   = k < 45 ? train : val;
        OWNED(image)             image = {0};
        int32_t                  label;
        REQUIRE_OK(cr_dataset_get(set, k < 45 ? k : k - 45, &image, &label));
        int i = image.rgb[0] - label * 40;
        REQUIRE(i >= 0 && i < 20);
        taken[label][i]++;
        if (k >= 45) labels[label]++;
    }
    for (int c = 0; c < 3; c++) {
        CHECK_INT(labels[c], 5);
        for (int i = 0; i < 20; i++) CHECK_INT(taken[c][i], 1);
    }
    cr_dataset_sample_name(val, 0, name, sizeof name);
    CHECK_HAS(name, "classA/");
    CHECK(train->fingerprint != val->fingerprint);
    uint64_t before = train->fingerprint;
    cr_dataset_close(train);
    cr_dataset_close(val);
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &train, FOLDER_SET, "data.val_fraction=0.25"));
    CHECK(train->fingerprint == before);
    cr_dataset_close(train);
    put_image(tmp_path, "classA/new.png", 2, 2, 0);
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &train, FOLDER_SET, "data.val_fraction=0.25"));
    CHECK(train->fingerprint != before);
    cr_dataset_close(train);
}

/* ---- shapes, synthetic ---- */

TEST(shapes_are_generated_once) {
    struct stat    first, second;
    struct cr_text text = {0};
    folder_open();
    const char        *path = in_folder("here/shapes"), *stamp = in_folder("here/shapes/shapes.txt");
    struct cr_dataset *train, *val;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &train, root_is(path), "data.train_images=53", "data.val_images=20"));
    REQUIRE(stat(stamp, &first) == 0);
    REQUIRE_OK(OPEN(CR_SPLIT_VAL, &val, root_is(path), "data.train_images=53", "data.val_images=20"));
    REQUIRE(stat(stamp, &second) == 0 && first.st_ino == second.st_ino);
    CHECK_INT(train->count, 53);
    CHECK_INT(val->count, 20);
    cr_dataset_describe(train, &text);
    CHECK_STR(text.data, "53 images, 10 classes, 5-6 per class");
    for (int c = 0; c < 10; c++) CHECK_STR(val->class_names[c], cr_shapes_class(c));
    uint8_t         drawn[32 * 32 * 3];
    struct cr_image image;
    int32_t         label;
    REQUIRE_OK(cr_dataset_get(val, 7, &image, &label)); /* sorted: class 3, its second image = index 13 */
    cr_shapes_draw(CR_SPLIT_VAL, 13, drawn);
    CHECK_INT(label, 3);
    CHECK(image.width == 32 && image.height == 32 && !memcmp(image.rgb, drawn, sizeof drawn));
    cr_image_free(&image);
    cr_dataset_close(train);
    cr_dataset_close(val);
    cr_text_free(&text);
    CHECK_REFUSED(CR_ERR_CONFIG, path, "exists already", CR_SPLIT_TRAIN, root_is(path), "data.train_images=60",
                  "data.val_images=20");
    CHECK_REFUSED(CR_ERR_CONFIG, "train_images", "at least 10", CR_SPLIT_TRAIN, root_is(path), "data.train_images=9");
    CHECK_REFUSED(CR_ERR_IO, "/proc/readonly", "cannot create", CR_SPLIT_TRAIN, "data.root=/proc/readonly/x",
                  "data.train_images=10");
    setenv("XDG_CACHE_HOME", tmp_path, 1);
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &train, "data.train_images=10", "data.val_images=10"));
    cr_dataset_close(train);
    CHECK(access(in_folder("cresnet/shapes-1-10-10/val/star/00000.png"), R_OK) == 0);
    unsetenv("XDG_CACHE_HOME");
}

/* The generated images are the same on every machine, and no two images are equal. */
TEST(shapes_are_the_same_everywhere) {
    uint64_t hash = CR_HASH_START, seen[200];
    for (int i = 0; i < 200; i++) {
        uint8_t rgb[32 * 32 * 3];
        cr_shapes_draw(i % 2 ? CR_SPLIT_VAL : CR_SPLIT_TRAIN, i / 2, rgb);
        seen[i] = sum_bytes(rgb, sizeof rgb);
        hash    = cr_hash_bytes(hash, rgb, sizeof rgb);
        for (int k = 0; k < i; k++) CHECK(seen[k] != seen[i]);
    }
    CHECK(hash == UINT64_C(3530794328191104419)); /* changes only with the generator: then increase GENERATION */
}

TEST(synthetic_is_a_function_of_seed_and_sample) {
    OWNED(dataset) a = NULL, b = NULL, c = NULL;
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &a, "data.kind=synthetic", "model.classes=7", "data.train_images=1000"));
    REQUIRE_OK(OPEN(CR_SPLIT_TRAIN, &b, "data.kind=synthetic", "model.classes=7", "data.train_images=1000"));
    REQUIRE_OK(
        OPEN(CR_SPLIT_TRAIN, &c, "data.kind=synthetic", "model.classes=7", "data.train_images=1000", "train.seed=2"));
    int counts[7] = {0}, differs = 0;
    for (int64_t i = 0; i < 1000; i++) {
        OWNED(image) x = {0}, y = {0}, z = {0};
        int32_t      lx, ly, lz;
        REQUIRE_OK(cr_dataset_get(a, i, &x, &lx));
        REQUIRE_OK(cr_dataset_get(b, i, &y, &ly));
        REQUIRE_OK(cr_dataset_get(c, i, &z, &lz));
        CHECK(lx == ly && x.width == 32 && !memcmp(x.rgb, y.rgb, 3072));
        differs += memcmp(x.rgb, z.rgb, 3072) != 0;
        counts[lx]++;
    }
    CHECK_INT(differs, 1000);
    for (int k = 0; k < 7; k++) CHECK_NEAR(counts[k], 1000 / 7.0, 60);
    CHECK(a->fingerprint == b->fingerprint && a->fingerprint != c->fingerprint);
}

TEST(failing_allocations_are_reported) {
    folder_open();
    put_flat(2, 3);
    put_cifar(tmp_path, "test_batch.bin", 10000, 1, 1);
    put_text(tmp_path, "batches.meta.txt", "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n");
    static const char *const kinds[] = {"data.kind=folder", "data.kind=cifar10", "data.kind=synthetic"};
    for (size_t k = 0; k < CR_COUNT(kinds); k++) {
        OWNED(config) config = NULL;
        REQUIRE_OK(make_config(&config, kinds[k], root_is(tmp_path), "data.val_fraction=0.5"));
        for_each_failing_alloc(f, .least = 4) {
            OWNED(dataset) set   = NULL;
            OWNED(image)   image = {0};
            int32_t        label;
            failing_alloc_begin(&f);
            cr_status status = cr_dataset_open(config, CR_SPLIT_VAL, &set);
            if (status == CR_OK) status = cr_dataset_get(set, 0, &image, &label);
            failing_alloc_end(&f, status);
        }
    }
}
