/* tests/unit/model/test_onnx.c: the ONNX files of ResNet-18, ResNet-50 and a published CIFAR ResNet-20 give the same
 * logits in onnxruntime as here and in PyTorch, with unfolded and folded batch normalisation. Needs onnxruntime
 * (tools/peers.py), python3 with torchvision (Debian: python3-torchvision), and CRESNET_TEST_DATA for the CIFAR
 * network; skipped without. The bound on a logit is computed: four times the largest difference between the float32 and
 * the float64 logits of PyTorch. */
#include "model/onnx.h"
#include "session/session.h"
#include "session/state.h"
#include "tests/harness/failing_alloc.h"
#include "tests/harness/peer_support.h"

#include <unistd.h>

enum { IMAGES = 4, CLASSES_MAX = 1000 };

struct net {
    const char *name;
    int         size, classes;
};

static char runtime[512];

static bool shell(const char *fmt, ...) CR_PRINTF(1, 2);
static bool shell(const char *fmt, ...) {
    char    command[2048];
    va_list list;
    va_start(list, fmt);
    vsnprintf(command, sizeof command, fmt, list);
    va_end(list);
    return system(command) == 0;
}

/* An interpreter with onnxruntime; "" when there is none. */
static void find_runtime(void) {
    char  command[700];
    FILE *out;
    snprintf(
        command, sizeof command,
        "cd %s/tests/tools && python3 -c 'import peers; print(peers.interpreter(\"onnxruntime\", \"numpy\") or \"\")'",
        CR_SOURCE_DIR);
    out = popen(command, "r");
    if (!out) return;
    if (!fgets(runtime, sizeof runtime, out)) *runtime = 0;
    runtime[strcspn(runtime, "\n")] = 0;
    pclose(out);
}

/* The reason why no comparison is possible; NULL: it is possible. */
static const char *lacks(bool cifar) {
    static int torch = -1;
    if (torch < 0) {
        const char *data = test_data_dir();
        snprintf(folder, sizeof folder, "%s/onnx", CR_BINARY_DIR);
        find_runtime();
        torch = *runtime && shell("mkdir -p %s && /usr/bin/python3 -c 'import torchvision' 2>/dev/null", folder) &&
                shell("/usr/bin/python3 %s/tests/tools/onnx_peer.py truth %s %s%s >%s/log 2>&1", CR_SOURCE_DIR, folder,
                      data ? data : "", data ? "/resnet-cifar10-weights/resnet20-cifar10.safetensors" : "", folder);
    }
    if (!*runtime) return "no python3 with onnxruntime (scripts/deps.sh: need_peers)";
    if (!torch) return "no python3 with torchvision";
    return cifar && !test_data_dir() ? "no CRESNET_TEST_DATA" : NULL;
}

static cr_status open_net(const struct net *net, const struct cr_config **c, struct cr_session *s) {
    char arch[64], size[64], path[512];
    snprintf(arch, sizeof arch, "model.arch=%s", net->name);
    snprintf(size, sizeof size, "data.image_size=%d", net->size);
    snprintf(path, sizeof path, "%s/%s.safetensors", folder, net->name);
    const char *overrides[] = {arch, size, "data.kind=synthetic", "train.batch=4", "train.device=cpu"};
    CR_TRY(cr_config_open(c, NULL, overrides, CR_COUNT(overrides)));
    const struct cr_session_options o = {.eval = true, .execute = true, .classes = net->classes};
    CR_TRY(cr_session_open(*c, &o, s));
    return cr_session_load_weights(s, path, true);
}

static cr_status write_onnx(struct cr_session *s, bool fold, const char *path) {
    struct cr_program eval;
    float            *value, *running;
    CR_TRY(cr_model_program(&s->model, s->config, CR_PROGRAM_EVAL, 1, &eval));
    CR_TRY(cr_state_buffer_copy(s, CR_BUFFER_VALUE, &value));
    CR_TRY(cr_state_buffer_copy(s, CR_BUFFER_RUNNING, &running));
    const struct cr_onnx_network network = {
        .eval = &eval, .value = value, .running = running, .classes = s->model.classes, .fold = fold};
    cr_status status = cr_onnx_write(&network, path);
    cr_program_free(&eval);
    cr_free(value);
    cr_free(running);
    return status;
}

static double distance(const float *a, const double *truth, int count) {
    double most = 0;
    for (int i = 0; i < count; i++) most = CR_MAX(isnan(a[i]) ? INFINITY : fabs((double)a[i] - truth[i]), most);
    return most;
}

static void compare(const struct net *net) {
    static uint8_t             pixels[IMAGES * 64 * 64 * 3];
    static double              f32[IMAGES * CLASSES_MAX], f64[IMAGES * CLASSES_MAX];
    static float               ours[IMAGES * CLASSES_MAX], theirs[IMAGES * CLASSES_MAX];
    const struct cr_config    *c;
    struct cr_session          s;
    const struct cr_step_block step  = {0};
    const int                  count = IMAGES * net->classes;
    const char                *why   = lacks(net->classes == 10);
    double                     bound = 0;
    char                       path[512];
    cr_log_quiet(true);
    if (why) SKIP(why);
    REQUIRE(read_file(net->name, "u8", pixels, (size_t)(IMAGES * net->size * net->size * 3)));
    REQUIRE(read_file(net->name, "f32", f32, (size_t)count * sizeof *f32));
    REQUIRE(read_file(net->name, "f64", f64, (size_t)count * sizeof *f64));
    REQUIRE_OK(open_net(net, &c, &s));
    REQUIRE_OK(cr_exec_feed(s.eval_exec, pixels, NULL, NULL));
    REQUIRE_OK(cr_exec_run(s.eval_exec, &step));
    REQUIRE_OK(cr_exec_get(s.eval_exec, s.eval.logits, ours));
    for (int i = 0; i < count; i++) bound = CR_MAX(4 * fabs(f32[i] - f64[i]), bound);
    CHECK(bound > 0 && distance(ours, f64, count) <= bound);
    printf("    %s: bound %.3g, ours %.3g", net->name, bound, distance(ours, f64, count));
    for (int fold = 0; fold < 2; fold++) {
        snprintf(path, sizeof path, "%s/%s-%d.onnx", folder, net->name, fold);
        REQUIRE_OK(write_onnx(&s, fold, path));
        REQUIRE(
            shell("%s %s/tests/tools/onnx_peer.py run %s %s/%s.u8 %d %s/%s.out >%s/log 2>&1 || { cat %s/log; false; }",
                  runtime, CR_SOURCE_DIR, path, folder, net->name, net->size, folder, net->name, folder, folder));
        REQUIRE(read_file(net->name, "out", theirs, (size_t)count * sizeof *theirs));
        printf(", onnxruntime %s%.3g", fold ? "folded " : "", distance(theirs, f64, count));
        CHECK(distance(theirs, f64, count) <= bound);
        unlink(path);
    }
    printf("\n");
    cr_session_close(&s);
    cr_config_close(c);
}

static void resnet18(void) {
    compare(&(struct net){"resnet18", 64, 1000});
}
static void resnet50(void) {
    compare(&(struct net){"resnet50", 64, 1000});
}
static void cifar_resnet20(void) {
    compare(&(struct net){"resnet20", 32, 10});
}

/* Any allocation may fail: no file, no leak. */
static void failing_allocations(void) {
    static const char *const        overrides[] = {"model.arch=custom", "model.depths=1,1",  "model.widths=4,8",
                                                   "model.stem=cifar",  "model.block=basic", "data.kind=synthetic",
                                                   "data.image_size=8", "train.batch=2",     "train.device=cpu"};
    const struct cr_config         *c;
    struct cr_session               s;
    struct cr_program               eval;
    float                          *value, *running;
    char                            path[256];
    const struct cr_session_options o = {.eval = true, .execute = true, .classes = 3};
    cr_log_quiet(true);
    snprintf(path, sizeof path, "/tmp/cresnet-onnx-%d", (int)getpid());
    REQUIRE_OK(cr_config_open(&c, NULL, overrides, CR_COUNT(overrides)));
    REQUIRE_OK(cr_session_open(c, &o, &s));
    REQUIRE_OK(cr_session_init(&s));
    REQUIRE_OK(cr_model_program(&s.model, c, CR_PROGRAM_EVAL, 1, &eval));
    REQUIRE_OK(cr_state_buffer_copy(&s, CR_BUFFER_VALUE, &value));
    REQUIRE_OK(cr_state_buffer_copy(&s, CR_BUFFER_RUNNING, &running));
    const char *const            names[] = {"a\"b", "\xc3\xa4", "c"};
    const struct cr_onnx_network network = {
        .eval = &eval, .value = value, .running = running, .class_names = names, .classes = 3, .fold = true};
    for_each_failing_alloc(f, .least = 20) {
        failing_alloc_begin(&f);
        const cr_status status = cr_onnx_write(&network, path);
        failing_alloc_end(&f, status);
        CHECK((access(path, F_OK) == 0) == (status == CR_OK));
    }
    unlink(path);
    cr_free(value);
    cr_free(running);
    cr_program_free(&eval);
    cr_session_close(&s);
    cr_config_close(c);
}

TESTS(CASE(resnet18), CASE(resnet50), CASE(cifar_resnet20), CASE(failing_allocations))
