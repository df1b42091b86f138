/* tests/unit/data/test_augment_policy.c: RandAugment and AutoAugment against torchvision's pixels for fixed draws
 * (tests/golden/augment/make_policies.py), the frequency of each result against torchvision's probabilities, and the
 * keys of [data]. */
#include "data/augment.h"
#include "data/source.h"
#include "tests/harness/image_support.h"
#include "tests/harness/test.h"

enum { W = 24, H = 17, BYTES = W * H * 3 };

static void draw_image(uint8_t *rgb) {
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++)
            for (int c = 0; c < 3; c++)
                *rgb++ = (uint8_t)(30 + (x * 9 + y * (5 + 4 * c) + (x * x + 3 * y * y + 11 * c) % 23 * 2) % 180);
}

static const char *const policy_name[] = {"auto_imagenet", "auto_cifar10", "auto_svhn"};

static void step_apply(const struct cr_policy_step *step, bool minus, const struct cr_pixels *pixels) {
    cr_pixels_apply(step->op, cr_policy_amount(step->op, step->bin, CR_AUTO_BINS, minus, W, H), pixels);
}

/* One line of policies.txt: `numbers` are its integers, without the name and the hash. Returns how many there are. */
static int replay(const char *name, const int number[5], const struct cr_pixels *pixels) {
    if (strcmp(name, "rand") == 0) {
        const enum cr_pixel_op op = (enum cr_pixel_op)number[0];
        cr_pixels_apply(op, cr_policy_amount(op, number[1], CR_RAND_BINS, number[2], W, H), pixels);
        return 0;
    }
    for (int k = 0; k < 3; k++) {
        if (strcmp(name, policy_name[k]) != 0) continue;
        const struct cr_policy_step *step = cr_policy_pair(CR_AUGMENT_AUTO_IMAGENET + (enum cr_augment)k, number[0]);
        CHECK_INT(step[0].percent, number[1]);
        CHECK_INT(step[1].percent, number[2]);
        for (int i = 0; i < 2; i++) step_apply(&step[i], number[3], pixels);
        return k + 1;
    }
    TEST_FAIL_("unknown policy %s", name);
    return 0;
}

TEST(pixels_are_torchvisions) {
    char        line[128];
    int         seen[4] = {0};
    OWNED(file) f       = fopen(formatted("%s/tests/golden/augment/policies.txt", CR_SOURCE_DIR), "r");
    REQUIRE(f);
    while (fgets(line, sizeof line, f)) {
        uint8_t            rgb[BYTES], copy[BYTES];
        char               name[32];
        int                n[5] = {0};
        unsigned long long want;
        const bool         pair =
            sscanf(line, "%31s %d %d %d %d %d %llx", name, &n[0], &n[1], &n[2], &n[3], &n[4], &want) == 7 &&
            strcmp(name, "rand") != 0;
        REQUIRE(pair || sscanf(line, "%31s %d %d %d %d %llx", name, &n[0], &n[1], &n[2], &n[3], &want) == 6);
        const uint8_t          fill   = (uint8_t)n[pair ? 4 : 3];
        const struct cr_pixels pixels = {rgb, copy, W, H, {fill, fill, fill}, 3};
        draw_image(rgb);
        seen[replay(name, n, &pixels)]++;
        if (cr_hash_bytes(CR_HASH_START, rgb, BYTES) != want) TEST_FAIL_("other pixels: %s", line);
    }
    CHECK_INT(seen[0], 308);
    for (int k = 1; k < 4; k++) CHECK_INT(seen[k], 50);
}

enum { RESULTS_MAX = 1000, DRAWS = 20000 };
struct results { /* the different images that a policy makes, and the probability of each */
    uint64_t hash[RESULTS_MAX];
    double   expected[RESULTS_MAX];
    int      drawn[RESULTS_MAX], count;
};

static int find(struct results *r, const uint8_t *rgb) {
    const uint64_t hash = cr_hash_bytes(CR_HASH_START, rgb, BYTES);
    int            i    = 0;
    while (i < r->count && r->hash[i] != hash) i++;
    if (i == r->count && r->count < RESULTS_MAX) r->hash[r->count++] = hash;
    return i < RESULTS_MAX ? i : 0;
}

static void compare(const struct cr_prepare *prep, struct results *r) {
    uint8_t   rgb[BYTES], copy[BYTES];
    const int known = r->count;
    for (int i = 0; i < DRAWS; i++) {
        struct cr_rng          rng    = cr_rng_make(11, CR_RNG_TEST, (uint64_t)i, 0);
        const struct cr_pixels pixels = {rgb, copy, W, H, {0}, 3};
        draw_image(rgb);
        cr_policy_apply(prep, &rng, &pixels);
        r->drawn[find(r, rgb)]++;
    }
    CHECK_INT(r->count, known);
    for (int i = 0; i < r->count; i++)
        CHECK_NEAR((double)r->drawn[i] / DRAWS, r->expected[i], 5 * sqrt(r->expected[i] / DRAWS) + 1e-4);
}

TEST(auto_augment_has_torchvisions_frequencies) {
    for (int k = 0; k < 3; k++) {
        const struct cr_prepare prep = {.augment = CR_AUGMENT_AUTO_IMAGENET + (enum cr_augment)k};
        struct results          r    = {.count = 0};
        for (int at = 0; at < CR_POLICY_PAIRS * 16; at++) { /* pair, which steps are applied, their directions */
            const struct cr_policy_step *step = cr_policy_pair(prep.augment, at / 16);
            uint8_t                      rgb[BYTES], copy[BYTES];
            const struct cr_pixels       pixels = {rgb, copy, W, H, {0}, 3};
            double                       mass   = 1.0 / (CR_POLICY_PAIRS * 4);
            draw_image(rgb);
            for (int i = 0; i < 2; i++) {
                const bool applied = at >> i & 1;
                mass *= applied ? step[i].percent / 100.0 : 1 - step[i].percent / 100.0;
                if (applied) step_apply(&step[i], at >> (2 + i) & 1, &pixels);
            }
            if (mass > 0) r.expected[find(&r, rgb)] += mass;
        }
        compare(&prep, &r);
    }
}

/* rand_prob is the probability of each operation; rand_ops = 2 applies two in a row. */
TEST(rand_augment_has_uniform_operations) {
    const struct cr_prepare once  = {.augment = CR_AUGMENT_RAND, .rand_ops = 1, .rand_magnitude = 9, .rand_prob = 0.5};
    struct cr_prepare       twice = once, never = once;
    struct results          r = {.count = 0};
    uint8_t                 rgb[BYTES], plain[BYTES], copy[BYTES];
    const struct cr_pixels  pixels = {rgb, copy, W, H, {0}, 3};
    draw_image(plain);
    r.expected[find(&r, plain)] = 0.5;
    for (int at = 0; at < 28; at++) {
        const enum cr_pixel_op op = (enum cr_pixel_op)(at / 2);
        memcpy(rgb, plain, BYTES);
        cr_pixels_apply(op, cr_policy_amount(op, 9, CR_RAND_BINS, at % 2, W, H), &pixels);
        r.expected[find(&r, rgb)] += 0.5 / 28;
    }
    compare(&once, &r);
    const int known = r.count;
    never.rand_prob = 0;
    twice.rand_prob = 1;
    twice.rand_ops  = 2;
    int changed     = 0;
    for (int i = 0; i < 1000; i++) {
        struct cr_rng rng = cr_rng_make(2, CR_RNG_TEST, (uint64_t)i, 0);
        memcpy(rgb, plain, BYTES);
        cr_policy_apply(&never, &rng, &pixels);
        CHECK(memcmp(rgb, plain, BYTES) == 0);
        cr_policy_apply(&twice, &rng, &pixels);
        changed += find(&r, rgb) >= known; /* none of the images that one operation makes */
    }
    CHECK(changed > 500);
}
