/* core/utf8.c: checks and escapes text that strangers wrote. See core/utf8.h. */
#include "core/utf8.h"

#include <stdio.h>
#include <string.h>

size_t cr_utf8_sequence(const char *bytes, size_t left) {
    const unsigned char *p = (const unsigned char *)bytes;
    if (p[0] < 0x80) return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4) return 0;
    size_t        count = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    unsigned char low   = p[0] == 0xe0 ? 0xa0 : p[0] == 0xf0 ? 0x90 : 0x80;
    unsigned char high  = p[0] == 0xed ? 0x9f : p[0] == 0xf4 ? 0x8f : 0xbf;
    if (left < count || p[1] < low || p[1] > high) return 0;
    for (size_t i = 2; i < count; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    return count;
}

bool cr_utf8_valid(const char *bytes, size_t count) {
    for (size_t at = 0; at < count;) {
        size_t step = cr_utf8_sequence(bytes + at, count - at);
        if (!step) return false;
        at += step;
    }
    return true;
}

/* U+0080 to U+009F are c2 80 to c2 9f. */
static bool is_control(const char *p, size_t length) {
    const unsigned char first = (unsigned char)p[0];
    return first < 0x20 || first == 0x7f || (length == 2 && first == 0xc2 && (unsigned char)p[1] < 0xa0);
}

bool cr_utf8_has_control(const char *s) {
    for (size_t left = strlen(s), step; left; s += step, left -= step) {
        step = CR_MAX(cr_utf8_sequence(s, left), (size_t)1);
        if (is_control(s, step)) return true;
    }
    return false;
}

/* Writes the next character of s in its visible form; returns the number of bytes of s that it covers. */
static size_t visible_character(const char *s, size_t left, const char *plain, char out[16]) {
    const size_t step = cr_utf8_sequence(s, left);
    if (step && (!is_control(s, step) || strchr(plain, *s))) {
        memcpy(out, s, step);
        out[step] = 0;
        return step;
    }
    const size_t bytes = CR_MAX(step, (size_t)1);
    for (size_t i = 0; i < bytes; i++) snprintf(out + 4 * i, 5, "\\x%02x", (unsigned)(unsigned char)s[i]);
    return bytes;
}

/* Appends `bytes` bytes of s, at most `most` in their visible form: of more, those in the middle become "...". Returns
 * false when `out` is full. */
static bool add_line(const char *s, size_t bytes, size_t most, char *out, size_t size, size_t *used) {
    static const char dots[] = "...";
    char              character[16];
    size_t            shown = 0, at = 0, step;
    for (size_t i = 0; i < bytes; i += step, shown += strlen(character))
        step = visible_character(s + i, bytes - i, "\t", character);
    const bool   cut  = shown > most && most > sizeof dots;
    const size_t kept = cut ? most - (sizeof dots - 1) : shown, from = kept / 2, to = shown - (kept - from);
    bool         dotted = false;
    for (size_t i = 0; i < bytes; i += step) {
        step                = visible_character(s + i, bytes - i, "\t", character);
        const size_t length = strlen(character);
        const bool   hidden = cut && at + length > from && at < to;
        const char  *text   = !hidden ? character : dotted ? "" : dots;
        dotted              = dotted || hidden;
        at += length;
        if (*used + strlen(text) >= size) return false;
        memcpy(out + *used, text, strlen(text));
        *used += strlen(text);
    }
    return true;
}

void cr_utf8_visible(const char *s, bool lines, char *out, size_t size) {
    const char  *end  = lines ? strchr(s, '\n') : NULL;
    const size_t most = end ? size / 2 : size - 1;
    size_t       used = 0;
    for (; end; s = end + 1, end = strchr(s, '\n')) {
        if (!add_line(s, (size_t)(end - s), most, out, size, &used) || used + 1 >= size) break;
        out[used++] = '\n';
    }
    if (!end) (void)add_line(s, strlen(s), most, out, size, &used);
    out[used] = 0;
}

/* Appends runs of plain characters at once: most texts have no other characters. */
static void add_visible(struct cr_text *text, const char *s, const char *plain) {
    char        character[16];
    const char *begin = s;
    for (size_t left = strlen(s), step; left; s += step, left -= step) {
        step = visible_character(s, left, plain, character);
        if (strncmp(character, s, step) == 0 && !character[step]) continue;
        cr_text_add_bytes(text, begin, (size_t)(s - begin));
        cr_text_add_bytes(text, character, strlen(character));
        begin = s + step;
    }
    cr_text_add_bytes(text, begin, (size_t)(s - begin));
}

void cr_text_add_visible(struct cr_text *text, const char *s) {
    add_visible(text, s, "");
}

void cr_text_add_visible_lines(struct cr_text *text, const char *s) {
    add_visible(text, s, "\n\t");
}

void cr_text_add_utf8(struct cr_text *text, const char *s) {
    for (size_t left = strlen(s), step; left; s += step, left -= step) {
        const size_t valid = cr_utf8_sequence(s, left);
        cr_text_add_bytes(text, valid ? s : "\xef\xbf\xbd", valid ? valid : 3);
        step = CR_MAX(valid, (size_t)1);
    }
}

int cr_utf8_characters(const char *s) {
    int count = 0;
    for (; *s; s++) count += ((unsigned char)*s & 0xc0) != 0x80;
    return count;
}

int cr_utf8_field(const char *s, int width) {
    return width + (int)strlen(s) - cr_utf8_characters(s);
}
