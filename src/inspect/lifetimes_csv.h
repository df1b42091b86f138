/* inspect/lifetimes_csv.h: a memory-planning instance as CSV: columns id,lower,upper,size, lives half open; the plan
 * adds offset.
 *
 * Laws
 *   - Columns come in any order; a column `offset` is an older plan and ignored; any other is refused, since it may
 * hold a demand (an alignment, a fixed place) that the plan would not meet.
 *   - Numbers are whole, up to 2^62; what is wrong is told as file:line.
 *   - cr_lifetimes_check shares no code with any planner.
 * Knows nothing of programs or devices. */
#ifndef CR_LIVES_CSV_H
#define CR_LIVES_CSV_H

#include "compiler/compiler.h"

struct cr_lifetimes {
    struct cr_interval *interval;
    const char        **id; /* parts of `text` */
    int                *line;
    int                 count;
    char               *text;
};

CR_MUST cr_status cr_lifetimes_read(const char *path, struct cr_lifetimes *out);
/* The same from memory; `name` stands for the file in messages. The bytes are copied. */
CR_MUST cr_status cr_lifetimes_parse(const char *name, const char *bytes, size_t count, struct cr_lifetimes *out);
void              cr_lifetimes_free(struct cr_lifetimes *lives);
/* Rows in the order of the file: id,lower,upper,size,offset. */
void cr_lifetimes_print(const struct cr_lifetimes *lives, struct cr_text *out);
/* CR_ERR_FORMAT, and which, when two lives share a place at one time or one ends above the capacity. */
CR_MUST cr_status cr_lifetimes_check(const struct cr_lifetimes *lives, size_t capacity);

#endif
