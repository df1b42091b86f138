/* tests/gpu/test_cudnn_batches.c: cuDNN has no plan for what we refuse without a query; large batches are split. cuDNN
 * is queried for an offline GPU: the test needs the libraries, but no GPU. */
#include "tests/gpu/cudnn_queries.h"

static struct cudnn_conv_key key_for(enum form form, enum cr_dtype real, enum cr_math math,
                                     const struct shape_of_conv *s) {
    struct cudnn_conv_key k = {0};
    struct alone          a;
    alone_open(&a, form, real, s);
    CHECK(cr_cudnn_key_of(&a.p, &a.op, math, &k));
    alone_close(&a);
    return k;
}

/* Plans that cuDNN itself has for a form, without our rules. */
static int plans_of_cudnn(enum form form, enum cr_dtype real, enum cr_math math, const struct shape_of_conv *s) {
    const struct cudnn_conv_key key   = key_for(form, real, math, s);
    const struct cudnn_rules    rules = {.workspace_bytes = (size_t)4 << 30, .refused_engine = {-1, -1}};
    struct cudnn_device         gpu;
    struct cudnn_problem        problem;
    struct cudnn_search         search;
    int                         plans = 0;
    if (cr_cudnn_device_open_offline(gpu_of(90), &gpu) != CR_OK) return -1;
    cr_cudnn_problem_open(gpu, &key, &problem);
    cr_cudnn_search_open(&problem.graph, &rules, &search);
    for (bool found = true; found && plans < 3;) {
        struct cudnn_plan plan;
        if (cr_cudnn_search_next(&search, &plan, &found) != CR_OK) break;
        if (!found) break;
        plans++;
        cr_cudnn_plan_close(&plan);
    }
    cr_cudnn_search_close(&search);
    cr_cudnn_problem_close(&problem);
    cr_cudnn_device_close(&gpu);
    return plans;
}

/* cuDNN refuses what cr_cudnn_may_have refuses; and cr_cudnn_may_have accepts the neighbouring cases. */
TEST(refusals_without_a_query_are_correct) {
    NEED_LIBRARIES();
    static const struct {
        enum cr_dtype        real;
        enum cr_math         math;
        struct shape_of_conv shape;
        bool                 there;
    } table[] = {
        {CR_F16, CR_MATH_F16, {16, 16, 16, 16, 5, 1, 2}, true},
        {CR_F16, CR_MATH_F16, {16, 16, 16, 16, 7, 1, 3}, false},
        {CR_F16, CR_MATH_F16, {16, 16, 24, 8, 3, 1, 1}, true},
        {CR_F16, CR_MATH_F16, {16, 16, 20, 16, 3, 1, 1}, false},
        {CR_F16, CR_MATH_F16, {16, 16, 16, 20, 3, 1, 1}, false},
        {CR_BF16, CR_MATH_BF16, {16, 16, 16, 16, 3, 1, 1}, false},
    };
    static const enum form forms[] = {ACT, ACT_WGRAD};
    for (size_t i = 0; i < CR_COUNT(table) * CR_COUNT(forms); i++) {
        const size_t                t     = i / CR_COUNT(forms);
        const enum form             form  = forms[i % CR_COUNT(forms)];
        const struct cudnn_conv_key key   = key_for(form, table[t].real, table[t].math, &table[t].shape);
        const int                   plans = plans_of_cudnn(form, table[t].real, table[t].math, &table[t].shape);
        CHECK_INT(cr_cudnn_may_have(&key), table[t].there);
        if ((plans > 0) != table[t].there) TEST_FAIL_("case %zu, form %d: cuDNN has %d plans", t, (int)form, plans);
    }
}

/* Slices cover the batch in order, none is too large, and each begins at a 16-byte address. */
static void check_slices(const struct shape_of_conv *s, int64_t count, int64_t images) {
    const struct cudnn_conv_key k = key_for(PLAIN, CR_F16, CR_MATH_F16, s);
    struct cudnn_slices         slices;
    int64_t                     sum = 0;
    REQUIRE(cr_cudnn_slices_of(&k, &slices));
    CHECK_INT(slices.count, count);
    CHECK_INT(slices.images, images);
    for (int64_t i = 0; i < slices.count; i++) {
        const struct cudnn_conv_key part = cr_cudnn_slice_key(&k, &slices, i);
        const int64_t              *x = part.dim[CR_CUDNN_X], *y = part.dim[CR_CUDNN_Y];
        CHECK_INT(x[0], y[0]);
        CHECK(x[0] > 0 && x[0] <= images && (i == 0 || x[0] == images || i == slices.count - 1));
        CHECK(x[0] * x[1] * x[2] * x[3] <= INT32_MAX && y[0] * y[1] * y[2] * y[3] <= INT32_MAX);
        CHECK_INT(sum * x[1] * x[2] * x[3] * 2 % 16, 0);
        CHECK_INT(sum * y[1] * y[2] * y[3] * 2 % 16, 0);
        sum += x[0];
    }
    CHECK_INT(sum, s->N);
}

TEST(large_batches_are_split) {
    check_slices(&(struct shape_of_conv){(1 << 22) - 1, 8, 8, 8, 3, 1, 1}, 1,
                 (1 << 22) - 1); /* 512 elements per image */
    check_slices(&(struct shape_of_conv){1 << 22, 8, 8, 8, 3, 1, 1}, 2, 1 << 21);
    check_slices(&(struct shape_of_conv){(1 << 22) + 2, 8, 8, 8, 3, 1, 1}, 2, (1 << 21) + 1);
    check_slices(&(struct shape_of_conv){3 << 21, 8, 8, 8, 3, 1, 1}, 2, 3 << 20);
    check_slices(&(struct shape_of_conv){12582917 /* prime */, 8, 8, 8, 3, 1, 1}, 4, 3145730);
    check_slices(&(struct shape_of_conv){2816, 112, 64, 64, 3, 1, 1}, 2, 1408);
    check_slices(&(struct shape_of_conv){1 << 16, 224, 3, 1, 1, 1, 0}, 8, 1 << 13);
    check_slices(&(struct shape_of_conv){1 << 26, 5, 3, 3, 3, 1, 1}, 4,
                 1 << 24); /* 75 elements: every eighth image is aligned */
    check_slices(&(struct shape_of_conv){100000007, 5, 3, 3, 3, 1, 1}, 4, 25000008);
    struct cudnn_slices         slices;
    const struct cudnn_conv_key huge =
        key_for(PLAIN, CR_F16, CR_MATH_F16, &(struct shape_of_conv){2, 32768, 3, 8, 1, 1, 0});
    CHECK(!cr_cudnn_slices_of(&huge, &slices)); /* y of one image has 2^33 elements */
}
