/* data/file_list.h: CSV files with a line for each image, whose columns have names: data.exclude, data.labels, and the
 * images of cresnet features.
 *
 * The first line names the columns, in any order. The columns `file` and `label` count; others are ignored. */
#ifndef CR_FILE_LIST_H
#define CR_FILE_LIST_H

#include "core/base.h"

struct cr_file_row {
    const char *file, *label; /* in the text of the list; label: "" without this column */
    int64_t     line;
};
struct cr_file_list {
    const char         *path; /* of the CSV file, borrowed */
    char               *text;
    struct cr_file_row *row;
    int64_t             count, capacity;
};

/* Reads a list; the caller frees *out with cr_file_list_free, also on failure. CR_ERR_FORMAT names the line: no column
 * `file` (with `labels`: or `label`), too few fields, an empty file or label. CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_file_list_read(const char *path, bool labels, struct cr_file_list *out);
void              cr_file_list_free(struct cr_file_list *list);

#endif
