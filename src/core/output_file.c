/* core/output_file.c: checks whether an output file may be created or overwritten; see core/output_file.h. */
#include "core/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- kinds ---- */

enum { START_BYTES = 1024 }; /* how much of a file is read to recognise it */

/* Text that a file of cresnet has, at this place or ANYWHERE in its start. */
struct mark {
    size_t      at;
    const char *text;
    size_t      bytes;
};
#define ANYWHERE SIZE_MAX
#define MARK(at, text)                                                                                                 \
    { at, text, sizeof(text) - 1 }
/* The text chunk follows the header chunk: 8 bytes of signature, 25 bytes, then length and type of the next chunk. */
#define PNG_MARKS(software)                                                                                            \
    { MARK(0, "\x89PNG\r\n\x1a\n"), MARK(37, "tEXtSoftware\0" software) }

static const struct {
    const char *what;
    struct mark mark[2];
    bool        one_suffices;
} kinds[CR_OUTPUT_KINDS] = {
    /* After the length of the header: metadata that begins with the key, since keys are sorted. */
    [CR_OUTPUT_SAFETENSORS] = {"an export of cresnet", {MARK(8, "{\"__metadata__\":{\"" CR_OUTPUT_EXPORT_KEY "\":")}},
    /* Field 1: the version of the format, field 2: the producer. */
    [CR_OUTPUT_ONNX]        = {"an ONNX file of cresnet", {MARK(0, "\x08"), MARK(2, "\x12\x07" CR_OUTPUT_PRODUCER)}},
    [CR_OUTPUT_CONFUSION]   = {"a confusion matrix of cresnet",
                               {MARK(0, CR_OUTPUT_CSV_START ","), MARK(0, CR_OUTPUT_CSV_LIST "\n")},
                               .one_suffices = true},
    [CR_OUTPUT_PREDICTIONS] = {"a table of predictions of cresnet", {MARK(0, CR_OUTPUT_PREDICTIONS_START ",")}},
    [CR_OUTPUT_REPORT]      = {"a report of cresnet",
                               {MARK(0, "<!DOCTYPE html>\n"), MARK(ANYWHERE, "name=\"generator\" content=\"cresnet ")}},
    [CR_OUTPUT_POOL_SVG]    = {"a plan drawn by cresnet", {MARK(0, CR_OUTPUT_POOL_SVG_START)}},
    [CR_OUTPUT_EXPLAIN_PNG] = {"an overlay of cresnet explain", PNG_MARKS(CR_OUTPUT_EXPLAIN_SOFTWARE)},
    [CR_OUTPUT_EXPLAIN_CSV] = {"a map of cresnet explain", {MARK(0, CR_OUTPUT_EXPLAIN_START ",")}},
    [CR_OUTPUT_SHOW_PNG]    = {"a page of cresnet data show", PNG_MARKS(CR_OUTPUT_SHOW_SOFTWARE)},
    [CR_OUTPUT_PACK]        = {"a packed dataset", {MARK(0, "\211CRPK\r\n\x1a")}},
    [CR_OUTPUT_UNMARKED]    = {"a file that this command replaces", {{0}}},
};

/* True for a file that begins with these bytes and has the marks of its kind. */
static bool is_ours(enum cr_output_kind kind, const char *bytes, size_t count) {
    const bool one = kinds[kind].one_suffices;
    for (int i = 0; i < 2 && kinds[kind].mark[i].text; i++) {
        const struct mark m     = kinds[kind].mark[i];
        const bool        found = m.at == ANYWHERE ? memmem(bytes, count, m.text, m.bytes) != NULL
                                                   : count >= m.at + m.bytes && !memcmp(bytes + m.at, m.text, m.bytes);
        if (found == one) return one;
    }
    return !one && kind != CR_OUTPUT_UNMARKED;
}

/* ---- checking ---- */

/* The number N that /dev/stdout, /dev/stderr, /dev/fd/N and /proc/self/fd/N mean; -1 for other names. */
static int descriptor_of(const char *name) {
    static const char *const folders[] = {"/dev/fd/", "/proc/self/fd/"};
    if (strcmp(name, "/dev/stdout") == 0) return STDOUT_FILENO;
    if (strcmp(name, "/dev/stderr") == 0) return STDERR_FILENO;
    for (size_t i = 0; i < CR_COUNT(folders); i++) {
        const char *digits = name + strlen(folders[i]);
        if (strncmp(name, folders[i], strlen(folders[i])) != 0) continue;
        if (*digits && strlen(digits) < 7 && !digits[strspn(digits, "0123456789")]) return atoi(digits);
    }
    return -1;
}

/* Reads the start of a file. False when it cannot be read: then it is not recognised. */
static bool read_start(const char *path, char bytes[START_BYTES], size_t *count) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return false;
    ssize_t got = pread(fd, bytes, START_BYTES, 0);
    close(fd);
    *count = got > 0 ? (size_t)got : 0;
    return got >= 0;
}

static cr_status check_existing(const char *name, enum cr_output_kind kind, unsigned flags, const struct stat *s,
                                const char *path) {
    char   bytes[START_BYTES];
    size_t count = 0;
    if ((flags & CR_OUTPUT_FORCE) || s->st_size == 0) return CR_OK;
    if (read_start(path, bytes, &count) && is_ours(kind, bytes, count)) return CR_OK;
    return CR_FAIL(CR_ERR_CONFIG, "%s: exists and is not %s: choose another name%s", name, kinds[kind].what,
                   flags & CR_OUTPUT_NO_FORCE ? ", or remove it" : ", or add --force to replace it");
}

/* Copies the absolute path without links to `out`. */
static cr_status resolve(const char *name, char out[CR_PATH_MAX]) {
    char real[PATH_MAX];
    if (!realpath(name, real)) return cr_fs_refused(name, "follow this link", errno);
    if (snprintf(out, CR_PATH_MAX, "%s", real) >= CR_PATH_MAX)
        return CR_FAIL(CR_ERR_IO, "%.200s...: the path is too long", name);
    return CR_OK;
}

cr_status cr_output_file_find(const char *name, enum cr_output_kind kind, unsigned flags, struct cr_output_file *out) {
    struct stat           s;
    struct cr_output_file file = {.fd = descriptor_of(name)};
    if (!*name) return CR_FAIL(CR_ERR_CONFIG, "the name of the output file is empty");
    if (snprintf(file.path, sizeof file.path, "%s", name) >= CR_PATH_MAX)
        return CR_FAIL(CR_ERR_IO, "%.200s...: the path is too long", name);
    file.direct = file.fd >= 0;
    if (!file.direct && lstat(name, &s) == 0) {
        if (S_ISLNK(s.st_mode) && (flags & CR_OUTPUT_NO_LINK))
            return CR_FAIL(CR_ERR_IO, "%s: is a link, which is not followed here: name the file with -o FILE", name);
        const bool link = S_ISLNK(s.st_mode);
        if (link && stat(name, &s) < 0)
            return CR_FAIL(CR_ERR_IO, "%s: is a link whose target cannot be opened: %s: name the target, or remove it",
                           name, strerror(errno));
        if (S_ISDIR(s.st_mode)) return CR_FAIL(CR_ERR_IO, "%s: is a folder: name a file", name);
        file.direct = !S_ISREG(s.st_mode);
        if (file.direct && (flags & CR_OUTPUT_NO_LINK))
            return CR_FAIL(CR_ERR_IO, "%s: is a device or pipe, which is not written here: name the file with -o FILE",
                           name);
        if (!file.direct && link) CR_TRY(resolve(name, file.path));
        if (!file.direct) CR_TRY(check_existing(name, kind, flags, &s, file.path));
    }
    *out = file;
    return CR_OK;
}

/* ---- writing ---- */

cr_status cr_output_file_open_direct(const struct cr_output_file *file, int *fd) {
    do *fd = file->fd >= 0 ? fcntl(file->fd, F_DUPFD_CLOEXEC, 0) : open(file->path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    while (*fd < 0 && errno == EINTR);
    return *fd < 0 ? cr_fs_refused(file->path, "open", errno) : CR_OK;
}

cr_status cr_output_file_write(const struct cr_output_file *file, const void *bytes, size_t count) {
    int fd;
    if (!file->direct) return cr_file_write_atomic(file->path, bytes, count);
    CR_TRY(cr_output_file_open_direct(file, &fd));
    cr_status status = cr_fs_write(fd, file->path, bytes, count, 0);
    if (cr_fs_close(fd) < 0 && status == CR_OK) status = cr_fs_refused(file->path, "close", errno);
    return status;
}
