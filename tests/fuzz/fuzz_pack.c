/* tests/fuzz/fuzz_pack.c: reads any bytes as a packed dataset: opening may refuse, but an opened dataset must be
 * valid: every image lies inside the file and its size fits. Checksums stop mutations, so the same bytes are read
 * again with correct checksums. */
#include "core/checksum/crc32c.h"
#include "data/pack.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

static void store32(uint8_t *b, uint32_t v) {
    for (int i = 0; i < 4; i++) b[i] = (uint8_t)(v >> 8 * i);
}
static uint64_t load64(const uint8_t *b) {
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--) v = v << 8 | b[i];
    return v;
}

static void try_bytes(const uint8_t *bytes, size_t count) {
    struct cr_pack *pack;
    int64_t         live   = cr_alloc_live();
    cr_status       status = cr_pack_open_bytes(bytes, count, "fuzz.crpk", &pack);
    CR_ASSERT(status == CR_OK || status == CR_ERR_FORMAT);
    if (status != CR_OK) {
        CR_ASSERT(strstr(cr_error_message(), "fuzz.crpk"));
        CR_ASSERT(cr_alloc_live() == live);
        return;
    }
    for (int64_t i = 0; i < pack->count; i++) {
        struct cr_pack_entry entry = cr_pack_entry(pack, i);
        const uint8_t       *at;
        CR_ASSERT(entry.offset <= count && entry.bytes <= count - entry.offset && entry.label < pack->classes);
        CR_ASSERT(pack->class_names[entry.label][0]);
        status = cr_pack_read(pack, i, &entry, &at);
        CR_ASSERT(status == CR_OK || status == CR_ERR_FORMAT);
    }
    status = cr_pack_verify(pack, 1);
    CR_ASSERT(status == CR_OK || status == CR_ERR_FORMAT);
    cr_pack_close(pack);
    CR_ASSERT(cr_alloc_live() == live);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
    try_bytes(bytes, count);
    if (count < CR_PACK_HEADER_BYTES) return 0;
    uint8_t *mended = cr_alloc(count, 1);
    CR_ASSERT(mended);
    memcpy(mended, bytes, count);
    memcpy(mended, CR_PACK_MAGIC, 8);
    store32(mended + CR_PACK_AT_VERSION, CR_PACK_VERSION);
    store32(mended + CR_PACK_AT_FILE_BYTES, (uint32_t)count);
    store32(mended + CR_PACK_AT_FILE_BYTES + 4, (uint32_t)((uint64_t)count >> 32));
    uint64_t names = load64(mended + CR_PACK_AT_NAMES_BYTES), index = load64(mended + CR_PACK_AT_INDEX_OFFSET);
    if (names <= count - CR_PACK_HEADER_BYTES && index <= count) {
        uint32_t crc = cr_crc32c(0, mended + CR_PACK_HEADER_BYTES, (size_t)names);
        store32(mended + CR_PACK_AT_TABLES_CRC, cr_crc32c(crc, mended + index, count - (size_t)index));
    }
    store32(mended + CR_PACK_AT_HEADER_CRC, cr_crc32c(0, mended, CR_PACK_AT_HEADER_CRC));
    try_bytes(mended, count);
    cr_free(mended);
    return 0;
}
