/* config/files.c: reads the INI files of a config: the named one, and those that it includes. See config/loader.h. */
#include "config/loader.h"

#include <stdlib.h>
#include <string.h>

const char *cr_config_home_path(struct cr_config_loader *l, const char *text) {
    const char *home = getenv("HOME");
    if (strncmp(text, "~/", 2) != 0 || l->config->stored || !home || !*home) return text;
    return cr_arena_printf(l->arena, "%s%s", home, text + 1);
}

/* The path of the included file, relative to the including one; NULL when out of memory. */
static const char *include_path(struct cr_config_loader *l, const char *from, const char *value) {
    const char *slash = strrchr(from, '/');
    value             = cr_config_home_path(l, value);
    if (!value) return NULL;
    int folder = *value == '/' || !slash ? 0 : (int)(slash - from) + 1;
    return cr_arena_printf(l->arena, "%.*s%s", folder, from, value);
}

static const struct cr_ini_entry *include_find(const struct cr_ini *file) {
    for (int i = 0; i < file->count; i++)
        if (!*file->entry[i].section && file->entry[i].key && strcmp(file->entry[i].key, "include") == 0)
            return &file->entry[i];
    return NULL;
}

static bool is_open_already(const struct cr_config_loader *l, const struct cr_ini *file) {
    for (int i = 0; i < l->files; i++)
        if (l->file[i].device == file->device && l->file[i].inode == file->inode) return true;
    return false;
}

/* Reads the file that the last file includes. *more is false if there is none. */
static cr_status include_read(struct cr_config_loader *l, bool *more) {
    const struct cr_ini       *from = &l->file[l->files - 1];
    const struct cr_ini_entry *e    = include_find(from);
    *more                           = false;
    if (!e) return CR_OK;
    if (!*e->value) {
        cr_complain(&l->complaints, from->path, e->line, "include: the file name is missing");
        return CR_OK;
    }
    if (l->files == CR_INCLUDE_DEPTH_MAX) {
        cr_complain(&l->complaints, from->path, e->line, "include = %.60s: includes are nested more than %d deep",
                    e->value, CR_INCLUDE_DEPTH_MAX);
        return CR_OK;
    }
    const char *path = include_path(l, from->path, e->value);
    if (!path) return CR_NO_MEMORY(strlen(e->value));
    struct cr_ini *next   = &l->file[l->files];
    cr_status      status = cr_ini_read(next, path, true, l->arena, &l->complaints);
    if (status == CR_ERR_MEMORY) return status;
    if (status != CR_OK) {
        cr_complain(&l->complaints, from->path, e->line, "include = %.60s: %s", e->value, cr_error_message());
        return CR_OK;
    }
    if (is_open_already(l, next)) {
        cr_complain(&l->complaints, from->path, e->line, "include = %.60s: this file includes itself (a cycle)",
                    e->value);
        return CR_OK;
    }
    l->files++;
    *more = true;
    return CR_OK;
}

cr_status cr_config_files_read(struct cr_config_loader *l, const char *path) {
    CR_ARENA_ALLOC(l->arena, l->file, CR_INCLUDE_DEPTH_MAX);
    CR_TRY(cr_ini_read(&l->file[0], path, l->config->stored, l->arena, &l->complaints));
    l->files                           = 1;
    bool                       more    = true;
    const struct cr_ini_entry *include = include_find(&l->file[0]);
    if (l->config->stored && include)
        return CR_FAIL(CR_ERR_CONFIG,
                       "%s:%d: the configuration of a run may not include other files: to use one that does, name the "
                       "file itself instead of its folder, with --weights",
                       path, include->line);
    while (more) CR_TRY(include_read(l, &more));
    l->config->file  = l->file;
    l->config->files = l->files;
    return CR_OK;
}
