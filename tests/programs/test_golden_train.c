/* tests/programs/test_golden_train.c: complete training runs against PyTorch in float64
 * (tests/golden/train/make*.py): ten losses, the weights after them and, if there are any, their moving averages.
 * Runs use the reference kernels and the kernels that the device chooses, fused and plain, with and without memory
 * reuse, and with freed memory poisoned; on the CPU and on the GPU (in fp32). */
#include "optim/optim.h"
#include "session/session.h"
#include "session/state.h"
#include "tests/harness/executor_poison.h"
#include "tests/harness/test_gpu.h"

#include <stdlib.h>

enum { OVERRIDES = 22, STEPS = 10, BATCH = 8, SIZE = 16, CLASSES = 10 };

struct golden {
    const char *name;
    double      loss[STEPS];
    const char *overrides[OVERRIDES];
    const char *start; /* name of the run whose initial weights are used; NULL: its own */
    double      clip;
    /* Steps that are compared when the order of the sums depends on the CPU; 0: all. After them a value is so close to
     * a step of ReLU or of max pooling that rounding decides on which side it lies. */
    int steps_any_order;
};

#define COMMON                                                                                                         \
    "model.arch=custom", "model.classes=10", "data.kind=synthetic", "data.image_size=16", "train.batch=8",             \
        "train.precision=fp32", "optim.lr=0.05", "schedule.kind=constant", "optim.weight_decay=0.01"

#define TEACHER(name) "distill.teacher=" CR_SOURCE_DIR "/tests/golden/train/teacher-" name

static const struct golden goldens[] = {
    {"basic-a",
     {2.45633062292, 2.51497986551, 2.2833972614, 2.28973939484, 2.40930763294, 2.31787515509, 2.39025386761,
      2.39935210811, 2.39558604705, 2.43952907649},
     {COMMON, "model.depths=1,1,1", "model.widths=4,8,16", "model.shortcut=A", "optim.nesterov=yes"},
     NULL,
     0,
     0},
    {"basic-b",
     {2.36034015612, 2.33102284169, 2.29614389691, 2.3137394084, 2.3597224364, 2.30412918337, 2.32979085799,
      2.34271620463, 2.34403230939, 2.33704090511},
     {COMMON, "model.depths=2,1", "model.widths=6,10", "model.shortcut=B", "optim.decay_norm_bias=yes",
      "train.label_smoothing=0.1"},
     NULL,
     0,
     0},
    {"bottleneck",
     {2.34149966353, 2.4435490881, 2.49418473698, 2.24122727209, 2.37493252342, 2.2433217987, 2.26326980922,
      2.21667031894, 2.36980800879, 2.35547818168},
     {COMMON, "model.depths=1,2", "model.widths=4,6", "model.block=bottleneck", "model.stem=imagenet",
      "optim.nesterov=yes", "train.label_smoothing=0.1"},
     NULL,
     0.5,
     0},
    {"accumulate",
     {2.3331584516, 2.37620484583, 2.35420058959, 2.30444712513, 2.3070899102, 2.33467934318, 2.33376451049,
      2.30472388081, 2.32766491163, 2.3083939824},
     {COMMON, "model.depths=1,1", "model.widths=5,7", "model.shortcut=B", "optim.nesterov=yes", "train.accumulate=3"},
     NULL,
     0,
     0},
    {"excited",
     {2.3672328436, 2.46791745652, 2.43817793831, 2.32258279002, 2.31640856941, 2.2833672222, 2.4637164817,
      2.42959660549, 2.32164769348, 2.34205076949},
     {COMMON, "model.depths=1,2", "model.widths=4,6", "model.block=bottleneck", "model.stem=deep", "model.shortcut=D",
      "model.excitation=yes", "optim.nesterov=yes", "train.label_smoothing=0.1"},
     NULL,
     0,
     8},
    {"grouped",
     {2.36985281301, 2.53221833494, 2.28037920224, 2.44907288636, 2.46326426021, 2.34922697109, 2.48882007674,
      2.42034839148, 2.60123626902, 2.39976141104},
     {COMMON, "model.depths=1,2", "model.widths=4,6", "model.block=bottleneck", "model.stem=imagenet", "model.groups=2",
      "model.width_per_group=64", "optim.nesterov=yes", "train.label_smoothing=0.1"},
     NULL,
     0,
     0},
    {"blurred",
     {2.41369440416, 2.45633228316, 2.34177936141, 2.49369273467, 2.81357531557, 2.5720659813, 2.59948826321,
      2.47061941332, 2.34700062572, 2.51788423783},
     {COMMON, "model.depths=1,2", "model.widths=4,6", "model.block=bottleneck", "model.stem=imagenet",
      "model.blur_pool=yes", "optim.nesterov=yes", "train.label_smoothing=0.1"},
     NULL,
     0,
     0},
    {"blurred-basic",
     {2.45299026559, 2.44247595341, 2.32926683858, 2.29767113107, 2.3527421742, 2.33718744106, 2.30500978464,
      2.34553767474, 2.31945980018, 2.30600124073},
     {COMMON, "model.depths=1,1", "model.widths=5,7", "model.shortcut=B", "model.blur_pool=yes", "optim.nesterov=yes",
      "train.label_smoothing=0.1"},
     NULL,
     0,
     0},
    {"attended",
     {2.30998479039, 2.41008932837, 2.42517339164, 2.40789432371, 2.42431437114, 2.28792665103, 2.45296894233,
      2.35745145339, 2.4993331659, 2.30904975664},
     {COMMON, "model.depths=1,2", "model.widths=4,6", "model.block=bottleneck", "model.stem=imagenet", "model.eca=yes",
      "optim.nesterov=yes", "train.label_smoothing=0.1"},
     NULL,
     0,
     0},
    {"adamw",
     {2.36034015612, 2.3305606721, 2.29497935199, 2.3137523084, 2.36373591079, 2.30208230619, 2.32004461695,
      2.35083655906, 2.35687330814, 2.33470366249},
     {COMMON, "model.depths=2,1", "model.widths=6,10", "model.shortcut=B", "train.label_smoothing=0.1",
      "optim.kind=adamw", "optim.lr=0.004", "optim.beta2=0.99", "optim.eps=1e-2", "optim.weight_decay=0.05",
      "ema.decay=0.7"},
     "basic-b",
     0.5,
     0},
    {"mixed",
     {2.30165109768, 2.37457754836, 2.28084863885, 2.2735962452, 2.38615061229, 2.31474332468, 2.3290819864,
      2.33611365892, 2.33743245964, 2.33665795908},
     {COMMON, "model.depths=2,1", "model.widths=6,10", "model.shortcut=B", "train.label_smoothing=0.1",
      "optim.decay_norm_bias=yes", "ema.decay=0.7", "ema.warmup=no", "data.mixup=1", "data.cutmix=1", "data.erase=1"},
     "basic-b",
     0,
     0},
    {"bce",
     {0.685483389131, 0.67169067874, 0.658229813562, 0.654073941948, 0.649914338308, 0.635048058481, 0.629227281379,
      0.627486471983, 0.621812857731, 0.609836815631},
     {COMMON, "model.depths=2,1", "model.widths=6,10", "model.shortcut=B", "train.label_smoothing=0.1", "loss.kind=bce",
      "optim.kind=adamw", "optim.lr=0.004", "optim.beta2=0.99", "optim.eps=1e-2", "optim.weight_decay=0.05"},
     "basic-b",
     0,
     0},
    {"bce-mixed",
     {0.673427812765, 0.675021121762, 0.663255535082, 0.654649961979, 0.659201770599, 0.64037614167, 0.628589648072,
      0.625677840088, 0.60606224384, 0.593866586968},
     {COMMON, "model.depths=2,1", "model.widths=6,10", "model.shortcut=B", "train.label_smoothing=0.1", "loss.kind=bce",
      "loss.target_threshold=0.2", "optim.decay_norm_bias=yes", "data.mixup=1", "data.cutmix=1", "data.erase=1"},
     "basic-b",
     0,
     0},
    {"lars",
     {2.3331584516, 2.37917442987, 2.37746784253, 2.32967308151, 2.33489937004, 2.312418612, 2.36272602171,
      2.34146853095, 2.33430935396, 2.3314020316},
     {COMMON, "model.depths=1,1", "model.widths=5,7", "model.shortcut=B", "optim.nesterov=yes", "train.accumulate=3",
      "optim.kind=lars", "optim.lr=2", "optim.trust=0.01", "ema.decay=0.8", "ema.warmup=no"},
     "accumulate",
     0,
     0},
    {"lamb",
     {2.36034015612, 2.33017064265, 2.2973431859, 2.31774482605, 2.36648213497, 2.29992507139, 2.32718635309,
      2.34427603165, 2.35313724024, 2.33094952857},
     {COMMON, "model.depths=2,1", "model.widths=6,10", "model.shortcut=B", "train.label_smoothing=0.1",
      "optim.kind=lamb", "optim.lr=0.01", "optim.beta2=0.99", "optim.eps=1e-2", "optim.weight_decay=0.05",
      "ema.decay=0.7"},
     "basic-b",
     0.5,
     0},
    {"dropped",
     {2.35630045615, 2.35044562106, 2.27360042217, 2.28300311669, 2.23578590382, 2.38914591133, 2.33253907367,
      2.4430136832, 2.34624236199, 2.33265676955},
     {COMMON, "model.depths=2,1", "model.widths=6,10", "model.shortcut=B", "model.stochastic_depth=0.5",
      "model.dropout=0.25", "optim.nesterov=yes", "train.accumulate=2", "ema.decay=0.7"},
     "basic-b",
     0,
     0},
    {"swa",
     {2.36346434525, 2.32887857016, 2.29225444926, 2.31368104875, 2.36132040185, 2.31357068724, 2.34117931551,
      2.33984649208, 2.35118575182, 2.34727540327},
     {COMMON, "model.depths=2,1", "model.widths=6,10", "model.shortcut=B", "optim.nesterov=yes", "ema.swa_start=1"},
     "basic-b",
     0,
     0},
    {"rates-sgd",
     {2.36034015612, 2.32629201475, 2.2982519074, 2.32524856917, 2.36094975379, 2.30929953872, 2.34826494834,
      2.33527190978, 2.33266761339, 2.34037410365},
     {COMMON, "model.depths=2,1", "model.widths=6,10", "model.shortcut=B", "train.label_smoothing=0.1",
      "optim.nesterov=yes", "optim.layer_decay=0.7", "optim.head_lr=0.2", "ema.decay=0.7"},
     "basic-b",
     0.5,
     0},
    {"rates-adamw",
     {2.36034015612, 2.32889921884, 2.30045809969, 2.32289689292, 2.367933242, 2.29892185088, 2.33025083037,
      2.34623149219, 2.34959310489, 2.327762284},
     {COMMON, "model.depths=2,1", "model.widths=6,10", "model.shortcut=B", "train.label_smoothing=0.1",
      "optim.kind=adamw", "optim.lr=0.004", "optim.beta2=0.99", "optim.eps=1e-2", "optim.weight_decay=0.05",
      "optim.layer_decay=0.6", "optim.head_lr=0.01", "ema.decay=0.7"},
     "basic-b",
     0,
     0},
    {"distilled",
     {1.42920335017, 1.40777286583, 1.31761807636, 1.25570786539, 1.22155788803, 1.1571285408, 1.11497515016,
      1.07421885854, 1.03260461335, 0.991789054241},
     {COMMON, "model.depths=2,1", "model.widths=6,10", "model.shortcut=B", "train.label_smoothing=0.1",
      "optim.decay_norm_bias=yes", "data.mixup=1", "data.cutmix=1", "data.erase=1", TEACHER("basic"),
      "distill.weight=0.7", "distill.temperature=3", "distill.features=0.25"},
     "basic-b",
     0,
     0},
    {"distilled-grouped",
     {1.20175054502, 1.22077668989, 1.20635168115, 1.17775133701, 1.17716878909, 1.18949011773, 1.18025903245,
      1.16645063223, 1.17743486739, 1.16442409886},
     {COMMON, "model.depths=1,1", "model.widths=5,7", "model.shortcut=B", "optim.nesterov=yes", "train.accumulate=3",
      TEACHER("grouped")},
     "accumulate",
     0,
     0},
    {"grey",
     {2.40263430192, 2.30578353793, 2.37404528475, 2.46216952725, 2.33533411897, 2.32799208114, 2.37974843144,
      2.33947200728, 2.32926255798, 2.34858202797},
     {COMMON, "model.depths=2,1", "model.widths=6,10", "model.shortcut=B", "optim.nesterov=yes", "data.channels=1"},
     NULL,
     0,
     0},
    {"deep-alpha",
     {2.3188694348, 2.33930824713, 2.40095210961, 2.42017963744, 2.47511220066, 2.42543681089, 2.37387525418,
      2.32258888701, 2.29872375103, 2.2901250073},
     {COMMON, "model.depths=2,1", "model.widths=6,10", "model.shortcut=B", "optim.nesterov=yes", "data.channels=4",
      "data.bits=16"},
     NULL,
     0,
     0},
    {"resized", /* epochs of five steps */
     {2.36346434525, 2.32887857016, 2.29225444926, 2.31368104875, 2.36132040185, 2.32025635561, 2.32429680616,
      2.36759909984, 2.37304930057, 2.34537248966},
     {COMMON, "model.depths=2,1", "model.widths=6,10", "model.shortcut=B", "optim.nesterov=yes",
      "data.image_sizes=16@0,24@1"},
     "basic-b",
     0,
     0},
};

enum { IMAGE_BYTES_MAX = 24 * 24 * 8 }; /* four channels of 16 bits */

/* Pixels and labels as in make.py; `image_bytes` of each image. */
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
};

static cr_status one_step(struct cr_session *s, const struct cr_config *c, int64_t step, double *loss) {
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
        int   which = cr_session_program_at(s, step / 5) + (parts == 1 || i == 0 ? 0 : i == parts - 1 ? 2 : 1);
        float metrics[4];
        block.first_image = (int64_t)i * BATCH;
        make_batch(step * parts + i, (int64_t)cr_prepare_bytes(&s->prepare_sizes[which / s->parts]), pixels, labels);
        make_mixes(step, mixes);
        CR_TRY(cr_exec_feed_mixed(s->train_exec[which], pixels, labels, NULL, mixes));
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
 * |expected| of the tensor. */
static double weight_distance(struct cr_session *s, struct cr_session *want, bool averages) {
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
            gap     = CR_MAX(fabs((double)a[k] - (double)b[k]), gap);
        }
        worst = CR_MAX(gap / fmax(largest, 1e-3), worst);
        free(a);
        free(b);
    }
    return worst;
}

/* Averages after every second step; after the last one, BN statistics of four other batches. */
static cr_status average_weights(struct cr_session *s, int64_t step) {
    static uint8_t             pixels[BATCH * SIZE * SIZE * 3];
    int32_t                    labels[BATCH];
    const struct cr_step_block block = {.momentum = 0.9f};
    struct cr_bn_statistics    bn;
    if (step % 2 == 0) return CR_OK;
    CR_TRY(cr_state_swa_average(s, step / 2));
    if (step < STEPS - 1) return CR_OK;
    cr_status status = cr_session_bn_begin(s, true, &bn);
    for (int64_t i = 0; status == CR_OK && i < 4; i++) {
        make_batch(100 + i, SIZE * SIZE * 3, pixels, labels);
        status = cr_exec_feed_mixed(s->train_exec[0], pixels, labels, NULL, NULL);
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
    struct cr_config  c;
    struct cr_session s, want;
    char              path[512], clip[64];
    int               n = 0;
    while (n < OVERRIDES && g->overrides[n]) n++;
    const char *overrides[OVERRIDES + 7];
    memcpy(overrides, g->overrides, (size_t)n * sizeof *overrides);
    overrides[n++] = v.fuse ? "train.fuse=yes" : "train.fuse=no";
    overrides[n++] = v.reuse ? "memory.reuse=yes" : "memory.reuse=no";
    overrides[n++] = v.gram ? "train.gram_bn=all" : "train.gram_bn=no";
    snprintf(clip, sizeof clip, "train.clip_norm=%g", g->clip);
    overrides[n++] = clip;
    overrides[n++] = v.gpu ? "train.device=cuda" : "train.device=cpu";
    overrides[n++] = v.threads ? "train.threads=2" : "train.threads=1";
    REQUIRE_OK(cr_config_open(&c, NULL, overrides, n));
    const struct cr_session_options o = {
        .train = true, .all_sizes = true, .execute = true, .ref_only = v.ref_only, .classes = CLASSES};
    REQUIRE_OK(cr_session_open(&c, &o, &s));
    REQUIRE_OK(cr_session_open(&c, &o, &want));
    REQUIRE_OK(cr_session_init(&s)); /* so that a value that is not loaded is detected */
    snprintf(path, sizeof path, "%s/tests/golden/train/start-%s.safetensors", CR_SOURCE_DIR,
             g->start ? g->start : g->name);
    REQUIRE_OK(cr_session_load_weights(&s, path, true));
    for (int i = 0; i < s.trains && v.poison; i++) REQUIRE_OK(cr_exec_poison(s.train_exec[i]));
    double     worst = 0;
    const bool whole = v.ref_only || v.gpu || !g->steps_any_order;
    const int  steps = whole ? STEPS : g->steps_any_order;
    for (int step = 0; step < steps; step++) {
        double loss;
        REQUIRE_OK(one_step(&s, &c, step, &loss));
        if (c.ema.swa_start) REQUIRE_OK(average_weights(&s, step));
        CHECK_NEAR(loss, g->loss[step], 1e-5 * g->loss[step]);
        worst = CR_MAX(fabs(loss / g->loss[step] - 1), worst);
    }
    CHECK(teacher_is_unchanged(&s));
    snprintf(path, sizeof path, "%s/tests/golden/train/end-%s.safetensors", CR_SOURCE_DIR, g->name);
    REQUIRE_OK(cr_session_load_weights(&want, path, true));
    double gap = weight_distance(&s, &want, false);
    CHECK(gap <= 1e-4 || !whole);
    if (s.model.store.has_ema && whole) {
        snprintf(path, sizeof path, "%s/tests/golden/train/ema-%s.safetensors", CR_SOURCE_DIR, g->name);
        REQUIRE_OK(cr_session_load_weights(&want, path, true));
        CHECK(weight_distance(&s, &want, true) <= 1e-4);
    }
    printf("    %-10s %s %s %s%s: losses within %.1e, weights within %.1e\n", g->name,
           v.gpu        ? "GPU"
           : v.ref_only ? "ref"
                        : "best",
           v.gram   ? "gram"
           : v.fuse ? "fused"
                    : "plain",
           v.reuse ? "reuse" : "apart", v.poison ? " poisoned" : "", worst, gap);
    cr_session_close(&s);
    cr_session_close(&want);
    cr_config_close(&c);
}

/* With a sanitizer, each variant has a third of the runs, so that two variants have each run. */
static void all_of(struct variant v) {
    const size_t step = TEST_SANITIZED ? 3 : 1, first = step > 1 ? (size_t)(v.fuse + v.poison + v.gram) % step : 0;
    cr_log_quiet(true);
    for (size_t i = first; i < CR_COUNT(goldens); i += step) train(&goldens[i], v);
    CHECK_INT(cr_alloc_live(), 0);
}
static void ref_plain(void) {
    all_of((struct variant){.ref_only = true});
}
static void ref_fused(void) {
    all_of((struct variant){.ref_only = true, .fuse = true, .reuse = true});
}
static void best_plain(void) {
    all_of((struct variant){.reuse = true});
}
static void best_fused(void) {
    all_of((struct variant){.fuse = true, .reuse = true, .threads = true});
}
static void best_poisoned(void) {
    all_of((struct variant){.fuse = true, .reuse = true, .poison = true});
}
/* BN statistics of 1x1 convolutions from Gram matrices. */
static void ref_gram(void) {
    all_of((struct variant){.ref_only = true, .fuse = true, .reuse = true, .gram = true});
}
static void gpu_all_of(struct variant v) {
    NEED_GPU();
    v.gpu = true;
    all_of(v);
}
static void gpu_plain(void) {
    gpu_all_of((struct variant){.reuse = false});
}
static void gpu_fused(void) {
    gpu_all_of((struct variant){.fuse = true, .reuse = true});
}
static void gpu_gram(void) {
    gpu_all_of((struct variant){.fuse = true, .reuse = true, .gram = true});
}
static void gpu_poisoned(void) {
    gpu_all_of((struct variant){.fuse = true, .reuse = true, .poison = true});
}

TESTS(CASE(ref_plain), CASE(ref_fused), CASE(ref_gram), CASE(best_plain), CASE(best_fused), CASE(best_poisoned),
      CASE(gpu_plain), CASE(gpu_fused), CASE(gpu_gram), CASE(gpu_poisoned))
