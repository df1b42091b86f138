/* formats/csv.c: fields of CSV files. See formats/csv.h. */
#include "formats/csv.h"
#include "core/files.h"

#include <string.h>

enum { CSV_BYTES_MAX = 1 << 30 };

cr_status cr_csv_read(const char *path, char **out, size_t *length) {
    char     *text;
    size_t    bytes;
    cr_status status = CR_OK;
    CR_TRY(cr_file_read(path, CSV_BYTES_MAX, &text, &bytes));
    if (bytes >= 2 && (memcmp(text, "\xff\xfe", 2) == 0 || memcmp(text, "\xfe\xff", 2) == 0))
        CR_FAIL_OUT(CR_ERR_FORMAT, "%s: is text in UTF-16: save it as UTF-8", path);
    if (strlen(text) != bytes) CR_FAIL_OUT(CR_ERR_FORMAT, "%s: contains zero bytes: this is no CSV file", path);
    *out = text;
    if (length) *length = bytes;
out:
    if (status != CR_OK) cr_free(text);
    return status;
}

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
