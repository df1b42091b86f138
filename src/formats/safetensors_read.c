/* formats/safetensors_read.c: opens, validates and reads safetensors files; see formats/safetensors.h. One buffer holds
 * the header; names are decoded in place. */
#include "formats/safetensors.h"

#include "core/files.h"
#include "formats/json.h"
#include "formats/safetensors_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are copied without conversion: little-endian only");

enum { NAME_SHOWN = 120 };

#define BAD(file, ...) CR_FAIL_FORMAT((file)->path, "not a valid safetensors file", __VA_ARGS__)

static cr_status bad_json(const struct cr_st_file *file, const struct cr_json *json) {
    return BAD(file, "header, byte %zu: %s", json->problem_at, json->problem);
}

void cr_st_shape_text(char out[CR_ST_SHAPE_TEXT], int dims, const int64_t *dim) {
    int used = snprintf(out, CR_ST_SHAPE_TEXT, "[");
    for (int i = 0; i < dims && i < CR_ST_DIMS_MAX; i++)
        used += snprintf(out + used, (size_t)(CR_ST_SHAPE_TEXT - used), "%s%" PRId64, i ? ", " : "", dim[i]);
    snprintf(out + used, (size_t)(CR_ST_SHAPE_TEXT - used), "]");
}

/* ---- the description of one tensor ---- */

static cr_status parse_dtype(const struct cr_st_file *file, const char *shown, const char *text, enum cr_dtype *out) {
    /* element types of the format that cresnet does not support */
    static const char *const unsupported[] = {"BOOL",    "F4",      "F6_E2M3",     "F6_E3M2",     "F8_E5M2",
                                              "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16",
                                              "U16",     "U32",     "C64",         "U64"};
    char                     quoted[40];
#define X(constant, name, st_name, bytes)                                                                              \
    if (!strcmp(text, st_name)) {                                                                                      \
        *out = constant;                                                                                               \
        return CR_OK;                                                                                                  \
    }
    CR_DTYPES(X)
#undef X
    cr_json_quote(quoted, sizeof quoted, text);
    for (size_t i = 0; i < CR_COUNT(unsupported); i++)
        if (!strcmp(text, unsupported[i]))
            return CR_FAIL(CR_ERR_FORMAT,
                           "%s: tensor %s has elements of type %s, which cresnet does not support; save it as F32, "
                           "F64, F16, BF16, "
                           "I8, U8, I32 or I64",
                           file->path, shown, text);
    return BAD(file, "tensor %s: unknown element type %s", shown, quoted);
}

/* "shape": [...] */
static cr_status parse_shape(const struct cr_st_file *file, struct cr_json *json, const char *shown,
                             struct cr_st_entry *entry) {
    if (!cr_json_expect(json, '[')) return bad_json(file, json);
    if (cr_json_take(json, ']')) return CR_OK;
    do {
        uint64_t dim;
        if (!cr_json_uint(json, &dim)) return bad_json(file, json);
        if (dim > INT64_MAX) return BAD(file, "tensor %s: a dimension of %" PRIu64 " is too large", shown, dim);
        if (entry->dims == CR_ST_DIMS_MAX)
            return BAD(file, "tensor %s: more than %d dimensions", shown, CR_ST_DIMS_MAX);
        entry->dim[entry->dims++] = (int64_t)dim;
    } while (cr_json_take(json, ','));
    return cr_json_expect(json, ']') ? CR_OK : bad_json(file, json);
}

/* "data_offsets": [begin, end] */
static cr_status parse_offsets(const struct cr_st_file *file, struct cr_json *json, const char *shown,
                               struct cr_st_entry *entry) {
    uint64_t begin, end;
    if (!cr_json_expect(json, '[') || !cr_json_uint(json, &begin) || !cr_json_expect(json, ',') ||
        !cr_json_uint(json, &end) || !cr_json_expect(json, ']'))
        return bad_json(file, json);
    if (begin > end)
        return BAD(file, "tensor %s: the end (%" PRIu64 ") is before the begin (%" PRIu64 ")", shown, end, begin);
    entry->offset = begin;
    entry->bytes  = end - begin;
    return CR_OK;
}

static cr_status check_size(const struct cr_st_file *file, const char *shown, const struct cr_st_entry *entry) {
    uint64_t elems = 1, bytes;
    char     shape[CR_ST_SHAPE_TEXT];
    cr_st_shape_text(shape, entry->dims, entry->dim);
    for (int i = 0; i < entry->dims; i++)
        if (__builtin_mul_overflow(elems, (uint64_t)entry->dim[i], &elems))
            return BAD(file, "tensor %s: shape %s is too large", shown, shape);
    if (__builtin_mul_overflow(elems, (uint64_t)cr_dtype_bytes(entry->dtype), &bytes))
        return BAD(file, "tensor %s: shape %s is too large", shown, shape);
    if (bytes != entry->bytes)
        return BAD(file, "tensor %s: shape %s of %s needs %" PRIu64 " bytes, but its data_offsets span %" PRIu64, shown,
                   shape, cr_dtype_safetensors_name(entry->dtype), bytes, entry->bytes);
    return CR_OK;
}

static cr_status parse_entry(const struct cr_st_file *file, struct cr_json *json, struct cr_st_entry *entry) {
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4, ALL = 7 };
    unsigned seen = 0;
    char     shown[NAME_SHOWN], quoted[NAME_SHOWN], *key, *dtype;
    cr_json_quote(shown, sizeof shown, entry->name);
    for (bool first = true; cr_json_member(json, &first, &key);) {
        unsigned now = !strcmp(key, "dtype")          ? DTYPE
                       : !strcmp(key, "shape")        ? SHAPE
                       : !strcmp(key, "data_offsets") ? OFFSETS
                                                      : 0;
        cr_json_quote(quoted, sizeof quoted, key);
        if (!now) return BAD(file, "tensor %s: unknown field %s", shown, quoted);
        if (seen & now) return BAD(file, "tensor %s: duplicate field %s", shown, quoted);
        seen |= now;
        if (now == DTYPE) {
            if (!cr_json_string(json, &dtype)) return bad_json(file, json);
            CR_TRY(parse_dtype(file, shown, dtype, &entry->dtype));
        }
        if (now == SHAPE) CR_TRY(parse_shape(file, json, shown, entry));
        if (now == OFFSETS) CR_TRY(parse_offsets(file, json, shown, entry));
    }
    if (json->problem) return bad_json(file, json);
    if (seen != ALL)
        return BAD(file, "tensor %s: %s is missing", shown,
                   !(seen & DTYPE)   ? "dtype"
                   : !(seen & SHAPE) ? "shape"
                                     : "data_offsets");
    return check_size(file, shown, entry);
}

/* ---- the header ---- */

static cr_status parse_meta(struct cr_st_file *file, struct cr_json *json) {
    char *key, *value;
    if (file->has_meta) return BAD(file, "duplicate __metadata__");
    file->has_meta = true;
    for (bool first = true; cr_json_member(json, &first, &key);) {
        if (!cr_json_string(json, &value)) break;
        CR_GROW(file->meta, file->meta_count, file->meta_capacity, 64);
        file->meta[file->meta_count++] = (struct cr_st_meta){key, value};
    }
    return json->problem ? bad_json(file, json) : CR_OK;
}

static cr_status parse_header(struct cr_st_file *file) {
    struct cr_json json;
    char          *name;
    cr_json_start(&json, file->header, (size_t)file->header_bytes);
    for (bool first = true; cr_json_member(&json, &first, &name);) {
        if (!strcmp(name, "__metadata__")) {
            CR_TRY(parse_meta(file, &json));
            continue;
        }
        CR_GROW(file->entries, file->count, file->capacity, 64);
        struct cr_st_entry *entry = &file->entries[file->count];
        *entry                    = (struct cr_st_entry){.name = name};
        CR_TRY(parse_entry(file, &json, entry));
        file->count++;
    }
    return cr_json_end(&json) ? CR_OK : bad_json(file, &json);
}

/* ---- the tables ---- */

static int compare_u64(uint64_t a, uint64_t b) {
    return a < b ? -1 : a > b;
}

static int compare_place(const void *a, const void *b) {
    const struct cr_st_entry *x = a, *y = b;
    int                       c = compare_u64(x->offset, y->offset);
    if (!c) c = compare_u64(x->bytes, y->bytes); /* empty tensors come before a tensor with the same offset */
    return c ? c : strcmp(x->name, y->name);
}

static int compare_name(const void *a, const void *b) {
    const struct cr_st_entry *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Checks that the tensors cover the data section without gaps. */
static cr_status check_coverage(const struct cr_st_file *file) {
    uint64_t end = 0;
    char     shown[NAME_SHOWN];
    for (int i = 0; i < file->count; i++) {
        const struct cr_st_entry *entry = &file->entries[i];
        if (entry->offset != end) {
            cr_json_quote(shown, sizeof shown, entry->name);
            if (entry->offset < end) return BAD(file, "tensor %s overlaps the tensor before it", shown);
            return BAD(file, "%" PRIu64 " bytes before tensor %s belong to no tensor", entry->offset - end, shown);
        }
        end += entry->bytes; /* no overflow: parse_offsets built it from a valid end */
    }
    if (end > file->data_bytes)
        return BAD(file, "it is truncated: the header describes %" PRIu64 " bytes of tensors, the file has %" PRIu64,
                   end, file->data_bytes);
    if (end < file->data_bytes)
        return BAD(file, "%" PRIu64 " bytes at the end belong to no tensor", file->data_bytes - end);
    return CR_OK;
}

cr_status cr_st_sort_names(struct cr_st_file *file, const char **twice) {
    *twice = NULL;
    CR_ALLOC(file->by_name, (size_t)file->count);
    for (int i = 0; i < file->count; i++) file->by_name[i] = &file->entries[i];
    if (file->count) qsort(file->by_name, (size_t)file->count, sizeof *file->by_name, compare_name);
    for (int i = 1; i < file->count && !*twice; i++)
        if (!strcmp(file->by_name[i - 1]->name, file->by_name[i]->name)) *twice = file->by_name[i]->name;
    return CR_OK;
}

static cr_status build_tables(struct cr_st_file *file) {
    char        shown[NAME_SHOWN];
    const char *twice;
    if (file->count) qsort(file->entries, (size_t)file->count, sizeof *file->entries, compare_place);
    CR_TRY(cr_st_sort_names(file, &twice));
    if (twice) {
        cr_json_quote(shown, sizeof shown, twice);
        return BAD(file, "duplicate tensor %s", shown);
    }
    if (file->meta_count) qsort(file->meta, (size_t)file->meta_count, sizeof *file->meta, cr_compare_texts);
    for (int i = 1; i < file->meta_count; i++)
        if (!strcmp(file->meta[i - 1].key, file->meta[i].key)) {
            cr_json_quote(shown, sizeof shown, file->meta[i].key);
            return BAD(file, "duplicate metadata key %s", shown);
        }
    return check_coverage(file);
}

/* ---- open, close ---- */

static cr_status read_header(struct cr_st_file *file, uint64_t file_bytes) {
    unsigned char head[CR_ST_HEAD_BYTES] = {0};
    const size_t  got                    = (size_t)CR_MIN(file_bytes, sizeof head);
    CR_TRY(cr_fs_read_at(file->fd, file->path, head, got, 0));
    CR_TRY(cr_st_check_kind(file->path, head, got));
    if (file_bytes < 8) return BAD(file, "it has only %" PRIu64 " bytes", file_bytes);
    memcpy(&file->header_bytes, head, 8);
    if (file->header_bytes > file_bytes - 8 || head[8] != '{') {
        if (file->header_bytes > file_bytes - 8)
            return BAD(file,
                       "its first 8 bytes announce a header of %" PRIu64 " bytes, but the file has only %" PRIu64
                       ": it is cut off, or is no safetensors file",
                       file->header_bytes, file_bytes);
        return BAD(file, "its header does not start with '{'");
    }
    if (file->header_bytes > CR_ST_HEADER_MAX)
        return BAD(file, "a header of %" PRIu64 " bytes is larger than the format allows (%d)", file->header_bytes,
                   CR_ST_HEADER_MAX);
    file->data_begin = 8 + file->header_bytes;
    file->data_bytes = file_bytes - file->data_begin;
    CR_ALLOC(file->header, (size_t)file->header_bytes + 1);
    CR_TRY(cr_fs_read_at(file->fd, file->path, file->header, (size_t)file->header_bytes, 8));
    return CR_OK;
}

cr_status cr_st_new(const char *path, struct cr_st_file **out) {
    struct cr_st_file *file;
    CR_ALLOC(file, 1);
    file->fd = -1;
    (void)pthread_mutex_init(&file->span_lock, NULL);
    file->path = cr_strdup(path);
    if (!file->path) {
        cr_st_close(file);
        return CR_NO_MEMORY(strlen(path) + 1);
    }
    *out = file;
    return CR_OK;
}

static cr_status open_checked(struct cr_st_file *file, const char *path) {
    struct stat s;
    /* O_NONBLOCK: opening a pipe must not wait for its writer */
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->fd < 0) return cr_fs_refused(path, "open", errno);
    if (fstat(file->fd, &s) < 0) return cr_fs_refused(path, "read", errno);
    if (!S_ISREG(s.st_mode))
        return CR_FAIL(CR_ERR_IO, "%s: is %s, not a file", path, S_ISDIR(s.st_mode) ? "a folder" : "a device or pipe");
    CR_TRY(read_header(file, (uint64_t)s.st_size));
    CR_TRY(cr_st_check_header(file));
    CR_TRY(parse_header(file));
    CR_TRY(build_tables(file));
    return cr_st_find_sums(file);
}

cr_status cr_st_open(const char *path, struct cr_st_file **out) {
    struct cr_st_file *file;
    CR_TRY(cr_st_new(path, &file));
    cr_status status = open_checked(file, path);
    if (status != CR_OK) {
        cr_st_close(file);
        return cr_error_forward(status, __FILE__, __LINE__);
    }
    *out = file;
    return CR_OK;
}

void cr_st_close(struct cr_st_file *file) {
    if (!file) return;
    if (file->fd >= 0) close(file->fd);
    for (int i = 0; file->view && i < file->count + file->outside; i++) cr_free(file->view[i].span);
    for (int i = 0; i < file->shards; i++) cr_st_close(file->shard[i]);
    (void)pthread_mutex_destroy(&file->span_lock);
    cr_free(file->shard);
    cr_free(file->by_name);
    cr_free(file->entries);
    cr_free(file->view);
    cr_arena_free(&file->arena);
    cr_free(file->meta);
    cr_free(file->header);
    cr_free(file->path);
    cr_free(file);
}

/* ---- queries, reading ---- */

int cr_st_count(const struct cr_st_file *file) {
    return file->count;
}

const struct cr_st_entry *cr_st_at(const struct cr_st_file *file, int i) {
    CR_ASSERT(i >= 0 && i < file->count);
    return &file->entries[i];
}

const struct cr_st_entry *cr_st_find(const struct cr_st_file *file, const char *name) {
    struct cr_st_entry               wanted = {.name = name};
    const struct cr_st_entry        *key    = &wanted;
    const struct cr_st_entry *const *found =
        file->count ? bsearch(&key, file->by_name, (size_t)file->count, sizeof *file->by_name, compare_name) : NULL;
    return found ? *found : NULL;
}

const struct cr_st_entry *cr_st_outside(const struct cr_st_file *file, int i) {
    return i < file->outside ? &file->entries[file->count + i] : NULL;
}

const char *cr_st_prefix(const struct cr_st_file *file) {
    return file->prefix ? file->prefix : "";
}

const char *cr_st_note(const struct cr_st_file *file) {
    return file->note;
}

const char *cr_st_meta_find(const struct cr_st_file *file, const char *key) {
    struct cr_st_meta        wanted = {.key = key};
    const struct cr_st_meta *found =
        file->meta_count ? bsearch(&wanted, file->meta, (size_t)file->meta_count, sizeof *file->meta, cr_compare_texts)
                         : NULL;
    return found ? found->value : NULL;
}

cr_status cr_st_read(struct cr_st_file *file, const struct cr_st_entry *entry, uint64_t from, void *dst, size_t bytes) {
    CR_ASSERT(from <= entry->bytes && bytes <= entry->bytes - from);
    const struct cr_st_view *view = file->view ? &file->view[entry - file->entries] : NULL;
    if (view && view->shard) return cr_st_read(view->shard, view->entry, from, dst, bytes);
    if (view && view->strided) return cr_torch_read_strided(file, entry, from, dst, bytes);
    return cr_fs_read_at(file->fd, file->path, dst, bytes, file->data_begin + entry->offset + from);
}
