/* tests/unit/config/test_config.c: the config: defaults, precedence, includes, error messages with file and line,
 * hints, rules between keys, the dump. */
#include "tests/harness/config_support.h"

#include "config/keys.h"

#include <inttypes.h>

/* ---- values and their sources ---- */

/* The defaults for other than three channels: the averages of ImageNet's three. */
TEST(defaults_of_channels) {
    static const char *const channels[] = {"data.channels=1", "data.channels=3", "data.channels=4"};
    static const double      mean[][4]  = {{0.449}, {0.485, 0.456, 0.406}, {0.485, 0.456, 0.406, 0.449}},
                        std[][4]        = {{0.226}, {0.229, 0.224, 0.225}, {0.229, 0.224, 0.225, 0.226}};
    for (size_t k = 0; k < CR_COUNT(channels); k++) {
        OWNED(config) config = NULL;
        const int     n      = (const int[]){1, 3, 4}[k];
        REQUIRE_OK(cr_config_open(&config, NULL, &channels[k], 1));
        CHECK_INT(config->data.mean.count, n);
        CHECK_INT(config->data.std.count, n);
        for (int c = 0; c < n; c++) {
            CHECK_NEAR(cr_config_mean(config, c), mean[k][c], 1e-6);
            CHECK_NEAR(cr_config_std(config, c), std[k][c], 1e-6);
        }
    }
}

TEST(precedence) {
    static const char *const overrides[] = {"train.seed=9", " train.keep = 4 ", "train.seed=10", "data.root=a=b.c ",
                                            "model.arch=RESNET56"};
    OWNED(config)            config      = NULL;
    mkdir(in_folder("sub"), 0777);
    file_text("sub/base.ini", "[train]\nbatch = 1\nepochs = 1\nseed = 1\nsteps = 1\n");
    file_text("sub/mid.ini", "include = base.ini\n[train]\nepochs = 2\nseed = 2\n");
    const char *path = file_text("top.v2.ini", "include = sub/mid.ini\n\n[train]\nseed = 3\nsteps = 3\n");
    REQUIRE_OK(cr_config_open(&config, path, overrides, (int)CR_COUNT(overrides)));
    CHECK_INT(config->train.batch, 1);
    CHECK_INT(config->train.epochs, 2);
    CHECK_INT(config->train.steps, 3);
    CHECK_INT(config->train.seed, 10);
    CHECK_INT(config->train.keep, 4);
    CHECK_INT(config->train.log_every, 50);
    CHECK_INT(config->model.arch, CR_ARCH_RESNET56);
    CHECK_STR(config->data.root, "a=b.c");
    CHECK_STR(config->name, "top.v2");
    CHECK_STR(config->path, path);
    CHECK(cr_config_is_set(config, "train.batch") && !cr_config_is_set(config, "train.log_every"));
    static const char *const where[][2] = {{"train.batch", "/sub/base.ini:2: [train] batch = 1: x"},
                                           {"train.epochs", "/sub/mid.ini:3: [train] epochs = 2: x"},
                                           {"train.steps", "/top.v2.ini:5: [train] steps = 3: x"},
                                           {"train.seed", "command line: [train] seed = 10: x"},
                                           {"train.log_every", "/top.v2.ini: [train] log_every = 50 (default): x"},
                                           {"model.arch", "command line: [model] arch = resnet56: x"}};
    for (size_t i = 0; i < CR_COUNT(where); i++) {
        CHECK_STATUS(cr_config_fail(config, where[i][0], "x"), CR_ERR_CONFIG);
        CHECK_HAS(cr_error_message(), where[i][1]);
    }
}

TEST(includes) {
    char text[200];
    snprintf(text, sizeof text, "include = %s\n[train]\nkeep = 3\n", file_text("whole.ini", "[train]\nbatch = 3\n"));
    CHECK_STR(refusal(text, NULL), "");
    CHECK_STR(refusal("include = c.ini\n", NULL), "c.ini:1: include = c.ini: this file includes itself (a cycle)");
    file_text("a.ini", "\ninclude = ./c.ini\n");
    CHECK_STR(refusal("include = a.ini\n", NULL), "a.ini:2: include = ./c.ini: this file includes itself (a cycle)");
    CHECK_STR(
        refusal("# x\ninclude = gone.ini\n[train]\nbatch=0\n", NULL),
        "c.ini:2: include = gone.ini: gone.ini: no such file\nc.ini:4: [train] batch = 0: must be from 1 to 1000000");
    CHECK_HAS(refusal("include = .\n", NULL), "is a folder");
    CHECK_STR(refusal("include =\n", NULL), "c.ini:1: include: the file name is missing");
    CHECK_STR(refusal("include = \"a\n", NULL), "c.ini:1: include: the closing \" is missing");
    CHECK_HAS(refusal("include = whole.ini\ninclude = whole.ini\n", NULL),
              "c.ini:2: include: is already set in line 1");
    CHECK_HAS(refusal("[train]\ninclude = whole.ini\n", NULL), "unknown key; include belongs before the first section");
    CHECK_HAS(refusal(NULL, "train.include=x"), "include belongs before the first section");
    /* an error in an included file is reported with the others, even where the including file sets the same key
     * correctly */
    file_text("wrong.ini", "[train]\nbatch = 0\n");
    CHECK_STR(refusal("include = wrong.ini\n[train]\nbatch = 3\nkeep = 0\n", NULL),
              "wrong.ini:2: [train] batch = 0: must be from 1 to 1000000\nc.ini:4: [train] keep = 0: must be from 1 to "
              "1000000");
    for (int i = 1; i <= 9; i++) {
        snprintf(text, sizeof text, "include = d%d.ini\n", i + 1);
        file_text(formatted("d%d.ini", i), i < 9 ? text : "");
    }
    CHECK_HAS(refusal("include = d1.ini\n", NULL), "d7.ini:1: include = d8.ini: includes are nested more than 8 deep");
    CHECK_STR(refusal("include = d3.ini\n", NULL), "");
}

/* A path that begins with ~/ is in the user's home folder, but not in the configuration of a run: it may be somebody
 * else's. */
TEST(home_folder) {
    OWNED(config) config = NULL, stored = NULL;
    setenv("HOME", "/users/ann", 1);
    const char *path = file_text("home.ini", "[train]\noutput = ~/runs\n");
    REQUIRE_OK(cr_config_open(&config, path, (const char *const[]){"data.root=~/x", "data.train=~x"}, 2));
    CHECK_STR(config->train.output, "/users/ann/runs");
    CHECK_STR(config->data.root, "/users/ann/x");
    CHECK_STR(config->data.train, "~x");
    REQUIRE_OK(cr_config_open_stored(&stored, path, NULL, 0));
    CHECK_STR(stored->train.output, "~/runs");
}

TEST(named_configs) {
    static const char *const names[][2] = {{"x.ini", "x"}, {"y", "y"}, {".ini", ".ini"}, {"z.ini.ini", "z.ini"}};
    for (size_t i = 0; i < CR_COUNT(names); i++) {
        OWNED(config) config = NULL;
        REQUIRE_OK(cr_config_open(&config, file_text(names[i][0], ""), NULL, 0));
        CHECK_STR(config->name, names[i][1]);
    }
}

/* ---- error messages ---- */

TEST(all_errors_are_reported) {
    CHECK_STR(refusal("batch = 3\n"
                      "[train]\n"
                      "batch = many\n"
                      "bacth = 3\n"
                      "fuse = yup\n"
                      "device = gpu\n"
                      "[trian]\n"
                      "epochs = 1\n"
                      "[optim]\n"
                      "lr = 0.1x\n"
                      "lr = 0.2\n"
                      "learning_rate = 0.1\n"
                      "[data]\n"
                      "mean = 1,2\n"
                      "std = 1;2\n",
                      "schedule.kind=linear"),
              "c.ini:1: batch = 3: is before the first section, where only include is allowed; did you mean [train] "
              "batch?\n"
              "c.ini:3: [train] batch = many: must be an integer from 1 to 1000000, or auto\n"
              "c.ini:4: [train] bacth = 3: unknown key; did you mean batch?\n"
              "c.ini:5: [train] fuse = yup: must be yes or no (or true/false, on/off, 1/0)\n"
              "c.ini:6: [train] device = gpu: must be one of auto, cpu, cuda; did you mean cuda?\n"
              "c.ini:7: [trian]: unknown section; did you mean [train]?\n"
              "c.ini:10: [optim] lr = 0.1x: must be a number from 0 to 1000\n"
              "c.ini:11: [optim] lr: is already set in line 10; remove one of the two\n"
              "c.ini:12: [optim] learning_rate = 0.1: unknown key; did you mean lr?\n"
              "c.ini:14: [data] mean = 1,2: must be three numbers: red, green, blue; or one number for all channels\n"
              "c.ini:15: [data] std = 1;2: ';' would start a comment; quote the value, or put a blank before the "
              "comment\n"
              "command line: [schedule] kind = linear: must be one of constant, step, multistep, cosine, polynomial, "
              "one_cycle");
}

/* A file that is no INI file has an error in each line. */
TEST(many_errors_are_counted) {
    char text[4096] = "";
    for (int i = 0; i < 60; i++) strcat(text, "this is a letter\n");
    const char *got   = refusal(text, NULL);
    int         lines = 0;
    for (const char *at = got; *at; at++) lines += *at == '\n';
    CHECK_INT(lines, 15);
    CHECK_HAS(got, "c.ini:15: 'this is a letter': is neither [section] nor key = value\nand 45 more");
}

struct rule {
    const char *override, *why; /* reason; "": accepted */
};

static void check_rules(const struct rule *rules, size_t count, const char *text) {
    for (size_t i = 0; i < count; i++) {
        const char *got = refusal(text, rules[i].override);
        if (*rules[i].why)
            CHECK_HAS(got, rules[i].why);
        else
            CHECK_STR(got, "");
        if (!*got || strncmp(got, "command line: ", 14) == 0) continue;
        TEST_FAIL_("%s: \"%s\" does not name its place", rules[i].override, got);
    }
}

TEST(overrides_are_checked) {
    static const struct rule rules[] = {
        {"train.batch", "'train.batch': must be section.key=value"},
        {"batch=3", "'batch=3': must be section.key=value"},
        {"train.=3", "[train]  = 3: unknown key; keys of [train]: batch, eval_batch, epochs,"},
        {"trian.batch=3", "[trian] batch = 3: unknown section; did you mean [train]?"},
        {"nothing.batch=3",
         "unknown section; the sections are [model] [data] [train] [loss] [distill] [optim] [schedule] [ema] [memory]"},
        {"train.lr=3", "[train] lr = 3: unknown key; did you mean [optim] lr?"},
        {"optim.zzzzzz=3", "unknown key; keys of [optim]: kind, lr, head_lr, layer_decay, bn_bias_factor, momentum, "
                           "nesterov, weight_decay, decay_norm_bias, "
                           "beta2, eps, trust"},
        {"model.arch=resnet51", "must be one of resnet18, resnet34,"},
        {"model.arch=resnet51", "; did you mean resnet50?"},
        {"data.root=a\nb", "the text contains a control character"},
        {"data.root=#'\"", "the text needs quotes, but contains both kinds"},
    };
    check_rules(rules, CR_COUNT(rules), NULL);
}

TEST(types_are_strict) {
    static const struct rule rules[] = {
        {"train.batch=+64", ""},
        {"train.batch=0x10", "integer"},
        {"train.batch=1.0", "integer"},
        {"train.batch=99999999999999999999", "must be from 1 to 1000000"},
        {"train.seed=9223372036854775807", ""},
        {"train.seed=9223372036854775808", "must be from 0 to 9223372036854775807"},
        {"optim.lr=1e-3", ""},
        {"optim.lr=nan", "must be a number"},
        {"optim.lr=1e", "must be a number"},
        {"optim.lr=1e999", "must be from 0 to 1000"},
        {"optim.lr=-0.1", "must be from 0 to 1000"},
        {"train.fuse=YES", ""},
        {"train.fuse=2", "must be yes or no"},
        {"data.mean=1, 2 ,\t3", ""},
        {"data.mean=1,,3", "item 2 is empty"},
        {"data.mean=1,2,x", "item 3 must be a number"},
        {"data.mean=1,2,30", "item 3 must be from -10 to 10"},
        {"schedule.milestones=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32",
         ""},
        {"schedule.milestones=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,"
         "33",
         "must have at most 32 items"},
        {"schedule.milestones=1.0000000000000000000000000000000000000000000000000000000000000000001",
         "item 1 is too long"},
    };
    check_rules(rules, CR_COUNT(rules), NULL);
}

/* Each key accepts the ends of its range and refuses the next numbers outside. */
TEST(ranges_are_checked) {
    int tried = 0;
    for (int i = 0; i < cr_key_count; i++) {
        const struct cr_key *key = &cr_keys[i];
        char                 text[4][64];
        struct cr_config     config = {0};
        char                 why[600];
        if (key->kind == CR_KEY_INT || key->kind == CR_KEY_AUTO || key->kind == CR_KEY_INTS) {
            snprintf(text[0], 64, "%" PRId64, key->int_min);
            snprintf(text[1], 64, "%" PRId64, key->int_max);
            snprintf(text[2], 64, "%" PRId64, key->int_min - 1);
            snprintf(text[3], 64, "%" PRIu64, (uint64_t)key->int_max + 1);
        } else if (key->kind == CR_KEY_REAL || key->kind == CR_KEY_REALS) {
            snprintf(text[0], 64, "%.17g", key->real_min);
            snprintf(text[1], 64, "%.17g", key->real_max);
            snprintf(text[2], 64, "%.17g", nextafter(key->real_min, -INFINITY));
            snprintf(text[3], 64, "%.17g", nextafter(key->real_max, INFINITY));
        } else
            continue;
        tried++;
        for (int n = 0; n < 4; n++)
            if (cr_value_parse(key, &config, text[n], why, sizeof why) != (n < 2))
                TEST_FAIL_("%s.%s = %s: %s", key->section, key->name, text[n], n < 2 ? why : "was accepted");
    }
    CHECK(tried > 40);
}

TEST(rules_between_keys) {
    static const struct rule plain[] = {
        {"model.depths=1,2", "[model] depths = 1,2: is only for arch = custom; resnet20 has fixed depths"},
        {"model.arch=custom", "[model] arch = custom: needs depths and widths"},
        {"model.freeze=stem, layer1 ,fc", ""},
        {"model.freeze=layer10", "'layer10' is not a part of a network; allowed: stem,"},
        {"model.freeze=layer5", ""}, /* the network defines the number */
        {"data.scale=0.5,0.2", "must be two numbers, the smaller first"},
        {"data.std=1,1,1,1", "must be three numbers"},
        {"data.kind=cifar10", "[data] kind = cifar10: needs root"},
        {"schedule.kind=multistep", "[schedule] kind = multistep: needs milestones"},
        {"schedule.milestones=1,1", "must be in ascending order; item 2 is not"},
        {"optim.kind=adamw", "needs lr: the default, 0.1, is for sgd"},
        {"schedule.low_momentum=0.8", "is only for one_cycle"},
        {"model.unfreeze=1", "needs freeze"},
        {"schedule.min_lr=0.2", "[schedule] min_lr = 0.2: must not exceed [optim] lr (0.1)"},
    };
    static const struct rule custom[] = {
        {"model.depths=1,2", ""},
        {"model.depths=1", "widths"},
        {"model.depths=1,x", "item 2 must be an integer"},
        {"model.arch=resnet18", "is only for arch = custom; resnet18 has a fixed block"}};
    static const struct rule folders[] = {
        {"data.eval_crop=200", ""},
        {"data.eval_crop=201", "[data] eval_crop = 201: must not exceed eval_resize (200)"},
        {"data.train_images=5", "is only for shapes and synthetic; folder has a fixed size"}};
    check_rules(plain, CR_COUNT(plain), NULL);
    CHECK_HAS(refusal("[optim]\nmomentum = 0\nnesterov = yes\n", NULL),
              "c.ini:3: [optim] nesterov = yes: needs momentum above 0");
    /* one mistake, one line: no rule reports a value that was refused */
    CHECK_STR(refusal("[model]\narch = custom\ndepths = 3,x\nwidths = 4,4\n", NULL),
              "c.ini:3: [model] depths = 3,x: item 2 must be an integer from 1 to 1000");
    CHECK_STR(refusal("[data]\nkind = cifarten\n", NULL), "c.ini:2: [data] kind = cifarten: must be one of shapes, "
                                                          "cifar10, cifar100, folder, csv, tar, packed, synthetic");
    file_text("sized.ini", "[data]\nkind = folder\nroot = x\ntrain_images = 5\n");
    CHECK_STR(refusal("include = sized.ini\n[data]\ntrain_images = x\n", NULL),
              "c.ini:3: [data] train_images = x: must be an integer from 0 to 100000000");
    for (size_t i = 0; i < CR_COUNT(custom); i++) {
        const char *got =
            refusal("[model]\narch = custom\ndepths = 1,1\nwidths = 4,4\nblock = bottleneck\n", custom[i].override);
        if (*custom[i].why)
            CHECK_HAS(got, custom[i].why);
        else
            CHECK_STR(got, "");
    }
    for (size_t i = 0; i < CR_COUNT(folders); i++) {
        const char *got = refusal("[data]\nkind = folder\nroot = x\neval_resize = 200\n", folders[i].override);
        if (*folders[i].why)
            CHECK_HAS(got, folders[i].why);
        else
            CHECK_STR(got, "");
    }
}
