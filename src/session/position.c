/* session/position.c: the position of a run (epoch, step) from which it resumes, in the metadata of state.safetensors,
 * and which dataset it was trained on. See session/checkpoint_tensors.h. */
#include "session/checkpoint_tensors.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Checkpoints of older versions lack keys that are `newer`; so do those in which the value is 0. */
static const struct field {
    const char *key;
    size_t      at;
    int         base; /* 16: of a hash */
    bool        newer;
} fields[] = {
#define AT(member) #member, offsetof(struct cr_position, member)
    {AT(step), 10, false},       {AT(steps_per_epoch), 10, false}, {AT(data_fingerprint), 16, false},
    {AT(data_images), 10, true}, {AT(data_contents), 16, true},    {AT(ranks), 10, true},
    {AT(teacher), 16, true},
#undef AT
};

static void add(struct cr_state_meta *meta, const char *key, int base, uint64_t value) {
    char *text = meta->text[meta->count];
    CR_ASSERT(meta->count < CR_STATE_META_MAX);
    snprintf(text, sizeof meta->text[0], base == 16 ? "%016" PRIx64 : "%" PRIu64, value);
    meta->entry[meta->count++] = (struct cr_st_meta){key, text};
}

void cr_state_meta_of(const struct cr_position *at, int64_t seed, struct cr_state_meta *out) {
    struct cr_position p = *at;
    p.ranks              = CR_MAX(p.ranks, 1);
    out->count           = 0;
    add(out, "cresnet_state", 10, 1);
    add(out, "seed", 10, (uint64_t)seed);
    for (const struct field *f = fields; f < fields + CR_COUNT(fields); f++) {
        uint64_t value;
        memcpy(&value, (const char *)&p + f->at, sizeof value);
        if (value || !f->newer) add(out, f->key, f->base, value);
    }
    CR_ASSERT(out->count < CR_STATE_META_MAX);
    out->entry[out->count++] = CR_ST_SUMS;
}

cr_status cr_state_position_of(struct cr_st_file *file, const char *path, struct cr_position *out) {
    *out = (struct cr_position){.ranks = 1}; /* of one, in older versions */
    for (const struct field *f = fields; f < fields + CR_COUNT(fields); f++) {
        const char *text = cr_st_meta_find(file, f->key);
        char       *end  = NULL;
        if (!text && f->newer) continue;
        const uint64_t value = text ? strtoull(text, &end, f->base) : 0;
        if (!text || end == text || *end)
            return CR_FAIL(CR_ERR_FORMAT, "%s: its metadata has no valid \"%s\"", path, f->key);
        memcpy((char *)out + f->at, &value, sizeof value);
    }
    if (out->ranks < 1 || out->ranks > CR_COMM_RANKS_MAX)
        return CR_FAIL(CR_ERR_FORMAT, "%s: its metadata has no valid \"ranks\"", path);
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
