/* rng.c: see rng.h. */
#include "rng.h"

#include <math.h>

static inline uint32_t mul_hi_lo(uint32_t a, uint32_t b, uint32_t *hi) {
    uint64_t product = (uint64_t)a * b;
    *hi              = (uint32_t)(product >> 32);
    return (uint32_t)product;
}

void cr_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint32_t hi0, hi1;
        uint32_t lo0 = mul_hi_lo(0xD2511F53u, c0, &hi0);
        uint32_t lo1 = mul_hi_lo(0xCD9E8D57u, c2, &hi1);
        c0           = hi1 ^ c1 ^ k0;
        c1           = lo1;
        c2           = hi0 ^ c3 ^ k1;
        c3           = lo0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

struct cr_rng cr_rng_make(uint64_t seed, enum cr_rng_purpose purpose, uint64_t a, uint32_t b) {
    struct cr_rng rng = {.used = 4};
    rng.key[0]        = (uint32_t)seed;
    rng.key[1]        = (uint32_t)(seed >> 32) ^ ((uint32_t)purpose << 24); /* seeds below 2^56 never meet */
    rng.counter[0]    = 0;                                                 /* the draw */
    rng.counter[1]    = b;
    rng.counter[2]    = (uint32_t)a;
    rng.counter[3]    = (uint32_t)(a >> 32);
    return rng;
}

uint32_t cr_rng_u32(struct cr_rng *rng) {
    if (rng->used == 4) {
        cr_philox(rng->counter, rng->key, rng->block);
        rng->counter[0]++;
        rng->used = 0;
    }
    return rng->block[rng->used++];
}

double cr_rng_real(struct cr_rng *rng) {
    uint64_t hi = cr_rng_u32(rng), lo = cr_rng_u32(rng);
    return (double)(((hi << 32) | lo) >> 11) * 0x1p-53;
}

uint64_t cr_rng_below(struct cr_rng *rng, uint64_t limit) {
    uint64_t reject = (0 - limit) % limit; /* 2^64 mod limit: below it the low values would come up more often */
    for (;;) {
        uint64_t hi = cr_rng_u32(rng), x = (hi << 32) | cr_rng_u32(rng);
        if (x >= reject) return x % limit;
    }
}

/* Uniform in (0, 1]: never 0, so that its logarithm is finite. */
static inline float word_to_open_unit(uint32_t word) { return ((float)(word >> 8) + 1.0f) * 0x1p-24f; }

static float box_muller(uint32_t radius_word, uint32_t angle_word, int which) {
    float radius = sqrtf(-2.0f * logf(word_to_open_unit(radius_word)));
    float angle  = 6.28318530717958647692f * ((float)(angle_word >> 8) * 0x1p-24f);
    return radius * (which ? sinf(angle) : cosf(angle));
}

float cr_rng_normal(struct cr_rng *rng) {
    uint32_t a = cr_rng_u32(rng), b = cr_rng_u32(rng);
    return box_muller(a, b, 0);
}

static void init_words(uint64_t seed, uint32_t parameter, uint64_t element, uint32_t words[4]) {
    const uint32_t key[2]     = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint64_t       offset     = element / 4;
    const uint32_t counter[4] = {(uint32_t)offset, (uint32_t)(offset >> 32), parameter, CR_RNG_INIT};
    cr_philox(counter, key, words);
}

float cr_init_normal(uint64_t seed, uint32_t parameter, uint64_t element) {
    uint32_t words[4];
    init_words(seed, parameter, element, words);
    int pair = (int)(element % 4) / 2 * 2;
    return box_muller(words[pair], words[pair + 1], (int)(element % 2));
}

float cr_init_uniform(uint64_t seed, uint32_t parameter, uint64_t element) {
    uint32_t words[4];
    init_words(seed, parameter, element, words);
    return ((float)(words[element % 4] >> 8) + 0.5f) * 0x1p-23f - 1.0f;
}
