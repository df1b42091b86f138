/* cli/commands/config.c: cresnet config: lists the configurations that are installed with the program, or copies one of
 * them into the current folder, together with those that it includes. */
#include "cli/common/command.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 1 << 16, INCLUDES_MAX = 8, FILES_MAX = 200, NAME_BYTES = 64 };

/* ---- the list ---- */

static int compare_names(const void *a, const void *b) {
    return strcmp(a, b);
}

/* Stores the names of the configurations in the folder, sorted. */
static cr_status read_names(const char *folder, char names[FILES_MAX][NAME_BYTES], size_t *count) {
    DIR *dir = opendir(folder);
    if (!dir) return cr_fs_refused(folder, "open", errno);
    *count = 0;
    for (const struct dirent *entry; *count < FILES_MAX && (entry = readdir(dir));)
        if (cr_ends_with(entry->d_name, ".ini"))
            snprintf(names[(*count)++], NAME_BYTES, "%.*s", NAME_BYTES - 1, entry->d_name);
    closedir(dir);
    qsort(names, *count, NAME_BYTES, compare_names);
    return CR_OK;
}

/* One line: the name, and the first line of its comment. */
static cr_status add_line(const char *folder, const char *name, struct cr_text *out) {
    char path[CR_PATH_MAX], *text;
    CR_TRY(cr_path_join(path, folder, "%s", name));
    CR_TRY(cr_file_read(path, FILE_BYTES_MAX, &text, NULL));
    text[strcspn(text, "\n")] = 0;
    cr_text_add(out, "%-28s  %s\n", name, text + strspn(text, "# "));
    cr_free(text);
    return CR_OK;
}

static cr_status list(const char *folder, struct cr_text *out) {
    char   names[FILES_MAX][NAME_BYTES];
    size_t count = 0;
    CR_TRY(read_names(folder, names, &count));
    for (size_t i = 0; i < count; i++) CR_TRY(add_line(folder, names[i], out));
    return CR_OK;
}

/* ---- the copy ---- */

/* Stores the file name of the line `include = FILE` before the first section, or "" if there is no such line. */
static void find_include(const char *text, char name[CR_PATH_MAX]) {
    *name = 0;
    for (const char *line = text; *line && *line != '['; line += strcspn(line, "\n"), line += *line == '\n')
        if (strncmp(line, "include", 7) == 0) {
            const char  *value  = line + 7 + strspn(line + 7, " =");
            const size_t length = strcspn(value, " \r\n");
            if (length < CR_PATH_MAX) {
                memcpy(name, value, length);
                name[length] = 0;
            }
        }
}

/* Copies the file into the current folder. An included file that exists there stays unchanged. `name` receives the name
 * of the file that this one includes, or "". */
static cr_status copy(const char *folder, char name[CR_PATH_MAX], bool included) {
    char path[CR_PATH_MAX], *text;
    CR_TRY(cr_path_join(path, folder, "%s", name));
    CR_TRY(cr_file_read(path, FILE_BYTES_MAX, &text, NULL));
    cr_status status = CR_OK;
    if (included && cr_fs_is_file(name))
        cr_log(CR_LOG_INFO, "config  %s is here already and was not changed", name);
    else {
        status = cr_fs_write_new(name, text, strlen(text));
        if (status == CR_OK) cr_log(CR_LOG_INFO, "config  wrote %s", name);
    }
    find_include(text, name);
    cr_free(text);
    return status;
}

cr_status cr_cmd_config_copy(const struct cr_args *args, struct cr_result *out) {
    char folder[CR_PATH_MAX], name[CR_PATH_MAX], found[CR_PATH_MAX];
    CR_TRY(cr_args_max_operands(args, 1));
    CR_TRY(cr_cmd_installed_configs(folder));
    if (!args->operands) return list(folder, &out->text);
    CR_TRY(cr_cmd_installed_config(args->operand[0], found));
    if (!*found)
        return cr_args_fail(args, "%s: no such configuration is installed; cresnet config lists them",
                            args->operand[0]);
    snprintf(name, sizeof name, "%s", strrchr(found, '/') + 1);
    if (access(name, F_OK) == 0)
        return cr_args_fail(args, "%s: exists here already and is not replaced: rename it first", name);
    for (int i = 0; *name && i < INCLUDES_MAX; i++) CR_TRY(copy(folder, name, i > 0));
    return CR_OK;
}
