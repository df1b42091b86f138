/* tests/unit/pruning/test_prune_schedules.c: schedules of pruning: the phases of AC/DC against lists by hand, the
 * steps of RigL by its formula, random masks by their counts. What its mask updates move: test_train_schedules.c. */
#include "tests/harness/masks_network.h"

/* ---- AC/DC: which phase after each step ---- */

enum { PER_EPOCH = 10 };

/* Fills text with one letter for each epoch: s when the masks are in force, d when not; upper case where a phase begins
 * after an update that is not the last one of an epoch. */
static void phases(const struct cr_config *c, int epochs, char *text) {
    char now = 'd';
    for (int step = 0; step <= epochs * PER_EPOCH; step++) {
        const struct cr_prune_step due = cr_prune_step_at(c, step, PER_EPOCH);
        if (due.action == CR_PRUNE_TO) {
            CHECK(now == 'd' && due.fraction == 1);
            now = 's';
        } else if (due.action == CR_PRUNE_FREE) {
            CHECK(now == 's');
            now = 'd';
        } else
            CHECK_INT(due.action, CR_PRUNE_NOTHING);
        if (due.action != CR_PRUNE_NOTHING) CHECK_INT(step % PER_EPOCH, 0);
        if (step % PER_EPOCH == 0 && step / PER_EPOCH < epochs) text[step / PER_EPOCH] = now;
        if (step < epochs * PER_EPOCH)
            CHECK(cr_prune_is_dense_later(c, step, PER_EPOCH) == (step < c->prune.end * PER_EPOCH));
    }
    text[epochs] = 0;
}

/* The schedule of the paper for 100 epochs of ImageNet: 10 epochs of warm-up, seven pairs of 5 epochs, the last dense
 * phase longer, 10 epochs, and 15 epochs of a last sparse phase. */
TEST(phases_alternate) {
    static const char *const paper[] = {"prune.sparsity=0.9", "prune.schedule=acdc", "prune.start=10", "prune.end=85"};
    static const char *const small[] = {"prune.sparsity=0.9", "prune.schedule=acdc",   "prune.start=1",
                                        "prune.end=8",        "prune.sparse_epochs=1", "prune.dense_epochs=2"};
    const struct cr_config  *c;
    char                     text[101], want[101] = "";
    REQUIRE_OK(cr_config_open(&c, NULL, paper, CR_COUNT(paper)));
    strcat(want, "dddddddddd");
    for (int i = 0; i < 7; i++) strcat(want, "sssssddddd");
    strcat(want, "dddddsssssssssssssss");
    phases(c, 100, text);
    CHECK_STR(text, want);
    cr_config_close(c);
    REQUIRE_OK(cr_config_open(&c, NULL, small, CR_COUNT(small)));
    phases(c, 10, text);
    CHECK_STR(text, "dsddsdddss");
    REQUIRE_OK(cr_config_change(&c, CR_CHANGES("prune.start=0"))); /* the first step prunes */
    phases(c, 10, text);
    CHECK_STR(text, "sddsddddss");
    REQUIRE_OK(cr_config_change(&c, CR_CHANGES("prune.sparsity=0")));
    CHECK_INT(cr_prune_step_at(c, 80, PER_EPOCH).action, CR_PRUNE_NOTHING);
    cr_config_close(c);
}

/* Evci et al.: at the update after t steps, alpha / 2 * (1 + cos(pi * t / T_end)), every delta T steps before T_end. */
TEST(updates_decay_by_a_cosine) {
    static const char *const keys[] = {"prune.sparsity=0.9",     "prune.schedule=rigl", "prune.scope=erk",
                                       "prune.start=1",          "prune.end=4",         "prune.frequency=6",
                                       "prune.drop_fraction=0.4"};
    static const double      want[] = {0.4 * 0.9045084971874737, 0.4 * 0.6545084971874737, 0.4 * 0.3454915028125263,
                                       0.4 * 0.0954915028125263};
    OWNED(config)            c      = NULL;
    int                      found  = 0;
    REQUIRE_OK(cr_config_open(&c, NULL, keys, CR_COUNT(keys)));
    for (int step = 0; step < 100; step++) {
        const struct cr_prune_step due = cr_prune_step_at(c, step, PER_EPOCH);
        if (step == 10)
            CHECK(due.action == CR_PRUNE_TO && due.fraction == 1); /* trained weights: by magnitude */
        else if (due.action != CR_PRUNE_NOTHING) {
            CHECK(due.action == CR_PRUNE_MOVE && step == 16 + 6 * found);
            CHECK_NEAR(due.fraction, found < 4 ? want[found] : -1, 1e-12);
            found++;
        }
    }
    CHECK_INT(found, 4);
    REQUIRE_OK(cr_config_change(&c, CR_CHANGES("prune.start=0")));
    CHECK_INT(cr_prune_step_at(c, 0, PER_EPOCH).action, CR_PRUNE_RANDOM);
    REQUIRE_OK(cr_config_change(&c, CR_CHANGES("model.weights=file")));
    CHECK_INT(cr_prune_step_at(c, 0, PER_EPOCH).action, CR_PRUNE_TO);
}

/* As many as magnitude pruning prunes, in other places for each seed; the layers are independent of each other. */
TEST(random_masks) {
    OWNED(net)   n     = {0};
    OWNED(bytes) first = NULL;
    REQUIRE_OK(net_open(&n, "prune.sparsity=0.7", "prune.schedule=rigl", "prune.end=9", "prune.scope=uniform"));
    const size_t bytes = (size_t)n.store.value_elems / 8;
    first              = cr_alloc(bytes, 1);
    REQUIRE(first);
    REQUIRE_OK(cr_prune_random_masks(&n.prune, n.mask));
    CHECK_INT(n.prune.layer[A].pruned, 403);  /* 576 * 0.7 = 403.2 */
    CHECK_INT(n.prune.layer[B].pruned, 90);   /* 89.6 */
    CHECK_INT(n.prune.layer[ODD].pruned, 44); /* 44.1 */
    CHECK_INT(n.prune.layer[0].pruned + n.prune.layer[4].pruned, 0);
    int64_t thirds[3] = {0};
    for (int64_t i = 0; i < 576; i++) {
        const int64_t at = param(&n, A)->offset + i;
        thirds[i / 192] += !(n.mask[at / 8] >> (at % 8) & 1);
    }
    for (int k = 0; k < 3; k++) CHECK(thirds[k] > 110 && thirds[k] < 158); /* 134.4; sd 5.2 */
    memcpy(first, n.mask, bytes);
    memset(n.mask, 0xff, bytes);
    REQUIRE_OK(cr_prune_random_masks(&n.prune, n.mask));
    CHECK(memcmp(first, n.mask, bytes) == 0);
    REQUIRE_OK(cr_config_change(&n.config, CR_CHANGES("train.seed=2")));
    n.prune.config = n.config;
    memset(n.mask, 0xff, bytes);
    REQUIRE_OK(cr_prune_random_masks(&n.prune, n.mask));
    CHECK(memcmp(first, n.mask, bytes) != 0);
    cr_prune_free_masks(&n.prune, n.mask);
    CHECK_INT(n.prune.pruned, 0);
    for (size_t i = 0; i < bytes; i++) CHECK(n.mask[i] == 0xff);
}
