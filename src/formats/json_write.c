/* formats/json_write.c: writes JSON text; see formats/json_write.h. */
#include "formats/json_write.h"

#include <inttypes.h>
#include <math.h>

struct cr_json_writer cr_json_writer(struct cr_text *text, enum cr_json_style style) {
    return (struct cr_json_writer){.text = text, .style = style};
}

/* Writes what precedes a value: the comma and the name of the member. False without a text. */
static bool begin_value(struct cr_json_writer *w, const char *key) {
    if (!w->text) return false;
    CR_ASSERT(w->depth > 0 || (!key && !w->comma));
    if (w->comma) cr_text_add(w->text, w->style == CR_JSON_SPACED ? ", " : ",");
    w->comma = true;
    if (!key) return true;
    cr_text_add_json(w->text, key);
    cr_text_add(w->text, w->style == CR_JSON_SPACED ? ": " : ":");
    return true;
}

static void open_bracket(struct cr_json_writer *w, const char *key, const char *bracket) {
    if (!begin_value(w, key)) return;
    cr_text_add_bytes(w->text, bracket, 1);
    w->comma = false;
    w->depth++;
}

static void close_bracket(struct cr_json_writer *w, const char *bracket) {
    if (!w->text) return;
    CR_ASSERT(w->depth > 0);
    cr_text_add_bytes(w->text, bracket, 1);
    w->comma = true;
    w->depth--;
}

void cr_json_open_object(struct cr_json_writer *w, const char *key) {
    open_bracket(w, key, "{");
}

void cr_json_close_object(struct cr_json_writer *w) {
    close_bracket(w, "}");
}

void cr_json_open_array(struct cr_json_writer *w, const char *key) {
    open_bracket(w, key, "[");
}

void cr_json_close_array(struct cr_json_writer *w) {
    close_bracket(w, "]");
}

void cr_json_end_line(struct cr_json_writer *w) {
    if (!w->text) return;
    CR_ASSERT(w->depth == 0);
    cr_text_add_bytes(w->text, "\n", 1);
    w->comma = false;
}

struct cr_json_writer cr_json_open_line(struct cr_text *text) {
    struct cr_json_writer w = cr_json_writer(text, CR_JSON_SPACED);
    cr_json_open_object(&w, NULL);
    return w;
}

void cr_json_close_line(struct cr_json_writer *w) {
    cr_json_close_object(w);
    cr_json_end_line(w);
}

void cr_json_put_string(struct cr_json_writer *w, const char *key, const char *s) {
    if (!s)
        cr_json_put_null(w, key);
    else if (begin_value(w, key))
        cr_text_add_json(w->text, s);
}

void cr_json_put_strings(struct cr_json_writer *w, const char *const *strings, int count) {
    cr_json_open_array(w, NULL);
    for (int i = 0; i < count; i++) cr_json_put_string(w, NULL, strings[i]);
    cr_json_close_array(w);
}

void cr_json_put_int(struct cr_json_writer *w, const char *key, int64_t value) {
    if (begin_value(w, key)) cr_text_add(w->text, "%" PRId64, value);
}

void cr_json_put_uint(struct cr_json_writer *w, const char *key, uint64_t value) {
    if (begin_value(w, key)) cr_text_add(w->text, "%" PRIu64, value);
}

void cr_json_put_fixed(struct cr_json_writer *w, const char *key, double value, int decimals) {
    if (!isfinite(value))
        cr_json_put_null(w, key);
    else if (begin_value(w, key))
        cr_text_add(w->text, "%.*f", decimals, value);
}

void cr_json_put_general(struct cr_json_writer *w, const char *key, double value, int digits) {
    if (!isfinite(value))
        cr_json_put_null(w, key);
    else if (begin_value(w, key))
        cr_text_add(w->text, "%.*g", digits, value);
}

void cr_json_put_bool(struct cr_json_writer *w, const char *key, bool value) {
    if (begin_value(w, key)) cr_text_add(w->text, value ? "true" : "false");
}

void cr_json_put_null(struct cr_json_writer *w, const char *key) {
    if (begin_value(w, key)) cr_text_add(w->text, "null");
}

void cr_json_put_hash(struct cr_json_writer *w, const char *key, uint64_t value) {
    if (begin_value(w, key)) cr_text_add(w->text, "\"%016" PRIx64 "\"", value);
}
