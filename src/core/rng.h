/* core/rng.h: counter-based random numbers (the seeded generator), Philox4x32-10 (Salmon et al., SC'11), as in cuRAND.
 * Every number is a function of (seed, stream, index); there is no hidden state to save. */
#ifndef CR_RNG_H
#define CR_RNG_H

#include <stdint.h>

/* Computes one block: four 32-bit words from a 128-bit counter and a 64-bit key (the seed, low word first). */
void cr_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* The purpose is part of the stream's key, so that different uses of one seed are independent. */
enum cr_rng_purpose {
    CR_RNG_INIT      = 1,
    CR_RNG_ORDER     = 2,
    CR_RNG_AUGMENT   = 3,
    CR_RNG_SHAPES    = 4,
    CR_RNG_SYNTHETIC = 5,
    CR_RNG_TEST      = 6,
    CR_RNG_SEARCH    = 7,
    CR_RNG_COLOUR    = 8,
    CR_RNG_MIX       = 9,
    CR_RNG_DROP      = 10,
    CR_RNG_MASK      = 11,
    CR_RNG_FLIP      = 12
};

/* A sequential reader of the stream (seed, purpose, a, b). Plain data: may be copied. */
struct cr_rng {
    uint32_t counter[4], key[2], block[4];
    int      used;
};
struct cr_rng cr_rng_make(uint64_t seed, enum cr_rng_purpose purpose, uint64_t a, uint32_t b);
uint32_t      cr_rng_u32(struct cr_rng *rng);
double        cr_rng_real(struct cr_rng *rng);                  /* uniform in [0, 1), 53 bits (two words) */
uint64_t      cr_rng_below(struct cr_rng *rng, uint64_t limit); /* uniform in [0, limit), unbiased, limit >= 1 */
float         cr_rng_normal(struct cr_rng *rng);                /* standard normal, Box-Muller, two words per number */

/* Word `index` of the stream (seed, purpose, a, b): the index-th result of cr_rng_u32. index < 2^34. */
uint32_t cr_rng_word(uint64_t seed, enum cr_rng_purpose purpose, uint64_t a, uint32_t b, uint64_t index);

/* Initial weights: standard normal and uniform in (-1, 1), for element `element` (index in OIHW order) of parameter
 * `parameter`. Element e uses counter (e/4, parameter) and word pair (e%4)/2 of its four words. The GPU uses the same
 * words and formulas: results agree within 4 ulp (guaranteed); they are bitwise identical in all tests. */
float cr_init_normal(uint64_t seed, uint32_t parameter, uint64_t element);
float cr_init_uniform(uint64_t seed, uint32_t parameter, uint64_t element);

#endif
