/* tests/unit/compiler/test_program_text.c: compares the text of tiny programs after every pass exactly with
 * tests/golden/program/. A change in these files is a change in the computation or in its memory layout: read the
 * difference; if it is intended, write the files again with CRESNET_BLESS=1 and commit them with the change. */
#include "inspect/plan_print.h"
#include "tests/harness/compiler_support.h"

static void golden_path(char path[1024], const char *name) {
    snprintf(path, 1024, "%s/tests/golden/program/%s.txt", CR_SOURCE_DIR, name);
}

static void write_golden(const char *name, const char *text) {
    char path[1024];
    golden_path(path, name);
    FILE *file = fopen(path, "w");
    REQUIRE(file);
    CHECK(fputs(text, file) >= 0);
    CHECK(fclose(file) == 0);
    printf("    wrote %s\n", name);
}

static char *read_golden(const char *name) {
    char path[1024];
    golden_path(path, name);
    FILE *file = fopen(path, "r");
    if (!file) return NULL;
    struct cr_text text = {0};
    char           part[4096];
    for (size_t n; (n = fread(part, 1, sizeof part, file)) > 0;) cr_text_add_bytes(&text, part, n);
    fclose(file);
    return text.data;
}

/* Prints the first line that differs. */
static void report_difference(const char *name, const char *got, const char *want) {
    int line = 1;
    while (*got && *want) {
        size_t g = strcspn(got, "\n"), w = strcspn(want, "\n");
        if (g != w || memcmp(got, want, g) != 0) break;
        got += g + (got[g] == '\n');
        want += w + (want[w] == '\n');
        line++;
    }
    TEST_FAIL_("%s.txt:%d:\n      got  %.*s\n      want %.*s\n      if this is intended: run with CRESNET_BLESS=1, "
               "then commit",
               name, line, (int)strcspn(got, "\n"), got, (int)strcspn(want, "\n"), want);
}

static void compare(const char *name, const struct cr_text *got) {
    REQUIRE(!got->failed && got->data);
    const char *bless = getenv("CRESNET_BLESS");
    if (bless && *bless == '1') {
        write_golden(name, got->data);
        return;
    }
    char *want = read_golden(name);
    if (!want)
        TEST_FAIL_("tests/golden/program/%s.txt is missing: CRESNET_BLESS=1 writes it", name);
    else if (strcmp(got->data, want) != 0)
        report_difference(name, got->data, want);
    cr_free(want);
}

/* ---- the networks ---- */

#define TINY "model.arch=custom", "model.classes=10", "train.label_smoothing=0.1"

static const char *const basic_a[]      = {TINY, "model.depths=1,1", "model.widths=4,8", "model.stem=cifar",
                                           "model.shortcut=A"};
static const char *const bottleneck_b[] = {TINY,
                                           "model.depths=1,1",
                                           "model.widths=2,3",
                                           "model.block=bottleneck",
                                           "model.stem=imagenet",
                                           "model.shortcut=B",
                                           "model.freeze=stem"};
static const char *const accumulating[] = {TINY, "model.depths=1", "model.widths=4", "model.stem=cifar",
                                           "train.accumulate=3"};

struct net {
    const char        *name;
    const char *const *overrides;
    int                count;
    int64_t            size;
};

static void one_text(const struct net *net, struct bench_model *b, enum cr_program_kind kind, const char *pass) {
    struct cr_program         p;
    char                      name[128];
    struct cr_text            text       = {0};
    struct cr_cost_model      cost_model = greedy_cost_model(64);
    struct cr_compile_options options    = {.fuse = true, .reuse = true, .until = pass};
    REQUIRE_OK(cr_model_program(&b->model, b->config, kind, 2, &p));
    REQUIRE_OK(cr_compile(&p, &cost_model, &options));
    cr_program_print(&p, &text);
    if (strcmp(pass, "plan") == 0) { /* the ops are unchanged: show the memory instead */
        cr_text_free(&text);
        cr_plan_print_summary(&p, &text);
        cr_plan_print_csv(&p, &text);
    }
    snprintf(name, sizeof name, "%s.%s.%s", net->name, p.name, pass);
    compare(name, &text);
    cr_text_free(&text);
    cr_program_free(&p);
}

static void texts_of(const struct net *net, const enum cr_program_kind *kinds, int count, bool all_passes) {
    const char *const  passes[] = {"grad", "fuse", "select", "plan"};
    struct bench_model b;
    REQUIRE_OK(bench_open(&b, net->overrides, net->count, net->size));
    for (int k = 0; k < count; k++)
        for (size_t i = 0; i < CR_COUNT(passes); i++)
            if (all_passes || strcmp(passes[i], "fuse") == 0) one_text(net, &b, kinds[k], passes[i]);
    bench_close(&b);
}

static void basic_blocks(void) {
    const struct net           net     = {"basic-a", basic_a, CR_COUNT(basic_a), 8};
    const enum cr_program_kind kinds[] = {CR_PROGRAM_STEP, CR_PROGRAM_EVAL};
    texts_of(&net, kinds, 2, true);
}

static void bottleneck_blocks_with_a_frozen_stem(void) {
    const struct net           net     = {"bottleneck-b", bottleneck_b, CR_COUNT(bottleneck_b), 16};
    const enum cr_program_kind kinds[] = {CR_PROGRAM_STEP, CR_PROGRAM_EVAL};
    texts_of(&net, kinds, 2, true);
}

static void accumulated_gradients(void) {
    const struct net           net     = {"accumulate", accumulating, CR_COUNT(accumulating), 8};
    const enum cr_program_kind kinds[] = {CR_PROGRAM_MICRO_FIRST, CR_PROGRAM_MICRO, CR_PROGRAM_MICRO_LAST};
    texts_of(&net, kinds, 3, false);
}

/* One stream needs no waits, so insert_waits changes nothing; with weight gradients on their own stream it must add
 * waits. */
static void waits_between_streams(void) {
    struct bench_model b;
    struct cr_program  p;
    struct cr_text     before = {0}, after = {0};
    REQUIRE_OK(bench_open(&b, basic_a, CR_COUNT(basic_a), 8));
    REQUIRE_OK(cr_model_program(&b.model, b.config, CR_PROGRAM_STEP, 2, &p));
    struct cr_cost_model cost_model = greedy_cost_model(64);
    REQUIRE_OK(cr_pass_fuse(&p, &cost_model));
    cr_program_print(&p, &before);
    REQUIRE_OK(cr_pass_insert_waits(&p));
    cr_program_print(&p, &after);
    CHECK_STR(after.data, before.data);
    cr_text_free(&before);
    cr_text_free(&after);
    for (int i = 0; i < p.ops; i++)
        if (p.op[i].kind == CR_OP_conv_wgrad) p.op[i].stream = CR_STREAM_COMM;
    REQUIRE_OK(cr_pass_insert_waits(&p));
    REQUIRE_OK(cr_waits_check(&p));
    cr_program_print(&p, &after);
    compare("streams.step.insert_waits", &after);
    cr_text_free(&after);
    cr_program_free(&p);
    bench_close(&b);
}

TESTS(CASE(basic_blocks), CASE(bottleneck_blocks_with_a_frozen_stem), CASE(accumulated_gradients),
      CASE(waits_between_streams))
