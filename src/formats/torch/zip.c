/* formats/torch/zip.c: reads the central directory of zip archives. See formats/torch/zip.h. */
#include "formats/torch/zip.h"

#include "core/files.h"
#include "formats/json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    END_BYTES     = 22, /* end of central directory record, without its comment */
    END64_BYTES   = 56,
    LOCATOR_BYTES = 20,
    CENTRAL_BYTES = 46,
    LOCAL_BYTES   = 30,
    COMMENT_MAX   = 65535,
    NAME_SHOWN    = 120,
};

#define BAD(zip, ...) CR_FAIL_FORMAT((zip)->path, "not a valid zip archive", __VA_ARGS__)

static uint32_t load16(const unsigned char *p) {
    return (uint32_t)(p[0] | p[1] << 8);
}
static uint32_t load32(const unsigned char *p) {
    return load16(p) | load16(p + 2) << 16;
}
static uint64_t load64(const unsigned char *p) {
    return load32(p) | (uint64_t)load32(p + 4) << 32;
}

/* ---- the end of the archive ---- */

struct directory {
    uint64_t offset, bytes, entries;
};

/* The 64-bit record, when the locator before the end record names one. */
static cr_status read_end64(const struct cr_zip *zip, uint64_t end_at, struct directory *d) {
    unsigned char locator[LOCATOR_BYTES], end[END64_BYTES];
    if (end_at < LOCATOR_BYTES) return CR_OK;
    CR_TRY(cr_fs_read_at(zip->fd, zip->path, locator, sizeof locator, end_at - LOCATOR_BYTES));
    if (memcmp(locator, "PK\6\7", 4) != 0) return CR_OK;
    const uint64_t at = load64(locator + 8);
    if (at > end_at || end_at - at < END64_BYTES + LOCATOR_BYTES)
        return BAD(zip, "its 64-bit end record should be at byte %" PRIu64, at);
    CR_TRY(cr_fs_read_at(zip->fd, zip->path, end, sizeof end, at));
    if (memcmp(end, "PK\6\6", 4) != 0) return BAD(zip, "there is no 64-bit end record at byte %" PRIu64, at);
    d->entries = load64(end + 32);
    d->bytes   = load64(end + 40);
    d->offset  = load64(end + 48);
    return CR_OK;
}

/* Finds the end record, which a comment of up to 65,535 bytes may follow. */
static cr_status find_end(const struct cr_zip *zip, uint64_t file_bytes, unsigned char out[END_BYTES], uint64_t *at) {
    const size_t   bytes = (size_t)CR_MIN(file_bytes, (uint64_t)(END_BYTES + COMMENT_MAX));
    unsigned char *tail  = cr_alloc(bytes, 1);
    cr_status      status;
    if (!tail) return CR_NO_MEMORY(bytes);
    CR_TRY_OUT(cr_fs_read_at(zip->fd, zip->path, tail, bytes, file_bytes - bytes));
    for (size_t i = bytes >= END_BYTES ? bytes - END_BYTES + 1 : 0; i-- > 0;) {
        if (memcmp(tail + i, "PK\5\6", 4) != 0 || i + END_BYTES + load16(tail + i + 20) != bytes) continue;
        memcpy(out, tail + i, END_BYTES);
        *at = file_bytes - bytes + i;
        goto out;
    }
    status = BAD(zip, "its end is missing: the file is truncated");
out:
    cr_free(tail);
    return status;
}

static cr_status find_directory(const struct cr_zip *zip, uint64_t file_bytes, struct directory *d) {
    unsigned char end[END_BYTES];
    uint64_t      end_at = 0;
    CR_TRY(find_end(zip, file_bytes, end, &end_at));
    *d = (struct directory){.entries = load16(end + 10), .bytes = load32(end + 12), .offset = load32(end + 16)};
    CR_TRY(read_end64(zip, end_at, d));
    if (d->offset > end_at || d->bytes > end_at - d->offset)
        return BAD(zip, "its directory (%" PRIu64 " bytes at byte %" PRIu64 ") reaches beyond its end record", d->bytes,
                   d->offset);
    if (d->bytes > CR_ZIP_DIRECTORY_MAX || d->entries > CR_ZIP_ENTRIES_MAX || d->entries > d->bytes / CENTRAL_BYTES)
        return BAD(zip, "%" PRIu64 " files in a directory of %" PRIu64 " bytes", d->entries, d->bytes);
    return CR_OK;
}

/* ---- the directory ---- */

/* Replaces the sizes and the offset that are 0xffffffff by those of the 64-bit extra field, which has only these. */
static void apply_extra(const unsigned char *extra, size_t length, uint64_t *whole, uint64_t *packed, uint64_t *local) {
    uint64_t *const field[] = {whole, packed, local};
    while (length >= 4) {
        size_t size = load16(extra + 2);
        if (size > length - 4) return;
        if (load16(extra) == 1) {
            const unsigned char *p = extra + 4;
            for (size_t i = 0; i < CR_COUNT(field); i++) {
                if (*field[i] != UINT32_MAX || size < 8) continue;
                *field[i] = load64(p);
                p += 8;
                size -= 8;
            }
            return;
        }
        extra += 4 + size;
        length -= 4 + size;
    }
}

/* Parses the record at *at, moves *at behind it, and moves the name to the begin of the record with a 0 behind it. */
static cr_status parse_record(const struct cr_zip *zip, uint64_t bytes, size_t *at, struct cr_zip_entry *entry) {
    unsigned char *p = (unsigned char *)zip->directory + *at;
    char           shown[NAME_SHOWN];
    if (bytes - *at < CENTRAL_BYTES || memcmp(p, "PK\1\2", 4) != 0)
        return BAD(zip, "its directory is damaged at byte %zu", *at);
    const uint32_t flags = load16(p + 8), method = load16(p + 10);
    const size_t   name = load16(p + 28), extra = load16(p + 30), comment = load16(p + 32);
    uint64_t       packed = load32(p + 20), whole = load32(p + 24), local = load32(p + 42);
    if (bytes - *at - CENTRAL_BYTES < name + extra + comment)
        return BAD(zip, "its directory is damaged at byte %zu", *at);
    apply_extra(p + CENTRAL_BYTES + name, extra, &whole, &packed, &local);
    *at += CENTRAL_BYTES + name + extra + comment;
    memmove(p, p + CENTRAL_BYTES, name);
    p[name] = 0;
    if (strlen((char *)p) != name) return BAD(zip, "the name of a file has a 0 byte");
    *entry = (struct cr_zip_entry){
        .name = (char *)p, .local = local, .bytes = whole, .stored = method == 0 && !(flags & 1) && packed == whole};
    if (local > zip->directory_begin || packed > zip->directory_begin - local) {
        cr_json_quote(shown, sizeof shown, entry->name);
        return BAD(zip, "file %s (%" PRIu64 " bytes at byte %" PRIu64 ") reaches beyond the archive", shown, packed,
                   local);
    }
    return CR_OK;
}

static cr_status read_directory(struct cr_zip *zip, const struct directory *d) {
    char   shown[NAME_SHOWN];
    size_t at            = 0;
    zip->directory_begin = d->offset;
    CR_ALLOC(zip->directory, (size_t)d->bytes + 1);
    CR_ALLOC(zip->entry, (size_t)d->entries);
    CR_TRY(cr_fs_read_at(zip->fd, zip->path, zip->directory, (size_t)d->bytes, d->offset));
    for (; zip->count < (int)d->entries; zip->count++)
        CR_TRY(parse_record(zip, d->bytes, &at, &zip->entry[zip->count]));
    if (zip->count) qsort(zip->entry, (size_t)zip->count, sizeof *zip->entry, cr_compare_texts);
    for (int i = 1; i < zip->count; i++)
        if (strcmp(zip->entry[i - 1].name, zip->entry[i].name) == 0) {
            cr_json_quote(shown, sizeof shown, zip->entry[i].name);
            return BAD(zip, "it has two files with the name %s", shown);
        }
    return CR_OK;
}

cr_status cr_zip_open(int fd, const char *path, uint64_t file_bytes, struct cr_zip *out) {
    struct cr_zip    zip    = {.fd = fd, .path = path};
    struct directory d      = {0};
    cr_status        status = find_directory(&zip, file_bytes, &d);
    if (status == CR_OK) status = read_directory(&zip, &d);
    if (status != CR_OK) {
        cr_zip_close(&zip);
        return cr_error_forward(status, __FILE__, __LINE__);
    }
    *out = zip;
    return CR_OK;
}

void cr_zip_close(struct cr_zip *zip) {
    cr_free(zip->entry);
    cr_free(zip->directory);
    *zip = (struct cr_zip){0};
}

/* ---- queries ---- */

const struct cr_zip_entry *cr_zip_find(const struct cr_zip *zip, const char *name) {
    const struct cr_zip_entry wanted = {.name = name};
    return zip->count ? bsearch(&wanted, zip->entry, (size_t)zip->count, sizeof *zip->entry, cr_compare_texts) : NULL;
}

/* The extra field of the local header may be longer than that of the directory: torch.save aligns the content. */
cr_status cr_zip_locate(const struct cr_zip *zip, const struct cr_zip_entry *entry, uint64_t *offset) {
    unsigned char  head[LOCAL_BYTES], name[256];
    char           shown[NAME_SHOWN];
    const uint64_t end    = zip->directory_begin;
    const size_t   length = strlen(entry->name);
    cr_json_quote(shown, sizeof shown, entry->name);
    if (!entry->stored)
        return CR_FAIL(CR_ERR_FORMAT,
                       "%s: its part %s is compressed or encrypted: torch.save writes neither; unpack the archive and "
                       "pack it without compression (zip -0 -r)",
                       zip->path, shown);
    if (end - entry->local < LOCAL_BYTES + length) return BAD(zip, "file %s reaches beyond the archive", shown);
    CR_TRY(cr_fs_read_at(zip->fd, zip->path, head, sizeof head, entry->local));
    if (memcmp(head, "PK\3\4", 4) != 0 || load16(head + 26) != length)
        return BAD(zip, "file %s has no header at byte %" PRIu64, shown, entry->local);
    const size_t compared = CR_MIN(length, sizeof name);
    CR_TRY(cr_fs_read_at(zip->fd, zip->path, name, compared, entry->local + LOCAL_BYTES));
    if (memcmp(name, entry->name, compared) != 0)
        return BAD(zip, "file %s has another name at byte %" PRIu64, shown, entry->local);
    const uint64_t begin = entry->local + LOCAL_BYTES + length + load16(head + 28);
    if (begin > end || entry->bytes > end - begin) return BAD(zip, "file %s reaches beyond the archive", shown);
    *offset = begin;
    return CR_OK;
}
