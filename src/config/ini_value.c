/* config/ini_value.c: quotes a value so that the INI line reads back without loss; see config/ini.h. */
#include "config/ini.h"

#include <string.h>

static bool value_needs_quotes(const char *value) {
    size_t length = strlen(value);
    if (!length) return false;
    return strpbrk(value, ";#") || value[0] == '"' || value[0] == '\'' || strchr(" \t", value[0]) ||
           strchr(" \t", value[length - 1]);
}

bool cr_ini_can_hold(const char *value, const char **why) {
    size_t length = strlen(value);
    bool   quotes = value_needs_quotes(value);
    *why          = NULL;
    if (length > CR_INI_VALUE_MAX) *why = "is longer than 900 bytes";
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)value[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f) *why = "contains a control character";
    }
    if (quotes && strchr(value, '"') && strchr(value, '\'')) *why = "needs quotes, but contains both kinds of quotes";
    if (quotes && strchr(value, '\\'))
        *why = "needs quotes and contains a backslash, which an INI file cannot represent";
    if (!quotes && length && value[length - 1] == '\\') *why = "ends in a backslash";
    return !*why;
}

void cr_ini_add_value(struct cr_text *text, const char *value) {
    const char *quote = !value_needs_quotes(value) ? "" : strchr(value, '"') ? "'" : "\"";
    cr_text_add(text, "%s%s%s", quote, value, quote);
}
