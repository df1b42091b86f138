/* tests/gpu/test_cuda_jpeg.c: the GPU's JPEG decoder against the CPU's: crops of files of every kind that the GPU
 * decodes have bitwise equal pixels; damaged files come back to the CPU. */
#include "tests/harness/jpeg_support.h"
#include "tests/harness/test_gpu.h"

#include "data/augment.h"
#include "data/image/jpeg.h"
#include "data/source.h"
#include "device/jpeg_decoder.h"

enum { BATCH = 256, SIDE = 96, DATA_BYTES = 32 << 20 };

struct rig {
    struct cr_device       *device;
    struct cr_jpeg_decoder *decoder;
    void                   *data;
    struct cr_jpeg_scan     scan[BATCH];
    uint8_t                 failed[BATCH], *expected, *got;
    struct cr_jpeg_data     room;
    struct cr_scratch       scratch;
    struct cr_prepare       prep;
};

static cr_status rig_open(struct rig *r, int side) {
    const struct cr_jpeg_limits    limits  = {BATCH, (size_t)BATCH * (size_t)(side * side * 3), DATA_BYTES};
    const struct cr_device_options options = {0};
    memset(r, 0, sizeof *r);
    r->prep =
        (struct cr_prepare){.size = side, .crop = CR_CROP_RANDOM_RESIZED, .scale = {0.08, 1}, .ratio = {0.75, 4.0 / 3}};
    CR_TRY(cr_device_open(CR_DEVICE_CUDA, &options, &r->device));
    CR_TRY(r->device->backend->async->host_reserve(r->device, DATA_BYTES, &r->data));
    r->room.bytes    = r->data;
    r->room.capacity = DATA_BYTES;
    r->expected      = cr_alloc(limits.result_bytes, 1);
    r->got           = cr_alloc(limits.result_bytes, 1);
    return r->device->backend->jpeg->open(r->device, &limits, &r->decoder);
}

static void rig_close(struct rig *r) {
    cr_scratch_free(&r->scratch);
    if (!r->device) return;
    r->device->backend->jpeg->close(r->decoder);
    r->device->backend->async->host_release(r->device, r->data);
    cr_free(r->expected);
    cr_free(r->got);
    cr_device_close(r->device);
}
OWNABLE(rig, struct rig, rig_close(x))

/* Prepares a place for both; returns whether the GPU takes the image. */
static bool add(struct rig *r, int place, const uint8_t *bytes, size_t count, int64_t sample) {
    const size_t             each   = cr_prepare_bytes(&r->prep);
    const struct cr_stored   stored = {.bytes = bytes, .count = count, .verified = true, .format = CR_RGB8};
    const struct cr_jpeg_job job    = {&r->room, &r->scan[place]};
    struct cr_lazy_image     lazy;
    int32_t                  box[4];
    r->scan[place].bytes = 0;
    if (cr_lazy_image_open(&stored, "made.jpg", &r->scratch, &lazy) != CR_OK) return false;
    if (cr_prepare_train_with(&r->prep, &lazy, 1, 0, sample, &r->scratch, r->expected + (size_t)place * each, box,
                              &job) != CR_OK)
        return false;
    if (!r->scan[place].bytes) return false;
    if (cr_lazy_image_open(&stored, "made.jpg", &r->scratch, &lazy) != CR_OK) return false;
    return cr_prepare_train_with(&r->prep, &lazy, 1, 0, sample, &r->scratch, r->expected + (size_t)place * each, box,
                                 NULL) == CR_OK;
}

static cr_status run(struct rig *r, int places) {
    const struct cr_jpeg_ops *ops  = r->device->backend->jpeg;
    const size_t              each = cr_prepare_bytes(&r->prep);
    const cr_status status = ops->decode(r->decoder, r->scan, places, r->data, atomic_load(&r->room.used), r->prep.size,
                                         r->prep.size, r->failed);
    atomic_store(&r->room.used, 0);
    CR_TRY(status);
    void *region;
    CR_TRY(r->device->backend->reserve(r->device, (size_t)places * each, &region));
    CR_TRY(ops->copy(r->decoder, CR_STREAM_TO_DEVICE, 0, places, region));
    CR_TRY(r->device->backend->sync(r->device));
    CR_TRY(r->device->backend->get(r->device, r->got, region, (size_t)places * each));
    r->device->backend->release(r->device, region);
    return CR_OK;
}

static int count_equal(const struct rig *r, int places) {
    const size_t each  = cr_prepare_bytes(&r->prep);
    int          equal = 0;
    for (int i = 0; i < places; i++)
        equal += r->scan[i].bytes && !r->failed[i] &&
                 !memcmp(r->got + (size_t)i * each, r->expected + (size_t)i * each, each);
    return equal;
}

TEST(made_files_have_the_cpus_pixels) {
    static const struct jpeg_form forms[] = {
        {1, 1, 90, 331, 257, .noise = true}, {2, 1, 75, 300, 200, .optimize = true},
        {1, 2, 60, 129, 190, .restart = 0},  {2, 2, 85, 401, 333, .restart = 0},
        {2, 2, 100, 640, 97, .noise = true}, {2, 2, 5, 211, 213, .optimize = true},
        {0, 0, 80, 222, 175, .restart = 0},  {0, 0, 98, 97, 301, .noise = true},
        {1, 1, 40, 17, 23, .restart = 0},    {2, 2, 95, 1500, 1001, .restart = 0},
        {2, 1, 99, 800, 601, .noise = true}, {2, 2, 50, 9, 9, .optimize = true},
        {1, 1, 97, 1023, 777, .noise = true}};
    NEED_GPU();
    OWNED(rig) r = {0};
    REQUIRE_OK(rig_open(&r, SIDE));
    for (int64_t round = 0; round < 4; round++) {
        r.prep.size = round % 2 ? SIDE - 1 : SIDE;
        int taken = 0, all = 0;
        for (int i = 0; i < BATCH; i++) {
            size_t       count;
            OWNED(bytes) bytes = make_jpeg(&forms[(size_t)i % CR_COUNT(forms)], &count);
            taken += add(&r, i, bytes, count, 1000 * round + i);
            all++;
        }
        REQUIRE_OK(run(&r, BATCH));
        CHECK_INT(count_equal(&r, BATCH), taken);
        CHECK(taken > all / 2); /* crops that are scaled down stay on the CPU */
    }
}

/* Each file is cut, or one of its bytes is changed. What the GPU accepts, the CPU accepts with the same pixels. */
TEST(damaged_files_come_back) {
    static const struct jpeg_form form = {2, 2, 85, 401, 333, .restart = 0};
    NEED_GPU();
    OWNED(rig)    r   = {0};
    struct cr_rng rng = cr_rng_make(1, CR_RNG_TEST, 0, 0);
    REQUIRE_OK(rig_open(&r, SIDE));
    for (int round = 0; round < 6; round++) {
        bool accepted[BATCH] = {false};
        for (int i = 0; i < BATCH; i++) {
            size_t       count;
            OWNED(bytes) bytes = make_jpeg(&form, &count);
            if (round % 2)
                count = count / 4 + (size_t)cr_rng_below(&rng, count / 2);
            else
                bytes[count / 4 + (size_t)cr_rng_below(&rng, count / 2)] ^= (uint8_t)(1 << cr_rng_below(&rng, 8));
            accepted[i] = add(&r, i, bytes, count, i);
        }
        REQUIRE_OK(run(&r, BATCH));
        const size_t each = cr_prepare_bytes(&r.prep);
        for (int i = 0; i < BATCH; i++)
            if (r.scan[i].bytes && !r.failed[i])
                CHECK(accepted[i] && !memcmp(r.got + (size_t)i * each, r.expected + (size_t)i * each, each));
    }
}

/* Photos of many cameras and encoders, and the time of their decoding. */
TEST(photos_have_the_cpus_pixels) {
    OWNED(rig)   r     = {0};
    OWNED(arena) arena = {0};
    const char **path;
    char         folder[PATH_MAX];
    int64_t      count, bad = 0, taken = 0, failed = 0, ns = 0, decoded = 0;
    NEED_GPU();
    if (!test_data_dir()) SKIP("CRESNET_TEST_DATA is not set");
    REQUIRE_OK(cr_path_format(folder, "%s/imagenet-sample-jpegs", test_data_dir()));
    REQUIRE_OK(rig_open(&r, 224));
    REQUIRE_OK(cr_folder_images(folder, &arena, &path, &count));
    for (int round = 0; round < 3; round++)
        for (int64_t first = 0; first < count; first += BATCH) {
            const int places = (int)CR_MIN((int64_t)BATCH, count - first);
            int       here   = 0;
            for (int i = 0; i < places; i++) {
                size_t bytes;
                REQUIRE_OK(cr_image_file_read(path[first + i], &r.scratch, &bytes));
                OWNED(bytes) copy = cr_alloc(bytes, 1);
                memcpy(copy, r.scratch.file.bytes, bytes);
                here += add(&r, i, copy, bytes, 7 * round + first + i);
            }
            const int64_t start = cr_time_ns();
            REQUIRE_OK(run(&r, places));
            ns += round ? cr_time_ns() - start : 0;
            decoded += round ? here : 0;
            for (int i = 0; i < places; i++) failed += r.scan[i].bytes && r.failed[i];
            taken += here;
            bad += here - count_equal(&r, places);
        }
    printf("    %lld photos, %lld decoded by the GPU, %lld of them failed; %.0f images/s in batches of %d\n",
           (long long)(3 * count), (long long)taken, (long long)failed, (double)decoded / ((double)ns * 1e-9), BATCH);
    CHECK_INT(failed, 0);
    CHECK_INT(bad, 0);
    CHECK(taken > count);
}
