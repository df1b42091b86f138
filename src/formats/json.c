/* formats/json.c: a strict pull parser for JSON, UTF-8 checks and quoting; see formats/json.h. */
#include "formats/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cr_json_start(struct cr_json *json, char *text, size_t length) {
    *json = (struct cr_json){.text = text, .length = length};
}

static bool fail(struct cr_json *json, size_t at, const char *problem) {
    if (!json->problem) {
        json->problem    = problem;
        json->problem_at = at;
    }
    return false;
}

static void skip_space(struct cr_json *json) {
    while (json->at < json->length) {
        char c = json->text[json->at];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') return;
        json->at++;
    }
}

bool cr_json_take(struct cr_json *json, char c) {
    if (json->problem) return false;
    skip_space(json);
    if (json->at >= json->length || json->text[json->at] != c) return false;
    json->at++;
    return true;
}

bool cr_json_expect(struct cr_json *json, char c) {
    static const struct {
        char        c;
        const char *problem;
    } table[] = {
        {'{', "'{' expected"},        {'}', "',' or '}' expected"}, {'[', "'[' expected"},
        {']', "',' or ']' expected"}, {':', "':' expected"},        {',', "',' expected"},
    };
    if (cr_json_take(json, c)) return true;
    for (size_t i = 0; i < CR_COUNT(table); i++)
        if (table[i].c == c) return fail(json, json->at, table[i].problem);
    return fail(json, json->at, "another character expected");
}

bool cr_json_member(struct cr_json *json, bool *first, char **name) {
    const bool begins = *first;
    *first            = false;
    if (begins && (!cr_json_expect(json, '{') || cr_json_take(json, '}'))) return false;
    if (!begins && !cr_json_take(json, ',')) {
        (void)cr_json_expect(json, '}');
        return false;
    }
    return cr_json_string(json, name) && cr_json_expect(json, ':');
}

bool cr_json_end(struct cr_json *json) {
    if (json->problem) return false;
    skip_space(json);
    return json->at == json->length || fail(json, json->at, "unexpected text after the end of the JSON");
}

bool cr_json_uint(struct cr_json *json, uint64_t *out) {
    if (json->problem) return false;
    skip_space(json);
    size_t   start = json->at;
    uint64_t value = 0;
    while (json->at < json->length && json->text[json->at] >= '0' && json->text[json->at] <= '9') {
        unsigned digit = (unsigned)(json->text[json->at++] - '0');
        if (value > (UINT64_MAX - digit) / 10) return fail(json, start, "the number is too large");
        value = value * 10 + digit;
    }
    if (json->at == start) return fail(json, start, "a non-negative integer expected");
    if (json->at - start > 1 && json->text[start] == '0') return fail(json, start, "a number starts with 0");
    if (json->at < json->length && strchr(".eE", json->text[json->at]) && json->text[json->at])
        return fail(json, start, "an integer without fraction and exponent expected");
    *out = value;
    return true;
}

/* Skips digits at json->at; returns their number. */
static size_t skip_digits(struct cr_json *json) {
    size_t start = json->at;
    while (json->at < json->length && json->text[json->at] >= '0' && json->text[json->at] <= '9') json->at++;
    return json->at - start;
}

static bool skip_char(struct cr_json *json, const char *any) {
    if (json->at >= json->length || !json->text[json->at] || !strchr(any, json->text[json->at])) return false;
    json->at++;
    return true;
}

bool cr_json_number(struct cr_json *json, double *out) {
    char copy[64];
    if (json->problem) return false;
    skip_space(json);
    size_t start = json->at;
    skip_char(json, "-");
    size_t first = json->at, whole = skip_digits(json);
    if (!whole) return fail(json, start, "a number expected");
    if (whole > 1 && json->text[first] == '0') return fail(json, start, "a number starts with 0");
    if (skip_char(json, ".") && !skip_digits(json)) return fail(json, start, "a digit expected after the point");
    if (skip_char(json, "eE")) {
        skip_char(json, "+-");
        if (!skip_digits(json)) return fail(json, start, "digits expected after the exponent sign");
    }
    if (json->at - start >= sizeof copy) return fail(json, start, "a number with too many digits");
    memcpy(copy, json->text + start, json->at - start);
    copy[json->at - start] = 0;
    *out                   = strtod(copy, NULL);
    return true;
}

bool cr_json_word(struct cr_json *json, const char *word) {
    size_t count = strlen(word);
    if (json->problem) return false;
    skip_space(json);
    if (json->length - json->at < count || memcmp(json->text + json->at, word, count) != 0) return false;
    json->at += count;
    return true;
}

static bool skip_plain(struct cr_json *json) {
    char  *text;
    double number;
    if (cr_json_word(json, "true") || cr_json_word(json, "false") || cr_json_word(json, "null")) return true;
    if (json->at < json->length && json->text[json->at] == '"') return cr_json_string(json, &text);
    return cr_json_number(json, &number);
}

/* After a value: skips closing brackets and a comma, up to the place of the next value. */
static bool skip_closing_brackets(struct cr_json *json, const char *open, int *depth) {
    while (*depth && !cr_json_take(json, ',')) {
        if (!cr_json_expect(json, open[*depth - 1] == '{' ? '}' : ']')) return false;
        (*depth)--;
    }
    return !json->problem;
}

bool cr_json_skip(struct cr_json *json) {
    char open[64], *key;
    int  depth = 0;
    do {
        if (depth && open[depth - 1] == '{' && !(cr_json_string(json, &key) && cr_json_expect(json, ':'))) return false;
        const bool object = cr_json_take(json, '{');
        if (object || cr_json_take(json, '[')) {
            if (depth == (int)sizeof open) return fail(json, json->at, "nested too deeply");
            if (cr_json_take(json, object ? '}' : ']')) {
                if (!skip_closing_brackets(json, open, &depth)) return false;
                continue;
            }
            open[depth++] = object ? '{' : '[';
            continue;
        }
        if (!skip_plain(json) || !skip_closing_brackets(json, open, &depth)) return false;
    } while (depth);
    return true;
}

/* ---- UTF-8 ---- */

static size_t utf8_encode(unsigned code, char *out) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    size_t count = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = count; i-- > 1; code >>= 6) out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)((count == 2 ? 0xc0 : count == 3 ? 0xe0 : 0xf0) | code);
    return count;
}

/* ---- strings ---- */

static bool hex4(struct cr_json *json, unsigned *out) {
    *out = 0;
    if (json->length - json->at < 4) return fail(json, json->at, "\\u needs four hexadecimal digits");
    for (int i = 0; i < 4; i++) {
        char     c     = json->text[json->at++];
        unsigned digit = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                         : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (unsigned)(c - 'A' + 10)
                                                : 16;
        if (digit == 16) return fail(json, json->at - 1, "\\u needs four hexadecimal digits");
        *out = *out * 16 + digit;
    }
    return true;
}

/* The code point of a \u escape, after its "\u"; a surrogate pair is one code point. */
static bool unicode_escape(struct cr_json *json, unsigned *code) {
    size_t start = json->at - 2;
    if (!hex4(json, code)) return false;
    if (*code >= 0xd800 && *code <= 0xdbff) {
        unsigned low;
        if (json->length - json->at < 6 || json->text[json->at] != '\\' || json->text[json->at + 1] != 'u')
            return fail(json, start, "an unpaired surrogate");
        json->at += 2;
        if (!hex4(json, &low)) return false;
        if (low < 0xdc00 || low > 0xdfff) return fail(json, start, "an unpaired surrogate");
        *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
    } else if (*code >= 0xdc00 && *code <= 0xdfff) {
        return fail(json, start, "an unpaired surrogate");
    }
    return *code != 0 || fail(json, start, "a zero character in a string");
}

/* Decodes one escape, which starts with the backslash; writes 1 to 4 bytes to *to. */
static bool escape(struct cr_json *json, char **to) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (json->length - json->at < 2) return fail(json, json->at, "the string is not terminated");
    char c = json->text[json->at + 1];
    json->at += 2;
    if (c == 'u') {
        unsigned code;
        if (!unicode_escape(json, &code)) return false;
        *to += utf8_encode(code, *to);
        return true;
    }
    const char *found = c ? strchr(names, c) : NULL;
    if (!found) return fail(json, json->at - 2, "an unknown escape in a string");
    *(*to)++ = values[found - names];
    return true;
}

bool cr_json_string(struct cr_json *json, char **out) {
    if (json->problem) return false;
    skip_space(json);
    if (json->at >= json->length || json->text[json->at] != '"')
        return fail(json, json->at, "a string in quotes expected");
    char *start = json->text + ++json->at, *to = start;
    while (json->at < json->length) {
        unsigned char c = (unsigned char)json->text[json->at];
        if (c == '"') {
            json->at++;
            *to  = 0; /* at or before the closing quote */
            *out = start;
            return true;
        }
        if (c < 0x20) return fail(json, json->at, "a control character in a string");
        if (c == '\\') {
            if (!escape(json, &to)) return false;
            continue;
        }
        size_t step = cr_utf8_sequence(json->text + json->at, json->length - json->at);
        if (!step) return fail(json, json->at, "not valid UTF-8");
        memmove(to, json->text + json->at, step);
        to += step;
        json->at += step;
    }
    return fail(json, json->at, "the string is not terminated");
}

void cr_json_quote(char *out, size_t size, const char *s) {
    CR_ASSERT(size >= 16);
    size_t used = 0, room = size - 13; /* leaves space for an escape (6), "...", two quotes and the 0 */
    out[used++] = '"';
    for (; *s && used < room; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            used += (size_t)snprintf(out + used, size - used, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            used += (size_t)snprintf(out + used, size - used, "\\u%04x", c);
        else
            out[used++] = (char)c;
    }
    if (*s) /* truncated: removes an incomplete UTF-8 sequence */
        while (used > 1 && ((unsigned char)*s & 0xc0) == 0x80) s--, used--;
    snprintf(out + used, size - used, *s ? "...\"" : "\"");
}
