/* tests/unit/data/test_augment.c: augmentation of a training image after its crop: each operation against the pixels of
 * PIL (tests/golden/augment/make.py), the random values of TrivialAugment and ColorJitter against their ranges, and
 * that the image is a function of (seed, epoch, sample) alone. */
#include "data/augment.h"
#include "tests/harness/image_support.h"
#include "tests/harness/test.h"

static uint8_t *golden_read(struct cr_st_file *file, const char *name, int *size) {
    const struct cr_st_entry *e     = cr_st_find(file, name);
    uint8_t                  *bytes = e ? malloc((size_t)e->bytes) : NULL;
    if (!bytes || cr_st_read(file, e, 0, bytes, (size_t)e->bytes) != CR_OK) {
        TEST_FAIL_("%s is missing", name);
        free(bytes);
        return NULL;
    }
    *size = (int)e->dim[0];
    return bytes;
}

/* Names are "OP AMOUNT IMAGE", with the number of the operation. */
TEST(operations_match_pil) {
    OWNED(weights) file                    = NULL;
    int            seen[CR_PIXELS_HUE + 1] = {0};
    REQUIRE_OK(cr_st_open(formatted("%s/tests/golden/augment/pil.safetensors", CR_SOURCE_DIR), &file));
    for (int i = 0; i < cr_st_count(file); i++) {
        int         op, size, other, used = 0;
        double      by;
        const char *name = cr_st_at(file, i)->name;
        if (sscanf(name, "%d %lf %n", &op, &by, &used) != 2 || !used) continue;
        uint8_t *want = golden_read(file, name, &size), *got = golden_read(file, name + used, &other),
                *copy = malloc((size_t)size * size * 3);
        REQUIRE(want && got && copy && size == other);
        cr_pixels_apply((enum cr_pixel_op)op, by, &(struct cr_pixels){got, copy, size, size, {0}, 3});
        int wrong = 0, most = 0;
        for (int k = 0; k < size * size * 3; k++) {
            wrong += got[k] != want[k];
            most = CR_MAX(most, abs(got[k] - want[k]));
        }
        if (wrong) TEST_FAIL_("%s: %d of %d bytes differ, by up to %d", name, wrong, size * size * 3, most);
        seen[op]++;
        free(want);
        free(got);
        free(copy);
    }
    for (int op = 0; op <= CR_PIXELS_HUE; op++) CHECK(seen[op] > 0 || op == CR_PIXELS_IDENTITY);
}

/* The table of TrivialAugmentWide in torchvision: the largest amount of each operation, and the smallest. */
TEST(trivial_matches_torchvision_ranges) {
    static const struct {
        double low, high;
        int    amounts;
    } want[14] = {{0, 0, 1},       {-0.99, 0.99, 61}, {-0.99, 0.99, 61}, {-32, 32, 61},    {-32, 32, 61},
                  {-135, 135, 61}, {0.01, 1.99, 61},  {0.01, 1.99, 61},  {0.01, 1.99, 61}, {0.01, 1.99, 61},
                  {2, 8, 7},       {0, 255, 31},      {0, 0, 1},         {0, 0, 1}};
    enum { DRAWS = 140000 };
    int           count[14] = {0}, amounts[14] = {0};
    double        low[14], high[14], sum[14] = {0};
    static double known[14][64];
    for (int i = 0; i < DRAWS; i++) {
        struct cr_rng    rng = cr_rng_make(3, CR_RNG_COLOUR, (uint64_t)i, 0);
        enum cr_pixel_op op;
        double           by;
        cr_trivial_draw(&rng, &op, &by);
        REQUIRE((int)op < 14);
        low[op]  = count[op] ? fmin(low[op], by) : by;
        high[op] = count[op] ? fmax(high[op], by) : by;
        sum[op] += by;
        count[op]++;
        int k = 0;
        while (k < amounts[op] && fabs(known[op][k] - by) > 1e-9) k++;
        if (k == amounts[op] && k < 64) known[op][amounts[op]++] = by;
    }
    for (int op = 0; op < 14; op++) {
        CHECK_NEAR(count[op], DRAWS / 14.0, 500); /* five standard deviations of 97 */
        CHECK_NEAR(low[op], want[op].low, 1e-12);
        CHECK_NEAR(high[op], want[op].high, 1e-12);
        CHECK_INT(amounts[op], want[op].amounts);
        CHECK_NEAR(sum[op] / count[op], (want[op].low + want[op].high) / 2,
                   0.025 * (want[op].high - want[op].low) + (op == 10 ? 0.1 : 0));
    }
}

enum { SIZE = 12 };
/* ---- erasing and mixing, which the device executes ---- */

enum { MIX_SIZE = 32, MIX_BATCH = 10, MIX_DRAWS = 20000 };
static struct cr_prepare mixing(double mixup, double cutmix, double erase) {
    return (struct cr_prepare){.size        = MIX_SIZE,
                               .mixes       = true,
                               .mixup       = mixup,
                               .cutmix      = cutmix,
                               .erase       = erase,
                               .erase_scale = {0.02, 0.33},
                               .mix_prob    = 1,
                               .cutmix_prob = 0.5};
}

/* Neighbours form pairs; the last image of an odd batch has a partner too. A batch cut into parts of even size keeps
 * its pairs. */
TEST(mixing_partners_are_neighbours) {
    const struct cr_prepare prep  = mixing(1, 0, 0);
    static const int        odd[] = {1, 0, 3, 2, 3};
    int32_t                 mix[CR_MIX_NUMBERS];
    for (int at = 0; at < 5; at++) {
        cr_prepare_mix(&prep, 1, 0, at, at, 5, mix);
        CHECK_INT(mix[CR_MIX_PARTNER], odd[at]);
    }
    cr_prepare_mix(&prep, 1, 0, 0, 0, 1, mix);
    CHECK_INT(mix[CR_MIX_PARTNER], 0);
    for (int at = 0; at < 24; at++) {
        int32_t part[CR_MIX_NUMBERS];
        cr_prepare_mix(&prep, 1, 0, at, at, 24, mix);
        cr_prepare_mix(&prep, 1, 0, at, at % 6, 6, part);
        CHECK_INT(mix[CR_MIX_PARTNER], part[CR_MIX_PARTNER] + at / 6 * 6);
    }
}

/* Beta(a, a) has mean 1/2 and variance 1/(4 (2a + 1)). */
TEST(mixup_draws_from_beta) {
    static const double alpha[] = {0.05, 0.2, 0.8, 1, 4};
    for (size_t k = 0; k < CR_COUNT(alpha); k++) {
        const struct cr_prepare prep     = mixing(alpha[k], 0, 0);
        const double            variance = 1 / (4 * (2 * alpha[k] + 1));
        double                  sum = 0, squares = 0, below = 0;
        for (int i = 0; i < MIX_DRAWS; i++) {
            int32_t mix[CR_MIX_NUMBERS];
            cr_prepare_mix(&prep, 1, 0, i, i % MIX_BATCH, MIX_BATCH, mix);
            const double fraction = (double)mix[CR_MIX_LABEL_WEIGHT] / CR_MIX_ONE;
            CHECK(fraction >= 0 && fraction <= 1 && mix[CR_MIX_WEIGHT] == mix[CR_MIX_LABEL_WEIGHT] &&
                  mix[CR_MIX_PARTNER] == (i % MIX_BATCH ^ 1));
            sum += fraction;
            squares += (fraction - 0.5) * (fraction - 0.5);
            below += fraction < 0.25;
        }
        CHECK_NEAR(sum / MIX_DRAWS, 0.5, 5 * sqrt(variance / MIX_DRAWS));
        CHECK_NEAR(squares / MIX_DRAWS, variance, 0.03 * variance);
        if (alpha[k] == 1) CHECK_NEAR(below / MIX_DRAWS, 0.25, 0.02); /* uniform */
    }
}

/* The fraction of the label is the fraction of the area that remains; cuts have all sizes, each with its expected
 * frequency. */
TEST(cutmix_label_follows_remaining_area) {
    const struct cr_prepare both = mixing(1, 1, 0);
    int                     cuts = 0, large = 0, plain = 0;
    for (int i = 0; i < MIX_DRAWS; i++) {
        int32_t  mix[CR_MIX_NUMBERS];
        int32_t *cut = mix + CR_MIX_CUT;
        cr_prepare_mix(&both, 1, 3, i, 0, MIX_BATCH, mix);
        if (mix[CR_MIX_WEIGHT] != CR_MIX_ONE) continue;
        cuts++;
        const int area = (cut[2] - cut[0]) * (cut[3] - cut[1]);
        CHECK(cut[0] >= 0 && cut[1] >= 0 && cut[2] <= MIX_SIZE && cut[3] <= MIX_SIZE && cut[2] >= cut[0] &&
              cut[3] >= cut[1]);
        CHECK_INT(mix[CR_MIX_LABEL_WEIGHT], (int)lrint((1 - (double)area / (MIX_SIZE * MIX_SIZE)) * CR_MIX_ONE));
        large += area > MIX_SIZE * MIX_SIZE / 2;
    }
    CHECK_NEAR(cuts, MIX_DRAWS / 2.0, 400);
    CHECK(large > cuts / 20);
    struct cr_prepare rare = mixing(1, 1, 0);
    rare.mix_prob          = 0.2;
    for (int i = 0; i < MIX_DRAWS; i++) {
        int32_t mix[CR_MIX_NUMBERS];
        cr_prepare_mix(&rare, 1, 3, i, 0, MIX_BATCH, mix);
        plain += mix[CR_MIX_LABEL_WEIGHT] == CR_MIX_ONE && mix[CR_MIX_WEIGHT] == CR_MIX_ONE;
    }
    CHECK(plain > 0.78 * MIX_DRAWS && plain < 0.83 * MIX_DRAWS); /* a few cuts are empty */
}

/* RandomErasing of torchvision: area 2 to 33 %, aspect 0.3 to 3.3, any position. */
TEST(erasing_matches_torchvision_ranges) {
    const struct cr_prepare prep   = mixing(0, 0, 0.25);
    int                     erased = 0, edge = 0;
    double                  sum = 0;
    for (int i = 0; i < MIX_DRAWS; i++) {
        int32_t  mix[CR_MIX_NUMBERS];
        int32_t *e = mix + CR_MIX_ERASE;
        cr_prepare_mix(&prep, 1, 0, i, 0, MIX_BATCH, mix);
        CHECK(mix[CR_MIX_LABEL_WEIGHT] == CR_MIX_ONE && mix[CR_MIX_WEIGHT] == CR_MIX_ONE && !mix[CR_MIX_CUT + 2]);
        if (!e[2]) continue;
        const int h = e[2] - e[0], w = e[3] - e[1];
        erased++;
        edge += e[0] == 0 || e[1] == 0;
        sum += (double)(h * w) / (MIX_SIZE * MIX_SIZE);
        CHECK(e[0] >= 0 && e[1] >= 0 && e[2] <= MIX_SIZE && e[3] <= MIX_SIZE && h >= 1 && w >= 1 && h < MIX_SIZE &&
              w < MIX_SIZE);
        CHECK(h * w <= 0.36 * MIX_SIZE * MIX_SIZE && h * w >= 0.01 * MIX_SIZE * MIX_SIZE);
    }
    CHECK_NEAR(erased, 0.25 * MIX_DRAWS, 320);
    CHECK_NEAR(sum / erased, 0.17, 0.015); /* attempts that do not fit are the large ones */
    CHECK(edge > 0);
}
