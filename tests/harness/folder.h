/* tests/harness/folder.h: folders of a test program, removed when it ends, also after a failed check. */
#ifndef CR_TEST_FOLDER_H
#define CR_TEST_FOLDER_H

#include "tests/harness/test.h"

#include <sys/stat.h>
#include <unistd.h>

enum { SUPPORT_PATH = 4096 };

static char  tmp_path[SUPPORT_PATH];     /* a folder: the newest of folder_open; in_folder opens the first one */
static char  folder_root_[SUPPORT_PATH]; /* holds all of them */
static pid_t folder_owner_;

static inline void folders_remove_(void) {
    if (getpid() == folder_owner_) cr_fs_remove_tree(folder_root_);
}

/* Makes a new empty folder. */
static inline void make_folder(char path[SUPPORT_PATH]) {
    static int made;
    if (!made) {
        const char *tmp = getenv("TMPDIR");
        snprintf(folder_root_, sizeof folder_root_, "%s/cresnet-test-XXXXXX",
                 tmp && *tmp                     ? tmp
                 : access("/dev/shm", W_OK) == 0 ? "/dev/shm"
                                                 : "/tmp");
        if (!mkdtemp(folder_root_)) TEST_FAIL_("cannot make %s", folder_root_);
        folder_owner_ = getpid();
        atexit(folders_remove_);
    }
    snprintf(path, SUPPORT_PATH, "%.100s/%d", folder_root_, ++made);
    if (mkdir(path, 0777) != 0) TEST_FAIL_("cannot make %s", path);
}

/* Replaces `tmp_path` by a new empty folder. */
static inline void folder_open(void) {
    if (*tmp_path) cr_fs_remove_tree(tmp_path);
    make_folder(tmp_path);
}

/* A path in `tmp_path`, valid to the end of the case. */
#define in_folder(...) formatted("%s/%s", folder_path_(), formatted(__VA_ARGS__))
static inline const char *folder_path_(void) {
    if (!*tmp_path) folder_open();
    return tmp_path;
}

/* Whether two files are bitwise identical. A file that cannot be read fails the case: it is neither the same nor not
 * the same. */
static inline bool same_bytes(const char *path_a, const char *path_b) {
    OWNED(string) a = NULL, b = NULL;
    size_t        na = 0, nb = 0;
    CHECK_STATUS(cr_file_read(path_a, (size_t)1 << 32, &a, &na), CR_OK);
    CHECK_STATUS(cr_file_read(path_b, (size_t)1 << 32, &b, &nb), CR_OK);
    return a && b && na == nb && !memcmp(a, b, na);
}

#endif
