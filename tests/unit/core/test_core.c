/* tests/unit/core/test_core.c: core functions: Philox against its published vectors, 16-bit rounding at every boundary,
 * initial weights against the rule of He et al., memory that counts and fails on demand. */
#include "core/rng.h"
#include "tests/harness/test.h"

/* ---- Philox4x32-10: the known answers published with Random123 ---- */

TEST(philox_matches_published_vectors) {
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < CR_COUNT(known); i++) {
        uint32_t out[4];
        cr_philox(known[i].counter, known[i].key, out);
        for (int w = 0; w < 4; w++) CHECK_INT(out[w], known[i].want[w]);
    }
}

TEST(streams_are_distinct_and_values_in_range) {
    struct cr_rng a = cr_rng_make(1, CR_RNG_ORDER, 5, 0), b = cr_rng_make(1, CR_RNG_AUGMENT, 5, 0);
    struct cr_rng c = cr_rng_make(1, CR_RNG_ORDER, 5, 0), d = cr_rng_make(2, CR_RNG_ORDER, 5, 0);
    int           same_purpose = 0, same_seed = 0;
    int64_t       hits[7] = {0};
    for (int i = 0; i < 7000; i++) {
        uint32_t x = cr_rng_u32(&a);
        CHECK_INT(x, cr_rng_u32(&c));
        same_purpose += x == cr_rng_u32(&b);
        same_seed += x == cr_rng_u32(&d);
        double u = cr_rng_real(&b);
        CHECK(u >= 0 && u < 1);
        uint64_t k = cr_rng_below(&d, 7);
        REQUIRE(k < 7);
        hits[k]++;
    }
    CHECK(same_purpose < 3 && same_seed < 3);
    for (int k = 0; k < 7; k++) CHECK_NEAR(hits[k], 1000, 5 * sqrt(1000 * 6.0 / 7));
    CHECK_INT(cr_rng_below(&d, 1), 0);
}

/* ---- 16-bit formats ---- */

/* The value of a 16-bit number by its definition. */
static double half_value(unsigned h, int exponent_bits) {
    int    mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    int    exponent = (int)(h >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double mantissa = h & ((1u << mantissa_bits) - 1), value;
    if (exponent == (1 << exponent_bits) - 1)
        value = mantissa > 0 ? NAN : INFINITY;
    else if (exponent == 0)
        value = ldexp(mantissa, 1 - bias - mantissa_bits);
    else
        value = ldexp(ldexp(1, mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
    return h & 0x8000 ? -value : value;
}

struct half {
    int exponent_bits;
    float (*widen)(uint16_t);
    uint16_t (*round)(float);
};

/* All 65536 values there and back; between each two neighbours the middle (rounds to even) and the numbers next to
 * it. */
static void check_half(const struct half *type) {
    const unsigned infinity = ((1u << type->exponent_bits) - 1) << (15 - type->exponent_bits);
    int            wrong    = 0;
    for (unsigned h = 0; h < 65536 && wrong < 5; h++) {
        double want = half_value(h, type->exponent_bits);
        float  got  = type->widen((uint16_t)h);
        if (isnan(want)) {
            wrong += !isnan(got) || !isnan(type->widen(type->round(got)));
            continue;
        }
        wrong += (double)got != want || !signbit(got) != !signbit(want) || type->round(got) != h;
        if ((h & 0x7fff) >= infinity) continue;
        unsigned even = h & 1 ? h + 1 : h;
        /* infinity lies above the largest finite value, as if the exponents continued */
        double next   = (h & 0x7fff) + 1 == infinity ? want * 2 - half_value(h - 1, type->exponent_bits)
                                                     : half_value(h + 1, type->exponent_bits);
        float  middle = (float)((want + next) / 2);
        if ((double)middle != (want + next) / 2) continue; /* below the smallest f32 */
        wrong += type->round(middle) != even;
        wrong += type->round(nextafterf(middle, got)) != h;
        wrong += type->round(nextafterf(middle, h & 0x8000 ? -INFINITY : INFINITY)) != h + 1;
        if (wrong) TEST_FAIL_("at %04x", h);
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(type->round(INFINITY), infinity);
    CHECK_INT(type->round(-INFINITY), infinity | 0x8000);
    CHECK_INT(type->round(3.4e38f), type->exponent_bits == 5 ? infinity : 0x7f80);
    CHECK_INT(type->round(-0.0f), 0x8000);
    CHECK_INT(type->round(1e-45f), 0);
}

TEST(f16_rounds_to_nearest_even) {
    const struct half type = {5, cr_f16_to_f32, cr_f32_to_f16};
    check_half(&type);
    CHECK_INT(cr_f32_to_f16(65504), 0x7bff);
    CHECK_INT(cr_f32_to_f16(65519.996f), 0x7bff);
    CHECK_INT(cr_f32_to_f16(65520), 0x7c00);
}
TEST(bf16_rounds_to_nearest_even) {
    const struct half type = {8, cr_bf16_to_f32, cr_f32_to_bf16};
    check_half(&type);
}

TEST(arrays_become_f32) {
    enum { ALL = 1 << 16 };
    static uint16_t     half[ALL];
    static float        out[ALL];
    static const double reals[] = {1.5, -0.0, 1e30};
    static const int8_t small[] = {-128, 0, 127};
    static const float  same[]  = {1e-40f, -3.0f};
    const enum cr_dtype type[]  = {CR_F16, CR_BF16};
    for (int i = 0; i < ALL; i++) half[i] = (uint16_t)i;
    for (int t = 0; t < 2; t++) {
        int wrong = 0;
        cr_numbers_to_f32(type[t], half, ALL, out);
        for (int i = 0; i < ALL; i++) {
            const float want = (float)cr_number_load(type[t], half, i);
            wrong += isnan(want) ? !isnan(out[i]) : memcmp(&want, &out[i], sizeof want) != 0;
        }
        CHECK_INT(wrong, 0);
    }
    cr_numbers_to_f32(CR_F64, reals, 3, out);
    CHECK(out[0] == 1.5f && out[1] == 0 && signbit(out[1]) && out[2] == 1e30f);
    cr_numbers_to_f32(CR_I8, small, 3, out);
    CHECK(out[0] == -128 && out[1] == 0 && out[2] == 127);
    cr_numbers_to_f32(CR_F32, same, 2, out);
    CHECK(memcmp(out, same, sizeof same) == 0);
}

/* Mean, standard deviation and kurtosis (3 for a normal, 1.8 for a uniform distribution) of a parameter, each within
 * five of its own standard deviations. */
static void check_moments(const struct cr_param_store *store, int param, const struct cr_config *config,
                          double deviation, bool normal) {
    const struct cr_param *q = &store->param[param];
    double                 n = (double)q->elems, sum = 0, squares = 0, fourth = 0, largest = 0;
    for (int64_t i = 0; i < q->elems; i++) {
        double x = (double)cr_param_store_initial(store, param, i, config);
        sum += x;
        squares += x * x;
        fourth += x * x * x * x;
        largest = fmax(largest, fabs(x));
    }
    double variance = deviation * deviation, kurtosis = normal ? 3 : 1.8;
    CHECK_NEAR(sum / n, 0, 5 * deviation / sqrt(n));
    CHECK_NEAR(squares / n / variance, 1, 5 * sqrt((kurtosis - 1) / n));
    CHECK_NEAR(fourth / n / (variance * variance), kurtosis, 5 * sqrt((normal ? 96 : 5.76) / n));
    CHECK(largest <= deviation * (normal ? 6 : 1.7320509));
}

static void check_init(const char *const *overrides, int count, bool fan_out, bool normal) {
    OWNED(config) config = NULL;
    OWNED(model)  model  = {0};
    REQUIRE_OK(cr_config_open(&config, NULL, overrides, count));
    REQUIRE_OK(cr_model_open(config, 10, 32, 32, &model));
    const struct cr_param_store *store = &model.store;
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q = &store->param[i];
        if (q->role == CR_ROLE_CONV) { /* fan: window size times filters or channels */
            double fan = (double)(q->dim[1] * q->dim[2] * (fan_out ? q->dim[0] : q->dim[3]));
            check_moments(store, i, config, sqrt(2 / fan), normal);
        } else if (q->role == CR_ROLE_DENSE_WEIGHT) { /* torch.nn.Linear: uniform within 1/sqrt(inputs) */
            check_moments(store, i, config, 1 / sqrt(3.0 * 64), false);
        } else if (q->role != CR_ROLE_DENSE_BIAS) {
            bool  last = config->model.zero_init_last && strstr(q->name, "bn2.weight");
            float want = q->role == CR_ROLE_VAR || (q->role == CR_ROLE_GAMMA && !last) ? 1 : 0;
            for (int64_t k = 0; k < q->elems; k++) CHECK(cr_param_store_initial(store, i, k, config) == want);
        } else {
            for (int64_t k = 0; k < q->elems; k++) CHECK(fabsf(cr_param_store_initial(store, i, k, config)) <= 0.125f);
        }
    }
}

TEST(initial_weights_follow_he) {
    static const char *const plain[] = {"model.arch=resnet20", "model.shortcut=B"};
    static const char *const other[] = {"model.arch=resnet20", "model.init=he_fan_in", "model.init_shape=uniform",
                                        "model.zero_init_last=yes", "train.seed=77"};
    check_init(plain, CR_COUNT(plain), true, true);
    check_init(other, CR_COUNT(other), false, false);
}

static int64_t parameters_of(const char *const *overrides, int count) {
    OWNED(config)   config = NULL;
    struct cr_model model;
    int64_t         sum = -1;
    if (cr_config_open(&config, NULL, overrides, count) != CR_OK) return -1;
    if (cr_model_open(config, 1000, 224, 224, &model) == CR_OK) {
        sum = cr_param_store_trainable(&model.store);
        cr_model_close(&model);
    }
    return sum;
}

/* num_params of the torchvision weights. */
TEST(networks_have_the_published_sizes) {
    static const struct {
        const char *arch;
        int64_t     parameters;
    } known[] = {{"model.arch=resnet18", 11689512},          {"model.arch=resnet34", 21797672},
                 {"model.arch=resnet50", 25557032},          {"model.arch=resnet101", 44549160},
                 {"model.arch=resnet152", 60192808},         {"model.arch=wide_resnet50_2", 68883240},
                 {"model.arch=wide_resnet101_2", 126886696}, {"model.arch=resnext50_32x4d", 25028904},
                 {"model.arch=resnext101_32x8d", 88791336},  {"model.arch=resnext101_64x4d", 83455272}};
    for (size_t i = 0; i < CR_COUNT(known); i++) CHECK_INT(parameters_of(&known[i].arch, 1), known[i].parameters);
}

TEST(groups_are_configurable) {
    static const char *const next[]  = {"model.arch=resnet50", "model.groups=32", "model.width_per_group=4"};
    static const char *const basic[] = {"model.arch=resnet18", "model.groups=2"};
    static const char *const eca[]   = {"model.arch=resnet50", "model.eca=yes", "model.stem=deep"};
    static const char *const blur[]  = {"model.arch=resnet50", "model.stem=deep", "model.blur_pool=yes",
                                        "quant.type=int8"};
    static const char *const both[]  = {"model.eca=yes", "model.excitation=yes"};
    static const char *const prune[] = {"model.arch=resnext50_32x4d", "prune.sparsity=0.5"};
    static const char *const quant[] = {"model.arch=resnext50_32x4d", "quant.type=int8"};
    CHECK_INT(parameters_of(next, 3), 25028904);
    CHECK_INT(parameters_of(eca, 3), 25576350);  /* timm's ecaresnet50d */
    CHECK_INT(parameters_of(blur, 3), 25576264); /* timm's resnetblur50d */
    CHECK_INT(parameters_of(blur, 4), -1);
    CHECK_HAS(cr_error_message(), "[model] blur_pool");
    CHECK_HAS(cr_error_message(), "networks with it cannot be quantised");
    CHECK_INT(parameters_of(both, 2), -1);
    CHECK_HAS(cr_error_message(), "excludes excitation");
    CHECK_INT(parameters_of(basic, 2), -1);
    CHECK_HAS(cr_error_message(), "[model] groups");
    CHECK_INT(parameters_of(prune, 2), -1);
    CHECK_HAS(cr_error_message(), "grouped convolutions (32 groups) cannot be pruned");
    CHECK_INT(parameters_of(quant, 2), -1);
    CHECK_HAS(cr_error_message(), "grouped convolutions (32 groups) cannot be quantised");
}

/* ---- memory ---- */

TEST(allocation_counts_and_fails_on_demand) {
    const int64_t  live  = cr_alloc_live();
    const uint64_t calls = cr_alloc_calls();
    unsigned char *a = cr_alloc(100, 3), *none = cr_alloc(0, 8);
    REQUIRE(a && none);
    CHECK_INT((uintptr_t)a % 64, 0);
    for (int i = 0; i < 300; i++) CHECK_INT(a[i], 0);
    memset(a, 7, 300);
    a = cr_realloc(a, 200, 3);
    REQUIRE(a);
    CHECK_INT(a[299], 7);
    CHECK_INT(a[300], 0);
    CHECK_INT(cr_alloc_live(), live + 2);
    CHECK_INT(cr_alloc_calls(), calls + 3);
    cr_alloc_fail_at(2);
    void *first = cr_alloc(1, 1), *second = cr_alloc(1, 1), *third = cr_alloc(1, 1);
    CHECK(first && !second && third);
    CHECK(!cr_alloc(SIZE_MAX / 2, 3) && !cr_alloc(SIZE_MAX, 1) && !cr_realloc(a, SIZE_MAX / 4, 8));
    cr_free(a), cr_free(none), cr_free(first), cr_free(third);
    cr_free(NULL);
    CHECK_INT(cr_alloc_live(), live);
}

static cr_status append(int64_t **at, int *count, int *capacity, int64_t value) {
    CR_GROW(*at, *count, *capacity, 2);
    (*at)[(*count)++] = value;
    return CR_OK;
}

TEST(arrays_keep_their_elements_when_they_grow) {
    int64_t *at    = NULL;
    int      count = 0, capacity = 0;
    for (int64_t i = 0; i < 16; i++) CHECK_STATUS(append(&at, &count, &capacity, i * i), CR_OK);
    CHECK(capacity == 16);
    cr_alloc_fail_at(1);
    CHECK_STATUS(append(&at, &count, &capacity, 0), CR_ERR_MEMORY);
    cr_alloc_fail_at(0);
    for (int64_t i = 0; i < count; i++) CHECK(at[i] == i * i);
    CHECK(count == 16 && capacity == 16);
    cr_free(at);
}

TEST(arenas_refuse_arrays_that_cannot_be_counted) {
    const int64_t   live  = cr_alloc_live();
    struct cr_arena arena = {0};
    double         *small = cr_arena_array(&arena, 1000, sizeof *small);
    CHECK(small && small[0] == 0 && small[999] == 0);
    CHECK(!cr_arena_array(&arena, SIZE_MAX / 8 + 2, sizeof *small)); /* 8 bytes if the product wrapped around */
    cr_arena_free(&arena);
    CHECK(cr_alloc_live() == live);
}

/* The reason of an error stands at the end of its message, behind paths of any length. */
TEST(long_paths_leave_the_reason) {
    char long_path[6001], cut[64];
    memset(long_path, 'd', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = 0;
    (void)!CR_FAIL(CR_ERR_IO, "list.csv:7: %s: is not there, but %s lists it", long_path, long_path);
    const char *said = cr_error_message();
    CHECK(strlen(said) == 4095 && strncmp(said, "list.csv:7: ddd", 15) == 0);
    CHECK(strstr(said, "ddd...ddd") && strcmp(said + 4095 - 12, "ddd lists it") == 0);
    cr_error_copy(cut, sizeof cut);
    CHECK_STR(cut, "list.csv:7: dddddddddddddddddd...ddddddddddddddddddddd lists it");
    long_path[3000] = 0;
    (void)!CR_FAIL(CR_ERR_IO, "%s: short enough", long_path); /* is not changed */
    CHECK(strlen(cr_error_message()) == 3000 + strlen(": short enough"));
    /* of several lines each keeps its end; whole characters are left out */
    for (size_t i = 0; i + 1 < sizeof long_path; i += 2) memcpy(long_path + i, "\xc3\xa9", 2);
    (void)!CR_FAIL(CR_ERR_CONFIG, "one %s: wrong\ntwo\nthree %.3000s: wrong", long_path, long_path);
    CHECK_HAS(cr_error_message(), ": wrong\ntwo\nthree ");
    CHECK(strlen(cr_error_message()) < 4096 && !strstr(cr_error_message(), "\\x"));
    cr_error_clear();
}
