/* tests/unit/data/test_class_match.c: classes are matched by name: relations, spellings, duplicates, many classes; a
 * renumbered dataset gives the new labels in every function. */
#include "tests/harness/failing_alloc.h"
#include "tests/harness/loader_support.h"

#include "data/class_match.h"
#include "data/pack.h"

#define LIST(...) (const char *const[]){__VA_ARGS__}, (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

/* `want`: the indices in `onto`. */
OWNABLE(class_match, struct cr_class_match, cr_class_match_free(x))

static void check_match(const char *const *from, int count, const char *const *onto, int onto_count, bool spelling,
                        enum cr_class_relation relation, const int *want) {
    OWNED(class_match) m = {0};
    REQUIRE_OK(cr_class_match(from, count, onto, onto_count, spelling, &m));
    CHECK_INT(m.relation, relation);
    int matched = 0;
    for (int i = 0; i < count; i++) {
        CHECK_INT(m.to[i], want[i]);
        matched += want[i] >= 0;
    }
    CHECK_INT(m.matched, matched);
}
#define WANT(...)                                                                                                      \
    (const int[]) {                                                                                                    \
        __VA_ARGS__                                                                                                    \
    }

TEST(relations) {
    check_match(LIST("a", "b", "c"), LIST("a", "b", "c"), true, CR_CLASSES_EQUAL, WANT(0, 1, 2));
    check_match(LIST("c", "a", "b"), LIST("a", "b", "c"), true, CR_CLASSES_PERMUTED, WANT(2, 0, 1));
    check_match(LIST("c", "a"), LIST("a", "b", "c"), true, CR_CLASSES_OTHER, WANT(2, 0));
    check_match(LIST("a", "b", "c"), LIST("c", "b"), true, CR_CLASSES_OTHER, WANT(-1, 1, 0));
    check_match(LIST("a", "b"), LIST("x", "y"), true, CR_CLASSES_OTHER, WANT(-1, -1));
    check_match(LIST("a", "a", "b"), LIST("a", "b", "a"), true, CR_CLASSES_OTHER, WANT(-1, -1, 1)); /* a twice */
    check_match(LIST("a"), NULL, 0, true, CR_CLASSES_OTHER, WANT(-1));
    check_match(NULL, 0, NULL, 0, true, CR_CLASSES_EQUAL, NULL);
}

/* ImageNet has two classes "crane": the list must be equal to itself. A message about different lists names two classes
 * that differ. */
TEST(equal_names_in_a_list) {
    struct cr_class_match m;
    check_match(LIST("crane", "x", "crane"), LIST("crane", "x", "crane"), true, CR_CLASSES_EQUAL, WANT(0, 1, 2));
    REQUIRE_OK(cr_class_match(LIST("a", "a", "b"), LIST("a", "a", "c"), true, &m));
    CHECK_INT(m.relation, CR_CLASSES_OTHER);
    CHECK_INT(m.shown, 2);
    cr_class_match_free(&m);
    REQUIRE_OK(cr_class_match(LIST("a", "a", "B", "c"), LIST("a", "a", "b", "c"), true, &m));
    CHECK_INT(m.relation, CR_CLASSES_OTHER);
    CHECK_INT(m.shown, 2);
    cr_class_match_free(&m);
    REQUIRE_OK(cr_class_match(LIST("ant", "x", "bee"), LIST("Ant", "bee", "y"), true, &m));
    CHECK_INT(m.shown, 1);
    cr_class_match_free(&m);
}

TEST(spellings) {
    check_match(LIST("ant", "bee", "zebra"), LIST("Zebra", "ant", "bee"), true, CR_CLASSES_PERMUTED, WANT(1, 2, 0));
    check_match(LIST("ant", "bee", "zebra"), LIST("Zebra", "ant", "bee"), false, CR_CLASSES_OTHER, WANT(1, 2, -1));
    check_match(LIST("polar  bear", " ox"), LIST("ox", "Polar bear "), true, CR_CLASSES_PERMUTED, WANT(1, 0));
    check_match(LIST("caf\xc3\xa9", "x"), LIST("cafe\xcc\x81", "x"), true, CR_CLASSES_EQUAL, WANT(0, 1)); /* NFC, NFD */
    check_match(LIST("cafe", "x"), LIST("caf\xc3\xa9", "x"), true, CR_CLASSES_OTHER, WANT(-1, 1)); /* another word */
    /* identical names are matched first; a respelt name must have exactly one candidate */
    check_match(LIST("cat", "CAT"), LIST("Cat", "cat"), true, CR_CLASSES_PERMUTED, WANT(1, 0));
    check_match(LIST("CAT", "x"), LIST("Cat", "cat"), true, CR_CLASSES_OTHER, WANT(-1, -1));
}

/* Pairs of NFC in capitals and NFD in small letters, from Python's unicodedata. */
TEST(folds_are_unicode) {
    static const char *const pair[][2] = {
        {"\xc3\x84RGER", "a\xcc\x88rger"},                                                /* ARGER with diaeresis */
        {"\xe1\xbb\x86", "e\xcc\xa3\xcc\x82"},                                            /* E, dot below, circumflex */
        {"\xd0\x81\xd0\x96\xd0\x98\xd0\x9a", "\xd0\xb5\xcc\x88\xd0\xb6\xd0\xb8\xd0\xba"}, /* Cyrillic: hedgehog */
        {"\xce\x91\xce\x86\xce\xa3", "\xce\xb1\xce\xb1\xcc\x81\xcf\x82"},                 /* Greek, sigma at the end */
        {"\xe3\x81\x8c", "\xe3\x81\x8b\xe3\x82\x99"},                                     /* kana ga */
        {"\xed\x95\x9c", "\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab"},                         /* Hangul han */
        {"\xc3\x98\xc5\x81", "\xc3\xb8\xc5\x82"}, /* letters without decomposition */
        {"A\xc2\xa0 B", "a b"},                   /* no-break space */
    };
    for (size_t i = 0; i < CR_COUNT(pair); i++) {
        OWNED(text) a = {0}, b = {0};
        cr_class_name_fold(pair[i][0], &a);
        cr_class_name_fold(pair[i][1], &b);
        CHECK_STR(a.data, b.data);
    }
    struct cr_text same = {0};
    cr_class_name_fold("\xff\xfeX\xf0\x9f\x90\x9d", &same); /* no UTF-8, and a bee */
    CHECK_STR(same.data, "\xff\xfex\xf0\x9f\x90\x9d");
    cr_text_free(&same);
    CHECK_INT(cr_class_find_respelt("Bee", LIST("ant", "bee")), 1);
    CHECK_INT(cr_class_find_respelt("wasp", LIST("ant", "bee")), -1);
    CHECK_INT(cr_class_find_respelt("BEE", LIST("Bee", "bee")), -1);
}

TEST(many_classes) {
    enum { MANY = 50000 };
    static char        text[2][MANY][16];
    static const char *list[2][MANY];
    OWNED(class_match) m = {0};
    for (int i = 0; i < MANY; i++) {
        snprintf(text[0][i], 16, "Class %d", i);
        snprintf(text[1][i], 16, "class %d", (i + 7) % MANY);
        list[0][i] = text[0][i];
        list[1][i] = text[1][i];
    }
    REQUIRE_OK(cr_class_match(list[0], MANY, list[1], MANY, true, &m)); /* comparing all pairs would take minutes */
    CHECK_INT(m.relation, CR_CLASSES_PERMUTED);
    for (int i = 0; i < MANY; i++) CHECK_INT(m.to[i], (i + MANY - 7) % MANY);
}

TEST(lack_of_memory) {
    for_each_failing_alloc(f, .least = 4) {
        OWNED(class_match) m = {0};
        failing_alloc_run(&f, cr_class_match(LIST("B", "a"), LIST("A", "b"), true, &m));
    }
}

/* ---- datasets ---- */

enum { SAMPLES = 9 };

TEST(labels_are_renumbered) {
    OWNED(dataset)    set = NULL;
    struct cr_loader *loader;
    struct cr_batch   batch;
    OWNED(config)     config  = NULL;
    OWNED(floats)     weights = NULL;
    folder_open();
    for (int i = 0; i < SAMPLES; i++) { /* image i has the colour i + 1; classes a, b, c have 2, 3 and 4 images */
        put_image(tmp_path, formatted("%s/%03d.png", i < 2 ? "a" : i < 5 ? "b" : "c", i), 8, 8, i + 1);
    }
    REQUIRE_OK(open_folder(&set));
    const uint64_t fingerprint = set->fingerprint;
    /* a -> 2 -> 0, b -> 0 -> 1, c -> 1 -> 2, and then a -> 1, b -> 2, c -> 0 */
    REQUIRE_OK(cr_dataset_renumber(set, WANT(2, 0, 1)));
    CHECK_STR(set->class_names[2], "a");
    REQUIRE_OK(cr_dataset_renumber(set, WANT(2, 0, 1)));
    static const char *const want_name[]  = {"c", "a", "b"};
    static const int64_t     want_count[] = {4, 2, 3};
    static const int         want_label[] = {1, 2, 0};
    for (int k = 0; k < 3; k++) {
        CHECK_STR(set->class_names[k], want_name[k]);
        CHECK_INT(set->class_counts[k], want_count[k]);
        CHECK_INT(cr_dataset_renumbered(set, k), want_label[k]);
    }
    CHECK(set->fingerprint == fingerprint);
    struct cr_loader_options options = plain_options(CR_SPLIT_VAL, SAMPLES, 0);
    REQUIRE_OK(cr_loader_open(set, &options, &loader));
    REQUIRE_OK(cr_loader_next(loader, &batch));
    for (int i = 0; i < SAMPLES; i++) {
        struct cr_image image;
        int32_t         label;
        REQUIRE_OK(cr_dataset_get(set, i, &image, &label));
        cr_image_free(&image);
        CHECK_INT(label, want_label[i < 2 ? 0 : i < 5 ? 1 : 2]);
        CHECK_INT(cr_dataset_label(set, i), label);
        CHECK_INT(batch.labels[i], label);
    }
    cr_loader_release(loader, &batch);
    cr_loader_close(loader);
    /* a list of weights is in the order of `cresnet data stat`: a, b, c */
    REQUIRE_OK(make_config(&config, "loss.class_weights=10,20,30"));
    REQUIRE_OK(cr_dataset_class_weights(config, set, 3, &weights));
    CHECK(weights[1] == 10 && weights[2] == 20 && weights[0] == 30);
}

TEST(rows_are_renumbered) {
    enum { CLASSES = 40 }; /* two words */
    char          *csv;
    OWNED(dataset) set  = NULL;
    OWNED(text)    text = {0};
    int            to[CLASSES];
    folder_open();
    for (int k = 0; k < CLASSES; k++) {
        cr_text_add(&text, "%02d.png,l%02d;l%02d\n", k, k, (k + 1) % CLASSES);
        put_image(tmp_path, formatted("%02d.png", k), 8, 8, 1);
    }
    csv = text.data;
    write_bytes(in_folder("train.csv"), csv, text.length);
    REQUIRE_OK(OPEN_SET(&set, "data.kind=csv", "data.multi_label=yes", root_is(tmp_path)));
    for (int k = 0; k < CLASSES; k++) to[k] = (k * 7 + 3) % CLASSES;
    REQUIRE_OK(cr_dataset_renumber(set, to));
    for (int i = 0; i < CLASSES; i++) {
        const int32_t *row = cr_dataset_labels(set, i);
        CHECK_INT(row[0], 2);
        for (int k = 0; k < CLASSES; k++) CHECK_INT(cr_dataset_row_has(row, to[k]), k == i || k == (i + 1) % CLASSES);
    }
}

/* Packs of training and validation whose classes are in another order: labels are those of training. */
TEST(packed_order) {
    static const char *const train[] = {"x", "y", "z"}, *const val[] = {"z", "x", "y"};
    struct cr_pack_writer  *writer;
    OWNED(dataset)          set = NULL;
    const struct cr_config *config;
    uint8_t                 pixels[32 * 32 * 3] = {0};
    folder_open();
    for (int split = 0; split < 2; split++) {
        const char *path = in_folder("%s", split ? CR_PACK_VAL_NAME : CR_PACK_TRAIN_NAME);
        REQUIRE_OK(cr_pack_create(path, CR_PACK_RAW, CR_RGB8, 0, split ? val : train, 3, &writer));
        for (int k = 0; k < 3; k++) REQUIRE_OK(cr_pack_add(writer, pixels, sizeof pixels, k, 32, 32));
        REQUIRE_OK(cr_pack_finish(writer));
    }
    REQUIRE_OK(make_config(&config, "data.kind=packed", root_is(tmp_path)));
    REQUIRE_OK(cr_dataset_open(config, CR_SPLIT_VAL, &set));
    cr_config_close(config);
    static const int want[] = {2, 0, 1};
    for (int k = 0; k < 3; k++) {
        CHECK_STR(set->class_names[k], train[k]);
        CHECK_INT(cr_dataset_label(set, k), want[k]);
    }
}
