/* config/bytes.c: parses memory sizes such as 8GiB. */
#include "config/config.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *word;
    double      bytes;
} units[] = {{"B", 1},        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},
             {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"K", 0x1p10},
             {"M", 0x1p20},   {"G", 0x1p30},   {"T", 0x1p40}};

bool cr_bytes_parse(const char *text, size_t *bytes) {
    char *end;
    if (!isdigit((unsigned char)text[0])) return false;
    const double number = strtod(text, &end);
    while (*end == ' ') end++;
    for (size_t i = 0; i < CR_COUNT(units); i++) {
        if (strcmp(end, units[i].word) != 0) continue;
        const double total = number * units[i].bytes;
        if (!(total >= 1 && total <= 0x1p50)) return false;
        *bytes = (size_t)total;
        return true;
    }
    return false; /* a number without a unit is ambiguous */
}
