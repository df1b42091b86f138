/* tests/unit/core/test_crc32c.c: cr_crc32c against the definition of CRC-32C, bit by bit, for all lengths
 * around its blocks, and the published value of "123456789". */
#include "core/checksum/crc32c.h"
#include "tests/harness/test.h"

enum { BYTES = 20000 };
static uint8_t bytes[BYTES];

static uint32_t by_definition(uint32_t crc, const uint8_t *b, size_t count) {
    crc = ~crc;
    for (size_t i = 0; i < count; i++) {
        crc ^= b[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
    }
    return ~crc;
}

TEST(equals_the_definition) {
    static const size_t near[] = {0, 1, 8, 512, 1024, 1280, 2048, 4096, 6144, 12288, 18432};
    for (size_t i = 0; i < BYTES; i++) bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    CHECK(cr_crc32c(0, "123456789", 9) == 0xe3069283);
    for (enum cr_cpu_level level = CR_CPU_BASELINE; level <= CR_CPU_AVX512; level++) {
        if (!cr_cpu_set_level(level)) continue;
        for (size_t k = 0; k < CR_COUNT(near); k++)
            for (size_t count = near[k] - CR_MIN(near[k], (size_t)3); count < near[k] + 3; count++)
                for (size_t from = 0; from < 9; from += 3)
                    CHECK(cr_crc32c((uint32_t)k * 77, bytes + from, count) ==
                          by_definition((uint32_t)k * 77, bytes + from, count));
        /* continued from any place */
        for (size_t cut = 0; cut < BYTES; cut += 1237)
            CHECK(cr_crc32c(cr_crc32c(0, bytes, cut), bytes + cut, BYTES - cut) == by_definition(0, bytes, BYTES));
    }
}
