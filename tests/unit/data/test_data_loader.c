/* tests/unit/data/test_data_loader.c: the loader: the same bytes for any number of workers, exact resume, every
 * evaluation sample once, corrupt images. */
#include "tests/harness/failing_alloc.h"
#include "tests/harness/loader_support.h"

static void worker_count_changes_nothing(void) {
    char folder[SUPPORT_PATH], root[SUPPORT_PATH];
    make_folder(folder);
    write_set(folder);
    struct cr_dataset *set;
    REQUIRE_OK(OPEN_SET(&set, "data.kind=folder", root_is(folder, root)));
    static const int batches[] = {1, 7, 32, 60};
    for (size_t k = 0; k < CR_COUNT(batches); k++) {
        int64_t  ends[2], want_ends[2];
        int      n    = 3 * IMAGES / batches[k] + 2;
        uint64_t want = sum_batches(set, plain_options(CR_SPLIT_TRAIN, batches[k], 0), n, want_ends);
        CHECK(want_ends[0] >= 3 || batches[k] == 60);
        for (int workers = 1; workers <= 4; workers += 3)
            for (int prefetch = 1; prefetch <= 9; prefetch += 8) {
                struct cr_loader_options options = plain_options(CR_SPLIT_TRAIN, batches[k], workers);
                options.prefetch                 = prefetch;
                CHECK(sum_batches(set, options, n, ends) == want);
                CHECK(ends[0] == want_ends[0] && ends[1] == want_ends[1]);
            }
        struct cr_loader_options other = plain_options(CR_SPLIT_TRAIN, batches[k], 1);
        other.seed                     = 10;
        CHECK(sum_batches(set, other, n, ends) != want);
    }
    cr_dataset_close(set);
    drop_folder(folder);
}

/* Started at any batch, the loader delivers the same batches as a run from the start. */
static void resume_continues_exactly(void) {
    struct cr_dataset *set;
    REQUIRE_OK(OPEN_SET(&set, "data.kind=synthetic", "data.train_images=37"));
    struct cr_loader_options options = plain_options(CR_SPLIT_TRAIN, 5, 2); /* 7 batches per epoch */
    options.prepare.size             = 32;
    CHECK_INT(cr_loader_batches(set, &options), 7);
    for (int start = 0; start < 16; start++) {
        uint64_t          whole = 0;
        struct cr_loader *loader;
        REQUIRE_OK(cr_loader_open(set, &options, &loader));
        for (int b = 0; b < start + 3; b++) {
            struct cr_batch batch;
            REQUIRE_OK(cr_loader_next(loader, &batch));
            CHECK(batch.epoch == b / 7 && batch.index == b % 7 && batch.count == 5);
            if (b == start) whole = CR_HASH_START;
            whole = sum_seen(whole, &batch, 5, 32);
            cr_loader_release(loader, &batch);
        }
        cr_loader_close(loader);
        struct cr_loader_options later = options;
        later.epoch                    = start / 7;
        later.first_batch              = start % 7;
        CHECK(sum_batches(set, later, 3, NULL) == whole);
        later.epoch       = 0; /* the same position in other numbers: batches run on into later epochs */
        later.first_batch = start;
        CHECK(sum_batches(set, later, 3, NULL) == whole);
    }
    cr_dataset_close(set);
}

/* Checksums of 20 batches, recorded when shifts and flips were still done by the workers: the random values and pixels
 * are the same. */
static void batches_match_host_preparation(void) {
    struct cr_dataset *set;
    REQUIRE_OK(OPEN_SET(&set, "data.kind=synthetic", "data.train_images=37", "data.image_size=32"));
    struct cr_loader_options options = plain_options(CR_SPLIT_TRAIN, 5, 2);
    options.prepare                  = (struct cr_prepare){.size = 32, .crop = CR_CROP_PAD, .pad = 4, .hflip = 0.5};
    CHECK(sum_batches(set, options, 20, NULL) == UINT64_C(0x68cd682a82f8e672));
    options.prepare = (struct cr_prepare){
        .size = 32, .crop = CR_CROP_RANDOM_RESIZED, .scale = {0.08, 1}, .ratio = {3.0 / 4, 4.0 / 3}, .hflip = 0.5};
    CHECK(sum_batches(set, options, 20, NULL) == UINT64_C(0x3a5c60d6e69e8220));
    cr_dataset_close(set);
}

static void an_epoch_is_a_permutation(void) {
    char folder[SUPPORT_PATH], root[SUPPORT_PATH];
    make_folder(folder);
    write_set(folder);
    struct cr_dataset *set;
    REQUIRE_OK(OPEN_SET(&set, "data.kind=folder", root_is(folder, root)));
    struct cr_loader_options options = plain_options(CR_SPLIT_TRAIN, 16, 2);
    for (int drop = 0; drop < 2; drop++) {
        struct cr_loader *loader;
        int               first[2][IMAGES + 16] = {{0}}, same = 0;
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
        cr_loader_close(loader);
    }
    cr_dataset_close(set);
    drop_folder(folder);
}

static void evaluation_delivers_each_sample_once(void) {
    char folder[SUPPORT_PATH], root[SUPPORT_PATH];
    make_folder(folder);
    write_set(folder);
    struct cr_dataset *set;
    REQUIRE_OK(OPEN_SET(&set, "data.kind=folder", root_is(folder, root)));
    static const int batches[] = {1, 7, 60, 64};
    for (size_t k = 0; k < CR_COUNT(batches); k++)
        for (int workers = 0; workers <= 3; workers++) {
            struct cr_loader_options options = plain_options(CR_SPLIT_VAL, batches[k], workers);
            struct cr_loader        *loader;
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
            cr_loader_close(loader);
        }
    cr_dataset_close(set);
    drop_folder(folder);
}

/* ---- closing ---- */

static void closing_does_not_wait_for_pending_batches(void) {
    struct cr_dataset *set;
    REQUIRE_OK(OPEN_SET(&set, "data.kind=synthetic", "data.train_images=4096", "data.image_size=224"));
    struct cr_loader_options options = plain_options(CR_SPLIT_TRAIN, 1024, 3);
    options.prepare =
        (struct cr_prepare){.size = 224, .crop = CR_CROP_RANDOM_RESIZED, .scale = {0.9, 1}, .ratio = {1, 1}};
    options.prefetch = 1;
    for (int i = 0; i < 3; i++) {
        struct cr_loader *loader;
        REQUIRE_OK(cr_loader_open(set, &options, &loader));
        int64_t start = cr_time_ns();
        cr_loader_close(loader);
        CHECK((double)(cr_time_ns() - start) < 1e9); /* the two batches in flight would take many seconds */
    }
    cr_loader_close(NULL);
    cr_dataset_close(set);
}

static void no_allocation_after_the_first_batch(void) {
    struct cr_dataset *set;
    REQUIRE_OK(OPEN_SET(&set, "data.kind=synthetic", "data.train_images=200", "data.image_size=48"));
    for (int workers = 0; workers <= 2; workers++) {
        struct cr_loader_options options = plain_options(CR_SPLIT_TRAIN, 50, workers);
        options.prepare                  = (struct cr_prepare){.size = 32, .crop = CR_CROP_PAD, .pad = 4, .hflip = 0.5};
        struct cr_loader *loader;
        uint64_t          calls = 0;
        REQUIRE_OK(cr_loader_open(set, &options, &loader));
        for (int b = 0; b < 60; b++) {
            struct cr_batch batch;
            REQUIRE_OK(cr_loader_next(loader, &batch));
            cr_loader_release(loader, &batch);
            if (b < 20) usleep(2000); /* on a busy machine a worker may be late to read its first image */
            if (b == 20) calls = cr_alloc_calls();
        }
        CHECK_INT(cr_alloc_calls(), calls);
        CHECK(cr_loader_wait_ns(loader) > 0);
        cr_loader_close(loader);
    }
    cr_dataset_close(set);
}

/* A consumer may hold a batch while it requests the next one. */
static void batch_may_be_held(void) {
    struct cr_dataset *set;
    REQUIRE_OK(OPEN_SET(&set, "data.kind=synthetic", "data.train_images=64"));
    for (int workers = 0; workers <= 2; workers++) {
        struct cr_loader_options options = plain_options(CR_SPLIT_TRAIN, 8, workers);
        options.prepare.size             = 32;
        options.prefetch                 = 1;
        struct cr_loader *loader;
        struct cr_batch   held, next;
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
        cr_loader_close(loader);
    }
    cr_dataset_close(set);
}

static void failing_allocations_are_reported(void) {
    char folder[SUPPORT_PATH], root[SUPPORT_PATH];
    make_folder(folder);
    write_set(folder);
    put_text(folder, "a/007.png", "nonsense");
    struct cr_dataset *set;
    REQUIRE_OK(OPEN_SET(&set, "data.kind=folder", root_is(folder, root)));
    cr_log_quiet(true);
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
    cr_log_quiet(false);
    cr_dataset_close(set);
    drop_folder(folder);
}

/* Prints a speed, without a check: pad crop and flip of 32 px images, one thread. */
static void speed_of_pad_crops(void) {
    struct cr_dataset *set;
    REQUIRE_OK(OPEN_SET(&set, "data.kind=synthetic", "data.train_images=51200"));
    struct cr_loader_options options = plain_options(CR_SPLIT_TRAIN, 512, 0);
    options.prepare                  = (struct cr_prepare){.size = 32, .crop = CR_CROP_PAD, .pad = 4, .hflip = 0.5};
    int64_t           start          = cr_time_ns();
    struct cr_loader *loader;
    REQUIRE_OK(cr_loader_open(set, &options, &loader));
    for (int b = 0; b < 100; b++) {
        struct cr_batch batch;
        REQUIRE_OK(cr_loader_next(loader, &batch));
        cr_loader_release(loader, &batch);
    }
    cr_loader_close(loader);
    printf("    %.0f images/s\n", 51200 / ((double)(cr_time_ns() - start) * 1e-9));
    cr_dataset_close(set);
}

/* ---- memory of a device ---- */

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
static void a_device_copies_after_the_release(void) {
    struct cr_dataset *set;
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
    cr_dataset_close(set);
}

TESTS(CASE(a_device_copies_after_the_release), CASE(worker_count_changes_nothing), CASE(resume_continues_exactly),
      CASE(batches_match_host_preparation), CASE(an_epoch_is_a_permutation), CASE(evaluation_delivers_each_sample_once),
      CASE(closing_does_not_wait_for_pending_batches), CASE(no_allocation_after_the_first_batch),
      CASE(batch_may_be_held), CASE(failing_allocations_are_reported), CASE(speed_of_pad_crops))
