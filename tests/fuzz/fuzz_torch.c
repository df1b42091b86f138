/* tests/fuzz/fuzz_torch.c: reads any bytes as a PyTorch file: opening may refuse, but an opened file must be valid:
 * every entry can be found by name, its shape fits its bytes, and they can be read in parts. */
#include "formats/torch.h"
#include "tests/fuzz/weights_file.h"

static void check_file(struct cr_st_file *file, size_t size) {
    for (int i = 0; i < cr_st_count(file); i++) {
        const struct cr_st_entry *entry = cr_st_at(file, i);
        uint64_t                  bytes = cr_dtype_bytes(entry->dtype);
        CR_ASSERT(cr_st_find(file, entry->name) == entry && entry->dims <= CR_ST_DIMS_MAX);
        for (int d = 0; d < entry->dims; d++) CR_ASSERT(entry->dim[d] >= 0);
        for (int d = 0; d < entry->dims; d++)
            if (!entry->dim[d]) bytes = 0;
        for (int d = 0; d < entry->dims && bytes; d++) bytes *= (uint64_t)entry->dim[d];
        CR_ASSERT(bytes == entry->bytes && bytes <= size && entry->offset <= size);
        unsigned char *whole = malloc((size_t)bytes + 1), *parts = malloc((size_t)bytes + 1);
        CR_ASSERT(whole && parts && cr_st_read(file, entry, 0, whole, (size_t)bytes) == CR_OK);
        const size_t half = (size_t)bytes / 2;
        CR_ASSERT(cr_st_read(file, entry, 0, parts, half) == CR_OK);
        CR_ASSERT(cr_st_read(file, entry, half, parts + half, (size_t)bytes - half) == CR_OK);
        CR_ASSERT(memcmp(whole, parts, (size_t)bytes) == 0);
        free(whole);
        free(parts);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    return fuzz_weights_file(data, size, cr_torch_open, check_file);
}
