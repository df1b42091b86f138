/* tests/unit/config/test_config_text.c: the config as text: the dump reads back to the same values; differences, help,
 * shipped configs, and failing allocations. */
#include "tests/harness/config_support.h"

#include "config/keys.h"
#include "core/rng.h"
#include "tests/harness/failing_alloc.h"

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

/* Whether the dump of the config reads back to the same values; false: a rule between keys forbids them. */
static bool reads_back(const struct cr_config *config) {
    struct cr_config_differences differ = {0};
    struct cr_text               dump = {0}, second = {0};
    const struct cr_config      *again;
    cr_config_dump(config, &dump);
    CHECK(!dump.failed);
    const bool read = cr_config_open(&again, file_text("c.ini", dump.data), NULL, 0) == CR_OK;
    if (read) {
        CHECK_STATUS(cr_config_compare(config, again, &differ), CR_OK);
        for (int i = 0; i < differ.count; i++) TEST_FAIL_("%s", differ.at[i].text);
        CHECK_INT(again->train.seed, config->train.seed); /* not through the tables */
        CHECK(again->optim.lr == config->optim.lr && again->data.std.at[2] == config->data.std.at[2]);
        CHECK_STR(again->data.root, config->data.root);
        cr_config_dump(again, &second);
        CHECK_STR(second.data, dump.data);
        cr_config_close(again);
    }
    cr_config_differences_free(&differ);
    cr_text_free(&dump);
    cr_text_free(&second);
    return read;
}

/* One key after the other gets a random value, which stays where the rules between keys allow it. */
TEST(dump_reads_back) {
    enum { ROUNDS = TEST_SANITIZED ? 2 : 6 };
    int allowed = 0;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct cr_rng rng      = cr_rng_make(round, CR_RNG_TEST, 1, 0);
        OWNED(arena)  arena    = {0};
        OWNED(config) defaults = NULL;
        REQUIRE_OK(cr_config_open(&defaults, NULL, NULL, 0));
        struct cr_config config = *defaults;
        for (int i = 0; i < cr_key_count; i++) {
            const struct cr_config before = config;
            randomise(&rng, &cr_keys[i], &arena, &config);
            const bool read = reads_back(&config);
            if (strcmp(cr_keys[i].name, "root") == 0) CHECK(read); /* any text */
            if (!read) config = before;
            allowed += read;
        }
    }
    printf("    %d values of %d keys\n", allowed, cr_key_count);
    CHECK(allowed > ROUNDS * cr_key_count / 2);
}

TEST(dump_is_plain) {
    static const char *const overrides[] = {"optim.lr=0.30000000000000004",   "data.root= /a;b",
                                            "train.seed=9223372036854775807", "optim.weight_decay=5e-4",
                                            "model.bn_eps=0.000001",          "schedule.milestones=100,150.5"};
    static const char *const lines[]     = {"[model]\narch = resnet20\n",   "\nlr = 0.30000000000000004\n",
                                            "\nroot = \"/a;b\"\n",          "\nseed = 9223372036854775807\n",
                                            "\nweight_decay = 0.0005\n",    "\nbn_eps = 1e-06\n",
                                            "\nmilestones = 100,150.5\n",   "\ndepths =\n",
                                            "\nmean = 0.485,0.456,0.406\n", "\nratio = 0.75,1.3333333333333333\n",
                                            "\n\n[memory]\nreuse = yes\n"};
    OWNED(config)            config      = NULL;
    OWNED(text)              dump        = {0};
    REQUIRE_OK(cr_config_open(&config, NULL, overrides, (int)CR_COUNT(overrides)));
    cr_config_dump(config, &dump);
    for (size_t i = 0; i < CR_COUNT(lines); i++) CHECK_HAS(dump.data, lines[i]);
}

TEST(differences) {
    static const char *const overrides[] = {"optim.lr=0.2", "data.root=a#", "schedule.milestones=1,2",
                                            "model.arch=resnet56", "train.fuse=no"};
    static const struct {
        const char         *text;
        enum cr_key_decides decides;
    } wanted[]                     = {{"model.arch: resnet20 -> resnet56", CR_DECIDES_MODEL},
                                      {"data.root: (empty) -> \"a#\"", CR_DECIDES_HOST},
                                      {"train.fuse: yes -> no", CR_DECIDES_COMPUTE},
                                      {"optim.lr: 0.1 -> 0.2", CR_DECIDES_UPDATE},
                                      {"schedule.milestones: (empty) -> 1,2", CR_DECIDES_UPDATE}};
    OWNED(config)                a = NULL, b = NULL;
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
}

static cr_status use_config(const char *path) {
    static const char *const     overrides[] = {"train.batch=3", "optim.lr=0.5"};
    const struct cr_config      *config;
    struct cr_text               dump = {0}, help = {0};
    struct cr_config_differences differ;
    cr_status                    status = cr_config_open(&config, path, overrides, 2);
    if (status == CR_OK) status = cr_config_change(&config, CR_CHANGES("train.output=here"));
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

TEST(failing_allocations) {
    file_text("base.ini", "[train]\nepochs = 3\n");
    static const struct {
        const char *text;
        cr_status   want;
    } files[] = {{"include = base.ini\n[data]\nroot = \"a b\"\n[model]\nweights = x\n", CR_OK},
                 {"include = base.ini\n[train]\nbatch = 0\nx = 1\ny\n[trian]\n", CR_ERR_CONFIG}};
    for (size_t i = 0; i < CR_COUNT(files); i++) {
        const char *path = file_text("c.ini", files[i].text);
        for_each_failing_alloc(f, .least = 4, .want = files[i].want) {
            const cr_status status = failing_alloc_run(&f, use_config(path));
            if (status == CR_ERR_MEMORY) CHECK_HAS(cr_error_message(), "out of memory");
        }
    }
}
