/* formats/safetensors_sums.c: checks the checksums in the metadata of a safetensors file; see formats/safetensors.h. */
#include "core/checksum/crc32c.h"
#include "formats/json.h"
#include "formats/safetensors_file.h"

#include <string.h>

enum { CHUNK_BYTES = 256 << 10, NAME_SHOWN = 120 }; /* a chunk stays in a second level cache */

static cr_status damaged_header(const struct cr_st_file *file) {
    return CR_FAIL(CR_ERR_FORMAT,
                   "%s: its header is damaged (wrong checksum): restore the file from a copy, or use another one; a "
                   "program that rewrites it must leave out the metadata cresnet_*_crc32c",
                   file->path);
}

uint32_t cr_st_header_crc(const char *header, size_t bytes, size_t digits_at) {
    char           zeros[CR_CRC32C_DIGITS];
    const size_t   after  = digits_at + CR_CRC32C_DIGITS;
    const uint64_t length = bytes;
    memset(zeros, '0', sizeof zeros);
    uint32_t crc = cr_crc32c(0, &length, sizeof length);
    crc          = cr_crc32c(crc, header, digits_at);
    crc          = cr_crc32c(crc, zeros, sizeof zeros);
    return cr_crc32c(crc, header + after, bytes - after);
}

cr_status cr_st_check_header(struct cr_st_file *file) {
    static const char key[] = "\"" CR_ST_HEADER_SUM "\":\"";
    const char       *found = strstr(file->header, key);
    uint32_t          stored;
    if (!found) return CR_OK;
    found += sizeof key - 1;
    file->header_checked =
        cr_crc32c_parse(found, &stored) &&
        cr_st_header_crc(file->header, (size_t)file->header_bytes, (size_t)(found - file->header)) == stored;
    return file->header_checked ? CR_OK : damaged_header(file);
}

cr_status cr_st_find_sums(struct cr_st_file *file) {
    const char *tensors = cr_st_meta_find(file, CR_ST_TENSOR_SUMS), *header = cr_st_meta_find(file, CR_ST_HEADER_SUM);
    if (!tensors && !header) return CR_OK;
    if (!tensors || !header || !file->header_checked || strlen(tensors) != (size_t)file->count * CR_CRC32C_DIGITS)
        return damaged_header(file);
    for (int i = 0; i < file->count; i++)
        if (!cr_crc32c_parse(tensors + (size_t)i * CR_CRC32C_DIGITS, &file->entries[i].crc))
            return damaged_header(file);
    file->has_sums = true;
    return CR_OK;
}

bool cr_st_has_sums(const struct cr_st_file *file) {
    return file->has_sums;
}

cr_status cr_st_check_sum(const struct cr_st_file *file, const struct cr_st_entry *entry, uint32_t crc) {
    char shown[NAME_SHOWN];
    if (!file->has_sums || entry->crc == crc) return CR_OK;
    cr_json_quote(shown, sizeof shown, entry->name);
    return CR_FAIL(CR_ERR_FORMAT,
                   "%s: tensor %s is damaged (wrong checksum): restore the file from a copy, or use another checkpoint",
                   file->path, shown);
}

cr_status cr_st_read_whole(struct cr_st_file *file, const struct cr_st_entry *entry, void *dst) {
    CR_TRY(cr_st_read(file, entry, 0, dst, (size_t)entry->bytes));
    return file->has_sums ? cr_st_check_sum(file, entry, cr_crc32c(0, dst, (size_t)entry->bytes)) : CR_OK;
}

cr_status cr_st_verify(struct cr_st_file *file, const struct cr_st_entry *entry) {
    unsigned char *chunk;
    uint32_t       crc    = 0;
    cr_status      status = CR_OK;
    if (!file->has_sums) return CR_OK;
    CR_ALLOC(chunk, (size_t)CR_MIN(CR_MAX(entry->bytes, 1), (uint64_t)CHUNK_BYTES)); /* most tensors are small */
    for (uint64_t at = 0; at < entry->bytes; at += CHUNK_BYTES) {
        const size_t bytes = (size_t)CR_MIN(entry->bytes - at, (uint64_t)CHUNK_BYTES);
        CR_TRY_OUT(cr_st_read(file, entry, at, chunk, bytes));
        crc = cr_crc32c(crc, chunk, bytes);
    }
    status = cr_st_check_sum(file, entry, crc);
out:
    cr_free(chunk);
    return status;
}
