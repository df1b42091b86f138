/* formats/csv.c: fields of CSV files. See formats/csv.h. */
#include "formats/csv.h"

#include <stdbool.h>
#include <string.h>

char *cr_csv_start(char *text) {
    return text + (strncmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0);
}

static char *skip_blanks(char *s) {
    return s + strspn(s, " \t");
}

int cr_csv_field(char **at, const char **out) {
    char      *from   = skip_blanks(*at), *to;
    const bool quoted = *from == '"';
    bool       closed = !quoted;
    from += quoted;
    *out = to = from;
    if (!quoted) {
        to = from += strcspn(from, ",\r\n");
        while (to > *out && (to[-1] == ' ' || to[-1] == '\t')) to--;
    }
    while (!closed && *from && *from != '\n') {
        if (*from == '"' && *++from != '"')
            closed = true;
        else
            *to++ = *from++;
    }
    if (quoted) from = skip_blanks(from);
    const int end = *from;
    if (!closed || (end && !strchr(",\r\n", end))) return -1;
    if (*from) from += end == '\r' && from[1] == '\n' ? 2 : 1;
    *to = 0;
    *at = from;
    return end;
}
