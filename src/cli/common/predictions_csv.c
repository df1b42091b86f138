/* cli/common/predictions_csv.c: writes predictions as CSV (--csv), one line per image. */
#include "cli/common/predictions_csv.h"
#include "data/data.h"

#include <errno.h>

enum { PIECE_BYTES = 1 << 20 };

/* ---- the file ---- */

cr_status cr_predictions_csv_open(const struct cr_args *args, struct cr_predictions_csv *open) {
    const unsigned flags = cr_args_has(args, CR_OPT_REPLACE) ? CR_OUTPUT_FORCE : 0;
    *open                = (struct cr_predictions_csv){.name = args->value[CR_OPT_PREDICTIONS_CSV], .fd = -1};
    if (!open->name) return CR_OK;
    open->to_stdout = cr_cmd_is_stdout(open->name);
    if (open->to_stdout) return CR_OK;
    CR_TRY(cr_output_file_find(open->name, CR_OUTPUT_PREDICTIONS, flags, &open->file));
    return open->file.direct ? cr_output_file_open_direct(&open->file, &open->fd)
                             : cr_temporary_file(&open->temporary, open->file.path);
}

static cr_status write_text(struct cr_predictions_csv *csv) {
    cr_status status = CR_OK;
    if (csv->text.failed) return CR_NO_MEMORY(csv->text.length);
    if (csv->to_stdout)
        status = cr_cmd_print_bytes(csv->text.data, csv->text.length);
    else if (csv->text.length)
        status = cr_fs_write(csv->fd >= 0 ? csv->fd : csv->temporary.fd, csv->file.path, csv->text.data,
                             csv->text.length, 0);
    csv->text.length = 0;
    return status;
}

cr_status cr_predictions_csv_finish(struct cr_predictions_csv *csv) {
    CR_TRY(write_text(csv));
    if (csv->to_stdout) return CR_OK;
    if (csv->fd < 0) return cr_temporary_commit(&csv->temporary);
    const int fd = csv->fd;
    csv->fd      = -1;
    return cr_fs_close(fd) < 0 ? cr_fs_refused(csv->file.path, "close", errno) : CR_OK;
}

void cr_predictions_csv_close(struct cr_predictions_csv *csv) {
    if (!csv->name) return;
    if (csv->fd >= 0) (void)cr_fs_close(csv->fd);
    cr_temporary_drop(&csv->temporary);
    cr_text_free(&csv->text);
    *csv = (struct cr_predictions_csv){.fd = -1};
}

/* ---- lines ---- */

cr_status cr_predictions_csv_start(struct cr_predictions_csv *csv, int classes, bool labels,
                                   const struct cr_cmd_names *names) {
    csv->names   = names;
    csv->classes = classes;
    csv->labels  = labels;
    cr_text_add(&csv->text, CR_OUTPUT_PREDICTIONS_START "%s%s", csv->rejects ? ",score,rejected" : "",
                labels ? ",label,class" : "");
    for (int k = 0; k < classes; k++) {
        char           number[32];
        struct cr_text column = {0};
        cr_text_add(&column, "p:%s", cr_cmd_class_name(csv->names, k, number, sizeof number));
        cr_text_add(&csv->text, ",");
        if (column.data) cr_csv_add_text(&csv->text, column.data);
        csv->text.failed |= column.failed;
        cr_text_free(&column);
    }
    cr_text_add(&csv->text, "\n");
    return csv->text.failed ? CR_NO_MEMORY(csv->text.length) : CR_OK;
}

/* A field of numbers and one of names. `probabilities`: the classes above their thresholds; else those in `labels`. */
static void add_lists(struct cr_predictions_csv *csv, const float *probabilities, const int32_t *labels) {
    struct cr_text numbers = {0}, names = {0};
    char           number[32];
    for (int k = 0; k < csv->classes; k++) {
        if (probabilities ? !((double)probabilities[k] > csv->threshold[k]) : !cr_dataset_row_has(labels, k)) continue;
        cr_text_add(&numbers, "%s%d", numbers.length ? ";" : "", k);
        cr_text_add(&names, "%s%s", names.length ? ";" : "", cr_cmd_class_name(csv->names, k, number, sizeof number));
    }
    cr_text_add(&csv->text, ",%s,", numbers.data ? numbers.data : "");
    if (names.data) cr_csv_add_text(&csv->text, names.data);
    csv->text.failed |= numbers.failed || names.failed;
    cr_text_free(&numbers);
    cr_text_free(&names);
}

static void add_class(struct cr_predictions_csv *csv, int label) {
    char number[32];
    cr_text_add(&csv->text, ",%d,", label);
    cr_csv_add_text(&csv->text, cr_cmd_class_name(csv->names, label, number, sizeof number));
}

cr_status cr_predictions_csv_add(struct cr_predictions_csv *csv, const char *path, const int32_t *labels,
                                 const float *probabilities) {
    struct cr_text *out  = &csv->text;
    int             best = 0;
    for (int k = 1; probabilities && k < csv->classes; k++)
        if (probabilities[k] > probabilities[best]) best = k;
    cr_csv_add_path(out, path);
    if (probabilities) {
        if (csv->threshold)
            add_lists(csv, probabilities, NULL);
        else
            add_class(csv, best);
        cr_text_add(out, ",%.7g", (double)probabilities[best]);
    } else
        cr_text_add(out, ",,,");
    if (csv->rejects && probabilities)
        cr_text_add(out, ",%.17g,%d", csv->score, csv->rejected);
    else if (csv->rejects)
        cr_text_add(out, ",,");
    if (csv->labels && !labels)
        cr_text_add(out, ",,");
    else if (csv->labels && csv->threshold)
        add_lists(csv, NULL, labels);
    else if (csv->labels)
        add_class(csv, *labels);
    for (int k = 0; k < csv->classes; k++)
        if (probabilities)
            cr_text_add(out, ",%.7g", (double)probabilities[k]);
        else
            cr_text_add(out, ",");
    cr_text_add(out, "\n");
    return out->length < PIECE_BYTES && !out->failed ? CR_OK : write_text(csv);
}
