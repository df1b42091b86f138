/* formats/csv.h: reads CSV files as spreadsheets and scripts write them: with a byte order mark, in quotes, with blanks
 * around fields, with lines that end with \n, \r\n or \r. All readers of CSV files use these functions. */
#ifndef CR_CSV_H
#define CR_CSV_H

#include "core/base.h"

/* The text after its byte order mark, if it has one. */
char *cr_csv_start(char *text);
/* Reads a file of text, without its byte order mark; the caller frees *text with cr_free. CR_ERR_FORMAT: more than
 * 1 GiB, UTF-16 or zero bytes. CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_csv_read(const char *path, char **text, size_t *length);
/* Reads a field in place, in quotes or not (RFC 4180, without newlines in fields), and moves *at behind the separator.
 * Blanks around the field and its quotes are left out. Returns the separator: a comma, a line end, or 0 at the end of
 * the text; -1 if the quotes are wrong. */
int cr_csv_field(char **at, const char **out);

/* A file whose first line names the columns. Lines of blanks and commas alone are left out; fields beyond the columns
 * are ignored, missing ones are "". */
struct cr_csv_table {
    const char  *path; /* borrowed */
    char        *text;
    const char **cell; /* [rows][columns], in the text; the first row has the names */
    int64_t     *line; /* [rows]: the numbers of the lines, from 1 */
    int64_t      rows;
    int          columns;
};
/* The caller frees *out with cr_csv_table_free, also after a failure. Errors as of cr_csv_read; CR_ERR_FORMAT names the
 * line of a wrong quote. An empty file has no rows. */
CR_MUST cr_status cr_csv_table_read(const char *path, struct cr_csv_table *out);
/* Finds a column by its name, in upper or lower case. CR_ERR_FORMAT. */
CR_MUST cr_status cr_csv_table_column(const struct cr_csv_table *table, const char *name, int *out);
void              cr_csv_table_free(struct cr_csv_table *table);

#endif
