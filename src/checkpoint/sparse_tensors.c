/* checkpoint/sparse_tensors.c: sparse (pruned) tensors of checkpoint files. See the end of checkpoint/checkpoint.h. */
#include "checkpoint/internal.h"
#include "core/output_file.h"
#include "core/temporary.h"

#include <stdio.h>
#include <string.h>

enum { NAME_MAX_BYTES = 512, GAP_MORE = 255 };
static const int64_t elems_max =
    (int64_t)1
    << 30; /* elements of one tensor; more than any layer has. A corrupt file allocates at most 128 MiB for the mask */

static const char *const parts[] = {".shape", ".values", ".gaps"};

cr_status cr_ckpt_is_sparse(struct cr_st_file *file, const char *path, bool *sparse) {
    const char *version = cr_st_meta_find(file, CR_CKPT_SPARSE_KEY);
    *sparse             = version != NULL;
    if (!version || strcmp(version, CR_CKPT_SPARSE_VERSION) == 0) return CR_OK;
    return CR_FAIL(CR_ERR_FORMAT, "%s: sparse tensors of version %.20s; this program supports version %s", path,
                   version, CR_CKPT_SPARSE_VERSION);
}

static const struct cr_st_entry *find_part(struct cr_st_file *file, const char *name, const char *part) {
    char whole[NAME_MAX_BYTES];
    if (snprintf(whole, sizeof whole, "%s%s", name, part) >= (int)sizeof whole) return NULL;
    return cr_st_find(file, whole);
}

bool cr_ckpt_has_sparse(struct cr_st_file *file, const char *name) {
    for (size_t i = 0; i < CR_COUNT(parts); i++)
        if (!find_part(file, name, parts[i])) return false;
    return true;
}

/* ---- gaps ---- */

size_t cr_ckpt_gaps(const uint8_t *bits, int64_t elems, uint8_t *out) {
    size_t  bytes = 0;
    int64_t gap   = 0;
    for (int64_t i = 0; i < elems; i++) {
        if (!(bits[i / 8] >> (i % 8) & 1)) {
            gap++;
            continue;
        }
        for (; gap >= GAP_MORE; gap -= GAP_MORE, bytes++)
            if (out) out[bytes] = GAP_MORE;
        if (out) out[bytes] = (uint8_t)gap;
        bytes++;
        gap = 0;
    }
    return bytes;
}

/* Decodes gaps into bits. Returns false when a position exceeds the tensor, when the number of values differs, or when
 * the data ends within a gap. */
static bool read_gaps(const uint8_t *gaps, uint64_t bytes, struct cr_ckpt_sparse *s) {
    int64_t at = 0, found = 0;
    for (uint64_t i = 0; i < bytes; i++) {
        at += gaps[i];
        if (gaps[i] == GAP_MORE) continue;
        if (at >= s->elems) return false;
        s->bits[at / 8] = (uint8_t)(s->bits[at / 8] | 1u << (at % 8));
        at++;
        found++;
    }
    return found == s->nnz && (!bytes || gaps[bytes - 1] != GAP_MORE);
}

/* ---- reading ---- */

static cr_status corrupt(const char *path, const char *name, const char *what) {
    return CR_FAIL(CR_ERR_FORMAT, "%s: the sparse tensor %.200s is corrupt: %s", path, name, what);
}

static cr_status read_shape(struct cr_st_file *file, const char *path, const char *name, struct cr_ckpt_sparse *out) {
    const struct cr_st_entry *shape = find_part(file, name, ".shape");
    if (shape->dtype != CR_I64 || shape->dims != 1 || shape->dim[0] < 1 || shape->dim[0] > 4)
        return corrupt(path, name, "its shape is invalid");
    out->dims  = (int)shape->dim[0];
    out->elems = 1;
    CR_TRY(cr_st_read_whole(file, shape, out->dim));
    for (int i = 0; i < out->dims; i++) {
        if (out->dim[i] < 1 || out->dim[i] > elems_max / out->elems)
            return corrupt(path, name, "its shape is too large");
        out->elems *= out->dim[i];
    }
    return CR_OK;
}

static cr_status read_parts(struct cr_st_file *file, const char *path, const char *name, struct cr_ckpt_sparse *out) {
    const struct cr_st_entry *values = find_part(file, name, ".values"), *gaps = find_part(file, name, ".gaps");
    uint8_t                  *bytes = NULL;
    cr_status                 status;
    CR_TRY(read_shape(file, path, name, out));
    if (values->dtype != CR_F32 || values->dims != 1 || gaps->dtype != CR_U8 || gaps->dims != 1 ||
        values->dim[0] > out->elems)
        return corrupt(path, name, "its parts have unexpected types or shapes");
    out->nnz = values->dim[0];
    CR_ALLOC(out->bits, (size_t)(out->elems + 7) / 8);
    CR_ALLOC(out->value, (size_t)out->nnz);
    CR_ALLOC(bytes, (size_t)gaps->bytes);
    CR_TRY_OUT(cr_st_read_whole(file, values, out->value));
    CR_TRY_OUT(cr_st_read_whole(file, gaps, bytes));
    if (!read_gaps(bytes, gaps->bytes, out)) status = corrupt(path, name, "its gaps do not match its values");
out:
    cr_free(bytes);
    return status;
}

cr_status cr_ckpt_sparse_read(struct cr_st_file *file, const char *path, const char *name, struct cr_ckpt_sparse *out) {
    *out = (struct cr_ckpt_sparse){0};
    if (!cr_ckpt_has_sparse(file, name)) return corrupt(path, name, "a part is missing (.shape, .values, .gaps)");
    cr_status status = read_parts(file, path, name, out);
    if (status != CR_OK) cr_ckpt_sparse_free(out);
    return status;
}

void cr_ckpt_sparse_free(struct cr_ckpt_sparse *sparse) {
    cr_free(sparse->bits);
    cr_free(sparse->value);
    *sparse = (struct cr_ckpt_sparse){0};
}

/* ---- export as dense tensors ---- */

struct export {
    struct cr_st_file  *file;
    const char         *path;
    const char         *class_names;
    struct cr_st_entry *entry; /* of the new file */
    int                 entries;
    struct cr_arena     arena; /* names of dense tensors */
};

/* Finds the name of the sparse tensor that an entry is a part of; *out is NULL for a dense tensor. */
static cr_status name_of_part(struct export *e, const char *name, char **out) {
    const size_t length = strlen(name);
    *out                = NULL;
    for (size_t i = 0; i < CR_COUNT(parts); i++) {
        const size_t suffix = strlen(parts[i]);
        if (length <= suffix || strcmp(name + length - suffix, parts[i]) != 0) continue;
        char *stem = cr_arena_printf(&e->arena, "%.*s", (int)(length - suffix), name);
        if (!stem) return CR_NO_MEMORY(length);
        if (cr_ckpt_has_sparse(e->file, stem)) *out = stem;
        return CR_OK;
    }
    return CR_OK;
}

static cr_status list_entries(struct export *e) {
    const int count = cr_st_count(e->file);
    CR_ALLOC(e->entry, (size_t)CR_MAX(count, 1));
    for (int i = 0; i < count; i++) {
        const struct cr_st_entry *from = cr_st_at(e->file, i);
        char                     *stem;
        struct cr_ckpt_sparse     s = {0};
        CR_TRY(name_of_part(e, from->name, &stem));
        if (!stem) {
            e->entry[e->entries++] = *from;
            continue;
        }
        if (from->dtype != CR_I64) continue; /* the entry of the shape represents all three parts */
        CR_TRY(read_shape(e->file, e->path, stem, &s));
        struct cr_st_entry *to = &e->entry[e->entries++];
        *to                    = (struct cr_st_entry){.name = stem, .dtype = CR_F32, .dims = s.dims};
        memcpy(to->dim, s.dim, sizeof s.dim);
    }
    return CR_OK;
}

static cr_status write_whole(struct export *e, const struct cr_st_entry *from, struct cr_st_writer *writer,
                             unsigned char *buffer) {
    for (uint64_t at = 0; at < from->bytes; at += CR_CKPT_CACHED_BYTES) {
        const size_t bytes = (size_t)CR_MIN(from->bytes - at, (uint64_t)CR_CKPT_CACHED_BYTES);
        CR_TRY(cr_st_read(e->file, from, at, buffer, bytes));
        CR_TRY(cr_st_write(writer, buffer, bytes));
    }
    return CR_OK;
}

static cr_status write_dense(struct export *e, const char *name, struct cr_st_writer *writer, float *buffer) {
    const int64_t         most = CR_CKPT_CACHED_BYTES / (int64_t)sizeof *buffer;
    struct cr_ckpt_sparse s;
    cr_status             status = CR_OK;
    CR_TRY(cr_ckpt_sparse_read(e->file, e->path, name, &s));
    const float *next = s.value;
    for (int64_t from = 0; from < s.elems; from += most) {
        const int64_t count = CR_MIN(most, s.elems - from);
        for (int64_t i = from; i < from + count; i++) buffer[i - from] = s.bits[i / 8] >> (i % 8) & 1 ? *next++ : 0;
        CR_TRY_OUT(cr_st_write(writer, buffer, (size_t)count * sizeof *buffer));
    }
out:
    cr_ckpt_sparse_free(&s);
    return status;
}

static cr_status write_all(struct export *e, const char *to) {
    const struct cr_st_meta meta[] = {
        {"format", "pt"}, {CR_OUTPUT_EXPORT_KEY, "1"}, CR_ST_SUMS, {CR_CKPT_CLASS_NAMES, e->class_names}};
    struct cr_st_writer *writer = NULL;
    void                *buffer = NULL;
    struct cr_temporary  file;
    cr_status            status;
    CR_TRY(list_entries(e));
    buffer = cr_alloc(CR_CKPT_CACHED_BYTES, 1);
    if (!buffer) return CR_NO_MEMORY(CR_CKPT_CACHED_BYTES);
    status = cr_temporary_file(&file, to);
    if (status != CR_OK) goto out;
    const int fd = file.fd;
    file.fd      = -1; /* the writer closes it */
    CR_TRY_OUT(
        cr_st_create_at(fd, file.path, e->entry, e->entries, meta, (int)CR_COUNT(meta) - !e->class_names, &writer));
    for (int i = 0; i < e->entries; i++) {
        const struct cr_st_entry *entry = cr_st_writer_entry(writer, i), *from = cr_st_find(e->file, entry->name);
        CR_TRY_OUT(from ? write_whole(e, from, writer, buffer) : write_dense(e, entry->name, writer, buffer));
        if (from) CR_TRY_OUT(cr_st_check_sum(e->file, from, entry->crc)); /* the same bytes: one sum for both files */
    }
    CR_TRY_OUT(cr_st_finish(&writer));
    CR_TRY_OUT(cr_temporary_commit(&file));
out:
    cr_st_abandon(writer);
    cr_temporary_drop(&file);
    cr_free(buffer);
    return status;
}

cr_status cr_ckpt_export_dense(const char *from, const char *to, const char *class_names) {
    struct export e = {.path = from, .class_names = class_names};
    bool      sparse;
    cr_status status;
    CR_TRY(cr_st_open_any(from, &e.file));
    if (cr_st_note(e.file)) cr_log(CR_LOG_INFO, "weights: %s: %s", from, cr_st_note(e.file));
    CR_TRY_OUT(cr_ckpt_is_sparse(e.file, from, &sparse));
    CR_TRY_OUT(write_all(&e, to));
out:
    cr_st_close(e.file);
    cr_free(e.entry);
    cr_arena_free(&e.arena);
    return status;
}
