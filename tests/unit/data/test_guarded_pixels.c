/* tests/unit/data/test_guarded_pixels.c: readers and writers of pixels and encoded bytes, at every level, with buffers
 * that end at a page without access or begin after one. All levels and both sides give the same bytes. */
#include "core/checksum/crc32c.h"
#include "tests/harness/data_support.h"
#include "tests/harness/guard_pages.h"
#include "tests/harness/image_support.h"

#include <sys/wait.h>

/* The result for each input at the first level and side. Every other level and side must give the same bytes. */
enum { RESULTS = 4096 };
static uint64_t first_result[RESULTS];

static void check_same(enum cr_cpu_level level, enum guard_side side, int at, const void *bytes, size_t count) {
    const uint64_t sum = sum_bytes(bytes, count);
    CR_ASSERT(at < RESULTS);
    if (level == CR_CPU_BASELINE && side == GUARD_AFTER)
        first_result[at] = sum;
    else if (sum != first_result[at])
        TEST_FAIL_("input %d, %s, %s the guard: other bytes than at the baseline", at, cr_cpu_level_name(level),
                   side == GUARD_AFTER ? "before" : "after");
}

/* Random bytes between guards. */
static struct guarded noise(struct cr_rng *rng, size_t count, enum guard_side side) {
    struct guarded g = guard_alloc(count, side);
    for (size_t i = 0; i < count; i++) g.bytes[i] = (uint8_t)cr_rng_u32(rng);
    return g;
}

TEST(guards_refuse_accesses) {
    for (int side = GUARD_AFTER; side < GUARD_SIDES; side++) {
        OWNED(guarded)          g      = guard_alloc(5, (enum guard_side)side);
        const volatile uint8_t *beyond = side == GUARD_AFTER ? g.bytes + g.count : g.bytes - 1;
        int                     status = 0;
        const pid_t             child  = fork();
        if (child == 0) {
            (void)!freopen("/dev/null", "w", stderr); /* the sanitizer's report */
            _exit(*beyond & 0);
        }
        REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
        CHECK(TEST_SANITIZED || WIFSIGNALED(status)); /* a sanitizer exits with a code of its own */
        CHECK(status != 0);
    }
}

static void draw_resize(struct cr_rng *rng, struct cr_resize *job, int k) {
    const int w = job->src_w, h = job->src_h;
    job->x = k % 3 ? cr_rng_real(rng) * w * 0.5 : 0;
    job->y = k % 3 ? cr_rng_real(rng) * h * 0.5 : 0;
    job->w = k % 3 == 2 ? (w - job->x) * (0.3 + 0.7 * cr_rng_real(rng)) : w - job->x; /* else up to the last byte */
    job->h = k % 3 == 2 ? (h - job->y) * (0.3 + 0.7 * cr_rng_real(rng)) : h - job->y;
    job->full_w = 1 + (int)cr_rng_below(rng, 90);
    job->full_h = k % 5 ? 1 + (int)cr_rng_below(rng, 90) : h; /* an axis that may be copied */
    job->part_w = 1 + (int)cr_rng_below(rng, (uint64_t)job->full_w);
    job->part_h = 1 + (int)cr_rng_below(rng, (uint64_t)job->full_h);
    job->part_x = k % 2 ? job->full_w - job->part_w : 0;
    job->part_y = k % 2 ? job->full_h - job->part_h : 0;
    job->flip   = k % 4 == 1;
}

static void resize_at(enum cr_cpu_level level) {
    static const enum cr_pixel_format formats[] = {CR_RGB8, CR_GREY8, CR_RGBA8, CR_RGB16, CR_GREY16, CR_RGBA16};
    struct cr_buffer                  tables    = {0};
    for (int k = 0; k < (TEST_SANITIZED ? 120 : 600); k++) {
        const enum cr_pixel_format format = formats[k % 6];
        for (int side = GUARD_AFTER; side < GUARD_SIDES; side++) {
            struct cr_rng    rng = cr_rng_make(8, CR_RNG_TEST, (uint64_t)k, 1);
            struct cr_resize job = {.format = format};
            job.src_w            = 1 + (int)cr_rng_below(&rng, 100);
            job.src_h            = 1 + (int)cr_rng_below(&rng, 60);
            job.src_stride       = (size_t)job.src_w * cr_format_bytes(format);
            draw_resize(&rng, &job, k);
            job.dst_stride      = (size_t)job.part_w * cr_format_bytes(format);
            OWNED(guarded) from = noise(&rng, job.src_stride * (size_t)job.src_h, (enum guard_side)side);
            OWNED(guarded) to   = guard_alloc(job.dst_stride * (size_t)job.part_h, (enum guard_side)side);
            job.src = from.bytes, job.dst = to.bytes;
            CHECK_STATUS(cr_resize_run(&job, &tables), CR_OK);
            check_same(level, (enum guard_side)side, k, to.bytes, to.count);
        }
    }
    cr_free(tables.bytes);
}
TEST(resizing_stays_inside) {
    at_every_level(resize_at);
}

/* ---- evaluation and training images, from pixels as packed raw images and the library give them ---- */

static const struct cr_prepare preparations[] = {
    {.size = 16, .eval_resize = 20},
    {.size = 16, .eval_resize = 0, .crop = CR_CROP_PAD, .pad = 3, .hflip = 0.5},
    {.size = 24, .width = 16, .eval_resize = 24, .tta = CR_TTA_NONE},
    {.size        = 16,
     .eval_resize = 16,
     .crop        = CR_CROP_RANDOM_RESIZED,
     .scale       = {0.1, 1},
     .ratio       = {0.7, 1.4},
     .hflip       = 0.5},
    {.size        = 16,
     .eval_resize = 16,
     .crop        = CR_CROP_RANDOM_RESIZED,
     .scale       = {0.3, 1},
     .ratio       = {0.7, 1.4},
     .augment     = CR_AUGMENT_TRIVIAL},
    {.size  = 24,
     .width = 16,
     .fit   = CR_FIT_LETTERBOX,
     .crop  = CR_CROP_RANDOM_RESIZED,
     .scale = {0.1, 1},
     .ratio = {0.7, 1.4}},
    {.size = 16, .fit = CR_FIT_SQUASH, .crop = CR_CROP_RANDOM_RESIZED, .scale = {0.1, 1}, .ratio = {0.7, 1.4}},
};

static void prepare_one(enum cr_cpu_level level, enum guard_side side, int k) {
    struct cr_rng          rng     = cr_rng_make(9, CR_RNG_TEST, (uint64_t)k, 2);
    struct cr_prepare      prep    = preparations[k % (int)CR_COUNT(preparations)];
    const int              fixed   = prep.crop == CR_CROP_PAD ? prep.size : 0;
    const int              w       = fixed ? fixed : 1 + (int)cr_rng_below(&rng, 70);
    const int              h       = fixed ? fixed : 1 + (int)cr_rng_below(&rng, 70);
    const size_t           bytes   = (size_t)(w * h) * 3;
    OWNED(guarded)         pixels  = noise(&rng, bytes, side);
    OWNED(guarded)         out     = guard_alloc(cr_prepare_bytes(&prep), side);
    OWNED(scratch)         scratch = {0};
    int32_t                box[4];
    const struct cr_stored stored = {.format = CR_RGB8, .pixels = {w, h, pixels.bytes, CR_RGB8}};
    struct cr_lazy_image   lazy;
    CHECK_STATUS(cr_lazy_image_open(&stored, "pixels", &scratch, &lazy), CR_OK);
    CHECK_STATUS(cr_prepare_eval_with(&prep, &lazy, &scratch, out.bytes), CR_OK);
    check_same(level, side, 2 * k, out.bytes, out.count);
    if (prep.crop != CR_CROP_NONE && prep.crop != CR_CROP_AUTO)
        CHECK_STATUS(cr_prepare_train_with(&prep, &lazy, 1, 2, k, &scratch, out.bytes, box, NULL), CR_OK);
    check_same(level, side, 2 * k + 1, out.bytes, out.count);
}

static void prepare_at(enum cr_cpu_level level) {
    for (int k = 0; k < (TEST_SANITIZED ? 100 : 500); k++)
        for (int side = GUARD_AFTER; side < GUARD_SIDES; side++) prepare_one(level, (enum guard_side)side, k);
}
TEST(preparation_stays_inside) {
    at_every_level(prepare_at);
}

static void operations_at(enum cr_cpu_level level) {
    for (int k = 0; k < 16 * 40; k++)
        for (int side = GUARD_AFTER; side < GUARD_SIDES; side++) {
            struct cr_rng          rng      = cr_rng_make(10, CR_RNG_TEST, (uint64_t)k, 3);
            const int              channels = k / 16 % 2 ? 1 : 3;
            const int              w = 1 + (int)cr_rng_below(&rng, 50), h = 1 + (int)cr_rng_below(&rng, 20);
            OWNED(guarded)         rgb  = noise(&rng, (size_t)(w * h * channels), (enum guard_side)side);
            OWNED(guarded)         copy = guard_alloc(rgb.count, (enum guard_side)side);
            const struct cr_pixels p    = {rgb.bytes, copy.bytes, w, h, {1, 2, 3}, channels};
            cr_pixels_apply((enum cr_pixel_op)(k % 16), cr_rng_real(&rng), &p);
            check_same(level, (enum guard_side)side, k, rgb.bytes, rgb.count);
        }
}
TEST(operations_on_pixels_stay_inside) {
    at_every_level(operations_at);
}

static const char *const files[] = {
    "rgb.jpg",  "l.jpg", "l-progressive.jpg", "cmyk.jpg",           "1.png", "palette4.png",
    "la16.png", "l.png", "lossy.webp",        "alpha-lossless.webp"};

/* Whole, and cut off at 40 places: an error or pixels, the same at every level. */
static void decode_file(enum cr_cpu_level level, enum guard_side side, int file) {
    size_t       count;
    OWNED(bytes) bytes = read_bytes(in_golden(files[file]), &count);
    REQUIRE(bytes);
    for (int cut = 0; cut <= 40; cut++) {
        OWNED(guarded)  part   = guard_copy(bytes, count - count * (size_t)cut / 41, side);
        OWNED(image)    image  = {0};
        const cr_status status = image_decode(part.bytes, part.count, "file", &image);
        if (cut == 0 && status != CR_OK && !strstr(cr_error_message(), "libwebp"))
            TEST_FAIL_("%s: %s", files[file], cr_error_message());
        check_same(level, side, file * 41 + cut, status == CR_OK ? (const void *)image.rgb : "",
                   (size_t)(image.width * image.height) * cr_format_bytes(image.format));
    }
}

static void decode_at(enum cr_cpu_level level) {
    for (int file = 0; file < (int)CR_COUNT(files); file++)
        for (int side = GUARD_AFTER; side < GUARD_SIDES; side++) decode_file(level, (enum guard_side)side, file);
}
TEST(decoders_stay_inside) {
    at_every_level(decode_at);
}

/* One bit after the other, from the definition. */
static uint32_t crc_by_bits(const uint8_t *bytes, size_t count) {
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static void checksums_at(enum cr_cpu_level level) {
    struct cr_rng rng = cr_rng_make(11, CR_RNG_TEST, 0, 0);
    for (size_t count = 0; count < 7000; count += count < 150 ? 1 : 487)
        for (int side = GUARD_AFTER; side < GUARD_SIDES; side++) {
            OWNED(guarded) g    = noise(&rng, count, (enum guard_side)side);
            const uint32_t want = crc_by_bits(g.bytes, count);
            if (cr_crc32c(0, g.bytes, count) != want || cr_crc32c_plain(0, g.bytes, count) != want ||
                cr_crc32c(cr_crc32c(0, g.bytes, count / 2), g.bytes + count / 2, count - count / 2) != want)
                TEST_FAIL_("%zu bytes, %s: another CRC-32C", count, cr_cpu_level_name(level));
        }
}
TEST(checksums_are_right_and_stay_inside) {
    at_every_level(checksums_at);
}
