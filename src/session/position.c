/* session/position.c: the metadata of state.safetensors: the position of a run, and which dataset it was trained on.
 * See session/checkpoint_tensors.h. */
#include "session/checkpoint_tensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- writing ---- */

static void add(struct cr_state_meta *meta, const char *key) {
    CR_ASSERT(meta->count < CR_STATE_META_MAX);
    meta->entry[meta->count] = (struct cr_st_meta){key, meta->text[meta->count]};
    meta->count++;
}

static void add_number(struct cr_state_meta *meta, const char *key, int64_t value) {
    snprintf(meta->text[meta->count], sizeof meta->text[0], "%" PRId64, value);
    add(meta, key);
}

static void add_hash(struct cr_state_meta *meta, const char *key, uint64_t value) {
    snprintf(meta->text[meta->count], sizeof meta->text[0], "%016" PRIx64, value);
    add(meta, key);
}

void cr_state_meta_of(const struct cr_position *at, int64_t seed, struct cr_state_meta *out) {
    out->count = 0;
    add_number(out, "cresnet_state", 1);
    add_number(out, "step", at->step);
    add_number(out, "steps_per_epoch", at->steps_per_epoch);
    add_hash(out, "data_fingerprint", at->data_fingerprint);
    if (at->data_images) add_number(out, "data_images", at->data_images);
    if (at->data_contents) add_hash(out, "data_contents", at->data_contents);
    add_number(out, "seed", seed);
    add_number(out, "ranks", CR_MAX(at->ranks, 1));
    if (at->teacher) add_hash(out, "teacher", at->teacher);
}

/* ---- reading ---- */

static cr_status meta_number(struct cr_st_file *file, const char *path, const char *key, int base, uint64_t *out) {
    const char *text = cr_st_meta_find(file, key);
    char       *end  = NULL;
    if (text) *out = strtoull(text, &end, base);
    if (!text || end == text || *end) return CR_FAIL(CR_ERR_FORMAT, "%s: its metadata has no valid \"%s\"", path, key);
    return CR_OK;
}

/* A key that checkpoints of older versions do not have keeps its value in *out. */
static cr_status newer_number(struct cr_st_file *file, const char *path, const char *key, int base, uint64_t *out) {
    return cr_st_meta_find(file, key) ? meta_number(file, path, key, base, out) : CR_OK;
}

cr_status cr_state_position_of(struct cr_st_file *file, const char *path, struct cr_position *out) {
    uint64_t step, per_epoch, fingerprint, images = 0, contents = 0, teacher = 0,
                                           ranks = 1; /* of one, in older versions */
    CR_TRY(meta_number(file, path, "step", 10, &step));
    CR_TRY(meta_number(file, path, "steps_per_epoch", 10, &per_epoch));
    CR_TRY(meta_number(file, path, "data_fingerprint", 16, &fingerprint));
    CR_TRY(newer_number(file, path, "data_images", 10, &images));
    CR_TRY(newer_number(file, path, "data_contents", 16, &contents));
    CR_TRY(newer_number(file, path, "teacher", 16, &teacher));
    CR_TRY(newer_number(file, path, "ranks", 10, &ranks));
    if (ranks < 1 || ranks > CR_COMM_RANKS_MAX)
        return CR_FAIL(CR_ERR_FORMAT, "%s: its metadata has no valid \"ranks\"", path);
    *out = (struct cr_position){.step             = (int64_t)step,
                                .steps_per_epoch  = (int64_t)per_epoch,
                                .data_fingerprint = fingerprint,
                                .data_images      = (int64_t)images,
                                .data_contents    = contents,
                                .ranks            = (int64_t)ranks,
                                .teacher          = teacher};
    return CR_OK;
}

cr_status cr_state_position(const char *folder, struct cr_position *out) {
    char               path[CR_PATH_MAX];
    struct cr_st_file *file;
    CR_TRY(cr_path_join(path, folder, "state.safetensors"));
    CR_TRY(cr_st_open(path, &file));
    const cr_status status = cr_state_position_of(file, path, out);
    cr_st_close(file);
    return status;
}
