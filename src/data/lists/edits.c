/* data/lists/edits.c: data.exclude and data.labels: leaves images of a dataset out, and replaces labels. The dataset of
 * the format stays as it is behind one that has fewer samples, so data.val_fraction holds out the same images as
 * before. */
#include "data/file_list.h"
#include "data/scratch.h"
#include "data/source.h"
#include "data/source/folder_list.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct edited {
    struct cr_dataset inner;  /* of the format; its arena is that of the outer dataset */
    int64_t          *sample; /* [count]: the sample of the format */
    int32_t          *label;  /* [count]: the label of the format's classes */
};

/* ---- the edited dataset ---- */

static void edited_free(struct edited *e) {
    if (!e) return;
    cr_free(e->sample);
    cr_free(e->label);
    cr_free(e);
}

static cr_status edited_new(int64_t count, struct edited **out) {
    struct edited *e = cr_alloc(1, sizeof *e);
    if (e) e->sample = cr_alloc((size_t)count, sizeof *e->sample);
    if (e) e->label = cr_alloc((size_t)count, sizeof *e->label);
    *out = e;
    return e && e->sample && e->label ? CR_OK : CR_NO_MEMORY((size_t)count * sizeof *e->sample);
}

static cr_status edited_fetch(const struct cr_dataset *dataset, int64_t sample, struct cr_scratch *scratch,
                              struct cr_stored *out, int32_t *label) {
    const struct edited *e = dataset->state;
    CR_TRY(e->inner.ops->fetch(&e->inner, e->sample[sample], scratch, out, label));
    *label = e->label[sample];
    return CR_OK;
}

static void edited_name(const struct cr_dataset *dataset, int64_t sample, char *buf, size_t size) {
    const struct edited *e = dataset->state;
    e->inner.ops->name(&e->inner, e->sample[sample], buf, size);
}

static int32_t edited_label(const struct cr_dataset *dataset, int64_t sample) {
    return ((const struct edited *)dataset->state)->label[sample];
}

static void edited_close(struct cr_dataset *dataset) {
    struct edited *e = dataset->state;
    e->inner.ops->close(&e->inner);
    edited_free(e);
}

static uint64_t edited_digest(const struct cr_dataset *dataset, int64_t sample, uint8_t *head) {
    const struct edited *e = dataset->state;
    return e->inner.ops->digest ? e->inner.ops->digest(&e->inner, e->sample[sample], head) : 0;
}

static cr_status edited_check(const struct cr_dataset *dataset) {
    const struct edited *e = dataset->state;
    return e->inner.ops->check ? e->inner.ops->check(&e->inner) : CR_OK;
}

static const struct cr_dataset_ops edited_ops = {edited_fetch, edited_name,   edited_label,
                                                 edited_close, edited_digest, edited_check};

/* The dataset becomes the edited one, which it owns, also after a failure. */
static cr_status install(struct cr_dataset *dataset, struct edited *e, int64_t count) {
    uint64_t hash  = dataset->fingerprint ^ CR_HASH_START;
    e->inner       = *dataset;
    e->inner.arena = (struct cr_arena){0};
    dataset->ops   = &edited_ops;
    dataset->state = e;
    dataset->count = count;
    hash           = cr_hash_bytes(hash, e->sample, (size_t)count * sizeof *e->sample);
    hash           = cr_hash_bytes(hash, e->label, (size_t)count * sizeof *e->label);

    dataset->fingerprint = cr_hash_mix(hash);
    if (!dataset->class_counts) return CR_OK;
    CR_ARENA_ALLOC(&dataset->arena, dataset->class_counts, (size_t)dataset->classes);
    for (int64_t i = 0; i < count; i++) dataset->class_counts[cr_dataset_label(dataset, i)]++;
    return CR_OK;
}

cr_status cr_dataset_thin(struct cr_dataset *dataset, int64_t most) {
    struct edited *e;
    int64_t        count = 0, *seen;
    CR_ARENA_ALLOC(&dataset->arena, seen, (size_t)dataset->classes);
    if (!dataset->class_counts) return CR_OK;
    const cr_status status = edited_new(dataset->count, &e);
    for (int64_t i = 0; status == CR_OK && i < dataset->count; i++) {
        const int     k   = cr_dataset_label(dataset, i);
        const int64_t all = dataset->class_counts[k], keep = CR_MIN(all, most), at = seen[k]++;
        if ((at + 1) * keep / all == at * keep / all) continue;
        e->sample[count]  = i;
        e->label[count++] = dataset->ops->label(dataset, i);
    }
    if (status == CR_OK) return install(dataset, e, count);
    edited_free(e);
    return status;
}

/* ---- the lists ---- */

/* Rows of one list, sorted by file, each file once. */
struct edits {
    const char         *key, *root;
    char                resolved[PATH_MAX]; /* `root` without links, absolute; "": unknown */
    struct cr_file_list list;
    bool               *found; /* [list.count] */
};

static const char *without(const char *folder, const char *file) {
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/') length--;
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

static int compare_files(const void *a, const void *b) {
    return strcmp(((const struct cr_file_row *)a)->file, ((const struct cr_file_row *)b)->file);
}

static int compare_rows(const void *a, const void *b) {
    const int     order = compare_files(a, b);
    const int64_t x = ((const struct cr_file_row *)a)->line, y = ((const struct cr_file_row *)b)->line;
    return order ? order : (x > y) - (x < y);
}

/* Reads the list of a key; nothing when the key is empty. */
static cr_status edits_read(const char *path, bool labels, struct edits *e) {
    struct cr_file_list *list = &e->list;
    int64_t              kept = 0;
    if (!*path) return CR_OK;
    CR_TRY(cr_file_list_read(path, labels, list));
    if (!realpath(e->root, e->resolved)) e->resolved[0] = 0;
    for (int64_t i = 0; i < list->count; i++) list->row[i].file = below(e, list->row[i].file);
    if (list->count) qsort(list->row, (size_t)list->count, sizeof *list->row, compare_rows);
    for (int64_t i = 0; i < list->count; i++) {
        const struct cr_file_row row = list->row[i], *before = kept ? &list->row[kept - 1] : NULL;
        if (!before || strcmp(before->file, row.file) != 0)
            list->row[kept++] = row;
        else if (labels && strcmp(before->label, row.label) != 0)
            return CR_FAIL(CR_ERR_FORMAT, "%s:%lld: %s has the label %.100s here and %.100s in line %lld", path,
                           (long long)row.line, row.file, row.label, before->label, (long long)before->line);
    }
    list->count = kept;
    CR_ALLOC(e->found, (size_t)kept);
    return CR_OK;
}

/* The row of an image, which is found now, or NULL. */
static const struct cr_file_row *edits_find(struct edits *e, const char *name) {
    const struct cr_file_row key = {.file = below(e, name)}, *row;
    row = e->list.count ? bsearch(&key, e->list.row, (size_t)e->list.count, sizeof key, compare_files) : NULL;
    if (row) e->found[row - e->list.row] = true;
    return row;
}

/* Rows that this split has not found must be of the other one: files that are there. Of CIFAR and of archives, whose
 * files have many images and need not lie in data.root, this is not known. */
static cr_status check_found(const struct cr_config *config, const struct edits *e) {
    char                      path[PATH_MAX];
    int64_t                   missing = 0;
    const struct cr_file_row *first   = NULL;
    const bool                packed  = config->data.kind == CR_DATA_PACKED;
    if (!packed && config->data.kind != CR_DATA_FOLDER && config->data.kind != CR_DATA_CSV) return CR_OK;
    for (int64_t i = 0; i < e->list.count; i++) {
        const struct cr_file_row *row = &e->list.row[i];
        const int length = packed ? (int)strcspn(row->file, "[") : (int)CR_MIN(strlen(row->file), (size_t)PATH_MAX);
        if (e->found[i]) continue;
        if (snprintf(path, sizeof path, "%s/%.*s", *row->file == '/' ? "" : e->root, length, row->file) < PATH_MAX &&
            access(path, F_OK) == 0)
            continue;
        if (!missing++ || row->line < first->line) first = row;
    }
    if (!missing) return CR_OK;
    return cr_config_fail(config, e->key,
                          "line %lld: the dataset has no image %s (%lld of %lld names are unknown): names are relative "
                          "to data.root, %s; an empty %s leaves the dataset as it is",
                          (long long)first->line, first->file, (long long)missing, (long long)e->list.count, e->root,
                          e->key);
}

/* ---- what is left ---- */

static cr_status find_label(const struct cr_dataset *dataset, const struct edits *labels, const struct cr_file_row *row,
                            int32_t *out) {
    for (*out = 0; *out < dataset->classes; ++*out)
        if (strcmp(dataset->class_names[*out], row->label) == 0) return CR_OK;
    return CR_FAIL(CR_ERR_FORMAT, "%s:%lld: the dataset has no class %.100s; its first one is %.100s",
                   labels->list.path, (long long)row->line, row->label, dataset->class_names[0]);
}

/* Fills the samples and labels that stay. *changed: the images with another label than before. */
static cr_status choose_samples(const struct cr_dataset *dataset, struct edits *exclude, struct edits *labels,
                                struct edited *out, int64_t *count, int64_t *changed) {
    char name[CR_SAMPLE_NAME_BYTES];
    for (int64_t i = 0; i < dataset->count; i++) {
        dataset->ops->name(dataset, i, name, sizeof name);
        const int32_t             before = dataset->ops->label(dataset, i);
        int32_t                   label  = before;
        const struct cr_file_row *row    = edits_find(labels, name);
        if (row) CR_TRY(find_label(dataset, labels, row, &label));
        if (edits_find(exclude, name)) continue;
        *changed += label != before;
        out->sample[*count]    = i;
        out->label[(*count)++] = label;
    }
    return CR_OK;
}

/* Every class keeps an image for training. */
static cr_status check_classes(const struct cr_dataset *dataset, enum cr_split split, const struct cr_config *config) {
    const int64_t *before = ((const struct edited *)dataset->state)->inner.class_counts;
    if (!dataset->count) return cr_config_fail(config, "data.exclude", "leaves no image of a split");
    for (int k = 0; split == CR_SPLIT_TRAIN && before && k < dataset->classes; k++)
        if (!dataset->class_counts[k] && before[k])
            return cr_config_fail(config, *config->data.exclude ? "data.exclude" : "data.labels",
                                  "the class %.100s has no image left for training: keep some of its %lld",
                                  dataset->class_names[k], (long long)before[k]);
    return CR_OK;
}

cr_status cr_dataset_edit(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset) {
    const char    *root = config->data.root, *name = split == CR_SPLIT_TRAIN ? "training set" : "validation set";
    struct edits   exclude = {.key = "data.exclude", .root = root}, labels = {.key = "data.labels", .root = root};
    struct edited *e     = NULL;
    int64_t        count = 0, changed = 0, all = dataset->count;
    cr_status      status;
    if (!*config->data.exclude && !*config->data.labels) return CR_OK;
    CR_TRY_OUT(edits_read(config->data.exclude, false, &exclude));
    CR_TRY_OUT(edits_read(config->data.labels, true, &labels));
    CR_TRY_OUT(edited_new(all, &e));
    CR_TRY_OUT(choose_samples(dataset, &exclude, &labels, e, &count, &changed));
    CR_TRY_OUT(check_found(config, &exclude));
    CR_TRY_OUT(check_found(config, &labels));
    if (cr_folder_warning_is_new(name, changed + all - count, root))
        cr_log(CR_LOG_INFO, "%s: %lld of %lld images are left out, %lld have other labels", name,
               (long long)(all - count), (long long)all, (long long)changed);
    struct edited *const installed = e;
    e                              = NULL;
    CR_TRY_OUT(install(dataset, installed, count));
    status = check_classes(dataset, split, config);
out:
    cr_file_list_free(&exclude.list);
    cr_file_list_free(&labels.list);
    cr_free(exclude.found);
    cr_free(labels.found);
    edited_free(e);
    return status;
}
