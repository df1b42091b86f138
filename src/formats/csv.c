/* formats/csv.c: fields of CSV files. See formats/csv.h. */
#include "formats/csv.h"
#include "core/files.h"

#include <string.h>
#include <strings.h>

enum { CSV_BYTES_MAX = 1 << 30 };

char *cr_csv_start(char *text) {
    return text + (strncmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0);
}

cr_status cr_csv_read(const char *path, char **out, size_t *length) {
    char     *text;
    size_t    bytes;
    cr_status status = CR_OK;
    CR_TRY(cr_file_read(path, CSV_BYTES_MAX, &text, &bytes));
    if (bytes >= 2 && (memcmp(text, "\xff\xfe", 2) == 0 || memcmp(text, "\xfe\xff", 2) == 0))
        CR_FAIL_OUT(CR_ERR_FORMAT, "%s: is text in UTF-16: save it as UTF-8", path);
    if (cr_csv_start(text) != text) memmove(text, text + 3, (bytes -= 3) + 1);
    if (strlen(text) != bytes) CR_FAIL_OUT(CR_ERR_FORMAT, "%s: contains zero bytes: this is no CSV file", path);
    *out    = text;
    *length = bytes;
out:
    if (status != CR_OK) cr_free(text);
    return status;
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
    while (!closed && !strchr("\r\n", *from)) { /* also at the final 0 */
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

/* ---- tables ---- */

/* Reads the fields of a line into the cells of the next row. The first row decides the number of columns. */
static cr_status read_row(struct cr_csv_table *t, char **at, int64_t number) {
    const char **cell = t->cell + t->rows * t->columns, *field;
    int          end = ',', count = 0;
    for (; end == ','; count++) {
        end = cr_csv_field(at, &field);
        if (end < 0)
            return CR_FAIL(CR_ERR_FORMAT,
                           "%s:%lld: a quote is missing, or is not around a whole cell, or a cell has a line break",
                           t->path, (long long)number);
        if (!t->rows || count < t->columns) cell[count] = field;
    }
    if (!t->rows) t->columns = count;
    for (; count < t->columns; count++) cell[count] = "";
    t->line[t->rows++] = number;
    return CR_OK;
}

cr_status cr_csv_table_read(const char *path, struct cr_csv_table *t) {
    size_t bytes, lines = 1;
    *t = (struct cr_csv_table){.path = path};
    CR_TRY(cr_csv_read(path, &t->text, &bytes));
    char *at = t->text;
    for (const char *c = at; *c; c++) lines += *c == '\n' || *c == '\r';
    CR_ALLOC(t->line, lines);
    for (int64_t number = 1; *at; number++) {
        const size_t length = strcspn(at, "\r\n");
        if (strspn(at, " \t,") == length) { /* blank */
            at += length;
            at += *at == '\r' && at[1] == '\n' ? 2 : *at != 0;
            continue;
        }
        if (!t->rows) {
            size_t columns = 1; /* at most */
            for (size_t i = 0; i < length; i++) columns += at[i] == ',';
            CR_ALLOC(t->cell, lines * columns);
        }
        CR_TRY(read_row(t, &at, number));
    }
    return CR_OK;
}

cr_status cr_csv_table_column(const struct cr_csv_table *t, const char *name, int *out) {
    for (*out = 0; t->rows && *out < t->columns; ++*out)
        if (strcasecmp(t->cell[*out], name) == 0) return CR_OK;
    return CR_FAIL(CR_ERR_FORMAT,
                   "%s: no column has the name %s: the first line must name the columns, with commas between them",
                   t->path, name);
}

void cr_csv_table_free(struct cr_csv_table *t) {
    cr_free(t->text);
    cr_free(t->cell);
    cr_free(t->line);
}
