/* cli/common/output.c: writes results to standard output or to the file that an option names: see
 * cli/common/command.h. */
#include "cli/common/command.h"
#include "core/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cr_status print_bytes(const void *bytes, size_t count) {
    errno = 0;
    if ((!count || fwrite(bytes, 1, count, stdout) == count) && fflush(stdout) == 0) return CR_OK;
    if (errno == EPIPE) return CR_FAIL(CR_ERR_INTERRUPTED, "the reader of standard output closed the pipe");
    return CR_FAIL(CR_ERR_IO, "standard output: cannot write the result: %s", strerror(errno));
}

/* Names of files, classes and tensors may contain control characters: a terminal must not obey them. */
cr_status cr_cmd_print(struct cr_text *text) {
    struct cr_text visible = {0};
    cr_status      status;
    if (text->data) cr_text_add_visible_lines(&visible, text->data);
    status = text->failed || visible.failed ? CR_FAIL(CR_ERR_MEMORY, "out of memory while writing the result")
                                            : print_bytes(visible.data, visible.length);
    cr_text_free(&visible);
    cr_text_free(text);
    return status;
}

bool cr_cmd_is_stdout(const char *file) {
    return strcmp(file, "-") == 0;
}

cr_status cr_cmd_write_file(const char *file, const void *bytes, size_t count) {
    return cr_cmd_is_stdout(file) ? print_bytes(bytes, count) : cr_file_write_atomic(file, bytes, count);
}

/* Copies a file to standard output in pieces: a network may be larger than the free memory. */
static cr_status print_file(FILE *file, const char *path) {
    enum { PIECE_BYTES = 1 << 20 };
    cr_status status = CR_OK;
    char     *buffer = cr_alloc(PIECE_BYTES, 1);
    if (!buffer) return CR_NO_MEMORY(PIECE_BYTES);
    while (status == CR_OK && !feof(file)) {
        const size_t count = fread(buffer, 1, PIECE_BYTES, file);
        status             = ferror(file) ? cr_fs_refused(path, "read", errno) : print_bytes(buffer, count);
    }
    cr_free(buffer);
    return status;
}

/* The temporary folder is removed before the file is copied, since the reader of a pipe may take long or end the
 * program. */
cr_status cr_cmd_write_stdout(const struct cr_args *args,
                              cr_status (*write)(const struct cr_args *args, const char *file)) {
    const char *parent = getenv("TMPDIR");
    char        folder[CR_PATH_MAX], path[CR_PATH_MAX];
    FILE       *file = NULL;
    if (isatty(STDOUT_FILENO))
        return cr_args_fail(args, "standard output is a terminal: redirect it (> FILE), or name a file instead of -");
    CR_TRY(cr_path_join(folder, parent && *parent ? parent : "/tmp", "cresnet-XXXXXX"));
    if (!mkdtemp(folder)) return cr_fs_refused(folder, "create", errno);
    cr_status status = cr_path_join(path, folder, "output");
    if (status == CR_OK) status = write(args, path);
    if (status == CR_OK) {
        file = fopen(path, "rb");
        if (!file) status = cr_fs_refused(path, "open", errno);
    }
    cr_fs_remove_tree(folder);
    if (status == CR_OK) status = print_file(file, path);
    if (file) fclose(file);
    return status;
}
