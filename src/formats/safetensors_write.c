/* formats/safetensors_write.c: writes safetensors files; see formats/safetensors.h. */
#include "core/checksum/crc32c.h"
#include "core/files.h"
#include "formats/json.h"
#include "formats/json_write.h"
#include "formats/safetensors_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PART_BYTES = 256 << 10 }; /* from the checksum to the copy of the system, a part stays in a second level cache */

struct placed {
    struct cr_st_entry entry; /* its crc is that of the bytes written so far */
    int                index; /* in the caller's array */
};

struct cr_st_writer {
    int            fd;
    char          *path;
    struct placed *placed; /* in file order */
    int            count;
    uint64_t       total, written; /* bytes of the data section */
    struct cr_text header;         /* with its length, as in the file */
    size_t         tensor_sums_at; /* of the digits in `header`; 0: the file has no sums */
    size_t         header_sum_at;
    int            current; /* the tensor that is being written */
};

/* The order of element types in the reference writer: higher ranks are written first. */
static int dtype_rank(enum cr_dtype dtype) {
    static const int table[] = {
        [CR_U8] = 0, [CR_I8] = 1, [CR_F16] = 2, [CR_BF16] = 3, [CR_I32] = 4, [CR_F32] = 5, [CR_F64] = 6, [CR_I64] = 7};
    return table[dtype];
}

static int compare_placed(const void *a, const void *b) {
    const struct placed *x = a, *y = b;
    int                  rank = dtype_rank(y->entry.dtype) - dtype_rank(x->entry.dtype);
    return rank ? rank : strcmp(x->entry.name, y->entry.name);
}

static cr_status check_text(const char *path, const char *what, const char *text) {
    char shown[120];
    cr_json_quote(shown, sizeof shown, text);
    if (!cr_utf8_valid(text, strlen(text)))
        return CR_FAIL(CR_ERR_FORMAT, "%s: cannot store %s %s: it is not valid UTF-8", path, what, shown);
    return CR_OK;
}

/* Copies and sorts the entries; fills offsets and sizes. */
static cr_status place_entries(struct cr_st_writer *writer, const struct cr_st_entry *entries, int count) {
    cr_status    status = CR_OK;
    const char **names  = NULL;
    CR_ALLOC(writer->placed, (size_t)count);
    CR_ALLOC(names, (size_t)count);
    for (int i = 0; i < count; i++) {
        CR_TRY_OUT(check_text(writer->path, "the tensor name", entries[i].name));
        CR_ASSERT(strcmp(entries[i].name, "__metadata__") != 0);
        CR_ASSERT(entries[i].dims >= 0 && entries[i].dims <= CR_ST_DIMS_MAX);
        writer->placed[i]           = (struct placed){.entry = entries[i], .index = i};
        writer->placed[i].entry.crc = 0;
        names[i]                    = entries[i].name;
    }
    if (count) {
        qsort(writer->placed, (size_t)count, sizeof *writer->placed, compare_placed);
        qsort(names, (size_t)count, sizeof *names, cr_compare_texts);
    }
    for (int i = 1; i < count; i++) CR_ASSERT(strcmp(names[i - 1], names[i]) != 0);
    for (int i = 0; i < count; i++) {
        struct cr_st_entry *entry = &writer->placed[i].entry;
        uint64_t            bytes = cr_dtype_bytes(entry->dtype);
        for (int d = 0; d < entry->dims; d++)
            CR_ASSERT(entry->dim[d] >= 0 && !__builtin_mul_overflow(bytes, (uint64_t)entry->dim[d], &bytes));
        entry->offset = writer->total;
        entry->bytes  = bytes;
        CR_ASSERT(!__builtin_add_overflow(writer->total, bytes, &writer->total));
    }
    writer->count = count;
out:
    cr_free(names);
    return status;
}

/* Adds a pair whose value is `sums` sums, all 0 as yet. Returns where their digits are in the text. */
static size_t add_empty_sums(struct cr_json_writer *w, const char *key, int sums) {
    struct cr_text zeros = {0};
    cr_text_add(&zeros, "%s", "");
    for (int i = 0; i < sums; i++) cr_text_add(&zeros, "%0*d", CR_CRC32C_DIGITS, 0);
    w->text->failed |= zeros.failed;
    cr_json_put_string(w, key, zeros.failed ? "" : zeros.data);
    cr_text_free(&zeros);
    return w->text->length - 1 - (size_t)sums * CR_CRC32C_DIGITS; /* 1: the quote */
}

static cr_status add_meta(struct cr_json_writer *w, struct cr_st_writer *writer, const struct cr_st_meta *meta,
                          int count) {
    struct cr_st_meta *sorted;
    cr_status          status = CR_OK;
    if (!count) return CR_OK;
    CR_ALLOC(sorted, (size_t)count + 1);
    memcpy(sorted, meta, (size_t)count * sizeof *meta);
    for (int i = 0; i < count; i++)
        if (!meta[i].value) sorted[count] = (struct cr_st_meta){CR_ST_HEADER_SUM, NULL};
    count += sorted[count].key != NULL;
    qsort(sorted, (size_t)count, sizeof *sorted, cr_compare_texts);
    cr_json_open_object(w, "__metadata__");
    for (int i = 0; i < count; i++) {
        const bool of_header = strcmp(sorted[i].key, CR_ST_HEADER_SUM) == 0;
        CR_ASSERT(i == 0 || strcmp(sorted[i - 1].key, sorted[i].key) != 0);
        CR_TRY_OUT(check_text(writer->path, "the metadata key", sorted[i].key));
        if (!sorted[i].value) {
            *(of_header ? &writer->header_sum_at : &writer->tensor_sums_at) =
                add_empty_sums(w, sorted[i].key, of_header ? 1 : writer->count);
            continue;
        }
        CR_TRY_OUT(check_text(writer->path, "the metadata value", sorted[i].value));
        cr_json_put_string(w, sorted[i].key, sorted[i].value);
    }
    cr_json_close_object(w);
out:
    cr_free(sorted);
    return status;
}

static void add_entry(struct cr_json_writer *w, const struct cr_st_entry *entry) {
    cr_json_open_object(w, entry->name);
    cr_json_put_string(w, "dtype", cr_dtype_safetensors_name(entry->dtype));
    cr_json_open_array(w, "shape");
    for (int d = 0; d < entry->dims; d++) cr_json_put_int(w, NULL, entry->dim[d]);
    cr_json_close_array(w);
    cr_json_open_array(w, "data_offsets");
    cr_json_put_uint(w, NULL, entry->offset);
    cr_json_put_uint(w, NULL, entry->offset + entry->bytes);
    cr_json_close_array(w);
    cr_json_close_object(w);
}

/* Builds the length and the JSON, padded with spaces so that the data section starts at a multiple of 8. */
static cr_status build_header(struct cr_st_writer *writer, const struct cr_st_meta *meta, int meta_count) {
    struct cr_text *text   = &writer->header;
    uint64_t        length = 0;
    cr_text_add_bytes(text, &length, 8);
    struct cr_json_writer w = cr_json_writer(text, CR_JSON_COMPACT);
    cr_json_open_object(&w, NULL);
    CR_TRY(add_meta(&w, writer, meta, meta_count));
    for (int i = 0; i < writer->count; i++) add_entry(&w, &writer->placed[i].entry);
    cr_json_close_object(&w);
    while (!text->failed && text->length % 8) cr_text_add_bytes(text, " ", 1);
    if (text->failed) return CR_NO_MEMORY(text->length * 2);
    length = text->length - 8;
    if (length > CR_ST_HEADER_MAX)
        return CR_FAIL(CR_ERR_FORMAT, "%s: the names of %d tensors do not fit into a safetensors header (%d bytes)",
                       writer->path, writer->count, CR_ST_HEADER_MAX);
    memcpy(text->data, &length, 8);
    return CR_OK;
}

static void writer_free(struct cr_st_writer *writer) {
    cr_text_free(&writer->header);
    cr_free(writer->placed);
    cr_free(writer->path);
    cr_free(writer);
}

cr_status cr_st_create_at(int fd, const char *path, const struct cr_st_entry *entries, int count,
                          const struct cr_st_meta *meta, int meta_count, struct cr_st_writer **out) {
    cr_status            status = CR_OK;
    struct cr_st_writer *writer = cr_alloc(1, sizeof *writer);
    if (!writer) {
        if (fd >= 0) cr_fs_close(fd);
        return CR_NO_MEMORY(sizeof *writer);
    }
    writer->fd   = fd;
    writer->path = cr_strdup(path);
    if (!writer->path) CR_NO_MEMORY_OUT(strlen(path) + 1);
    CR_TRY_OUT(place_entries(writer, entries, count));
    CR_TRY_OUT(build_header(writer, meta, meta_count));
    if (fd < 0) writer->fd = cr_fs_create(path);
    if (writer->fd < 0) CR_TRY_OUT(cr_fs_refused(path, "create", errno));
    CR_TRY_OUT(cr_fs_write(writer->fd, path, writer->header.data, writer->header.length, writer->total));
    *out   = writer;
    writer = NULL;
out:
    cr_st_abandon(writer);
    return status;
}

cr_status cr_st_create(const char *path, const struct cr_st_entry *entries, int count, const struct cr_st_meta *meta,
                       int meta_count, struct cr_st_writer **out) {
    return cr_st_create_at(-1, path, entries, count, meta, meta_count, out);
}

const struct cr_st_entry *cr_st_writer_entry(const struct cr_st_writer *writer, int i) {
    CR_ASSERT(i >= 0 && i < writer->count);
    return &writer->placed[i].entry;
}

int cr_st_writer_index(const struct cr_st_writer *writer, int i) {
    CR_ASSERT(i >= 0 && i < writer->count);
    return writer->placed[i].index;
}

/* Adds bytes that follow those written so far to the sums of their tensors. */
static void add_to_sums(struct cr_st_writer *writer, const unsigned char *src, size_t bytes) {
    for (uint64_t at = writer->written; bytes;) {
        struct cr_st_entry *to   = &writer->placed[writer->current].entry;
        const size_t        part = (size_t)CR_MIN((uint64_t)bytes, to->offset + to->bytes - at);
        to->crc                  = cr_crc32c(to->crc, src, part);
        src += part;
        at += part;
        bytes -= part;
        if (at == to->offset + to->bytes) writer->current++;
    }
}

static void put_digits(char *at, uint32_t sum) {
    char digits[CR_CRC32C_DIGITS + 1];
    snprintf(digits, sizeof digits, "%08" PRIx32, sum);
    memcpy(at, digits, CR_CRC32C_DIGITS);
}

/* Writes the header once more, with the sums. */
static cr_status write_sums(struct cr_st_writer *writer) {
    char        *text  = writer->header.data;
    const size_t bytes = writer->header.length, length = sizeof(uint64_t); /* before the JSON */
    for (int i = 0; i < writer->count; i++)
        put_digits(text + writer->tensor_sums_at + (size_t)i * CR_CRC32C_DIGITS, writer->placed[i].entry.crc);
    put_digits(text + writer->header_sum_at,
               cr_st_header_crc(text + length, bytes - length, writer->header_sum_at - length));
    if (lseek(writer->fd, 0, SEEK_SET) < 0) return cr_fs_refused(writer->path, "write the checksums", errno);
    return cr_fs_write(writer->fd, writer->path, text, bytes, 0);
}

cr_status cr_st_write(struct cr_st_writer *writer, const void *src, size_t bytes) {
    CR_ASSERT(bytes <= writer->total - writer->written);
    for (size_t at = 0; at < bytes;) {
        const size_t         part = CR_MIN(bytes - at, (size_t)PART_BYTES);
        const unsigned char *from = (const unsigned char *)src + at;
        if (writer->tensor_sums_at) add_to_sums(writer, from, part);
        CR_TRY(cr_fs_write(writer->fd, writer->path, from, part, writer->total - writer->written - part));
        writer->written += part;
        at += part;
    }
    return CR_OK;
}

cr_status cr_st_finish(struct cr_st_writer **finished) {
    struct cr_st_writer *writer = *finished;
    cr_status            status = CR_OK;
    *finished                   = NULL;
    if (writer->written != writer->total)
        CR_FAIL_OUT(CR_ERR_FORMAT, "%s: %" PRIu64 " bytes of tensors were declared, %" PRIu64 " written", writer->path,
                    writer->total, writer->written);
    if (writer->tensor_sums_at) CR_TRY_OUT(write_sums(writer));
    if (cr_fs_sync(writer->fd) < 0) CR_TRY_OUT(cr_fs_refused(writer->path, "write to the disk", errno));
    int fd     = writer->fd;
    writer->fd = -1;
    if (cr_fs_close(fd) < 0) {
        status = cr_fs_refused(writer->path, "close", errno);
        cr_fs_unlink(writer->path);
    }
out:
    cr_st_abandon(writer);
    return status;
}

void cr_st_abandon(struct cr_st_writer *writer) {
    if (!writer) return;
    if (writer->fd >= 0) {
        cr_fs_close(writer->fd);
        if (writer->path) cr_fs_unlink(writer->path);
    }
    writer_free(writer);
}
