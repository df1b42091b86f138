/* formats/tensor_file.c: opens files of weights of every kind (safetensors, .pth), or a part of one ("FILE:KEY"), and
 * reads tensors whose elements do not follow one another. */
#include "core/files.h"
#include "formats/json.h"
#include "formats/safetensors_file.h"
#include "formats/torch.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_SHOWN = 120 };

/* ---- FILE:KEY ---- */

const char *cr_st_key(const char *given) {
    const char *colon = strrchr(given, ':');
    char        file[CR_PATH_MAX];
    if (!colon || !colon[1] || strchr(colon, '/') || access(given, F_OK) == 0) return NULL;
    const int length = snprintf(file, sizeof file, "%.*s", (int)(colon - given), given);
    return length < (int)sizeof file && cr_fs_is_file(file) ? colon + 1 : NULL;
}

static bool has_prefix(const struct cr_st_entry *e, const char *prefix) {
    const size_t length = strlen(prefix);
    return strncmp(e->name, prefix, length) == 0 && e->name[length];
}

cr_status cr_st_strip(struct cr_st_file *file, const char *prefix) {
    const int           total = file->count + file->outside;
    struct cr_st_entry *entries;
    struct cr_st_view  *view = NULL;
    const char         *twice;
    int                 at = 0, kept = 0;
    file->prefix = cr_arena_printf(&file->arena, "%s%s", file->prefix ? file->prefix : "", prefix);
    if (!file->prefix) return CR_NO_MEMORY(strlen(prefix));
    CR_ALLOC(entries, (size_t)total);
    if (file->view) view = cr_alloc((size_t)total, sizeof *view);
    if (file->view && !view) {
        cr_free(entries);
        return CR_NO_MEMORY((size_t)total * sizeof *view);
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < total; i++) {
            const bool inside = i < file->count && has_prefix(&file->entries[i], prefix);
            if (inside != (pass == 0)) continue;
            if (view) view[at] = file->view[i];
            entries[at++] = file->entries[i];
        }
        if (pass == 0) kept = at;
    }
    for (int i = 0; i < kept; i++) entries[i].name += strlen(prefix);
    cr_free(file->entries);
    cr_free(file->view);
    cr_free(file->by_name);
    file->entries = entries;
    file->view    = view;
    file->by_name = NULL;
    file->count   = kept;
    file->outside = total - kept;
    return cr_st_sort_names(file, &twice);
}

cr_status cr_st_rename(struct cr_st_file *file, const struct cr_st_entry *entry, const char *name) {
    const char *twice;
    file->entries[entry - file->entries].name = name;
    cr_free(file->by_name);
    file->by_name = NULL;
    return cr_st_sort_names(file, &twice);
}

/* "KEY" means the names that begin with "KEY.". The other tensors of the file are then nobody's concern. */
cr_status cr_st_keep_key(struct cr_st_file *file, const char *key) {
    char prefix[CR_PATH_MAX], shown[NAME_SHOWN], first[NAME_SHOWN];
    snprintf(prefix, sizeof prefix, "%s%s", key, key[strlen(key) - 1] == '.' ? "" : ".");
    CR_TRY(cr_st_strip(file, prefix));
    if (file->count) {
        file->outside = 0;
        return CR_OK;
    }
    cr_json_quote(shown, sizeof shown, key);
    cr_json_quote(first, sizeof first, file->outside ? file->entries[0].name : "");
    return CR_FAIL(CR_ERR_FORMAT,
                   "%s: has no entry %s, and no tensor whose name begins with it; its first tensor is %s%s%s",
                   file->path, shown, first, file->note ? "; without a choice " : "", file->note ? file->note : "");
}

/* ---- opening ---- */

/* The begin of a safetensors file (the length of its header) can look like a pickle, but is followed by a brace. */
static cr_status open_kind(const char *given, bool index, struct cr_st_file **out) {
    const char   *key                    = cr_st_key(given);
    unsigned char head[CR_ST_HEAD_BYTES] = {0};
    char          path[CR_PATH_MAX];
    int           fd;
    if (snprintf(path, sizeof path, "%.*s", key ? (int)(key - given - 1) : (int)strlen(given), given) >=
        (int)sizeof path)
        return CR_FAIL(CR_ERR_IO, "%.200s...: the path is too long", given);
    CR_TRY(cr_fs_open_regular(path, O_RDONLY, &fd));
    const ssize_t got = pread(fd, head, sizeof head, 0);
    close(fd);
    if ((cr_st_is_torch(head) && head[8] != '{') || memcmp(head + 257, "ustar", 5) == 0)
        return cr_torch_open(given, out);
    index = index && cr_st_is_index(head);
    if (!index) CR_TRY(cr_st_check_kind(path, head, got < 0 ? sizeof head : (size_t)got));
    CR_TRY(index ? cr_st_open_index(path, out) : cr_st_open(path, out));
    const cr_status status = key ? cr_st_keep_key(*out, key) : CR_OK;
    if (status != CR_OK) cr_st_close(*out);
    return status;
}

cr_status cr_st_open_one(const char *given, struct cr_st_file **out) {
    return open_kind(given, false, out);
}

/* One file of several, such as model-00001-of-00002.safetensors, is no network. */
cr_status cr_st_open_any(const char *given, struct cr_st_file **out) {
    const char *of     = strstr(cr_path_name(given), "-of-");
    char       *ending = NULL;
    const char *number = of;
    const long  shards = of ? strtol(of + strlen("-of-"), &ending, 10) : 1;
    while (number && number > given && number[-1] >= '0' && number[-1] <= '9') number--;
    if (shards > 1 && *ending == '.' && number < of && number > given && number[-1] == '-' && !cr_st_key(given))
        return CR_FAIL(CR_ERR_FORMAT,
                       "%s: is one of %ld files that the weights are split over: give the index that names them, "
                       "%.*s%s.index.json",
                       given, shards, (int)(number - 1 - given), given, ending);
    return open_kind(given, true, out);
}

/* ---- strided tensors ---- */

/* Copies elements [first, first + count) in row-major order. `span` begins at the tensor's first element. */
static void gather(const struct cr_st_entry *e, const struct cr_st_view *view, size_t size, uint64_t first,
                   uint64_t count, const unsigned char *span, unsigned char *dst) {
    uint64_t index[CR_ST_DIMS_MAX] = {0}, at = 0;
    for (int i = e->dims - 1; i >= 0; i--) {
        index[i] = first % (uint64_t)e->dim[i];
        first /= (uint64_t)e->dim[i];
        at += index[i] * (uint64_t)view->stride[i];
    }
    for (uint64_t n = 0; n < count; n++) {
        memcpy(dst + n * size, span + at * size, size);
        for (int i = e->dims - 1; i >= 0; i--) {
            at += (uint64_t)view->stride[i];
            if (++index[i] < (uint64_t)e->dim[i]) break;
            at -= index[i] * (uint64_t)view->stride[i];
            index[i] = 0;
        }
    }
}

/* Reads what lies between the first and the last element. It stays until the end of the tensor is read: elements that
 * follow one another in the tensor can be anywhere in it. */
static cr_status read_span(struct cr_st_file *file, const struct cr_st_entry *entry, struct cr_st_view *view) {
    const size_t   size = cr_dtype_bytes(entry->dtype);
    uint64_t       last = 0;
    unsigned char *span;
    if (view->span) return CR_OK;
    for (int i = 0; i < entry->dims; i++) last += (uint64_t)((entry->dim[i] - 1) * view->stride[i]);
    const size_t bytes = (size_t)(last + 1) * size;
    CR_ALLOC(span, bytes);
    const cr_status status = cr_fs_read_at(file->fd, file->path, span, bytes, file->data_begin + entry->offset);
    if (status == CR_OK)
        view->span = span;
    else
        cr_free(span);
    return status;
}

cr_status cr_torch_read_strided(struct cr_st_file *file, const struct cr_st_entry *entry, uint64_t from, void *dst,
                                size_t bytes) {
    struct cr_st_view *view  = &file->view[entry - file->entries];
    const size_t       size  = cr_dtype_bytes(entry->dtype);
    const uint64_t     first = from / size, count = bytes ? (from + bytes + size - 1) / size - first : 0;
    unsigned char     *packed;
    if (!count) return CR_OK;
    CR_ALLOC(packed, (size_t)count * size);
    (void)pthread_mutex_lock(&file->span_lock);
    const cr_status status = read_span(file, entry, view);
    if (status == CR_OK) {
        gather(entry, view, size, first, count, view->span, packed);
        memcpy(dst, packed + (from - first * size), bytes);
    }
    if (from + bytes == entry->bytes) {
        cr_free(view->span);
        view->span = NULL;
    }
    (void)pthread_mutex_unlock(&file->span_lock);
    cr_free(packed);
    return status;
}
