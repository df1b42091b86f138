/* pretrained/names.c: names of pretrained weights (resnet50, torchvision's files). See pretrained/pretrained.h. */
#include "pretrained/pretrained.h"

#include "core/files.h"
#include "core/utf8.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_BYTES_MAX = 1 << 20, HASH_DIGITS_MIN = 8 };

/* torchvision's files of networks that cresnet has: IMAGENET1K_V1, and the newer recipe IMAGENET1K_V2 as .v2. */
static const struct {
    const char *name, *file;
} published[] = {
    {"resnet18", "resnet18-f37072fd.pth"},
    {"resnet34", "resnet34-b627a593.pth"},
    {"resnet50", "resnet50-0676ba61.pth"},
    {"resnet50.v2", "resnet50-11ad3fa6.pth"},
    {"resnet101", "resnet101-63fe2227.pth"},
    {"resnet101.v2", "resnet101-cd907fc2.pth"},
    {"resnet152", "resnet152-394f9c45.pth"},
    {"resnet152.v2", "resnet152-f82ba261.pth"},
    {"wide_resnet50_2", "wide_resnet50_2-95faca4d.pth"},
    {"wide_resnet50_2.v2", "wide_resnet50_2-9ba9bcbe.pth"},
    {"wide_resnet101_2", "wide_resnet101_2-32ee1156.pth"},
    {"wide_resnet101_2.v2", "wide_resnet101_2-d733dc28.pth"},
    {"resnext50_32x4d", "resnext50_32x4d-7cdf4587.pth"},
    {"resnext50_32x4d.v2", "resnext50_32x4d-1a0047aa.pth"},
    {"resnext101_32x8d", "resnext101_32x8d-8ba56ff5.pth"},
    {"resnext101_32x8d.v2", "resnext101_32x8d-110c445d.pth"},
    {"resnext101_64x4d", "resnext101_64x4d-173b62eb.pth"},
};

/* Copies the hash of "resnet50-0676ba61.pth". False if the name has none or contains a folder. */
static bool take_hash(const char *file, char out[65]) {
    const char *dash = strrchr(file, '-');
    size_t      n    = 0;
    if (!dash || strchr(file, '/') || *file == '.') return false;
    for (dash++; n < 64 && isxdigit((unsigned char)dash[n]); n++) out[n] = (char)tolower((unsigned char)dash[n]);
    out[n] = 0;
    return n >= HASH_DIGITS_MIN && dash[n] == '.';
}

static bool fill(const char *name, const char *file, struct cr_pretrained *out) {
    struct cr_pretrained entry;
    if (snprintf(entry.name, sizeof entry.name, "%s", name) >= (int)sizeof entry.name ||
        snprintf(entry.file, sizeof entry.file, "%s", file) >= (int)sizeof entry.file || !take_hash(file, entry.hash))
        return false;
    *out = entry;
    return true;
}

/* ---- the list of the user ---- */

static cr_status bad_line(const char *path, int line) {
    return CR_FAIL(CR_ERR_FORMAT,
                   "%s:%d: must be a name and a file name that ends with the begin of its SHA-256, as in `resnet50 "
                   "resnet50-0676ba61.pth` (CRESNET_WEIGHTS_LIST)",
                   path, line);
}

/* Searches the lines "NAME FILE"; empty lines and lines from # on are comments. */
static cr_status search_list(const char *path, const char *name, struct cr_pretrained *out, bool *found) {
    char     *text = NULL, *save = NULL;
    int       number = 0;
    cr_status status = CR_OK;
    CR_TRY(cr_file_read(path, LIST_BYTES_MAX, &text, NULL));
    for (char *line = text, *next; line && status == CR_OK; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        number++;
        line[strcspn(line, "#\r")] = 0;
        const char          *key = strtok_r(line, " \t", &save), *file = key ? strtok_r(NULL, " \t", &save) : NULL;
        struct cr_pretrained entry;
        if (!key) continue;
        if (!file || strtok_r(NULL, " \t", &save) || !fill(key, file, &entry)) status = bad_line(path, number);
        if (status != CR_OK || *found || strcmp(key, name) != 0) continue;
        *out   = entry;
        *found = true;
    }
    cr_free(text);
    return status;
}

/* ---- lookup ---- */

/* "resnet50.v1" is "resnet50". */
static bool same_name(const char *name, const char *entry) {
    const size_t length = strlen(entry);
    return strncmp(name, entry, length) == 0 && (!name[length] || strcmp(name + length, ".v1") == 0);
}

static bool search_table(const char *name, struct cr_pretrained *out) {
    for (size_t i = 0; i < CR_COUNT(published); i++)
        if (same_name(name, published[i].name)) return fill(published[i].name, published[i].file, out);
    return false;
}

void cr_pretrained_names(const char *separator, struct cr_text *out) {
    for (size_t i = 0; i < CR_COUNT(published); i++) cr_text_add(out, "%s%s", i ? separator : "", published[i].name);
}

static cr_status fail_unknown(const char *name) {
    char           shown[80];
    struct cr_text names = {0};
    cr_utf8_visible(name, false, shown, sizeof shown);
    cr_pretrained_names(", ", &names);
    const cr_status status =
        CR_FAIL(CR_ERR_CONFIG, "%s: is neither a file nor the name of published weights: the names are %s", shown,
                names.data && !names.failed ? names.data : "those of torchvision");
    cr_text_free(&names);
    return status;
}

cr_status cr_pretrained_find(const char *name, struct cr_pretrained *out) {
    const char *list  = getenv("CRESNET_WEIGHTS_LIST");
    bool        found = false;
    if (strchr(name, '/') || !*name) return fail_unknown(name);
    if (list && *list) CR_TRY(search_list(list, name, out, &found));
    return found || search_table(name, out) ? CR_OK : fail_unknown(name);
}

/* Errors of the user's list are reported when the name is used: any name may be in it. */
bool cr_pretrained_is_name(const char *name) {
    struct cr_pretrained entry;
    cr_error_hold();
    const cr_status status = cr_pretrained_find(name, &entry);
    cr_error_release();
    return status != CR_ERR_CONFIG;
}

bool cr_pretrained_has_imagenet_classes(const char *path) {
    const char *file = cr_path_name(path);
    for (size_t i = 0; i < CR_COUNT(published); i++)
        if (strcmp(file, published[i].file) == 0) return true;
    return false;
}
