/* data/source/edits.c: leaves images of a dataset out (data.exclude) and replaces labels (data.labels). The format
 * still has all images, so data.val_fraction holds out the same ones as before. */
#include "data/source.h"
#include "data/source/folder_list.h"
#include "formats/csv.h"

#include <stdlib.h>
#include <string.h>

enum list { EXCLUDE, LABELS, LISTS };
static const char *const keys[LISTS] = {"data.exclude", "data.labels"};

struct row {
    const char *file, *label; /* rows are found by `file`, which is first; label: "" in the list EXCLUDE */
    int64_t     line;
    enum list   list;
    bool        found; /* the dataset has the image */
};
struct edits {
    const char         *root;
    char                resolved[PATH_MAX]; /* `root` without links, absolute; "": unknown */
    struct cr_csv_table table[LISTS];
    struct row         *row; /* [count], sorted by file, each file once */
    int64_t             count, capacity;
};

/* ---- the lists ---- */

static const char *without(const char *folder, const char *file) {
    const size_t length = cr_path_length(folder);
    if (!length || strncmp(file, folder, length) != 0 || file[length] != '/') return file;
    return file + length + strspn(file + length, "/");
}

/* The name of an image without the folder of the dataset. */
static const char *below(const struct edits *e, const char *file) {
    const char *whole = file;
    file              = without(e->root, file);
    if (file == whole && *file == '/') file = without(e->resolved, file);
    while (file[0] == '.' && file[1] == '/') file += 1 + strspn(file + 1, "/");
    return file;
}

static cr_status read_list(struct edits *e, enum list list, const char *path) {
    struct cr_csv_table *t     = &e->table[list];
    int                  label = 0, file;
    if (!*path) return CR_OK;
    CR_TRY(cr_csv_table_read(path, t));
    CR_TRY(cr_csv_table_column(t, "file", &file));
    if (list == LABELS) CR_TRY(cr_csv_table_column(t, "label", &label));
    for (int64_t i = 1; i < t->rows; i++) {
        const char *const *cell = t->cell + i * t->columns;
        if (!*cell[file] || (list == LABELS && !*cell[label]))
            return CR_FAIL(CR_ERR_FORMAT, "%s:%lld: the %s is empty", path, (long long)t->line[i],
                           *cell[file] ? "label" : "name of the file");
        CR_GROW(e->row, e->count, e->capacity, 1024);
        e->row[e->count++] = (struct row){below(e, cell[file]), list == LABELS ? cell[label] : "", t->line[i], list, 0};
    }
    return CR_OK;
}

static int compare_rows(const void *a, const void *b) {
    const struct row *x = a, *y = b;
    const int         order = cr_compare_texts(a, b);
    return order ? order : x->list != y->list ? (int)x->list - (int)y->list : (x->line > y->line) - (x->line < y->line);
}

/* When several rows name a file, the first one is used. Rows of data.exclude come before those of data.labels. */
static cr_status sort_rows(struct edits *e) {
    int64_t kept = 0;
    if (e->count) qsort(e->row, (size_t)e->count, sizeof *e->row, compare_rows);
    for (int64_t i = 0; i < e->count; i++) {
        const struct row row = e->row[i], *first = kept ? &e->row[kept - 1] : NULL;
        if (!first || strcmp(first->file, row.file) != 0)
            e->row[kept++] = row;
        else if (first->list == LABELS && strcmp(first->label, row.label) != 0)
            return CR_FAIL(CR_ERR_FORMAT, "%s:%lld: %s has the label %.100s here and %.100s in line %lld",
                           e->table[LABELS].path, (long long)row.line, row.file, row.label, first->label,
                           (long long)first->line);
    }
    e->count = kept;
    return CR_OK;
}

/* The row of an image of the format, which is found now, or NULL. */
static struct row *find(struct edits *e, const struct cr_dataset *dataset, int64_t image) {
    char name[CR_SAMPLE_NAME_BYTES];
    dataset->ops->name(dataset, image, name, sizeof name);
    const struct row key = {.file = below(e, name)};
    struct row      *row = e->count ? bsearch(&key, e->row, (size_t)e->count, sizeof key, cr_compare_texts) : NULL;
    if (row) row->found = true;
    return row;
}

/* Fails when a row names an image that neither this split nor the other one has. */
static cr_status check_found(const struct cr_config *config, enum cr_split split, struct edits *e) {
    struct cr_config   plain   = *config;
    struct cr_dataset *other   = NULL;
    int64_t            missing = 0;
    const struct row  *first   = NULL;
    for (int64_t i = 0; i < e->count; i++) missing += !e->row[i].found;
    if (!missing) return CR_OK;
    plain.data.exclude = plain.data.labels = "";
    cr_error_hold(); /* without the other split, its images are unknown too */
    if (cr_dataset_open(&plain, split == CR_SPLIT_TRAIN ? CR_SPLIT_VAL : CR_SPLIT_TRAIN, &other) == CR_OK)
        for (int64_t i = 0; i < other->count; i++) (void)find(e, other, i);
    cr_error_release();
    cr_dataset_close(other);
    missing = 0;
    for (int64_t i = 0; i < e->count; i++)
        if (!e->row[i].found && (!missing++ || e->row[i].line < first->line)) first = &e->row[i];
    if (!missing) return CR_OK;
    return cr_config_fail(config, keys[first->list],
                          "line %lld: the dataset has no image %s (%lld of %lld names are unknown): names are relative "
                          "to data.root, %s; an empty %s leaves the dataset as it is",
                          (long long)first->line, first->file, (long long)missing, (long long)e->count, e->root,
                          keys[first->list]);
}

/* ---- what is left ---- */

/* Sets the samples and labels of the dataset. *changed: the images with another label than before. */
static cr_status apply(struct cr_dataset *dataset, struct edits *e, int64_t *changed) {
    int64_t *kept, count = 0;
    int32_t *labels;
    CR_ARENA_ALLOC(&dataset->arena, kept, (size_t)dataset->count);
    CR_ARENA_ALLOC(&dataset->arena, labels, (size_t)dataset->count);
    for (int64_t i = 0; i < dataset->count; i++) {
        const int32_t     before = dataset->ops->label(dataset, i);
        const struct row *row    = find(e, dataset, i);
        labels[i]                = before;
        if (row && row->list == EXCLUDE) continue;
        if (row && (labels[i] = cr_dataset_class_of(dataset, row->label)) < 0)
            return CR_FAIL(CR_ERR_FORMAT, "%s:%lld: the dataset has no class %.100s; its first one is %.100s",
                           e->table[LABELS].path, (long long)row->line, row->label, dataset->class_names[0]);
        *changed += labels[i] != before;
        kept[count++] = i;
    }
    uint64_t hash = cr_hash_bytes(dataset->fingerprint, kept, (size_t)count * sizeof *kept);
    hash          = cr_hash_bytes(hash, labels, (size_t)dataset->count * sizeof *labels);

    dataset->fingerprint   = cr_hash_mix(hash);
    dataset->count         = count;
    dataset->kept          = kept;
    dataset->edited_labels = labels;
    return CR_OK;
}

/* Counts the images of each class; every class keeps one for training. */
static cr_status count_classes(struct cr_dataset *dataset, enum cr_split split, const struct cr_config *config) {
    const int64_t *before = dataset->class_counts;
    if (!dataset->count) return cr_config_fail(config, "data.exclude", "leaves no image of a split");
    if (!before) return CR_OK;
    CR_ARENA_ALLOC(&dataset->arena, dataset->class_counts, (size_t)dataset->classes);
    for (int64_t i = 0; i < dataset->count; i++) dataset->class_counts[cr_dataset_label(dataset, i)]++;
    for (int k = 0; split == CR_SPLIT_TRAIN && k < dataset->classes; k++)
        if (!dataset->class_counts[k] && before[k])
            return cr_config_fail(config, keys[*config->data.exclude ? EXCLUDE : LABELS],
                                  "the class %.100s has no image left for training: keep some of its %lld",
                                  dataset->class_names[k], (long long)before[k]);
    return CR_OK;
}

cr_status cr_dataset_edit(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset) {
    struct edits e       = {.root = config->data.root};
    const char  *name    = split == CR_SPLIT_TRAIN ? "training set" : "validation set";
    int64_t      changed = 0, all = dataset->count;
    cr_status    status;
    if (!*config->data.exclude && !*config->data.labels) return CR_OK;
    if (!realpath(e.root, e.resolved)) e.resolved[0] = 0;
    CR_TRY_OUT(read_list(&e, EXCLUDE, config->data.exclude));
    CR_TRY_OUT(read_list(&e, LABELS, config->data.labels));
    CR_TRY_OUT(sort_rows(&e));
    CR_TRY_OUT(apply(dataset, &e, &changed));
    CR_TRY_OUT(check_found(config, split, &e));
    if (cr_folder_warning_is_new(name, changed + all - dataset->count, e.root))
        cr_log(CR_LOG_INFO, "%s: %lld of %lld images are left out, %lld have other labels", name,
               (long long)(all - dataset->count), (long long)all, (long long)changed);
    status = count_classes(dataset, split, config);
out:
    cr_csv_table_free(&e.table[EXCLUDE]);
    cr_csv_table_free(&e.table[LABELS]);
    cr_free(e.row);
    return status;
}

/* ---- fewer images ---- */

cr_status cr_dataset_thin(struct cr_dataset *dataset, int64_t most) {
    int64_t *kept, *seen, count = 0;
    if (!dataset->class_counts) return CR_OK;
    CR_ARENA_ALLOC(&dataset->arena, kept, (size_t)dataset->count);
    CR_ARENA_ALLOC(&dataset->arena, seen, (size_t)dataset->classes);
    for (int64_t i = 0; i < dataset->count; i++) {
        const int     k   = cr_dataset_label(dataset, i);
        const int64_t all = dataset->class_counts[k], keep = CR_MIN(all, most), at = seen[k]++;
        if ((at + 1) * keep / all > at * keep / all) kept[count++] = cr_dataset_stored_as(dataset, i);
    }
    dataset->kept  = kept;
    dataset->count = count;
    return CR_OK;
}
