/* formats/tensor_file.c: files of weights of every kind: recognises the kind, opens a file or a part of one
 * ("FILE:KEY"), and reads tensors whose elements do not follow one another. */
#include "core/files.h"
#include "formats/json.h"
#include "formats/safetensors_file.h"
#include "formats/torch.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { HEAD_BYTES = 512, NAME_SHOWN = 120 };

bool cr_st_is_torch(const unsigned char *p) {
    return !memcmp(p, "PK\3\4", 4) || (p[0] == 0x80 && p[1] <= 5);
}

/* The first member of an ONNX file is its version, a small number. */
static bool is_onnx(const char *path, const unsigned char *p) {
    const char *end = strrchr(path, '.');
    return end && strcmp(end, ".onnx") == 0 && p[0] == 0x08 && p[1] < 0x80;
}

cr_status cr_st_check_kind(const char *path, const unsigned char *head) {
    if (cr_st_is_torch(head))
        return CR_FAIL(CR_ERR_FORMAT,
                       "%s: is a PyTorch file, not a safetensors file; `cresnet export FILE.pth -o "
                       "FILE.safetensors` converts it",
                       path);
    if (is_onnx(path, head))
        return CR_FAIL(
            CR_ERR_FORMAT,
            "%s: is an ONNX file, which cresnet writes and does not read: give the run or the safetensors or "
            "PyTorch file of the weights",
            path);
    return CR_OK;
}

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

/* The begin of a safetensors file (the length of its header) can look like a pickle, but is followed by a brace. */
cr_status cr_st_open_any(const char *given, struct cr_st_file **out) {
    const char   *key              = cr_st_key(given);
    unsigned char head[HEAD_BYTES] = {0};
    char          path[CR_PATH_MAX];
    int           fd;
    if (snprintf(path, sizeof path, "%.*s", key ? (int)(key - given - 1) : (int)strlen(given), given) >=
        (int)sizeof path)
        return CR_FAIL(CR_ERR_IO, "%.200s...: the path is too long", given);
    CR_TRY(cr_fs_open_regular(path, O_RDONLY, &fd));
    const ssize_t got = pread(fd, head, sizeof head, 0);
    close(fd);
    if (got >= 9 && ((cr_st_is_torch(head) && head[8] != '{') || memcmp(head + 257, "ustar", 5) == 0))
        return cr_torch_open(given, out);
    CR_TRY(cr_st_open(path, out));
    const cr_status status = key ? cr_st_keep_key(*out, key) : CR_OK;
    if (status != CR_OK) cr_st_close(*out);
    return status;
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

cr_status cr_torch_read_strided(struct cr_st_file *file, const struct cr_st_entry *entry, uint64_t from, void *dst,
                                size_t bytes) {
    const struct cr_st_view *view  = &file->view[entry - file->entries];
    const size_t             size  = cr_dtype_bytes(entry->dtype);
    const uint64_t           first = from / size, count = bytes ? (from + bytes + size - 1) / size - first : 0;
    uint64_t                 last = 0;
    unsigned char           *span, *packed;
    cr_status                status;
    if (!count) return CR_OK;
    for (int i = 0; i < entry->dims; i++) last += (uint64_t)((entry->dim[i] - 1) * view->stride[i]);
    span   = cr_alloc((size_t)last + 1, size);
    packed = cr_alloc((size_t)count, size);
    if (!span || !packed) {
        status = CR_NO_MEMORY((size_t)(last + 1 + count) * size);
        goto out;
    }
    CR_TRY_OUT(cr_fs_read_at(file->fd, file->path, span, (size_t)(last + 1) * size, file->data_begin + entry->offset));
    gather(entry, view, size, first, count, span, packed);
    memcpy(dst, packed + (from - first * size), bytes);
out:
    cr_free(span);
    cr_free(packed);
    return status;
}
