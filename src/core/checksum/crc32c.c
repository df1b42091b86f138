/* core/checksum/crc32c.c: CRC-32C, with the CRC instruction where the CPU has it. */
#include "core/checksum/crc32c.h"

#include "core/cpu.h"

#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { POLYNOMIAL = 0x82f63b78 }; /* Castagnoli's polynomial, bits reversed */

/* tables[0][b] is the sum of byte b, tables[n][b] that of b followed by n zero bytes: the sum of eight bytes is the
 * exclusive or of eight independent lookups. */
static uint32_t       tables[8][256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ (value & 1 ? (uint32_t)POLYNOMIAL : 0);
        tables[0][byte] = value;
    }
    for (int n = 1; n < 8; n++)
        for (int byte = 0; byte < 256; byte++)
            tables[n][byte] = tables[n - 1][byte] >> 8 ^ tables[0][tables[n - 1][byte] & 255];
}

static uint32_t load32(const uint8_t *b) {
    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

uint32_t cr_crc32c_plain(uint32_t crc, const void *bytes, size_t count) {
    const uint8_t *b = bytes;
    pthread_once(&once, make_tables);
    crc = ~crc;
    for (; count >= 8; count -= 8, b += 8) {
        const uint32_t low = crc ^ load32(b), high = load32(b + 4);
        crc = 0;
        for (int i = 0; i < 4; i++) crc ^= tables[7 - i][low >> 8 * i & 255] ^ tables[3 - i][high >> 8 * i & 255];
    }
    for (; count; count--, b++) crc = crc >> 8 ^ tables[0][(crc ^ *b) & 255];
    return ~crc;
}

#if defined(__x86_64__)
enum { BLOCK = 2048, BLOCKS = 3 }; /* bytes of each of the three; all stay in a first level cache */

/* shift[i][b]: the register that has byte b at place i and 0 elsewhere, after BLOCK zero bytes. The register is linear:
 * that of any value is the exclusive or of four. */
static uint32_t       shift[4][256];
static pthread_once_t shift_once = PTHREAD_ONCE_INIT;

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

/* The instruction has a latency of three cycles and can begin every cycle, so of many bytes three sums are computed
 * side by side and combined. */
__attribute__((target("sse4.2"))) static uint32_t crc_sse42(uint32_t crc, const uint8_t *b, size_t count) {
    uint64_t x = ~crc;
    if (count >= BLOCKS * BLOCK) pthread_once(&shift_once, make_shift);
    for (; count >= BLOCKS * BLOCK; count -= BLOCKS * BLOCK, b += BLOCKS * BLOCK) {
        uint64_t y = 0, z = 0;
        for (int i = 0; i < BLOCK; i += 8) {
            x = _mm_crc32_u64(x, load64(b + i));
            y = _mm_crc32_u64(y, load64(b + BLOCK + i));
            z = _mm_crc32_u64(z, load64(b + 2 * BLOCK + i));
        }
        x = after_block(after_block((uint32_t)x) ^ (uint32_t)y) ^ (uint32_t)z;
    }
    for (; count >= 8; count -= 8, b += 8) x = _mm_crc32_u64(x, load64(b));
    for (; count; count--, b++) x = _mm_crc32_u8((uint32_t)x, *b);
    return ~(uint32_t)x;
}
#endif

uint32_t cr_crc32c(uint32_t crc, const void *bytes, size_t count) {
#if defined(__x86_64__)
    if (cr_cpu_has(CR_CPU_SSE42)) return crc_sse42(crc, bytes, count);
#endif
    return cr_crc32c_plain(crc, bytes, count);
}

bool cr_crc32c_parse(const char *text, uint32_t *out) {
    static const char digits[] = "0123456789abcdef";
    *out                       = 0;
    for (int i = 0; i < CR_CRC32C_DIGITS; i++) {
        const char *digit = text[i] ? strchr(digits, text[i]) : NULL;
        if (!digit) return false;
        *out = *out << 4 | (uint32_t)(digit - digits);
    }
    return true;
}
