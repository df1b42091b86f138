/* cli/arguments.c: see cli/arguments.h. */
#include "cli/arguments.h"

#include "config/keys.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ON(name) (1u << CR_CMD_##name)
enum {
    ON_ALL     = (1u << CR_CMD_COUNT) - 1,
    ON_CONFIG  = ON_ALL & ~ON(HELP) & ~ON(EXPORT),
    ON_DEVICES = ON_CONFIG & ~ON(DATA) & ~ON(CHECK),
    ON_STEPS   = ON(TRAIN) | ON(PLAN) | ON(CHECK) | ON(BENCH) | ON(PROFILE), /* commands with training programs */
};

static const struct cr_cli_option options[CR_OPT_COUNT] = {
    [CR_OPT_RESUME] = {"resume", 0, "auto|PATH", NULL, ON(TRAIN),
                       "go on from the newest checkpoint of the output, or from PATH"},
    [CR_OPT_FORCE]  = {"force", 0, NULL, NULL, ON(TRAIN), "resume although the model or the order of the data changed"},
    [CR_OPT_TRAIN_STEPS] = {"steps", 0, "N", "train.steps", ON(TRAIN),
                            "stop after N steps (schedules keep the length of --epochs)"},
    [CR_OPT_GPUS]        = {"gpus", 0, "N|all", NULL, ON(TRAIN) | ON(BENCH),
                            "so many processes, one a GPU (bench spdnn: GPUs that share the inputs)"},
    [CR_OPT_RANKS]       = {"ranks", 0, "N", NULL, ON(TRAIN) | ON(BENCH) | ON(PLAN),
                            "so many processes; with --device cpu they share the cores (plan: of such a run)"},
    [CR_OPT_SPLIT]       = {"split", 0, "val|train", NULL, ON(EVAL), "which pictures (val)"},
    [CR_OPT_PER_CLASS]   = {"per-class", 0, NULL, NULL, ON(EVAL),
                            "also a line a class: images, top-1, precision, what it is most confused with"},
    [CR_OPT_CONFUSION]   = {"confusion", 0, "FILE", NULL, ON(EVAL),
                            "also write the confusion matrix as CSV: a row a label, a column a predicted class"},
    [CR_OPT_TOP]     = {"top", 'k', "N", NULL, ON(PREDICT), "classes named for each picture, 1 to 5 (5; of folders 1)"},
    [CR_OPT_PROFILE] = {"profile", 0, "FILE", NULL, ON(REPORT),
                        "what cresnet profile --json wrote (RUN/profile.jsonl, where it is there)"},
    [CR_OPT_NO_EVAL] = {"no-eval", 0, NULL, NULL, ON(REPORT), "no evaluation: no confusion matrix and pictures"},
    [CR_OPT_EMA]     = {"ema", 0, NULL, NULL, ON(EVAL) | ON(PREDICT) | ON(PRUNE) | ON(EXPORT),
                        "of a RUN: its moving averages ([ema], ema.safetensors) instead of its weights"},
    [CR_OPT_PROGRAM] = {"program", 0, NULL, NULL, ON(PLAN), "print the compiled program, one line an op"},
    [CR_OPT_AFTER]   = {"after", 0, "PASS", NULL, ON(PLAN),
                        "print the program after a pass: grad, fuse, select, order, plan"},
    [CR_OPT_CHOICES] =
        {"choices", 0, NULL, NULL, ON(PLAN),
         "print what each convolution takes over, and the time that costs and saves; with --json a line each"},
    [CR_OPT_LIFETIMES]  = {"lives", 0, NULL, NULL, ON(PLAN),
                           "print where each large tensor waits for its next use: device, recompute, swap; and why"},
    [CR_OPT_CURVE]      = {"curve", 0, NULL, NULL, ON(PLAN),
                           "print predicted time against memory, by swapping alone, each way of choosing"},
    [CR_OPT_WHICH]      = {"which", 0, "PROGRAM", NULL, ON(PLAN) | ON(PROFILE) | ON(BENCH),
                           "step (default) or eval; of a plan also micro_first, micro, micro_last; bench: of bench ops"},
    [CR_OPT_CSV]        = {"csv", 0, NULL, NULL, ON(PLAN),
                           "the pool as CSV: id, lower, upper, size, offset; with FILE.csv: plan the lives of that file"},
    [CR_OPT_CAPACITY]   = {"capacity", 0, "N", NULL, ON(PLAN),
                           "of --csv FILE: space that the plan must fit into (as little as possible)"},
    [CR_OPT_TIME_LIMIT] = {"time-limit", 0, "S", NULL, ON(PLAN), "of --csv FILE: seconds of search, 0: none (60)"},
    [CR_OPT_PNG]       = {"png", 0, "FILE", NULL, ON(PLAN), "also draw the pool: time to the right, addresses upwards"},
    [CR_OPT_TRACE]     = {"trace", 0, "FILE", NULL, ON(PLAN),
                          "plan the memory log of any program instead (CSV: time,event,id,size)"},
    [CR_OPT_TARGET]    = {"target", 0, "GPU", NULL, ON(PLAN),
                          "plan for a GPU that is not there: h200, h100, a100, rtx4090"},
    [CR_OPT_COSTS]     = {"costs", 0, "FILE", NULL, ON(PLAN),
                          "of --target: the times that a run on such a GPU measured (its ~/.cache/cresnet/costs-*.txt)"},
    [CR_OPT_ALIGNMENT] = {"alignment", 0, "BYTES", NULL, ON(PLAN), "of the blocks of --trace (64)"},
    [CR_OPT_DEVICES]   = {"devices", 0, "LIST", NULL, ON(CHECK),
                          "devices to judge, e.g. cpu or cpu,cuda (all that are there)"},
    [CR_OPT_BENCH_STEPS] = {"steps", 0, "N", NULL, ON(BENCH) | ON(PROFILE), "timed steps (20)"},
    [CR_OPT_ORDER]       = {"order", 0, "ORDER", NULL, ON(PROFILE),
                            "time: slowest op first (default), or program: as they run"},
    [CR_OPT_AGAINST]     = {"against", 0, "IMG_PER_S", NULL, ON(BENCH),
                            "data: also how long a trainer of this speed would wait for pictures"},
    [CR_OPT_NEURONS] = {"neurons", 0, "LIST", NULL, ON(BENCH), "spdnn: widths of the networks (1024,4096,16384,65536)"},
    [CR_OPT_LAYERS]  = {"layers", 0, "LIST", NULL, ON(BENCH), "spdnn: depths of the networks (120,480,1920)"},
    [CR_OPT_INPUTS]  = {"inputs", 0, "N", NULL, ON(BENCH), "spdnn: how many (60000)"},
    [CR_OPT_MNIST]   = {"mnist", 0, "FILE", NULL, ON(BENCH),
                        "spdnn: train-images-idx3-ubyte, unpacked (drawn strokes instead)"},
    [CR_OPT_NO_DROP] = {"no-drop", 0, NULL, NULL, ON(BENCH), "spdnn: compute inputs to the end that have become zero"},
    [CR_OPT_NO_GROUPS]    = {"no-groups", 0, NULL, NULL, ON(BENCH),
                             "spdnn: each row alone, also where rows have the same columns"},
    [CR_OPT_STREAM]       = {"stream", 0, NULL, NULL, ON(BENCH),
                             "spdnn: weights from host memory through two buffers, also where they would fit"},
    [CR_OPT_CHECK_INPUTS] = {"check", 0, "N", NULL, ON(BENCH),
                             "spdnn: inputs that the CPU judges, 0: none (as many as take it some seconds)"},
    [CR_OPT_VERBOSE]      = {"verbose", 0, NULL, NULL, ON(BENCH), "spdnn: also how many inputs survive each layer"},
    [CR_OPT_NETS]         = {"nets", 0, "LIST", NULL, ON(BENCH), "sparse: whose convolutions (resnet50,resnet18)"},
    [CR_OPT_BATCHES]      = {"batches", 0, "LIST", NULL, ON(BENCH), "sparse: pictures at a time (1,32,256)"},
    [CR_OPT_SPARSITIES] =
        {"sparsity", 0, "LIST", NULL, ON(BENCH),
         "sparse: shares of pruned weights (0.6,0.8,0.9,0.95,0.98); with --budget: the columns nearest to them"},
    [CR_OPT_TYPES]     = {"types", 0, "LIST", NULL, ON(BENCH), "sparse: fp32, fp16 or both (fp32,fp16)"},
    [CR_OPT_BENCH_CSV] = {"csv", 0, NULL, NULL, ON(BENCH), "sparse: a line a layer, fields by commas"},
    [CR_OPT_RAW] = {"raw", 0, "SIZE", NULL, ON(DATA), "pack: store pixels, the short side reduced to SIZE, not files"},
    [CR_OPT_SPARSITY]  = {"sparsity", 0, "S", "prune.sparsity", ON(PRUNE),
                          "share of the weights that become 0, e.g. 0.9"},
    [CR_OPT_SCOPE]     = {"scope", 0, "SCOPE", "prune.scope", ON(PRUNE), "global, uniform or erk: how layers share it"},
    [CR_OPT_PATTERN]   = {"pattern", 0, "P", "prune.pattern", ON(PRUNE), "unstructured, 2:4, block or channel"},
    [CR_OPT_BUDGET]    = {"budget", 0, "FILE.csv", "prune.budget", ON(PRUNE) | ON(BENCH), "a sparsity for each layer"},
    [CR_OPT_EXEMPT]    = {"exempt", 0, "LAYERS", "prune.exempt", ON(PRUNE),
                          "layers that stay dense (auto: conv1,fc; with a budget none)"},
    [CR_OPT_TARGET_MS] = {"target-ms", 0, "MS", NULL, ON(PRUNE),
                          "choose each layer's sparsity so that evaluating a batch takes at most MS milliseconds"},
    [CR_OPT_PRUNE_BATCH] = {"batch", 'b', "N", "train.eval_batch", ON(PRUNE),
                            "pictures of the evaluation that --target-ms means"},
    [CR_OPT_DENSE]       = {"dense", 0, NULL, NULL, ON(EXPORT),
                            "torchvision's state dict, pruned weights as 0 (the only form, and the default)"},
    [CR_OPT_EXPORT_FILE] = {"output", 'o', "FILE", NULL, ON(EXPORT) | ON(REPORT),
                            "file to write (report: RUN/report.html)"},
    [CR_OPT_NAMES]       = {"names", 0, "LIBRARY", NULL, ON(EXPORT),
                            "whose names the weights get: torchvision or timm, which are the same for these networks"},
    [CR_OPT_ONNX]        = {"onnx", 0, "FILE", NULL, ON(EXPORT),
                            "the network with its weights as ONNX (opset 17), for other runtimes"},
    [CR_OPT_FOLD]        = {"fold", 0, NULL, NULL, ON(EXPORT),
                            "onnx: batch normalisation within the convolutions, for inference only"},
    [CR_OPT_JSON]        = {"json", 0, NULL, NULL,
                            ON(EVAL) | ON(PREDICT) | ON(PLAN) | ON(CHECK) | ON(BENCH) | ON(PROFILE) | ON(DATA) | ON(PRUNE),
                            "one JSON line (predict: one a picture; profile: one an op) on standard output"},
    [CR_OPT_DEVICE]      = {"device", 0, "D", "train.device", ON_DEVICES, "auto, cpu or cuda"},
    [CR_OPT_WEIGHTS]     = {"weights", 0, "FILE", "model.weights", (ON_CONFIG & ~ON(DATA)) | ON(EXPORT),
                            "safetensors file or checkpoint folder to load"},
    [CR_OPT_OUTPUT]      = {"output", 'o', "DIR", "train.output", ON_CONFIG & ~ON(DATA) & ~ON(REPORT), "run folder"},
    [CR_OPT_BATCH]       = {"batch", 'b', "N", "train.batch", ON_CONFIG & ~ON(PRUNE), "pictures a step"},
    [CR_OPT_WORKERS]     = {"workers", 'j', "N", "data.workers", ON_CONFIG & ~ON(PRUNE), "threads that read pictures"},
    [CR_OPT_THREADS]     = {"threads", 0, "N", "train.threads", ON_CONFIG & ~ON(DATA), "CPU threads that compute"},
    [CR_OPT_EPOCHS]      = {"epochs", 0, "N", "train.epochs", ON_STEPS, "length of the run and its schedule"},
    [CR_OPT_LR]          = {"lr", 0, "X", "optim.lr", ON_STEPS, "learning rate after warm-up"},
    [CR_OPT_SEED]        = {"seed", 0, "N", "train.seed", ON_CONFIG, "every random choice follows from it"},
    [CR_OPT_SET]         = {"set", 0, "SECTION.KEY=VALUE", NULL, ON_CONFIG | ON(EXPORT),
                            "any config key; also SECTION.KEY=VALUE, --SECTION.KEY=VALUE"},
    [CR_OPT_QUIET]       = {"quiet", 'q', NULL, NULL, ON_ALL, "no progress, only results, warnings and errors"},
    [CR_OPT_VERSION]     = {"version", 'V', NULL, NULL, ON_ALL, "what was compiled in, library versions, devices"},
    [CR_OPT_HELP]        = {"help", 'h', NULL, NULL, ON_ALL, "this text"},
};

const struct cr_cli_option *cr_cli_option(enum cr_option_id id) {
    return &options[id];
}

bool cr_cli_option_belongs(enum cr_option_id id, enum cr_command_id command) {
    return options[id].commands >> command & 1;
}

static bool belongs(int id, enum cr_command_id command) {
    return cr_cli_option_belongs((enum cr_option_id)id, command);
}

/* ---- messages ---- */

static cr_status fail_with_hint(enum cr_command_id command, const char *what) {
    const char *name = cr_command(command)->name;
    return CR_FAIL(CR_ERR_USAGE, "%s; see cresnet %s%s", what, name, command == CR_CMD_HELP ? "" : " --help");
}

cr_status cr_args_fail(const struct cr_args *args, const char *fmt, ...) {
    char    what[1000];
    va_list list;
    va_start(list, fmt);
    vsnprintf(what, sizeof what, fmt, list);
    va_end(list);
    return fail_with_hint(args->command, what);
}

cr_status cr_args_most(const struct cr_args *args, int most) {
    if (args->operands <= most) return CR_OK;
    const char *extra = args->operand[most];
    return cr_args_fail(args, "unexpected operand %s%s", extra,
                        strchr(extra, '=') ? " (a config value is section.key=value)" : "");
}

/* Edit distance, less one when the first letters agree: typing goes wrong later in a word more often than at its start.
 */
static int word_distance(const char *a, const char *b) {
    return cr_edit_distance(a, b) - (a[0] == b[0]);
}

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

static cr_status unknown_option(const struct cr_args *args, const char *name, size_t length) {
    char        word[64], what[300];
    const char *names[CR_OPT_COUNT] = {0};
    snprintf(word, sizeof word, "%.*s", (int)CR_MIN(length, sizeof word - 1), name);
    for (int i = 0; i < CR_OPT_COUNT; i++) {
        if (belongs(i, args->command)) names[i] = options[i].name;
        if (belongs(i, args->command) || strcmp(options[i].name, word) != 0) continue;
        for (int c = 0; c < CR_CMD_COUNT; c++)
            if (belongs(i, (enum cr_command_id)c))
                return cr_args_fail(args, "option --%s belongs to cresnet %s, not to %s", word,
                                    cr_command((enum cr_command_id)c)->name, cr_command(args->command)->name);
    }
    const char *hint = nearest(word, names, CR_OPT_COUNT);
    if (hint)
        snprintf(what, sizeof what, "unknown option --%s (did you mean --%s?)", word, hint);
    else
        snprintf(what, sizeof what, "unknown option --%s", word);
    return fail_with_hint(args->command, what);
}

/* ---- parsing ---- */

struct parser {
    struct cr_args *args;
    int             argc, at;
    char          **argv;
};

/* "section.key=..." with a plausible section and key, so that a path with '.' and '=' in it is not taken for one. */
static bool is_override(const char *s) {
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyz_0123456789");
    if (!n || s[n] != '.') return false;
    size_t m = strspn(s + n + 1, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
    return m && s[n + 1 + m] == '=';
}

static cr_status take_override(struct cr_args *args, const char *key, size_t key_length, const char *value) {
    char *text = cr_arena_printf(&args->arena, "%.*s=%s", (int)key_length, key, value);
    if (!text) return CR_NO_MEMORY(key_length + strlen(value));
    args->override[args->overrides++] = text;
    return CR_OK;
}

/* The value of the option at hand: `inline_value`, or the next word. */
static cr_status take_value(struct parser *p, const char *shown, const char *what, const char *inline_value,
                            const char **out) {
    if (!inline_value && p->at >= p->argc) return cr_args_fail(p->args, "option %s needs a value: %s", shown, what);
    *out = inline_value ? inline_value : p->argv[p->at++];
    return CR_OK;
}

static cr_status take_option(struct parser *p, int id, const char *shown, const char *inline_value) {
    const struct cr_cli_option *option = &options[id];
    const char                 *value  = "";
    if (!option->value && inline_value) return cr_args_fail(p->args, "option %s takes no value", shown);
    if (option->value) CR_TRY(take_value(p, shown, option->value, inline_value, &value));
    p->args->value[id] = value;
    if (option->key) return take_override(p->args, option->key, strlen(option->key), value);
    if (id != CR_OPT_SET) return CR_OK;
    const char *equals = strchr(value, '=');
    if (!equals || !strchr(value, '.')) return cr_args_fail(p->args, "--set %s: must be section.key=value", value);
    return take_override(p->args, value, (size_t)(equals - value), equals + 1);
}

static cr_status take_long(struct parser *p, const char *word) {
    const char *equals = strchr(word, '=');
    size_t      length = equals ? (size_t)(equals - word) : strlen(word);
    for (int id = 0; id < CR_OPT_COUNT; id++) {
        if (!belongs(id, p->args->command) || strlen(options[id].name) != length ||
            strncmp(options[id].name, word, length) != 0)
            continue;
        char shown[64];
        snprintf(shown, sizeof shown, "--%s", options[id].name);
        return take_option(p, id, shown, equals ? equals + 1 : NULL);
    }
    if (!memchr(word, '.', length) || p->args->command == CR_CMD_HELP) return unknown_option(p->args, word, length);
    char        shown[128];
    const char *value = NULL;
    snprintf(shown, sizeof shown, "--%.*s", (int)CR_MIN(length, (size_t)100), word);
    CR_TRY(take_value(p, shown, "the key's", equals ? equals + 1 : NULL, &value));
    return take_override(p->args, word, length, value);
}

static bool is_long_name(const struct parser *p, const char *word) {
    size_t length = strcspn(word, "=");
    for (int id = 0; id < CR_OPT_COUNT; id++)
        if (belongs(id, p->args->command) && strlen(options[id].name) == length &&
            !strncmp(options[id].name, word, length))
            return true;
    return false;
}

static cr_status take_short(struct parser *p, const char *word) {
    char shown[3] = {'-', word[0], 0};
    /* -output is a slip, not the folder "utput". */
    if (word[1] && is_long_name(p, word))
        return cr_args_fail(p->args, "unknown option -%s (did you mean --%s?)", word, word);
    for (int id = 0; id < CR_OPT_COUNT; id++) {
        if (options[id].letter != word[0] || !belongs(id, p->args->command)) continue;
        const char *rest = word[1] == '=' ? word + 2 : word[1] ? word + 1 : NULL;
        return take_option(p, id, shown, rest);
    }
    if (word[1]) return cr_args_fail(p->args, "unknown option -%s (long options begin with two dashes)", word);
    return cr_args_fail(p->args, "unknown option %s", shown);
}

static cr_status parse_all(struct parser *p) {
    struct cr_args *args  = p->args;
    bool            ended = false; /* -- was seen */
    while (p->at < p->argc) {
        const char *word = p->argv[p->at++];
        if (ended || word[0] != '-' || !word[1]) {
            const char *equals = strchr(word, '=');
            if (!ended && is_override(word))
                CR_TRY(take_override(args, word, (size_t)(equals - word), equals + 1));
            else
                args->operand[args->operands++] = word;
        } else if (strcmp(word, "--") == 0)
            ended = true;
        else if (word[1] == '-')
            CR_TRY(take_long(p, word + 2));
        else
            CR_TRY(take_short(p, word + 1));
        /* What asks for help is not faulted for the rest. */
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

cr_status cr_args_int(const struct cr_args *args, enum cr_option_id id, int64_t min, int64_t max, int64_t otherwise,
                      int64_t *out) {
    const char *text = args->value[id];
    char       *end;
    *out = otherwise;
    if (!text) return CR_OK;
    errno           = 0;
    long long value = strtoll(text, &end, 10);
    if (!*text || *end || errno || isspace((unsigned char)*text) || value < min || value > max)
        return cr_args_fail(args, "--%s %s: must be a whole number from %lld to %lld", options[id].name, text,
                            (long long)min, (long long)max);
    *out = value;
    return CR_OK;
}

cr_status cr_args_word(const struct cr_args *args, enum cr_option_id id, const char *const *words, int *out) {
    char allowed[200] = "";
    *out              = 0;
    if (!args->value[id]) return CR_OK;
    for (int i = 0; words[i]; i++) {
        size_t used = strlen(allowed);
        snprintf(allowed + used, sizeof allowed - used, "%s%s", i ? ", " : "", words[i]);
        if (strcmp(words[i], args->value[id]) != 0) continue;
        *out = i;
        return CR_OK;
    }
    return cr_args_fail(args, "--%s %s: must be one of %s", options[id].name, args->value[id], allowed);
}

/* ---- help ---- */

void cr_command_usage(enum cr_command_id id, struct cr_text *out) {
    cr_text_add(out, "usage: cresnet %s %s\n", cr_command(id)->name, cr_command(id)->operands);
}

void cr_command_help(enum cr_command_id id, struct cr_text *out) {
    cr_command_usage(id, out);
    cr_text_add(out, "\n%s\nOptions (anywhere on the line; --x V and --x=V are the same):\n", cr_command(id)->about);
    for (int i = 0; i < CR_OPT_COUNT; i++) {
        const struct cr_cli_option *o = &options[i];
        char                        left[64], letter[8] = "    ";
        if (!belongs(i, id)) continue;
        if (o->letter) snprintf(letter, sizeof letter, "-%c, ", o->letter);
        snprintf(left, sizeof left, "%s--%s%s%s", letter, o->name, o->value ? " " : "", o->value ? o->value : "");
        cr_text_add(out, "  %-28s  %s%s%s%s\n", left, o->help, o->key ? " [" : "", o->key ? o->key : "",
                    o->key ? "]" : "");
    }
    if (id != CR_CMD_HELP && id != CR_CMD_DATA && id != CR_CMD_EXPORT)
        cr_text_add(out, "\nEvery config key: cresnet help keys\n");
}
