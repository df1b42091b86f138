/* core/rng.c: Philox4x32-10, uniform and normal numbers, initial weights; see core/rng.h. */
#include "core/rng.h"

#include <math.h>
#include <string.h>

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
    /* counter[0] is the index of the draw; the keys differ for seeds below 2^56 */
    return (struct cr_rng){.key     = {(uint32_t)seed, (uint32_t)(seed >> 32) ^ ((uint32_t)purpose << 24)},
                           .counter = {0, b, (uint32_t)a, (uint32_t)(a >> 32)},
                           .used    = 4};
}

uint32_t cr_rng_u32(struct cr_rng *rng) {
    if (rng->used == 4) {
        cr_philox(rng->counter, rng->key, rng->block);
        rng->counter[0]++;
        rng->used = 0;
    }
    return rng->block[rng->used++];
}

uint32_t cr_rng_word(uint64_t seed, enum cr_rng_purpose purpose, uint64_t a, uint32_t b, uint64_t index) {
    struct cr_rng rng = cr_rng_make(seed, purpose, a, b);
    rng.counter[0]    = (uint32_t)(index / 4);
    cr_philox(rng.counter, rng.key, rng.block);
    return rng.block[index % 4];
}

double cr_rng_real(struct cr_rng *rng) {
    uint64_t hi = cr_rng_u32(rng), lo = cr_rng_u32(rng);
    return (double)(((hi << 32) | lo) >> 11) * 0x1p-53;
}

uint64_t cr_rng_below(struct cr_rng *rng, uint64_t limit) {
    uint64_t reject = (0 - limit) % limit; /* 2^64 mod limit: values below it are rejected to avoid bias */
    for (;;) {
        uint64_t hi = cr_rng_u32(rng), x = (hi << 32) | cr_rng_u32(rng);
        if (x >= reject) return x % limit;
    }
}

/* Uniform in (0, 1]: never 0, so that its logarithm is finite. */
static inline float word_to_open_unit(uint32_t word) {
    return ((float)(word >> 8) + 1.0f) * 0x1p-24f;
}

/* log, sin and cos in double, rounded once to float: the same values with every C library, and on the GPU
 * (cuda/train/init.cu has the same polynomials; the functions of C libraries and of CUDA have errors of up to 1 and 2
 * ulp). */
static inline double polynomial(const double *c, int terms, double x) {
    double sum = c[terms - 1];
    for (int i = terms - 2; i >= 0; i--) sum = sum * x + c[i];
    return sum;
}

/* log of a float in (0, 1]: x = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)). */
static float log_of(float x) {
    static const double c[] = {0x1.0000000034ca3p+0,  -0x1.0000001a7f017p-1, 0x1.555553aa0f980p-2,
                               -0x1.ffffaae30d483p-3, 0x1.999a7d48c0d3ap-3,  -0x1.5568d22fe6100p-3,
                               0x1.24883dada0a00p-3,  -0x1.fc599187f3b0ep-4, 0x1.c44f7ad7d524cp-4,
                               -0x1.be62fe319e0dfp-4, 0x1.b3ac3b074d2bbp-4,  -0x1.dee09d025c21ap-5};
    uint32_t            bits;
    memcpy(&bits, &x, sizeof bits);
    const int32_t whole = ((int32_t)bits - 0x3f3504f3 - 0x007fffff) / 0x00800000; /* rounded down: never above 0 */
    bits -= (uint32_t)whole * 0x00800000u;
    memcpy(&x, &bits, sizeof x);
    const double f = (double)x - 1.0;
    return (float)(whole * 0x1.62e42fefa39efp-1 + f * polynomial(c, 12, f));
}

/* sin(a + quarters pi/2) of a float in [0, 2 pi]: a = q pi/2 + r with |r| <= pi/4. */
static float sine_of(float a, int quarters) {
    static const double even[] = {0x1.ffffffff97859p-1, -0x1.ffffffbdd5162p-2, 0x1.55553a80e36e4p-5,
                                  -0x1.6c07840b6086dp-10, 0x1.990692c59fc3ap-16};
    static const double odd[]  = {0x1.fffffffff67c2p-1, -0x1.5555554948073p-3, 0x1.1111074b2d8c8p-7,
                                  -0x1.a00ee7e21e29fp-13, 0x1.6cb7488e7e88fp-19};
    const int           q      = (int)((double)a * 0x1.45f306dc9c883p-1 + 0.5);
    const double        r      = ((double)a - q * 0x1.921fb544p+0) - q * 0x1.0b4611a626331p-34,
                 square        = r * r; /* pi/2 in two parts */
    const int   turn           = q + quarters;
    const float value = turn & 1 ? (float)polynomial(even, 5, square) : (float)(r * polynomial(odd, 5, square));
    return turn & 2 ? -value : value;
}

static float box_muller(uint32_t radius_word, uint32_t angle_word, int which) {
    float radius = sqrtf(-2.0f * log_of(word_to_open_unit(radius_word)));
    float angle  = 6.28318530717958647692f * ((float)(angle_word >> 8) * 0x1p-24f);
    return radius * sine_of(angle, which ? 0 : 1);
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
