/* core/utf8.h: text that strangers wrote: file, class and tensor names. It may be no UTF-8 and may contain control
 * characters, which change colours, titles or earlier lines of a terminal. */
#ifndef CR_UTF8_H
#define CR_UTF8_H

#include "core/base.h"

/* The length of the valid UTF-8 sequence at p, of which `left` >= 1 bytes can be read. 0: it is invalid, that is
 * overlong, a surrogate, or above U+10FFFF. */
size_t cr_utf8_sequence(const char *p, size_t left);
bool   cr_utf8_valid(const char *bytes, size_t count);
/* True when s has a control character (U+0000 to U+001F, U+007F to U+009F). */
bool cr_utf8_has_control(const char *s);
/* Copies s to `out` of `size` > 0 bytes. Control characters and invalid bytes are written as \xNN. `lines`: newlines
 * stay. Tabs stay. A text that is too long loses whole characters in the middle, where "..." replaces them: the end of
 * a message says what is wrong with a long path. Of several lines, each has at most half of the size, and lines at the
 * end are left out. */
void cr_utf8_visible(const char *s, bool lines, char *out, size_t size);
/* Appends s in the same form, with newlines and tabs as \xNN: for names in tables. */
void cr_text_add_visible(struct cr_text *text, const char *s);
/* The same; newlines and tabs stay. */
void cr_text_add_visible_lines(struct cr_text *text, const char *s);
/* The number of characters of a UTF-8 text, which is about its width in columns of a terminal. */
int cr_utf8_characters(const char *s);
/* The printf field width, in bytes, in which s has `width` characters: for "%-*s" in tables. */
int cr_utf8_field(const char *s, int width);
/* Appends s with U+FFFD in place of each invalid byte: for CSV files, which are UTF-8. */
void cr_text_add_utf8(struct cr_text *text, const char *s);

#endif
