/* Which keys may have another value when a run is resumed, by what they decide (config/config.def). A key that decides
 * evaluation or this host alone changes nothing of the training: the weights are bitwise those of a run without
 * interruption. A key that decides the network or the data is refused, with the reason. */
#include "config/keys.h"
#include "tests/harness/train_support.h"

static struct run r;

/* Images of files or of shapes have a size of their own; those of `synthetic` have that of the evaluation. */
static void prepare_shapes(void) {
    r = prepare();
    REQUIRE(chdir(r.dir) == 0); /* the images of data.root=elsewhere are drawn there */
    give(&r, "data.kind=shapes", "model.classes=10", "data.val_images=10");
}

static const char *name_of(const struct cr_key *key, char name[96]) {
    snprintf(name, 96, "%s.%s", key->section, key->name);
    return name;
}

/* Another value for each key that decides evaluation or this host alone. */
static const char *const harmless[] = {"data.eval_resize=10",
                                       "data.eval_crop=8",
                                       "data.tta=flip",
                                       "data.val_images=20",
                                       "train.eval_batch=2",
                                       "train.final_tta=flip",
                                       "data.workers=0",
                                       "data.prefetch=1",
                                       "train.gpu=1",
                                       "data.decode=auto",
                                       "train.threads=2",
                                       "data.root=elsewhere",
                                       "data.train=elsewhere.tar",
                                       "data.val=elsewhere.tar",
                                       "data.outliers=elsewhere",
                                       "model.weights=elsewhere.pth"};

/* Of these keys, the folder is where the run is found; the teacher is compared by its weights, and lists of images by
 * the dataset that they leave. */
static bool is_special(const char *name) {
    return strcmp(name, "train.output") == 0 || strcmp(name, "distill.teacher") == 0 ||
           strcmp(name, "data.exclude") == 0 || strcmp(name, "data.labels") == 0;
}

static bool is_listed(const char *name) {
    for (size_t i = 0; i < CR_COUNT(harmless); i++)
        if (strncmp(harmless[i], name, strlen(name)) == 0 && harmless[i][strlen(name)] == '=') return true;
    return false;
}

TEST(evaluation_and_host_may_change) {
    prepare_shapes();
    REQUIRE_OK(TRAIN(&r, "whole", "train.steps=4"));
    for (size_t i = 0; i < CR_COUNT(harmless); i++) {
        const char *const name = formatted("cut%zu", i);
        REQUIRE_OK(TRAIN(&r, name, "train.steps=2"));
        REQUIRE_OK(RESUME(&r, name, "train.steps=4", harmless[i]));
        if (strcmp(harmless[i], "train.threads=2") != 0) check_same(&r, "whole", name); /* threads change sums */
    }
    for (int i = 0; i < cr_key_count; i++) {
        char       name[96];
        const bool free_to_change =
            cr_keys[i].decides == CR_DECIDES_EVALUATION || cr_keys[i].decides == CR_DECIDES_HOST;
        if (free_to_change != (is_listed(name_of(&cr_keys[i], name)) || is_special(name)))
            TEST_FAIL_("%s: what it decides, and the list `harmless`, differ", name);
    }
}

/* Values of lists and texts, and of keys that need other keys. */
static const char *const other_values[][5] = {
    {"model.depths=2,1"},
    {"model.widths=4,8"},
    {"model.channels=4/4/6"},
    {"model.freeze=stem"},
    {"model.unfreeze=1", "model.freeze=stem"},
    {"model.arch=resnet20", "model.depths=", "model.widths="},
    {"data.image_sizes=8@0"},
    {"data.scale=0.1,1"},
    {"data.ratio=1,1"},
    {"data.fill=7"},
    {"data.jitter=0.1,0.1,0,0"},
    {"data.erase_scale=0.1,0.2"},
    {"data.mean=0.5"},
    {"data.std=0.5"},
    {"data.kind=synthetic"},
    {"data.channels=1", "data.mean=0.5", "data.std=0.5"},
    {"data.bits=16"},
    {"data.multi_label=yes", "data.kind=csv", "data.root=elsewhere", "data.train_images=0", "data.val_images=0"},
    {"data.image_width=16"},
    {"quant.keep=fc"}};

/* Overrides that give the key another value than the run has; `text` holds the first one. */
static void other_value(const struct cr_key *key, const struct cr_config *config, char text[160], const char *out[5]) {
    char        name[96];
    OWNED(text) value = {0};
    name_of(key, name);
    out[0] = text;
    out[1] = out[2] = out[3] = out[4] = "train.steps=4";
    for (size_t i = 0; i < CR_COUNT(other_values); i++) {
        if (strncmp(other_values[i][0], name, strlen(name)) != 0 || other_values[i][0][strlen(name)] != '=') continue;
        for (int k = 0; k < 5 && other_values[i][k]; k++) out[k] = other_values[i][k];
        return;
    }
    cr_value_print(key, config, &value);
    const double number = strtod(value.data, NULL);
    if (key->kind == CR_KEY_BOOL)
        snprintf(text, 160, "%s=%s", name, strcmp(value.data, "yes") == 0 ? "no" : "yes");
    else if (key->kind == CR_KEY_ENUM)
        snprintf(text, 160, "%s=%s", name, key->words.at[strcmp(value.data, key->words.at[0]) == 0]);
    else if (key->kind == CR_KEY_REAL)
        snprintf(text, 160, "%s=%g", name, (number + (number < key->real_max ? key->real_max : key->real_min)) / 2);
    else
        snprintf(text, 160, "%s=%.0f", name, number + 1);
}

static void check_refused(const struct cr_key *key, const struct cr_config *config) {
    char        name[96], text[160];
    const char *change[5];
    const char *why = key->decides == CR_DECIDES_MODEL ? "(it decides the network)"
                                                       : "(it decides which images training sees, and in which order)";
    other_value(key, config, text, change);
    CHECK_STATUS(RESUME(&r, "a", change[0], change[1], change[2], change[3], change[4]), CR_ERR_CONFIG);
    const char *found = strstr(cr_error_message(), formatted("\n  %s: ", name_of(key, name))),
               *end   = found ? strchr(found + 1, '\n') : NULL;
    if (!found || !end || end - found < (long)strlen(why) || strncmp(end - strlen(why), why, strlen(why)) != 0)
        TEST_FAIL_("%s: %s", change[0], cr_error_message());
}

TEST(network_and_data_must_not_change) {
    OWNED(config) config = NULL;
    int           models = 0, data = 0;
    prepare_shapes();
    REQUIRE_OK(cr_config_open(&config, NULL, r.value, r.count));
    REQUIRE_OK(TRAIN(&r, "a", "train.steps=2"));
    for (int i = 0; i < cr_key_count; i++) {
        const enum cr_key_decides decides = cr_keys[i].decides;
        if (decides != CR_DECIDES_MODEL && decides != CR_DECIDES_DATA) continue;
        if (&cr_keys[i] == cr_key_dotted("quant.type")) { /* 8-bit networks are never trained */
            CHECK_STATUS(RESUME(&r, "a", "quant.type=int8"), CR_ERR_CONFIG);
            CHECK(strstr(cr_error_message(), "a quantised network cannot be trained"));
            continue;
        }
        check_refused(&cr_keys[i], config);
        models += decides == CR_DECIDES_MODEL;
        data += decides == CR_DECIDES_DATA;
    }
    CHECK(models > 20 && data > 35);
    CHECK_STATUS(RESUME(&r, "a", "optim.lr=0.3", "train.steps=4"), CR_OK);
}
