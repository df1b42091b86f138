/* tests/unit/api/test_api_bombs.c: the library with small files that need much memory or time. Each is refused with a
 * reason, or takes at most 400 MB and 2 seconds, also when several threads decode. */
#include "data/decode.h"
#include "tests/harness/api_support.h"

#include <sys/resource.h>
#include <time.h>

#define CORPUS CR_SOURCE_DIR "/tests/fuzz/corpus/"

enum { COPIES = 4, MEGABYTES_MAX = 400 };

static const struct bomb {
    const char *path, *error; /* NULL: is decoded */
    bool        headless;     /* a WebP file of the fuzz corpus, which lacks its RIFF head */
} bombs[] = {
    {"fuzz_webp/bomb-lossless-16383", "has 16383 x 16383 = 268402689 pixels; data.max_pixels allows 178956970", true},
    {"fuzz_webp/bomb-canvas", "has 16777216 x 255 pixels; at most 32768 per side", true},
    {"fuzz_webp/bomb-lossless-6000", NULL, true},
    {"fuzz_jpeg/bomb-arithmetic-16383.jpg", "data.max_pixels allows 178956970", false},
    {"fuzz_jpeg/bomb-400-scans.jpg", "too many scans for a file of its size", false},
    {"fuzz_png/bomb-16000-zeros.png", "has 16000 x 16000 = 256000000 pixels", false},
    {"fuzz_png/bomb-9000-bits.png", NULL, false},
};

static uint8_t *read_bomb(const struct bomb *bomb, size_t *count) {
    char path[SUPPORT_PATH];
    if (!bomb->headless) return read_bytes(text_into(path, "%s%s", CORPUS, bomb->path), count);
    size_t   rest;
    uint8_t *body = read_bytes(text_into(path, "%s%s", CORPUS, bomb->path), &rest), *file = cr_alloc(rest + 12, 1);
    CR_ASSERT(body && file);
    memcpy(file, "RIFF\0\0\0\0WEBP", 12);
    file[4] = (uint8_t)(rest + 4);
    memcpy(file + 12, body, rest);
    cr_free(body);
    *count = rest + 12;
    return file;
}

static double megabytes(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)used.ru_maxrss / 1024;
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void classify(cresnet_model *model, const struct bomb *bomb) {
    float           logits[COPIES][API_CLASSES];
    cresnet_error   error, image_error[COPIES];
    cresnet_output  output = api_logits(logits[0]);
    cresnet_encoded files[COPIES];
    size_t          count;
    uint8_t        *bytes = read_bomb(bomb, &count);
    for (int i = 0; i < COPIES; i++) files[i] = (cresnet_encoded){bytes, count};
    output.image_errors = image_error;
    const double start  = cpu_seconds();
    REQUIRE_CALL(cresnet_classify_encoded(model, files, COPIES, &output, &error));
    if (!TEST_SANITIZED && (cpu_seconds() - start) / COPIES > 2)
        TEST_FAIL_("%s takes %.1f s", bomb->path, (cpu_seconds() - start) / COPIES);
    for (int i = 0; i < COPIES; i++) {
        CHECK_INT(image_error[i].status, bomb->error ? CRESNET_ERROR_FORMAT : CRESNET_OK);
        CHECK_HAS(image_error[i].text, bomb->error ? bomb->error : "");
    }
    if (!TEST_SANITIZED && megabytes() > MEGABYTES_MAX) TEST_FAIL_("%s: %.0f MB at the peak", bomb->path, megabytes());
    cr_free(bytes);
}

static void bombs_are_refused_or_small(void) {
    char            dir[SUPPORT_PATH], run[SUPPORT_PATH] = "";
    cresnet_model  *model;
    cresnet_error   error;
    cresnet_options options = api_options(COPIES);
    uint8_t         images[API_PIXELS];
    char            webp[CR_WEBP_VERSION_BYTES];
    REQUIRE(api_have_run(dir, run, images, 1));
    options.threads = COPIES; /* which decode at once */
    REQUIRE_CALL(cresnet_open(run, &options, &model, &error));
    cr_webp_version(webp);
    for (size_t i = 0; i < CR_COUNT(bombs); i++)
        if (!bombs[i].headless || strcmp(webp, "no") != 0) classify(model, &bombs[i]);
    cresnet_close(model);
    drop_folder(dir);
}

TESTS(CASE(bombs_are_refused_or_small))
