/* tests/unit/core/test_temporary.c: temporary files and folders: what a killed process has left is removed, what
 * another process still writes is kept, permissions stay, and a failure at each change on disk leaves the old file and
 * nothing else. */
#include "core/temporary.h"
#include "tests/harness/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>

static int count_names(void) {
    int  count = 0;
    DIR *dir   = opendir(tmp_path);
    for (struct dirent *e; dir && (e = readdir(dir));) count += e->d_name[0] != '.';
    if (dir) closedir(dir);
    return count;
}

static bool there(const char *name) {
    return access(in_folder("%s", name), F_OK) == 0;
}

static void put(const char *name) {
    FILE *f = fopen(in_folder("%s", name), "wb");
    CHECK(f != NULL);
    if (f) fclose(f);
}

static bool holds(const char *name, const char *text) {
    char        bytes[64] = {0};
    OWNED(file) f         = fopen(in_folder("%s", name), "rb");
    size_t      got       = f ? fread(bytes, 1, sizeof bytes - 1, f) : 0;
    return got == strlen(text) && memcmp(bytes, text, got) == 0;
}

TEST(commit_replaces_and_drop_removes) {
    struct cr_temporary t;
    struct stat         s;
    folder_open();
    REQUIRE_OK(cr_temporary_file(&t, in_folder("x")));
    CHECK_INT(count_names(), 1);
    CHECK(!there("x"));
    cr_temporary_drop(&t);
    cr_temporary_drop(&t); /* a second time is allowed */
    CHECK_INT(count_names(), 0);
    REQUIRE_OK(cr_file_write_atomic(in_folder("x"), "old", 3));
    CHECK_INT(chmod(in_folder("x"), 0640), 0);
    REQUIRE_OK(cr_file_write_atomic(in_folder("x"), "new", 3));
    CHECK(holds("x", "new") && count_names() == 1);
    CHECK(stat(in_folder("x"), &s) == 0 && (s.st_mode & 0777) == 0640);
}

TEST(leftovers_are_removed) {
    static const char *const left[] = {"x.tmp.1", "x.tmp.4194304", "x.tmp.77.3"};
    static const char *const kept[] = {"x.tmp.",   "x.tmp.1x", "x.tmp.1.", "x.tmp.1.2.3",
                                       "x.tmp.-1", "y.tmp.1",  "xx.tmp.1", "x.tmp"};
    struct cr_temporary      t;
    folder_open();
    for (size_t i = 0; i < CR_COUNT(left); i++) put(left[i]);
    for (size_t i = 0; i < CR_COUNT(kept); i++) put(kept[i]);
    CHECK_INT(mkdir(in_folder("x.tmp.5"), 0755), 0); /* no file: not of this kind */
    CHECK_INT(symlink("y.tmp.1", in_folder("x.tmp.6")), 0);
    CHECK_INT(mkfifo(in_folder("x.tmp.7"), 0600), 0);
    REQUIRE_OK(cr_temporary_file(&t, in_folder("x")));
    for (size_t i = 0; i < CR_COUNT(left); i++) CHECK(!there(left[i]));
    for (size_t i = 0; i < CR_COUNT(kept); i++) CHECK(there(kept[i]));
    CHECK(there("x.tmp.5") && there("x.tmp.6") && there("x.tmp.7") && there("y.tmp.1"));
    cr_temporary_drop(&t);
}

/* A process of another container may have the same number. */
TEST(a_name_that_is_taken) {
    struct cr_temporary a, b;
    folder_open();
    REQUIRE_OK(cr_temporary_file(&a, in_folder("x")));
    REQUIRE_OK(cr_temporary_file(&b, in_folder("x")));
    CHECK(strcmp(a.path, b.path) != 0);
    CHECK_INT(count_names(), 2);
    REQUIRE_OK(cr_temporary_commit(&a));
    REQUIRE_OK(cr_temporary_commit(&b));
    CHECK(there("x") && count_names() == 1);
}

TEST(folders_are_removed_with_their_content) {
    struct cr_temporary t;
    folder_open();
    CHECK_INT(mkdir(in_folder("x.tmp.1"), 0755), 0);
    put("x.tmp.1/file");
    put("x.tmp.2"); /* no folder: not of this kind */
    REQUIRE_OK(cr_temporary_folder(&t, in_folder("x")));
    CHECK(!there("x.tmp.1") && there("x.tmp.2"));
    CHECK(cr_fs_is_dir(t.path) && t.fd == -1);
    CHECK_INT(symlink("/", in_folder("x.tmp.2.link")), 0);
    cr_temporary_drop(&t);
    CHECK_INT(count_names(), 2);
}

TEST(each_failing_change_leaves_the_old_file) {
    folder_open();
    REQUIRE_OK(cr_file_write_atomic(in_folder("x"), "old", 3));
    const uint64_t before = cr_fs_calls();
    REQUIRE_OK(cr_file_write_atomic(in_folder("x"), "old", 3));
    const int64_t changes = (int64_t)(cr_fs_calls() - before);
    CHECK(changes >= 5);
    for (int64_t nth = 1; nth <= changes; nth++) {
        cr_error_clear();
        cr_fs_fail_at(nth, 1, EIO);
        cr_status status = cr_file_write_atomic(in_folder("x"), "new", 3);
        cr_fs_fail_at(0, 0, 0);
        CHECK_STATUS(status, CR_ERR_IO);
        CHECK(nth == changes ? holds("x", "new") : holds("x", "old")); /* the last one syncs the folder */
        CHECK_INT(count_names(), 1);
    }
}

TEST(paths_that_are_too_long) {
    struct cr_temporary t;
    char                path[CR_PATH_MAX + 8];
    memset(path, 'x', sizeof path);
    path[sizeof path - 1] = 0;
    CHECK_STATUS(cr_temporary_file(&t, path), CR_ERR_IO);
    cr_temporary_drop(&t);
    path[CR_PATH_MAX - 3] = 0; /* no room for .tmp.PID */
    CHECK_STATUS(cr_temporary_folder(&t, path), CR_ERR_IO);
    cr_temporary_drop(&t);
    CHECK_STATUS(cr_temporary_file(&t, "/no/such/folder/x"), CR_ERR_IO);
    cr_temporary_drop(&t);
}
