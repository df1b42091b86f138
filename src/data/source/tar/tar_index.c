/* data/source/tar/tar_index.c: the samples of an archive: images and labels whose names are the same up to the first
 * dot of the last part. See data/source/tar/tar.h. */
#include "core/checksum/crc32c.h"
#include "core/files.h"
#include "core/utf8.h"
#include "data/source/tar/tar.h"
#include "formats/json.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { CLS_BYTES_MAX = 4096, JSON_BYTES_MAX = 1 << 20 };
enum role { ROLE_IMAGE, ROLE_CLS, ROLE_JSON };
struct record {            /* a member that belongs to a sample */
    size_t    name, label; /* in `names`; label: that of an image whose archive has no labels, or 0 */
    uint64_t  offset, bytes;
    uint32_t  key; /* bytes of the name before the dot */
    enum role role;
};
struct index {
    struct cr_tar_shard         *shard;
    const struct cr_tar_options *options;
    int                          fd;
    struct cr_text               names, label; /* label: of the current sample */
    struct record               *record;
    int64_t                      count, capacity;
    char                         before[PATH_MAX]; /* the name of the last sample */
};

static void note(struct index *x, enum cr_tar_note_kind kind, const char *name, const char *why) {
    struct cr_tar_note *n = &x->shard->note[kind];
    if (!n->count++)
        snprintf(n->first, sizeof n->first, "%.120s%s%.120s%s%.50s", x->shard->path, *name ? ":" : "", name,
                 *why ? ": " : "", why);
}

/* ---- members ---- */

static cr_status add_record(struct index *x, const char *folder, const struct cr_tar_member *m, enum role role,
                            const char *label) {
    struct record r = {.offset = m->offset, .bytes = m->bytes, .role = role};
    CR_GROW(x->record, x->count, x->capacity, 1024);
    if (label) {
        if (cr_utf8_has_control(label)) /* classes.txt of a checkpoint has one name in a line */
            return CR_FAIL(CR_ERR_FORMAT, "%s: the class of %.200s has control characters", x->shard->path, m->path);
        r.label = x->names.length;
        cr_text_add_bytes(&x->names, label, strlen(label) + 1);
    }
    r.name = x->names.length;
    cr_text_add_bytes(&x->names, folder, strlen(folder));
    cr_text_add_bytes(&x->names, m->path, strlen(m->path) + 1);
    if (x->names.failed) return CR_NO_MEMORY(x->names.capacity * 2);
    const char *name = x->names.data + r.name;
    if (strlen(name) >= PATH_MAX) return CR_FAIL(CR_ERR_FORMAT, "%s: a name is too long: %.200s", x->shard->path, name);
    r.key                 = (uint32_t)(strchr(cr_path_name(name), '.') - name);
    x->record[x->count++] = r;
    return CR_OK;
}

/* The label of ImageNet's validation image with this name, from the list beside the archive; NULL: none. */
static const char *val_label(const struct cr_tar_val_labels *list, const char *base) {
    int number = 0, used = 0;
    if (sscanf(base, "ILSVRC2012_val_%8d.%n", &number, &used) != 1 || !used) return NULL;
    return number >= 1 && number <= list->count ? list->label[number - 1] : NULL;
}

/* Members of other kinds, and hidden files, are no parts of samples. `inner` names the archive inside the archive that
 * holds this member; NULL: none. */
static cr_status add_member(struct index *x, const struct cr_tar_member *m, const char *inner) {
    const char *base = cr_path_name(m->path), *dot = strchr(base, '.');
    char        folder[PATH_MAX + 1] = "";
    if (!dot || dot == base) return CR_OK;
    if (inner) snprintf(folder, sizeof folder, "%s/", inner);
    if (cr_is_image_name(dot) && strchr(dot + 1, '.'))
        note(x, CR_TAR_DOTS, m->path, "");
    else if (cr_is_image_name(dot))
        return add_record(x, folder, m, ROLE_IMAGE, inner ? inner : val_label(&x->options->val, base));
    if (!strcasecmp(dot, ".cls")) return add_record(x, folder, m, ROLE_CLS, NULL);
    return strcasecmp(dot, ".json") ? CR_OK : add_record(x, folder, m, ROLE_JSON, NULL);
}

static cr_status read_members(struct index *x, uint64_t begin, uint64_t end, const char *inner);

/* An archive NAME.tar inside the archive, as in ImageNet's training archive, holds the images of the class NAME. */
static cr_status read_inner(struct index *x, const struct cr_tar_member *m) {
    char name[NAME_MAX + 1];
    if (snprintf(name, sizeof name, "%s", cr_path_name(m->path)) >= (int)sizeof name)
        return CR_FAIL(CR_ERR_FORMAT, "%s: the name of the archive in it is too long: %.200s", x->shard->path, m->path);
    name[strlen(name) - 4] = 0;
    return read_members(x, m->offset, m->offset + m->bytes, name);
}

static cr_status read_members(struct index *x, uint64_t begin, uint64_t end, const char *inner) {
    struct {
        struct cr_tar_reader reader;
        struct cr_tar_member member;
    } * m;
    cr_status status = CR_OK;
    CR_ALLOC(m, 1);
    cr_tar_start(&m->reader, x->shard->path, x->fd, begin, end);
    for (;;) {
        CR_TRY_OUT(cr_tar_next(&m->reader, &m->member));
        if (m->member.kind == CR_TAR_END) break;
        if (m->member.kind == CR_TAR_SKIPPED) note(x, CR_TAR_PASSED, m->member.path, "");
        if (m->member.kind != CR_TAR_FILE) continue;
        const char  *path   = m->member.path;
        const size_t length = strlen(path);
        if (!inner && length > 4 && path[length - 5] != '/' && !strcasecmp(path + length - 4, ".tar"))
            CR_TRY_OUT(read_inner(x, &m->member));
        else
            CR_TRY_OUT(add_member(x, &m->member, inner));
    }
    if (!m->reader.ended) note(x, CR_TAR_NO_END, inner ? inner : "", "");
    x->shard->crc ^= m->reader.crc;
out:
    cr_free(m);
    return status;
}

/* ---- labels ---- */

/* Adds a label. Returns why it is unusable, or NULL. */
static const char *add_label(struct index *x, const char *label) {
    if (!*label) return "the label is empty";
    if (cr_utf8_has_control(label)) return "the label has control characters";
    if (label[0] == '-' && label[1] && !label[1 + strspn(label + 1, "0123456789")]) return "the label is negative";
    cr_text_add(&x->label, "%s%s", x->label.length ? "\n" : "", label);
    return NULL;
}

static const char *parse_cls(struct index *x, char *text) {
    text += strncmp(text, "\xef\xbb\xbf", 3) ? 0 : 3;
    text += strspn(text, " \t\r\n");
    size_t length = strlen(text);
    while (length && strchr(" \t\r\n", text[length - 1])) text[--length] = 0;
    return add_label(x, text);
}

static const char *parse_value(struct index *x, struct cr_json *json) {
    char        number[32], *text;
    double      value;
    const char *word = json->text + json->at;
    if (*word == '"') return cr_json_string(json, &text) ? add_label(x, text) : "the JSON is invalid";
    if (*word != '-' && (*word < '0' || *word > '9')) return "the label is neither a number nor a text";
    if (!cr_json_number(json, &value)) return "the JSON is invalid";
    if (value < 0 || value > 1e15 || value != (double)(int64_t)value) return "the label is no class number";
    snprintf(number, sizeof number, "%lld", (long long)value);
    return add_label(x, number);
}

static void skip_blanks(struct cr_json *json) {
    while (json->at < json->length && strchr(" \t\r\n", json->text[json->at])) json->at++;
}

static const char *parse_labels(struct index *x, struct cr_json *json) {
    const char *why = NULL;
    skip_blanks(json);
    if (!cr_json_take(json, '[')) return parse_value(x, json);
    if (!x->options->several) return "an array of labels needs data.multi_label = yes";
    if (cr_json_take(json, ']')) return NULL;
    do {
        skip_blanks(json);
        why = parse_value(x, json);
    } while (!why && cr_json_take(json, ','));
    return why || cr_json_expect(json, ']') ? why : "the JSON is invalid";
}

/* `text` has room for a 0 at its end. */
static const char *parse_json(struct index *x, char *text, size_t length) {
    const char    *wanted = *x->options->label_key ? x->options->label_key : "label";
    struct cr_json json;
    char          *key;
    cr_json_start(&json, text, length);
    if (text[strspn(text, " \t\r\n")] != '{') return "is no JSON object";
    for (bool first = true; cr_json_member(&json, &first, &key);) {
        if (!strcmp(key, wanted)) return parse_labels(x, &json);
        if (!cr_json_skip(&json)) break;
    }
    return json.problem ? "the JSON is invalid" : "the JSON lacks the key of the label (data.label_key)";
}

/* Reads the label of a sample from a member; *why: it is unusable. */
static cr_status read_label(struct index *x, const struct record *r, const char **why) {
    char *text;
    if (r->bytes > (r->role == ROLE_CLS ? CLS_BYTES_MAX : JSON_BYTES_MAX)) {
        *why = "the file of the label is too large";
        return CR_OK;
    }
    CR_ALLOC(text, (size_t)r->bytes + 1);
    const cr_status status = cr_tar_read(x->fd, x->shard->path, r->offset, text, (size_t)r->bytes);
    if (status == CR_OK) x->shard->crc = cr_crc32c(x->shard->crc, text, (size_t)r->bytes);
    if (status == CR_OK && memchr(text, 0, (size_t)r->bytes))
        *why = "the label has zero bytes";
    else if (status == CR_OK)
        *why = r->role == ROLE_CLS ? parse_cls(x, text) : parse_json(x, text, (size_t)r->bytes);
    cr_free(text);
    return status;
}

/* ---- samples ---- */

static int compare_records(const void *a, const void *b, void *names) {
    const struct record *p = a, *q = b;
    const char          *s = (const char *)names + p->name, *t = (const char *)names + q->name;
    const int            order = memcmp(s, t, CR_MIN(p->key, q->key));
    if (order) return order;
    if (p->key != q->key) return p->key < q->key ? -1 : 1;
    if (p->role != q->role) return p->role < q->role ? -1 : 1;
    return (p->offset > q->offset) - (p->offset < q->offset);
}

static int compare_names(const void *a, const void *b, void *names) {
    return strcmp((const char *)names + ((const struct record *)a)->name,
                  (const char *)names + ((const struct record *)b)->name);
}

static cr_status add_sample(struct index *x, const struct record *image) {
    struct cr_tar_shard *s     = x->shard;
    const char          *name  = x->names.data + image->name;
    const uint32_t       bytes = (uint32_t)CR_MIN(image->bytes, (uint64_t)UINT32_MAX);
    cr_list_add_name(&s->block, name, x->before);
    cr_text_add_bytes(&s->block, x->names.data + image->label, strlen(x->names.data + image->label) + 1);
    cr_text_add_bytes(&s->block, &image->offset, sizeof image->offset);
    cr_text_add_bytes(&s->block, &bytes, sizeof bytes);
    snprintf(x->before, sizeof x->before, "%s", name);
    s->samples++;
    return s->block.failed ? CR_NO_MEMORY(s->block.capacity * 2) : CR_OK;
}

/* The label of a sample, whose records are r[count], becomes that of its image. *usable: there are an image and a
 * label. */
static cr_status join(struct index *x, struct record *r, int64_t count, bool *usable) {
    const char          *name = x->names.data + r->name, *why = NULL;
    const struct record *label = r->role == ROLE_IMAGE ? NULL : r;
    *usable                    = false;
    for (int64_t i = 1; i < count; i++) {
        if (r[i].role == r[i - 1].role)
            return CR_FAIL(CR_ERR_FORMAT, "%s: has %s of the sample %.200s twice: %.200s: remove one of them",
                           x->shard->path, r[i].role == ROLE_IMAGE ? "the image" : "the label", name,
                           x->names.data + r[i].name);
        if (!label || *x->options->label_key) label = &r[i]; /* .cls comes before .json */
    }
    if (label && label->role == ROLE_CLS && *x->options->label_key) label = NULL;
    if (r->role == ROLE_IMAGE && !label && !r->label) note(x, CR_TAR_NO_LABEL, name, "");
    if (r->role != ROLE_IMAGE) note(x, CR_TAR_NO_IMAGE, name, "");
    if (r->role != ROLE_IMAGE || (!label && !r->label)) return CR_OK;
    *usable = true;
    if (!label) return CR_OK;
    x->label.length = 0;
    cr_text_add(&x->label, "%s", "");
    CR_TRY(read_label(x, label, &why));
    if (x->label.failed) return CR_NO_MEMORY(x->label.capacity * 2);
    if (why) note(x, CR_TAR_BAD_LABEL, x->names.data + label->name, why);
    *usable  = !why;
    r->label = x->names.length;
    cr_text_add_bytes(&x->names, x->label.data, x->label.length + 1);
    return x->names.failed ? CR_NO_MEMORY(x->names.capacity * 2) : CR_OK;
}

/* Keeps the images of usable samples, sorted by name, and writes their list. */
static cr_status make_list(struct index *x) {
    int64_t kept = 0;
    if (x->count) qsort_r(x->record, (size_t)x->count, sizeof *x->record, compare_records, x->names.data);
    for (int64_t i = 0, next; i < x->count; i = next) {
        const struct record *r = &x->record[i];
        bool                 usable;
        for (next = i + 1; next < x->count && x->record[next].key == r->key &&
                           !memcmp(x->names.data + x->record[next].name, x->names.data + r->name, r->key);)
            next++;
        CR_TRY(join(x, &x->record[i], next - i, &usable));
        if (usable) x->record[kept++] = x->record[i];
    }
    if (kept) qsort_r(x->record, (size_t)kept, sizeof *x->record, compare_names, x->names.data);
    for (int64_t i = 0; i < kept; i++) CR_TRY(add_sample(x, &x->record[i]));
    const char *list = x->shard->samples ? x->shard->block.data : "";
    x->shard->list   = (struct cr_list_reader){list, list + x->shard->block.length};
    return CR_OK;
}

cr_status cr_tar_index_shard(struct cr_tar_shard *shard, const struct cr_tar_options *options) {
    struct index *x;
    cr_status     status;
    CR_ALLOC(x, 1);
    x->shard   = shard;
    x->options = options;
    x->fd      = -1;
    cr_text_add_bytes(&x->names, "", 1); /* place 0: no label */
    CR_TRY_OUT(cr_fs_open_regular(shard->path, O_RDONLY, &x->fd));
    CR_TRY_OUT(read_members(x, 0, shard->bytes, NULL));
    CR_TRY_OUT(make_list(x));
    shard->listed = true;
out:
    if (x->fd >= 0) close(x->fd);
    cr_text_free(&x->names);
    cr_text_free(&x->label);
    cr_free(x->record);
    cr_free(x);
    return status;
}

cr_status cr_tar_take_sample(const struct cr_tar_shard *shard, struct cr_list_reader *list,
                             struct cr_tar_sample *sample) {
    if (cr_list_take_name(list, sample->name) && (sample->label = cr_list_take_text(list)) &&
        cr_list_take_bytes(list, &sample->offset, sizeof sample->offset) &&
        cr_list_take_bytes(list, &sample->bytes, sizeof sample->bytes) && sample->offset <= shard->bytes &&
        sample->bytes <= shard->bytes - sample->offset)
        return CR_OK;
    return CR_FAIL(CR_ERR_FORMAT, "%s: its stored list is damaged: remove tar-*.list from the cache folder",
                   shard->path);
}
