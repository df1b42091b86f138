/* data/lists/file_list.c: reads lists of images. See data/file_list.h. */
#include "data/file_list.h"
#include "formats/csv.h"

#include <string.h>
#include <strings.h>

enum { FILE_COLUMN, LABEL_COLUMN, COLUMNS };

/* Reads the fields of a line. `at`: the places of the columns; in the first line (number 1) they are set. `value`:
 * their texts. *count: the number of fields. */
static cr_status read_line(const char *path, char **text, int64_t number, int at[COLUMNS], const char *value[COLUMNS],
                           int *count) {
    static const char *const names[COLUMNS] = {"file", "label"};
    const char              *field;
    int                      end = ',';
    for (*count = 0; end == ','; ++*count) {
        end = cr_csv_field(text, &field);
        if (end < 0) return CR_FAIL(CR_ERR_FORMAT, "%s:%lld: the quotes are wrong", path, (long long)number);
        for (int k = 0; k < COLUMNS; k++) {
            if (number == 1 && at[k] < 0 && strcasecmp(field, names[k]) == 0) at[k] = *count;
            if (at[k] == *count) value[k] = field;
        }
    }
    return CR_OK;
}

cr_status cr_file_list_read(const char *path, bool labels, struct cr_file_list *out) {
    const char *value[COLUMNS] = {"", ""};
    int         at[COLUMNS]    = {-1, -1}, columns, count;
    *out                       = (struct cr_file_list){.path = path};
    CR_TRY(cr_csv_read(path, &out->text, NULL));
    char *text = cr_csv_start(out->text);
    CR_TRY(read_line(path, &text, 1, at, value, &columns));
    if (at[FILE_COLUMN] < 0 || (labels && at[LABEL_COLUMN] < 0))
        return CR_FAIL(CR_ERR_FORMAT, "%s:1: no column has the name %s: the first line must name the columns, as %s",
                       path, at[FILE_COLUMN] < 0 ? "file" : "label", labels ? "file,label" : "file");
    if (at[LABEL_COLUMN] < 0) value[LABEL_COLUMN] = "";
    for (int64_t number = 2; *text; number++) {
        const bool blank = !text[strspn(text, " \t")] || strchr("\r\n", text[strspn(text, " \t")]);
        CR_TRY(read_line(path, &text, number, at, value, &count));
        if (blank) continue;
        if (count < columns)
            return CR_FAIL(CR_ERR_FORMAT, "%s:%lld: has %d fields, but the first line has %d", path, (long long)number,
                           count, columns);
        if (!*value[FILE_COLUMN] || (labels && !*value[LABEL_COLUMN]))
            return CR_FAIL(CR_ERR_FORMAT, "%s:%lld: the %s is empty", path, (long long)number,
                           *value[FILE_COLUMN] ? "label" : "name of the file");
        CR_GROW(out->row, out->count, out->capacity, 1024);
        out->row[out->count++] = (struct cr_file_row){value[FILE_COLUMN], value[LABEL_COLUMN], number};
    }
    return CR_OK;
}

void cr_file_list_free(struct cr_file_list *list) {
    cr_free(list->text);
    cr_free(list->row);
    *list = (struct cr_file_list){0};
}
