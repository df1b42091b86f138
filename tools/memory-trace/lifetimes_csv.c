/* tools/memory-trace/lifetimes_csv.c: reads and prints memory-planning instances as CSV. */
#include "tools/memory-trace/lifetimes_csv.h"

#include "core/files.h"
#include "formats/csv.h"

#include <stdlib.h>
#include <string.h>

enum column { COLUMN_ID, COLUMN_LOWER, COLUMN_UPPER, COLUMN_SIZE, COLUMN_OFFSET, COLUMNS };

enum { FILE_BYTES_MAX = 256 << 20 };

#define NUMBER_MAX ((int64_t)1 << 62)

static const char *const column_names[COLUMNS] = {"id", "lower", "upper", "size", "offset"};

struct reader {
    const char          *name;
    char                *next; /* the rest of the text */
    int                  line;
    int                  field_of[COLUMNS]; /* field number of each column, or -1 */
    int                  fields;            /* fields per line */
    struct cr_lifetimes *lifetimes;
    int                  capacity;
    int64_t              sum; /* sum of the sizes */
};

/* ---- lines and fields ---- */

/* Returns the next line that is not empty, without its end; NULL at the end of the text. */
static char *next_line(struct reader *r) {
    while (*r->next) {
        char  *line = r->next;
        size_t n    = strcspn(line, "\n");
        r->next     = line[n] ? line + n + 1 : line + n;
        line[n]     = 0;
        r->line++;
        if (n && line[n - 1] == '\r') line[n - 1] = 0;
        if (line[strspn(line, " \t")]) return line;
    }
    return NULL;
}

/* Returns the next field; *tail is set to the text after it, or to NULL after the last field. NULL: wrong quotes. */
static const char *next_field(char **tail) {
    const char *field;
    const int   end = cr_csv_field(tail, &field);
    if (end != ',') *tail = NULL;
    return end < 0 ? NULL : field;
}

static cr_status fail_quotes(const struct reader *r) {
    return CR_FAIL(CR_ERR_FORMAT, "%s:%d: a quote is missing, or is not around a whole field", r->name, r->line);
}

static cr_status read_header(struct reader *r) {
    char *line = next_line(r);
    if (!line) return CR_FAIL(CR_ERR_FORMAT, "%s: is empty; its first line must be id,lower,upper,size", r->name);
    for (int c = 0; c < COLUMNS; c++) r->field_of[c] = -1;
    while (line) {
        const char *field = next_field(&line);
        int         c     = 0;
        if (!field) return fail_quotes(r);
        while (c < COLUMNS && strcmp(field, column_names[c]) != 0) c++;
        if (c == COLUMNS)
            return CR_FAIL(
                CR_ERR_FORMAT,
                "%s:%d: unknown column %.40s; the columns are id, lower, upper, size, and offset, which is ignored",
                r->name, r->line, field);
        if (r->field_of[c] >= 0) return CR_FAIL(CR_ERR_FORMAT, "%s:%d: duplicate column %s", r->name, r->line, field);
        r->field_of[c] = r->fields++;
    }
    for (int c = 0; c < COLUMN_OFFSET; c++)
        if (r->field_of[c] < 0)
            return CR_FAIL(CR_ERR_FORMAT, "%s:%d: column %s is missing", r->name, r->line, column_names[c]);
    return CR_OK;
}

/* Reads decimal digits, with a sign if `min` is negative. */
static cr_status read_number(const struct reader *r, enum column column, const char *field, int64_t min, int64_t *out) {
    bool    negative = *field == '-';
    int64_t value    = 0;
    size_t  digits   = 0;
    for (const char *c = field + negative; *c >= '0' && *c <= '9'; c++, digits++) {
        if (value > (NUMBER_MAX - (*c - '0')) / 10)
            return CR_FAIL(CR_ERR_FORMAT, "%s:%d: %s %.40s is larger than 2^62", r->name, r->line, column_names[column],
                           field);
        value = value * 10 + (*c - '0');
    }
    if (!digits || field[(size_t)negative + digits])
        return CR_FAIL(CR_ERR_FORMAT, "%s:%d: %s must be a whole number, not \"%.40s\"", r->name, r->line,
                       column_names[column], field);
    *out = negative ? -value : value;
    if (*out < min)
        return CR_FAIL(CR_ERR_FORMAT, "%s:%d: %s must not be negative", r->name, r->line, column_names[column]);
    return CR_OK;
}

static cr_status reserve(struct reader *r) {
    if (r->lifetimes->count < r->capacity) return CR_OK;
    int   capacity = CR_MAX(64, 2 * r->capacity); /* no overflow: a file has fewer than 2^28 lines */
    void *interval = cr_realloc(r->lifetimes->interval, (size_t)capacity, sizeof *r->lifetimes->interval);
    if (!interval) return CR_NO_MEMORY((size_t)capacity * sizeof *r->lifetimes->interval);
    r->lifetimes->interval = interval;
    void *id               = cr_realloc(r->lifetimes->id, (size_t)capacity, sizeof *r->lifetimes->id);
    if (!id) return CR_NO_MEMORY((size_t)capacity * sizeof *r->lifetimes->id);
    r->lifetimes->id = id;
    void *line       = cr_realloc(r->lifetimes->line, (size_t)capacity, sizeof *r->lifetimes->line);
    if (!line) return CR_NO_MEMORY((size_t)capacity * sizeof *r->lifetimes->line);
    r->lifetimes->line = line;
    r->capacity        = capacity;
    return CR_OK;
}

static cr_status read_interval(struct reader *r, char *line) {
    const char *field[COLUMNS] = {0};
    int         fields         = 0;
    int64_t     size;
    for (; line; fields++) {
        const char *text = next_field(&line);
        if (!text) return fail_quotes(r);
        for (int c = 0; c < COLUMNS; c++)
            if (r->field_of[c] == fields) field[c] = text;
    }
    if (fields != r->fields)
        return CR_FAIL(CR_ERR_FORMAT, "%s:%d: %d fields, the first line has %d", r->name, r->line, fields, r->fields);
    if (!*field[COLUMN_ID] || strpbrk(field[COLUMN_ID], ",\""))
        return CR_FAIL(CR_ERR_FORMAT, "%s:%d: id must be a name or a number without commas and quotes", r->name,
                       r->line);
    CR_TRY(reserve(r));
    struct cr_interval *interval = &r->lifetimes->interval[r->lifetimes->count];
    CR_TRY(read_number(r, COLUMN_LOWER, field[COLUMN_LOWER], INT64_MIN, &interval->lower));
    CR_TRY(read_number(r, COLUMN_UPPER, field[COLUMN_UPPER], INT64_MIN, &interval->upper));
    CR_TRY(read_number(r, COLUMN_SIZE, field[COLUMN_SIZE], 0, &size));
    if (interval->lower >= interval->upper)
        return CR_FAIL(CR_ERR_FORMAT, "%s:%d: lower must be below upper", r->name, r->line);
    if (size > INT64_MAX - 1 - r->sum)
        return CR_FAIL(CR_ERR_FORMAT, "%s:%d: the sum of the sizes reaches 2^63 - 1", r->name, r->line);
    r->sum += size;
    interval->size                          = (size_t)size;
    r->lifetimes->line[r->lifetimes->count] = r->line;
    r->lifetimes->id[r->lifetimes->count++] = field[COLUMN_ID];
    return CR_OK;
}

struct named {
    const char *id;
    int         line;
};

static int compare_names(const void *a, const void *b) {
    const struct named *s = a, *t = b;
    int                 order = strcmp(s->id, t->id);
    return order ? order : s->line - t->line;
}

static cr_status check_unique_ids(const struct reader *r) {
    const struct cr_lifetimes *l      = r->lifetimes;
    struct named              *sorted = cr_alloc((size_t)l->count, sizeof *sorted);
    cr_status                  status = CR_OK;
    if (!sorted) return CR_NO_MEMORY((size_t)l->count * sizeof *sorted);
    for (int i = 0; i < l->count; i++) sorted[i] = (struct named){l->id[i], l->line[i]};
    qsort(sorted, (size_t)l->count, sizeof *sorted, compare_names);
    for (int i = 1; i < l->count && status == CR_OK; i++)
        if (strcmp(sorted[i - 1].id, sorted[i].id) == 0)
            status = CR_FAIL(CR_ERR_FORMAT, "%s:%d: duplicate id %.40s, first used in line %d", r->name, sorted[i].line,
                             sorted[i].id, sorted[i - 1].line);
    cr_free(sorted);
    return status;
}

static cr_status read_all(struct reader *r) {
    CR_TRY(read_header(r));
    for (char *line; (line = next_line(r)) != NULL;) CR_TRY(read_interval(r, line));
    return check_unique_ids(r);
}

/* ---- public functions ---- */

void cr_lifetimes_free(struct cr_lifetimes *lifetimes) {
    cr_free(lifetimes->interval);
    cr_free(lifetimes->id);
    cr_free(lifetimes->line);
    cr_free(lifetimes->text);
    *lifetimes = (struct cr_lifetimes){0};
}

/* Takes ownership of `text`. */
static cr_status parse_text(const char *name, char *text, size_t count, struct cr_lifetimes *out) {
    struct cr_lifetimes lifetimes = {.text = text};
    struct reader       r         = {.name = name, .next = text, .lifetimes = &lifetimes};
    cr_status           status    = CR_OK;
    if (strlen(text) != count)
        CR_FAIL_OUT(CR_ERR_FORMAT, "%s: has a 0 byte at offset %zu: not a text file", name, strlen(text));
    r.next = cr_csv_start(text);
    CR_TRY_OUT(read_all(&r));
out:
    if (status != CR_OK)
        cr_lifetimes_free(&lifetimes);
    else
        *out = lifetimes;
    return status;
}

cr_status cr_lifetimes_parse(const char *name, const char *bytes, size_t count, struct cr_lifetimes *out) {
    char *text = cr_alloc(count + 1, 1);
    if (!text) return CR_NO_MEMORY(count + 1);
    if (count) memcpy(text, bytes, count);
    return parse_text(name, text, count, out);
}

cr_status cr_lifetimes_read(const char *path, struct cr_lifetimes *out) {
    char  *text;
    size_t count;
    CR_TRY(cr_file_read(path, FILE_BYTES_MAX, &text, &count));
    return parse_text(path, text, count, out);
}

void cr_lifetimes_print(const struct cr_lifetimes *l, struct cr_text *out) {
    cr_text_add(out, "id,lower,upper,size,offset\n");
    for (int i = 0; i < l->count; i++)
        cr_text_add(out, "%s,%lld,%lld,%zu,%zu\n", l->id[i], (long long)l->interval[i].lower,
                    (long long)l->interval[i].upper, l->interval[i].size, l->interval[i].offset);
}
