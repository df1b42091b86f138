/* formats/csv.h: reads CSV files as spreadsheets and scripts write them: with a byte order mark, in quotes, with blanks
 * around fields, with lines that end with \n, \r\n or \r. All readers of CSV files use these functions. */
#ifndef CR_CSV_H
#define CR_CSV_H

/* The text after its byte order mark, if it has one. */
char *cr_csv_start(char *text);
/* Reads a field in place, in quotes or not (RFC 4180, without newlines in fields), and moves *at behind the separator.
 * Blanks around the field and its quotes are left out. Returns the separator: a comma, a line end, or 0 at the end of
 * the text; -1 if the quotes are wrong. */
int cr_csv_field(char **at, const char **out);

#endif
