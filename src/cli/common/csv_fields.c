/* cli/common/csv_fields.c: fields of CSV files. See cli/common/csv_fields.h. */
#include "cli/common/csv_fields.h"
#include "core/utf8.h"

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
    const char    *quote = text[strcspn(text, ",\"\r\n")] ? "\"" : "";
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
