/* tests/fuzz/replay.c: runs a fuzz target over every file of the folders named as arguments, in the order of names,
 * where libFuzzer is not available. A target reports a fault by aborting, so each file is printed before it runs. An
 * empty or missing folder is a failure: a lost corpus must not pass. */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static uint8_t *file_load(const char *path, size_t *size) {
    FILE       *file = fopen(path, "rb");
    struct stat info;
    uint8_t    *data = NULL;
    if (!file) return NULL;
    if (fstat(fileno(file), &info) == 0 && S_ISREG(info.st_mode)) {
        *size = (size_t)info.st_size;
        data  = malloc(*size ? *size : 1); /* exactly the size of the file: a sanitizer detects reads beyond the end */
        if (data && fread(data, 1, *size, file) != *size) {
            free(data);
            data = NULL;
        }
    }
    fclose(file);
    return data;
}

static int is_visible(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static void replay_folder(const char *folder, int *passed, int *failed) {
    struct dirent **entries = NULL;
    int             count   = scandir(folder, &entries, is_visible, alphasort);
    if (count <= 0) {
        printf("FAIL %s: %s\n", folder, count < 0 ? "no such folder" : "is empty");
        ++*failed;
    }
    for (int i = 0; i < count; i++) {
        char   path[4096];
        size_t size = 0;
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        free(entries[i]);
        printf("%s\n", path);
        fflush(stdout);
        uint8_t *data = file_load(path, &size);
        if (data && LLVMFuzzerTestOneInput(data, size) == 0)
            ++*passed;
        else {
            printf("FAIL %s: %s\n", path, data ? "the target refused it" : "cannot be read");
            ++*failed;
        }
        free(data);
    }
    free(entries);
}

int main(int argc, char **argv) {
    int passed = 0, failed = 0;
    if (argc < 2) {
        printf("usage: %s FOLDER...\n", argv[0]);
        return 1;
    }
    for (int i = 1; i < argc; i++) replay_folder(argv[i], &passed, &failed);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed ? 1 : 0;
}
