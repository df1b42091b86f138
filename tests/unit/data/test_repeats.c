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

TESTS(CASE(each_image_occurs_three_times_in_its_batch))
