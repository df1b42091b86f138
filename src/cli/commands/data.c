/* cli/commands/data.c: cresnet data: describes a dataset, writes the built-in one, packs datasets and verifies them.
 */
#include "cli/common/command.h"
#include "core/files.h"
#include "data/pack.h"
#include "formats/json_write.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHAPES_TRAIN = 4000, SHAPES_VAL = 1000, NAMES_SHOWN = 20, SIDE_MAX = 8192, JPEG_QUALITY = 90 };

static void json_split(const struct cr_dataset *dataset, enum cr_split split, int size, struct cr_json_writer *w) {
    cr_json_open_object(w, split == CR_SPLIT_TRAIN ? "train" : "val");
    cr_json_put_int(w, "images", dataset->count);
    cr_json_put_int(w, "size", size);
    cr_json_put_hash(w, "fingerprint", dataset->fingerprint);
    cr_json_close_object(w);
}

static void json_classes(const struct cr_dataset *dataset, struct cr_json_writer *w) {
    cr_json_open_array(w, "classes");
    for (int i = 0; i < dataset->classes; i++) cr_json_put_string(w, NULL, dataset->class_names[i]);
    cr_json_close_array(w);
}

static void print_split(const struct cr_dataset *dataset, enum cr_split split, const struct cr_prepare *prepare,
                        bool names, struct cr_text *out) {
    const int classes = dataset->classes;
    cr_text_add(out, "%-7s ", split == CR_SPLIT_TRAIN ? "train:" : "val:");
    cr_dataset_describe(dataset, out);
    char size[32];
    cr_prepare_size_text(prepare, size);
    cr_text_add(out, "; network input %s px\n", size);
    for (int i = 0; names && i < CR_MIN(classes, NAMES_SHOWN); i++)
        cr_text_add(out, "%s%s", i ? ", " : "classes: ", dataset->class_names[i]);
    if (names) cr_text_add(out, "%s\n", classes > NAMES_SHOWN ? ", ..." : "");
}

/* Writes JSON with `w`, or with w NULL text. `names`: the names of the classes too. */
static cr_status describe_split(const struct cr_config *config, enum cr_split split, bool names,
                                struct cr_json_writer *w, struct cr_text *out) {
    struct cr_dataset *dataset;
    struct cr_prepare  prepare;
    CR_TRY(cr_prepare_from_config(config, split, &prepare));
    CR_TRY(cr_dataset_open(config, split, &dataset));
    if (w && names) json_classes(dataset, w);
    if (w)
        json_split(dataset, split, prepare.size, w);
    else
        print_split(dataset, split, &prepare, names, out);
    cr_dataset_close(dataset);
    return CR_OK;
}

static cr_status describe(const struct cr_args *args, struct cr_text *out) {
    const struct cr_config *config;
    struct cr_json_writer   writer = cr_json_writer(out, CR_JSON_SPACED);
    struct cr_json_writer  *w      = cr_args_has(args, CR_OPT_JSON) ? &writer : NULL;
    CR_TRY(cr_args_max_operands(args, 1));
    CR_TRY(cr_cmd_config(args, &config));
    cr_status status;
    if (w) {
        cr_json_open_object(w, NULL);
        cr_json_put_string(w, "kind", cr_word_data_kind(config->data.kind));
        cr_json_put_string(w, "root", config->data.root);
    } else
        cr_text_add(out, "%s%s%s\n", cr_word_data_kind(config->data.kind), *config->data.root ? " in " : "",
                    config->data.root);
    CR_TRY_OUT(describe_split(config, CR_SPLIT_TRAIN, false, w, out));
    CR_TRY_OUT(describe_split(config, CR_SPLIT_VAL, true, w, out));
    if (w) cr_json_close_line(w);
out:
    cr_config_close(config);
    return status;
}

static cr_status draw_shapes(const struct cr_args *args, struct cr_text *out) {
    const struct cr_config *config;
    if (!args->operands) return cr_args_fail(args, "no folder given: cresnet data shapes DIR");
    CR_TRY(cr_args_max_operands(args, 1));
    CR_TRY(cr_config_open(&config, NULL, args->override, args->overrides));
    int64_t   train  = config->data.train_images ? config->data.train_images : SHAPES_TRAIN;
    int64_t   val    = config->data.val_images ? config->data.val_images : SHAPES_VAL;
    cr_status status = cr_shapes_make(args->operand[0], train, val);
    cr_config_close(config);
    if (status == CR_OK)
        cr_text_add(out, "%s: %lld training and %lld validation images in ten classes\n", args->operand[0],
                    (long long)train, (long long)val);
    return status;
}

/* ---- packing ---- */

/* The first SIGINT or SIGTERM stops packing and removes the unfinished file; the second ends the program at once. */
static atomic_int stop_signal;

static void on_stop(int number) {
    atomic_store(&stop_signal, number);
}

static cr_status pack_stoppable(const struct cr_dataset *dataset, const char *path, struct cr_pack_options *options,
                                struct cr_pack_result *out) {
    struct sigaction stop = {.sa_handler = on_stop, .sa_flags = (int)(SA_RESTART | SA_RESETHAND)}, on_int, on_term;
    options->stop         = &stop_signal;
    sigaction(SIGINT, &stop, &on_int);
    sigaction(SIGTERM, &stop, &on_term);
    cr_status status = cr_pack_dataset(dataset, path, options, out);
    sigaction(SIGINT, &on_int, NULL);
    sigaction(SIGTERM, &on_term, NULL);
    return status;
}

static void report_packed(const char *path, const struct cr_pack_result *result, bool json, struct cr_text *out) {
    if (json) {
        struct cr_json_writer w = cr_json_open_line(out);
        cr_json_put_string(&w, "file", path);
        cr_json_put_int(&w, "images", result->images);
        cr_json_put_int(&w, "bytes", result->bytes);
        cr_json_put_int(&w, "skipped", result->skipped);
        cr_json_close_line(&w);
        return;
    }
    cr_text_add(out, "%s: %lld images, %.1f MB", path, (long long)result->images, (double)result->bytes * 1e-6);
    if (result->skipped)
        cr_text_add(out, ", %lld unreadable image%s skipped", (long long)result->skipped,
                    result->skipped == 1 ? "" : "s");
    cr_text_add(out, "\n");
}

/* Writes OUT/train.crpk or OUT/val.crpk to `path`, and checks whether it may be written. */
static cr_status find_packed(const struct cr_args *args, const char *folder, enum cr_split split,
                             char path[CR_PATH_MAX], struct cr_output_file *out) {
    CR_TRY(cr_path_join(path, folder, "%s", split == CR_SPLIT_TRAIN ? CR_PACK_TRAIN_NAME : CR_PACK_VAL_NAME));
    CR_TRY(cr_output_file_find(path, CR_OUTPUT_PACK, cr_args_has(args, CR_OPT_REPLACE) ? CR_OUTPUT_FORCE : 0, out));
    return out->direct ? CR_FAIL(CR_ERR_IO, "%s: is a device or pipe: choose another folder", path) : CR_OK;
}

/* Reads --raw=SIZE and --jpeg=SIZE or SIZE,QUALITY. */
static cr_status read_pack_options(const struct cr_args *args, struct cr_pack_options *out) {
    const char *text = args->value[CR_OPT_JPEG];
    char       *end;
    int64_t     raw_side;
    CR_TRY(cr_args_int(args, CR_OPT_RAW, 1, SIDE_MAX, 0, &raw_side));
    *out = (struct cr_pack_options){.raw_side = (int)raw_side};
    if (!text) return CR_OK;
    if (raw_side) return cr_args_fail(args, "--jpeg and --raw exclude each other: leave one of them out");
    const long side = strtol(text, &end, 10), quality = *end == ',' ? strtol(end + 1, &end, 10) : JPEG_QUALITY;
    if (text[strspn(text, "0123456789,")] || *end || side < 1 || side > SIDE_MAX || quality < 1 || quality > 100)
        return cr_args_fail(args,
                            "--jpeg %s: must be SIZE or SIZE,QUALITY with a SIZE of 1 to %d and a QUALITY of 1 to 100",
                            text, SIDE_MAX);
    out->jpeg_side = (int)side;
    out->quality   = (int)quality;
    return CR_OK;
}

static cr_status pack_split(const struct cr_args *args, const struct cr_config *config, enum cr_split split,
                            const char *folder, struct cr_pack_options *options, struct cr_text *out) {
    struct cr_pack_result result;
    struct cr_dataset    *dataset;
    struct cr_output_file output;
    char                  path[CR_PATH_MAX];
    CR_TRY(find_packed(args, folder, split, path, &output));
    CR_TRY(cr_dataset_open(config, split, &dataset));
    cr_log(CR_LOG_INFO, "packing %lld images into %s", (long long)dataset->count, path);
    cr_status status = pack_stoppable(dataset, output.path, options, &result);
    cr_dataset_close(dataset);
    CR_TRY(status);
    report_packed(path, &result, cr_args_has(args, CR_OPT_JSON), out);
    return CR_OK;
}

/* Opens the validation set and closes it, so that an error is found before the long work. */
static cr_status check_val(const struct cr_args *args, const struct cr_config *config, const char *folder,
                           const struct cr_pack_options *options) {
    struct cr_dataset *dataset;
    CR_TRY(cr_dataset_open(config, CR_SPLIT_VAL, &dataset));
    cr_status status = cr_pack_allowed(dataset, options);
    if (status == CR_OK) status = cr_cmd_check_no_class(args, config, dataset, folder);
    cr_dataset_close(dataset);
    return status;
}

static cr_status pack(const struct cr_args *args, struct cr_text *out) {
    const struct cr_config *config;
    struct cr_arena         arena = {0};
    struct cr_output_file   output;
    char                    path[CR_PATH_MAX];
    struct cr_pack_options  options;
    cr_status               status;
    if (args->operands < 2)
        return cr_args_fail(args, "no dataset or output folder given: cresnet data pack CONFIG|DIR OUT");
    CR_TRY(cr_args_max_operands(args, 2));
    CR_TRY(read_pack_options(args, &options));
    CR_TRY(cr_cmd_data_config(args, &config));
    const char *folder    = args->operand[1];
    options.workers       = (int)config->data.workers;
    options.corrupt_fatal = config->data.corrupt == CR_CORRUPT_FATAL;
    CR_TRY_OUT(check_val(args, config, folder, &options));
    CR_TRY_OUT(find_packed(args, folder, CR_SPLIT_TRAIN, path, &output));
    CR_TRY_OUT(find_packed(args, folder, CR_SPLIT_VAL, path, &output));
    CR_TRY_OUT(cr_fs_mkdirs(folder));
    CR_TRY_OUT(pack_split(args, config, CR_SPLIT_TRAIN, folder, &options, out));
    CR_TRY_OUT(pack_split(args, config, CR_SPLIT_VAL, folder, &options, out));
    if (!cr_args_has(args, CR_OPT_JSON))
        cr_text_add(out, "train with data.kind=packed data.root=%s\n", cr_cmd_shell_word(&arena, folder));
out:
    cr_arena_free(&arena);
    cr_config_close(config);
    return status;
}

/* ---- verifying ---- */

struct verification {
    int             workers, files, failed; /* files: packed files and datasets */
    bool            json;
    cr_status       status; /* of the first file that failed */
    struct cr_text *text;
};

/* Starts the JSON line of a file. */
static struct cr_json_writer open_verified(const char *path, bool good, struct verification *v) {
    struct cr_json_writer w = cr_json_open_line(v->text);
    cr_json_put_string(&w, "file", path);
    cr_json_put_bool(&w, "ok", good);
    return w;
}

static cr_status read_file(const char *path, struct verification *v) {
    struct cr_pack *file;
    CR_TRY(cr_pack_open(path, &file));
    cr_status status  = cr_pack_verify(file, v->workers);
    long long count   = file->count;
    int       classes = file->classes;
    cr_pack_close(file);
    CR_TRY(status);
    if (v->json) {
        struct cr_json_writer w = open_verified(path, true, v);
        cr_json_put_int(&w, "images", count);
        cr_json_put_int(&w, "classes", classes);
        cr_json_close_line(&w);
    } else
        cr_text_add(v->text, "%s: %lld images in %d classes, all checksums match\n", path, count, classes);
    return CR_OK;
}

/* Verifies a packed file. An error is printed and counted, and the caller goes on with the next file. */
static void verify_file(const char *path, struct verification *v) {
    cr_status status = read_file(path, v);
    v->files++;
    if (status == CR_OK) return;
    if (!v->failed++) v->status = status;
    cr_log(CR_LOG_ERROR, "%s", cr_error_message());
    if (v->json) {
        struct cr_json_writer w = open_verified(path, false, v);
        cr_json_put_string(&w, "error", cr_error_message());
        cr_json_close_line(&w);
    }
    cr_error_clear();
}

/* Returns whether the path is a configuration, a run, or a folder of images; otherwise it is a packed file or a folder
 * of them. */
static bool is_data_set(const char *path) {
    if (!cr_fs_is_dir(path)) return cr_ends_with(path, ".ini");
    return !cr_fs_has_file(path, CR_PACK_TRAIN_NAME) && !cr_fs_has_file(path, CR_PACK_VAL_NAME);
}

static cr_status verify(const struct cr_args *args, struct cr_text *out) {
    static const char *const names[] = {CR_PACK_TRAIN_NAME, CR_PACK_VAL_NAME};
    struct verification      v       = {.json = cr_args_has(args, CR_OPT_JSON), .text = out};
    const struct cr_config  *config;
    if (!args->operands) return cr_args_fail(args, "no file given: cresnet data verify CONFIG|FILE|DIR ...");
    CR_TRY(cr_config_open(&config, NULL, args->override, args->overrides));
    v.workers = (int)config->data.workers;
    cr_config_close(config);
    for (int i = 0; i < args->operands; i++) {
        char path[CR_PATH_MAX];
        if (is_data_set(args->operand[i])) {
            bool           good;
            struct cr_args one = *args;
            one.operand += i;
            one.operands = 1;
            CR_TRY(cr_data_verify_set(&one, v.json, out, &good));
            v.files++;
            if (!good && !v.failed++) v.status = CR_ERR_FORMAT;
            continue;
        }
        if (!cr_fs_is_dir(args->operand[i])) {
            verify_file(args->operand[i], &v);
            continue;
        }
        for (size_t k = 0; k < CR_COUNT(names); k++) {
            CR_TRY(cr_path_join(path, args->operand[i], "%s", names[k]));
            verify_file(path, &v);
        }
    }
    CR_TRY(cr_cmd_print(out));
    return v.failed ? CR_FAIL(v.status, "%d of %d datasets failed verification", v.failed, v.files) : CR_OK;
}

/* ---- the command ---- */

/* Options that only some of the data commands read. */
static cr_status check_options(const struct cr_args *args, const char *word) {
    const bool packs = strcmp(word, "pack") == 0, draws = strcmp(word, "shapes") == 0,
               shows = strcmp(word, "show") == 0;
    const bool reads = packs || strcmp(word, "stat") == 0 || strcmp(word, "verify") == 0;
    if ((cr_args_has(args, CR_OPT_RAW) || cr_args_has(args, CR_OPT_JPEG)) && !packs)
        return cr_args_fail(args, "--raw and --jpeg are for cresnet data pack: leave them out");
    if (cr_args_has(args, CR_OPT_REPLACE) && !packs && !shows)
        return cr_args_fail(args, "--force is for cresnet data pack and show: leave it out");
    if (cr_args_has(args, CR_OPT_OVERLAY) && !shows)
        return cr_args_fail(args,
                            "-o is for cresnet data show; pack and shapes name their folder without an option: pack "
                            "CONFIG|DIR OUT");
    if (cr_args_has(args, CR_OPT_WORKERS) && !reads)
        return cr_args_fail(args, "--workers is for cresnet data pack, stat and verify: leave it out");
    if (cr_args_has(args, CR_OPT_JSON) && (draws || shows))
        return cr_args_fail(args, "data %s prints no JSON: leave --json out", word);
    if (cr_args_has(args, CR_OPT_SEED) && draws)
        return cr_args_fail(args, "data shapes always draws the same images: leave --seed out");
    return CR_OK;
}

/* Sets *folder when the only operand is a folder of images or packed files: `data DIR` is `data stat DIR`. */
static cr_status is_data_folder(const struct cr_args *args, bool *folder) {
    char run[CR_PATH_MAX];
    *folder = args->operands == 1 && cr_fs_is_dir(args->operand[0]) && !cr_fs_has_file(args->operand[0], "config.ini");
    if (!*folder) return CR_OK;
    CR_TRY(cr_cmd_checkpoint_find(args, args->operand[0], run));
    *folder = !*run;
    return CR_OK;
}

cr_status cr_cmd_data(const struct cr_args *args, struct cr_result *out) {
    const char    *word = args->operands ? args->operand[0] : "";
    struct cr_args rest = args->operands ? cr_cmd_behind(args) : *args;
    bool           folder;
    char           hint[80];
    CR_TRY(is_data_folder(args, &folder));
    CR_TRY(check_options(args, folder ? "stat" : word));
    if (folder) return cr_data_stat(args, &out->text);
    if (strcmp(word, "pack") == 0) {
        cr_status status = pack(&rest, &out->text);
        if (status == CR_ERR_INTERRUPTED) out->signal = atomic_load(&stop_signal);
        return status;
    }
    if (strcmp(word, "shapes") == 0) return draw_shapes(&rest, &out->text);
    if (strcmp(word, "verify") == 0) return verify(&rest, &out->text);
    if (strcmp(word, "stat") == 0) return cr_data_stat(&rest, &out->text);
    if (strcmp(word, "show") == 0) return cr_data_show(&rest);
    (void)cr_command_has_word(CR_CMD_DATA, word, hint, sizeof hint);
    if ((args->operands > 1 || *hint) && *word && access(word, F_OK) != 0)
        return cr_args_fail(args, "%s is neither a configuration nor one of stat, show, verify, pack and shapes%s",
                            word, hint);
    return describe(args, &out->text);
}
