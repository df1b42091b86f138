/* formats/json.h: a strict scanner for small, known JSON: the caller asks for what must come next. There is no tree and
 * no recursion: the caller's own calls are the grammar, so the depth is fixed by them.
 *
 * Laws
 *   - The text is checked as it is read: valid UTF-8, RFC 8259's escapes and white space, no control characters in
 *     strings, no lone surrogates, no zero characters (names become C strings).
 *   - Strings are decoded in place (a decoded string is never longer): they live as long as the text.
 *   - The first problem sticks: every later call returns false, `problem` and `problem_at` say what and where.
 * Duplicate keys are the caller's business (it alone knows which are allowed to come). */
#ifndef CR_JSON_H
#define CR_JSON_H

#include "core/base.h"

struct cr_json {
    char       *text;
    size_t      length, at;
    const char *problem;    /* NULL: none so far */
    size_t      problem_at; /* byte offset */
};

void cr_json_start(struct cr_json *json, char *text, size_t length);
bool cr_json_take(struct cr_json *json, char c);   /* true, and passed over, when c comes next after white space */
bool cr_json_expect(struct cr_json *json, char c); /* as take, but a problem when it does not come */
bool cr_json_string(struct cr_json *json, char **out);
bool cr_json_uint(struct cr_json *json, uint64_t *out); /* whole, not negative, no fraction, no exponent */
bool cr_json_number(struct cr_json *json, double *out); /* any number of RFC 8259 */
bool cr_json_word(struct cr_json *json,
                  const char     *word);     /* true, and passed over, when true, false or null comes next, as asked */
bool cr_json_skip(struct cr_json *json); /* any value, checked; nested at most 64 deep */
bool cr_json_end(struct cr_json *json);  /* only white space is left */
bool cr_json_fail(struct cr_json *json, size_t at, const char *problem); /* the caller's own problem; returns false */

bool cr_utf8_valid(const char *bytes, size_t count);
/* s in quotes with escapes, cut to fit (size >= 16) with "..." at the cut: for showing strange names in messages. */
void cr_json_quote(char *out, size_t size, const char *s);

#endif
