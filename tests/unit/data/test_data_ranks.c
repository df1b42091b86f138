/* tests/unit/data/test_data_ranks.c: the batches of several ranks are the parts of one global batch: the same images
 * with the same crops in the same global batch, for any number of ranks; evaluation delivers each image once. */
#include "tests/harness/data_support.h"

enum { GLOBAL = 24, BATCHES = 11, SIDE = 8, IMAGE = SIDE * SIDE * 3 };

struct seen { /* of one global batch after the other */
    uint8_t images[BATCHES][GLOBAL][IMAGE];
    int32_t labels[BATCHES][GLOBAL], boxes[BATCHES][GLOBAL][4];
    int64_t epoch[BATCHES];
};

static cr_status open_set(enum cr_split split, struct cr_dataset **set) {
    static const char *const values[] = {"data.kind=synthetic", "data.image_size=8", "data.train_images=100",
                                         "data.val_images=37", "model.classes=9"};
    const struct cr_config  *config;
    CR_TRY(cr_config_open(&config, NULL, values, CR_COUNT(values)));
    cr_status status = cr_dataset_open(config, split, set);
    cr_config_close(config);
    return status;
}

static struct cr_loader_options options_of(int rank, int ranks, bool drop_last, int64_t first) {
    return (struct cr_loader_options){.split       = CR_SPLIT_TRAIN,
                                      .batch       = GLOBAL / ranks,
                                      .workers     = 2,
                                      .prefetch    = 2,
                                      .seed        = 5,
                                      .drop_last   = drop_last,
                                      .rank        = rank,
                                      .ranks       = ranks,
                                      .first_batch = first,
                                      .prepare     = {.size = SIDE, .crop = CR_CROP_PAD, .pad = 2, .hflip = 0.5}};
}

/* Stores the batches of rank `rank` at their places in the global batches. */
static cr_status take(const struct cr_dataset *set, const struct cr_loader_options *o, int batches, struct seen *out) {
    struct cr_loader *loader;
    CR_TRY(cr_loader_open(set, o, &loader));
    cr_status status = CR_OK;
    for (int b = 0; b < batches && status == CR_OK; b++) {
        struct cr_batch batch;
        const size_t    at = (size_t)(o->rank * o->batch), n = (size_t)o->batch;
        status = cr_loader_next(loader, &batch);
        if (status != CR_OK) break;
        memcpy(out->images[b][at], batch.images, n * IMAGE);
        memcpy(&out->labels[b][at], batch.labels, n * sizeof *batch.labels);
        memcpy(&out->boxes[b][at], batch.boxes, n * 4 * sizeof *batch.boxes);
        out->epoch[b] = batch.epoch;
        cr_loader_release(loader, &batch);
    }
    cr_loader_close(loader);
    return status;
}

static void training_batches_are_parts_of_one_order(void) {
    struct seen       *one, *many;
    struct cr_dataset *set;
    REQUIRE_OK(open_set(CR_SPLIT_TRAIN, &set));
    one  = cr_alloc(1, sizeof *one);
    many = cr_alloc(1, sizeof *many);
    REQUIRE(one && many);
    for (int drop = 0; drop < 2; drop++) {
        struct cr_loader_options alone = options_of(0, 1, drop, 0);
        memset(one, 0, sizeof *one);
        REQUIRE_OK(take(set, &alone, BATCHES, one));
        CHECK_INT(cr_loader_batches(set, &alone), drop ? 4 : 5);
        CHECK(one->epoch[BATCHES - 1] == 2);
        for (int ranks = 2; ranks <= 8; ranks++) {
            if (GLOBAL % ranks) continue;
            memset(many, 0, sizeof *many);
            for (int r = 0; r < ranks; r++) {
                struct cr_loader_options o = options_of(r, ranks, drop, 0);
                CHECK_INT(cr_loader_batches(set, &o), drop ? 4 : 5);
                REQUIRE_OK(take(set, &o, BATCHES, many));
            }
            CHECK(memcmp(one, many, sizeof *one) == 0);
        }
    }
    cr_free(one);
    cr_free(many);
    cr_dataset_close(set);
}

/* From the middle of an epoch on, as a run that resumes with another number of ranks. */
static void order_continues_with_other_ranks(void) {
    struct seen       *one, *many;
    struct cr_dataset *set;
    REQUIRE_OK(open_set(CR_SPLIT_TRAIN, &set));
    one  = cr_alloc(1, sizeof *one);
    many = cr_alloc(1, sizeof *many);
    REQUIRE(one && many);
    struct cr_loader_options alone = options_of(0, 1, true, 3);
    REQUIRE_OK(take(set, &alone, 6, one));
    for (int r = 0; r < 4; r++) {
        struct cr_loader_options o = options_of(r, 4, true, 3);
        REQUIRE_OK(take(set, &o, 6, many));
    }
    CHECK(memcmp(one, many, sizeof *one) == 0);
    cr_free(one);
    cr_free(many);
    cr_dataset_close(set);
}

static void evaluation_delivers_each_image_once(void) {
    struct cr_dataset *set;
    REQUIRE_OK(open_set(CR_SPLIT_VAL, &set));
    for (int ranks = 1; ranks <= 5; ranks++)
        for (int64_t batch = 1; batch <= 40; batch += 13) {
            int64_t counted = 0, labelled = 0, rounds = 0;
            for (int r = 0; r < ranks; r++) {
                struct cr_loader_options o = options_of(r, ranks, false, 0);
                struct cr_loader        *loader;
                o.split        = CR_SPLIT_VAL;
                o.batch        = batch;
                o.prepare.crop = CR_CROP_NONE;
                REQUIRE_OK(cr_loader_open(set, &o, &loader));
                for (int64_t n = 0;; n++) {
                    struct cr_batch b;
                    REQUIRE_OK(cr_loader_next(loader, &b));
                    if (b.count == 0) break;
                    CHECK(b.count > 0 && b.count <= batch);
                    counted += b.count;
                    for (int64_t i = 0; i < batch; i++) labelled += b.labels[i] >= 0;
                    rounds = CR_MAX(rounds, n + 1);
                    cr_loader_release(loader, &b);
                }
                cr_loader_close(loader);
            }
            CHECK_INT(counted, 37);
            CHECK_INT(labelled, 37);
            CHECK_INT(rounds, (37 + batch * ranks - 1) / (batch * ranks));
        }
    cr_dataset_close(set);
}

TESTS(CASE(training_batches_are_parts_of_one_order), CASE(order_continues_with_other_ranks),
      CASE(evaluation_delivers_each_image_once))
