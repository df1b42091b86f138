/* config/ini_errors.c: collects, sorts and prints configuration errors; see config/ini.h. */
#include "config/ini.h"
#include "config/keys.h"
#include "core/utf8.h"

#include <stdio.h>
#include <string.h>

/* The error message of core/base.h has a size limit, and a file that is no INI file has an error in each line. Errors
 * beyond the limits are counted, not truncated. */
enum { REPORT_BYTES = 3800, REPORT_ERRORS = 15 };

static int file_rank(const struct cr_complaints *list, const char *file, int stored) {
    int next = 0;
    for (int i = 0; i < stored; i++) {
        if (strcmp(list->at[i].file, file) == 0) return list->at[i].rank;
        next = CR_MAX(next, list->at[i].rank + 1);
    }
    return next;
}

/* The message without the text of the file. The name of a known key is no secret. */
static void hide_text(const char *raw, const char *file, char *out, size_t bytes) {
    char       section[64], key[64], name[200] = "";
    const bool known = sscanf(raw, "[%63[a-z0-9_]] %63[a-z0-9_] ", section, key) == 2 && cr_key_find(section, key);
    if (known) snprintf(name, sizeof name, "[%s] %s ", section, key);
    snprintf(out, bytes,
             "%sis invalid, perhaps because of a value of the command line; it belongs to a run, so its text is not "
             "shown (cresnet plan %.800s)",
             name, file);
}

void cr_complain(struct cr_complaints *list, const char *file, int line, const char *fmt, ...) {
    char    raw[1200], text[1200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(raw, sizeof raw, fmt, args);
    va_end(args);
    cr_utf8_visible(raw, false, text, sizeof text); /* one line each: values of the command line may have newlines */
    if (list->hidden && strcmp(file, list->hidden) == 0) hide_text(raw, file, text, sizeof text);
    int stored = list->count++;
    if (list->failed || stored >= CR_COMPLAINTS_MAX) return;
    if (!list->at) list->at = cr_arena_alloc(&list->arena, CR_COMPLAINTS_MAX * sizeof *list->at);
    char *copy = list->at ? cr_arena_printf(&list->arena, "%s", text) : NULL;
    if (!copy) {
        list->failed = true;
        return;
    }
    list->at[stored] = (struct cr_complaint){file, copy, line, file_rank(list, file, stored)};
}

static bool is_after(const struct cr_complaint *a, const struct cr_complaint *b) {
    return a->rank != b->rank ? a->rank > b->rank : a->line > b->line;
}

/* Insertion sort: stable, and the list is short. */
static void sort_complaints(struct cr_complaint *at, int count) {
    for (int i = 1; i < count; i++) {
        struct cr_complaint moving = at[i];
        int                 to     = i;
        for (; to > 0 && is_after(&at[to - 1], &moving); to--) at[to] = at[to - 1];
        at[to] = moving;
    }
}

cr_status cr_complaints_status(struct cr_complaints *list) {
    if (list->failed) return CR_NO_MEMORY(CR_COMPLAINTS_MAX * sizeof *list->at);
    if (!list->count) return CR_OK;
    const int stored = CR_MIN(list->count, CR_COMPLAINTS_MAX), most = CR_MIN(stored, REPORT_ERRORS);
    char      report[REPORT_BYTES + 64];
    int       used = 0, shown = 0;
    sort_complaints(list->at, stored);
    for (; shown < most; shown++) {
        const struct cr_complaint *c         = &list->at[shown];
        char                       place[32] = "";
        if (c->line) snprintf(place, sizeof place, ":%d", c->line);
        int room   = REPORT_BYTES - used;
        int length = snprintf(report + used, (size_t)room, "%s%s%s: %s", shown ? "\n" : "", c->file, place, c->text);
        if (length >= room && shown) break;
        used += CR_MIN(length, room - 1);
    }
    report[used] = 0;
    if (shown < list->count) snprintf(report + used, 64, "\nand %d more", list->count - shown);
    return CR_FAIL(CR_ERR_CONFIG, "%s", report);
}

void cr_complaints_free(struct cr_complaints *list) {
    cr_arena_free(&list->arena);
    *list = (struct cr_complaints){0};
}
