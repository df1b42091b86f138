/* checkpoint/prefix.c: loads weights of other programs, whose names may have a prefix: "module." of DataParallel,
 * "_orig_mod." of torch.compile, "model." of Lightning, "backbone.body." of detectors. No list of prefixes is needed:
 * the prefix is the one after which most names are those of the network. The classifier, which PyTorch calls "fc", may
 * have another name or be the one layer of a Sequential: "linear", "fc.1". */
#include "checkpoint/internal.h"

#include "formats/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_SHOWN = 100, OTHERS_SHOWN = 3 };

/* Every ResNet has these. They stand for a network that is not known yet; their shapes are not compared. */
static const struct cr_ckpt_tensor any_network[] = {{.name = "layer1.0.conv1.weight", .dims = -1},
                                                    {.name = "layer1.0.conv2.weight", .dims = -1},
                                                    {.name = "layer1.0.bn1.weight", .dims = -1},
                                                    {.name = "layer1.0.bn2.weight", .dims = -1}};

struct prefix {
    const char *text; /* a name of the file, which begins with the prefix */
    size_t      length;
    int         names; /* of the network, found behind the prefix */
    int         score; /* the same, and those of the same shape once more */
};

static int compare_tensor(const void *a, const void *b) {
    const struct cr_ckpt_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static int compare_prefix(const void *a, const void *b) {
    const struct prefix *x = a, *y = b;
    if (x->length != y->length) return x->length < y->length ? -1 : 1;
    return memcmp(x->text, y->text, x->length);
}

/* Appends a prefix for each ending of the name, behind a dot or whole, that is the name of a tensor of the network. */
static void add_prefixes(const struct cr_st_entry *e, const struct cr_ckpt_tensor **sorted, int count,
                         struct prefix *list, int *used) {
    for (const char *end = e->name; end; end = strchr(end, '.') ? strchr(end, '.') + 1 : NULL) {
        struct cr_ckpt_tensor                     wanted = {.name = end};
        const struct cr_ckpt_tensor *const        key    = &wanted;
        const struct cr_ckpt_tensor *const *const found =
            bsearch(&key, sorted, (size_t)count, sizeof *sorted, compare_tensor);
        if (!found) continue;
        const bool same =
            e->dims == (*found)->dims && memcmp(e->dim, (*found)->dim, (size_t)e->dims * sizeof *e->dim) == 0;
        list[(*used)++] = (struct prefix){e->name, (size_t)(end - e->name), 1, 1 + same};
    }
}

/* Adds up equal prefixes; returns their number. */
static int merge(struct prefix *list, int used) {
    int kept = 0;
    if (used) qsort(list, (size_t)used, sizeof *list, compare_prefix);
    for (int i = 0; i < used; i++) {
        if (kept && compare_prefix(&list[kept - 1], &list[i]) == 0) {
            list[kept - 1].names += list[i].names;
            list[kept - 1].score += list[i].score;
        } else {
            list[kept++] = list[i];
        }
    }
    return kept;
}

/* The best prefix and another one that is as good (NULL: none). The shortest is first: names without a prefix need no
 * choice. */
static const struct prefix *choose(const struct prefix *list, int count, const struct prefix **rival) {
    const struct prefix *best = NULL;
    *rival                    = NULL;
    for (int i = 0; i < count; i++) {
        if (best && list[i].score == best->score && best->length && !*rival) *rival = &list[i];
        if (best && list[i].score <= best->score) continue;
        best   = &list[i];
        *rival = NULL;
    }
    return best;
}

/* Prefixes end with a dot. An entry of a PyTorch file is chosen already when the names of FILE:KEY have no prefix. */
static cr_status fail_two(const struct cr_st_file *file, const char *path, const struct prefix *a,
                          const struct prefix *b) {
    const char *key = cr_st_key(path);
    char        one[CR_PATH_MAX], two[CR_PATH_MAX], text[CR_PATH_MAX];
    const int   length = key ? (int)(key - path - 1) : (int)strlen(path);
    snprintf(text, sizeof text, "%s%.*s", cr_st_prefix(file), (int)a->length - 1, a->text);
    cr_json_quote(one, sizeof one, text);
    snprintf(text, sizeof text, "%s%.*s", cr_st_prefix(file), (int)b->length - 1, b->text);
    cr_json_quote(two, sizeof two, text);
    return CR_FAIL(CR_ERR_FORMAT,
                   "%.*s: has the weights of two networks, whose names begin with %.200s and %.200s: choose one with "
                   "FILE:PREFIX, such as %.*s:%.200s",
                   length, path, one, two, length, path, text);
}

/* Half of the names must be found, of the network's or of the file's: a few equal names are no network. */
static cr_status remove_prefix(struct cr_st_file *file, const char *path, const struct cr_ckpt_tensor *tensors,
                               int count) {
    const struct cr_ckpt_tensor **sorted = NULL;
    const struct prefix          *best, *rival;
    struct prefix                *list = NULL;
    char                          text[CR_PATH_MAX];
    cr_status                     status   = CR_OK;
    size_t                        capacity = 0;
    int                           used     = 0;
    for (int i = 0; i < cr_st_count(file); i++) {
        capacity++;
        for (const char *c = cr_st_at(file, i)->name; *c; c++) capacity += *c == '.';
    }
    sorted = cr_alloc((size_t)count, sizeof *sorted);
    list   = cr_alloc(capacity, sizeof *list);
    if (!sorted || !list) {
        status = CR_NO_MEMORY(capacity * sizeof *list);
        goto out;
    }
    for (int i = 0; i < count; i++) sorted[i] = &tensors[i];
    qsort(sorted, (size_t)count, sizeof *sorted, compare_tensor);
    for (int i = 0; i < cr_st_count(file); i++) add_prefixes(cr_st_at(file, i), sorted, count, list, &used);
    best = choose(list, merge(list, used), &rival);
    if (!best || !best->length || best->length >= sizeof text) goto out;
    if (2 * best->names < count && 2 * best->names < cr_st_count(file)) goto out;
    if (rival) {
        status = fail_two(file, path, best, rival);
        goto out;
    }
    snprintf(text, sizeof text, "%.*s", (int)best->length, best->text);
    CR_TRY_OUT(cr_st_strip(file, text));
out:
    cr_free(sorted);
    cr_free(list);
    return status;
}

/* ---- the classifier ---- */

bool cr_ckpt_is_head(const char *name) {
    static const char *const heads[] = {"fc.", "linear.", "classifier.", "head."};
    for (size_t i = 0; i < CR_COUNT(heads); i++)
        if (strncmp(name, heads[i], strlen(heads[i])) == 0) return true;
    return false;
}

/* "fc.weight" and "fc.1.weight", but not "fc.norm.weight" */
static bool is_layer_of_head(const char *name) {
    const char *at = strchr(name, '.');
    if (!cr_ckpt_is_head(name)) return false;
    const size_t digits = strspn(++at, "0123456789");
    if (digits && at[digits] == '.') at += digits + 1;
    return strcmp(at, "weight") == 0;
}

/* Names the only linear layer of the classifier as the network does. A classifier of several layers keeps its names. */
static cr_status name_classifier(struct cr_st_file *file, const char *path, bool log) {
    const struct cr_st_entry *weight = NULL, *bias = NULL;
    char                      shown[NAME_SHOWN];
    int                       layers = 0;
    for (int i = 0; i < cr_st_count(file); i++) {
        const struct cr_st_entry *e = cr_st_at(file, i);
        if (!is_layer_of_head(e->name)) continue;
        weight = e;
        layers++;
    }
    if (layers != 1 || weight->dims != 2 || strcmp(weight->name, "fc.weight") == 0) return CR_OK;
    const int stem = (int)(strlen(weight->name) - strlen("weight"));
    for (int i = 0; i < cr_st_count(file); i++) {
        const struct cr_st_entry *e = cr_st_at(file, i);
        if (strncmp(e->name, weight->name, (size_t)stem) == 0 && strcmp(e->name + stem, "bias") == 0) bias = e;
    }
    cr_json_quote(shown, sizeof shown, weight->name);
    if (log && strcmp(weight->name, "linear.weight") != 0)
        cr_log(CR_LOG_INFO, "weights: %s: its classifier is %s", path, shown);
    CR_TRY(cr_st_rename(file, weight, "fc.weight"));
    return bias ? cr_st_rename(file, bias, "fc.bias") : CR_OK;
}

static bool is_counter(const struct cr_st_entry *e) {
    return e->dims == 0 && (e->dtype == CR_I64 || e->dtype == CR_I32);
}

/* One line for each choice that was made for the user. Counters such as n_averaged are no weights. */
static void log_choice(const struct cr_st_file *file, const char *path) {
    char                      prefix[NAME_SHOWN], name[NAME_SHOWN];
    struct cr_text            others = {0};
    const struct cr_st_entry *e;
    int                       count = 0;
    if (cr_st_note(file)) cr_log(CR_LOG_INFO, "weights: %s: %s", path, cr_st_note(file));
    for (int i = 0; (e = cr_st_outside(file, i)); i++) {
        if (is_counter(e) || count++ >= OTHERS_SHOWN) continue;
        cr_json_quote(name, sizeof name, e->name);
        cr_text_add(&others, "%s%s", others.length ? ", " : "", name);
    }
    cr_json_quote(prefix, sizeof prefix, cr_st_prefix(file));
    if (count > OTHERS_SHOWN) cr_text_add(&others, " and %d more", count - OTHERS_SHOWN);
    if (count && !others.failed)
        cr_log(CR_LOG_INFO, "weights: %s: the tensors whose names begin with %s are used; the file also has %s", path,
               prefix, others.data);
    cr_text_free(&others);
}

cr_status cr_ckpt_open_weights(const char *path, const struct cr_ckpt_tensor *tensors, int count,
                               struct cr_st_file **out) {
    struct cr_st_file *file;
    CR_TRY(cr_st_open_any(path, &file));
    cr_status status = count ? remove_prefix(file, path, tensors, count)
                             : remove_prefix(file, path, any_network, (int)CR_COUNT(any_network));
    if (status == CR_OK) status = name_classifier(file, path, count > 0);
    if (status != CR_OK) {
        cr_st_close(file);
        return status;
    }
    if (count) log_choice(file, path);
    *out = file;
    return CR_OK;
}
