/* costs.c: the table of measured costs and its text. See costs.h.
 *
 * The text: a first line that names the device, then a line an entry, fields apart by tabs:
 *     cresnet costs 1 <tab> NVIDIA H200, ... rows 9f3a...
 *     nanoseconds <tab> row <tab> way <tab> signature */
#include "costs_parts.h"

#include "fsutil.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char first_words[] = "cresnet costs 1";
enum { FILE_BYTES_MAX = 64 << 20 };

/* ---- signatures ---- */

uint64_t cr_cost_hash(const char *text) { /* FNV-1a, 64 bits */
    uint64_t h = 0xcbf29ce484222325u;
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    return h;
}

static void add_slot(struct cr_text *out, const struct cr_program *p, const char *name, int id) {
    if (id < 0) return;
    const struct cr_tensor *t = &p->tensor[id];
    cr_text_add(out, " %s=%s[%lld,%lld,%lld,%lld]", name, cr_dtype_name(t->dtype), (long long)t->dim[0], (long long)t->dim[1],
                (long long)t->dim[2], (long long)t->dim[3]);
}

static void add_attributes(struct cr_text *out, const struct cr_op *op) {
    const struct cr_conv_attr *c = &op->attr.conv;
    switch (op->kind) {
    case CR_OP_conv:
    case CR_OP_conv_dgrad:
    case CR_OP_conv_wgrad:
    case CR_OP_conv_grad:
    case CR_OP_maxpool:
    case CR_OP_maxpool_grad:
    case CR_OP_pool_bn_grad_stats:
    case CR_OP_pool_bn_grad_apply:
        cr_text_add(out, " s%d p%d w%d%s%s", c->stride, c->pad, c->window, c->accumulate ? " accumulate" : "", c->relu ? " relu" : "");
        break;
    case CR_OP_bn_apply: cr_text_add(out, "%s", op->attr.bn.relu ? " relu" : ""); break;
    case CR_OP_normalize: cr_text_add(out, "%s", op->attr.input.s2d ? " s2d" : ""); break;
    default: break;
    }
}

const char cr_cost_nobody[] = "-";

/* Options that change which rows there are stand in front. */
cr_status cr_cost_signature(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op, struct cr_text *out) {
    const struct cr_op_info *info = cr_op_info(op->kind);
    cr_text_add(out, "%s%s%s", device->options.deterministic ? "" : "any ", device->options.tf32 ? "tf32 " : "", info->name);
    add_attributes(out, op);
    for (int s = 0; s < info->ins; s++) add_slot(out, p, info->in_name[s], op->in[s]);
    cr_text_add(out, " ->");
    for (int s = 0; s < info->outs; s++) add_slot(out, p, info->out_name[s], op->out[s]);
    return out->failed ? CR_NO_MEMORY(256) : CR_OK;
}

/* ---- the table ---- */

struct cr_cost_entry *cr_cost_find(struct cr_costs *c, const char *signature, const char *row, int way) {
    const uint64_t hash = cr_cost_hash(signature);
    for (int i = 0; i < c->entries; i++) {
        struct cr_cost_entry *e = &c->entry[i];
        if (e->hash == hash && e->way == way && strcmp(e->row, row) == 0 && strcmp(e->signature, signature) == 0) return e;
    }
    return NULL;
}

bool cr_cost_is_pinned(const struct cr_costs *c, const char *signature) {
    const uint64_t hash = cr_cost_hash(signature);
    for (int i = 0; i < c->pinned; i++)
        if (c->entry[i].hash == hash && strcmp(c->entry[i].signature, signature) == 0) return true;
    return false;
}

cr_status cr_cost_add(struct cr_costs *c, const char *signature, const char *row, int way, int64_t ns, struct cr_cost_entry **out) {
    if (c->entries == c->capacity) {
        const int             more  = CR_MAX(256, c->capacity * 2);
        struct cr_cost_entry *fresh = cr_realloc(c->entry, (size_t)more, sizeof *fresh);
        if (!fresh) return CR_NO_MEMORY((size_t)more * sizeof *fresh);
        c->entry    = fresh;
        c->capacity = more;
    }
    struct cr_cost_entry e = {.hash = cr_cost_hash(signature), .way = way, .ns = ns};
    e.signature            = cr_arena_printf(&c->arena, "%s", signature);
    e.row                  = cr_arena_printf(&c->arena, "%s", row);
    if (!e.signature || !e.row) return CR_NO_MEMORY(256);
    c->entry[c->entries] = e;
    if (out) *out = &c->entry[c->entries];
    c->entries++;
    return CR_OK;
}

/* ---- text ---- */

/* What costs depend on: the device and its libraries, this program's version and its rows. */
static cr_status make_identity(struct cr_costs *c) {
    struct cr_text rows = {0};
    for (int i = 0; c->device->rows[i]; i++) cr_text_add(&rows, "%s %d;", c->device->rows[i]->name, (int)c->device->rows[i]->op);
    if (rows.failed || !rows.data) {
        cr_text_free(&rows);
        return CR_NO_MEMORY(4096);
    }
    c->identity = cr_arena_printf(&c->arena, "%s; cresnet " CR_VERSION ", rows %016llx", c->device->caps.text,
                                  (unsigned long long)cr_cost_hash(rows.data));
    cr_text_free(&rows);
    return c->identity ? CR_OK : CR_NO_MEMORY(256);
}

/* Cuts the next field off; NULL when there is no tab. */
static char *take_field(char **rest) {
    char *field = *rest, *tab = strchr(field, '\t');
    if (!tab) return NULL;
    *tab  = 0;
    *rest = tab + 1;
    return field;
}

static bool take_number(char **rest, int64_t max, int64_t *out) {
    char *field = take_field(rest), *end;
    if (!field || !isdigit((unsigned char)field[0])) return false;
    *out = strtoll(field, &end, 10);
    return *end == 0 && *out >= 0 && *out <= max;
}

static cr_status take_line(struct cr_costs *c, char *line, bool *good) {
    int64_t ns, way;
    char   *row;
    *good = false;
    if (!take_number(&line, INT64_MAX / 2, &ns) || ns == 0) return CR_OK;
    if (!(row = take_field(&line)) || !*row) return CR_OK;
    if (!take_number(&line, 1 << 20, &way) || !*line || strchr(line, '\t')) return CR_OK;
    *good = true;
    if (cr_cost_find(c, line, row, (int)way)) return CR_OK;
    return cr_cost_add(c, line, row, (int)way, ns, NULL);
}

/* Takes all lines or, when something is wrong with them, none: *why then says what, else it is NULL. */
static cr_status take_text(struct cr_costs *c, char *text, const char **why, bool *other_device) {
    const int before = c->entries;
    *other_device    = false;
    *why             = "its first line is not \"cresnet costs 1\"";
    char *line = text, *end = strchr(line, '\n');
    if (!end) return CR_OK;
    *end            = 0;
    char *rest      = line, *words = take_field(&rest);
    if (!words || strcmp(words, first_words) != 0) return CR_OK;
    *other_device = strcmp(rest, c->identity) != 0;
    *why          = "it was made for another device, library or version";
    if (*other_device) return CR_OK;
    for (line = end + 1; *line; line = end + 1) {
        bool good = false;
        *why      = "a line is cut off or spoilt";
        end       = strchr(line, '\n');
        if (end) {
            *end = 0;
            CR_TRY(take_line(c, line, &good));
        }
        if (good) continue;
        c->entries = before;
        return CR_OK;
    }
    *why = NULL;
    return CR_OK;
}

static cr_status make_text(const struct cr_costs *c, bool used_only, struct cr_text *out) {
    cr_text_add(out, "%s\t%s\n", first_words, c->identity);
    for (int i = 0; i < c->entries; i++) {
        const struct cr_cost_entry *e = &c->entry[i];
        if (!used_only || e->used) cr_text_add(out, "%lld\t%s\t%d\t%s\n", (long long)e->ns, e->row, e->way, e->signature);
    }
    return out->failed ? CR_NO_MEMORY(4096) : CR_OK;
}

cr_status cr_costs_text(const struct cr_costs *c, char **out) {
    struct cr_text text = {0};
    cr_status      status = make_text(c, true, &text);
    *out                  = NULL;
    if (status == CR_OK && !(*out = cr_strdup(text.data))) status = CR_NO_MEMORY(4096);
    cr_text_free(&text);
    return status;
}

cr_status cr_costs_pin(struct cr_costs *c, const char *text, const char *from) {
    const char *why;
    bool        other;
    CR_ASSERT(!c->asked); /* before the first question: an answer must not change */
    char *copy = cr_strdup(text);
    if (!copy) return CR_NO_MEMORY(strlen(text));
    const int file = c->entries;
    c->entries     = 0; /* entries of the file give way */
    cr_status status = take_text(c, copy, &why, &other);
    cr_free(copy);
    if (status == CR_OK && !why) {
        c->pinned = c->entries;
        return CR_OK;
    }
    c->entries = file;
    if (status != CR_OK) return status;
    if (other)
        return CR_FAIL(CR_ERR_DEVICE, "%s: its kernels were chosen on another device, library or version; here it is \"%s\"", from,
                       c->identity);
    return CR_FAIL(CR_ERR_FORMAT, "%s: %s", from, why);
}

/* ---- the file ---- */

cr_status cr_costs_path(const struct cr_device *device, char **out) {
    const char *own = getenv("CRESNET_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char        name[48], path[CR_PATH_MAX];
    size_t      n = 0;
    *out          = NULL;
    for (const char *s = device->caps.text; *s && *s != ',' && n + 1 < sizeof name; s++)
        name[n++] = isalnum((unsigned char)*s) ? (char)tolower((unsigned char)*s) : '-';
    name[n] = 0;
    if (own && strcmp(own, "off") == 0) path[0] = 0;
    else if (own && *own) CR_TRY(cr_path_join(path, own, "costs-%s.txt", name));
    else if (xdg && *xdg) CR_TRY(cr_path_join(path, xdg, "cresnet/costs-%s.txt", name));
    else if (home && *home) CR_TRY(cr_path_join(path, home, ".cache/cresnet/costs-%s.txt", name));
    else path[0] = 0;
    *out = cr_strdup(path);
    return *out ? CR_OK : CR_NO_MEMORY(sizeof path);
}

/* Trouble with the file costs time, not the run. */
static void read_file(struct cr_costs *c) {
    char       *text = NULL;
    const char *why  = NULL;
    bool        other;
    if (!c->path[0]) return;
    FILE *there = fopen(c->path, "re");
    if (!there) return; /* the first time */
    fclose(there);
    cr_status status = cr_file_read(c->path, FILE_BYTES_MAX, &text, NULL);
    if (status == CR_OK) status = take_text(c, text, &why, &other);
    if (status != CR_OK) {
        why = cr_error_message();
        c->entries = 0;
    }
    if (why) cr_log(CR_LOG_INFO, "%s is dropped: %s; kernels are timed anew", c->path, why);
    if (status != CR_OK) cr_error_clear();
    cr_free(text);
}

static cr_status write_file(const struct cr_costs *c) {
    struct cr_text text  = {0};
    char          *dir   = cr_strdup(c->path), *slash;
    cr_status      status = dir ? make_text(c, false, &text) : CR_NO_MEMORY(strlen(c->path));
    if (status == CR_OK && (slash = strrchr(dir, '/')) && slash != dir) {
        *slash = 0;
        status = cr_fs_mkdirs(dir);
    }
    if (status == CR_OK) status = cr_file_write_atomic(c->path, text.data, text.length);
    cr_free(dir);
    cr_text_free(&text);
    return status;
}

void cr_costs_rest(struct cr_costs *c) {
    cr_scratch_release(c->device, &c->scratch);
    if (c->measured == c->told && !c->news) return;
    if (c->measured != c->told)
        cr_log(CR_LOG_INFO, "%lld kernels timed in %.2f s%s%s", (long long)(c->measured - c->told), (double)c->measure_ns * 1e-9,
               c->path[0] ? "; kept in " : "", c->path);
    c->told = c->measured;
    c->news = false;
    if (!c->path[0] || write_file(c) == CR_OK) return;
    cr_log(CR_LOG_WARN, "%s; the next start will time kernels again", cr_error_message());
    cr_error_clear();
}

void cr_costs_effort(const struct cr_costs *c, int64_t *measured, double *seconds) {
    *measured = c->measured;
    *seconds  = (double)c->measure_ns * 1e-9;
}

/* ---- open, close ---- */

cr_status cr_costs_open(struct cr_device *device, const char *path, struct cr_costs **out) {
    struct cr_costs *c;
    cr_status        status = CR_OK;
    CR_ALLOC(c, 1);
    c->device = device;
    c->path   = cr_arena_printf(&c->arena, "%s", path);
    if (!c->path) {
        status = CR_NO_MEMORY(strlen(path));
        goto out;
    }
    CR_TRY_OUT(make_identity(c));
    read_file(c);
    *out = c;
    return CR_OK;
out:
    cr_costs_close(c);
    return status;
}

void cr_costs_close(struct cr_costs *c) {
    if (!c) return;
    cr_scratch_release(c->device, &c->scratch);
    cr_free(c->entry);
    cr_free(c->best);
    cr_arena_free(&c->arena);
    cr_free(c);
}
