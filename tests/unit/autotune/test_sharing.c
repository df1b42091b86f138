/* tests/unit/autotune/test_sharing.c: times that were measured while other processes used the device are not saved, and
 * processes that share a file measure one after another. The decision is compared with a majority vote, on all
 * sequences of tests. The table runs on a fake device whose reference work takes given times. */
#include "tests/harness/cost_table_support.h"

#include <sys/wait.h>

/* A first quiet test decides; otherwise the majority of three does, as soon as it is certain. */
TEST(decision_is_the_majority_of_three) {
    static const double quiet[] = {1, 1.02, 1.14}, high[] = {1.16, 2, 1e9};
    for (int bits = 0; bits < 8; bits++)
        for (int level = 0; level < 9; level++) {
            struct cr_contention test[CR_SHARING_TRIES];
            int                  votes = 0, tests = 0;
            enum cr_sharing      decision = CR_SHARING_UNDECIDED;
            for (int i = 0; i < CR_SHARING_TRIES; i++) {
                const double value = bits >> i & 1 ? high[level % 3] : quiet[level % 3];
                test[i]            = (struct cr_contention){level / 3 ? value : 1, level / 3 != 1 ? value : 1};
                votes += bits >> i & 1;
            }
            while (tests < CR_SHARING_TRIES && decision == CR_SHARING_UNDECIDED)
                decision = cr_sharing_decide(test, ++tests);
            const bool shared = (bits & 1) && votes >= 2;
            CHECK(decision == (shared ? CR_SHARING_YES : CR_SHARING_NO));
            CHECK_INT(tests, bits & 1 ? (bits >> 1 & 1 ? 2 : 3) : 1);
        }
    CHECK(cr_sharing_decide(NULL, 0) == CR_SHARING_UNDECIDED);
}

/* ---- a device with reference work ---- */

static bool by_pieces; /* only the pieces take longer */
static int  replays;   /* launches of graphs so far */
static int  works;     /* launches of reference work so far */
static bool busy;      /* every second launch takes twice as long */

static cr_status work(struct cr_device *d, enum cr_stream stream, uint64_t *ticks) {
    const double slow = busy && works % 2 ? 2 : 1;
    clock_s += 25e-6 * (by_pieces ? 1 : slow);
    for (int b = 0; b < 3; b++) {
        ticks[3 * b] += (uint64_t)(40000 * (by_pieces ? slow : 1));
        ticks[3 * b + 1] += 10;
        ticks[3 * b + 2] = 4000;
    }
    return works++, CR_OK;
}

static cr_status count_replays(struct cr_device *d, void *graph) {
    return replays++, replay(d, graph);
}

static cr_status refuse_tests(struct cr_device *d, size_t bytes, void **out) {
    return bytes == 3 * CR_REFERENCE_BLOCKS * sizeof(uint64_t) ? CR_FAIL(CR_ERR_MEMORY, "no memory")
                                                               : fake_reserve(d, bytes, out);
}

static struct cr_async   work_async;
static struct cr_backend work_backend;

static void open_with_work(struct fixture *s, const char *dir, bool is_busy) {
    fixture_open(s, dir, "GPU A, driver 1");
    work_async                = fake_async;
    work_async.reference_work = work;
    work_async.graph_launch   = count_replays;
    work_backend              = fake_backend;
    work_backend.async        = &work_async;
    s->device.backend         = &work_backend;
    busy                      = is_busy;
    works = replays = 0;
    by_pieces       = false;
}

static void begin_with_work(struct fixture *s, bool is_busy) {
    char dir[SUPPORT_PATH];
    make_folder(dir);
    open_with_work(s, dir, is_busy);
}

/* The next process with the same file. */
static void reopen_with_work(struct fixture *s, bool is_busy) {
    fixture_close(s);
    open_with_work(s, s->dir, is_busy);
}

/* As if half a second had passed since the last test. */
static void let_time_pass(struct fixture *s) {
    s->table->sharing.tested_ns -= 600000000;
}

/* Whether the file has the times for this batch size, so that a next process measures nothing. */
static bool is_saved(const char *dir, int64_t batch) {
    OWNED(fixture) s = {0};
    fixture_open(&s, dir, "GPU A, driver 1");
    resize(&s, batch);
    CHECK(best(&s).algo == 1);
    const int64_t count = measured(&s);
    CHECK(count == 0 || count == 3);
    return count == 0;
}

/* The times of a shared device select kernels and get into checkpoints, but not into the file. */
static void check_times_are_not_saved(bool pieces) {
    struct fixture s;
    char          *text = NULL;
    begin_with_work(&s, false);
    best(&s);
    const int plain = replays;
    reopen_with_work(&s, true);
    by_pieces = pieces;
    CHECK(best(&s).algo == 1 && replays >= plain + 3 * 6); /* 8 rounds instead of 2 for each candidate */
    CHECK_INT(works, 2 * 52);
    REQUIRE_OK(cr_cost_table_text(s.table, &text));
    CHECK_HAS(text, "100000\tfake.b\t1");
    cr_free(text);
    cr_cost_table_flush(s.table);
    for (int i = 0; i < s.table->entries; i++) CHECK_INT(s.table->entry[i].source, CR_COST_SHARED);
    CHECK(best(&s).algo == 1 && measured(&s) == 3); /* this run does not measure again */
    REQUIRE_OK(cr_cost_table_text(s.table, &text));
    CHECK_HAS(text, "100000\tfake.b\t1");
    cr_free(text);
    fixture_close(&s);
    CHECK(!is_saved(s.dir, 2));
    CHECK(access(s.path, F_OK) != 0);
}

TEST(times_of_a_shared_device_are_not_saved) {
    check_times_are_not_saved(false);
    check_times_are_not_saved(true);
}

/* The device has memory for the kernels, but not for a test: it counts as quiet. */
TEST(without_memory_for_a_test_times_are_saved) {
    struct fixture s;
    begin_with_work(&s, true);
    work_backend.reserve = refuse_tests;
    CHECK(best(&s).algo == 1 && works == 0);
    cr_cost_table_flush(s.table);
    CHECK(works == 0 && s.table->sharing.unsaved == 0);
    fixture_close(&s);
    CHECK(is_saved(s.dir, 2));
}

/* Another process starts, or ends, while this one measures: only entries between two quiet tests are saved. */
TEST(only_quiet_periods_are_saved) {
    for (int starts = 0; starts < 2; starts++) {
        struct fixture s;
        begin_with_work(&s, !starts);
        best(&s); /* first period; quiet if the other process starts later */
        let_time_pass(&s);
        resize(&s, 5);
        best(&s);
        busy = starts;
        let_time_pass(&s);
        resize(&s, 6);
        best(&s);
        let_time_pass(&s);
        resize(&s, 7);
        best(&s);
        cr_cost_table_flush(s.table);
        fixture_close(&s);
        /* Starts: the tests are quiet, quiet, busy, busy, busy. Ends: busy, busy, quiet, quiet, quiet. */
        CHECK(is_saved(s.dir, 2) == starts && !is_saved(s.dir, 5));
        CHECK(is_saved(s.dir, 6) == !starts && is_saved(s.dir, 7) == !starts);
    }
}

/* Earlier entries stay in the file when a later run adds nothing because the device is shared. */
TEST(file_keeps_earlier_times) {
    struct fixture s;
    begin_with_work(&s, false);
    best(&s);
    cr_cost_table_flush(s.table);
    reopen_with_work(&s, true);
    CHECK(best(&s).algo == 1 && measured(&s) == 0 && works == 0); /* known times need no test */
    resize(&s, 5);
    best(&s);
    cr_cost_table_flush(s.table);
    fixture_close(&s);
    CHECK(is_saved(s.dir, 2) && !is_saved(s.dir, 5));
}

/* ---- processes ---- */

/* In a child: finds the fastest kernel and exits with the number of measured candidates. */
static pid_t start_child(struct fixture *s) {
    const pid_t child = fork();
    if (child) return child;
    const struct cr_cost cost = best(s);
    cr_cost_table_flush(s->table);
    _exit(cost.algo == 1 ? (int)measured(s) : 99);
}

static int exit_code(pid_t child) {
    int how = 0;
    CHECK(waitpid(child, &how, 0) == child && WIFEXITED(how));
    return WEXITSTATUS(how);
}

/* Two first starts: the second one waits for the first one and measures nothing. */
TEST(second_process_waits_and_reads) {
    OWNED(fixture) s = {0}, second = {0};
    char           dir[SUPPORT_PATH];
    make_folder(dir);
    fixture_open(&s, dir, "GPU A, driver 1");
    fixture_open(&second, dir, "GPU A, driver 1"); /* has read the empty folder */
    best(&s);
    const char *const lock = formatted("%s/kernel_times.txt.0.lock", dir);
    CHECK(access(lock, F_OK) == 0);
    const pid_t child = start_child(&second);
    usleep(100000);
    CHECK(waitpid(child, NULL, WNOHANG) == 0); /* waits */
    cr_cost_table_flush(s.table);
    CHECK_INT(exit_code(child), 0);
    CHECK(access(lock, F_OK) != 0);
}

/* A killed process leaves the lock file, but no lock. Another GPU has another lock. */
TEST(a_left_file_and_another_gpu_do_not_wait) {
    OWNED(fixture) s = {0}, second = {0};
    char           dir[SUPPORT_PATH];
    make_folder(dir);
    const char *const lock = formatted("%s/kernel_times.txt.0.lock", dir);
    write_bytes(lock, "", 0);
    fixture_open(&s, dir, "GPU A, driver 1");
    fixture_open(&second, dir, "GPU A, driver 1");
    second.device.options.index = 1;
    const int64_t start         = cr_time_ns();
    best(&s);
    CHECK_INT(exit_code(start_child(&second)), 3);
    CHECK(cr_time_ns() - start < 10000000000); /* the limit of the wait is 15 s */
    cr_cost_table_flush(s.table);
    CHECK(access(lock, F_OK) != 0);
}

TEST(one_of_many_processes_measures) {
    enum { MANY = 12 };
    struct fixture s[MANY];
    pid_t          child[MANY];
    char           dir[SUPPORT_PATH];
    int            measurers = 0;
    make_folder(dir);
    for (int i = 0; i < MANY; i++) fixture_open(&s[i], dir, "GPU A, driver 1");
    for (int i = 0; i < MANY; i++) child[i] = start_child(&s[i]);
    for (int i = 0; i < MANY; i++) {
        const int count = exit_code(child[i]);
        CHECK(count == 0 || count == 3);
        measurers += count == 3;
    }
    CHECK_INT(measurers, 1);
    for (int i = 0; i < MANY; i++) fixture_close(&s[i]);
}
