/* session/loading/match_head.c: model.head = match: the classifier of weights whose classes are others: rows of classes
 * that both have are kept. See session/session.h. */
#include "data/class_match.h"
#include "session/checkpoint_tensors.h"
#include "session/saved_model.h"

#include <stdio.h>
#include <string.h>

enum { NAMES_SHOWN = 12 };

struct match {
    struct cr_session *session;
    struct cr_arena    arena;
    const char       **saved;   /* [count]: the names of the classes of the weights */
    const char       **renamed; /* [count]: the same after model.rename */
    int                count;
};

/* Gives the class `old`, length bytes long, the name `fresh`. All old names are those of the weights, so that two
 * classes can exchange their names. */
static cr_status rename_class(struct match *m, const char *old, size_t length, const char *fresh, size_t fresh_length) {
    const struct cr_config *config = m->session->config;
    for (int k = 0; k < m->count; k++) {
        if (strlen(m->saved[k]) != length || memcmp(m->saved[k], old, length) != 0) continue;
        m->renamed[k] = cr_arena_printf(&m->arena, "%.*s", (int)fresh_length, fresh);
        return m->renamed[k] ? CR_OK : CR_NO_MEMORY(fresh_length);
    }
    return cr_config_fail(config, "model.rename", "the weights have no class %.*s", (int)CR_MIN(length, (size_t)100),
                          old);
}

static cr_status rename_classes(struct match *m) {
    const struct cr_config *config = m->session->config;
    CR_ARENA_ALLOC(&m->arena, m->renamed, (size_t)m->count);
    for (int k = 0; k < m->count; k++) m->renamed[k] = m->saved[k];
    for (const char *at = config->model.rename; *at;) {
        const size_t length = strcspn(at, ","), old = strcspn(at, "=");
        if (!old || old + 1 >= length)
            return cr_config_fail(config, "model.rename", "must be a list of old=new, such as cat=kitten,dog=puppy");
        CR_TRY(rename_class(m, at, old, at + old + 1, length - old - 1));
        at += length + (at[length] == ',');
    }
    return CR_OK;
}

/* ---- the log ---- */

/* Logs the names for which keep[k] is `wanted`. */
static void log_names(const char *what, const char *const *names, int count, const bool *flag, bool wanted,
                      const char *consequence) {
    struct cr_text text  = {0};
    int            found = 0;
    for (int k = 0; k < count; k++) {
        if (flag[k] != wanted || found++ >= NAMES_SHOWN) continue;
        cr_text_add(&text, "%s%s", found > 1 ? ", " : "", names[k]);
    }
    if (found)
        cr_log(CR_LOG_RESULT, "classifier: %d %s%s: %s%s", found, what, consequence, text.data ? text.data : "",
               found > NAMES_SHOWN ? ", ..." : "");
    cr_text_free(&text);
}

/* ---- the rows ---- */

static const struct cr_param *find_param(const struct cr_param_store *store, enum cr_param_role role) {
    for (int i = 0; i < store->params; i++)
        if (store->param[i].classifier && store->param[i].role == role) return &store->param[i];
    return NULL;
}

/* Reads the classifier's tensor of the file, [count][columns], as f32. */
static cr_status read_rows(const struct match *m, struct cr_st_file *file, const char *path, const struct cr_param *q,
                           int64_t columns, float **out) {
    const struct cr_st_entry *e     = cr_st_find(file, q->name);
    const int                 dims  = q->role == CR_ROLE_DENSE_WEIGHT ? 2 : 1;
    const int64_t             elems = m->count * columns;
    void                     *raw;
    if (!e || e->dims != dims || e->dim[0] != m->count || (dims == 2 && e->dim[1] != columns) ||
        (e->dtype != CR_F32 && e->dtype != CR_F16 && e->dtype != CR_BF16))
        return CR_FAIL(CR_ERR_CONFIG,
                       "%s: its classifier %s cannot be matched: it must be dense, with %d rows of %lld values; "
                       "model.head=new trains a new one",
                       path, q->name, m->count, (long long)columns);
    CR_ALLOC(*out, (size_t)elems);
    raw = cr_alloc(e->bytes, 1);
    if (!raw) return CR_NO_MEMORY(e->bytes);
    const cr_status status = cr_st_read_whole(file, e, raw);
    if (status == CR_OK) cr_numbers_to_f32(e->dtype, raw, elems, *out);
    cr_free(raw);
    return status;
}

/* from[k]: the row of the file for row k of the network, or -1. */
static cr_status put_rows(const struct match *m, struct cr_st_file *file, const char *path, enum cr_param_role role,
                          const int *from, float *value) {
    const struct cr_param_store *store = &m->session->model.store;
    const struct cr_param       *q     = find_param(store, role);
    const int                    rows  = m->session->model.classes;
    float                       *saved = NULL;
    if (!q) return CR_FAIL(CR_ERR_CONFIG, "model.head = match: the network has no classifier of one layer");
    const int64_t columns = q->elems / rows;
    cr_status     status  = read_rows(m, file, path, q, columns, &saved);
    for (int k = 0; status == CR_OK && k < rows; k++)
        if (from[k] >= 0)
            memcpy(value + q->offset + k * columns, saved + from[k] * columns, (size_t)columns * sizeof *value);
    cr_free(saved);
    return status;
}

static cr_status put_classifier(const struct match *m, const char *path, const int *from) {
    struct cr_st_file *file  = NULL;
    float             *value = NULL;
    cr_status          status;
    CR_TRY_OUT(cr_ckpt_open_weights(path, NULL, 0, &file));
    CR_TRY_OUT(cr_state_buffer_copy(m->session, CR_BUFFER_VALUE, &value));
    CR_TRY_OUT(put_rows(m, file, path, CR_ROLE_DENSE_WEIGHT, from, value));
    CR_TRY_OUT(put_rows(m, file, path, CR_ROLE_DENSE_BIAS, from, value));
    status = cr_state_buffer_put(m->session, CR_BUFFER_VALUE, value);
out:
    cr_st_close(file);
    cr_free(value);
    return status;
}

static cr_status match_classes(const struct match *m, const char *path, const char *const *names) {
    const int             classes = m->session->model.classes;
    struct cr_class_match match   = {0};
    bool     *known = cr_alloc((size_t)classes, sizeof *known), *kept = cr_alloc((size_t)m->count, sizeof *kept);
    cr_status status = CR_OK;
    if (!known || !kept) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory: names of %d classes", classes);
    CR_TRY_OUT(cr_class_match(names, classes, m->renamed, m->count, true, &match));
    for (int k = 0; k < classes; k++) {
        known[k] = match.to[k] >= 0;
        if (known[k]) kept[match.to[k]] = true;
    }
    cr_log(CR_LOG_RESULT, "classifier: %d of %d classes keep their rows of the weights", match.matched, classes);
    log_names("new", names, classes, known, false, "");
    log_names("dropped", m->renamed, m->count, kept, false, ", which the images do not have");
    status = put_classifier(m, path, match.to);
out:
    cr_class_match_free(&match);
    cr_free(known);
    cr_free(kept);
    return status;
}

cr_status cr_session_match_head(struct cr_session *s, const char *given, const char *const *names) {
    struct match m    = {.session = s};
    char        *path = NULL;
    cr_status    status;
    CR_TRY_OUT(cr_ckpt_model_path(given, &path));
    CR_TRY_OUT(cr_saved_model_names(given, &m.arena, &m.saved, &m.count));
    if (!m.count)
        CR_FAIL_OUT(CR_ERR_CONFIG,
                    "%s: has no class names, by which model.head = match finds the rows of the classifier", given);
    CR_TRY_OUT(rename_classes(&m));
    status = match_classes(&m, path, names);
out:
    cr_free(path);
    cr_arena_free(&m.arena);
    return status;
}
