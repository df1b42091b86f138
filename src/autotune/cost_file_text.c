/* autotune/cost_file_text.c: the cost table as text, for the user's cache and for checkpoints.
 *
 * The first line names the device, the version of cresnet and a hash of the kernels. Each further line is one entry
 * with fields separated by tabs. The last line is a checksum of all lines before, because an edited line could name a
 * kernel or an algorithm that does not exist.
 *   - cresnet kernel times 6 <tab> NVIDIA H200, driver ...; cresnet 0.3.0, kernels 9f3a...
 *   - nanoseconds <tab> kernel <tab> algorithm <tab> signature
 *   - sum <tab> checksum
 *
 * Kernels that were renamed since an older version wrote the text are found by their old name (config/old_names.c). */
#include "autotune/cost_table_internal.h"
#include "config/config.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char cr_cost_other_device[] = "it was made for another device, library or version";

static const char    first_words[]   = "cresnet kernel times 6";
static const char    program_words[] = "; cresnet ", damaged[] = "a line is cut off or damaged";
static const int64_t NS_MAX = 100000000000; /* 100 s, so that sums of thousands of entries fit into 64 bits */

/* The header of a cache file: the device and its libraries, this version, and a hash of the kernels. A cache file with
 * another header is dropped. A checkpoint must only match the device and its libraries. */
cr_status cr_cost_make_identity(struct cr_cost_table *c) {
    struct cr_text kernels = {0};
    for (int i = 0; c->device->kernels[i]; i++)
        cr_text_add(&kernels, "%s %d;", c->device->kernels[i]->name, (int)c->device->kernels[i]->op);
    if (kernels.failed || !kernels.data) {
        cr_text_free(&kernels);
        return CR_NO_MEMORY(4096);
    }
    c->identity = cr_arena_printf(&c->arena, "%s%s" CR_VERSION ", kernels %016llx", c->device->caps.text, program_words,
                                  (unsigned long long)cr_cost_hash(kernels.data));
    cr_text_free(&kernels);
    return c->identity ? CR_OK : CR_NO_MEMORY(256);
}

/* ---- reading ---- */

/* One text that is being read. */
struct reader {
    struct cr_cost_table *table;
    enum cr_cost_source   source;
    const char           *why;     /* what is wrong with the text; NULL when nothing is */
    const char           *missing; /* a kernel that was the fastest of its signature and no longer exists; or NULL */
    const char           *missing_signature;
    int64_t               missing_ns;
    bool                  several_missing; /* of different signatures */
};

/* Cuts the next field off. Returns NULL when there is no tab. */
static char *next_field(char **rest) {
    char *field = *rest, *tab = strchr(field, '\t');
    if (!tab) return NULL;
    *tab  = 0;
    *rest = tab + 1;
    return field;
}

static bool next_number(char **rest, int64_t max, int64_t *out) {
    char *field = next_field(rest), *end;
    if (!field || !isdigit((unsigned char)field[0])) return false;
    *out = strtoll(field, &end, 10);
    return *end == 0 && *out >= 0 && *out <= max;
}

/* The op that a signature describes. CR_OP_COUNT when there is no such op. */
static enum cr_op_kind signature_op(const char *signature) {
    static const char *const options[] = {"any ", "tf32 ", "bf16 "};
    for (size_t i = 0; i < CR_COUNT(options); i++)
        if (strncmp(signature, options[i], strlen(options[i])) == 0) signature += strlen(options[i]);
    const size_t length = strcspn(signature, " ");
    int          kind   = 0;
    while (kind < CR_OP_COUNT && (strncmp(cr_op_info((enum cr_op_kind)kind)->name, signature, length) != 0 ||
                                  cr_op_info((enum cr_op_kind)kind)->name[length]))
        kind++;
    return (enum cr_op_kind)kind;
}

static const char no_kernel[] = "-"; /* stands for the kernel where no kernel accepts the op */

/* Index of the kernel with this name for ops of this kind. CR_NONE with *known when the line says that no kernel
 * accepts the op; CR_NONE without *known when this program has no such kernel. */
static int find_kernel(const struct cr_cost_table *c, const char *name, enum cr_op_kind kind, bool *known) {
    int i  = 0;
    *known = true;
    if (strcmp(name, no_kernel) == 0 && cr_cost_stores_rejections(kind)) return CR_NONE;
    while (c->device->kernels[i] &&
           (c->device->kernels[i]->op != kind || strcmp(c->device->kernels[i]->name, name) != 0))
        i++;
    *known = c->device->kernels[i] != NULL;
    return *known ? i : CR_NONE;
}

static bool contains(const struct cr_cost_table *c, const struct cr_cost_entry *e) {
    const uint64_t hash = cr_cost_hash(e->signature);
    for (int i = CR_NONE; (i = cr_cost_next(c, e->signature, hash, i)) != CR_NONE;)
        if (c->entry[i].kernel == e->kernel && c->entry[i].algo == e->algo && c->entry[i].source == e->source)
            return true;
    return false;
}

/* A kernel that this program does not have. The run can do without it unless it was the fastest for its op. */
static cr_status note_missing(struct reader *r, const char *name, const char *signature, int64_t ns) {
    struct cr_cost_table *c    = r->table;
    const uint64_t        hash = cr_cost_hash(signature);
    for (int i = CR_NONE; (i = cr_cost_next(c, signature, hash, i)) != CR_NONE;)
        if (c->entry[i].source == r->source && c->entry[i].ns <= ns) return CR_OK;
    if (r->missing) {
        r->several_missing |= strcmp(signature, r->missing_signature) != 0;
        return CR_OK;
    }
    r->missing           = cr_arena_printf(&c->arena, "%s", name);
    r->missing_signature = cr_arena_printf(&c->arena, "%s", signature);
    r->missing_ns        = ns;
    return r->missing && r->missing_signature ? CR_OK : CR_NO_MEMORY(256);
}

/* A later line may hold a faster kernel of the same op. With several missing kernels the text is refused anyway. */
static void forget_missing(struct reader *r, const struct cr_cost_entry *e) {
    if (r->missing && !r->several_missing && e->ns <= r->missing_ns && strcmp(e->signature, r->missing_signature) == 0)
        r->missing = NULL;
}

static cr_status read_line(struct reader *r, char *line) {
    int64_t ns, algo;
    char   *name;
    bool    known;
    if (!next_number(&line, NS_MAX, &ns) || ns == 0 || !(name = next_field(&line)) || !*name ||
        !next_number(&line, 1 << 20, &algo) || !*line || strchr(line, '\t')) {
        r->why = damaged;
        return CR_OK;
    }
    struct cr_cost_entry e = {.signature = line, .algo = (int)algo, .ns = ns, .source = r->source};
    e.kernel               = find_kernel(r->table, cr_old_kernel_now(name), signature_op(line), &known);
    if (!known) return note_missing(r, name, line, ns);
    if (!contains(r->table, &e)) CR_TRY(cr_cost_add(r->table, &e));
    forget_missing(r, &e);
    return CR_OK;
}

static cr_status read_lines(struct reader *r, char *line) {
    for (char *end; *line && !r->why; line = end + 1) {
        end = strchr(line, '\n');
        if (!end) {
            r->why = damaged;
            return CR_OK;
        }
        *end = 0;
        CR_TRY(read_line(r, line));
    }
    return CR_OK;
}

/* Cuts the last line off. False when it is not the checksum of the lines before. */
static bool cut_checksum(char *text, size_t *length) {
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

/* Returns whether two headers name the same device and libraries. Version and kernels may differ. */
static bool same_device(const char *a, const char *b) {
    const char *a_end = strstr(a, program_words), *b_end = strstr(b, program_words);
    return a_end && b_end && a_end - a == b_end - b && strncmp(a, b, (size_t)(a_end - a)) == 0;
}

/* Returns whether the entries below this header may be used. A cache file must have been written by these kernels, a
 * checkpoint's entries on this device. Entries for the plan of an offline device may come from any device. */
static bool header_fits(const struct cr_cost_table *c, const char *header, enum cr_cost_source source) {
    if (c->offline) return strstr(header, program_words) != NULL;
    return source == CR_COST_CHECKPOINT ? same_device(header, c->identity) : strcmp(header, c->identity) == 0;
}

static cr_status read_text(struct reader *r, char *text, size_t length) {
    const bool whole = cut_checksum(text, &length);
    r->why           = "its first line is not \"cresnet kernel times 6\"";
    char *end        = strchr(text, '\n');
    if (!end) return CR_OK;
    *end       = 0;
    char *rest = text, *words = next_field(&rest);
    if (!words || strcmp(words, first_words) != 0) return CR_OK;
    r->why = cr_cost_other_device;
    if (!header_fits(r->table, rest, r->source)) return CR_OK;
    r->why = damaged;
    if (!whole) return CR_OK;
    r->why = strlen(end + 1) + (size_t)(end + 1 - text) == length ? NULL : "there are zero bytes in it";
    return r->why ? CR_OK : read_lines(r, end + 1);
}

cr_status cr_cost_read_text(struct cr_cost_table *c, char *text, size_t length, enum cr_cost_source source,
                            const char **why) {
    struct reader r      = {.table = c, .source = source};
    const int     before = c->entries;
    cr_status     status = read_text(&r, text, length);
    *why                 = r.why;
    if (status == CR_OK && !r.why && r.missing) {
        *why = cr_arena_printf(&c->arena, "it names the kernel %s, which this version no longer has", r.missing);
        if (!*why) status = CR_NO_MEMORY(256);
    }
    if (status != CR_OK || *why) cr_cost_cut(c, before);
    return status;
}

/* ---- writing ---- */

void cr_cost_add_line(const struct cr_cost_table *c, const struct cr_cost_entry *e, struct cr_text *out) {
    cr_text_add(out, "%lld\t%s\t%d\t%s\n", (long long)e->ns,
                e->kernel == CR_NONE ? no_kernel : c->device->kernels[e->kernel]->name, e->algo, e->signature);
}

void cr_cost_add_header(const struct cr_cost_table *c, struct cr_text *out) {
    cr_text_add(out, "%s\t%s\n", first_words, c->identity);
}

void cr_cost_add_checksum(struct cr_text *out) {
    if (!out->failed) cr_text_add(out, "sum\t%016llx\n", (unsigned long long)cr_cost_hash(out->data));
}

cr_status cr_cost_table_text(const struct cr_cost_table *c, char **out) {
    struct cr_text text = {0};
    cr_cost_add_header(c, &text);
    for (int i = 0; i < c->entries; i++)
        if (c->entry[i].used) cr_cost_add_line(c, &c->entry[i], &text);
    cr_cost_add_checksum(&text);
    *out = text.failed ? NULL : cr_strdup(text.data);
    cr_text_free(&text);
    return *out ? CR_OK : CR_NO_MEMORY(4096);
}

/* ---- a checkpoint's entries ---- */

cr_status cr_cost_table_load_fixed(struct cr_cost_table *c, const char *text, size_t length, const char *from) {
    const int   before = c->entries;
    const char *why;
    CR_ASSERT(!c->queried); /* an answer must not change later */
    char *copy = cr_alloc(length + 1, 1);
    if (!copy) return CR_NO_MEMORY(length);
    memcpy(copy, text, length);
    cr_status status = cr_cost_read_text(c, copy, length, CR_COST_CHECKPOINT, &why);
    cr_free(copy);
    CR_TRY(status);
    c->fixed = c->entries - before;
    if (why == cr_cost_other_device)
        return CR_FAIL(CR_ERR_DEVICE,
                       "%s: its kernels were chosen on another device or with other libraries; this device is \"%s\"",
                       from, c->identity);
    return why ? CR_FAIL(CR_ERR_FORMAT, "%s: %s", from, why) : CR_OK;
}
