/* core/rng.h: counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11), the generator of cuRAND.
 * Every draw is a function of (seed, stream, index); there is no hidden state to save. */
#ifndef CR_RNG_H
#define CR_RNG_H

#include <stdint.h>

/* One block: four 32-bit words from a 128-bit counter and a 64-bit key (the seed, low word first). */
void cr_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Streams keep purposes apart. */
enum cr_rng_purpose {
    CR_RNG_INIT      = 1,
    CR_RNG_ORDER     = 2,
    CR_RNG_AUGMENT   = 3,
    CR_RNG_SHAPES    = 4,
    CR_RNG_SYNTHETIC = 5,
    CR_RNG_TEST      = 6,
    CR_RNG_SEARCH    = 7,
    CR_RNG_COLOUR    = 8,
    CR_RNG_MIX       = 9
};

/* A reader over one stream: (seed, purpose, a, b) name it, the draws come in order. Plain data. */
struct cr_rng {
    uint32_t counter[4], key[2], block[4];
    int      used;
};
struct cr_rng cr_rng_make(uint64_t seed, enum cr_rng_purpose purpose, uint64_t a, uint32_t b);
uint32_t      cr_rng_u32(struct cr_rng *rng);
double        cr_rng_real(struct cr_rng *rng);                  /* uniform in [0, 1), 53 bits (two words) */
uint64_t      cr_rng_below(struct cr_rng *rng, uint64_t limit); /* uniform in [0, limit), unbiased, limit >= 1 */
float         cr_rng_normal(struct cr_rng *rng);                /* Box-Muller, two words a draw */

/* Initial weights: normal (0, 1) and uniform (-1, 1) of element `element` (index in OIHW order) of parameter number
 * `parameter`. Element e uses counter (e/4, parameter) and of its four words the pair (e%4)/2. The GPU draws the same
 * words and, by the same formulas, the same values: within 4 ulp is the promise, equal to the bit what is seen. */
float cr_init_normal(uint64_t seed, uint32_t parameter, uint64_t element);
float cr_init_uniform(uint64_t seed, uint32_t parameter, uint64_t element);

#endif
