/* formats/json_write.h: writes JSON text.
 *
 * The writer adds commas, quotes and escapes; the caller names members and their values. `key` is the name of a member,
 * or NULL for an element of an array and for the outermost value. Names and strings that are no UTF-8 get U+FFFD in
 * place of the invalid bytes.
 *
 *   struct cr_json_writer w = cr_json_writer(&text, CR_JSON_SPACED);
 *   cr_json_open_object(&w, NULL);
 *   cr_json_put_int(&w, "step", 3);
 *   cr_json_put_fixed(&w, "top1", 0.5, 6);
 *   cr_json_close_object(&w);
 *   cr_json_end_line(&w);                            {"step": 3, "top1": 0.500000}
 *
 * Invariants
 *   - NaN and infinities become null, because JSON has neither.
 *   - An allocation failure sets `text->failed`; the caller checks it once at the end.
 *   - With `text` NULL every function does nothing. */
#ifndef CR_JSON_WRITE_H
#define CR_JSON_WRITE_H

#include "core/base.h"

enum cr_json_style {
    CR_JSON_SPACED, /* {"a": 1, "b": [2, 3]}: what commands print */
    CR_JSON_COMPACT /* {"a":1,"b":[2,3]}: files */
};

struct cr_json_writer {
    struct cr_text    *text; /* output, borrowed */
    enum cr_json_style style;
    bool               comma; /* the next value follows another one */
    int                depth; /* number of open objects and arrays */
};

struct cr_json_writer cr_json_writer(struct cr_text *text, enum cr_json_style style);

/* The line of a result: an object with blanks between its members, whose line cr_json_close_line ends. */
struct cr_json_writer cr_json_open_line(struct cr_text *text);
void                  cr_json_close_line(struct cr_json_writer *w);

void cr_json_open_object(struct cr_json_writer *w, const char *key);
void cr_json_close_object(struct cr_json_writer *w);
void cr_json_open_array(struct cr_json_writer *w, const char *key);
void cr_json_close_array(struct cr_json_writer *w);
/* Ends the line after the outermost value. The next value starts a new text. */
void cr_json_end_line(struct cr_json_writer *w);

void cr_json_put_string(struct cr_json_writer *w, const char *key, const char *s);         /* s NULL: null */
void cr_json_put_strings(struct cr_json_writer *w, const char *const *strings, int count); /* a list */
void cr_json_put_int(struct cr_json_writer *w, const char *key, int64_t value);
void cr_json_put_uint(struct cr_json_writer *w, const char *key, uint64_t value);
/* A number with `decimals` digits after the point (%.*f). */
void cr_json_put_fixed(struct cr_json_writer *w, const char *key, double value, int decimals);
/* A number with at most `digits` significant digits (%.*g). */
void cr_json_put_general(struct cr_json_writer *w, const char *key, double value, int digits);
void cr_json_put_bool(struct cr_json_writer *w, const char *key, bool value);
void cr_json_put_null(struct cr_json_writer *w, const char *key);
/* A string of 16 hexadecimal digits: JSON numbers do not hold 64 bits. */
void cr_json_put_hash(struct cr_json_writer *w, const char *key, uint64_t value);

#endif
