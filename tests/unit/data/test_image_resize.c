/* tests/unit/data/test_image_resize.c: resizing at every level, and preparation of samples against torchvision
 * (tests/golden/data/make.py). Resizing against PIL: test_image_formats.c. */
#include "tests/harness/data_support.h"
#include "tests/harness/guard_pages.h"
#include "tests/harness/image_support.h"
#include "tests/unit/data/simde/image_resize_simde.h"

#include "data/resize.h"
#include "data/source.h"

/* Parts, also the last one, mirrored parts, boxes at every edge, reductions and enlargements of an image of w x h RGB
 * pixels, whose bytes are also taken as grey pixels and as pixels with alpha. */
static struct cr_resize random_job(struct cr_rng *rng, int k, int w, int h) {
    static const enum cr_pixel_format formats[] = {CR_RGB8, CR_GREY8, CR_RGBA8};
    struct cr_resize                  job       = {.src_h = h, .format = formats[k / 4 % 3]};
    const size_t                      pixel     = cr_format_bytes(job.format);
    job.src_w = w  = w * 3 / (int)pixel;
    job.src_stride = (size_t)w * pixel;
    job.x          = cr_rng_real(rng) * w * 0.5;
    job.y          = cr_rng_real(rng) * h * 0.5;
    job.w          = (w - job.x) * (0.3 + 0.7 * cr_rng_real(rng));
    job.h          = (h - job.y) * (0.3 + 0.7 * cr_rng_real(rng));
    if (k % 3 == 0) job.x = job.y = 0, job.w = w, job.h = h;
    job.full_w = 1 + (int)cr_rng_below(rng, 250);
    job.full_h = 1 + (int)cr_rng_below(rng, 250);
    if (k % 5 == 4) job.full_w = 1 + w / (1 + k / 5 % 7); /* about the strongest reductions of the kernels */
    job.part_w     = 1 + (int)cr_rng_below(rng, (uint64_t)job.full_w);
    job.part_h     = 1 + (int)cr_rng_below(rng, (uint64_t)job.full_h);
    job.part_x     = k % 4 ? (int)cr_rng_below(rng, (uint64_t)(job.full_w - job.part_w) + 1) : job.full_w - job.part_w;
    job.part_y     = k % 4 ? (int)cr_rng_below(rng, (uint64_t)(job.full_h - job.part_h) + 1) : job.full_h - job.part_h;
    job.flip       = k % 2;
    job.dst_stride = (size_t)job.part_w * pixel;
    return job;
}

/* Runs the jobs with `run` at each of these levels; all results are those of cr_resize_run at the baseline. */
static void check_levels(int jobs, cr_status (*run)(const struct cr_resize *job, struct cr_buffer *tables),
                         int levels) {
    const enum cr_cpu_level used   = cr_cpu_level();
    struct cr_rng           rng    = cr_rng_make(8, CR_RNG_TEST, 0, 0);
    struct cr_buffer        tables = {0};
    for (int k = 0; k < jobs; k++) {
        int              w = 2 + (int)cr_rng_below(&rng, 300), h = 1 + (int)cr_rng_below(&rng, 200);
        OWNED(image)     image = make_image(w, h);
        struct cr_resize job   = random_job(&rng, k, w, h);
        const size_t     bytes = job.dst_stride * (size_t)job.part_h;
        OWNED(guarded)   want = guard_alloc(bytes, GUARD_AFTER), got = guard_alloc(bytes, GUARD_AFTER);
        OWNED(guarded)   src = guard_copy(image.rgb, job.src_stride * (size_t)h, GUARD_AFTER);
        job.src = src.bytes, job.dst = want.bytes;
        CHECK(cr_cpu_set_level(CR_CPU_BASELINE));
        CHECK_STATUS(cr_resize_run(&job, &tables), CR_OK);
        job.dst = got.bytes;
        for (int level = 0; level < levels; level++) {
            CHECK(cr_cpu_set_level((enum cr_cpu_level)level));
            memset(got.bytes, 0xa5, bytes);
            CHECK_STATUS(run(&job, &tables), CR_OK);
            if (memcmp(want.bytes, got.bytes, bytes))
                TEST_FAIL_("level %d, %d channels: %d x %d to %d x %d, part %d %d %d %d: other bits", level,
                           cr_format_channels(job.format), job.src_w, h, job.full_w, job.full_h, job.part_x, job.part_y,
                           job.part_w, job.part_h);
        }
    }
    CHECK(cr_cpu_set_level(used));
    cr_free(tables.bytes);
}

TEST(levels_are_bitwise_identical) {
    check_levels(600, cr_resize_run, (int)cr_cpu_level() + 1);
}

TEST(the_avx512_source_is_bitwise_identical_through_simde) {
    if (!image_resize_has_simde()) SKIP("libsimde-dev is not installed, or this is not x86-64");
    check_levels(TEST_SANITIZED ? 30 : 100, simde_resize_run, 1);
}

TEST(evaluation_matches_torchvision) {
    OWNED(file) table = fopen(GOLDEN "eval.txt", "r");
    REQUIRE(table);
    int                w, h, short_side, crop, seen = 0;
    unsigned long long want;
    while (fscanf(table, "%d %d %d %d %llx", &w, &h, &short_side, &crop, &want) == 5) {
        struct cr_image   image = make_image(w, h);
        struct cr_prepare prep  = {.size = crop, .eval_resize = short_side};
        uint8_t          *out   = cr_alloc((size_t)crop * crop, 3);
        memset(out, 0xaa, (size_t)crop * crop * 3);
        CHECK_STATUS(cr_prepare_eval(&prep, &image, out), CR_OK);
        if (sum_bytes(out, (size_t)crop * crop * 3) != want)
            TEST_FAIL_("%d x %d, short side %d, crop %d: other pixels than torchvision's", w, h, short_side, crop);
        cr_image_free(&image);
        cr_free(out);
        seen++;
    }
    CHECK_INT(seen, 17);
}

/* A training image as the network input. */
static cr_status train_image(const struct cr_prepare *prep, const struct cr_image *image, uint64_t seed, int64_t epoch,
                             int64_t sample, uint8_t *out) {
    int32_t  box[4];
    uint8_t *whole = cr_alloc((size_t)prep->size * prep->size, 3);
    if (!whole) return CR_NO_MEMORY(1);
    cr_status status = prepare_train(prep, image, seed, epoch, sample, whole, box);
    if (status == CR_OK) {
        const int most = prep->crop == CR_CROP_PAD ? prep->pad : 0;
        CHECK(abs(box[0]) <= most && abs(box[1]) <= most && (box[2] == 0 || box[2] == 1) && box[3] == 0);
        apply_box(whole, prep->size, box, out);
    }
    cr_free(whole);
    return status;
}

/* A random crop is the box that is drawn, cut out and resized; the device mirrors half of them. */
TEST(random_crops_are_resized_boxes) {
    enum { SIZE = 24, DRAWS = 64 };
    const struct cr_prepare prep = {
        .size = SIZE, .crop = CR_CROP_RANDOM_RESIZED, .scale = {0.08, 1}, .ratio = {3.0 / 4, 4.0 / 3}, .hflip = 0.5};
    OWNED(image) image = make_image(45, 37);
    int          flips = 0;
    for (int s = 0; s < DRAWS; s++) {
        uint8_t       got[SIZE * SIZE * 3], want[SIZE * SIZE * 3], rgb[45 * 37 * 3];
        int32_t       box[4];
        int           at[4];
        struct cr_rng rng = cr_rng_make(21, CR_RNG_AUGMENT, (uint64_t)s, 1);
        cr_prepare_draw_box(&prep, image.width, image.height, &rng, at);
        for (int y = 0; y < at[3]; y++)
            memcpy(rgb + y * at[2] * 3, image.rgb + ((at[1] + y) * image.width + at[0]) * 3, (size_t)at[2] * 3);
        const struct cr_image part = {at[2], at[3], rgb, CR_RGB8};
        REQUIRE_OK(cr_image_resize(&part, 0, 0, at[2], at[3], want, SIZE, SIZE, false));
        REQUIRE_OK(prepare_train(&prep, &image, 21, 1, s, got, box));
        CHECK(memcmp(got, want, sizeof got) == 0 && !box[0] && !box[1]);
        flips += box[2];
    }
    CHECK_NEAR(flips, DRAWS / 2.0, 20);
}

/* A pad crop has one of (2 pad + 1)^2 positions, mirrored or not; all of them are about equally frequent. */
TEST(pad_crops_are_uniform) {
    enum { SIZE = 12, PAD = 2, PLACES = 2 * PAD + 1, DRAWS = 20000 };
    OWNED(image)      image = make_image(SIZE, SIZE);
    struct cr_prepare prep  = {.size = SIZE, .crop = CR_CROP_PAD, .pad = PAD, .hflip = 0.5};
    uint8_t           out[SIZE * SIZE * 3], want[PLACES * PLACES * 2][SIZE * SIZE * 3];
    int               times[PLACES * PLACES * 2] = {0};
    for (int k = 0; k < PLACES * PLACES * 2; k++)
        for (int y = 0; y < SIZE; y++)
            for (int x = 0; x < SIZE; x++) {
                int  from_x = (k % 2 ? SIZE - 1 - x : x) + k / 2 % PLACES - PAD, from_y = y + k / 2 / PLACES - PAD;
                bool inside = from_x >= 0 && from_x < SIZE && from_y >= 0 && from_y < SIZE;
                for (int c = 0; c < 3; c++)
                    want[k][(y * SIZE + x) * 3 + c] = inside ? image.rgb[(from_y * SIZE + from_x) * 3 + c] : 0;
            }
    for (int s = 0; s < DRAWS; s++) {
        REQUIRE_OK(train_image(&prep, &image, 5, s % 7, s, out));
        int k = 0;
        while (k < PLACES * PLACES * 2 && memcmp(out, want[k], sizeof out)) k++;
        REQUIRE(k < PLACES * PLACES * 2);
        times[k]++;
    }
    for (int k = 0; k < PLACES * PLACES * 2; k++) CHECK_NEAR(times[k], DRAWS / 50.0, 6 * sqrt(DRAWS / 50.0));
}

/* Boxes lie inside, have an allowed area and aspect (except for rounding), and their mean area is the middle of the
 * range. */
TEST(random_boxes_have_their_distribution) {
    struct cr_prepare prep = {.scale = {0.08, 1.0}, .ratio = {3.0 / 4, 4.0 / 3}};
    const int         w = 400, h = 300, draws = 20000;
    double            areas = 0, wide = 0;
    struct cr_rng     rng = cr_rng_make(3, CR_RNG_TEST, 0, 0);
    for (int i = 0; i < draws; i++) {
        int box[4];
        cr_prepare_draw_box(&prep, w, h, &rng, box);
        REQUIRE(box[0] >= 0 && box[1] >= 0 && box[2] > 0 && box[3] > 0 && box[0] + box[2] <= w && box[1] + box[3] <= h);
        double area = (double)box[2] * box[3] / (w * h), aspect = (double)box[2] / box[3];
        REQUIRE(area > 0.079 && area < 1.001 && aspect > 0.74 && aspect < 1.35);
        areas += area;
        wide += aspect > 1;
    }
    /* torchvision: RandomResizedCrop.get_params, 100,000 random crops of a 400 x 300 image: mean area 0.4341, wide
     * 0.5782. */
    CHECK_NEAR(areas / draws, 0.4341, 0.008);
    CHECK_NEAR(wide / draws, 0.5782, 0.015);
}

/* A box that cannot fit falls back to the centre, with the aspect cut to the range: values from the rule of
 * torchvision. */
TEST(extreme_images_fall_back_to_the_centre) {
    struct cr_prepare prep = {.scale = {0.9, 1.0}, .ratio = {3.0 / 4, 4.0 / 3}};
    struct cr_rng     rng  = cr_rng_make(3, CR_RNG_TEST, 1, 0);
    int               box[4];
    cr_prepare_draw_box(&prep, 1000, 10, &rng, box);
    CHECK(box[0] == 493 && box[1] == 0 && box[2] == 13 && box[3] == 10);
    cr_prepare_draw_box(&prep, 10, 1000, &rng, box);
    CHECK(box[0] == 0 && box[1] == 493 && box[2] == 10 && box[3] == 13);
    cr_prepare_draw_box(&prep, 1, 1, &rng, box);
    CHECK(box[0] == 0 && box[1] == 0 && box[2] == 1 && box[3] == 1);
}

static void check_prepare(struct cr_prepare want, enum cr_split split, const char *const *overrides) {
    OWNED(config)     config = NULL;
    struct cr_prepare prep;
    REQUIRE_OK(make_config_(&config, overrides));
    REQUIRE_OK(cr_prepare_from_config(config, split, &prep));
    if (prep.size != want.size || prep.eval_resize != want.eval_resize || prep.crop != want.crop)
        TEST_FAIL_("%s, %s: size %d, eval_resize %d, crop %d", overrides[0], overrides[1], prep.size, prep.eval_resize,
                   prep.crop);
}
#define CHECK_PREPARE(s, r, c, split, ...)                                                                             \
    check_prepare((struct cr_prepare){.size = s, .eval_resize = r, .crop = c}, split,                                  \
                  (const char *const[]){__VA_ARGS__, "data.root=x", NULL})

TEST(sizes_follow_from_the_config) {
    CHECK_PREPARE(32, 0, CR_CROP_PAD, CR_SPLIT_TRAIN, "data.kind=cifar10", "model.arch=resnet20");
    CHECK_PREPARE(32, 0, CR_CROP_NONE, CR_SPLIT_VAL, "data.kind=cifar10", "model.arch=resnet20");
    CHECK_PREPARE(32, 0, CR_CROP_PAD, CR_SPLIT_TRAIN, "data.kind=shapes", "model.arch=resnet18");
    CHECK_PREPARE(224, 256, CR_CROP_RANDOM_RESIZED, CR_SPLIT_TRAIN, "data.kind=folder", "model.arch=resnet50");
    CHECK_PREPARE(224, 256, CR_CROP_NONE, CR_SPLIT_VAL, "data.kind=folder", "model.arch=resnet50");
    CHECK_PREPARE(160, 182, CR_CROP_NONE, CR_SPLIT_VAL, "data.kind=folder", "model.arch=resnet50",
                  "data.image_size=160");
    CHECK_PREPARE(288, 329, CR_CROP_NONE, CR_SPLIT_VAL, "data.kind=folder", "model.arch=resnet50",
                  "data.eval_crop=288");
    CHECK_PREPARE(224, 232, CR_CROP_NONE, CR_SPLIT_VAL, "data.kind=folder", "model.arch=resnet50",
                  "data.eval_resize=232");
    CHECK_PREPARE(32, 0, CR_CROP_RANDOM_RESIZED, CR_SPLIT_TRAIN, "data.kind=folder", "model.arch=resnet20");
    CHECK_PREPARE(224, 0, CR_CROP_NONE, CR_SPLIT_TRAIN, "data.kind=synthetic", "model.arch=resnet50");
}
