/* core/checksum/crc32c_long.c: CRC-32C of many bytes. The CPU's instruction has a latency of three cycles and can begin
 * every cycle, so three sums are computed side by side and combined. Processors with AVX-512 do more bytes in a cycle:
 * crc32c_avx512.c. */
#include "core/checksum/crc32c.h"
#include "core/cpu.h"

#include <pthread.h>
#include <string.h>

enum { AVX512_FROM = 4 * CR_CRC32C_AVX512_BLOCK }; /* with fewer bytes the end takes longer than the rest */

#if defined(__x86_64__)
#include <immintrin.h>

enum { BLOCK = 2048, BLOCKS = 3 }; /* bytes of each of the three; all stay in a first level cache */

/* shift[i][b]: the register that has byte b at place i and 0 elsewhere, after BLOCK zero bytes. The register is linear:
 * that of any value is the exclusive or of four. */
static uint32_t       shift[4][256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_shift(void) {
    static const uint8_t zeros[BLOCK];
    for (int i = 0; i < 4; i++) {
        for (int bit = 0; bit < 8; bit++)
            shift[i][1 << bit] = ~cr_crc32c_plain(~((uint32_t)1 << (8 * i + bit)), zeros, BLOCK);
        for (uint32_t byte = 1; byte < 256; byte++)
            shift[i][byte] = shift[i][byte & (byte - 1)] ^ shift[i][byte & -byte];
    }
}

static uint32_t after_block(uint32_t value) {
    return shift[0][value & 255] ^ shift[1][value >> 8 & 255] ^ shift[2][value >> 16 & 255] ^ shift[3][value >> 24];
}

static uint64_t load64(const uint8_t *b) {
    uint64_t word;
    memcpy(&word, b, sizeof word);
    return word;
}

/* Continues a register over BLOCKS * BLOCK bytes. */
__attribute__((target("sse4.2"))) static uint32_t three_blocks(uint32_t value, const uint8_t *b) {
    uint64_t x = value, y = 0, z = 0;
    for (int i = 0; i < BLOCK; i += 8) {
        x = _mm_crc32_u64(x, load64(b + i));
        y = _mm_crc32_u64(y, load64(b + BLOCK + i));
        z = _mm_crc32_u64(z, load64(b + 2 * BLOCK + i));
    }
    return after_block(after_block((uint32_t)x) ^ (uint32_t)y) ^ (uint32_t)z;
}
#endif

uint32_t cr_crc32c_long(uint32_t crc, const void *bytes, size_t count) {
    const uint8_t *b = bytes;
    if (count >= AVX512_FROM && cr_crc32c_has_avx512()) {
        const size_t blocks = count / CR_CRC32C_AVX512_BLOCK, done = blocks * CR_CRC32C_AVX512_BLOCK;
        return cr_crc32c(cr_crc32c_avx512(crc, b, blocks), b + done, count - done);
    }
#if defined(__x86_64__)
    if (count >= BLOCKS * BLOCK && cr_cpu_has(CR_CPU_SSE42)) {
        pthread_once(&once, make_shift);
        for (; count >= BLOCKS * BLOCK; count -= BLOCKS * BLOCK, b += BLOCKS * BLOCK) crc = ~three_blocks(~crc, b);
    }
#endif
    return cr_crc32c(crc, b, count);
}
