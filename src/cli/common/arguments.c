/* cli/common/arguments.c: parses the command line and reads the values of options. */
#include "cli/common/arguments.h"

#include "config/keys.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool belongs(int id, enum cr_command_id command) {
    return cr_cli_option_belongs((enum cr_option_id)id, command);
}

static const char *name_of(int id) {
    return cr_cli_option((enum cr_option_id)id)->name;
}

/* ---- messages ---- */

cr_status cr_args_fail(const struct cr_args *args, const char *fmt, ...) {
    char    what[1000];
    va_list list;
    va_start(list, fmt);
    vsnprintf(what, sizeof what, fmt, list);
    va_end(list);
    return CR_FAIL(CR_ERR_USAGE, "%s; see cresnet %s%s", what, cr_command(args->command)->name,
                   args->command == CR_CMD_HELP ? "" : " --help");
}

cr_status cr_args_max_operands(const struct cr_args *args, int max) {
    if (args->operands <= max) return CR_OK;
    const char          *extra = args->operand[max], *equals = strchr(extra, '=');
    char                 name[64];
    const struct cr_key *key;
    if (!equals && cr_key_dotted(extra))
        return cr_args_fail(args, "unexpected operand %s (a value is set by %s=VALUE, without blanks)", extra, extra);
    if (!equals) return cr_args_fail(args, "unexpected operand %s", extra);
    snprintf(name, sizeof name, "%.*s", (int)CR_MIN((size_t)(equals - extra), sizeof name - 1), extra);
    key = cr_key_of_any_name(name);
    if (key)
        return cr_args_fail(args, "unexpected operand %s (did you mean %s.%s%s?)", extra, key->section, key->name,
                            equals);
    return cr_args_fail(args, "unexpected operand %s (a configuration value is section.key=value)", extra);
}

/* Edit distance, minus one when the first letters agree: typing errors are rarer at the start of a word. */
static int word_distance(const char *a, const char *b) {
    return cr_edit_distance(a, b) - (a[0] == b[0]);
}

/* The word with the smallest distance to `name`; NULL when all words are too different. NULL words are skipped. */
static const char *nearest(const char *name, const char *const *words, int count) {
    int         best  = CR_MAX(2, (int)strlen(name) / 3) + 1;
    const char *found = NULL;
    for (int i = 0; i < count; i++) {
        int d = words[i] ? word_distance(name, words[i]) : best;
        if (d >= best) continue;
        best  = d;
        found = words[i];
    }
    return found;
}

enum cr_command_id cr_command_find(const char *name, const char **hint) {
    const char *names[CR_CMD_COUNT];
    *hint = NULL;
    for (int i = 0; i < CR_CMD_COUNT; i++) {
        names[i] = cr_command((enum cr_command_id)i)->name;
        if (strcmp(names[i], name) == 0) return (enum cr_command_id)i;
    }
    *hint = nearest(name, names, CR_CMD_COUNT);
    return CR_CMD_COUNT;
}

bool cr_command_has_word(enum cr_command_id id, const char *word, char *hint, size_t hint_bytes) {
    enum { WORDS = 16 };
    const char *words[WORDS], *all = cr_command(id)->words, *found;
    char        copy[200];
    int         count = 0;
    *hint             = 0;
    snprintf(copy, sizeof copy, "%s", all ? all : "");
    for (char *rest = copy, *one; count < WORDS && (one = strtok_r(rest, " ", &rest));) {
        if (strcmp(one, word) == 0) return true;
        words[count++] = one;
    }
    found = nearest(word, words, count);
    if (found) snprintf(hint, hint_bytes, " (did you mean %s?)", found);
    return false;
}

/* What to do instead of giving an option that only other commands have; NULL when there is no advice. */
static const char *advice_for(int id) {
    switch (id) {
    case CR_OPT_OUTPUT:
    case CR_OPT_EXPORT_FILE: return "results are on standard output, which > FILE redirects";
    case CR_OPT_GPUS:
    case CR_OPT_RANKS: return "it runs in one process; train.gpu=N chooses the GPU";
    case CR_OPT_BATCH: return "leave it out; train.eval_batch=N is the batch size of an evaluation";
    case CR_OPT_MODEL: return "model.arch=NAME chooses the network";
    default: return "leave it out";
    }
}

/* The option exists, but not for this command: names the commands that have it. Several ids may share the name. */
static cr_status foreign_option(const struct cr_args *args, int id, const char *shown) {
    char owners[200] = "";
    for (int c = 0; c < CR_CMD_COUNT; c++)
        for (int i = 0; i < CR_OPT_COUNT; i++) {
            if (strcmp(name_of(i), name_of(id)) != 0 || !belongs(i, (enum cr_command_id)c)) continue;
            const size_t used = strlen(owners);
            snprintf(owners + used, sizeof owners - used, "%s%s", used ? ", " : "",
                     cr_command((enum cr_command_id)c)->name);
            break;
        }
    return cr_args_fail(args, "option %s belongs to cresnet %s, not to %s: %s", shown, owners,
                        cr_command(args->command)->name, advice_for(id));
}

/* The name that another trainer has for a key (--batch-size): names the option or the key. */
static cr_status other_name(const struct cr_args *args, const char *word, const struct cr_key *key) {
    char dotted[64];
    snprintf(dotted, sizeof dotted, "%s.%s", key->section, key->name);
    for (int i = 0; i < CR_OPT_COUNT; i++) {
        const char *stands_for = cr_cli_option((enum cr_option_id)i)->key;
        if (belongs(i, args->command) && stands_for && strcmp(stands_for, dotted) == 0)
            return cr_args_fail(args, "unknown option --%s (did you mean --%s?)", word, name_of(i));
    }
    return cr_args_fail(args, "unknown option --%s (did you mean %s=VALUE?)", word, dotted);
}

static cr_status unknown_option(const struct cr_args *args, const char *name, size_t length) {
    char        word[64], shown[80];
    const char *names[CR_OPT_COUNT] = {0};
    snprintf(word, sizeof word, "%.*s", (int)CR_MIN(length, sizeof word - 1), name);
    snprintf(shown, sizeof shown, "--%s", word);
    for (int i = 0; i < CR_OPT_COUNT; i++) {
        if (belongs(i, args->command))
            names[i] = name_of(i);
        else if (strcmp(name_of(i), word) == 0)
            return foreign_option(args, i, shown);
    }
    const struct cr_key *key = belongs(CR_OPT_SET, args->command) ? cr_key_of_any_name(word) : NULL;
    if (key) return other_name(args, word, key);
    const char *hint = nearest(word, names, CR_OPT_COUNT);
    return hint ? cr_args_fail(args, "unknown option --%s (did you mean --%s?)", word, hint)
                : cr_args_fail(args, "unknown option --%s", word);
}

/* ---- parsing ---- */

struct parser {
    struct cr_args *args;
    int             argc, at;
    char          **argv;
};

/* Returns whether `s` is "section.key=..." with a plausible section and key. A path with '.' and '=' is not an
 * override. */
static bool is_override(const char *s) {
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyz_0123456789");
    if (!n || s[n] != '.') return false;
    size_t m = strspn(s + n + 1, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
    return m && s[n + 1 + m] == '=';
}

static cr_status add_override(struct cr_args *args, const char *key, size_t key_length, const char *value) {
    char *text = cr_arena_printf(&args->arena, "%.*s=%s", (int)key_length, key, value);
    if (!text) return CR_NO_MEMORY(key_length + strlen(value));
    args->override[args->overrides++] = text;
    return CR_OK;
}

/* The value of the current option: `inline_value`, or the next word when that is NULL. */
static cr_status read_value(struct parser *p, const char *shown, const char *placeholder, const char *inline_value,
                            const char **out) {
    if (!inline_value && p->at >= p->argc)
        return cr_args_fail(p->args, "option %s needs a value: %s", shown, placeholder);
    /* A value may be "-", a negative number, or begin with two dashes after "=". */
    const char *next = inline_value ? "" : p->argv[p->at];
    if (next[0] == '-' && (next[1] == '-' || isalpha((unsigned char)next[1])))
        return cr_args_fail(p->args, "option %s needs a value (%s), but the next word is %s", shown, placeholder, next);
    *out = inline_value ? inline_value : p->argv[p->at++];
    return CR_OK;
}

static cr_status parse_option(struct parser *p, int id, const char *shown, const char *inline_value) {
    const struct cr_cli_option *option = cr_cli_option((enum cr_option_id)id);
    const char                 *value  = "";
    if (!option->value && inline_value) return cr_args_fail(p->args, "option %s takes no value", shown);
    if (option->value) CR_TRY(read_value(p, shown, option->value, inline_value, &value));
    if ((id == CR_OPT_OUTPUT || id == CR_OPT_SVG) && strcmp(value, "-") == 0)
        return cr_args_fail(p->args, "%s -: standard output cannot be used here: name a %s", shown,
                            id == CR_OPT_SVG ? "file" : "folder");
    p->args->value[id] = value;
    if (option->key) return add_override(p->args, option->key, strlen(option->key), option->value ? value : "yes");
    if (id != CR_OPT_SET) return CR_OK;
    const char *equals = strchr(value, '=');
    if (!equals || !strchr(value, '.')) return cr_args_fail(p->args, "--set %s: must be section.key=value", value);
    return add_override(p->args, value, (size_t)(equals - value), equals + 1);
}

/* Id of the command's option of this long name; CR_OPT_COUNT when there is none. */
static int find_long(enum cr_command_id command, const char *name, size_t length) {
    for (int id = 0; id < CR_OPT_COUNT; id++)
        if (belongs(id, command) && strlen(name_of(id)) == length && strncmp(name_of(id), name, length) == 0) return id;
    return CR_OPT_COUNT;
}

static cr_status parse_long(struct parser *p, const char *word) {
    const char *equals = strchr(word, '=');
    size_t      length = equals ? (size_t)(equals - word) : strlen(word);
    int         id     = find_long(p->args->command, word, length);
    if (id != CR_OPT_COUNT) {
        char shown[64];
        snprintf(shown, sizeof shown, "--%s", name_of(id));
        return parse_option(p, id, shown, equals ? equals + 1 : NULL);
    }
    if (!memchr(word, '.', length) || p->args->command == CR_CMD_HELP) return unknown_option(p->args, word, length);
    char        shown[128];
    const char *value = NULL;
    snprintf(shown, sizeof shown, "--%.*s", (int)CR_MIN(length, (size_t)100), word);
    CR_TRY(read_value(p, shown, "the value of the key", equals ? equals + 1 : NULL, &value));
    return add_override(p->args, word, length, value);
}

static cr_status parse_short(struct parser *p, const char *word) {
    char shown[3] = {'-', word[0], 0};
    /* "-output" is a mistyped --output, not -o with the value "utput". */
    if (word[1] && find_long(p->args->command, word, strcspn(word, "=")) != CR_OPT_COUNT)
        return cr_args_fail(p->args, "unknown option -%s (did you mean --%s?)", word, word);
    for (int id = 0; id < CR_OPT_COUNT; id++) {
        if (cr_cli_option((enum cr_option_id)id)->letter != word[0] || !belongs(id, p->args->command)) continue;
        const char *rest = word[1] == '=' ? word + 2 : word[1] ? word + 1 : NULL;
        return parse_option(p, id, shown, rest);
    }
    for (int id = 0; id < CR_OPT_COUNT; id++)
        if (cr_cli_option((enum cr_option_id)id)->letter == word[0]) return foreign_option(p->args, id, shown);
    if (word[1]) return cr_args_fail(p->args, "unknown option -%s (long options start with two dashes)", word);
    return cr_args_fail(p->args, "unknown option %s", shown);
}

static cr_status parse_all(struct parser *p) {
    struct cr_args *args  = p->args;
    bool            ended = false; /* whether -- was seen */
    while (p->at < p->argc) {
        const char *word = p->argv[p->at++];
        if (ended || word[0] != '-' || !word[1]) {
            const char *equals = strchr(word, '=');
            if (!ended && is_override(word))
                CR_TRY(add_override(args, word, (size_t)(equals - word), equals + 1));
            else
                args->operand[args->operands++] = word;
        } else if (strcmp(word, "--") == 0)
            ended = true;
        else if (word[1] == '-')
            CR_TRY(parse_long(p, word + 2));
        else
            CR_TRY(parse_short(p, word + 1));
        /* With --help or --version, mistakes in later words do not matter. */
        if (cr_args_has(args, CR_OPT_HELP) || cr_args_has(args, CR_OPT_VERSION)) break;
    }
    return CR_OK;
}

cr_status cr_args_parse(enum cr_command_id command, int argc, char **argv, struct cr_args *out) {
    size_t         bytes = (size_t)CR_MAX(argc, 1) * sizeof *out->operand;
    struct cr_args args  = {.command = command};
    args.operand         = cr_arena_alloc(&args.arena, bytes);
    args.override        = cr_arena_alloc(&args.arena, bytes);
    struct parser p      = {.args = &args, .argc = argc, .argv = argv};
    cr_status     status = args.operand && args.override ? parse_all(&p) : CR_NO_MEMORY(bytes);
    if (status != CR_OK) {
        cr_args_free(&args);
        return status;
    }
    *out = args;
    return CR_OK;
}

void cr_args_free(struct cr_args *args) {
    cr_arena_free(&args->arena);
    *args = (struct cr_args){0};
}

cr_status cr_args_int(const struct cr_args *args, enum cr_option_id id, int64_t min, int64_t max, int64_t fallback,
                      int64_t *out) {
    const char *text = args->value[id];
    char       *end;
    *out = fallback;
    if (!text) return CR_OK;
    errno           = 0;
    long long value = strtoll(text, &end, 10);
    if (!*text || *end || errno || isspace((unsigned char)*text) || value < min || value > max)
        return cr_args_fail(args, "--%s %s: must be an integer from %lld to %lld", name_of(id), text, (long long)min,
                            (long long)max);
    *out = value;
    return CR_OK;
}

cr_status cr_args_real(const struct cr_args *args, enum cr_option_id id, double min, double max, const char *what,
                       double *out) {
    const char *text = args->value[id];
    char       *end;
    if (!text) return CR_OK;
    *out = strtod(text, &end);
    if (end == text || *end || !(*out >= min && *out <= max))
        return cr_args_fail(args, "--%s %s: must be %s", name_of(id), text, what);
    return CR_OK;
}

cr_status cr_args_word(const struct cr_args *args, enum cr_option_id id, int *out) {
    const char *words = cr_option_words(args->command, id), *text = args->value[id];
    *out = 0;
    if (!text) return CR_OK;
    *out = cr_word_index(words, text, strlen(text));
    if (*out >= 0) return CR_OK;
    char allowed[128];
    cr_words_list(words, allowed, sizeof allowed);
    return cr_args_fail(args, "--%s %s: must be one of %s", name_of(id), text, allowed);
}
