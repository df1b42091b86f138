/* config/keys.c: the tables made from config/config.def, key lookup, and suggestions for misspelled names. */
#include "config/keys.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define WORD(constant, word) word,
#define E(name) static const char *const words_##name[] = {CR_ENUM_##name(WORD)};
CR_ENUMS(E)
#undef E
#undef WORD

#define E(name)                                                                                                        \
    const char *cr_word_##name(enum cr_##name value) {                                                                 \
        return (size_t)value < CR_COUNT(words_##name) ? words_##name[value] : "?";                                     \
    }                                                                                                                  \
    _Static_assert(sizeof(enum cr_##name) == sizeof(int), "config/value.c stores enums as int");
CR_ENUMS(E)
#undef E

#define AT(s, k, w) .section = #s, .name = #k, .decides = CR_DECIDES_##w, .offset = offsetof(struct cr_config, s.k)
#define KEY_INT(s, k, w, d, lo, hi, h)                                                                                 \
    {AT(s, k, w), .kind = CR_KEY_INT, .int_default = (d), .int_min = (lo), .int_max = (hi), .help = (h)},
#define KEY_AUTO(s, k, w, d, lo, hi, h)                                                                                \
    {AT(s, k, w), .kind = CR_KEY_AUTO, .int_default = (d), .int_min = (lo), .int_max = (hi), .help = (h)},
#define KEY_REAL(s, k, w, d, lo, hi, h)                                                                                \
    {AT(s, k, w), .kind = CR_KEY_REAL, .real_default = (d), .real_min = (lo), .real_max = (hi), .help = (h)},
#define KEY_BOOL(s, k, w, d, h) {AT(s, k, w), .kind = CR_KEY_BOOL, .int_default = (d), .help = (h)},
#define KEY_TEXT(s, k, w, d, h) {AT(s, k, w), .kind = CR_KEY_TEXT, .text_default = (d), .help = (h)},
#define KEY_ENUM(s, k, w, name, d, h)                                                                                  \
    {AT(s, k, w), .kind = CR_KEY_ENUM, .int_default = (d), .words = {words_##name, (int)CR_COUNT(words_##name)},       \
     .help = (h)},
#define KEY_INTS(s, k, w, d, lo, hi, h)                                                                                \
    {AT(s, k, w), .kind = CR_KEY_INTS, .text_default = (d), .int_min = (lo), .int_max = (hi), .help = (h)},
#define KEY_REALS(s, k, w, d, lo, hi, h)                                                                               \
    {AT(s, k, w), .kind = CR_KEY_REALS, .text_default = (d), .real_min = (lo), .real_max = (hi), .help = (h)},
#define KEY_TABLE(name, KEYS, help) KEYS(KEY_INT, KEY_AUTO, KEY_REAL, KEY_BOOL, KEY_TEXT, KEY_ENUM, KEY_INTS, KEY_REALS)

const struct cr_key cr_keys[]    = {CR_SECTIONS(KEY_TABLE)};
const int           cr_key_count = (int)CR_COUNT(cr_keys);

#define NAME_HELP(name, KEYS, help) {#name, help},
const struct cr_key_section cr_key_sections[]    = {CR_SECTIONS(NAME_HELP)};
const int                   cr_key_section_count = (int)CR_COUNT(cr_key_sections);

const struct cr_key *cr_key_find(const char *section, const char *name) {
    for (int i = 0; i < cr_key_count; i++)
        if (strcmp(cr_keys[i].section, section) == 0 && strcmp(cr_keys[i].name, name) == 0) return &cr_keys[i];
    return NULL;
}

const struct cr_key *cr_key_dotted(const char *dotted) {
    char        section[32];
    const char *dot = strchr(dotted, '.');
    if (!dot || dot - dotted >= (ptrdiff_t)sizeof section) return NULL;
    snprintf(section, sizeof section, "%.*s", (int)(dot - dotted), dotted);
    return cr_key_find(section, dot + 1);
}

bool cr_key_has_section(const char *section) {
    for (int i = 0; i < cr_key_section_count; i++)
        if (strcmp(cr_key_sections[i].name, section) == 0) return true;
    return false;
}

/* ---- suggestions ---- */

enum { DISTANCE_MAX_LENGTH = 63 };

int cr_edit_distance(const char *a, const char *b) {
    int la = (int)strnlen(a, DISTANCE_MAX_LENGTH), lb = (int)strnlen(b, DISTANCE_MAX_LENGTH);
    int d[DISTANCE_MAX_LENGTH + 1][DISTANCE_MAX_LENGTH + 1];
    for (int i = 0; i <= la; i++) d[i][0] = i;
    for (int j = 0; j <= lb; j++) d[0][j] = j;
    for (int i = 1; i <= la; i++) {
        for (int j = 1; j <= lb; j++) {
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            best     = CR_MIN(best, CR_MIN(d[i - 1][j], d[i][j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = CR_MIN(best, d[i - 2][j - 2] + 1);
            d[i][j] = best;
        }
    }
    return d[la][lb];
}

/* Names that other trainers use for our keys, where the edit distance is too large; separated by blanks. */
static const struct {
    const char *key, *theirs;
} other_names[] = {
    {"train.batch", "batch_size batchsize bs train_batch_size per_device_train_batch_size"},
    {"train.eval_batch", "val_batch_size validation_batch_size test_batch_size eval_batch_size"},
    {"train.epochs", "num_epochs max_epochs n_epochs nb_epochs num_train_epochs"},
    {"train.steps", "max_steps"},
    {"train.label_smoothing", "smoothing"},
    {"loss.class_weights", "class_weight weight_classes"},
    {"data.sampling", "sampler weighted_sampler"},
    {"loss.focal_gamma", "focal_loss gamma_focal"},
    {"loss.kind", "bce_loss"},
    {"loss.target_threshold", "bce_target_thresh"},
    {"train.clip_norm", "clip_grad grad_clip max_grad_norm gradient_clip_val"},
    {"train.accumulate", "grad_accum_steps gradient_accumulation_steps accumulate_grad_batches"},
    {"train.precision", "amp amp_dtype dtype fp16 bf16"},
    {"train.output", "output_dir save_dir"},
    {"train.log_every", "log_interval print_freq"},
    {"train.eval_every", "eval_freq"},
    {"train.save_every", "save_freq"},
    {"train.keep", "checkpoint_hist"},
    {"train.seed", "random_seed"},
    {"train.threads", "num_threads"},
    {"optim.lr", "learning_rate base_lr init_lr lr0"},
    {"optim.weight_decay", "wd"},
    {"optim.kind", "opt optimizer"},
    {"optim.eps", "opt_eps"},
    {"schedule.kind", "lr_scheduler scheduler sched"},
    {"schedule.step_epochs", "lr_step_size step_size decay_epochs"},
    {"schedule.gamma", "decay_rate lr_gamma"},
    {"schedule.warmup_epochs", "lr_warmup_epochs"},
    {"schedule.min_lr", "lr_min"},
    {"ema.decay", "model_ema_decay ema_decay model_ema"},
    {"model.classes", "num_classes"},
    {"model.weights", "pretrained checkpoint initial_checkpoint"},
    {"model.arch", "model model_name architecture"},
    {"data.workers", "num_workers dataloader_num_workers"},
    {"data.prefetch", "prefetch_factor"},
    {"data.image_size", "img_size imgsz input_size train_crop_size"},
    {"data.eval_resize", "val_resize_size"},
    {"data.eval_crop", "val_crop_size"},
    {"data.fit", "crop_mode"},
    {"data.root", "data_dir data_path"},
    {"data.kind", "dataset"},
    {"data.erase", "reprob random_erase"},
    {"data.jitter", "color_jitter"},
    {"data.augment", "auto_augment aa"},
    {"data.mixup", "mixup_alpha"},
    {"data.cutmix", "cutmix_alpha"},
};

/* The first word of b is a. */
static bool same_name(const char *a, const char *b) {
    for (; *a && *b; a++, b++)
        if (tolower((unsigned char)(*a == '-' ? '_' : *a)) != *b) return false;
    return !*a && (!*b || *b == ' ');
}

static bool is_among(const char *name, const char *words) {
    for (; words; words = strchr(words, ' ') ? strchr(words, ' ') + 1 : NULL)
        if (same_name(name, words)) return true;
    return false;
}

const struct cr_key *cr_key_of_any_name(const char *name) {
    for (size_t i = 0; i < CR_COUNT(other_names); i++)
        if (is_among(name, other_names[i].theirs)) return cr_key_dotted(other_names[i].key);
    for (int i = 0; i < cr_key_count; i++)
        if (same_name(name, cr_keys[i].name)) return &cr_keys[i];
    return NULL;
}

static const struct cr_key *nearest_key(const char *section, const char *name) {
    const struct cr_key *best      = NULL;
    int                  best_cost = 1000;
    int                  limit     = CR_MAX(1, (int)strnlen(name, DISTANCE_MAX_LENGTH) / 3);
    for (int i = 0; i < cr_key_count; i++) {
        bool same_section = strcmp(cr_keys[i].section, section) == 0;
        int  distance     = cr_edit_distance(name, cr_keys[i].name);
        /* The exact name in another section is better than a misspelling in this section; otherwise this section
         * wins. */
        int cost = 2 * distance + !same_section;
        if (distance <= limit && cost < best_cost) best = &cr_keys[i], best_cost = cost;
    }
    /* The name that another trainer gives to a key is better than the name of another key with a misspelling. */
    const struct cr_key *named = best_cost > 1 ? cr_key_of_any_name(name) : NULL;
    return named ? named : best;
}

void cr_key_hint(char *out, size_t bytes, const char *section, const char *name) {
    const struct cr_key *best = nearest_key(section, name);
    if (strcmp(name, "include") == 0) {
        snprintf(out, bytes, "; include belongs before the first section");
        return;
    }
    if (best && strcmp(best->section, section) == 0) {
        snprintf(out, bytes, "; did you mean %s?", best->name);
        return;
    }
    if (best) {
        snprintf(out, bytes, "; did you mean [%s] %s?", best->section, best->name);
        return;
    }
    *out = 0;
    if (!*section) return;
    size_t used  = (size_t)snprintf(out, bytes, "; keys of [%s]:", section);
    bool   first = true;
    for (int i = 0; i < cr_key_count && used < bytes; i++) {
        if (strcmp(cr_keys[i].section, section) != 0) continue;
        used += (size_t)snprintf(out + used, bytes - used, "%s %s", first ? "" : ",", cr_keys[i].name);
        first = false;
    }
}

void cr_key_section_hint(char *out, size_t bytes, const char *section) {
    int best = -1, best_distance = 1000;
    for (int i = 0; i < cr_key_section_count; i++) {
        int distance = cr_edit_distance(section, cr_key_sections[i].name);
        if (distance < best_distance) best = i, best_distance = distance;
    }
    if (best_distance <= CR_MAX(1, (int)strnlen(section, DISTANCE_MAX_LENGTH) / 3)) {
        snprintf(out, bytes, "; did you mean [%s]?", cr_key_sections[best].name);
        return;
    }
    size_t used = (size_t)snprintf(out, bytes, "; the sections are");
    for (int i = 0; i < cr_key_section_count && used < bytes; i++)
        used += (size_t)snprintf(out + used, bytes - used, " [%s]", cr_key_sections[i].name);
}
