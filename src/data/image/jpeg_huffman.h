/* data/image/jpeg_huffman.h: Huffman tables and the bit reader of data/image/jpeg_baseline.c. The functions that decode
 * coefficients are inline because they are the inner loop of the decoder. */
#ifndef CR_JPEG_HUFFMAN_H
#define CR_JPEG_HUFFMAN_H

#include "data/image/jpeg.h"

#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

/* libjpeg and old versions of libjpeg-turbo upsample some images differently; with them libjpeg decodes all images. */
#if defined(__x86_64__) && defined(LIBJPEG_TURBO_VERSION_NUMBER)
#define CR_JPEG_CAN_DECODE (LIBJPEG_TURBO_VERSION_NUMBER >= 2001000)
#else
#define CR_JPEG_CAN_DECODE 0
#endif

#if CR_JPEG_CAN_DECODE

#define CR_JPEG_TARGET __attribute__((target("avx2,bmi,bmi2")))

enum {
    LOOKUP_BITS        = 11,               /* bits of a table lookup */
    LOOKUPS_PER_REFILL = 56 / LOOKUP_BITS, /* lookups that the bits of a refilled reader are sufficient for */
    KIND_SHIFT         = 12,
};

/* An entry of a lookup table: value or size << 16 | kind << 12 | run << 8 | bits to skip. */
enum { MULTI_END = 16, MULTI_BITS = 15 }; /* flag and mask of an entry of code_table.multi */
enum kind {
    KIND_VALUE, /* a complete coefficient */
    KIND_END,   /* the end of the block */
    KIND_SIZE,  /* the extra bits lie beyond the lookup */
    KIND_LONG   /* the code is longer than the lookup */
};

struct code_table {
    bool     made;
    uint8_t  bits[17], symbol[256]; /* as in the file */
    uint32_t lookup[1 << LOOKUP_BITS];
    /* Several coefficients per lookup, for skipped blocks: coefficients << 5 | MULTI_END | bits; 0: none fits. */
    uint16_t multi[1 << LOOKUP_BITS];
    int32_t  last[18], offset[18]; /* per code length: the largest code (-1: none), symbol index minus the first code */
};
struct cr_jpeg_tables {
    struct code_table dc[NUM_HUFF_TBLS], ac[NUM_HUFF_TBLS];
};

/* Fills the table from the code lengths and symbols of the file; a table that has them already stays as it is. `dc`: a
 * table of DC values, whose symbols are sizes of 0 to 11 bits. False: the table is missing or invalid. */
bool cr_jpeg_make_table(const JHUFF_TBL *source, bool dc, struct code_table *table);

/* The position in the block of each coefficient in zigzag order; a damaged run beyond the end writes the last
 * position. */
static const uint8_t natural[64 + 16] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13,
    6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31,
    39, 46, 53, 60, 61, 54, 47, 55, 62, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63};

/* The value of `size` extra bits: the lower half of their range stands for negative numbers. */
static inline int extend(int bits, int size) {
    return bits < 1 << (size - 1) ? bits - (1 << size) + 1 : bits;
}

/* ---- reading bits ---- */

struct reader {
    uint64_t       bits;  /* the next bits, from the top */
    int            count; /* number of valid bits */
    const uint8_t *at;    /* the byte after them */
};

CR_JPEG_TARGET static inline void refill(struct reader *r) {
    uint64_t word;
    memcpy(&word, r->at, 8);
    r->bits |= __builtin_bswap64(word) >> r->count;
    r->at += (63 - r->count) >> 3;
    r->count |= 56;
}
CR_JPEG_TARGET static inline void skip_bits(struct reader *r, int count) {
    r->bits <<= count;
    r->count -= count;
}
CR_JPEG_TARGET static inline int read_bits(struct reader *r, int count) {
    int value = (int)(r->bits >> (64 - count));
    skip_bits(r, count);
    return value;
}

/* The code at the top of `bits`, which is longer than a lookup: its length << 8 | symbol, or -1 if it is invalid. */
static inline int long_code(uint64_t bits, const struct code_table *table) {
    int top = (int)(bits >> 48);
    for (int length = LOOKUP_BITS + 1; length <= 16; length++) {
        int code = top >> (16 - length);
        if (code <= table->last[length]) return length << 8 | table->symbol[(code + table->offset[length]) & 255];
    }
    return -1;
}

/* Reads the difference of a DC value; false: the code is invalid. */
CR_JPEG_TARGET static inline bool read_dc(struct reader *r, const struct code_table *table, int *value) {
    refill(r);
    uint32_t entry = table->lookup[r->bits >> (64 - LOOKUP_BITS)];
    int      size;
    switch (entry >> KIND_SHIFT & 15) {
    case KIND_VALUE:
        skip_bits(r, entry & 255);
        *value = (int32_t)entry >> 16;
        return true;
    case KIND_SIZE:
        skip_bits(r, entry & 255);
        size = (int)(entry >> 16);
        break;
    default:
        size = long_code(r->bits, table);
        if (size < 0) return false;
        skip_bits(r, size >> 8);
        size &= 255;
    }
    *value = size ? extend(read_bits(r, size), size) : 0;
    return true;
}

/* Reads the 63 AC coefficients of a block into `block`, or skips them if `store` is false; *last is the index of the
 * last one. A lookup consumes at most LOOKUP_BITS bits, so the reader is refilled once for several lookups. */
CR_JPEG_TARGET static inline __attribute__((always_inline)) bool
read_ac(struct reader *reader, const struct code_table *table, int16_t *block, const bool store, int *last) {
    struct reader r = *reader; /* a copy that stays in registers */
    int           k = 1, end = 0;
    while (k < 64) {
        refill(&r);
        for (int lookups = 0; lookups < LOOKUPS_PER_REFILL && k < 64; lookups++) {
            uint32_t multi = store ? 0 : table->multi[r.bits >> (64 - LOOKUP_BITS)];
            if (!store && multi && k + (int)(multi >> 5) < 64) {
                skip_bits(&r, multi & MULTI_BITS);
                k += (int)(multi >> 5);
                if (multi & MULTI_END) goto done;
                continue;
            }
            uint32_t entry = table->lookup[r.bits >> (64 - LOOKUP_BITS)];
            int      kind = (int)(entry >> KIND_SHIFT & 15), value = (int32_t)entry >> 16, run = (int)(entry >> 8 & 15);
            if (kind == KIND_VALUE) {
                skip_bits(&r, entry & 63);
            } else if (kind == KIND_END) {
                skip_bits(&r, entry & 63);
                goto done;
            } else {
                int size = value;
                refill(&r);
                if (kind == KIND_SIZE)
                    skip_bits(&r, entry & 63);
                else {
                    int symbol = long_code(r.bits, table);
                    if (symbol < 0) return false;
                    skip_bits(&r, symbol >> 8);
                    run  = symbol >> 4 & 15;
                    size = symbol & 15;
                    if (!size && run != 15) goto done;
                }
                value   = size ? extend(read_bits(&r, size), size) : 0;
                lookups = LOOKUPS_PER_REFILL; /* refill */
            }
            k += run;
            if (store) block[natural[k]] = (int16_t)value;
            end = k++;
        }
    }
done:
    *reader = r;
    *last   = end;
    return k <= 64;
}

#endif

#endif
