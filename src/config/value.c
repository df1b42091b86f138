/* config/value.c: parses, prints and compares single values. Every character of a number must be valid, and the number
 * must lie in the range of its key. */
#include "config/keys.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Prints the shortest text that parses back to the value. An exponent must save at least four characters: 100000 is
 * more readable than 1e+05. */
void cr_real_print(double value, char *out, size_t bytes) {
    char   text[40];
    size_t best = SIZE_MAX;
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        size_t cost = strlen(text) + (strchr(text, 'e') ? 4 : 0);
        if (strtod(text, NULL) != value || cost >= best) continue;
        best = cost;
        snprintf(out, bytes, "%s", text);
    }
    CR_ASSERT(best < SIZE_MAX); /* finite values only */
}

/* ---- parsing ---- */

struct reader {
    const struct cr_key *key;
    char                *why;
    size_t               why_bytes;
};

static bool reject(const struct reader *r, const char *fmt, ...) CR_PRINTF(2, 3);
static bool reject(const struct reader *r, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(r->why, r->why_bytes, fmt, args);
    va_end(args);
    return false;
}

static bool is_integer(const char *text) {
    const char *digits = text + (*text == '-' || *text == '+');
    return *digits && !digits[strspn(digits, "0123456789")];
}

static bool read_int(const struct reader *r, const char *what, const char *text, int64_t *out) {
    const bool plain = is_integer(text);
    errno            = 0;
    long long value  = plain ? strtoll(text, NULL, 10) : 0;
    if (!plain || errno == ERANGE || value < r->key->int_min || value > r->key->int_max)
        return reject(r, "%smust be %sfrom %" PRId64 " to %" PRId64, what, plain ? "" : "an integer ", r->key->int_min,
                      r->key->int_max);
    *out = value;
    return true;
}

static bool read_auto(const struct reader *r, const char *text, int64_t *out) {
    *out = 0;
    if (strcasecmp(text, "auto") == 0) return true;
    if (is_integer(text)) return read_int(r, "", text, out);
    return reject(r, "must be an integer from %" PRId64 " to %" PRId64 ", or auto", r->key->int_min, r->key->int_max);
}

static bool read_real(const struct reader *r, const char *what, const char *text, double *out) {
    char low[32], high[32], *end = NULL;
    cr_real_print(r->key->real_min, low, sizeof low);
    cr_real_print(r->key->real_max, high, sizeof high);
    bool   plain = *text && !text[strspn(text, "+-.0123456789eE")]; /* rejects nan, inf, hexadecimal and blanks */
    double value = plain ? strtod(text, &end) : 0;
    if (!plain || end == text || *end) return reject(r, "%smust be a number from %s to %s", what, low, high);
    if (!isfinite(value) || value < r->key->real_min || value > r->key->real_max)
        return reject(r, "%smust be from %s to %s", what, low, high);
    *out = value;
    return true;
}

static bool read_bool(const struct reader *r, const char *text, bool *out) {
    static const char *const words[] = {"no", "yes", "false", "true", "0", "1", "off", "on"};
    for (size_t i = 0; i < CR_COUNT(words); i++) {
        if (strcasecmp(text, words[i]) != 0) continue;
        *out = i % 2;
        return true;
    }
    return reject(r, "must be yes or no (or true/false, on/off, 1/0)");
}

/* The index of a synonym for our word, or -1. The edit distance alone would suggest cpu for gpu. */
static int find_synonym(const struct cr_words *words, const char *text) {
    static const struct {
        const char *word, *ours;
    } names[] = {{"gpu", "cuda"},     {"nvidia", "cuda"},   {"half", "fp16"},
                 {"float16", "fp16"}, {"bfloat16", "bf16"}, {"float32", "fp32"}};
    for (size_t n = 0; n < CR_COUNT(names); n++)
        for (int i = 0; i < words->count && strcasecmp(text, names[n].word) == 0; i++)
            if (strcmp(words->at[i], names[n].ours) == 0) return i;
    return -1;
}

static bool read_enum(const struct reader *r, const char *text, int *out) {
    const struct cr_words *words   = &r->key->words;
    int                    nearest = -1, nearest_distance = 1000, synonym = find_synonym(words, text);
    for (int i = 0; i < words->count; i++) {
        if (strcasecmp(text, words->at[i]) == 0) {
            *out = i;
            return true;
        }
        int distance = cr_edit_distance(text, words->at[i]);
        if (distance < nearest_distance) nearest = i, nearest_distance = distance;
    }
    char   list[512];
    size_t used = 0;
    for (int i = 0; i < words->count && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", words->at[i]);
    if (synonym >= 0 || (*text && nearest_distance <= CR_MAX(1, (int)strlen(text) / 3)))
        return reject(r, "must be one of %s; did you mean %s?", list, words->at[synonym >= 0 ? synonym : nearest]);
    return reject(r, "must be one of %s", list);
}

/* Parses each item of "a, b, c"; "" has no items. */
static bool read_list(const struct reader *r, const char *text, int *count, int64_t *ints, double *reals) {
    const int limit = (int)CR_COUNT(((struct cr_ints *)0)->at);
    *count          = 0;
    if (!*text) return true;
    for (;;) {
        char   item[64], what[32];
        size_t length = strcspn(text, ","), skip = strspn(text, " \t");
        snprintf(what, sizeof what, "item %d ", *count + 1);
        if (*count == limit) return reject(r, "must have at most %d items", limit);
        const char *start = text + CR_MIN(skip, length);
        size_t      used  = (size_t)(text + length - start);
        while (used && (start[used - 1] == ' ' || start[used - 1] == '\t')) used--;
        if (!used) return reject(r, "%sis empty; separate items by one comma", what);
        if (used >= sizeof item) return reject(r, "%sis too long for a number", what);
        snprintf(item, sizeof item, "%.*s", (int)used, start);
        if (ints ? !read_int(r, what, item, &ints[*count]) : !read_real(r, what, item, &reals[*count])) return false;
        ++*count;
        if (!text[length]) return true;
        text += length + 1;
    }
}

bool cr_value_parse(const struct cr_key *key, struct cr_config *config, const char *text, char *why, size_t why_bytes) {
    const struct reader r     = {key, why, why_bytes};
    void               *field = (char *)config + key->offset;
    const char         *cannot;
    *why = 0;
    switch (key->kind) {
    case CR_KEY_INT: return read_int(&r, "", text, field);
    case CR_KEY_AUTO: return read_auto(&r, text, field);
    case CR_KEY_REAL: return read_real(&r, "", text, field);
    case CR_KEY_BOOL: return read_bool(&r, text, field);
    case CR_KEY_ENUM: return read_enum(&r, text, field);
    case CR_KEY_INTS: {
        struct cr_ints list = {0};
        if (!read_list(&r, text, &list.count, list.at, NULL)) return false;
        *(struct cr_ints *)field = list;
        return true;
    }
    case CR_KEY_REALS: {
        struct cr_reals list = {0};
        if (!read_list(&r, text, &list.count, NULL, list.at)) return false;
        *(struct cr_reals *)field = list;
        return true;
    }
    case CR_KEY_TEXT:
        if (!cr_ini_can_hold(text, &cannot)) return reject(&r, "the text %s", cannot);
        *(const char **)field = text;
        return true;
    }
    CR_ASSERT(!"unknown kind of key");
    return false;
}

/* ---- printing ---- */

const char *cr_value_default(const struct cr_key *key, char *buffer, size_t bytes) {
    switch (key->kind) {
    case CR_KEY_AUTO:
    case CR_KEY_INT:
        if (key->kind == CR_KEY_AUTO && !key->int_default) return "auto";
        snprintf(buffer, bytes, "%" PRId64, key->int_default);
        return buffer;
    case CR_KEY_REAL: cr_real_print(key->real_default, buffer, bytes); return buffer;
    case CR_KEY_BOOL: return key->int_default ? "yes" : "no";
    case CR_KEY_ENUM: return key->words.at[key->int_default];
    case CR_KEY_TEXT:
    case CR_KEY_INTS:
    case CR_KEY_REALS: return key->text_default;
    }
    return "";
}

static void print_real(struct cr_text *out, double value) {
    char text[40];
    cr_real_print(value, text, sizeof text);
    cr_text_add(out, "%s", text);
}

void cr_value_print(const struct cr_key *key, const struct cr_config *config, struct cr_text *out) {
    const void *field = cr_key_value(key, config);
    switch (key->kind) {
    case CR_KEY_AUTO:
    case CR_KEY_INT:
        if (key->kind == CR_KEY_AUTO && !*(const int64_t *)field)
            cr_text_add(out, "auto");
        else
            cr_text_add(out, "%" PRId64, *(const int64_t *)field);
        break;
    case CR_KEY_REAL: print_real(out, *(const double *)field); break;
    case CR_KEY_BOOL: cr_text_add(out, "%s", *(const bool *)field ? "yes" : "no"); break;
    case CR_KEY_TEXT: cr_text_add(out, "%s", *(const char *const *)field); break;
    case CR_KEY_ENUM: cr_text_add(out, "%s", key->words.at[*(const int *)field]); break;
    case CR_KEY_INTS: {
        const struct cr_ints *list = field;
        for (int i = 0; i < list->count; i++) cr_text_add(out, "%s%" PRId64, i ? "," : "", list->at[i]);
        break;
    }
    case CR_KEY_REALS: {
        const struct cr_reals *list = field;
        for (int i = 0; i < list->count; i++) {
            if (i) cr_text_add(out, ",");
            print_real(out, list->at[i]);
        }
        break;
    }
    }
}

bool cr_value_equal(const struct cr_key *key, const struct cr_config *a, const struct cr_config *b) {
    const void *left = cr_key_value(key, a), *right = cr_key_value(key, b);
    switch (key->kind) {
    case CR_KEY_AUTO:
    case CR_KEY_INT: return *(const int64_t *)left == *(const int64_t *)right;
    case CR_KEY_REAL: return *(const double *)left == *(const double *)right;
    case CR_KEY_BOOL: return *(const bool *)left == *(const bool *)right;
    case CR_KEY_TEXT: return strcmp(*(const char *const *)left, *(const char *const *)right) == 0;
    case CR_KEY_ENUM: return *(const int *)left == *(const int *)right;
    case CR_KEY_INTS: {
        const struct cr_ints *x = left, *y = right;
        return x->count == y->count && memcmp(x->at, y->at, (size_t)x->count * sizeof x->at[0]) == 0;
    }
    case CR_KEY_REALS: {
        const struct cr_reals *x = left, *y = right;
        bool                   equal = x->count == y->count;
        for (int i = 0; i < x->count && equal; i++) equal = x->at[i] == y->at[i];
        return equal;
    }
    }
    return false;
}
