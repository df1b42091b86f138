/* tests/unit/pruning/test_masks.c: selection of the pruned weights: exact counts, ties, patterns, nesting, against a
 * plain sort. How many weights of each layer: test_prune_fractions.c. */
#include "tests/harness/masks_network.h"

/* ---- reference: a full sort ---- */

struct ranked {
    double  size;
    int     layer;
    int64_t i;
};

static int smaller_first(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (x->size != y->size) return x->size < y->size ? -1 : 1;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return x->i < y->i ? -1 : x->i > y->i;
}

/* True when exactly the `count` smallest weights of the layers are pruned. */
static void check_smallest(struct net *n, const int *layers, int layer_count, int64_t count) {
    static struct ranked all[4096];
    int64_t              total = 0;
    for (int k = 0; k < layer_count; k++)
        for (int64_t i = 0; i < param(n, layers[k])->elems; i++)
            all[total++] = (struct ranked){fabs((double)weights(n, layers[k])[i]), layers[k], i};
    qsort(all, (size_t)total, sizeof *all, smaller_first);
    int wrong = 0;
    for (int64_t i = 0; i < total; i++) wrong += is_unpruned(n, all[i].layer, all[i].i) != (i >= count);
    CHECK_INT(wrong, 0);
}

TEST(uniform_prunes_the_smallest_of_each_layer) {
    OWNED(net) n = {0};
    REQUIRE_OK(net_open(&n, "prune.sparsity=0.9", "prune.scope=uniform"));
    REQUIRE_OK(cr_prune_masks(&n.prune, 1, n.value, n.mask));
    CHECK_INT(n.prune.layer[A].pruned, 518);  /* 576 * 0.9 = 518.4 */
    CHECK_INT(n.prune.layer[B].pruned, 115);  /* 115.2 */
    CHECK_INT(n.prune.layer[ODD].pruned, 57); /* 56.7 */
    CHECK_INT(n.prune.layer[0].pruned, 0);
    CHECK_INT(n.prune.layer[4].pruned, 0);
    CHECK_INT(n.prune.pruned, 518 + 115 + 57);
    CHECK_INT(n.prune.elems, 576 + 128 + 63);
    check_smallest(&n, (const int[]){A}, 1, 518);
    check_smallest(&n, (const int[]){B}, 1, 115);
}

TEST(global_prunes_the_smallest_of_all_layers) {
    static const int layers[] = {A, B, ODD};
    OWNED(net)       n        = {0};
    for (int scale = 0; scale < 2; scale++) {
        REQUIRE_OK(net_open(&n, "prune.sparsity=0.75"));
        for (int64_t i = 0; i < param(&n, B)->elems && scale; i++) weights(&n, B)[i] *= 1e-3f;
        weights(&n, A)[5] = 0; /* zeros that are not pruned are the smallest, and signs do not count */
        weights(&n, A)[6] = -0.0f;
        if (scale) weights(&n, B)[100] = 50; /* the largest weight of a layer would remain anyway */
        REQUIRE_OK(cr_prune_masks(&n.prune, 1, n.value, n.mask));
        CHECK_INT(n.prune.pruned, 575); /* 767 * 0.75 = 575.25 */
        if (!scale)
            check_smallest(&n, layers, 3, 575);
        else
            CHECK_INT(n.prune.layer[B].pruned, 127);
    }
}

TEST(ties_are_broken_by_index) {
    OWNED(net) n = {0};
    REQUIRE_OK(net_open(&n, "prune.sparsity=0.5"));
    for (int64_t i = 0; i < n.store.value_elems; i++) n.value[i] = i % 2 ? 1.0f : -1.0f;
    REQUIRE_OK(cr_prune_masks(&n.prune, 1, n.value, n.mask));
    for (int64_t i = 0; i < 576; i++) CHECK(is_unpruned(&n, A, i) == (i >= 384)); /* 767 / 2 = 383.5, rounded up */
    CHECK_INT(n.prune.layer[B].pruned + n.prune.layer[ODD].pruned, 0);
}

TEST(masks_nest_and_padding_is_unchanged) {
    OWNED(net) n = {0};
    uint8_t    before[512];
    REQUIRE_OK(net_open(&n, "prune.sparsity=0.9"));
    const size_t bytes = (size_t)n.store.value_elems / 8;
    REQUIRE(bytes <= sizeof before);
    memcpy(before, n.mask, bytes);
    for (int k = 1; k <= 10; k++) {
        REQUIRE_OK(cr_prune_masks(&n.prune, 0.1 * k, n.value, n.mask));
        CHECK_INT(n.prune.pruned, llround(767 * 0.9 * (0.1 * k)));
        for (size_t i = 0; i < bytes; i++) CHECK((n.mask[i] & ~before[i]) == 0);
        memcpy(before, n.mask, bytes);
        cr_prune_zero(&n.store, n.mask, n.value);
        for (int64_t i = 0; i < 576; i++) CHECK(is_unpruned(&n, A, i) || n.value[param(&n, A)->offset + i] == 0);
        for (int64_t i = 0; i < 576; i++)
            weights(&n, A)[i] *= 0.5f; /* the remaining weights change; pruned weights do not return */
    }
    int outside = 0; /* bits of padding and of other parameters */
    for (int64_t i = 0; i < n.store.value_elems; i++) outside += !(n.mask[i / 8] >> (i % 8) & 1);
    CHECK_INT(outside, n.prune.pruned);
    REQUIRE_OK(cr_prune_masks(&n.prune, 0.2, n.value, n.mask));
    CHECK(memcmp(before, n.mask, bytes) == 0);
}

TEST(each_layer_keeps_its_largest_weight) {
    OWNED(net) n = {0};
    REQUIRE_OK(net_open(&n, "prune.sparsity=0.9999"));
    weights(&n, B)[17] = NAN; /* NaN is not small: it must stay visible */
    REQUIRE_OK(cr_prune_masks(&n.prune, 1, n.value, n.mask));
    for (int l = A; l <= ODD; l++) CHECK_INT(n.prune.layer[l].pruned, n.prune.layer[l].elems - 1);
    CHECK(is_unpruned(&n, B, 17));
}

/* ---- patterns ---- */

TEST(two_of_four) {
    OWNED(net) n = {0};
    REQUIRE_OK(net_open(&n, "prune.sparsity=0.5", "prune.pattern=2:4", "prune.scope=uniform"));
    CHECK_HAS(n.prune.layer[ODD].dense, "7 input channels");
    for (int c = 0; c < 4; c++) weights(&n, A)[8 + c] = 1; /* equal: the later ones remain */
    REQUIRE_OK(cr_prune_masks(&n.prune, 0.5, n.value, n.mask));
    CHECK_INT(n.prune.layer[A].pruned, 144);
    REQUIRE_OK(cr_prune_masks(&n.prune, 1, n.value, n.mask));
    CHECK_INT(n.prune.layer[A].pruned, 288);
    CHECK_INT(n.prune.layer[B].pruned, 64);
    for (int64_t i = 0; i < 576; i += 4) {
        double least = INFINITY, most = 0;
        int    unpruned = 0;
        for (int64_t j = i; j < i + 4; j++) {
            const double size = fabs((double)weights(&n, A)[j]);
            if (is_unpruned(&n, A, j))
                unpruned++, least = fmin(least, size);
            else
                most = fmax(most, size);
        }
        CHECK_INT(unpruned, 2);
        CHECK(most <= least);
    }
    CHECK(!is_unpruned(&n, A, 8) && !is_unpruned(&n, A, 9) && is_unpruned(&n, A, 10) && is_unpruned(&n, A, 11));
}

TEST(blocks_are_pruned_whole) {
    OWNED(net) n = {0};
    REQUIRE_OK(net_open(&n, "prune.sparsity=0.6", "prune.pattern=block", "prune.block=4"));
    CHECK_HAS(n.prune.layer[ODD].dense, "9 output channels");
    REQUIRE_OK(cr_prune_masks(&n.prune, 1, n.value, n.mask));
    CHECK_INT(n.prune.pruned, 420); /* 704 * 0.6 = 422.4, in fours */
    double least = INFINITY, most = 0;
    for (int l = A; l <= B; l++) {
        const int64_t filter = param(&n, l)->elems / param(&n, l)->dim[0];
        for (int64_t u = 0; u < param(&n, l)->elems / 4; u++) {
            double sum      = 0;
            int    unpruned = 0;
            for (int v = 0; v < 4; v++) {
                const int64_t at = (u / filter * 4 + v) * filter + u % filter;
                unpruned += is_unpruned(&n, l, at);
                sum += fabs((double)weights(&n, l)[at]);
            }
            CHECK(unpruned == 0 || unpruned == 4);
            if (unpruned)
                least = fmin(least, sum);
            else
                most = fmax(most, sum);
        }
    }
    CHECK(most <= least * (1 + 1e-6));
}

/* Rectangles of output x input channels at one tap, against sums of a plain loop. */
TEST(rectangles_are_pruned_whole) {
    static const char *const scopes[] = {"prune.scope=global", "prune.scope=uniform", "prune.scope=erk"};
    OWNED(net)               n        = {0};
    for (size_t scope = 0; scope < CR_COUNT(scopes); scope++) {
        REQUIRE_OK(net_open(&n, "prune.sparsity=0.6", "prune.pattern=block", "prune.block=4x8", scopes[scope]));
        CHECK_HAS(n.prune.layer[ODD].dense, "9 output channels");
        CHECK_HAS(n.prune.layer[0].dense, "exempt");
        REQUIRE_OK(cr_prune_masks(&n.prune, 0.5, n.value, n.mask));
        REQUIRE_OK(cr_prune_masks(&n.prune, 1, n.value, n.mask)); /* masks nest */
        double least[2] = {INFINITY, INFINITY}, most[2] = {0, 0};
        for (int l = A; l <= B; l++) {
            const struct cr_param *q    = param(&n, l);
            const int64_t          taps = q->dim[1] * q->dim[2];
            const int              by   = scope ? l - A : 0; /* the smallest of each layer, or of all */
            for (int64_t k = 0; k < q->dim[0]; k += 4)
                for (int64_t tap = 0; tap < taps; tap++) {
                    double sum      = 0;
                    int    unpruned = 0;
                    for (int64_t i = 0; i < 4 * 8; i++) {
                        const int64_t at = ((k + i / 8) * taps + tap) * 8 + i % 8;
                        unpruned += is_unpruned(&n, l, at);
                        sum += fabs((double)weights(&n, l)[at]);
                    }
                    CHECK(unpruned == 0 || unpruned == 32);
                    if (unpruned)
                        least[by] = fmin(least[by], sum);
                    else
                        most[by] = fmax(most[by], sum);
                }
        }
        for (int i = 0; i < 2; i++) CHECK(most[i] <= least[i] * (1 + 1e-6));
        if (scope == 0) CHECK_INT(n.prune.pruned, 416);          /* 704 * 0.6 = 422.4, in blocks of 32 */
        if (scope == 1) CHECK_INT(n.prune.layer[A].pruned, 320); /* 576 * 0.6 = 345.6 */
    }
    REQUIRE_OK(net_open(&n, "prune.sparsity=0.5", "prune.pattern=block", "prune.block=1x4"));
    CHECK_HAS(n.prune.layer[ODD].dense, "7 input channels");
    REQUIRE_OK(cr_prune_masks(&n.prune, 1, n.value, n.mask));
    for (int64_t i = 0; i < 576; i++) CHECK(is_unpruned(&n, A, i) == is_unpruned(&n, A, i / 4 * 4));
    CHECK_INT(n.prune.pruned, 352);
    REQUIRE_OK(net_open(&n, "prune.sparsity=0.25", "prune.pattern=block", "prune.block=1x4"));
    for (int64_t i = 0; i < 576; i++) cr_mask_set(n.mask, param(&n, A)->offset + i, i % 4 == 0);
    REQUIRE_OK(cr_prune_masks(&n.prune, 1, n.value, n.mask)); /* weights that were pruned singly are no blocks */
    CHECK(n.prune.pruned >= 432 && n.prune.pruned <= 432 + 176);
}

TEST(channels_are_pruned_whole) {
    OWNED(net) n = {0};
    REQUIRE_OK(net_open(&n, "prune.sparsity=0.5", "prune.pattern=channel", "prune.scope=uniform",
                        "prune.exempt=conv1,layer2,fc"));
    for (int k = 0; k < 8; k++)
        for (int i = 0; i < 72; i++) weights(&n, A)[k * 72 + i] = (float)(k % 2 ? 1 + k : -k); /* 0 2 2 4 4 6 6 8 */
    REQUIRE_OK(cr_prune_masks(&n.prune, 1, n.value, n.mask));
    CHECK_INT(n.prune.layer[A].pruned, 288);
    for (int i = 0; i < 576; i++)
        CHECK(is_unpruned(&n, A, i) == (i >= 4 * 72)); /* of the two of 4 the first is pruned */
    CHECK_INT(n.prune.layer[ODD].pruned, 0);
}
