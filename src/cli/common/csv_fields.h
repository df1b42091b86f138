/* cli/common/csv_fields.h: fields of CSV files, quoted as RFC 4180 says, as valid UTF-8.
 *
 * Spreadsheet programs take a field that begins with = + - @, a tab or a line break for a formula, also in quotes.
 * Names of files and classes come from datasets of others, so such a field gets a character in front. */
#ifndef CR_CSV_FIELDS_H
#define CR_CSV_FIELDS_H

#include "session/scores/confusion.h"

/* Adds a field. A text that a spreadsheet would take for a formula begins with an apostrophe. */
void cr_csv_add_text(struct cr_text *out, const char *text);
/* Adds the name of a file as a field. A name that a spreadsheet would take for a formula begins with "./", and so still
 * names the file. */
void cr_csv_add_path(struct cr_text *out, const char *path);

/* The confusion matrix as a table: a row for each label, a column for each predicted class. names: [classes] */
void cr_csv_add_matrix(struct cr_text *csv, const struct cr_confusion *c, const char *const *names);
/* As a list: a line for each cell that is not 0, by label and predicted class. A table of more classes than
 * CR_CSV_TABLE_CLASSES would have gigabytes of zeros. */
void cr_csv_add_cells(struct cr_text *csv, const struct cr_confusion *c, const char *const *names);
enum { CR_CSV_TABLE_CLASSES = 5000 };

#endif
