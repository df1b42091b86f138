/* tests/unit/data/test_balanced_sampling.c: balanced sampling: equal numbers of each class, no repetition before a
 * class is used up, crops of their own for repeated samples; the same for any number of workers and ranks, and after
 * resuming. */
#include "tests/harness/failing_alloc.h"
#include "tests/harness/loader_support.h"

enum { COMMON = 50, RARE = 3, MIDDLE = 9, ALL = COMMON + RARE + MIDDLE, BATCH = 31 };

/* Classes a, b, c with 50, 3 and 9 images; image i has the colour i + 1. */
static cr_status open_uneven(struct cr_dataset **set) {
    for (int i = 0; i < ALL; i++)
        put_image(tmp_path, formatted("%s/%03d.png", i < COMMON ? "a" : i < COMMON + RARE ? "b" : "c", i), 8, 8, i + 1);
    return OPEN_SET(set, FOLDER_SET);
}

static struct cr_loader_options balanced_options(int64_t batch, int workers) {
    struct cr_loader_options options = plain_options(CR_SPLIT_TRAIN, batch, workers);
    options.balanced                 = true;
    return options;
}

TEST(classes_occur_equally_often) {
    OWNED(dataset) set    = NULL;
    OWNED(loader)  loader = NULL;
    folder_open();
    REQUIRE_OK(open_uneven(&set));
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
}

/* A sample that occurs several times in an epoch has a crop of its own each time. */
TEST(repeated_samples_differ) {
    OWNED(dataset)  set    = NULL;
    OWNED(loader)   loader = NULL;
    struct cr_batch batch;
    folder_open();
    REQUIRE_OK(open_uneven(&set));
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
}

/* An image that cannot be read is replaced, with all samples of its class if need be. */
TEST(corrupt_images_are_replaced) {
    OWNED(dataset) set    = NULL;
    OWNED(loader)  loader = NULL;
    folder_open();
    REQUIRE_OK(open_uneven(&set));
    for (int i = COMMON; i < COMMON + RARE; i++) write_bytes(in_folder("b/%03d.png", i), "no image", 8);
    struct cr_loader_options options = balanced_options(BATCH, 2);
    REQUIRE_OK(cr_loader_open(set, &options, &loader));
    for (int b = 0; b < 4; b++) {
        struct cr_batch batch;
        REQUIRE_OK(cr_loader_next(loader, &batch));
        for (int i = 0; i < BATCH; i++) CHECK(batch.labels[i] == 0 || batch.labels[i] == 2);
        cr_loader_release(loader, &batch);
    }
    CHECK_INT(cr_loader_corrupt(loader), RARE);
}
