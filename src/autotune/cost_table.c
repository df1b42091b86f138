/* autotune/cost_table.c: the table of measured costs and its text. See autotune/cost_table.h.
 *
 * The text: a first line that names the device, then a line an entry, fields apart by tabs:
 *     cresnet costs 5 <tab> NVIDIA H200, ... rows 9f3a...
 *     nanoseconds <tab> row <tab> way <tab> signature
 *     sum <tab> of all before: a row or a way that was changed by hand could name what does not exist */
#include "autotune/cost_table_internal.h"

#include "core/files.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char first_words[] = "cresnet costs 5", program_words[] = "; cresnet ",
                  spoilt[] = "a line is cut off or spoilt";
enum { FILE_BYTES_MAX = 64 << 20 };
static const int64_t NS_MAX =
    100000000000; /* 100 s: of no op that anyone waits for, and sums of thousands stay small numbers */

/* ---- signatures ---- */

uint64_t cr_cost_hash(const char *text) { /* FNV-1a, 64 bits */
    uint64_t h = 0xcbf29ce484222325u;
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    return h;
}

static void add_slot(struct cr_text *out, const struct cr_program *p, const struct cr_op *op, const char *name,
                     int id) {
    if (id < 0) return;
    const struct cr_tensor *t = &p->tensor[id];
    if (op->kind == CR_OP_conv && name == cr_op_info(op->kind)->in_name[CR_IN_conv_packed]) {
        cr_text_add(out, " %s", name); /* its length is the pattern's, which is known by its share */
        return;
    }
    cr_text_add(out, " %s=%s[%lld,%lld,%lld,%lld]", name, cr_dtype_name(t->dtype), (long long)t->dim[0],
                (long long)t->dim[1], (long long)t->dim[2], (long long)t->dim[3]);
}

/* The share of kept weights to two digits: a checkpoint that is pruned alike finds times that serve. */
static void add_pattern(struct cr_text *out, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_pattern_attr *a   = &op->attr.conv.pattern;
    const double                  all = a->nnz ? (double)p->store->param[a->param].elems : 0;
    if (!a->nnz) return;
    cr_text_add(out, " kept%.2g layout%d", (double)a->nnz / all, a->format);
    /* How many weights stand beside those that are kept: blocks are whole. */
    const int kept = op->kind == CR_OP_conv            ? op->in[CR_IN_conv_packed]
                     : op->kind == CR_OP_sparse_filter ? op->out[CR_OUT_sparse_filter_y]
                                                       : CR_NONE;
    if (kept >= 0) cr_text_add(out, " stored%.2g", (double)p->tensor[kept].dim[3] / all);
}

static void add_attributes(struct cr_text *out, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_conv_attr *c = &op->attr.conv;
    switch (op->kind) {
    case CR_OP_conv:
    case CR_OP_conv_dgrad:
    case CR_OP_conv_wgrad:
    case CR_OP_conv_grad:
    case CR_OP_maxpool:
    case CR_OP_maxpool_grad:
    case CR_OP_pool_bn_grad_sums:
    case CR_OP_pool_bn_grad_apply:
        cr_text_add(out, " s%d p%d w%d%s%s%s", c->stride, c->pad, c->window, c->accumulate ? " accumulate" : "",
                    c->relu ? " relu" : "", c->bn.accumulate ? " accumulate_bn" : "");
        add_pattern(out, p, op);
        break;
    case CR_OP_sparse_filter: add_pattern(out, p, op); break;
    case CR_OP_s2d_filter_grad: cr_text_add(out, "%s", c->accumulate ? " accumulate" : ""); break;
    case CR_OP_bn_apply: cr_text_add(out, "%s", op->attr.bn.relu ? " relu" : ""); break;
    case CR_OP_bn_grad_finalize: cr_text_add(out, "%s", op->attr.bn.accumulate ? " accumulate" : ""); break;
    case CR_OP_dense_wgrad:
    case CR_OP_dense_bgrad: cr_text_add(out, "%s", op->attr.dense.accumulate ? " accumulate" : ""); break;
    case CR_OP_normalize: cr_text_add(out, "%s", op->attr.input.s2d ? " s2d" : ""); break;
    default: break;
    }
}

/* Options that change which rows there are stand in front. */
cr_status cr_cost_signature(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                            struct cr_text *out) {
    const struct cr_op_info *info = cr_op_info(op->kind);
    cr_text_add(out, "%s%s%s", device->options.deterministic ? "" : "any ", device->options.tf32 ? "tf32 " : "",
                info->name);
    add_attributes(out, p, op);
    for (int s = 0; s < info->ins; s++) add_slot(out, p, op, info->in_name[s], op->in[s]);
    cr_text_add(out, " ->");
    for (int s = 0; s < info->outs; s++) add_slot(out, p, op, info->out_name[s], op->out[s]);
    return out->failed ? CR_NO_MEMORY(256) : CR_OK;
}

/* ---- the table ---- */

bool cr_cost_keeps_rejections(enum cr_op_kind kind) {
    return kind == CR_OP_conv || kind == CR_OP_conv_dgrad || kind == CR_OP_conv_wgrad || kind == CR_OP_conv_grad;
}

int cr_cost_next(const struct cr_cost_table *c, const char *signature, uint64_t hash, int after) {
    int i = after != CR_NONE ? c->entry[after].next : c->buckets ? c->bucket[hash % (uint64_t)c->buckets] : CR_NONE;
    while (i != CR_NONE && (c->entry[i].hash != hash || strcmp(c->entry[i].signature, signature) != 0))
        i = c->entry[i].next;
    return i;
}

static void link_entry(struct cr_cost_table *c, int index) {
    int *first           = &c->bucket[c->entry[index].hash % (uint64_t)c->buckets];
    c->entry[index].next = *first;
    *first               = index;
}

/* The first `entries` stay. */
static void cut_table(struct cr_cost_table *c, int entries) {
    c->entries = entries;
    for (int i = 0; i < c->buckets; i++) c->bucket[i] = CR_NONE;
    for (int i = 0; i < entries; i++) link_entry(c, i);
}

static cr_status grow_table(struct cr_cost_table *c) {
    const int             more  = CR_MAX(256, c->capacity * 2);
    struct cr_cost_entry *fresh = cr_realloc(c->entry, (size_t)more, sizeof *fresh);
    if (!fresh) return CR_NO_MEMORY((size_t)more * sizeof *fresh);
    c->entry    = fresh;
    int *bucket = cr_realloc(c->bucket, (size_t)more, sizeof *bucket);
    if (!bucket) return CR_NO_MEMORY((size_t)more * sizeof *bucket);
    c->bucket   = bucket;
    c->buckets  = more;
    c->capacity = more;
    cut_table(c, c->entries);
    return CR_OK;
}

cr_status cr_cost_add(struct cr_cost_table *c, const struct cr_cost_entry *entry) {
    if (c->entries == c->capacity) CR_TRY(grow_table(c));
    struct cr_cost_entry e = *entry;
    e.hash                 = cr_cost_hash(e.signature);
    e.signature            = cr_arena_printf(&c->arena, "%s", e.signature);
    if (!e.signature) return CR_NO_MEMORY(256);
    c->entry[c->entries] = e;
    link_entry(c, c->entries++);
    return CR_OK;
}

static void free_table(struct cr_cost_table *c) {
    cr_free(c->entry);
    cr_free(c->bucket);
    cr_arena_free(&c->arena);
}

/* ---- text ---- */

/* What costs depend on: the device and its libraries, this program's version and its rows. */
static cr_status make_identity(struct cr_cost_table *c) {
    struct cr_text rows = {0};
    for (int i = 0; c->device->kernels[i]; i++)
        cr_text_add(&rows, "%s %d;", c->device->kernels[i]->name, (int)c->device->kernels[i]->op);
    if (rows.failed || !rows.data) {
        cr_text_free(&rows);
        return CR_NO_MEMORY(4096);
    }
    c->identity = cr_arena_printf(&c->arena, "%s%s" CR_VERSION ", rows %016llx", c->device->caps.text, program_words,
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

/* The op that a signature is of; CR_OP_COUNT: none. */
static enum cr_op_kind kind_of(const char *signature) {
    static const char *const options[] = {"any ", "tf32 "};
    for (size_t i = 0; i < CR_COUNT(options); i++)
        if (strncmp(signature, options[i], strlen(options[i])) == 0) signature += strlen(options[i]);
    const size_t length = strcspn(signature, " ");
    int          kind   = 0;
    while (kind < CR_OP_COUNT && (strncmp(cr_op_info((enum cr_op_kind)kind)->name, signature, length) != 0 ||
                                  cr_op_info((enum cr_op_kind)kind)->name[length]))
        kind++;
    return (enum cr_op_kind)kind;
}

static const char nobody[] = "-"; /* stands for the row where none takes the op */

/* Index of the row of this name that does ops of this kind; CR_NONE with *known: no row, and that is an answer. */
static int row_named(const struct cr_cost_table *c, const char *name, enum cr_op_kind kind, bool *known) {
    int i  = 0;
    *known = true;
    if (strcmp(name, nobody) == 0 && cr_cost_keeps_rejections(kind)) return CR_NONE;
    while (c->device->kernels[i] &&
           (c->device->kernels[i]->op != kind || strcmp(c->device->kernels[i]->name, name) != 0))
        i++;
    *known = c->device->kernels[i] != NULL;
    return *known ? i : CR_NONE;
}

static bool is_there(const struct cr_cost_table *c, const struct cr_cost_entry *e) {
    const uint64_t hash = cr_cost_hash(e->signature);
    for (int i = CR_NONE; (i = cr_cost_next(c, e->signature, hash, i)) != CR_NONE;)
        if (c->entry[i].kernel == e->kernel && c->entry[i].algo == e->algo && c->entry[i].source == e->source)
            return true;
    return false;
}

/* *why: what is wrong with the line, else as it was. */
static cr_status take_line(struct cr_cost_table *c, char *line, enum cr_cost_source source, const char **why) {
    int64_t ns, way;
    char   *row;
    bool    known;
    if (!take_number(&line, NS_MAX, &ns) || ns == 0 || !(row = take_field(&line)) || !*row ||
        !take_number(&line, 1 << 20, &way) || !*line || strchr(line, '\t')) {
        *why = spoilt;
        return CR_OK;
    }
    struct cr_cost_entry e = {.signature = line, .algo = (int)way, .ns = ns, .source = source};
    e.kernel               = row_named(c, row, kind_of(line), &known);
    if (!known) *why = "it names a kernel that does not exist here";
    return !known || is_there(c, &e) ? CR_OK : cr_cost_add(c, &e);
}

static cr_status take_lines(struct cr_cost_table *c, char *line, enum cr_cost_source source, const char **why) {
    for (char *end; *line && !*why; line = end + 1) {
        end = strchr(line, '\n');
        if (!end) {
            *why = spoilt;
            return CR_OK;
        }
        *end = 0;
        CR_TRY(take_line(c, line, source, why));
    }
    return CR_OK;
}

static void add_sum(struct cr_text *out) {
    if (!out->failed) cr_text_add(out, "sum\t%016llx\n", (unsigned long long)cr_cost_hash(out->data));
}

/* Cuts the last line off; false: it is not the sum of those before. */
static bool cut_sum(char *text, size_t *length) {
    char   expected[32];
    size_t last = *length ? *length - 1 : 0;
    while (last > 0 && text[last - 1] != '\n') last--;
    const char first = text[last];
    text[last]       = 0;
    snprintf(expected, sizeof expected, "sum\t%016llx\n", (unsigned long long)cr_cost_hash(text));
    text[last] = first;
    if (strcmp(text + last, expected) != 0) return false;
    text[last] = 0;
    *length    = last;
    return true;
}

/* Of a plan for a device that is not there: this program's version, whatever device and rows it was; lines that name
 * other rows are refused. */
static bool same_version(const char *text) {
    const char *s = strstr(text, program_words);
    return s && strncmp(s + strlen(program_words), CR_VERSION ",", strlen(CR_VERSION ",")) == 0;
}

/* Takes all lines or, when something is wrong with them, none: *why then says what, else it is NULL. */
static cr_status take_text(struct cr_cost_table *c, char *text, size_t length, enum cr_cost_source source,
                           const char **why, bool *other_device) {
    const int  before = c->entries;
    const bool whole  = cut_sum(text, &length);
    *other_device     = false;
    *why              = "its first line is not \"cresnet costs 5\"";
    char *end         = strchr(text, '\n');
    if (!end) return CR_OK;
    *end       = 0;
    char *rest = text, *words = take_field(&rest);
    if (!words || strcmp(words, first_words) != 0) return CR_OK;
    *other_device = c->offline ? !same_version(rest) : strcmp(rest, c->identity) != 0;
    *why          = "it was made for another device, library or version";
    if (*other_device) return CR_OK;
    *why = spoilt;
    if (!whole) return CR_OK;
    *why             = strlen(end + 1) + (size_t)(end + 1 - text) == length ? NULL : "there are zero bytes in it";
    cr_status status = *why ? CR_OK : take_lines(c, end + 1, source, why);
    if (status != CR_OK || *why) cut_table(c, before);
    return status;
}

static void add_line(const struct cr_cost_table *c, const struct cr_cost_entry *e, struct cr_text *out) {
    cr_text_add(out, "%lld\t%s\t%d\t%s\n", (long long)e->ns,
                e->kernel == CR_NONE ? nobody : c->device->kernels[e->kernel]->name, e->algo, e->signature);
}

static void add_first_line(const struct cr_cost_table *c, struct cr_text *out) {
    cr_text_add(out, "%s\t%s\n", first_words, c->identity);
}

cr_status cr_cost_table_text(const struct cr_cost_table *c, char **out) {
    struct cr_text text = {0};
    add_first_line(c, &text);
    for (int i = 0; i < c->entries; i++)
        if (c->entry[i].used) add_line(c, &c->entry[i], &text);
    add_sum(&text);
    *out = text.failed ? NULL : cr_strdup(text.data);
    cr_text_free(&text);
    return *out ? CR_OK : CR_NO_MEMORY(4096);
}

cr_status cr_cost_table_load_fixed(struct cr_cost_table *c, const char *text, size_t length, const char *from) {
    const int   before = c->entries;
    const char *why;
    bool        other;
    CR_ASSERT(!c->queried); /* before the first question: an answer must not change */
    char *copy = cr_alloc(length + 1, 1);
    if (!copy) return CR_NO_MEMORY(length);
    memcpy(copy, text, length);
    cr_status status = take_text(c, copy, length, CR_COST_CHECKPOINT, &why, &other);
    cr_free(copy);
    CR_TRY(status);
    c->fixed = c->entries - before;
    if (other)
        return CR_FAIL(CR_ERR_DEVICE,
                       "%s: its kernels were chosen on another device, library or version; here it is \"%s\"", from,
                       c->identity);
    return why ? CR_FAIL(CR_ERR_FORMAT, "%s: %s", from, why) : CR_OK;
}

/* ---- the file ---- */

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
        status = cr_path_join(path, own, "costs-%s.txt", name);
    else if (xdg && *xdg == '/')
        status = cr_path_join(path, xdg, "cresnet/costs-%s.txt", name); /* a relative one is to be ignored */
    else if (home && *home)
        status = cr_path_join(path, home, ".cache/cresnet/costs-%s.txt", name);
    if (status != CR_OK) {
        cr_log(CR_LOG_WARN, "%s; times of kernels are not kept", cr_error_message());
        cr_error_clear();
        path[0] = 0;
    }
    *out = cr_strdup(path);
    return *out ? CR_OK : CR_NO_MEMORY(sizeof path);
}

/* Trouble with the file costs time, not the run. */
static void read_file(struct cr_cost_table *c, bool tell) {
    char       *text   = NULL;
    const char *why    = NULL;
    size_t      length = 0;
    bool        other;
    if (!c->path[0] || access(c->path, F_OK) != 0) return; /* the first time */
    cr_status status = cr_file_read(c->path, FILE_BYTES_MAX, &text, &length);
    if (status == CR_OK) status = take_text(c, text, length, CR_COST_FILE, &why, &other);
    if (status != CR_OK && tell) cr_log(CR_LOG_INFO, "%s; kernels are timed anew", cr_error_message());
    if (why && tell) cr_log(CR_LOG_INFO, "%s is dropped: %s; kernels are timed anew", c->path, why);
    if (status != CR_OK) cr_error_clear();
    cr_free(text);
}

static bool measured_here(const struct cr_cost_table *c, const struct cr_cost_entry *e) {
    for (int i = CR_NONE; (i = cr_cost_next(c, e->signature, e->hash, i)) != CR_NONE;)
        if (c->entry[i].source == CR_COST_MEASURED) return true;
    return false;
}

/* What is new goes to what the file holds now: another process may have written since it was read. */
static cr_status file_text(const struct cr_cost_table *c, struct cr_text *out) {
    struct cr_cost_table now = {.device = c->device, .path = c->path, .identity = c->identity};
    read_file(&now, false);
    add_first_line(c, out);
    for (int i = 0; i < now.entries; i++)
        if (!measured_here(c, &now.entry[i])) add_line(c, &now.entry[i], out);
    for (int i = 0; i < c->entries; i++)
        if (c->entry[i].source == CR_COST_MEASURED) add_line(c, &c->entry[i], out);
    add_sum(out);
    free_table(&now);
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
    cr_scratch_release(c->device, &c->scratch);
    if (!fresh && !c->dirty) return;
    const cr_status status = c->path[0] ? write_file(c) : CR_OK;
    if (fresh)
        cr_log(CR_LOG_INFO, "%lld kernels timed in %.2f s%s%s", (long long)fresh,
               (double)(c->measure_ns - c->reported_ns) * 1e-9, c->path[0] && status == CR_OK ? "; kept in " : "",
               status == CR_OK ? c->path : "");
    c->reported    = c->measured;
    c->reported_ns = c->measure_ns;
    c->dirty       = false;
    if (status == CR_OK) return;
    cr_log(CR_LOG_WARN, "%s; the next start will time kernels again (CRESNET_CACHE=DIR keeps their times elsewhere)",
           cr_error_message());
    cr_error_clear();
}

bool cr_cost_table_has_lasting_effect(const struct cr_cost_table *c, const struct cr_program *const *program,
                                      int programs) {
    for (int n = 0; n < programs; n++)
        for (int i = 0; i < program[n]->ops; i++)
            if (program[n]->op[i].kernel >= 0 && c->device->kernels[program[n]->op[i].kernel]->sparse_cores)
                return false;
    return c->sparse_cores;
}

void cr_cost_table_effort(const struct cr_cost_table *c, int64_t *measured, double *seconds) {
    *measured = c->measured;
    *seconds  = (double)c->measure_ns * 1e-9;
}

/* ---- open, close ---- */

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
    CR_TRY_OUT(make_identity(c));
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
    bool        other;
    CR_TRY(cr_cost_table_open(device, "", out));
    (*out)->offline  = true;
    cr_status status = cr_file_read(path, FILE_BYTES_MAX, &text, &length);
    if (status == CR_OK) status = take_text(*out, text, length, CR_COST_FILE, &why, &other);
    cr_free(text);
    if (status == CR_OK && why)
        status = CR_FAIL(CR_ERR_FORMAT, "%s: %s", path, other ? "it was made by another version of this program" : why);
    if (status == CR_OK) return CR_OK;
    cr_cost_table_close(*out);
    *out = NULL;
    return status;
}

void cr_cost_table_close(struct cr_cost_table *c) {
    if (!c) return;
    cr_scratch_release(c->device, &c->scratch);
    free_table(c);
    cr_free(c);
}
