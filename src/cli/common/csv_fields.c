/* cli/common/csv_fields.c: fields of CSV files (quotes, formulas); the confusion matrix. See cli/common/command.h. */
#include "cli/common/command.h"
#include "core/output_file.h"
#include "core/utf8.h"
#include "session/scores/confusion.h"

#include <string.h>

/* The characters = + - @ count in their full-width forms too: spreadsheets for East Asian languages accept these. */
static bool is_formula(const char *text) {
    static const char *const wide[] = {"\xef\xbc\x9d", "\xef\xbc\x8b", "\xef\xbc\x8d", "\xef\xbc\xa0"};
    if (*text && strchr("=+-@\t\r\n", *text)) return true;
    for (size_t i = 0; i < CR_COUNT(wide); i++)
        if (strncmp(text, wide[i], 3) == 0) return true;
    return false;
}

static void add_field(struct cr_text *out, const char *prefix, const char *text) {
    const char    *blank = text + strcspn(text, " \t"); /* readers leave out blanks around fields */
    const bool     outer = *blank && (blank == text || strchr(" \t", text[strlen(text) - 1]));
    const char    *quote = outer || text[strcspn(text, ",\"\r\n")] ? "\"" : "";
    struct cr_text valid = {0};
    cr_text_add_utf8(&valid, text);
    out->failed |= valid.failed;
    cr_text_add(out, "%s%s", quote, prefix);
    for (const char *c = valid.data ? valid.data : ""; *c; c++)
        cr_text_add_bytes(out, *c == '"' ? "\"\"" : c, *c == '"' ? 2 : 1);
    cr_text_add(out, "%s", quote);
    cr_text_free(&valid);
}

void cr_csv_add_text(struct cr_text *out, const char *text) {
    add_field(out, is_formula(text) ? "'" : "", text);
}

void cr_csv_add_path(struct cr_text *out, const char *path) {
    add_field(out, is_formula(path) ? "./" : "", path);
}

/* ---- the confusion matrix ---- */

enum { TABLE_CLASSES = 5000 }; /* a table of more classes would have gigabytes of zeros */

static void add_table(struct cr_text *csv, const struct cr_confusion *c, const char *const *names) {
    const struct cr_confusion_cell *at = c->cell, *end = c->cell + c->cells;
    cr_text_add(csv, CR_OUTPUT_CSV_START);
    for (int k = 0; k < c->classes; k++) {
        cr_text_add(csv, ",");
        cr_csv_add_text(csv, names[k]);
    }
    for (int i = 0; i < c->classes; i++) {
        cr_text_add(csv, "\n");
        cr_csv_add_text(csv, names[i]);
        for (int k = 0; k < c->classes; k++) {
            const bool other = at < end && at->label == i && at->predicted == k;
            cr_text_add(csv, ",%lld", (long long)(i == k ? c->score[i].correct : other ? at->count : 0));
            at += other;
        }
    }
    cr_text_add(csv, "\n");
}

static void add_list(struct cr_text *csv, const struct cr_confusion *c, const char *const *names) {
    const struct cr_confusion_cell *at = c->cell, *end = c->cell + c->cells;
    cr_text_add(csv, CR_OUTPUT_CSV_LIST);
    for (int i = 0; i < c->classes; i++) {
        struct cr_confusion_cell own = {i, i, c->score[i].correct};
        while (own.count || (at < end && at->label == i)) {
            const bool                     others = at < end && at->label == i;
            const struct cr_confusion_cell cell   = others && (!own.count || at->predicted < i) ? *at++ : own;
            if (cell.predicted == i) own.count = 0;
            cr_text_add(csv, "\n");
            cr_csv_add_text(csv, names[i]);
            cr_text_add(csv, ",");
            cr_csv_add_text(csv, names[cell.predicted]);
            cr_text_add(csv, ",%lld", (long long)cell.count);
        }
    }
    cr_text_add(csv, "\n");
}

bool cr_csv_add_confusion(struct cr_text *csv, const struct cr_confusion *c, const char *const *names) {
    const bool list = c->classes > TABLE_CLASSES;
    (list ? add_list : add_table)(csv, c, names);
    return list;
}
