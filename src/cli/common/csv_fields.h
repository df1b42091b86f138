/* cli/common/csv_fields.h: fields of CSV files, quoted as RFC 4180 says, as valid UTF-8.
 *
 * Spreadsheet programs take a field that begins with = + - @, a tab or a line break for a formula, also in quotes.
 * Names of files and classes come from datasets of others, so such a field gets a character in front. */
#ifndef CR_CSV_FIELDS_H
#define CR_CSV_FIELDS_H

#include "core/base.h"

/* Adds a field. A text that a spreadsheet would take for a formula begins with an apostrophe. */
void cr_csv_add_text(struct cr_text *out, const char *text);
/* Adds the name of a file as a field. A name that a spreadsheet would take for a formula begins with "./", and so still
 * names the file. */
void cr_csv_add_path(struct cr_text *out, const char *path);

#endif
