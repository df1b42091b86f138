/* checkpoint/checksums.c: writes checksums.txt of a checkpoint, and detects damaged files by it (corruption). */
#include "checkpoint/internal.h"
#include "core/checksum/crc32c.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LIST_BYTES_MAX = 64 << 10, CHUNK_BYTES = 16 << 10, NAME_AT = CR_CRC32C_DIGITS + 2, NAME_BYTES_MAX = 60 };

static const char list_name[] = "checksums.txt";
static const char advice[]    = "restore the file from a copy, or use another checkpoint";

/* ---- sums ---- */

/* The number of bytes that the sum of a file covers: all, and of a .safetensors the header, which holds the sums of the
 * rest. */
static cr_status covered_bytes(int fd, const char *path, uint64_t *out) {
    struct stat s;
    uint64_t    header;
    if (fstat(fd, &s) < 0) return cr_fs_refused(path, "read", errno);
    *out = (uint64_t)s.st_size;
    if (!cr_ends_with(path, ".safetensors") || *out < sizeof header) return CR_OK;
    CR_TRY(cr_fs_read_at(fd, path, &header, sizeof header, 0));
    if (header < *out - sizeof header) *out = sizeof header + header;
    return CR_OK;
}

static cr_status sum_of(const char *path, uint32_t *out) {
    unsigned char chunk[CHUNK_BYTES];
    uint64_t      bytes = 0;
    int           fd;
    cr_status     status = CR_OK;
    CR_TRY(cr_fs_open_regular(path, O_RDONLY, &fd));
    *out = 0;
    CR_TRY_OUT(covered_bytes(fd, path, &bytes));
    for (uint64_t at = 0; at < bytes; at += CHUNK_BYTES) {
        const size_t part = (size_t)CR_MIN(bytes - at, (uint64_t)CHUNK_BYTES);
        CR_TRY_OUT(cr_fs_read_at(fd, path, chunk, part, at));
        *out = cr_crc32c(*out, chunk, part);
    }
out:
    close(fd);
    return status;
}

/* ---- the list ---- */

static cr_status add_line(const char *folder, const char *name, struct cr_text *list) {
    char     path[CR_PATH_MAX];
    uint32_t sum;
    CR_TRY(cr_path_join(path, folder, "%s", name));
    CR_TRY(sum_of(path, &sum));
    cr_text_add(list, "%08" PRIx32 "  %s\n", sum, name);
    return CR_OK;
}

/* The last line is the sum of the lines before it. */
static cr_status end_list(struct cr_text *list) {
    if (!list->failed) cr_text_add(list, "%08" PRIx32 "  %s\n", cr_crc32c(0, list->data, list->length), list_name);
    return list->failed ? CR_NO_MEMORY(LIST_BYTES_MAX) : CR_OK;
}

cr_status cr_ckpt_list_write(const char *folder) {
    static const char *const names[] = {"classes.txt",      "config.ini",        "ema.safetensors",
                                        "kernel_times.txt", "model.safetensors", "state.safetensors"};
    struct cr_text           list    = {0};
    char                     path[CR_PATH_MAX];
    cr_status                status = CR_OK;
    for (size_t i = 0; i < CR_COUNT(names); i++) {
        CR_TRY_OUT(cr_path_join(path, folder, "%s", names[i]));
        if (access(path, F_OK) == 0) CR_TRY_OUT(add_line(folder, names[i], &list));
    }
    CR_TRY_OUT(end_list(&list));
    CR_TRY_OUT(cr_path_join(path, folder, list_name));
    CR_TRY_OUT(cr_fs_write_new(path, list.data, list.length));
out:
    cr_text_free(&list);
    return status;
}

static bool parse_sum(const char *line, uint32_t *out) {
    return cr_crc32c_parse(line, out) && strncmp(line + CR_CRC32C_DIGITS, "  ", 2) == 0;
}

/* Reads the list and removes its last line, which must be the sum of the others. *text is NULL when the folder has no
 * list; the caller frees it. Without config.ini the folder is no checkpoint, but one in which somebody keeps weights: a
 * checksums.txt there belongs to something else. */
static cr_status read_list(const char *folder, char **text) {
    char      path[CR_PATH_MAX], *lines = NULL;
    size_t    length;
    uint32_t  sum;
    cr_status status = CR_OK;
    *text            = NULL;
    CR_TRY(cr_path_join(path, folder, "config.ini"));
    if (access(path, F_OK) < 0 && errno == ENOENT) return CR_OK;
    CR_TRY(cr_path_join(path, folder, list_name));
    if (access(path, F_OK) < 0 && errno == ENOENT) return CR_OK;
    CR_TRY(cr_file_read_no_link(path, LIST_BYTES_MAX, &lines, &length));
    const size_t tail = NAME_AT + sizeof list_name; /* its 0 byte counts for the line break */
    char        *last = length >= tail ? lines + length - tail : lines;
    if (length < tail || strlen(lines) != length || strcmp(last + CR_CRC32C_DIGITS, "  checksums.txt\n") != 0 ||
        !parse_sum(last, &sum) || sum != cr_crc32c(0, lines, (size_t)(last - lines)))
        CR_FAIL_OUT(CR_ERR_FORMAT,
                    "%s: is damaged (wrong checksum): restore it from a copy, or remove it to use the files of this "
                    "folder without the check",
                    path);
    *last = 0;
    *text = lines;
    lines = NULL;
out:
    cr_free(lines);
    return status;
}

/* ---- checks ---- */

/* Only a resumed run needs these files: somebody may have removed them to save space. */
static bool may_be_removed(const char *name) {
    return strcmp(name, "state.safetensors") == 0 || strcmp(name, "kernel_times.txt") == 0;
}

static cr_status check_one(const char *folder, const char *line, bool all) {
    char        path[CR_PATH_MAX];
    const char *name = line + NAME_AT;
    uint32_t    expected, found;
    if (!parse_sum(line, &expected) || !*name || strlen(name) > NAME_BYTES_MAX || strchr(name, '/'))
        return CR_FAIL(CR_ERR_FORMAT, "%s/%s: \"%.80s\" is no line of this file", folder, list_name, line);
    CR_TRY(cr_path_join(path, folder, "%s", name));
    if (access(path, F_OK) < 0 && errno == ENOENT) {
        if (!all && may_be_removed(name)) return CR_OK;
        return CR_FAIL(
            CR_ERR_FORMAT,
            "%s: is missing, although %s lists it: %s. If it was removed on purpose, remove %s from its folder", path,
            list_name, advice, list_name);
    }
    CR_TRY(sum_of(path, &found));
    if (found == expected) return CR_OK;
    return CR_FAIL(CR_ERR_FORMAT,
                   "%s: is damaged, or was changed after the checkpoint was written (wrong checksum): %s. If it was "
                   "changed on purpose, remove %s from its folder",
                   path, advice, list_name);
}

cr_status cr_ckpt_check_files(const char *folder, bool all) {
    char     *text, *save = NULL;
    cr_status status;
    CR_TRY(read_list(folder, &text));
    status = CR_OK;
    for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save))
        CR_TRY_OUT(check_one(folder, line, all));
out:
    cr_free(text);
    return status;
}
