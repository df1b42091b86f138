/* tests/harness/folder.h: a folder for each case of a test, and names in it. */
#ifndef CR_TEST_FOLDER_H
#define CR_TEST_FOLDER_H

#include "core/files.h"
#include "tests/harness/test.h"

#include <stdarg.h>
#include <unistd.h>

static char folder[256];

static inline bool folder_open(void) {
    snprintf(folder, sizeof folder, "%s/cresnet-test-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    return mkdtemp(folder) != NULL;
}
static inline void folder_close(void) {
    CHECK_INT(cr_fs_remove_tree(folder), 0);
}

static inline const char *in_folder(const char *fmt, ...) CR_PRINTF(1, 2);
static inline const char *in_folder(const char *fmt, ...) {
    static char paths[4][600];
    static int  turn;
    char       *path = paths[turn++ % 4];
    int         used = snprintf(path, 600, "%s/", folder);
    va_list     args;
    va_start(args, fmt);
    vsnprintf(path + used, 600 - (size_t)used, fmt, args);
    va_end(args);
    return path;
}

#endif
