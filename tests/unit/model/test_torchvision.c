/* tests/unit/model/test_torchvision.c: weights from torchvision give the logits of torchvision here, and a checkpoint
 * of ours loads there with strict=True. Needs python3 with torch and torchvision (Debian: python3-torchvision); skipped
 * without. The bound on a logit is computed: four times the largest difference between the float32 and the float64
 * logits of torchvision. */
#include "session/session.h"
#include "session/state.h"
#include "tests/harness/peer_support.h"

#include <unistd.h>

enum { IMAGES = 4, SIZE = 64, CLASSES = 1000 };

static bool python(const char *arguments) {
    char command[2048];
    snprintf(command, sizeof command, "/usr/bin/python3 %s/tests/tools/torchvision_peer.py %s >%s/log 2>&1",
             CR_SOURCE_DIR, arguments, folder);
    return system(command) == 0;
}

static bool have_torchvision(void) {
    static int known = -1;
    if (known < 0) {
        char arguments[512];
        snprintf(folder, sizeof folder, "%s/torchvision", CR_BINARY_DIR);
        snprintf(arguments, sizeof arguments, "mkdir -p %s && /usr/bin/python3 -c 'import torchvision' 2>/dev/null",
                 folder);
        known = system(arguments) == 0;
        snprintf(arguments, sizeof arguments, "make %s", folder);
        if (known && !python(arguments)) known = 0;
    }
    return known;
}

static cr_status open_arch(const char *name, bool train, struct cr_config *c, struct cr_session *s) {
    char arch[64];
    snprintf(arch, sizeof arch, "model.arch=%s", name);
    const char *overrides[] = {
        arch, "data.kind=synthetic", "data.image_size=64", "train.batch=4", "train.device=cpu", "model.classes=1000"};
    CR_TRY(cr_config_open(c, NULL, overrides, CR_COUNT(overrides)));
    const struct cr_session_options o = {.train = train, .eval = true, .execute = true, .classes = CLASSES};
    return cr_session_open(c, &o, s);
}

/* `ending` chooses the file of the weights. */
static void logits_from(const char *name, const char *ending) {
    static uint8_t             pixels[IMAGES * SIZE * SIZE * 3];
    static double              f32[IMAGES * CLASSES], f64[IMAGES * CLASSES];
    static float               ours[IMAGES * CLASSES];
    struct cr_config           c;
    struct cr_session          s;
    char                       path[512];
    const struct cr_step_block step = {0};
    cr_log_quiet(true);
    if (!have_torchvision()) SKIP("no python3 with torchvision");
    REQUIRE(read_file(name, "u8", pixels, sizeof pixels));
    REQUIRE(read_file(name, "f32", f32, sizeof f32));
    REQUIRE(read_file(name, "f64", f64, sizeof f64));
    REQUIRE_OK(open_arch(name, false, &c, &s));
    snprintf(path, sizeof path, "%s/%s.%s", folder, name, ending);
    REQUIRE_OK(cr_session_load_weights(&s, path, true));
    REQUIRE_OK(cr_exec_feed(s.eval_exec, pixels, NULL, NULL));
    REQUIRE_OK(cr_exec_run(s.eval_exec, &step));
    REQUIRE_OK(cr_exec_get(s.eval_exec, s.eval.logits, ours));
    double theirs = 0, got = 0;
    for (int i = 0; i < IMAGES * CLASSES; i++) {
        theirs = CR_MAX(fabs(f32[i] - f64[i]), theirs);
        got    = CR_MAX(fabs((double)ours[i] - f64[i]), got);
    }
    printf("    %s.%s: largest difference from float64: ours %.3g, torchvision float32 %.3g\n", name, ending, got,
           theirs);
    CHECK(theirs > 0 && got <= 4 * theirs);
    cr_session_close(&s);
    cr_config_close(&c);
}

static void logits_of(const char *name) {
    static const char *const endings[] = {"safetensors", "zip.pth", "stream.pth"};
    for (size_t i = 0; i < CR_COUNT(endings) && !test_skipped_; i++) logits_from(name, endings[i]);
}

static void export_of(const char *name) {
    struct cr_config   c;
    struct cr_session  s;
    struct cr_dataset *dataset;
    char               run[512], path[512], arguments[1600];
    cr_log_quiet(true);
    if (!have_torchvision()) SKIP("no python3 with torchvision");
    REQUIRE_OK(open_arch(name, true, &c, &s));
    snprintf(path, sizeof path, "%s/%s.safetensors", folder, name);
    REQUIRE_OK(cr_session_load_weights(&s, path, true));
    REQUIRE_OK(cr_dataset_open(&c, CR_SPLIT_VAL, &dataset));
    snprintf(run, sizeof run, "%s/run-%s-%d", folder, name, (int)getpid());
    REQUIRE_OK(cr_ckpt_prepare_dir(run));
    const struct cr_position at = {.step = 1, .steps_per_epoch = 1};
    REQUIRE_OK(cr_state_save(&s, &at, run, "", dataset));
    snprintf(arguments, sizeof arguments, "load %s/last/model.safetensors %s %s", run, name, path);
    CHECK(python(arguments));
    snprintf(arguments, sizeof arguments, "rm -r %s", run);
    CHECK_INT(system(arguments), 0);
    cr_dataset_close(dataset);
    cr_session_close(&s);
    cr_config_close(&c);
}

static void logits_resnet18(void) {
    logits_of("resnet18");
}
static void logits_resnet50(void) {
    logits_of("resnet50");
}
static void logits_wide_resnet50_2(void) {
    logits_of("wide_resnet50_2");
}
static void logits_resnext50_32x4d(void) {
    logits_from("resnext50_32x4d", "safetensors");
}
static void export_resnet18(void) {
    export_of("resnet18");
}
static void export_resnet50(void) {
    export_of("resnet50");
}

static void export_wide_resnet50_2(void) {
    export_of("wide_resnet50_2");
}

static void export_resnext50_32x4d(void) {
    export_of("resnext50_32x4d");
}

TESTS(CASE(logits_resnet18), CASE(logits_resnet50), CASE(logits_wide_resnet50_2), CASE(logits_resnext50_32x4d),
      CASE(export_resnet18), CASE(export_resnet50), CASE(export_wide_resnet50_2), CASE(export_resnext50_32x4d))
