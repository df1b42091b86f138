/* device/cpu/tuned/conv/bf16/tile.c: sums of products in AMX's tiles.
 *
 * Two by two tiles of sums need four loads for four products, which the first cache delivers in half of the time of the
 * products. The instructions are written as assembly: compilers' intrinsics do not say that a load reads memory. */
#include "device/cpu/tuned/conv/bf16/bf16.h"

#include <string.h>

#if defined(__x86_64__)

#define LOAD(tile, at, pitch)                                                                                          \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(at), "r"((int64_t)(pitch)) : "memory")
#define STORE(tile, at, pitch)                                                                                         \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(at), "r"((int64_t)(pitch)) : "memory")
#define ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile : :)
#define MULTIPLY(sum, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sum : :)

enum { LINE = 64 /* bytes of a row of a tile */ };

void cr_bf16_begin(void) {
    struct {
        uint8_t  palette, start_row, reserved[14];
        uint16_t bytes[16];
        uint8_t  rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.bytes[i] = LINE;
        config.rows[i]  = CR_BF16_ROWS;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
}

void cr_bf16_end(void) {
    __asm__ volatile("tilerelease" : :);
}

static inline __attribute__((always_inline)) void sum_tiles(const struct cr_bf16_sum *s, const int tiles) {
    const int64_t   pitch = s->pixel * (int64_t)sizeof *s->x, second = CR_BF16_ROWS * s->pixel;
    const uint16_t *w = s->w;
    ZERO(0);
    ZERO(1);
    ZERO(2);
    ZERO(3);
    for (int64_t t = 0; t < s->taps; t++) {
        const uint16_t *x = s->x + s->tap[t], *const end = x + s->steps * CR_BF16_DEPTH;
        for (; x < end; x += CR_BF16_DEPTH, w += tiles * CR_BF16_TILE) {
            LOAD(4, x, pitch);
            LOAD(6, w, LINE);
            MULTIPLY(0, 4, 6);
            if (tiles == 2) {
                LOAD(7, w + CR_BF16_TILE, LINE);
                MULTIPLY(1, 4, 7);
            }
            LOAD(5, x + second, pitch);
            MULTIPLY(2, 5, 6);
            if (tiles == 2) MULTIPLY(3, 5, 7);
        }
    }
    const int64_t line = CR_BF16_PANEL * sizeof *s->to;
    float        *to   = s->to + CR_BF16_ROWS * CR_BF16_PANEL;
    STORE(0, s->to, line);
    if (tiles == 2) STORE(1, s->to + CR_BF16_ROWS, line);
    STORE(2, to, line);
    if (tiles == 2) STORE(3, to + CR_BF16_ROWS, line);
}

void cr_bf16_sum(const struct cr_bf16_sum *sum) {
    if (sum->tiles == 2)
        sum_tiles(sum, 2);
    else
        sum_tiles(sum, 1);
}

static inline __attribute__((always_inline)) void multiply(const struct cr_bf16_products *m, const int na,
                                                           const int nb) {
    enum { SUMS = CR_BF16_ROWS * CR_BF16_ROWS };
    const int64_t pitch = m->pitch * (int64_t)sizeof *m->a[0], end = m->steps * CR_BF16_DEPTH;
    ZERO(0);
    ZERO(1);
    ZERO(2);
    ZERO(3);
    for (int64_t i = 0; i < end; i += CR_BF16_DEPTH) {
        LOAD(7, m->b[0] + i * CR_BF16_ROWS, LINE);
        if (nb == 2) LOAD(6, m->b[1] + i * CR_BF16_ROWS, LINE);
        LOAD(4, m->a[0] + i, pitch);
        MULTIPLY(0, 4, 7);
        if (nb == 2) {
            MULTIPLY(1, 4, 6);
            if (na == 1) continue;
            LOAD(5, m->a[1] + i, pitch);
            MULTIPLY(2, 5, 7);
            MULTIPLY(3, 5, 6);
            continue;
        }
        if (na > 1) {
            LOAD(5, m->a[1] + i, pitch);
            MULTIPLY(1, 5, 7);
        }
        if (na > 2) {
            LOAD(6, m->a[2] + i, pitch);
            MULTIPLY(2, 6, 7);
        }
        if (na > 3) {
            LOAD(4, m->a[3] + i, pitch);
            MULTIPLY(3, 4, 7);
        }
    }
    STORE(0, m->to, LINE);
    STORE(1, m->to + SUMS, LINE);
    STORE(2, m->to + 2 * SUMS, LINE);
    STORE(3, m->to + 3 * SUMS, LINE);
}

void cr_bf16_multiply(const struct cr_bf16_products *products) {
    switch (products->nb * 4 + products->na) {
    case 5: multiply(products, 1, 1); return;
    case 6: multiply(products, 2, 1); return;
    case 7: multiply(products, 3, 1); return;
    case 8: multiply(products, 4, 1); return;
    case 9: multiply(products, 1, 2); return;
    default: multiply(products, 2, 2); return;
    }
}

#endif
