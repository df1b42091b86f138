/* data/class_match.c: matches two lists of class names; see data/class_match.h. */
#include "data/class_match.h"

#include <stdlib.h>
#include <string.h>

/* A class that has not been found in the other list yet. */
struct entry {
    const char *name;
    int         index;
};

static int compare_entries(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    const int           order = strcmp(x->name, y->name);
    return order ? order : (x->index > y->index) - (x->index < y->index);
}

/* The number of entries from `at` on that have the same name. */
static int same_names(const struct entry *list, int count, int at) {
    int n = 1;
    while (at + n < count && strcmp(list[at + n].name, list[at].name) == 0) n++;
    return n;
}

/* Pairs the entries whose names occur once in each of two lists, sets from[i].index of these in `to`, and moves the
 * entries that are left to the front of their lists. */
static void pair_entries(struct entry *from, int *count, struct entry *onto, int *onto_count, int *to) {
    int i = 0, k = 0, left = 0, onto_left = 0;
    if (*count) qsort(from, (size_t)*count, sizeof *from, compare_entries);
    if (*onto_count) qsort(onto, (size_t)*onto_count, sizeof *onto, compare_entries);
    while (i < *count || k < *onto_count) {
        const int order = i == *count ? 1 : k == *onto_count ? -1 : strcmp(from[i].name, onto[k].name);
        const int n = order > 0 ? 0 : same_names(from, *count, i), m = order < 0 ? 0 : same_names(onto, *onto_count, k);
        if (n == 1 && m == 1)
            to[from[i].index] = onto[k].index;
        else {
            memmove(from + left, from + i, (size_t)n * sizeof *from);
            memmove(onto + onto_left, onto + k, (size_t)m * sizeof *onto);
            left += n;
            onto_left += m;
        }
        i += n;
        k += m;
    }
    *count      = left;
    *onto_count = onto_left;
}

static struct entry *make_entries(const char *const *names, int count) {
    struct entry *list = cr_alloc((size_t)count, sizeof *list);
    for (int i = 0; list && i < count; i++) list[i] = (struct entry){names[i], i};
    return list;
}

/* Replaces the names by their folded forms, in memory of the arena. */
static bool fold_entries(struct entry *list, int count, struct cr_arena *arena) {
    struct cr_text text = {0};
    for (int i = 0; i < count && !text.failed; i++) {
        text.length = 0;
        cr_text_add(&text, "%s", ""); /* also an empty form is a text */
        cr_class_name_fold(list[i].name, &text);
        list[i].name = text.failed ? NULL : cr_arena_printf(arena, "%s", text.data);
        if (!list[i].name) text.failed = true;
    }
    const bool ok = !text.failed;
    cr_text_free(&text);
    return ok;
}

static bool are_identical(const char *const *from, int count, const char *const *onto, int onto_count) {
    int k = 0;
    while (k < count && k < onto_count && strcmp(from[k], onto[k]) == 0) k++;
    return k == count && k == onto_count;
}

/* Sets all members but `to`. */
static void summarise(const char *const *from, int count, const char *const *onto, int onto_count,
                      struct cr_class_match *m) {
    for (int i = 0; i < count; i++) {
        if (m->to[i] == -1) continue;
        m->matched++;
        if (m->moved == -1 && m->to[i] != i) m->moved = i;
        if (m->respelt == -1 && strcmp(from[i], onto[m->to[i]]) != 0) m->respelt = i;
    }
    m->relation = m->matched < count || count != onto_count ? CR_CLASSES_OTHER
                  : m->moved != -1                          ? CR_CLASSES_PERMUTED
                                                            : CR_CLASSES_EQUAL;
    if (count != onto_count) return;
    while (m->shown < count && (m->to[m->shown] == m->shown || strcmp(from[m->shown], onto[m->shown]) == 0)) m->shown++;
    if (m->shown == count) m->shown = m->respelt;
}

cr_status cr_class_match(const char *const *from, int count, const char *const *onto, int onto_count, bool spelling,
                         struct cr_class_match *out) {
    struct entry   *a = make_entries(from, count), *b = make_entries(onto, onto_count);
    int             left = count, onto_left = onto_count;
    struct cr_arena arena  = {0};
    cr_status       status = CR_OK;
    *out = (struct cr_class_match){.to = cr_alloc((size_t)count, sizeof *out->to), .moved = -1, .respelt = -1};
    if (!a || !b || !out->to) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory: names of %d classes", count);
    const bool identical = are_identical(from, count, onto, onto_count);
    for (int i = 0; i < count; i++) out->to[i] = identical ? i : -1;
    if (!identical) pair_entries(a, &left, b, &onto_left, out->to);
    if (!identical && spelling && left && onto_left) {
        if (!fold_entries(a, left, &arena) || !fold_entries(b, onto_left, &arena))
            CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory: names of %d classes", count);
        pair_entries(a, &left, b, &onto_left, out->to);
    }
    summarise(from, count, onto, onto_count, out);
out:
    if (status != CR_OK) cr_class_match_free(out);
    cr_arena_free(&arena);
    cr_free(a);
    cr_free(b);
    return status;
}

void cr_class_match_free(struct cr_class_match *match) {
    cr_free(match->to);
    *match = (struct cr_class_match){0};
}

void cr_class_match_log(const struct cr_class_match *m, const char *const *from, const char *const *onto,
                        const char *one, const char *other) {
    if (m->respelt >= 0)
        cr_log(CR_LOG_WARN, "class %s of %s is taken as %s of %s: the names differ in " CR_CLASS_SPELLING,
               from[m->respelt], one, onto[m->to[m->respelt]], other);
    if (m->moved >= 0)
        cr_log(CR_LOG_INFO, "classes are matched by name: %s is label %d in %s and %d in %s", from[m->moved], m->moved,
               one, m->to[m->moved], other);
}
