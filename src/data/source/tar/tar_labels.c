/* data/source/tar/tar_labels.c: labels of samples of tar archives, and the classes that they make. See tar.h. */
#include "core/files.h"
#include "core/utf8.h"
#include "data/class_match.h"
#include "data/source/csv_list.h"
#include "data/source/tar/tar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_BYTES_MAX = 64 << 20, ROWS_FREE = 1 << 30, ROWS_PER_BYTE = 256 };

/* ---- texts ---- */

const char *cr_tar_text(const struct cr_tar_texts *t, int64_t number) {
    return t->text.data + t->at[number];
}

static uint32_t *find_slot(const struct cr_tar_texts *t, const char *text) {
    size_t at = (size_t)cr_hash_mix(cr_hash_bytes(CR_HASH_START, text, strlen(text))) & (t->slots - 1);
    while (t->slot[at] && strcmp(cr_tar_text(t, t->slot[at] - 1), text) != 0) at = (at + 1) & (t->slots - 1);
    return &t->slot[at];
}

static cr_status grow_slots(struct cr_tar_texts *t) {
    cr_free(t->slot);
    t->slots = t->slots ? 4 * t->slots : 1024;
    t->slot  = NULL;
    CR_ALLOC(t->slot, t->slots);
    for (int64_t i = 0; i < t->count; i++) *find_slot(t, cr_tar_text(t, i)) = (uint32_t)i + 1;
    return CR_OK;
}

cr_status cr_tar_text_number(struct cr_tar_texts *t, const char *text, int32_t *number) {
    if (2 * (size_t)t->count >= t->slots) CR_TRY(grow_slots(t));
    uint32_t *slot = find_slot(t, text);
    if (!*slot) {
        CR_GROW(t->at, t->count, t->capacity, 1024);
        t->at[t->count] = t->text.length;
        cr_text_add_bytes(&t->text, text, strlen(text) + 1);
        if (t->text.failed) return CR_NO_MEMORY(t->text.capacity * 2);
        *slot = (uint32_t)++t->count;
    }
    *number = (int32_t)*slot - 1;
    return CR_OK;
}

void cr_tar_texts_free(struct cr_tar_texts *t) {
    cr_text_free(&t->text);
    cr_free(t->at);
    cr_free(t->slot);
    *t = (struct cr_tar_texts){0};
}

/* ---- lists beside the archives ---- */

/* Reads the file NAME in the folder of `archive`, or with `above` in the one above; *text stays NULL without it. */
static cr_status read_beside(const char *archive, bool above, const char *name, char path[PATH_MAX], char **text) {
    const char *slash  = strrchr(archive, '/');
    const int   length = slash ? (int)(slash - archive) + 1 : 0;
    CR_TRY(cr_path_format(path, "%.*s%s%s", length, archive, above ? "../" : "", name));
    return cr_fs_is_file(path) ? cr_file_read(path, LIST_BYTES_MAX, text, NULL) : CR_OK;
}

/* Splits a text into lines in place and trims blanks; empty lines at the end do not count. */
static cr_status split_lines(char *text, const char ***line, int64_t *count) {
    int64_t capacity = 0, lines = 0;
    for (char *save = text; save;) {
        char  *at     = strsep(&save, "\n");
        size_t length = strlen(at += strspn(at, " \t\r"));
        while (length && strchr(" \t\r", at[length - 1])) at[--length] = 0;
        CR_GROW(*line, lines, capacity, 1024);
        (*line)[lines++] = at;
        if (length) *count = lines;
    }
    return CR_OK;
}

/* The devkit's list has numbers of its own: map_clsloc.txt has lines "n02119789 1 kit_fox". Replaces the numbers by the
 * names that they stand for. */
static cr_status name_numbers(const char *path, char *map, struct cr_tar_val_labels *list) {
    const char **names;
    int          number, end;
    cr_status    status = CR_OK;
    CR_ALLOC(names, 1001);
    for (char *save = map; save;) {
        char *line = strsep(&save, "\n"), *blank = strchr(line, ' ');
        if (!blank || sscanf(blank, "%8d", &number) != 1 || number < 1 || number > 1000) continue;
        *blank        = 0;
        names[number] = line;
    }
    for (int64_t i = 0; i < list->count && status == CR_OK; i++) {
        const bool valid = sscanf(list->label[i], "%8d%n", &number, &end) == 1 && !list->label[i][end] && number >= 1 &&
                           number <= 1000 && names[number];
        if (valid)
            list->label[i] = names[number];
        else
            status = CR_FAIL(CR_ERR_FORMAT, "%s:%lld: %.40s is none of the numbers in map_clsloc.txt", path,
                             (long long)i + 1, list->label[i]);
    }
    cr_free(names);
    return status;
}

cr_status cr_tar_val_labels_read(const char *archive, struct cr_tar_val_labels *out) {
    static const char *const named = "imagenet_2012_validation_synset_labels.txt";
    static const char *const truth = "ILSVRC2012_validation_ground_truth.txt";
    char                     path[PATH_MAX], map_path[PATH_MAX], *map = NULL;
    CR_TRY(read_beside(archive, false, named, path, &out->text));
    if (!out->text) {
        CR_TRY(read_beside(archive, false, truth, path, &out->text));
        if (!out->text) return CR_OK;
        CR_TRY(read_beside(archive, false, "map_clsloc.txt", map_path, &map));
        if (!map)
            return CR_FAIL(CR_ERR_IO,
                           "%s: its numbers are those of the devkit: put map_clsloc.txt beside it, with lines "
                           "such as \"n02119789 1 kit_fox\", or %s, with one name for each image",
                           path, named);
    }
    cr_status status = split_lines(out->text, &out->label, &out->count);
    out->map         = map;
    if (status == CR_OK && map) status = name_numbers(path, map, out);
    for (int64_t i = 0; status == CR_OK && i < out->count; i++)
        out->hash = cr_hash_bytes(out->hash + 1, out->label[i], strlen(out->label[i]));
    return status;
}

/* ---- classes ---- */

/* -1: the label is no number. */
static int64_t number_of(const char *label) {
    const size_t digits = strspn(label, "0123456789");
    return digits && digits < 16 && !label[digits] ? strtoll(label, NULL, 10) : -1;
}

/* Names class k: `name`, or its number if that is NULL. A name that occurred before, as in ImageNet's lists, gets
 * its class number appended. */
static cr_status name_class(struct cr_dataset *dataset, int k, const char *name, const char *path,
                            struct cr_tar_texts *seen) {
    int32_t number = k;
    if (name && (!*name || cr_utf8_has_control(name)))
        return CR_FAIL(CR_ERR_FORMAT, "%s:%d: the name is empty or has control characters", path, k + 1);
    if (name) CR_TRY(cr_tar_text_number(seen, name, &number));
    const bool again        = name && number + 1 < seen->count;
    dataset->class_names[k] = !name ? cr_arena_printf(&dataset->arena, "%d", k)
                                    : cr_arena_printf(&dataset->arena, again ? "%s (%d)" : "%s", name, k);
    return dataset->class_names[k] ? CR_OK : CR_NO_MEMORY(strlen(name ? name : "") + 16);
}

/* The classes 0 to `largest`: their names are in a file beside the archives, or they are the numbers. */
static cr_status name_classes(struct cr_dataset *dataset, const char *archive, int64_t largest) {
    static const char *const files[]        = {"classes.txt", "classnames.txt"};
    struct cr_tar_texts      seen           = {0};
    char                     path[PATH_MAX] = "", *text = NULL;
    const char             **line   = NULL;
    int64_t                  count  = largest + 1;
    cr_status                status = CR_OK;
    for (size_t i = 0; i < 2 * CR_COUNT(files) && !text; i++)
        CR_TRY(read_beside(archive, i >= CR_COUNT(files), files[i % CR_COUNT(files)], path, &text));
    if (text) CR_TRY_OUT(split_lines(text, &line, &count));
    if (count <= largest || count > CR_CSV_CLASSES_MAX)
        CR_FAIL_OUT(CR_ERR_FORMAT, "%s: has %lld names, and there are labels up to %lld: complete it, or remove it",
                    path, (long long)count, (long long)largest);
    dataset->class_names = cr_arena_array(&dataset->arena, (size_t)count, sizeof *line);
    if (!dataset->class_names) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory: names of %lld classes", (long long)count);
    dataset->classes = (int)count;
    for (int k = 0; k < dataset->classes; k++) CR_TRY_OUT(name_class(dataset, k, text ? line[k] : NULL, path, &seen));
out:
    cr_tar_texts_free(&seen);
    cr_free(text);
    cr_free(line);
    return status;
}

/* Adds each line of each text to `out`. */
static cr_status split_labels(const struct cr_tar_texts *labels, struct cr_tar_texts *out) {
    cr_status status = CR_OK;
    for (int64_t i = 0; i < labels->count && status == CR_OK; i++) {
        char   *copy = cr_strdup(cr_tar_text(labels, i)), *save = copy;
        int32_t number;
        if (!copy) return CR_NO_MEMORY(strlen(cr_tar_text(labels, i)));
        while (status == CR_OK && save && *save) status = cr_tar_text_number(out, strsep(&save, "\n"), &number);
        cr_free(copy);
    }
    return status;
}

static cr_status make_classes(struct cr_dataset *dataset, const struct cr_tar_texts *labels, const char *where,
                              bool *numbers) {
    const char **label;
    int64_t      largest = 0;
    *numbers             = labels->count > 0;
    for (int64_t i = 0; i < labels->count; i++) {
        *numbers = *numbers && number_of(cr_tar_text(labels, i)) >= 0;
        largest  = CR_MAX(largest, number_of(cr_tar_text(labels, i)));
    }
    if (*numbers && (largest < 1 || largest >= CR_CSV_CLASSES_MAX))
        return CR_FAIL(CR_ERR_FORMAT, "%s: its largest label is %lld; 1 to %d are supported", where, (long long)largest,
                       CR_CSV_CLASSES_MAX - 1);
    if (*numbers) return name_classes(dataset, where, largest);
    CR_ALLOC(label, (size_t)labels->count);
    for (int64_t i = 0; i < labels->count; i++) label[i] = cr_tar_text(labels, i);
    const cr_status status = cr_csv_make_classes(where, label, labels->count, dataset);
    cr_free(label);
    return status;
}

cr_status cr_tar_make_classes(struct cr_dataset *dataset, const struct cr_tar_texts *source, const char *where,
                              bool *numbers) {
    struct cr_tar_texts labels = {0};
    cr_status           status = split_labels(source, &labels);
    if (status == CR_OK) status = make_classes(dataset, &labels, where, numbers);
    cr_tar_texts_free(&labels);
    if (dataset->label_words) dataset->label_words = 1 + (dataset->classes + 31) / 32;
    return status;
}

/* One of `labels` as a row: graph/loss.h. */
static cr_status number_lines(const struct cr_dataset *dataset, char *lines, bool numbers, const char *where,
                              const char *source, int32_t *row) {
    while (lines && *lines) {
        const char   *label = strsep(&lines, "\n");
        const int64_t k     = numbers ? number_of(label) : cr_csv_class_of(dataset, label);
        if (k < 0 || k >= dataset->classes) {
            const int like = cr_class_find_respelt(label, dataset->class_names, dataset->classes);
            return CR_FAIL(CR_ERR_FORMAT, "%s: no sample of %s has the label %.100s%s%s%s", where, source, label,
                           like < 0 ? "" : "; ", like < 0 ? "" : dataset->class_names[like],
                           like < 0 ? "" : " differs only in " CR_CLASS_SPELLING);
        }
        if (!dataset->label_words) {
            *row = (int32_t)k;
            continue;
        }
        const uint32_t bit = 1u << (k % 32), word = (uint32_t)row[1 + k / 32];
        row[0] += !(word & bit);
        row[1 + k / 32] = (int32_t)(word | bit);
    }
    return CR_OK;
}

cr_status cr_tar_number_labels(const struct cr_dataset *dataset, const struct cr_tar_texts *labels, bool numbers,
                               const char *where, const char *source, int32_t **out) {
    const size_t words = (size_t)CR_MAX(dataset->label_words, 1), bytes = (size_t)labels->count * words * sizeof **out;
    int32_t     *rows;
    cr_status    status = CR_OK;
    /* A row has one bit for each class. If each sample has a label of its own, memory grows with the square. */
    if (bytes > ROWS_FREE && bytes / ROWS_PER_BYTE > labels->text.length)
        return CR_FAIL(CR_ERR_FORMAT, "%s: labels of %d classes take %zu MiB: is this a column of labels?", where,
                       dataset->classes, bytes >> 20);
    CR_ALLOC(rows, (size_t)labels->count * words);
    for (int64_t i = 0; i < labels->count && status == CR_OK; i++) {
        char *lines = cr_strdup(cr_tar_text(labels, i));
        status      = lines ? number_lines(dataset, lines, numbers, where, source, rows + (size_t)i * words)
                            : CR_NO_MEMORY(strlen(cr_tar_text(labels, i)));
        cr_free(lines);
    }
    if (status == CR_OK)
        *out = rows;
    else
        cr_free(rows);
    return status;
}
