/* tests/checkops/checkops_unit.c: makes a program with one op from a case. */
#include "core/rng.h"
#include "tests/checkops/checkops.h"

#include <stdio.h>
#include <string.h>

void checkops_store_make(enum cr_dtype real, int64_t thousands, struct cr_param_store *store) {
    *store             = (struct cr_param_store){.real = real, .has_momentum = true};
    const int64_t w[4] = {5, 3, 3, 7}, big[4] = {70, 1, 1, 67}, c[4] = {1, 1, 1, 13}, one[4] = {1, 1, 1, 1};
    cr_param_store_add(store, "stem.weight", CR_ROLE_CONV, w, CR_NONE);
    int frozen = cr_param_store_add(store, "frozen.weight", CR_ROLE_CONV, w, CR_NONE);
    cr_param_store_add(store, "bn.weight", CR_ROLE_GAMMA, c, CR_NONE);
    cr_param_store_add(store, "bn.bias", CR_ROLE_BETA, c, CR_NONE);
    cr_param_store_add(store, "bn.running_mean", CR_ROLE_MEAN, c, CR_NONE);
    cr_param_store_add(store, "bn.running_var", CR_ROLE_VAR, c, CR_NONE);
    cr_param_store_add(store, "fc.weight", CR_ROLE_DENSE_WEIGHT, big, CR_NONE);
    cr_param_store_add(store, "fc.bias", CR_ROLE_DENSE_BIAS, one, CR_NONE);
    if (!store->failed) store->param[frozen].frozen = true;
    const int64_t filters[4] = {thousands, 1, 1, 1000}, tall[4] = {40, 3, 3, 4};
    cr_param_store_add(store, "tall.weight", CR_ROLE_CONV, tall, CR_NONE);
    cr_param_store_add(store, "other.weight", CR_ROLE_CONV, tall, CR_NONE);
    if (thousands) cr_param_store_add(store, "large.weight", CR_ROLE_CONV, filters, CR_NONE);
}

/* Whether two of the element's preceding neighbours among each 4 are nonzero already. */
static bool is_full(const uint8_t *pattern, int64_t first, int64_t channel) {
    int nonzeros = 0;
    for (int64_t i = first - channel % 4; i < first; i++) nonzeros += pattern[i / 8] >> (i % 8) & 1;
    return nonzeros == 2;
}

/* Whether the block of 64 output x 64 input channels at one place of the filter that contains weight i is nonzero.
 * One row of 64 output channels is empty. */
static bool is_block_nonzero(const struct checkops_case *c, int64_t i) {
    const int64_t row = c->window * c->window * c->C, k = i / row / 64;
    const int64_t block = (k * c->window * c->window + i % row / c->C) * (c->C / 64) + i % c->C / 64;
    struct cr_rng one   = cr_rng_make((uint64_t)block, CR_RNG_TEST, 0, 1);
    return k != 1 && cr_rng_below(&one, 16) < (uint64_t)(4 + k % 5);
}

/* Whether weight i, at index first + i, is nonzero. One channel is empty; the fraction of the others is between 1
 * (1/2 for 2:4) and a small value. */
static bool draw_nonzero(const struct checkops_case *c, const uint8_t *pattern, int64_t first, int64_t i,
                         struct cr_rng *rng) {
    const int64_t k   = i / (c->window * c->window * c->C);
    const bool    two = c->flags & CHECKOPS_TWO;
    if (c->format.kernel == CR_SPARSE_BLOCK) return is_block_nonzero(c, i);
    if (k == 1 && c->K > 2) return false;
    if (k != 0 && cr_rng_below(rng, 16) >= (uint64_t)(1 + k % 5 * (two ? 2 : 1))) return false;
    return !two || !is_full(pattern, first + i, i % c->C);
}

/* Adds a filter with a random sparsity pattern to the parameter store. */
static struct cr_sparsity_attr draw_pattern(struct checkops_unit *unit) {
    const struct checkops_case *c      = &unit->c;
    const int64_t               dim[4] = {c->K, c->window, c->window, c->C}, row = c->window * c->window * c->C;
    struct cr_sparsity_attr a = {.param = cr_param_store_add(&unit->store, "pruned.weight", CR_ROLE_CONV, dim, CR_NONE),
                                 .format = c->format,
                                 .image  = {c->N, c->H, c->W}};
    const int64_t           first = unit->store.failed ? 0 : unit->store.param[a.param].offset;
    struct cr_rng           rng   = cr_rng_make((uint64_t)(row + c->K), CR_RNG_TEST, 0, 0);
    unit->pattern                 = cr_alloc((size_t)(unit->store.value_elems + 7) / 8, 1);
    if (!unit->pattern || unit->store.failed) return a;
    for (int64_t i = 0; i < c->K * row; i++) {
        if (!draw_nonzero(c, unit->pattern, first, i, &rng)) continue;
        unit->pattern[(first + i) / 8] = (uint8_t)(unit->pattern[(first + i) / 8] | 1u << ((first + i) % 8));
        a.nnz++;
    }
    unit->store.pattern = unit->pattern;
    return a;
}

cr_status checkops_unit_make(const struct checkops_case *c, struct checkops_unit *unit) {
    *unit                     = (struct checkops_unit){.c = *c};
    unit->step                = (struct cr_step_block){.lr           = 0.1f,
                                                       .momentum     = 0.9f,
                                                       .weight_decay = 1e-3f,
                                                       .step         = 7,
                                                       .seed         = 1,
                                                       .first_image  = 6,
                                                       .clip_norm    = c->flags & CHECKOPS_CLIP ? 0.75f : 0};
    const bool is_whole_store = c->kind >= CR_OP_grad_norm && c->kind <= CR_OP_ema;
    checkops_store_make(c->real == CR_F64 ? CR_F64 : CR_F32, is_whole_store ? c->K : 0, &unit->store);
    unit->store.has_mask = is_whole_store && (c->flags & CHECKOPS_BITS);
    unit->store.has_second =
        c->kind == CR_OP_adamw || c->kind == CR_OP_lamb || c->kind == CR_OP_lamb_norms || c->kind == CR_OP_muon;
    unit->store.has_ema = c->kind == CR_OP_ema;
    cr_program_init(&unit->program, "checkops", &unit->store);
    unit->program.real              = c->real;
    struct checkops_build   b       = {.p    = &unit->program,
                                       .c    = &unit->c,
                                       .real = c->real,
                                       .wide = c->real == CR_F64 ? CR_F64 : CR_F32,
                                       .op   = cr_op_make(c->kind, CR_NONE)};
    struct cr_sparsity_attr pattern = {0};
    if (c->flags & CHECKOPS_PATTERN) pattern = draw_pattern(unit);
    checkops_build_op(&b);
    if (c->flags & CHECKOPS_PATTERN) b.op.attr.conv.pattern = pattern;
    if (!unit->program.failed) cr_emit(&unit->program, &b.op, "y");
    if (unit->program.failed || unit->store.failed || (c->flags & CHECKOPS_PATTERN && !unit->pattern)) {
        checkops_unit_free(unit);
        return CR_NO_MEMORY(sizeof *unit);
    }
    unit->op = &unit->program.op[0];
    return CR_OK;
}

void checkops_unit_free(struct checkops_unit *unit) {
    cr_program_free(&unit->program);
    cr_param_store_free(&unit->store);
    cr_free(unit->pattern);
}

void checkops_unit_text(const struct checkops_unit *unit, char *text, size_t size) {
    const struct checkops_case *c      = &unit->c;
    const int                   format = cr_sparse_format_number(c->format);
    snprintf(text, size, "%s %s N=%lld H=%lld W=%lld C=%lld K=%lld window=%d stride=%d pad=%d flags=0x%x%s%.0d%s%.0d",
             cr_op_info(c->kind)->name, cr_dtype_name(c->real), (long long)c->N, (long long)c->H, (long long)c->W,
             (long long)c->C, (long long)c->K, c->window, c->stride, c->pad, c->flags, unit->op->algo ? " algo=" : "",
             unit->op->algo, format ? " format=" : "", format);
}
