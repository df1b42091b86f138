/* config/messages.c: error messages about the value of a key: its file and line, its value, and what is wrong. */
#include "config/config.h"
#include "config/keys.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct cr_config_src *src_of(const struct cr_config *config, const char *dotted) {
    const struct cr_key *key = cr_key_dotted(dotted);
    CR_ASSERT(key);
    return &config->src[cr_key_index(key)];
}

/* Writes "[train] batch = 900"; long values are truncated; " (default)" follows if the key is not set. */
static void value_describe(const struct cr_config *config, const struct cr_key *key, char *out, size_t bytes) {
    struct cr_text text = {0};
    cr_value_print(key, config, &text);
    const char *value = text.failed || !text.data ? "" : text.data;
    snprintf(out, bytes, "[%s] %s = %.60s%s", key->section, key->name, value,
             config->src[cr_key_index(key)].file ? "" : " (default)");
    cr_text_free(&text);
}

static const char *value_file(const struct cr_config *config, const struct cr_key *key) {
    const char *file = config->src[cr_key_index(key)].file;
    return file ? file : config->path;
}

void cr_config_complain(const struct cr_config *config, struct cr_complaints *complaints, const struct cr_key *key,
                        const char *fmt, ...) {
    char    what[700], value[200];
    int     line = config->src[cr_key_index(key)].line;
    va_list args;
    if (line == CR_KEY_REFUSED) return; /* the value's own error was reported before */
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    value_describe(config, key, value, sizeof value);
    cr_complain(complaints, value_file(config, key), line, "%s: %s", value, what);
}

cr_status cr_config_fail(const struct cr_config *config, const char *dotted, const char *fmt, ...) {
    const struct cr_key *key = cr_key_dotted(dotted);
    CR_ASSERT(key);
    char    what[700], value[200], place[32] = "";
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    value_describe(config, key, value, sizeof value);
    int line = config->src[cr_key_index(key)].line;
    if (line) snprintf(place, sizeof place, ":%d", line);
    return CR_FAIL(CR_ERR_CONFIG, "%s%s: %s: %s", value_file(config, key), place, value, what);
}

bool cr_config_given(const struct cr_config *config, const char *dotted) {
    const char *file = src_of(config, dotted)->file;
    return file && (!config->stored || file == config->override_source);
}

const char *cr_config_file(const struct cr_config *config, const char *dotted) {
    const struct cr_config_src *src = src_of(config, dotted);
    return src->line > 0 ? src->file : NULL;
}

bool cr_config_is_set(const struct cr_config *config, const char *dotted) {
    return src_of(config, dotted)->file != NULL;
}

/* The first part of the path that does not exist: path[0..folder) is a folder with its slash, path[folder..end) the
 * part. */
static bool find_missing(const char *path, size_t *folder, size_t *end) {
    char part[PATH_MAX];
    if (strlen(path) >= sizeof part) return false;
    for (*folder = 0;; *folder = *end + 1) {
        *end = *folder + strcspn(path + *folder, "/");
        snprintf(part, sizeof part, "%.*s", (int)*end, path);
        if (*part && access(part, F_OK) != 0) return *end > *folder;
        if (!path[*end]) return false;
    }
}

enum { NAME_MIN = 3 }; /* shorter names resemble too many others */

void cr_path_hint(const char *path, char *out, size_t bytes) {
    char   name[NAME_MAX + 1], parent[PATH_MAX], other[PATH_MAX + NAME_MAX], best[PATH_MAX + NAME_MAX] = "";
    size_t folder, end;
    *out = 0;
    if (!find_missing(path, &folder, &end) || end - folder > NAME_MAX || end - folder < NAME_MIN) return;
    snprintf(name, sizeof name, "%.*s", (int)(end - folder), path + folder);
    snprintf(parent, sizeof parent, "%.*s", (int)folder, folder ? path : "");
    DIR                 *dir     = opendir(folder ? parent : ".");
    const struct dirent *entry   = NULL;
    int                  nearest = CR_MAX(1, (int)strlen(name) / 4) + 1;
    while (dir && (entry = readdir(dir))) {
        const int distance = cr_edit_distance(name, entry->d_name);
        if (entry->d_name[0] == '.' || distance > nearest || (distance == nearest && !*best)) continue;
        snprintf(other, sizeof other, "%s%s%s", parent, entry->d_name, path + end);
        if (distance == nearest && strcmp(other, best) > 0) continue; /* not by the disk's order */
        if (access(other, F_OK) != 0) continue;
        nearest = distance;
        snprintf(best, sizeof best, "%s", other);
    }
    if (dir) closedir(dir);
    if (*best) snprintf(out, bytes, "; did you mean %s?", best);
}
