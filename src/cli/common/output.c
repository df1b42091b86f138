/* cli/common/output.c: writes results to standard output, to the file that an option names, or to a new run folder: see
 * cli/common/command.h. */
#include "checkpoint/checkpoint.h"
#include "cli/common/command.h"
#include "core/temporary.h"
#include "core/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

cr_status cr_cmd_print_bytes(const void *bytes, size_t count) {
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
                                            : cr_cmd_print_bytes(visible.data, visible.length);
    cr_text_free(&visible);
    cr_text_free(text);
    return status;
}

void cr_cmd_print_aside(struct cr_text *text) {
    fputs(text->data && !text->failed ? text->data : "", stderr);
    cr_text_free(text);
}

bool cr_cmd_is_stdout(const char *file) {
    static const char *const names[] = {"-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"};
    for (size_t i = 0; i < CR_COUNT(names); i++)
        if (strcmp(file, names[i]) == 0) return true;
    return false;
}

const char *cr_cmd_shell_word(struct cr_arena *arena, const char *word) {
    struct cr_text quoted = {0};
    const char    *plain  = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789%+,-./:=@_";
    if (*word && !word[strspn(word, plain)]) return word;
    cr_text_add(&quoted, "'");
    for (const char *p = word; *p; p++) cr_text_add(&quoted, *p == '\'' ? "'\\''" : "%c", *p);
    cr_text_add(&quoted, "'");
    const char *copy = quoted.failed ? NULL : cr_arena_printf(arena, "%s", quoted.data);
    cr_text_free(&quoted);
    return copy ? copy : word;
}

/* Copies a pipe to a file in memory: the readers of images want regular files, so that a pipe in a folder of images
 * cannot stop them. */
static cr_status copy_stdin(int to) {
    enum { PIECE_BYTES = 1 << 16, IMAGE_BYTES_MAX = 1 << 30 };
    char    piece[PIECE_BYTES];
    int64_t total = 0;
    for (;;) {
        const ssize_t got = read(STDIN_FILENO, piece, sizeof piece);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return CR_FAIL(CR_ERR_IO, "standard input: cannot be read: %s", strerror(errno));
        if (got == 0) return CR_OK;
        total += got;
        if (total > IMAGE_BYTES_MAX)
            return CR_FAIL(CR_ERR_FORMAT, "standard input: more than 1 GiB is too much for an image");
        CR_TRY(cr_fs_write(to, "standard input", piece, (size_t)got, 0));
    }
}

cr_status cr_cmd_input_image(const struct cr_args *args, const char **path) {
    struct stat info;
    if (strcmp(*path, "-") != 0 && strcmp(*path, "/dev/stdin") != 0) return CR_OK;
    *path = "/dev/stdin";
    if (isatty(STDIN_FILENO))
        return cr_args_fail(args, "standard input is a terminal: send an image (< FILE), or name one instead of -");
    if (fstat(STDIN_FILENO, &info) == 0 && S_ISREG(info.st_mode)) return CR_OK;
    const int fd = memfd_create("cresnet-image", MFD_CLOEXEC);
    if (fd < 0) return CR_FAIL(CR_ERR_IO, "standard input: cannot be copied: %s", strerror(errno));
    cr_status status = copy_stdin(fd);
    if (status == CR_OK && dup2(fd, STDIN_FILENO) < 0)
        status = CR_FAIL(CR_ERR_IO, "standard input: cannot be copied: %s", strerror(errno));
    close(fd);
    return status;
}

static cr_status find_output(const struct cr_args *args, const char *file, enum cr_output_kind kind,
                             struct cr_output_file *out) {
    return cr_output_file_find(file, kind, cr_args_has(args, CR_OPT_REPLACE) ? CR_OUTPUT_FORCE : 0, out);
}

/* Whether a file can be created in the folder of `path`; the file itself may be missing. */
static cr_status check_folder(const char *path) {
    char folder[CR_PATH_MAX];
    cr_path_folder(folder, path);
    if (cr_fs_is_file(folder)) return cr_fs_refused(path, "create", ENOTDIR); /* it may be executable */
    return access(folder, W_OK | X_OK) < 0 ? cr_fs_refused(path, "create", errno) : CR_OK;
}

cr_status cr_cmd_output_check(const struct cr_args *args, const char *file, enum cr_output_kind kind) {
    struct cr_output_file output;
    if (cr_cmd_is_stdout(file)) return CR_OK;
    CR_TRY(find_output(args, file, kind, &output));
    return output.direct ? CR_OK : check_folder(output.path);
}

cr_status cr_cmd_write_file(const struct cr_args *args, const char *file, enum cr_output_kind kind,
                            struct cr_text *text) {
    struct cr_output_file output;
    cr_status             status = text->failed ? CR_NO_MEMORY(text->length) : CR_OK;
    CR_TRY_OUT(status);
    if (cr_cmd_is_stdout(file))
        CR_TRY_OUT(cr_cmd_print_bytes(text->data, text->length));
    else {
        CR_TRY_OUT(find_output(args, file, kind, &output));
        CR_TRY_OUT(cr_output_file_write(&output, text->data, text->length));
    }
out:
    cr_text_free(text);
    return status;
}

/* Copies a file to standard output, or to `output` unless it is NULL, in pieces: a network may be larger than the free
 * memory. */
static cr_status copy_file(FILE *file, const char *path, const struct cr_output_file *output) {
    enum { PIECE_BYTES = 1 << 20 };
    cr_status status = CR_OK;
    int       fd     = -1;
    char     *buffer = cr_alloc(PIECE_BYTES, 1);
    if (!buffer) return CR_NO_MEMORY(PIECE_BYTES);
    if (output) status = cr_output_file_open_direct(output, &fd);
    while (status == CR_OK && !feof(file)) {
        const size_t count = fread(buffer, 1, PIECE_BYTES, file);
        if (ferror(file))
            status = cr_fs_refused(path, "read", errno);
        else
            status = output ? cr_fs_write(fd, output->path, buffer, count, 0) : cr_cmd_print_bytes(buffer, count);
    }
    if (fd >= 0 && cr_fs_close(fd) < 0 && status == CR_OK) status = cr_fs_refused(output->path, "close", errno);
    cr_free(buffer);
    return status;
}

/* The temporary folder is removed before the file is copied, since the reader of a pipe may take long or end the
 * program. What a killed process has left there is removed by the next one of the same user. */
static cr_status write_and_copy(const struct cr_output_file *output,
                                cr_status (*write)(const void *context, const char *path), const void *context) {
    const char         *parent = getenv("TMPDIR");
    char                name[CR_PATH_MAX], path[CR_PATH_MAX];
    FILE               *file = NULL;
    struct cr_temporary folder;
    CR_TRY(cr_path_join(name, parent && *parent ? parent : "/tmp", "cresnet-output-%u", (unsigned)getuid()));
    CR_TRY(cr_temporary_folder(&folder, name));
    cr_status status = chmod(folder.path, 0700) < 0 ? cr_fs_refused(folder.path, "set the permissions", errno)
                                                    : cr_path_join(path, folder.path, "output");
    if (status == CR_OK) status = write(context, path);
    if (status == CR_OK) {
        file = fopen(path, "rb");
        if (!file) status = cr_fs_refused(path, "open", errno);
    }
    cr_temporary_drop(&folder);
    if (status == CR_OK) status = copy_file(file, path, output);
    if (file) fclose(file);
    return status;
}

cr_status cr_cmd_write_with(const struct cr_args *args, const char *file, enum cr_output_kind kind,
                            cr_status (*write)(const void *context, const char *path), const void *context) {
    struct cr_output_file output;
    if (cr_cmd_is_stdout(file)) {
        if (isatty(STDOUT_FILENO))
            return cr_args_fail(args,
                                "standard output is a terminal: redirect it (> FILE), or name a file instead of -");
        return write_and_copy(NULL, write, context);
    }
    CR_TRY(find_output(args, file, kind, &output));
    return output.direct ? write_and_copy(&output, write, context) : write(context, output.path);
}

/* ---- a new run folder ---- */

cr_status cr_cmd_check_new_run(const char *folder) {
    if (!cr_ckpt_dir_in_use(folder)) return CR_OK;
    return CR_FAIL(CR_ERR_CONFIG, "%s is not empty: choose another folder with -o", folder);
}

cr_status cr_cmd_write_new_run(const char *folder, const struct cr_config                    *config,
                               cr_status (*write)(void *self, const char *config_text), void *self) {
    struct cr_text text = {0};
    const bool     made = !cr_fs_is_dir(folder);
    int            lock = -1;
    cr_status      status;
    cr_config_dump_for_run(config, &text);
    if (text.failed) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while writing the configuration");
    CR_TRY_OUT(cr_ckpt_prepare_dir(folder));
    CR_TRY_OUT(cr_ckpt_lock(folder, &lock));
    CR_TRY_OUT(cr_cmd_check_new_run(folder)); /* again: another process may have written there meanwhile */
    cr_ckpt_sweep(folder);
    CR_TRY_OUT(write(self, text.data));
out:
    if (status != CR_OK && made && lock >= 0) cr_ckpt_remove_empty(folder);
    if (lock >= 0) close(lock);
    cr_text_free(&text);
    return status;
}
