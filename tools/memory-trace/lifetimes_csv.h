/* tools/memory-trace/lifetimes_csv.h: a memory-planning instance as CSV with the columns id,lower,upper,size; the plan
 * adds the column offset. An interval is half open: [lower, upper).
 *
 * Invariants
 *   - The columns may have any order. A column `offset` is an earlier plan and is ignored. All other columns are
 *     rejected, because they may state a requirement (an alignment, a fixed address) that the plan would not meet.
 *   - Numbers are integers up to 2^62. Errors are reported as file:line.
 *   - cr_lifetimes_check shares no code with any planner.
 *   - This header depends on no device. */
#ifndef CR_LIFETIMES_CSV_H
#define CR_LIFETIMES_CSV_H

#include "compiler/intervals.h"

struct cr_lifetimes {             /* the rows of a file, in its order */
    struct cr_interval *interval; /* [count] */
    const char        **id;       /* [count], pointers into `text` */
    int                *line;     /* [count], line numbers in the file */
    int                 count;
    char               *text;
};

/* Reads a file; the caller frees `out` with cr_lifetimes_free. CR_ERR_IO, CR_ERR_FORMAT, CR_ERR_MEMORY. */
CR_MUST cr_status cr_lifetimes_read(const char *path, struct cr_lifetimes *out);
/* The same for bytes in memory, which are copied; `name` replaces the path in messages. */
CR_MUST cr_status cr_lifetimes_parse(const char *name, const char *bytes, size_t count, struct cr_lifetimes *out);
void              cr_lifetimes_free(struct cr_lifetimes *lifetimes);
/* Prints the rows in the order of the file: id,lower,upper,size,offset. */
void cr_lifetimes_print(const struct cr_lifetimes *lifetimes, struct cr_text *out);
/* Checks a plan. CR_ERR_FORMAT: two intervals overlap in time and in addresses, or one ends above the capacity; the
 * message names them. */
CR_MUST cr_status cr_lifetimes_check(const struct cr_lifetimes *lifetimes, size_t capacity);

#endif
