/* tests/unit/data/test_balanced_sampling.c: balanced sampling: equal numbers of each class, no repetition before a
 * class is used up, crops of their own for repeated samples; the same for any number of workers and ranks, and after
 * resuming. */
#include "tests/harness/failing_alloc.h"
#include "tests/harness/loader_support.h"

enum { COMMON = 50, RARE = 3, MIDDLE = 9, ALL = COMMON + RARE + MIDDLE, BATCH = 31 };

/* Classes a, b, c with 50, 3 and 9 images; image i has the colour i + 1. */
static cr_status open_uneven(const char *folder, struct cr_dataset **set) {
    char name[64], root[SUPPORT_PATH];
    for (int i = 0; i < ALL; i++) {
        snprintf(name, sizeof name, "%s/%03d.png", i < COMMON ? "a" : i < COMMON + RARE ? "b" : "c", i);
        put_image(folder, name, 8, 8, i + 1);
    }
    return OPEN_SET(set, "data.kind=folder", root_is(folder, root));
}

static struct cr_loader_options balanced_options(int64_t batch, int workers) {
    struct cr_loader_options options = plain_options(CR_SPLIT_TRAIN, batch, workers);
    options.balanced                 = true;
    return options;
}

static void classes_occur_equally_often(void) {
    char               folder[SUPPORT_PATH];
    struct cr_dataset *set;
    struct cr_loader  *loader;
    make_folder(folder);
    REQUIRE_OK(open_uneven(folder, &set));
    struct cr_loader_options options = balanced_options(BATCH, 2);
    CHECK_INT(cr_loader_batches(set, &options), 2);
    REQUIRE_OK(cr_loader_open(set, &options, &loader));
    int met[ALL] = {0}, extra[3] = {0}, mixed = 0;
    for (int epoch = 0; epoch < 40; epoch++) {
        int times[ALL] = {0}, of_class[3] = {0}, first[3] = {0};
        for (int b = 0; b < 2; b++) {
            struct cr_batch batch;
            REQUIRE_OK(cr_loader_next(loader, &batch));
            CHECK_INT(batch.epoch, epoch);
            for (int i = 0; i < BATCH; i++) {
                const int sample = sample_of(&batch, i);
                REQUIRE(sample >= 0 && sample < ALL);
                CHECK_INT(batch.labels[i], sample < COMMON ? 0 : sample < COMMON + RARE ? 1 : 2);
                times[sample]++;
                met[sample]++;
                of_class[batch.labels[i]]++;
                first[batch.labels[i]] += b == 0;
            }
            cr_loader_release(loader, &batch);
        }
        for (int k = 0; k < 3; k++) { /* 62 places: 20 or 21 of each class */
            CHECK(of_class[k] == 20 || of_class[k] == 21);
            extra[k] += of_class[k] - 20;
            mixed += first[k] > 3 && first[k] < 18;
        }
        for (int i = 0; i < ALL; i++) {
            const int n = i < COMMON ? COMMON : i < COMMON + RARE ? RARE : MIDDLE;
            CHECK(times[i] >= 20 / n && times[i] <= 20 / n + 1);
        }
    }
    CHECK_INT(extra[0] + extra[1] + extra[2], 80);
    for (int k = 0; k < 3; k++) CHECK(extra[k] > 15 && extra[k] < 38);   /* no class is preferred */
    for (int i = 0; i < COMMON; i++) CHECK(met[i] >= 4 && met[i] <= 32); /* of 40 epochs, 16.3 on average */
    CHECK(mixed > 115);                                                  /* the classes are mixed within an epoch */
    cr_loader_close(loader);
    cr_dataset_close(set);
    drop_folder(folder);
}

/* A sample that occurs several times in an epoch has a crop of its own each time. */
static void repeated_samples_differ(void) {
    char               folder[SUPPORT_PATH];
    struct cr_dataset *set;
    struct cr_loader  *loader;
    struct cr_batch    batch;
    make_folder(folder);
    REQUIRE_OK(open_uneven(folder, &set));
    struct cr_loader_options options = balanced_options(ALL, 0);
    REQUIRE_OK(cr_loader_open(set, &options, &loader));
    REQUIRE_OK(cr_loader_next(loader, &batch));
    int pairs = 0, equal = 0;
    for (int i = 0; i < ALL; i++)
        for (int j = 0; j < i; j++) {
            if (batch.labels[i] != 1 || sample_of(&batch, i) != sample_of(&batch, j)) continue;
            pairs++;
            equal += memcmp(batch.boxes + 4 * i, batch.boxes + 4 * j, 4 * sizeof *batch.boxes) == 0;
        }
    CHECK(pairs >= 3 * 15);   /* three samples, six or seven times each */
    CHECK(equal * 8 < pairs); /* 5 x 5 shifts, mirrored or not: 2 % are equal by chance */
    cr_loader_release(loader, &batch);
    cr_loader_close(loader);
    cr_dataset_close(set);
    drop_folder(folder);
}

static void workers_and_resuming_change_nothing(void) {
    char               folder[SUPPORT_PATH];
    struct cr_dataset *set;
    make_folder(folder);
    REQUIRE_OK(open_uneven(folder, &set));
    const uint64_t want = sum_batches(set, balanced_options(7, 0), 30, NULL);
    CHECK(sum_batches(set, balanced_options(7, 4), 30, NULL) == want);
    CHECK(sum_batches(set, plain_options(CR_SPLIT_TRAIN, 7, 0), 30, NULL) != want);
    for (int start = 0; start < 20; start += 3) { /* 8 batches in an epoch */
        uint64_t                 whole = CR_HASH_START;
        struct cr_loader_options later = balanced_options(7, 2);
        struct cr_loader        *loader;
        REQUIRE_OK(cr_loader_open(set, &later, &loader));
        for (int b = 0; b < start + 3; b++) {
            struct cr_batch batch;
            REQUIRE_OK(cr_loader_next(loader, &batch));
            if (b >= start) whole = sum_seen(whole, &batch, 7, 8);
            cr_loader_release(loader, &batch);
        }
        cr_loader_close(loader);
        later.epoch       = start / 8;
        later.first_batch = start % 8;
        CHECK(sum_batches(set, later, 3, NULL) == whole);
    }
    cr_dataset_close(set);
    drop_folder(folder);
}

/* The batches of two ranks are the halves of the batches of one. */
static void ranks_divide_the_order(void) {
    char               folder[SUPPORT_PATH];
    struct cr_dataset *set;
    struct cr_loader  *one, *half[2];
    make_folder(folder);
    REQUIRE_OK(open_uneven(folder, &set));
    struct cr_loader_options options = balanced_options(12, 1);
    REQUIRE_OK(cr_loader_open(set, &options, &one));
    options.batch = 6;
    options.ranks = 2;
    for (options.rank = 0; options.rank < 2; options.rank++)
        REQUIRE_OK(cr_loader_open(set, &options, &half[options.rank]));
    for (int b = 0; b < 12; b++) {
        struct cr_batch whole, part;
        REQUIRE_OK(cr_loader_next(one, &whole));
        for (int r = 0; r < 2; r++) {
            REQUIRE_OK(cr_loader_next(half[r], &part));
            CHECK(memcmp(part.images, whole.images + r * 6 * 192, 6 * 192) == 0);
            CHECK(memcmp(part.boxes, whole.boxes + r * 24, 24 * sizeof *part.boxes) == 0);
            CHECK(memcmp(part.labels, whole.labels + r * 6, 6 * sizeof *part.labels) == 0);
            cr_loader_release(half[r], &part);
        }
        cr_loader_release(one, &whole);
    }
    cr_loader_close(one);
    for (int r = 0; r < 2; r++) cr_loader_close(half[r]);
    cr_dataset_close(set);
    drop_folder(folder);
}

/* An image that cannot be read is replaced, with all samples of its class if need be. */
static void corrupt_images_are_replaced(void) {
    char               folder[SUPPORT_PATH], path[SUPPORT_PATH];
    struct cr_dataset *set;
    struct cr_loader  *loader;
    make_folder(folder);
    REQUIRE_OK(open_uneven(folder, &set));
    for (int i = COMMON; i < COMMON + RARE; i++)
        write_bytes(text_into(path, "%s/b/%03d.png", folder, i), "no image", 8);
    struct cr_loader_options options = balanced_options(BATCH, 2);
    REQUIRE_OK(cr_loader_open(set, &options, &loader));
    for (int b = 0; b < 4; b++) {
        struct cr_batch batch;
        REQUIRE_OK(cr_loader_next(loader, &batch));
        for (int i = 0; i < BATCH; i++) CHECK(batch.labels[i] == 0 || batch.labels[i] == 2);
        cr_loader_release(loader, &batch);
    }
    CHECK_INT(cr_loader_corrupt(loader), RARE);
    cr_loader_close(loader);
    cr_dataset_close(set);
    drop_folder(folder);
}

/* The labels that need no file are those of the samples. */
static void labels_of_all_formats(void) {
    struct cr_dataset *set;
    REQUIRE_OK(OPEN_SET(&set, "data.kind=synthetic", "data.train_images=40"));
    for (int64_t i = 0; i < 40; i++) {
        struct cr_image image;
        int32_t         label;
        REQUIRE_OK(cr_dataset_get(set, i, &image, &label));
        CHECK_INT(set->ops->label(set, i), label);
        cr_image_free(&image);
    }
    cr_dataset_close(set);
}

static void no_leaks(void) {
    CHECK_INT(cr_alloc_live(), 0);
}

TESTS(CASE(classes_occur_equally_often), CASE(repeated_samples_differ), CASE(workers_and_resuming_change_nothing),
      CASE(ranks_divide_the_order), CASE(corrupt_images_are_replaced), CASE(labels_of_all_formats), CASE(no_leaks))
