/* tests/gpu/test_cudnn_refused.c: which engines of cuDNN are refused for which convolutions and versions. Needs neither
 * a GPU nor cuDNN's libraries. */
#include "cuda/conv/cudnn/refused_engines.h"
#include "tests/harness/test.h"

static struct cudnn_conv_key key(enum cudnn_conv_kind kind, cudnnDataType_t type, int64_t uses) {
    return (struct cudnn_conv_key){.kind = kind, .type = (int64_t)type, .uses = uses};
}

static void check(struct cudnn_conv_key k, size_t version, int64_t first, int64_t second) {
    int64_t refused[CR_CUDNN_REFUSED] = {7, 7};
    CHECK_INT((int)CR_COUNT(refused), 2);
    cr_cudnn_refused_engines(&k, version, refused);
    CHECK_INT(refused[0], first);
    CHECK_INT(refused[1], second);
}

TEST(versions_of_the_table) {
    const size_t refusing[] = {90000, 90800, 91900, 99999}, others[] = {0, 8907, 89999, 100000};
    for (size_t i = 0; i < CR_COUNT(refusing); i++) {
        check(key(CR_CUDNN_FORWARD, CUDNN_DATA_HALF, 0), refusing[i], 47, -1);
        check(key(CR_CUDNN_WGRAD, CUDNN_DATA_BFLOAT16, 0), refusing[i], 47, 62);
    }
    for (size_t i = 0; i < CR_COUNT(others); i++) {
        check(key(CR_CUDNN_FORWARD, CUDNN_DATA_HALF, 0), others[i], -1, -1);
        check(key(CR_CUDNN_WGRAD, CUDNN_DATA_BFLOAT16, 0), others[i], -1, -1);
    }
}

TEST(ends_of_a_range) {
    const struct cudnn_refused_engine entry = {
        .kind = CR_CUDNN_DGRAD, .type = CUDNN_DATA_FLOAT, .engine = 3, .from = 91000, .to = 91201};
    const struct cudnn_conv_key k = key(CR_CUDNN_DGRAD, CUDNN_DATA_FLOAT, CR_CUDNN_ADD);
    CHECK(!cr_cudnn_refuses(&entry, &k, 90999));
    CHECK(cr_cudnn_refuses(&entry, &k, 91000));
    CHECK(cr_cudnn_refuses(&entry, &k, 91100));
    CHECK(cr_cudnn_refuses(&entry, &k, 91201));
    CHECK(!cr_cudnn_refuses(&entry, &k, 91202));
}

/* Every entry has a reason and a range that is not empty, and no list overflows. */
TEST(entries_are_complete) {
    for (int i = 0; i < cr_cudnn_refused_count; i++) {
        const struct cudnn_refused_engine *e = &cr_cudnn_refused_table[i];
        const struct cudnn_conv_key        k = key(e->kind, e->type, e->uses);
        int64_t                            refused[CR_CUDNN_REFUSED];
        CHECK(e->reason && *e->reason && e->from <= e->to && e->engine >= 0 && (e->uses & ~e->examined) == 0);
        cr_cudnn_refused_engines(&k, e->from, refused);
        CHECK(refused[0] == e->engine || refused[1] == e->engine);
    }
}
