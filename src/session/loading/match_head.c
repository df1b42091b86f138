/* session/loading/match_head.c: transfer of a pretrained classifier (model.head = match): keeps the rows of the classes
 * that dataset and weights both have. See session/session.h. */
#include "data/class_match.h"
#include "session/checkpoint_tensors.h"
#include "session/saved_model.h"

#include <stdio.h>
#include <string.h>

enum { NAMES_SHOWN = 12 };

/* Gives classes of the weights the names that model.rename says. All old names are those of the weights, saved[count],
 * so that two classes can exchange their names. */
static cr_status rename_classes(const struct cr_config *config, struct cr_arena *arena, const char *const *saved,
                                int count, const char ***out) {
    char *text = cr_arena_printf(arena, "%s", config->model.rename), *next = NULL;
    CR_ARENA_ALLOC(arena, *out, (size_t)count);
    memcpy(*out, saved, (size_t)count * sizeof **out);
    if (!text) return CR_NO_MEMORY(strlen(config->model.rename));
    for (char *pair = strtok_r(text, ",", &next); pair; pair = strtok_r(NULL, ",", &next)) {
        char *to = strchr(pair, '=');
        int   k  = 0;
        if (!to || to == pair || !to[1])
            return cr_config_fail(config, "model.rename", "must be a list of old=new, such as cat=kitten,dog=puppy");
        *to++ = 0;
        while (k < count && strcmp(saved[k], pair) != 0) k++;
        if (k == count)
            return cr_config_fail(config, "model.rename", "the weights have no class %.100s; their first one is %.100s",
                                  pair, saved[0]);
        (*out)[k] = to;
    }
    for (int k = 1; k < count && *config->model.rename; k++)
        for (int i = 0; i < k; i++)
            if (strcmp((*out)[i], (*out)[k]) == 0)
                return cr_config_fail(config, "model.rename", "gives two classes of the weights the name %.100s",
                                      (*out)[k]);
    return CR_OK;
}

/* Logs the names that have no match. */
static void log_unmatched(const char *what, const char *const *names, int count, const struct cr_class_match *match) {
    struct cr_text text      = {0};
    const int      unmatched = count - match->matched;
    for (int k = 0, shown = 0; k < count; k++)
        if (match->to[k] < 0 && shown++ < NAMES_SHOWN) cr_text_add(&text, "%s%s", shown > 1 ? ", " : "", names[k]);
    if (unmatched)
        cr_log(CR_LOG_RESULT, "classifier: %d %s: %s%s", unmatched, what, text.data ? text.data : "",
               unmatched > NAMES_SHOWN ? ", ..." : "");
    cr_text_free(&text);
}

/* Copies rows of a tensor of the file, [count][...], to a parameter, [classes][...]. */
static cr_status put_rows(struct cr_st_file *file, const char *path, int count, const struct cr_param *q, int classes,
                          const int *from, float *value) {
    const struct cr_st_entry *e       = cr_st_find(file, q->name);
    const size_t              columns = (size_t)(q->elems / classes), elems = (size_t)count * columns;
    float                    *saved;
    if (!e || e->dtype != CR_F32 || e->dims < 1 || e->dim[0] != count || e->bytes != elems * sizeof *saved)
        return CR_FAIL(CR_ERR_CONFIG,
                       "%s: its classifier %s cannot be matched: it must be dense, in fp32, with %d rows of %zu "
                       "values; model.head=new trains a new one",
                       path, q->name, count, columns);
    CR_ALLOC(saved, elems);
    const cr_status status = cr_st_read_whole(file, e, saved);
    for (int k = 0; status == CR_OK && k < classes; k++)
        if (from[k] >= 0)
            memcpy(value + q->offset + (size_t)k * columns, saved + (size_t)from[k] * columns, columns * sizeof *saved);
    cr_free(saved);
    return status;
}

/* from[k]: the row of the file for class k of the network, or -1. */
static cr_status put_classifier(struct cr_session *s, const char *given, int count, const int *from) {
    const struct cr_param_store *store = &s->model.store;
    struct cr_st_file           *file  = NULL;
    char                         path[CR_PATH_MAX];
    float                       *value = NULL;
    cr_status                    status;
    CR_TRY_OUT(cr_ckpt_model_path(given, path));
    CR_TRY_OUT(cr_ckpt_open_weights(path, NULL, 0, &file));
    CR_TRY_OUT(cr_state_buffer_copy(s, CR_BUFFER_VALUE, &value));
    for (int i = 0; i < store->params; i++)
        if (store->param[i].classifier)
            CR_TRY_OUT(put_rows(file, path, count, &store->param[i], s->model.classes, from, value));
    status = cr_state_buffer_put(s, CR_BUFFER_VALUE, value);
out:
    cr_st_close(file);
    cr_free(value);
    return status;
}

cr_status cr_session_match_head(struct cr_session *s, const char *given, const char *const *names) {
    const int             classes = s->model.classes;
    struct cr_class_match match = {0}, back = {0};
    struct cr_arena       arena = {0};
    const char          **saved, **renamed;
    int                   count;
    cr_status             status;
    CR_TRY_OUT(cr_saved_model_names(given, &arena, &saved, &count));
    if (!count)
        CR_FAIL_OUT(CR_ERR_CONFIG,
                    "%s: has no class names, by which model.head = match finds the rows of the classifier", given);
    CR_TRY_OUT(rename_classes(s->config, &arena, saved, count, &renamed));
    CR_TRY_OUT(cr_class_match(names, classes, renamed, count, true, &match));
    CR_TRY_OUT(cr_class_match(renamed, count, names, classes, true, &back));
    cr_log(CR_LOG_RESULT, "classifier: %d of %d classes keep their rows of the weights", match.matched, classes);
    log_unmatched("new", names, classes, &match);
    log_unmatched("dropped, which the images do not have", renamed, count, &back);
    status = put_classifier(s, given, count, match.to);
out:
    cr_class_match_free(&match);
    cr_class_match_free(&back);
    cr_arena_free(&arena);
    return status;
}
