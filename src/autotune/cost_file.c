/* autotune/cost_file.c: reads and writes the file that stores the cost table in the user's cache folder. See
 * autotune/cost_table.h. */
#include "autotune/cost_table_internal.h"

#include "core/files.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 64 << 20 };

cr_status cr_cost_table_path(const struct cr_device *device, char **out) {
    const char *own = getenv("CRESNET_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char        name[48], path[CR_PATH_MAX];
    size_t      n = 0;
    *out          = NULL;
    for (const char *s = device->caps.text; *s && *s != ',' && n + 1 < sizeof name; s++)
        name[n++] = isalnum((unsigned char)*s) ? (char)tolower((unsigned char)*s) : '-';
    name[n] = 0;
    path[0] = 0;
    if (own && strcmp(own, "off") == 0) own = xdg = home = NULL;
    cr_status status = CR_OK;
    if (own && *own)
        status = cr_path_join(path, own, "kernel-times-%s.txt", name);
    else if (xdg && *xdg == '/')
        status =
            cr_path_join(path, xdg, "cresnet/kernel-times-%s.txt", name); /* the XDG standard: ignore relative paths */
    else if (home && *home)
        status = cr_path_join(path, home, ".cache/cresnet/kernel-times-%s.txt", name);
    if (status != CR_OK) {
        cr_log(CR_LOG_WARN, "%s; kernel times are not saved", cr_error_message());
        cr_error_clear();
        path[0] = 0;
    }
    *out = cr_strdup(path);
    return *out ? CR_OK : CR_NO_MEMORY(sizeof path);
}

/* An error of the file costs time but does not stop the run. */
static void read_file(struct cr_cost_table *c, bool verbose) {
    char       *text   = NULL;
    const char *why    = NULL;
    size_t      length = 0;
    bool        other_device;
    if (!c->path[0] || access(c->path, F_OK) != 0) return; /* first run on this device */
    cr_status status = cr_file_read(c->path, FILE_BYTES_MAX, &text, &length);
    if (status == CR_OK) status = cr_cost_read_text(c, text, length, CR_COST_FILE, &why, &other_device);
    if (status != CR_OK && verbose) cr_log(CR_LOG_INFO, "%s; kernels are timed again", cr_error_message());
    if (why && verbose) cr_log(CR_LOG_INFO, "%s is ignored: %s; kernels are timed again", c->path, why);
    if (status != CR_OK) cr_error_clear();
    cr_free(text);
}

static bool measured_here(const struct cr_cost_table *c, const struct cr_cost_entry *e) {
    for (int i = CR_NONE; (i = cr_cost_next(c, e->signature, e->hash, i)) != CR_NONE;)
        if (c->entry[i].source == CR_COST_MEASURED) return true;
    return false;
}

/* Merges the new entries with the present contents of the file, because another process may have written it. */
static cr_status file_text(const struct cr_cost_table *c, struct cr_text *out) {
    struct cr_cost_table now = {.device = c->device, .path = c->path, .identity = c->identity};
    read_file(&now, false);
    cr_cost_add_header(c, out);
    for (int i = 0; i < now.entries; i++)
        if (!measured_here(c, &now.entry[i])) cr_cost_add_line(c, &now.entry[i], out);
    for (int i = 0; i < c->entries; i++)
        if (c->entry[i].source == CR_COST_MEASURED) cr_cost_add_line(c, &c->entry[i], out);
    cr_cost_add_checksum(out);
    cr_cost_free_table(&now);
    return out->failed ? CR_NO_MEMORY(4096) : CR_OK;
}

static cr_status write_file(const struct cr_cost_table *c) {
    struct cr_text text   = {0};
    char          *dir    = cr_strdup(c->path), *slash;
    cr_status      status = dir ? file_text(c, &text) : CR_NO_MEMORY(strlen(c->path));
    if (status == CR_OK && (slash = strrchr(dir, '/')) && slash != dir) {
        *slash = 0;
        status = cr_fs_mkdirs(dir);
    }
    if (status == CR_OK) status = cr_file_write_atomic(c->path, text.data, text.length);
    cr_free(dir);
    cr_text_free(&text);
    return status;
}

void cr_cost_table_flush(struct cr_cost_table *c) {
    const int64_t fresh = c->measured - c->reported;
    cr_measure_memory_release(c->device, &c->scratch);
    if (!fresh && !c->dirty) return;
    const cr_status status = c->path[0] ? write_file(c) : CR_OK;
    if (fresh)
        cr_log(CR_LOG_INFO, "kernel selection: %lld kernels timed in %.2f s%s%s", (long long)fresh,
               (double)(c->measure_ns - c->reported_ns) * 1e-9, c->path[0] && status == CR_OK ? ", saved to " : "",
               status == CR_OK ? c->path : "");
    c->reported    = c->measured;
    c->reported_ns = c->measure_ns;
    c->dirty       = false;
    if (status == CR_OK) return;
    cr_log(CR_LOG_WARN, "%s; the next run times the kernels again (CRESNET_CACHE=DIR saves their times in DIR)",
           cr_error_message());
    cr_error_clear();
}

/* ---- open ---- */

cr_status cr_cost_table_open(struct cr_device *device, const char *path, struct cr_cost_table **out) {
    struct cr_cost_table *c;
    cr_status             status = CR_OK;
    CR_ALLOC(c, 1);
    c->device = device;
    c->path   = cr_arena_printf(&c->arena, "%s", path);
    if (!c->path) {
        status = CR_NO_MEMORY(strlen(path));
        goto out;
    }
    CR_TRY_OUT(cr_cost_make_identity(c));
    read_file(c, true);
    *out = c;
    return CR_OK;
out:
    cr_cost_table_close(c);
    return status;
}

cr_status cr_cost_table_load(struct cr_device *device, const char *path, struct cr_cost_table **out) {
    char       *text   = NULL;
    const char *why    = NULL;
    size_t      length = 0;
    bool        other_device;
    CR_TRY(cr_cost_table_open(device, "", out));
    (*out)->offline  = true;
    cr_status status = cr_file_read(path, FILE_BYTES_MAX, &text, &length);
    if (status == CR_OK) status = cr_cost_read_text(*out, text, length, CR_COST_FILE, &why, &other_device);
    cr_free(text);
    if (status == CR_OK && why) status = CR_FAIL(CR_ERR_FORMAT, "%s: %s", path, why);
    if (status == CR_OK) return CR_OK;
    cr_cost_table_close(*out);
    *out = NULL;
    return status;
}
