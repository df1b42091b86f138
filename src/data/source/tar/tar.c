/* data/source/tar/tar.c: the dataset of tar archives (WebDataset, ImageNet). See data/source/tar/tar.h.
 *
 * Archives are mapped into memory, as packed files are (data/source/pack_map.c).
 * In the text of an image (folder_list.h) a struct place follows the 0 after its name. */
#include "data/source/tar/tar.h"
#include "data/class_match.h"
#include "data/decode.h"
#include "data/source/pack_map.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

enum { IMAGE_BYTES_MAX = 1 << 30 };

struct place {
    uint64_t offset;
    uint32_t bytes, shard;
};
struct samples { /* of one split */
    struct cr_image_folder images;
    struct cr_tar_set      set;
    struct cr_tar_texts    labels; /* the label of an image is its number here until the classes are known */
};
struct state {
    struct cr_image_folder images; /* at the start, where cr_folder_label and cr_folder_finish expect it */
    char                 **path;   /* [archives] */
    struct cr_pack_map   **map;    /* [archives] */
    int64_t                archives;
};

/* ---- the dataset ---- */

static struct place place_of(const struct cr_image_folder *images, int64_t sample, const char **name) {
    struct place place;
    *name = images->names.data + images->images[sample].name;
    memcpy(&place, *name + strlen(*name) + 1, sizeof place);
    return place;
}

static void tar_name(const struct cr_dataset *dataset, int64_t sample, char *buf, size_t size) {
    const struct state *s = dataset->state;
    const char         *name;
    const struct place  place = place_of(&s->images, sample, &name);
    snprintf(buf, size, "%s:%s", s->path[place.shard], name);
}

/* A copy, because another program may change the archive while the image is decoded. */
static cr_status read_place(const struct state *s, const struct place *place, void *to, size_t count) {
    const struct cr_pack_map *map = s->map[place->shard];
    memcpy(to, cr_pack_map_at(map, place->offset, count), count);
    if (!cr_pack_map_is_cut(map)) return CR_OK;
    return CR_FAIL(CR_ERR_IO, "%s: was cut off while it was read: copy or download it again", s->path[place->shard]);
}

static cr_status tar_fetch(const struct cr_dataset *dataset, int64_t sample, struct cr_scratch *scratch,
                           struct cr_stored *out) {
    const struct state *s = dataset->state;
    const char         *name;
    const struct place  place = place_of(&s->images, sample, &name);
    if (!place.bytes || place.bytes > IMAGE_BYTES_MAX)
        return CR_FAIL(CR_ERR_FORMAT, "%s:%s: %s", s->path[place.shard], name,
                       place.bytes ? "has too many bytes for an image" : "the file is empty");
    CR_TRY(cr_buffer_reserve(&scratch->file, place.bytes));
    CR_TRY(read_place(s, &place, scratch->file.bytes, place.bytes));
    out->bytes = scratch->file.bytes;
    out->count = place.bytes;
    return CR_OK;
}

static uint64_t tar_digest(const struct cr_dataset *dataset, int64_t sample, uint8_t *head) {
    const struct state *s = dataset->state;
    const char         *name;
    const struct place  place = place_of(&s->images, sample, &name);
    const size_t        count = CR_MIN(place.bytes, (uint32_t)CR_DIGEST_BYTES);
    if (read_place(s, &place, head, count) == CR_OK)
        return cr_hash_sample(place.bytes, s->images.images[sample].label, head, count);
    cr_error_clear();
    return 0;
}

static void images_free(struct cr_image_folder *images) {
    cr_free(images->root);
    cr_text_free(&images->names);
    cr_free(images->images);
    *images = (struct cr_image_folder){0};
}

static void tar_close(struct cr_dataset *dataset) {
    struct state *s = dataset->state;
    if (!s) return;
    for (int64_t i = 0; i < s->archives; i++) {
        cr_pack_map_close(s->map ? s->map[i] : NULL);
        cr_free(s->path ? s->path[i] : NULL);
    }
    cr_free(s->map);
    cr_free(s->path);
    images_free(&s->images);
    cr_free(s);
}

static const struct cr_dataset_ops tar_ops = {tar_fetch, tar_name, cr_folder_label, tar_close, tar_digest, NULL};

/* ---- opening ---- */

static cr_status add_samples(struct samples *s, int64_t index, struct cr_tar_sample *sample) {
    struct cr_list_reader list = s->set.shard[index].list;
    while (list.at < list.end) {
        int32_t number;
        CR_TRY(cr_tar_take_sample(&s->set.shard[index], &list, sample));
        CR_TRY(cr_tar_text_number(&s->labels, sample->label, &number));
        CR_TRY(cr_folder_add(&s->images, sample->name, number));
        const struct place place = {sample->offset, sample->bytes, (uint32_t)index};
        cr_text_add_bytes(&s->images.names, &place, sizeof place);
    }
    return s->images.names.failed ? CR_NO_MEMORY(s->images.names.capacity * 2) : CR_OK;
}

/* Samples without an image or a usable label are left out, named and counted, or end the command. */
static cr_status report_notes(const struct cr_config *config, const struct cr_tar_set *set) {
    static const char *const what[CR_TAR_NOTES] = {"image%s without a label",
                                                   "label%s without an image",
                                                   "image%s with an unusable label",
                                                   "link%s, device or sparse file, not read",
                                                   "image%s with several dots in the name: only one ending is read",
                                                   "archive%s without a mark at the end: cut off?"};
    for (int k = 0; k < CR_TAR_NOTES; k++) {
        const char *first = NULL;
        int64_t     count = 0;
        char        text[128];
        for (int64_t i = 0; i < set->count; i++) {
            if (!first && set->shard[i].note[k].count) first = set->shard[i].note[k].first;
            count += set->shard[i].note[k].count;
        }
        if (!count) continue;
        snprintf(text, sizeof text, what[k], count == 1 ? "" : "s");
        if (config->data.corrupt == CR_CORRUPT_FATAL && k <= CR_TAR_BAD_LABEL)
            return CR_FAIL(CR_ERR_FORMAT, "%lld %s, such as %s", (long long)count, text, first);
        if (cr_folder_warning_is_new(what[k], count, first))
            cr_log(CR_LOG_WARN, "%lld %s, such as %s", (long long)count, text, first);
    }
    return CR_OK;
}

static cr_status fail_empty(const struct cr_tar_set *set) {
    for (int k = CR_TAR_NO_LABEL; k <= CR_TAR_BAD_LABEL; k++)
        for (int64_t i = 0; i < set->count; i++)
            if (set->shard[i].note[k].count)
                return CR_FAIL(CR_ERR_FORMAT, "%s: no sample with an image and a label; %s: %s", set->shard[0].path,
                               k == CR_TAR_NO_LABEL ? "there are images without one (.cls or .json)" : "the first one",
                               set->shard[i].note[k].first);
    return CR_FAIL(CR_ERR_FORMAT, "%s: no sample: images (" CR_IMAGE_ENDINGS ") and labels (cls, json) are expected",
                   set->shard[0].path);
}

/* A key that two archives have. Within one, tar_index.c has found it. */
static cr_status check_keys(const struct samples *s) {
    struct cr_tar_texts keys   = {0};
    cr_status           status = CR_OK;
    for (int64_t i = 0; i < s->images.count && status == CR_OK; i++) {
        char               key[PATH_MAX];
        int32_t            number;
        const char        *name, *other;
        const struct place second = place_of(&s->images, i, &name);
        const char        *slash  = strrchr(name, '/');
        snprintf(key, sizeof key, "%.*s", (int)(strchr(slash ? slash : name, '.') - name), name);
        status = cr_tar_text_number(&keys, key, &number);
        if (status != CR_OK || number == i) continue;
        const struct place first = place_of(&s->images, number, &other);
        status = CR_FAIL(CR_ERR_FORMAT, "%s: has the sample %.200s, which %s has too: keys must be different",
                         s->set.shard[second.shard].path, key, s->set.shard[first.shard].path);
    }
    cr_tar_texts_free(&keys);
    return status;
}

static cr_status read_samples(const struct cr_config *config, struct cr_tar_paths *paths, struct samples *s) {
    struct cr_tar_sample *sample;
    CR_TRY(cr_tar_set_open(&s->set, paths->path, paths->count, config));
    CR_TRY(report_notes(config, &s->set));
    CR_ALLOC(sample, 1);
    cr_status status = CR_OK;
    for (int64_t i = 0; i < s->set.count && status == CR_OK; i++) status = add_samples(s, i, sample);
    cr_free(sample);
    CR_TRY(status);
    if (!s->images.count) return fail_empty(&s->set);
    if (s->set.fresh) CR_TRY(check_keys(s));
    return cr_tar_set_store(&s->set);
}

/* Sorts the images by class, and keeps of each class those of the split. */
static cr_status divide(struct cr_image_folder *images, int classes, double fraction, enum cr_split split) {
    const int64_t         count = images->count;
    struct cr_image_file *sorted;
    int64_t              *end;
    CR_ALLOC(end, (size_t)classes + 1);
    sorted = cr_alloc((size_t)count, sizeof *sorted);
    for (int64_t i = 0; i < count; i++) end[images->images[i].label + 1]++;
    for (int k = 0; k < classes; k++) end[k + 1] += end[k];
    for (int64_t i = 0; sorted && i < count; i++) sorted[end[images->images[i].label]++] = images->images[i];
    images->count = 0;
    for (int64_t i = 0, next; sorted && i < count; i = next) {
        const int64_t first = images->count;
        for (next = i; next < count && sorted[next].label == sorted[i].label; next++)
            images->images[images->count++] = sorted[next];
        cr_folder_divide(images, first, fraction, split);
    }
    cr_free(end);
    cr_free(sorted);
    return sorted ? CR_OK : CR_NO_MEMORY((size_t)count * sizeof *sorted);
}

/* Mapped files stay open: the soft limit for open files, often 1,024, is raised by their number. */
static cr_status map_archives(struct state *state, struct cr_tar_set *set) {
    enum { FEW = 64 };
    struct rlimit limit;
    if (set->count > FEW && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = CR_MIN(limit.rlim_cur + (rlim_t)set->count, limit.rlim_max);
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    CR_ALLOC(state->path, (size_t)set->count);
    CR_ALLOC(state->map, (size_t)set->count);
    state->archives = set->count;
    for (int64_t i = 0; i < set->count; i++) {
        state->path[i]     = set->shard[i].path;
        set->shard[i].path = NULL;
        CR_TRY(cr_pack_map_open(state->path[i], &state->map[i]));
        if (state->map[i]->count != set->shard[i].bytes)
            return CR_FAIL(CR_ERR_IO, "%s: has changed while it was read: start again", state->path[i]);
    }
    return CR_OK;
}

/* Classes without images may be wanted, or the numbers may begin at 1. */
static void say_empty(const struct cr_dataset *dataset, const char *where) {
    int empty = 0, first = 0;
    for (int k = 0; k < dataset->classes; k++)
        if (!dataset->class_counts[k] && !empty++) first = k;
    if (empty && cr_folder_warning_is_new("empty", empty, where))
        cr_log(CR_LOG_INFO, "%s: %d of %d classes have no training image: label %d (%s)%s", where, empty,
               dataset->classes, first, dataset->class_names[first], empty > 1 ? " and others" : "");
}

/* `own` has the samples of this split; the classes are the labels of `source`. The labels of `other`, which may be
 * NULL, are checked. */
static cr_status fill(struct cr_dataset *dataset, struct samples *own, const struct samples *source,
                      const struct samples *other, double fraction, enum cr_split split) {
    struct state           *state  = dataset->state;
    struct cr_image_folder *images = &state->images;
    const char             *where  = source->set.shard[0].path;
    bool                    numbers;
    int32_t                *rows;
    cr_status               status;
    CR_TRY(cr_tar_make_classes(dataset, &source->labels, where, &numbers));
    if (other) CR_TRY(cr_tar_number_labels(dataset, &other->labels, numbers, other->set.shard[0].path, where, &rows));
    if (other) cr_free(rows);
    CR_TRY(cr_tar_number_labels(dataset, &own->labels, numbers, own->set.shard[0].path, where, &rows));
    *images      = own->images;
    own->images  = (struct cr_image_folder){0};
    images->root = cr_strdup(own->set.shard[0].path);
    if (!images->root) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory: the name of %s", where);
    CR_TRY_OUT(map_archives(state, &own->set));
    if (dataset->label_words) {
        cr_folder_divide(images, 0, fraction, split);
        CR_TRY_OUT(cr_folder_finish_labels(dataset, rows));
        goto out;
    }
    for (int64_t i = 0; i < images->count; i++) images->images[i].label = rows[images->images[i].label];
    CR_TRY_OUT(divide(images, dataset->classes, fraction, split));
    CR_TRY_OUT(cr_folder_finish(dataset));
    if (split == CR_SPLIT_TRAIN && numbers) say_empty(dataset, images->root);
out:
    cr_free(rows);
    return status;
}

static cr_status open_paths(const struct cr_config *config, enum cr_split split, struct cr_tar_paths paths[2],
                            struct cr_dataset *dataset) {
    struct samples part[2]  = {0};
    const double   fraction = config->data.val_fraction;
    cr_status      status   = CR_OK;
    CR_TRY(cr_tar_find(config, paths));
    const char *key = *config->data.train || *config->data.val ? "data.train" : "data.root";
    if (!paths[0].count && split == CR_SPLIT_TRAIN)
        return cr_config_fail(config, key, "there are archives for validation but none for training");
    if (!paths[1].count && split == CR_SPLIT_VAL && fraction <= 0)
        return cr_config_fail(config, "data.val_fraction",
                              "there are no archives for validation: set the fraction to hold out, e.g. "
                              "data.val_fraction=0.1, or name them in data.val");
    for (int k = 0; k < 2; k++)
        if (paths[k].count) CR_TRY_OUT(read_samples(config, &paths[k], &part[k]));
    struct samples *train = paths[0].count ? &part[0] : &part[1];
    struct samples *own   = split == CR_SPLIT_VAL && paths[1].count ? &part[1] : train;
    struct samples *other = own == train ? &part[1] : train;
    status = fill(dataset, own, train, other->set.count && other != own ? other : NULL, paths[1].count ? 0 : fraction,
                  split);
out:
    for (int k = 0; k < 2; k++) {
        images_free(&part[k].images);
        cr_tar_set_close(&part[k].set);
        cr_tar_texts_free(&part[k].labels);
    }
    return status;
}

cr_status cr_tar_open(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset) {
    struct cr_tar_paths paths[2] = {0};
    struct state       *state;
    CR_ALLOC(state, 1);
    dataset->state    = state;
    dataset->ops      = &tar_ops;
    dataset->exif     = config->data.exif;
    dataset->one_file = true;
    if (config->data.multi_label) dataset->label_words = 1; /* cr_tar_number_labels sets it */
    const cr_status status = open_paths(config, split, paths, dataset);
    for (int k = 0; k < 2; k++) cr_tar_paths_free(&paths[k]);
    return status;
}
