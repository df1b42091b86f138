/* data/source/csv.c: lists of images: data.root holds train.csv and val.csv with lines `file,label`. Paths are relative
 * to data.root. The classes are the labels of train.csv, sorted by bytes. Without val.csv, data.val_fraction of each
 * class is held out by a hash of the file names, as in a folder. */
#include "core/files.h"
#include "core/utf8.h"
#include "data/source.h"
#include "data/source/folder_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { CSV_BYTES_MAX = 1 << 30, CLASSES_MAX = 1000000 };

struct entry {
    const char *file, *label; /* in the text of the list */
    int64_t     line;
    int32_t     number; /* of the label */
};
struct list {
    char          path[PATH_MAX];
    char         *text;
    struct entry *entry;
    int64_t       count, capacity;
};

static void list_free(struct list *list) {
    if (!list) return;
    cr_free(list->text);
    cr_free(list->entry);
    cr_free(list);
}

/* ---- parsing ---- */

/* Reads a field in place, in quotes or not (RFC 4180, without newlines in fields), and moves *at behind the separator.
 * Returns the separator (0: the end of the text), or -1 if the quotes are wrong. */
static int read_field(char **at, const char **out) {
    char      *from   = *at, *to;
    const bool quoted = *from == '"';
    bool       closed = !quoted;
    from += quoted;
    *out = to = from;
    if (!quoted) to = from += strcspn(from, ",\r\n");
    while (!closed && *from && *from != '\n') {
        if (*from == '"' && *++from != '"')
            closed = true;
        else
            *to++ = *from++;
    }
    const int end = *from;
    if (!closed || (end && !strchr(",\r\n", end))) return -1;
    if (*from) from += end == '\r' && from[1] == '\n' ? 2 : 1;
    *to = 0;
    *at = from;
    return end;
}

static bool is_heading(const struct entry *e) {
    static const char *const words[] = {"label", "labels", "class"};
    for (size_t i = 0; i < CR_COUNT(words); i++)
        if (strcasecmp(e->label, words[i]) == 0) return true;
    return false;
}

static cr_status check_entry(const struct list *list, const struct entry *e) {
    const char *wrong = NULL;
    if (!*e->file || !*e->label)
        wrong = "the file or its label is empty";
    else if (strchr(e->label, ';'))
        wrong = "the image has several labels; each image must have one";
    else if (cr_utf8_has_control(e->label)) /* classes.txt of a checkpoint has one name in a line */
        wrong = "the label has control characters";
    return wrong ? CR_FAIL(CR_ERR_FORMAT, "%s:%lld: %s", list->path, (long long)e->line, wrong) : CR_OK;
}

static cr_status add_entry(struct list *list, const struct entry *e) {
    if (list->count == list->capacity) {
        const int64_t capacity = CR_MAX(1024, 2 * list->capacity);
        struct entry *grown    = cr_realloc(list->entry, (size_t)capacity, sizeof *grown);
        if (!grown) return CR_NO_MEMORY((size_t)capacity * sizeof *grown);
        list->entry    = grown;
        list->capacity = capacity;
    }
    list->entry[list->count++] = *e;
    return CR_OK;
}

/* Reads a list; the caller frees it with list_free, also on failure. */
static cr_status list_read(const char *root, const char *name, struct list **out) {
    struct list *list;
    size_t       length;
    CR_ALLOC(list, 1);
    *out = list;
    CR_TRY(cr_path_format(list->path, "%s/%s", root, name));
    CR_TRY(cr_file_read(list->path, CSV_BYTES_MAX, &list->text, &length));
    if (strlen(list->text) != length)
        return CR_FAIL(CR_ERR_FORMAT, "%s: contains zero bytes: this is no CSV file", list->path);
    char *at = list->text;
    if (strncmp(at, "\xef\xbb\xbf", 3) == 0) at += 3; /* the byte order mark of spreadsheets */
    for (int64_t line = 1; *at; line++) {
        struct entry e = {.line = line};
        if (*at == '\n' || *at == '\r') {
            at += *at == '\r' && at[1] == '\n' ? 2 : 1;
            continue;
        }
        const int first = read_field(&at, &e.file), second = first == ',' ? read_field(&at, &e.label) : -1;
        if (second < 0 || second == ',')
            return CR_FAIL(CR_ERR_FORMAT, "%s:%lld: the line must be file,label", list->path, (long long)line);
        if (line == 1 && is_heading(&e)) continue;
        CR_TRY(check_entry(list, &e));
        CR_TRY(add_entry(list, &e));
    }
    if (!list->count) return CR_FAIL(CR_ERR_FORMAT, "%s: lists no images; lines file,label are expected", list->path);
    return CR_OK;
}

/* ---- classes ---- */

static int compare_texts(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The labels of the list, sorted, become the classes of the dataset. */
static cr_status make_classes(const struct list *list, struct cr_dataset *dataset) {
    const char **label;
    int64_t      classes = 0;
    CR_ALLOC(label, (size_t)list->count);
    for (int64_t i = 0; i < list->count; i++) label[i] = list->entry[i].label;
    qsort(label, (size_t)list->count, sizeof *label, compare_texts);
    for (int64_t i = 0; i < list->count; i++)
        if (i == 0 || strcmp(label[i], label[classes - 1]) != 0) label[classes++] = label[i];
    cr_status status = CR_OK;
    if (classes < 2 || classes > CLASSES_MAX)
        status = CR_FAIL(CR_ERR_FORMAT, "%s: has %lld different labels; from 2 to %d are supported", list->path,
                         (long long)classes, CLASSES_MAX);
    dataset->class_names = status == CR_OK ? cr_arena_alloc(&dataset->arena, (size_t)classes * sizeof *label) : NULL;
    for (int64_t k = 0; dataset->class_names && k < classes; k++) {
        dataset->class_names[k] = cr_arena_printf(&dataset->arena, "%s", label[k]);
        if (!dataset->class_names[k]) dataset->class_names = NULL;
    }
    if (status == CR_OK && !dataset->class_names) status = CR_NO_MEMORY((size_t)classes * sizeof *label);
    dataset->classes = (int)classes;
    cr_free(label);
    return status;
}

static cr_status number_labels(struct list *list, const struct cr_dataset *dataset, const char *train) {
    for (int64_t i = 0; i < list->count; i++) {
        struct entry      *e = &list->entry[i];
        const char *const *k =
            bsearch(&e->label, dataset->class_names, (size_t)dataset->classes, sizeof e->label, compare_texts);
        if (!k)
            return CR_FAIL(CR_ERR_FORMAT, "%s:%lld: no image of %s has the label %s", list->path, (long long)e->line,
                           train, e->label);
        e->number = (int32_t)(k - dataset->class_names);
    }
    return CR_OK;
}

/* ---- images ---- */

static int compare_numbers(const void *a, const void *b) {
    const struct entry *p = a, *q = b;
    return p->number != q->number ? (p->number < q->number ? -1 : 1) : p->line < q->line ? -1 : p->line > q->line;
}

/* Adds the images of the list, of each class those of the split. */
static cr_status add_divided(struct list *list, double fraction, enum cr_split split, struct cr_image_folder *folder) {
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

static cr_status add_all(const struct list *list, struct cr_image_folder *folder) {
    for (int64_t i = 0; i < list->count; i++) CR_TRY(cr_folder_add(folder, list->entry[i].file, list->entry[i].number));
    return CR_OK;
}

/* A wrong folder is found before the run starts. */
static cr_status check_first(const struct cr_dataset *dataset, const struct list *list) {
    char path[CR_SAMPLE_NAME_BYTES];
    dataset->ops->name(dataset, 0, path, sizeof path);
    if (access(path, F_OK) == 0) return CR_OK;
    return CR_FAIL(CR_ERR_IO, "%s: is not there, but %s lists it; paths in the list are relative to its folder", path,
                   list->path);
}

static cr_status fill(struct cr_dataset *dataset, struct list *train, struct list *val, double fraction,
                      enum cr_split split) {
    struct list *list = val && split == CR_SPLIT_VAL ? val : train;
    CR_TRY(make_classes(train, dataset));
    CR_TRY(number_labels(train, dataset, train->path));
    if (val) CR_TRY(number_labels(val, dataset, train->path));
    CR_TRY(val || fraction == 0 ? add_all(list, dataset->state) : add_divided(list, fraction, split, dataset->state));
    CR_TRY(cr_folder_finish(dataset));
    return check_first(dataset, list);
}

cr_status cr_csv_open(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset) {
    const char  *root  = config->data.root;
    struct list *train = NULL, *val = NULL;
    char         path[PATH_MAX];
    cr_status    status;
    CR_TRY(cr_folder_begin(config, root, dataset));
    CR_TRY(cr_path_format(path, "%s/val.csv", root));
    const bool has_val = access(path, F_OK) == 0;
    if (!has_val && split == CR_SPLIT_VAL && config->data.val_fraction <= 0)
        return cr_config_fail(config, "data.val_fraction",
                              "is 0 and %s has no val.csv: set the fraction to hold out, e.g. 0.1, or make val.csv",
                              root);
    CR_TRY_OUT(list_read(root, "train.csv", &train));
    if (has_val) CR_TRY_OUT(list_read(root, "val.csv", &val));
    status = fill(dataset, train, val, config->data.val_fraction, split);
out:
    list_free(train);
    list_free(val);
    return status;
}
