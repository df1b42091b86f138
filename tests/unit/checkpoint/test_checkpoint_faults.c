/* tests/unit/checkpoint/test_checkpoint_faults.c: checkpoints under failure: every change of the disk in a save fails
 * once, or fails from there on; memory runs out. Kills: scripts/kill-test.sh. Each time,
 * older checkpoints load with exactly their content, the links name complete folders, find returns one checkpoint, a
 * sweep removes all leftovers, and no memory leaks. */
#include "tests/harness/checkpoint_fake.h"
#include "tests/harness/failing_alloc.h"

#include <errno.h>
#include <sys/wait.h>

static int64_t found_step(const char *run_dir) {
    char            found[CR_PATH_MAX];
    const cr_status status = cr_ckpt_find(run_dir, found);
    return status == CR_OK && *found ? intact_step(found) : -1;
}

/* Checks the folder after a save of step 30 that returned `status`. 10 (best) and 20 (last) existed before, and perhaps
 * 30. */
static void check_after(cr_status status, bool had_30, bool one_failure, int64_t n) {
    int64_t last = intact_step(in_folder("last")), best = intact_step(in_folder("best")), found = found_step(tmp_path);
    if (last < 0 || best < 0 || found < 0)
        TEST_FAIL_("n = %d: last %d best %d found %d", (int)n, (int)last, (int)best, (int)found);
    if (had_30) CHECK_INT(intact_step(in_folder("step-30")), 30);
    CHECK_INT(intact_step(in_folder("step-20")), 20);
    CHECK_INT(found, last);
    if (status == CR_OK) {
        CHECK_INT(last, 30);
        CHECK_INT(best, 30);
    } else {
        CHECK_INT(status, CR_ERR_IO);
        CHECK_HAS(cr_error_message(), tmp_path);
        CHECK_INT(intact_step(in_folder("step-10")), 10);
        if (one_failure) CHECK_INT(leftovers(tmp_path), 0);
    }
    cr_ckpt_sweep(tmp_path);
    CHECK_INT(leftovers(tmp_path), 0);
    CHECK_INT(found_step(tmp_path), last);
    REQUIRE_OK(fake_save(tmp_path, 40, false, 2)); /* and saving works afterwards */
    CHECK_INT(found_step(tmp_path), 40);
}

static void check_warned(int64_t n) {
    OWNED(string) stderr_text = NULL;
    REQUIRE_OK(cr_file_read(in_folder("said"), 100000, &stderr_text, NULL));
    if (!strstr(stderr_text, "warning")) TEST_FAIL_("call %d failed without an error", (int)n);
}

static void scan(bool again, int64_t times, int error) {
    int64_t failures = 0;
    for (int64_t n = 1;; n++) {
        folder_open();
        REQUIRE_OK(fake_save(tmp_path, 10, true, 5));
        if (again) REQUIRE_OK(fake_save(tmp_path, 30, false, 5));
        REQUIRE_OK(fake_save(tmp_path, 20, false, 5));
        stderr_to(in_folder("said"));
        uint64_t before = cr_fs_calls();
        cr_fs_fail_at(n, times, error);
        cr_status status = fake_save(tmp_path, 30, true, 2);
        cr_fs_fail_at(0, 0, 0);
        bool fired = cr_fs_calls() - before >= (uint64_t)n;
        stderr_back();
        if (!fired) CHECK_INT(status, CR_OK);
        if (fired && status == CR_OK && error != EINVAL) check_warned(n); /* every failure is reported */
        failures += status != CR_OK;
        check_after(status, again, times == 1, n);
        if (!fired) break;
        REQUIRE(n < 500 && !test_failures_);
    }
    CHECK(failures > 25); /* mkdir, 4 x (create, writes, sync, close), syncs, rename, links */
}

TEST(every_call_fails_once) {
    scan(false, 1, EIO);
}
TEST(all_later_calls_fail) {
    scan(false, 1000000, EIO);
}
TEST(disk_stays_full) {
    scan(false, 1000000, ENOSPC);
}
TEST(every_call_fails_once_when_saving_again) {
    scan(true, 1, EIO);
}
TEST(all_later_calls_fail_when_saving_again) {
    scan(true, 1000000, EIO);
}
/* one of the failures is the failure of the exchange itself: the fallback with two renames is used */
TEST(without_atomic_exchange) {
    scan(true, 1, EINVAL);
}

TEST(links_and_atomic_files) {
    for (int64_t n = 1;; n++) {
        char *text;
        folder_open();
        REQUIRE_OK(fake_save(tmp_path, 1, true, 5));
        REQUIRE_OK(fake_save(tmp_path, 2, false, 5));
        REQUIRE_OK(cr_file_write_atomic(in_folder("f"), "old", 3));
        uint64_t before = cr_fs_calls();
        cr_fs_fail_at(n, 1, EIO);
        cr_status best_status = cr_ckpt_point(tmp_path, "best", 2),
                  file        = cr_file_write_atomic(in_folder("f"), "new", 3);
        cr_status dir         = cr_ckpt_prepare_dir(in_folder("x/y"));
        cr_fs_fail_at(0, 0, 0);
        bool fired = cr_fs_calls() - before >= (uint64_t)n;
        CHECK(intact_step(in_folder("best")) == 2 || (best_status != CR_OK && intact_step(in_folder("best")) == 1));
        REQUIRE_OK(cr_file_read(in_folder("f"), 10, &text, NULL));
        CHECK(!strcmp(text, "new") || (file != CR_OK && !strcmp(text, "old")));
        cr_free(text);
        CHECK_INT(leftovers(tmp_path), 0);
        if (fired) CHECK((best_status != CR_OK) + (file != CR_OK) + (dir != CR_OK) <= 1);
        if (!fired) {
            CHECK_INT(best_status | file | dir, CR_OK);
            CHECK(n > 10);
            break;
        }
    }
}

TEST(memory_runs_out) {
    folder_open();
    REQUIRE_OK(fake_save(tmp_path, 1, true, 5));
    for_each_failing_alloc(f, .least = 15, .tolerated = true) {
        const cr_status status = failing_alloc_run(&f, fake_save(tmp_path, 2, true, 5));
        CHECK_INT(leftovers(tmp_path), 0);
        CHECK_INT(found_step(tmp_path), status == CR_OK ? 2 : 1);
    }
    for_each_failing_alloc(f, .least = 15) {
        char        path[CR_PATH_MAX];
        struct fake fake;
        failing_alloc_begin(&f);
        cr_status status = cr_ckpt_model_path(tmp_path, path);
        if (status == CR_OK) status = fake_read(&fake, path, fake_tensors, MODEL);
        failing_alloc_end(&f, status); /* and not "no checkpoint" or an older one */
    }
    /* the message about tensors that do not fit needs memory too */
    for_each_failing_alloc(f, .least = 5, .want = CR_ERR_FORMAT) {
        struct fake           fake;
        struct cr_ckpt_tensor wanted = fake_tensors[SCALE];
        failing_alloc_run(&f, fake_read(&fake, in_folder("last/model.safetensors"), &wanted, 1));
    }
}

TEST(sweep_removes_only_leftovers) {
    folder_open();
    pid_t dead = fork();
    if (dead == 0) _exit(0);
    waitpid(dead, NULL, 0);
    const struct {
        const char *name;
        long        pid;
        bool        remaining;
    } table[] = {
        {".tmp-step-5", dead, false},  {".tmp-step-6", getpid(), false}, {".tmp-step-7", getppid(), false},
        {".gone-step-8", dead, false}, {".swap-step-1", dead, false},    {".swap-step-2", dead, false},
        {".other-step-8", dead, true}, {".tmp-x.y", dead, false},
    };
    REQUIRE_OK(fake_save(tmp_path, 1, false, 5)); /* so .swap-step-1 is old; .swap-step-2 is the only copy of step 2 */
    for (size_t i = 0; i < CR_COUNT(table); i++) {
        REQUIRE_OK(cr_fs_mkdirs(in_folder("%s.%ld/sub/deep", table[i].name, table[i].pid)));
        REQUIRE_OK(cr_fs_write_new(in_folder("%s.%ld/sub/file", table[i].name, table[i].pid), "x", 1));
    }
    CHECK_INT(mkdir(in_folder(".tmp-step-9"), 0700) | mkdir(in_folder(".tmp-step-9.7x"), 0700), 0);
    CHECK_INT(symlink("..", in_folder(".tmp-last.%ld", (long)dead)), 0);
    cr_ckpt_sweep(tmp_path);
    for (size_t i = 0; i < CR_COUNT(table); i++)
        if ((access(in_folder("%s.%ld", table[i].name, table[i].pid), F_OK) == 0) != table[i].remaining)
            TEST_FAIL_("%s.%ld", table[i].name, table[i].pid);
    CHECK(access(in_folder(".tmp-step-9"), F_OK) == 0 && access(in_folder(".tmp-step-9.7x"), F_OK) == 0);
    CHECK(access(in_folder(".tmp-last.%ld", (long)dead), F_OK) < 0);
    CHECK(access(in_folder("step-2/sub/file"), F_OK) == 0);
    CHECK_INT(intact_step(in_folder("step-1")), 1);
    cr_ckpt_sweep(in_folder("none"));
}
