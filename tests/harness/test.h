/* tests/harness/test.h: the test harness. A test program has cases, TEST(name) { ... }, runs them in order, and ends
 * with one line "N passed, N failed, N skipped". Blocks that are still allocated after the last case are a failure. The
 * program exits with 1 when a case failed, and with 77 (a skip for CTest) when all cases were skipped. CHECK* report
 * file, line and both values, and continue; REQUIRE* leave the case. SKIP("reason") leaves the case and counts it as
 * skipped: for data or devices that are not available. `program NAME` runs only the cases whose name contains NAME. */
#ifndef CR_TEST_H
#define CR_TEST_H

#include "core/cpu.h"
#include "data/scratch.h"
#include "formats/safetensors.h"
#include "session/session.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct test_case {
    const char *name;
    void (*run)(void);
} test_cases_[100];
static int test_count_;

static inline void test_add_(const char *name, void (*run)(void)) {
    CR_ASSERT((size_t)test_count_ < CR_COUNT(test_cases_));
    test_cases_[test_count_++] = (struct test_case){name, run};
}
#define TEST(name)                                                                                                     \
    static void                              name(void);                                                               \
    __attribute__((constructor)) static void test_add_##name(void) {                                                   \
        test_add_(#name, name);                                                                                        \
    }                                                                                                                  \
    static void name(void)

/* OWNED(kind) is a type of variables that close what they hold at the end of their block, also after a failed REQUIRE.
 * OWNABLE defines a kind; `close` has the address of the variable in `x`. */
#define OWNED(kind) __attribute__((cleanup(kind##_drop_))) kind##_owned_
#define OWNABLE(kind, type, close)                                                                                     \
    typedef type       kind##_owned_;                                                                                  \
    static inline void kind##_drop_(kind##_owned_ *x) {                                                                \
        close;                                                                                                         \
    }
OWNABLE(string, char *, cr_free(*x))
OWNABLE(bytes, uint8_t *, cr_free(*x))
OWNABLE(floats, float *, cr_free(*x))
OWNABLE(doubles, double *, cr_free(*x))
OWNABLE(file, FILE *, if (*x) fclose(*x))
OWNABLE(program, struct cr_program, cr_program_free(x))
OWNABLE(model, struct cr_model, cr_model_close(x))
OWNABLE(session, struct cr_session, cr_session_close(x))
OWNABLE(image, struct cr_image, cr_image_free(x))
OWNABLE(scratch, struct cr_scratch, cr_scratch_free(x))
OWNABLE(arena, struct cr_arena, cr_arena_free(x))
OWNABLE(text, struct cr_text, cr_text_free(x))
OWNABLE(config, const struct cr_config *, cr_config_close(*x))
OWNABLE(dataset, struct cr_dataset *, cr_dataset_close(*x))
OWNABLE(loader, struct cr_loader *, cr_loader_close(*x))
OWNABLE(device, struct cr_device *, cr_device_close(*x))
OWNABLE(weights, struct cr_st_file *, cr_st_close(*x))
OWNABLE(cost_table, struct cr_cost_table *, cr_cost_table_close(*x))

/* An op whose first inputs, in the order of graph/ops.def, are these tensors. */
#define op_on(kind, ...) op_on_((kind), (const int[]){__VA_ARGS__}, CR_COUNT(((const int[]){__VA_ARGS__})))
static inline struct cr_op op_on_(enum cr_op_kind kind, const int *in, size_t count) {
    struct cr_op op = cr_op_make(kind, CR_NONE);
    memcpy(op.in, in, count * sizeof *in);
    return op;
}
/* Appends an op; its first output. */
static inline int emitted(struct cr_program *p, struct cr_op op, const char *name) {
    const int index = cr_emit(p, &op, name); /* may reallocate the array */
    return p->op[index].out[0];
}
/* Number of ops of one kind. */
static inline int count_kind(const struct cr_program *p, enum cr_op_kind kind) {
    int count = 0;
    for (int i = 0; i < p->ops; i++) count += p->op[i].kind == kind;
    return count;
}

/* Number of fused ops whose last part has this kind. */
static inline int fused_ops(const struct cr_program *p, enum cr_op_kind kind) {
    int n = 0;
    for (int i = 0; i < p->ops; i++)
        n += p->op[i].kind == CR_OP_fused && p->op[i].attr.fused.part[p->op[i].attr.fused.parts - 1].kind == kind;
    return n;
}

/* A text that stays valid to the end of the case. */
struct test_texts {
    struct test_texts *before;
    size_t             used;
    char               text[1 << 16];
};
static struct test_texts *test_texts_;
static inline const char *formatted(const char *fmt, ...) CR_PRINTF(1, 2);
static inline const char *formatted(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    const size_t room  = test_texts_ ? sizeof test_texts_->text - test_texts_->used : 0;
    char        *text  = room ? test_texts_->text + test_texts_->used : NULL;
    const size_t bytes = (size_t)vsnprintf(text, room, fmt, args) + 1;
    va_end(args);
    if (bytes > room) {
        struct test_texts *fresh = malloc(sizeof *fresh + bytes);
        if (!fresh) abort();
        fresh->before = test_texts_, fresh->used = 0;
        test_texts_ = fresh;
        text        = fresh->text;
        va_start(args, fmt);
        vsnprintf(text, bytes, fmt, args);
        va_end(args);
    }
    test_texts_->used = CR_MIN(test_texts_->used + bytes, sizeof test_texts_->text);
    return text;
}
static inline void test_texts_free_(void) {
    for (struct test_texts *before; test_texts_; test_texts_ = before) {
        before = test_texts_->before;
        free(test_texts_);
    }
}

/* With a sanitizer everything takes ten times as long. The build without one runs every test in full, so where the same
 * code runs again with other numbers, a build with a sanitizer runs fewer rounds or smaller networks. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { TEST_SANITIZED = 1 };
#else
enum { TEST_SANITIZED = 0 };
#endif

static int  test_failures_; /* of the running case */
static bool test_skipped_;
static int  test_failed_checks_; /* of all cases, to limit the output */

#define TEST_FAIL_(...)                                                                                                \
    do {                                                                                                               \
        test_failures_++;                                                                                              \
        if (++test_failed_checks_ <= 50) {                                                                             \
            printf("    %s:%d: ", __FILE__, __LINE__);                                                                 \
            printf(__VA_ARGS__);                                                                                       \
            printf("\n");                                                                                              \
        }                                                                                                              \
    } while (0)

#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond)) TEST_FAIL_("%s", #cond);                                                                          \
    } while (0)
#define REQUIRE(cond)                                                                                                  \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            TEST_FAIL_("%s  (%s)", #cond, cr_error_message());                                                         \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)
#define CHECK_INT(got, want)                                                                                           \
    do {                                                                                                               \
        long long got_ = (long long)(got), want_ = (long long)(want);                                                  \
        if (got_ != want_) TEST_FAIL_("%s = %lld, want %lld", #got, got_, want_);                                      \
    } while (0)
#define CHECK_NEAR(got, want, bound)                                                                                   \
    do {                                                                                                               \
        double got_ = (got), want_ = (want), bound_ = (bound);                                                         \
        if (!(fabs(got_ - want_) <= bound_))                                                                           \
            TEST_FAIL_("%s = %.9g, want %.9g within %.3g", #got, got_, want_, bound_);                                 \
    } while (0)
#define CHECK_STR(got, want)                                                                                           \
    do {                                                                                                               \
        const char *got_ = (got), *want_ = (want);                                                                     \
        if (!got_ || strcmp(got_, want_) != 0)                                                                         \
            TEST_FAIL_("%s = \"%s\", want \"%s\"", #got, got_ ? got_ : "(null)", want_);                               \
    } while (0)
#define CHECK_HAS(text, part)                                                                                          \
    do {                                                                                                               \
        const char *text_ = (text), *part_ = (part);                                                                   \
        if (!text_ || !strstr(text_, part_))                                                                           \
            TEST_FAIL_("%s = \"%s\" lacks \"%s\"", #text, text_ ? text_ : "(null)", part_);                            \
    } while (0)
#define REQUIRE_OK(expr)                                                                                               \
    do {                                                                                                               \
        cr_status st_ = (expr);                                                                                        \
        if (st_ != CR_OK) {                                                                                            \
            TEST_FAIL_("%s: %s: %s [%s]", #expr, cr_status_name(st_), cr_error_message(), cr_error_trail());           \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)
#define CHECK_STATUS(expr, want)                                                                                       \
    do {                                                                                                               \
        cr_status st_ = (expr);                                                                                        \
        if (st_ != (want))                                                                                             \
            TEST_FAIL_("%s: status %s, want %s (%s)", #expr, cr_status_name(st_), cr_status_name(want),                \
                       cr_error_message());                                                                            \
    } while (0)
#define SKIP(why)                                                                                                      \
    do {                                                                                                               \
        printf("    skipped: %s\n", (why));                                                                            \
        test_skipped_ = true;                                                                                          \
        return;                                                                                                        \
    } while (0)

static void (*test_end_)(void); /* releases what the cases share */

int main(int argc, char **argv) {
    int passed = 0, failed = 0, skipped = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    cr_log_quiet(true);
    const cr_status cpu = cr_cpu_check(); /* CRESNET_CPU: the level that all cases run at */
    if (cpu != CR_OK) {
        printf("%s\n%s\n", cr_error_message(),
               cpu == CR_ERR_DEVICE ? "0 passed, 0 failed, 1 skipped" : "0 passed, 1 failed, 0 skipped");
        return cpu == CR_ERR_DEVICE ? 77 : 1;
    }
    for (int i = 0; i < test_count_; i++) {
        if (argc > 1 && !strstr(test_cases_[i].name, argv[1])) continue;
        test_failures_ = 0;
        test_skipped_  = false;
        cr_error_clear();
        test_cases_[i].run();
        test_texts_free_();
        const char *verdict = test_failures_ ? "FAIL" : test_skipped_ ? "skip" : "ok";
        printf("%-4s %s\n", verdict, test_cases_[i].name);
        if (test_failures_)
            failed++;
        else if (test_skipped_)
            skipped++;
        else
            passed++;
    }
    if (test_end_) test_end_();
    if (!failed && cr_alloc_live())
        printf("FAIL %lld blocks are still allocated\n", (long long)cr_alloc_live()), failed++;
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed ? 1 : (!passed && skipped) ? 77 : 0;
}
/* The folder of real data, or NULL: tests that need it are skipped. */
static inline const char *test_data_dir(void) {
    return getenv("CRESNET_TEST_DATA");
}

#endif
