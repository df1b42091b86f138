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
    LOOKUP_BITS   = 11, /* bits of a table lookup */
    SKIP_BITS     = 18, /* the most bits that a lookup of code_table.multi skips */
    REFILLED_BITS = 56,
    KIND_SHIFT    = 12,
};

/* Entries of lookup tables. The low six bits are the bits to skip, because shifts use six bits of a register.
 *   - lookup, one coefficient: value or size << 16 | kind << 12 | run << 8 | bits
 *   - pair, up to two coefficients: value 2 << 24 | value 1 << 16 | PAIR_END | steps << 10 | run << 6 | bits. `steps`
 *     is the distance of the second coefficient from the first, 0 if there is no second.
 *   - multi, as many coefficients as fit, for skipped blocks: places << 7 | MULTI_END | bits. The extra bits of the
 *     last coefficient may lie beyond the lookup.
 * The flags mean that the block ends after the coefficients; with 0 bits they mean that no coefficient fits. */
enum { PAIR_END = 1 << 15, MULTI_END = 1 << 6, MULTI_SHIFT = 7, BITS_MASK = 63 };
enum kind {
    KIND_VALUE, /* a complete coefficient */
    KIND_END,   /* the end of the block */
    KIND_SIZE,  /* the extra bits lie beyond the lookup */
    KIND_LONG   /* the code is longer than the lookup */
};

struct code_table {
    bool     made;
    uint8_t  bits[17], symbol[256]; /* as in the file */
    uint32_t lookup[1 << LOOKUP_BITS], pair[1 << LOOKUP_BITS];
    uint16_t multi[1 << LOOKUP_BITS];
    int32_t  last[18], offset[18]; /* per code length: the largest code (-1: none), symbol index minus the first code */
};
struct cr_jpeg_tables {
    struct code_table dc[NUM_HUFF_TBLS], ac[NUM_HUFF_TBLS];
};

/* Fills the table from the code lengths and symbols of the file; a table that has them already stays as it is. `dc`: a
 * table of DC values, whose symbols are sizes of 0 to 11 bits. False: the table is missing or invalid. */
bool cr_jpeg_make_table(const JHUFF_TBL *source, bool dc, struct code_table *table);

/* The place of each coefficient in zigzag order in a block of cr_jpeg_block. The coefficients of a damaged block that
 * lie beyond the end get the last place. */
static const uint8_t place[64 + 16] = {0,  1,  48, 16, 49, 2,  3,  50, 17, 56, 8,  57, 18, 51, 4,  5,  52, 19, 58, 9,
                                       40, 24, 41, 10, 59, 20, 53, 6,  7,  54, 21, 60, 11, 42, 25, 32, 33, 26, 43, 12,
                                       61, 22, 55, 23, 62, 13, 44, 27, 34, 35, 28, 45, 14, 63, 15, 46, 29, 36, 37, 30,
                                       47, 31, 38, 39, 39, 39, 39, 39, 39, 39, 39, 39, 39, 39, 39, 39, 39, 39, 39, 39};

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

/* Reads one coefficient, at index *k or after a run of zeros, or the end of the block. */
enum read_result { READ_VALUE, READ_END, READ_INVALID };
CR_JPEG_TARGET static inline __attribute__((always_inline)) enum read_result
read_one(struct reader *r, const struct code_table *table, int16_t *block, const bool store, int *k) {
    refill(r);
    uint32_t entry = table->lookup[r->bits >> (64 - LOOKUP_BITS)];
    int      kind = (int)(entry >> KIND_SHIFT & 15), value = (int32_t)entry >> 16, run = (int)(entry >> 8 & 15);
    if (kind == KIND_LONG) {
        int symbol = long_code(r->bits, table);
        if (symbol < 0) return READ_INVALID;
        skip_bits(r, symbol >> 8);
        run   = symbol >> 4 & 15;
        value = symbol & 15;
        if (!value && run != 15) return READ_END;
    } else
        skip_bits(r, entry & BITS_MASK);
    if (kind == KIND_END) return READ_END;
    if (kind != KIND_VALUE && value) {
        int size = value;
        value    = extend(read_bits(r, size), size);
    }
    *k += run;
    if (store) block[place[*k]] = (int16_t)value;
    (*k)++;
    return READ_VALUE;
}

/* Reads the 63 AC coefficients of a block into `block`, or skips them if `store` is false; *last is at least the index
 * of the last one, and 0 if there is none. A lookup consumes at most LOOKUP_BITS or SKIP_BITS bits, so the reader is
 * refilled once for several lookups. */
CR_JPEG_TARGET static inline __attribute__((always_inline)) bool
read_ac(struct reader *reader, const struct code_table *table, int16_t *block, const bool store, int *last) {
    struct reader r = *reader; /* a copy that stays in registers */
    int           k = 1;
    for (;;) {
        refill(&r);
        for (int left = REFILLED_BITS / (store ? LOOKUP_BITS : SKIP_BITS); left > 0; left--) {
            size_t   at    = r.bits >> (64 - LOOKUP_BITS);
            uint32_t entry = store ? table->pair[at] : table->multi[at];
            int      first = store ? k + (int)(entry >> 6 & 15) : k;
            int      next  = store ? first + (int)(entry >> 10 & 31) + 1 : k + (int)(entry >> MULTI_SHIFT);
            if (next > 63) goto one; /* the coefficients may belong to the next block in part */
            skip_bits(&r, entry & BITS_MASK);
            if (store) {
                block[place[next - 1]] = (int16_t)((int32_t)entry >> 24);
                block[place[first]]    = (int8_t)(entry >> 16);
            }
            if (entry & (store ? PAIR_END : MULTI_END)) {
                if (!(entry & BITS_MASK)) goto one;
                if (k > 1 || entry >> (store ? 16 : MULTI_SHIFT)) k = next;
                goto done;
            }
            k = next;
        }
        continue;
    one:
        switch (read_one(&r, table, block, store, &k)) {
        case READ_INVALID: return false;
        case READ_END: goto done;
        case READ_VALUE:
            if (k >= 64) goto done;
        }
    }
done:
    *reader = r;
    *last   = k - 1;
    return k <= 64;
}

#endif

#endif
