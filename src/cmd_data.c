/* cmd_data.c: cresnet data: what is in a data set; draws the shapes set. */
#include "cmd.h"
#include "data.h"

#include <string.h>

enum { SHAPES_TRAIN = 4000, SHAPES_VAL = 1000, NAMES_SHOWN = 20 };

static cr_status describe_split(const struct cr_config *config, enum cr_split split, bool json, bool names,
                                struct cr_text *out) {
    struct cr_dataset *dataset;
    struct cr_prepare  prepare;
    CR_TRY(cr_prepare_from_config(config, split, &prepare));
    CR_TRY(cr_dataset_open(config, split, &dataset));
    int         classes = cr_dataset_classes(dataset);
    const char *word    = split == CR_SPLIT_TRAIN ? "train" : "val";
    if (json) {
        if (names) {
            cr_text_add(out, "\"classes\": [");
            for (int i = 0; i < classes; i++) {
                cr_text_add(out, "%s", i ? ", " : "");
                cr_text_add_json(out, cr_dataset_class_name(dataset, i));
            }
            cr_text_add(out, "], ");
        }
        cr_text_add(out, "\"%s\": {\"images\": %lld, \"size\": %d, \"fingerprint\": \"%016llx\"}", word,
                    (long long)cr_dataset_count(dataset), prepare.size,
                    (unsigned long long)cr_dataset_fingerprint(dataset));
    } else {
        cr_text_add(out, "%-7s ", split == CR_SPLIT_TRAIN ? "train:" : "val:");
        cr_dataset_describe(dataset, out);
        cr_text_add(out, "; %d px a side for the network\n", prepare.size);
        for (int i = 0; names && i < CR_MIN(classes, NAMES_SHOWN); i++)
            cr_text_add(out, "%s%s", i ? ", " : "classes: ", cr_dataset_class_name(dataset, i));
        if (names) cr_text_add(out, "%s\n", classes > NAMES_SHOWN ? ", ..." : "");
    }
    cr_dataset_close(dataset);
    return CR_OK;
}

static cr_status describe(const struct cr_args *args) {
    struct cr_config config;
    struct cr_text   text = {0};
    bool             json = cr_args_has(args, CR_OPT_JSON);
    CR_TRY(cr_args_most(args, 1));
    CR_TRY(cr_cmd_config(args, &config));
    cr_status status;
    if (json) {
        cr_text_add(&text, "{\"kind\": \"%s\", \"root\": ", cr_word_data_kind(config.data.kind));
        cr_text_add_json(&text, config.data.root);
        cr_text_add(&text, ", ");
    } else
        cr_text_add(&text, "%s%s%s\n", cr_word_data_kind(config.data.kind), *config.data.root ? " in " : "",
                    config.data.root);
    CR_TRY_OUT(describe_split(&config, CR_SPLIT_TRAIN, json, false, &text));
    if (json) cr_text_add(&text, ", ");
    CR_TRY_OUT(describe_split(&config, CR_SPLIT_VAL, json, true, &text));
    if (json) cr_text_add(&text, "}\n");
    CR_TRY_OUT(cr_cmd_print(&text));
out:
    cr_text_free(&text);
    cr_config_close(&config);
    return status;
}

static cr_status draw_shapes(const struct cr_args *args) {
    struct cr_config config;
    struct cr_text   text = {0};
    if (args->operands < 2) return cr_args_fail(args, "no folder given: cresnet data shapes DIR");
    CR_TRY(cr_args_most(args, 2));
    CR_TRY(cr_config_open(&config, NULL, args->override, args->overrides));
    int64_t   train  = config.data.train_images ? config.data.train_images : SHAPES_TRAIN;
    int64_t   val    = config.data.val_images ? config.data.val_images : SHAPES_VAL;
    cr_status status = cr_shapes_make(args->operand[1], train, val);
    cr_config_close(&config);
    CR_TRY(status);
    cr_text_add(&text, "%s: %lld training and %lld validation pictures in ten classes\n", args->operand[1],
                (long long)train, (long long)val);
    return cr_cmd_print(&text);
}

cr_status cr_cmd_data(const struct cr_args *args, int *signal_taken) {
    (void)signal_taken;
    if (args->operands && strcmp(args->operand[0], "shapes") == 0) return draw_shapes(args);
    return describe(args);
}
