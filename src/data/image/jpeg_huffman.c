/* data/image/jpeg_huffman.c: builds the Huffman lookup tables of data/image/jpeg_baseline.c. */
#include "data/image/jpeg_huffman.h"

#if CR_JPEG_CAN_DECODE

#include <stdlib.h>

/* The entry for a code of `length` bits; `rest` are the bits after the code that a lookup includes. */
static uint32_t make_entry(int symbol, int length, int rest) {
    int run = symbol >> 4, size = symbol & 15, seen = LOOKUP_BITS - length;
    if (size == 0 && run != 15) return (uint32_t)(KIND_END << KIND_SHIFT | length);
    if (size == 0) return (uint32_t)(KIND_VALUE << KIND_SHIFT | run << 8 | length); /* sixteen zeros */
    if (size > seen) return (uint32_t)size << 16 | (uint32_t)(KIND_SIZE << KIND_SHIFT | run << 8 | length);
    int value = extend(rest >> (seen - size), size);
    return (uint32_t)value << 16 | (uint32_t)(KIND_VALUE << KIND_SHIFT | run << 8 | (length + size));
}

/* Bits of the magnitude of a coefficient. */
static uint32_t bit_width(int value) {
    return value ? 32 - (uint32_t)__builtin_clz((unsigned)abs(value)) : 0;
}

/* Combines the first two complete coefficients that a lookup includes; and as many as it includes, with a last one of
 * which it includes the code alone. */
static void make_combined_lookups(struct code_table *table) {
    for (uint32_t i = 0; i < 1 << LOOKUP_BITS; i++) {
        uint32_t pair = PAIR_END, end = 0, bits = 0, places = 0;
        bool     pairing = true;
        for (int n = 0; !end && bits < LOOKUP_BITS; n++) {
            uint32_t entry = table->lookup[i << bits & ((1 << LOOKUP_BITS) - 1)], left = LOOKUP_BITS - bits;
            uint32_t length = entry & BITS_MASK, kind = entry >> KIND_SHIFT & 15, run = entry >> 8 & 15;
            int      value = (int32_t)entry >> 16;
            if (kind == KIND_LONG) break;
            if (kind == KIND_SIZE || length > left) {
                uint32_t size = kind == KIND_SIZE ? (uint32_t)value : bit_width(value);
                uint32_t code = kind == KIND_SIZE ? length : length - size;
                if (code > left || bits + code + size > SKIP_BITS) break;
                bits += code + size;
                places += run + 1;
                break;
            }
            bits += length;
            end = kind == KIND_END;
            places += end ? 0 : run + 1;
            pairing = pairing && (end || (n < 2 && value == (int8_t)value));
            if (!pairing) continue;
            uint32_t added = end ? PAIR_END
                             : n ? (uint32_t)value << 24 | (run + 1) << 10
                                 : (value & 255u) << 16 | run << 6;
            pair           = ((n ? pair & ~(uint32_t)BITS_MASK : 0) | added) + bits;
        }
        table->pair[i]  = pair;
        table->multi[i] = (uint16_t)(places << MULTI_SHIFT | (end || !bits ? MULTI_END : 0) | bits);
    }
}

bool cr_jpeg_make_table(const JHUFF_TBL *source, bool dc, struct code_table *table) {
    if (!source) return false;
    if (table->made && !memcmp(table->bits, source->bits, 17) && !memcmp(table->symbol, source->huffval, 256))
        return true;
    table->made = false;
    memcpy(table->bits, source->bits, 17);
    memcpy(table->symbol, source->huffval, 256);
    for (int i = 0; i < 1 << LOOKUP_BITS; i++) table->lookup[i] = (uint32_t)(KIND_LONG << KIND_SHIFT);
    int code = 0, index = 0;
    for (int length = 1; length <= 16; length++, code <<= 1) {
        table->offset[length] = index - code;
        for (int n = 0; n < source->bits[length]; n++, code++, index++) {
            if (index >= 256 || code >= (1 << length) - 1) return false; /* a code of ones only is not allowed */
            int symbol = source->huffval[index];
            if (dc && symbol > 11) return false;
            for (int rest = 0; length <= LOOKUP_BITS && rest < 1 << (LOOKUP_BITS - length); rest++)
                table->lookup[code << (LOOKUP_BITS - length) | rest] =
                    dc && !symbol ? (uint32_t)(KIND_VALUE << KIND_SHIFT | length) : make_entry(symbol, length, rest);
        }
        table->last[length] = source->bits[length] ? code - 1 : -1;
    }
    if (!dc) make_combined_lookups(table);
    table->made = true;
    return true;
}
#endif
