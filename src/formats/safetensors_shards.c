/* formats/safetensors_shards.c: opens weights that are split over several files ("shards") as if they were one. Their
 * index, such as model.safetensors.index.json of Hugging Face, is {"metadata": ..., "weight_map": {TENSOR: FILE, ...}};
 * the files are in its folder. */
#include "core/files.h"
#include "formats/json.h"
#include "formats/safetensors_file.h"

#include <stdio.h>
#include <string.h>

enum { INDEX_BYTES_MAX = 64 << 20, SHARDS_MAX = 1000, NAME_SHOWN = 120 };

#define BAD(file, ...) CR_FAIL_FORMAT((file)->path, "not a valid index of safetensors files", __VA_ARGS__)

static cr_status bad_json(const struct cr_st_file *file, const struct cr_json *json) {
    return BAD(file, "byte %zu: %s", json->problem_at, json->problem);
}

/* The shard of this name, which is opened when it is named first. The index is data: it names no files elsewhere. */
static cr_status find_shard(struct cr_st_file *file, const char *name, struct cr_st_file **out) {
    char        path[CR_PATH_MAX], shown[NAME_SHOWN];
    const char *slash  = strrchr(file->path, '/');
    const int   folder = slash ? (int)(slash + 1 - file->path) : 0;
    cr_json_quote(shown, sizeof shown, name);
    if (!*name || strchr(name, '/')) return BAD(file, "%s is not the name of a file in this folder", shown);
    if (snprintf(path, sizeof path, "%.*s%s", folder, file->path, name) >= (int)sizeof path)
        return BAD(file, "the path of %s is too long", shown);
    for (int i = file->shards - 1; i >= 0; i--) {
        *out = file->shard[i];
        if (strcmp((*out)->path, path) == 0) return CR_OK;
    }
    if (file->shards == SHARDS_MAX) return BAD(file, "it names more than %d files", SHARDS_MAX);
    CR_GROW(file->shard, file->shards, file->shards_capacity, 8);
    CR_TRY(cr_st_open_one(path, out));
    file->shard[file->shards++] = *out;
    return CR_OK;
}

static cr_status add_tensor(struct cr_st_file *file, const char *name, const char *shard_name, int *views) {
    char                      shown[NAME_SHOWN], in[NAME_SHOWN];
    struct cr_st_file        *shard;
    const struct cr_st_entry *e;
    CR_TRY(find_shard(file, shard_name, &shard));
    e = cr_st_find(shard, name);
    cr_json_quote(shown, sizeof shown, name);
    cr_json_quote(in, sizeof in, shard_name);
    if (!e) return BAD(file, "tensor %s is not in %s", shown, in);
    CR_GROW(file->entries, file->count, file->capacity, 64);
    CR_GROW(file->view, file->count, *views, 64);
    file->entries[file->count] = *e;
    file->view[file->count]    = (struct cr_st_view){.shard = shard, .entry = e};
    file->count++;
    return CR_OK;
}

static cr_status parse_map(struct cr_st_file *file, struct cr_json *json) {
    char *name, *shard;
    int   views = 0;
    if (file->count) return BAD(file, "duplicate weight_map");
    for (bool first = true; cr_json_member(json, &first, &name);) {
        if (!cr_json_string(json, &shard)) break;
        CR_TRY(add_tensor(file, name, shard, &views));
    }
    return json->problem ? bad_json(file, json) : CR_OK;
}

static cr_status parse_index(struct cr_st_file *file, size_t length) {
    struct cr_json json;
    char          *key;
    cr_json_start(&json, file->header, length);
    for (bool first = true; cr_json_member(&json, &first, &key);) {
        if (!strcmp(key, "weight_map"))
            CR_TRY(parse_map(file, &json));
        else if (!cr_json_skip(&json))
            break;
    }
    if (!cr_json_end(&json)) return bad_json(file, &json);
    return file->count ? CR_OK : BAD(file, "it has no weight_map, which names the file of each tensor");
}

/* Every tensor of the shards is in the index once. */
static cr_status check_index(struct cr_st_file *file) {
    char        shown[NAME_SHOWN];
    const char *twice;
    int         count = 0;
    CR_TRY(cr_st_sort_names(file, &twice));
    if (twice) {
        cr_json_quote(shown, sizeof shown, twice);
        return BAD(file, "duplicate tensor %s", shown);
    }
    file->has_sums = true;
    for (int i = 0; i < file->shards; i++) {
        count += file->shard[i]->count;
        file->has_sums = file->has_sums && file->shard[i]->has_sums;
    }
    return count == file->count ? CR_OK : BAD(file, "its files have %d tensors, but it names %d", count, file->count);
}

cr_status cr_st_open_index(const char *path, struct cr_st_file **out) {
    struct cr_st_file *file;
    size_t             length;
    cr_status          status;
    CR_TRY(cr_st_new(path, &file));
    CR_TRY_OUT(cr_file_read(path, INDEX_BYTES_MAX, &file->header, &length));
    CR_TRY_OUT(parse_index(file, length));
    CR_TRY_OUT(check_index(file));
    *out = file;
    return CR_OK;
out:
    cr_st_close(file);
    return status;
}
