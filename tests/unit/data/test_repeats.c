/* tests/unit/data/test_repeats.c: repeated augmentation: an epoch shows a part of the images several times, each time
 * with a crop and a partner of its own; the same for any number of workers and ranks, and after resuming. */
#include "tests/harness/loader_support.h"

enum { REPEATS = 3, BATCH = 18 }; /* 18 places: a group of six images, three times each; 60 images */

static struct cr_loader_options repeat_options(int64_t batch, int workers) {
    struct cr_loader_options options = plain_options(CR_SPLIT_TRAIN, batch, workers);
    options.repeats                  = REPEATS;
    return options;
}

static void each_image_occurs_three_times_in_its_batch(void) {
    char               folder[SUPPORT_PATH], root[SUPPORT_PATH];
    struct cr_dataset *set;
    struct cr_loader  *loader;
    int                shown[IMAGES] = {0}, equal = 0, pairs = 0;
    make_folder(folder);
    write_set(folder);
    REQUIRE_OK(OPEN_SET(&set, "data.kind=folder", root_is(folder, root)));
    struct cr_loader_options options = repeat_options(BATCH, 2);
    CHECK_INT(cr_loader_batches(set, &options), 3); /* as without repeats */
    REQUIRE_OK(cr_loader_open(set, &options, &loader));
    for (int epoch = 0; epoch < 20; epoch++) {
        bool of_epoch[IMAGES] = {0};
        for (int b = 0; b < 3; b++) {
            int             times[IMAGES] = {0}, partner[IMAGES][REPEATS];
            struct cr_batch batch;
            REQUIRE_OK(cr_loader_next(loader, &batch));
            CHECK(batch.epoch == epoch && batch.index == b);
            for (int i = 0; i < BATCH; i++) {
                const int sample = sample_of(&batch, i), other = sample_of(&batch, i ^ 1);
                CHECK(sample != other);
                for (int k = 0; k < times[sample]; k++) CHECK(partner[sample][k] != other);
                partner[sample][times[sample]++] = other;
                for (int j = 0; j < i; j++) {
                    if (sample_of(&batch, j) != sample) continue;
                    pairs++;
                    equal += memcmp(batch.boxes + 4 * i, batch.boxes + 4 * j, 4 * sizeof *batch.boxes) == 0;
                }
            }
            for (int i = 0; i < IMAGES; i++) {
                CHECK(times[i] == 0 || times[i] == REPEATS);
                CHECK(!(times[i] && of_epoch[i]));
                of_epoch[i] = of_epoch[i] || times[i];
                shown[i] += times[i] > 0;
            }
            cr_loader_release(loader, &batch);
        }
    }
    CHECK_INT(pairs, 20 * 3 * 6 * 3);
    CHECK(equal * 15 < pairs); /* 5 x 5 shifts, mirrored or not: 2 % are equal by chance */
    for (int i = 0; i < IMAGES; i++) CHECK(shown[i] >= 1 && shown[i] <= 15); /* 6 of 20 epochs on average */
    cr_loader_close(loader);
    cr_dataset_close(set);
    drop_folder(folder);
}

static void workers_ranks_and_resuming_change_nothing(void) {
    char               folder[SUPPORT_PATH], root[SUPPORT_PATH];
    struct cr_dataset *set;
    struct cr_loader  *loader;
    make_folder(folder);
    write_set(folder);
    REQUIRE_OK(OPEN_SET(&set, "data.kind=folder", root_is(folder, root)));
    const uint64_t want = sum_batches(set, repeat_options(10, 0), 18, NULL);
    CHECK(sum_batches(set, repeat_options(10, 4), 18, NULL) == want);
    CHECK(sum_batches(set, plain_options(CR_SPLIT_TRAIN, 10, 0), 18, NULL) != want);
    struct cr_loader_options options = repeat_options(10, 2);
    uint64_t                 whole = CR_HASH_START, part = CR_HASH_START;
    REQUIRE_OK(cr_loader_open(set, &options, &loader));
    for (int b = 0; b < 12; b++) { /* six batches in an epoch */
        struct cr_batch batch;
        REQUIRE_OK(cr_loader_next(loader, &batch));
        if (b >= 8) whole = sum_seen(whole, &batch, 10, 8);
        if (b >= 8) part = sum_seen(part, &batch, 5, 8);
        cr_loader_release(loader, &batch);
    }
    cr_loader_close(loader);
    options.epoch       = 1;
    options.first_batch = 2;
    CHECK(sum_batches(set, options, 4, NULL) == whole);
    options.batch = 5; /* the first of two ranks */
    options.ranks = 2;
    CHECK(sum_batches(set, options, 4, NULL) == part);
    cr_dataset_close(set);
    drop_folder(folder);
}

static void balanced_sampling_is_excluded(void) {
    const struct cr_config  *config;
    static const char *const keys[] = {"data.repeats=3", "data.sampling=balanced"};
    CHECK_INT(cr_config_open(&config, NULL, keys, CR_COUNT(keys)), CR_ERR_CONFIG);
    CHECK(strstr(cr_error_message(), "excludes sampling = balanced"));
    CHECK_INT(cr_alloc_live(), 0);
}

TESTS(CASE(each_image_occurs_three_times_in_its_batch), CASE(workers_ranks_and_resuming_change_nothing),
      CASE(balanced_sampling_is_excluded))
