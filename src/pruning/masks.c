/* pruning/masks.c: computes pruning masks by magnitude (unstructured, 2:4, block, channel). See pruning/pruning.h. */
#include "config/config.h"
#include "pruning/pruning.h"

#include <math.h>
#include <string.h>

/* ---- units of a layer ---- */

struct units {
    int64_t count, elems; /* elements in each */
    /* Pattern block: a unit has rows of `inputs` elements at a distance of `filter` elements. `across` units lie side
     * by side in a filter; the next group of units begins `group` elements later. */
    int64_t filter, inputs, across, group;
    bool    contiguous; /* the elements of a unit are contiguous */
};

static struct units units_of(const struct cr_prune *prune, const struct cr_param *q) {
    const int64_t filter = q->dim[1] * q->dim[2] * q->dim[3];
    int64_t       outputs, inputs;
    switch (prune->config->prune.pattern) {
    case CR_PRUNE_PATTERN_BLOCK:
        CR_ASSERT(cr_config_block(prune->config, &outputs, &inputs));
        return (struct units){.count  = q->elems / (outputs * inputs),
                              .elems  = outputs * inputs,
                              .filter = filter,
                              .inputs = inputs,
                              .across = filter / inputs,
                              .group  = outputs * filter};
    case CR_PRUNE_PATTERN_CHANNEL: return (struct units){.count = q->dim[0], .elems = filter, .contiguous = true};
    default: return (struct units){.count = q->elems, .elems = 1, .contiguous = true};
    }
}

static int64_t unit_element(const struct units *units, int64_t u, int64_t i) {
    if (units->contiguous) return u * units->elems + i;
    return u / units->across * units->group + u % units->across * units->inputs + i / units->inputs * units->filter +
           i % units->inputs;
}

/* ---- keys ---- */

/* A key is an integer that increases with the magnitude. KEY_PRUNED: the unit was pruned before. KEY_NEVER: the unit is
 * never pruned. */
enum { KEY_PRUNED = 0 };
#define KEY_NEVER UINT32_MAX

static uint32_t key_of(float magnitude) {
    uint32_t bits;
    memcpy(&bits, &magnitude, sizeof bits);
    return (bits & 0x7fffffffu) + 1; /* NaN is above infinity, so it is not pruned and stays visible */
}

static uint32_t unit_key(const struct units *units, int64_t u, const float *value, const uint8_t *mask,
                         int64_t offset) {
    double sum = 0;
    bool   any = false;
    for (int64_t i = 0; i < units->elems; i++) {
        const int64_t at = offset + unit_element(units, u, i);
        sum += fabs((double)value[at]);
        any |= cr_mask_bit(mask, at);
    }
    return any ? key_of((float)(sum / (double)units->elems)) : KEY_PRUNED;
}

/* The same for units of one element. `mask` starts with their bits: every parameter starts at a byte of the mask. */
static void element_keys(const float *value, const uint8_t *mask, int64_t count, uint32_t *key) {
    for (int64_t i = 0; i < count; i += 8)
        for (int64_t j = i; j < CR_MIN(i + 8, count); j++)
            key[j] = mask[i / 8] >> (j - i) & 1 ? key_of(value[j]) : KEY_PRUNED;
}

/* The two largest of every four elements are never pruned. */
static void keep_two_of_four(uint32_t *key, int64_t count) {
    for (int64_t i = 0; i < count; i += 4) {
        bool keep[4];
        for (int a = 0; a < 4; a++) {
            int smaller = 0;
            for (int b = 0; b < 4; b++) smaller += key[i + b] < key[i + a] || (key[i + b] == key[i + a] && b < a);
            keep[a] = smaller >= 2;
        }
        for (int a = 0; a < 4; a++)
            if (keep[a] && key[i + a] != KEY_PRUNED) key[i + a] = KEY_NEVER;
    }
}

static void keep_largest(uint32_t *key, int64_t count) {
    int64_t largest = 0;
    for (int64_t i = 1; i < count; i++)
        if (key[i] >= key[largest]) largest = i;
    if (key[largest] != KEY_PRUNED) key[largest] = KEY_NEVER;
}

static cr_status make_keys(const struct cr_prune *prune, const struct cr_param *q, const float *value,
                           const uint8_t *mask, uint32_t **out) {
    const struct units units = units_of(prune, q);
    uint32_t          *key;
    CR_ALLOC(key, (size_t)units.count);
    if (units.elems == 1) element_keys(value + q->offset, mask + q->offset / 8, q->elems, key);
    for (int64_t u = 0; u < units.count && units.elems > 1; u++) key[u] = unit_key(&units, u, value, mask, q->offset);
    if (prune->config->prune.pattern == CR_PRUNE_PATTERN_2_4)
        keep_two_of_four(key, units.count);
    else
        keep_largest(key, units.count);
    *out = key;
    return CR_OK;
}

/* ---- the smallest units ---- */

struct choice {
    struct cr_prune *prune;
    uint32_t       **key;        /* [layers]; NULL for layers that stay dense */
    int              first, end; /* layers with a common target */
};

enum { DIGIT_BITS = 16, DIGITS = 1 << DIGIT_BITS };

/* Histogram of elements by one digit of the keys: the high digit at level 0; at level 1 the low digit of the units
 * whose high digit is `high`. */
static void count_digits(const struct choice *c, int level, uint32_t high, int64_t sum[DIGITS]) {
    memset(sum, 0, DIGITS * sizeof *sum);
    for (int l = c->first; l < c->end; l++) {
        if (!c->key[l]) continue;
        const struct units units = units_of(c->prune, &c->prune->store->param[c->prune->layer[l].param]);
        for (int64_t u = 0; u < units.count; u++) {
            const uint32_t key = c->key[l][u];
            if (key == KEY_NEVER || (level && key >> DIGIT_BITS != high)) continue;
            sum[level ? key % DIGITS : key >> DIGIT_BITS] += units.elems;
        }
    }
}

/* Subtracts the counts of the lowest digits from *left while they fit. Returns the first digit that does not fit, or
 * DIGITS. */
static uint32_t find_digit(const int64_t sum[DIGITS], int64_t *left) {
    uint32_t d = 0;
    for (; d < DIGITS && sum[d] <= *left; d++) *left -= sum[d];
    return d;
}

/* Prunes all units with a key below `limit`, and units with the key `limit` up to `left` elements. */
static void prune_below(const struct choice *c, uint64_t limit, int64_t left, uint8_t *mask) {
    for (int l = c->first; l < c->end; l++) {
        if (!c->key[l]) continue;
        const struct cr_param *q     = &c->prune->store->param[c->prune->layer[l].param];
        const struct units     units = units_of(c->prune, q);
        for (int64_t u = 0; u < units.count; u++) {
            const uint32_t key = c->key[l][u];
            if (key == KEY_NEVER || key > limit) continue;
            if (key == limit) {
                left = left < units.elems ? 0 : left; /* stop at the first unit that does not fit */
                if (!left) continue;
                left -= units.elems;
            }
            for (int64_t i = 0; i < units.elems; i++) cr_mask_set(mask, q->offset + unit_element(&units, u, i), false);
        }
    }
}

static cr_status choose(const struct choice *c, int64_t target, uint8_t *mask) {
    int64_t *sum, left = target;
    CR_ALLOC(sum, DIGITS);
    count_digits(c, 0, 0, sum);
    const uint32_t high  = find_digit(sum, &left);
    uint64_t       limit = UINT32_MAX; /* only KEY_NEVER, which is not pruned, has this value */
    if (high < DIGITS) {
        count_digits(c, 1, high, sum);
        const uint32_t low = find_digit(sum, &left);
        CR_ASSERT(low < DIGITS);
        limit = (uint64_t)high << DIGIT_BITS | low;
    }
    cr_free(sum);
    prune_below(c, limit, left, mask);
    return CR_OK;
}

/* ---- all layers ---- */

static const uint8_t ones_of[16] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};

int64_t cr_prune_count(const struct cr_param *q, const uint8_t *mask) {
    const uint8_t *bits = mask + q->offset / 8;
    int64_t        left = 0;
    for (int64_t i = 0; i < q->elems / 8; i++) left += ones_of[bits[i] & 15] + ones_of[bits[i] >> 4];
    for (int64_t i = q->elems / 8 * 8; i < q->elems; i++) left += cr_mask_bit(mask, q->offset + i);
    return q->elems - left;
}

void cr_prune_recount(struct cr_prune *prune, const uint8_t *mask) {
    prune->pruned = 0;
    for (int l = 0; l < prune->layers; l++) {
        struct cr_prune_layer *layer = &prune->layer[l];
        layer->pruned                = cr_prune_count(&prune->store->param[layer->param], mask);
        if (!layer->dense) prune->pruned += layer->pruned;
    }
}

/* Number of weights to prune in layers [first, end). Units that were pruned before count first, and stay pruned. */
static int64_t target_of(const struct cr_prune *prune, int first, int end, double fraction) {
    int64_t elems = 0;
    for (int l = first; l < end; l++)
        if (!prune->layer[l].dense) elems += prune->layer[l].elems;
    const double sparsity = prune->global ? prune->config->prune.sparsity : prune->layer[first].sparsity;
    return (int64_t)llround((double)elems * sparsity * fraction);
}

cr_status cr_prune_masks(struct cr_prune *prune, double fraction, const float *value, uint8_t *mask) {
    struct choice c      = {.prune = prune};
    cr_status     status = CR_OK;
    CR_ALLOC(c.key, (size_t)prune->layers);
    for (int l = 0; l < prune->layers; l++)
        if (!prune->layer[l].dense)
            CR_TRY_OUT(make_keys(prune, &prune->store->param[prune->layer[l].param], value, mask, &c.key[l]));
    if (prune->global) {
        c.end = prune->layers;
        CR_TRY_OUT(choose(&c, target_of(prune, 0, c.end, fraction), mask));
    }
    for (int l = 0; l < prune->layers && !prune->global; l++) {
        if (prune->layer[l].dense) continue;
        c.first = l;
        c.end   = l + 1;
        CR_TRY_OUT(choose(&c, target_of(prune, l, l + 1, fraction), mask));
    }
    cr_prune_recount(prune, mask);
out:
    for (int l = 0; l < prune->layers; l++) cr_free(c.key[l]);
    cr_free(c.key);
    return status;
}

void cr_prune_zero(const struct cr_param_store *store, const uint8_t *mask, float *buffer) {
    for (int64_t i = 0; i < store->value_elems; i += 8) {
        if (mask[i / 8] == 0xff) continue;
        for (int64_t j = i; j < i + 8; j++)
            if (!cr_mask_bit(mask, j)) buffer[j] = 0;
    }
}

cr_status cr_prune_draw(const struct cr_param_store *store, const struct cr_config *config, uint8_t **mask) {
    const size_t    bytes = (size_t)store->value_elems / 8;
    struct cr_prune prune = {0};
    float          *value = NULL;
    cr_status       status;
    *mask = NULL;
    CR_TRY_OUT(cr_prune_open(store, config, &prune));
    CR_ALLOC_OUT(value, (size_t)(store->value_elems + store->running_elems));
    CR_ALLOC_OUT(*mask, bytes);
    memset(*mask, 0xff, bytes);
    cr_param_store_init_host(store, config, value, value + store->value_elems);
    CR_TRY_OUT(cr_prune_masks(&prune, 1, value, *mask));
out:
    cr_free(value);
    cr_prune_close(&prune);
    if (status != CR_OK) {
        cr_free(*mask);
        *mask = NULL;
    }
    return status;
}
