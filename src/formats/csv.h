/* formats/csv.h: reads CSV files as spreadsheets and scripts write them: with a byte order mark, in quotes, with blanks
 * around fields, with lines that end with \n, \r\n or \r. All readers of CSV files use these functions. */
#ifndef CR_CSV_H
#define CR_CSV_H

#include "core/base.h"

/* Reads a file of text; the caller frees *text with cr_free. `length` may be NULL. CR_ERR_FORMAT: more than 1 GiB,
 * UTF-16 or zero bytes. CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_csv_read(const char *path, char **text, size_t *length);
/* The text after its byte order mark, if it has one. */
char *cr_csv_start(char *text);
/* Reads a field in place, in quotes or not (RFC 4180, without newlines in fields), and moves *at behind the separator.
 * Blanks around the field and its quotes are left out. Returns the separator: a comma, a line end, or 0 at the end of
 * the text; -1 if the quotes are wrong. */
int cr_csv_field(char **at, const char **out);

#endif
