/* data/source/csv_conflicts.c: finds images that lists name more than once with different labels. */
#include "data/source/csv_list.h"

#include <stdio.h>
#include <string.h>

/* A hash table with open addressing. An entry is the number of a line of `train` followed by those of `val`, plus 1. */
struct table {
    const struct cr_csv_list *train, *val; /* val may be NULL */
    struct slot {
        uint32_t hash, entry;
    } * slot;
    size_t mask; /* number of slots - 1; a power of two of slots */
};

static const struct cr_csv_entry *entry_of(const struct table *t, int64_t i) {
    return i < t->train->count ? &t->train->entry[i] : &t->val->entry[i - t->train->count];
}

static const char *path_of(const struct table *t, int64_t i) {
    return i < t->train->count ? t->train->path : t->val->path;
}

static const char *file_of(const struct cr_csv_entry *e) {
    const char *file = e->file;
    while (file[0] == '.' && file[1] == '/') file += 2;
    return file;
}

/* The slot of the file, or the empty slot in which it belongs. */
static struct slot *find(const struct table *t, const char *file) {
    const uint64_t hash = cr_hash_mix(cr_hash_bytes(CR_HASH_START, file, strlen(file)));
    const uint32_t high = (uint32_t)(hash >> 32);
    for (size_t at = (size_t)hash & t->mask;; at = (at + 1) & t->mask) {
        struct slot *slot = &t->slot[at];
        if (!slot->entry) slot->hash = high;
        if (!slot->entry || (slot->hash == high && strcmp(file_of(entry_of(t, slot->entry - 1)), file) == 0))
            return slot;
    }
}

static void warn(const struct table *t, int64_t files, int64_t first, int64_t second) {
    const struct cr_csv_entry *a = entry_of(t, first), *b = entry_of(t, second);
    if (!cr_folder_warning_is_new("conflict", files, t->train->path)) return;
    cr_log(CR_LOG_WARN,
           "%s:%lld: %s has the label %.100s, but %.100s in %s:%lld; %lld image%s listed with different labels: remove "
           "the lines with wrong labels",
           path_of(t, second), (long long)b->line, b->file, b->label, a->label, path_of(t, first), (long long)a->line,
           (long long)files, files == 1 ? " is" : "s are");
}

cr_status cr_csv_warn_conflicts(const struct cr_csv_list *train, const struct cr_csv_list *val) {
    struct table  t     = {.train = train, .val = val};
    const int64_t count = train->count + (val ? val->count : 0);
    int64_t       files = 0, first = 0, second = 0; /* files with several labels; two lines of one of them */
    uint8_t      *known;                            /* [count]: the file of this first line was counted */
    for (t.mask = 1; t.mask < 2 * (size_t)count; t.mask *= 2) {
    }
    t.slot = cr_alloc(t.mask--, sizeof *t.slot);
    known  = cr_alloc((size_t)count, 1);
    for (int64_t i = 0; t.slot && known && i < count; i++) {
        const struct cr_csv_entry *e    = entry_of(&t, i);
        struct slot               *slot = find(&t, file_of(e));
        if (!slot->entry) slot->entry = (uint32_t)i + 1;
        const int64_t earlier = (int64_t)slot->entry - 1;
        if (entry_of(&t, earlier)->number == e->number || known[earlier]) continue;
        known[earlier] = 1;
        if (files++) continue;
        first  = earlier;
        second = i;
    }
    if (files) warn(&t, files, first, second);
    const bool complete = t.slot && known;
    cr_free(t.slot);
    cr_free(known);
    return complete ? CR_OK : CR_NO_MEMORY((t.mask + 1) * sizeof *t.slot);
}
