/* tests/unit/checkpoint/test_checkpoint.c: content of checkpoint files, folders, links, the number of checkpoints to
 * keep, find. Conversion, permutation and files that do not fit: tests/unit/checkpoint/test_checkpoint_read.c; failing
 * calls: tests/unit/checkpoint/test_checkpoint_faults.c. */
#include "tests/harness/checkpoint_fake.h"

static bool is_there(const char *path) {
    return access(path, F_OK) == 0;
}

static void check_link(const char *link, const char *want) {
    char    target[64] = "";
    ssize_t length     = readlink(in_folder("%s", link), target, sizeof target - 1);
    CHECK(length > 0);
    CHECK_STR(target, want);
}

/* ---- content of a checkpoint ---- */

TEST(files_of_a_checkpoint) {
    struct cr_st_file *file;
    float              conv[120];
    int64_t            count = 0;
    folder_open();
    REQUIRE_OK(fake_save(tmp_path, 5, false, 2));
    check_link("last", "step-5");
    CHECK(!is_there(in_folder("best")));
    CHECK_INT(intact_step(in_folder("step-5")), 5);
    REQUIRE_OK(cr_st_open(in_folder("last/model.safetensors"), &file));
    CHECK_INT(cr_st_count(file), MODEL);
    CHECK_STR(cr_st_meta_find(file, "format"), "pt");
    CHECK(cr_st_meta_find(file, "step") == NULL); /* equal weights give equal files at any step */
    const struct cr_st_entry *entry = cr_st_find(file, "conv1.weight");
    REQUIRE(entry && entry->bytes == sizeof conv && entry->dims == 4 && entry->dim[1] == 3);
    REQUIRE_OK(cr_st_read(file, entry, 0, conv, sizeof conv));
    /* K,C,R,S: the values increase in file order */
    for (int i = 0; i < 120; i++) CHECK_NEAR(conv[i], value_of(CONV, 5, i), 0);
    entry = cr_st_find(file, "bn1.num_batches_tracked");
    REQUIRE(entry && entry->dims == 0 && entry->dtype == CR_I64);
    REQUIRE_OK(cr_st_read(file, entry, 0, &count, 8));
    CHECK_INT(count, value_of(COUNT, 5, 0));
    cr_st_close(file);
    REQUIRE_OK(cr_st_open(in_folder("last/state.safetensors"), &file));
    CHECK_STR(cr_st_meta_find(file, "step"), "5");
    CHECK_STR(cr_st_meta_find(file, "epoch"), "3");
    cr_st_close(file);
}

TEST(equal_states_give_equal_files) {
    static const char *const names[] = {"model.safetensors", "state.safetensors", "config.ini", "classes.txt",
                                        "kernel_times.txt"};
    folder_open();
    REQUIRE_OK(cr_ckpt_prepare_dir(in_folder("a")));
    REQUIRE_OK(cr_ckpt_prepare_dir(in_folder("b")));
    REQUIRE_OK(fake_save(in_folder("a"), 7, false, 2));
    usleep(20000);
    REQUIRE_OK(fake_save(in_folder("b"), 7, true, 0));
    for (size_t i = 0; i < CR_COUNT(names); i++)
        CHECK(same_bytes(in_folder("a/step-7/%s", names[i]), in_folder("b/last/%s", names[i])));
    REQUIRE_OK(fake_save(in_folder("b"), 8, false, 0));
    CHECK(!same_bytes(in_folder("a/last/model.safetensors"), in_folder("b/last/model.safetensors")));
}

TEST(io_fails) {
    struct fake fake;
    folder_open();
    REQUIRE_OK(fake_save(tmp_path, 1, false, 2));
    for (int n = 1; n <= BLOBS; n++) {
        fake_fill(&fake, 2);
        fake.fail_at = n;
        CHECK_STATUS(fake_save_from(&fake, tmp_path, 2, true, 2), CR_ERR_DEVICE);
        CHECK_INT(leftovers(tmp_path), 0);
        CHECK(!is_there(in_folder("step-2")));
    }
    fake_fill(&fake, 2);
    fake.fail_at = 2;
    CHECK_STATUS(fake_read(&fake, in_folder("last/model.safetensors"), fake_tensors, MODEL), CR_ERR_DEVICE);
}

TEST(class_name_with_line_break) {
    const char *const   classes[] = {"cat", "do\ng"};
    struct cr_ckpt_io   io        = {.get = fake_get, .put = fake_put};
    struct cr_ckpt_save save      = {.step = 1, .config_text = "", .class_names = classes, .classes = 2};
    folder_open();
    save.run_dir = tmp_path;
    CHECK_STATUS(cr_ckpt_write(&save, &io), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "class 1 contains a line break");
    CHECK_INT(leftovers(tmp_path), 0);
}

/* ---- folders and links ---- */

TEST(run_folder) {
    folder_open();
    CHECK(!cr_ckpt_dir_in_use(in_folder("a/b//c/")));
    REQUIRE_OK(cr_ckpt_prepare_dir(in_folder("a/b//c/")));
    REQUIRE_OK(cr_ckpt_prepare_dir(in_folder("a/b/c")));
    CHECK(!cr_ckpt_dir_in_use(in_folder("a/b/c")));
    REQUIRE_OK(cr_ckpt_prepare_dir(in_folder("a/b/c/lost+found")));
    CHECK(!cr_ckpt_dir_in_use(in_folder("a/b/c")));
    REQUIRE_OK(cr_file_write_atomic(in_folder("a/b/c/file"), "x", 1));
    CHECK(cr_ckpt_dir_in_use(in_folder("a/b/c")));
    CHECK_STATUS(cr_ckpt_prepare_dir(in_folder("a/b/c/file")), CR_ERR_IO);
    CHECK_HAS(cr_error_message(), "is not a folder");
    CHECK_STATUS(cr_ckpt_prepare_dir(in_folder("a/b/c/file/run")), CR_ERR_IO);
    CHECK_HAS(cr_error_message(), in_folder("a/b/c/file"));
    CHECK_HAS(cr_error_message(), "train.output=");
    CHECK_STATUS(cr_ckpt_prepare_dir("/proc/cresnet-run"),
                 CR_ERR_IO); /* no user, not even root, may create folders there */
    CHECK_HAS(cr_error_message(), "/proc/cresnet-run");
    CHECK_STATUS(cr_ckpt_prepare_dir(""), CR_ERR_IO);
    CHECK_STATUS(fake_save(in_folder("nowhere"), 1, false, 1), CR_ERR_IO);
    CHECK_HAS(cr_error_message(), in_folder("nowhere"));
    CHECK_INT(leftovers(in_folder("a/b/c")), 0);
}

TEST(keep_counts) {
    folder_open();
    for (int step = 1; step <= 9; step++) REQUIRE_OK(fake_save(tmp_path, step, step == 3, 2));
    for (int step = 1; step <= 9; step++)
        CHECK_INT(intact_step(in_folder("step-%d", step)), step == 3 || step >= 8 ? step : -1 /* 9 is `last` */);
    check_link("best", "step-3");
    check_link("last", "step-9");
    REQUIRE_OK(cr_ckpt_point(tmp_path, "best", 8));
    check_link("best", "step-8");
    REQUIRE_OK(fake_save(tmp_path, 10, false, 0));
    for (int step = 1; step <= 10; step++) CHECK(is_there(in_folder("step-%d", step)) == (step == 8 || step == 10));
    CHECK_STATUS(cr_ckpt_point(tmp_path, "best", 3), CR_ERR_IO);
    check_link("best", "step-8");
    /* a name that is not step-N is never removed */
    CHECK_INT(mkdir(in_folder("step-007"), 0700) | mkdir(in_folder("step-x"), 0700) | mkdir(in_folder("step-"), 0700),
              0);
    REQUIRE_OK(fake_save(tmp_path, 11, false, -1));
    REQUIRE_OK(fake_save(tmp_path, 12, false, 0));
    CHECK(is_there(in_folder("step-007")) && is_there(in_folder("step-x")) && is_there(in_folder("step-")));
    CHECK(!is_there(in_folder("step-10")) && !is_there(in_folder("step-11")) && is_there(in_folder("step-8")));
    CHECK_INT(leftovers(tmp_path), 0);
}

TEST(saving_a_step_again) {
    struct fake other;
    folder_open();
    REQUIRE_OK(fake_save(tmp_path, 1, true, 5));
    fake_fill(&other, 2);
    REQUIRE_OK(fake_save_from(&other, tmp_path, 1, false, 5));
    CHECK_INT(intact_step(in_folder("step-1")), -1); /* it now holds the values of step 2 */
    REQUIRE_OK(fake_save(tmp_path, 1, false, 5));
    CHECK_INT(intact_step(in_folder("step-1")), 1);
    CHECK_INT(intact_step(in_folder("best")), 1);
    CHECK_INT(leftovers(tmp_path), 0);
}

static int64_t found_step(const char *run_dir) {
    OWNED(string) found  = NULL;
    cr_status     status = cr_ckpt_find_intact(run_dir, &found);
    return found ? intact_step(found) : status == CR_OK ? -2 : -3;
}

static void damage(const char *path) {
    CHECK_INT(truncate(path, 100), 0);
}

TEST(find_newest) {
    char *stderr_text, *found, path[CR_PATH_MAX];
    folder_open();
    CHECK_INT(found_step(tmp_path), -2);
    CHECK_INT(found_step(in_folder("none")), -2);
    REQUIRE_OK(cr_file_write_atomic(in_folder("file"), "x", 1));
    CHECK_INT(found_step(in_folder("file")), -3);
    for (int step = 1; step <= 10; step += 3)
        REQUIRE_OK(fake_save(tmp_path, step, false, 10)); /* 1 4 7 10: 10 > 7 as numbers */
    CHECK_INT(found_step(tmp_path), 10);
    stderr_to(in_folder("said"));
    damage(in_folder("step-10/state.safetensors"));
    CHECK_INT(symlink("step-10", in_folder("best")), 0);
    CHECK_STATUS(cr_ckpt_find_best(tmp_path, path), CR_ERR_FORMAT); /* only a resumed run goes on to an older one */
    CHECK_HAS(cr_error_message(), "step-10/state.safetensors");
    CHECK_STATUS(cr_ckpt_find(tmp_path, path), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "step-10/state.safetensors");
    REQUIRE_OK(cr_ckpt_find_intact(tmp_path, &found));
    stderr_back();
    CHECK_INT(intact_step(found), 7);
    cr_free(found);
    REQUIRE_OK(cr_file_read(in_folder("said"), 10000, &stderr_text, NULL));
    CHECK_HAS(stderr_text, "step-10/state.safetensors");
    CHECK_HAS(stderr_text, "checkpoint skipped");
    CHECK(strchr(stderr_text, '\n') == strrchr(stderr_text, '\n')); /* on one line */
    cr_free(stderr_text);
    stderr_to("/dev/null");
    CHECK_INT(found_step(tmp_path), 7);
    unlink(in_folder("last"));
    CHECK_INT(found_step(tmp_path), 7);
    unlink(in_folder("step-7/config.ini"));
    CHECK_INT(found_step(tmp_path), 4);
    CHECK_INT(symlink("step-1", in_folder("last")), 0); /* a user set the link back by hand */
    CHECK_INT(found_step(tmp_path), 1);
    unlink(in_folder("last"));
    CHECK_INT(symlink("step-99", in_folder("last")), 0);
    CHECK_INT(found_step(tmp_path), 4);
    CHECK_INT(rename(in_folder("step-4"), in_folder("step-50")), 0); /* its files say step 4 */
    CHECK_INT(found_step(tmp_path), 1);
    damage(in_folder("step-1/model.safetensors"));
    CHECK_INT(found_step(tmp_path), -3); /* a run must not start again as if nothing were there */
    CHECK_HAS(cr_error_message(), "no checkpoint in this folder can be read");
    stderr_back();
}

static void put_byte(const char *path, off_t at, char value) {
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    CHECK(fd >= 0 && pwrite(fd, &value, 1, at) == 1);
    close(fd);
}

static void exchange(const char *a, const char *b) {
    CHECK_INT(cr_fs_exchange(a, b), 0);
}

/* Checks that the folder step-2 is refused with a message that has `what`, and that step-1 is found instead of it. */
static void check_refused(const char *what) {
    CHECK_STATUS(cr_ckpt_verify(in_folder("step-2")), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), what);
    CHECK_HAS(cr_error_message(), "; the newest intact checkpoint before it is ");
    CHECK_HAS(cr_error_message(), "/step-1");
    stderr_to("/dev/null");
    CHECK_INT(found_step(tmp_path), 1);
    stderr_back();
}

/* Damage that needs no flipped bit, and a list of files that was tampered with. */
TEST(damaged_folders) {
    static const char *const moved[] = {"model.safetensors", "state.safetensors", "config.ini"};
    char                    *text, *extra;
    size_t                   length;
    folder_open();
    REQUIRE_OK(fake_save(tmp_path, 1, false, 9));
    REQUIRE_OK(fake_save(tmp_path, 2, false, 9));
    REQUIRE_OK(cr_ckpt_verify(in_folder("step-2")));
    for (size_t i = 0; i < CR_COUNT(moved); i++) { /* files of another step, each valid in itself */
        exchange(in_folder("step-1/%s", moved[i]), in_folder("step-2/%s", moved[i]));
        CHECK_STATUS(cr_ckpt_verify(in_folder("step-2")), CR_ERR_FORMAT);
        CHECK_HAS(cr_error_message(), moved[i]);
        exchange(in_folder("step-1/%s", moved[i]), in_folder("step-2/%s", moved[i]));
    }
    CHECK_INT(rename(in_folder("step-2/classes.txt"), in_folder("away")), 0);
    check_refused("step-2/classes.txt: is missing, although checksums.txt lists it");
    CHECK_INT(rename(in_folder("away"), in_folder("step-2/classes.txt")), 0);
    REQUIRE_OK(cr_file_read(in_folder("step-2/model.safetensors"), 1 << 20, &text, &length));
    extra = cr_alloc(length + 1, 1);
    memcpy(extra, text, length);
    REQUIRE_OK(cr_file_write_atomic(in_folder("step-2/model.safetensors"), extra, length + 1));
    check_refused("step-2/model.safetensors: not a valid safetensors file: 1 bytes at the end");
    REQUIRE_OK(cr_file_write_atomic(in_folder("step-2/model.safetensors"), text, length));
    put_byte(in_folder("step-2/model.safetensors"), (off_t)length - 1, (char)(text[length - 1] ^ 1));
    check_refused("step-2/model.safetensors: tensor \"fc.weight\" is damaged (wrong checksum)");
    put_byte(in_folder("step-2/model.safetensors"), (off_t)length - 1, text[length - 1]);
    cr_free(text);
    cr_free(extra);
    REQUIRE_OK(cr_file_read(in_folder("step-2/checksums.txt"), 1 << 20, &text, &length));
    CHECK_INT(truncate(in_folder("step-2/checksums.txt"), (off_t)(strrchr(strstr(text, "state"), 's') - text)), 0);
    check_refused("step-2/checksums.txt: is damaged");
    CHECK_INT(unlink(in_folder("step-2/checksums.txt")), 0); /* as an older version would have written it */
    REQUIRE_OK(cr_ckpt_verify(in_folder("step-2")));
    CHECK_INT(found_step(tmp_path), 2);
    cr_free(text);
}
