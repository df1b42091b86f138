/* formats/json.h: a strict pull parser for small JSON texts of a known structure.
 *
 * The caller requests the expected next token. There is no tree and no recursion: the caller's calls are the grammar.
 *
 * Invariants
 *   - The text is validated as it is read: UTF-8, escapes and white space of RFC 8259, no control characters in
 *     strings, no unpaired surrogates, no zero characters (names become C strings).
 *   - Strings are decoded in place (a decoded string is never longer) and are valid as long as the text.
 *   - After the first error every call returns false; `problem` and `problem_at` describe that error.
 * The caller detects duplicate keys. */
#ifndef CR_JSON_H
#define CR_JSON_H

#include "core/utf8.h"

struct cr_json {
    char       *text;
    size_t      length, at;
    const char *problem;    /* NULL without an error */
    size_t      problem_at; /* byte offset */
};

/* Starts to parse `text`, which the parser changes in place and which must outlive the parser. */
void cr_json_start(struct cr_json *json, char *text, size_t length);
bool cr_json_take(struct cr_json *json, char c);   /* skips white space; consumes c if it is next, else returns false */
bool cr_json_expect(struct cr_json *json, char c); /* like take, but sets an error if c is not next */
bool cr_json_string(struct cr_json *json, char **out);
/* Moves to the value of the next member of an object; *first is true before the first one. False at the end of the
 * object, and with an error otherwise. */
bool cr_json_member(struct cr_json *json, bool *first, char **name);
bool cr_json_uint(struct cr_json *json, uint64_t *out);    /* a non-negative integer without fraction and exponent */
bool cr_json_number(struct cr_json *json, double *out);    /* any number of RFC 8259 */
bool cr_json_word(struct cr_json *json, const char *word); /* consumes `word` (true, false or null) if it is next */
bool cr_json_skip(struct cr_json *json);                   /* validates and skips any value, nested at most 64 deep */
bool cr_json_end(struct cr_json *json);                    /* true if only white space remains, else sets an error */

/* Writes s in quotes with escapes, truncated with "..." to fit (size >= 16): shows arbitrary names in messages. */
void cr_json_quote(char *out, size_t size, const char *s);

#endif
