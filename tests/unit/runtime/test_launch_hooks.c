/* tests/unit/runtime/test_launch_hooks.c: hooks around the launches of a program: the order of their calls, errors, and
 * when the graph is captured again. */
#include "tests/harness/network_support.h"

static cr_status open_network(struct net *n) {
    static const char *const overrides[] = {"model.arch=custom", "model.depths=1", "model.widths=4", "model.classes=3"};
    const struct net_plan    plan        = {.overrides = overrides,
                                            .count     = CR_COUNT(overrides),
                                            .kind      = CR_PROGRAM_EVAL,
                                            .classes   = 3,
                                            .size      = 8,
                                            .batch     = 1,
                                            .device    = {.threads = 1, .ref_only = true}};
    return net_open(n, &plan);
}

static struct cr_text calls; /* "<3a" before op 3 for hook a, ">3a" after it, ".a" the end, "xa" closed */

struct notes {
    char name;
    int  fails_at; /* op before which the hook fails; -1: never */
};

static cr_status note_before(void *context, int op) {
    const struct notes *r = context;
    if (op == r->fails_at) return CR_FAIL(CR_ERR_DEVICE, "the hook has failed");
    cr_text_add(&calls, "<%d%c ", op, r->name);
    return CR_OK;
}
static cr_status note_after(void *context, int op) {
    cr_text_add(&calls, ">%d%c ", op, ((const struct notes *)context)->name);
    return CR_OK;
}
static cr_status note_end(void *context) {
    cr_text_add(&calls, ".%c ", ((const struct notes *)context)->name);
    return CR_OK;
}
static void note_close(void *context) {
    cr_text_add(&calls, "x%c ", ((const struct notes *)context)->name);
}
static struct cr_launch_hook hook_of(struct notes *r) {
    return (struct cr_launch_hook){
        .before = note_before, .after = note_after, .end = note_end, .close = note_close, .context = r};
}

static void check_calls(const char *want) {
    CHECK_STR(calls.data ? calls.data : "", want);
    cr_text_free(&calls);
    calls = (struct cr_text){0};
}

/* The calls of ops first to last with hooks a and b. */
static void add_pairs(struct cr_text *out, int first, int last) {
    for (int i = first; i <= last; i++) cr_text_add(out, "<%da <%db >%db >%da ", i, i, i, i);
}

/* Hook b was added later, so its work is nearer to the launch. The end comes once, after the last op. */
TEST(hooks_enclose_every_launch) {
    struct net           n;
    struct notes         first = {'a', -1}, second = {'b', -1};
    struct cr_step_block step = {0};
    OWNED(text)          want = {0};
    REQUIRE_OK(open_network(&n));
    REQUIRE_OK(cr_exec_run(n.exec, &step));
    check_calls("");
    REQUIRE_OK(cr_exec_add_hook(n.exec, &(struct cr_launch_hook){0})); /* all functions are optional */
    const struct cr_launch_hook hooks[] = {hook_of(&first), hook_of(&second)};
    for (size_t h = 0; h < CR_COUNT(hooks); h++) REQUIRE_OK(cr_exec_add_hook(n.exec, &hooks[h]));
    REQUIRE_OK(cr_exec_run(n.exec, &step));
    add_pairs(&want, n.program.hoisted, n.program.ops - 1);
    cr_text_add(&want, ".a .b ");
    check_calls(want.data);
    REQUIRE_OK(cr_exec_run_range(n.exec, &step, 2, 3));
    check_calls("<2a <2b >2b >2a <3a <3b >3b >3a ");
    net_close(&n);
    check_calls("xa xb ");
}

TEST(errors_end_the_run) {
    struct net           n;
    struct notes         fails = {'a', 2};
    struct cr_step_block step  = {0};
    REQUIRE_OK(open_network(&n));
    const struct cr_launch_hook hook = hook_of(&fails);
    REQUIRE_OK(cr_exec_add_hook(n.exec, &hook));
    CHECK_STATUS(cr_exec_run_range(n.exec, &step, 0, n.program.ops - 1), CR_ERR_DEVICE);
    CHECK(strstr(cr_error_message(), "op 2, ") && strstr(cr_error_message(), "the hook has failed"));
    check_calls("<0a >0a <1a >1a ");
    net_close(&n);
    check_calls("xa ");
}
