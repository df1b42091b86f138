/* tests/programs/test_golden_train.c: complete training runs against PyTorch in float64
 * (tests/golden/train/make*.py): ten losses, the weights after them and, if there are any, their moving averages.
 * Runs use the reference kernels and the kernels that the device chooses, fused and plain, with and without memory
 * reuse, and with freed memory poisoned; on the CPU and on the GPU (in fp32). */
#include "optim/optim.h"
#include "session/checkpoint_tensors.h"
#include "tests/harness/executor_poison.h"
#include "tests/harness/test_gpu.h"

enum { OVERRIDES = 22, STEPS = 10, BATCH = 8, SIZE = 16, CLASSES = 10 };
enum { IMAGE_BYTES_MAX = 24 * 24 * 8 }; /* four channels of 16 bits */

#define COMMON                                                                                                         \
    "model.arch=custom", "model.classes=10", "data.kind=synthetic", "data.image_size=16", "train.batch=8",             \
        "train.precision=fp32", "optim.lr=0.05", "schedule.kind=constant", "optim.weight_decay=0.01"
#define BASIC_B COMMON, "model.depths=2,1", "model.widths=6,10", "model.shortcut=B"
#define SMALL COMMON, "model.depths=1,1", "model.widths=5,7", "model.shortcut=B"
#define BOTTLENECK COMMON, "model.depths=1,2", "model.widths=4,6", "model.block=bottleneck"
#define SMOOTH "train.label_smoothing=0.1"
#define NESTEROV "optim.nesterov=yes"
#define ADAMW "optim.kind=adamw", "optim.lr=0.004", "optim.beta2=0.99", "optim.eps=1e-2", "optim.weight_decay=0.05"
#define MIXED "optim.decay_norm_bias=yes", "data.mixup=1", "data.cutmix=1", "data.erase=1"
#define TEACHER(name) "distill.teacher=" CR_SOURCE_DIR "/tests/golden/train/teacher-" name

struct golden {
    const char *name;
    const char *start; /* name of the run whose initial weights are used; NULL: its own */
    const char *overrides[OVERRIDES];
};

static const struct golden goldens[] = {
    {"basic-a", NULL, {COMMON, "model.depths=1,1,1", "model.widths=4,8,16", "model.shortcut=A", NESTEROV}},
    {"basic-b", NULL, {BASIC_B, "optim.decay_norm_bias=yes", SMOOTH}},
    {"bottleneck", NULL, {BOTTLENECK, "model.stem=imagenet", NESTEROV, SMOOTH, "train.clip_norm=0.5"}},
    {"accumulate", NULL, {SMALL, NESTEROV, "train.accumulate=3"}},
    {"excited", NULL, {BOTTLENECK, "model.stem=deep", "model.shortcut=D", "model.excitation=yes", NESTEROV, SMOOTH}},
    {"grouped",
     NULL,
     {BOTTLENECK, "model.stem=imagenet", "model.groups=2", "model.width_per_group=64", NESTEROV, SMOOTH}},
    {"blurred", NULL, {BOTTLENECK, "model.stem=imagenet", "model.blur_pool=yes", NESTEROV, SMOOTH}},
    {"blurred-basic", NULL, {SMALL, "model.blur_pool=yes", NESTEROV, SMOOTH}},
    {"attended", NULL, {BOTTLENECK, "model.stem=imagenet", "model.eca=yes", NESTEROV, SMOOTH}},
    {"adamw", "basic-b", {BASIC_B, SMOOTH, ADAMW, "ema.decay=0.7", "train.clip_norm=0.5"}},
    {"mixed", "basic-b", {BASIC_B, SMOOTH, MIXED, "ema.decay=0.7", "ema.warmup=no"}},
    {"bce", "basic-b", {BASIC_B, SMOOTH, "loss.kind=bce", ADAMW}},
    {"bce-mixed", "basic-b", {BASIC_B, SMOOTH, "loss.kind=bce", "loss.target_threshold=0.2", MIXED}},
    {"lars",
     "accumulate",
     {SMALL, NESTEROV, "train.accumulate=3", "optim.kind=lars", "optim.lr=2", "optim.trust=0.01", "ema.decay=0.8",
      "ema.warmup=no"}},
    {"lamb",
     "basic-b",
     {BASIC_B, SMOOTH, "optim.kind=lamb", "optim.lr=0.01", "optim.beta2=0.99", "optim.eps=1e-2",
      "optim.weight_decay=0.05", "ema.decay=0.7", "train.clip_norm=0.5"}},
    {"muon",
     "basic-b",
     {BASIC_B, SMOOTH, "optim.kind=muon", NESTEROV, "optim.lr=0.01", "optim.beta2=0.99", "optim.eps=1e-2",
      "optim.weight_decay=0.05", "ema.decay=0.7", "train.clip_norm=0.5"}},
    {"dropped",
     "basic-b",
     {BASIC_B, "model.stochastic_depth=0.5", "model.dropout=0.25", NESTEROV, "train.accumulate=2", "ema.decay=0.7"}},
    {"swa", "basic-b", {BASIC_B, NESTEROV, "ema.swa_start=1"}},
    {"rates-sgd",
     "basic-b",
     {BASIC_B, SMOOTH, NESTEROV, "optim.layer_decay=0.7", "optim.head_lr=0.2", "ema.decay=0.7", "train.clip_norm=0.5"}},
    {"rates-adamw",
     "basic-b",
     {BASIC_B, SMOOTH, ADAMW, "optim.layer_decay=0.6", "optim.head_lr=0.01", "ema.decay=0.7"}},
    {"distilled", "basic-b", {BASIC_B, SMOOTH, MIXED, TEACHER("basic"), "distill.weight=0.7", "distill.temperature=3"}},
    {"distilled-grouped", "accumulate", {SMALL, NESTEROV, "train.accumulate=3", TEACHER("grouped")}},
    {"grey", NULL, {BASIC_B, NESTEROV, "data.channels=1"}},
    {"deep-alpha", NULL, {BASIC_B, NESTEROV, "data.channels=4", "data.bits=16"}},
    {"resized", "basic-b", {BASIC_B, NESTEROV, "data.image_sizes=16@0,24@1"}}, /* epochs of five steps */
};

/* One step with factors of convolutions rounded to bf16. An f32 value near the middle between two numbers of bf16 may
 * be rounded to the other one than in float64, so the bound of the weights is wider; that of the loss is narrower, so
 * that a run in fp32 is outside. */
static const struct golden bf16_goldens[] = {
    {"bf16-basic", "basic-b", {BASIC_B, NESTEROV, SMOOTH, "train.precision=bf16"}},
    {"bf16-bottleneck", "bottleneck", {BOTTLENECK, "model.stem=imagenet", NESTEROV, SMOOTH, "train.precision=bf16"}},
};

/* The line of a run in losses.txt: the number of its first batch, a multiple of 10, as labels repeat then, and the
 * losses. */
static bool read_losses(const char *name, int steps, long *first_batch, double loss[STEPS]) {
    OWNED(file) f = fopen(CR_SOURCE_DIR "/tests/golden/train/losses.txt", "r");
    char        found[32];
    int         count = 0;
    while (f && fscanf(f, "%31s %ld", found, first_batch) == 2) {
        for (count = 0; count < STEPS && fscanf(f, "%lf", &loss[count]) == 1;) count++;
        if (strcmp(found, name) == 0) break;
        count = 0;
    }
    return count == steps;
}

/* ---- one run ---- */

/* Pixels and labels as in golden.py; `image_bytes` of each image. */
static void make_batch(int64_t step, int64_t image_bytes, uint8_t *pixels, int32_t *labels) {
    const uint64_t n = (uint64_t)BATCH * (uint64_t)image_bytes;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t x = (i + (uint64_t)step * n) * 6364136223846793005ull + 1442695040888963407ull;
        x ^= x >> 29;
        pixels[i] = (uint8_t)(x * 2685821657736338717ull >> 56);
    }
    for (int i = 0; i < BATCH; i++) labels[i] = (int32_t)((i * 7 + step * 3) % CLASSES);
}

/* Mixing records as in make_rules.py: a third of the images is blended with their partners, in a third a part of the
 * partner is pasted, in a third a part is erased. */
static void make_mixes(int64_t step, int32_t *mixes) {
    memset(mixes, 0, (size_t)BATCH * CR_MIX_NUMBERS * sizeof *mixes);
    for (int32_t n = 0; n < BATCH; n++, mixes += CR_MIX_NUMBERS) {
        const int32_t y = n % 5, x = 3 * n % 7, cut[4] = {y, x, y + 9, x + 6}, erase[4] = {2, 3, 7, 11};
        mixes[CR_MIX_PARTNER]      = BATCH - 1 - n;
        mixes[CR_MIX_LABEL_WEIGHT] = mixes[CR_MIX_WEIGHT] = CR_MIX_ONE;
        switch ((n + step) % 3) {
        case 0: mixes[CR_MIX_LABEL_WEIGHT] = mixes[CR_MIX_WEIGHT] = 20000 + 3000 * n; break;
        case 1:
            mixes[CR_MIX_LABEL_WEIGHT] = CR_MIX_ONE - 54 * CR_MIX_ONE / (SIZE * SIZE);
            memcpy(mixes + CR_MIX_CUT, cut, sizeof cut);
            break;
        default: memcpy(mixes + CR_MIX_ERASE, erase, sizeof erase);
        }
    }
}

struct variant {
    bool ref_only, fuse, reuse, poison, gpu, gram, threads;
    enum { FP32, BF16, FP32_INSTEAD } precision; /* FP32_INSTEAD: of a run in bf16, which is outside its bounds */
};

static cr_status one_step(struct cr_session *s, const struct cr_config *c, int64_t first_batch, int64_t step,
                          double *loss) {
    static uint8_t       pixels[BATCH * IMAGE_BYTES_MAX];
    int32_t              labels[BATCH], mixes[BATCH * CR_MIX_NUMBERS];
    int                  parts = (int)c->train.accumulate;
    struct cr_step_block block = {.lr           = (float)cr_schedule_lr(c, step, 10),
                                  .momentum     = (float)c->optim.momentum,
                                  .weight_decay = (float)c->optim.weight_decay,
                                  .clip_norm    = (float)c->train.clip_norm,
                                  .step         = step,
                                  .seed         = 1};
    *loss                      = 0;
    for (int i = 0; i < parts; i++) {
        int   which = cr_session_program_at(s, step / 5, i);
        float metrics[4];
        block.first_image = (int64_t)i * BATCH;
        make_batch(first_batch + step * parts + i, (int64_t)cr_prepare_bytes(&s->prepare_sizes[which / s->parts]),
                   pixels, labels);
        make_mixes(step, mixes);
        const struct cr_feed feed = {.images = pixels, .labels = labels, .mixes = mixes};
        CR_TRY(cr_exec_feed_batch(s->train_exec[which], &feed));
        CR_TRY(cr_exec_run(s->train_exec[which], &block));
        CR_TRY(cr_exec_get(s->train_exec[which], s->train[which].metrics, metrics));
        *loss += (double)metrics[0] / (double)metrics[1] / parts;
    }
    return CR_OK;
}

static float *read_store(struct cr_session *s, size_t buffer, const struct cr_param *q) {
    const size_t bytes = (size_t)q->elems * sizeof(float);
    float       *host  = malloc(bytes);
    char        *from  = (char *)s->memory.region[CR_REGION_STORE] + buffer + (size_t)q->offset * sizeof(float);
    if (!host || s->device->backend->get(s->device, host, from, bytes) != CR_OK) abort();
    return host;
}

/* Largest |actual - expected| over all parameters and running statistics, or their averages, relative to the largest
 * |expected| of the tensor. *farthest: the tensor's name. */
static double weight_distance(struct cr_session *s, struct cr_session *want, bool averages, const char **farthest) {
    const struct cr_param_store *store = &s->model.store;
    double                       worst = 0;
    for (int i = 0; i < store->params; i++) {
        const struct cr_param     *q       = &store->param[i];
        const bool                 running = cr_param_is_running(q->role);
        const enum cr_param_buffer buffer  = running ? CR_BUFFER_RUNNING : CR_BUFFER_VALUE,
                                   mean    = running ? CR_BUFFER_EMA_RUNNING : CR_BUFFER_EMA;
        float *a       = read_store(s, cr_param_store_buffer_offset(store, averages ? mean : buffer), q);
        float *b       = read_store(want, cr_param_store_buffer_offset(store, buffer), q);
        double largest = 0, gap = 0;
        for (int64_t k = 0; k < q->elems; k++) {
            largest = CR_MAX(fabs((double)b[k]), largest);
            gap     = CR_MAX(isfinite(a[k]) ? fabs((double)a[k] - (double)b[k]) : INFINITY, gap);
        }
        if (gap / fmax(largest, 1e-3) > worst) {
            worst     = gap / fmax(largest, 1e-3);
            *farthest = q->name;
        }
        free(a);
        free(b);
    }
    return worst;
}

/* Averages after every second step; after the last one, BN statistics of four other batches. */
static cr_status average_weights(struct cr_session *s, int64_t first_batch, int64_t step) {
    static uint8_t             pixels[BATCH * SIZE * SIZE * 3];
    int32_t                    labels[BATCH];
    const struct cr_step_block block = {.momentum = 0.9f};
    struct cr_bn_statistics    bn;
    if (step % 2 == 0) return CR_OK;
    CR_TRY(cr_state_swa_average(s, step / 2));
    if (step < STEPS - 1) return CR_OK;
    cr_status status = cr_session_bn_begin(s, true, &bn);
    for (int64_t i = 0; status == CR_OK && i < 4; i++) {
        make_batch(first_batch + 100 + i, SIZE * SIZE * 3, pixels, labels);
        status = cr_exec_feed(s->train_exec[0], pixels, labels, NULL);
        if (status == CR_OK) status = cr_exec_run(s->train_exec[0], &block);
        if (status == CR_OK) status = cr_session_bn_add(s, &bn);
    }
    if (status == CR_OK) status = cr_session_bn_end(s, &bn);
    cr_session_bn_free(&bn);
    return status;
}

/* Training does not change the teacher: its constants are on the device as they were computed. */
static bool teacher_is_unchanged(struct cr_session *s) {
    const struct cr_teacher *teacher = s->model.teacher;
    const struct cr_param    all     = {.elems = s->model.store.teacher_elems};
    if (!teacher) return true;
    float     *now  = read_store(s, cr_param_store_buffer_offset(&s->model.store, CR_BUFFER_TEACHER), &all);
    const bool same = memcmp(now, teacher->value, (size_t)all.elems * sizeof *now) == 0;
    free(now);
    return same;
}

static void train(const struct golden *g, struct variant v) {
    OWNED(config)  c = NULL;
    OWNED(session) s = {0}, want = {0};
    char           path[512];
    long           first_batch;
    double         expected[STEPS];
    int            n = 0, steps = v.precision ? 1 : STEPS;
    REQUIRE(read_losses(g->name, steps, &first_batch, expected));
    while (n < OVERRIDES && g->overrides[n]) n++;
    const char  *overrides[OVERRIDES + 7];
    const double loss_bound = v.precision ? 1e-6 : 1e-5, weight_bound = v.precision ? 1e-3 : 1e-4;
    memcpy(overrides, g->overrides, (size_t)n * sizeof *overrides);
    overrides[n++] = v.fuse ? "train.fuse=yes" : "train.fuse=no";
    overrides[n++] = v.reuse ? "memory.reuse=yes" : "memory.reuse=no";
    overrides[n++] = v.gram ? "train.gram_bn=all" : "train.gram_bn=no";
    overrides[n++] = v.gpu ? "train.device=cuda" : "train.device=cpu";
    overrides[n++] = v.threads ? "train.threads=2" : "train.threads=1";
    if (v.precision == FP32_INSTEAD) overrides[n++] = "train.precision=fp32";
    REQUIRE_OK(cr_config_open(&c, NULL, overrides, n));
    const struct cr_session_options o = {
        .train = true, .all_sizes = true, .execute = true, .ref_only = v.ref_only, .classes = CLASSES};
    REQUIRE_OK(cr_session_open(c, &o, &s));
    REQUIRE_OK(cr_session_open(c, &o, &want));
    REQUIRE_OK(cr_session_init(&s)); /* so that a value that is not loaded is detected */
    snprintf(path, sizeof path, "%s/tests/golden/train/start-%s.safetensors", CR_SOURCE_DIR,
             g->start ? g->start : g->name);
    REQUIRE_OK(cr_session_load_weights(&s, path, true));
    for (int i = 0; i < s.trains && v.poison; i++) REQUIRE_OK(cr_exec_poison(s.train_exec[i]));
    double worst = 0;
    for (int step = 0; step < steps; step++) {
        double loss;
        REQUIRE_OK(one_step(&s, c, first_batch, step, &loss));
        if (c->ema.swa_start) REQUIRE_OK(average_weights(&s, first_batch, step));
        if (v.precision != FP32_INSTEAD) CHECK_NEAR(loss, expected[step], loss_bound * expected[step]);
        worst = CR_MAX(fabs(loss / expected[step] - 1), worst);
    }
    CHECK(teacher_is_unchanged(&s));
    snprintf(path, sizeof path, "%s/tests/golden/train/end-%s.safetensors", CR_SOURCE_DIR, g->name);
    REQUIRE_OK(cr_session_load_weights(&want, path, true));
    const char  *farthest = "", *average = "";
    const double gap = weight_distance(&s, &want, false, &farthest);
    if (v.precision == FP32_INSTEAD)
        CHECK(worst > loss_bound && gap > weight_bound);
    else
        CHECK(gap <= weight_bound);
    if (s.model.store.has_ema) {
        snprintf(path, sizeof path, "%s/tests/golden/train/ema-%s.safetensors", CR_SOURCE_DIR, g->name);
        REQUIRE_OK(cr_session_load_weights(&want, path, true));
        CHECK(weight_distance(&s, &want, true, &average) <= 1e-4);
    }
    printf("    %-10s %s %s %s%s: losses within %.1e, weights within %.1e (%s)\n", g->name,
           v.gpu        ? "GPU"
           : v.ref_only ? "ref"
                        : "best",
           v.precision == BF16 ? "bf16"
           : v.gram            ? "gram"
           : v.fuse            ? "fused"
                               : "plain",
           v.reuse ? "reuse" : "apart", v.poison ? " poisoned" : "", worst, gap, farthest);
}

/* With a sanitizer, each variant has a sixth of the runs, so that each run is in one variant. */
static void all_of(struct variant v) {
    const size_t number = v.gram ? 5 : v.poison ? 4 : (v.ref_only ? 0u : 2u) + v.fuse;
    const size_t step = TEST_SANITIZED ? 6 : 1, first = TEST_SANITIZED ? number : 0;
    if (v.gpu) NEED_GPU();
    for (size_t i = first; i < CR_COUNT(goldens); i += step) train(&goldens[i], v);
}
#define VARIANT(name, ...)                                                                                             \
    TEST(name) {                                                                                                       \
        all_of((struct variant){__VA_ARGS__});                                                                         \
    }
VARIANT(ref_plain, .ref_only = true)
VARIANT(ref_fused, .ref_only = true, .fuse = true, .reuse = true)
/* BN statistics of 1x1 convolutions from Gram matrices. */
VARIANT(ref_gram, .ref_only = true, .fuse = true, .reuse = true, .gram = true)
VARIANT(best_plain, .reuse = true)
VARIANT(best_fused, .fuse = true, .reuse = true, .threads = true)
VARIANT(best_poisoned, .fuse = true, .reuse = true, .poison = true)
VARIANT(gpu_plain, .gpu = true)
VARIANT(gpu_fused, .gpu = true, .fuse = true, .reuse = true)
VARIANT(gpu_gram, .gpu = true, .fuse = true, .reuse = true, .gram = true)
VARIANT(gpu_poisoned, .gpu = true, .fuse = true, .reuse = true, .poison = true)

TEST(best_bf16) {
    if (!cr_cpu_has(CR_CPU_AMX_BF16)) SKIP("the processor has no AMX");
    for (size_t i = 0; i < CR_COUNT(bf16_goldens); i++) {
        train(&bf16_goldens[i], (struct variant){.reuse = true, .precision = BF16});
        train(&bf16_goldens[i], (struct variant){.fuse = true, .reuse = true, .threads = true, .precision = BF16});
        train(&bf16_goldens[i], (struct variant){.fuse = true, .reuse = true, .precision = FP32_INSTEAD});
    }
}
