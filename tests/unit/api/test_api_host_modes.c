/* tests/unit/api/test_api_host_modes.c: the locale and the floating-point modes of the host (decimal comma, rounding,
 * traps, subnormal numbers that become zero) change no result, and the host keeps them. */
#define IMAGES 4
#include "tests/harness/api_support.h"
#include "tests/harness/locale_support.h"

#include <fenv.h>
#include <inttypes.h>
#ifdef __SSE2__
#include <xmmintrin.h>
#endif

enum { SIDE = 21 };

/* All that a host can read from a model with several labels and float tensors. */
struct seen {
    float        tensor[IMAGES][API_CLASSES], file[API_CLASSES], probability[API_CLASSES];
    int          label[API_CLASSES];
    double       threshold[API_CLASSES];
    cresnet_info info;
};

/* The network of api_train, for images with several labels. */
static const char labels_ini[] =
    "[model]\narch = custom\nstem = cifar\ndepths = 1,1\nwidths = 4,6\nshortcut = B\nclasses = 3\n"
    "[data]\nkind = csv\nroot = nowhere\nmulti_label = yes\nimage_size = 8\n"
    "eval_resize = 11\nmean = 0.4861\nstd = 0.2293\n";

/* Makes the logits subnormal. */
static bool shrink(char *bytes, const char *tensor) {
    const char *at = strstr(bytes + 8, tensor); /* a text of 8 + `header` bytes; the values follow */
    uint64_t    header, begin, end;
    float       value;
    memcpy(&header, bytes, sizeof header);
    if (!at || !(at = strstr(at, "\"data_offsets\":[")) || sscanf(at + 16, "%" SCNu64 ",%" SCNu64, &begin, &end) != 2)
        return false;
    for (char *to = bytes + 8 + header + begin; to < bytes + 8 + header + end; to += sizeof value) {
        memcpy(&value, to, sizeof value);
        value *= 0x1p-130F;
        memcpy(to, &value, sizeof value);
    }
    return true;
}

/* The values are changed as another program would write them, without checksums: the key of the metadata is renamed. */
static bool drop_sum(char *bytes, const char *key) {
    char *at = strstr(bytes + 8, key);
    if (at) *at = 'x';
    return at != NULL;
}

static bool shrink_head(void) {
    char       *bytes;
    size_t      count;
    const char *path = formatted("%s/last/model.safetensors", run);
    if (cr_file_read(path, 1 << 24, &bytes, &count) != CR_OK) return false;
    const bool shrunk = shrink(bytes, "\"fc.weight\"") && shrink(bytes, "\"fc.bias\"") &&
                        drop_sum(bytes, CR_ST_TENSOR_SUMS) && drop_sum(bytes, CR_ST_HEADER_SUM) &&
                        cr_file_write_atomic(path, bytes, count) == CR_OK;
    cr_free(bytes);
    path = formatted("%s/last/checksums.txt", run);
    return shrunk && remove(path) == 0;
}

static bool have_files(void) {
    static bool ready;
    uint8_t     pixels[SIDE * SIDE * 3];
    if (ready) return true;
    if (!have_run() || !shrink_head()) return false;
    ready = true;
    for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (uint8_t)(i * i % 251);
    if (cr_image_write_png(in_folder("image.png"), pixels, SIDE, SIDE) != CR_OK) return false;
    if (cr_file_write_atomic(in_folder("labels.ini"), labels_ini, sizeof labels_ini - 1) != CR_OK) return false;
    return cr_file_write_atomic(formatted("%s/last/thresholds.txt", run), "0.25\n0.5\n0.0625\n", 16) == CR_OK;
}

static bool look(int threads, struct seen *out) {
    cresnet_options options = api_options(IMAGES);
    cresnet_error   error   = {0};
    cresnet_output  output  = api_logits(out->tensor[0]);
    const char     *file    = in_folder("image.png");
    memset(out, 0, sizeof *out);
    options.threads        = threads;
    options.f32_tensors    = 1;
    options.config         = in_folder("labels.ini");
    OWNED(api_model) model = open_run(&options);
    if (!model) return false;
    CHECK_CALL(cresnet_classify_tensor(model, &all_images, &output, &error), CRESNET_OK);
    output               = api_logits(out->file);
    output.top           = API_CLASSES;
    output.labels        = out->label;
    output.probabilities = out->probability;
    CHECK_CALL(cresnet_classify_files(model, &file, 1, &output, &error), CRESNET_OK);
    for (int c = 0; c < API_CLASSES; c++) out->threshold[c] = cresnet_threshold(model, c);
    out->info.size = sizeof out->info;
    CHECK_CALL(cresnet_get_info(model, &out->info), CRESNET_OK);
    out->info.network = out->info.weights = out->info.device = out->info.precision = NULL; /* memory of the model */
    return error.status == CRESNET_OK;
}

/* Compares with a host that has set nothing, with one thread and with several. */
static void check_same(void) {
    static struct seen want, got;
    fenv_t             host;
    char              *locale = strdup(setlocale(LC_ALL, NULL));
    fegetenv(&host);
    for (int threads = 1; threads <= 3; threads += 2) {
        (void)setlocale(LC_ALL, "C");
        fesetenv(FE_DFL_ENV);
        const bool plain = look(threads, &want);
        fesetenv(&host);
        (void)setlocale(LC_ALL, locale);
        const bool same = look(threads, &got) && memcmp(&got, &want, sizeof got) == 0;
        fesetenv(FE_DFL_ENV);
        (void)setlocale(LC_ALL, "C");
        CHECK(plain && same);
        fesetenv(&host);
        (void)setlocale(LC_ALL, locale);
    }
    uint32_t logit; /* the processor may take it for zero here */
    memcpy(&logit, want.file, sizeof logit);
    CHECK(logit << 1 != 0 && (logit & 0x7f800000) == 0);
    CHECK(want.threshold[0] == 0.25 && want.threshold[2] == 0.0625);
    CHECK(want.info.mean[0] == 0.4861F && want.info.std[2] == 0.2293F && want.label[0] >= 0);
    free(locale);
}

TEST(decimal_comma) {
    if (!have_files()) SKIP("no run");
    if (!set_comma_locale(tmp_path)) SKIP("no locale with a decimal comma, and no localedef");
    check_same();
    CHECK_STR(localeconv()->decimal_point, ",");
    (void)setlocale(LC_ALL, "C");
}

TEST(rounding) {
    static const int modes[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    if (!have_files()) SKIP("no run");
    for (size_t i = 0; i < CR_COUNT(modes); i++) {
        fesetround(modes[i]);
        check_same();
        const int after = fegetround();
        fesetround(FE_TONEAREST);
        CHECK_INT(after, modes[i]);
    }
}

TEST(traps) {
    const int all = FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW | FE_UNDERFLOW | FE_INEXACT;
    if (!have_files()) SKIP("no run");
    if (feenableexcept(all) < 0) SKIP("this processor has no floating-point traps");
    check_same();
    const int after = fegetexcept();
    fedisableexcept(all);
    CHECK_INT(after, all);
}

TEST(subnormal_numbers) {
#ifdef __SSE2__
    const unsigned before = _mm_getcsr(), zero = 0x8040; /* flush to zero, denormals are zero */
    if (!have_files()) SKIP("no run");
    _mm_setcsr(before | zero);
    check_same();
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    CHECK_INT(after & zero, zero);
#else
    SKIP("not on this processor");
#endif
}
