/* tests/harness/config_support.h: helpers of the INI and config tests: files in a folder of the test program. */
#ifndef CR_CONFIG_SUPPORT_H
#define CR_CONFIG_SUPPORT_H

#include "tests/harness/folder.h"

static inline const char *file_bytes(const char *name, const void *bytes, size_t count) {
    const char *path = in_folder("%s", name);
    FILE       *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, count, file) != count) printf("    cannot write %s\n", path);
    if (file) fclose(file);
    return path;
}
static inline const char *file_text(const char *name, const char *text) {
    return file_bytes(name, text, strlen(text));
}

/* Opens `text` as c.ini with one override (or NULL). Returns the error message without the folder, "" on success. */
static inline const char *refusal(const char *text, const char *override) {
    static char             message[5000];
    const struct cr_config *config;
    const char             *path = text ? file_text("c.ini", text) : NULL;
    char                   *to   = message;
    cr_error_clear();
    *message = 0;
    if (cr_config_open(&config, path, &override, override ? 1 : 0) == CR_OK) {
        cr_config_close(config);
        return message;
    }
    size_t skip = strlen(tmp_path) + 1;
    for (const char *at = cr_error_message(); *at;) {
        if (strncmp(at, tmp_path, skip - 1) == 0 && at[skip - 1] == '/')
            at += skip;
        else
            *to++ = *at++;
    }
    *to = 0;
    return message;
}

#endif
