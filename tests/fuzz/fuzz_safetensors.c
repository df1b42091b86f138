/* tests/fuzz/fuzz_safetensors.c: reads any bytes as a safetensors file: opening may refuse, but an opened file must
 * be valid: every entry can be found by name, its bytes can be read, its shape fits them, and the entries cover the
 * data. */
#include "tests/fuzz/weights_file.h"

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
    return fuzz_weights_file(data, size, cr_st_open, check_file);
}
