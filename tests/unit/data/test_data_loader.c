/* tests/unit/data/test_data_loader.c: the loader: the same bytes for any number of workers and ranks, exact resume,
 * every evaluation sample once. */
#include "tests/harness/failing_alloc.h"
#include "tests/harness/loader_support.h"

#include <time.h>

/* Checksum of the part of a rank in the batches `first` to `first` + 2, from a loader of whole batches that starts at
 * the first one. */
static uint64_t sum_part(const struct cr_dataset *set, struct cr_loader_options options, int first, int rank,
                         int ranks) {
    struct cr_loader *loader;
    struct cr_batch   batch, part;
    const int64_t     n = options.batch / ranks, batches = cr_loader_batches(set, &options);
    uint64_t          sum = CR_HASH_START;
    CHECK_STATUS(cr_loader_open(set, &options, &loader), CR_OK);
    for (int b = 0; b < first + 3; b++) {
        CHECK_STATUS(cr_loader_next(loader, &batch), CR_OK);
        CHECK(batch.epoch == b / batches && batch.index == b % batches && batch.count == options.batch);
        part = batch;
        part.images += rank * n * 192;
        part.boxes += rank * n * 4;
        part.labels += rank * n;
        if (b >= first) sum = sum_seen(sum, &part, n, 8);
        cr_loader_release(loader, &batch);
    }
    cr_loader_close(loader);
    return sum;
}

/* Plain, balanced and repeated samples, with and without the last images of an epoch: workers and the length of the
 * queue change nothing; a loader that starts at any batch delivers the same batches as one from the start; those of the
 * ranks are the parts of the whole ones. */
TEST(workers_ranks_and_resuming_change_nothing) {
    OWNED(dataset) set   = NULL;
    uint64_t       plain = 0;
    write_set();
    REQUIRE_OK(open_folder(&set));
    for (int k = 0; k < 6; k++) {
        struct cr_loader_options options = plain_options(CR_SPLIT_TRAIN, 16, 2), other;
        options.drop_last                = k % 2;
        options.balanced                 = k / 2 == 1;
        options.repeats                  = k / 2 == 2 ? 3 : 0;
        const int64_t batches            = cr_loader_batches(set, &options);
        CHECK_INT(batches, k % 2 ? 3 : 4);
        for (int start = 0; start < 9; start++)
            for (int rank = 0, ranks = 1 << start % 3; rank < ranks; rank++) {
                const uint64_t want = sum_part(set, options, start, rank, ranks);
                other               = options;
                other.workers       = start % 2 ? 4 : 0;
                other.prefetch      = 1 + 8 * (rank % 2);
                other.batch         = 16 / ranks;
                other.rank          = rank;
                other.ranks         = ranks;
                other.epoch         = start / batches;
                other.first_batch   = start % batches;
                CHECK(sum_batches(set, other, 3, NULL) == want);
                other.epoch       = 0; /* the same position in other numbers: batches run on into later epochs */
                other.first_batch = start;
                CHECK(sum_batches(set, other, 3, NULL) == want);
                other.seed++;
                CHECK(sum_batches(set, other, 3, NULL) != want);
            }
        const uint64_t first = sum_part(set, options, 0, 0, 1);
        CHECK(k < 2 || first != plain);
        plain = k < 2 ? first : plain;
    }
}

TEST(an_epoch_is_a_permutation) {
    write_set();
    OWNED(dataset) set = NULL;
    REQUIRE_OK(open_folder(&set));
    struct cr_loader_options options = plain_options(CR_SPLIT_TRAIN, 16, 2);
    for (int drop = 0; drop < 2; drop++) {
        OWNED(loader) loader                = NULL;
        int           first[2][IMAGES + 16] = {{0}}, same = 0;
        options.drop_last = drop;
        CHECK_INT(cr_loader_batches(set, &options), drop ? 3 : 4);
        REQUIRE_OK(cr_loader_open(set, &options, &loader));
        for (int epoch = 0; epoch < 2; epoch++) {
            int times[IMAGES] = {0};
            for (int b = 0; b < (drop ? 3 : 4); b++) {
                struct cr_batch batch;
                REQUIRE_OK(cr_loader_next(loader, &batch));
                CHECK_INT(batch.epoch, epoch);
                CHECK_INT(batch.count, 16);
                for (int i = 0; i < 16; i++) {
                    int sample = sample_of(&batch, i);
                    REQUIRE(sample >= 0 && sample < IMAGES);
                    CHECK_INT(batch.labels[i], sample >= IMAGES / 2);
                    first[epoch][b * 16 + i] = sample;
                    times[sample]++;
                }
                cr_loader_release(loader, &batch);
            }
            int met = 0;
            for (int i = 0; i < IMAGES; i++) {
                met += times[i] > 0;
                CHECK(times[i] <= (drop ? 1 : 2));
            }
            CHECK_INT(met, drop ? 48 : IMAGES); /* without drop_last: all samples, the first four twice */
            for (int i = 0; !drop && i < 4; i++) CHECK_INT(first[epoch][IMAGES + i], first[epoch][i]);
        }
        for (int i = 0; i < 48; i++) same += first[0][i] == first[1][i];
        CHECK(same < 12); /* the next epoch has another order */
    }
}

TEST(evaluation_delivers_each_sample_once) {
    write_set();
    OWNED(dataset) set = NULL;
    REQUIRE_OK(open_folder(&set));
    static const int batches[] = {1, 7, 60, 64};
    for (size_t k = 0; k < CR_COUNT(batches); k++)
        for (int workers = 0; workers <= 3; workers++) {
            struct cr_loader_options options = plain_options(CR_SPLIT_VAL, batches[k], workers);
            OWNED(loader)            loader  = NULL;
            struct cr_batch          batch;
            int                      next = 0;
            REQUIRE_OK(cr_loader_open(set, &options, &loader));
            for (;;) {
                REQUIRE_OK(cr_loader_next(loader, &batch));
                if (batch.count == 0) break;
                CHECK(batch.boxes == NULL);
                for (int i = 0; i < batches[k]; i++) {
                    if (i < batch.count) {
                        CHECK_INT(sample_of(&batch, i), next);
                        CHECK_INT(batch.labels[i], next >= IMAGES / 2);
                        next++;
                    } else {
                        CHECK_INT(batch.labels[i], -1);
                        CHECK_INT(sample_of(&batch, i), -1); /* black */
                    }
                }
                cr_loader_release(loader, &batch);
            }
            CHECK_INT(next, IMAGES);
            REQUIRE_OK(cr_loader_next(loader, &batch)); /* a second call still reports the end */
            CHECK_INT(batch.count, 0);
            CHECK_INT(cr_loader_corrupt(loader), 0);
        }
}

/* Each image once among all ranks, which have equally many batches. */
TEST(ranks_evaluate_each_sample_once) {
    OWNED(dataset) set = NULL;
    REQUIRE_OK(OPEN_SET(&set, "data.kind=synthetic", "data.train_images=37", "data.image_size=8"));
    for (int ranks = 2; ranks <= 5; ranks++)
        for (int64_t batch = 1; batch <= 40; batch += 13) {
            int64_t counted = 0, labelled = 0, rounds = 0;
            for (int r = 0; r < ranks; r++) {
                struct cr_loader_options o      = plain_options(CR_SPLIT_VAL, batch, 2);
                OWNED(loader)            loader = NULL;
                struct cr_batch          b;
                o.rank  = r;
                o.ranks = ranks;
                REQUIRE_OK(cr_loader_open(set, &o, &loader));
                for (int64_t n = 0;; n++) {
                    REQUIRE_OK(cr_loader_next(loader, &b));
                    if (b.count == 0) break;
                    counted += b.count;
                    for (int64_t i = 0; i < batch; i++) labelled += b.labels[i] >= 0;
                    rounds = CR_MAX(rounds, n + 1);
                    cr_loader_release(loader, &b);
                }
            }
            CHECK_INT(counted, 37);
            CHECK_INT(labelled, 37);
            CHECK_INT(rounds, (37 + batch * ranks - 1) / (batch * ranks));
        }
}

/* Repeated augmentation: an epoch shows a part of the images several times, each time with a crop and a partner of its
 * own. */
TEST(each_image_occurs_three_times_in_its_batch) {
    enum { REPEATS = 3, PLACES = 18 }; /* a group of six images, three times each; 60 images */
    OWNED(dataset) set           = NULL;
    OWNED(loader)  loader        = NULL;
    int            shown[IMAGES] = {0}, equal = 0, pairs = 0;
    write_set();
    REQUIRE_OK(open_folder(&set));
    struct cr_loader_options options = plain_options(CR_SPLIT_TRAIN, PLACES, 2);
    options.repeats                  = REPEATS;
    CHECK_INT(cr_loader_batches(set, &options), 3); /* as without repeats */
    REQUIRE_OK(cr_loader_open(set, &options, &loader));
    for (int epoch = 0; epoch < 20; epoch++) {
        bool of_epoch[IMAGES] = {0};
        for (int b = 0; b < 3; b++) {
            int             times[IMAGES] = {0}, partner[IMAGES][REPEATS];
            struct cr_batch batch;
            REQUIRE_OK(cr_loader_next(loader, &batch));
            CHECK(batch.epoch == epoch && batch.index == b);
            for (int i = 0; i < PLACES; i++) {
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
}

/* ---- closing ---- */

TEST(closing_does_not_wait_for_pending_batches) {
    OWNED(dataset) set = NULL;
    REQUIRE_OK(OPEN_SET(&set, "data.kind=synthetic", "data.train_images=4096", "data.image_size=224"));
    struct cr_loader_options options = plain_options(CR_SPLIT_TRAIN, 1024, 3);
    options.prepare =
        (struct cr_prepare){.size = 224, .crop = CR_CROP_RANDOM_RESIZED, .scale = {0.9, 1}, .ratio = {1, 1}};
    options.prefetch = 1;
    for (int i = 0; i < 3; i++) {
        struct cr_loader *loader;
        REQUIRE_OK(cr_loader_open(set, &options, &loader));
        const clock_t start = clock(); /* time of the processor: other programs do not count */
        cr_loader_close(loader);
        CHECK(clock() - start < CLOCKS_PER_SEC); /* the two batches in flight would take many seconds */
    }
    cr_loader_close(NULL);
}

/* A consumer may hold a batch while it requests the next one. */
TEST(batch_may_be_held) {
    OWNED(dataset) set = NULL;
    REQUIRE_OK(OPEN_SET(&set, "data.kind=synthetic", "data.train_images=64"));
    for (int workers = 0; workers <= 2; workers++) {
        struct cr_loader_options options = plain_options(CR_SPLIT_TRAIN, 8, workers);
        options.prepare.size             = 32;
        options.prefetch                 = 1;
        OWNED(loader)   loader           = NULL;
        struct cr_batch held, next;
        REQUIRE_OK(cr_loader_open(set, &options, &loader));
        REQUIRE_OK(cr_loader_next(loader, &held));
        for (int b = 1; b < 20; b++) {
            uint64_t sum = sum_bytes(held.images, 8 * 3072);
            REQUIRE_OK(cr_loader_next(loader, &next));
            CHECK(next.images != held.images && sum_bytes(held.images, 8 * 3072) == sum);
            cr_loader_release(loader, &held);
            held = next;
        }
        cr_loader_release(loader, &held);
    }
}

TEST(failing_allocations_are_reported) {
    write_set();
    put_text(tmp_path, "a/007.png", "nonsense");
    OWNED(dataset) set = NULL;
    REQUIRE_OK(open_folder(&set));
    for (int workers = 0; workers <= 2; workers += 2)
        for_each_failing_alloc(f, .least = 10, .tolerated = true, .dense = 60, .stride = 97) {
            struct cr_loader_options options = plain_options(CR_SPLIT_TRAIN, 60, workers);
            struct cr_loader        *loader  = NULL;
            struct cr_batch          batch;
            failing_alloc_begin(&f);
            cr_status status = cr_loader_open(set, &options, &loader);
            if (status == CR_OK) status = cr_loader_next(loader, &batch);
            cr_loader_close(loader);
            failing_alloc_end(&f, status);
        }
}

static int reserved, released;

static cr_status reserve_counted(void *owner, size_t bytes, void **out) {
    *out = cr_alloc(bytes, 1);
    reserved += owner == &reserved;
    return *out ? CR_OK : CR_NO_MEMORY(bytes);
}
static void release_counted(void *owner, void *memory) {
    released += owner == &reserved;
    cr_free(memory);
}

/* A device that copies late: the images of a released batch are still the same when two more were released, and the
 * batches are those of a loader with ordinary memory. The thread sanitizer sees a worker that fills them too early. */
TEST(a_device_copies_after_the_release) {
    OWNED(dataset) set = NULL;
    REQUIRE_OK(OPEN_SET(&set, "data.kind=synthetic", "data.train_images=37"));
    for (int workers = 0; workers <= 3; workers += 3) {
        struct cr_loader_options options = plain_options(CR_SPLIT_TRAIN, 5, workers);
        struct cr_loader        *loader;
        struct cr_batch          before[2] = {0};
        uint64_t                 sum[2] = {0}, all = CR_HASH_START;
        options.prepare.size = 32;
        const uint64_t want  = sum_batches(set, options, 40, NULL);
        reserved = released = 0;
        options.memory      = (struct cr_loader_memory){&reserved, reserve_counted, release_counted};
        REQUIRE_OK(cr_loader_open(set, &options, &loader));
        CHECK_INT(reserved, (workers ? 3 : 1) + 1 + CR_LOADER_IN_FLIGHT);
        for (int b = 0; b < 40; b++) {
            struct cr_batch now;
            REQUIRE_OK(cr_loader_next(loader, &now));
            CHECK(now.page_locked);
            if (b >= 2) CHECK(cr_hash_bytes(CR_HASH_START, before[b % 2].images, 5 * 32 * 32 * 3) == sum[b % 2]);
            all           = sum_seen(all, &now, 5, 32);
            before[b % 2] = now;
            sum[b % 2]    = cr_hash_bytes(CR_HASH_START, now.images, 5 * 32 * 32 * 3);
            cr_loader_release(loader, &now);
        }
        CHECK(all == want);
        cr_loader_settle(loader); /* no copy runs: as many batches as one likes without being copied */
        for (int b = 0; b < 20; b++) {
            struct cr_batch now;
            REQUIRE_OK(cr_loader_next(loader, &now));
            cr_loader_release(loader, &now);
        }
        cr_loader_close(loader);
        CHECK_INT(released, reserved);
    }
}
