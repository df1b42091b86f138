/* data/source/csv_labels.c: lists whose images have any number of labels: lines `file,label1;label2`, and `file,` for
 * an image without labels. The classes are the different labels of train.csv, sorted by bytes. */
#include "core/utf8.h"
#include "data/source/csv_list.h"

#include <string.h>

/* The labels of one list, as texts. */
struct labels {
    char        *text;  /* with a 0 after each label */
    const char **label; /* [count], line by line */
    int64_t     *first; /* [lines + 1]: the labels of line i are first[i] to first[i + 1] - 1 */
    int64_t      count;
};

static void labels_free(struct labels *l) {
    cr_free(l->text);
    cr_free(l->label);
    cr_free(l->first);
    *l = (struct labels){0};
}

/* Removes blanks around a label, in place. */
static char *trim(char *text) {
    text += strspn(text, " \t");
    size_t length = strlen(text);
    while (length && (text[length - 1] == ' ' || text[length - 1] == '\t')) text[--length] = 0;
    return text;
}

/* Divides the text of one line, which is changed, and checks its labels. */
static cr_status split_line(const struct cr_csv_list *list, const struct cr_csv_entry *e, char *text,
                            struct labels *out) {
    const int64_t start = out->count;
    char         *save  = trim(text);
    while (save) {
        char *label = strsep(&save, ";");
        label       = trim(label);
        if (!*label && !save && out->count == start) break; /* the image has no labels */
        if (!*label)
            return CR_FAIL(CR_ERR_FORMAT,
                           "%s:%lld: a label is empty: write file,label1;label2, or file, without labels", list->path,
                           (long long)e->line);
        if (cr_utf8_has_control(label)) /* classes.txt of a checkpoint has one name in a line */
            return CR_FAIL(CR_ERR_FORMAT, "%s:%lld: the label has control characters", list->path, (long long)e->line);
        out->label[out->count++] = label;
    }
    return CR_OK;
}

/* The caller frees *out with labels_free, also on failure. */
static cr_status split(const struct cr_csv_list *list, struct labels *out) {
    size_t bytes = 0, most = 0;
    *out = (struct labels){0};
    for (int64_t i = 0; i < list->count; i++) {
        bytes += strlen(list->entry[i].label) + 1;
        for (const char *c = list->entry[i].label; c; c = strchr(c, ';') ? strchr(c, ';') + 1 : NULL) most++;
    }
    CR_ALLOC(out->text, bytes);
    CR_ALLOC(out->label, most);
    CR_ALLOC(out->first, (size_t)list->count + 1);
    char *at = out->text;
    for (int64_t i = 0; i < list->count; i++) {
        const size_t length = strlen(list->entry[i].label) + 1;
        memcpy(at, list->entry[i].label, length);
        out->first[i] = out->count;
        CR_TRY(split_line(list, &list->entry[i], at, out));
        at += length;
    }
    out->first[list->count] = out->count;
    return CR_OK;
}

static cr_status make_classes(const struct cr_csv_list *list, const struct labels *labels, struct cr_dataset *dataset) {
    const char **copy;
    CR_ALLOC(copy, (size_t)labels->count);
    if (labels->count) memcpy(copy, labels->label, (size_t)labels->count * sizeof *copy);
    cr_status status = cr_csv_make_classes(list->path, copy, labels->count, dataset);
    cr_free(copy);
    return status;
}

/* Writes the labels of each line as words: graph/loss.h. rows: [lines][dataset->label_words]. A label that a line has
 * twice is found here and not while reading: a hostile line may have millions of labels. */
static cr_status number_labels(const struct cr_csv_list *list, const struct labels *labels, const char *train,
                               const struct cr_dataset *dataset, int32_t *rows) {
    for (int64_t i = 0; i < list->count; i++, rows += dataset->label_words) {
        rows[0] = (int32_t)(labels->first[i + 1] - labels->first[i]);
        for (int64_t j = labels->first[i]; j < labels->first[i + 1]; j++) {
            const int32_t k = cr_csv_class_of(dataset, labels->label[j]);
            if (k < 0) return cr_csv_fail_label(dataset, list, &list->entry[i], train, labels->label[j]);
            const uint32_t bit = 1u << (k % 32), word = (uint32_t)rows[1 + k / 32];
            if (word & bit)
                return CR_FAIL(CR_ERR_FORMAT, "%s:%lld: the label %s occurs twice: remove one of them", list->path,
                               (long long)list->entry[i].line, labels->label[j]);
            rows[1 + k / 32] = (int32_t)(word | bit);
        }
    }
    return CR_OK;
}

/* Lists with one line for each label of an image would be read as several images with one label each. */
static cr_status check_unique(const struct cr_csv_list *list) {
    struct cr_csv_twice t;
    CR_TRY(cr_csv_find_twice(list, NULL, true, &t));
    if (!t.files) return CR_OK;
    return CR_FAIL(CR_ERR_FORMAT,
                   "%s:%lld: line %lld has this image already: write one line file,label1;label2 for an image",
                   list->path, (long long)t.second.entry->line, (long long)t.first.entry->line);
}

/* Adds the images of the list; the label of an image is its line in `list` until cr_folder_finish_labels. */
static cr_status add_images(const struct cr_csv_list *list, double fraction, enum cr_split split,
                            struct cr_image_folder *folder) {
    for (int64_t i = 0; i < list->count; i++) CR_TRY(cr_folder_add(folder, list->entry[i].file, (int32_t)i));
    if (fraction > 0) cr_folder_divide(folder, 0, fraction, split);
    return CR_OK;
}

static cr_status check_rows(struct cr_dataset *dataset, const struct cr_csv_list *list, const char *train,
                            const struct labels *labels, int32_t **rows) {
    enum { ROWS_FREE = 1 << 30, ROWS_PER_FILE_BYTE = 256 };
    /* One bit for each pair of image and label: in a list whose images all have labels of their own, a square. */
    const size_t bytes = (size_t)list->count * (size_t)dataset->label_words * sizeof **rows;
    if (bytes > ROWS_FREE && bytes / ROWS_PER_FILE_BYTE > list->bytes)
        return CR_FAIL(CR_ERR_FORMAT,
                       "%s: the labels of %lld images in %d classes take %zu MiB: is this a column of labels?",
                       list->path, (long long)list->count, dataset->classes, bytes >> 20);
    CR_ALLOC(*rows, (size_t)list->count * (size_t)dataset->label_words);
    return number_labels(list, labels, train, dataset, *rows);
}

cr_status cr_csv_fill_several(struct cr_dataset *dataset, struct cr_csv_list *train, struct cr_csv_list *val,
                              double fraction, enum cr_split which) {
    const bool    own = val && which == CR_SPLIT_VAL;
    struct labels of_train, of_val = {0};
    int32_t      *rows = NULL, *other = NULL;
    cr_status     status;
    CR_TRY_OUT(split(train, &of_train));
    CR_TRY_OUT(check_unique(train));
    if (val) CR_TRY_OUT(split(val, &of_val));
    if (val) CR_TRY_OUT(check_unique(val));
    CR_TRY_OUT(make_classes(train, &of_train, dataset));
    dataset->label_words = 1 + (dataset->classes + 31) / 32;
    CR_TRY_OUT(check_rows(dataset, train, train->path, &of_train, own ? &other : &rows));
    if (val) CR_TRY_OUT(check_rows(dataset, val, train->path, &of_val, own ? &rows : &other));
    CR_TRY_OUT(add_images(own ? val : train, val ? 0 : fraction, which, dataset->state));
    CR_TRY_OUT(cr_folder_finish_labels(dataset, rows));
    status = cr_csv_check_first(dataset, own ? val : train);
out:
    labels_free(&of_train);
    labels_free(&of_val);
    cr_free(rows);
    cr_free(other);
    return status;
}
