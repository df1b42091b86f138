/* config/ini.c: parses INI files: finds errors and line numbers, reads their values with iniparser; see config/ini.h.
 *
 * The scanner follows the tokenising rules of iniparser 4.1 (lines are stripped; a leading `;` or `#` starts a comment;
 * "..." and '...' have no escapes; an unquoted value ends at the first ; or #) and rejects ambiguous input. */
#include "config/ini.h"

#include "config/config.h"
#include "core/files.h"

#include <errno.h>
#include <fcntl.h>
#include <iniparser.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- file content ---- */

static cr_status file_check(FILE *file, const char *path, bool regular, struct cr_ini *ini) {
    struct stat info;
    if (fstat(fileno(file), &info) != 0) return CR_FAIL(CR_ERR_IO, "%s: cannot read: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode)) return CR_FAIL(CR_ERR_CONFIG, "%s: is a folder; give an INI file", path);
    if (regular && !S_ISREG(info.st_mode)) return CR_FAIL(CR_ERR_CONFIG, "%s: is a device or pipe, not a file", path);
    ini->device = info.st_dev;
    ini->inode  = info.st_ino;
    return CR_OK;
}

static cr_status read_all(FILE *file, const char *path, struct cr_text *text) {
    char   piece[8192];
    size_t got;
    while ((got = fread(piece, 1, sizeof piece, file)) > 0) {
        cr_text_add_bytes(text, piece, got);
        if (text->failed) return CR_NO_MEMORY(text->length + got);
        if (text->length > CR_INI_FILE_MAX)
            return CR_FAIL(CR_ERR_CONFIG, "%s: larger than %d KiB; this is not a configuration file", path,
                           CR_INI_FILE_MAX >> 10);
    }
    if (ferror(file)) return CR_FAIL(CR_ERR_IO, "%s: cannot read: %s", path, strerror(errno));
    return CR_OK;
}

static cr_status file_read(struct cr_ini *ini, const char *path, bool regular, struct cr_text *text) {
    /* O_NONBLOCK: opening a pipe must not wait for its writer */
    const int fd   = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | (regular ? O_NONBLOCK : 0));
    FILE     *file = fd >= 0 ? fdopen(fd, "rb") : NULL;
    if (!file) {
        if (fd >= 0) close(fd);
        if (errno != ENOENT && errno != ENOTDIR)
            return CR_FAIL(CR_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
        char hint[400];
        cr_path_hint(path, hint, sizeof hint);
        return CR_FAIL(CR_ERR_CONFIG, "%s: no such file%s", path, hint);
    }
    cr_status status = CR_OK;
    CR_TRY_OUT(file_check(file, path, regular, ini));
    CR_TRY_OUT(read_all(file, path, text));
out:
    fclose(file);
    return status;
}

/* ---- the scanner ---- */

struct scan {
    struct cr_ini        *ini;
    struct cr_arena      *arena;
    struct cr_complaints *complaints;
    const char           *section;
    int                   line, capacity;
    bool                  skip; /* after an invalid section header: the section of these keys is unknown */
    bool                  no_memory;
};

struct span {
    const char *at;
    size_t      length;
};

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

static struct span span_strip(struct span s) {
    while (s.length && is_blank(s.at[0])) s.at++, s.length--;
    while (s.length && is_blank(s.at[s.length - 1])) s.length--;
    return s;
}

static bool span_is_name(struct span s) {
    for (size_t i = 0; i < s.length; i++) {
        char c = s.at[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
              c == '.'))
            return false;
    }
    return s.length > 0;
}

/* Copies a span to the arena; `lower` converts it to lower case. */
static const char *span_copy(struct scan *scan, struct span s, bool lower) {
    char *copy = cr_arena_alloc(scan->arena, s.length + 1);
    if (!copy) {
        scan->no_memory = true;
        return "";
    }
    for (size_t i = 0; i < s.length; i++)
        copy[i] = lower && s.at[i] >= 'A' && s.at[i] <= 'Z' ? s.at[i] - 'A' + 'a' : s.at[i];
    return copy;
}

/* Arguments for "%.*s": the start of a span, for a message. */
#define SPAN_SHOWN(s) (int)CR_MIN((s).length, (size_t)60), (s).at

#define SCAN_COMPLAIN(scan, ...) cr_complain((scan)->complaints, (scan)->ini->path, (scan)->line, __VA_ARGS__)

/* Adds an error about a key: "[train] batch: text". */
static void complain_of(struct scan *scan, const char *key, const char *fmt, ...) CR_PRINTF(3, 4);
static void complain_of(struct scan *scan, const char *key, const char *fmt, ...) {
    char    what[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    if (*scan->section && !scan->skip)
        SCAN_COMPLAIN(scan, "[%.60s] %.60s%s", scan->section, key, what);
    else
        SCAN_COMPLAIN(scan, "%.60s%s", key, what);
}

static void scan_add(struct scan *scan, const char *key, const char *value) {
    struct cr_ini *ini = scan->ini;
    if (scan->no_memory || scan->skip || ini->count > CR_INI_ENTRY_MAX) return;
    if (ini->count == CR_INI_ENTRY_MAX)
        SCAN_COMPLAIN(scan, "more than %d keys; this is not a configuration file", CR_INI_ENTRY_MAX);
    if (ini->count == scan->capacity) {
        int                  capacity = CR_MAX(64, scan->capacity * 2);
        struct cr_ini_entry *fresh    = cr_arena_alloc(scan->arena, (size_t)capacity * sizeof *fresh);
        if (!fresh) {
            scan->no_memory = true;
            return;
        }
        if (ini->count) memcpy(fresh, ini->entry, (size_t)ini->count * sizeof *fresh);
        ini->entry     = fresh;
        scan->capacity = capacity;
    }
    ini->entry[ini->count++] = (struct cr_ini_entry){scan->section, key, value, scan->line};
}

static void scan_section(struct scan *scan, struct span line) {
    const char *close = memchr(line.at, ']', line.length);
    scan->skip        = true;
    if (!close) {
        SCAN_COMPLAIN(scan, "'%.*s': the closing ']' of the section is missing", SPAN_SHOWN(line));
        return;
    }
    struct span name = span_strip((struct span){line.at + 1, (size_t)(close - line.at) - 1});
    if (!span_is_name(name)) {
        SCAN_COMPLAIN(scan, "[%.*s]: a section name consists of letters, digits, _ - and .", SPAN_SHOWN(name));
        return;
    }
    scan->section = span_copy(scan, name, true);
    scan->skip    = false;
    if (close + 1 != line.at + line.length)
        SCAN_COMPLAIN(scan, "[%s]: no text may follow a section name; put a comment on its own line", scan->section);
    scan_add(scan, NULL, "");
}

/* Scans "..." or '...': no escapes; only a comment may follow. False after an error. */
static bool scan_quoted(struct scan *scan, const char *key, struct span text, struct span *value) {
    const char *close = memchr(text.at + 1, text.at[0], text.length - 1);
    if (!close) {
        complain_of(scan, key, ": the closing %c is missing", text.at[0]);
        return false;
    }
    *value           = (struct span){text.at + 1, (size_t)(close - text.at) - 1};
    struct span tail = span_strip((struct span){close + 1, (size_t)(text.at + text.length - close) - 1});
    if (tail.length && tail.at[0] != '#' && tail.at[0] != ';') {
        complain_of(scan, key, ": '%.*s' follows the closing quote", SPAN_SHOWN(tail));
        return false;
    }
    if (memchr(value->at, '\\', value->length)) {
        complain_of(scan, key, ": iniparser versions differ in how they read a backslash in quotes; remove it");
        return false;
    }
    return true;
}

/* Scans up to the end or to a comment. A ; or # that touches other text is an error: iniparser would silently
 * truncate. */
static bool scan_unquoted(struct scan *scan, const char *key, struct span text, struct span *value) {
    size_t end = 0, quotes[2] = {0, 0};
    for (; end < text.length && text.at[end] != ';' && text.at[end] != '#'; end++) {
        quotes[0] += text.at[end] == '"';
        quotes[1] += text.at[end] == '\'';
    }
    *value = span_strip((struct span){text.at, end});
    if (end == text.length) return true;
    /* text.at[-1] is valid: at least the '=' precedes */
    if (!is_blank(text.at[(ptrdiff_t)end - 1])) {
        complain_of(scan, key,
                    " = %.*s: '%c' would start a comment; quote the value, or put a blank before the comment",
                    SPAN_SHOWN(text), text.at[end]);
        return false;
    }
    if (quotes[0] % 2 || quotes[1] % 2) {
        complain_of(scan, key, " = %.*s: a comment starts inside quotes; quote the complete value", SPAN_SHOWN(text));
        return false;
    }
    return true;
}

static bool scan_is_duplicate(struct scan *scan, const char *key) {
    const struct cr_ini *ini = scan->ini;
    for (int i = 0; i < ini->count; i++) {
        if (!ini->entry[i].key || strcmp(ini->entry[i].key, key) != 0 ||
            strcmp(ini->entry[i].section, scan->section) != 0)
            continue;
        complain_of(scan, key, ": is already set in line %d; remove one of the two", ini->entry[i].line);
        return true;
    }
    return false;
}

static void scan_key(struct scan *scan, struct span line) {
    const char *equals = memchr(line.at, '=', line.length);
    if (!equals) {
        SCAN_COMPLAIN(scan, "'%.*s': is neither [section] nor key = value", SPAN_SHOWN(line));
        return;
    }
    struct span name = span_strip((struct span){line.at, (size_t)(equals - line.at)});
    if (!span_is_name(name)) {
        SCAN_COMPLAIN(scan, "'%.*s': a key name consists of letters, digits, _ - and .", SPAN_SHOWN(name));
        return;
    }
    const char *key = span_copy(scan, name, true);
    /* scan_unquoted looks at the character before the text, so the blanks stay in the buffer */
    struct span text = span_strip((struct span){equals + 1, (size_t)(line.at + line.length - equals) - 1});
    if (!text.length) text.at = equals + 1;
    struct span value;
    bool        quoted = text.length && (text.at[0] == '"' || text.at[0] == '\'');
    bool        good   = quoted ? scan_quoted(scan, key, text, &value) : scan_unquoted(scan, key, text, &value);
    if (!good || scan->skip || scan_is_duplicate(scan, key)) return;
    scan_add(scan, key, span_copy(scan, value, false));
}

static bool scan_bytes_good(struct scan *scan, struct span line) {
    if (line.length > CR_INI_LINE_MAX) {
        SCAN_COMPLAIN(scan, "the line has %zu bytes; the limit is %d", line.length, CR_INI_LINE_MAX);
        return false;
    }
    for (size_t i = 0; i < line.length; i++) {
        unsigned char c = (unsigned char)line.at[i];
        if ((c >= 0x20 && c != 0x7f) || c == '\t') continue;
        if (c == '\r' && i + 1 == line.length) continue; /* CRLF */
        SCAN_COMPLAIN(scan, "byte %zu of the line is the control character 0x%02x; only text is allowed", i + 1, c);
        return false;
    }
    struct span text = span_strip(line);
    if (text.length && text.at[text.length - 1] == '\\') {
        SCAN_COMPLAIN(
            scan, "the line ends in a backslash, which would continue it on the next line; write a value on one line");
        return false;
    }
    return true;
}

static void scan_line(struct scan *scan, struct span line) {
    if (!scan_bytes_good(scan, line)) return;
    line = span_strip(line);
    if (!line.length || line.at[0] == '#' || line.at[0] == ';') return;
    if (line.at[0] == '[')
        scan_section(scan, line);
    else
        scan_key(scan, line);
}

static cr_status scan_text(struct scan *scan, const struct cr_text *text) {
    const char *at = text->data ? text->data : "", *end = at + text->length;
    if (text->length >= 3 && memcmp(at, "\xef\xbb\xbf", 3) == 0) {
        cr_complain(scan->complaints, scan->ini->path, 1,
                    "the file starts with a byte order mark; save the file as UTF-8 without BOM");
        at += 3;
    }
    /* Files that a command line names by mistake, such as images, have zero bytes: one error instead of many. */
    const char *zero = at < end ? memchr(at, 0, (size_t)(end - at)) : NULL;
    for (scan->line = 1; at < end && !scan->no_memory; scan->line++) {
        const char       *newline = memchr(at, '\n', (size_t)(end - at)), *stop = newline ? newline : end;
        const struct span line = {at, (size_t)(stop - at)};
        if (!zero) scan_line(scan, line);
        if (zero && zero < stop && !scan_bytes_good(scan, line)) break;
        at = stop + 1;
    }
    return scan->no_memory ? CR_NO_MEMORY(text->length) : CR_OK;
}

/* ---- iniparser ---- */

static pthread_mutex_t iniparser_mutex = PTHREAD_MUTEX_INITIALIZER;
static char            iniparser_message[256]; /* protected by the mutex; the callback has no context argument */

static int iniparser_note(const char *fmt, ...) CR_PRINTF(1, 2);
static int iniparser_note(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(iniparser_message, sizeof iniparser_message, fmt, args);
    va_end(args);
    return length;
}

static dictionary *dictionary_load(const char *path, char *message, size_t message_bytes) {
    pthread_mutex_lock(&iniparser_mutex);
    iniparser_message[0] = 0;
    iniparser_set_error_callback(iniparser_note);
    dictionary *d = iniparser_load(path);
    iniparser_set_error_callback(NULL);
    iniparser_message[strcspn(iniparser_message, "\n")] = 0;
    snprintf(message, message_bytes, "%s", iniparser_message);
    pthread_mutex_unlock(&iniparser_mutex);
    return d;
}

/* iniparser 4.1 reads paths only. A copy in memory makes it read the bytes that we scanned, even from a pipe. */
static cr_status iniparser_parse(const struct cr_ini *ini, const struct cr_text *text, dictionary **out) {
    cr_status status = CR_OK;
    char      path[64], message[256];
    const int fd = cr_fs_memory_file(text->data, text->length);
    if (fd < 0)
        return CR_FAIL(CR_ERR_IO, "%s: cannot make a memory file for iniparser: %s", ini->path, strerror(errno));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    *out = dictionary_load(path, message, sizeof message);
    if (!*out && message[0]) CR_FAIL_OUT(CR_ERR_IO, "%s: iniparser cannot read it: %s", ini->path, message);
    if (!*out) status = CR_NO_MEMORY(text->length);
out:
    close(fd);
    return status;
}

static bool ini_has(const struct cr_ini *ini, const char *name) {
    for (int i = 0; i < ini->count; i++) {
        const struct cr_ini_entry *entry  = &ini->entry[i];
        size_t                     length = strlen(entry->section);
        if (strncmp(name, entry->section, length) != 0) continue;
        if (!name[length]) return true; /* the section itself */
        if (entry->key && name[length] == ':' && strcmp(name + length + 1, entry->key) == 0) return true;
    }
    return false;
}

/* Replaces each value by iniparser's. A key or value that differs between iniparser and our scanner is an error. */
static cr_status read_values(struct cr_ini *ini, const dictionary *d, struct cr_arena *arena,
                             struct cr_complaints *complaints) {
    for (int i = 0; i < ini->count; i++) {
        struct cr_ini_entry *entry = &ini->entry[i];
        if (!entry->key) continue;
        char name[2 * CR_INI_LINE_MAX + 2];
        snprintf(name, sizeof name, "%s:%s", entry->section, entry->key);
        const char *value = iniparser_getstring(d, name, NULL);
        if (!value || strcmp(value, entry->value) != 0)
            cr_complain(complaints, ini->path, entry->line,
                        "[%s] %s: ambiguous: iniparser reads '%.60s', cresnet reads '%.60s'; quote the value",
                        entry->section, entry->key, value ? value : "nothing", entry->value);
        entry->value = cr_arena_printf(arena, "%s", value ? value : "");
        if (!entry->value) return CR_NO_MEMORY(CR_INI_LINE_MAX);
    }
    for (ssize_t i = 0; i < (ssize_t)d->size; i++)
        if (d->key[i] && !ini_has(ini, d->key[i]))
            cr_complain(complaints, ini->path, 0, "iniparser reads '%.60s', which cresnet does not find", d->key[i]);
    return CR_OK;
}

cr_status cr_ini_read(struct cr_ini *ini, const char *path, bool regular, struct cr_arena *arena,
                      struct cr_complaints *complaints) {
    *ini                  = (struct cr_ini){.path = path};
    cr_status      status = CR_OK;
    int            before = complaints->count;
    struct cr_text text   = {0};
    dictionary    *d      = NULL;
    struct scan    scan   = {.ini = ini, .arena = arena, .complaints = complaints, .section = ""};
    CR_TRY_OUT(file_read(ini, path, regular, &text));
    CR_TRY_OUT(scan_text(&scan, &text));
    if (complaints->count > before || complaints->failed) goto out; /* iniparser would reject or misread the file */
    CR_TRY_OUT(iniparser_parse(ini, &text, &d));
    CR_TRY_OUT(read_values(ini, d, arena, complaints));
out:
    if (d) iniparser_freedict(d);
    cr_text_free(&text);
    return status;
}
