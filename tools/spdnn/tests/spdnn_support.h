/* tools/spdnn/tests/spdnn_support.h: random sparse deep networks for the tests on both devices. */
#ifndef CR_SPDNN_SUPPORT_H
#define CR_SPDNN_SUPPORT_H

#include "core/rng.h"
#include "tests/harness/test.h"
#include "tools/spdnn/spdnn.h"

/* A square matrix. Sets of `twins` rows, spread over the matrix, have the same columns, at most `longest`; every fifth
 * set is empty. Weights are +-2^-e with e below `powers`, or any number when powers is 0. */
static inline cr_status support_csr(int64_t neurons, int twins, int longest, int powers, uint64_t seed,
                                    struct cr_spdnn_csr *out) {
    struct cr_rng rng   = cr_rng_make(seed, CR_RNG_TEST, (uint64_t)neurons, (uint32_t)twins);
    const int64_t sets  = (neurons + twins - 1) / twins;
    uint32_t     *count = cr_alloc((size_t)sets, sizeof *count);
    uint8_t      *has   = cr_alloc((size_t)(sets * neurons), 1);
    *out                = (struct cr_spdnn_csr){.rows = neurons, .columns = neurons};
    out->start          = cr_alloc((size_t)neurons + 1, sizeof *out->start);
    out->column         = cr_alloc((size_t)(neurons * longest), sizeof *out->column);
    out->weight         = cr_alloc((size_t)(neurons * longest), sizeof *out->weight);
    if (!count || !has || !out->start || !out->column || !out->weight) return CR_NO_MEMORY((size_t)neurons);
    for (int64_t s = 0; s < sets; s++)
        for (int k = 0; s % 5 != 4 && k < 1 + (int)cr_rng_below(&rng, (uint64_t)longest); k++)
            has[s * neurons + (int64_t)cr_rng_below(&rng, (uint64_t)neurons)] = 1;
    for (int64_t j = 0, e = 0; j < neurons; j++) {
        for (int64_t c = 0; c < neurons; c++) {
            if (!has[j % sets * neurons + c]) continue;
            const double sign = cr_rng_below(&rng, 4) ? 1 : -1;
            out->column[e]    = (uint32_t)c;
            out->weight[e++]  = (float)(sign * (powers ? ldexp(1, -(int)cr_rng_below(&rng, (uint64_t)powers))
                                                       : 0.1 + 0.4 * cr_rng_real(&rng)));
        }
        out->start[j + 1] = (uint32_t)e;
    }
    cr_free(count);
    cr_free(has);
    return CR_OK;
}

struct support_net {
    struct cr_spdnn_net net;
    struct cr_spdnn_csr csr[64];
};
static inline cr_status support_net_open(int64_t neurons, int layers, int twins, int longest, int powers, float bias,
                                         int most_rows, struct support_net *out) {
    *out     = (struct support_net){0};
    out->net = (struct cr_spdnn_net){.neurons = neurons, .layers = layers, .bias = bias, .exact = powers > 0};
    CR_ALLOC(out->net.layer, (size_t)layers);
    for (int l = 0; l < layers; l++) {
        CR_TRY(support_csr(neurons, twins, longest, powers, (uint64_t)l + 1, &out->csr[l]));
        CR_TRY(cr_spdnn_pack(&out->csr[l], most_rows, &out->net.layer[l]));
        out->net.edges += out->net.layer[l].edges;
    }
    return CR_OK;
}
static inline void support_net_close(struct support_net *n) {
    for (int l = 0; l < n->net.layers; l++) cr_spdnn_csr_free(&n->csr[l]);
    cr_spdnn_net_close(&n->net);
}

/* Random zeros and ones; every seventh input is zero. */
static inline cr_status support_inputs(int64_t neurons, int64_t count, double density, struct cr_spdnn_inputs *out) {
    struct cr_rng rng = cr_rng_make(7, CR_RNG_TEST, (uint64_t)neurons, (uint32_t)count);
    *out              = (struct cr_spdnn_inputs){.neurons = neurons, .count = count, .words = (count + 31) / 32};
    CR_ALLOC(out->bit, (size_t)(neurons * out->words));
    for (int64_t n = 0; n < neurons; n++)
        for (int64_t i = 0; i < count; i++) {
            const uint32_t one = i % 7 != 6 && cr_rng_real(&rng) < density;
            out->bit[n * out->words + i / 32] |= one << i % 32;
            out->nonzeros += one;
        }
    return CR_OK;
}

/* A network of the challenge with synthetic input images. */
static inline cr_status support_digits(int64_t neurons, int64_t count, struct cr_spdnn_inputs *out) {
    struct cr_spdnn_images images;
    CR_TRY(cr_spdnn_images_generate(count, 3, &images));
    const cr_status status = cr_spdnn_inputs_open(&images, neurons, count, 0.104, 2, out);
    cr_spdnn_images_free(&images);
    return status;
}

#endif
