/* pruning/regrow.c: mask updates of RigL: drops weights by magnitude, grows weights by gradient. See
 * pruning/pruning.h. */
#include "pruning/pruning.h"

#include <math.h>
#include <string.h>

enum { DIGIT_BITS = 16, DIGITS = 1 << DIGIT_BITS };

struct layer {
    const float *score; /* of its first element */
    uint8_t     *bits;  /* of its first element: parameters start at a byte of the mask */
    int64_t      elems;
};

/* An integer that increases with the magnitude. */
static uint32_t key_of(float score) {
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    return bits & 0x7fffffffu;
}

/* The digit in which the `count`-th largest key lies, among elements whose bit is `on` and, at level 1, whose high
 * digit is `high`. Reduces *count by the elements above. */
static uint32_t find_digit(const struct layer *a, bool on, int level, uint32_t high, int64_t *count, int64_t *sum) {
    memset(sum, 0, DIGITS * sizeof *sum);
    for (int64_t i = 0; i < a->elems; i++) {
        const uint32_t key = key_of(a->score[i]);
        if (cr_mask_bit(a->bits, i) != on || (level && key >> DIGIT_BITS != high)) continue;
        sum[level ? key % DIGITS : key >> DIGIT_BITS]++;
    }
    uint32_t d = DIGITS - 1;
    for (; d > 0 && sum[d] < *count; d--) *count -= sum[d];
    return d;
}

/* Flips the bits of elements whose bit is `on`: those of the `count` largest scores, or of all others. */
static void flip(const struct layer *a, bool on, int64_t count, bool largest, int64_t *sum) {
    const bool     none = count == 0;
    int64_t        left = count;
    const uint32_t high = find_digit(a, on, 0, 0, &left, sum), low = find_digit(a, on, 1, high, &left, sum);
    const uint32_t limit = high << DIGIT_BITS | low;
    for (int64_t i = 0; i < a->elems; i++) {
        if (cr_mask_bit(a->bits, i) != on) continue;
        const uint32_t key    = key_of(a->score[i]);
        bool           chosen = !none && (key > limit || (key == limit && left > 0));
        if (!none && key == limit) left--;
        if (chosen == largest) cr_mask_set(a->bits, i, !on);
    }
}

/* Sets the weights that the mask of `bits` has and the one of `before` has not to 0; returns their number. */
static int64_t clear_new(const struct layer *a, const uint8_t *before, int64_t offset, float *value,
                         float *const *moments, int moment_count) {
    int64_t count = 0;
    for (int64_t i = 0; i < a->elems; i++) {
        if (!cr_mask_bit(a->bits, i) || cr_mask_bit(before, i)) continue;
        value[offset + i] = 0;
        for (int k = 0; k < moment_count; k++)
            if (moments[k]) moments[k][offset + i] = 0;
        count++;
    }
    return count;
}

cr_status cr_prune_move(struct cr_prune *prune, double fraction, const float *grad, float *value, float *const *moments,
                        int moment_count, uint8_t *mask, int64_t *moved) {
    const size_t bytes  = (size_t)prune->store->value_elems / 8;
    uint8_t     *before = cr_alloc(bytes, 1);
    int64_t     *sum    = cr_alloc(DIGITS, sizeof *sum);
    *moved              = 0;
    if (!before || !sum) {
        cr_free(before);
        cr_free(sum);
        return CR_NO_MEMORY(bytes + DIGITS * sizeof *sum);
    }
    memcpy(before, mask, bytes);
    for (int l = 0; l < prune->layers; l++) {
        const struct cr_param *q = &prune->store->param[prune->layer[l].param];
        struct layer           a = {.score = value + q->offset, .bits = mask + q->offset / 8, .elems = q->elems};
        const int64_t ones = q->elems - cr_prune_count(q, mask), drop = (int64_t)floor((double)ones * fraction);
        if (prune->layer[l].dense || !drop) continue;
        flip(&a, true, ones - drop, false, sum);
        a.score = grad + q->offset;
        flip(&a, false, drop, true, sum);
        *moved += clear_new(&a, before + q->offset / 8, q->offset, value, moments, moment_count);
    }
    cr_prune_zero(prune->store, mask, value);
    for (int k = 0; k < moment_count; k++)
        if (moments[k]) cr_prune_zero(prune->store, mask, moments[k]);
    cr_prune_recount(prune, mask);
    cr_free(before);
    cr_free(sum);
    return CR_OK;
}
