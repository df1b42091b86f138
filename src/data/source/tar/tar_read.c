/* data/source/tar/tar_read.c: the members of a tar archive. See data/source/tar/tar.h.
 *
 * A member is a header of 512 bytes and its data, filled up to whole blocks. Headers of pax (x, g) and GNU (L, K) come
 * before the member that they describe. */
#include "core/checksum/crc32c.h"
#include "data/source/tar/tar.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TAR_AGAIN "copy or download it again"

enum { EXTENDED_MAX = 1 << 20, AT_SIZE = 124, AT_SUM = 148, AT_TYPE = 156, AT_MAGIC = 257, AT_PREFIX = 345 };

cr_status cr_tar_read(int fd, const char *name, uint64_t offset, void *to, size_t count) {
    for (size_t used = 0; used < count;) {
        const ssize_t got = pread(fd, (uint8_t *)to + used, count - used, (off_t)(offset + used));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return cr_fs_refused(name, "read", errno);
        if (got == 0) return CR_FAIL(CR_ERR_IO, "%s: was cut off while it was read: " TAR_AGAIN, name);
        used += (size_t)got;
    }
    return CR_OK;
}

void cr_tar_start(struct cr_tar_reader *r, const char *name, int fd, uint64_t begin, uint64_t end) {
    r->name         = name;
    r->fd           = fd;
    r->at           = begin;
    r->begin        = begin;
    r->end          = end;
    r->crc          = 0;
    r->ended        = false;
    r->window_count = 0;
    r->global       = (struct cr_tar_pax){0};
}

/* *out points to the `count` bytes at `at`, which lie inside the archive, until the next call. */
static cr_status view(struct cr_tar_reader *r, uint64_t at, size_t count, const uint8_t **out) {
    if (at < r->window_at || at - r->window_at + count > r->window_count) {
        const size_t room = (size_t)CR_MIN(r->end - at, (uint64_t)CR_TAR_WINDOW);
        r->window_count   = 0;
        CR_TRY(cr_tar_read(r->fd, r->name, at, r->window, room));
        r->window_at    = at;
        r->window_count = room;
    }
    *out = r->window + (at - r->window_at);
    return CR_OK;
}

/* ---- fields of a header ---- */

static cr_status fail_at(const struct cr_tar_reader *r, const char *what) {
    return CR_FAIL(CR_ERR_FORMAT, "%s: at byte %llu: %s: " TAR_AGAIN, r->name, (unsigned long long)r->at, what);
}

/* The program that unpacks a file that begins like this; NULL: it is not compressed. */
static const char *unpacker(const uint8_t *b) {
    if (b[0] == 0x1f && b[1] == 0x8b) return "gzip -d";
    if (memcmp(b, "\x28\xb5\x2f\xfd", 4) == 0) return "zstd -d";
    if (memcmp(b,
               "\xfd"
               "7zXZ",
               5) == 0)
        return "xz -d";
    return memcmp(b, "BZh", 3) == 0 ? "bzip2 -d" : NULL;
}

static cr_status fail_header(const struct cr_tar_reader *r, const uint8_t *b) {
    const char *command = r->at ? NULL : unpacker(b);
    if (command)
        return CR_FAIL(CR_ERR_FORMAT,
                       "%s: is compressed: images are read from any place of an archive; unpack it with %s", r->name,
                       command);
    return r->at == r->begin ? fail_at(r, "is no tar archive (wrong checksum of the first header)")
                             : fail_at(r, "the header of a member is damaged (wrong checksum)");
}

/* An octal number, or one in base 256. False: it is none, is negative, or has more than 63 bits. */
static bool parse_number(const uint8_t *field, size_t count, uint64_t *out) {
    uint64_t value = 0;
    size_t   i     = 0;
    if (field[0] & 0x80) {
        if (field[0] != 0x80) return false;
        for (i = 1; i < count; i++) {
            if (value >> 55) return false;
            value = value << 8 | field[i];
        }
        *out = value;
        return true;
    }
    while (i < count && field[i] == ' ') i++;
    for (; i < count && field[i] >= '0' && field[i] <= '7'; i++) value = value << 3 | (uint64_t)(field[i] - '0');
    for (; i < count; i++)
        if (field[i] && field[i] != ' ') return false;
    *out = value;
    return true;
}

static bool sum_is_right(const uint8_t *b) {
    uint64_t stored;
    uint32_t sum       = 8 * ' ';
    int32_t  of_signed = 8 * ' '; /* as old programs sum */
    for (size_t i = 0; i < CR_TAR_BLOCK; i++) {
        if (i >= AT_SUM && i < AT_SUM + 8) continue;
        sum += b[i];
        of_signed += (int8_t)b[i];
    }
    return parse_number(b + AT_SUM, 8, &stored) && (stored == sum || (int64_t)stored == of_signed);
}

static bool is_zero(const uint8_t *b, size_t count) {
    return !b[0] && memcmp(b, b + 1, count - 1) == 0;
}

/* Copies a name, without "./" at its start. False: it is too long or has a 0 byte. */
static bool copy_path(const char *name, size_t length, char out[PATH_MAX]) {
    while (length > 2 && name[0] == '.' && name[1] == '/') {
        name += 2;
        length -= 2;
    }
    if (length >= PATH_MAX || memchr(name, 0, length)) return false;
    memcpy(out, name, length);
    out[length] = 0;
    return true;
}

static bool path_of_header(const uint8_t *b, char out[PATH_MAX]) {
    char         name[300];
    const char  *prefix = (const char *)b + AT_PREFIX;
    const size_t length = memcmp(b + AT_MAGIC, "ustar", 6) == 0 ? strnlen(prefix, 155) : 0;
    snprintf(name, sizeof name, "%.*s%s%.100s", (int)length, prefix, length ? "/" : "", (const char *)b);
    return copy_path(name, strlen(name), out);
}

/* ---- extended headers ---- */

/* Reads one record "LENGTH KEY=VALUE\n" of a pax header; returns its length, or 0 if it is invalid. */
static size_t take_record(const char *at, size_t left, struct cr_tar_pax *pax) {
    size_t length = 0, i = 0;
    for (; i < left && i < 8 && at[i] >= '0' && at[i] <= '9'; i++) length = 10 * length + (size_t)(at[i] - '0');
    if (!i || i >= left || at[i] != ' ' || length > left || length < i + 4 || at[length - 1] != '\n') return 0;
    const char *key = at + i + 1, *equals = memchr(key, '=', length - i - 2);
    if (!equals) return 0;
    const char  *value = equals + 1;
    const size_t keys = (size_t)(equals - key), count = (size_t)(at + length - 1 - value);
    if (keys == 4 && memcmp(key, "path", 4) == 0) {
        pax->has_path = count > 0;
        if (!copy_path(value, count, pax->path)) return 0;
    } else if (keys == 4 && memcmp(key, "size", 4) == 0) {
        pax->has_bytes = count > 0;
        pax->bytes     = 0;
        if (count > 18) return 0;
        for (size_t k = 0; k < count; k++) {
            if (value[k] < '0' || value[k] > '9') return 0;
            pax->bytes = 10 * pax->bytes + (uint64_t)(value[k] - '0');
        }
    } else if (keys > 11 && memcmp(key, "GNU.sparse.", 11) == 0) {
        pax->sparse = true;
    }
    return length;
}

/* Reads the data of an extended header: pax (x, g), or a long name of GNU (L). */
static cr_status read_extended(struct cr_tar_reader *r, char type, uint64_t offset, size_t count,
                               struct cr_tar_pax *pax) {
    char *text;
    bool  valid = true;
    CR_ALLOC(text, count + 1);
    const cr_status status = cr_tar_read(r->fd, r->name, offset, text, count);
    if (status == CR_OK) r->crc = cr_crc32c(r->crc, text, count);
    if (status == CR_OK && type == 'L') {
        pax->has_path = true;
        valid         = copy_path(text, strlen(text), pax->path);
    } else if (status == CR_OK) {
        for (size_t at = 0, step; valid && at < count; at += step) {
            step  = take_record(text + at, count - at, pax);
            valid = step > 0;
        }
    }
    cr_free(text);
    CR_TRY(status);
    return valid ? CR_OK : fail_at(r, "an extended header is invalid, or its name too long");
}

/* ---- members ---- */

/* Old GNU archives have the map of a sparse file in blocks after the header. *data: the offset of the data. */
static cr_status skip_sparse_map(struct cr_tar_reader *r, const uint8_t *b, uint64_t *data) {
    for (bool more = b[482]; more;) {
        if (r->end - *data < CR_TAR_BLOCK) return fail_at(r, "the map of a sparse file is cut off");
        CR_TRY(view(r, *data, CR_TAR_BLOCK, &b));
        more = b[504];
        *data += CR_TAR_BLOCK;
    }
    return CR_OK;
}

/* Reads the header at r->at, which is not zero, and moves to the next one. *found: it is that of a member. */
static cr_status read_header(struct cr_tar_reader *r, const uint8_t *b, struct cr_tar_pax *pax, struct cr_tar_member *m,
                             bool *found) {
    const char type = (char)b[AT_TYPE];
    uint64_t   bytes, data = r->at + CR_TAR_BLOCK;
    if (!sum_is_right(b)) return fail_header(r, b);
    r->crc              = cr_crc32c(r->crc, b, CR_TAR_BLOCK);
    const bool extends  = type && strchr("xgLK", type);
    const bool has_data = extends || !type || !strchr("123456", type);
    const bool is_file  = !type || type == '0' || type == '7';
    if (!parse_number(b + AT_SIZE, 12, &bytes)) return fail_at(r, "the size of a member is negative or no number");
    const struct cr_tar_pax *named = pax->has_path ? pax : &r->global, *sized = pax->has_bytes ? pax : &r->global;
    if (!extends && sized->has_bytes) bytes = sized->bytes;
    if (!has_data) bytes = 0; /* links, devices and folders: what some programs write here is no length */
    if (!extends && !path_of_header(b, m->path)) return fail_at(r, "the name of a member is too long");
    if (!extends && named->has_path) memcpy(m->path, named->path, strlen(named->path) + 1);
    if (type == 'S') CR_TRY(skip_sparse_map(r, b, &data));
    if (bytes > r->end - data)
        return CR_FAIL(CR_ERR_FORMAT,
                       "%s: at byte %llu: %s%.200s has %llu bytes, and the archive ends after %llu: " TAR_AGAIN,
                       r->name, (unsigned long long)r->at, extends ? "an extended header" : "", extends ? "" : m->path,
                       (unsigned long long)bytes, (unsigned long long)(r->end - data));
    if (extends && bytes > EXTENDED_MAX) return fail_at(r, "an extended header has more than 1 MiB");
    if (extends && type != 'K') CR_TRY(read_extended(r, type, data, (size_t)bytes, type == 'g' ? &r->global : pax));
    m->offset = data;
    m->bytes  = bytes;
    m->kind   = !is_file || pax->sparse ? CR_TAR_SKIPPED : CR_TAR_FILE;
    if (type == '5' || (is_file && *m->path && m->path[strlen(m->path) - 1] == '/')) m->kind = CR_TAR_FOLDER;
    *found = !extends && type != 'V';
    r->at  = CR_MIN(r->end, data + (bytes + CR_TAR_BLOCK - 1) / CR_TAR_BLOCK * CR_TAR_BLOCK);
    return CR_OK;
}

cr_status cr_tar_next(struct cr_tar_reader *r, struct cr_tar_member *m) {
    struct cr_tar_pax pax;
    bool              found = false;
    const uint8_t    *b;
    pax.has_path = pax.has_bytes = pax.sparse = false;
    if (r->begin == r->end) return fail_at(r, "the archive is empty");
    while (!found) {
        const size_t room = (size_t)CR_MIN(r->end - r->at, (uint64_t)CR_TAR_BLOCK);
        if (!room) {
            m->kind = CR_TAR_END;
            return CR_OK;
        }
        CR_TRY(view(r, r->at, room, &b));
        r->ended = is_zero(b, room);
        if (r->ended) { /* the mark at the end of an archive, which another one may follow */
            pax.has_path = pax.has_bytes = pax.sparse = false;
            r->at += room;
        } else if (room < CR_TAR_BLOCK) {
            return fail_at(r, "the header of a member is cut off");
        } else {
            CR_TRY(read_header(r, b, &pax, m, &found));
        }
    }
    return CR_OK;
}
