/* data/image/jpeg_huffman.c: builds the Huffman lookup tables of data/image/jpeg_baseline.c. */
#include "data/image/jpeg_huffman.h"

#if CR_JPEG_CAN_DECODE

/* The entry for a code of `length` bits; `rest` are the bits after the code that a lookup includes. */
static uint32_t make_entry(int symbol, int length, int rest) {
    int run = symbol >> 4, size = symbol & 15, seen = LOOKUP_BITS - length;
    if (size == 0 && run != 15) return (uint32_t)(KIND_END << KIND_SHIFT | length);
    if (size == 0) return (uint32_t)(KIND_VALUE << KIND_SHIFT | run << 8 | length); /* sixteen zeros */
    if (size > seen) return (uint32_t)size << 16 | (uint32_t)(KIND_SIZE << KIND_SHIFT | run << 8 | length);
    int value = extend(rest >> (seen - size), size);
    return (uint32_t)value << 16 | (uint32_t)(KIND_VALUE << KIND_SHIFT | run << 8 | (length + size));
}

/* Combines as many complete coefficients as one lookup includes. */
static void make_multi_lookups(struct code_table *table) {
    for (int i = 0; i < 1 << LOOKUP_BITS; i++) {
        int bits = 0, places = 0, end = 0;
        while (!end) {
            uint32_t entry = table->lookup[i << bits & ((1 << LOOKUP_BITS) - 1)];
            int      kind = (int)(entry >> KIND_SHIFT & 15), length = (int)(entry & 63);
            if ((kind != KIND_VALUE && kind != KIND_END) || length > LOOKUP_BITS - bits) break;
            end = kind == KIND_END ? MULTI_END : 0;
            bits += length;
            if (!end) places += (int)(entry >> 8 & 15) + 1;
        }
        table->multi[i] = (uint16_t)(places << 5 | end | bits);
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
    if (!dc) make_multi_lookups(table);
    table->made = true;
    return true;
}
#endif
