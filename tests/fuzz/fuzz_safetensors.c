/* tests/fuzz/fuzz_safetensors.c: reads any bytes as a safetensors file: opening may refuse, but an opened file must
 * be valid: every entry can be found by name, its bytes can be read, its shape fits them, and the entries cover the
 * data. */
#include "formats/safetensors.h"
#include "memory_file.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_file(struct cr_st_file *file, size_t size) {
    uint64_t end = 0;
    char     shape[CR_ST_SHAPE_TEXT];
    for (int i = 0; i < cr_st_count(file); i++) {
        const struct cr_st_entry *entry = cr_st_at(file, i);
        uint64_t                  bytes = cr_dtype_bytes(entry->dtype);
        CR_ASSERT(cr_st_find(file, entry->name) == entry);
        CR_ASSERT(entry->offset == end && entry->bytes <= size && entry->dims <= CR_ST_DIMS_MAX);
        for (int d = 0; d < entry->dims; d++) bytes *= (uint64_t)entry->dim[d];
        CR_ASSERT(bytes == entry->bytes);
        cr_st_shape_text(shape, entry->dims, entry->dim);
        CR_ASSERT(strlen(shape) < sizeof shape);
        unsigned char *copy = malloc((size_t)bytes + 1);
        CR_ASSERT(copy && cr_st_read(file, entry, 0, copy, (size_t)bytes) == CR_OK);
        free(copy);
        end += bytes;
    }
    CR_ASSERT(end <= size);
    (void)cr_st_meta_find(file, "format");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char               path[64];
    struct cr_st_file *file   = NULL;
    int                fd     = memory_file(data, size, path);
    int64_t            live   = cr_alloc_live();
    cr_status          status = cr_st_open(path, &file);
    CR_ASSERT(status == CR_OK || status == CR_ERR_FORMAT);
    if (status == CR_OK)
        check_file(file, size);
    else
        CR_ASSERT(strstr(cr_error_message(), path) != NULL);
    cr_st_close(file);
    CR_ASSERT(cr_alloc_live() == live);
    close(fd);
    return 0;
}
