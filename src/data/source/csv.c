/* data/source/csv.c: lists of images: data.root holds train.csv and val.csv with lines `file,label`. Paths are relative
 * to data.root. The classes are the labels of train.csv, sorted by bytes. Without val.csv, data.val_fraction of each
 * class is held out by a hash of the file names, as in a folder. */
#include "formats/csv.h"
#include "core/utf8.h"
#include "data/class_match.h"
#include "data/source/csv_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static void list_free(struct cr_csv_list *list) {
    if (!list) return;
    cr_free(list->text);
    cr_free(list->entry);
    cr_free(list);
}

/* ---- parsing ---- */

static bool is_label_word(const char *text) {
    static const char *const words[] = {"label", "labels", "class"};
    for (size_t i = 0; i < CR_COUNT(words); i++)
        if (strcasecmp(text, words[i]) == 0) return true;
    return false;
}

/* Whether the first line of a list has headings: the label says so, or the name of the file is that of no file and has
 * neither an ending nor a folder. */
static bool is_heading(const struct cr_csv_entry *e, const char *root) {
    char path[PATH_MAX];
    if (is_label_word(e->label)) return true;
    if (!*e->file || strpbrk(e->file, "./\\")) return false;
    return (size_t)snprintf(path, sizeof path, "%s/%s", root, e->file) < sizeof path && access(path, F_OK) != 0;
}

/* The line is not file,label. `text` is its start. */
static cr_status wrong_line(const char *path, int64_t line, const char *text, bool several) {
    const char *other = strchr(text, ',') ? NULL : strpbrk(text, ";\t");
    return CR_FAIL(CR_ERR_FORMAT, "%s:%lld: the line must be file,%s%s; it is %s", path, (long long)line,
                   several ? "label1;label2, with quotes around a name that has a comma" : "label",
                   !other          ? ""
                   : *other == ';' ? ", with a comma instead of the semicolon"
                                   : ", with a comma instead of the tab",
                   text);
}

static cr_status check_entry(const struct cr_csv_list *list, const struct cr_csv_entry *e, bool several) {
    const char *wrong = NULL;
    if (!*e->file)
        wrong = "the name of the file is empty";
    else if (several)
        return CR_OK; /* csv_labels.c checks the labels */
    else if (!*e->label)
        wrong = "the label is empty; each image must have one, unless data.multi_label = yes";
    else if (strchr(e->label, ';'))
        wrong = "the image has several labels; each image must have one, unless data.multi_label = yes";
    else if (cr_utf8_has_control(e->label)) /* classes.txt of a checkpoint has one name in a line */
        wrong = "the label has control characters";
    return wrong ? CR_FAIL(CR_ERR_FORMAT, "%s:%lld: %s", list->path, (long long)e->line, wrong) : CR_OK;
}

static cr_status list_parse(struct cr_csv_list *list, const char *root, bool several) {
    char *at = list->text;
    for (int64_t line = 1; *at; line++) {
        struct cr_csv_entry e = {.line = line};
        char                start[80]; /* parsing overwrites the text */
        snprintf(start, sizeof start, "%.*s", (int)CR_MIN(strcspn(at, "\r\n"), sizeof start - 1), at);
        char *const text = at + strspn(at, " \t");
        if (!*text || *text == '\n' || *text == '\r') {
            at = text + (!*text ? 0 : *text == '\r' && text[1] == '\n' ? 2 : 1);
            continue;
        }
        const int first = cr_csv_field(&at, &e.file), second = first == ',' ? cr_csv_field(&at, &e.label) : -1;
        if (second < 0 || second == ',') return wrong_line(list->path, line, start, several);
        if (!list->count && !list->headed && is_heading(&e, root)) {
            if (is_label_word(e.file))
                return CR_FAIL(CR_ERR_FORMAT, "%s:%lld: the columns are %s,%s: write the file first, then the label",
                               list->path, (long long)line, e.file, e.label);
            list->headed = true;
            continue;
        }
        CR_TRY(check_entry(list, &e, several));
        CR_GROW(list->entry, list->count, list->capacity, 1024);
        list->entry[list->count++] = e;
    }
    if (!list->count) return CR_FAIL(CR_ERR_FORMAT, "%s: lists no images; lines file,label are expected", list->path);
    return CR_OK;
}

/* Reads a list; the caller frees it with list_free, also on failure. */
static cr_status list_read(const char *root, const char *name, bool several, struct cr_csv_list **out) {
    struct cr_csv_list *list;
    CR_ALLOC(list, 1);
    *out = list;
    CR_TRY(cr_path_format(list->path, "%s/%s", root, name));
    CR_TRY(cr_csv_read(list->path, &list->text, &list->bytes));
    return list_parse(list, root, several);
}

/* ---- classes ---- */

cr_status cr_csv_make_classes(const char *path, const char **label, int64_t count, struct cr_dataset *dataset) {
    int64_t classes = 0;
    if (count) qsort(label, (size_t)count, sizeof *label, cr_compare_texts);
    for (int64_t i = 0; i < count; i++)
        if (i == 0 || strcmp(label[i], label[classes - 1]) != 0) label[classes++] = label[i];
    cr_status status = CR_OK;
    if (classes == 1)
        status = CR_FAIL(CR_ERR_FORMAT, "%s: its only label is %.100s; at least two labels are needed", path, label[0]);
    else if (classes < 1 || classes > CR_CSV_CLASSES_MAX)
        status = CR_FAIL(CR_ERR_FORMAT, "%s: has %lld different labels; from 2 to %d are supported", path,
                         (long long)classes, CR_CSV_CLASSES_MAX);
    dataset->class_names = status == CR_OK ? cr_arena_alloc(&dataset->arena, (size_t)classes * sizeof *label) : NULL;
    for (int64_t k = 0; dataset->class_names && k < classes; k++) {
        dataset->class_names[k] = cr_arena_printf(&dataset->arena, "%s", label[k]);
        if (!dataset->class_names[k]) dataset->class_names = NULL;
    }
    if (status == CR_OK && !dataset->class_names) status = CR_NO_MEMORY((size_t)classes * sizeof *label);
    dataset->classes = (int)classes;
    return status;
}

int32_t cr_csv_class_of(const struct cr_dataset *dataset, const char *label) {
    const char *const *k =
        bsearch(&label, dataset->class_names, (size_t)dataset->classes, sizeof label, cr_compare_texts);
    return k ? (int32_t)(k - dataset->class_names) : -1;
}

static cr_status make_classes(const struct cr_csv_list *list, struct cr_dataset *dataset) {
    const char **label;
    CR_ALLOC(label, (size_t)list->count);
    for (int64_t i = 0; i < list->count; i++) label[i] = list->entry[i].label;
    cr_status status = cr_csv_make_classes(list->path, label, list->count, dataset);
    cr_free(label);
    return status;
}

cr_status cr_csv_fail_label(const struct cr_dataset *dataset, const struct cr_csv_list *list,
                            const struct cr_csv_entry *entry, const char *train, const char *label) {
    const int like = cr_class_find_respelt(label, dataset->class_names, dataset->classes);
    return CR_FAIL(CR_ERR_FORMAT, "%s:%lld: no image of %s has the label %s%s%s%s", list->path, (long long)entry->line,
                   train, label, like < 0 ? "" : "; ", like < 0 ? "" : dataset->class_names[like],
                   like < 0 ? "" : " differs only in " CR_CLASS_SPELLING);
}

static cr_status number_labels(struct cr_csv_list *list, const struct cr_dataset *dataset, const char *train) {
    for (int64_t i = 0; i < list->count; i++) {
        struct cr_csv_entry *e = &list->entry[i];
        e->number              = cr_csv_class_of(dataset, e->label);
        if (e->number < 0) return cr_csv_fail_label(dataset, list, e, train, e->label);
    }
    return CR_OK;
}

/* ---- images that are listed twice ---- */

/* A line of one of the lists. */
struct line {
    struct cr_csv_place place;
    const char         *file; /* without ./ */
    int64_t             at;   /* among all lines, in which those of `train` are first */
};

static int compare_lines(const void *a, const void *b) {
    const struct line *x = a, *y = b;
    const int          order = strcmp(x->file, y->file);
    return order ? order : (x->at > y->at) - (x->at < y->at);
}

static int64_t add_lines(const struct cr_csv_list *list, struct line *line, int64_t count) {
    for (int64_t i = 0; list && i < list->count; i++, count++) {
        const char *file = list->entry[i].file;
        while (file[0] == '.' && file[1] == '/') file += 2;
        line[count] = (struct line){{list->path, &list->entry[i]}, file, count};
    }
    return count;
}

cr_status cr_csv_find_twice(const struct cr_csv_list *train, const struct cr_csv_list *val, bool same_label,
                            struct cr_csv_twice *out) {
    struct line *line;
    int64_t      second = INT64_MAX;
    *out                = (struct cr_csv_twice){0};
    CR_ALLOC(line, (size_t)(train->count + (val ? val->count : 0)));
    const int64_t count = add_lines(val, line, add_lines(train, line, 0));
    qsort(line, (size_t)count, sizeof *line, compare_lines);
    for (int64_t i = 0, end; i < count; i = end) {
        int64_t other = 0; /* the first line that counts after line i */
        for (end = i + 1; end < count && strcmp(line[end].file, line[i].file) == 0; end++)
            if (!other && (same_label || line[end].place.entry->number != line[i].place.entry->number)) other = end;
        out->files += other > 0;
        if (!other || line[other].at > second) continue;
        second      = line[other].at;
        out->first  = line[i].place;
        out->second = line[other].place;
    }
    cr_free(line);
    return CR_OK;
}

static cr_status warn_conflicts(const struct cr_csv_list *train, const struct cr_csv_list *val) {
    struct cr_csv_twice t;
    CR_TRY(cr_csv_find_twice(train, val, false, &t));
    if (!t.files || !cr_folder_warning_is_new("conflict", t.files, train->path)) return CR_OK;
    cr_log(CR_LOG_WARN,
           "%s:%lld: %s has the label %.100s, but %.100s in %s:%lld; %lld image%s listed with different labels: remove "
           "the lines with wrong labels",
           t.second.list, (long long)t.second.entry->line, t.second.entry->file, t.second.entry->label,
           t.first.entry->label, t.first.list, (long long)t.first.entry->line, (long long)t.files,
           t.files == 1 ? " is" : "s are");
    return CR_OK;
}

/* ---- images ---- */

static int compare_numbers(const void *a, const void *b) {
    const struct cr_csv_entry *p = a, *q = b;
    return p->number != q->number ? (p->number < q->number ? -1 : 1) : p->line < q->line ? -1 : p->line > q->line;
}

/* Adds the images of the list, of each class those of the split. */
static cr_status add_divided(struct cr_csv_list *list, double fraction, enum cr_split split,
                             struct cr_image_folder *folder) {
    qsort(list->entry, (size_t)list->count, sizeof *list->entry, compare_numbers);
    for (int64_t i = 0; i < list->count;) {
        const int64_t first  = folder->count;
        const int32_t number = list->entry[i].number;
        for (; i < list->count && list->entry[i].number == number; i++)
            CR_TRY(cr_folder_add(folder, list->entry[i].file, number));
        cr_folder_divide(folder, first, fraction, split);
    }
    return CR_OK;
}

static cr_status add_all(const struct cr_csv_list *list, struct cr_image_folder *folder) {
    for (int64_t i = 0; i < list->count; i++) CR_TRY(cr_folder_add(folder, list->entry[i].file, list->entry[i].number));
    return CR_OK;
}

cr_status cr_csv_check_first(const struct cr_dataset *dataset, const struct cr_csv_list *list) {
    char path[CR_SAMPLE_NAME_BYTES];
    for (int64_t i = 2; i >= 0; i--) { /* a single one is unreadable, as others are */
        dataset->ops->name(dataset, i * (dataset->count - 1) / 2, path, sizeof path);
        if (access(path, F_OK) == 0) return CR_OK;
    }
    return CR_FAIL(CR_ERR_IO, "%s: is not there, but %s lists it; paths in the list are relative to its folder%s", path,
                   list->path, strchr(path, '\\') ? " and have / between their parts" : "");
}

static cr_status fill(struct cr_dataset *dataset, struct cr_csv_list *train, struct cr_csv_list *val, double fraction,
                      enum cr_split split) {
    struct cr_csv_list *list = val && split == CR_SPLIT_VAL ? val : train;
    CR_TRY(make_classes(train, dataset));
    cr_folder_say_order(dataset, train->path);
    CR_TRY(number_labels(train, dataset, train->path));
    if (val) CR_TRY(number_labels(val, dataset, train->path));
    if (split == CR_SPLIT_TRAIN) CR_TRY(warn_conflicts(train, val));
    CR_TRY(val || fraction == 0 ? add_all(list, dataset->state) : add_divided(list, fraction, split, dataset->state));
    CR_TRY(cr_folder_finish(dataset));
    return cr_csv_check_first(dataset, list);
}

cr_status cr_csv_open(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset) {
    const bool          several = config->data.multi_label;
    const char         *root    = config->data.root;
    struct cr_csv_list *train = NULL, *val = NULL;
    char                path[PATH_MAX];
    cr_status           status;
    CR_TRY(cr_folder_begin(config, root, dataset));
    CR_TRY(cr_path_format(path, "%s/val.csv", root));
    const bool has_val = access(path, F_OK) == 0;
    if (!has_val && split == CR_SPLIT_VAL && config->data.val_fraction <= 0)
        return cr_config_fail(
            config, "data.val_fraction",
            "%s has no val.csv: set the fraction to hold out, e.g. data.val_fraction=0.1, or make val.csv", root);
    CR_TRY_OUT(list_read(root, "train.csv", several, &train));
    if (has_val) CR_TRY_OUT(list_read(root, "val.csv", several, &val));
    status = (several ? cr_csv_fill_several : fill)(dataset, train, val, config->data.val_fraction, split);
out:
    list_free(train);
    list_free(val);
    return status;
}
