/* tests/unit/config/test_config_text.c: the config as text: the dump reads back to the same values; differences, help,
 * shipped configs, locales, and failing allocations. */
#include "tests/harness/config_support.h"

#include "config/keys.h"
#include "core/rng.h"
#include "tests/harness/failing_alloc.h"
#include "tests/harness/locale_support.h"

#include <inttypes.h>

/* ---- random configs, through the tables only ---- */

static double random_real(struct cr_rng *rng, double low, double high) {
    switch (cr_rng_below(rng, 4)) {
    case 0: return low;
    case 1: return high;
    case 2: return low + (high - low) * cr_rng_real(rng); /* all 53 bits */
    default: {
        double small = ldexp(cr_rng_real(rng), -(int)cr_rng_below(rng, 1020));
        return small >= low && small <= high ? small : low;
    }
    }
}

static int64_t random_int(struct cr_rng *rng, int64_t low, int64_t high) {
    if (cr_rng_below(rng, 4) == 0) return cr_rng_below(rng, 2) ? low : high;
    return low + (int64_t)cr_rng_below(rng, (uint64_t)(high - low) + (high - low < INT64_MAX));
}

/* Random text of the characters that have a meaning in INI files; text that no line can hold is drawn again. */
static const char *random_text(struct cr_rng *rng, struct cr_arena *arena) {
    static const char letters[] = "ab;#\"'=[]\\ \t%,:/.\xc3\xbc";
    for (;;) {
        size_t      length = (size_t)cr_rng_below(rng, cr_rng_below(rng, 20) ? 9 : 900);
        char       *text   = cr_arena_alloc(arena, length + 1);
        const char *why;
        if (!text) return "";
        for (size_t i = 0; i < length; i++) text[i] = letters[cr_rng_below(rng, sizeof letters - 1)];
        if (cr_ini_can_hold(text, &why)) return text;
    }
}

static void randomise(struct cr_rng *rng, const struct cr_key *key, struct cr_arena *arena, struct cr_config *config) {
    void *field = (char *)config + key->offset;
    switch (key->kind) {
    case CR_KEY_AUTO:
        *(int64_t *)field = cr_rng_below(rng, 4) == 0 ? 0 : random_int(rng, key->int_min, key->int_max);
        break;
    case CR_KEY_INT: *(int64_t *)field = random_int(rng, key->int_min, key->int_max); break;
    case CR_KEY_REAL: *(double *)field = random_real(rng, key->real_min, key->real_max); break;
    case CR_KEY_BOOL: *(bool *)field = cr_rng_below(rng, 2); break;
    case CR_KEY_TEXT: *(const char **)field = random_text(rng, arena); break;
    case CR_KEY_ENUM: {
        int value = (int)cr_rng_below(rng, (uint64_t)key->words.count);
        memcpy(field, &value, sizeof value);
        break;
    }
    case CR_KEY_INTS: {
        struct cr_ints *list = field;
        *list                = (struct cr_ints){.count = (int)cr_rng_below(rng, 33)};
        for (int i = 0; i < list->count; i++) list->at[i] = random_int(rng, key->int_min, key->int_max);
        break;
    }
    case CR_KEY_REALS: {
        struct cr_reals *list = field;
        *list                 = (struct cr_reals){.count = (int)cr_rng_below(rng, 33)};
        for (int i = 0; i < list->count; i++) list->at[i] = random_real(rng, key->real_min, key->real_max);
        break;
    }
    }
}

/* Replaces values that rules between keys forbid. */
static void make_allowed(struct cr_rng *rng, struct cr_config *c) {
    if (c->model.arch == CR_ARCH_CUSTOM) {
        c->model.depths.count = c->model.widths.count = 1 + (int)cr_rng_below(rng, 32);
        for (int i = 0; i < 32; i++) {
            bool used             = i < c->model.depths.count;
            c->model.depths.at[i] = used ? random_int(rng, 1, 1000) : 0;
            c->model.widths.at[i] = used ? random_int(rng, 1, 65536) : 0;
        }
    } else {
        c->model.depths = c->model.widths = (struct cr_ints){0};
        c->model.block                    = CR_BLOCK_AUTO;
    }
    c->model.freeze    = cr_rng_below(rng, 2) ? "" : "layer2,fc";
    c->ema.swa_start   = c->ema.decay > 0 || c->model.bn_momentum == 0 || c->quant.type != CR_QUANT_NONE ? 0 : 3;
    c->model.eca       = c->model.eca && !c->model.excitation;
    c->memory.limit    = cr_rng_below(rng, 2) ? "none" : "8GiB";
    c->memory.card     = cr_rng_below(rng, 2) ? "" : "24GB";
    c->prune.block     = cr_rng_below(rng, 2) ? "8" : "64x32";
    c->data.channels   = (const int64_t[]){1, 3, 4}[cr_rng_below(rng, 3)];
    c->data.bits       = cr_rng_below(rng, 2) ? 8 : 16;
    c->data.mean.count = c->data.std.count = (int)c->data.channels;
    const bool colours                     = c->data.channels < 4 && c->data.bits == 8;
    if (!colours) c->data.augment = CR_AUGMENT_NONE;
    c->data.scale       = (struct cr_reals){2, {random_real(rng, 0.0001, 0.5), random_real(rng, 0.5, 1)}};
    c->data.erase_scale = (struct cr_reals){2, {random_real(rng, 0.0001, 0.5), random_real(rng, 0.5, 1)}};
    c->data.jitter = (struct cr_reals){colours && cr_rng_below(rng, 2) ? 4 : 0, {0.4, 1, 0, random_real(rng, 0, 0.5)}};
    if (!c->data.jitter.count) c->data.jitter = (struct cr_reals){0};
    c->data.ratio     = (struct cr_reals){2, {random_real(rng, 0.01, 1), random_real(rng, 1, 100)}};
    c->data.eval_crop = CR_MIN(c->data.eval_crop, c->data.eval_resize);
    if (c->data.kind != CR_DATA_SHAPES && c->data.kind != CR_DATA_SYNTHETIC) {
        c->data.train_images = c->data.val_images = 0;
        if (!*c->data.root) c->data.root = "x";
    }
    for (int i = 0; i < 32; i++) c->data.mean.at[i] = c->data.std.at[i] = 0;
    for (int i = 0; i < c->data.mean.count; i++) {
        c->data.mean.at[i] = random_real(rng, -10, 10);
        c->data.std.at[i]  = random_real(rng, 1e-6, 100);
    }
    const bool several  = !c->data.image_width && !*c->distill.teacher && cr_rng_below(rng, 2);
    c->data.image_sizes = several ? "128@0,160@6" : "";
    if (c->data.kind != CR_DATA_CSV) c->data.multi_label = false;
    if (c->data.multi_label) {
        c->data.sampling = CR_SAMPLING_SHUFFLE;
        c->train.best    = cr_rng_below(rng, 2) ? CR_BEST_MAP : CR_BEST_LOSS;
        c->loss.kind     = cr_rng_below(rng, 2) ? CR_LOSS_BCE : CR_LOSS_AUTO;
    } else if (c->train.best == CR_BEST_MAP)
        c->train.best = CR_BEST_TOP5;
    if (!cr_config_is_binary(c)) c->loss.target_threshold = 0;
    if (c->data.sampling == CR_SAMPLING_BALANCED) c->data.repeats = 1;
    if (!c->data.image_size || c->data.eval_crop) c->data.image_width = 0;
    if (c->prune.pattern == CR_PRUNE_PATTERN_2_4) c->prune.sparsity = CR_MIN(c->prune.sparsity, 0.5);
    if (c->prune.pattern == CR_PRUNE_PATTERN_CHANNELS) {
        c->prune.sparsity = 0;
        c->prune.budget   = "";
    }
    c->prune.initial = CR_MIN(c->prune.initial, c->prune.sparsity);
    c->prune.end     = CR_MAX(c->prune.start, c->prune.end);
    if (c->prune.schedule == CR_PRUNE_SCHEDULE_RIGL && c->prune.pattern != CR_PRUNE_PATTERN_UNSTRUCTURED)
        c->prune.schedule = CR_PRUNE_SCHEDULE_ACDC;
    if (c->prune.schedule != CR_PRUNE_SCHEDULE_GRADUAL) {
        c->prune.initial       = 0;
        c->prune.start         = random_real(rng, 0, 1000);
        c->prune.end           = random_real(rng, 2000, 3000);
        c->prune.sparse_epochs = random_real(rng, 0.01, 400);
        c->prune.dense_epochs  = random_real(rng, 0.01, 400);
        if (c->prune.scope == CR_PRUNE_SCOPE_GLOBAL) c->prune.scope = CR_PRUNE_SCOPE_ERK;
    }
    if (cr_config_prunes(c) || c->prune.importance == CR_PRUNE_IMPORTANCE_TAYLOR) c->prune.group_decay = 0;
    if (!*c->prune.budget) c->prune.column = "";
    c->optim.nesterov =
        c->optim.nesterov && c->optim.momentum > 0 && c->optim.kind != CR_OPTIM_ADAMW && c->optim.kind != CR_OPTIM_LAMB;
    c->model.unfreeze = (struct cr_ints){0};
    if (*c->model.freeze && c->train.batch)
        c->model.unfreeze = (struct cr_ints){2, {random_int(rng, 0, 1000), random_int(rng, 0, 1000)}};
    if (c->optim.lr == 0) c->optim.head_lr = 0;
    if (c->train.eval_every == 0) c->train.patience = 0;
    if (c->schedule.kind == CR_SCHEDULE_ONE_CYCLE) c->schedule.warmup_epochs = 0;
    if (c->ranks.transport == CR_TRANSPORT_PEER) c->ranks.reduce = CR_REDUCE_FP32;
    c->schedule.low_momentum =
        c->schedule.kind == CR_SCHEDULE_ONE_CYCLE ? CR_MIN(c->schedule.low_momentum, c->optim.momentum) : 0;
    c->schedule.min_lr           = CR_MIN(c->schedule.min_lr, c->optim.lr);
    c->train.on_event            = ""; /* is not written */
    c->schedule.milestones.count = 1 + (int)cr_rng_below(rng, 32);
    for (int i = 0; i < c->schedule.milestones.count; i++) c->schedule.milestones.at[i] = i + cr_rng_real(rng) / 2;
}

static void dump_reads_back(void) {
    for (uint64_t round = 0; round < 400; round++) {
        struct cr_rng           rng = cr_rng_make(round, CR_RNG_TEST, 1, 0);
        const struct cr_config *defaults, *again;
        struct cr_config        config;
        struct cr_arena         arena = {0};
        struct cr_text          dump = {0}, second = {0};
        REQUIRE_OK(cr_config_open(&defaults, NULL, NULL, 0));
        config = *defaults;
        for (int i = 0; i < cr_key_count; i++)
            if (round < 100 || cr_rng_below(&rng, 3)) randomise(&rng, &cr_keys[i], &arena, &config);
        make_allowed(&rng, &config);
        cr_config_dump(&config, &dump);
        REQUIRE(!dump.failed);
        REQUIRE_OK(cr_config_open(&again, file_text("c.ini", dump.data), NULL, 0));
        struct cr_config_differences differ;
        REQUIRE_OK(cr_config_compare(&config, again, &differ));
        CHECK_INT(differ.count, 0);
        for (int i = 0; i < differ.count; i++) printf("    %s\n", differ.at[i].text);
        CHECK_INT(again->train.seed, config.train.seed); /* not through the tables */
        CHECK(again->optim.lr == config.optim.lr && again->data.std.at[2] == config.data.std.at[2]);
        CHECK_STR(again->data.root, config.data.root);
        cr_config_dump(again, &second);
        CHECK_STR(second.data, dump.data);
        cr_config_close(defaults);
        cr_arena_free(&arena);
        cr_config_differences_free(&differ);
        cr_config_close(again);
        cr_text_free(&dump);
        cr_text_free(&second);
    }
}

static void dump_is_plain(void) {
    static const char *const overrides[] = {"optim.lr=0.30000000000000004",   "data.root= /a;b",
                                            "train.seed=9223372036854775807", "optim.weight_decay=5e-4",
                                            "model.bn_eps=0.000001",          "schedule.milestones=100,150.5"};
    static const char *const lines[]     = {"[model]\narch = resnet20\n",   "\nlr = 0.30000000000000004\n",
                                            "\nroot = \"/a;b\"\n",          "\nseed = 9223372036854775807\n",
                                            "\nweight_decay = 0.0005\n",    "\nbn_eps = 1e-06\n",
                                            "\nmilestones = 100,150.5\n",   "\ndepths =\n",
                                            "\nmean = 0.485,0.456,0.406\n", "\nratio = 0.75,1.3333333333333333\n",
                                            "\n\n[memory]\nreuse = yes\n"};
    const struct cr_config  *config;
    struct cr_text           dump = {0};
    REQUIRE_OK(cr_config_open(&config, NULL, overrides, (int)CR_COUNT(overrides)));
    cr_config_dump(config, &dump);
    for (size_t i = 0; i < CR_COUNT(lines); i++) CHECK_HAS(dump.data, lines[i]);
    cr_text_free(&dump);
    cr_config_close(config);
}

static void differences(void) {
    static const char *const overrides[] = {"optim.lr=0.2", "data.root=a#", "schedule.milestones=1,2",
                                            "model.arch=resnet56", "train.fuse=no"};
    static const struct {
        const char         *text;
        enum cr_key_decides decides;
    } wanted[] = {{"model.arch: resnet20 -> resnet56", CR_DECIDES_MODEL},
                  {"data.root: (empty) -> \"a#\"", CR_DECIDES_HOST},
                  {"train.fuse: yes -> no", CR_DECIDES_COMPUTE},
                  {"optim.lr: 0.1 -> 0.2", CR_DECIDES_UPDATE},
                  {"schedule.milestones: (empty) -> 1,2", CR_DECIDES_UPDATE}};
    const struct cr_config      *a, *b;
    struct cr_config_differences differ;
    REQUIRE_OK(cr_config_open(&a, NULL, NULL, 0));
    REQUIRE_OK(cr_config_open(&b, NULL, overrides, (int)CR_COUNT(overrides)));
    REQUIRE_OK(cr_config_compare(a, a, &differ));
    CHECK_INT(differ.count, 0);
    cr_config_differences_free(&differ);
    REQUIRE_OK(cr_config_compare(a, b, &differ));
    CHECK_INT(differ.count, 5);
    for (int i = 0; i < differ.count; i++) {
        CHECK_STR(differ.at[i].text, wanted[i].text);
        CHECK(differ.at[i].decides == wanted[i].decides);
        CHECK(strncmp(differ.at[i].text, differ.at[i].name, strlen(differ.at[i].name)) == 0);
    }
    cr_config_differences_free(&differ);
    cr_config_close(a);
    cr_config_close(b);
}

static void locale_is_ignored(void) {
    if (!set_comma_locale(in_folder("."))) SKIP("no locale with a decimal comma, and no localedef");
    static const char *const overrides[] = {"optim.lr=0.25"};
    const struct cr_config  *config;
    struct cr_text           dump   = {0};
    cr_status                status = cr_config_open(&config, NULL, overrides, 1);
    cr_config_dump(config, &dump);
    CHECK_STR(localeconv()->decimal_point, ","); /* restored */
    setlocale(LC_ALL, "C");
    REQUIRE_OK(status);
    CHECK_NEAR(config->optim.lr, 0.25, 0);
    CHECK_HAS(dump.data, "\nlr = 0.25\n");
    cr_text_free(&dump);
    cr_config_close(config);
}

/* ---- every allocation fails once ---- */

static cr_status use_config(const char *path) {
    static const char *const     overrides[] = {"train.batch=3", "optim.lr=0.5"};
    const struct cr_config      *config;
    struct cr_text               dump = {0}, help = {0};
    struct cr_config_differences differ;
    cr_status                    status = cr_config_open(&config, path, overrides, 2);
    if (status == CR_OK) status = cr_config_change(&config, CR_DECIDES_UPDATE, CR_CHANGES("train.output=here"));
    if (status != CR_OK) {
        cr_config_close(config);
        return status;
    }
    cr_config_dump(config, &dump);
    cr_config_help(&help);
    status = cr_config_compare(config, config, &differ);
    if (dump.failed || help.failed) status = CR_NO_MEMORY(1);
    cr_config_close(config);
    cr_text_free(&dump);
    cr_text_free(&help);
    cr_config_differences_free(&differ);
    return status;
}

static void failing_allocations(void) {
    file_text("base.ini", "[train]\nepochs = 3\n");
    static const struct {
        const char *text;
        cr_status   want;
    } files[] = {{"include = base.ini\n[data]\nroot = \"a b\"\n[model]\nweights = x\n", CR_OK},
                 {"include = base.ini\n[train]\nbatch = 0\nx = 1\ny\n[trian]\n", CR_ERR_CONFIG}};
    for (size_t i = 0; i < CR_COUNT(files); i++) {
        const char *path = file_text("c.ini", files[i].text);
        for_each_failing_alloc(f, .least = 4, .want = files[i].want) {
            failing_alloc_begin(&f);
            const cr_status status = use_config(path);
            failing_alloc_end(&f, status);
            if (status == CR_ERR_MEMORY) CHECK_HAS(cr_error_message(), "out of memory");
        }
    }
}

static void no_leaks(void) {
    CHECK_INT(cr_alloc_live(), 0);
}

TESTS(CASE(dump_reads_back), CASE(dump_is_plain), CASE(differences), CASE(locale_is_ignored), CASE(failing_allocations),
      CASE(no_leaks))
